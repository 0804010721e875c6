//! Real mounts: needs root and `/dev/fuse`, as every machine that runs AmphiFS has.

use amphi_fuse::{
    AttrReply, Caller, Entry, FileSystem, Handle, MountError, NullFs, OpenFlags, OpenHow, OpenReply, Payload, ReadHow,
    ReadSink, Session, SessionConfig, WriteHow,
};
use amphi_types::{Attr, Errno, Ino, Kind, Result, Timespec};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Wake, Waker};
use std::time::Duration;

/// A mount in a directory of its own. Both are removed with this value, even if a test panics.
struct Mounted {
    session: Option<Session>,
    dir: tempfile::TempDir,
}

impl Mounted {
    fn new(fs: Arc<dyn FileSystem>) -> Mounted {
        Mounted::with(fs, SessionConfig::default())
    }

    fn with(fs: Arc<dyn FileSystem>, config: SessionConfig) -> Mounted {
        let dir = tempfile::tempdir().expect("temporary directory");
        let session = Session::mount(fs, dir.path(), config).expect("mount");
        Mounted { session: Some(session), dir }
    }

    fn session(&self) -> &Session {
        self.session.as_ref().expect("mounted")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn mounts_at(path: &Path) -> usize {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("mount table");
    table.lines().filter(|l| l.split(' ').nth(4) == path.to_str()).count()
}

/// Goal: the everyday operations work through the kernel, and nothing is left afterwards. Method: the do-nothing file
/// system, with each operation once.
#[test]
fn everyday_operations() {
    let fs: Arc<dyn FileSystem> = Arc::new(NullFs::new());
    let m = Mounted::new(fs.clone());
    let data = m.path("data");
    let meta = std::fs::metadata(&data).expect("stat");
    assert_eq!((meta.size(), meta.mode() & 0o777, meta.ino()), (1 << 42, 0o666, 2));
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&data).expect("open");
    file.write_all_at(&[7; 100_000], 12_345).expect("write");
    let mut back = vec![1; 300_000];
    file.read_exact_at(&mut back, 99).expect("read");
    assert!(back.iter().all(|&b| b == 0));
    file.sync_all().expect("fsync");
    let nowhere = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 10);
    assert_eq!(nowhere, Err(rustix::io::Errno::OPNOTSUPP));
    let direct = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&data).expect("O_DIRECT");
    let mut aligned = amphi_fuse::Buf::zeroed(1 << 20);
    direct.read_exact_at(&mut aligned, 0).expect("direct read");
    std::fs::write(m.path("x"), b"").expect("create");
    std::fs::create_dir(m.path("d")).expect("mkdir");
    let mut names: Vec<_> =
        std::fs::read_dir(m.dir.path()).expect("list").map(|e| e.expect("entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["d", "data", "x"]);
    assert_eq!(std::fs::remove_dir(m.path("x")).expect_err("a file").raw_os_error(), Some(libc::ENOTDIR));
    std::fs::remove_file(m.path("x")).expect("unlink");
    std::fs::remove_dir(m.path("d")).expect("rmdir");
    assert_eq!(std::fs::metadata(m.path("x")).expect_err("gone").raw_os_error(), Some(libc::ENOENT));
    drop((file, direct));
    // A process that another test is about to start holds all files that are open here until it executes its own
    // program.
    while let Err(e) = m.session().unmount() {
        assert!(matches!(e, MountError::Busy(_)), "{e}");
        std::thread::yield_now();
    }
    assert_eq!(mounts_at(m.dir.path()), 0);
    drop(m);
    assert_eq!(Arc::strong_count(&fs), 1, "threads or sessions still hold the file system");
}

/// Goal: mistakes of the user get an error of their own. Method: each kind of bad mount point, and a busy unmount.
#[test]
fn errors_have_kinds() {
    let mount = |p: &Path| Session::mount(Arc::new(NullFs::new()), p, SessionConfig::default()).map(drop);
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("file");
    std::fs::write(&file, b"").expect("file");
    assert!(matches!(mount(&dir.path().join("none")), Err(MountError::Missing(_))));
    assert!(matches!(mount(&file), Err(MountError::NotADirectory(_))));
    assert!(matches!(mount(&file.join("below")), Err(MountError::NotADirectory(_))));
    let m = Mounted::new(Arc::new(NullFs::new()));
    assert!(matches!(mount(m.dir.path()), Err(MountError::AlreadyMounted(_))));
    let open = std::fs::OpenOptions::new().read(true).open(m.path("data")).expect("open");
    assert!(matches!(m.session().unmount(), Err(MountError::Busy(_))));
    assert_eq!(mounts_at(m.dir.path()), 1);
    drop(open);
}

/// Goal: a mount that remains after its process was killed does not prevent a new one. Method: the test mounts, closes
/// the device without serving it, and mounts again.
#[test]
fn dead_mounts_are_taken_away() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR, Mode::empty()).expect("device");
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let data = std::ffi::CString::new(data).expect("text");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("amphi", dir.path(), "fuse.amphi", flags, Some(data.as_c_str())).expect("mount");
    drop(device);
    assert_eq!(std::fs::metadata(dir.path()).expect_err("dead").raw_os_error(), Some(libc::ENOTCONN));
    let session = Session::mount(Arc::new(NullFs::new()), dir.path(), SessionConfig::default()).expect("mount");
    std::fs::metadata(dir.path().join("data")).expect("alive");
    session.unmount().expect("unmount");
    assert_eq!(mounts_at(dir.path()), 0);
}

/// Goal: a mount that is in use is ended by dropping it, and programs get errors instead of hanging. Method: drop the
/// session with a file open.
#[test]
fn dropping_a_busy_mount_ends_it() {
    let mut m = Mounted::new(Arc::new(NullFs::new()));
    let mut open = std::fs::OpenOptions::new().read(true).open(m.path("data")).expect("open");
    m.session = None;
    assert_eq!(mounts_at(m.dir.path()), 0);
    assert!(open.read(&mut [0; 10]).is_err());
}

/// Goal: an unmount by another process ends the session. Method: unmount without the mount's knowledge, and wait.
#[test]
fn unmount_from_outside_ends_the_session() {
    let m = Mounted::new(Arc::new(NullFs::new()));
    rustix::mount::unmount(m.dir.path(), rustix::mount::UnmountFlags::empty()).expect("unmount");
    m.session().wait();
    assert_eq!(m.session().threads(), 0);
    m.session().unmount().expect("nothing to do");
}

/// How a test file system treats reads of one file.
#[derive(Clone, Copy, PartialEq)]
enum Reads {
    /// Blocks until the caller gets a signal.
    Block,
    /// Panics.
    Panic,
}

/// A file system with files whose names say how they behave, one file that stores bytes, and counters.
#[derive(Default)]
struct Probe {
    blocked: Mutex<u64>,
    changed: Condvar,
    bytes: Mutex<BTreeMap<u64, u8>>,
    largest_write: AtomicU64,
    largest_read: AtomicU64,
    misplaced_payloads: AtomicU64,
    forgotten: AtomicU64,
    unmounted: AtomicU64,
}

const BLOCK: Ino = Ino(10);
const PANIC: Ino = Ino(11);
const KEEP: Ino = Ino(12);
const KEEP_BYTES: u64 = 64 << 20;

impl Probe {
    fn attr(ino: Ino) -> Attr {
        let kind = if ino == Ino::ROOT { Kind::Dir } else { Kind::File };
        let now = Timespec { sec: 5, nsec: 6 };
        let btime = Timespec { sec: 7, nsec: 8 };
        Attr {
            ino,
            kind,
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: KEEP_BYTES,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime,
        }
    }

    fn wait_blocked(&self, n: u64) {
        let mut blocked = self.blocked.lock();
        while *blocked < n {
            self.changed.wait(&mut blocked);
        }
    }
}

struct ThreadWaker(std::thread::Thread);
impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl FileSystem for Probe {
    fn unmounted(&self) {
        self.unmounted.fetch_add(1, SeqCst);
    }

    fn lookup(&self, _: &Caller<'_>, _: Ino, name: &[u8]) -> Result<Entry> {
        let ino = match name {
            b"block" => BLOCK,
            b"panic" => PANIC,
            b"keep" => KEEP,
            _ => return Err(Errno::NoEnt),
        };
        let ttl = Duration::ZERO;
        Ok(Entry { attr: Self::attr(ino), node: ino, generation: 0, entry_ttl: ttl, attr_ttl: ttl })
    }

    fn forget(&self, _: Ino, count: u64) {
        self.forgotten.fetch_add(count, SeqCst);
    }

    fn getattr(&self, _: &Caller<'_>, ino: Ino, _: Option<Handle>) -> Result<AttrReply> {
        Ok(AttrReply { attr: Self::attr(ino), ttl: Duration::ZERO })
    }

    fn open(&self, _: &Caller<'_>, _: Ino, _: OpenHow) -> Result<OpenReply> {
        Ok(OpenReply { handle: Handle(1), flags: OpenFlags::DIRECT_IO })
    }

    fn read(&self, caller: &Caller<'_>, ino: Ino, how: &ReadHow, sink: &mut ReadSink<'_>) -> Result<()> {
        let reads = match ino {
            BLOCK => Reads::Block,
            PANIC => Reads::Panic,
            _ => {
                self.largest_read.fetch_max(how.size as u64, SeqCst);
                let bytes = self.bytes.lock();
                let space = sink.space();
                space.fill(0);
                for (&at, &byte) in bytes.range(how.offset..how.offset + how.size as u64) {
                    space[(at - how.offset) as usize] = byte;
                }
                let left = KEEP_BYTES.saturating_sub(how.offset).min(how.size as u64);
                sink.set_filled(left as usize);
                return Ok(());
            }
        };
        assert!(reads == Reads::Block, "a handler that panics, on purpose");
        caller.interrupt.wake_on_interrupt(&Waker::from(Arc::new(ThreadWaker(std::thread::current()))));
        if how.offset == 0 {
            caller.will_block();
        } // Elsewhere it keeps silent, which is a mistake that the session has to cope with.
        *self.blocked.lock() += 1;
        self.changed.notify_all();
        while !caller.interrupt.is_interrupted() {
            std::thread::park();
        }
        *self.blocked.lock() -= 1;
        Err(Errno::Intr)
    }

    fn write(&self, _: &Caller<'_>, _: Ino, how: &WriteHow, data: Payload<'_>) -> Result<usize> {
        self.largest_write.fetch_max(data.len() as u64, SeqCst);
        let misplaced = data.as_ptr() as u64 % 4096 != how.offset % 4096;
        self.misplaced_payloads.fetch_add(u64::from(misplaced), SeqCst);
        let len = data.len();
        let data = data.into_buf();
        let nonzero = data.iter().enumerate().filter(|&(_, &b)| b != 0);
        self.bytes.lock().extend(nonzero.map(|(i, &b)| (how.offset + i as u64, b)));
        Ok(len)
    }
}

/// A child process that reads one byte of `path`, so that signals affect only it.
fn reader_process(path: &Path) -> std::process::Child {
    std::process::Command::new("head")
        .args(["-c", "1"])
        .arg(path)
        .stderr(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("head")
}

/// Goal: a process that waits in a call can be killed. Method: a reader blocks and gets SIGTERM. The process ends, and
/// the handler has seen the interrupt.
#[test]
fn a_blocked_call_ends_with_a_signal() {
    let fs = Arc::new(Probe::default());
    let m = Mounted::new(fs.clone());
    let mut child = reader_process(&m.path("block"));
    fs.wait_blocked(1);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM)
        .expect("kill");
    assert!(!child.wait().expect("wait").success());
    m.session().unmount().expect("nothing holds it any more");
    assert_eq!(fs.unmounted.load(SeqCst), 1);
}

/// Goal: a call ends with EINTR when its caller handles a signal. Method: a thread reads a blocking file at an offset
/// where the handler does not report that it blocks. The thread gets a signal with a handler that does nothing.
#[test]
fn a_handled_signal_gives_eintr() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: an all-zero sigaction with a handler that touches nothing; no SA_RESTART, so calls end.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    let fs = Arc::new(Probe::default());
    let m = Mounted::new(fs.clone());
    let path = m.path("block");
    let (to_us, thread_id) = std::sync::mpsc::channel();
    let reader = std::thread::Builder::new()
        .spawn(move || {
            // SAFETY: asks for the own thread.
            to_us.send(unsafe { libc::pthread_self() }).expect("send");
            let file = rustix::fs::open(path, OFlags::RDONLY, Mode::empty()).expect("open");
            rustix::io::pread(&file, &mut [0; 10], 1)
        })
        .expect("thread");
    let target = thread_id.recv().expect("thread id");
    fs.wait_blocked(1);
    // The session still serves others, once its watch has seen that there is no reader.
    std::fs::metadata(m.path("keep")).expect("stat");
    // SAFETY: the thread lives until it is joined below.
    assert_eq!(unsafe { libc::pthread_kill(target, libc::SIGUSR1) }, 0);
    assert_eq!(reader.join().expect("join"), Err(rustix::io::Errno::INTR));
}

/// Goal: interrupts get through when all threads are blocked, also to requests that wait for a thread. Method: at most
/// 2 threads and 6 blocked processes, all of which are killed.
#[test]
fn interrupts_reach_requests_beyond_the_threads() {
    let fs = Arc::new(Probe::default());
    let config = SessionConfig { threads_max: 2, ..SessionConfig::default() };
    let m = Mounted::with(fs.clone(), config);
    let mut children: Vec<_> = (0..6).map(|_| reader_process(&m.path("block"))).collect();
    fs.wait_blocked(1);
    for child in &mut children {
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("kill");
        child.wait().expect("wait");
    }
    assert!(m.session().threads() <= 2);
    m.session().unmount().expect("nothing holds it any more");
}

/// Goal: threads grow with blocked calls and shrink again. Method: 20 blocked readers, then none.
#[test]
fn threads_follow_the_load() {
    let fs = Arc::new(Probe::default());
    let config = SessionConfig { threads_idle_max: 2, ..SessionConfig::default() };
    let m = Mounted::with(fs.clone(), config);
    let mut children: Vec<_> = (0..20).map(|_| reader_process(&m.path("block"))).collect();
    fs.wait_blocked(20);
    assert!(m.session().threads() >= 21);
    for child in &mut children {
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
    // Threads leave after their reply; requests continue being served meanwhile.
    while m.session().threads() > 4 {
        std::fs::metadata(m.path("keep")).expect("stat");
    }
}

/// Goal: a handler that panics costs one call an error. Method: panic, then use the mount.
#[test]
fn a_panicking_handler_answers_an_error() {
    let m = Mounted::new(Arc::new(Probe::default()));
    let error = std::fs::read(m.path("panic")).expect_err("panicked");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    std::fs::metadata(m.path("keep")).expect("still served");
}

/// Goal: a call of 16 MiB arrives in two requests with all bytes, wherever its memory begins. From the second request
/// on the payload has the same offset in its page as in its block of the file. Method: write and read with an odd
/// address and a few marks, and then write further.
#[test]
fn large_calls_arrive_in_large_pieces() {
    let fs = Arc::new(Probe::default());
    let m = Mounted::new(fs.clone());
    let file = std::fs::OpenOptions::new().read(true).write(true).open(m.path("keep")).expect("open");
    let mut memory = vec![0u8; (16 << 20) + 64];
    for at in [17usize, 5000, 1 << 20, (16 << 20) + 16] {
        memory[at] = 9;
    }
    file.write_all_at(&memory[17..17 + (16 << 20)], 1000).expect("write");
    assert_eq!(m.session().limits().pages_max, 2049);
    assert_eq!(fs.largest_write.load(SeqCst), 8 << 20);
    assert_eq!(fs.misplaced_payloads.load(SeqCst), 1, "nobody knows where the first one will begin");
    file.write_all_at(&memory[17..17 + (9 << 20)], 1000 + (16 << 20)).expect("write");
    assert_eq!(fs.misplaced_payloads.load(SeqCst), 1);
    let mut back = vec![1u8; (16 << 20) + 64];
    file.read_exact_at(&mut back[33..33 + (16 << 20)], 1000).expect("read");
    assert_eq!(fs.largest_read.load(SeqCst), 8 << 20);
    assert!(back[33..33 + (16 << 20)] == memory[17..17 + (16 << 20)]);
}

/// Goal: private and shared mappings work on directly opened files, and dirty pages come back as writes. Method: map a
/// file, change a byte, sync, and check the writes that the file system received.
#[test]
fn mappings() {
    let fs = Arc::new(Probe::default());
    let m = Mounted::new(fs.clone());
    let file = std::fs::OpenOptions::new().read(true).write(true).open(m.path("keep")).expect("open");
    file.write_all_at(b"abc", 4096).expect("write");
    for flags in [libc::MAP_PRIVATE, libc::MAP_SHARED] {
        // SAFETY: a fresh mapping of two pages of an open file; unmapped below, used only in between.
        unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(std::ptr::null_mut(), 8192, protection, flags, file.as_raw_fd(), 0);
            assert_ne!(at, libc::MAP_FAILED);
            let bytes = std::slice::from_raw_parts_mut(at.cast::<u8>(), 8192);
            assert_eq!(&bytes[4096..4099], b"abc");
            bytes[1] = 42;
            assert_eq!(libc::msync(at, 8192, libc::MS_SYNC), 0);
            libc::munmap(at, 8192);
        }
        let expect = (flags == libc::MAP_SHARED).then_some(42);
        assert_eq!(fs.bytes.lock().get(&1).copied(), expect);
    }
}

/// Goal: statx shows the time of creation, forgets arrive, and names can be invalidated. Method: look at one file, then
/// invalidate it and make the kernel drop its caches by unmounting.
#[test]
fn statx_forget_and_invalidation() {
    let fs = Arc::new(Probe::default());
    let m = Mounted::new(fs.clone());
    let path = m.path("keep");
    let wanted = rustix::fs::StatxFlags::ALL;
    let stat = rustix::fs::statx(rustix::fs::CWD, &path, rustix::fs::AtFlags::empty(), wanted).expect("statx");
    assert_eq!((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec), (7, 8));
    let notifier = m.session().notifier();
    notifier.inval_inode(KEEP, 0, 0).expect("inode");
    notifier.inval_attr(KEEP).expect("attributes");
    notifier.inval_entry(Ino::ROOT, b"keep").expect("name");
    notifier.inval_entry(Ino::ROOT, b"never seen").expect("unknown name");
    // The last reference went with the name.
    while fs.forgotten.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    m.session().unmount().expect("unmount");
    drop(m);
    assert_eq!(notifier.inval_attr(KEEP), Err(Errno::NotConnected));
}

/// Goal: brief polling serves requests as sleeping does. Method: many small calls with polling on.
#[test]
fn polling_serves_requests() {
    let config = SessionConfig { spin: Duration::from_micros(50), ..SessionConfig::default() };
    let m = Mounted::with(Arc::new(NullFs::new()), config);
    let mut file = std::fs::OpenOptions::new().write(true).open(m.path("data")).expect("open");
    for _ in 0..2000 {
        file.write_all(&[1; 512]).expect("write");
    }
    let direct = rustix::fs::open(m.path("data"), OFlags::RDONLY | OFlags::DIRECT, Mode::empty());
    assert!(direct.is_ok());
}
