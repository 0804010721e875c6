//! Access through a client in this process: no mount, no FUSE.
//!
//! Owns: starting and ending the client, whose rights calls have, translation of calls to operations of the client.
//! Does not own: the operations (`client`), paths (`walk`).
//!
//! Rights, groups, capabilities and umask are those of the process when the cluster was opened. A write has returned
//! when its bytes are in the cache of this process, or past it: they are lost with the process until they are synced.

mod dir;
mod file;

pub(crate) use dir::ClusterDir;
pub(crate) use file::{ClusterFile, place};

use crate::abi::{AmphiSetattr, AmphiStat, AmphiStatfs, AmphiTime};
use crate::failure::{Done, Fail, fail};
use crate::walk::{self, Found, Last};
use amphi_client::{Client, Ctx, Hints, OpenFile, OpenFlags, RenameMode, XattrMode};
use amphi_host::client::Running;
use amphi_host::failure::Failure;
use amphi_host::link::Credentials;
use amphi_types::{Attr, Caps, Cred, Ino, Kind, SetAttr, Timespec, limits};
use parking_lot::Mutex;
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::Duration;

thread_local! {
    static TID: Cell<u32> = const { Cell::new(0) };
}

fn tid() -> u32 {
    TID.try_with(|kept| {
        if kept.get() == 0 {
            kept.set(rustix::thread::gettid().as_raw_nonzero().get() as u32);
        }
        kept.get()
    })
    .unwrap_or(0)
}

/// A client of a cluster.
pub(crate) struct Cluster {
    pub(crate) name: String,
    pub(crate) client: Client,
    running: Mutex<Option<Running>>,
    cred: Cred,
    umask: AtomicU16,
    pid: u32,
}

/// How a cluster is opened.
pub(crate) struct How {
    pub(crate) servers: Vec<String>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) identity: Option<PathBuf>,
    pub(crate) spin: Duration,
    pub(crate) cache_bytes: Option<u64>,
    pub(crate) tunables: Vec<String>,
    pub(crate) umask: Option<u16>,
}

/// A line of `/proc/self/status`.
fn status(name: &str) -> Option<String> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_string())
}

fn own_cred() -> Done<Cred> {
    let uid = rustix::process::geteuid().as_raw();
    let groups = rustix::process::getgroups()?.into_iter().map(|group| group.as_raw()).take(limits::GROUPS_MAX);
    let mask = status("CapEff").and_then(|mask| u64::from_str_radix(&mask, 16).ok());
    let caps = mask.map_or(if uid == 0 { Caps::ALL } else { Caps::NONE }, Caps::from_linux);
    Ok(Cred { uid, gid: rustix::process::getegid().as_raw(), groups: groups.collect(), caps })
}

fn refused(failure: Failure) -> Fail {
    let errno = if failure.code == 2 { libc::EINVAL } else { libc::EIO };
    Fail::new(errno, failure.text)
}

fn unreachable(failure: Failure) -> Fail {
    Fail::new(libc::ENOTCONN, failure.text)
}

impl Cluster {
    /// The root of the paths.
    pub(crate) fn root(&self) -> Ino {
        self.client.root()
    }

    pub(crate) fn open(how: How) -> Done<Cluster> {
        let name = how.servers.join(" ");
        let mut config = amphi_host::client::client_config(how.cache_bytes, &how.tunables).map_err(refused)?;
        config = config.in_job_of(|name| std::env::var(name).ok());
        let proves = Credentials::read(how.key.as_deref(), how.identity.as_deref()).map_err(refused)?;
        let umask = how.umask.or_else(|| status("Umask").and_then(|mask| u16::from_str_radix(&mask, 8).ok()));
        let cred = own_cred()?;
        // The end is not notified: calls find out.
        let (ended, _) = mpsc::channel();
        let running =
            amphi_host::client::start_client(how.servers, proves, how.spin, config, ended).map_err(unreachable)?;
        let client = running.client.clone();
        let umask = AtomicU16::new(umask.unwrap_or(0o22));
        let pid = std::process::id();
        Ok(Cluster { name, client, running: Mutex::new(Some(running)), cred, umask, pid })
    }

    /// Writes everything back and ends the client; from then on, calls on its open files fail with `ENOTCONN`.
    ///
    /// Errors: `EIO` if not everything became stable.
    pub(crate) fn close(&self) -> Done<()> {
        let running = self.running.lock().take();
        running.map_or(Ok(()), Running::stop).map_err(|failure| Fail::new(libc::EIO, failure.text))
    }

    /// Data in the cache of an ended client may be older than later writes of others.
    ///
    /// Errors: `ENOTCONN` if it has ended.
    #[inline]
    pub(crate) fn check_running(&self) -> Done<()> {
        if self.client.is_stopped() { fail(libc::ENOTCONN) } else { Ok(()) }
    }

    /// The caller with all rights, for what the server checks.
    fn ctx(&self) -> Ctx {
        Ctx { cred: self.cred.clone(), umask: self.umask.load(Relaxed), ..self.stream() }
    }

    /// The caller for what the open has allowed.
    #[inline]
    pub(crate) fn stream(&self) -> Ctx {
        let cred = Cred::new(self.cred.uid, self.cred.gid, Vec::new());
        Ctx { cred, pid: self.pid, tid: tid(), ..Ctx::default() }
    }

    #[inline]
    fn kills(&self) -> bool {
        !self.cred.may(Caps::FSETID)
    }

    /// Hints of a write.
    #[inline]
    pub(crate) fn write_hints(&self) -> Hints {
        Hints { kill_suidgid: self.kills(), ..Hints::default() }
    }

    /// Walks a path once more if an inode on it has gone meanwhile, as the kernel does.
    fn walked<T>(&self, run: impl Fn(&Ctx) -> Done<T>) -> Done<T> {
        let ctx = self.ctx();
        match run(&ctx) {
            Err(Fail { errno: libc::ESTALE, .. }) => run(&ctx),
            done => done,
        }
    }

    pub(crate) fn set_umask(&self, mask: u16) -> u16 {
        self.umask.swap(mask & 0o777, Relaxed)
    }

    pub(crate) fn sync(&self) -> Done<()> {
        Ok(self.client.sync_all(&self.stream()).wait(None)?)
    }

    pub(crate) fn open_file(self: &Arc<Self>, base: Ino, path: &[u8], flags: i32, mode: u32) -> Done<ClusterFile> {
        let wants = OpenFlags::from_linux(flags as u32);
        let open = self.walked(|ctx| self.open_inode(ctx, base, path, flags, mode, wants))?;
        Ok(ClusterFile { fs: self.clone(), open, path: String::from_utf8_lossy(path).into_owned() })
    }

    fn open_inode(
        &self,
        ctx: &Ctx,
        base: Ino,
        path: &[u8],
        flags: i32,
        mode: u32,
        wants: OpenFlags,
    ) -> Done<Arc<OpenFile>> {
        let has = |flag: i32| flags & flag == flag;
        let perm = (mode & 0o7777) as u16;
        if has(libc::O_TMPFILE) {
            let dir = walk::end(&self.client, ctx, base, path, true)?;
            return match dir.kind {
                Kind::Dir if !wants.write => fail(libc::EINVAL),
                Kind::Dir => Ok(self.client.tmpfile(ctx, dir.ino, perm, wants).wait(None)?.file),
                _ => fail(libc::ENOTDIR),
            };
        }
        if has(libc::O_CREAT) && path.ends_with(b"/") {
            return fail(libc::EISDIR);
        }
        let follow = !(has(libc::O_NOFOLLOW) || has(libc::O_CREAT | libc::O_EXCL));
        if !has(libc::O_CREAT) {
            let attr = walk::end(&self.client, ctx, base, path, follow)?;
            return self.open_found(ctx, attr, has(libc::O_DIRECTORY), wants);
        }
        loop {
            let (dir, name) = match walk::found(&self.client, ctx, base, path, follow)? {
                Found::There(_) if has(libc::O_EXCL) => return fail(libc::EEXIST),
                Found::There(attr) if attr.kind == Kind::Dir => return fail(libc::EISDIR),
                Found::There(attr) => return self.open_found(ctx, attr, false, wants),
                Found::Absent { dir, name } => (dir, name),
            };
            let made = self.client.create(ctx, dir, &name, perm, wants).wait(None)?;
            // Another client may have made another inode of that name meanwhile.
            if made.attr.kind == Kind::File {
                if !made.created && wants.truncate {
                    self.after_cut(ctx, &made.attr)?;
                }
                return Ok(made.file);
            }
        }
    }

    fn open_found(&self, ctx: &Ctx, attr: Attr, as_directory: bool, wants: OpenFlags) -> Done<Arc<OpenFile>> {
        match attr.kind {
            Kind::File if as_directory => return fail(libc::ENOTDIR),
            Kind::File => {}
            Kind::Symlink => return fail(libc::ELOOP),
            Kind::Dir => return Err(Fail::new(libc::EISDIR, "amphi_opendir opens directories")),
            _ => return Err(Fail::new(libc::EOPNOTSUPP, "devices, pipes and sockets are opened on a mount")),
        }
        let open = self.client.open(ctx, attr.ino, wants).wait(None)?;
        if wants.truncate {
            self.after_cut(ctx, &attr)?;
        }
        Ok(open)
    }

    /// If the caller has no right to keep set-user-id and set-group-id, a truncation removes them as well.
    fn after_cut(&self, ctx: &Ctx, attr: &Attr) -> Done<()> {
        if attr.has_set_id() && self.kills() {
            let set = SetAttr { kill_suidgid: true, open_for_write: true, ..SetAttr::default() };
            self.client.setattr(ctx, attr.ino, set, None).wait(None)?;
        }
        Ok(())
    }

    pub(crate) fn open_dir(self: &Arc<Self>, base: Ino, path: &[u8], attributes: bool) -> Done<ClusterDir> {
        let ino = self.walked(|ctx| {
            let attr = walk::end(&self.client, ctx, base, path, true)?;
            if attr.kind != Kind::Dir {
                return fail(libc::ENOTDIR);
            }
            // The right to list is checked now, as open(2) does it.
            if !ctx.cred.has_access(Kind::Dir, attr.perm, (attr.uid, attr.gid), 4) {
                self.client.readdir(ctx, attr.ino, 0, 3, false).wait(None)?;
            }
            Ok(attr.ino)
        })?;
        let path = String::from_utf8_lossy(path).into_owned();
        Ok(ClusterDir::new(self.clone(), ino, path, attributes))
    }

    pub(crate) fn stat(&self, base: Ino, path: &[u8], follow: bool) -> Done<AmphiStat> {
        self.walked(|ctx| Ok(shown(&walk::end(&self.client, ctx, base, path, follow)?)))
    }

    pub(crate) fn setattr(&self, base: Ino, path: &[u8], follow: bool, set: &AmphiSetattr) -> Done<()> {
        self.walked(|ctx| {
            let attr = walk::end(&self.client, ctx, base, path, follow)?;
            match attr.kind {
                Kind::Dir if set.valid & crate::abi::AMPHI_SET_SIZE != 0 => return fail(libc::EISDIR),
                Kind::File => {}
                _ if set.valid & crate::abi::AMPHI_SET_SIZE != 0 => return fail(libc::EINVAL),
                Kind::Symlink if set.valid & crate::abi::AMPHI_SET_MODE != 0 => return fail(libc::EOPNOTSUPP),
                _ => {}
            }
            self.set(ctx, &attr, set, None)
        })
    }

    fn set(&self, ctx: &Ctx, attr: &Attr, set: &AmphiSetattr, file: Option<&Arc<OpenFile>>) -> Done<()> {
        let changes = set_of(set, attr, self.kills(), file.is_some())?;
        self.client.setattr(ctx, attr.ino, changes, file).wait(None)?;
        Ok(())
    }

    pub(crate) fn statfs(&self, ino: Ino) -> Done<AmphiStatfs> {
        let space = self.client.statfs_at(&self.stream(), ino).wait(None)?;
        Ok(AmphiStatfs {
            struct_size: 0,
            block_bytes: space.block_size,
            blocks: space.blocks,
            blocks_free: space.blocks_free,
            inodes: space.inodes,
            inodes_free: space.inodes_free,
            name_max: space.name_max,
            reserved: 0,
        })
    }

    pub(crate) fn mkdir(&self, base: Ino, path: &[u8], mode: u32) -> Done<()> {
        self.walked(|ctx| match walk::last(&self.client, ctx, base, path)? {
            Last::Name { dir, name, .. } => {
                // Linux keeps the sticky bit of the mode, and no set-id bits.
                self.client.mkdir(ctx, dir, &name, (mode & 0o1777) as u16).wait(None)?;
                Ok(())
            }
            _ => fail(libc::EEXIST),
        })
    }

    pub(crate) fn rmdir(&self, base: Ino, path: &[u8]) -> Done<()> {
        self.walked(|ctx| match walk::last(&self.client, ctx, base, path)? {
            Last::Name { dir, name, .. } => Ok(self.client.rmdir(ctx, dir, &name).wait(None)?),
            Last::Dot(ino) if ino == self.client.root() => fail(libc::EBUSY),
            Last::Dot(_) => fail(libc::EINVAL),
            Last::DotDot(_) => fail(libc::ENOTEMPTY),
        })
    }

    pub(crate) fn unlink(&self, base: Ino, path: &[u8]) -> Done<()> {
        self.walked(|ctx| match walk::last(&self.client, ctx, base, path)? {
            Last::Name { dir, name, slash: true } => {
                let attr = self.client.lookup(ctx, dir, &name).wait(None)?;
                fail(if attr.kind == Kind::Dir { libc::EISDIR } else { libc::ENOTDIR })
            }
            Last::Name { dir, name, .. } => Ok(self.client.unlink(ctx, dir, &name).wait(None)?),
            _ => fail(libc::EISDIR),
        })
    }

    pub(crate) fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), mode: RenameMode) -> Done<()> {
        self.walked(|ctx| {
            let old = walk::last(&self.client, ctx, from.0, from.1)?;
            let new = walk::last(&self.client, ctx, to.0, to.1)?;
            let (
                Last::Name { dir: old_dir, name: old, slash: old_slash },
                Last::Name { dir: new_dir, name: new, slash: new_slash },
            ) = (old, new)
            else {
                return fail(libc::EBUSY);
            };
            if old_slash || new_slash {
                let attr = self.client.lookup(ctx, old_dir, &old).wait(None)?;
                if attr.kind != Kind::Dir {
                    return fail(libc::ENOTDIR);
                }
            }
            Ok(self.client.rename(ctx, (old_dir, &old), (new_dir, &new), mode).wait(None)?)
        })
    }

    /// The place where a new name that is no directory may be made.
    fn new_name(&self, ctx: &Ctx, base: Ino, path: &[u8]) -> Done<(Ino, Vec<u8>)> {
        match walk::last(&self.client, ctx, base, path)? {
            Last::Name { dir, name, slash: false } => Ok((dir, name)),
            Last::Name { dir, name, .. } => match self.client.lookup(ctx, dir, &name).wait(None) {
                Ok(_) => fail(libc::EEXIST),
                Err(e) => Err(e.into()),
            },
            _ => fail(libc::EEXIST),
        }
    }

    pub(crate) fn link(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), follow: bool) -> Done<()> {
        self.walked(|ctx| {
            let attr = walk::end(&self.client, ctx, from.0, from.1, follow)?;
            let (dir, name) = self.new_name(ctx, to.0, to.1)?;
            if attr.kind == Kind::Dir {
                let exists = self.client.lookup(ctx, dir, &name).wait(None).is_ok();
                return fail(if exists { libc::EEXIST } else { libc::EPERM });
            }
            self.client.link(ctx, attr.ino, dir, &name).wait(None)?;
            Ok(())
        })
    }

    pub(crate) fn symlink(&self, target: &[u8], base: Ino, path: &[u8]) -> Done<()> {
        match target.len() {
            0 => return fail(libc::ENOENT),
            len if len > limits::SYMLINK_MAX => return fail(libc::ENAMETOOLONG),
            _ => {}
        }
        self.walked(|ctx| {
            let (dir, name) = self.new_name(ctx, base, path)?;
            self.client.symlink(ctx, dir, &name, target).wait(None)?;
            Ok(())
        })
    }

    pub(crate) fn readlink(&self, base: Ino, path: &[u8]) -> Done<Vec<u8>> {
        self.walked(|ctx| {
            let attr = walk::end(&self.client, ctx, base, path, false)?;
            if attr.kind != Kind::Symlink {
                return fail(libc::EINVAL);
            }
            Ok(self.client.readlink(ctx, attr.ino).wait(None)?)
        })
    }

    /// The inode whose attribute a call names; the servers check the rights of the caller.
    fn attribute(&self, base: Ino, path: Option<(&[u8], bool)>, name: &[u8]) -> Done<(Ctx, Ino)> {
        if !(1..=limits::XATTR_NAME_MAX).contains(&name.len()) {
            return fail(libc::ERANGE);
        }
        let ctx = self.ctx();
        match path {
            Some((path, follow)) => {
                let ino = walk::end(&self.client, &ctx, base, path, follow)?.ino;
                Ok((ctx, ino))
            }
            None => Ok((ctx, base)),
        }
    }

    pub(crate) fn getxattr(&self, base: Ino, path: Option<(&[u8], bool)>, name: &[u8]) -> Done<Vec<u8>> {
        let (ctx, ino) = self.attribute(base, path, name)?;
        Ok(self.client.getxattr(&ctx, ino, name).wait(None)?)
    }

    pub(crate) fn setxattr(
        &self,
        base: Ino,
        path: Option<(&[u8], bool)>,
        (name, value): (&[u8], &[u8]),
        mode: XattrMode,
    ) -> Done<()> {
        if value.len() > limits::XATTR_VALUE_MAX {
            return fail(libc::E2BIG);
        }
        let (ctx, ino) = self.attribute(base, path, name)?;
        Ok(self.client.setxattr(&ctx, ino, name, value, mode).wait(None)?)
    }

    pub(crate) fn removexattr(&self, base: Ino, path: Option<(&[u8], bool)>, name: &[u8]) -> Done<()> {
        let (ctx, ino) = self.attribute(base, path, name)?;
        Ok(self.client.removexattr(&ctx, ino, name).wait(None)?)
    }

    pub(crate) fn listxattr(&self, base: Ino, path: Option<(&[u8], bool)>) -> Done<Vec<u8>> {
        let ctx = self.ctx();
        let ino = match path {
            Some((path, follow)) => walk::end(&self.client, &ctx, base, path, follow)?.ino,
            None => base,
        };
        Ok(self.client.listxattr(&ctx, ino).wait(None)?)
    }
}

fn set_of(set: &AmphiSetattr, attr: &Attr, kills: bool, is_open: bool) -> Done<SetAttr> {
    use crate::abi::*;
    let has = |bit: u32| set.valid & bit != 0;
    let time = |given: u32, now: u32, time: AmphiTime| -> Done<Option<amphi_types::TimeSet>> {
        match (has(given), has(now)) {
            (true, true) => fail(libc::EINVAL),
            (_, true) => Ok(Some(amphi_types::TimeSet::Now)),
            (true, _) if time.nsec >= 1_000_000_000 => fail(libc::EINVAL),
            (true, _) => Ok(Some(amphi_types::TimeSet::At(Timespec { sec: time.sec, nsec: time.nsec }))),
            _ => Ok(None),
        }
    };
    if has(AMPHI_SET_SIZE) && set.size > limits::FILE_MAX {
        return fail(libc::EINVAL);
    }
    let owner = has(AMPHI_SET_UID) || has(AMPHI_SET_GID);
    Ok(SetAttr {
        perm: has(AMPHI_SET_MODE).then_some((set.mode & 0o7777) as u16),
        uid: has(AMPHI_SET_UID).then_some(set.uid),
        gid: has(AMPHI_SET_GID).then_some(set.gid),
        size: has(AMPHI_SET_SIZE).then_some(set.size),
        atime: time(AMPHI_SET_ATIME, AMPHI_SET_ATIME_NOW, set.atime)?,
        mtime: time(AMPHI_SET_MTIME, AMPHI_SET_MTIME_NOW, set.mtime)?,
        // A change of the owner clears the bits for every caller, a truncate for callers who may not keep them.
        kill_suidgid: attr.kind != Kind::Dir && (owner || (has(AMPHI_SET_SIZE) && kills)),
        open_for_write: is_open && has(AMPHI_SET_SIZE),
        ..SetAttr::default()
    })
}

fn time(time: Timespec) -> AmphiTime {
    AmphiTime { sec: time.sec, nsec: time.nsec, reserved: 0 }
}

/// Attributes in the form that C programs get.
pub(crate) fn shown(attr: &Attr) -> AmphiStat {
    AmphiStat {
        struct_size: 0,
        mode: attr.mode(),
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        btime: time(attr.btime),
    }
}
