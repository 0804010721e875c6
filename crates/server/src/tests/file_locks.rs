//! Stories of locks of applications, with several sessions at once.

use super::*;
use amphi_env::sim::CrashKind;
use amphi_types::ByteRange;
use amphi_wire::{FileLockFamily, FileLockOwner, LockMode};

fn lock(ino: Ino, family: FileLockFamily, id: u64, mode: LockMode, start: u64, end: u64) -> FileLockSpec {
    let owner = FileLockOwner { family, id };
    FileLockSpec { ino, owner, pid: id as u32 + 100, mode, range: ByteRange::new(start, end) }
}

fn posix(ino: Ino, id: u64, mode: LockMode, start: u64, end: u64) -> FileLockSpec {
    lock(ino, FileLockFamily::Posix, id, mode, start, end)
}

impl Client {
    async fn set(&self, lock: FileLockSpec, number: u64, wait: bool) -> Result<bool> {
        match self.call(Request::FileLockSet { lock, number, wait }).await? {
            Reply::FileLock(held) => Ok(held),
            other => panic!("{other:?}"),
        }
    }

    async fn cancel(&self, lock: FileLockSpec, number: u64) -> bool {
        self.call(Request::FileLockCancel { lock, number }).await == Ok(Reply::FileLock(true))
    }

    async fn unlock(&self, lock: FileLockSpec) {
        let op = Request::FileLockUnlock { ino: lock.ino, owner: lock.owner, range: lock.range };
        assert_eq!(self.call(op).await, Ok(Reply::Done));
    }

    async fn in_the_way(&self, lock: FileLockSpec) -> Option<FileLockSpec> {
        match self.call(Request::FileLockTest { lock, number: 0 }).await {
            Ok(Reply::FileLockFound(found)) => found,
            other => panic!("{other:?}"),
        }
    }

    fn news(&self) -> Vec<u64> {
        let number = |push: Push| match push {
            Push::FileLockNews { number } => Some(number),
            _ => None,
        };
        self.held.pushes.borrow_mut().drain(..).filter_map(number).collect()
    }
}

/// A server with two sessions and a file on each target.
fn with_two<F>(seed: u64, workers: u16, story: F)
where
    F: AsyncFnOnce(&Place, &Client, &Client, &[Ino]),
{
    let place = Place::new(seed, 2, workers);
    let run = async {
        let server = place.start().await.expect("the server starts");
        let a = place.client(1).await.expect("connects");
        let b = place.client(2).await.expect("connects");
        let mut files = Vec::new();
        for i in 0.. {
            let dir = a.mkdir(Ino::ROOT, &format!("d{i}")).await.expect("mkdir");
            if files.iter().all(|f: &Ino| f.target() != dir.target()) {
                let f = a.create(dir, "f").await.expect("create");
                for client in [&a, &b] {
                    client.call(Request::Open { ino: f, access: RW, exec: false }).await.expect("opened");
                }
                files.push(f);
            }
            if files.len() == 2 {
                break;
            }
        }
        story(&place, &a, &b, &files).await;
        drop(server);
    };
    place.sim.block_on(run).expect("no deadlock");
}

/// Time for messages to arrive.
async fn settle(place: &Place) {
    place.sim.node("client").sleep(Duration::from_millis(50)).await;
}

const R: LockMode = LockMode::Read;
const W: LockMode = LockMode::Write;

/// Goal: locks of different sessions exclude each other, in all families of locks. A waiting request occupies no slot,
/// its grant is pushed, and a repeated request reports the grant, even twice. Method: two sessions, on targets of this
/// worker and of another one.
#[test]
fn sessions_exclude_each_other() {
    for workers in [1, 2] {
        with_two(40, workers, async |place, a, b, files| {
            for &f in files {
                assert_eq!(a.set(posix(f, 1, W, 0, 10), 1, false).await, Ok(true));
                assert_eq!(b.set(posix(f, 1, R, 5, 6), 1, false).await, Err(Errno::Again), "equal numbers, two mounts");
                assert_eq!(b.set(posix(f, 1, R, 10, 20), 2, false).await, Ok(true));
                let own = a.in_the_way(posix(f, 2, R, 0, 30)).await.expect("held");
                assert_eq!((own.pid, own.range, own.mode), (101, ByteRange::new(0, 10), W));
                assert_eq!(b.in_the_way(posix(f, 2, R, 0, 30)).await.expect("held").pid, 0, "a process of elsewhere");
                // More waits than slots.
                for n in 0..200 {
                    assert_eq!(b.set(posix(f, 10 + n, W, 0, 1), 100 + n, true).await, Ok(false));
                }
                assert_eq!(b.set(posix(f, 10, W, 0, 1), 100, true).await, Ok(false), "asked again: it keeps its place");
                a.unlock(posix(f, 1, W, 0, 10)).await;
                settle(place).await;
                assert_eq!(b.news(), [100]);
                for _ in 0..2 {
                    assert_eq!(b.set(posix(f, 10, W, 0, 1), 100, true).await, Ok(true));
                }
                assert!(!b.cancel(posix(f, 11, W, 0, 1), 101).await);
                b.unlock(posix(f, 10, W, 0, 1)).await;
                settle(place).await;
                assert_eq!(b.news(), [102], "the one that was withdrawn is left out");
                assert!(b.cancel(posix(f, 12, W, 0, 1), 102).await, "it was granted before");
                b.call(Request::Sync { file: None }).await.expect("slots are free");
                let flock = |id, mode| lock(f, FileLockFamily::Flock, id, mode, 0, 1);
                assert_eq!(a.set(flock(1, R), 3, false).await, Ok(true), "another family");
                assert_eq!(b.set(flock(1, W), 4, false).await, Err(Errno::Again));
                assert_eq!(a.set(flock(2, W), 4, true).await, Ok(false));
                a.unlock(flock(1, R)).await;
                for n in 3..200 {
                    b.cancel(posix(f, 10 + n, W, 0, 1), 100 + n).await;
                }
                settle(place).await;
                assert_eq!((a.news(), b.news().len()), (vec![4], 0));
            }
            let status = place.client_named(9, "admin:1", Role::Admin).await.unwrap();
            let Ok(Reply::Counters(counters)) = status.call(Request::Counters { reset: false }).await else { panic!() };
            let count = |name: &str| counters.iter().find(|(n, _)| n == name).expect("a counter").1;
            assert_eq!((count("file_locks_held"), count("file_locks_waiting")), (6, 0));
        });
    }
}

/// Goal: the end of a session releases its locks and withdraws its waiting requests. Cycles over sessions are refused.
/// Method: a holder that says goodbye, and another one whose process dies.
#[test]
fn a_session_takes_its_locks_with_it() {
    with_two(41, 2, async |place, a, b, files| {
        let (f, g) = (files[0], files[1]);
        assert_eq!(a.set(posix(f, 1, W, 0, 10), 1, false).await, Ok(true));
        assert_eq!(b.set(posix(f, 1, W, 20, 30), 1, false).await, Ok(true));
        assert_eq!(b.set(posix(f, 1, W, 0, 10), 2, true).await, Ok(false));
        assert_eq!(a.set(posix(f, 1, W, 20, 30), 2, true).await, Err(Errno::Deadlk));
        assert_eq!(a.set(posix(g, 7, W, 0, 10), 3, false).await, Ok(true));
        let c = place.client(3).await.expect("connects");
        assert_eq!(c.set(posix(g, 7, W, 0, 10), 1, true).await, Ok(false));
        assert_eq!(b.set(posix(g, 7, R, 0, 10), 3, true).await, Ok(false));
        c.call(Request::Goodbye).await.unwrap();
        a.call(Request::Goodbye).await.unwrap();
        settle(place).await;
        let mut news = b.news();
        news.sort_unstable();
        assert_eq!(news, [2, 3], "nobody is left in its way");
        assert_eq!(b.set(posix(f, 1, W, 0, 10), 2, true).await, Ok(true));
        let d = place.client(4).await.expect("connects");
        assert_eq!(d.set(posix(f, 1, R, 0, 1), 1, true).await, Ok(false));
        b.link.close().await;
        place.sim.node("client").sleep(Duration::from_secs(31)).await;
        assert_eq!(d.news(), [1], "evicted, after its time to come back");
        assert_eq!(d.set(posix(f, 1, R, 0, 1), 1, true).await, Ok(true));
    });
}

/// Goal: locks outlive the server. No session gets one before all sessions that may hold it have presented it, yet no
/// slot is occupied for that long. Method: kill the server. One session reconnects at once, and the other one when the
/// test says so, or never.
#[test]
fn locks_over_a_restart() {
    for comes_back in [true, false] {
        let place = Place::new(42, 2, 2);
        let run = async {
            let server = place.start().await.unwrap();
            let a = place.client(1).await.unwrap();
            let f = a.create(Ino::ROOT, "f").await.unwrap();
            let b = place.client(2).await.unwrap();
            let held = posix(f, 1, W, 0, 10);
            assert_eq!(a.set(held, 1, false).await, Ok(true));
            assert_eq!(b.set(posix(f, 1, W, 10, 20), 1, false).await, Ok(true));
            a.held.opens.borrow_mut().push((f, RW));
            a.held.file_locks.borrow_mut().push(held);
            drop(server);
            place.sim.crash("server", CrashKind::Process);
            if !comes_back {
                a.link.close().await;
            }
            let before = place.sim.node("client").now();
            let _server = place.start().await.unwrap();
            // The locks of `b` are not presented again: they are free, but not before `a` has connected or its time is
            // over.
            let free = posix(f, 2, W, 10, 20);
            let mut rounds = 0;
            while !b.set(free, 2, true).await.expect("no error") {
                rounds += 1;
                assert!(rounds < 5, "it is told when to ask again");
                while b.news().is_empty() {
                    place.sim.node("client").sleep(Duration::from_millis(10)).await;
                }
            }
            let waited = place.sim.node("client").now().since(before);
            let taken = b.set(posix(f, 2, W, 0, 10), 3, false).await;
            if comes_back {
                assert_eq!(taken, Err(Errno::Again), "said again");
                a.unlock(held).await;
                assert_eq!(b.set(posix(f, 2, W, 0, 10), 4, false).await, Ok(true));
            } else {
                assert_eq!(taken, Ok(true), "gone with its session");
                assert!(rounds > 0 && waited >= Duration::from_secs(29), "not before: {waited:?}");
            }
        };
        place.sim.block_on(run).unwrap();
    }
}

/// Goal: a lock may have been exclusive before a request that may have converted it. After a restart it is exclusive
/// again, unless another session has the lock that the conversion made possible. Method: one session presents its lock
/// as converted. Another one presents a shared lock of the same bytes, or none. Then a third one requests a shared
/// lock.
#[test]
fn conversions_without_an_answer() {
    for was_converted in [false, true] {
        let place = Place::new(43, 2, 2);
        let run = async {
            let server = place.start().await.unwrap();
            let a = place.client(1).await.unwrap();
            let f = a.create(Ino::ROOT, "f").await.unwrap();
            let b = place.client(2).await.unwrap();
            assert_eq!(a.set(posix(f, 1, W, 0, 10), 1, false).await, Ok(true));
            a.held.opens.borrow_mut().push((f, RW));
            b.held.opens.borrow_mut().push((f, RW));
            a.held.converted.borrow_mut().push(posix(f, 1, W, 0, 10));
            a.held.file_locks.borrow_mut().push(posix(f, 1, R, 0, 10));
            if was_converted {
                b.held.file_locks.borrow_mut().push(posix(f, 1, R, 0, 10));
            }
            drop(server);
            place.sim.crash("server", CrashKind::Process);
            let _server = place.start().await.unwrap();
            let shared = posix(f, 2, R, 0, 10);
            let mut answer = b.set(shared, 2, true).await;
            while a.held.restarts.get() + b.held.restarts.get() < 2 || !b.news().is_empty() {
                place.sim.node("client").sleep(Duration::from_millis(10)).await;
                answer = b.set(shared, 2, true).await;
            }
            assert_eq!(answer, Ok(was_converted));
            assert_eq!(b.set(posix(f, 2, R, 20, 30), 3, false).await, Ok(true));
            a.unlock(posix(f, 1, R, 0, 10)).await;
            assert_eq!(b.set(shared, 2, true).await, Ok(true));
        };
        place.sim.block_on(run).unwrap();
    }
}

/// Goal: if a request would be refused, the server asks the mounts with conflicting locks whether a close is under way,
/// and checks again when they have answered. A mount that does not answer delays it by 100 ms, and not again for a
/// second. Method: a holder that answers too early, one that unlocks first, and one that does not answer, all measured
/// in the time of the simulator.
#[test]
fn refused_requests_ask_for_closes() {
    with_two(11, 2, async |place, a, b, files| {
        let env = place.sim.node("client");
        let began = || amphi_env::Env::now(&env).0;
        a.held.deaf.set(true);
        let question = |push: &Push| match push {
            Push::FileLockClosing { id, ino } => Some((*id, *ino)),
            _ => None,
        };
        for (at, family) in [FileLockFamily::Flock, FileLockFamily::OpenFile].into_iter().enumerate() {
            let ino = files[at];
            let (mine, other) =
                (lock(ino, family, 1, LockMode::Write, 0, 10), lock(ino, family, 2, LockMode::Read, 5, 6));
            assert_eq!(a.set(mine, 1, false).await, Ok(true));
            // No descriptor is being closed.
            let told = async {
                let (id, of) = a.held.pushed(question).await;
                assert_eq!(of, ino);
                assert_eq!(b.call(Request::FileLockClosed { ino, id }).await, Ok(Reply::Done), "nobody asked this one");
                assert_eq!(a.call(Request::FileLockClosed { ino, id }).await, Ok(Reply::Done));
            };
            let before = began();
            let (refused, ()) = futures_util::future::join(b.set(other, 1, false), told).await;
            assert_eq!(refused, Err(Errno::Again));
            assert!(began() - before < 90_000_000, "an answer ends the wait");
            a.held.pushes.borrow_mut().clear();
            // The conflicting lock ends with a close; `F_GETLK` sees that as well.
            let told = async {
                let (id, _) = a.held.pushed(question).await;
                a.unlock(mine).await;
                a.call(Request::FileLockClosed { ino, id }).await
            };
            if family == FileLockFamily::Flock {
                let (held, told) = futures_util::future::join(b.set(other, 2, false), told).await;
                assert_eq!((held, told), (Ok(true), Ok(Reply::Done)));
                b.unlock(other).await;
            } else {
                let (found, told) = futures_util::future::join(b.in_the_way(other), told).await;
                assert_eq!((found, told), (None, Ok(Reply::Done)));
            }
            a.held.pushes.borrow_mut().clear();
            // A holder that says nothing.
            assert_eq!(a.set(mine, 3, false).await, Ok(true));
            let before = began();
            assert_eq!(b.set(other, 3, false).await, Err(Errno::Again));
            let took = began() - before;
            assert!((100_000_000..130_000_000).contains(&took), "{took}");
            let before = began();
            assert_eq!(b.set(other, 4, false).await, Err(Errno::Again));
            assert!(began() - before < 90_000_000, "it is known to be silent");
            let asked = a.held.pushes.borrow().iter().filter_map(question).count();
            assert_eq!(asked, 1);
            env.sleep(Duration::from_secs(1)).await;
            assert_eq!(b.set(other, 5, false).await, Err(Errno::Again));
            let asked = a.held.pushes.borrow().iter().filter_map(question).count();
            assert_eq!(asked, 2, "it is asked again after a while");
            a.held.pushes.borrow_mut().clear();
        }
    });
}
