//! Limits, while a server is down.

use super::*;
use amphi_types::{Account, AccountKind, Amount, Layout, Limits, Pattern};

const GROUP: Account = Account { kind: AccountKind::Group, id: 0 };

async fn write_block(m: &Mount<'_>, object: ObjectId, offset: u64) -> Result<()> {
    let op = Request::Write {
        object,
        offset,
        generation: 0,
        mtime: Timespec::default(),
        server_lock: true,
        kill_suidgid: false,
        checksums: Default::default(),
        cover: Default::default(),
    };
    m.send(op, Some(Buf::zeroed(4096))).await.0.map(drop)
}

async fn blocks_used(m: &Mount<'_>) -> u64 {
    match m.call(Request::Account { account: GROUP }).await {
        Ok(Reply::Accounts { accounts, .. }) => accounts[0].used.blocks,
        other => panic!("{other:?}"),
    }
}

/// Goal: a server that has restarted admits writes of users with limits although another server is down that knows the
/// owners of files whose stripes it has; and it counts them when that server is back. Method: two servers are killed,
/// of which one has the inode of a file with a stripe on the other. The other one is started, and a file of its own is
/// written.
#[test]
fn a_server_that_is_down_does_not_stop_writes() {
    let world = World::new(425, &[1, 1, 1], 1);
    let run = async {
        let mut servers = world.start_all().await;
        let m = world.mount_everywhere("a", 1).await;
        let (d, e) = (m.dir_at(1).await, m.dir_at(2).await);
        let here = m.open_new(d, "here").await.unwrap().attr.ino;
        let wide = m.open_new(e, "wide").await.unwrap().attr.ino;
        assert_eq!((here.target(), wide.target()), (TargetId(1), TargetId(2)));
        m.opened(here);
        m.opened(wide);
        let layout = Layout { pattern: Pattern::StripedNear, stripe_size: 64 << 10, stripe_count: 3, pool: 3 };
        m.call(Request::SetLayout { ino: wide, layout: Some(layout), advice: None }).await.unwrap();
        m.call(Request::Spread { ino: wide }).await.unwrap();
        write_block(&m, ObjectId { ino: wide, stripe: 2 }, 2 << 16).await.unwrap();
        let limits = Limits { hard: Amount { blocks: 1000, inodes: 0 }, ..Limits::default() };
        m.call(Request::SetLimits { account: GROUP, limits }).await.unwrap();
        assert_eq!(blocks_used(&m).await, 1);
        for at in [1, 2] {
            crash(&world, at, CrashKind::Process);
            servers[at] = None;
        }
        servers[1] = Some(world.start(1).await.unwrap());
        let env = world.sim.node("client");
        let begun = env.now();
        write_block(&m, ObjectId { ino: here, stripe: 0 }, 0).await.unwrap();
        let waited = env.now().since(begun);
        assert!(waited > Duration::from_secs(5) && waited < Duration::from_secs(15), "{waited:?}");
        servers[2] = Some(world.start(2).await.unwrap());
        sleep(&world, Duration::from_secs(5)).await;
        assert_eq!(blocks_used(&m).await, 2);
    };
    world.sim.block_on(run).unwrap();
}
