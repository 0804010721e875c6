//! The names and places of the target's entries during the stage.
//!
//! Owns the names: a new tree is filled under a temporary name of its root; during an update each entry that is copied
//! again gets a temporary name next to the entry that it replaces. Owns the form of these names as well.

use crate::dirs::{Place, Tree};
use crate::entries::{Entry, Source};
use rustix::io::Errno;
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Longest name that Linux file systems take.
const NAME_MAX: usize = 255;
/// The suffix of a journal behind the name of its tree.
pub(crate) const JOURNAL: &str = ".journal";
const MARK: &str = ".stage-";
/// Digits of an id.
const ID_DIGITS: usize = 8;

/// The number of a stage: the same command has the same number, so that it finds its earlier files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StageId(pub(crate) u32);

/// The prefix of a temporary name of any stage: `.NAME.stage-`. If the name would become too long, it consists of the
/// beginning and a checksum.
fn beginning(name: &OsStr) -> Vec<u8> {
    let name = name.as_bytes();
    let room = NAME_MAX - 1 - MARK.len() - ID_DIGITS - JOURNAL.len();
    let mut out = vec![b'.'];
    if name.len() <= room {
        out.extend(name);
    } else {
        out.extend(&name[..room - 9]);
        out.extend(format!("~{:08x}", crc32c::crc32c(name)).bytes());
    }
    out.extend(MARK.bytes());
    out
}

/// The name `.NAME.stage-ID`.
pub(crate) fn temporary(name: &OsStr, id: StageId) -> OsString {
    let mut out = beginning(name);
    out.extend(format!("{:08x}", id.0).bytes());
    OsString::from_vec(out)
}

/// The stage to which a temporary name for `name` belongs, also the name of its journal.
pub(crate) fn stage_of(name: &OsStr, found: &OsStr) -> Option<StageId> {
    let rest = found.as_bytes().strip_prefix(beginning(name).as_slice())?;
    let rest = rest.strip_suffix(JOURNAL.as_bytes()).unwrap_or(rest);
    let digits = std::str::from_utf8(rest).ok().filter(|d| d.len() == ID_DIGITS && !d.starts_with('+'))?;
    u32::from_str_radix(digits, 16).ok().map(StageId)
}

/// Returns whether a name can be the temporary name of an entry of this stage.
pub(crate) fn is_of_stage(found: &OsStr, id: StageId) -> bool {
    let end = format!("{MARK}{:08x}", id.0);
    found.as_bytes().starts_with(b".") && found.as_bytes().ends_with(end.as_bytes())
}

/// How names become those of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// The root has a temporary name until the end.
    Whole,
    /// Each entry that is copied again has a temporary name.
    Each(StageId),
}

/// The side of the target.
pub(crate) struct Dest {
    pub(crate) tree: Tree,
    pub(crate) naming: Naming,
}

impl Dest {
    /// The final place of an entry, below the root as it is named now.
    pub(crate) fn place<'a>(&'a self, source: &Source, entry: &'a Entry) -> Result<Place<'a>, Errno> {
        match entry.dir {
            Some(id) => Ok(Place { dir: self.tree.dir(&source.names, id)?, name: Cow::Borrowed(&entry.name) }),
            None => Ok(Place { dir: self.tree.base().clone(), name: Cow::Borrowed(self.tree.root()) }),
        }
    }

    /// The place where an entry that is no directory is made.
    pub(crate) fn working<'a>(&'a self, source: &Source, entry: &'a Entry) -> Result<Place<'a>, Errno> {
        let place = self.place(source, entry)?;
        match self.naming {
            Naming::Whole => Ok(place),
            Naming::Each(id) => Ok(Place { name: Cow::Owned(temporary(&place.name, id)), dir: place.dir }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: temporary names fit, differ for long names, and are recognised. Method: short, long and foreign names.
    #[test]
    fn temporary_names() {
        let id = StageId(0xab);
        assert_eq!(temporary(OsStr::new("x"), id), ".x.stage-000000ab");
        let (a, b) = ("a".repeat(255), format!("{}b", "a".repeat(254)));
        let (long, other) = (temporary(OsStr::new(&a), id), temporary(OsStr::new(&b), id));
        assert!(long.len() + JOURNAL.len() <= NAME_MAX && long != other);
        for name in ["x", a.as_str()] {
            let found = temporary(OsStr::new(name), id);
            assert_eq!(stage_of(OsStr::new(name), &found), Some(id));
            let mut journal = found.clone();
            journal.push(JOURNAL);
            assert_eq!(stage_of(OsStr::new(name), &journal), Some(id));
            assert!(is_of_stage(&found, id) && !is_of_stage(&found, StageId(1)));
        }
        for name in [".x.stage-", ".x.stage-+00000ab", ".x.stage-000000abc", ".y.stage-000000ab", "x.stage-000000ab"] {
            assert_eq!(stage_of(OsStr::new("x"), OsStr::new(name)), None, "{name}");
        }
    }
}
