//! Source and target of a stage as they are found: which may be copied to which.
//!
//! Owns the refusals before anything is changed: no source, no folder for the target, one inside the other, a target
//! that exists.

use crate::dest::{StageId, temporary};
use crate::dirs::Tree;
use crate::error::{Error, reason, show};
use crate::options::{Existing, Options};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A name in a folder that is open.
pub(crate) struct End {
    /// The folder's path, without symbolic links.
    pub(crate) path: PathBuf,
    pub(crate) base: Arc<OwnedFd>,
    pub(crate) name: OsString,
    /// `None`: the name does not exist.
    pub(crate) stat: Option<Stat>,
}

/// The two ends: source and target.
pub(crate) struct Ends {
    pub(crate) source: End,
    pub(crate) target: End,
    /// An existing target is brought up to date.
    pub(crate) updates: bool,
    pub(crate) id: StageId,
}

impl End {
    fn open(path: PathBuf) -> Result<End, Errno> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        let name = path.file_name().unwrap_or(OsStr::new(".")).to_os_string();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base = Arc::new(fs::openat(fs::CWD, folder, flags, Mode::empty())?);
        let stat = match fs::statat(&base, &*name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(e) => return Err(e),
        };
        Ok(End { path, base, name, stat })
    }

    /// Looks up the present state of both.
    pub(crate) fn look(&self) -> Result<Option<Stat>, Errno> {
        match fs::statat(&self.base, &*self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The tree of this name.
    pub(crate) fn tree(&self) -> Tree {
        Tree::new(self.base.clone(), self.name.clone())
    }

    fn is_dir(&self) -> bool {
        self.stat.is_some_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Directory)
    }

    /// Returns whether it is in the directory `other`, or is that directory.
    fn is_inside(&self, other: &End) -> Result<bool, Errno> {
        let Some(top) = other.stat.filter(|_| other.is_dir()) else { return Ok(false) };
        let id = |s: &Stat| (s.st_dev, s.st_ino);
        if self.stat.is_some_and(|own| id(&own) == id(&top)) {
            return Ok(true);
        }
        let mut at = fs::openat(&self.base, ".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        loop {
            let own = fs::fstat(&at)?;
            if id(&own) == id(&top) {
                return Ok(true);
            }
            let up = fs::openat(&at, "..", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
            if id(&fs::fstat(&up)?) == id(&own) {
                return Ok(false);
            }
            at = up;
        }
    }
}

/// The present or future place of the target.
pub(crate) fn target(path: &Path, updates: bool) -> Result<End, Error> {
    let shown = show(path);
    // An update follows a link to the tree that it brings up to date; a new tree would take the place of the link.
    if updates && let Ok(real) = std::fs::canonicalize(path) {
        return End::open(real)
            .map_err(|e| Error::refused(format!("{shown}: cannot look at the target: {}", reason(e))));
    }
    let Some(name) = path.file_name() else {
        return Err(Error::refused(format!("{shown}: the target needs a name of its own")));
    };
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = std::fs::canonicalize(folder).map_err(|e| {
        Error::refused(format!("{}: cannot use the folder of the target ({e}); make it first", show(folder)))
    })?;
    End::open(folder.join(name))
        .map_err(|e| Error::refused(format!("{shown}: cannot look at the target: {}", reason(e))))
}

/// Finds both ends. A refusal has changed nothing.
pub(crate) fn find(options: &Options) -> Result<Ends, Error> {
    let (from, to) = (show(&options.source), show(&options.target));
    let real = std::fs::canonicalize(&options.source)
        .map_err(|e| Error::refused(format!("{from}: cannot use the source: {e}")))?;
    let source =
        End::open(real).map_err(|e| Error::refused(format!("{from}: cannot look at the source: {}", reason(e))))?;
    let updating = matches!(options.existing, Existing::Update | Existing::UpdateAndDelete);
    let target = target(&options.target, updating)?;
    let inside = |a: &End, b: &End| {
        a.is_inside(b).map_err(|e| Error::refused(format!("{to}: cannot look at its folders: {}", reason(e))))
    };
    if inside(&target, &source)? {
        return Err(Error::refused(format!("{to}: the target is inside the source {from}; choose another place")));
    }
    if inside(&source, &target)? {
        return Err(Error::refused(format!("{from}: the source is inside the target {to}; choose another place")));
    }
    let same = |a: &Stat, b: &Stat| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
    if let (Some(a), Some(b)) = (source.stat, target.stat)
        && same(&a, &b)
    {
        return Err(Error::refused(format!("{to}: source and target are the same file")));
    }
    let updates = updating && target.stat.is_some();
    if updates && source.is_dir() != target.is_dir() {
        let (a, b) = if target.is_dir() { ("a directory", "none") } else { ("no directory", "one") };
        return Err(Error::refused(format!(
            "{to}: is {a} and the source is {b}, so there is nothing to update; --replace puts one in place of the other"
        )));
    }
    let words = [source.path.as_os_str().as_bytes(), &[0, u8::from(updates)]].concat();
    Ok(Ends { id: StageId(crc32c::crc32c(&words)), source, target, updates })
}

impl Ends {
    /// The name under which the target is made.
    pub(crate) fn temporary(&self) -> OsString {
        temporary(&self.target.name, self.id)
    }

    /// The path of a name beside the target.
    pub(crate) fn beside(&self, name: &OsStr) -> PathBuf {
        self.target.path.with_file_name(name)
    }
}
