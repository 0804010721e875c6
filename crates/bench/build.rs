//! Passes the profile of the build to the program: cargo reports profiles of our own only by their folder.

use std::path::Path;

fn main() {
    // The folder is target/PROFILE/build/PACKAGE-HASH/out.
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    let profile = Path::new(&out).ancestors().nth(3).and_then(|dir| dir.file_name()).and_then(|name| name.to_str());
    println!("cargo::rustc-env=AMPHI_PROFILE={}", profile.unwrap_or("unknown"));
    println!("cargo::rerun-if-changed=build.rs");
}
