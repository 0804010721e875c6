//! Libraries that programs load in front of libc's or of MPI's functions, and launchers of MPI programs.
//!
//! Owns: the places of these libraries, their order in `LD_PRELOAD` among other libraries, and for each launcher the
//! MPI library and the options by which its ranks get them. Does not own: the libraries (`amphi_preload`,
//! `amphi_mpiio`).

use amphi_host::failure::{Failure, Outcome};
use clap::ValueEnum;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// MPI libraries for which there is a shim.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mpi {
    /// Whichever the launcher names
    Auto,
    /// Open MPI
    Openmpi,
    /// MPICH and those with its binary interface
    Mpich,
    /// The standard binary interface of MPI 5
    Abi,
}

impl Mpi {
    /// The file name of its shim.
    pub fn shim(self) -> &'static str {
        match self {
            Mpi::Openmpi => "libamphi_mpiio_openmpi.so",
            Mpi::Abi => "libamphi_mpiio_abi.so",
            Mpi::Mpich | Mpi::Auto => "libamphi_mpiio_mpich.so",
        }
    }
}

/// The variable that names the folders of other file systems whose large requests may go direct.
pub const HYBRID: &str = "AMPHI_HYBRID";

/// Variables of our libraries that the ranks need, too.
const VARIABLES: [&str; 6] =
    ["AMPHI_MPIIO", "AMPHI_MPIIO_HINTS", "AMPHI_MPIIO_STATS", "AMPHI_PRELOAD", HYBRID, "AMPHI_IO_MODE"];

/// The library that reads cached files without calls.
const PRELOAD: &str = "libamphi_preload.so";

/// Returns whether a program starts the ranks of an MPI program.
pub fn is_launcher(program: &OsStr) -> bool {
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let known = ["mpirun", "mpiexec", "orterun", "prterun"];
    known.iter().any(|k| name == *k || name.strip_prefix(k).is_some_and(|rest| rest.starts_with('.')))
}

/// The value of `AMPHI_HYBRID` for these folders: their real paths, since the library compares real paths.
pub fn hybrid_folders(folders: &[PathBuf]) -> Outcome<OsString> {
    let mut all: Vec<OsString> = Vec::new();
    for folder in folders {
        let refused = |why: String| {
            Failure::refused(format!("--hybrid cannot use {}: {why}; name a directory that exists", folder.display()))
        };
        let real = folder.canonicalize().map_err(|e| refused(e.to_string()))?;
        if !real.is_dir() {
            return Err(refused("it is no directory".into()));
        }
        if real.as_os_str().as_bytes().contains(&b':') {
            return Err(refused("its real path contains a colon, which separates folders".into()));
        }
        all.push(real.into_os_string());
    }
    Ok(all.join(OsStr::new(":")))
}

/// The options with which a launcher hands the shim and our variables to the ranks. `set`: a variable that is set for
/// the launcher and not for this process.
pub fn launcher_options(mpi: Mpi, preload: &OsStr, set: Option<&str>) -> Vec<OsString> {
    let mut assignment = OsString::from("LD_PRELOAD=");
    assignment.push(preload);
    if mpi == Mpi::Mpich {
        // Hydra passes the other variables on by itself.
        return ["-genv".into(), "LD_PRELOAD".into(), preload.to_owned()].into();
    }
    let mut options: Vec<OsString> = ["-x".into(), assignment].into();
    for name in VARIABLES.iter().filter(|name| set == Some(**name) || std::env::var_os(name).is_some()) {
        options.extend(["-x".into(), OsString::from(name)]);
    }
    options
}

/// The MPI library of a launcher, from the launcher's own output.
pub fn ask(launcher: &OsStr) -> Outcome<Mpi> {
    let output = Command::new(launcher)
        .arg("--version")
        .output()
        .map_err(|e| Failure::refused(format!("cannot ask {} for its version: {e}", launcher.display())))?;
    let text = String::from_utf8_lossy(&output.stdout).to_lowercase();
    if text.contains("open mpi") || text.contains("open-mpi") || text.contains("openrte") {
        Ok(Mpi::Openmpi)
    } else if text.contains("hydra") || text.contains("mpich") {
        Ok(Mpi::Mpich)
    } else {
        Err(Failure::refused(format!(
            "{} belongs to no MPI library that has a shim (Open MPI, MPICH); --mpi names one whose binary interface it has",
            launcher.display()
        )))
    }
}

/// Finds a shim in the folder that is named, or else where it is installed.
pub fn find_shim(named: Option<&Path>, file: &str) -> Outcome<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_path_buf));
    let from_environment = std::env::var_os("AMPHI_MPIIO_SHIMS").filter(|v| !v.is_empty()).map(PathBuf::from);
    let folders: Vec<PathBuf> = match (named, from_environment) {
        (Some(folder), _) => vec![folder.to_path_buf()],
        (None, Some(folder)) => vec![folder],
        (None, None) => beside.iter().flat_map(|b| [b.join("../lib/amphi"), b.join("../mpiio"), b.clone()]).collect(),
    };
    let found = folders.iter().map(|f| f.join(file)).find(|f| f.is_file());
    let found = found.and_then(|f| f.canonicalize().ok());
    found.ok_or_else(|| {
        let looked: Vec<String> = folders.iter().map(|f| f.display().to_string()).collect();
        Failure::refused(format!("no {file} in {}; `make mpiio` builds it", looked.join(", ")))
    })
}

/// Finds the library that reads cached files without calls: at the path in `AMPHI_PRELOAD_LIBRARY`, or else where it is
/// installed or built.
pub fn find_preload() -> Outcome<PathBuf> {
    let named = std::env::var_os("AMPHI_PRELOAD_LIBRARY").filter(|v| !v.is_empty()).map(PathBuf::from);
    let beside = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_path_buf));
    let places: Vec<PathBuf> = match named {
        Some(named) => vec![named],
        None => {
            let folders = beside.iter().flat_map(|b| [b.clone(), b.join("../lib/amphi"), b.join("../preload")]);
            folders.map(|folder| folder.join(PRELOAD)).collect()
        }
    };
    let found = places.iter().find(|place| place.is_file()).and_then(|place| place.canonicalize().ok());
    found.ok_or_else(|| {
        let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        Failure::refused(format!(
            "no library to preload: looked at {}; `make build` builds it, `make install` installs it, and \
             AMPHI_PRELOAD_LIBRARY names another place",
            looked.join(", ")
        ))
    })
}

/// The value of `LD_PRELOAD` with `first` before and `last` after the present libraries; each library occurs once.
pub fn preload_list(first: Option<&Path>, there: Option<&OsStr>, last: Option<&Path>) -> OsString {
    let there = there.map(OsStr::as_bytes).unwrap_or_default();
    let others = there.split(|b| matches!(b, b':' | b' ')).map(OsStr::from_bytes);
    let own = first.into_iter().chain(last);
    let others = others.filter(|other| !other.is_empty() && !own.clone().any(|own| own == Path::new(other)));
    let [first, last] = [first, last].map(|own| own.map(Path::as_os_str));
    let all: Vec<&OsStr> = first.into_iter().chain(others).chain(last).collect();
    all.join(OsStr::new(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: other preloaded libraries stay, in their order, and ours is loaded once, however deeply programs are
    /// nested. Method: lists.
    #[test]
    fn preloaded_libraries_stand_once() {
        let (shim, own) = (Path::new("/l/shim.so"), Path::new("/l/own.so"));
        let list =
            |first, there: &str| preload_list(first, Some(OsStr::new(there)).filter(|t| !t.is_empty()), Some(own));
        assert_eq!(list(None, ""), "/l/own.so");
        assert_eq!(list(None, "libasan.so:/l/own.so other.so"), "libasan.so:other.so:/l/own.so");
        assert_eq!(list(Some(shim), "a.so::/l/shim.so"), "/l/shim.so:a.so:/l/own.so");
    }

    /// Goal: each launcher gets the shim by its own option, and names with the library's suffix are launchers. Method:
    /// the options themselves are compared.
    #[test]
    fn launchers_get_the_shim_as_an_option() {
        for name in ["mpirun", "/usr/bin/mpirun.openmpi", "mpiexec.hydra", "orterun"] {
            assert!(is_launcher(OsStr::new(name)), "{name}");
        }
        assert!(!is_launcher(OsStr::new("mpirunner")) && !is_launcher(OsStr::new("./app")));
        assert_eq!(launcher_options(Mpi::Mpich, OsStr::new("/a.so"), None), ["-genv", "LD_PRELOAD", "/a.so"]);
        let options = launcher_options(Mpi::Openmpi, OsStr::new("/a.so"), Some(HYBRID));
        assert_eq!(options[..2], ["-x", "LD_PRELOAD=/a.so"]);
        assert!(options[2..].windows(2).any(|pair| pair == ["-x", HYBRID]), "{options:?}");
    }

    /// Goal: folders are named by their real paths, and what the library could not find is refused. Method: a folder
    /// behind a link, a file, nothing, a name with a colon.
    #[test]
    fn folders_of_other_file_systems() {
        let place = tempfile::tempdir().expect("folder");
        let real = place.path().canonicalize().expect("real");
        std::fs::create_dir(place.path().join("a")).expect("made");
        std::os::unix::fs::symlink("a", place.path().join("link")).expect("linked");
        std::fs::write(place.path().join("file"), "").expect("written");
        std::fs::create_dir(place.path().join("b:c")).expect("made");
        let named = [place.path().join("link"), place.path().to_path_buf()];
        let expected = format!("{}:{}", real.join("a").display(), real.display());
        assert_eq!(hybrid_folders(&named).expect("folders"), OsString::from(expected));
        for name in ["file", "none", "b:c"] {
            let error = hybrid_folders(&[place.path().join(name)]).expect_err(name);
            assert!(error.code == 2 && error.text.contains(name), "{error}");
        }
    }

    /// Goal: an absent shim is refused with the folder and the command that builds it. Method: an empty folder.
    #[test]
    fn a_missing_shim_is_refused() {
        let empty = tempfile::tempdir().expect("folder");
        let error = find_shim(Some(empty.path()), Mpi::Mpich.shim()).expect_err("there is none");
        assert!(error.code == 2 && error.text.contains("make mpiio"), "{error}");
        std::fs::write(empty.path().join(Mpi::Mpich.shim()), "").expect("written");
        assert!(find_shim(Some(empty.path()), Mpi::Mpich.shim()).is_ok());
    }
}
