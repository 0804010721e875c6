//! One process streams a file with transfers of one size: the workload of the demo's table and of
//! `amphi bench stream`.
//!
//! Each transfer starts with its file offset, so a read that returns other bytes is an error and not a fast
//! run. Writes are timed to the end of `fsync`.

use super::clock::now;
use amphi_env::Buf;
use amphi_host::failure::{During, Failure, Outcome};
use rustix::fs::{Advice, Mode, OFlags, fadvise, fsync, open};
use rustix::io::{Errno, pread, pwrite};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A stream over one file.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The file.
    pub path: PathBuf,
    /// Bytes to move.
    pub bytes: u64,
    /// Bytes per call.
    pub transfer: usize,
    /// Offset of the first transfer: 0 is aligned, 8 makes every transfer unaligned.
    pub shift: u64,
    /// Open with O_DIRECT.
    pub o_direct: bool,
    /// Stop after the first transfer that ends later than this.
    pub most: Option<Duration>,
}

/// Bytes that were moved, and when.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// How many.
    pub bytes: u64,
    /// The time before the first transfer.
    pub start: Instant,
    /// After the last, and after fsync.
    pub end: Instant,
}

impl Moved {
    /// MiB/s.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / (1 << 20) as f64 / self.end.duration_since(self.start).as_secs_f64()
    }
}

/// Runs `count` streams at once, each on a thread of its own; all clocks start when all are ready. MiB/s of all
/// together.
pub fn together(count: usize, each: impl Fn(usize, &dyn Fn()) -> Outcome<Moved> + Sync) -> Outcome<f64> {
    let (ready, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let line = || {
        ready.fetch_add(1, SeqCst);
        while ready.load(SeqCst) < count && !failed.load(SeqCst) {
            std::thread::yield_now();
        }
    };
    let all: Vec<Outcome<Moved>> = std::thread::scope(|scope| {
        let (each, line, failed) = (&each, &line, &failed);
        let run = move |i| each(i, line).inspect_err(|_| failed.store(true, SeqCst));
        let threads: Vec<_> = (0..count).map(|i| scope.spawn(move || run(i))).collect();
        let ended = threads.into_iter().map(|t| t.join());
        ended.map(|r| r.unwrap_or_else(|_| Err(Failure::broken("a stream panicked")))).collect()
    });
    let all = all.into_iter().collect::<Outcome<Vec<Moved>>>()?;
    let (start, end) = (all.iter().map(|m| m.start).min(), all.iter().map(|m| m.end).max());
    let (Some(start), Some(end)) = (start, end) else { return Err(Failure::broken("no stream")) };
    Ok(Moved { bytes: all.iter().map(|m| m.bytes).sum(), start, end }.rate())
}

fn stamp(offset: u64) -> [u8; 8] {
    (offset ^ 0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

impl Stream {
    fn open(&self, flags: OFlags) -> Outcome<OwnedFd> {
        let flags = if self.o_direct { flags | OFlags::DIRECT } else { flags };
        open(&self.path, flags, Mode::from_raw_mode(0o644)).during(|| format!("open {}", self.path.display()))
    }

    fn offsets(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.bytes / self.transfer as u64).map(|i| self.shift + i * self.transfer as u64)
    }

    /// Whether the time is over.
    fn is_late(&self, start: Instant) -> bool {
        self.most.is_some_and(|most| start.elapsed() >= most)
    }

    /// Writes the file, which is made or emptied first, and fsyncs it. MiB/s.
    pub fn write(&self) -> Outcome<f64> {
        self.write_when(&|| ()).map(|m| m.rate())
    }

    /// As `write`; calls `ready` when the file is open and the clock is about to run.
    pub fn write_when(&self, ready: &dyn Fn()) -> Outcome<Moved> {
        self.write_until(ready, &|| false)
    }

    /// As `write_when`; ends behind the transfer during which `over` came to say so.
    pub fn write_until(&self, ready: &dyn Fn(), over: &dyn Fn() -> bool) -> Outcome<Moved> {
        let fd = self.open(OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC)?;
        let mut buf = Buf::zeroed(self.transfer);
        for (i, byte) in buf.iter_mut().enumerate() {
            *byte = (i % 251) as u8;
        }
        ready();
        let (start, mut bytes) = (now(), 0);
        for offset in self.offsets() {
            buf[..8].copy_from_slice(&stamp(offset));
            let mut done = 0;
            while done < buf.len() {
                let n = pwrite(&fd, &buf[done..], offset + done as u64)
                    .during(|| format!("write {} at {offset}", self.path.display()))?;
                done += n;
            }
            bytes += done as u64;
            if self.is_late(start) || over() {
                break;
            }
        }
        fsync(&fd).during(|| format!("fsync {}", self.path.display()))?;
        Ok(Moved { bytes, start, end: now() })
    }

    /// Reads what `write` wrote and checks the stamps. MiB/s.
    pub fn read(&self) -> Outcome<f64> {
        self.read_when(&|| ()).map(|m| m.rate())
    }

    /// As `read`; calls `ready` when the file is open and the clock is about to run.
    pub fn read_when(&self, ready: &dyn Fn()) -> Outcome<Moved> {
        self.read_until(ready, &|| false)
    }

    /// As `read_when`; ends behind the transfer during which `over` came to say so.
    pub fn read_until(&self, ready: &dyn Fn(), over: &dyn Fn() -> bool) -> Outcome<Moved> {
        let fd = self.open(OFlags::RDONLY)?;
        let mut buf = Buf::zeroed(self.transfer);
        ready();
        let (start, mut bytes) = (now(), 0);
        for offset in self.offsets() {
            let mut done = 0;
            while done < buf.len() {
                let n = pread(&fd, &mut buf[done..], offset + done as u64)
                    .during(|| format!("read {} at {offset}", self.path.display()))?;
                if n == 0 {
                    return Err(Failure::broken(format!("{}: ends at {}", self.path.display(), offset + done as u64)));
                }
                done += n;
            }
            if buf[..8] != stamp(offset) {
                return Err(Failure::broken(format!("{}: wrong bytes at {offset}", self.path.display())));
            }
            bytes += done as u64;
            if self.is_late(start) || over() {
                break;
            }
        }
        Ok(Moved { bytes, start, end: now() })
    }
}

/// Fills `path` with `bytes`, stamped for reads of any transfer size of 4 KiB or more, by large writes and `fsync`.
pub fn prepare(path: &Path, bytes: u64) -> Outcome {
    prepare_shifted(path, bytes, 0)
}

/// The same from `shift` on, for reads that begin there.
pub fn prepare_shifted(path: &Path, bytes: u64, shift: u64) -> Outcome {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC;
    let fd = open(path, flags, Mode::from_raw_mode(0o644)).during(|| format!("open {}", path.display()))?;
    for at in (0..bytes).step_by(PREPARE_BYTES) {
        let buf = stamped(shift + at, PREPARE_BYTES.min((bytes - at) as usize));
        let n = pwrite(&fd, &buf, shift + at).during(|| format!("write {}", path.display()))?;
        if n != buf.len() {
            return Err(Failure::broken(format!("{}: only {n} of {} bytes written", path.display(), buf.len())));
        }
    }
    fsync(&fd).during(|| format!("fsync {}", path.display()))
}

/// Bytes per call of `prepare`.
pub const PREPARE_BYTES: usize = 8 << 20;

/// `len` bytes of a file from `at`, with a stamp in each 4 KiB.
pub fn stamped(at: u64, len: usize) -> Buf {
    let mut buf = Buf::scratch(len);
    for (i, block) in buf.chunks_mut(4096).enumerate() {
        block.fill(i as u8);
        if block.len() >= 8 {
            block[..8].copy_from_slice(&stamp(at + 4096 * i as u64));
        }
    }
    buf
}

/// Whether `bytes`, read at `offset`, a multiple of 4096, are what `stamped` made.
pub fn is_stamped(offset: u64, bytes: &[u8]) -> bool {
    bytes.len() >= 8 && bytes[..8] == stamp(offset)
}

/// Drops the kernel's cached pages of `path`, so that the next read comes from storage.
pub fn drop_kernel_cache(path: &Path) -> Outcome {
    let fd = open(path, OFlags::RDONLY, Mode::empty()).during(|| format!("open {}", path.display()))?;
    fsync(&fd).during(|| format!("fsync {}", path.display()))?;
    match fadvise(&fd, 0, None, Advice::DontNeed) {
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(e) => Err(Failure::broken(format!("cannot drop the cache of {}: {e}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a prepared file is read in transfers of any size from its start, and other bytes are not mistaken for it.
    /// Method: files with and without a shift; reads of another file's bytes and past the end.
    #[test]
    fn prepared_files_are_read() {
        let path = std::env::temp_dir().join(format!("amphi-prepared-{}", std::process::id()));
        let stream = |transfer, shift| Stream {
            path: path.clone(),
            bytes: 1 << 20,
            transfer,
            shift,
            o_direct: false,
            most: None,
        };
        for shift in [0, 8] {
            prepare_shifted(&path, 1 << 20, shift).expect("prepared");
            for transfer in [4096, 64 << 10, 1 << 20] {
                let moved = stream(transfer, shift).read_when(&|| ()).expect("read");
                assert_eq!(moved.bytes, 1 << 20);
                assert!(stream(transfer, 8 - shift).read().is_err(), "{transfer} {shift}");
            }
        }
        std::fs::remove_file(&path).expect("removed");
    }

    /// Goal: a stream whose time is over ends after the present transfer and counts the bytes that it moved. Method: no
    /// time at all.
    #[test]
    fn late_streams_end() {
        let path = std::env::temp_dir().join(format!("amphi-late-{}", std::process::id()));
        let no_time = Some(Duration::ZERO);
        let mut stream =
            Stream { path: path.clone(), bytes: 1 << 20, transfer: 4096, shift: 0, o_direct: false, most: no_time };
        assert_eq!(stream.write_when(&|| ()).expect("written").bytes, 4096);
        assert_eq!(std::fs::metadata(&path).expect("a file").len(), 4096);
        prepare(&path, 1 << 20).expect("prepared");
        assert_eq!(stream.read_when(&|| ()).expect("read").bytes, 4096);
        stream.most = None;
        assert_eq!(stream.read_when(&|| ()).expect("read").bytes, 1 << 20);
        std::fs::remove_file(&path).expect("removed");
    }
}
