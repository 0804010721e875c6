//! Servers that restart while several mounts are there, of which some are away.

use super::*;
use crate::tests::company::{lock, lookup};
use amphi_types::ByteRange;
use amphi_wire::LockMode;
use futures_util::future::join3;

fn held_lock(ino: Ino) -> HeldLock {
    let (object, range) = (ObjectId { ino, stripe: 0 }, ByteRange::new(0, 4096));
    HeldLock { object, mode: LockMode::Write, range, group: None }
}

/// Goal: after the restart of one server, no mount gets a lock or caches attributes there before every mount that may
/// hold state there has presented it, or has ended. On other servers all operations continue. Method: as for one
/// server: a mount with a lock is cut off from the restarted server while another one requests the lock. Then the first
/// one reconnects, or does not.
#[test]
fn the_absent_keep_their_locks_on_one_server() {
    for comes_back in [true, false] {
        let world = World::new(420, &[1, 1, 1], 1);
        let run = async {
            let mut servers = world.start_all().await;
            let a = world.mount_everywhere("a", 1).await;
            let b = world.mount_everywhere("b", 2).await;
            let (d, e) = (a.dir_at(1).await, a.dir_at(2).await);
            let (f, g) = (a.create(d, "f").await.unwrap(), a.create(e, "g").await.unwrap());
            a.call(lock(f, LockMode::Write, 0, 4096)).await.unwrap();
            a.held(1).locks.borrow_mut().push(held_lock(f));
            a.held(1).deaf.set(true);
            crash(&world, 1, CrashKind::Process);
            servers[1] = None;
            world.sim.cut("a", "s1");
            servers[1] = Some(world.start(1).await.unwrap());
            let env = world.sim.node("client");
            let begun = env.now();
            let granted = Cell::new(None);
            let asks = async {
                b.call(lock(f, LockMode::Write, 0, 4096)).await.unwrap();
                granted.set(Some(env.now().since(begun)));
            };
            let elsewhere = async {
                b.call(lock(g, LockMode::Write, 0, 4096)).await.unwrap();
                b.create(e, "h").await.unwrap();
                assert!(b.told(lookup(e, "h")).await.1.name.is_some());
                assert!(env.now().since(begun) < Duration::from_secs(1), "other servers go on");
            };
            let returns = async {
                if !comes_back {
                    return;
                }
                env.sleep(Duration::from_secs(7)).await;
                assert_eq!(granted.get(), None);
                world.sim.heal("a", "s1");
                let held = a.held(1);
                let back = held.pushed(|p| matches!(p, Push::Callback { .. }).then(|| p.clone())).await;
                assert_eq!(granted.get(), None, "its lock holds");
                a.reply(1, &back).await;
            };
            join3(asks, elsewhere, returns).await;
            let waited = granted.get().expect("granted");
            match comes_back {
                true => assert!(waited >= Duration::from_secs(7) && waited < Duration::from_secs(20), "{waited:?}"),
                false => assert!(waited >= Duration::from_secs(29) && waited < Duration::from_secs(40), "{waited:?}"),
            }
        };
        world.sim.block_on(run).unwrap();
    }
}

/// Goal: after the restart of a server a change waits for the mounts that may cache the old state there. Method: as
/// above, with a name.
#[test]
fn the_absent_keep_their_tokens_on_one_server() {
    let world = World::new(421, &[1, 1], 1);
    let run = async {
        let mut servers = world.start_all().await;
        let a = world.mount_everywhere("a", 1).await;
        let b = world.mount_everywhere("b", 2).await;
        let dir = b.dir_at(1).await;
        b.create(dir, "f").await.unwrap();
        assert!(a.told(lookup(dir, "f")).await.1.name.is_some());
        crash(&world, 1, CrashKind::Process);
        servers[1] = None;
        world.sim.cut("a", "s1");
        servers[1] = Some(world.start(1).await.unwrap());
        let env = world.sim.node("client");
        let done = Cell::new(false);
        let change = async {
            b.unlink(dir, "f").await.unwrap();
            done.set(true);
        };
        let elsewhere = async {
            b.create(Ino::ROOT, "g").await.unwrap();
            assert!(!done.get());
        };
        let returns = async {
            env.sleep(Duration::from_secs(5)).await;
            assert!(!done.get());
            world.sim.heal("a", "s1");
        };
        join3(change, elsewhere, returns).await;
        assert_eq!(a.held(1).restarts.get(), 1, "it knew before");
        assert_eq!(a.lookup(dir, "f").await, Err(Errno::NoEnt));
    };
    world.sim.block_on(run).unwrap();
}

/// Goal: the master and the others may restart in turn while there are two mounts. Locks, opens and shared mode stay,
/// and a file unlinked while open is removed when it is closed. Method: each server is killed in turn, then both.
/// Clients present their state, and it is counted.
#[test]
fn two_mounts_survive_every_server() {
    for down in [vec![0], vec![1], vec![0, 1], vec![1, 0]] {
        let world = World::new(422, &[1, 1], 1);
        let run = async {
            let mut servers = world.start_all().await;
            let a = world.mount_everywhere("a", 1).await;
            let b = world.mount_everywhere("b", 2).await;
            let mut files = Vec::new();
            for target in 0..2u16 {
                let dir = a.dir_at(target).await;
                let f = a.open_new(dir, "f").await.unwrap().attr.ino;
                a.opened(f);
                a.call(lock(f, LockMode::Write, 0, 4096)).await.unwrap();
                a.held(usize::from(target)).locks.borrow_mut().push(held_lock(f));
                b.unlink(dir, "f").await.unwrap();
                files.push((dir, f));
            }
            for at in &down {
                crash(&world, *at, CrashKind::Process);
                servers[*at] = None;
            }
            for at in &down {
                sleep(&world, Duration::from_secs(2)).await;
                servers[*at] = Some(world.start(*at).await.unwrap());
            }
            for (dir, f) in &files {
                a.stat(*f).await.expect("still open");
                assert!(b.told(lookup(*dir, "x")).await.1.name.is_some(), "still in company");
                let env = world.sim.node("client");
                let asked = b.call(lock(*f, LockMode::Write, 0, 4096));
                // The client of the lock returns it after the callback, under its new id.
                let taken = amphi_env::timeout(&env, Duration::from_secs(20), asked).await;
                taken.expect("in time").expect("granted");
                a.call(Request::Close { ino: *f, access: RW, atime: None }).await.unwrap();
            }
            a.goodbye().await;
            b.goodbye().await;
            world.stop_all(servers).await;
            let report = world.fsck().await;
            assert!(report.is_clean() && report.orphans == 0, "{down:?}: {report:#?}");
        };
        world.sim.block_on(run).unwrap();
    }
}

/// Goal: a mount for which the others did not wait continues to write files that were settled meanwhile, with its
/// outdated layout. Every mount sees their new size, even one that cached the old one (Promise S1). Method: the file's
/// server restarts while its writer is cut off from it for longer than the grace time. Another mount opens and closes
/// the file and reads its attributes. Then the writer reconnects and writes to the other server.
#[test]
fn who_was_not_waited_for_is_seen_writing() {
    let world = World::new(423, &[1, 1], 1);
    let run = async {
        let mut servers = world.start_all().await;
        let a = world.mount_everywhere("a", 1).await;
        let b = world.mount_everywhere("b", 2).await;
        let dir = a.dir_at(1).await;
        let f = b.create(dir, "f").await.unwrap();
        a.call(Request::Open { ino: f, access: RW, exec: false }).await.unwrap();
        a.opened(f);
        a.call(Request::Spread { ino: f }).await.unwrap();
        let write = async |mib: u64| {
            let (object, offset, mtime) = (ObjectId { ino: f, stripe: 1 }, mib << 20, Timespec::default());
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
            a.send(op, Some(Buf::zeroed(4096))).await.0.unwrap();
        };
        write(5).await;
        crash(&world, 1, CrashKind::Process);
        servers[1] = None;
        world.sim.cut("a", "s1");
        servers[1] = Some(world.start(1).await.unwrap());
        sleep(&world, Duration::from_secs(35)).await;
        b.call(Request::Open { ino: f, access: RW, exec: false }).await.unwrap();
        b.call(Request::Close { ino: f, access: RW, atime: None }).await.unwrap();
        while b.inode(Request::GetAttr { ino: f }).await.unwrap().spread {
            sleep(&world, Duration::from_millis(10)).await;
        }
        let (settled, tokens) = b.told(Request::GetAttr { ino: f }).await;
        let Ok(Reply::Inode(view)) = settled else { panic!("{settled:?}") };
        assert_eq!((view.attr.size, tokens.attributes.is_some()), ((5 << 20) + 4096, true));
        world.sim.heal("a", "s1");
        // The mount has presented its state before its request is served.
        a.stat(dir).await.unwrap();
        let (_, _, keys) = b.held(1).revoked().await;
        assert_eq!(keys, [TokenKey::Attributes(f)], "what it cached is not used any more");
        write(7).await;
        assert_eq!(b.stat(f).await.unwrap().size, (7 << 20) + 4096);
        a.call(Request::Close { ino: f, access: RW, atime: None }).await.unwrap();
        sleep(&world, Duration::from_secs(1)).await;
        let view = b.inode(Request::GetAttr { ino: f }).await.unwrap();
        assert_eq!((view.attr.size, view.spread), ((7 << 20) + 4096, false));
        a.goodbye().await;
        b.goodbye().await;
    };
    world.sim.block_on(run).unwrap();
}
