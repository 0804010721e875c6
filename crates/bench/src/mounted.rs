//! Operations on an open file of a mount, as an application does them: the same code for AmphiFS and for the do-nothing
//! mount, so that a ratio compares the mounts and nothing else.

use super::turns::ns_per_op;
use amphi_env::Buf;
use amphi_host::failure::{During, Outcome};
use rustix::fs::{Mode, OFlags, fstat, open, stat};
use rustix::io::{pread, pwrite};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The repeated operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read at consecutive offsets.
    Read,
    /// Write at consecutive offsets.
    Write,
}

impl Op {
    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
        }
    }
}

/// An open file, worked on within its first `span` bytes.
pub struct MountedFile {
    path: PathBuf,
    fd: OwnedFd,
    span: u64,
    at: u64,
    buf: Buf,
}

impl MountedFile {
    /// Opens `path`, making it if it is not there; calls move `size` bytes each.
    pub fn open(path: &Path, size: usize, span: u64, extra: OFlags) -> Outcome<MountedFile> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | extra;
        let fd = open(path, flags, Mode::from_raw_mode(0o644)).during(|| format!("open {}", path.display()))?;
        Ok(MountedFile { path: path.to_path_buf(), fd, span, at: 0, buf: super::raw::pattern(size) })
    }

    /// Writes the span once.
    pub fn fill(&mut self) -> Outcome {
        for _ in 0..self.span / self.buf.len() as u64 {
            self.once(Op::Write)?;
        }
        Ok(())
    }

    fn once(&mut self, op: Op) -> Outcome {
        let n = match op {
            Op::Read => pread(&self.fd, &mut self.buf[..], self.at),
            Op::Write => pwrite(&self.fd, &self.buf, self.at),
        };
        let n = n.during(|| format!("{} {} at {}", op.name(), self.path.display(), self.at))?;
        if n != self.buf.len() {
            return Err(amphi_host::failure::Failure::broken(format!(
                "{}: {} of {} bytes",
                self.path.display(),
                n,
                self.buf.len()
            )));
        }
        self.at += n as u64;
        if self.at + n as u64 > self.span {
            self.at = 0;
        }
        Ok(())
    }

    /// Microseconds per call, over about `long`.
    pub fn us(&mut self, op: Op, long: Duration) -> Outcome<f64> {
        Ok(ns_per_op(long, 8, || self.once(op))? / 1000.0)
    }

    /// Median microseconds of single calls with a pause before each.
    pub fn paced_us(&mut self, op: Op, gap: Duration, calls: usize) -> Outcome<f64> {
        paced_us(gap, calls, || self.once(op))
    }

    /// Microseconds per `fstat`.
    pub fn fstat_us(&self, long: Duration) -> Outcome<f64> {
        let path = &self.path;
        Ok(ns_per_op(long, 8, || fstat(&self.fd).during(|| format!("stat {}", path.display())).map(drop))? / 1000.0)
    }
}

/// Microseconds per `stat` of a path.
pub fn stat_us(path: &Path, long: Duration) -> Outcome<f64> {
    Ok(ns_per_op(long, 8, || stat(path).during(|| format!("stat {}", path.display())).map(drop))? / 1000.0)
}

/// Median microseconds of single calls of `op` with a pause before each, so that pollers may have gone to sleep.
pub fn paced_us(gap: Duration, calls: usize, mut op: impl FnMut() -> Outcome) -> Outcome<f64> {
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        super::clock::pause(gap);
        let start = super::clock::now();
        op()?;
        times.push(start.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    Ok(times[times.len() / 2] as f64 / 1000.0)
}
