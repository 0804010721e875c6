//! A disk of production: a file or block device opened with O_DIRECT.
//!
//! Owns: opening, locking, and the four operations on the ring. Does not own: when to sync.
//!
//! Invariants: the file is locked by `flock` as long as it is open, so two servers never share one. An operation that
//! fails part way is never reported as done.

use super::lent::{Held, Leases, Lent};
use crate::{Buf, Disk, DiskMode, IoBuf};
use amphi_types::limits::BLOCK;
use compio::buf::{BufResult, IntoInner};
use compio::driver::SharedFd;
use compio::driver::op::{AsyncifyFd, ReadAt, Sync, WriteAt};
use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Storage of a zone.
pub struct RealDisk {
    fd: SharedFd<OwnedFd>,
    size: u64,
    device: u64,
    is_device: bool,
    leases: Arc<Leases>,
    write_delay: Rc<Cell<Duration>>,
}

/// Most ranges that `backed` returns: a file with more pieces has had its storage for a long time.
const BACKED_MAX: usize = 1 << 20;

impl RealDisk {
    pub(super) fn open(
        path: &str,
        mode: DiskMode,
        leases: &Arc<Leases>,
        write_delay: &Rc<Cell<Duration>>,
    ) -> io::Result<RealDisk> {
        let flags = OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOCTTY;
        let (flags, lock) = match mode {
            DiskMode::Open => (flags | OFlags::RDWR, FlockOperation::NonBlockingLockExclusive),
            DiskMode::Create(_) => {
                (flags | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, FlockOperation::NonBlockingLockExclusive)
            }
            DiskMode::ReadOnly => (flags | OFlags::RDONLY, FlockOperation::NonBlockingLockShared),
        };
        let fd = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)).map_err(|e| match e {
            Errno::INVAL => io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{path}: this file system does not support direct I/O"),
            ),
            e => context(path, e),
        })?;
        rustix::fs::flock(&fd, lock).map_err(|e| match e {
            Errno::WOULDBLOCK => {
                io::Error::new(io::ErrorKind::WouldBlock, format!("{path}: in use by another process"))
            }
            e => context(path, e),
        })?;
        if let DiskMode::Create(size) = mode {
            assert!(size.is_multiple_of(BLOCK), "disk size {size} is not a multiple of {BLOCK}");
            let made =
                rustix::fs::ftruncate(&fd, size).and_then(|()| rustix::fs::fsync(&fd)).and_then(|()| sync_parent(path));
            if let Err(e) = made {
                // The error of the creation matters more than one of the clean-up.
                let _ = rustix::fs::unlink(path);
                return Err(context(path, e));
            }
        }
        // Seeking works for block devices too, where stat reports zero.
        let size = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0)).map_err(|e| context(path, e))?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| context(path, e))?;
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        let device = if is_device { stat.st_rdev } else { stat.st_dev };
        Ok(RealDisk {
            fd: SharedFd::new(fd),
            size: size - size % BLOCK,
            device,
            is_device,
            leases: leases.clone(),
            write_delay: write_delay.clone(),
        })
    }
}

impl RealDisk {
    fn held(&self) -> Held {
        Held::new(&self.fd, &self.leases)
    }
}

/// The name of a new file must survive a power cut as surely as its bytes.
fn sync_parent(path: &str) -> rustix::io::Result<()> {
    let parent = match path.rsplit_once('/') {
        Some(("", _)) => "/",
        Some((parent, _)) => parent,
        None => ".",
    };
    let dir = rustix::fs::open(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::fs::fsync(dir)
}

pub(super) fn context(path: &str, e: Errno) -> io::Error {
    let e = io::Error::from(e);
    io::Error::new(e.kind(), format!("{path}: {e}"))
}

impl Disk for RealDisk {
    fn size(&self) -> u64 {
        self.size
    }

    fn device(&self) -> u64 {
        self.device
    }

    async fn read(&self, at: u64, mut buf: Buf) -> IoBuf<()> {
        if let Err(e) = crate::api::check_read(self.size, at, &buf) {
            return (Err(e), buf);
        }
        let mut done = 0;
        while done < buf.len() {
            let op = ReadAt::new(self.held(), at + done as u64, Lent::new(buf, done, &self.leases));
            let BufResult(res, op) = compio::runtime::submit(op).await;
            buf = op.into_inner().into_buf();
            match res {
                Ok(0) => return (Err(io::ErrorKind::UnexpectedEof.into()), buf),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return (Err(e), buf),
            }
        }
        (Ok(()), buf)
    }

    async fn write(&self, at: u64, mut buf: Buf) -> IoBuf<()> {
        if let Err(e) = crate::api::check_write(self.size, at, &buf) {
            return (Err(e), buf);
        }
        if !self.write_delay.get().is_zero() {
            compio::time::sleep(self.write_delay.get()).await;
        }
        let mut done = 0;
        while done < buf.len() {
            let op = WriteAt::new(self.held(), at + done as u64, Lent::new(buf, done, &self.leases));
            let BufResult(res, op) = compio::runtime::submit(op).await;
            buf = op.into_inner().into_buf();
            match res {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buf),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return (Err(e), buf),
            }
        }
        (Ok(()), buf)
    }

    async fn sync(&self) -> io::Result<()> {
        compio::runtime::submit(Sync::new(self.held(), true)).await.0.map(|_| ())
    }

    async fn reserve(&self, at: u64, len: u64) -> io::Result<()> {
        crate::api::check_discard(self.size, at, len)?;
        if len == 0 || self.is_device {
            return Ok(());
        }
        let lease = self.leases.take();
        let op = AsyncifyFd::new(self.fd.clone(), move |fd: &OwnedFd| {
            match rustix::fs::fallocate(fd, FallocateFlags::KEEP_SIZE, at, len) {
                Ok(()) => BufResult(Ok(0), lease),
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => BufResult(Err(io::ErrorKind::Unsupported.into()), lease),
                Err(e) => BufResult(Err(e.into()), lease),
            }
        });
        compio::runtime::submit(op).await.0.map(|_| ())
    }

    fn backed(&self) -> io::Result<Vec<(u64, u64)>> {
        if self.is_device {
            return Ok(vec![(0, self.size)]);
        }
        let (mut found, mut at) = (Vec::new(), 0);
        while at < self.size && found.len() < BACKED_MAX {
            let start = match rustix::fs::seek(&*self.fd, rustix::fs::SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(Errno::NXIO) => break,
                Err(e) => return Err(e.into()),
            };
            at = rustix::fs::seek(&*self.fd, rustix::fs::SeekFrom::Hole(start))?;
            found.push((start, at));
        }
        Ok(found)
    }

    async fn discard(&self, at: u64, len: u64) -> io::Result<()> {
        crate::api::check_discard(self.size, at, len)?;
        if len == 0 {
            return Ok(());
        }
        // The lease travels with the operation and comes back as its data.
        let lease = self.leases.take();
        let op = AsyncifyFd::new(self.fd.clone(), move |fd: &OwnedFd| {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match rustix::fs::fallocate(fd, flags, at, len) {
                // Giving back is best effort: a store that cannot, keeps.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => BufResult(Ok(0), lease),
                Err(e) => BufResult(Err(e.into()), lease),
            }
        });
        compio::runtime::submit(op).await.0.map(|_| ())
    }
}
