//! `Environments`: the content of the environment and the executable of a calling process, which FUSE requests do not
//! contain.
//!
//! The environment may choose the I/O mode (`AMPHI_IO_MODE`), give advice (`AMPHI_ADVISE`), and name the job
//! and the recording (`AMPHI_RECORD`).
//!
//! Owns: a bounded cache of what `/proc/<tid>/environ` and `exe` contain. The thread that serves an open reads them,
//! which takes about 10 us. `/proc` shows the environment with which a program was started, so later changes (`setenv`)
//! are not seen. Does not own: which setting takes precedence (the client's decision), which variables name a job
//! (`client::telemetry::jobs`).
//!
//! Invariants:
//!
//! * A shell opens the files of a redirection and then becomes the program, under the same thread id. So an entry is
//!   valid only for as long as its thread was known when it was read, and for `LIFE` at most. For a thread that opens
//!   many files, the environment is read some ten times in the first second and then once a second. A thread id that
//!   another process got is looked at again within `LIFE`.
//! * Reading `/proc` takes a lock on the caller's address space, which may be held by a page fault on this very mount.
//!   So at most `READS_MAX` threads wait for this lock. Further callers are treated as if their environment contained
//!   none of these variables.

use amphi_client::record::RECORD_VARIABLE;
use amphi_client::{JobName, Pieces, Program};
use amphi_types::IoMode;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// The variable that chooses the I/O mode of files.
const MODE: &str = "AMPHI_IO_MODE";
/// The variable that says in which pieces a program reads.
const ADVISE: &str = "AMPHI_ADVISE";
/// How long an entry is valid at most.
const LIFE: Duration = Duration::from_secs(1);
/// Most threads remembered; the table is emptied when it is full.
const ENTRIES_MAX: usize = 4096;
/// Most environments that are read at a time.
const READS_MAX: usize = 8;
/// Most bytes of an environment that are read.
const BYTES_MAX: u64 = 1 << 20;

/// The settings found in an environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// I/O mode of the files that the process opens.
    pub mode: Option<IoMode>,
    /// The job to which the process belongs.
    pub job: Option<JobName>,
    /// The recording to which calls of the process belong.
    pub record: Option<u64>,
    /// The program, identified by its executable.
    pub program: Program,
}

/// The data that `/proc` shows of a thread.
#[derive(Default)]
struct Shown {
    environ: Vec<u8>,
    /// The path of its executable; empty if this process may not see it.
    executable: Vec<u8>,
}

#[derive(Clone)]
struct Entry {
    first_ns: u64,
    read_ns: u64,
    said: Said,
}

impl Entry {
    fn is_believed(&self, now_ns: u64) -> bool {
        let life = (self.read_ns - self.first_ns).min(LIFE.as_nanos() as u64);
        now_ns.saturating_sub(self.read_ns) < life
    }

    /// Returns whether the entry may still be used. After some time the thread id may belong to another process.
    fn is_the_same(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.read_ns) < 2 * LIFE.as_nanos() as u64
    }
}

/// Environments by thread id.
#[derive(Default)]
pub struct Environments {
    entries: Mutex<BTreeMap<u32, Entry>>,
    reading: AtomicUsize,
}

impl Environments {
    /// The environment of thread `tid`, with its job from one of the variables `jobs`. Empty if it has none or cannot
    /// be read.
    pub fn said(&self, tid: u32, jobs: &[String]) -> Said {
        self.said_at(tid, jobs, crate::clock::monotonic_ns(), read)
    }

    fn said_at(&self, tid: u32, jobs: &[String], now_ns: u64, read: impl Fn(u32) -> Shown) -> Said {
        if tid == 0 {
            return Said::default();
        }
        let known = {
            let entries = self.entries.lock();
            match entries.get(&tid) {
                Some(entry) if entry.is_believed(now_ns) => return entry.said.clone(),
                known => known.filter(|e| e.is_the_same(now_ns)).map(|e| e.first_ns),
            }
        };
        if self.reading.fetch_add(1, SeqCst) >= READS_MAX {
            self.reading.fetch_sub(1, SeqCst);
            return Said::default();
        }
        let shown = read(tid);
        let said = parse(&shown, jobs);
        self.reading.fetch_sub(1, SeqCst);
        let mut entries = self.entries.lock();
        if entries.len() >= ENTRIES_MAX {
            entries.clear();
        }
        let first_ns = known.unwrap_or(now_ns);
        entries.insert(tid, Entry { first_ns, read_ns: now_ns, said: said.clone() });
        said
    }
}

#[expect(clippy::disallowed_types, reason = "of a file without an end that is known, no more than so much is read")]
fn read(tid: u32) -> Shown {
    let mut environ = Vec::new();
    if let Ok(file) = std::fs::File::open(format!("/proc/{tid}/environ")) {
        // Bytes that were read before an error are used.
        let _ = file.take(BYTES_MAX).read_to_end(&mut environ);
    }
    // Reading the link's text asks no file system.
    let executable = std::fs::read_link(format!("/proc/{tid}/exe")).unwrap_or_default();
    Shown { environ, executable: executable.into_os_string().into_encoded_bytes() }
}

/// A number for an executable; 0 if it is not known.
fn number_of(executable: &[u8]) -> u64 {
    if executable.is_empty() {
        return 0;
    }
    let mut hasher = DefaultHasher::new();
    executable.hash(&mut hasher);
    hasher.finish().max(1)
}

/// Interprets an environment and an executable. Unknown values are ignored.
fn parse(shown: &Shown, jobs: &[String]) -> Said {
    let environ = &shown.environ;
    let value =
        |name: &str| environ.split(|b| *b == 0).find_map(|e| e.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    let mode = match value(MODE) {
        Some(b"auto") => Some(IoMode::Auto),
        Some(b"buffered") => Some(IoMode::Buffered),
        Some(b"direct") => Some(IoMode::Direct),
        _ => None,
    };
    let reads = match value(ADVISE) {
        Some(b"large") => Some(Pieces::Large),
        Some(b"small") => Some(Pieces::Small),
        _ => None,
    };
    let program = Program { executable: number_of(&shown.executable), reads };
    let job = JobName::find(jobs, |name| value(name).map(|v| String::from_utf8_lossy(v).into_owned()));
    let record = value(RECORD_VARIABLE).and_then(|v| std::str::from_utf8(v).ok());
    let record = record.and_then(|v| u64::from_str_radix(v, 16).ok());
    Said { mode, job, record, program }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn of(environ: &[u8]) -> Shown {
        Shown { environ: environ.into(), executable: Vec::new() }
    }

    /// Goal: the variables are found, and unusual content does no harm. A program has one number. Method: examples.
    #[test]
    fn environments_are_read() {
        for (environ, mode) in [
            (&b"HOME=/\0AMPHI_IO_MODE=direct\0X=1\0"[..], Some(IoMode::Direct)),
            (b"AMPHI_IO_MODE=buffered", Some(IoMode::Buffered)),
            (b"AMPHI_IO_MODE=auto\0AMPHI_IO_MODE=direct\0", Some(IoMode::Auto)),
            (b"AMPHI_IO_MODE=\0", None),
            (b"AMPHI_IO_MODES=direct\0MY_AMPHI_IO_MODE=direct\0", None),
            (b"AMPHI_IO_MODE=DIRECT\0\xff\0\0", None),
            (b"", None),
        ] {
            assert_eq!(parse(&of(environ), &[]), Said { mode, ..Said::default() }, "{environ:?}");
        }
        for (environ, reads) in [
            (&b"AMPHI_ADVISE=large\0AMPHI_IO_MODE=auto"[..], Some(Pieces::Large)),
            (b"X=1\0AMPHI_ADVISE=small\0", Some(Pieces::Small)),
            (b"AMPHI_ADVISE=LARGE\0", None),
            (b"AMPHI_ADVISED=large", None),
        ] {
            assert_eq!(parse(&of(environ), &[]).program, Program { executable: 0, reads }, "{environ:?}");
        }
        let executable = |path: &[u8]| parse(&Shown { executable: path.into(), ..of(b"") }, &[]).program.executable;
        assert_eq!(executable(b"/usr/bin/tar"), executable(b"/usr/bin/tar"));
        assert_ne!(executable(b"/usr/bin/tar"), executable(b"/usr/bin/cat"));
        assert_eq!(executable(b""), 0);
        let jobs = ["OWN".to_string(), "SLURM_JOB_ID".to_string()];
        for (environ, job) in [
            (&b"SLURM_JOB_ID=4711\0AMPHI_IO_MODE=auto\0"[..], Some("4711")),
            (b"SLURM_JOB_ID=4711\0OWN=mine", Some("mine")),
            (b"OWN=\0SLURM_JOB_ID=4711", Some("4711")),
            (b"SLURM_JOB_ID=\xff\"x y", Some("__x_y")),
            (b"SLURM_JOB_ID_X=1\0XOWN=2\0SLURM_JOB_ID", None),
        ] {
            assert_eq!(parse(&of(environ), &jobs).job, job.and_then(JobName::new), "{environ:?}");
        }
    }

    /// Goal: a thread's environment is read rarely, but if it changes with `exec` right after an open, the next open
    /// sees the change. Method: a clock and an environment that changes.
    #[test]
    fn an_exec_is_seen() {
        let e = Environments::default();
        let (reads, environ) = (Cell::new(0), Cell::new(&b"AMPHI_IO_MODE=direct"[..]));
        let mode = |tid, now_us: u64| {
            let read = |_| {
                reads.set(reads.get() + 1);
                of(environ.get())
            };
            e.said_at(tid, &[], now_us * 1000, read).mode
        };
        assert_eq!(mode(0, 1), None);
        assert_eq!((mode(5, 1000), reads.get()), (Some(IoMode::Direct), 1));
        environ.set(b"AMPHI_IO_MODE=buffered");
        assert_eq!(mode(5, 1300), Some(IoMode::Buffered), "at once");
        for at in (2_000..1_000_000).step_by(100) {
            assert_eq!(mode(5, at), Some(IoMode::Buffered));
        }
        assert!(reads.get() <= 14, "{} reads in the first second", reads.get());
        environ.set(b"");
        assert_eq!(mode(5, 3_100_000), None, "somebody else by now");
        environ.set(b"AMPHI_IO_MODE=direct");
        assert_eq!(mode(5, 3_100_100), Some(IoMode::Direct), "who is not believed long either");
    }

    /// Goal: a caller whose memory hangs holds up this many readers and no more. Method: reads within reads.
    #[test]
    fn hanging_readers_are_bounded() {
        fn nested(e: &Environments, tid: u32) -> Option<IoMode> {
            let read = |_| {
                let inner = nested(e, tid + 1);
                of(if inner.is_none() { b"AMPHI_IO_MODE=direct" } else { b"" })
            };
            e.said_at(tid, &[], 1, read).mode
        }
        let e = Environments::default();
        nested(&e, 1);
        assert_eq!((e.entries.lock().len(), e.reading.load(SeqCst)), (READS_MAX, 0));
    }
}
