//! Samples one mount repeatedly.
//!
//! Owns: the last look, names of busy files, limits of the machine. Does not own: one sample (`cmd::look`), how samples
//! are shown.

use crate::cmd::look::look;
use crate::cmd::{calibrate, open_names};
use amphi_env::{Env, RealEnv};
use amphi_host::control;
use amphi_host::failure::Outcome;
use amphi_view::Snapshot;
use amphi_view::calibration::Limits;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The name of a mount on the screen.
pub(super) fn name_of(path: &Path) -> String {
    let source = control::source_of(path).unwrap_or_default();
    if source.is_empty() { path.display().to_string() } else { format!("{} of {source}", path.display()) }
}

/// Takes samples of one mount, one after the other.
pub(super) struct Looks<'a> {
    path: &'a Path,
    /// The mount point.
    mount: PathBuf,
    env: RealEnv,
    /// The last look.
    pub(super) before: Snapshot,
    limits: Limits,
}

impl<'a> Looks<'a> {
    /// The first look.
    pub(super) fn begin(path: &'a Path, env: RealEnv) -> Outcome<Looks<'a>> {
        let before = look(&path, Duration::from_nanos(env.now().0))?;
        let limits = match calibrate::limits_of(&control::source_of(path).unwrap_or_default()) {
            Some(Ok(limits)) => limits,
            Some(Err(why)) => {
                tracing::warn!("no shares of limits: {why}");
                Limits::default()
            }
            None => Limits::default(),
        };
        let mount = control::mount_of(path).unwrap_or_else(|| path.to_path_buf());
        Ok(Looks { path, mount, env, before, limits })
    }

    /// The next sample, and the one before it.
    pub(super) fn next(&mut self) -> Outcome<(Snapshot, Snapshot)> {
        let mut after = look(&self.path, Duration::from_nanos(self.env.now().0))?;
        after.limits = self.limits;
        // Names are searched for when files appear whose names are not known yet.
        let wanted: BTreeSet<u64> = after.files.iter().map(|file| file.ino).collect();
        after.file_names = std::mem::take(&mut self.before.file_names);
        after.file_names.retain(|ino, _| wanted.contains(ino));
        if wanted.iter().any(|ino| !after.file_names.contains_key(ino)) {
            after.file_names.extend(open_names::paths(&self.mount, &wanted));
        }
        Ok((std::mem::replace(&mut self.before, after.clone()), after))
    }
}
