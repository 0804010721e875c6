//! The effects of calls that failed because their server could not be reached for longer than `transport.give_up_s`.

use super::cluster::{Cluster, create, dir_on, in_cluster, open, root, write};
use crate::telemetry::tunables::Tunable;
use crate::{Client, Interrupt, Pending};
use amphi_env::Env;
use amphi_types::{ByteRange, Errno, Ino};
use amphi_wire::{FileLockFamily, FileLockOwner, FileLockSpec, LockMode};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Size of a file whose space has to become free again.
const LEN: usize = 1 << 20;

type Soon<T> = Rc<RefCell<Option<amphi_types::Result<T>>>>;

fn soon<T: Send + 'static>(c: &Cluster, op: Pending<T>) -> Soon<T> {
    let done = Soon::default();
    let told = done.clone();
    c.env.spawn(async move {
        let result = op.await;
        *told.borrow_mut() = Some(result);
    });
    done
}

async fn free_bytes(client: &Client) -> u64 {
    let space = client.statfs(&root()).await.expect("statfs");
    space.blocks_free * u64::from(space.block_size)
}

/// Two mounts of two servers. The second mount is about to be cut off from the second server for longer than it waits.
/// It also returns a directory on that mount.
async fn about_to_be_cut(c: &Cluster) -> ([Client; 2], Ino) {
    let [a, b] = c.two().await;
    b.mount.tunables.put(Tunable::GiveUpS, 1);
    let dir = dir_on(&a, 1).await;
    c.sleep(2).await;
    ([a, b], dir)
}

fn cut(c: &Cluster) {
    c.sim.cut("m2", "s1");
    c.sim.break_connections("m2", "s1");
}

/// The server can be reached again; the mount has found it.
async fn heal(c: &Cluster, b: &Client, dir: Ino) {
    assert_eq!(b.getattr(&root(), dir).await.err(), Some(Errno::Io), "calls are given up");
    c.sim.heal("m2", "s1");
    c.sleep(3).await;
    b.getattr(&root(), dir).await.expect("the server is back");
}

/// The first mount gets all of the file at once, and long after that no mount has been evicted.
async fn all_is_free(c: &Cluster, [a, b]: [&Client; 2], dir: Ino, names: &[&str]) {
    for name in names {
        let begun = c.env.now();
        let file = open(a, dir, name).await;
        write(a, &file, 0, b"by a").await;
        a.fsync(&root(), &file, false).await.expect("fsync");
        let took = c.env.now().since(begun);
        assert!(took < Duration::from_secs(3), "{name}: {took:?}");
    }
    c.sleep(70).await;
    assert!(!b.mount.coherence.sharing.is_lost(), "the mount was evicted");
    b.getattr(&root(), dir).await.expect("it goes on");
}

/// Goal: a mount may return locks and close files while their server cannot be reached. When the server can be reached
/// again, after any length of time, they are returned and closed. No mount is evicted for a lock that it does not know,
/// and the space of removed files is free (Promise S6). Method: during such a time locks age, groups end, and locks of
/// applications and files are closed. Then another mount requests them.
#[test]
fn what_was_given_back_meanwhile_is_given_back() {
    in_cluster(21, 2, async |c| {
        let ([a, b], dir) = about_to_be_cut(c).await;
        let free = free_bytes(&a).await;
        let (aged, grouped, removed) =
            (create(&b, dir, "aged").await, create(&b, dir, "grouped").await, create(&b, dir, "removed").await);
        write(&b, &aged, 0, b"bytes").await;
        write(&b, &removed, 0, &vec![1; LEN]).await;
        b.group_lock(&grouped, 7, true, Arc::new(Interrupt::new())).await.expect("a group");
        for file in [&aged, &removed] {
            b.fsync(&root(), file, false).await.expect("fsync");
        }
        a.unlink(&root(), dir, b"removed").await.expect("unlink");
        let owner = FileLockOwner { family: FileLockFamily::Flock, id: 5 };
        let range = ByteRange::ALL;
        let flock = FileLockSpec { ino: aged.ino(), owner, pid: 9, mode: LockMode::Write, range };
        b.try_lock(flock).await.expect("flock").keep();
        cut(c);
        b.mount.tunables.put(Tunable::LocksMaxAgeS, 1);
        assert_eq!(b.release_locks(aged.ino(), owner).await, Err(Errno::Io));
        b.group_unlock(&grouped).await.expect("who leaves does not wait for ever");
        c.sleep(5).await;
        assert_eq!(b.mount.coherence.locks.held(), 0, "all locks have aged");
        drop((aged, removed));
        c.sleep(5).await;
        b.mount.tunables.put(Tunable::LocksMaxAgeS, 600);
        heal(c, &b, dir).await;
        let _mine = open(&a, dir, "aged").await;
        a.try_lock(flock).await.expect("nobody has it any more").keep();
        all_is_free(c, [&a, &b], dir, &["aged", "grouped"]).await;
        let left = free.saturating_sub(free_bytes(&a).await);
        assert!(left < LEN as u64 / 2, "{left} bytes of a removed file that nobody has open");
    });
}

/// Goal: locks and opens that a server grants to calls that have already failed do not remain. No mount is evicted for
/// a lock that it does not know, and the space of removed files is free (Promise S6). Method: a lock, the creation of a
/// file and an open wait for another mount. They are granted when the connection has ended and their calls have failed.
#[test]
fn what_was_granted_meanwhile_is_given_back() {
    in_cluster(22, 2, async |c| {
        let ([a, b], dir) = about_to_be_cut(c).await;
        let free = free_bytes(&a).await;
        let held = create(&a, dir, "held").await;
        let ours = open(&b, dir, "held").await;
        write(&a, &held, 0, b"by a").await;
        assert_eq!(a.lookup(&root(), dir, b"made").await.err(), Some(Errno::NoEnt), "the name is under a token");
        let shown = a.getattr(&root(), ours.ino()).await.expect("the attributes are under a token");
        assert_eq!(shown.size, 4);
        // The server's callback to the first mount arrives later than the grant to the second.
        c.sim.cut("m1", "s1");
        let written = soon(c, b.write(&root(), &ours, 0, amphi_env::Buf::copy_of(b"by b"), Default::default()));
        let made = soon(c, b.create(&root(), dir, b"made", 0o644, crate::api::OpenFlags::READ_WRITE));
        c.sleep(1).await;
        assert!(written.borrow().is_none() && made.borrow().is_none(), "both wait for the first mount");
        cut(c);
        c.sim.heal("m1", "s1");
        c.sleep(5).await;
        assert!(matches!(&*written.borrow(), Some(Err(Errno::Io))), "{:?}", written.borrow());
        assert!(matches!(&*made.borrow(), Some(Err(Errno::Io))));
        heal(c, &b, dir).await;
        all_is_free(c, [&a, &b], dir, &["held", "made"]).await;
        let found = open(&a, dir, "made").await;
        write(&a, &found, 0, &vec![1; LEN]).await;
        a.fsync(&root(), &found, false).await.expect("fsync");
        a.unlink(&root(), dir, b"made").await.expect("unlink");
        drop(found);
        c.sleep(5).await;
        let left = free.saturating_sub(free_bytes(&a).await);
        assert!(left < LEN as u64 / 2, "{left} bytes of a removed file that nobody has open");
    });
}
