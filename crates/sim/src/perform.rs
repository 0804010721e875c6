//! `perform`: makes a call on the mount, as a front end would.
//!
//! Owns: the way from an `Op` to the client's interface and back, open files of a program. Does not own: what the
//! outcome should be.

use crate::dice::bytes_of;
use crate::op::{Handle, Name, Op, Outcome, Seen};
use crate::plant;
use crate::shards;
use amphi_client::{Client, Ctx, Hints, OpenFile, OpenFlags};
use amphi_env::Buf;
use amphi_types::{Attr, Errno, Ino, Kind, Result, SetAttr, TimeSet};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Extended attribute that shows and sets a layout.
const LAYOUT: &[u8] = b"user.amphi.layout";
/// Extended attributes that the file system makes up; the reference does not know them.
const VIRTUAL: &[u8] = b"user.amphi.";

/// Open files of a program, each with the number of the mount on which it was opened.
pub type Files = BTreeMap<Handle, (usize, Arc<OpenFile>)>;

/// The attributes that the reference knows.
pub fn seen(attr: &Attr) -> Seen {
    let size = if matches!(attr.kind, Kind::File | Kind::Symlink) { attr.size } else { 0 };
    Seen {
        ino: attr.ino,
        kind: attr.kind,
        perm: attr.perm,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size,
        mtime: attr.mtime,
        ctime: attr.ctime,
    }
}

/// The listed names but `.` and `..`, in order of bytes.
///
/// Errors: those of readdir; `Proto` if `.` or `..` are not there exactly once or a cookie is repeated.
pub async fn list(client: &Client, ctx: &Ctx, dir: Ino, max: u32, plus: bool) -> Result<Vec<(Name, Ino)>> {
    let (mut names, mut dots, mut cookie) = (Vec::new(), 0, 0);
    loop {
        let part = client.readdir(ctx, dir, cookie, max, plus).await?;
        for entry in part.entries {
            if entry.cookie <= cookie {
                return Err(Errno::Proto);
            }
            cookie = entry.cookie;
            if entry.name == b"." || entry.name == b".." {
                dots += 1;
            } else {
                if entry.attr.is_some_and(|a| a.ino != entry.ino || a.kind != entry.kind) {
                    return Err(Errno::Proto);
                }
                names.push((entry.name, entry.ino));
            }
        }
        if part.end {
            break;
        }
    }
    if dots != 2 {
        return Err(Errno::Proto);
    }
    names.sort();
    Ok(names)
}

/// Names of extended attributes but those that the file system makes up.
pub async fn xattr_names(client: &Client, ctx: &Ctx, ino: Ino) -> Result<Vec<Name>> {
    let bytes = client.listxattr(ctx, ino).await?;
    let mut names: Vec<Name> = bytes.split(|b| *b == 0).map(<[u8]>::to_vec).collect();
    // Each name ends with a NUL, so nothing follows the last one.
    if names.pop().is_some_and(|rest| !rest.is_empty()) {
        return Err(Errno::Proto);
    }
    names.retain(|n| !n.starts_with(VIRTUAL));
    names.sort();
    Ok(names)
}

/// Writes `bytes`; into the cache without waiting where that is possible and the caller's number is odd.
pub async fn write(
    client: &Client,
    ctx: &Ctx,
    file: &Arc<OpenFile>,
    offset: u64,
    bytes: &[u8],
    direct: bool,
) -> Result<u64> {
    let hints = Hints { direct, ..Hints::default() };
    if let Some(n) = plant::bad_write(client, ctx, file, offset, bytes, hints).await? {
        return Ok(n);
    }
    if bytes.len() % 2 == 1
        && let Some(n) = client.try_write(ctx, file, offset, bytes, hints)
    {
        return Ok(n as u64);
    }
    let mut buf = Buf::padded((offset % 4096) as usize, bytes.len());
    buf.copy_from_slice(bytes);
    Ok(client.write(ctx, file, offset, buf, hints).await? as u64)
}

/// Reads up to `len` bytes; from the cache without waiting where that is possible and `len` is odd.
pub async fn read(
    client: &Client,
    ctx: &Ctx,
    file: &Arc<OpenFile>,
    offset: u64,
    len: u64,
    direct: bool,
) -> Result<Vec<u8>> {
    let hints = Hints { direct, ..Hints::default() };
    if let Some(bytes) = plant::bad_read(client, ctx, file, (offset, len), hints).await? {
        return Ok(bytes);
    }
    if len % 2 == 1 {
        let mut into = vec![0xa5; len as usize];
        if let Some(n) = client.try_read(ctx, file, offset, &mut into, hints) {
            into.truncate(n);
            return Ok(into);
        }
    }
    Ok(client.read(ctx, file, offset, len as usize, hints).await?.to_vec())
}

fn file(files: &Files, handle: Handle) -> Result<&Arc<OpenFile>> {
    files.get(&handle).map(|(_, file)| file).ok_or(Errno::BadFd)
}

/// The open file by which a call goes; that decides the mount.
fn handle_of(op: &Op) -> Option<Handle> {
    match op {
        Op::Truncate { handle, .. } => *handle,
        Op::Close { handle }
        | Op::Read { handle, .. }
        | Op::Write { handle, .. }
        | Op::Fsync { handle, .. }
        | Op::Fallocate { handle, .. }
        | Op::Copy { to: handle, .. } => Some(*handle),
        _ => None,
    }
}

/// The mount on which a call is made: that of its open file, or else `which`.
pub fn mount_of(files: &Files, op: &Op, which: usize) -> usize {
    handle_of(op).and_then(|h| files.get(&h)).map_or(which, |(mount, _)| *mount)
}

/// Makes the call on mount `which`, that of its open file if it has one, and waits for its outcome.
pub async fn perform(mounts: &[Client], which: usize, ctx: &Ctx, files: &mut Files, op: &Op) -> Result<Outcome> {
    let client = &mounts[which];
    let names = matches!(
        op,
        Op::Mkdir { .. }
            | Op::Mknod { .. }
            | Op::Symlink { .. }
            | Op::Link { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
    );
    if names && plant::does_again() {
        Box::pin(perform(mounts, which, ctx, files, op)).await?;
    }
    let attr = |a: Attr| Outcome::Attr(seen(&a));
    Ok(match op {
        Op::Lookup { dir, name } => attr(client.lookup(ctx, *dir, name).await?),
        Op::GetAttr { ino } => attr(client.getattr(ctx, *ino).await?),
        Op::Chmod { ino, perm } => {
            let set = SetAttr { perm: Some(*perm), ..SetAttr::default() };
            attr(client.setattr(ctx, *ino, set, None).await?)
        }
        Op::Chown { ino, uid, gid } => {
            let set = SetAttr { uid: *uid, gid: *gid, ..SetAttr::default() };
            attr(client.setattr(ctx, *ino, set, None).await?)
        }
        Op::SetTimes { ino, mtime } => {
            let time = mtime.map_or(TimeSet::Now, TimeSet::At);
            let set = SetAttr { mtime: Some(time), atime: Some(time), ..SetAttr::default() };
            attr(client.setattr(ctx, *ino, set, None).await?)
        }
        Op::Truncate { ino, size, handle } => {
            let open = handle.map(|h| file(files, h)).transpose()?.cloned();
            let set = SetAttr { size: Some(*size), open_for_write: open.is_some(), ..SetAttr::default() };
            attr(client.setattr(ctx, *ino, set, open.as_ref()).await?)
        }
        Op::Mknod { dir, name, kind, perm } => {
            attr(client.mknod(ctx, *dir, name, kind.mode_bits() | u32::from(*perm), 0).await?)
        }
        Op::Mkdir { dir, name, perm } => {
            let made = client.mkdir(ctx, *dir, name, *perm).await?;
            shards::give(client, made.ino).await;
            attr(made)
        }
        Op::Symlink { dir, name, to } => attr(client.symlink(ctx, *dir, name, to).await?),
        Op::Link { ino, dir, name } => attr(client.link(ctx, *ino, *dir, name).await?),
        Op::Unlink { dir, name } => {
            client.unlink(ctx, *dir, name).await?;
            Outcome::Done
        }
        Op::Rmdir { dir, name } => {
            client.rmdir(ctx, *dir, name).await?;
            Outcome::Done
        }
        Op::Rename { from, from_name, to, to_name, mode } => {
            client.rename(ctx, (*from, from_name), (*to, to_name), *mode).await?;
            Outcome::Done
        }
        Op::ReadLink { ino } => Outcome::Bytes(client.readlink(ctx, *ino).await?),
        Op::List { dir, max, plus } => Outcome::Names(list(client, ctx, *dir, *max, *plus).await?),
        Op::GetXattr { ino, name } => Outcome::Bytes(client.getxattr(ctx, *ino, name).await?),
        Op::ListXattr { ino } => {
            Outcome::Names(xattr_names(client, ctx, *ino).await?.into_iter().map(|n| (n, *ino)).collect())
        }
        Op::SetXattr { ino, name, value, mode } => {
            client.setxattr(ctx, *ino, name, value, *mode).await?;
            Outcome::Done
        }
        Op::RemoveXattr { ino, name } => {
            client.removexattr(ctx, *ino, name).await?;
            Outcome::Done
        }
        Op::Create { dir, name, perm, flags, handle } => {
            let made = client.create(ctx, *dir, name, *perm, *flags).await?;
            files.insert(*handle, (which, made.file));
            Outcome::Opened(seen(&made.attr), made.created)
        }
        Op::Tmpfile { dir, perm, flags, handle } => {
            let made = client.tmpfile(ctx, *dir, *perm, *flags).await?;
            files.insert(*handle, (which, made.file));
            Outcome::Opened(seen(&made.attr), made.created)
        }
        Op::Open { ino, flags, handle } => {
            let open = client.open(ctx, *ino, *flags).await?;
            files.insert(*handle, (which, open));
            Outcome::Done
        }
        Op::Close { handle } => {
            let (_, open) = files.remove(handle).ok_or(Errno::BadFd)?;
            let flushed = client.flush(ctx, &open).await;
            client.release(open);
            flushed?;
            Outcome::Done
        }
        Op::Read { handle, offset, len, direct } => {
            Outcome::Bytes(read(client, ctx, file(files, *handle)?, *offset, *len, *direct).await?)
        }
        Op::Write { handle, offset, stamp, direct } => {
            let bytes = bytes_of(stamp.tag, stamp.len as usize);
            Outcome::Count(write(client, ctx, file(files, *handle)?, *offset, &bytes, *direct).await?)
        }
        Op::Fsync { handle, datasync } => {
            client.fsync(ctx, file(files, *handle)?, *datasync).await?;
            Outcome::Done
        }
        Op::FsyncDir { dir } => {
            client.fsync_dir(ctx, *dir).await?;
            Outcome::Done
        }
        Op::SyncAll => {
            // A mount makes stable the changes that it made itself; a program that uses several mounts asks each of
            // them.
            for mount in mounts {
                mount.sync_all(ctx).await?;
            }
            Outcome::Done
        }
        Op::Fallocate { handle, mode, offset, len } => {
            client.fallocate(ctx, file(files, *handle)?, *mode, *offset, *len).await?;
            Outcome::Done
        }
        Op::Copy { from, from_offset, to, to_offset, len } => {
            let (source, to) = (files.get(from).ok_or(Errno::BadFd)?, file(files, *to)?);
            // A copy is within one mount: the source is opened there too, or, if no name leads to it, read and written.
            let from = match source {
                (mount, from) if *mount == which => from.clone(),
                (mount, from) => {
                    let flags = OpenFlags { write: false, truncate: false, ..from.flags() };
                    match client.open(&Ctx::root(), from.ino(), flags).await {
                        Err(Errno::Stale) if from.ino() != to.ino() && from.flags().read && to.flags().write => {
                            let bytes = read(&mounts[*mount], ctx, from, *from_offset, *len, false).await?;
                            let n = write(client, ctx, to, *to_offset, &bytes, false).await?;
                            return Ok(Outcome::Count(n));
                        }
                        opened => opened?,
                    }
                }
            };
            let n = client.copy_file_range(ctx, (&from, *from_offset), (to, *to_offset), *len).await?;
            Outcome::Count(n as u64)
        }
        Op::StatFs => {
            let s = client.statfs(ctx).await?;
            if s.blocks_free > s.blocks || s.block_size == 0 {
                return Err(Errno::Proto);
            }
            Outcome::Done
        }
        Op::SetLayout { ino, text } => {
            client.setxattr(ctx, *ino, LAYOUT, text.as_bytes(), amphi_wire::XattrMode::Set).await?;
            Outcome::Done
        }
    })
}
