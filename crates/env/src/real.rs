//! The production environment: Linux, io_uring through compio, one ring per thread.
//!
//! Owns: `RealEnv` and the disks and connections that it opens. Does not own: threads (`sched` makes them).
//!
//! Invariants: a `RealEnv` lives inside one call of `RealEnv::run`. Everything that it spawned is dropped when that
//! call returns. Blocking system calls on the thread are only those of opening, listing and binding.

mod cores;
mod disk;
mod executor;
mod kept;
mod lent;
mod net;
mod origin;
mod passed;
mod peer;
mod populate;
mod random;
mod spin;

pub use cores::{Apart, Wide};
pub use disk::RealDisk;
pub use kept::{RealKept, memory_outlives};
pub use net::{RealConn, RealEnds, RealListener, RealMoved, RealRx, RealTx};
pub use passed::RealMemory;
pub use populate::keep_populated;
pub use spin::Spin;

use crate::{DiskMode, Env, Load, Time};
use amphi_types::Timespec;
use std::cell::RefCell;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a worker polls after its last progress before it parks, if nobody else needs the core (`Spin`). Measured:
/// it must cover a write of the log (57 us and more). Otherwise each metadata operation would cost a wake-up (40 us) at
/// its end.
pub const WORKER_SPIN: Duration = Duration::from_micros(200);

/// The production environment of one thread.
#[derive(Clone)]
pub struct RealEnv {
    shared: Rc<executor::Shared>,
    rand: Rc<RefCell<random::Pool>>,
}

impl RealEnv {
    /// Runs the future that `f` makes to its end on this thread, polling for `spin` after the last progress, if nobody
    /// else needs the core (`Spin`), and then parking (zero: park at once). Tasks that it spawned are dropped at the
    /// end. A panic of a task leaves this call.
    ///
    /// Panics if the kernel refuses a ring; see `try_run`.
    pub fn run<T, Fut: Future<Output = T>>(spin: Duration, f: impl FnOnce(RealEnv) -> Fut) -> T {
        match Self::try_run(spin, f) {
            Ok(value) => value,
            Err(e) => panic!("io_uring is not available (Linux 6.1 or newer, not disabled by sysctl or seccomp): {e}"),
        }
    }

    /// Works as `run`, but a refused ring is an error.
    pub fn try_run<T, Fut: Future<Output = T>>(spin: Duration, f: impl FnOnce(RealEnv) -> Fut) -> io::Result<T> {
        executor::run(spin, |shared| f(RealEnv { shared, rand: Rc::default() }))
    }

    /// From now on this thread stays on its present core, as long as requests of the process mostly wait for such
    /// threads and only for short times; threads that handle these requests leave that core (`Apart`).
    pub fn keep_core(&self) {
        self.shared.keeps_core.set(true);
    }
}

/// How long opening a disk waits for a process that is ending to release it. After this time, opening a disk that is in
/// use fails.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Pause between attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Time as `RealEnv::now` tells it, for code that has no environment.
#[expect(clippy::disallowed_methods, reason = "the production clock")]
pub fn monotonic() -> Time {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    Time(ORIGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64)
}

/// Nanoseconds since the machine was started, including sleep: for rights that expire at other machines.
pub fn since_boot() -> Time {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Time(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// The file with a number that the kernel makes anew at every start.
const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";

/// The two halves of a UUID, joined; `None` if the text is no UUID.
fn boot_number(text: &str) -> Option<u64> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32)?;
    Some(((number >> 64) as u64 ^ number as u64).max(1))
}

impl Env for RealEnv {
    type Disk = RealDisk;
    type Conn = RealConn;
    type Listener = RealListener;
    type Kept = RealKept;

    fn now(&self) -> Time {
        monotonic()
    }

    #[expect(clippy::disallowed_methods, reason = "the production clock")]
    fn wall(&self) -> Timespec {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timespec::from_ns(since.as_nanos() as u64)
    }

    fn rand(&self) -> u64 {
        self.rand.borrow_mut().next()
    }

    fn boot_id(&self) -> u64 {
        static BOOT: OnceLock<u64> = OnceLock::new();
        *BOOT.get_or_init(|| {
            let told = std::fs::read_to_string(BOOT_ID_PATH).ok().and_then(|text| boot_number(&text));
            told.unwrap_or_else(|| RandomState::new().hash_one(0).max(1))
        })
    }

    fn sleep(&self, d: Duration) -> impl Future<Output = ()> + 'static {
        compio::time::sleep(d)
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.shared.spawn(task);
    }

    fn set_spin(&self, budget: Duration) {
        self.shared.spin.set(budget);
    }

    fn load(&self) -> Load {
        self.shared.turns.get().load()
    }

    fn set_write_delay(&self, delay: Duration) {
        self.shared.write_delay.set(delay);
    }

    async fn disk(&self, path: &str, mode: DiskMode) -> io::Result<Rc<RealDisk>> {
        // The kernel ends the rings of a killed process after the process itself, and they hold its files: its
        // successor, which may start at once, has to wait for that.
        let patient_until = self.now() + LOCK_PATIENCE;
        loop {
            match RealDisk::open(path, mode, &self.shared.leases, &self.shared.write_delay) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && self.now() < patient_until => {
                    self.sleep(LOCK_PAUSE).await;
                }
                opened => return Ok(Rc::new(opened?)),
            }
        }
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            // A name that is not UTF-8 is none of ours.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn make_dir(&self, dir: &str) -> io::Result<()> {
        std::fs::create_dir_all(dir)
    }

    fn free_bytes(&self, dir: &str) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(dir).map_err(|e| disk::context(dir, e))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn keep(&self, name: &str, of: &str) -> io::Result<RealKept> {
        RealKept::make(name, of)
    }

    fn kept(&self, name: &str, of: &str, most: usize) -> io::Result<Vec<u8>> {
        kept::read(name, of, most)
    }

    fn forget(&self, name: &str) -> io::Result<()> {
        kept::forget(name)
    }

    async fn listen(&self, addr: &str) -> io::Result<RealListener> {
        RealListener::listen(addr, &self.shared.leases)
    }

    async fn dial(&self, addr: &str) -> io::Result<RealConn> {
        RealConn::dial(addr, &self.shared.leases).await
    }

    fn adopt(&self, moved: RealMoved) -> RealConn {
        RealConn::adopt(moved, &self.shared.leases)
    }
}

#[cfg(test)]
mod tests;
