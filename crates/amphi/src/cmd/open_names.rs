//! Paths of files that processes of this machine have open on a mount.
//!
//! Owns: finding them in `/proc`, without a request to the mount. Does not own: which files are wanted.
//!
//! A mount knows files by their inode numbers alone. The search covers only processes whose files the caller may see.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Most descriptors that are examined.
const DESCRIPTORS_MAX: usize = 100_000;

/// The paths of inodes of the mount at `mount`: of those among `inodes` that some process has open.
pub fn paths(mount: &Path, wanted: &BTreeSet<u64>) -> BTreeMap<u64, String> {
    let mut found = BTreeMap::new();
    let mut left = DESCRIPTORS_MAX;
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let is_process = process.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok());
        if !is_process {
            continue;
        }
        for descriptor in std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            if found.len() == wanted.len() || left == 0 {
                return found;
            }
            left -= 1;
            let Ok(path) = std::fs::read_link(descriptor.path()) else { continue };
            if !path.starts_with(mount) {
                continue;
            }
            let about = process.path().join("fdinfo").join(descriptor.file_name());
            let about = std::fs::read_to_string(about).unwrap_or_default();
            let ino = about.lines().find_map(|line| line.strip_prefix("ino:")?.trim().parse().ok());
            if let Some(ino) = ino.filter(|ino| wanted.contains(ino)) {
                // Control characters are replaced, because a terminal would execute them.
                let shown = path.display().to_string().replace(char::is_control, "?");
                found.insert(ino, shown);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    /// Goal: an open file is found by its number, and not one of another folder. Method: a file of this process.
    #[test]
    fn open_files_are_found() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut file = tempfile::NamedTempFile::new_in(folder.path()).expect("a file");
        std::io::Write::write_all(&mut file, b"x").expect("write");
        let ino = file.as_file().metadata().expect("stat").ino();
        let wanted = BTreeSet::from([ino]);
        let found = paths(folder.path(), &wanted);
        assert_eq!(found, [(ino, file.path().display().to_string())].into());
        assert!(paths(Path::new("/nowhere"), &wanted).is_empty());
    }
}
