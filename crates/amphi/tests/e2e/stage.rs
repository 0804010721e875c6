//! `amphi stage` into a mount and out of it again.

use crate::harness::{Place, amphi, pattern, run};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

/// Everything that a copy has to keep, as text: for each name its kind, mode, owner, size, time and links, the bytes of
/// files, the targets of links, and attributes.
fn describe(dir: &Path) -> String {
    let script = "cd \"$D\" && find . -type d -printf '%p %y %m %U:%G %T+\\n' -o -printf '%p %y %m %U:%G %s %T+ %n %l\\n' | \
                  sort && find . -type f -print0 | sort -z | xargs -0 cksum && find . ! -type l | sort | getfacl -p -";
    let out = Command::new("bash").args(["-c", script]).env("D", dir).env("LC_ALL", "C").output().expect("bash");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn assert_same(a: &Path, b: &Path) {
    let (a, b) = (describe(a), describe(b));
    for (a, b) in a.lines().zip(b.lines()) {
        assert_eq!(a, b);
    }
    assert_eq!(a.lines().count(), b.lines().count());
}

fn build(root: &Path) {
    fs::create_dir_all(root.join("d/e/empty")).expect("mkdir");
    for n in 0..300u64 {
        fs::write(root.join(format!("d/{n}")), pattern(n, n as usize * 91)).expect("write");
    }
    fs::write(root.join("large"), pattern(5, 40 << 20)).expect("write");
    let sparse = fs::File::create(root.join("sparse")).expect("create");
    sparse.set_len(64 << 20).expect("truncate");
    std::os::unix::fs::FileExt::write_all_at(&sparse, &pattern(6, 10_000), 30 << 20).expect("write");
    fs::hard_link(root.join("d/7"), root.join("d/e/seven")).expect("link");
    symlink("../large", root.join("d/link")).expect("symlink");
    fs::set_permissions(root.join("d/8"), fs::Permissions::from_mode(0o640)).expect("chmod");
    fs::set_permissions(root.join("d/e/empty"), fs::Permissions::from_mode(0o555)).expect("chmod");
    let name = "user.note";
    rustix::fs::setxattr(root.join("large"), name, b"kept", rustix::fs::XattrFlags::empty()).expect("setxattr");
    let said = Command::new("setfacl").args(["-m", "u:1234:rwx"]).arg(root.join("d/9")).status();
    assert!(said.expect("setfacl").success());
}

/// Stages and returns the manifest.
fn staged(source: &Path, target: &Path, more: &[&str]) -> Value {
    let (source, target) = (source.to_string_lossy(), target.to_string_lossy());
    let out = run(&[&["stage", &*source, &*target, "--json"], more].concat());
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_str(&said).expect("one object")
}

/// Goal: a tree that is staged into a mount and out of it is the same in every respect, a second run copies only the
/// changes, and wrong requests are refused with code 2. Method: a tree with links, holes, access control lists and
/// attributes. It is copied from disk to mount and from mount to disk, and updated. Then come refusals.
#[test]
fn into_a_mount_and_out_again() {
    let place = Place::new();
    let up = place.up(&[]);
    let (source, inside, back) = (place.path("source"), place.mount().join("inside"), place.path("back"));
    build(&source);
    let manifest = staged(&source, &inside, &[]);
    assert_eq!(manifest["schema"], "amphi.stage/1");
    assert_eq!((&manifest["complete"], &manifest["not_kept"]["count"]), (&true.into(), &0.into()));
    assert_eq!(manifest["verified"]["bytes"], manifest["bytes"]);
    assert_same(&source, &inside);
    let blocks = fs::metadata(inside.join("sparse")).expect("stat").blocks();
    assert!(blocks * 512 < 8 << 20, "{blocks} blocks: the hole was filled");

    staged(&inside, &back, &["--threads", "3"]);
    assert_same(&source, &back);
    let note = |dir: &Path| {
        let mut value = [0; 16];
        let len = rustix::fs::getxattr(dir.join("large"), "user.note", &mut value[..]).expect("getxattr");
        value[..len].to_vec()
    };
    assert_eq!(note(&back), b"kept");

    fs::write(source.join("d/20"), b"changed").expect("write");
    fs::remove_file(source.join("d/21")).expect("remove");
    let manifest = staged(&source, &inside, &["--update", "--delete"]);
    assert_eq!((&manifest["copied"]["files"], &manifest["deleted"]), (&1.into(), &1.into()));
    assert_same(&source, &inside);

    let (source, target) = (source.to_string_lossy().into_owned(), inside.to_string_lossy().into_owned());
    let nested = format!("{source}/d/nested");
    for (from, to, words) in [
        (source.as_str(), target.as_str(), "exists"),
        (source.as_str(), nested.as_str(), "is inside the source"),
        ("/nowhere/at/all", target.as_str(), "cannot use the source"),
    ] {
        let out = run(&["stage", from, to]);
        assert_eq!(out.status.code(), Some(2));
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(said.contains(words), "{said}");
    }
    up.stop();
    place.fsck();
}

/// Goal: a stage into a mount that is killed can be continued, and the lack of space on the mount's targets is
/// reported. Method: kills at several points; a tree that is larger than the zones.
#[test]
fn killed_and_full_stages() {
    let place = Place::new();
    let up = place.up(&["--zone-size", "256M", "--targets", "1"]);
    let (source, target) = (place.path("source"), place.mount().join("target"));
    build(&source);
    for pause in [30, 120, 250] {
        let mut child = amphi()
            .arg("stage")
            .args([&source, &target])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        std::thread::sleep(std::time::Duration::from_millis(pause));
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
    if target.exists() {
        fs::remove_dir_all(&target).expect("remove");
    }
    staged(&source, &target, &[]);
    assert_same(&source, &target);
    let names: Vec<_> = fs::read_dir(place.mount()).expect("list").map(|e| e.expect("list").file_name()).collect();
    assert_eq!(names, ["target"]);

    fs::write(source.join("huge"), pattern(9, 300 << 20)).expect("write");
    let second = place.mount().join("second");
    let out = run(&["stage", &source.to_string_lossy(), &second.to_string_lossy(), "--json"]);
    assert_eq!(out.status.code(), Some(1));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("the target is full"), "{said}");
    let manifest: Value = serde_json::from_slice(&out.stdout).expect("one object");
    assert_eq!(manifest["complete"], false);
    assert!(!second.exists());
    let out = run(&["stage", "--clean", &second.to_string_lossy()]);
    assert!(out.status.success());
    let names: Vec<_> = fs::read_dir(place.mount()).expect("list").map(|e| e.expect("list").file_name()).collect();
    assert_eq!(names, ["target"]);
    up.stop();
    place.fsck();
}
