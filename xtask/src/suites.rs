//! All tests: the end-to-end tests beside all others.
//!
//! Owns: what runs beside what. Does not own: the tests. The end-to-end tests spend much of their time on deadlines and
//! on processes that start, so the tests of the simulator and of the crates can use the processor meanwhile. Everything
//! is built before the first test begins.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

/// The binary of the end-to-end tests.
const END_TO_END: &str = "e2e";

/// Builds all tests, runs them and prints what they print; the output of the end-to-end tests comes last, in one piece.
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
    let build = ["--lib", "--bins", "--tests", "--no-run"];
    if !cargo(&build).status().map_err(|e| format!("cargo cannot be run: {e}"))?.success() {
        return Ok(false);
    }
    let mut said =
        tempfile::tempfile().map_err(|e| format!("a file for the output of the tests cannot be made: {e}"))?;
    let copy = |file: &File| file.try_clone().map(Stdio::from).map_err(|e| format!("the output of the tests: {e}"));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Many end-to-end tests wait for deadlines, so one more than there are cores.
    let mut end_to_end = cargo(&["--test", END_TO_END]);
    end_to_end.env("RUST_TEST_THREADS", (cores + 1).to_string()).stdout(copy(&said)?).stderr(copy(&said)?);
    let mut beside = start(&mut end_to_end)?;
    let others = others(Path::new("crates"))?;
    let mut args = vec!["--lib", "--bins"];
    others.iter().for_each(|name| args.extend(["--test", name]));
    // A failure shows itself at once, and the other tests run all the same.
    args.push("--no-fail-fast");
    let rest = start(cargo(&args).env("RUST_TEST_THREADS", cores.to_string())).and_then(ended);
    let end_to_end = ended(&mut beside);
    let mut text = Vec::new();
    said.rewind().and_then(|()| said.read_to_end(&mut text)).map_err(|e| format!("the output of the tests: {e}"))?;
    print!("{}", String::from_utf8_lossy(&text));
    Ok(rest? & end_to_end?)
}

fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--locked", "--workspace"]).args(args);
    command
}

fn start(command: &mut Command) -> Result<Child, String> {
    command.spawn().map_err(|e| format!("cargo cannot be run: {e}"))
}

fn ended(mut child: impl std::borrow::BorrowMut<Child>) -> Result<bool, String> {
    Ok(child.borrow_mut().wait().map_err(|e| format!("the end of the tests: {e}"))?.success())
}

/// The names of all other test binaries: files and folders in `tests` of each crate.
fn others(crates: &Path) -> Result<BTreeSet<String>, String> {
    let list = |dir: &Path| std::fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()));
    let mut names = BTreeSet::new();
    for room in list(crates)?.flatten() {
        let tests = room.path().join("tests");
        if !tests.is_dir() {
            continue;
        }
        for entry in list(&tests)?.flatten() {
            let path = entry.path();
            let is_test = path.join("main.rs").is_file() || path.extension().is_some_and(|e| e == "rs");
            if let Some(name) = path.file_stem().filter(|_| is_test) {
                names.insert(name.to_string_lossy().into_owned());
            }
        }
    }
    names.remove(END_TO_END);
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no test binary is forgotten. Method: the tests of this tree.
    #[test]
    fn all_test_binaries_are_named() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let names = others(&crates).expect("folders");
        for name in ["seeds", "mpi", "frames", "stage"] {
            assert!(names.contains(name), "{name} in {names:?}");
        }
        assert!(!names.contains(END_TO_END));
    }
}
