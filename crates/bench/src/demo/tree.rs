//! The demo's source tree: what real source code this machine has, copied, compared, listed, deleted.

use super::bar;
use super::stop::Stop;
use amphi_host::failure::{During, Failure, Outcome};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// A tree put together from folders of the machine.
pub struct Source {
    /// Regular files and symbolic links: where each is and its place in the copy.
    pub files: Vec<(PathBuf, PathBuf)>,
    /// Directories of the copy, parents first.
    dirs: Vec<PathBuf>,
    /// Bytes of all regular files.
    pub bytes: u64,
}

/// Sources of the crates this program was built from, C headers, scripts: the first folders that together hold
/// at least `least` files, not more than a fifth over it.
pub fn choose(least: usize) -> Outcome<Source> {
    let home =
        std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|h| h + "/.cargo")).unwrap_or_default();
    let mut source = Source { files: Vec::new(), dirs: Vec::new(), bytes: 0 };
    let roots = [
        format!("{home}/registry/src"),
        "/usr/include".into(),
        "/usr/share/perl".into(),
        "/usr/lib/python3".into(),
        "/usr/share".into(),
    ];
    for (i, root) in roots.iter().enumerate() {
        if source.files.len() < least && Path::new(root).is_dir() {
            gather(Path::new(root), &PathBuf::from(format!("part{i}")), least + least / 5, &mut source);
        }
    }
    if source.files.len() < least {
        return Err(Failure::refused(format!(
            "this machine has only {} source files in {}; ask for fewer with --files",
            source.files.len(),
            roots.join(", ")
        )));
    }
    Ok(source)
}

fn gather(dir: &Path, to: &Path, most: usize, source: &mut Source) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    source.dirs.push(to.to_path_buf());
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(|e| e.file_name());
    for e in entries {
        if source.files.len() >= most {
            return;
        }
        let (Ok(kind), at) = (e.file_type(), to.join(e.file_name())) else { continue };
        if kind.is_dir() {
            gather(&e.path(), &at, most, source);
        } else if kind.is_symlink() {
            source.files.push((e.path(), at));
        } else if kind.is_file()
            && let Ok(meta) = e.metadata()
        {
            source.bytes += meta.len();
            source.files.push((e.path(), at));
        }
    }
}

/// Copies the tree to `to`.
pub fn copy(source: &Source, to: &Path, stop: &Stop) -> Outcome {
    for d in &source.dirs {
        fs::create_dir_all(to.join(d)).during(|| format!("make {}", to.join(d).display()))?;
    }
    let progress = bar("copying", source.files.len() as u64);
    for (from, at) in &source.files {
        stop.check()?;
        let target = to.join(at);
        if from.is_symlink() {
            let link = fs::read_link(from).during(|| format!("read {}", from.display()))?;
            symlink(link, &target).during(|| format!("link {}", target.display()))?;
        } else {
            fs::copy(from, &target).during(|| format!("copy to {}", target.display()))?;
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(())
}

/// Compares every file, its permissions and every link target with the original.
pub fn compare(source: &Source, copy: &Path, stop: &Stop) -> Outcome {
    let progress = bar("comparing", source.files.len() as u64);
    for (from, at) in &source.files {
        stop.check()?;
        let target = copy.join(at);
        if from.is_symlink() {
            let same = fs::read_link(from).ok() == fs::read_link(&target).ok();
            if !same {
                return Err(Failure::broken(format!("{}: link differs from {}", target.display(), from.display())));
            }
        } else {
            let a = fs::read(from).during(|| format!("read {}", from.display()))?;
            let b = fs::read(&target).during(|| format!("read {}", target.display()))?;
            if a != b {
                let at = a.iter().zip(&b).position(|(x, y)| x != y).unwrap_or(a.len().min(b.len()));
                return Err(Failure::broken(format!(
                    "{}: differs from {} at byte {at} ({} and {} bytes)",
                    target.display(),
                    from.display(),
                    b.len(),
                    a.len()
                )));
            }
            let mode = |p: &Path| fs::metadata(p).map(|m| m.permissions().mode() & 0o7777).ok();
            if mode(from) != mode(&target) {
                return Err(Failure::broken(format!(
                    "{}: permissions differ from {}",
                    target.display(),
                    from.display()
                )));
            }
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(())
}

/// Lists everything below `copy`, with a stat of each; as many entries as the tree has.
pub fn list_all(source: &Source, copy: &Path) -> Outcome<usize> {
    let (listed, there) = (list(copy)?, source.files.len() + source.dirs.len());
    if listed == there {
        Ok(listed)
    } else {
        Err(Failure::broken(format!("{}: {listed} entries are listed, the tree has {there}", copy.display())))
    }
}

/// Counts every entry below `dir`, with a stat of each.
pub fn list(dir: &Path) -> Outcome<usize> {
    let mut count = 0;
    for e in fs::read_dir(dir).during(|| format!("list {}", dir.display()))? {
        let e = e.during(|| format!("list {}", dir.display()))?;
        let meta = e.metadata().during(|| format!("stat {}", e.path().display()))?;
        count += 1;
        if meta.is_dir() {
            count += list(&e.path())?;
        }
    }
    Ok(count)
}

/// Deletes the tree and checks that it is gone.
pub fn delete(dir: &Path) -> Outcome {
    fs::remove_dir_all(dir).during(|| format!("delete {}", dir.display()))?;
    match dir.symlink_metadata() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(Failure::broken(format!("{}: still there after deleting it", dir.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a listing that lacks a file, or has one too many, is no listing of the tree. Method: a small tree, its
    /// copy, a name taken out and one put in.
    #[test]
    fn listings_are_compared() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let (from, copied) = (dir.path().join("from"), dir.path().join("copy"));
        fs::create_dir_all(from.join("a/b")).expect("folders");
        for name in ["x", "a/y", "a/b/z"] {
            fs::write(from.join(name), name).expect("file");
        }
        let mut source = Source { files: Vec::new(), dirs: Vec::new(), bytes: 0 };
        gather(&from, Path::new("part"), 100, &mut source);
        copy(&source, &copied, &Stop::default()).expect("copied");
        assert_eq!(list_all(&source, &copied).ok(), Some(6));
        fs::remove_file(copied.join("part/a/y")).expect("removed");
        assert!(list_all(&source, &copied).is_err());
        fs::write(copied.join("part/a/y"), "again").expect("file");
        fs::write(copied.join("part/more"), "").expect("file");
        assert!(list_all(&source, &copied).is_err());
    }
}
