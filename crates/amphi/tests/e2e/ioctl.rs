//! Device controls of open files through the mount: mode, lock-ahead, exact locks, groups. The numbers are those of
//! docs/IOCTL.md, written out here, so that neither changes without the other.

use crate::harness::{Place, counter, counter_of_servers, pattern};
use crate::two_mounts::Pair;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::os::unix::thread::JoinHandleExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

pub const SET_MODE: u64 = 0x4004_4101;
const GET_MODE: u64 = 0x8004_4102;
pub const NO_EXPAND: u64 = 0x4004_4103;
const LOCK_AHEAD: u64 = 0x4018_4104;
const LOCK_AHEAD_LIST: u64 = 0xc308_4107;
const GROUP_LOCK: u64 = 0x4010_4105;
const GROUP_UNLOCK: u64 = 0x4008_4106;
const GROUP_WANTED: u64 = 0x8004_4108;
const ADVISE: u64 = 0x4018_4109;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Range {
    offset: u64,
    length: u64,
    mode: u32,
    zero: i32,
}

#[repr(C)]
struct List {
    count: u32,
    zero: u32,
    ranges: [Range; 32],
}

#[repr(C)]
struct Group {
    group: u64,
    flags: u32,
    zero: u32,
}

/// The result of `ioctl`, or minus the errno.
pub fn ioctl<T>(file: &File, command: u64, argument: &mut T) -> i32 {
    // SAFETY: the argument has the size that the command says, and lives as long as the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), command as _, std::ptr::from_mut(argument)) };
    if result < 0 { -std::io::Error::last_os_error().raw_os_error().unwrap_or(0) } else { result }
}

fn ahead(file: &File, offset: u64, length: u64, mode: u32) -> i32 {
    ioctl(file, LOCK_AHEAD, &mut Range { offset, length, mode, zero: 0 })
}

fn join(file: &File, group: u64, flags: u32) -> i32 {
    ioctl(file, GROUP_LOCK, &mut Group { group, flags, zero: 0 })
}

fn leave(file: &File, mut group: u64) -> i32 {
    ioctl(file, GROUP_UNLOCK, &mut group)
}

fn open(dir: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(dir.join("f")).expect("open")
}

/// Goal: each command works as the document describes, refuses bad input, and unknown ones are ENOTTY. Method: two
/// mounts, one open file on each, every command with good and bad arguments.
#[test]
fn commands_of_an_open_file() {
    let place = Place::new();
    let _server = place.server(&[]);
    let _mounts = [place.mount_at("a", &[]), place.mount_at("b", &[])];
    let (dir_a, dir_b) = (place.path("a"), place.path("b"));
    let (a, b) = (open(&dir_a), open(&dir_b));
    for (mode, result) in [(1u32, 0), (2, 0), (3, -libc::EINVAL)] {
        assert_eq!(ioctl(&a, SET_MODE, &mut { mode }), result);
    }
    let mut mode = 0u32;
    assert_eq!((ioctl(&a, GET_MODE, &mut mode), mode), (0, 2));
    a.write_all_at(&pattern(1, 100_000), 0).expect("write");
    assert_eq!(counter(&dir_a, "write_direct_user"), 1, "this open file is direct");
    assert_eq!(ioctl(&a, SET_MODE, &mut 1u32), 0);
    a.write_all_at(&pattern(2, 4 << 20), 0).expect("write");
    assert!(counter(&dir_a, "write_buffered_user") >= 1, "this open file is buffered, also where others are not");
    assert_eq!(ioctl(&a, SET_MODE, &mut 0u32), 0);
    assert_eq!(ioctl(&b, NO_EXPAND, &mut 1u32), 0);
    let mut back = vec![0; 4 << 20];
    b.read_exact_at(&mut back, 0).expect("read");
    assert!(back == pattern(2, 4 << 20));

    let far = 1 << 30;
    assert_eq!((ahead(&a, far, 4096, 1), ahead(&b, far + 4096, 4096, 1)), (0, 0));
    let granted = |dir: &Path| counter(dir, "lock_ahead_granted");
    crate::harness::eventually("both are granted", || granted(&dir_a) == 1 && granted(&dir_b) == 1);
    assert_eq!((ahead(&a, far, 4096, 1), ahead(&a, far + 1, 10, 0)), (1, 2));
    assert_eq!(ahead(&b, far, 4096, 0), 0);
    crate::harness::eventually("it is refused", || counter(&dir_b, "lock_ahead_refused") == 1);
    for bad in [(0, 0, 1), (u64::MAX, 2, 1), (0, 10, 2)] {
        assert_eq!(ahead(&a, bad.0, bad.1, bad.2), -libc::EINVAL, "{bad:?}");
    }
    assert_eq!(ioctl(&a, LOCK_AHEAD, &mut Range { offset: 0, length: 1, mode: 0, zero: 2 }), -libc::EINVAL);
    assert_eq!((ioctl(&a, NO_EXPAND, &mut 1u32), ioctl(&a, NO_EXPAND, &mut 2u32)), (0, -libc::EINVAL));

    assert_eq!((join(&a, 0, 0), join(&a, 7, 2), leave(&a, 7)), (-libc::EINVAL, -libc::EINVAL, -libc::EINVAL));
    for unknown in [0x4004_4100u64, 0x4004_4142, 0x4008_4101, 0x5401] {
        assert_eq!(ioctl(&a, unknown, &mut [0u64; 4]), -libc::ENOTTY, "{unknown:#x}");
    }
    let dir = File::open(&dir_a).expect("a directory");
    assert_eq!(ioctl(&dir, SET_MODE, &mut 1u32), -libc::ENOTTY);
}

/// Goal: a lock-ahead that waits for its answer has the lock when it returns, or reports that it was refused. Method:
/// two mounts request the same bytes, and other bytes.
#[test]
fn locks_ahead_that_wait_for_the_answer() {
    let place = Place::new();
    let _server = place.server(&[]);
    let _mounts = [place.mount_at("a", &[]), place.mount_at("b", &[])];
    let (a, b) = (open(&place.path("a")), open(&place.path("b")));
    assert_eq!((ioctl(&a, NO_EXPAND, &mut 1u32), ioctl(&b, NO_EXPAND, &mut 1u32)), (0, 0));
    // The lock that was granted with the file is returned.
    b.write_all_at(b"first", 0).expect("write");
    let answered = |file: &File, at: u64, length: u64| {
        ioctl(file, LOCK_AHEAD, &mut Range { offset: (1 << 30) + at, length, mode: 1, zero: 1 })
    };
    for round in 0..50u64 {
        let at = round * 16384;
        assert_eq!((answered(&a, at, 4096), answered(&b, at, 4096)), (1, 0), "round {round}");
        assert_eq!((answered(&b, at + 4096, 4096), answered(&a, at + 4096, 100)), (1, 0), "round {round}");
        assert_eq!(answered(&b, at + 4100, 10), 2, "round {round}");
    }
    let reader = File::open(place.path("a").join("f")).expect("open");
    assert_eq!(answered(&reader, 0, 1), -libc::EBADF);
    assert_eq!(answered(&a, 0, 0), -libc::EINVAL);
}

/// Goal: a list of ranges has the effect of one command for each range, and reports each result. If one of the ranges
/// is bad, it requests nothing. Method: lists of one, two and 32 ranges on two mounts, whose answers are known, and bad
/// counts and ranges.
#[test]
fn lists_of_locks_ahead() {
    let place = Place::new();
    let _server = place.server(&[]);
    let _mounts = [place.mount_at("a", &[]), place.mount_at("b", &[])];
    let (dir_a, dir_b) = (place.path("a"), place.path("b"));
    let (a, b) = (open(&dir_a), open(&dir_b));
    assert_eq!((ioctl(&a, NO_EXPAND, &mut 1u32), ioctl(&b, NO_EXPAND, &mut 1u32)), (0, 0));
    // The lock that was granted with the file is returned.
    b.write_all_at(b"first", 0).expect("write");
    let far = 1 << 30;
    let at = |n: u64, mode| Range { offset: far + n * 8192, length: 4096, mode, zero: 0 };
    let list = |file: &File, ranges: &[Range]| {
        let mut list = List { count: ranges.len() as u32, zero: 0, ranges: [Range::default(); 32] };
        list.ranges[..ranges.len().min(32)].copy_from_slice(&ranges[..ranges.len().min(32)]);
        let result = ioctl(file, LOCK_AHEAD_LIST, &mut list);
        (result, list.ranges[..ranges.len().min(32)].iter().map(|r| r.zero).collect::<Vec<_>>())
    };
    let granted = |dir: &Path| counter(dir, "lock_ahead_granted");
    let many: Vec<Range> = (0..32).map(|n| at(n, 1)).collect();
    let before = granted(&dir_a);
    assert_eq!(list(&a, &many), (32, vec![0; 32]));
    crate::harness::eventually("all are granted", || granted(&dir_a) == before + 32);
    let inside = Range { length: 10, ..at(5, 0) };
    assert_eq!(list(&a, &[at(3, 1), inside, at(40, 1)]), (1, vec![1, 2, 0]));
    assert_eq!(list(&b, &[at(7, 1), at(50, 0)]), (2, vec![0, 0]));
    crate::harness::eventually("one is refused, one granted", || {
        counter(&dir_b, "lock_ahead_refused") == 1 && granted(&dir_b) == 1
    });
    let asked = counter(&dir_a, "lock_ahead_asked");
    let bad = Range { length: 0, ..at(60, 1) };
    for ranges in [&[][..], &[at(61, 1); 33], &[at(62, 1), bad], &[Range { zero: 1, ..at(63, 1) }]] {
        assert_eq!(list(&a, ranges).0, -libc::EINVAL);
    }
    assert_eq!(counter(&dir_a, "lock_ahead_asked"), asked, "nothing was asked for");
    let reader = File::open(dir_a.join("f")).expect("open");
    assert_eq!(list(&reader, &[at(70, 1), at(70, 0)]), (1, vec![-libc::EBADF, 0]));
}

extern "C" fn on_signal(_: i32) {}

/// Goal: a group lock excludes I/O of others until the last member leaves, by command or by close. A call that waits
/// for another group gets EINTR by a signal, or EAGAIN if it may not wait. Even with many waiting calls, threads are
/// left for the calls that end the wait. Method: two mounts, members and strangers; 300 threads that wait.
#[test]
fn groups_through_the_mount() {
    let place = Place::new();
    let _server = place.server(&[]);
    let _mounts = [place.mount_at("a", &[]), place.mount_at("b", &[])];
    let (dir_a, dir_b) = (place.path("a"), place.path("b"));
    let (a, b) = (open(&dir_a), open(&dir_b));
    a.write_all_at(b"before", 0).expect("write");
    assert_eq!((join(&a, 7, 0), join(&b, 7, 1)), (0, 0));
    let (told, read) = mpsc::channel();
    let strangers: Vec<_> = [&dir_a, &dir_b]
        .into_iter()
        .map(|dir| {
            let (dir, told) = (dir.clone(), told.clone());
            std::thread::spawn(move || told.send(fs::read(dir.join("f")).expect("read")).expect("heard"))
        })
        .collect();
    a.write_all_at(b"first ", 0).expect("a member");
    b.write_all_at(b"second", 6).expect("a member");
    assert_eq!(fs::metadata(dir_b.join("f")).expect("stat").len(), 12, "stat does not wait");
    assert!(read.recv_timeout(Duration::from_millis(500)).is_err(), "strangers wait");
    let other = open(&dir_b);
    assert_eq!((join(&other, 8, 1), leave(&other, 8)), (-libc::EAGAIN, -libc::EINVAL));
    // SAFETY: a handler that does nothing, so that a signal ends a call.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
    }
    let waiting: Vec<_> = (0..300)
        .map(|_| {
            let file = open(&dir_b);
            std::thread::spawn(move || join(&file, 8, 0))
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    assert!(waiting.iter().all(|t| !t.is_finished()), "they wait");
    assert_eq!(leave(&a, 7), 0, "there is a thread for it");
    assert!(read.recv_timeout(Duration::from_millis(300)).is_err(), "one member is left");
    for thread in waiting {
        while !thread.is_finished() {
            // SAFETY: a thread that was not joined yet.
            unsafe { libc::pthread_kill(thread.as_pthread_t() as _, libc::SIGUSR2) };
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(thread.join().expect("no panic"), -libc::EINTR);
    }
    drop(b);
    for _ in 0..2 {
        let bytes = read.recv_timeout(Duration::from_secs(30)).expect("strangers go on");
        assert_eq!(bytes, b"first second");
    }
    strangers.into_iter().for_each(|t| t.join().expect("no panic"));
    assert_eq!((join(&other, 8, 1), leave(&other, 8)), (0, 0));
}

/// Goal: a member on any mount is informed that another open file waits for the end of the group, and only if one does.
/// This is true of a striped file, too. Method: a reader on each of two mounts in turn, while a member does I/O on
/// both. The group ends, and the reader gets the bytes.
#[test]
fn members_learn_that_others_wait() {
    let pair = Pair::new(3, &[], &[]);
    let dirs = [pair.a.clone(), pair.b.clone()];
    let (a, b) = (open(&dirs[0]), open(&dirs[1]));
    let wanted = |file: &File| {
        let mut answer = 7u32;
        assert_eq!(ioctl(file, GROUP_WANTED, &mut answer), 0);
        answer
    };
    assert_eq!(ioctl(&a, GROUP_WANTED, &mut 0u32), -libc::EINVAL, "no member");
    for dir in &dirs {
        assert_eq!((join(&a, 7, 0), join(&b, 7, 0)), (0, 0));
        a.write_all_at(b"mine", 0).expect("a member");
        b.write_all_at(b"ours", 4).expect("a member");
        assert_eq!((wanted(&a), wanted(&b)), (0, 0));
        let name = dir.join("f");
        let reader = std::thread::spawn(move || fs::read(name).expect("read"));
        // A waiting request of the mount itself is known only there: it goes to no server while the group is on this
        // mount.
        crate::harness::eventually("a member is told", || wanted(&a) + wanted(&b) > 0);
        assert!(!reader.is_finished());
        assert_eq!((leave(&a, 7), leave(&b, 7)), (0, 0));
        assert_eq!(reader.join().expect("reader"), b"mineours");
    }
}

/// Goal: a user cannot make a group of a file that he may only read. Reads that wait for a group block no other calls,
/// on the mount of the group and on another one, whatever their number. Method: 300 readers on each mount, and other
/// calls at the same time. Then the group ends.
#[test]
fn reads_that_wait_for_a_group_stop_nobody() {
    const READERS: usize = 300;
    let pair = Pair::new(1, &["--targets", "4"], &[]);
    let a = open(&pair.a);
    a.write_all_at(&[b'x'; 4096], 0).expect("write");
    let reader = File::open(pair.a.join("f")).expect("open");
    assert_eq!((join(&reader, 7, 0), join(&reader, 7, 1)), (-libc::EBADF, -libc::EBADF));
    fs::write(pair.a.join("other"), b"other").expect("write");
    assert_eq!(join(&a, 7, 0), 0);
    let waiting: Vec<_> = [&pair.a, &pair.b]
        .into_iter()
        .flat_map(|dir| (0..READERS).map(|n| (File::open(dir.join("f")).expect("open"), n)))
        .map(|(file, n)| {
            std::thread::spawn(move || {
                let mut bytes = [0; 8];
                file.read_exact_at(&mut bytes, (n % 64) as u64 * 8).expect("read");
                bytes
            })
        })
        .collect();
    std::thread::sleep(Duration::from_secs(1));
    assert!(waiting.iter().all(|t| !t.is_finished()), "they wait");
    let (told, others) = mpsc::channel();
    for (dir, made) in [(pair.a.clone(), "made by a"), (pair.b.clone(), "made by b")] {
        let told = told.clone();
        std::thread::spawn(move || {
            assert_eq!(fs::read(dir.join("other")).expect("read"), b"other");
            fs::write(dir.join(made), b"made").expect("write");
            assert_eq!(fs::metadata(dir.join("f")).expect("stat").len(), 4096);
            fs::remove_file(dir.join(made)).expect("remove");
            told.send(()).expect("heard");
        });
    }
    for _ in 0..2 {
        others.recv_timeout(Duration::from_secs(10)).expect("other calls get on");
    }
    assert!(waiting.iter().all(|t| !t.is_finished()), "they still wait");
    assert_eq!(leave(&a, 7), 0);
    for thread in waiting {
        assert_eq!(thread.join().expect("no panic"), [b'x'; 8]);
    }
    drop((a, reader));
    pair.stop();
}

/// Goal: waiting changes occupy no thread. One user's waiting writers block neither another user's calls nor other
/// calls of the same user, and each write has its full effect when the wait is over. Method: 300 writers, with
/// truncates, reservations and copies, while another mount's group has the files. Meanwhile `ls` runs and a new file is
/// made. Then the groups end.
#[test]
fn changes_that_wait_for_a_group_stop_nobody() {
    const WRITERS: usize = 300;
    let pair = Pair::new(1, &["--targets", "4"], &[]);
    let a = open(&pair.a);
    a.write_all_at(&[b'x'; 4096 * WRITERS], 0).expect("write");
    let others: Vec<File> = (0..4)
        .map(|n| {
            let path = pair.a.join(format!("g{n}"));
            fs::write(&path, [b'g'; 8192]).expect("write");
            File::options().read(true).write(true).open(path).expect("open")
        })
        .collect();
    fs::write(pair.a.join("source"), b"copied").expect("write");
    // A folder of its own: `ls -l` fails when a name disappears between its listing and its stat.
    fs::create_dir(pair.a.join("apart")).expect("mkdir");
    assert_eq!(join(&a, 7, 0), 0);
    assert!(others.iter().all(|file| join(file, 7, 0) == 0));
    let dir = pair.b.clone();
    let mut waiting: Vec<_> = (0..WRITERS)
        .map(|n| {
            let file = File::options().write(true).open(dir.join("f")).expect("open");
            std::thread::spawn(move || file.write_at(&[b'w'; 100], 4096 * n as u64).expect("write"))
        })
        .collect();
    let path = dir.join("g0");
    waiting.push(std::thread::spawn(move || {
        File::options().write(true).open(path).expect("open").set_len(5).expect("ftruncate");
        100
    }));
    let path = dir.join("g1");
    waiting.push(std::thread::spawn(move || {
        let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("no zero byte");
        // SAFETY: a string that ends with a zero byte.
        assert_eq!(unsafe { libc::truncate(path.as_ptr(), 9000) }, 0);
        100
    }));
    let path = dir.join("g2");
    waiting.push(std::thread::spawn(move || {
        let file = File::options().write(true).open(path).expect("open");
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 8192, 4096).expect("fallocate");
        100
    }));
    let (path, source) = (dir.join("g3"), dir.join("source"));
    waiting.push(std::thread::spawn(move || {
        let (from, to) = (File::open(source).expect("open"), File::options().write(true).open(path).expect("open"));
        let copied = rustix::fs::copy_file_range(&from, None, &to, Some(&mut 100), 6).expect("copy");
        assert_eq!(copied, 6);
        100
    }));
    std::thread::sleep(Duration::from_secs(1));
    assert!(waiting.iter().all(|t| !t.is_finished()), "they wait");
    let (told, heard) = mpsc::channel();
    for uid in ["0", "65534"] {
        let (dir, told) = (dir.clone(), told.clone());
        std::thread::spawn(move || {
            let mut ls = Command::new("ls");
            ls.arg("-l").arg(&dir).uid(uid.parse().expect("a number"));
            let output = ls.output().expect("ls");
            assert!(output.status.success(), "{output:?}");
            if uid == "0" {
                fs::write(dir.join("apart/made"), b"made").expect("write");
                fs::remove_file(dir.join("apart/made")).expect("remove");
            }
            told.send(()).expect("heard");
        });
    }
    for _ in 0..2 {
        heard.recv_timeout(Duration::from_secs(10)).expect("other calls get on");
    }
    assert!(waiting.iter().all(|t| !t.is_finished()), "they still wait");
    assert!(others.iter().chain([&a]).all(|file| leave(file, 7) == 0));
    for thread in waiting {
        assert_eq!(thread.join().expect("no panic"), 100);
    }
    let sizes: Vec<u64> = (0..4).map(|n| fs::metadata(dir.join(format!("g{n}"))).expect("stat").len()).collect();
    assert_eq!(sizes, [5, 9000, 12288, 8192]);
    assert_eq!(&fs::read(pair.a.join("g3")).expect("read")[98..108], b"ggcopiedgg");
    let bytes = fs::read(pair.a.join("f")).expect("read");
    assert_eq!(bytes.len(), 4096 * WRITERS);
    for (n, page) in bytes.chunks(4096).enumerate() {
        assert!(page[..100].iter().all(|b| *b == b'w') && page[100..].iter().all(|b| *b == b'x'), "page {n}");
    }
    drop((a, others));
    pair.stop();
}

/// Goal: a mount can join a group of another mount although strangers of its own wait for the end of that group. So a
/// barrier among members does not hang. Method: strangers read and write. Then the mount joins and the member does I/O,
/// with one server and with three.
#[test]
fn joining_passes_strangers_that_wait() {
    for servers in [1, 3] {
        let pair = Pair::new(servers, &["--targets", "4"], &[]);
        let a = open(&pair.a);
        a.write_all_at(&pattern(3, 2 << 20), 0).expect("write");
        assert_eq!(join(&a, 7, 0), 0);
        let (told, ended) = mpsc::channel();
        let begin = |act: fn(&File)| {
            let (file, told) = (open(&pair.b), told.clone());
            std::thread::spawn(move || {
                act(&file);
                told.send(()).expect("heard");
            })
        };
        let strangers = [
            begin(|f| f.read_exact_at(&mut [0; 4096], 0).expect("read")),
            begin(|f| f.read_exact_at(&mut vec![0; 2 << 20], 0).expect("read")),
            begin(|f| f.write_all_at(b"stranger", 5000).expect("write")),
        ];
        assert!(ended.recv_timeout(Duration::from_millis(500)).is_err(), "strangers wait");
        let ((told, joined), (told_left, left)) = (mpsc::channel(), mpsc::channel());
        let member = open(&pair.b);
        let joins = std::thread::spawn(move || {
            assert_eq!(join(&member, 7, 0), 0);
            told.send(()).expect("heard");
            member.write_all_at(b"member", 100).expect("write");
            told_left.send(leave(&member, 7)).expect("heard");
        });
        joined.recv_timeout(Duration::from_secs(10)).expect("the join does not wait for strangers");
        assert_eq!(left.recv_timeout(Duration::from_secs(10)), Ok(0), "nor does its I/O");
        joins.join().expect("no panic");
        assert_eq!(leave(&a, 7), 0);
        strangers.into_iter().for_each(|t| t.join().expect("no panic"));
        let bytes = fs::read(pair.a.join("f")).expect("read");
        assert!(bytes.len() == 2 << 20 && &bytes[100..106] == b"member" && &bytes[5000..5008] == b"stranger");
        drop(a);
        pair.stop();
    }
}

fn advise(file: &File, offset: u64, length: u64, advice: u32) -> i32 {
    ioctl(file, ADVISE, &mut Range { offset, length, mode: advice, zero: 0 })
}

/// Goal: a program's advice about its reads reaches the servers; invalid advice is refused. Method: a file that one
/// mount wrote is read in small pieces on another one. The counter of the servers is checked, and wrong arguments are
/// tried.
#[test]
fn advice_reaches_the_servers() {
    let pair = Pair::new(1, &[], &[]);
    let path = pair.a.join("f");
    fs::write(&path, pattern(1, 1 << 20)).expect("write");
    File::open(&path).and_then(|f| f.sync_all()).expect("fsync");
    let count = |name: &str| counter_of_servers(&pair.a, name);
    let [ours, theirs] = [&path, &pair.b.join("f")].map(|path| File::open(path).expect("open"));
    let read = |file: &File, at: u64| {
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, at).expect("read");
        assert!(bytes[..] == pattern(1, 1 << 20)[at as usize..at as usize + 4096]);
    };
    for (file, advice) in [(&ours, 1), (&theirs, 5)] {
        assert_eq!(advise(file, 0, 0, advice), 0);
    }
    for n in 0..8 {
        read(&theirs, n * 100_000 / 4096 * 4096);
    }
    assert!(count("read_through_once") > 0, "the requests of the other mount say so");
    assert_eq!(advise(&ours, 0, 1 << 20, 4), 0, "do not need");
    assert_eq!((advise(&ours, 0, 0, 2), advise(&ours, 1 << 19, 4096, 3), advise(&ours, 0, 0, 0)), (0, 0, 0));
    for (offset, length, advice) in [(0, 0, 6), (u64::MAX, 2, 3), (1 << 63, 0, 3)] {
        assert_eq!(advise(&ours, offset, length, advice), -libc::EINVAL, "{offset} {length} {advice}");
    }
    assert_eq!(ioctl(&ours, ADVISE, &mut Range { offset: 0, length: 0, mode: 1, zero: 1 }), -libc::EINVAL);
    let writer = OpenOptions::new().write(true).open(&path).expect("open");
    assert_eq!(advise(&writer, 0, 0, 1), -libc::EBADF);
}
