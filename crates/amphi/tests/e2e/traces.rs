//! `amphi record`, `replay`, `what-if` and `verify` on real mounts.

use crate::bad_input::refused;
use crate::harness::{Place, amphi, eventually, pattern, run};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn text(args: &[&str]) -> String {
    let out = run(args);
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{args:?}: {said}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&text(args)).expect("an object")
}

/// Records a shell's script at the mount of `place`, whose path it has as `$M`.
fn record(place: &Place, out: &str, script: &str, more: &[&str]) -> Output {
    let (trace, mount) = (place.text(out), place.text("mount"));
    let mut command = amphi();
    command.args(["record", "--out", &trace, "--mount", &mount]).args(more).args(["--", "sh", "-c", script]);
    command.env("M", &mount).output().expect("amphi starts")
}

/// Returns how often an operation is in a trace.
fn calls(shown: &Value, op: &str) -> u64 {
    let all = shown["operations"].as_array().expect("a list");
    all.iter().find(|one| one["name"] == op).map_or(0, |one| one["calls"].as_u64().expect("a number"))
}

/// Goal: a trace contains the calls of the program and of the processes that it started, by fork and by exec, and no
/// others; the program ends as it would without the recording. Method: a script creates, writes, reads, renames and
/// removes files while another program writes.
#[test]
fn a_program_is_recorded() {
    let place = Place::new();
    let up = place.up(&["--set", "hybrid.kernel_cache=off"]);
    fs::write(place.mount().join("there"), pattern(3, 3 << 20)).expect("write");
    let other = fs::File::create(place.mount().join("other")).expect("create");
    let script = "mkdir $M/d; dd if=/dev/zero of=$M/d/a bs=64k count=8 conv=fsync 2>/dev/null
        (cat $M/there >/dev/null; cat $M/d/a $M/d/a >/dev/null) & wait
        mv $M/d/a $M/d/b; ls $M/d >/dev/null; rm $M/d/b; rmdir $M/d; exit 7";
    let writer = std::thread::spawn(move || {
        use std::os::unix::fs::FileExt;
        (0..200).for_each(|n| other.write_all_at(&[1; 4096], n * 4096).expect("write"));
    });
    let done = record(&place, "t", script, &[]);
    writer.join().expect("writer");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(7), "{said}");
    assert_eq!(fs::metadata(place.path("t")).expect("trace").permissions().mode() & 0o777, 0o600);
    let shown = json(&["record", "--show", &place.text("t"), "--json"]);
    assert_eq!((&shown["whole"], &shown["exit"], &shown["lost"]), (&true.into(), &7.into(), &0.into()), "{shown}");
    for (op, least) in [("mkdir", 1), ("create", 1), ("write", 8), ("fsync", 1), ("rename", 1), ("unlink", 1)] {
        assert!(calls(&shown, op) >= least, "{op}: {shown}");
    }
    assert_eq!(calls(&shown, "write"), 8, "of nobody else");
    let files = shown["files"].as_array().expect("files");
    let file = |name: &str| files.iter().find(|f| f["file"] == name).unwrap_or_else(|| panic!("{name}: {shown}"));
    assert_eq!(file("d/a")["written_bytes"], 8 * 65536);
    assert_eq!(file("d/a")["read_bytes"], 2 * 8 * 65536);
    assert_eq!(file("there")["read_bytes"], 3 << 20);
    assert!(!files.iter().any(|f| f["file"] == "other"));
    let in_words = text(&["record", "--show", &place.text("t")]);
    for wanted in ["operation", "w buffered_", "d/a: read 1.0 MiB, written 512 KiB", "dd"] {
        assert!(in_words.contains(wanted), "{wanted} in\n{in_words}");
    }
    refused(&["record", "--out", &place.text("t"), "--mount", &place.text("mount"), "--", "true"], "is there already");
    refused(&["record", "--mount", &place.text("mount"), "--", "/no/such/program"], "cannot start");
    up.stop();
}

/// Goal: names can be hidden, and opens whose reads the kernel serves are counted. Method: a file that the kernel
/// serves.
#[test]
fn names_are_hidden_and_kernel_reads_are_told() {
    let place = Place::new();
    let up = place.up(&["--set", "hybrid.kernel_cache=on"]);
    fs::write(place.mount().join("secret"), pattern(3, 1 << 20)).expect("write");
    let done = record(&place, "t", "cat $M/secret $M/secret $M/secret >/dev/null; mkdir $M/private", &["--hash-names"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let bytes = fs::read(place.path("t")).expect("read");
    let shown = json(&["record", "--show", &place.text("t"), "--json"]);
    assert_eq!(shown["hashed_names"], true);
    assert_eq!(shown["opens_served_by_kernel"], 3, "{shown}");
    let found = |name: &[u8]| bytes.windows(name.len()).any(|part| part == name);
    assert!(!found(b"private"), "names are in the trace");
    up.stop();
}

/// Goal: a trace is replayed with the same calls on AmphiFS and elsewhere, and bytes are checked. Method: two processes
/// pass files to each other.
#[test]
fn a_trace_is_replayed() {
    let place = Place::new();
    let up = place.up(&[]);
    fs::write(place.mount().join("input"), pattern(4, 2 << 20)).expect("write");
    let script = "cat $M/input >$M/one; (cp $M/one $M/two & cp $M/one $M/three & wait); mv $M/two $M/four
        cat $M/one $M/four >/dev/null
        truncate -s 1000 $M/three; mkdir $M/dir; for n in 1 2 3; do echo $n >$M/dir/$n; done; rm -r $M/dir";
    assert!(record(&place, "t", script, &[]).status.success());
    fs::create_dir(place.mount().join("again")).expect("mkdir");
    for dir in [place.text("elsewhere"), place.text("mount/again")] {
        for think in ["0", "1"] {
            let report = json(&["replay", &place.text("t"), "--dir", &dir, "--think", think, "--json"]);
            assert_eq!((&report["failed"], &report["wrong_reads"]), (&0.into(), &0.into()), "{report}");
            assert!(report["read_bytes"].as_u64() >= Some(4 << 20), "{report}");
            assert!(report["written_bytes"].as_u64() >= Some(4 << 20), "{report}");
        }
    }
    assert!(!Path::new(&place.text("elsewhere")).exists(), "what was made is removed");
    let in_words = text(&["replay", &place.text("t"), "--dir", &place.text("elsewhere")]);
    assert!(in_words.contains("when recorded") && in_words.contains("operation"), "{in_words}");
    fs::write(place.path("no-trace"), b"#!/bin/sh\n").expect("write");
    refused(&["replay", &place.text("no-trace")], "no trace of amphi record");
    refused(&["replay", &place.text("t"), "--dir", &place.text("mount")], "is not empty");
    up.stop();
}

/// Goal: two processes that use the same bytes without the order that a model wants are named, and sound ones are not.
/// Method: a reader that reads what a writer has not closed, and one that opens it afterwards.
#[test]
fn conflicts_are_found() {
    let place = Place::new();
    let up = place.up(&["--set", "hybrid.kernel_cache=off"]);
    let open = "python3 -c 'import os, subprocess
m = os.environ[\"M\"]
f = open(m + \"/f\", \"wb\", buffering=0)
f.write(bytes(8192))
subprocess.run([\"head\", \"-c\", \"4096\", m + \"/f\"], stdout=subprocess.DEVNULL, check=True)
f.close()'";
    assert!(record(&place, "bad", open, &[]).status.success());
    let sound = "head -c 8192 /dev/zero >$M/g; head -c 4096 $M/g >/dev/null; head -c 4096 $M/g >/dev/null";
    assert!(record(&place, "good", sound, &[]).status.success());
    let found = |name: &str, model: &str| json(&["verify", &place.text(name), "--model", model, "--json"]);
    let candidates = |found: &Value| found["candidates"].as_array().expect("a list").len();
    assert_eq!(candidates(&found("good", "session")), 0, "{}", found("good", "session"));
    assert_eq!(candidates(&found("good", "posix")), 0);
    assert_eq!(candidates(&found("bad", "posix")), 0);
    let bad = found("bad", "session");
    assert!(candidates(&bad) >= 1, "{bad}");
    let pair = &bad["candidates"][0];
    assert_eq!(
        (&pair["file"], &pair["first"]["kind"], &pair["second"]["kind"]),
        (&"f".into(), &"write".into(), &"read".into())
    );
    assert_eq!((&pair["second"]["begin"], &pair["second"]["end"]), (&0.into(), &4096.into()), "{pair}");
    assert_ne!(pair["first"]["process"], pair["second"]["process"]);
    let in_words = text(&["verify", &place.text("bad"), "--model", "session"]);
    assert!(in_words.contains("f: candidate") && in_words.contains("model session: 1 candidates"), "{in_words}");
    up.stop();
}

/// Goal: a change is in force in the turns that have it, and wrong questions are refused. Method: writes that are
/// synced, and a disk that delays each of its writes, so that a turn lasts at least as long as these delays; then a
/// setting that these calls do not touch.
#[test]
fn a_bad_setting_is_named() {
    const FILES: u64 = 4;
    const DELAY_US: u64 = 200_000;
    let place = Place::new();
    let up = place.up(&[]);
    let script = "for n in 1 2 3 4; do dd if=/dev/zero of=$M/f$n bs=4k count=20 conv=fsync 2>/dev/null; done";
    assert!(record(&place, "t", script, &[]).status.success());
    up.stop();
    let scratch = place.text("");
    let ask = |set: &str, rounds: &str| {
        json(&["what-if", &place.text("t"), "--set", set, "--rounds", rounds, "--scratch", &scratch, "--json"])
    };
    let bad = ask(&format!("server.disk_write_delay_us={DELAY_US}"), "2");
    let times = |side: &str| -> Vec<u64> {
        bad[side].as_array().expect("a list").iter().map(|ns| ns.as_u64().expect("a time")).collect()
    };
    assert_eq!((times("present_ns").len(), times("changed_ns").len()), (2, 2), "{bad}");
    assert!(times("changed_ns").iter().all(|&ns| ns >= FILES * DELAY_US * 1000), "{bad}");
    assert!(["slower", "faster", "no difference"].contains(&bad["verdict"].as_str().expect("a word")), "{bad}");
    let none =
        text(&["what-if", &place.text("t"), "--set", "client.atime=none", "--rounds", "1", "--scratch", &scratch]);
    assert!(none.contains("no difference that these rounds can show"), "{none}");
    refused(&["what-if", &place.text("t")], "say what shall be different");
    let wrong = ["what-if", &place.text("t"), "--set", "no.such=1", "--scratch", &scratch];
    refused(&wrong, "does not start");
    let left = fs::read_dir(place.path("")).expect("list").flatten();
    assert!(!left.into_iter().any(|e| e.file_name().to_string_lossy().starts_with("amphi-what-if")), "scratch stays");
}

/// Goal: whichever process is killed, the calls recorded so far can be read, and the mount continues. Method: SIGKILL
/// to the program, then to the recorder; a new recording afterwards.
#[test]
fn kills_leave_traces() {
    let place = Place::new();
    let up = place.up(&[]);
    let done = record(&place, "program", "echo 1 >$M/a; kill -9 $$", &[]);
    assert_eq!(done.status.code(), Some(128 + 9));
    let shown = json(&["record", "--show", &place.text("program"), "--json"]);
    assert_eq!((&shown["whole"], &shown["exit"]), (&true.into(), &137.into()));
    assert_eq!(calls(&shown, "write"), 1, "{shown}");
    let (trace, mount) = (place.text("recorder"), place.text("mount"));
    let script = "n=0; while [ ! -e $M/stop ]; do n=$((n+1)); echo $n >$M/b; done";
    let mut recorder = amphi()
        .args(["record", "--out", &trace, "--mount", &mount, "--", "sh", "-c", script])
        .env("M", &mount)
        .stderr(Stdio::null())
        .spawn()
        .expect("amphi");
    eventually("calls are in the trace", || fs::metadata(&trace).is_ok_and(|m| m.len() > 20_000));
    recorder.kill().expect("kill");
    recorder.wait().expect("ends");
    let shown = json(&["record", "--show", &trace, "--json"]);
    assert_eq!(shown["whole"], false);
    assert!(
        shown["fault"].as_str().is_some_and(|fault| fault.contains("cut")) && calls(&shown, "write") > 100,
        "{shown}"
    );
    // The program continues without the recording.
    fs::write(place.mount().join("stop"), b"").expect("write");
    assert!(record(&place, "next", "echo 1 >$M/c", &[]).status.success());
    up.stop();
}

/// Goal: a full disk ends the recording and not the program, and the calls recorded so far can be read. Method: a small
/// tmpfs.
#[test]
fn a_full_disk_ends_a_recording() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    let up = place.up(&[]);
    let small = place.text("small");
    fs::create_dir(&small).expect("mkdir");
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=16k", "none", &small]).status().expect("mount");
    assert!(mounted.success());
    let script = "n=0; while [ $n -lt 1000 ]; do n=$((n+1)); echo $n >$M/b; done; echo whole >$M/done";
    let done = record(&place, "small/t", script, &[]);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let shown = run(&["record", "--show", &place.text("small/t"), "--json"]);
    let unmounted = Command::new("umount").arg(&small).status().expect("umount");
    assert!(unmounted.success() && done.status.success(), "{said}");
    assert!(said.contains("recording ended before the command: cannot write"), "{said}");
    assert_eq!(fs::read(place.mount().join("done")).expect("read"), b"whole\n");
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("an object");
    assert!(calls(&shown, "write") > 10, "{shown}");
    up.stop();
}

/// Goal: users other than root record only processes of their own, and only they have access to these recordings.
/// Method: a user who requests the recording of another user.
#[test]
fn users_record_their_own() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    let place = Place::new();
    let up = place.up(&[]);
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).expect("chmod");
    let dir = place.mount().join("home");
    fs::create_dir(&dir).expect("mkdir");
    std::os::unix::fs::chown(&dir, Some(1234), Some(1234)).expect("chown");
    let write = |value: &str| setxattr(&dir, "user.amphi.record", value.as_bytes(), XattrFlags::empty());
    write("start abc").expect("root may");
    let mut room = [0u8; 65_536];
    assert!(getxattr(&dir, "user.amphi.record.abc.1", &mut room[..]).expect("a block") > 0);
    assert!(getxattr(&dir, "user.amphi.record.abc.3", &mut room[..]).is_err(), "a block that is not the next one");
    // As another user: the recording of root cannot be fetched, and neither can one that does not exist.
    let script = "import os,sys\nos.setgid(1234); os.setuid(1234); d=sys.argv[1]
def fails(errno, call, *args):
    try: call(*args)
    except OSError as e: assert e.errno == errno, e
    else: raise SystemExit('allowed')
fails(1, os.getxattr, d, 'user.amphi.record.abc.1')
fails(1, os.setxattr, d, 'user.amphi.record', b'end abc')
fails(61, os.getxattr, d, 'user.amphi.record.abd.1')
os.setxattr(d, 'user.amphi.record', b'start abd')
assert os.getxattr(d, 'user.amphi.record.abd.1')
os.setxattr(d, 'user.amphi.record', b'forget abd')
fails(61, os.getxattr, d, 'user.amphi.record.abd.1')
fails(22, os.setxattr, d, 'user.amphi.record', b'dance abd')";
    let done = Command::new("python3").args(["-c", script]).arg(&dir).output().expect("python3");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    write("forget abc").expect("root may");
    up.stop();
}
