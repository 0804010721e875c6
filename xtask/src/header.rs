//! The header of the C library, made of the source of `crates/capi`.
//!
//! Owns: the place of the header, and the check that it agrees with the source. Does not own: how C is written
//! (cbindgen).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HEADER: &str = "crates/capi/include/amphi.h";

fn made(root: &Path) -> Result<String, String> {
    let krate = root.join("crates/capi");
    let config = cbindgen::Config::from_file(krate.join("cbindgen.toml"))?;
    let builder = ["abi.rs", "calls.rs", "calls/data.rs", "calls/names.rs", "calls/queues.rs"]
        .iter()
        .fold(cbindgen::Builder::new().with_config(config), |builder, file| {
            builder.with_src(krate.join("src").join(file))
        });
    let mut text = Vec::new();
    builder.generate().map_err(|e| e.to_string())?.write(&mut text);
    // cbindgen leaves blanks at ends of lines.
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    Ok(format!("{}\n", lines.join("\n").trim()))
}

/// Adds a finding if the header is not what the source says.
pub fn check(root: &Path, findings: &mut Vec<String>) {
    match made(root) {
        Ok(text) if fs::read_to_string(root.join(HEADER)).is_ok_and(|there| there == text) => {}
        Ok(_) => findings.push(format!("{HEADER}: is not what the source says; run cargo xtask header")),
        Err(e) => findings.push(format!("{HEADER}: cannot be made: {e}")),
    }
}

/// Writes the header, or checks it.
pub fn run(args: &[String]) -> ExitCode {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_path_buf();
    if args.first().is_some_and(|arg| arg == "--check") {
        let mut findings = Vec::new();
        check(&root, &mut findings);
        findings.iter().for_each(|finding| eprintln!("{finding}"));
        return if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    match made(&root).and_then(|text| fs::write(root.join(HEADER), text).map_err(|e| e.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{HEADER}: {e}");
            ExitCode::FAILURE
        }
    }
}
