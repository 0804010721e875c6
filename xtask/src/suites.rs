//! All tests: the simulator's beside the end-to-end tests, then all others.
//!
//! Owns: what runs beside what. Does not own: the tests. The end-to-end tests spend much of their time on deadlines and
//! on processes that start. What they leave of the processor is used by the tests of the simulator, which have the
//! lowest priority and whose result depends on no clock. Everything is built before the first test begins.
#![expect(clippy::disallowed_types, reason = "it is no part of the product")]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

/// The binary of the end-to-end tests.
const END_TO_END: &str = "e2e";
/// The crate whose tests run beside them.
const SIMULATOR: &str = "sim";

/// Builds all tests, runs them and prints what they print; the output of the simulator's tests comes in one piece after
/// that of the end-to-end tests.
pub fn run() -> ExitCode {
    match all() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("xtask: {e}");
            ExitCode::FAILURE
        }
    }
}

fn all() -> Result<bool, String> {
    let crates = Path::new("crates");
    let simulated = test_binaries(&crates.join(SIMULATOR))?;
    let others: BTreeSet<String> =
        all_test_binaries(crates)?.into_iter().filter(|name| name != END_TO_END && !simulated.contains(name)).collect();
    if !ended(&mut start(&mut tests(&["--lib", "--bins", "--tests", "--no-run"]))?)? {
        return Ok(false);
    }
    let mut said = tempfile::tempfile().map_err(|e| format!("a file for the output of tests cannot be made: {e}"))?;
    let copy = |file: &File| file.try_clone().map(Stdio::from).map_err(|e| format!("the output of tests: {e}"));
    let mut low = Command::new("nice");
    low.args(["-n", "19", env!("CARGO"), "test", "--locked", "--workspace"]).args(named(&simulated));
    let mut beside = start(low.stdout(copy(&said)?).stderr(copy(&said)?))?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Many end-to-end tests wait for deadlines, so one more than there are cores.
    let mut end_to_end = tests(&["--test", END_TO_END]);
    let first = start(end_to_end.env("RUST_TEST_THREADS", (cores + 1).to_string())).and_then(|mut c| ended(&mut c));
    let second = ended(&mut beside);
    let mut text = Vec::new();
    said.rewind().and_then(|()| said.read_to_end(&mut text)).map_err(|e| format!("the output of tests: {e}"))?;
    print!("{}", String::from_utf8_lossy(&text));
    let mut rest = tests(&["--lib", "--bins", "--no-fail-fast"]);
    let third = ended(&mut start(rest.args(named(&others)))?);
    Ok(first? & second? & third?)
}

fn tests(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--locked", "--workspace"]).args(args);
    command
}

fn named(binaries: &BTreeSet<String>) -> Vec<String> {
    binaries.iter().flat_map(|name| ["--test".to_string(), name.clone()]).collect()
}

fn start(command: &mut Command) -> Result<Child, String> {
    command.spawn().map_err(|e| format!("{}: cannot be started: {e}", command.get_program().display()))
}

fn ended(child: &mut Child) -> Result<bool, String> {
    Ok(child.wait().map_err(|e| format!("the end of the tests: {e}"))?.success())
}

fn entries(dir: &Path) -> Result<Vec<std::path::PathBuf>, String> {
    let list = std::fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    Ok(list.flatten().map(|entry| entry.path()).collect())
}

/// The names of the test binaries of all crates.
fn all_test_binaries(crates: &Path) -> Result<BTreeSet<String>, String> {
    let mut names = BTreeSet::new();
    for room in entries(crates)? {
        names.extend(test_binaries(&room)?);
    }
    Ok(names)
}

/// The names of the test binaries of a crate: files and folders in `tests`.
fn test_binaries(room: &Path) -> Result<BTreeSet<String>, String> {
    let tests = room.join("tests");
    if !tests.is_dir() {
        return Ok(BTreeSet::new());
    }
    let is_test = |path: &Path| path.join("main.rs").is_file() || path.extension().is_some_and(|e| e == "rs");
    let files = entries(&tests)?.into_iter().filter(|path| is_test(path));
    Ok(files.filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no test binary is forgotten. Method: the tests of this tree.
    #[test]
    fn all_test_binaries_are_named() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let (all, simulated) = (all_test_binaries(&crates).expect("folders"), test_binaries(&crates.join(SIMULATOR)));
        let simulated = simulated.expect("a folder");
        for name in ["seeds", "kernel"] {
            assert!(all.contains(name) && simulated.contains(name), "{name} in {simulated:?}");
        }
        for name in [END_TO_END, "mpi", "frames", "stage"] {
            assert!(all.contains(name) && !simulated.contains(name), "{name} in {all:?}");
        }
    }
}
