//! Open files whose reads the kernel serves.

use super::policy::io;
use super::sharing::{create, in_cluster, open, root, write};
use super::world::World;
use crate::api::{Ctx, Hints, KernelPages, Program};
use crate::policy::decision::Reason;
use crate::telemetry::stats::{Count, Way};
use crate::{Client, OpenFlags};
use amphi_env::Env;
use amphi_types::{ByteRange, DataChecksums, Ino, KernelCache, Pattern};
use amphi_wire::XattrMode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const PAGE: u64 = 4096;
const PAGES: u64 = 8;

/// A kernel that counts how often it has to drop pages.
#[derive(Default)]
struct Drops(AtomicU64);

impl KernelPages for Drops {
    fn drop_pages(&self, _: Ino, _: ByteRange, done: Box<dyn FnOnce() + Send>) {
        self.0.fetch_add(1, SeqCst);
        done();
    }

    fn drop_overwritten(&self, _: Ino, _: ByteRange, done: Box<dyn FnOnce() + Send>) {
        done();
    }
}

/// A kernel that does not use every size that it is notified of.
struct DropsSizes;

impl KernelPages for DropsSizes {
    fn drop_pages(&self, _: Ino, _: ByteRange, done: Box<dyn FnOnce() + Send>) {
        done();
    }

    fn drop_overwritten(&self, _: Ino, _: ByteRange, done: Box<dyn FnOnce() + Send>) {
        done();
    }

    fn follows_sizes(&self) -> bool {
        false
    }
}

async fn set(client: &Client, ino: Ino, name: &[u8], value: &[u8]) {
    client.setxattr(&root(), ino, name, value, XattrMode::Set).await.expect("set");
}

/// Goal: when a file becomes contended, its reads move from the kernel to the mount at once. For open files that the
/// kernel still serves, writes to other bytes than the pages that they have read invalidate none of these pages
/// (docs/HYBRID.md, "Who serves reads"). Method: a mount reads one page of a file as its kernel does, and another mount
/// writes other pages. Before the file is contended, the first such write invalidates the page. After the file is
/// contended, no read of another page calls a lock back, but a write to the same page does.
#[test]
fn a_contended_file_changes_sides_at_once() {
    for contended in [false, true] {
        in_cluster(1, async |c| {
            let [a, b] = c.two().await;
            let fa = create(&a, "f").await;
            write(&a, &fa, 0, &[1; (PAGE * PAGES) as usize]).await;
            assert_eq!(a.fsync(&root(), &fa, false).await, Ok(()));
            let fb = open(&b, "f", OpenFlags::READ).await;
            let drops = Arc::new(Drops::default());
            b.set_pages(Some(drops.clone()));
            // A writer exists already: only the setting of the file leaves its reads to the kernel.
            fb.front.serves.store(true, SeqCst);
            if contended {
                let until = b.mount.clock.now_ns() + 60_000_000_000;
                fb.file.locks.contended_until_ns.store(until, SeqCst);
            }
            let page = async || {
                let hints = Hints { for_pages: true, ..Hints::default() };
                b.read(&root(), &fb, 0, PAGE as usize, hints).await.expect("a page").to_vec()
            };
            assert_eq!(page().await, [1; PAGE as usize]);
            for other in 1..PAGES {
                write(&a, &fa, other * PAGE, &[2; PAGE as usize]).await;
            }
            c.env.sleep(Duration::from_millis(100)).await;
            assert_eq!(drops.0.load(SeqCst) == 0, contended, "pages beside the one that was read");
            write(&a, &fa, 5, &[3]).await;
            c.until("the page is taken back", || drops.0.load(SeqCst) > 0 && !fb.file.pages.is_taking()).await;
            assert_eq!(page().await[4..7], [1, 3, 1]);
            b.set_pages(None);
        });
    }
}

/// Goal: in shared mode a kernel that may use an older size serves no reads (docs/HYBRID.md, "Who serves reads").
/// Method: opens of a small file without a writer. The same is done with a kernel that uses the notified size, and this
/// kernel serves the reads.
#[test]
fn a_kernel_that_drops_sizes_serves_no_reads_in_company() {
    for follows in [true, false] {
        in_cluster(1, async |c| {
            let [a, b] = c.two().await;
            let fa = create(&a, "f").await;
            write(&a, &fa, 0, &[1; PAGE as usize]).await;
            assert_eq!(a.fsync(&root(), &fa, false).await, Ok(()));
            drop(fa);
            let front: Arc<dyn KernelPages> = if follows { Arc::new(Drops::default()) } else { Arc::new(DropsSizes) };
            b.set_pages(Some(front));
            let mut serves = false;
            for _ in 0..30 {
                c.env.sleep(Duration::from_secs(1)).await;
                let fb = open(&b, "f", OpenFlags::READ).await;
                b.getattr(&root(), fb.ino()).await.expect("stat");
                serves |= b.front_cache(&root(), &fb).serves;
            }
            assert_eq!(serves, follows);
            b.set_pages(None);
        });
    }
}

/// Goal: the kernel's requests for reads of a large file bypass the cache. The mount samples a program whose long
/// streams the kernel serves, and uses the result from then on. After a wrong guess the next sample is later
/// (docs/HYBRID.md, "Who serves reads"). Method: opens by one program, which are read as its kernel reads or as the
/// program itself reads, depending on who serves them.
#[test]
fn long_streams_through_the_kernel_are_looked_at() {
    const BYTES: usize = 2 << 20;
    let mut w = World::new(1, &[("hybrid.large_read_bytes", "256K")]);
    let ino = w.server.plant("f", &vec![7; BYTES], Pattern::Whole);
    let ctx = Ctx { program: Program { executable: 9, reads: None }, ..Ctx::root() };
    let served_by_kernel = |w: &mut World, step: usize| {
        let opening = w.client.open(&ctx, ino, OpenFlags::READ);
        let file = w.run(opening).expect("open");
        let serves = w.client.front_cache(&ctx, &file).serves;
        let (step, hints) = (if serves { 128 << 10 } else { step }, Hints { for_pages: serves, ..Hints::default() });
        for at in (0..BYTES).step_by(step) {
            let reading = w.client.read(&ctx, &file, at as u64, step, hints);
            assert_eq!(w.run(reading).expect("read").len(), step);
            w.client.kept_by_front(&file, at as u64, step);
        }
        serves
    };
    for _ in 0..64 {
        assert!(served_by_kernel(&mut w, 1 << 20), "nothing is known of it");
    }
    assert_eq!(io(&w, Way::Read, Reason::DirectKernel).0, 64 * BYTES as u64 / (128 << 10));
    assert_eq!(w.client.mount.stats.of(Count::Fill), (0, 0), "nothing went into the cache");
    assert!(!served_by_kernel(&mut w, 1 << 20), "a look");
    assert!(!served_by_kernel(&mut w, 1 << 20), "it was seen to read in large pieces");
    assert!(!served_by_kernel(&mut w, 32 << 10), "as before, which is wrong");
    let opens = |w: &World, count| w.client.mount.stats.of(count).0;
    for _ in 0..256 {
        assert!(served_by_kernel(&mut w, 32 << 10));
    }
    assert_eq!(opens(&w, Count::OpenKernelSmallReads), 256);
    assert!(!served_by_kernel(&mut w, 32 << 10), "a look, four times as far as the first");
    assert_eq!((opens(&w, Count::OpenMountLook), opens(&w, Count::OpenMountLarge)), (2, 2));
}

/// Goal: the setting of a file and of its directory reaches other mounts. One setting does not change the others, and
/// each word has its own meaning (docs/HYBRID.md, "Who serves reads"). Method: set and read back on two mounts.
#[test]
fn the_setting_is_kept_and_inherited() {
    in_cluster(2, async |c| {
        let [a, b] = c.two().await;
        let dir = a.mkdir(&root(), Ino::ROOT, b"d", 0o755).await.expect("mkdir").ino;
        set(&a, dir, b"user.amphi.mode", b"direct").await;
        set(&a, dir, b"user.amphi.kernel_cache", b"on").await;
        let file = a.create(&root(), dir, b"f", 0o644, OpenFlags::READ_WRITE).await.expect("create").file;
        let get = async |name: &[u8]| {
            let value = b.getxattr(&root(), file.ino(), name).await.expect("get");
            String::from_utf8(value).expect("text")
        };
        assert_eq!(get(b"user.amphi.kernel_cache").await, "on");
        assert_eq!(get(b"user.amphi.mode").await, "direct");
        assert_eq!(file.file.hints.advice().kernel_cache(), KernelCache::On);
        for word in ["off", "auto", "on"] {
            set(&b, file.ino(), b"user.amphi.kernel_cache", word.as_bytes()).await;
            assert_eq!(get(b"user.amphi.kernel_cache").await, word);
            assert_eq!(get(b"user.amphi.mode").await, "direct");
        }
        for word in ["on", "off"] {
            set(&b, file.ino(), b"user.amphi.checksums", word.as_bytes()).await;
            assert_eq!(get(b"user.amphi.checksums").await, word);
            assert_eq!(
                (get(b"user.amphi.mode").await, get(b"user.amphi.kernel_cache").await),
                ("direct".into(), "on".into())
            );
        }
        a.getattr(&root(), file.ino()).await.expect("stat");
        assert_eq!(
            file.file.hints.advice().checksums(),
            DataChecksums::Off,
            "an open file learns it with its attributes"
        );
        let wrong = b.setxattr(&root(), file.ino(), b"user.amphi.kernel_cache", b"yes", XattrMode::Set).await;
        assert_eq!(wrong, Err(amphi_types::Errno::Inval));
    });
}
