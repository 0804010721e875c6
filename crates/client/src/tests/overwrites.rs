//! Writes to bytes that are in pages of a kernel, and simultaneous stores to these pages.

use super::sharing::{create, in_cluster, read, root, write};
use crate::api::{Hints, KernelPages, WriteTo};
use crate::{Client, OpenFile};
use amphi_env::Buf;
use amphi_types::{ByteRange, Ino};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const PAGE: usize = 4096;
const FOR_PAGES: Hints = Hints {
    for_pages: true,
    may_continue: false,
    write_back: false,
    kill_suidgid: false,
    direct: false,
    to: WriteTo::AsOpened,
    stable: false,
};
const WRITE_BACK: Hints = Hints { for_pages: false, write_back: true, ..FOR_PAGES };

/// A kernel with one page of a file, in which a program changes bytes.
struct OnePage {
    client: Client,
    file: Arc<OpenFile>,
    page: Mutex<Vec<u8>>,
    drops: AtomicU64,
    /// While the page is dropped, it is read again and changed once more.
    touched_again: bool,
}

impl OnePage {
    fn new(client: &Client, file: &Arc<OpenFile>, touched_again: bool) -> Arc<OnePage> {
        let page = OnePage {
            client: client.clone(),
            file: file.clone(),
            page: Mutex::default(),
            drops: AtomicU64::new(0),
            touched_again,
        };
        let page = Arc::new(page);
        client.set_pages(Some(Arc::new(Dropper(page.clone()))));
        page
    }

    async fn fault(&self) {
        let mut bytes = vec![0; PAGE];
        let hit = self.client.try_read(&root(), &self.file, 0, &mut bytes, FOR_PAGES);
        if hit != Some(PAGE) {
            bytes = self.client.read(&root(), &self.file, 0, PAGE, FOR_PAGES).await.expect("a page").to_vec();
        }
        *self.page.lock() = bytes;
    }

    fn store(&self, at: usize, byte: u8) {
        self.page.lock()[at] = byte;
    }

    async fn write_back(&self) {
        let bytes = self.page.lock().clone();
        if bytes.is_empty() || self.client.try_write(&root(), &self.file, 0, &bytes, WRITE_BACK).is_some() {
            return;
        }
        let written = self.client.write(&root(), &self.file, 0, Buf::copy_of(&bytes), WRITE_BACK).await;
        assert_eq!(written, Ok(PAGE));
    }
}

struct Dropper(Arc<OnePage>);

impl KernelPages for Dropper {
    fn drop_pages(&self, ino: Ino, range: ByteRange, done: Box<dyn FnOnce() + Send>) {
        self.drop_overwritten(ino, range, done);
    }

    fn drop_overwritten(&self, _: Ino, _: ByteRange, done: Box<dyn FnOnce() + Send>) {
        let page = self.0.clone();
        self.0.client.spawn(async move {
            page.drops.fetch_add(1, SeqCst);
            page.write_back().await;
            page.page.lock().clear();
            if page.touched_again {
                page.fault().await;
                page.store(100, b'n');
                page.store(200, b'n');
                page.write_back().await;
            }
            done();
        });
    }
}

/// Goal: if one program stores to a page and another one calls `write` on the same page, neither change is lost
/// (docs/SEMANTICS.md, Mappings). The page was read before the write and is written back after it. A page that is read
/// anew before the write has returned is written back whole. Method: a kernel with one page, in sole mode and with
/// another mount, with buffered and direct writes.
#[test]
fn a_page_that_was_read_before_takes_no_write_back() {
    for (seed, sharing, direct, touched_again) in [
        (1, false, false, false),
        (2, false, true, false),
        (3, true, false, false),
        (4, true, true, true),
        (5, false, false, true),
    ] {
        in_cluster(seed, async |c| {
            let a = c.mount().await;
            let b = if sharing { Some(c.mount().await) } else { None };
            let f = create(&a, "f").await;
            write(&a, &f, 0, &[b'o'; 2 * PAGE]).await;
            let page = OnePage::new(&a, &f, touched_again);
            page.fault().await;
            page.store(3000, b's');
            let hints = Hints { direct, ..Hints::default() };
            let done = match a.try_write(&root(), &f, 100, &[b'w'; 50], hints) {
                Some(n) => n,
                None => a.write(&root(), &f, 100, Buf::copy_of(&[b'w'; 50]), hints).await.expect("write"),
            };
            assert_eq!(done, 50);
            assert_eq!(page.drops.load(SeqCst), 1, "the page was dropped before the write returned");
            let mut want = vec![b'o'; 2 * PAGE];
            want[100..150].fill(b'w');
            want[3000] = b's';
            if touched_again {
                (want[100], want[200]) = (b'n', b'n');
            }
            assert!(read(&a, &f, 0, 2 * PAGE).await == want, "case {seed}");
            page.page.lock().clear();
            let drops = page.drops.load(SeqCst);
            if !touched_again {
                // The page was not read after the write.
                write(&a, &f, 100, b"x").await;
                assert_eq!(page.drops.load(SeqCst), drops, "nothing is dropped that was not read");
            }
            a.set_pages(None);
            drop(b);
        });
    }
}

/// Goal: if a write fails, the store in the page to the same bytes remains. Method: a write that is refused for its
/// size.
#[test]
fn a_write_that_fails_takes_no_store_back() {
    in_cluster(6, async |c| {
        let a = c.mount().await;
        let f = create(&a, "f").await;
        write(&a, &f, 0, &[b'o'; PAGE]).await;
        let page = OnePage::new(&a, &f, false);
        page.fault().await;
        page.store(100, b's');
        let far = amphi_types::limits::FILE_MAX - 10;
        let refused = a.write(&root(), &f, far, Buf::copy_of(&[b'w'; 50]), Hints::default()).await;
        assert!(refused.is_err());
        page.write_back().await;
        assert_eq!(read(&a, &f, 100, 1).await, b"s");
        a.set_pages(None);
    });
}
