//! The storage folder without AmphiFS: files opened with O_DIRECT.
//!
//! Owns: the disk terms of the models. Two kinds of writes differ on most local file systems: into holes, as a zone
//! that is a sparse file writes what it has never written, and over existing blocks, as a log writes.

use super::clock::now;
use super::stream::stamped;
use super::turns::ns_per_op;
use amphi_env::Buf;
use amphi_host::failure::{During, Outcome};
use rustix::fs::{Mode, OFlags, fdatasync, ftruncate, open};
use rustix::io::{pread, pwrite};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A file in the storage folder, removed when dropped.
pub struct RawFile {
    path: PathBuf,
    fd: OwnedFd,
    bytes: u64,
    at: u64,
}

const MIB: f64 = (1 << 20) as f64;

impl RawFile {
    /// A sparse file of `bytes`, a multiple of 4096.
    pub fn sparse(folder: &Path, name: &str, bytes: u64) -> Outcome<RawFile> {
        std::fs::create_dir_all(folder).during(|| format!("make {}", folder.display()))?;
        let path = folder.join(name);
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
        let fd = open(&path, flags, Mode::from_raw_mode(0o600))
            .during(|| format!("open {} with O_DIRECT", path.display()))?;
        let file = RawFile { path, fd, bytes, at: 0 };
        ftruncate(&file.fd, bytes).during(|| format!("extend {}", file.path.display()))?;
        Ok(file)
    }

    /// A file of `bytes` that has all its blocks.
    pub fn filled(folder: &Path, name: &str, bytes: u64) -> Outcome<RawFile> {
        let file = RawFile::sparse(folder, name, bytes)?;
        file.write(1 << 20)?;
        Ok(file)
    }

    /// Writes the whole file, `transfer` bytes at a time, and syncs it once. MiB/s.
    pub fn write(&self, transfer: usize) -> Outcome<f64> {
        let buf = pattern(transfer);
        let start = now();
        for at in (0..self.bytes).step_by(transfer) {
            pwrite(&self.fd, &buf, at).during(|| format!("write {}", self.path.display()))?;
        }
        fdatasync(&self.fd).during(|| format!("sync {}", self.path.display()))?;
        Ok(self.bytes as f64 / MIB / start.elapsed().as_secs_f64())
    }

    /// Reads the whole file, `transfer` bytes at a time. MiB/s.
    pub fn read(&self, transfer: usize) -> Outcome<f64> {
        let mut buf = Buf::zeroed(transfer);
        let start = now();
        for at in (0..self.bytes).step_by(transfer) {
            pread(&self.fd, &mut buf[..], at).during(|| format!("read {}", self.path.display()))?;
        }
        Ok(self.bytes as f64 / MIB / start.elapsed().as_secs_f64())
    }

    /// As `write`, from memory of its own for each transfer: what a program has that wrote its data before. The clock
    /// runs when all of it is there.
    pub fn write_apart(&self, transfer: usize) -> Outcome<f64> {
        let bufs: Vec<Buf> = (0..self.bytes).step_by(transfer).map(|at| stamped(at, transfer)).collect();
        let start = now();
        for (at, buf) in (0..self.bytes).step_by(transfer).zip(&bufs) {
            pwrite(&self.fd, buf, at).during(|| format!("write {}", self.path.display()))?;
        }
        fdatasync(&self.fd).during(|| format!("sync {}", self.path.display()))?;
        Ok(self.bytes as f64 / MIB / start.elapsed().as_secs_f64())
    }

    /// As `read`, into memory of its own for each transfer, as a cache does.
    pub fn read_apart(&self, transfer: usize) -> Outcome<f64> {
        let mut bufs: Vec<Buf> = (0..self.bytes).step_by(transfer).map(|at| stamped(at, transfer)).collect();
        let start = now();
        for (at, buf) in (0..self.bytes).step_by(transfer).zip(&mut bufs) {
            pread(&self.fd, &mut buf[..], at).during(|| format!("read {}", self.path.display()))?;
        }
        Ok(self.bytes as f64 / MIB / start.elapsed().as_secs_f64())
    }

    /// Microseconds of one 4 KiB write over existing blocks, one after the other through the file as a log writes.
    pub fn log_write_us(&mut self, long: Duration) -> Outcome<f64> {
        let buf = pattern(4096);
        let (fd, path, bytes, at) = (&self.fd, &self.path, self.bytes, &mut self.at);
        let ns = ns_per_op(long, 16, || {
            *at = (*at + 4096) % bytes;
            pwrite(fd, &buf, *at).during(|| format!("write {}", path.display())).map(drop)
        })?;
        Ok(ns / 1000.0)
    }

    /// Microseconds of one sync after one 4 KiB write.
    pub fn sync_us(&mut self, long: Duration) -> Outcome<f64> {
        let buf = pattern(4096);
        let (fd, path, bytes, at) = (&self.fd, &self.path, self.bytes, &mut self.at);
        let ns = ns_per_op(long, 4, || {
            *at = (*at + 4096) % bytes;
            pwrite(fd, &buf, *at).during(|| format!("write {}", path.display()))?;
            fdatasync(fd).during(|| format!("sync {}", path.display()))
        })?;
        Ok(ns / 1000.0)
    }
}

/// Bytes that no storage can leave out or pack.
pub fn pattern(len: usize) -> Buf {
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

impl Drop for RawFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
