//! Eviction of one of several mounts of several servers, and the effects of its last messages.

use super::*;
use crate::tests::company::lock;
use amphi_types::{ByteRange, Layout, Pattern, SetAttr};
use amphi_wire::{LockExtent, LockMode};
use futures_util::future::join;

fn write(ino: Ino, byte: u8) -> (Request, Option<Buf>) {
    let object = ObjectId { ino, stripe: 0 };
    let (mtime, generation) = (Timespec::default(), 0);
    let op = Request::Write {
        object,
        offset: 0,
        generation,
        mtime,
        server_lock: false,
        kill_suidgid: false,
        checksums: Default::default(),
        cover: Default::default(),
    };
    let mut payload = Buf::zeroed(4096);
    payload.fill(byte);
    (op, Some(payload))
}

async fn writes(m: &Mount<'_>, ino: Ino, byte: u8) -> Result<()> {
    let (op, payload) = write(ino, byte);
    m.send(op, payload).await.0.map(drop)
}

/// First byte of a file.
async fn first_byte(m: &Mount<'_>, ino: Ino) -> u8 {
    let object = ObjectId { ino, stripe: 0 };
    let op = Request::Read { object, range: ByteRange::new(0, 4096), server_lock: false, advice: Default::default() };
    let link = m.link_of(ino.target()).await;
    let call = Call { target: ino.target(), cred: Cred::root(), op };
    let (answer, data) = link.call(Lane::Normal, call, None, 0).await.unwrap();
    answer.result.unwrap();
    data.expect("bytes")[0]
}

fn evictions(server: &Option<Rc<Server<SimEnv>>>) -> u64 {
    server.as_ref().unwrap().worker.counters.evictions.get()
}

/// Goal: if one server evicts a mount, the session ends on all servers. Waiting mounts get its locks everywhere within
/// the deadline, and none of its later messages has an effect. Method: two mounts have a lock and an open file on each
/// server. One of them does not answer one server: first the master, then another server.
#[test]
fn one_server_evicts_for_all() {
    for silent_at in [0, 1] {
        let world = World::new(410 + silent_at as u64, &[1, 1, 1], 1);
        let run = async {
            let servers = world.start_all().await;
            let a = world.mount_everywhere("a", 1).await;
            let b = world.mount_everywhere("b", 2).await;
            let mut files = Vec::new();
            for target in 0..3 {
                let dir = a.dir_at(target).await;
                let f = a.create(dir, "f").await.unwrap();
                b.call(Request::Open { ino: f, access: RW, exec: false }).await.unwrap();
                b.call(lock(f, LockMode::Write, 0, 4096)).await.unwrap();
                writes(&b, f, 1).await.unwrap();
                files.push(f);
            }
            b.held(silent_at).deaf.set(true);
            let env = world.sim.node("client");
            let begun = env.now();
            a.call(lock(files[silent_at], LockMode::Write, 0, 4096)).await.expect("granted in the end");
            let took = env.now().since(begun);
            assert!(took >= Duration::from_secs(29) && took < Duration::from_secs(33), "{took:?}");
            let begun = env.now();
            b.set_deaf(true);
            for f in &files {
                a.call(lock(*f, LockMode::Write, 0, 4096)).await.expect("granted");
                // The client of the test connects again under its id, as a new session, to which its locks do not
                // belong; it has opened nothing in it.
                assert_eq!(first_byte(&a, *f).await, 1);
            }
            assert!(env.now().since(begun) < Duration::from_secs(5), "its other locks went with it");
            assert_eq!(evictions(&servers[0]), 1, "the master knows");
        };
        world.sim.block_on(run).unwrap();
    }
}

/// Goal: if the master evicts a mount while another server is cut off from the master, the mount keeps its state on
/// that server and loses it on all others. When that server learns of the eviction, it drops the state, and late writes
/// fail. No operation waits on other servers. Method: the servers are cut off from each other; the evicted mount writes
/// before and after the cut is healed.
#[test]
fn a_server_that_hears_later_ends_the_session() {
    let world = World::new(415, &[1, 1], 1);
    let run = async {
        let servers = world.start_all().await;
        let a = world.mount_everywhere("a", 1).await;
        let b = world.mount_everywhere("b", 2).await;
        let mut files = Vec::new();
        for target in 0..2 {
            let f = a.create(a.dir_at(target).await, "f").await.unwrap();
            b.call(Request::Open { ino: f, access: RW, exec: false }).await.unwrap();
            b.call(lock(f, LockMode::Write, 0, 4096)).await.unwrap();
            files.push(f);
        }
        world.sim.cut("s0", "s1");
        // The connection is cut, so that the client does not come back.
        world.sim.cut("b", "s0");
        let env = world.sim.node("client");
        a.call(lock(files[0], LockMode::Write, 0, 4096)).await.expect("the master evicts it");
        writes(&b, files[1], 2).await.expect("its lock there holds");
        let granted = Cell::new(false);
        let waits = async {
            a.call(lock(files[1], LockMode::Write, 0, 4096)).await.expect("granted");
            granted.set(true);
        };
        b.set_deaf(true);
        let heals = async {
            env.sleep(Duration::from_secs(5)).await;
            assert!(!granted.get());
            world.sim.heal("s0", "s1");
        };
        let begun = env.now();
        join(waits, heals).await;
        assert!(env.now().since(begun) < Duration::from_secs(10), "as soon as it hears of it");
        assert_eq!(first_byte(&a, files[1]).await, 2);
        let (op, payload) = write(files[1], 3);
        let late = amphi_env::timeout(&env, Duration::from_secs(10), b.send(op, payload)).await;
        assert!(late.is_none_or(|(result, _)| result.is_err()), "too late");
        assert_eq!(first_byte(&a, files[1]).await, 2);
        drop(servers);
    };
    world.sim.block_on(run).unwrap();
}

/// Goal: a server that is cut off from the master serves several mounts for a minute, and then makes them wait until
/// the connection is back. A mount in sole mode is served all the time. Method: the servers are cut off from each other
/// for two minutes.
#[test]
fn a_server_without_the_master_stops() {
    for mounts in [1, 2] {
        let world = World::new(418, &[1, 1], 1);
        let run = async {
            let _servers = world.start_all().await;
            let a = world.mount_everywhere("a", 1).await;
            let _b = if mounts == 2 { Some(world.mount_everywhere("b", 2).await) } else { None };
            let dir = a.dir_at(1).await;
            world.sim.cut("s0", "s1");
            sleep(&world, Duration::from_secs(50)).await;
            a.create(dir, "within").await.expect("it goes on");
            sleep(&world, Duration::from_secs(20)).await;
            let done = Cell::new(false);
            let creates = async {
                a.create(dir, "after").await.expect("in the end");
                done.set(true);
            };
            let heals = async {
                sleep(&world, Duration::from_secs(20)).await;
                assert_eq!(done.get(), mounts == 1);
                world.sim.heal("s0", "s1");
            };
            join(creates, heals).await;
        };
        world.sim.block_on(run).unwrap();
    }
}

/// Goal: a truncate of a mount may wait for another server when the mount is evicted. It removes no bytes there that
/// other mounts have written since, even if the file's own server is restarted meanwhile. Method: the file's server
/// cannot reach the server with the second stripe, on which the mount does not answer. Another mount writes there,
/// which evicts the first mount. Then the servers reach each other again.
#[test]
fn a_cut_of_an_evicted_mount_takes_nothing_of_others() {
    for (seed, restarts) in [(430, false), (431, true)] {
        let world = World::new(seed, &[1, 1, 1], 1);
        let run = async {
            let mut servers = world.start_all().await;
            let a = world.mount_everywhere("a", 1).await;
            let b = world.mount_everywhere("b", 2).await;
            let dir = a.dir_at(1).await;
            let f = a.create(dir, "f").await.unwrap();
            let layout = Layout { pattern: Pattern::Striped, stripe_size: 64 << 10, stripe_count: 2, pool: 3 };
            a.call(Request::SetLayout { ino: f, layout: Some(layout), advice: None }).await.unwrap();
            a.call(Request::Spread { ino: f }).await.unwrap();
            let (object, offset) = (ObjectId { ino: f, stripe: 1 }, 64 << 10);
            let put = async |m: &Mount<'_>, byte: u8| {
                let (mtime, generation) = (Timespec::default(), 0);
                let op = Request::Write {
                    object,
                    offset,
                    generation,
                    mtime,
                    server_lock: true,
                    kill_suidgid: false,
                    checksums: Default::default(),
                    cover: Default::default(),
                };
                let mut payload = Buf::zeroed(4096);
                payload.fill(byte);
                m.send(op, Some(payload)).await.0.map(drop)
            };
            put(&a, 1).await.unwrap();
            // The stripe's target knows that the other mount has the file open.
            b.call(Request::Open { ino: f, access: RW, exec: false }).await.unwrap();
            put(&b, 1).await.unwrap();
            let range = ByteRange::new(0, u64::MAX);
            let lock = Request::LockEnqueue { object, mode: LockMode::Write, range, extent: LockExtent::Grown };
            a.call(lock).await.unwrap();
            a.held(2).deaf.set(true);
            world.sim.cut("s1", "s2");
            let failed = Cell::new(None);
            let truncate = async {
                let set = SetAttr { size: Some(0), ..SetAttr::default() };
                failed.set(Some(a.call(Request::SetAttr { ino: f, set }).await.map(drop)));
                std::future::pending::<()>().await;
            };
            let story = async {
                sleep(&world, Duration::from_secs(1)).await;
                put(&b, 2).await.unwrap();
                if restarts {
                    crash(&world, 1, CrashKind::Process);
                    servers[1] = None;
                    servers[1] = Some(world.start(1).await.unwrap());
                    sleep(&world, Duration::from_secs(5)).await;
                }
                world.sim.heal("s1", "s2");
                sleep(&world, Duration::from_secs(40)).await;
            };
            futures_util::future::select(std::pin::pin!(truncate), std::pin::pin!(story)).await;
            assert!(restarts || matches!(failed.get(), Some(Err(Errno::Io))), "{:?}", failed.get());
            let op = Request::Read {
                object,
                range: ByteRange::at(offset, 4096),
                server_lock: true,
                advice: Default::default(),
            };
            let link = b.link_of(TargetId(2)).await;
            let call = Call { target: TargetId(2), cred: Cred::root(), op };
            let (answer, data) = link.call(Lane::Normal, call, None, 0).await.unwrap();
            assert_eq!(answer.result, Ok(Reply::Data));
            assert!(data.is_some_and(|d| d.len() == 4096 && d.iter().all(|b| *b == 2)), "{restarts}: cut");
            assert_eq!(b.stat(f).await.unwrap().size, offset + 4096);
            b.goodbye().await;
        };
        world.sim.block_on(run).unwrap();
    }
}

/// Goal: if another server's disk cannot execute a truncate, the truncate fails and has ended: the file can be
/// truncated and used again. Method: the block at the cut cannot be read.
#[test]
fn a_cut_that_another_disk_refuses_fails() {
    use amphi_env::sim::DiskOpKind;
    use amphi_types::SetAttr;
    let world = World::new(432, &[1, 1], 1);
    let run = async {
        let servers = world.start_all().await;
        let a = world.mount_everywhere("a", 1).await;
        let f = a.create(Ino::ROOT, "f").await.unwrap();
        a.call(Request::Spread { ino: f }).await.unwrap();
        let (object, offset, mtime) = (ObjectId { ino: f, stripe: 1 }, 5 << 20, Timespec::default());
        let op = Request::Write {
            object,
            offset,
            generation: 0,
            mtime,
            server_lock: true,
            kill_suidgid: false,
            checksums: Default::default(),
            cover: Default::default(),
        };
        // The write is too large to be accepted into memory, so the block at the cut is only on the disk.
        a.send(op, Some(Buf::zeroed(1 << 20))).await.0.unwrap();
        let env = world.sim.node("client");
        let cut = async || {
            let set = SetAttr { size: Some(offset + 100), ..SetAttr::default() };
            amphi_env::timeout(&env, Duration::from_secs(30), a.inode(Request::SetAttr { ino: f, set })).await
        };
        world.sim.on_disk_op("s1", |op| (op.kind == DiskOpKind::Read).then_some(std::io::ErrorKind::Other));
        assert_eq!(cut().await.expect("in time").map(drop), Err(Errno::Io));
        world.sim.clear_disk_hook("s1");
        assert_eq!(cut().await.expect("in time").map(|view| view.attr.size), Ok(offset + 100));
        a.goodbye().await;
        world.stop_all(servers).await;
        let report = world.fsck().await;
        assert!(report.is_clean() && report.pending.is_empty(), "{report:#?}");
    };
    world.sim.block_on(run).unwrap();
}

/// Goal: a server that is down affects no other server. A mount whose session was ended may have had an operation under
/// way that waits for this server. The server of that operation continues with the master and serves the other mounts.
/// Method: a mount truncates a file whose bytes are on a server that is down, and dies. Then only time passes, and
/// later the server is started again.
#[test]
fn a_server_that_is_down_takes_no_other_along() {
    let world = World::new(417, &[1, 1, 1], 1);
    let run = async {
        let mut servers = world.start_all().await;
        let a = world.mount_everywhere("a", 1).await;
        let b = world.mount_everywhere("b", 2).await;
        // A third mount joins, so that the end of b leaves no mount in sole mode.
        let _c = world.mount_everywhere("c", 3).await;
        let dir = a.dir_at(1).await;
        // b caches nothing of what a changes later.
        let own = a.mkdir(dir, &dir_on(dir, 1, 3)).await.unwrap();
        let f = b.create(dir, "f").await.unwrap();
        let layout = Layout { pattern: Pattern::Striped, stripe_size: 1 << 20, stripe_count: 3, pool: 3 };
        b.call(Request::SetLayout { ino: f, layout: Some(layout), advice: None }).await.unwrap();
        b.call(Request::Spread { ino: f }).await.unwrap();
        for stripe in 0..3u32 {
            let (object, offset) = (ObjectId { ino: f, stripe }, u64::from(stripe) << 20);
            let (mtime, generation) = (Timespec::default(), 0);
            let op = Request::Write {
                object,
                offset,
                generation,
                mtime,
                server_lock: true,
                kill_suidgid: false,
                checksums: Default::default(),
                cover: Default::default(),
            };
            b.send(op, Some(Buf::zeroed(4096))).await.0.unwrap();
        }
        crash(&world, 2, CrashKind::Process);
        servers[2] = None;
        let env = world.sim.node("client");
        let cut = b.call(Request::SetAttr { ino: f, set: SetAttr { size: Some(10), ..SetAttr::default() } });
        assert!(amphi_env::timeout(&env, Duration::from_secs(2), cut).await.is_none(), "it waits");
        world.sim.crash("b", CrashKind::Process);
        let up = async || {
            let link = a.link_of(TargetId(0)).await;
            let call = Call { target: TargetId(0), cred: Cred::root(), op: Request::Status };
            let Ok(Reply::Status { servers, .. }) = link.call(Lane::Normal, call, None, 0).await.unwrap().0.result
            else {
                panic!("no status")
            };
            servers.iter().map(|s| s.up).collect::<Vec<bool>>()
        };
        for i in 0..40 {
            env.sleep(Duration::from_secs(5)).await;
            let made = amphi_env::timeout(&env, Duration::from_secs(5), a.create(own, &format!("g{i}"))).await;
            assert!(matches!(made, Some(Ok(_))), "after {} s: {made:?}", i * 5);
            assert_eq!(up().await, [true, true, false], "after {} s", i * 5);
        }
        // A new mount comes in, and works where nothing waits.
        let late = amphi_env::timeout(&env, Duration::from_secs(10), world.mount(4)).await.expect("in time").unwrap();
        let made = amphi_env::timeout(&env, Duration::from_secs(10), late.create(Ino::ROOT, "late")).await;
        assert!(matches!(made, Some(Ok(_))), "{made:?}");
        servers[2] = Some(world.start(2).await.unwrap());
        env.sleep(Duration::from_secs(10)).await;
        assert_eq!(up().await, [true, true, true]);
        let locked = amphi_env::timeout(&env, Duration::from_secs(10), a.call(lock(f, LockMode::Write, 0, 1))).await;
        assert!(matches!(locked, Some(Ok(_))), "what b had has gone: {locked:?}");
    };
    world.sim.block_on(run).unwrap();
}
