//! Calls on names.
//!
//! Owns: those that look up, list, make and remove names, and extended attributes. Does not own: how a path is walked
//! (`walk`).

use super::{Way, fill, given, only, shown, text};
use crate::abi::*;
use crate::failure::{Done, Fail, Subject, border, fail};
use crate::lookup::{At, at, dir, file, path_of};
use crate::object::{Dir, File};
use amphi_client::{RenameMode, XattrMode};
use amphi_types::Ino;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

/// Runs a call on a path.
unsafe fn on_path(
    call: &'static str,
    at_handle: AmphiHandle,
    path: *const c_char,
    run: impl FnOnce(Way<'_>, &CStr) -> Done<i64>,
) -> i64 {
    // SAFETY: the program vouches for its string.
    border(call, Subject::Path(&|| unsafe { shown(path) }), || {
        // SAFETY: as above.
        let (at, path) = (at(at_handle)?, unsafe { text(path) }?);
        run(at.way(), path)
    })
}

/// The attributes of what a path shows. `flags`: `AMPHI_NOFOLLOW` or 0. The caller sets `struct_size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_stat(at: AmphiHandle, path: *const c_char, stat: *mut AmphiStat, flags: u32) -> c_int {
    // SAFETY: the program vouches for its string and struct.
    unsafe {
        on_path("amphi_stat", at, path, |way, path| {
            only(flags, AMPHI_NOFOLLOW)?;
            let follow = flags & AMPHI_NOFOLLOW == 0;
            let found = match way {
                Way::Cluster(cluster, ino) => cluster.stat(ino, path.to_bytes(), follow)?,
                Way::Node(base) => base.stat(path, follow)?,
            };
            fill(stat, found)
        }) as c_int
    }
}

/// Sets attributes of what a path shows, those that `valid` names, in a cluster in one step. `flags`: `AMPHI_NOFOLLOW`
/// or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_setattr(
    at: AmphiHandle,
    path: *const c_char,
    set: *const AmphiSetattr,
    flags: u32,
) -> c_int {
    // SAFETY: the program vouches for its string and struct.
    unsafe {
        on_path("amphi_setattr", at, path, |way, path| {
            let set = given(set)?;
            only(flags, AMPHI_NOFOLLOW)?;
            only(set.valid, 0xff)?;
            let follow = flags & AMPHI_NOFOLLOW == 0;
            match way {
                Way::Cluster(cluster, ino) => cluster.setattr(ino, path.to_bytes(), follow, &set)?,
                Way::Node(base) => base.setattr(path, follow, &set)?,
            }
            Ok(0)
        }) as c_int
    }
}

/// Space of a file system, as it is seen from a directory with a limit of its own. The caller sets `struct_size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_statfs(at_handle: AmphiHandle, statfs: *mut AmphiStatfs) -> c_int {
    border("amphi_statfs", Subject::Path(&|| path_of(at_handle)), || {
        let found = match at(at_handle)?.way() {
            Way::Cluster(cluster, ino) => cluster.statfs(ino)?,
            Way::Node(base) => base.statfs()?,
        };
        // SAFETY: the program vouches for its struct.
        unsafe { fill(statfs, found) }
    }) as c_int
}

/// Makes a directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_mkdir(at: AmphiHandle, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: the program vouches for its string.
    unsafe {
        on_path("amphi_mkdir", at, path, |way, path| {
            match way {
                Way::Cluster(cluster, ino) => cluster.mkdir(ino, path.to_bytes(), mode)?,
                Way::Node(base) => base.mkdir(path, mode)?,
            }
            Ok(0)
        }) as c_int
    }
}

/// Removes an empty directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_rmdir(at: AmphiHandle, path: *const c_char) -> c_int {
    // SAFETY: the program vouches for its string.
    unsafe {
        on_path("amphi_rmdir", at, path, |way, path| {
            match way {
                Way::Cluster(cluster, ino) => cluster.rmdir(ino, path.to_bytes())?,
                Way::Node(base) => base.unlink(path, true)?,
            }
            Ok(0)
        }) as c_int
    }
}

/// Removes a name that is no directory; with `AMPHI_REMOVEDIR` as `amphi_rmdir`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_unlink(at: AmphiHandle, path: *const c_char, flags: u32) -> c_int {
    // SAFETY: the program vouches for its string.
    unsafe {
        on_path("amphi_unlink", at, path, |way, path| {
            only(flags, AMPHI_REMOVEDIR)?;
            let directory = flags & AMPHI_REMOVEDIR != 0;
            match way {
                Way::Cluster(cluster, ino) if directory => cluster.rmdir(ino, path.to_bytes())?,
                Way::Cluster(cluster, ino) => cluster.unlink(ino, path.to_bytes())?,
                Way::Node(base) => base.unlink(path, directory)?,
            }
            Ok(0)
        }) as c_int
    }
}

/// Two ways that lead into one file system.
fn both<T>(
    from: &At,
    to: &At,
    cluster: impl FnOnce(&Arc<crate::cluster::Cluster>, Ino, Ino) -> Done<T>,
    node: impl FnOnce(crate::node::Base, crate::node::Base) -> Done<T>,
) -> Done<T> {
    match (from.way(), to.way()) {
        (Way::Cluster(fs, from), Way::Cluster(other, to)) if Arc::ptr_eq(fs, other) => cluster(fs, from, to),
        (Way::Node(from), Way::Node(to)) => node(from, to),
        _ => fail(libc::EXDEV),
    }
}

/// Renames, in one step: what has the new name is replaced. `flags`: one of `AMPHI_RENAME_*` or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_rename(
    from_at: AmphiHandle,
    from: *const c_char,
    to_at: AmphiHandle,
    to: *const c_char,
    flags: u32,
) -> c_int {
    // SAFETY: the program vouches for its strings.
    border("amphi_rename", Subject::Path(&|| unsafe { format!("{} to {}", shown(from), shown(to)) }), || {
        let mode = match flags {
            0 => RenameMode::Replace,
            AMPHI_RENAME_NOREPLACE => RenameMode::NoReplace,
            AMPHI_RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return fail(libc::EINVAL),
        };
        // SAFETY: as above.
        let (old, new) = unsafe { (text(from)?, text(to)?) };
        both(
            &at(from_at)?,
            &at(to_at)?,
            |cluster, from, to| cluster.rename((from, old.to_bytes()), (to, new.to_bytes()), mode),
            |from, to| from.rename(old, (to, new), flags),
        )?;
        Ok(0)
    }) as c_int
}

/// Makes a further name. A symbolic link at the end of the old path is itself meant, unless `flags` is `AMPHI_FOLLOW`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_link(
    from_at: AmphiHandle,
    from: *const c_char,
    to_at: AmphiHandle,
    to: *const c_char,
    flags: u32,
) -> c_int {
    // SAFETY: the program vouches for its strings.
    border("amphi_link", Subject::Path(&|| unsafe { format!("{} to {}", shown(from), shown(to)) }), || {
        only(flags, AMPHI_FOLLOW)?;
        let follow = flags & AMPHI_FOLLOW != 0;
        // SAFETY: as above.
        let (old, new) = unsafe { (text(from)?, text(to)?) };
        both(
            &at(from_at)?,
            &at(to_at)?,
            |cluster, from, to| cluster.link((from, old.to_bytes()), (to, new.to_bytes()), follow),
            |from, to| from.link(old, (to, new), follow),
        )?;
        Ok(0)
    }) as c_int
}

/// Makes a symbolic link to `target`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_symlink(target: *const c_char, at: AmphiHandle, path: *const c_char) -> c_int {
    // SAFETY: the program vouches for its strings.
    unsafe {
        on_path("amphi_symlink", at, path, |way, path| {
            let target = text(target)?;
            match way {
                Way::Cluster(cluster, ino) => cluster.symlink(target.to_bytes(), ino, path.to_bytes())?,
                Way::Node(base) => base.symlink(target, path)?,
            }
            Ok(0)
        }) as c_int
    }
}

/// The target of a symbolic link, without a zero byte behind it, cut at `size` bytes. Returns how many were stored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_readlink(at: AmphiHandle, path: *const c_char, buffer: *mut c_char, size: usize) -> i64 {
    // SAFETY: the program vouches for its string and memory.
    unsafe {
        on_path("amphi_readlink", at, path, |way, path| {
            if buffer.is_null() || size == 0 {
                return fail(libc::EINVAL);
            }
            let target = match way {
                Way::Cluster(cluster, ino) => cluster.readlink(ino, path.to_bytes())?,
                Way::Node(base) => base.readlink(path)?,
            };
            let len = target.len().min(size);
            std::ptr::copy_nonoverlapping(target.as_ptr(), buffer.cast(), len);
            Ok(len as i64)
        })
    }
}

/// The next entries of an open directory, up to `count`, in the order of the file system, with `.` and `..`.
/// `entry_size`: `sizeof(struct amphi_entry)`. Returns how many; 0 at the end. Entries that are made or removed
/// meanwhile are listed or not; all others are listed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_readdir(
    dir_handle: AmphiHandle,
    entries: *mut AmphiEntry,
    count: usize,
    entry_size: usize,
) -> i64 {
    border("amphi_readdir", Subject::Path(&|| path_of(dir_handle)), || {
        let dir = dir(dir_handle)?;
        if entries.is_null()
            || entry_size < size_of::<AmphiEntry>()
            || !entry_size.is_multiple_of(align_of::<AmphiEntry>())
        {
            return Err(Fail::new(libc::EINVAL, "give memory for entries, and the size of one"));
        }
        let listed = match dir {
            Dir::Cluster(dir) => dir.read(count)?,
            Dir::Node(dir) => dir.read(count)?,
        };
        for (at, entry) in listed.iter().enumerate() {
            let mut shown = AmphiEntry {
                cookie: entry.cookie,
                ino: entry.ino,
                kind: entry.kind,
                name_len: entry.name.len() as u32,
                stat: entry.stat.map_or_else(AmphiStat::default, |stat| AmphiStat {
                    struct_size: size_of::<AmphiStat>() as u32,
                    ..stat
                }),
                name: [0; 256],
            };
            shown.name.iter_mut().zip(&entry.name).take(255).for_each(|(to, byte)| *to = *byte as c_char);
            // SAFETY: the program vouches for memory of so many entries of that size.
            unsafe { std::ptr::write(entries.cast::<u8>().add(at * entry_size).cast(), shown) };
        }
        Ok(listed.len() as i64)
    })
}

/// Goes on behind the entry that had this cookie; 0: from the start.
#[unsafe(no_mangle)]
pub extern "C" fn amphi_seekdir(dir_handle: AmphiHandle, cookie: u64) -> c_int {
    border("amphi_seekdir", Subject::Path(&|| path_of(dir_handle)), || {
        match dir(dir_handle)? {
            Dir::Cluster(dir) => dir.seek(cookie),
            Dir::Node(dir) => dir.seek(cookie)?,
        }
        Ok(0)
    }) as c_int
}

/// Memory for a value; size 0 asks for the length alone.
unsafe fn room<'a>(buffer: *mut c_void, size: usize) -> Done<&'a mut [u8]> {
    match size {
        0 => Ok(&mut []),
        _ if buffer.is_null() || size > isize::MAX as usize => fail(libc::EINVAL),
        // SAFETY: the program vouches for so many bytes.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(buffer.cast(), size) }),
    }
}

unsafe fn value<'a>(value: *const c_void, size: usize) -> Done<&'a [u8]> {
    // SAFETY: as `room`.
    unsafe { room(value.cast_mut(), size) }.map(|bytes| &*bytes)
}

/// Stores a value as the calls on extended attributes do.
fn stored(value: &[u8], into: &mut [u8]) -> Done<i64> {
    if !into.is_empty() {
        let Some(into) = into.get_mut(..value.len()) else { return fail(libc::ERANGE) };
        into.copy_from_slice(value);
    }
    Ok(value.len() as i64)
}

/// The value of an extended attribute. `size` 0 asks for its length. `flags`: `AMPHI_NOFOLLOW` or 0. Returns its
/// length.
///
/// Errors: those of getxattr(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_getxattr(
    at: AmphiHandle,
    path: *const c_char,
    name: *const c_char,
    buffer: *mut c_void,
    size: usize,
    flags: u32,
) -> i64 {
    // SAFETY: the program vouches for its strings and memory.
    unsafe {
        on_path("amphi_getxattr", at, path, |way, path| {
            let (name, into) = (text(name)?, room(buffer, size)?);
            only(flags, AMPHI_NOFOLLOW)?;
            let follow = flags & AMPHI_NOFOLLOW == 0;
            match way {
                Way::Cluster(cluster, ino) => {
                    stored(&cluster.getxattr(ino, Some((path.to_bytes(), follow)), name.to_bytes())?, into)
                }
                Way::Node(base) => base.getxattr(path, follow, name, into),
            }
        })
    }
}

/// As `amphi_getxattr`, of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_fgetxattr(
    file_handle: AmphiHandle,
    name: *const c_char,
    buffer: *mut c_void,
    size: usize,
) -> i64 {
    border("amphi_fgetxattr", Subject::Path(&|| path_of(file_handle)), || {
        // SAFETY: the program vouches for its string and memory.
        let (name, into) = unsafe { (text(name)?, room(buffer, size)?) };
        match file(file_handle)? {
            File::Cluster(file) => stored(&file.fs.getxattr(file.open.ino(), None, name.to_bytes())?, into),
            File::Node(file) => file.getxattr(name, into),
        }
    })
}

fn mode_of(how: u32) -> Done<XattrMode> {
    match how {
        0 => Ok(XattrMode::Set),
        AMPHI_XATTR_CREATE => Ok(XattrMode::Create),
        AMPHI_XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => fail(libc::EINVAL),
    }
}

/// Sets an extended attribute. `how`: one of `AMPHI_XATTR_*` or 0. `flags`: `AMPHI_NOFOLLOW` or 0.
///
/// Errors: those of setxattr(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_setxattr(
    at: AmphiHandle,
    path: *const c_char,
    name: *const c_char,
    buffer: *const c_void,
    size: usize,
    how: u32,
    flags: u32,
) -> c_int {
    // SAFETY: the program vouches for its strings and memory.
    unsafe {
        on_path("amphi_setxattr", at, path, |way, path| {
            let (name, value, mode) = (text(name)?, value(buffer, size)?, mode_of(how)?);
            only(flags, AMPHI_NOFOLLOW)?;
            let follow = flags & AMPHI_NOFOLLOW == 0;
            match way {
                Way::Cluster(cluster, ino) => {
                    cluster.setxattr(ino, Some((path.to_bytes(), follow)), (name.to_bytes(), value), mode)?;
                }
                Way::Node(base) => base.setxattr(path, follow, name, value, how)?,
            }
            Ok(0)
        }) as c_int
    }
}

/// As `amphi_setxattr`, of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_fsetxattr(
    file_handle: AmphiHandle,
    name: *const c_char,
    buffer: *const c_void,
    size: usize,
    how: u32,
) -> c_int {
    border("amphi_fsetxattr", Subject::Path(&|| path_of(file_handle)), || {
        // SAFETY: the program vouches for its string and memory.
        let (name, value, mode) = unsafe { (text(name)?, value(buffer, size)?, mode_of(how)?) };
        match file(file_handle)? {
            File::Cluster(file) => file.fs.setxattr(file.open.ino(), None, (name.to_bytes(), value), mode)?,
            File::Node(file) => file.setxattr(name, value, how)?,
        }
        Ok(0)
    }) as c_int
}

/// The names of the extended attributes, each ended by a zero byte. `size` 0 asks for their length. Returns their
/// length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_listxattr(
    at: AmphiHandle,
    path: *const c_char,
    buffer: *mut c_char,
    size: usize,
    flags: u32,
) -> i64 {
    // SAFETY: the program vouches for its string and memory.
    unsafe {
        on_path("amphi_listxattr", at, path, |way, path| {
            let into = room(buffer.cast(), size)?;
            only(flags, AMPHI_NOFOLLOW)?;
            let follow = flags & AMPHI_NOFOLLOW == 0;
            match way {
                Way::Cluster(cluster, ino) => stored(&cluster.listxattr(ino, Some((path.to_bytes(), follow)))?, into),
                Way::Node(base) => base.listxattr(path, follow, into),
            }
        })
    }
}

/// As `amphi_listxattr`, of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_flistxattr(file_handle: AmphiHandle, buffer: *mut c_char, size: usize) -> i64 {
    border("amphi_flistxattr", Subject::Path(&|| path_of(file_handle)), || {
        // SAFETY: the program vouches for its memory.
        let into = unsafe { room(buffer.cast(), size) }?;
        match file(file_handle)? {
            File::Cluster(file) => stored(&file.fs.listxattr(file.open.ino(), None)?, into),
            File::Node(file) => file.listxattr(into),
        }
    })
}

/// Removes an extended attribute. `flags`: `AMPHI_NOFOLLOW` or 0.
///
/// Errors: those of removexattr(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_removexattr(
    at: AmphiHandle,
    path: *const c_char,
    name: *const c_char,
    flags: u32,
) -> c_int {
    // SAFETY: the program vouches for its strings.
    unsafe {
        on_path("amphi_removexattr", at, path, |way, path| {
            let name = text(name)?;
            only(flags, AMPHI_NOFOLLOW)?;
            let follow = flags & AMPHI_NOFOLLOW == 0;
            match way {
                Way::Cluster(cluster, ino) => {
                    cluster.removexattr(ino, Some((path.to_bytes(), follow)), name.to_bytes())?;
                }
                Way::Node(base) => base.removexattr(path, follow, name)?,
            }
            Ok(0)
        }) as c_int
    }
}

/// As `amphi_removexattr`, of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amphi_fremovexattr(file_handle: AmphiHandle, name: *const c_char) -> c_int {
    border("amphi_fremovexattr", Subject::Path(&|| path_of(file_handle)), || {
        // SAFETY: the program vouches for its string.
        let name = unsafe { text(name) }?;
        match file(file_handle)? {
            File::Cluster(file) => file.fs.removexattr(file.open.ino(), None, name.to_bytes())?,
            File::Node(file) => file.removexattr(name)?,
        }
        Ok(0)
    }) as c_int
}
