//! Content: read, write, truncate, fallocate, copy.

use super::{Body, Effect, Reach, Reference};
use crate::dice::bytes_of;
use crate::op::{Handle, Op, Outcome};
use amphi_client::Fallocate;
use amphi_types::{Cred, Errno, Ino, Kind, Result};

impl Reference {
    pub(super) fn data_op(&mut self, cred: &Cred, op: &Op) -> Result<Outcome> {
        match *op {
            Op::Read { handle, offset, len, .. } => self.read(handle, offset, len),
            Op::Write { handle, offset, stamp, direct } => {
                let open = self.writable(handle)?;
                let bytes = bytes_of(stamp.tag, stamp.len as usize);
                let at = if open.flags.append { self.bytes(open.ino)?.len() as u64 } else { offset };
                // O_SYNC speaks of the bytes of this call, not of those that earlier calls left in the cache.
                let reach = match (open.flags.sync || open.flags.dsync, direct || open.flags.direct) {
                    (true, _) => Reach::Disk,
                    (false, true) => Reach::Server,
                    _ => Reach::Cache,
                };
                self.put(open.ino, at, bytes, reach)?;
                if reach == Reach::Disk {
                    self.effects.push(Effect::Findable(open.ino));
                }
                Ok(Outcome::Count(stamp.len))
            }
            Op::Truncate { ino, size, handle } => {
                match self.node(ino)?.kind {
                    Kind::File => {}
                    Kind::Dir => return Err(Errno::IsDir),
                    _ => return Err(Errno::Inval),
                }
                match handle {
                    Some(handle) => drop(self.writable(handle)?),
                    None => self.may(cred, ino, 2)?,
                }
                self.cut(ino, size)?;
                Ok(Outcome::Attr(self.seen(ino)?))
            }
            Op::Fallocate { handle, mode, offset, len } => self.fallocate(handle, mode, offset, len),
            Op::Copy { from, from_offset, to, to_offset, len } => {
                let source = self.open_file(from)?;
                let sink = self.writable(to)?;
                if !source.flags.read || sink.flags.append {
                    return Err(Errno::BadFd);
                }
                let (a, b) = (from_offset..from_offset + len, to_offset..to_offset + len);
                if source.ino == sink.ino && a.start < b.end && b.start < a.end {
                    return Err(Errno::Inval);
                }
                let content = self.bytes(source.ino)?;
                let start = (from_offset as usize).min(content.len());
                let end = ((from_offset + len) as usize).min(content.len());
                let bytes = content[start..end].to_vec();
                let n = bytes.len() as u64;
                self.put(sink.ino, to_offset, bytes, Reach::Cache)?;
                Ok(Outcome::Count(n))
            }
            _ => Err(Errno::NoSys),
        }
    }

    fn writable(&self, handle: Handle) -> Result<super::Open> {
        let open = self.open_file(handle)?;
        if open.flags.write { Ok(open) } else { Err(Errno::BadFd) }
    }

    fn read(&self, handle: Handle, offset: u64, len: u64) -> Result<Outcome> {
        let open = self.open_file(handle)?;
        if !open.flags.read {
            return Err(Errno::BadFd);
        }
        let bytes = self.bytes(open.ino)?;
        let start = (offset as usize).min(bytes.len());
        let end = ((offset + len) as usize).min(bytes.len());
        Ok(Outcome::Bytes(bytes[start..end].to_vec()))
    }

    fn content_mut(&mut self, ino: Ino) -> Result<&mut Vec<u8>> {
        match &mut self.node_mut(ino)?.body {
            Body::File(bytes) => Ok(bytes),
            _ => Err(Errno::Inval),
        }
    }

    fn put(&mut self, ino: Ino, at: u64, bytes: Vec<u8>, reach: Reach) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let content = self.content_mut(ino)?;
        let end = at as usize + bytes.len();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[at as usize..end].copy_from_slice(&bytes);
        self.stamp(ino, true, true);
        self.effects.push(Effect::Write(ino, at, bytes, reach));
        Ok(())
    }

    pub(super) fn cut(&mut self, ino: Ino, size: u64) -> Result<()> {
        let content = self.content_mut(ino)?;
        let changes = content.len() as u64 != size;
        content.resize(size as usize, 0);
        if changes {
            self.stamp(ino, true, true);
        } else {
            self.may_stamp(ino, true);
        }
        self.effects.push(Effect::Cut(ino, size));
        Ok(())
    }

    fn fallocate(&mut self, handle: Handle, mode: Fallocate, offset: u64, len: u64) -> Result<Outcome> {
        // Linux checks the arguments first, then the access of the open.
        if len == 0 {
            return Err(Errno::Inval);
        }
        let ino = self.writable(handle)?.ino;
        let end = offset + len;
        let size = self.bytes(ino)?.len() as u64;
        let (zeroes, extends) = match mode {
            Fallocate::Allocate => (false, true),
            Fallocate::KeepSize => (false, false),
            Fallocate::PunchHole => (true, false),
            Fallocate::ZeroRange { keep_size } => (true, !keep_size),
        };
        if zeroes && offset < size {
            let stop = end.min(size);
            self.content_mut(ino)?[offset as usize..stop as usize].fill(0);
            self.effects.push(Effect::Zero(ino, offset, stop));
        }
        if extends && end > size {
            self.content_mut(ino)?.resize(end as usize, 0);
            self.effects.push(Effect::Cut(ino, end));
        }
        self.stamp(ino, true, true);
        Ok(Outcome::Done)
    }
}
