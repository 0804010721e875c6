//! Hostile mounts that lock others out of files that they cannot access, by requests and by what they present.

use super::opens::{NONE, R, W, wide_file};
use super::*;
use amphi_env::sim::CrashKind;
use amphi_wire::{FileLockFamily, FileLockOwner};

fn group(object: ObjectId) -> Request {
    Request::GroupLock { object, group: 7, wait: false, asked: None }
}

fn held(object: ObjectId) -> HeldLock {
    HeldLock { object, mode: LockMode::Write, range: ByteRange::ALL, group: Some(7) }
}

fn file_lock(ino: Ino, mode: LockMode) -> FileLockSpec {
    let owner = FileLockOwner { family: FileLockFamily::Flock, id: 9 };
    FileLockSpec { ino, owner, pid: 100, mode, range: ByteRange::ALL }
}

fn set(lock: FileLockSpec) -> Request {
    Request::FileLockSet { lock, number: 1, wait: false }
}

impl Client {
    async fn is_locked(&self, ino: Ino) -> bool {
        match self.call(Request::FileLockTest { lock: file_lock(ino, LockMode::Write), number: 1 }).await {
            Ok(Reply::FileLockFound(found)) => found.is_some(),
            other => panic!("{other:?}"),
        }
    }
}

/// Goal: only a session that has a file open for writing gets its group lock, on all targets, and only one that has it
/// open at all gets a lock of an application. Method: a table of opens of a user.
#[test]
fn locks_that_nobody_calls_back_need_an_open() {
    with_server(874, 2, 1, async |place, root| {
        let c = place.users_client(5, Role::Mount).await.expect("let in");
        c.opens.set(false);
        for (text, access, may_write, may_lock) in [
            ("a", None, false, false),
            ("b", Some(NONE), false, false),
            ("c", Some(R), false, true),
            ("d", Some(W), true, true),
            ("e", Some(RW), true, true),
        ] {
            let (ino, objects) = wide_file(root, text, 0o666).await;
            if let Some(access) = access {
                c.call(Request::Open { ino, access, exec: false }).await.unwrap();
            }
            for object in objects {
                match c.call(group(object)).await {
                    // It may wait for the lock that came with the new file.
                    Ok(Reply::Locked { lock, .. } | Reply::LockWaits { lock }) => {
                        assert!(may_write, "{text}");
                        let op = Request::LockCancel { locks: vec![lock] };
                        let call = Call { target: object_target(object, 2), cred: user(), op };
                        c.link.call(Lane::Normal, call, None, 0).await.unwrap().0.result.unwrap();
                    }
                    other => assert!(!may_write && other == Err(Errno::BadFd), "{text}: {other:?}"),
                }
            }
            let granted = if may_lock { Ok(Reply::FileLock(true)) } else { Err(Errno::BadFd) };
            assert_eq!(c.call(set(file_lock(ino, LockMode::Write))).await, granted, "{text}");
            assert_eq!(root.is_locked(ino).await, may_lock, "{text}");
        }
        // The stripes of a file that is not spread yet.
        let ino = root.make(Ino::ROOT, "new", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        let layout = Layout { pattern: Pattern::Striped, stripe_size: 64 << 10, stripe_count: 2, pool: 2 };
        root.call(Request::SetLayout { ino, layout: Some(layout), advice: None }).await.unwrap();
        for stripe in 0..2 {
            let asked = root.call(group(ObjectId { ino, stripe })).await;
            assert!(matches!(asked, Ok(Reply::Locked { .. } | Reply::LockWaits { .. })), "{stripe}: {asked:?}");
        }
    });
}

/// Goal: a session presents no lock of this kind on a file that it does not have open, neither in a run of the server
/// that never lost anything nor after a restart. Files that it has open stay locked over the restart. Method: a user
/// presents locks on a file of root's and on one that he may read.
#[test]
fn presented_locks_need_an_open() {
    let place = Place::new(875, 2, 1);
    let run = async {
        let server = place.start().await.expect("it starts");
        let root = place.client(1).await.expect("let in");
        let c = place.users_client(5, Role::Mount).await.expect("let in");
        c.opens.set(false);
        let (secret, objects) = wide_file(&root, "secret", 0o600).await;
        let (shared, _) = wide_file(&root, "shared", 0o644).await;
        for ino in [secret, shared] {
            root.held.opens.borrow_mut().push((ino, RW));
        }
        let locks = vec![file_lock(secret, LockMode::Write)];
        let at = async |target, op| {
            let call = Call { target, cred: user(), op };
            c.link.call(Lane::Normal, call, None, 0).await.unwrap().0.result
        };
        let op = Request::RepresentFileLocks { locks: locks.clone(), converted: locks.clone() };
        assert_eq!(at(secret.target(), op).await, Ok(Reply::FileLocksLost(vec![0])));
        for object in objects {
            let op = Request::Represent { opens: vec![], locks: vec![held(object)] };
            assert_eq!(at(object_target(object, 2), op).await, Ok(Reply::Locks(vec![])), "{object:?}");
        }
        assert!(!root.is_locked(secret).await);
        let many = (0..1000).map(|n| FileLockSpec { pid: n, ..file_lock(shared, LockMode::Write) }).collect();
        c.call(Request::Open { ino: shared, access: R, exec: false }).await.expect("he may read it");
        let op = Request::RepresentFileLocks { locks: vec![], converted: many };
        assert_eq!(at(shared.target(), op).await, Ok(Reply::FileLocksLost(vec![])));
        let kept = |server: &Server<SimEnv>| {
            server.worker.target(shared.target()).expect("at the only worker").coherence.file_locks.converting()
        };
        assert_eq!(kept(&server), 0, "all sessions have presented their locks");
        let mine = file_lock(shared, LockMode::Read);
        assert_eq!(c.call(set(mine)).await, Ok(Reply::FileLock(true)));
        *c.held.opens.borrow_mut() = vec![(shared, R), (secret, RW)];
        *c.held.file_locks.borrow_mut() = vec![file_lock(secret, LockMode::Read), mine];
        *c.held.converted.borrow_mut() = locks;
        *c.held.locks.borrow_mut() = vec![held(objects[0])];
        drop(server);
        place.sim.crash("server", CrashKind::Process);
        let server = place.start().await.expect("again");
        while root.held.restarts.get() == 0 || c.held.restarts.get() == 0 {
            place.sim.node("client").sleep(Duration::from_millis(10)).await;
        }
        assert!(root.is_locked(shared).await && !root.is_locked(secret).await);
        assert_eq!(kept(&server), 0);
        root.ask(data_write(objects[0]), Some(bytes(1, 0, 5000))).await.0.expect("nobody has locked it");
        drop(server);
    };
    place.sim.block_on(run).expect("no deadlock");
}
