//! The mount table: what is mounted at a path, read without a request to the serving process, which may be dead.

use super::FS_TYPE;
use rustix::fs::{AtFlags, StatxFlags};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// One line of the table.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    device: u64,
    path: Vec<u8>,
    fs_type: Vec<u8>,
}

/// Device number of the topmost file system that is mounted at exactly `path`.
pub(super) fn device_at(path: &Path) -> Option<u64> {
    top_at(path).map(|l| l.device)
}

/// `STATX_MNT_ID_UNIQUE`.
const OWN_NUMBER: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The unique number of the mount at `path`, if the kernel gives one (Linux 6.8). The process that serves the mount is
/// not asked.
pub(super) fn own_number_at(path: &Path) -> Option<u64> {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let seen = rustix::fs::statx(rustix::fs::CWD, path, flags, OWN_NUMBER).ok()?;
    (seen.stx_mask & OWN_NUMBER.bits() != 0).then_some(seen.stx_mnt_id)
}

/// Returns whether an AmphiFS is mounted at exactly `path`.
pub(super) fn is_ours(path: &Path) -> bool {
    top_at(path).is_some_and(|l| l.fs_type == FS_TYPE.as_bytes())
}

/// Returns whether anything with this device number is mounted anywhere. Returns false if the table cannot be read.
pub(crate) fn is_mounted(device: u64) -> bool {
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else { return true };
    table.split(|&b| b == b'\n').filter_map(parse).any(|line| line.device == device)
}

/// A device number as the system writes it: `major:minor`.
pub(super) fn numbers(device: u64) -> String {
    format!("{}:{}", device >> 32, device & u64::from(u32::MAX))
}

fn top_at(path: &Path) -> Option<Line> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    table.split(|&b| b == b'\n').rev().filter_map(parse).find(|l| l.path == path.as_os_str().as_bytes())
}

/// Parses `36 35 98:0 /root /mount/point options [tags] - type source super-options`.
fn parse(line: &[u8]) -> Option<Line> {
    let mut words = line.split(|&b| b == b' ');
    let numbers = std::str::from_utf8(words.nth(2)?).ok()?;
    let (major, minor) = numbers.split_once(':')?;
    let device = (major.parse::<u64>().ok()? << 32) | minor.parse::<u64>().ok()?;
    let path = unescape(words.nth(1)?);
    let fs_type = words.skip_while(|w| *w != b"-").nth(1)?.to_vec();
    Some(Line { device, path, fs_type })
}

/// Undoes the table's octal escapes of blanks, newlines and backslashes.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|d| first == b'\\' && d.iter().all(|b| (b'0'..=b'7').contains(b)));
        match octal {
            Some(d) => {
                out.push(d.iter().fold(0u8, |n, b| n.wrapping_mul(8).wrapping_add(b - b'0')));
                rest = &tail[3..];
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: lines with escapes and tags are read, bad ones skipped. Method: examples.
    #[test]
    fn lines_of_the_table() {
        let line = br"99 1 0:52 / /mnt/a\040b rw,nodev shared:7 master:1 - fuse.amphi amphi rw,user_id=0";
        let want = Line { device: 52, path: b"/mnt/a b".to_vec(), fs_type: b"fuse.amphi".to_vec() };
        assert_eq!(parse(line), Some(want));
        assert_eq!([52, 7 << 32 | 3].map(numbers), ["0:52", "7:3"]);
        for bad in [&b""[..], b"1 2", b"1 2 x:y / /m o - t", b"1 2 3:4 / /m o no separator"] {
            assert_eq!(parse(bad), None);
        }
        assert_eq!(unescape(br"\7\0409\134"), b"\\7 9\\");
    }
}
