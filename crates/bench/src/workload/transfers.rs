//! The transfers of a process: pieces of a file that it writes and reads, and the bytes in them.
//!
//! Invariants: each transfer starts with a stamp of its offset that every read checks, so that a read of other bytes is
//! an error and no fast run; the check phases compare all bytes. A file is read in the pieces in which it was written.

use super::latency::Latency;
use super::tasks::now_ns;
use super::{Done, Phase};
use amphi_env::Buf;
use amphi_host::failure::{During, Failure, Outcome};
use rustix::fs::{Mode, OFlags, fsync, open, unlink};
use rustix::io::{Errno, pread, pwrite};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Distance of two stamps in a transfer.
const STAMP_EVERY: usize = 4096;

/// Puts the stamps of a transfer at `offset` of file `key` into `buf`, which holds the pattern otherwise.
fn stamp(buf: &mut [u8], key: u64, offset: u64) {
    for (i, part) in buf.chunks_mut(STAMP_EVERY).enumerate() {
        let n = part.len().min(8);
        part[..n].copy_from_slice(&stamp_of(key, offset + (i * STAMP_EVERY) as u64)[..n]);
    }
}

fn stamp_of(key: u64, offset: u64) -> [u8; 8] {
    (offset ^ key.rotate_left(40) ^ 0x5bd1_e995_9e37_79b9).to_le_bytes()
}

/// Bytes between the stamps.
fn pattern(buf: &mut [u8]) {
    buf.iter_mut().enumerate().for_each(|(i, b)| *b = (i % 251) as u8);
}

thread_local! {
    static KEPT: RefCell<[Buf; 2]> = RefCell::default();
}

/// Memory for two transfers of `len` bytes, kept from phase to phase: new memory each time would stay with the process,
/// which may be in a memory group.
fn with_memory<T>(len: usize, work: impl FnOnce(&mut [Buf; 2]) -> T) -> T {
    let mut memory = KEPT.take();
    for buf in &mut memory {
        if buf.len() != len {
            drop(std::mem::take(buf));
            *buf = Buf::zeroed(len);
        }
    }
    let done = work(&mut memory);
    KEPT.set(memory);
    done
}

/// How the calls are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// Open with `O_DIRECT`.
    pub o_direct: bool,
    /// fsync before the close of a write.
    pub fsync: bool,
    /// fsync after each write.
    pub fsync_each: bool,
}

/// Bytes of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Part {
    /// The file, seen from the process.
    pub file: PathBuf,
    /// Offset and length of each call, in their order.
    pub pieces: Vec<(u64, u64)>,
    /// Number of the file in its stamps.
    pub key: u64,
}

impl Part {
    fn longest(&self) -> usize {
        self.pieces.iter().map(|p| p.1 as usize).max().unwrap_or(0)
    }
}

/// What one process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// What it writes.
    pub write: Part,
    /// What it reads.
    pub read: Part,
    /// Whether it is the one that removes the file it writes.
    pub removes: bool,
    /// How.
    pub calls: Calls,
}

impl Job {
    fn open(&self, path: &Path, flags: OFlags) -> Outcome<OwnedFd> {
        let direct = if self.calls.o_direct { OFlags::DIRECT } else { OFlags::empty() };
        open(path, flags | direct | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))
            .during(|| format!("open {}", path.display()))
    }

    /// One phase.
    pub fn run(&mut self, phase: Phase) -> Outcome<Done> {
        match phase {
            Phase::Write => self.write(),
            Phase::Read => self.read(&self.read, false),
            Phase::CheckRead => self.read(&self.read, true),
            Phase::CheckWrite => self.read(&self.write, true),
            Phase::Remove => self.remove(),
            Phase::Stat => Err(Failure::refused("transfers have no phase of this name")),
        }
    }

    fn write(&self) -> Outcome<Done> {
        with_memory(self.write.longest(), |[memory, _]| self.write_from(memory))
    }

    fn write_from(&self, memory: &mut Buf) -> Outcome<Done> {
        pattern(memory);
        let path = &self.write.file;
        let (mut latency, mut done) = (Latency::new(), Done { start_ns: now_ns(), ..Done::default() });
        let fd = self.open(path, OFlags::CREATE | OFlags::WRONLY)?;
        done.opened_ns = now_ns();
        for &(offset, len) in &self.write.pieces {
            let buf = &mut memory[..len as usize];
            stamp(buf, self.write.key, offset);
            let start = now_ns();
            let mut at = 0;
            while at < buf.len() {
                let n = pwrite(&fd, &buf[at..], offset + at as u64);
                at += n.during(|| format!("write {} at {offset}", path.display()))?;
            }
            if self.calls.fsync_each {
                fsync(&fd).during(|| format!("fsync {}", path.display()))?;
            }
            latency.add(now_ns() - start);
            done.bytes += len;
            done.calls += 1;
        }
        if self.calls.fsync {
            fsync(&fd).during(|| format!("fsync {}", path.display()))?;
        }
        done.moved_ns = now_ns();
        drop(fd);
        Ok(Done { end_ns: now_ns(), latency: latency.rows(), ..done })
    }

    fn read(&self, part: &Part, all_bytes: bool) -> Outcome<Done> {
        with_memory(part.longest(), |[memory, pattern]| self.read_into(part, all_bytes, memory, pattern))
    }

    fn read_into(&self, part: &Part, all_bytes: bool, memory: &mut Buf, pattern_bytes: &mut Buf) -> Outcome<Done> {
        pattern(pattern_bytes);
        let path = &part.file;
        let (mut latency, mut done) = (Latency::new(), Done { start_ns: now_ns(), ..Done::default() });
        let fd = self.open(path, OFlags::RDONLY)?;
        done.opened_ns = now_ns();
        for &(offset, len) in &part.pieces {
            let buf = &mut memory[..len as usize];
            let start = now_ns();
            let mut at = 0;
            while at < buf.len() {
                let n = pread(&fd, &mut buf[at..], offset + at as u64)
                    .during(|| format!("read {} at {offset}", path.display()))?;
                if n == 0 {
                    return Err(Failure::broken(format!("{}: ends at {}", path.display(), offset + at as u64)));
                }
                at += n;
            }
            latency.add(now_ns() - start);
            let right = match all_bytes {
                true => {
                    let wanted = &mut pattern_bytes[..len as usize];
                    stamp(wanted, part.key, offset);
                    first_difference(buf, wanted)
                }
                false => {
                    let n = buf.len().min(8);
                    (buf[..n] != stamp_of(part.key, offset)[..n]).then_some(0)
                }
            };
            if let Some(at) = right {
                return Err(Failure::broken(format!("{}: wrong bytes at {}", path.display(), offset + at as u64)));
            }
            done.bytes += len;
            done.calls += 1;
        }
        done.moved_ns = now_ns();
        drop(fd);
        Ok(Done { end_ns: now_ns(), latency: latency.rows(), ..done })
    }

    fn remove(&self) -> Outcome<Done> {
        let mut done = Done { start_ns: now_ns(), ..Done::default() };
        if self.removes {
            match unlink(&self.write.file) {
                Ok(()) => done.calls = 1,
                Err(Errno::NOENT) => {}
                Err(e) => return Err(e).during(|| format!("remove {}", self.write.file.display())),
            }
        }
        let now = now_ns();
        Ok(Done { opened_ns: now, moved_ns: now, end_ns: now, ..done })
    }
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    if a == b { None } else { a.iter().zip(b).position(|(x, y)| x != y) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a wrong byte is found and named. Method: stamped bytes, one changed.
    #[test]
    fn differences() {
        let mut a = vec![0; 10_000];
        pattern(&mut a);
        stamp(&mut a, 1, 4096);
        let mut b = a.clone();
        assert_eq!(first_difference(&a, &b), None);
        b[9000] ^= 1;
        assert_eq!(first_difference(&a, &b), Some(9000));
        stamp(&mut b, 1, 8192);
        assert_eq!(first_difference(&a, &b), Some(1), "the second byte of the first stamp");
    }
}
