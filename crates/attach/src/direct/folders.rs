//! The folders below which large requests of programs may go direct, and the mode that was asked for.
//!
//! Owns: the text of `AMPHI_HYBRID`, copied when the program starts, and the comparison of paths with it. Does not own:
//! the path of a descriptor (`file`).
//!
//! Paths are compared as the kernel shows them (`/proc/self/fd`), so the folders must be absolute and without symbolic
//! links. A folder that is written otherwise never matches, and its files stay buffered.

use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

/// Bytes of all names, with the colons between them. A longer list is ignored.
const TEXT_MAX: usize = 4096;

static TEXT: [AtomicU8; TEXT_MAX] = [const { AtomicU8::new(0) }; TEXT_MAX];
static LEN: AtomicUsize = AtomicUsize::new(0);

/// Names the folders, separated by colons. Returns whether there is any.
pub(crate) fn set(text: &[u8]) -> bool {
    if text.len() > TEXT_MAX {
        return false;
    }
    for (place, byte) in TEXT.iter().zip(text) {
        place.store(*byte, Relaxed);
    }
    LEN.store(text.len(), Relaxed);
    text.split(|byte| *byte == b':').any(|folder| folder.first() == Some(&b'/'))
}

/// Whether a path is one of the folders or below it.
pub(crate) fn contain(path: &[u8]) -> bool {
    let text = TEXT.get(..LEN.load(Relaxed)).unwrap_or_default();
    text.split(|byte| byte.load(Relaxed) == b':').any(|folder| is_below(folder, path))
}

fn is_below(folder: &[AtomicU8], path: &[u8]) -> bool {
    let is_slash = |byte: &AtomicU8| byte.load(Relaxed) == b'/';
    if !folder.first().is_some_and(is_slash) {
        return false;
    }
    let kept = folder.iter().rposition(|byte| !is_slash(byte)).map_or(0, |last| last + 1);
    let (folder, rest) = (folder.get(..kept).unwrap_or_default(), path.get(kept..));
    let is_equal = folder.iter().zip(path).all(|(a, b)| a.load(Relaxed) == *b);
    is_equal && rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: exactly what lies below a named folder matches. Method: a table.
    #[test]
    fn paths_below_folders() {
        let _turn = crate::direct::tests::TURN.lock();
        assert!(!set(b"") && !set(b"data:x/y") && !set(&[b'/'; TEXT_MAX + 1]));
        assert!(set(b"/data/run:/scratch//:rel"));
        for (path, expected) in [
            ("/data/run", true),
            ("/data/run/a/b", true),
            ("/data/run/a (deleted)", true),
            ("/data/runs", false),
            ("/data", false),
            ("/scratch/x", true),
            ("/scratch", true),
            ("/scratc", false),
            ("rel/x", false),
            ("", false),
            ("pipe:[17]", false),
        ] {
            assert_eq!(contain(path.as_bytes()), expected, "{path}");
        }
        assert!(set(b"/"));
        assert!(contain(b"/x/y") && contain(b"/") && !contain(b"socket:[1]"));
        set(b"");
        assert!(!contain(b"/x"));
    }
}
