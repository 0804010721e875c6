//! Opens that are kept for the next program: the messages that they save, which programs may use them, when they end.

use super::cluster::{Cluster, create, dir_on, in_cluster, read, root, write};
use super::policy::sent;
use super::world::World;
use crate::OpenFile;
use crate::api::{Ctx, OpenFlags};
use crate::prefetch::small_files::{self, kept};
use crate::telemetry::stats::Count;
use amphi_types::{Cred, Errno, Ino, Pattern, SetAttr};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

fn open(w: &mut World, ctx: &Ctx, ino: Ino, flags: OpenFlags) -> Arc<OpenFile> {
    let op = w.client.open(ctx, ino, flags);
    w.run(op).expect("open")
}

fn opens_at_server(w: &World, ino: Ino) -> i64 {
    w.server.opens.iter().filter(|((of, ..), _)| *of == ino).map(|(_, n)| n).sum()
}

fn later(w: &mut World, seconds: u64) {
    w.clock.0.fetch_add(seconds * 1_000_000_000, SeqCst);
    small_files::tick(&w.client.mount);
    w.settle();
}

/// Goal: a repeated open of a file needs no message as long as an open is kept. After that time the client closes it at
/// the server. Other opens send a request: those with other rights, for writing, or for execution. Method: opens of one
/// file, counted.
#[test]
fn the_next_open_takes_it_over() {
    let mut w = World::new(1, &[]);
    let ino = w.server.plant("file", b"text", Pattern::Growing);
    let (me, other) = (Ctx::root(), Ctx { cred: Cred::new(7, 7, vec![]), ..Ctx::root() });
    for _ in 0..20 {
        drop(open(&mut w, &me, ino, OpenFlags::READ));
        w.settle();
        assert_eq!(opens_at_server(&w, ino), 1, "it is kept");
    }
    assert_eq!(sent(&w, "Open"), 1);
    assert_eq!(w.client.mount.stats.of(Count::OpenKept).0, 19);
    drop(open(&mut w, &other, ino, OpenFlags::READ));
    drop(open(&mut w, &me, ino, OpenFlags { exec: true, ..OpenFlags::READ }));
    assert_eq!(sent(&w, "Open"), 3);
    let (first, second) = (open(&mut w, &me, ino, OpenFlags::READ), open(&mut w, &me, ino, OpenFlags::READ));
    assert_eq!(sent(&w, "Open"), 4, "one of two at a time");
    drop((first, second));
    w.settle();
    assert_eq!(opens_at_server(&w, ino), 1, "one is kept");
    later(&mut w, 59);
    assert_eq!(opens_at_server(&w, ino), 1);
    later(&mut w, 3);
    assert_eq!((opens_at_server(&w, ino), kept::count(&w.client.mount)), (0, 0));
    drop(open(&mut w, &me, ino, OpenFlags::READ));
    drop(open(&mut w, &me, ino, OpenFlags::WRITE));
    w.settle();
    assert_eq!(opens_at_server(&w, ino), 0, "a writer changes it");
    w.check_clean();
}

/// Goal: a change of the inode, or the removal of its last name, ends a kept open. This holds even if the change comes
/// between the answer to the open and the close, or during the request of the open. Method: each.
#[test]
fn own_changes_end_it() {
    let mut w = World::new(2, &[]);
    let me = Ctx::root();
    let ino = w.server.plant("file", b"text", Pattern::Growing);
    let chmod = |w: &World| {
        let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        w.client.setattr(&Ctx::root(), ino, set, None)
    };
    for when in 0..3 {
        let file = open(&mut w, &me, ino, OpenFlags::READ);
        let before = sent(&w, "Open");
        let again = if when == 2 { Some(w.client.open(&me, ino, OpenFlags::READ)) } else { None };
        if when == 0 {
            drop(file);
            let op = chmod(&w);
            w.run(op).expect("chmod");
        } else {
            let op = chmod(&w);
            w.run(op).expect("chmod");
            drop(file);
        }
        again.into_iter().for_each(|op| drop(w.run(op).expect("open")));
        later(&mut w, 1);
        assert_eq!(opens_at_server(&w, ino), 0, "{when}: nothing is kept");
        drop(open(&mut w, &me, ino, OpenFlags::READ));
        assert_eq!(sent(&w, "Open") - before, 1 + usize::from(when == 2), "{when}");
    }
    w.unlink("file");
    w.settle();
    assert_eq!((opens_at_server(&w, ino), kept::count(&w.client.mount)), (0, 0), "it goes at once");
    w.check_clean();
}

/// Goal: in shared mode an open is kept under the attributes token. Other mounts' changes of permissions take effect at
/// once, any program that may read can take the open over, and a file that another mount removes is closed. Method: two
/// mounts.
#[test]
fn others_changes_end_it() {
    in_cluster(1, 1, async |c: &Cluster| {
        let [a, b] = c.two().await;
        let dir = dir_on(&a, 0).await;
        for name in ["one", "two"] {
            let file = create(&a, dir, name).await;
            write(&a, &file, 0, b"text").await;
        }
        a.sync_all(&root()).await.expect("sync");
        let user = Ctx { cred: Cred::new(7, 7, vec![]), ..root() };
        let one = b.lookup(&root(), dir, b"one").await.expect("there").ino;
        let two = b.lookup(&root(), dir, b"two").await.expect("there").ino;
        let kept = || b.mount.stats.of(Count::OpenKept).0;
        // A mount is not granted the attributes of an inode that was changed a moment ago.
        for round in 0.. {
            b.lookup(&root(), dir, b"one").await.expect("there");
            let file = b.open(&root(), one, OpenFlags::READ).await.expect("open");
            assert_eq!(read(&b, &file, 100).await, b"text");
            drop(file);
            if kept() > 0 {
                break;
            }
            assert!(round < 20, "no open is kept");
            c.sleep(1).await;
        }
        let before = kept();
        for ctx in [&root(), &user, &root()] {
            let file = b.open(ctx, one, OpenFlags::READ).await.expect("open");
            assert_eq!(read(&b, &file, 100).await, b"text");
        }
        assert_eq!(kept() - before, 3, "whoever may read");
        assert!(kept::count(&b.mount) > 0);
        let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        a.setattr(&root(), one, set, None).await.expect("chmod");
        assert_eq!(kept::count(&b.mount), 0, "before the change is answered");
        assert_eq!(b.open(&user, one, OpenFlags::READ).await.err(), Some(Errno::Access));
        drop(b.open(&root(), one, OpenFlags::READ).await.expect("open"));
        assert_eq!(b.open(&user, one, OpenFlags::READ).await.err(), Some(Errno::Access), "by what it is now");
        drop(b.open(&root(), two, OpenFlags::READ).await.expect("open"));
        a.unlink(&root(), dir, b"two").await.expect("unlink");
        assert_eq!(b.open(&root(), two, OpenFlags::READ).await.err(), Some(Errno::Stale));
        drop(b);
    });
}
