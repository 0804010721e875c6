//! Locks as open files request them: groups, lock-ahead, exact locks, age, cancels, and deadlocks that must not occur.

use super::sharing::*;
use crate::api::{Hints, OpenFlags};
use crate::conn::pending::{Interrupt, Pending};
use crate::inode::OpenFile;
use crate::telemetry::stats::Count;
use crate::{Ahead, Client};
use amphi_env::{Buf, Env};
use amphi_types::{ByteRange, Errno, Ino, IoMode, Result, SetAttr};
use amphi_wire::RenameMode;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The result of an operation so far.
type Outcome<T> = Rc<RefCell<Option<Result<T>>>>;

fn soon<T: Send + 'static>(c: &Cluster, op: Pending<T>) -> Outcome<T> {
    let done: Outcome<T> = Rc::default();
    let told = done.clone();
    c.env.spawn(async move {
        let result = op.await;
        *told.borrow_mut() = Some(result);
    });
    done
}

async fn sleep(c: &Cluster, seconds: u64) {
    c.env.sleep(Duration::from_secs(seconds)).await;
}

async fn done<T>(c: &Cluster, what: &str, outcome: &Outcome<T>) -> Result<T> {
    c.until(what, || outcome.borrow().is_some()).await;
    outcome.borrow_mut().take().expect("done")
}

async fn join(client: &Client, file: &Arc<OpenFile>, group: u64) {
    let never = Arc::new(Interrupt::new());
    assert_eq!(client.group_lock(file, group, true, never).await, Ok(()));
}

fn join_now(client: &Client, file: &Arc<OpenFile>, group: u64) -> Pending<()> {
    client.group_lock(file, group, false, Arc::new(Interrupt::new()))
}

fn a_read(client: &Client, file: &Arc<OpenFile>) -> Pending<crate::Segments> {
    client.read(&root(), file, 0, 100, Hints::default())
}

pub(super) fn locked(client: &Client, what: Count) -> u64 {
    client.mount.stats.of(what).1
}

async fn truncate(client: &Client, file: &OpenFile, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    client.setattr(&root(), file.ino(), set, None).await.expect("a size");
}

/// Goal: while a group has a file, I/O of open files outside the group waits, on other mounts and on this one. Members
/// continue. `stat` does not wait and knows the end. Afterwards every mount sees the bytes written by members, and
/// earlier cached data is not used any more (sanityn 107). Method: two members on two mounts, a stranger on each of
/// them and on a third.
#[test]
fn a_group_keeps_others_out() {
    for seed in 0..4 {
        in_cluster(200 + seed, async |c| {
            let [a, b] = c.two().await;
            let third = c.mount().await;
            let fa = create(&a, "f").await;
            write(&a, &fa, 0, &[1; 200]).await;
            let (fb, ft) = (open(&b, "f", OpenFlags::READ_WRITE).await, open(&third, "f", OpenFlags::READ_WRITE).await);
            assert_eq!(read(&third, &ft, 0, 300).await, [1; 200]);
            let other = open(&a, "f", OpenFlags::READ_WRITE).await;
            join(&a, &fa, 7).await;
            join(&b, &fb, 7).await;
            assert_eq!(read(&b, &fb, 0, 300).await, [1; 200], "what was dirty before is there for members");
            let strangers = [soon(c, a_read(&third, &ft)), soon(c, a_read(&a, &other))];
            let cut =
                soon(c, third.setattr(&root(), ft.ino(), SetAttr { size: Some(350), ..SetAttr::default() }, None));
            write(&a, &fa, 0, &[2; 100]).await;
            write(&b, &fb, 100, &[3; 300]).await;
            fb.set_io_mode(IoMode::Direct);
            let direct = b.write(&root(), &fb, 400, Buf::copy_of(&[4; 100_000]), Hints::default()).await;
            assert_eq!(direct, Ok(100_000), "past the cache");
            assert_eq!(join_now(&third, &ft, 8).await, Err(Errno::Again));
            assert_eq!(join_now(&a, &other, 8).await, Err(Errno::Again), "also on the same mount");
            assert_eq!(join_now(&a, &fa, 7).await, Err(Errno::Inval), "a member already");
            assert_eq!(join_now(&third, &ft, 0).await, Err(Errno::Inval));
            let interrupt = Arc::new(Interrupt::new());
            let eight = soon(c, third.group_lock(&ft, 8, true, interrupt.clone()));
            sleep(c, 40).await;
            assert_eq!(third.getattr(&root(), ft.ino()).await.map(|x| x.size), Ok(100_400), "stat does not wait");
            assert!(strangers.iter().all(|s| s.borrow().is_none()) && cut.borrow().is_none(), "they wait");
            interrupt.fire();
            assert_eq!(done(c, "a signal", &eight).await, Err(Errno::Intr));
            assert_eq!(a.group_unlock(&fa).await, Ok(()));
            assert_eq!(a.group_unlock(&fa).await, Err(Errno::Inval));
            sleep(c, 2).await;
            assert!(strangers[0].borrow().is_none(), "one member is left");
            drop(fb);
            for stranger in &strangers {
                assert_eq!(done(c, "a stranger", stranger).await.map(|data| data.to_vec()), Ok(vec![2; 100]));
            }
            done(c, "the cut", &cut).await.expect("cut");
            let all = read(&third, &ft, 0, 1000).await;
            assert_eq!(all, [vec![2; 100], vec![3; 250]].concat());
            assert!(fa.file.group.admits(0) && ft.file.group.admits(0), "nothing is left of the group");
        });
    }
}

/// Goal: many groups use one file one after the other, also by several open files of one mount. Each group sees what
/// the previous group wrote, and no group is lost. Method: two mounts with two open files each increment a number under
/// groups of their own, in any order.
#[test]
fn groups_take_turns() {
    in_cluster(210, async |c| {
        let [a, b] = c.two().await;
        let first = create(&a, "f").await;
        write(&a, &first, 0, &[0]).await;
        let mut ends = Vec::new();
        for (n, client) in [&a, &a, &b, &b].into_iter().enumerate() {
            let (client, file) = (client.clone(), open(client, "f", OpenFlags::READ_WRITE).await);
            let over: Outcome<()> = Rc::default();
            ends.push(over.clone());
            c.env.spawn(async move {
                for _ in 0..5 {
                    join(&client, &file, n as u64 + 1).await;
                    let number = read(&client, &file, 0, 1).await[0];
                    write(&client, &file, 0, &[number + 1]).await;
                    assert_eq!(client.group_unlock(&file).await, Ok(()));
                }
                *over.borrow_mut() = Some(Ok(()));
            });
        }
        for end in &ends {
            done(c, "a counter", end).await.expect("no error");
        }
        assert_eq!(read(&b, &open(&b, "f", OpenFlags::READ).await, 0, 1).await, [20]);
    });
}

/// Goal: the results of a lock-ahead (255c): granted exactly as requested, the same lock again, another lock that
/// covers it, or a conflicting holder. They are tested with and without growth, and with bad input. And sizes are right
/// with such locks (sanityn 16e, 103). Method: two mounts, counters and answers.
#[test]
fn lock_ahead_and_exact_locks() {
    in_cluster(220, async |c| {
        let [a, b] = c.two().await;
        let (fa, fb) = (create(&a, "f").await, open(&b, "f", OpenFlags::READ_WRITE).await);
        // A read takes away the lock that was granted when the file was made.
        write(&a, &fa, 0, &[9; 10]).await;
        assert_eq!(read(&b, &fb, 0, 10).await, [9; 10]);
        truncate(&b, &fb, 0).await;
        sleep(c, 1).await;
        a.mount.files.get(fa.ino()).expect("open");
        let at = |n: u64| ByteRange::at(n << 20, 1 << 20);
        let ahead = |client: &Client, file: &OpenFile, n| client.lock_ahead(file, at(n), true);
        drop_locks(c, [&a, &b]).await;
        assert_eq!(ahead(&a, &fa, 0), Ok(Ahead::Asked));
        assert_eq!(ahead(&a, &fa, 2), Ok(Ahead::Asked));
        sleep(c, 1).await;
        assert_eq!(locked(&a, Count::LockAheadGranted), 2);
        assert_eq!(ahead(&a, &fa, 2), Ok(Ahead::Same));
        assert_eq!(a.lock_ahead(&fa, ByteRange::at(2 << 20, 100), true), Ok(Ahead::Different));
        assert_eq!(a.lock_ahead(&fa, at(0), false), Ok(Ahead::Same), "reading under it");
        assert_eq!(ahead(&b, &fb, 2), Ok(Ahead::Asked));
        assert_eq!(ahead(&b, &fb, 1), Ok(Ahead::Asked));
        sleep(c, 1).await;
        assert_eq!((locked(&b, Count::LockAheadGranted), locked(&b, Count::LockAheadRefused)), (1, 1), "exact extents");
        assert_eq!(locked(&a, Count::LockCallback), 1, "nobody was asked for anything since the read");
        assert_eq!(b.lock_ahead(&fb, ByteRange::new(5, 5), true), Err(Errno::Inval));
        let reader = open(&b, "f", OpenFlags::READ).await;
        assert_eq!(ahead(&b, &reader, 7), Err(Errno::BadFd));
        // Each writes under its own; the other knows the size.
        let before = locked(&a, Count::LockEnqueue) + locked(&b, Count::LockEnqueue);
        write(&a, &fa, 0, &[1; 100]).await;
        assert_eq!(b.getattr(&root(), fb.ino()).await.map(|x| x.size), Ok(100), "the highest lock has nothing to say");
        write(&b, &fb, 1 << 20, &[2; 100]).await;
        assert_eq!(a.getattr(&root(), fa.ino()).await.map(|x| x.size), Ok((1 << 20) + 100));
        write(&a, &fa, 2 << 20, &[3; 100]).await;
        assert_eq!(b.getattr(&root(), fb.ino()).await.map(|x| x.size), Ok((2 << 20) + 100));
        assert_eq!(locked(&a, Count::LockEnqueue) + locked(&b, Count::LockEnqueue), before, "no further lock");
        // Without growth strided writers do not conflict.
        let callbacks = locked(&a, Count::LockCallback) + locked(&b, Count::LockCallback);
        fa.set_no_expand(true);
        fb.set_no_expand(true);
        for n in 0..20u64 {
            let (client, file) = if n % 2 == 0 { (&a, &fa) } else { (&b, &fb) };
            write(client, file, (8 << 20) + n * 5000, &[n as u8; 5000]).await;
        }
        assert_eq!(locked(&a, Count::LockCallback) + locked(&b, Count::LockCallback), callbacks, "exact");
        fa.set_no_expand(false);
        write(&a, &fa, 20 << 20, &[1; 10]).await;
        write(&b, &fb, (20 << 20) + 5000, &[1; 10]).await;
        assert!(locked(&a, Count::LockCallback) > 1, "grown again");
    });
}

/// Makes mounts return all locks by their age.
async fn drop_locks(c: &Cluster, clients: [&Client; 2]) {
    for client in clients {
        client.mount.tunables.set("locks.max_age_s", "1").unwrap();
    }
    sleep(c, 5).await;
    for client in clients {
        assert_eq!(client.mount.coherence.locks.held(), 0);
        client.mount.tunables.set("locks.max_age_s", "600").unwrap();
    }
    sleep(c, 2).await;
}

/// Goal: locks of unused files are returned after their age, and their cached data is dropped. Locks of files that are
/// read from the cache, which pins nothing, stay. Cancels are sent together. Method: three files, of which one is read
/// every second, and counters.
#[test]
fn locks_age_unless_they_are_used() {
    in_cluster(230, async |c| {
        let [a, b] = c.two().await;
        a.mount.tunables.set("locks.max_age_s", "20").unwrap();
        let mut files = Vec::new();
        for name in ["x", "y", "z"] {
            drop(create(&b, name).await);
            let file = open(&a, name, OpenFlags::READ_WRITE).await;
            write(&a, &file, 0, &[5; 8192]).await;
            assert_eq!(read(&a, &file, 0, 10).await, [5; 10]);
            files.push(file);
        }
        assert_eq!(a.mount.coherence.locks.held(), 3);
        let asked = locked(&a, Count::LockEnqueue);
        for _ in 0..30 {
            sleep(c, 1).await;
            assert_eq!(read(&a, &files[0], 0, 10).await, [5; 10]);
        }
        assert_eq!((a.mount.coherence.locks.held(), locked(&a, Count::LockAged)), (1, 2));
        assert_eq!(locked(&a, Count::LockEnqueue), asked, "the one in use was not asked for again");
        let (messages, locks) = a.mount.stats.of(Count::LockCancel);
        assert_eq!((locks, messages), (locks, locked(&a, Count::LockCancelMessages)));
        // Locks returned when the mounts met are counted as well.
        assert!(messages < locks, "{messages} messages, {locks} locks");
        assert_eq!(read(&b, &open(&b, "y", OpenFlags::READ).await, 0, 10).await, [5; 10], "it was written back");
    });
}

/// Goal: a removed file leaves no locks behind, and its locks are returned together with others. Open files keep their
/// locks. Method: files are written, synced, closed and removed. One file is removed while it is open, and another file
/// by a rename over it.
#[test]
fn locks_of_removed_files_go_back() {
    in_cluster(212, async |c| {
        let [a, _b] = c.two().await;
        let mut open_one = None;
        for name in ["one", "two", "open", "over"] {
            let file = create(&a, name).await;
            write(&a, &file, 0, &[1; 100_000]).await;
            a.fsync(&root(), &file, false).await.expect("sync");
            if name == "open" {
                open_one = Some(file);
            }
        }
        let held = || a.mount.coherence.locks.held();
        assert_eq!(held(), 4);
        for name in ["one", "open"] {
            a.unlink(&root(), Ino::ROOT, name.as_bytes()).await.expect("unlink");
        }
        let [from, to] = ["two", "over"].map(|name| (Ino::ROOT, name.as_bytes()));
        a.rename(&root(), from, to, RenameMode::Replace).await.expect("rename");
        sleep(c, 3).await;
        assert_eq!(held(), 2, "of the open one, and of what has the name now");
        assert_eq!(a.mount.stats.of(Count::LockCancel), (1, 2), "the server was told, once");
        drop(open_one);
    });
}
