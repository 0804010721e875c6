//! The Python package on two real mounts, as far as the system's Python alone runs it. `scripts/python` runs all of it,
//! with fsspec, numpy, h5py, zarr and the types.

use crate::harness::Place;
use std::path::Path;
use std::process::{Command, Stdio};

/// Goal: the package works against this build: files and their hints, attributes, checkpoints with a kill at each step,
/// and its example of several processes. Method: its own tests, with `unittest` of the system's Python.
#[test]
fn the_python_package_on_two_mounts() {
    let place = Place::new();
    let server = place.server(&[]);
    let (first, second) = (place.mount_at("first", &[]), place.mount_at("second", &[]));
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python");
    let out = Command::new("/usr/bin/python3")
        .args(["-B", "-W", "error::ResourceWarning", "-m", "unittest", "test_mount", "test_file", "test_checkpoint"])
        .arg("test_examples.Examples.test_processes")
        .current_dir(python.join("tests"))
        .env("PYTHONPATH", python.join("src"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("AMPHIFS_TEST_MOUNT", place.path("first"))
        .env("AMPHIFS_TEST_SECOND", place.path("second"))
        .stdin(Stdio::null())
        .output()
        .expect("python3 runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    let ran = said.lines().find_map(|l| l.strip_prefix("Ran ")?.split(' ').next()?.parse::<u32>().ok());
    assert!(ran.is_some_and(|n| n >= 29) && !said.contains("skipped"), "{said}");
    second.stop();
    first.stop();
    server.stop();
    place.fsck();
}
