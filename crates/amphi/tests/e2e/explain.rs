//! `amphi explain` and `amphi advise` on real mounts: planted causes are named, sound loads are not.

use crate::bad_input::refused;
use crate::harness::{Place, amphi, pattern, run};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Stdio;

const MIB: usize = 1 << 20;

fn text(args: &[&str]) -> String {
    let out = run(args);
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{args:?}: {said}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// The rules that speak of a path.
fn rules(path: &str) -> Vec<String> {
    let all: Value = serde_json::from_str(&text(&["explain", "--json", path])).expect("an object");
    let found = all["findings"].as_array().expect("a list").iter();
    found.map(|f| f["rule"].as_str().expect("a name").to_string()).collect()
}

/// Goal: the command names the cause of slow access to a file, with a command that changes it where there is one, and
/// reports nothing about a file that is used well. Method: files are written and read in good and in bad ways. Then the
/// proposed command is executed, and the same load is explained again.
#[test]
fn causes_are_named() {
    let place = Place::new();
    let up = place.up(&["--set", "hybrid.kernel_cache=off"]);
    let path = |name: &str| place.text(&format!("mount/{name}"));
    let bytes = pattern(1, 8 * MIB);
    // A file that is used well: large writes, then one read in order.
    fs::write(path("sound"), &bytes).expect("write");
    assert_eq!(fs::read(path("sound")).expect("read"), bytes);
    assert!(rules(&path("sound")).is_empty());
    let said = text(&["explain", &path("sound")]);
    for wanted in
        ["100 % direct: they are large (hybrid.large_write_bytes=2M)", "one behind the other", "nothing costs"]
    {
        assert!(said.contains(wanted), "{wanted} in\n{said}");
    }
    // Each small write is synced separately.
    let synced = File::create(path("synced")).expect("create");
    for n in 0..150 {
        synced.write_all_at(&bytes[..4096], n * 4096).expect("write");
        synced.sync_data().expect("sync");
    }
    assert_eq!(rules(&path("synced")), ["sync_for_each"]);
    // Small direct reads, because the file is set to direct.
    fs::write(path("direct"), &bytes).expect("write");
    text(&["layout", "set", "--mode", "direct", &path("direct")]);
    let small_reads = |name: &str| {
        let file = File::open(path(name)).expect("open");
        let mut piece = [0; 4096];
        for n in 0..600u64 {
            let at = n * 769 % 2048 * 4096;
            file.read_exact_at(&mut piece, at).expect("read");
            assert_eq!(piece, bytes[at as usize..at as usize + 4096]);
        }
    };
    small_reads("direct");
    assert_eq!(rules(&path("direct")), ["forced_direct"]);
    let advice = text(&["advise", &path("direct")]);
    let command = format!("amphi layout set --mode auto {}", path("direct"));
    assert_eq!(advice.lines().last(), Some(command.as_str()), "{advice}");
    refused(&["advise", "--apply", &path("direct")], "standard input is no terminal");
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    text(&words);
    // The same bytes in a file without a history.
    fs::copy(path("direct"), path("again")).expect("copy");
    small_reads("again");
    assert!(rules(&path("again")).is_empty(), "{}", text(&["explain", &path("again")]));
    up.stop();
}

/// Goal: a process is explained by its open files, a job by its bytes, and a mount by both. Other subjects are refused
/// with a list of the possible ones. Method: a process that holds files open; names with control characters.
#[test]
fn what_can_be_asked_about() {
    let place = Place::new();
    let up = place.up(&[]);
    let mount = place.text("mount");
    let held = place.mount().join("held\u{1b}[31m");
    fs::write(&held, pattern(2, 3 * MIB)).expect("write");
    let mut sleeper = std::process::Command::new("sleep");
    let file = File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(&held).expect("open");
    let mut sleeper = sleeper.arg("60").stdin(Stdio::from(file)).spawn().expect("sleep");
    let of_process = text(&["explain", &sleeper.id().to_string()]);
    assert!(of_process.contains("/held?[31m: 3.0 MiB") && of_process.contains("written   3.0 MiB"), "{of_process:?}");
    sleeper.kill().expect("kill");
    sleeper.wait().expect("ends");
    let of_mount = text(&["explain", &mount]);
    assert!(of_mount.contains("written   3.0 MiB") && of_mount.contains("direct: they are large"), "{of_mount}");
    let of_a_moment = text(&["explain", "--for", "0.2", &mount]);
    assert!(of_a_moment.contains("no reads or writes were counted"), "{of_a_moment}");
    let mut writer = amphi_job("train", &place.mount().join("by-job"));
    assert!(writer.wait().expect("ends").success());
    let of_job = text(&["explain", "--job", "train", &mount]);
    assert!(of_job.contains("job train: 1 opens") && of_job.contains("written "), "{of_job}");
    refused(&["explain", "--job", "none", &mount], "there are: ");
    // A process without a file of this file system: a child of this one may have inherited open files of other tests.
    refused(&["explain", "1"], "has no file of an AmphiFS mount open");
    refused(&["explain", &place.text("nothing")], "no such file or directory");
    assert!(amphi().args(["explain", "/"]).output().expect("amphi starts").status.code() == Some(2));
    up.stop();
}

/// A program of job `name` that writes a file.
fn amphi_job(name: &str, path: &std::path::Path) -> std::process::Child {
    let mut dd = std::process::Command::new("dd");
    dd.arg("if=/dev/zero").arg(format!("of={}", path.display())).args(["bs=64k", "count=4"]);
    dd.env("AMPHI_JOB", name).stderr(Stdio::null()).spawn().expect("dd")
}
