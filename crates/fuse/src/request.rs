//! Requests: parses the kernel's bytes into typed operations.
//!
//! Owns: parsing, and `Caller`. Does not own: reading the bytes, and executing the requests.
//!
//! Invariant: any bytes give a value or `Malformed`, never a panic. A parsed name has no NUL and no `/`.

use crate::calls::{CopyHow, Handle, IoctlCall, LockHow, LockKind, OpenHow, ReadHow, WriteHow};
use crate::groups::{GroupCache, Rights};
use crate::interrupt::Interrupt;
use crate::kernel::flags::{bits, setattr};
use crate::kernel::opcode::Opcode;
use crate::kernel::structs as k;
use crate::later::Later;
use crate::node::{Top, inode_of, is_other};
use amphi_types::{Cred, Ino, SetAttr, TimeSet, Timespec};
use std::mem::size_of;
use zerocopy::FromBytes;

/// The caller of a request, and whether it still wants the answer.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Thread id. 0 for page write-back, and for callers outside this mount's process name space.
    pub tid: u32,
    /// The node id by which the kernel names the inode: the inode's own, or another one (`front::moved`).
    pub node: Ino,
    /// The supplementary group that decides the group of a new inode, if the kernel sends it.
    pub create_group: Option<u32>,
    /// Permission bits that a new inode does not get (`Ctx::umask`).
    pub umask: u16,
    /// Fires when the caller gets a signal.
    pub interrupt: &'a Interrupt,
    pub(crate) before_blocking: Option<&'a dyn BeforeBlocking>,
    pub(crate) deferral: Option<&'a dyn Deferral>,
}

/// Gives a handler's thread back before its request is answered.
pub(crate) trait Deferral {
    /// Takes the answer over, to be given later. This may be called only once.
    fn take(&self) -> Later;
}

/// Informed when a handler is about to wait.
pub(crate) trait BeforeBlocking {
    /// Ensures that another thread reads the device now.
    fn before_blocking(&self);

    /// Returns whether no other request seems to need a thread at the moment.
    fn is_alone(&self) -> bool;
}

impl<'a> Caller<'a> {
    /// Root on no thread, for calls that do not come from a mount.
    pub fn root(interrupt: &'a Interrupt) -> Caller<'a> {
        Caller {
            uid: 0,
            gid: 0,
            tid: 0,
            node: Ino(0),
            create_group: None,
            umask: 0,
            interrupt,
            before_blocking: None,
            deferral: None,
        }
    }

    /// Returns whether the kernel names the inode by another id than its own. Attributes and entries under such an id
    /// get no timeout.
    pub fn by_other_id(&self) -> bool {
        is_other(self.node.0)
    }

    /// It has to be called before the handler waits for anything that may take longer than waking a thread (50 us).
    /// Another thread then reads the device. If a handler does not call it, other callers are delayed by a few
    /// milliseconds; an unnecessary call costs a few microseconds.
    pub fn will_block(&self) {
        if let Some(hook) = self.before_blocking {
            hook.before_blocking();
        }
    }

    /// Takes over the answer to the request, which is then given through the returned value. The handler's result is
    /// ignored. `None` means that the handler has to answer itself.
    pub(crate) fn defer(&self) -> Option<Later> {
        self.deferral.map(Deferral::take)
    }

    /// Returns whether the handler may poll for a short while before it reports that it will block, because no other
    /// request seems to want a thread.
    pub fn is_alone(&self) -> bool {
        self.before_blocking.is_some_and(BeforeBlocking::is_alone)
    }

    /// Credentials with supplementary groups and capabilities.
    pub fn cred(&self, cache: &GroupCache) -> Cred {
        self.with(cache.rights(self.tid, self.uid, self.gid))
    }

    /// Works as `cred`, but with rights that are read again, for a caller that was refused.
    pub fn fresh_cred(&self, cache: &GroupCache) -> Cred {
        self.with(cache.again(self.tid, self.uid, self.gid))
    }

    fn with(&self, Rights { mut groups, caps }: Rights) -> Cred {
        if let Some(g) = self.create_group.filter(|g| !groups.contains(g)) {
            groups.push(g);
        }
        Cred { uid: self.uid, gid: self.gid, groups, caps }
    }
}

impl std::fmt::Debug for Caller<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Caller(uid {}, gid {}, thread {})", self.uid, self.gid, self.tid)
    }
}

/// Bytes that are not a request of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Id of the request; 0 if not even that could be read.
    pub unique: u64,
}

/// A parsed request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Id of the request.
    pub unique: u64,
    /// Inode asked about.
    pub ino: Ino,
    /// Effective user of the caller.
    pub uid: u32,
    /// Effective group of the caller.
    pub gid: u32,
    /// Thread id of the caller.
    pub tid: u32,
    /// The supplementary group that decides the group of a new inode.
    pub create_group: Option<u32>,
    /// Permission bits that a new inode does not get, unless its directory has a default access control list.
    pub umask: u16,
    /// The operation.
    pub op: Operation<'a>,
}

/// The operation that a request asks for. The inode is in `Request`.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the methods of FileSystem with the same names say what the members mean")]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        count: u64,
    },
    BatchForget {
        elements: &'a [u8],
    },
    Getattr {
        handle: Option<Handle>,
    },
    Statx {
        handle: Option<Handle>,
    },
    Setattr {
        set: SetAttr,
        handle: Option<Handle>,
    },
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        name: &'a [u8],
        mode: u32,
        rdev: u32,
    },
    Mkdir {
        name: &'a [u8],
        mode: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: Ino,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        from: Ino,
        new_name: &'a [u8],
    },
    Open {
        how: OpenHow,
    },
    Create {
        name: &'a [u8],
        mode: u32,
        how: OpenHow,
    },
    Tmpfile {
        mode: u32,
        how: OpenHow,
    },
    Read {
        how: ReadHow,
    },
    Write {
        how: WriteHow,
        len: usize,
    },
    Statfs,
    Release {
        handle: Handle,
    },
    Releasedir {
        handle: Handle,
    },
    Fsync {
        handle: Handle,
        data_only: bool,
    },
    Fsyncdir {
        handle: Handle,
        data_only: bool,
    },
    Setxattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
    },
    Getxattr {
        name: &'a [u8],
        room: usize,
    },
    Listxattr {
        room: usize,
    },
    Removexattr {
        name: &'a [u8],
    },
    Flush {
        handle: Handle,
        lock_owner: u64,
    },
    Init {
        init: k::InitIn,
    },
    Opendir {
        how: OpenHow,
    },
    Readdir {
        handle: Handle,
        offset: u64,
        room: usize,
        plus: bool,
    },
    Access {
        mask: u32,
    },
    Interrupt {
        target: u64,
    },
    Destroy,
    Ioctl {
        call: IoctlCall<'a>,
    },
    Poll {
        handle: Handle,
        events: u32,
    },
    Fallocate {
        handle: Handle,
        offset: u64,
        len: u64,
        mode: u32,
    },
    Lseek {
        handle: Handle,
        offset: u64,
        whence: u32,
    },
    CopyFileRange {
        how: CopyHow,
        wide: bool,
    },
    Syncfs,
    Getlk {
        how: LockHow,
    },
    Setlk {
        how: LockHow,
        wait: bool,
    },
    /// The operation, known or unknown, is not served.
    Unsupported {
        opcode: u32,
    },
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn get<T: FromBytes>(&mut self) -> Option<T> {
        let (value, rest) = T::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value)
    }

    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    /// Bytes up to a NUL, which is consumed.
    fn text(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|&b| b == 0)?;
        let (text, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Some(text)
    }

    /// The name of a directory entry.
    fn name(&mut self) -> Option<&'a [u8]> {
        self.text().filter(|n| !n.is_empty() && !n.contains(&b'/'))
    }
}

impl<'a> Request<'a> {
    /// The same request, with the root directory of the mount in place of the kernel's first id.
    pub(crate) fn below(mut self, top: Top) -> Request<'a> {
        if top == Top::default() {
            return self;
        }
        self.ino = top.named(self.ino);
        match &mut self.op {
            Operation::Rename { new_parent, .. } => *new_parent = top.named(*new_parent),
            Operation::Link { from, .. } => *from = top.named(*from),
            _ => {}
        }
        self
    }
}

/// Parses the bytes of one request. Bytes behind the header's length are ignored.
pub fn parse(bytes: &[u8]) -> Result<Request<'_>, Malformed> {
    let (header, rest) = k::InHeader::read_from_prefix(bytes).map_err(|_| Malformed { unique: 0 })?;
    let malformed = Malformed { unique: header.unique };
    let body_len = (header.len as usize).checked_sub(size_of::<k::InHeader>()).ok_or(malformed)?;
    let body = rest.get(..body_len).ok_or(malformed)?;
    let args_len = body_len.checked_sub(usize::from(header.total_extlen) * 8).ok_or(malformed)?;
    let (args, extensions) = body.split_at(args_len);
    let op = operation(&header, args).ok_or(malformed)?;
    Ok(Request {
        unique: header.unique,
        ino: inode_of(header.nodeid),
        uid: header.uid,
        gid: header.gid,
        tid: header.pid,
        create_group: create_group(extensions),
        umask: umask(&header, args),
        op,
    })
}

/// The umask of a request that makes an inode; 0 for other requests.
fn umask(header: &k::InHeader, args: &[u8]) -> u16 {
    let mut c = Cursor(args);
    let umask = match Opcode::from_raw(header.opcode) {
        Some(Opcode::Mknod) => c.get::<k::MknodIn>().map(|m| m.umask),
        Some(Opcode::Mkdir) => c.get::<k::MkdirIn>().map(|m| m.umask),
        Some(Opcode::Create | Opcode::Tmpfile) => c.get::<k::CreateIn>().map(|m| m.umask),
        _ => None,
    };
    (umask.unwrap_or(0) & 0o777) as u16
}

/// The first group of the group extension, if there is one.
fn create_group(mut extensions: &[u8]) -> Option<u32> {
    while let Ok((head, rest)) = k::ExtHeader::read_from_prefix(extensions) {
        if head.kind == bits::EXT_GROUPS {
            let (count, groups) = u32::read_from_prefix(rest).ok()?;
            return if count == 0 { None } else { Some(u32::read_from_prefix(groups).ok()?.0) };
        }
        // A size below that of the extension's head would make this loop endless.
        extensions = extensions.get((head.size as usize).max(size_of::<k::ExtHeader>()).next_multiple_of(8)..)?;
    }
    None
}

fn operation<'a>(header: &k::InHeader, args: &'a [u8]) -> Option<Operation<'a>> {
    use Operation as Op;
    let mut c = Cursor(args);
    let Some(opcode) = Opcode::from_raw(header.opcode) else {
        return Some(Op::Unsupported { opcode: header.opcode });
    };
    Some(match opcode {
        Opcode::Lookup => Op::Lookup { name: c.name()? },
        Opcode::Forget => Op::Forget { count: c.get::<k::ForgetIn>()?.nlookup },
        Opcode::BatchForget => {
            let count = c.get::<k::BatchForgetIn>()?.count as usize;
            Op::BatchForget { elements: c.bytes(count.checked_mul(size_of::<k::ForgetOne>())?)? }
        }
        Opcode::Getattr => {
            let g = c.get::<k::GetattrIn>()?;
            Op::Getattr { handle: (g.getattr_flags & bits::GETATTR_FH != 0).then_some(Handle(g.fh)) }
        }
        Opcode::Statx => {
            let g = c.get::<k::StatxIn>()?;
            Op::Statx { handle: (g.getattr_flags & bits::GETATTR_FH != 0).then_some(Handle(g.fh)) }
        }
        Opcode::Setattr => set_attr(&c.get::<k::SetattrIn>()?),
        Opcode::Readlink => Op::Readlink,
        Opcode::Symlink => Op::Symlink { name: c.name()?, target: c.text()? },
        Opcode::Mknod => {
            let m = c.get::<k::MknodIn>()?;
            Op::Mknod { name: c.name()?, mode: m.mode, rdev: m.rdev }
        }
        Opcode::Mkdir => {
            let m = c.get::<k::MkdirIn>()?;
            Op::Mkdir { name: c.name()?, mode: m.mode }
        }
        Opcode::Unlink => Op::Unlink { name: c.name()? },
        Opcode::Rmdir => Op::Rmdir { name: c.name()? },
        Opcode::Rename => {
            let r = c.get::<k::RenameIn>()?;
            Op::Rename { name: c.name()?, new_parent: Ino(r.newdir), new_name: c.name()?, flags: 0 }
        }
        Opcode::Rename2 => {
            let r = c.get::<k::Rename2In>()?;
            Op::Rename { name: c.name()?, new_parent: Ino(r.newdir), new_name: c.name()?, flags: r.flags }
        }
        Opcode::Link => {
            let l = c.get::<k::LinkIn>()?;
            Op::Link { from: inode_of(l.oldnodeid), new_name: c.name()? }
        }
        Opcode::Open => Op::Open { how: open_how(&mut c)? },
        Opcode::Opendir => Op::Opendir { how: open_how(&mut c)? },
        Opcode::Create => {
            let (mode, how) = create_how(&mut c)?;
            Op::Create { name: c.name()?, mode, how }
        }
        Opcode::Tmpfile => {
            let (mode, how) = create_how(&mut c)?;
            Op::Tmpfile { mode, how }
        }
        Opcode::Read => {
            let r = c.get::<k::ReadIn>()?;
            let how = ReadHow {
                handle: Handle(r.fh),
                offset: r.offset,
                size: r.size as usize,
                flags: r.flags,
                into_page_cache: r.read_flags & bits::READ_LOCKOWNER == 0,
            };
            Op::Read { how }
        }
        Opcode::Readdir | Opcode::Readdirplus => {
            let r = c.get::<k::ReadIn>()?;
            let plus = opcode == Opcode::Readdirplus;
            Op::Readdir { handle: Handle(r.fh), offset: r.offset, room: r.size as usize, plus }
        }
        Opcode::Write => {
            let w = c.get::<k::WriteIn>()?;
            let len = c.bytes(w.size as usize)?.len();
            let how = WriteHow {
                handle: Handle(w.fh),
                offset: w.offset,
                flags: w.flags,
                from_page_cache: w.write_flags & bits::WRITE_CACHE != 0,
                kill_suidgid: w.write_flags & bits::WRITE_KILL_SUIDGID != 0,
            };
            Op::Write { how, len }
        }
        Opcode::Statfs => Op::Statfs,
        Opcode::Release => Op::Release { handle: Handle(c.get::<k::ReleaseIn>()?.fh) },
        Opcode::Releasedir => Op::Releasedir { handle: Handle(c.get::<k::ReleaseIn>()?.fh) },
        Opcode::Fsync | Opcode::Fsyncdir => {
            let f = c.get::<k::FsyncIn>()?;
            let (handle, data_only) = (Handle(f.fh), f.fsync_flags & bits::FSYNC_DATA != 0);
            if opcode == Opcode::Fsync { Op::Fsync { handle, data_only } } else { Op::Fsyncdir { handle, data_only } }
        }
        Opcode::Setxattr => {
            let s = c.get::<k::SetxattrIn>()?;
            Op::Setxattr { name: c.text()?, value: c.bytes(s.size as usize)?, flags: s.flags }
        }
        Opcode::Getxattr => {
            let g = c.get::<k::GetxattrIn>()?;
            Op::Getxattr { name: c.text()?, room: g.size as usize }
        }
        Opcode::Listxattr => Op::Listxattr { room: c.get::<k::GetxattrIn>()?.size as usize },
        Opcode::Removexattr => Op::Removexattr { name: c.text()? },
        Opcode::Flush => {
            let f = c.get::<k::FlushIn>()?;
            Op::Flush { handle: Handle(f.fh), lock_owner: f.lock_owner }
        }
        Opcode::Init => Op::Init { init: c.get::<k::InitIn>()? },
        Opcode::Access => Op::Access { mask: c.get::<k::AccessIn>()?.mask },
        Opcode::Interrupt => Op::Interrupt { target: c.get::<k::InterruptIn>()?.unique },
        Opcode::Destroy => Op::Destroy,
        Opcode::Ioctl => {
            let i = c.get::<k::IoctlIn>()?;
            let call = IoctlCall {
                handle: Handle(i.fh),
                cmd: i.cmd,
                arg: i.arg,
                input: c.bytes(i.in_size as usize)?,
                output_max: i.out_size as usize,
                on_directory: i.flags & bits::IOCTL_DIR != 0,
                compat: i.flags & bits::IOCTL_COMPAT != 0,
            };
            Op::Ioctl { call }
        }
        Opcode::Poll => {
            let p = c.get::<k::PollIn>()?;
            Op::Poll { handle: Handle(p.fh), events: p.events }
        }
        Opcode::Fallocate => {
            let f = c.get::<k::FallocateIn>()?;
            Op::Fallocate { handle: Handle(f.fh), offset: f.offset, len: f.length, mode: f.mode }
        }
        Opcode::Lseek => {
            let l = c.get::<k::LseekIn>()?;
            Op::Lseek { handle: Handle(l.fh), offset: l.offset, whence: l.whence }
        }
        Opcode::CopyFileRange | Opcode::CopyFileRange64 => {
            let r = c.get::<k::CopyFileRangeIn>()?;
            let how = CopyHow {
                from: inode_of(header.nodeid),
                from_handle: Handle(r.fh_in),
                from_offset: r.off_in,
                to: inode_of(r.nodeid_out),
                to_handle: Handle(r.fh_out),
                to_offset: r.off_out,
                len: r.len,
            };
            Op::CopyFileRange { how, wide: opcode == Opcode::CopyFileRange64 }
        }
        Opcode::Syncfs => Op::Syncfs,
        Opcode::Getlk => Op::Getlk { how: lock_how(&mut c)? },
        Opcode::Setlk => Op::Setlk { how: lock_how(&mut c)?, wait: false },
        Opcode::Setlkw => Op::Setlk { how: lock_how(&mut c)?, wait: true },
        Opcode::Bmap | Opcode::NotifyReply | Opcode::Setupmapping | Opcode::Removemapping => {
            Op::Unsupported { opcode: header.opcode }
        }
    })
}

fn open_how(c: &mut Cursor<'_>) -> Option<OpenHow> {
    let o = c.get::<k::OpenIn>()?;
    Some(OpenHow { flags: o.flags, kill_suidgid: o.open_flags & bits::OPEN_KILL_SUIDGID != 0 })
}

fn create_how(c: &mut Cursor<'_>) -> Option<(u32, OpenHow)> {
    let o = c.get::<k::CreateIn>()?;
    Some((o.mode, OpenHow { flags: o.flags, kill_suidgid: o.open_flags & bits::OPEN_KILL_SUIDGID != 0 }))
}

fn lock_how(c: &mut Cursor<'_>) -> Option<LockHow> {
    let l = c.get::<k::LkIn>()?;
    let kind = match l.lk.kind as i32 {
        libc::F_RDLCK => LockKind::Shared,
        libc::F_WRLCK => LockKind::Exclusive,
        libc::F_UNLCK => LockKind::Unlock,
        _ => return None,
    };
    Some(LockHow {
        handle: Handle(l.fh),
        owner: l.owner,
        first: l.lk.start,
        last: l.lk.end,
        kind,
        pid: l.lk.pid,
        flock: l.lk_flags & bits::LK_FLOCK != 0,
    })
}

fn set_attr<'a>(s: &k::SetattrIn) -> Operation<'a> {
    let has = |bit: u32| s.valid & bit != 0;
    let time = |given: u32, now: u32, sec: u64, nsec: u32| {
        if has(now) {
            Some(TimeSet::Now)
        } else {
            has(given).then_some(TimeSet::At(Timespec { sec: sec as i64, nsec: nsec.min(999_999_999) }))
        }
    };
    let set = SetAttr {
        perm: has(setattr::MODE).then_some((s.mode & 0o7777) as u16),
        uid: has(setattr::UID).then_some(s.uid),
        gid: has(setattr::GID).then_some(s.gid),
        size: has(setattr::SIZE).then_some(s.size),
        atime: time(setattr::ATIME, setattr::ATIME_NOW, s.atime, s.atimensec),
        mtime: time(setattr::MTIME, setattr::MTIME_NOW, s.mtime, s.mtimensec),
        ctime: has(setattr::CTIME).then_some(Timespec { sec: s.ctime as i64, nsec: s.ctimensec.min(999_999_999) }),
        flags: None,
        project: None,
        kill_suidgid: has(setattr::KILL_SUIDGID),
        open_for_write: has(setattr::FH) && has(setattr::SIZE),
    };
    Operation::Setattr { set, handle: has(setattr::FH).then_some(Handle(s.fh)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn message(opcode: u32, args: &[u8], extensions: &[u8]) -> Vec<u8> {
        let header = k::InHeader {
            len: (40 + args.len() + extensions.len()) as u32,
            opcode,
            unique: 7,
            nodeid: 1,
            total_extlen: (extensions.len() / 8) as u16,
            ..k::InHeader::default()
        };
        [header.as_bytes(), args, extensions].concat()
    }

    proptest! {
        /// Goal: no bytes panic. Method: every opcode, and unknown ones, with arbitrary arguments, extensions, and
        /// header lengths that do not match.
        #[test]
        fn arbitrary_bytes_never_panic(
            opcode in 0u32..70,
            args in proptest::collection::vec(any::<u8>(), 0..200),
            len in prop_oneof![Just(None), any::<u32>().prop_map(Some), (0u32..300).prop_map(Some)],
            ext in 0u16..40,
        ) {
            let mut m = message(opcode, &args, &[]);
            if let Some(len) = len {
                m[..4].copy_from_slice(&len.to_ne_bytes());
            }
            m[36..38].copy_from_slice(&ext.to_ne_bytes());
            let _ = parse(&m);
        }

        /// Goal: bytes that are no request at all do not panic. Method: noise of any length.
        #[test]
        fn noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&noise);
        }

        /// Goal: every cut of a good message is refused, not misread. Method: cut a rename at each length.
        #[test]
        fn cut_messages_are_malformed(cut in 0usize..65) {
            let args = [k::Rename2In { newdir: 9, flags: 1, padding: 0 }.as_bytes(), b"old\0new\0"].concat();
            let whole = message(Opcode::Rename2 as u32, &args, &[]);
            prop_assume!(cut < whole.len());
            prop_assert!(parse(&whole[..cut]).is_err());
        }
    }

    /// Goal: names, arguments and the group extension are decoded correctly. Method: a create with an extension after
    /// its name.
    #[test]
    fn create_with_group_extension() {
        let create = k::CreateIn { flags: 2, mode: 0o100644, umask: 0o22, open_flags: 1 };
        let args = [create.as_bytes(), b"file\0\0\0\0"].concat();
        let head = k::ExtHeader { size: 16, kind: bits::EXT_GROUPS };
        let ext = [head.as_bytes(), &1u32.to_ne_bytes(), &77u32.to_ne_bytes()].concat();
        let m = message(Opcode::Create as u32, &args, &ext);
        let r = parse(&m).expect("well formed");
        assert_eq!(r.create_group, Some(77));
        let Operation::Create { name, mode, how } = r.op else { panic!("{:?}", r.op) };
        assert_eq!((name, mode, how), (&b"file"[..], 0o100644, OpenHow { flags: 2, kill_suidgid: true }));
    }

    /// Goal: names that could escape a directory are refused. Method: lookups of an empty name and of one with a slash.
    #[test]
    fn names_with_slash_or_nothing_are_malformed() {
        for name in [&b"\0"[..], b"a/b\0", b"unterminated"] {
            assert_eq!(parse(&message(Opcode::Lookup as u32, name, &[])).err(), Some(Malformed { unique: 7 }));
        }
    }

    /// Goal: a WRITE's payload begins where the receive buffer expects it. Method: sizes of the two heads.
    #[test]
    fn write_payload_follows_80_bytes() {
        assert_eq!(size_of::<k::InHeader>() + size_of::<k::WriteIn>(), crate::kernel::WRITE_HEAD_BYTES);
    }
}
