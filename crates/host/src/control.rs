//! Talking to a mount: hidden extended attributes of its root, so that no further socket or file is needed.
//!
//! The client core defines them (docs/OPERATIONS.md lists them); only root and the owner of the mount process may use
//! them. The kernel checks them before: to change something, the caller needs write permission on the named file or
//! directory, which may be any one of the mount.

use crate::failure::{Failure, Outcome};
use amphi_client::status::STATUS_PART_BYTES;
use rustix::fs::{StatVfsMountFlags, XattrFlags, getxattr, setxattr, statvfs};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Mount points of AmphiFS on this machine, from the kernel's table of mounts.
pub fn mounts() -> Vec<PathBuf> {
    mounts_in(&std::fs::read("/proc/self/mounts").unwrap_or_default())
}

/// Names of mount points are bytes, even for other file systems.
fn mounts_in(table: &[u8]) -> Vec<PathBuf> {
    table
        .split(|b| *b == b'\n')
        .filter_map(|line| {
            let mut fields = line.split(|b| *b == b' ');
            let (_, dir, kind) = (fields.next()?, fields.next()?, fields.next()?);
            (kind == b"fuse.amphi").then(|| PathBuf::from(OsString::from_vec(unescape(dir))))
        })
        .collect()
}

/// Options, in the mount table, of the topmost AmphiFS that is mounted at exactly `dir`.
pub fn options_of(dir: &Path) -> Option<String> {
    let table = std::fs::read("/proc/self/mounts").ok()?;
    table.split(|b| *b == b'\n').rev().find_map(|line| {
        let mut fields = line.split(|b| *b == b' ').skip(1);
        let (at, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = kind == b"fuse.amphi" && unescape(at) == dir.as_os_str().as_bytes();
        is_it.then(|| String::from_utf8_lossy(options).into_owned())
    })
}

/// The source in the mount table of the AmphiFS that contains `path`: addresses of servers, or the folder of
/// `amphi up`. Sends no request to the mount.
pub fn source_of(path: &Path) -> Option<String> {
    source_in(&std::fs::read("/proc/self/mounts").ok()?, &std::path::absolute(path).ok()?)
}

/// The mount point of the AmphiFS that contains `path`. Sends no request to the mount.
pub fn mount_of(path: &Path) -> Option<PathBuf> {
    Some(mount_in(&std::fs::read("/proc/self/mounts").ok()?, &std::path::absolute(path).ok()?)?.0)
}

/// Mount point and source.
fn mount_in(table: &[u8], path: &Path) -> Option<(PathBuf, String)> {
    let mounts = table.split(|b| *b == b'\n').filter_map(|line| {
        let mut fields = line.split(|b| *b == b' ');
        let (source, dir, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == b"fuse.amphi").then(|| (PathBuf::from(OsString::from_vec(unescape(dir))), unescape(source)))
    });
    let (dir, source) = mounts.filter(|(dir, _)| path.starts_with(dir)).max_by_key(|(dir, _)| dir.as_os_str().len())?;
    Some((dir, String::from_utf8_lossy(&source).into_owned()))
}

fn source_in(table: &[u8], path: &Path) -> Option<String> {
    mount_in(table, path).map(|(_, source)| source)
}

/// The kernel writes blanks and backslashes of mount points as `\040`, `\134` ...
fn unescape(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let octal = bytes.get(i + 1..i + 4).and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        match (bytes[i], octal) {
            (b'\\', Some(byte)) => {
                out.push(byte);
                i += 4;
            }
            (byte, _) => {
                out.push(byte);
                i += 1;
            }
        }
    }
    out
}

/// The mount that was named, or the only existing mount. `how` describes how to name one, such as ` with -m`, for the
/// error that there are several.
pub fn find_mount(named: Option<PathBuf>, how: &str) -> Outcome<PathBuf> {
    if let Some(path) = named {
        return Ok(path);
    }
    let mut all = mounts();
    match all.len() {
        1 => Ok(all.remove(0)),
        0 => Err(Failure::refused("no AmphiFS is mounted here; start one with: amphi up --data DIR --mount DIR")),
        n => {
            let list: Vec<String> = all.iter().map(|p| p.display().to_string()).collect();
            Err(Failure::refused(format!("{n} AmphiFS mounts here, name one of them{}: {}", how, list.join(" "))))
        }
    }
}

/// The reason why an attribute could not be had or changed, which takes the right to `access` the file.
fn explain(path: &Path, what: &str, access: &str, e: Errno) -> Failure {
    let (shown, what) = (path.display(), what.strip_prefix("user.amphi.").unwrap_or(what));
    let kind = std::fs::metadata(path).map(|m| m.file_type()).ok();
    let special = kind.is_some_and(|k| !k.is_file() && !k.is_dir());
    match e {
        Errno::NOENT => Failure::refused(format!("{shown}: no such file or directory")),
        // The kernel supports such attributes only on files and directories.
        Errno::OPNOTSUPP | Errno::NODATA | Errno::PERM if special => {
            Failure::refused(format!("{shown}: is neither a file nor a directory"))
        }
        Errno::OPNOTSUPP | Errno::NODATA | Errno::NOSYS => {
            Failure::refused(format!("{shown}: is not on an AmphiFS mount"))
        }
        // The kernel checks the file before the mount gets the request.
        Errno::ACCESS if kind.is_some() && !matches!(what, "layout" | "mode") => Failure::refused(format!(
            "permission denied: this needs the right to {access} {shown}; name a file or directory of your own on this mount"
        )),
        Errno::PERM | Errno::ACCESS => Failure::refused(format!(
            "{shown}: permission denied: {what} is for root, the owner of the mount and, for their own files, their owners"
        )),
        Errno::ROFS => Failure::refused(format!(
            "{shown}: is mounted read-only, so that {what} cannot be set; --set of the mount does it for tunables, and other mounts can"
        )),
        Errno::NOTCONN => Failure::broken(format!("{shown}: the mount's process has died; unmount it")),
        Errno::IO | Errno::TIMEDOUT if what.starts_with("tunables") => Failure::broken(format!(
            "{shown}: the servers cannot be asked for theirs ({e}); name tunables of the mount alone, such as 'hybrid.*'"
        )),
        e => Failure::broken(format!("{shown}: {what}: {e}")),
    }
}

/// Reads a control attribute of `path`.
pub fn read(path: &Path, name: &str) -> Outcome<String> {
    read_if_any(path, name)?.ok_or_else(|| explain(path, name, "read", Errno::NODATA))
}

/// Reads a control attribute of `path` that may not exist.
pub fn read_if_any(path: &Path, name: &str) -> Outcome<Option<String>> {
    Ok(read_bytes(path, name)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// Reads a control attribute of `path` that may not exist, as bytes.
pub fn read_bytes(path: &Path, name: &str) -> Outcome<Option<Vec<u8>>> {
    let mut buf = vec![0u8; 65_536];
    match getxattr(path, name, &mut buf[..]) {
        Ok(n) => {
            buf.truncate(n);
            Ok(Some(buf))
        }
        Err(Errno::NODATA) => Ok(None),
        Err(e) => Err(explain(path, name, "read", e)),
    }
}

/// Writes a control attribute of `path`. `refusal` returns the message for a refused value, or for a refusal at this
/// moment (`Errno::BUSY`).
pub fn write(path: &Path, name: &str, value: &str, refusal: impl FnOnce(Errno) -> String) -> Outcome {
    match setxattr(path, name, value.as_bytes(), XattrFlags::empty()) {
        Ok(()) => Ok(()),
        Err(e @ (Errno::INVAL | Errno::RANGE | Errno::BUSY | Errno::EXIST | Errno::NOTEMPTY)) => {
            Err(Failure::refused(refusal(e)))
        }
        Err(e) => Err(explain(path, name, "write", e)),
    }
}

/// Writes a control attribute whose value is always valid: a refusal of the mount is a failure.
pub fn command(path: &Path, name: &str, value: &str) -> Outcome {
    setxattr(path, name, value.as_bytes(), XattrFlags::empty()).map_err(|e| explain(path, name, "write", e))
}

/// Makes all data stable that programs have written on the mount of `path`, through mappings too. A read-only mount
/// writes nothing.
pub fn sync(path: &Path) -> Outcome {
    if statvfs(path).is_ok_and(|s| s.f_flag.contains(StatVfsMountFlags::RDONLY)) {
        return Ok(());
    }
    command(path, "user.amphi.sync", "all")
}

/// Reads a control attribute that may be longer than an attribute can be: `NAME` is its beginning, `NAME.from.N`
/// continues at byte N of it.
pub fn read_long(path: &Path, name: &str) -> Outcome<String> {
    let mut text = read_bytes(path, name)?.ok_or_else(|| explain(path, name, "read", Errno::NODATA))?;
    let mut last = text.len();
    while last >= STATUS_PART_BYTES {
        let more = read_bytes(path, &format!("{name}.from.{}", text.len()))?.unwrap_or_default();
        last = more.len();
        text.extend(more);
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: mount points with blanks are found, and beside names that are no UTF-8. Method: the kernel's escapes; a
    /// table of two mounts.
    #[test]
    fn kernel_escapes() {
        assert_eq!(unescape(b"/a\\040b\\134c"), b"/a b\\c");
        assert_eq!(unescape(b"/plain\\"), b"/plain\\");
        let table = b"/dev/sdb1 /media/caf\xe9 vfat rw 0 0\n/data /fs\xe9 fuse.amphi rw 0 0\n";
        assert_eq!(mounts_in(table), [PathBuf::from(OsString::from_vec(b"/fs\xe9".to_vec()))]);
        let table =
            b"tcp:a:1 /m fuse.amphi rw 0 0\n/my\\040data /m/in fuse.amphi rw 0 0\n/dev/sda /m/in/x ext4 rw 0 0\n";
        let of = |path: &str| source_in(table, Path::new(path));
        assert_eq!(of("/m/file").as_deref(), Some("tcp:a:1"));
        assert_eq!(of("/m/in/dir").as_deref(), Some("/my data"));
        assert_eq!(of("/mother"), None);
    }
}
