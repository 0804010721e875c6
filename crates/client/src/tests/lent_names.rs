//! Names of directories that a front end keeps under tokens: when they are lent, and who waits until they are back.

use super::sharing::{calls, in_cluster, lookup, root};
use crate::api::KernelPages;
use crate::telemetry::stats::Count;
use amphi_env::Env;
use amphi_types::{ByteRange, Errno, Ino};
use amphi_wire::RenameMode;
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

type Done = Box<dyn FnOnce() + Send>;

/// A front end that takes names back when it is told to.
#[derive(Default)]
struct Front(Mutex<Vec<(Vec<Ino>, Done)>>);

impl Front {
    fn asked(&self) -> Vec<Ino> {
        self.0.lock().iter().flat_map(|(nodes, _)| nodes.clone()).collect()
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

    fn take_names(&self, nodes: Vec<Ino>, done: Done) {
        self.0.lock().push((nodes, done));
    }
}

/// Goal: a name is lent as long as its token is held; another mount's change of it is answered, and an own change sent,
/// when the front end has given it back, and not before; then it rests. Method: two mounts, a front end that gives back
/// when the test says so.
#[test]
fn changes_wait_until_a_name_is_back() {
    in_cluster(21, async |c| {
        let [a, b] = c.two().await;
        let front = Arc::<Front>::default();
        b.set_pages(Some(front.clone()));
        let ino = a.mkdir(&root(), Ino::ROOT, b"d", 0o755).await.unwrap().ino;
        assert!(b.lends_names() && b.known_directory(Ino::ROOT, b"d").is_none());
        assert_eq!(b.lend_name(Ino::ROOT, b"d", ino), Duration::ZERO, "no token");
        assert_eq!(lookup(&b, "d").await.map(|x| x.ino), Ok(ino));
        assert_eq!(b.known_directory(Ino::ROOT, b"d").map(|x| x.ino), Some(ino));
        assert_eq!(b.lend_name(Ino::ROOT, b"d", Ino(ino.0 + 1)), Duration::ZERO, "another directory");
        let life = b.lend_name(Ino::ROOT, b"d", ino);
        assert!(life > Duration::from_secs(20) && life <= Duration::from_secs(29), "{life:?}");
        assert!(b.is_name_lent(Ino::ROOT, b"d", ino) && b.lent_names() == [ino]);

        let renamed = Cell::new(false);
        let rename = async {
            a.rename(&root(), (Ino::ROOT, b"d"), (Ino::ROOT, b"e"), RenameMode::Replace).await.unwrap();
            renamed.set(true);
        };
        let give = async {
            c.until("it is asked back", || front.asked() == [ino]).await;
            c.env.sleep(Duration::from_secs(1)).await;
            assert!(!renamed.get(), "the front end still has it");
            assert_eq!(b.lend_name(Ino::ROOT, b"d", ino), Duration::ZERO);
            front.give_back();
        };
        futures_util::join!(rename, give);
        assert_eq!(lookup(&b, "d").await, Err(Errno::NoEnt));
        assert!(b.lent_names().is_empty());

        assert_eq!(lookup(&b, "e").await.map(|x| x.ino), Ok(ino));
        assert!(!b.lend_name(Ino::ROOT, b"e", ino).is_zero());
        let before = calls(&b);
        let rename = async {
            b.rename(&root(), (Ino::ROOT, b"e"), (Ino::ROOT, b"f"), RenameMode::Replace).await.unwrap();
        };
        let give = async {
            c.until("it is asked back", || front.asked() == [ino]).await;
            assert_eq!(calls(&b), before, "nothing is sent yet");
            front.give_back();
        };
        futures_util::join!(rename, give);
        assert!(calls(&b) > before);

        // A name rests when it was taken back.
        a.rename(&root(), (Ino::ROOT, b"f"), (Ino::ROOT, b"e"), RenameMode::Replace).await.unwrap();
        assert_eq!(lookup(&b, "e").await.map(|x| x.ino), Ok(ino));
        c.env.sleep(Duration::from_secs(2)).await;
        assert!(!b.lend_name(Ino::ROOT, b"e", ino).is_zero());
        let rename = a.rename(&root(), (Ino::ROOT, b"e"), (Ino::ROOT, b"f"), RenameMode::Replace);
        let give = async {
            c.until("it is asked back", || !front.asked().is_empty()).await;
            front.give_back();
        };
        futures_util::join!(rename, give).0.unwrap();
        a.rename(&root(), (Ino::ROOT, b"f"), (Ino::ROOT, b"e"), RenameMode::Replace).await.unwrap();
        assert_eq!(lookup(&b, "e").await.map(|x| x.ino), Ok(ino));
        assert_eq!(b.lend_name(Ino::ROOT, b"e", ino), Duration::ZERO, "it was taken back twice in a short time");
        assert_eq!(b.mount.stats.of(Count::NamesTaken), (3, 3));
        assert!(b.mount.stats.of(Count::NamesContended).0 >= 1 && b.mount.stats.of(Count::NamesNoToken).0 >= 2);
    });
}

/// Goal: when tokens are lost the front end gives back what it has, and a mount that is alone lends no names under
/// tokens. Method: the other mount leaves while a name is lent.
#[test]
fn names_go_with_the_rule() {
    in_cluster(22, async |c| {
        let [a, b] = c.two().await;
        let front = Arc::<Front>::default();
        b.set_pages(Some(front.clone()));
        let ino = a.mkdir(&root(), Ino::ROOT, b"d", 0o755).await.unwrap().ino;
        assert_eq!(lookup(&b, "d").await.map(|x| x.ino), Ok(ino));
        assert!(!b.lend_name(Ino::ROOT, b"d", ino).is_zero());
        a.shutdown();
        c.until("it is asked back", || front.asked() == [ino]).await;
        assert!(b.is_alone() && !b.lends_names());
        assert_eq!(b.lend_name(Ino::ROOT, b"d", ino), Duration::ZERO);
        front.give_back();
        c.until("it is back", || b.lent_names().is_empty()).await;
    });
}
