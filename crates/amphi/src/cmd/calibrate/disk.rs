//! The throughput of a folder's disk, past the kernel's cache.
//!
//! Owns: one file without a name in that folder, which goes with its descriptor however the process ends; threads that
//! keep the disk busy. Does not own: anything that a server does.

use amphi_client::Clock;
use amphi_env::Buf;
use amphi_host::clock::Machine as Clocks;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_view::calibration::Disk;
use rustix::fs::{Mode, OFlags, fdatasync, open, statvfs, unlink};
use rustix::io::{Errno, pread, pwrite};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of the file; less where there is little room.
const FILE_BYTES: u64 = 1 << 30;
/// The least that says something.
const FILE_MIN: u64 = 64 << 20;
/// Bytes of a large request; `SMALL` is the same for small requests.
const LARGE: usize = 1 << 20;
const SMALL: usize = 4 << 10;
/// Requests that are under way at a time.
const LARGE_AT_A_TIME: u64 = 8;
const SMALL_AT_A_TIME: u64 = 32;

/// The direction of requests.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Read,
    Write,
}

struct Scratch<'a> {
    folder: &'a Path,
    fd: OwnedFd,
    bytes: u64,
}

/// Bytes that no storage can leave out or pack.
fn pattern(len: usize) -> Buf {
    let mut buf = Buf::zeroed(len);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for chunk in buf.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    buf
}

impl<'a> Scratch<'a> {
    fn make(folder: &'a Path) -> Outcome<Scratch<'a>> {
        let failed = |e: Errno| Failure::refused(format!("{}: no file with O_DIRECT: {e}", folder.display()));
        let room = statvfs(folder).map_err(failed)?;
        let bytes = (room.f_bavail * room.f_frsize / 4).min(FILE_BYTES) / LARGE as u64 * LARGE as u64;
        if bytes < FILE_MIN {
            return Err(Failure::refused(format!("{}: too little room to measure its disk", folder.display())));
        }
        let path = folder.join(format!(".amphi-calibrate-{}", std::process::id()));
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
        let fd = open(&path, flags, Mode::from_raw_mode(0o600)).map_err(failed)?;
        unlink(&path).map_err(failed)?;
        Ok(Scratch { folder, fd, bytes })
    }

    /// Allocates the blocks of the file, as far as `long` allows, because the first write to a place takes longer.
    fn fill(&mut self, long: Duration) -> Outcome {
        let buf = pattern(LARGE);
        let end = Clocks.now_ns() + 2 * long.as_nanos() as u64;
        let mut at = 0;
        while at < self.bytes && (at < FILE_MIN || Clocks.now_ns() < end) {
            pwrite(&self.fd, &buf, at).during(|| format!("write into {}", self.folder.display()))?;
            at += LARGE as u64;
        }
        self.bytes = at;
        fdatasync(&self.fd).during(|| format!("sync in {}", self.folder.display()))
    }

    /// Requests a second, many at a time, one behind the other in the file or at random.
    fn rate(&self, way: Way, len: usize, at_a_time: u64, long: Duration) -> Outcome<f64> {
        let slots = self.bytes / len as u64;
        let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
        let begun = Clocks.now_ns();
        let end = begun + long.as_nanos() as u64;
        let one = || -> Result<(), Errno> {
            let mut buf = pattern(len);
            while Clocks.now_ns() < end {
                let n = next.fetch_add(1, Ordering::Relaxed);
                // Small requests go to scattered places: multiples of an odd number, so that each place is used once.
                let slot = if len == SMALL { n.wrapping_mul(0x9e37_79b1) % slots } else { n % slots };
                match way {
                    Way::Read => pread(&self.fd, &mut buf[..], slot * len as u64)?,
                    Way::Write => pwrite(&self.fd, &buf, slot * len as u64)?,
                };
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let ended = std::thread::scope(|scope| {
            let running: Vec<_> = (0..at_a_time).map(|_| scope.spawn(one)).collect();
            running.into_iter().map(|thread| thread.join().unwrap_or(Err(Errno::IO))).collect::<Result<Vec<_>, _>>()
        });
        ended.during(|| format!("measure the disk of {}", self.folder.display()))?;
        if way == Way::Write {
            // The device may have taken the writes into a cache of its own. The time of a sync counts, so that the
            // result is a rate that the device can hold.
            fdatasync(&self.fd).during(|| format!("sync in {}", self.folder.display()))?;
        }
        let seconds = Clocks.now_ns().saturating_sub(begun).max(1) as f64 / 1e9;
        Ok(done.into_inner() as f64 / seconds)
    }

    /// Microseconds of a write of 4 KiB and the sync after it.
    fn sync_us(&self, long: Duration) -> Outcome<f64> {
        let buf = pattern(SMALL);
        let begun = Clocks.now_ns();
        let mut done = 0u64;
        loop {
            let at = done % (self.bytes / SMALL as u64) * SMALL as u64;
            pwrite(&self.fd, &buf, at).during(|| format!("write into {}", self.folder.display()))?;
            fdatasync(&self.fd).during(|| format!("sync in {}", self.folder.display()))?;
            done += 1;
            let passed = Clocks.now_ns().saturating_sub(begun);
            if passed >= long.as_nanos() as u64 {
                return Ok(passed as f64 / 1e3 / done as f64);
            }
        }
    }
}

/// Measures the disk of a folder.
///
/// Errors: a folder without room, or on a file system without O_DIRECT.
pub(super) fn measure(folder: &Path, long: Duration) -> Outcome<Disk> {
    let mut file = Scratch::make(folder)?;
    file.fill(long)?;
    Ok(Disk {
        folder: folder.display().to_string(),
        write_bytes_per_s: file.rate(Way::Write, LARGE, LARGE_AT_A_TIME, long)? * LARGE as f64,
        read_bytes_per_s: file.rate(Way::Read, LARGE, LARGE_AT_A_TIME, long)? * LARGE as f64,
        small_writes_per_s: file.rate(Way::Write, SMALL, SMALL_AT_A_TIME, long)?,
        small_reads_per_s: file.rate(Way::Read, SMALL, SMALL_AT_A_TIME, long)?,
        sync_us: file.sync_us(long)?,
    })
}
