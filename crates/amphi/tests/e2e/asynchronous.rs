//! Asynchronous I/O of the kernel (`io_submit`) on files of the mount: several requests in flight, right bytes, errors
//! where they belong (sanity 398p to 398s).

use crate::harness::{Daemon, Place, counter, eventually, pattern};
use rustix::fs::{OFlags, XattrFlags, setxattr};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

const PAGE: usize = 4096;
const STRIPE: usize = 64 << 10;
/// Requests in flight at most.
const DEPTH: usize = 32;

const READ: u16 = 0;
const WRITE: u16 = 1;
const FSYNC: u16 = 2;

/// `struct iocb` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Block {
    data: u64,
    key: u32,
    flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    more_flags: u32,
    event_fd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    block: u64,
    result: i64,
    more: i64,
}

/// A read or write; the number of bytes is that of the memory.
pub struct Request<'a> {
    opcode: u16,
    fd: i32,
    memory: *mut u8,
    bytes: usize,
    offset: usize,
    lifetime: std::marker::PhantomData<&'a mut [u8]>,
}

impl<'a> Request<'a> {
    pub fn read(file: &File, into: &'a mut [u8], offset: usize) -> Request<'a> {
        Request::new(READ, file, into.as_mut_ptr(), into.len(), offset)
    }

    pub fn write(file: &File, from: &'a [u8], offset: usize) -> Request<'a> {
        Request::new(WRITE, file, from.as_ptr().cast_mut(), from.len(), offset)
    }

    fn new(opcode: u16, file: &File, memory: *mut u8, bytes: usize, offset: usize) -> Request<'a> {
        Request { opcode, fd: file.as_raw_fd(), memory, bytes, offset, lifetime: std::marker::PhantomData }
    }
}

/// A context for requests; waits for all that are in flight when dropped.
pub struct Queue {
    context: u64,
}

impl Queue {
    pub fn new() -> Queue {
        let mut context = 0u64;
        // SAFETY: the kernel writes one word, the context.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, DEPTH, &raw mut context) };
        assert_eq!(made, 0, "io_setup: {}", io::Error::last_os_error());
        Queue { context }
    }

    /// Submits all requests in one call. Returns the result of the call and, for each accepted request, its bytes or
    /// minus the errno.
    pub fn run(&self, requests: &[Request<'_>]) -> (io::Result<usize>, Vec<i64>) {
        let mut blocks: Vec<Block> = requests
            .iter()
            .zip(0..)
            .map(|(r, data)| Block {
                data,
                opcode: r.opcode,
                fd: r.fd as u32,
                buffer: r.memory as u64,
                bytes: r.bytes as u64,
                offset: r.offset as i64,
                ..Block::default()
            })
            .collect();
        let pointers: Vec<*mut Block> = blocks.iter_mut().map(std::ptr::from_mut).collect();
        // SAFETY: blocks live until the kernel has read them, within the call; the memory of the requests outlives
        // their events, which are all waited for below.
        let taken = unsafe { libc::syscall(libc::SYS_io_submit, self.context, pointers.len(), pointers.as_ptr()) };
        if taken < 0 {
            return (Err(io::Error::last_os_error()), Vec::new());
        }
        let mut events = vec![Event::default(); taken as usize];
        let mut got = 0;
        while got < events.len() {
            let left = events.len() - got;
            let none = std::ptr::null::<libc::timespec>();
            // SAFETY: room for `left` events.
            let n = unsafe {
                libc::syscall(libc::SYS_io_getevents, self.context, left, left, events[got..].as_mut_ptr(), none)
            };
            let interrupted = n < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
            assert!(n > 0 || interrupted, "io_getevents: {}", io::Error::last_os_error());
            got += n.max(0) as usize;
        }
        let mut results = vec![i64::MIN; events.len()];
        for event in events {
            results[event.data as usize] = event.result;
        }
        assert!(!results.contains(&i64::MIN), "each request has one event");
        (Ok(taken as usize), results)
    }

    /// Like `run`, but each request has to transfer all its bytes.
    pub fn run_whole(&self, requests: &[Request<'_>], what: &str) {
        let (taken, results) = self.run(requests);
        assert_eq!(taken.expect("io_submit"), requests.len(), "{what}");
        for (i, (result, request)) in results.iter().zip(requests).enumerate() {
            assert_eq!(*result, request.bytes as i64, "{what}: request {i} at {}", request.offset);
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: a context of this process.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

pub fn open(path: &Path, flags: OFlags) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true).custom_flags(flags.bits() as i32);
    options.open(path).expect("open")
}

fn striped() -> (Place, Daemon) {
    let place = Place::new();
    let up = place.up(&["--targets", "3", "--zone-size", "128M", "--log-size", "16M", "--cache", "16M"]);
    setxattr(place.mount(), "user.amphi.layout", b"striped,size=64K,count=3", XattrFlags::empty()).expect("layout");
    (place, up)
}

/// Memory for requests, each at an address off by its own number of bytes.
struct Pieces {
    memory: Vec<amphi_env::Buf>,
    shift: usize,
}

impl Pieces {
    fn new(lens: &[usize], shift: usize) -> Pieces {
        Pieces { memory: lens.iter().map(|len| amphi_env::Buf::zeroed(shift + len)).collect(), shift }
    }

    fn each(&mut self) -> Vec<&mut [u8]> {
        self.memory.iter_mut().map(|buf| &mut buf[self.shift..]).collect()
    }
}

/// Goal: many requests that are submitted in one call, aligned and not, by open files of either kind, have the same
/// effect as `pwrite` and `pread`. A flush after them is executed, and reads over the end are short. Method: concurrent
/// writes are compared. Then all bytes are read at once, while the whole range is changed meanwhile through the other
/// kind of open file.
#[test]
fn requests_side_by_side_move_the_right_bytes() {
    let (place, up) = striped();
    let path = place.mount().join("f");
    let (direct, plain) = (open(&path, OFlags::DIRECT), open(&path, OFlags::empty()));
    let queue = Queue::new();
    let aligned: Vec<usize> = (0..DEPTH).map(|i| PAGE * (1 + i % 5)).collect();
    let odd: Vec<usize> = (0..DEPTH).map(|i| [1, 511, PAGE - 1, PAGE + 8, STRIPE + 3][i % 5]).collect();
    let large: Vec<usize> = vec![3 << 20, 2 << 20, (2 << 20) + 4096];
    for (round, (lens, start, shift)) in
        [(&aligned, 0, 0), (&odd, 7, 0), (&odd, PAGE - 5, 13), (&large, 0, 0), (&large, 99, 1)].into_iter().enumerate()
    {
        for (file, other, kind) in [(&direct, &plain, "direct"), (&plain, &direct, "plain")] {
            let what = format!("{kind}, round {round}");
            let whole = pattern(round as u64, lens.iter().sum());
            let places: Vec<usize> =
                lens.iter().scan(start, |at, len| Some(std::mem::replace(at, *at + len))).collect();
            let mut from = Pieces::new(lens, shift);
            for (piece, at) in from.each().iter_mut().zip(&places) {
                piece.copy_from_slice(&whole[at - start..][..piece.len()]);
            }
            let writes: Vec<Request<'_>> =
                from.each().into_iter().zip(&places).map(|(piece, at)| Request::write(file, piece, *at)).collect();
            queue.run_whole(&writes, &what);
            drop(writes);
            let mut got = vec![0; whole.len()];
            other.read_exact_at(&mut got, start as u64).expect("read");
            assert!(got == whole, "{what}: what the other kind reads");
            let whole = pattern(100 + round as u64, whole.len());
            other.write_all_at(&whole, start as u64).expect("write");
            let mut into = Pieces::new(lens, shift);
            let reads: Vec<Request<'_>> =
                into.each().into_iter().zip(&places).map(|(piece, at)| Request::read(file, piece, *at)).collect();
            queue.run_whole(&reads, &what);
            drop(reads);
            assert!(into.each().concat() == whole, "{what}: what it reads");
        }
    }
    let end = 100_000;
    for file in [&direct, &plain] {
        file.set_len(end as u64).expect("truncate");
        let (mut one, mut two, mut three) = (vec![1; PAGE], vec![1; PAGE], vec![1; PAGE]);
        let reads = [
            Request::read(file, &mut one, end - 10),
            Request::read(file, &mut two, end),
            Request::read(file, &mut three, end + (1 << 20)),
        ];
        assert_eq!(queue.run(&reads).1, [10, 0, 0], "at the end");
        let flush = Request::new(FSYNC, file, std::ptr::null_mut(), 0, 0);
        assert_eq!(queue.run(&[flush]).1, [0], "a flush");
    }
    drop((direct, plain));
    up.stop();
    place.fsck();
}

/// Goal: a file copied by asynchronous direct requests while a thread copies the same file through the cache is right
/// all the time and in the end (sanity 398p, 398q). Method: both repeatedly write the same bytes, in steps of different
/// sizes. A reader finds zeros or those bytes.
#[test]
fn asynchronous_beside_buffered() {
    const LEN: usize = 3 << 20;
    const STEP: usize = 40_000;
    let (place, up) = striped();
    let path = place.mount().join("f");
    let whole = pattern(5, LEN);
    for round in 0..3 {
        let _ = fs::remove_file(&path);
        open(&path, OFlags::empty()).set_len(LEN as u64).expect("truncate");
        std::thread::scope(|s| {
            s.spawn(|| {
                let file = open(&path, OFlags::empty());
                for (i, part) in whole.chunks(STEP / 3).enumerate() {
                    file.write_all_at(part, (i * (STEP / 3)) as u64).expect("write");
                }
            });
            s.spawn(|| {
                let file = open(&path, OFlags::empty());
                let mut got = vec![0; STEP];
                for at in (0..LEN - STEP).step_by(STEP + 777) {
                    file.read_exact_at(&mut got, at as u64).expect("read");
                    let wrong = got.iter().zip(&whole[at..]).position(|(g, w)| *g != 0 && g != w);
                    assert!(wrong.is_none(), "round {round}: byte {wrong:?} from {at}");
                }
            });
            let (queue, file) = (Queue::new(), open(&path, OFlags::DIRECT));
            let parts: Vec<(usize, &[u8])> = whole.chunks(STEP).enumerate().collect();
            for some in parts.chunks(DEPTH) {
                let writes: Vec<Request<'_>> =
                    some.iter().map(|(i, part)| Request::write(&file, part, i * STEP)).collect();
                queue.run_whole(&writes, "beside buffered");
            }
        });
        assert!(fs::read(&path).expect("read") == whole, "round {round}, through the cache");
        let mut past = vec![0; LEN];
        open(&path, OFlags::DIRECT).read_exact_at(&mut past, 0).expect("read");
        assert!(past == whole, "round {round}, past the cache");
    }
    up.stop();
    place.fsck();
}

/// Goal: a request that cannot be executed fails alone. An unmapped address gives EFAULT, and an open file of the wrong
/// kind EBADF. The other requests succeed, and no byte of the failed one is in the file. Method: one bad request among
/// good ones, by open files of both kinds.
#[test]
fn a_bad_request_fails_alone() {
    let (place, up) = striped();
    let path = place.mount().join("f");
    let whole = pattern(6, 4 * STRIPE);
    fs::write(&path, &whole).expect("write");
    // SAFETY: a new mapping at an address that the kernel chooses.
    let nowhere = unsafe {
        libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    assert_ne!(nowhere, libc::MAP_FAILED);
    let queue = Queue::new();
    for flags in [OFlags::DIRECT, OFlags::empty()] {
        let file = open(&path, flags);
        let (mut first, mut last) = (vec![0; PAGE], vec![0; PAGE]);
        for opcode in [READ, WRITE] {
            let requests = [
                Request::read(&file, &mut first, 0),
                Request::new(opcode, &file, nowhere.cast(), PAGE, STRIPE),
                Request::read(&file, &mut last, 3 * STRIPE),
            ];
            let (_, results) = queue.run(&requests);
            assert_eq!(results, [PAGE as i64, -i64::from(libc::EFAULT), PAGE as i64], "{flags:?}, {opcode}");
            assert!(first == whole[..PAGE] && last == whole[3 * STRIPE..][..PAGE]);
        }
        let only = File::open(&path).expect("open");
        let (taken, _) = queue.run(&[Request::write(&only, &whole[..PAGE], 0)]);
        assert_eq!(taken.expect_err("not open for writing").raw_os_error(), Some(libc::EBADF));
        let mut got = vec![0; whole.len()];
        file.read_exact_at(&mut got, 0).expect("read");
        assert!(got == whole, "nothing was written");
    }
    // SAFETY: mapped above, used by nobody.
    unsafe { libc::munmap(nowhere, PAGE) };
    up.stop();
    place.fsck();
}

/// Goal: of many small reads at a time, each gets the bytes of its own place, once, while the threads that serve them
/// also serve other calls, some of which wait. Method: two deep queues read blocks at random, and each block is
/// compared. Meanwhile names are made and removed, and another file is written and flushed, until all reads are done. A
/// read without an answer would never end.
#[test]
fn deep_queues_beside_other_calls() {
    const BLOCKS: usize = 1024;
    const ROUNDS: usize = 40;
    let (place, up) = striped();
    let path = place.mount().join("f");
    let whole = pattern(9, BLOCKS * PAGE);
    fs::write(&path, &whole).and_then(|()| File::open(&path)?.sync_all()).expect("write");
    let reading = std::sync::atomic::AtomicUsize::new(2);
    std::thread::scope(|s| {
        let (path, whole, reading, dir) = (&path, &whole, &reading, place.mount());
        for reader in 0..2 {
            s.spawn(move || {
                let (queue, file) = (Queue::new(), open(path, OFlags::DIRECT));
                let mut memory: Vec<amphi_env::Buf> = (0..DEPTH).map(|_| amphi_env::Buf::zeroed(PAGE)).collect();
                let mut next = reader;
                for round in 0..ROUNDS {
                    // Every residue of a power of two occurs once.
                    let blocks: Vec<usize> = (0..DEPTH)
                        .map(|_| {
                            next = (next * 1_103_515_245 + 12_345) % (BLOCKS << 8);
                            next >> 8
                        })
                        .collect();
                    memory.iter_mut().for_each(|buf| buf.fill(0));
                    let places = memory.iter_mut().zip(&blocks);
                    let reads: Vec<Request<'_>> =
                        places.map(|(buf, block)| Request::read(&file, buf, block * PAGE)).collect();
                    queue.run_whole(&reads, "beside other calls");
                    drop(reads);
                    for (buf, block) in memory.iter().zip(&blocks) {
                        assert!(buf[..] == whole[block * PAGE..][..PAGE], "round {round}, block {block}");
                    }
                }
                reading.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
            });
        }
        s.spawn(move || {
            let other = open(&dir.join("other"), OFlags::empty());
            let mut calls = 0usize;
            while calls == 0 || reading.load(std::sync::atomic::Ordering::SeqCst) > 0 {
                let name = dir.join(format!("n{}", calls % 7));
                fs::write(&name, b"x").and_then(|()| fs::remove_file(&name)).expect("a name");
                other.write_all_at(&[calls as u8; 100], (calls % 1000 * 100) as u64).expect("write");
                if calls.is_multiple_of(16) {
                    other.sync_all().expect("flush");
                }
                calls += 1;
            }
        });
    });
    up.stop();
    place.fsck();
}

/// Threads of a mount's process that serve the kernel.
fn serving(mount: u32) -> usize {
    let tasks = fs::read_dir(format!("/proc/{mount}/task")).expect("a process");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "amphi-fuse").count()
}

/// Threads of a process that are in the system call `number`.
fn calling(pid: u32, number: i64) -> usize {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let calls = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("syscall")).ok());
    calls.filter(|call| call.starts_with(&format!("{number} "))).count()
}

/// Goal: small reads that wait for a server occupy only a few threads of the mount, whatever their number. The read of
/// a killed program ends at once, and the others get their bytes when the server continues. Method: 200 threads read a
/// block each while the server is stopped, and the read of another program is killed. The mount's threads are counted
/// until the mount has received all reads, which the answer to a later call shows.
#[test]
fn many_small_reads_keep_few_threads() {
    const READERS: usize = 200;
    let place = Place::new();
    let mut server = place.server(&["--targets", "2"]);
    let mut mount = place.mount_at("m", &[]);
    let path = place.path("m").join("f");
    let bytes = pattern(7, READERS * PAGE);
    fs::write(&path, &bytes).and_then(|()| File::open(&path)?.sync_all()).expect("write");
    let files: Vec<File> = (0..READERS).map(|_| open(&path, OFlags::DIRECT)).collect();
    let for_dd = open(&path, OFlags::DIRECT);
    std::thread::scope(|threads| {
        let stopped = server.pause();
        let files = &files;
        let read = move |n: usize| {
            let mut memory = amphi_env::Buf::zeroed(PAGE);
            files[n].read_exact_at(&mut memory, (n * PAGE) as u64).map(|()| memory)
        };
        let readers: Vec<_> = (0..READERS).map(|n| threads.spawn(move || read(n))).collect();
        let mut dd = Command::new("dd");
        dd.args(["bs=4k", "count=1", "of=/dev/null"]).stdin(for_dd).stderr(Stdio::null());
        let mut dd = dd.spawn().expect("dd");
        let mut most = 0;
        eventually("all read", || {
            most = most.max(serving(mount.pid()));
            calling(std::process::id(), libc::SYS_pread64) == READERS && calling(dd.id(), libc::SYS_read) == 1
        });
        assert!(counter(&place.path("m"), "open") > 0);
        most = most.max(serving(mount.pid()));
        assert!(most < READERS / 5, "{most} threads");
        dd.kill().expect("kill");
        dd.wait().expect("a killed program ends");
        drop(stopped);
        for (n, reader) in readers.into_iter().enumerate() {
            let block = reader.join().expect("no panic").expect("read");
            assert!(block[..] == bytes[n * PAGE..][..PAGE], "block {n}");
        }
    });
    drop(files);
    mount.stop();
    server.stop();
}
