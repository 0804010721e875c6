//! mount(8) with this file system: fstab lines, remounting, and the end of a mount that waits for its write-back.

use crate::bad_input::refused;
use crate::harness::{Place, amphi, run};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs a shell script in a mount name space of its own, in which mount(8) finds this binary as its helper.
fn with_helper(place: &Place, script: &str) -> String {
    let helpers = place.path("helpers");
    fs::create_dir_all(&helpers).expect("mkdir");
    for name in ["mount.fuse.amphi", "mount.amphi"] {
        std::os::unix::fs::symlink(amphi().get_program(), helpers.join(name)).expect("symlink");
    }
    let found = Path::new("/sbin").canonicalize().expect("sbin");
    let script = format!(
        "mount -t overlay -o lowerdir={}:{} overlay {} && cd {} && {script}",
        helpers.display(),
        found.display(),
        found.display(),
        place.path("").display()
    );
    let out = Command::new("unshare")
        .args(["-m", "sh", "-ec", &script])
        .env("AMPHI", amphi().get_program())
        .stdin(Stdio::null())
        .output()
        .expect("unshare runs");
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{text}");
    text
}

/// Goal: an fstab line mounts a data folder or a server in the background. `remount` changes the options that it names
/// and nothing else. An impossible request is refused in one line with the exit code of a refusal. Method: mount(8)
/// with a table of its own.
#[test]
fn fstab_lines_and_remounts() {
    let place = Place::new();
    // Made beforehand: zones of the default size would take the folder's whole disk.
    place.up(&[]).stop();
    let line = format!(
        "{} {} fuse.amphi defaults,nosuid,_netdev,set=server.sync_interval_ms=777 0 0\n",
        place.text("data"),
        place.text("mount")
    );
    fs::write(place.path("fstab"), line).expect("write");
    let said = with_helper(
        &place,
        "
        mount -T fstab mount; grep -F \"$PWD/mount \" /proc/mounts
        $AMPHI get -m mount server.sync_interval_ms
        echo there > mount/f
        mount -o remount,ro mount; grep -F \"$PWD/mount \" /proc/mounts; $AMPHI get -m mount client.atime
        (echo no > mount/g) 2>&1 || true
        mount -o remount,rw,noexec mount; grep -F \"$PWD/mount \" /proc/mounts; $AMPHI get -m mount client.atime
        cat mount/f; dd if=/dev/zero of=mount/big bs=1M count=32 2>/dev/null
        mount -o remount,noacl mount 2>&1 || echo refused $?
        $AMPHI umount mount; ls mount | wc -l
        mount -t fuse.amphi -o fancy $PWD/data $PWD/mount 2>&1 || echo refused $?
        mount -t amphi unix:$PWD/nobody $PWD/mount 2>&1 || echo refused $?
        ",
    );
    let lines: Vec<&str> = said.lines().collect();
    let shown = |n: usize, words: &[&str]| {
        let options = lines[n].split(' ').nth(3).expect("options").split(',').collect::<Vec<_>>();
        assert!(words.iter().all(|w| options.contains(w)), "{words:?} in {said}");
    };
    shown(0, &["rw", "nosuid", "nodev"]);
    assert_eq!(lines[1], "server.sync_interval_ms=777", "{said}");
    shown(2, &["ro", "nosuid", "nodev"]);
    assert_eq!(lines[3], "client.atime=none", "{said}");
    assert!(lines[4].contains("Read-only file system"), "{said}");
    shown(5, &["rw", "nosuid", "nodev", "noexec"]);
    assert_eq!(lines[6..8], ["client.atime=relatime", "there"], "{said}");
    assert!(lines[8].contains("unmount it, and mount it again") && lines[9] == "refused 2", "{said}");
    assert_eq!(lines[10], "0", "{said}");
    assert!(lines[11].contains("'fancy' is no option") && lines[12] == "refused 2", "{said}");
    assert!(lines[13].contains("is `amphi server` running there?") && lines[14] == "refused 2", "{said}");
    let up = place.up(&[]);
    assert_eq!(fs::metadata(place.mount().join("big")).expect("it was waited for").len(), 32 << 20);
    up.stop();
    place.fsck();
}

/// Goal: `amphi umount` returns when all data is with the server, and names what prevents it from unmounting. Method:
/// dirty bytes that are due in an hour; a file that is open.
#[test]
fn umount_waits_for_what_was_written() {
    let place = Place::new();
    let server = place.server(&[]);
    let mount = place.mount_at("m", &["--set", "writeback.age_ms=3600000"]);
    let dir = place.text("m");
    fs::write(place.path("m").join("f"), vec![7; 300_000]).expect("write");
    let open = fs::read_dir(&dir).expect("open");
    let busy = run(&["umount", &dir]);
    let said = String::from_utf8_lossy(&busy.stderr).into_owned();
    assert!(busy.status.code() == Some(1) && said.contains("is in use"), "{said}");
    drop(open);
    assert!(run(&["umount", &dir]).status.success());
    mount.ends_with(0);
    refused(&["umount", &dir], "is not on an AmphiFS mount");
    let again = place.mount_at("m2", &[]);
    assert_eq!(fs::read(place.path("m2").join("f")).expect("read"), vec![7; 300_000]);
    again.stop();
    server.stop();
}

/// Goal: a mount whose server has gone ends within seconds when there is no data to write back. Method: the server is
/// killed, and then the mount is asked to end. The end may take a tenth of the time for which calls wait.
#[test]
fn a_mount_without_its_server_ends_soon() {
    let place = Place::new();
    let server = place.server(&[]);
    let mount = place.mount_at("m", &[]);
    fs::write(place.path("m").join("f"), b"1").expect("write");
    assert!(run(&["sync", &place.text("m")]).status.success());
    server.kill();
    let begun = Instant::now();
    mount.stop();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    place.server(&[]).stop();
    place.fsck();
}
