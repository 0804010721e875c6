//! Pages of a kernel that cannot be invalidated before the lock over them is returned.

use super::sharing::{create, in_cluster, open, read, root, write};
use crate::api::{Hints, KernelPages, WriteTo};
use crate::coherence::front_pages;
use crate::locks;
use crate::telemetry::stats::Count;
use crate::{Client, OpenFile, OpenFlags};
use amphi_dlm::Mode as LockMode;
use amphi_env::{Buf, Env};
use amphi_types::{ByteRange, Ino, SetAttr};
use amphi_wire::{self as wire, FileLockFamily, FileLockOwner, FileLockSpec};
use futures_util::future::join;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

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

/// A kernel with one dirty page of a file, which it does not write back for as long as a truncate is unanswered.
struct Kernel {
    client: Client,
    file: Arc<OpenFile>,
    page: Mutex<Vec<u8>>,
    truncates: AtomicBool,
    /// While the page is dropped, it is read again and changed once more.
    touched_again: bool,
    drops: AtomicU64,
    written: AtomicU64,
}

struct Dropper(Arc<Kernel>);

impl KernelPages for Dropper {
    fn drop_pages(&self, _: Ino, _: ByteRange, done: Box<dyn FnOnce() + Send>) {
        let kernel = self.0.clone();
        self.0.client.spawn(async move {
            let is_free = || !kernel.truncates.load(SeqCst);
            kernel.file.file.signal.until(is_free).await;
            kernel.write_back().await;
            if kernel.drops.fetch_add(1, SeqCst) == 0 && kernel.touched_again {
                let bytes =
                    kernel.client.read(&root(), &kernel.file, 0, PAGE, FOR_PAGES).await.expect("a page").to_vec();
                assert_eq!(bytes[8], b'a', "it shows what was written elsewhere");
                *kernel.page.lock() = bytes;
                kernel.page.lock()[10] = b'n';
                kernel.write_back().await;
            }
            done();
        });
    }

    fn drop_overwritten(&self, _: Ino, _: ByteRange, done: Box<dyn FnOnce() + Send>) {
        done();
    }
}

impl Kernel {
    async fn write_back(&self) {
        let bytes = std::mem::take(&mut *self.page.lock());
        if !bytes.is_empty() {
            let hints = Hints { write_back: true, for_pages: false, ..FOR_PAGES };
            let written = self.client.write(&root(), &self.file, 0, Buf::copy_of(&bytes), hints).await;
            assert_eq!(written, Ok(bytes.len()));
            self.written.fetch_add(1, SeqCst);
        }
    }
}

/// Goal: a truncate that the kernel of a mount waits for, and a write of another mount that waits for a page of that
/// kernel, do not wait for each other. Neither the write nor the store that is written back after it is lost
/// (docs/locking/kernel_pages.md). Method: a kernel that gives its page back when its truncate is answered; a write
/// elsewhere to other bytes of that page, before the truncate is requested, at the same time, and where a page is read
/// anew before all are taken. The test is run on one target and on several.
#[test]
fn a_lock_goes_before_pages_that_cannot_be_had() {
    for (seed, size, touched_again) in [(1u64, 2 * PAGE, false), (2, 300, false), (3, 3 * PAGE, true), (4, 0, false)] {
        in_cluster(seed, async |c| {
            let [a, b] = c.two().await;
            let fa = create(&a, "f").await;
            write(&a, &fa, 0, &vec![b'o'; 2 * PAGE]).await;
            let fb = open(&b, "f", OpenFlags::READ_WRITE).await;
            let kernel = Arc::new(Kernel {
                client: b.clone(),
                file: fb.clone(),
                page: Mutex::default(),
                truncates: AtomicBool::new(true),
                touched_again,
                drops: AtomicU64::new(0),
                written: AtomicU64::new(0),
            });
            b.set_pages(Some(Arc::new(Dropper(kernel.clone()))));
            let mut bytes = b.read(&root(), &fb, 0, PAGE, FOR_PAGES).await.expect("a page").to_vec();
            bytes[100] = b's';
            *kernel.page.lock() = bytes;
            let before = c.env.now();
            let set = SetAttr { size: Some(size as u64), open_for_write: true, ..SetAttr::default() };
            let truncate = async {
                // The write is in the queue before.
                c.env.sleep(Duration::from_millis(5)).await;
                b.setattr(&root(), fb.ino(), set, Some(&fb)).await.expect("truncate");
                kernel.page.lock().truncate(size);
            };
            // A truncate that waits for no lock is answered at once. The mount counts one for as long as this kernel.
            let cut = fb.file.pages.begin_cut();
            join(truncate, write(&a, &fa, 8, b"aaaaaaaa")).await;
            drop(cut);
            kernel.truncates.store(false, SeqCst);
            fb.file.signal.notify();
            assert!(c.env.now() < before + Duration::from_millis(500), "took {:?}", c.env.now().since(before));
            assert_eq!(b.mount.stats.of(Count::PagesLeft).1, 1);
            // The page that is read anew may wait for its lock until all others are invalidated. Of an empty file
            // nothing is written back.
            let stores = u64::from(size > 0) + u64::from(touched_again);
            let is_over = || !fb.file.pages.is_taking() && kernel.written.load(SeqCst) == stores;
            c.until("all pages are taken back and written", is_over).await;
            let got = read(&a, &fa, 0, PAGE).await;
            if size > 0 {
                let mut want = vec![b'o'; size.min(PAGE)];
                want[8..16].fill(b'a');
                want[100] = b's';
                if touched_again {
                    want[10] = b'n';
                }
                assert!(got == want, "case {seed}: {:?}", &got[..got.len().min(128)]);
            }
            assert_eq!(read(&b, &fb, 0, PAGE).await, got);
            b.set_pages(None);
        });
    }
}

/// A kernel that gives no page of a range back while it reads there.
struct Reading {
    range: ByteRange,
    held: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
    given: Mutex<Vec<ByteRange>>,
}

impl KernelPages for Reading {
    fn drop_pages(&self, _: Ino, range: ByteRange, done: Box<dyn FnOnce() + Send>) {
        if range.overlaps(&self.range) {
            self.held.lock().push(done);
        } else {
            self.given.lock().push(range);
            done();
        }
    }

    fn drop_overwritten(&self, _: Ino, _: ByteRange, done: Box<dyn FnOnce() + Send>) {
        done();
    }
}

/// Goal: while pages of a file are invalidated, a read of bytes that another mount has written and still caches returns
/// these bytes. The invalidation does not wait for that read, because the lock of the read may have to wait for the
/// invalidation. Method: a mount with dirty bytes keeps its lock until the other one has invalidated its pages. The
/// kernel of the other mount drops no page while it reads it.
#[test]
fn reads_while_pages_are_taken_back_show_what_others_have() {
    in_cluster(5, async |c| {
        let [a, b] = c.two().await;
        let fa = create(&a, "f").await;
        write(&a, &fa, 0, &vec![b'o'; 4 * PAGE]).await;
        let fb = open(&b, "f", OpenFlags::READ_WRITE).await;
        assert_eq!(read(&b, &fb, 0, PAGE).await, vec![b'o'; PAGE]);
        write(&a, &fa, PAGE as u64, &vec![b'n'; PAGE]).await;
        let keeps = locks::pin_objects(&a.mount, &fa.file, LockMode::Write, ByteRange::ALL).await.expect("a lock");
        let range = ByteRange::at(PAGE as u64, PAGE as u64);
        let kernel = Arc::new(Reading { range, held: Mutex::default(), given: Mutex::default() });
        b.set_pages(Some(kernel.clone()));
        let before = c.env.now();
        let (mount, file) = (b.mount.clone(), fb.file.clone());
        b.spawn(async move { front_pages::take_all(&mount, &file).await });
        c.until("the kernel is asked", || !kernel.held.lock().is_empty()).await;
        let reads = async {
            let got = b.read(&root(), &fb, PAGE as u64, PAGE, FOR_PAGES).await.expect("a page").to_vec();
            kernel.held.lock().drain(..).for_each(|done| done());
            got
        };
        let others = async {
            c.until("all other pages are taken back", || !fb.file.pages.is_taking()).await;
            drop(keeps);
        };
        let (got, ()) = join(reads, others).await;
        assert!(got.iter().all(|byte| *byte == b'n'), "{:?}", &got[..16]);
        assert!(c.env.now() < before + Duration::from_millis(500), "took {:?}", c.env.now().since(before));
        let given = kernel.given.lock().clone();
        assert_eq!(given, [ByteRange::new(range.end, u64::MAX), ByteRange::new(0, range.start)]);
        b.set_pages(None);
    });
}

/// A kernel with clean pages of a file, that needs some time to drop them.
struct Slow {
    client: Client,
    takes_ns: u64,
    dropped: AtomicU64,
}

struct SlowDropper(Arc<Slow>);

impl KernelPages for SlowDropper {
    fn drop_pages(&self, _: Ino, _: ByteRange, done: Box<dyn FnOnce() + Send>) {
        let kernel = self.0.clone();
        self.0.client.spawn(async move {
            kernel.client.mount.life.pauses.pause(kernel.takes_ns).await;
            kernel.dropped.fetch_add(1, SeqCst);
            done();
        });
    }

    fn drop_overwritten(&self, _: Ino, _: ByteRange, done: Box<dyn FnOnce() + Send>) {
        done();
    }
}

/// Goal: a lock is not returned before pages that a kernel only drops late, as on a machine that has no processor free
/// for it. Method: the pages of a file that is open for writing; a write of another mount returns after they are
/// dropped.
#[test]
fn a_lock_waits_for_a_slow_kernel() {
    in_cluster(6, async |c| {
        let [a, b] = c.two().await;
        let fa = create(&a, "f").await;
        write(&a, &fa, 0, &vec![b'o'; 2 * PAGE]).await;
        let fb = open(&b, "f", OpenFlags::READ_WRITE).await;
        let kernel = Arc::new(Slow { client: b.clone(), takes_ns: 300_000_000, dropped: AtomicU64::new(0) });
        b.set_pages(Some(Arc::new(SlowDropper(kernel.clone()))));
        b.read(&root(), &fb, 0, PAGE, FOR_PAGES).await.expect("a page");
        write(&a, &fa, 0, b"n").await;
        assert_eq!(kernel.dropped.load(SeqCst), 1, "the kernel may still show the old byte");
        assert_eq!(b.mount.stats.of(Count::PagesLeft).1, 0);
        b.set_pages(None);
    });
}

/// Goal: a program that gets a file lock, and one whose `fsync` returns, do not find pages that were left when locks
/// were returned. Method: beside a truncate a lock goes before the pages. Both calls then wait until the kernel has
/// dropped them.
#[test]
fn no_page_is_left_behind_a_file_lock_or_a_sync() {
    for (seed, syncs) in [(7, false), (8, true)] {
        in_cluster(seed, async |c| {
            let [a, b] = c.two().await;
            let fa = create(&a, "f").await;
            write(&a, &fa, 0, &vec![b'o'; 2 * PAGE]).await;
            let fb = open(&b, "f", OpenFlags::READ_WRITE).await;
            let range = ByteRange::new(0, PAGE as u64);
            let kernel = Arc::new(Reading { range, held: Mutex::default(), given: Mutex::default() });
            b.set_pages(Some(kernel.clone()));
            b.read(&root(), &fb, 0, PAGE, FOR_PAGES).await.expect("a page");
            let cut = fb.file.pages.begin_cut();
            write(&a, &fa, 0, b"n").await;
            assert_eq!(b.mount.stats.of(Count::PagesLeft).1, 1, "seed {seed}: the page was left");
            drop(cut);
            let is_over = Arc::new(AtomicBool::new(false));
            let (client, file, over) = (b.clone(), fb.clone(), is_over.clone());
            b.spawn(async move {
                if syncs {
                    client.fsync(&root(), &file, false).await.expect("fsync");
                } else {
                    let owner = FileLockOwner { family: FileLockFamily::Posix, id: 7 };
                    let (ino, range) = (file.ino(), ByteRange::ALL);
                    let lock = FileLockSpec { ino, owner, range, mode: wire::LockMode::Write, pid: 7 };
                    client.try_lock(lock).await.expect("a lock").keep();
                }
                over.store(true, SeqCst);
            });
            c.env.sleep(Duration::from_millis(500)).await;
            assert!(!is_over.load(SeqCst), "seed {seed}: the kernel has the page of before");
            kernel.held.lock().drain(..).for_each(|done| done());
            c.until("the call returns", || is_over.load(SeqCst)).await;
            b.set_pages(None);
        });
    }
}

/// A kernel that drops pages in order, like Linux: a dirty page, which it writes back, and then a clean one.
struct InOrder {
    client: Client,
    file: Arc<OpenFile>,
    page: Mutex<Vec<u8>>,
    written: AtomicBool,
    dropped: AtomicBool,
}

struct InOrderDropper(Arc<InOrder>);

impl KernelPages for InOrderDropper {
    fn drop_pages(&self, _: Ino, range: ByteRange, done: Box<dyn FnOnce() + Send>) {
        let kernel = self.0.clone();
        self.0.client.spawn(async move {
            let page = PAGE as u64;
            let bytes = if range.start == 0 { std::mem::take(&mut *kernel.page.lock()) } else { Vec::new() };
            if !bytes.is_empty() {
                let hints = Hints { write_back: true, for_pages: false, ..FOR_PAGES };
                let written = kernel.client.write(&root(), &kernel.file, 0, Buf::copy_of(&bytes), hints).await;
                assert_eq!(written, Ok(PAGE));
                kernel.written.store(true, SeqCst);
            }
            if range.end > page {
                kernel.dropped.store(true, SeqCst);
            }
            done();
        });
    }

    fn drop_overwritten(&self, _: Ino, _: ByteRange, done: Box<dyn FnOnce() + Send>) {
        done();
    }
}

/// Goal: a page whose write-back waits for a lock of another mount keeps no clean page in the kernel. Method: the other
/// mount holds a lock on the dirty page, and writes to the clean one meanwhile.
#[test]
fn clean_pages_go_around_a_write_that_waits() {
    in_cluster(9, async |c| {
        let [a, b] = c.two().await;
        let fa = create(&a, "f").await;
        write(&a, &fa, 0, &vec![b'o'; 2 * PAGE]).await;
        let fb = open(&b, "f", OpenFlags::READ_WRITE).await;
        let bytes = b.read(&root(), &fb, 0, 2 * PAGE, FOR_PAGES).await.expect("pages").to_vec();
        let mut page = bytes[..PAGE].to_vec();
        page[5] = b's';
        let (written, dropped) = (AtomicBool::new(false), AtomicBool::new(false));
        let kernel =
            Arc::new(InOrder { client: b.clone(), file: fb.clone(), page: Mutex::new(page), written, dropped });
        b.set_pages(Some(Arc::new(InOrderDropper(kernel.clone()))));
        let first = ByteRange::new(0, PAGE as u64);
        let keeps = locks::pin_objects(&a.mount, &fa.file, LockMode::Read, first).await.expect("a lock");
        write(&a, &fa, PAGE as u64, b"n").await;
        assert!(!kernel.written.load(SeqCst), "it waits for the lock");
        assert!(kernel.dropped.load(SeqCst), "the kernel may still show the old byte");
        drop(keeps);
        c.until("all pages are dropped", || !fb.file.pages.is_taking() && kernel.written.load(SeqCst)).await;
        assert_eq!(read(&a, &fa, 5, 1).await, b"s");
        assert_eq!(read(&b, &fb, PAGE as u64, 1).await, b"n");
        b.set_pages(None);
    });
}
