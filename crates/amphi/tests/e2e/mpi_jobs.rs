//! `amphi run --mpiio`: how the shim of the MPI-IO cache reaches the ranks. The cache itself over both MPI libraries is
//! tested in `amphi-mpiio`.

use crate::harness::amphi;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn script(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Goal: a launcher of either library hands the right shim to its ranks and gets its own arguments unchanged; a program
/// without launcher gets it in its environment; what cannot work is refused with code 2 before anything runs.
/// Method: scripts that say which library they belong to and print what they are given.
#[test]
fn the_shim_reaches_the_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for mpi in ["openmpi", "mpich"] {
        std::fs::write(at(&format!("libamphi_mpiio_{mpi}.so")), "").unwrap();
    }
    let print = "for word in \"$@\"; do echo \"[$word]\"; done; echo \"preload=$LD_PRELOAD\"";
    let launcher = |name: &str, version: &str| {
        script(
            &folder.path().join(name),
            &format!("#!/bin/sh\n[ \"$1\" = --version ] && echo '{version}' && exit\n{print}\n"),
        );
    };
    launcher("mpirun.openmpi", "mpirun.openmpi (OpenRTE) 4.1.4");
    launcher("mpiexec.hydra", "HYDRA build details:");
    launcher("mpirun.other", "Another MPI 1.0");
    let run = |words: &[&str]| {
        let mut command = amphi();
        let output = command.args(["run", "--mpiio", "--shims", &at("")]).args(words).output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.code(), text)
    };
    let (code, text) = run(&["--", &at("mpirun.openmpi"), "-n", "4", "./app", "a b"]);
    let shim = folder.path().canonicalize().unwrap().join("libamphi_mpiio_openmpi.so");
    let expected = format!("[-x]\n[LD_PRELOAD={}]\n[-n]\n[4]\n[./app]\n[a b]\npreload=\n", shim.display());
    assert_eq!((code, text.as_str()), (Some(0), expected.as_str()));
    let (code, text) = run(&[&at("mpiexec.hydra"), "-n", "2", "./app"]);
    let shim = shim.with_file_name("libamphi_mpiio_mpich.so");
    let expected = format!("[-genv]\n[LD_PRELOAD]\n[{}]\n[-n]\n[2]\n[./app]\npreload=\n", shim.display());
    assert_eq!((code, text.as_str()), (Some(0), expected.as_str()));
    script(&folder.path().join("app"), &format!("#!/bin/sh\n{print}\n"));
    let (_, text) = run(&["--mpi", "mpich", &at("app")]);
    assert!(text.contains(&format!("preload={}", shim.display())), "{text}");
    for (words, expected) in [
        (vec![at("app")], "--mpi"),
        (vec![at("mpirun.other")], "no MPI library that has a shim"),
        (vec!["--shims".into(), "/nowhere".into(), at("mpirun.openmpi")], "make mpiio"),
    ] {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = amphi();
        let shims = if words[0] == "--shims" { vec![] } else { vec!["--shims".to_owned(), at("")] };
        let output = command.args(["run", "--mpiio"]).args(shims).args(&words).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && error.contains(expected), "{words:?}: {error}");
    }
}
