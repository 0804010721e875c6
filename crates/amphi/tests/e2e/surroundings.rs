//! Mounts and commands when their environment changes: nobody reads their output, the terminal closes, the mount point
//! is a link.

use crate::harness::{Daemon, Place, Starting, amphi, counter, errno, eventually, is_mounted, pattern, run};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

fn signal(daemon: &mut Daemon, signal: Signal) {
    kill_process(Pid::from_raw(daemon.pid() as i32).expect("a process"), signal).expect("signal");
}

/// Goal: a mount whose output is no longer read continues, also while it writes many log lines, and stops in order.
/// Method: both pipes are closed when it is ready; every log line is enabled; files are made and removed.
#[test]
fn a_mount_goes_on_when_nobody_reads_its_log() {
    let place = Place::new();
    let (data, mount) = (place.text("data"), place.text("mount"));
    let mut up = amphi();
    up.args(["up", "--data", &data, "--mount", &mount, "--zone-size", "512M"]).env("AMPHI_LOG", "trace");
    let mut child = up.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let mut errors = child.stderr.take().expect("piped");
    let drain = std::thread::spawn(move || {
        // Until it is mounted its output is read.
        let mut some = [0; 4096];
        while !is_mounted(std::path::Path::new(&mount)) {
            let _ = errors.read(&mut some);
        }
    });
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("text");
    assert!(line.starts_with("ready"), "{line}");
    drain.join().expect("read");
    for i in 0..50 {
        fs::write(place.mount().join(format!("f{i}")), pattern(i, 70_000)).expect("write");
    }
    assert_eq!(fs::read(place.mount().join("f49")).expect("read"), pattern(49, 70_000));
    kill_process(Pid::from_child(&child), Signal::TERM).expect("signal");
    assert!(child.wait().expect("wait").success());
    place.fsck();
}

/// Goal: a terminal that closes ends a mount in order, with all data, also if it sends the signal more than once, but
/// not a mount that was started with the signal ignored. Method: SIGHUP after a write, twice; the same data is there
/// again; then the same with the signal ignored.
#[test]
fn a_hang_up_ends_in_order() {
    let place = Place::new();
    let start = |how: &str| {
        // These tests may run in an environment in which SIGHUP is ignored.
        let mut command = Command::new("env");
        command.args([how, amphi().get_program().to_str().expect("text"), "up", "--zone-size", "512M", "--data"]);
        command.args([&place.text("data"), "--mount", &place.text("mount")]);
        Starting::spawn(command).ready()
    };
    let mut up = start("--default-signal=HUP");
    fs::write(place.mount().join("f"), pattern(1, 300_000)).expect("write");
    signal(&mut up, Signal::HUP);
    signal(&mut up, Signal::HUP);
    up.ends_with(0);
    let mut again = start("--ignore-signal=HUP");
    signal(&mut again, Signal::HUP);
    assert_eq!(fs::read(place.mount().join("f")).expect("read"), pattern(1, 300_000));
    again.stop();
}

/// Goal: a program that ends a mount and sends its signal twice, as timeout(1) does to the process and to its group,
/// ends it in order with all data. Method: a mount below timeout(1), which passes on the signal that it gets itself,
/// behind a write.
#[test]
fn a_signal_that_comes_twice_ends_in_order() {
    let place = Place::new();
    for round in 0..3 {
        let mut command = Command::new("timeout");
        command.args(["1000", amphi().get_program().to_str().expect("text"), "up", "--zone-size", "512M", "--data"]);
        command.args([&place.text("data"), "--mount", &place.text("mount")]);
        command.process_group(0);
        let mut up = Starting::spawn(command).ready();
        for before in 0..round {
            assert!(fs::read(place.mount().join(format!("f{before}"))).expect("read") == pattern(before, 300_000));
        }
        fs::write(place.mount().join(format!("f{round}")), pattern(round, 300_000)).expect("write");
        signal(&mut up, Signal::TERM);
        up.ends_with(0);
    }
    place.fsck();
}

/// Goal: commands end as other programs do when the reader of their output has ended. Method: a pipe that is closed
/// before anything is written into it.
#[test]
fn commands_end_with_their_reader() {
    let place = Place::new();
    let up = place.up(&[]);
    let mut get = amphi();
    get.args(["get", "-v", "-m", &place.text("mount")]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = get.spawn().expect("starts");
    drop(child.stdout.take());
    let out = child.wait_with_output().expect("wait");
    assert!(out.status.signal() == Some(13) || out.status.success(), "{:?}", out.status);
    assert_eq!(String::from_utf8_lossy(&out.stderr), "");
    up.stop();
}

/// Goal: the data folder may not lie under the mount point, nor the mount point in the data folder, even if neither
/// exists yet under that name. Method: both, directly and by a link; nothing is made.
#[test]
fn data_and_mount_point_lie_apart() {
    let place = Place::new();
    symlink(place.mount(), place.path("link")).expect("link");
    for (data, words) in
        [("mount/data", "would hide it"), ("link/deep/data", "would hide it"), ("mount", "lies in the data folder")]
    {
        let out = run(&["up", "--data", &place.text(data), "--mount", &place.text("mount")]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(fs::read_dir(place.mount()).expect("list").count(), 0);
}

/// Goal: the command that a killed mount was started with works again, also if its mount point is a link. Method: kill,
/// start again.
#[test]
fn a_dead_mount_behind_a_link_is_cleared() {
    let place = Place::new();
    symlink(place.mount(), place.path("link")).expect("link");
    let (data, link) = (place.text("data"), place.text("link"));
    let args = ["up", "--data", &data, "--mount", &link, "--zone-size", "512M"];
    let up = Daemon::start(&args);
    fs::write(place.path("link/f"), b"kept").expect("write");
    run(&["sync", &link]);
    up.kill();
    let up = Daemon::start(&args);
    assert_eq!(fs::read(place.mount().join("f")).expect("read"), b"kept");
    up.stop();
}

/// Goal: the command works again right after a kill, even while the kernel still answers for the mount point from its
/// cache. Method: the mount point is looked up all the time before and after the kill.
#[test]
fn a_dead_mount_that_was_just_looked_at_is_cleared() {
    let place = Place::new();
    let (data, mount) = (place.text("data"), place.text("mount"));
    let args = ["up", "--data", &data, "--mount", &mount, "--zone-size", "512M"];
    let mut up = Daemon::start(&args);
    for round in 0..3 {
        fs::write(place.path("mount/f"), format!("{round}")).expect("write");
        run(&["sync", &mount]);
        fs::metadata(place.mount()).expect("it answers");
        up.kill();
        assert!(is_mounted(&place.mount()), "the dead mount is in the table");
        let _ = fs::metadata(place.mount());
        up = Daemon::start(&args);
        assert_eq!(fs::read(place.path("mount/f")).expect("read"), format!("{round}").as_bytes());
    }
    let out = run(&["up", "--data", &place.text("other"), "--mount", &mount]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(2) && said.contains("is busy"), "a living one stays: {said}");
    up.stop();
}

/// A full file system with bytes in the cache that do not fit, of a file that is closed. The bytes come from stores
/// through a mapping, because a write would be refused at once.
fn with_bytes_to_lose(place: &Place) -> Daemon {
    let small = ["--targets", "1", "--zone-size", "48M", "--log-size", "2M", "--set", "writeback.age_ms=600000"];
    let up = place.up(&small);
    // The stores are small and far apart: each takes a block, and the cache takes all of them.
    const STORES: usize = 16_000;
    let file = File::options().read(true).write(true).create(true).truncate(true).open(place.mount().join("f"));
    let file = file.expect("create");
    file.set_len(STORES as u64 * 8192).expect("set the size");
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, which is unmapped below; nobody else uses it.
    let map = unsafe { mmap(std::ptr::null_mut(), STORES * 8192, rw, MapFlags::SHARED, &file, 0) }.expect("map");
    // SAFETY: the mapping has at least this many bytes.
    (0..STORES).for_each(|i| unsafe { map.cast::<u8>().add(i * 8192).write(b'x') });
    // SAFETY: mapped above, and used no more.
    unsafe { munmap(map, STORES * 8192) }.expect("unmap");
    up
}

/// Goal: `amphi sync` reports lost bytes, once, even if their file is closed; the end of a mount reports the bytes that
/// are lost then. Method: a full file system, stores through a mapping that nobody syncs.
#[test]
fn sync_and_the_end_tell_of_what_was_lost() {
    let place = Place::new();
    let up = with_bytes_to_lose(&place);
    let mount = place.text("mount");
    let out = run(&["sync", &mount]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(1) && said.contains("No space left"), "{said}");
    assert!(run(&["sync", &mount]).status.success(), "once");
    up.stop();
    place.fsck();
    let place = Place::new();
    let mut up = with_bytes_to_lose(&place);
    // This holds even while a program still uses the mount: everything is written back before the unmount by force.
    let _user = File::open(place.mount().join("f")).expect("open");
    signal(&mut up, Signal::TERM);
    up.ends_with(1);
    place.fsck();
}

/// Goal: one copy_file_range copies no more than a large write does, so that a caller that is interrupted leaves no
/// more behind. Method: 40 MiB in one call; the rest by going on.
#[test]
fn copies_come_in_pieces() {
    let place = Place::new();
    let up = place.up(&[]);
    let bytes = pattern(3, 40 << 20);
    fs::write(place.mount().join("from"), &bytes).expect("write");
    let (from, to) =
        (File::open(place.mount().join("from")).expect("open"), File::create(place.mount().join("to")).expect("make"));
    let mut steps = 0;
    loop {
        match rustix::fs::copy_file_range(&from, None, &to, None, bytes.len()).expect("copy") {
            0 => break,
            n => assert!(n <= 16 << 20, "{n} at once"),
        }
        steps += 1;
    }
    assert_eq!(steps, 3);
    assert!(fs::read(place.mount().join("to")).expect("read") == bytes);
    up.stop();
}

/// Goal: a byte at the far end of a sparse file costs no more than another one, also when its lock is given to another
/// mount. Method: two mounts read and write there in turn.
#[test]
fn the_far_end_of_a_sparse_file() {
    let place = Place::new();
    let server = place.server(&[]);
    let (a, b) = (place.mount_at("a", &[]), place.mount_at("b", &[]));
    let far = (1u64 << 62) + 12_345;
    let open = |name: &str| {
        File::options().read(true).write(true).create(true).truncate(false).open(place.path(name)).expect("open")
    };
    let (by_a, by_b) = (open("a/f"), open("b/f"));
    for round in 0..6u8 {
        let (writer, reader) = if round % 2 == 0 { (&by_a, &by_b) } else { (&by_b, &by_a) };
        writer.write_all_at(&[round + 1], far).expect("write");
        writer.write_all_at(&[round + 1], 0).expect("write");
        let mut back = [0];
        reader.read_exact_at(&mut back, far).expect("read");
        assert_eq!(back, [round + 1]);
        assert_eq!(reader.metadata().expect("stat").len(), far + 1);
    }
    drop((by_a, by_b));
    a.stop();
    b.stop();
    server.stop();
    place.fsck();
}

/// Goal: the message of a layout command about a path follows from the error, not from the path's name. Method: a bad
/// layout for a file whose name has "busy" in it; a file with data; the second of two paths.
#[test]
fn layout_says_what_is_wrong() {
    let place = Place::new();
    let up = place.up(&[]);
    fs::write(place.mount().join("busybox"), b"").expect("write");
    File::create(place.mount().join("full")).expect("make").write_all(b"bytes").expect("write");
    let (busybox, full) = (place.text("mount/busybox"), place.text("mount/full"));
    let said = |args: &[&str]| {
        let out = run(args);
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (code, text) = said(&["layout", "set", "--layout", "bogus", &busybox]);
    assert!(code == Some(2) && text.contains("is no layout"), "{text}");
    let (code, text) = said(&["layout", "set", "--layout", "whole", &full]);
    assert!(code == Some(2) && text.contains("has data and keeps its layout"), "{text}");
    let (code, text) = said(&["layout", "set", "--layout", "whole", &busybox, &full]);
    assert!(code == Some(1) && text.contains("has data"), "the first was changed: {code:?} {text}");
    assert_eq!(errno(File::open(place.mount().join("nothing"))), libc::ENOENT);
    eventually("nothing is left to write", || run(&["sync", &place.text("mount")]).status.success());
    up.stop();
}

/// Goal: a loss of a closed file is reported to the program that syncs the file next, once; if none does, the end of
/// the mount reports it (Promise S16). Method: a full file system, a file that is closed before its write-back fails,
/// opened again and synced, or not.
#[test]
fn a_loss_of_a_closed_file_is_told() {
    for asked in [true, false] {
        let place = Place::new();
        let mut up = with_bytes_to_lose(&place);
        let mount = place.mount();
        assert!(run(&["set", "-m", &place.text("mount"), "writeback.age_ms=10"]).status.success());
        eventually("its write-back fails", || counter(&mount, "writeback_failed") > 0);
        if asked {
            let again = File::open(mount.join("f")).expect("open");
            let first = again.sync_all().expect_err("told").raw_os_error();
            assert_eq!((first, again.sync_all().is_ok()), (Some(28), true), "once");
            drop(again);
            assert!(File::open(mount.join("f")).expect("open").sync_all().is_ok(), "somebody was told");
            up.stop();
        } else {
            signal(&mut up, Signal::TERM);
            up.ends_with(1);
        }
        place.fsck();
    }
}
