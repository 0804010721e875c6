//! `amphi run --mpiio`: how the shim of the MPI-IO cache reaches the ranks, and the cache without MPI on two mounts.
//! The cache itself over both MPI libraries is tested in `amphi-mpiio`, jobs on two mounts in `mpi_mounts`.

use crate::harness::{Place, amphi, counter};
use amphi_mpiio::backend::Backend;
use amphi_mpiio::backend::posix::{Direct, PosixFile};
use amphi_mpiio::file::idle::Looker;
use amphi_mpiio::file::{CachedFile, Extent, Settings};
use amphi_mpiio::pace::Futex;
use amphi_mpiio::segment::{Geometry, Segment};
use std::ffi::CString;
use std::io::IoSlice;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn script(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Goal: a launcher of either library gives the right shim to its ranks and gets its own arguments unchanged. A program
/// without a launcher gets the shim in its environment. A command that cannot work is refused with code 2 before
/// anything runs. Method: scripts that identify themselves as one of the MPI libraries and print what they are given.
#[test]
fn the_shim_reaches_the_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for mpi in ["openmpi", "mpich", "abi"] {
        std::fs::write(at(&format!("libamphi_mpiio_{mpi}.so")), "").unwrap();
    }
    // The preload library, which is listed behind the shim where it is installed.
    let other = folder.path().join("libamphi_preload.so");
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
        command.env("AMPHI_PRELOAD_LIBRARY", &other).env_remove("LD_PRELOAD");
        let output = command.args(["run", "--mpiio", "--shims", &at("")]).args(words).output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.code(), text)
    };
    let (code, text) = run(&["--", &at("mpirun.openmpi"), "-n", "4", "./app", "a b"]);
    let shim = folder.path().canonicalize().unwrap().join("libamphi_mpiio_openmpi.so");
    let expected = format!("[-x]\n[LD_PRELOAD={}]\n[-n]\n[4]\n[./app]\n[a b]\npreload=\n", shim.display());
    assert_eq!((code, text.as_str()), (Some(0), expected.as_str()));
    std::fs::write(&other, "").unwrap();
    let both = format!("{}:{}", shim.display(), other.canonicalize().unwrap().display());
    let (code, text) = run(&["--", &at("mpirun.openmpi"), "./app"]);
    assert_eq!((code, text), (Some(0), format!("[-x]\n[LD_PRELOAD={both}]\n[./app]\npreload=\n")));
    std::fs::remove_file(&other).unwrap();
    let (code, text) = run(&[&at("mpiexec.hydra"), "-n", "2", "./app"]);
    let shim = shim.with_file_name("libamphi_mpiio_mpich.so");
    let expected = format!("[-genv]\n[LD_PRELOAD]\n[{}]\n[-n]\n[2]\n[./app]\npreload=\n", shim.display());
    assert_eq!((code, text.as_str()), (Some(0), expected.as_str()));
    let (code, text) = run(&["--mpi", "abi", &at("mpiexec.hydra"), "-n", "2", "./app"]);
    let expected = expected.replace("_mpich.so", "_abi.so");
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

/// Goal: two nodes of a job that write runs of their own in turn do not call back each other's locks. A reader outside
/// the job sees what the cache has written. Method: the cache's backend on two mounts, with exact locks and without
/// them. The mounts' counters and a plain read are checked.
#[test]
fn nodes_of_a_job_keep_their_locks() {
    const RUN: usize = 256 << 10;
    let place = Place::new();
    let _server = place.server(&[]);
    let _mounts = [place.mount_at("a", &[]), place.mount_at("b", &[])];
    let folders = [place.path("a"), place.path("b")];
    let memory = vec![7u8; RUN + 4096];
    let aligned = memory.as_ptr().align_offset(4096);
    let callbacks = |name: &str, exact: bool| {
        std::fs::write(folders[1].join(name), "").unwrap();
        let nodes = folders.each_ref().map(|folder| {
            let path = CString::new(folder.join(name).as_os_str().as_bytes()).unwrap();
            let mut file = PosixFile::open(&path, true, true, Direct::Automatic).unwrap();
            if exact {
                file.want_exact_locks();
            }
            file
        });
        let before: u64 = folders.iter().map(|f| counter(f, "lock_callback")).sum();
        for run in 0..16 {
            nodes[run % 2].write_at(&[IoSlice::new(&memory[aligned..aligned + RUN])], (run * RUN) as u64).unwrap();
        }
        assert!(nodes.iter().all(|n| n.direct_requests() == 8), "blocks of a mount go direct");
        // A part that is no whole block uses the mount's cache, and its locks grow.
        for run in 0..16 {
            nodes[run % 2].write_at(&[IoSlice::new(&memory[..1000])], (run * RUN) as u64).unwrap();
        }
        let after: u64 = folders.iter().map(|f| counter(f, "lock_callback")).sum();
        for folder in &folders {
            let seen = std::fs::read(folder.join(name)).unwrap();
            assert!(seen.len() == 16 * RUN && seen.iter().all(|b| *b == 7), "{name} through {}", folder.display());
        }
        after - before
    };
    // The mount that made the file has a lock on all of it, which is called back once.
    assert_eq!(callbacks("exact", true), 1);
    let grown = callbacks("grown", false);
    assert!(grown > 1, "nothing to tell the two apart: {grown}");
}

/// A node of a job with one rank, and its thread, which writes nothing before a request.
fn member(path: &Path) -> (CachedFile, Looker) {
    const NEVER: Duration = Duration::from_secs(100_000);
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let settings = Settings {
        readable: true,
        writable: true,
        bypass_bytes: 1 << 30,
        stream_bytes: 0,
        aside_bytes: 0,
        merge_parts: false,
        run_bytes: 64 << 10,
        prefetch_bytes: 0,
    };
    let open = || PosixFile::open(&path, true, true, Direct::Automatic).unwrap();
    let segment = Segment::create(Geometry::new(1, 64 << 10, 8 << 20), 0).unwrap();
    let acting = segment.again().unwrap();
    let file = CachedFile::new(segment, Box::new(open()), settings, Arc::new(Futex));
    file.offer_descriptors();
    let mut backend = open();
    let descriptors = acting.header().descriptors.each_ref().map(|fd| fd.load(std::sync::atomic::Ordering::SeqCst));
    backend.share(std::process::id() as i32, descriptors).unwrap();
    let acting = CachedFile::new(acting, Box::new(backend), settings, Arc::new(Futex));
    (file, Looker::start(acting, NEVER).unwrap())
}

/// Goal: under the group lock the nodes of a job do not call back each other's locks, although their runs alternate and
/// end within blocks. A plain reader, on whichever mount, sees every write that had ended, though the cache had written
/// nothing. After the next sync the cache works as before. Method: two nodes on two mounts with dirty pages, and a
/// reader on each mount in turn. The mounts' counters are checked.
#[test]
fn an_outside_reader_makes_the_job_write() {
    const RUN: u64 = 64 << 10;
    const RUNS: u64 = 20;
    let place = Place::new();
    let _server = place.server(&[]);
    let _mounts = [place.mount_at("a", &[]), place.mount_at("b", &[])];
    let paths = [place.path("a").join("f"), place.path("b").join("f")];
    std::fs::write(&paths[0], "").unwrap();
    let callbacks = || -> u64 { ["a", "b"].iter().map(|m| counter(&place.path(m), "lock_callback")).sum() };
    let (mut files, mut lookers): (Vec<_>, Vec<_>) = paths.iter().map(|path| member(path)).unzip();
    files.iter_mut().for_each(|file| file.join_group(99).unwrap());
    let before = callbacks();
    for round in 1..=4u8 {
        let mut expected = Vec::new();
        for run in 0..RUNS {
            // The last run ends within a block.
            let length = if run + 1 == RUNS { RUN - 100 } else { RUN };
            let bytes: Vec<u8> = (0..length).map(|i| (i / 7) as u8 ^ run as u8 ^ round).collect();
            let file = &mut files[run as usize % 2];
            let pieces = bytes.chunks(1000).enumerate();
            for (piece, part) in pieces {
                let offset = run * RUN + piece as u64 * 1000;
                file.write(&[Extent { offset, length: part.len() as u64 }], part).unwrap();
            }
            expected.extend(bytes);
        }
        if round == 1 {
            // The flush is the same as at a sync.
            files.iter_mut().for_each(|file| file.flush_share(0, 1).unwrap());
            assert_eq!(callbacks(), before, "no node asks a lock of another one back");
            continue;
        }
        let seen = std::fs::read(&paths[round as usize % 2]).unwrap();
        assert!(seen == expected, "round {round}: {} of {} bytes", seen.len(), expected.len());
        files.iter_mut().for_each(|file| file.flush_share(0, 1).unwrap());
        files.iter_mut().for_each(CachedFile::rejoin_group);
    }
    let yields: u64 = lookers.iter().map(|looker| looker.stats().yields).sum();
    assert_eq!(yields, 6, "each node has left for each of three readers");
    lookers.iter_mut().for_each(Looker::stop);
    files.iter().for_each(CachedFile::leave_group);
    assert_eq!(std::fs::read(&paths[0]).unwrap().len() as u64, RUN * RUNS - 100);
}
