//! kill -9 of the server under load; two processes, Unix socket.

use crate::harness::{Daemon, Place, Starting, amphi, as_first_start, eventually, is_mounted, pattern, run};
use rustix::fs::{Mode, OFlags, fsync, open};
use rustix::io::pwrite;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn server(place: &Place) -> Daemon {
    let (data, addr) = (place.text("data"), format!("unix:{}", place.text("sock")));
    Daemon::start(&["server", "--data", &data, "--listen", &addr, "--zone-size", "512M"])
}

fn mount(place: &Place) -> Daemon {
    let (addr, dir) = (format!("unix:{}", place.text("sock")), place.text("mount"));
    Daemon::start(&["mount", "--cluster", &addr, &dir])
}

/// Goal: Promise S9, S12: a server killed while programs write and make files loses nothing that was acknowledged, the
/// programs' calls wait and continue, nothing is done twice. Method: one thread makes, renames, appends with fsync and
/// removes. Meanwhile the server is killed and restarted several times. After that everything is compared with what the
/// thread knows.
#[test]
fn a_killed_server_loses_nothing() {
    loses_nothing(true);
}

/// Goal and method: as above, of a server that answers small writes when they are on the disk.
#[test]
fn a_killed_server_that_writes_through_loses_nothing() {
    loses_nothing(false);
}

fn loses_nothing(on: bool) {
    let place = Place::new();
    let settings = place.text("server.toml");
    fs::write(&settings, format!("tunables = {{ write_back = {on} }}\n")).expect("write");
    let server = |place: &Place| {
        let (data, addr) = (place.text("data"), format!("unix:{}", place.text("sock")));
        let args = ["server", "--config", &settings, "--data", &data, "--listen", &addr, "--zone-size", "512M"];
        Daemon::start(&args)
    };
    let mut srv = server(&place);
    let mnt = mount(&place);
    let m = place.mount();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let dir = m.clone();
    let worker = std::thread::spawn(move || {
        let log = open(dir.join("log"), OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND, Mode::from_raw_mode(0o644))
            .expect("open");
        let mut n = 0u64;
        while stopped.try_recv().is_err() {
            let d = dir.join(format!("d{}", n % 17));
            match fs::create_dir(&d) {
                Ok(()) => {}
                Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::AlreadyExists, "mkdir: {e}"),
            }
            fs::write(d.join("new"), pattern(n, 5000)).expect("write");
            fs::rename(d.join("new"), d.join(format!("f{n}"))).expect("rename");
            fs::hard_link(d.join(format!("f{n}")), dir.join(format!("hard{n}"))).expect("link");
            if n >= 10 {
                fs::remove_file(dir.join(format!("hard{}", n - 10))).expect("each name is removed once");
            }
            assert_eq!(rustix::io::write(&log, &n.to_le_bytes()).expect("append"), 8);
            fsync(&log).expect("fsync");
            n += 1;
        }
        n
    });
    for _ in 0..4 {
        let before = fs::metadata(m.join("log")).map(|f| f.len()).unwrap_or(0);
        while fs::metadata(m.join("log")).map(|f| f.len()).unwrap_or(0) < before + 80 {
            std::thread::yield_now();
        }
        srv.kill();
        srv = server(&place);
    }
    stop.send(()).expect("worker runs");
    let n = worker.join().expect("no call failed");
    check(&m, n);
    mnt.stop();
    assert!(!is_mounted(&m));
    srv.stop();
    place.fsck();
    let srv = server(&place);
    let mnt = mount(&place);
    check(&m, n);
    mnt.stop();
    srv.stop();
}

fn check(m: &std::path::Path, n: u64) {
    let log = fs::read(m.join("log")).expect("read");
    let want: Vec<u8> = (0..n).flat_map(|i| i.to_le_bytes()).collect();
    assert!(log == want, "the log has {} of {} bytes or other ones", log.len(), want.len());
    for i in 0..n {
        let f = m.join(format!("d{}/f{i}", i % 17));
        assert!(fs::read(&f).expect("file is there") == pattern(i, 5000), "{}", f.display());
        assert_eq!(m.join(format!("hard{i}")).exists(), i + 10 >= n, "hard{i}");
    }
}

/// Goal: Promise S10, S11: after kill -9 of the mount process, fsynced data is there, a new mount is admitted, and the
/// zones are sound.
#[test]
fn a_killed_mount_keeps_what_was_synced() {
    let place = Place::new();
    let srv = server(&place);
    let mnt = mount(&place);
    let m = place.mount();
    let bytes = pattern(3, 7 << 20);
    let f = open(m.join("synced"), OFlags::CREATE | OFlags::RDWR, Mode::from_raw_mode(0o644)).expect("open");
    let mut done = 0;
    while done < bytes.len() {
        done += pwrite(&f, &bytes[done..], done as u64).expect("write");
    }
    fsync(&f).expect("fsync");
    fs::remove_file(m.join("synced")).ok();
    let g = open(m.join("kept"), OFlags::CREATE | OFlags::RDWR, Mode::from_raw_mode(0o644)).expect("open");
    done = 0;
    while done < bytes.len() {
        done += pwrite(&g, &bytes[done..], done as u64).expect("write");
    }
    fsync(&g).expect("fsync");
    mnt.kill();
    drop((f, g));
    let _ = rustix::mount::unmount(&m, rustix::mount::UnmountFlags::DETACH);
    let mnt = mount(&place);
    assert!(fs::read(m.join("kept")).expect("read") == bytes);
    assert!(!m.join("synced").exists());
    mnt.stop();
    srv.stop();
    place.fsck();
}

/// Goal: Promise S1 for two mounts: names, sizes, attributes and data that one mount changes are seen by the other at
/// once, even when both are warm, and over a crash of the server. Method: two mounts take turns.
#[test]
fn two_mounts_see_each_other() {
    let place = Place::new();
    let srv = server(&place);
    let mnt = mount(&place);
    fs::create_dir(place.path("second")).expect("mkdir");
    fs::write(place.mount().join("alone"), b"alone").expect("write");
    let addr = format!("unix:{}", place.text("sock"));
    let second = Daemon::start(&["mount", "--cluster", &addr, &place.text("second")]);
    let dirs = [place.mount(), place.path("second")];
    assert_eq!(fs::read(dirs[1].join("alone")).expect("read"), b"alone");
    let mut srv = Some(srv);
    for round in 0..20u64 {
        let (here, there) = (&dirs[round as usize % 2], &dirs[(round as usize + 1) % 2]);
        let bytes = pattern(round, 1 + round as usize * 7001);
        assert!(!there.join("f").exists());
        fs::write(here.join("f"), &bytes).expect("write");
        assert!(fs::read(there.join("f")).expect("read") == bytes, "round {round}");
        let f = open(there.join("f"), OFlags::RDWR, Mode::empty()).expect("open");
        assert_eq!(pwrite(&f, b"tail", bytes.len() as u64).expect("write"), 4);
        assert_eq!(fs::metadata(here.join("f")).expect("stat").len(), bytes.len() as u64 + 4);
        if round == 10 {
            srv.take().expect("the server").kill();
            srv = Some(server(&place));
        }
        fs::rename(here.join("f"), moved(here, round)).expect("rename");
        assert!(!there.join("f").exists() && moved(there, round).exists());
        rustix::fs::ftruncate(&f, 1).expect("truncate");
        assert_eq!(fs::read(moved(here, round)).expect("read"), &bytes[..1]);
        fs::remove_file(moved(there, round)).expect("unlink");
        assert!(!moved(here, round).exists());
    }
    second.stop();
    mnt.stop();
    if let Some(srv) = srv {
        srv.stop();
    }
    place.fsck();
}

fn moved(dir: &std::path::Path, round: u64) -> std::path::PathBuf {
    dir.join(format!("moved{round}"))
}

/// Goal: Promise S6 over a crash: a file unlinked while open survives a restart of the server.
#[test]
fn an_unlinked_open_file_survives_a_server_crash() {
    let place = Place::new();
    let srv = server(&place);
    let mnt = mount(&place);
    let path = place.mount().join("f");
    let f = open(&path, OFlags::CREATE | OFlags::RDWR, Mode::from_raw_mode(0o644)).expect("open");
    let bytes = pattern(11, 300_000);
    assert_eq!(pwrite(&f, &bytes, 0).expect("write"), bytes.len());
    fsync(&f).expect("fsync");
    fs::remove_file(&path).expect("unlink");
    srv.kill();
    let srv = server(&place);
    let mut back = vec![0; bytes.len()];
    let fd = f;
    let mut done = 0;
    while done < back.len() {
        let n = rustix::io::pread(&fd, &mut back[done..], done as u64).expect("read");
        assert!(n > 0);
        done += n;
    }
    assert!(back == bytes);
    assert_eq!(pwrite(&fd, b"more", 300_000).expect("write"), 4);
    fsync(&fd).expect("fsync");
    drop(fd);
    mnt.stop();
    srv.stop();
    place.fsck();
}

/// Goal: a server killed while files go, some of which are still open, gives every block back: those written past the
/// cache as well as those through it (replay-single 89). Method: files of three kinds are unlinked, and some of them
/// are held open. The server is killed right after, started again, and the files are closed. The server is killed
/// directly afterwards, started again, and the blocks are counted.
#[test]
fn a_killed_server_leaks_no_blocks() {
    let place = Place::new();
    let srv = server(&place);
    let mnt = mount(&place);
    let m = place.mount();
    let free = || rustix::fs::statvfs(&m).expect("statvfs").f_bfree;
    let bytes = pattern(5, 9 << 20);
    // (name, flags, bytes of a call): switched, direct by flag, through the cache.
    let ways =
        [("large", OFlags::empty(), 3 << 20), ("direct", OFlags::DIRECT, 1 << 20), ("small", OFlags::empty(), 20_000)];
    let write_all = || {
        ways.map(|(name, flags, step)| {
            let f =
                open(m.join(name), OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | flags, Mode::from_raw_mode(0o644))
                    .expect("open");
            for (i, part) in bytes.chunks(step).enumerate() {
                assert_eq!(pwrite(&f, part, (i * step) as u64).expect("write"), part.len());
            }
            fsync(&f).expect("fsync");
            f
        })
    };
    let used = (bytes.len() / 4096) as u64;
    let before = free();
    let [large, direct, small] = write_all();
    let during = free();
    assert!(during + 3 * used <= before + 64, "{during} free, {before} before, {used} each");
    drop(small);
    ways.iter().for_each(|(name, ..)| fs::remove_file(m.join(name)).expect("unlink"));
    srv.kill();
    let srv = server(&place);
    let mut back = vec![0; 4096];
    assert_eq!(rustix::io::pread(&direct, &mut back, 8 << 20).expect("still open"), 4096);
    assert!(back == bytes[8 << 20..][..4096]);
    drop((large, direct));
    eventually("every block is free again", || free() == before);
    mnt.stop();
    srv.stop();
    place.fsck();
}

/// Goal: Promise S9: changes are answered before they are on the disk, and a kill loses none of them. The check of the
/// stopped zones sees these changes, too. Method: each write of the disk is delayed by 20 ms, however fast the
/// machine's disk is. A thread makes files, one after the other, and never syncs. The server is killed three times in
/// the middle, and each time some changes are only in memory. After an orderly stop, no such memory is left.
#[test]
fn a_killed_server_loses_nothing_that_was_on_its_way() {
    if let Err(e) = amphi_env::real::memory_outlives() {
        return eprintln!("not run: {e}");
    }
    let place = Place::new();
    let settings = place.text("slow.toml");
    fs::write(&settings, "tunables = { disk_write_delay_us = 20000 }\n").expect("settings");
    let slow = || place.server(&["--config", &settings]);
    let mut srv = slow();
    let mnt = mount(&place);
    let m = place.mount();
    let (made, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let srv = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                fs::File::create_new(m.join(format!("f{}", made.load(Ordering::SeqCst))))
                    .expect("each name is made once");
                made.fetch_add(1, Ordering::SeqCst);
            }
        });
        for round in 0..3 {
            let enough = made.load(Ordering::SeqCst) + 50 + round * 7;
            eventually("files are made", || made.load(Ordering::SeqCst) >= enough);
            srv.kill();
            assert!(!place.memory().is_empty());
            let check = run(&["fsck", &place.text("data")]);
            let told = String::from_utf8_lossy(&check.stdout).into_owned() + &String::from_utf8_lossy(&check.stderr);
            assert!(check.status.success(), "{told}");
            assert!(told.contains("were in memory only"), "round {round}: all was on the disk: {told}");
            srv = slow();
        }
        stop.store(true, Ordering::SeqCst);
        srv
    });
    let n = made.into_inner();
    let compare = || assert!((0..n).all(|i| m.join(format!("f{i}")).exists()), "one of {n} is missing");
    compare();
    mnt.stop();
    srv.stop();
    assert_eq!(place.memory(), Vec::<std::path::PathBuf>::new());
    place.fsck();
    let srv = server(&place);
    let mnt = mount(&place);
    compare();
    mnt.stop();
    srv.stop();
}

/// Goal: Promise S9: a server in a container waits for the disk, since its memory does not outlive the container.
/// Method: a server in an IPC namespace of its own has no such memory, and files that were made before a kill are
/// there.
#[test]
fn a_server_in_a_container_waits_for_the_disk() {
    let place = Place::new();
    let contained = || {
        let mut command = std::process::Command::new("unshare");
        let (data, addr) = (place.text("data"), format!("unix:{}", place.text("sock")));
        command.arg("--ipc").arg(amphi().get_program());
        command.args(as_first_start(&["server", "--data", &data, "--listen", &addr, "--zone-size", "512M"]));
        Starting::spawn(command).ready()
    };
    let mut srv = contained();
    let mnt = mount(&place);
    let m = place.mount();
    for i in 0..100 {
        fs::write(m.join(format!("f{i}")), b"").expect("write");
    }
    assert_eq!(place.memory(), Vec::<std::path::PathBuf>::new());
    srv.kill();
    srv = contained();
    assert!((0..100).all(|i| m.join(format!("f{i}")).exists()));
    mnt.stop();
    srv.stop();
    place.fsck();
}

/// Goal: Promise S22: where the memory that outlives the server is lost with it, the mount is notified, and a new mount
/// finds an intact file system. Method: the memory is removed between kill and start.
#[test]
fn a_mount_is_told_that_memory_has_gone() {
    if let Err(e) = amphi_env::real::memory_outlives() {
        return eprintln!("not run: {e}");
    }
    let place = Place::new();
    let srv = server(&place);
    let mnt = mount(&place);
    let m = place.mount();
    fs::write(m.join("synced"), b"1").expect("write");
    let f = open(m.join("synced"), OFlags::RDWR, Mode::empty()).expect("open");
    fsync(&f).expect("fsync");
    srv.kill();
    for memory in place.memory() {
        fs::remove_file(memory).expect("remove");
    }
    let srv = server(&place);
    eventually("calls fail", || fs::write(m.join("late"), b"1").is_err_and(|e| e.raw_os_error() == Some(5)));
    drop(f);
    mnt.kill();
    let _ = rustix::mount::unmount(&m, rustix::mount::UnmountFlags::DETACH);
    let mnt = mount(&place);
    assert_eq!(fs::read(m.join("synced")).expect("read"), b"1");
    mnt.stop();
    srv.stop();
    place.fsck();
}

/// `amphi` with these arguments; a write beyond a limit on the size of its files fails instead of killing it.
fn without_size_signal(args: &[&str]) -> Daemon {
    let mut command = std::process::Command::new("env");
    command.arg("--ignore-signal=XFSZ").arg(amphi().get_program()).args(as_first_start(args));
    let state =
        amphi().get_envs().map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned))).collect::<Vec<_>>();
    command.envs(state.into_iter().map(|(name, value)| (name, value.unwrap_or_default())));
    Starting::spawn(command).ready()
}

/// From now on no write of the process reaches the log of a zone.
fn fail_the_logs(daemon: &mut Daemon) {
    let limit = rustix::process::Rlimit { current: Some(4096), maximum: None };
    let pid = rustix::process::Pid::from_raw(daemon.pid() as i32);
    rustix::process::prlimit(pid, rustix::process::Resource::Fsize, limit).expect("prlimit");
}

/// Goal: a server whose zone fails ends at once with a line and exit code 1, and gives no answer that is not true.
/// After a restart the server has everything that was acknowledged, and the mount continues (Promises S9, S12). Method:
/// writes to the log fail while a thread makes, renames and syncs files.
#[test]
fn a_failed_zone_ends_its_server() {
    let place = Place::new();
    let (data, addr) = (place.text("data"), place.addr());
    let args =
        ["server", "--data", &data, "--listen", &addr, "--targets", "2", "--zone-size", "256M", "--log-size", "8M"];
    let mut srv = without_size_signal(&args);
    let mnt = mount(&place);
    let m = place.mount();
    let (stop, made) = (std::sync::atomic::AtomicBool::new(false), std::sync::atomic::AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0.. {
                // The files are empty: data lies behind the limit as well, and a disk that refuses data reports this to
                // the writer.
                let path = m.join(format!("f{i}"));
                fs::write(m.join("fresh"), b"").expect("no call fails");
                fs::rename(m.join("fresh"), &path).expect("no call fails");
                if i % 4 == 0 {
                    fs::File::open(&path).and_then(|f| f.sync_all()).expect("no call fails");
                }
                made.store(i + 1, std::sync::atomic::Ordering::SeqCst);
                if stop.load(std::sync::atomic::Ordering::SeqCst) {
                    return;
                }
            }
        });
        for _ in 0..3 {
            let before = made.load(std::sync::atomic::Ordering::SeqCst);
            eventually("files are made", || made.load(std::sync::atomic::Ordering::SeqCst) > before + 20);
            fail_the_logs(&mut srv);
            std::mem::replace(&mut srv, Daemon::none()).ends_with(1);
            srv = without_size_signal(&args);
        }
        let before = made.load(std::sync::atomic::Ordering::SeqCst);
        eventually("it goes on", || made.load(std::sync::atomic::Ordering::SeqCst) > before + 20);
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    for i in 0..made.load(std::sync::atomic::Ordering::SeqCst) {
        assert!(m.join(format!("f{i}")).exists(), "f{i}");
    }
    mnt.stop();
    srv.stop();
    place.fsck();
}

/// Goal: `amphi up` whose zone fails ends with exit code 1 and unmounts its mount. After a restart it has everything
/// that was synced. Method: as above, with a program that has a file open.
#[test]
fn a_failed_zone_ends_amphi_up() {
    let place = Place::new();
    let (data, dir) = (place.text("data"), place.text("mount"));
    let args = ["up", "--data", &data, "--mount", &dir, "--targets", "2", "--zone-size", "256M", "--log-size", "8M"];
    let mut up = without_size_signal(&args);
    let m = place.mount();
    fs::write(m.join("kept"), pattern(1, 100_000)).expect("write");
    let kept = fs::File::open(m.join("kept")).expect("open");
    kept.sync_all().expect("fsync");
    fail_the_logs(&mut up);
    let _ = fs::write(m.join("other"), b"perhaps");
    up.ends_with(1);
    assert!(!is_mounted(&m), "the mount went with it");
    drop(kept);
    let up = without_size_signal(&args);
    assert!(fs::read(m.join("kept")).expect("read") == pattern(1, 100_000));
    up.stop();
    place.fsck();
}
