//! `NullFs`: a file system that does nothing, with which the cost of the mount itself is measured.
//!
//! It has one directory with one huge file, `data`. Reads give zeros, and writes are discarded. Other names can be made
//! and removed. Such a file is remembered only by its name (at most `NAMES_MAX`), so that stat and unlink work as
//! programs expect.

use crate::calls::{AttrReply, Entry, Handle, OpenFlags, OpenHow, OpenReply, ReadHow, Statfs, WriteHow};
use crate::data::{Payload, ReadSink};
use crate::directory::DirSink;
use crate::file_system::FileSystem;
use crate::request::Caller;
use amphi_types::{Attr, Errno, Ino, Kind, Result, SetAttr, Timespec};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// Name of the huge file.
pub const DATA_NAME: &[u8] = b"data";
/// Size of that file in bytes, until something is written behind it.
pub const DATA_BYTES: u64 = 1 << 42;
/// Most names besides `data`.
pub const NAMES_MAX: usize = 1 << 20;
const DATA_INO: Ino = Ino(2);

struct Names {
    by_name: BTreeMap<Vec<u8>, (Ino, Kind)>,
    dirs: u64,
    next: u64,
}

/// The do-nothing file system.
pub struct NullFs {
    names: Mutex<Names>,
}

impl NullFs {
    /// A file system that contains only `data`.
    pub fn new() -> NullFs {
        NullFs { names: Mutex::new(Names { by_name: BTreeMap::new(), dirs: 0, next: 3 }) }
    }

    fn attr(ino: Ino, kind: Kind) -> Attr {
        let zero = Timespec::default();
        Attr {
            ino,
            kind,
            perm: if kind == Kind::Dir { 0o777 } else { 0o666 },
            nlink: if kind == Kind::Dir { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            size: if ino == DATA_INO { DATA_BYTES } else { 0 },
            blocks: 0,
            atime: zero,
            mtime: zero,
            ctime: zero,
            btime: zero,
        }
    }

    fn entry(ino: Ino, kind: Kind) -> Entry {
        let attr = Self::attr(ino, kind);
        Entry { attr, node: ino, generation: 0, entry_ttl: Duration::ZERO, attr_ttl: Duration::ZERO }
    }

    fn add(&self, name: &[u8], kind: Kind) -> Result<Entry> {
        let mut names = self.names.lock();
        if name == DATA_NAME || names.by_name.contains_key(name) {
            return Err(Errno::Exist);
        }
        if names.by_name.len() >= NAMES_MAX {
            return Err(Errno::NoSpace);
        }
        // Odd numbers are directories, so the number alone tells the kind and nothing else has to be remembered.
        names.next += 2;
        let ino = Ino(names.next + u64::from(kind != Kind::Dir));
        names.dirs += u64::from(kind == Kind::Dir);
        names.by_name.insert(name.to_vec(), (ino, kind));
        Ok(Self::entry(ino, kind))
    }

    fn remove(&self, name: &[u8], dir: bool) -> Result<()> {
        let mut names = self.names.lock();
        match names.by_name.get(name) {
            None => return Err(if name == DATA_NAME { Errno::Perm } else { Errno::NoEnt }),
            Some((_, Kind::Dir)) if !dir => return Err(Errno::IsDir),
            Some((_, kind)) if dir && *kind != Kind::Dir => return Err(Errno::NotDir),
            Some(_) => {}
        }
        names.by_name.remove(name);
        names.dirs -= u64::from(dir);
        Ok(())
    }

    fn kind(ino: Ino) -> Kind {
        if ino.0 % 2 == 1 { Kind::Dir } else { Kind::File }
    }

    fn open_reply(how: OpenHow) -> OpenReply {
        let flags = if how.has(libc::O_DIRECT) { OpenFlags::CACHED } else { OpenFlags::DIRECT_IO };
        OpenReply { handle: Handle(0), flags: flags | OpenFlags::NO_FLUSH }
    }
}

impl Default for NullFs {
    fn default() -> NullFs {
        NullFs::new()
    }
}

impl FileSystem for NullFs {
    fn lookup(&self, _: &Caller<'_>, _parent: Ino, name: &[u8]) -> Result<Entry> {
        if name == DATA_NAME {
            return Ok(Self::entry(DATA_INO, Kind::File));
        }
        let names = self.names.lock();
        names.by_name.get(name).map(|&(ino, kind)| Self::entry(ino, kind)).ok_or(Errno::NoEnt)
    }

    fn getattr(&self, _: &Caller<'_>, ino: Ino, _: Option<Handle>) -> Result<AttrReply> {
        Ok(AttrReply { attr: Self::attr(ino, Self::kind(ino)), ttl: Duration::ZERO })
    }

    fn setattr(&self, caller: &Caller<'_>, ino: Ino, _: &SetAttr, handle: Option<Handle>) -> Result<AttrReply> {
        self.getattr(caller, ino, handle)
    }

    fn mkdir(&self, _: &Caller<'_>, _parent: Ino, name: &[u8], _mode: u32) -> Result<Entry> {
        self.add(name, Kind::Dir)
    }

    fn unlink(&self, _: &Caller<'_>, _parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(name, false)
    }

    fn rmdir(&self, _: &Caller<'_>, _parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(name, true)
    }

    fn open(&self, _: &Caller<'_>, _: Ino, how: OpenHow) -> Result<OpenReply> {
        Ok(Self::open_reply(how))
    }

    fn create(&self, _: &Caller<'_>, _: Ino, name: &[u8], _mode: u32, how: OpenHow) -> Result<(Entry, OpenReply)> {
        Ok((self.add(name, Kind::File)?, Self::open_reply(how)))
    }

    fn read(&self, _: &Caller<'_>, ino: Ino, how: &ReadHow, sink: &mut ReadSink<'_>) -> Result<()> {
        if ino == DATA_INO {
            // The memory contains an earlier request. Clearing it is the least that any file system has to do.
            let len = how.size.min(sink.size());
            sink.space()[..len].fill(0);
            sink.set_filled(len);
        }
        Ok(())
    }

    fn write(&self, _: &Caller<'_>, _: Ino, _: &WriteHow, data: Payload<'_>) -> Result<usize> {
        Ok(data.len())
    }

    fn statfs(&self, _: &Caller<'_>, _: Ino) -> Result<Statfs> {
        Ok(Statfs { block_bytes: 4096, ..Statfs::default() })
    }

    fn fsync(&self, _: &Caller<'_>, _: Ino, _: Handle, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn readdir(&self, _: &Caller<'_>, ino: Ino, _: Handle, offset: u64, sink: &mut DirSink<'_>) -> Result<()> {
        let fixed = [(ino, Kind::Dir, &b"."[..]), (Ino::ROOT, Kind::Dir, b".."), (DATA_INO, Kind::File, DATA_NAME)];
        let names = self.names.lock();
        let made = names.by_name.iter().map(|(name, &(ino, kind))| (ino, kind, &name[..]));
        let all = fixed.into_iter().chain(made.filter(|_| ino == Ino::ROOT)).zip(1u64..);
        for ((ino, kind, name), next) in all.skip(offset as usize) {
            if !sink.add(ino, kind, name, next) {
                break;
            }
        }
        Ok(())
    }
}
