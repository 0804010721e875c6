//! Locks of applications through the mount: fcntl (POSIX, OFD) and flock, between real processes.

use crate::harness::{Daemon, Place, eventually};
use crate::two_mounts::Pair;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, getxattr, open};
use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// One step of a process: the call, its descriptor, and its bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Step {
    what: i32,
    kind: i32,
    start: i64,
    len: i64,
    /// A place in the process's table of descriptors.
    fd: i64,
}

const FDS: usize = 4;

const OPEN_AND_CLOSE: i32 = -1;
const ALARM_MS: i32 = -2;
const EXIT: i32 = -3;
const FLOCK: i32 = -4;
/// Opens the file again.
const OPEN: i32 = -5;
const CLOSE: i32 = -6;
/// Copies the descriptor at the place `kind`.
const DUP: i32 = -7;
/// Opens, locks without waiting (of the kind `kind`) and closes this many times; the errors are counted.
const CYCLE: i32 = -8;

/// The result of a step: errno, and the lock found by `F_GETLK`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Done {
    errno: i32,
    kind: i32,
    start: i64,
    len: i64,
    pid: i32,
    padding: i32,
}

/// A separate process that has the file open and executes one step at a time.
struct Process {
    pid: i32,
    steps: fs::File,
    done: fs::File,
}

extern "C" fn on_alarm(_: i32) {}

fn record(kind: i32, start: i64, len: i64) -> libc::flock {
    libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: start, l_len: len, l_pid: 0 }
}

/// The life of a process, with system calls alone: it was forked from a program with several threads.
fn live(path: &std::ffi::CStr, steps: i32, done: i32) -> ! {
    // SAFETY: system calls with pointers to values that live as long as the calls; nothing here allocates or takes a
    // lock.
    unsafe {
        // Closes inherited descriptors of other tests, whose files would stay open otherwise.
        for fd in 3..4096 {
            if fd != steps && fd != done {
                libc::close(fd);
            }
        }
        let mut fds = [-1; FDS];
        fds[0] = libc::open(path.as_ptr(), libc::O_RDWR);
        loop {
            let mut step = Step { what: EXIT, kind: 0, start: 0, len: 0, fd: 0 };
            libc::read(steps, (&raw mut step).cast(), size_of::<Step>());
            let mut lock = record(step.kind, step.start, step.len);
            let place = step.fd as usize % FDS;
            let file = fds[place];
            let result = match step.what {
                EXIT => libc::_exit(0),
                OPEN_AND_CLOSE => libc::close(libc::open(path.as_ptr(), libc::O_RDONLY)),
                ALARM_MS => {
                    let mut action: libc::sigaction = std::mem::zeroed();
                    action.sa_sigaction = on_alarm as *const () as usize;
                    libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut());
                    let mut timer: libc::itimerval = std::mem::zeroed();
                    timer.it_value.tv_usec = step.start * 1000;
                    libc::syscall(libc::SYS_setitimer, 0, &raw const timer, 0) as i32
                }
                FLOCK => libc::flock(file, step.kind),
                OPEN => {
                    fds[place] = libc::open(path.as_ptr(), libc::O_RDWR);
                    fds[place]
                }
                CLOSE => libc::close(file),
                DUP => {
                    fds[place] = libc::dup(fds[step.kind as usize % FDS]);
                    fds[place]
                }
                CYCLE => {
                    let whole = record(libc::F_WRLCK, 0, 0);
                    for _ in 0..step.start {
                        let fd = libc::open(path.as_ptr(), libc::O_RDWR);
                        let taken = match step.kind {
                            FLOCK => libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB),
                            what => libc::fcntl(fd, what, &raw const whole),
                        };
                        lock.l_pid -= taken;
                        libc::close(fd);
                    }
                    0
                }
                what => libc::fcntl(file, what, &raw mut lock),
            };
            let errno = if result < 0 { *libc::__errno_location() } else { 0 };
            let kind = i32::from(lock.l_type);
            let told = Done { errno, kind, start: lock.l_start, len: lock.l_len, pid: lock.l_pid, padding: 0 };
            libc::write(done, (&raw const told).cast(), size_of::<Done>());
        }
    }
}

fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("pipe")
}

impl Process {
    fn new(path: &Path) -> Process {
        let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
        let ((steps_in, steps), (done, done_out)) = (pipe(), pipe());
        // SAFETY: the child continues with system calls only.
        match unsafe { libc::fork() } {
            0 => live(&path, steps_in.as_raw_fd(), done_out.as_raw_fd()),
            pid => {
                assert!(pid > 0, "fork");
                Process { pid, steps: steps.into(), done: done.into() }
            }
        }
    }

    fn begin(&mut self, what: i32, kind: i32, start: i64, len: i64) {
        self.begin_with(Step { what, kind, start, len, fd: 0 });
    }

    fn begin_with(&mut self, step: Step) {
        // SAFETY: plain integers without padding.
        let bytes: [u8; size_of::<Step>()] = unsafe { std::mem::transmute(step) };
        self.steps.write_all(&bytes).expect("the process lives");
    }

    fn end(&mut self) -> Done {
        let mut bytes = [0; size_of::<Done>()];
        self.done.read_exact(&mut bytes).expect("the process lives");
        // SAFETY: plain integers, any bytes will do.
        unsafe { std::mem::transmute(bytes) }
    }

    fn step(&mut self, what: i32, kind: i32, start: i64, len: i64) -> i32 {
        self.begin(what, kind, start, len);
        self.end().errno
    }

    /// A step with another descriptor than the first.
    fn on(&mut self, fd: i64, what: i32, kind: i32, start: i64, len: i64) -> i32 {
        self.begin_with(Step { what, kind, start, len, fd });
        self.end().errno
    }

    fn set(&mut self, kind: i32, start: i64, len: i64) -> i32 {
        self.step(libc::F_SETLK, kind, start, len)
    }

    fn get(&mut self, kind: i32, start: i64, len: i64) -> Done {
        self.begin(libc::F_GETLK, kind, start, len);
        self.end()
    }

    /// Returns whether the process is still in the step that it began, after a while.
    fn is_waiting(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.done, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 200_000_000 })).expect("poll") == 0
    }

    fn kill(self) {
        // SAFETY: a child that was not waited for yet.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SAFETY: a child that was not waited for yet.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

const R: i32 = libc::F_RDLCK;
const W: i32 = libc::F_WRLCK;
const U: i32 = libc::F_UNLCK;
const WAIT: i32 = libc::F_SETLKW;

fn file(place: &Place) -> std::path::PathBuf {
    let path = place.mount().join("f");
    fs::write(&path, b"0123456789").expect("write");
    path
}

/// Goal: Promise S19, S20: POSIX record locks as fcntl(2) documents them: conflicts, results of `F_GETLK`, cutting,
/// converting and ends of files. Any close of the file by the process, its exit and its death release its locks.
/// Method: processes that do one call at a time.
#[test]
fn record_locks() {
    let place = Place::new();
    let up = place.up(&[]);
    let path = file(&place);
    let (mut a, mut b) = (Process::new(&path), Process::new(&path));
    assert_eq!(a.set(W, 0, 10), 0);
    assert_eq!((b.set(R, 9, 1), b.set(R, 10, 0)), (libc::EAGAIN, 0));
    let found = b.get(W, 0, 0);
    assert_eq!((found.kind, found.start, found.len, found.pid), (W, 0, 10, a.pid));
    assert_eq!(a.get(W, i64::MAX, 1).start, 10, "to the end of every file");
    assert_eq!((a.set(U, 3, 4), a.set(R, 0, 2)), (0, 0));
    let found = b.get(R, 0, 0);
    assert_eq!((found.kind, found.start, found.len), (W, 2, 1), "the first that is in the way");
    assert_eq!((b.set(R, 0, 2), b.set(W, 3, 4), b.set(W, 0, 1)), (0, 0, libc::EAGAIN));
    assert_eq!(a.set(W, 0, 2), libc::EAGAIN, "an upgrade over another reader");
    assert_eq!(b.set(U, 0, 0), 0);
    assert_eq!(a.set(W, 0, 2), 0);
    assert_eq!(a.step(OPEN_AND_CLOSE, 0, 0, 0), 0);
    assert_eq!(b.get(W, 0, 0).kind, U, "a close of any descriptor gives all up");
    assert_eq!(a.set(W, 0, 0), 0);
    a.begin(EXIT, 0, 0, 0);
    assert_eq!(b.step(WAIT, W, 0, 0), 0, "the end of a process");
    let mut c = Process::new(&path);
    c.begin(WAIT, R, 5, 1);
    assert!(c.is_waiting());
    b.kill();
    assert_eq!(c.end().errno, 0, "the death of a process");
    drop(c);
    up.stop();
    place.fsck();
}

/// Goal: Promise S18, S20: waits end with the lock, or with a signal and no lock, or are refused if they would close a
/// cycle. The request of a killed waiter is withdrawn. Method: alarms without `SA_RESTART`, two processes that cross.
#[test]
fn waits_for_locks() {
    let place = Place::new();
    let up = place.up(&[]);
    let path = file(&place);
    let (mut a, mut b, mut c) = (Process::new(&path), Process::new(&path), Process::new(&path));
    assert_eq!(a.set(W, 0, 10), 0);
    assert_eq!(b.step(ALARM_MS, 0, 300, 0), 0);
    assert_eq!(b.step(WAIT, W, 5, 10), libc::EINTR);
    assert_eq!(c.set(W, 10, 5), 0, "nothing is left of an interrupted wait");
    assert_eq!(a.set(U, 0, 0), 0);
    assert_eq!(a.get(W, 5, 5).kind, U);
    assert_eq!(a.set(W, 0, 10), 0);
    // A circle of two, over two ranges.
    c.begin(WAIT, W, 0, 1);
    assert!(c.is_waiting());
    assert_eq!(a.step(WAIT, W, 10, 1), libc::EDEADLK);
    let mut killed = Process::new(&path);
    killed.begin(WAIT, W, 0, 10);
    assert!(killed.is_waiting());
    killed.kill();
    b.begin(WAIT, R, 9, 1);
    assert!(b.is_waiting());
    assert_eq!(a.set(U, 0, 0), 0);
    assert_eq!((c.end().errno, b.end().errno), (0, 0));
    // The same for flock, whose request also ends with the process that waits for it.
    assert_eq!(a.step(FLOCK, libc::LOCK_EX, 0, 0), 0, "no matter who has record locks");
    b.begin(FLOCK, libc::LOCK_SH, 0, 0);
    assert!(b.is_waiting());
    assert_eq!(c.step(ALARM_MS, 0, 300, 0), 0);
    assert_eq!(c.step(FLOCK, libc::LOCK_EX, 0, 0), libc::EINTR);
    a.kill();
    assert_eq!(b.end().errno, 0);
    drop((b, c));
    up.stop();
}

/// Goal: Promise S19: locks of open files, `flock` and OFD, belong to the open file. Copies of a descriptor share them,
/// the last close releases them at once, and other closes do not. Method: several descriptors of a process. Then
/// processes open, lock and close their file again and again, all at the same time.
#[test]
fn locks_of_open_files() {
    let place = Place::new();
    let up = place.up(&[]);
    let path = file(&place);
    let (sh, ex, un, nb) = (libc::LOCK_SH, libc::LOCK_EX, libc::LOCK_UN, libc::LOCK_NB);
    let mut p = Process::new(&path);
    assert_eq!(p.on(1, OPEN, 0, 0, 0), 0);
    assert_eq!((p.on(0, FLOCK, sh, 0, 0), p.on(1, FLOCK, sh | nb, 0, 0)), (0, 0));
    assert_eq!(p.on(0, FLOCK, ex | nb, 0, 0), libc::EAGAIN);
    assert_eq!(p.on(1, FLOCK, ex | nb, 0, 0), 0, "the conversion that failed lost the lock, as on Linux");
    assert_eq!((p.on(2, DUP, 1, 0, 0), p.on(1, CLOSE, 0, 0, 0)), (0, 0));
    assert_eq!(p.on(0, FLOCK, sh | nb, 0, 0), libc::EAGAIN, "a copy keeps it");
    assert_eq!((p.on(2, FLOCK, un, 0, 0), p.on(0, FLOCK, ex | nb, 0, 0)), (0, 0));
    assert_eq!((p.on(0, FLOCK, un, 0, 0), p.on(2, FLOCK, ex, 0, 0)), (0, 0));
    assert_eq!((p.on(2, CLOSE, 0, 0, 0), p.on(0, FLOCK, ex | nb, 0, 0)), (0, 0), "the last close");

    let set = libc::F_OFD_SETLK;
    assert_eq!(p.on(1, OPEN, 0, 0, 0), 0);
    assert_eq!((p.on(0, set, W, 0, 10), p.on(1, set, W, 9, 1), p.on(1, set, W, 10, 1)), (0, libc::EAGAIN, 0));
    let mut other = Process::new(&path);
    assert_eq!((other.set(R, 0, 1), other.set(R, 11, 1)), (libc::EAGAIN, 0), "they meet POSIX locks");
    assert_eq!(p.step(OPEN_AND_CLOSE, 0, 0, 0), 0);
    assert_eq!(p.on(1, set, W, 0, 10), libc::EAGAIN, "not given up by a close of another descriptor");
    assert_eq!((p.on(0, CLOSE, 0, 0, 0), p.on(1, set, W, 0, 10)), (0, 0));
    drop((p, other));

    let cycle = |i: i32| {
        let path = place.mount().join(format!("t{i}"));
        fs::write(&path, b"").expect("write");
        let mut p = Process::new(&path);
        p.begin(CYCLE, if i % 2 == 0 { FLOCK } else { set }, 1000, 0);
        p
    };
    let processes: Vec<Process> = (0..6).map(cycle).collect();
    let refused: Vec<i32> = processes.into_iter().map(|mut p| p.end().pid).collect();
    assert_eq!(refused, [0; 6], "refused though the last holder had closed it");
    up.stop();
}

/// Rounds; in each, one mount closes the file and the other one tries to lock it.
const CLOSES: usize = 1000;

fn closed_on_the_other_mount(servers: usize) {
    let pair = Pair::new(servers, &[], &[]);
    for i in 0..servers {
        // The directories spread over the targets of the servers.
        fs::create_dir(pair.a.join(format!("d{i}"))).expect("mkdir");
        fs::write(pair.a.join(format!("d{i}/f")), b"0123456789").expect("write");
    }
    let (ex, nb, ofd) = (libc::LOCK_EX, libc::LOCK_NB, libc::F_OFD_SETLK);
    let mut refused = Vec::new();
    for i in 0..servers {
        let name = format!("d{i}/f");
        let (mut p, mut q) = (Process::new(&pair.a.join(&name)), Process::new(&pair.b.join(&name)));
        for round in 0..CLOSES / servers {
            let (mine, other) = if round % 2 == 0 { (&mut p, &mut q) } else { (&mut q, &mut p) };
            assert_eq!(mine.on(1, OPEN, 0, 0, 0), 0);
            // The rounds alternate between flock against flock, and OFD against POSIX with what `F_GETLK` finds.
            let kind = round / 2 % 3;
            let locked = if kind == 0 { mine.on(1, FLOCK, ex | nb, 0, 0) } else { mine.on(1, ofd, W, 0, 10) };
            assert_eq!(locked, 0, "round {round}");
            assert_eq!(mine.on(1, CLOSE, 0, 0, 0), 0);
            let free = match kind {
                0 => other.on(0, FLOCK, ex | nb, 0, 0) == 0,
                1 => other.set(W, 5, 1) == 0,
                _ => other.get(W, 5, 1).kind == U,
            };
            if !free {
                refused.push(round);
            }
            assert_eq!((other.on(0, FLOCK, libc::LOCK_UN, 0, 0), other.set(U, 0, 0)), (0, 0));
        }
        // A copy of the descriptor is closed: the lock stays, and the close does not wait long for that result.
        assert_eq!((p.on(1, OPEN, 0, 0, 0), p.on(1, FLOCK, ex, 0, 0), p.on(2, DUP, 1, 0, 0)), (0, 0, 0));
        assert_eq!(p.on(2, CLOSE, 0, 0, 0), 0);
        assert_eq!(q.on(0, FLOCK, ex | nb, 0, 0), libc::EAGAIN);
        assert_eq!((p.on(1, CLOSE, 0, 0, 0), q.on(0, FLOCK, ex | nb, 0, 0)), (0, 0));
    }
    assert!(refused.is_empty(), "{} of {CLOSES} tries found the lock of a closed descriptor", refused.len());
    pair.stop();
}

/// Goal: Promise S20 on two mounts: a `flock` or OFD lock has gone for the other mount when the last `close` has
/// returned. Method: one process locks and closes, and another one on the other mount tries to lock at once, a thousand
/// times.
#[test]
fn closed_locks_are_gone_on_the_other_mount() {
    closed_on_the_other_mount(1);
}

/// The same, where locks and sessions are kept by several servers.
#[test]
fn closed_locks_are_gone_on_the_other_mount_of_three_servers() {
    closed_on_the_other_mount(3);
}

fn server_counter(place: &Place, name: &str) -> u64 {
    let mut text = vec![0; 1 << 16];
    let len = getxattr(place.mount(), "user.amphi.counters.server", &mut text[..]).expect("counters");
    let text = String::from_utf8_lossy(&text[..len]).into_owned();
    let line = text.lines().find_map(|l| l.strip_prefix(name)).expect("a counter of this name");
    line.trim().parse().expect("a number")
}

/// Goal: whatever the number of threads that wait for a lock, the holder can release it. Method: more waiting threads
/// than the mount has.
#[test]
fn more_waiters_than_threads() {
    let place = Place::new();
    let up = place.up(&[]);
    let path = file(&place);
    let held = open(&path, OFlags::RDWR, Mode::empty()).expect("open");
    flock(&held, FlockOperation::LockExclusive).expect("free");
    std::thread::scope(|threads| {
        for _ in 0..400 {
            let path = &path;
            threads.spawn(move || {
                let fd = open(path, OFlags::RDWR, Mode::empty()).expect("open");
                flock(&fd, FlockOperation::LockExclusive).expect("waits");
            });
        }
        eventually("all wait", || server_counter(&place, "file_locks_waiting") == 400);
        fs::write(place.mount().join("g"), b"alive").expect("other calls go on");
        flock(&held, FlockOperation::Unlock).expect("unlock");
    });
    up.stop();
}

/// Goal: Promise S21: a server that is killed and restarted knows the holders of all locks, and waiting calls continue
/// to wait. While it is down, a signal still ends a wait. Method: kill -9 between the calls of three processes.
#[test]
fn locks_outlive_the_server() {
    let place = Place::new();
    let (data, addr) = (place.text("data"), format!("unix:{}", place.text("sock")));
    let server = || Daemon::start(&["server", "--data", &data, "--listen", &addr, "--zone-size", "512M"]);
    let srv = server();
    let mount = Daemon::start(&["mount", "--cluster", &addr, &place.text("mount")]);
    let path = file(&place);
    let (mut a, mut b, mut c) = (Process::new(&path), Process::new(&path), Process::new(&path));
    assert_eq!((a.set(W, 0, 10), a.set(R, 20, 5), a.step(FLOCK, libc::LOCK_EX, 0, 0)), (0, 0, 0));
    b.begin(WAIT, W, 5, 10);
    assert!(b.is_waiting());
    srv.kill();
    assert_eq!(c.step(ALARM_MS, 0, 300, 0), 0);
    assert_eq!(c.step(WAIT, R, 0, 1), libc::EINTR, "no server is needed to give up");
    let srv = server();
    assert_eq!((c.set(R, 0, 1), c.set(W, 20, 1), c.set(R, 24, 1)), (libc::EAGAIN, libc::EAGAIN, 0));
    assert_eq!(c.step(FLOCK, libc::LOCK_SH | libc::LOCK_NB, 0, 0), libc::EAGAIN);
    assert!(b.is_waiting());
    assert_eq!(a.set(U, 0, 10), 0);
    assert_eq!(b.end().errno, 0);
    assert_eq!(c.get(R, 0, 0).start, 5);
    a.kill();
    assert_eq!((c.step(FLOCK, libc::LOCK_SH, 0, 0), c.step(WAIT, W, 20, 5)), (0, 0));
    drop((b, c));
    mount.stop();
    srv.stop();
    place.fsck();
}
