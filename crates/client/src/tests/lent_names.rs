//! Names that a front end caches under a timeout and tokens: when they get a timeout, and which operations wait for
//! their invalidation.

use super::sharing::{Cluster, calls, in_cluster, lookup, root};
use crate::api::{KernelPages, LentName, NameShows, OpenFlags};
use crate::telemetry::stats::Count;
use amphi_env::Env;
use amphi_types::{ByteRange, Errno, Ino, Kind};
use amphi_wire::RenameMode;
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

type Done = Box<dyn FnOnce() + Send>;

/// A front end that invalidates names when the test tells it to.
#[derive(Default)]
struct Front(Mutex<Vec<(Vec<LentName>, Done)>>);

impl Front {
    fn asked(&self) -> Vec<LentName> {
        self.0.lock().iter().flat_map(|(names, _)| names.clone()).collect()
    }

    fn give_back(&self) {
        std::mem::take(&mut *self.0.lock()).into_iter().for_each(|(_, done)| done());
    }
}

impl KernelPages for Front {
    fn drop_pages(&self, _: Ino, _: ByteRange, done: Done) {
        done();
    }

    fn drop_overwritten(&self, _: Ino, _: ByteRange, done: Done) {
        done();
    }

    fn take_names(&self, names: Vec<LentName>, done: Done) {
        self.0.lock().push((names, done));
    }
}

/// A name in the root.
fn name(name: &str, shows: NameShows) -> LentName {
    LentName { dir: Ino::ROOT, name: Box::from(name.as_bytes()), shows }
}

fn directory(n: &str, ino: Ino) -> LentName {
    name(n, NameShows::Directory(ino))
}

/// Goal: a name has a timeout as long as its token is held. Another mount's change of it is answered, and this mount's
/// own change is sent, only when the front end has invalidated the name. After that it gets no timeout for a while.
/// Method: two mounts, and a front end that invalidates when the test says so.
#[test]
fn changes_wait_until_a_name_is_back() {
    in_cluster(21, async |c| {
        let [a, b] = c.two().await;
        let front = Arc::<Front>::default();
        b.set_pages(Some(front.clone()));
        let ino = a.mkdir(&root(), Ino::ROOT, b"d", 0o755).await.unwrap().ino;
        assert!(b.lends_names() && b.known_name(Ino::ROOT, b"d").is_none());
        assert_eq!(b.lend_name(&directory("d", ino)), Duration::ZERO, "no token");
        assert_eq!(lookup(&b, "d").await.map(|x| x.ino), Ok(ino));
        assert_eq!(b.known_name(Ino::ROOT, b"d").map(|x| x.map(|x| x.ino)), Some(Ok(ino)));
        assert_eq!(b.lend_name(&directory("d", Ino(ino.0 + 1))), Duration::ZERO, "another directory");
        let life = b.lend_name(&directory("d", ino));
        assert!(life > Duration::from_secs(20) && life <= Duration::from_secs(29), "{life:?}");
        assert!(b.is_name_lent(Ino::ROOT, b"d", NameShows::Directory(ino)) && b.lent_names() == [directory("d", ino)]);

        let rename = async {
            a.rename(&root(), (Ino::ROOT, b"d"), (Ino::ROOT, b"e"), RenameMode::Replace).await.unwrap();
        };
        waits_for(c, &front, directory("d", ino), rename).await;
        c.env.sleep(Duration::from_millis(5)).await;
        assert!(b.mount.life.pauses.is_empty(), "the name is back, but its time is still waited for");
        assert_eq!(lookup(&b, "d").await, Err(Errno::NoEnt));
        assert!(b.lent_names().is_empty());

        assert_eq!(lookup(&b, "e").await.map(|x| x.ino), Ok(ino));
        assert!(!b.lend_name(&directory("e", ino)).is_zero());
        let before = calls(&b);
        let rename = async {
            b.rename(&root(), (Ino::ROOT, b"e"), (Ino::ROOT, b"f"), RenameMode::Replace).await.unwrap();
        };
        let give = async {
            c.until("it is asked back", || front.asked() == [directory("e", ino)]).await;
            assert_eq!(calls(&b), before, "nothing is sent yet");
            front.give_back();
        };
        futures_util::join!(rename, give);
        assert!(calls(&b) > before);

        // A name rests when it was taken back.
        a.rename(&root(), (Ino::ROOT, b"f"), (Ino::ROOT, b"e"), RenameMode::Replace).await.unwrap();
        assert_eq!(lookup(&b, "e").await.map(|x| x.ino), Ok(ino));
        c.env.sleep(Duration::from_secs(2)).await;
        assert!(!b.lend_name(&directory("e", ino)).is_zero());
        let rename = a.rename(&root(), (Ino::ROOT, b"e"), (Ino::ROOT, b"f"), RenameMode::Replace);
        let give = async {
            c.until("it is asked back", || !front.asked().is_empty()).await;
            front.give_back();
        };
        futures_util::join!(rename, give).0.unwrap();
        a.rename(&root(), (Ino::ROOT, b"f"), (Ino::ROOT, b"e"), RenameMode::Replace).await.unwrap();
        assert_eq!(lookup(&b, "e").await.map(|x| x.ino), Ok(ino));
        assert_eq!(b.lend_name(&directory("e", ino)), Duration::ZERO, "it was taken back twice in a short time");
        assert_eq!(b.mount.stats.of(Count::NamesTaken), (3, 3));
        assert!(b.mount.stats.of(Count::NamesContended).0 >= 1 && b.mount.stats.of(Count::NamesNoToken).0 >= 2);
    });
}

/// Makes a change that has to end when the front end has invalidated `lent`, and not before.
async fn waits_for(c: &Cluster, front: &Front, lent: LentName, change: impl Future<Output = ()>) {
    let done = Cell::new(false);
    let change = async {
        change.await;
        done.set(true);
    };
    let give = async {
        c.until("it is asked back", || front.asked() == [lent.clone()]).await;
        c.env.sleep(Duration::from_secs(1)).await;
        assert!(!done.get(), "the front end still has it");
        front.give_back();
    };
    futures_util::join!(change, give);
}

/// Goal: names of files and absent names get a timeout like those of directories, while a token shows exactly this
/// state. An operation that makes or removes such a name waits until it is invalidated. Method: two mounts, one file
/// with two names, and one absent name. The front end invalidates when the test says so.
#[test]
fn files_and_absent_names_are_lent() {
    in_cluster(23, async |c| {
        let [a, b] = c.two().await;
        let front = Arc::<Front>::default();
        b.set_pages(Some(front.clone()));
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let made = a.create(&root(), Ino::ROOT, b"f", 0o644, flags).await.unwrap();
        let ino = made.attr.ino;
        drop(made);
        a.link(&root(), ino, Ino::ROOT, b"g").await.unwrap();
        let file = |n| name(n, NameShows::Other(ino, Kind::File));
        assert_eq!(lookup(&b, "n").await, Err(Errno::NoEnt));
        assert_eq!(b.known_name(Ino::ROOT, b"n"), Some(Err(Errno::NoEnt)));
        for n in ["f", "g"] {
            assert_eq!(lookup(&b, n).await.map(|x| x.ino), Ok(ino));
            assert_eq!(b.known_name(Ino::ROOT, n.as_bytes()).map(|x| x.map(|x| x.ino)), Some(Ok(ino)));
            assert!(b.lend_name(&name(n, NameShows::Nothing)).is_zero() && !b.lend_name(&file(n)).is_zero());
        }
        assert!(b.lend_name(&file("n")).is_zero() && !b.lend_name(&name("n", NameShows::Nothing)).is_zero());
        assert_eq!(b.lent_names().len(), 3);

        let unlink = async { a.unlink(&root(), Ino::ROOT, b"g").await.unwrap() };
        waits_for(c, &front, file("g"), unlink).await;
        assert_eq!(lookup(&b, "g").await, Err(Errno::NoEnt));
        let make = async {
            a.symlink(&root(), Ino::ROOT, b"n", b"f").await.unwrap();
        };
        waits_for(c, &front, name("n", NameShows::Nothing), make).await;
        assert_eq!(lookup(&b, "n").await.map(|x| x.kind), Ok(Kind::Symlink));
        let rename = async {
            b.rename(&root(), (Ino::ROOT, b"f"), (Ino::ROOT, b"h"), RenameMode::Replace).await.unwrap();
        };
        waits_for(c, &front, file("f"), rename).await;
        assert_eq!(lookup(&a, "h").await.map(|x| x.ino), Ok(ino));
        assert!(b.lent_names().is_empty());
    });
}

/// Goal: when tokens are lost the front end invalidates its names, and a mount in sole mode gives no timeouts under
/// tokens. Method: the other mount leaves while the kernel caches a name under a timeout.
#[test]
fn names_go_with_the_rule() {
    in_cluster(22, async |c| {
        let [a, b] = c.two().await;
        let front = Arc::<Front>::default();
        b.set_pages(Some(front.clone()));
        let ino = a.mkdir(&root(), Ino::ROOT, b"d", 0o755).await.unwrap().ino;
        assert_eq!(lookup(&b, "d").await.map(|x| x.ino), Ok(ino));
        assert!(!b.lend_name(&directory("d", ino)).is_zero());
        a.shutdown();
        c.until("it is asked back", || front.asked() == [directory("d", ino)]).await;
        assert!(b.is_alone() && !b.lends_names());
        assert_eq!(b.lend_name(&directory("d", ino)), Duration::ZERO);
        front.give_back();
        c.until("it is back", || b.lent_names().is_empty()).await;
    });
}
