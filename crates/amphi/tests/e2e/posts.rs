//! `amphi run`: programs that post writes without calls leave the same bytes as with calls, visible to everybody at
//! once, whatever happens to them.
//!
//! `preload/posts.c` holds the programs. Tests check how many writes were posted, so that no test passes without posted
//! writes.

use crate::harness::{Daemon, Place, Random, counter, eventually, is_mounted, pattern};
use crate::ioctl::ioctl;
use crate::preload::{text, under};
use crate::two_mounts::Pair;
use rustix::fs::OFlags;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/preload/posts.c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("posts-{}", std::process::id()));
        let gcc = Command::new("gcc").args(["-O1", "-o"]).arg(&program).arg(source).arg("-lpthread").status();
        assert!(gcc.expect("gcc").success());
        program
    })
}

/// Returns how many writes a report counts as posted.
fn posted(output: &Output) -> u64 {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines = text.lines().filter_map(|line| line.strip_prefix("amphi: writes posted: "));
    lines.map(|count| count.parse::<u64>().expect("a number")).sum()
}

fn program(name: &str, dir: &Path) -> Command {
    let mut command = under(programs());
    command.arg(name).arg(dir);
    command
}

/// Runs a program of posts.c on a mount of its own; the program must succeed, and post this many writes.
fn passes(name: &str, arguments: &[&str], least_posted: u64) {
    let place = Place::new();
    let up = place.up(&[]);
    let output = program(name, &place.mount()).args(arguments).output().expect("run");
    assert!(output.status.success(), "{name}: {} {}", output.status, text(&output));
    assert!(posted(&output) >= least_posted, "{name}: {}", text(&output));
    up.stop();
    place.fsck();
}

/// Goal: every function that writes has the same effect as without the library, with the right position, size and
/// errno. Every way to look at the file shows what was written: `fstat`, `stat`, reads, mappings, `sendfile`,
/// `copy_file_range`, `lseek`, a close. Method: a program that calls each of them.
#[test]
fn functions_that_write() {
    passes("functions", &[], 100);
}

/// Goal: O_APPEND that another process sets by `fcntl`, which no mount hears of, counts for the next write. Method: a
/// child that sets and clears it.
#[test]
fn flags_that_another_process_sets() {
    passes("flags", &[], 20);
}

/// Goal: processes that share a position write each record once, at a place of its own. Method: four children.
#[test]
fn a_position_is_shared_after_fork() {
    passes("records", &[], 100);
}

/// Goal: threads that post to one file lose nothing. Method: five of them, each in its own part.
#[test]
fn threads_post_to_one_file() {
    passes("threads", &[], 1000);
}

/// Goal: signal handlers that write while a write is under way, also such that never return, lose nothing. Method: a
/// timer.
#[test]
fn signal_handlers_write() {
    passes("handlers", &[], 1000);
}

/// Goal: a limit on the length of files is kept: EFBIG, and a short write before. Method: a limit that is set later.
#[test]
fn the_limit_of_file_lengths() {
    passes("limits", &[], 1);
}

/// Goal: a program that stops posting in the middle (a limit on the length of files) copies and maps all that it has
/// posted. Method: a program that posts, sets the limit, and then looks by functions that use the kernel's size.
#[test]
fn what_was_posted_before_the_end_of_posts() {
    passes("stops", &[], 30);
}

/// Goal: a mapping that was made before writes are posted shows them, also behind the end that the file had then.
/// Method: a program that maps more than the file has, posts, and reads the mapping.
#[test]
fn a_mapping_from_before_the_posts() {
    passes("mapped", &[], 20);
}

/// Goal: whatever a program does, it reads its own writes, and the file is right afterwards. Method: random writes,
/// truncates, reads, mappings, children, second descriptors, appends, against a model.
#[test]
fn random_operations() {
    for seed in ["1", "2", "3", "4"] {
        passes("random", &["4000", seed], 300);
    }
}

/// Goal: a program that forges its ring can change no file that it has not open for writing, and harms no other program
/// and no mount. Method: random words in the ring of one file, with the handle of another one.
#[test]
fn forged_rings_hurt_nobody() {
    let place = Place::new();
    let up = place.up(&[]);
    let victim = pattern(1, 100_000);
    fs::write(place.mount().join("victim"), &victim).expect("write");
    let output = program("forges", &place.mount()).output().expect("run");
    assert!(output.status.success(), "{} {}", output.status, text(&output));
    assert!(fs::read(place.mount().join("victim")).expect("read") == victim);
    up.stop();
    place.fsck();
}

/// Goal: a write that has returned survives `kill -9` of its program, also if the program is killed while it writes.
/// Method: programs that count their returned writes in memory that survives them.
#[test]
fn writes_survive_their_program() {
    let place = Place::new();
    let up = place.up(&[]);
    let counter = place.path("counter");
    let mut random = Random::new(7);
    let mut most = 0;
    for _ in 0..25 {
        fs::write(&counter, [0; 4096]).expect("write");
        let mut child = program("counts", &place.mount()).arg(&counter).spawn().expect("run");
        let returned = || {
            let bytes = fs::read(&counter).expect("read");
            u64::from_ne_bytes(bytes[..8].try_into().expect("eight bytes"))
        };
        let enough = random.below(3000);
        eventually("it writes", || returned() > enough);
        child.kill().expect("kill");
        child.wait().expect("wait");
        let count = returned();
        most = most.max(count);
        let found = fs::read(place.mount().join("file")).expect("read");
        let record = |n: u64| {
            let at = (n % 2000) as usize * 512;
            u64::from_ne_bytes(found[at..at + 8].try_into().expect("eight bytes"))
        };
        for n in count.saturating_sub(2000)..count {
            // The one that was under way may be there or not.
            let right = record(n) == n + 1 || (n + 2000 == count && record(n) == count + 1);
            assert!(right, "record {n} of {count} is {}", record(n));
        }
    }
    assert!(most > 1000);
    up.stop();
    place.fsck();
}

/// A program that writes on request.
struct Writer {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

const WRITER: &str = "
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for line in sys.stdin:
    offset, byte, length = map(int, line.split())
    assert os.pwrite(fd, bytes([byte]) * length, offset) == length
    print('done', flush=True)
";

impl Writer {
    fn start(file: &Path) -> Writer {
        let mut command = under("python3");
        command.args(["-c", WRITER]).arg(file).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("python");
        let (to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Writer { child, to, from: BufReader::new(from) }
    }

    fn write(&mut self, offset: u64, byte: u8, len: usize) {
        writeln!(self.to, "{offset} {byte} {len}").expect("it runs");
        let mut line = String::new();
        self.from.read_line(&mut line).expect("it answers");
        assert_eq!(line, "done\n");
    }

    fn end(self) -> Output {
        drop(self.to);
        self.child.wait_with_output().expect("wait")
    }
}

/// Programs that post make random writes; `look` examines each of them at once and gets the expected bytes.
fn writes_are_seen(file: &Path, rounds: usize, writers: usize, mut look: impl FnMut(usize, &[u8])) -> u64 {
    let mut random = Random::new(rounds as u64);
    let mut expected = pattern(3, 200_000);
    fs::write(file, &expected).expect("write");
    let mut all: Vec<Writer> = (0..writers).map(|_| Writer::start(file)).collect();
    for round in 0..rounds {
        let (len, byte) = (1 + random.below(6000) as usize, random.below(256) as u8);
        let at = if random.below(4) == 0 { expected.len() as u64 } else { random.below(expected.len() as u64) };
        expected.resize(expected.len().max(at as usize + len), 0);
        expected[at as usize..][..len].fill(byte);
        all[random.below(writers as u64) as usize].write(at, byte, len);
        look(round, &expected);
    }
    let all: Vec<Output> = all.into_iter().map(Writer::end).collect();
    assert!(all.iter().all(|output| output.status.success()), "{}", text(&all[0]));
    assert!(fs::read(file).expect("read") == expected);
    all.iter().map(posted).sum()
}

/// Goal: what a program has posted is seen at once by another process: the length by `stat`, the bytes through a
/// descriptor from before and through a new one. Promise S1. Method: this process, which is not under `amphi run`; one
/// writer, and two that share the file.
#[test]
fn other_processes_see_posted_writes() {
    for (writers, least) in [(1, 300), (2, 100)] {
        let place = Place::new();
        let up = place.up(&[]);
        let file = place.mount().join("f");
        let mut before = None;
        let posted = writes_are_seen(&file, 1200, writers, |round, expected| {
            assert_eq!(fs::metadata(&file).expect("stat").len(), expected.len() as u64, "round {round}");
            if round == 800 {
                before = fs::File::open(&file).ok();
            }
            if round % 40 == 0 {
                assert!(fs::read(&file).expect("read") == expected, "round {round}");
            } else if let Some(before) = &before
                && round % 8 == 0
            {
                let mut found = vec![0; expected.len() + 10];
                let n = before.read_at(&mut found, 0).expect("read");
                assert!(found[..n] == expected[..n] && n == expected.len(), "round {round}");
            }
        });
        assert!(posted > least, "{writers} writers: {posted} posted");
        up.stop();
        place.fsck();
    }
}

/// Goal: another mount that comes while programs post sees what they have written, and from then on each of their
/// writes. Promise S2. Method: a second mount in the middle.
#[test]
fn another_mount_sees_posted_writes() {
    let place = Place::new();
    let (server, first) = (place.server(&[]), place.mount_at("a", &[]));
    let (here, there) = (place.path("a").join("f"), place.path("b").join("f"));
    let mut second = None;
    let posted = writes_are_seen(&here, 400, 1, |round, expected| {
        if round == 200 {
            second = Some(place.mount_at("b", &[]));
        }
        if second.is_some() {
            assert!(fs::read(&there).expect("read") == expected, "round {round}");
        }
    });
    assert!(posted > 100, "{posted} posted");
    for daemon in [second.expect("mounted"), first, server] {
        daemon.stop();
    }
    place.fsck();
}

/// Goal: in shared mode programs post as well, and another mount sees each write that has returned: its bytes and the
/// length that it gave the file. Promises S1 and S2. Method: one writer; from time to time the other mount asks for the
/// length, reads the file, or writes to it.
#[test]
fn posts_are_seen_by_the_other_mount() {
    let pair = Pair::new(1, &[], &["--set", "hybrid.contended_ms=0"]);
    let (here, there) = (pair.a.join("f"), pair.b.join("f"));
    let posted = writes_are_seen(&here, 1500, 1, |round, expected| {
        if round % 10 == 5 {
            assert_eq!(fs::metadata(&there).expect("stat").len(), expected.len() as u64, "round {round}");
        }
        if round % 40 == 20 {
            assert!(fs::read(&there).expect("read") == expected, "round {round}");
        }
        if round % 100 == 99 {
            let file = fs::OpenOptions::new().write(true).open(&there).expect("open");
            file.write_all_at(&expected[..1], 0).expect("write");
        }
    });
    assert!(posted > 400, "{posted} posted");
    let taken = counter(&pair.a, "posted_shared");
    assert!(taken > 50, "posts were taken {taken} times");
    pair.stop();
}

/// Goal: a program that has stopped in the middle of a post keeps no other mount from the file, which finds the posts
/// behind it, and the mount is not evicted. When the program goes on, its write is made by a call. Promise S2. Method:
/// a program that claims a position of its ring and waits.
#[test]
fn a_post_in_the_middle_delays_nobody() {
    let pair = Pair::new(1, &[], &[]);
    let mut command = program("pauses", &pair.a);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("run");
    let (mut to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let mut lines = BufReader::new(from).lines();
    let mut says = |what: &str| assert_eq!(lines.next().expect("it runs").expect("it answers"), what);
    says("posted");
    let (here, there) = (pair.a.join("file"), pair.b.join("file"));
    let numbers: Vec<u8> = (0..40u32).flat_map(u32::to_ne_bytes).collect();
    assert_eq!(fs::read(&there).expect("read")[..numbers.len()], numbers);
    let file = fs::OpenOptions::new().write(true).open(&there).expect("open");
    file.write_all_at(b"there", 8).expect("write");
    to.write_all(b"g").expect("it runs");
    says("written");
    assert_eq!(fs::read(&there).expect("read")[..13], *b"middle\0\0there");
    to.write_all(b"g").expect("it runs");
    assert!(child.wait().expect("wait").success());
    assert_eq!(fs::read(&there).expect("read"), fs::read(&here).expect("read"));
    assert!(counter(&pair.a, "posted_shared") > 0);
    pair.stop();
}

/// Goal: a program that is stopped while it posts keeps no other mount from the file, and what it was told is written
/// is there. Promise S2. Method: SIGSTOP at random moments; the other mount reads all of it.
#[test]
fn stopped_programs_delay_nobody() {
    let pair = Pair::new(1, &[], &["--set", "hybrid.contended_ms=0"]);
    let shared = pair.place.path("counter");
    fs::write(&shared, [0; 4096]).expect("write");
    let mut child = program("counts", &pair.a).arg(&shared).spawn().expect("run");
    let returned = || {
        let bytes = fs::read(&shared).expect("read");
        u64::from_ne_bytes(bytes[..8].try_into().expect("eight bytes"))
    };
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &child.id().to_string()]).status();
        assert!(sent.expect("kill").success());
    };
    let mut random = Random::new(11);
    for _ in 0..30 {
        let enough = returned() + random.below(3000);
        eventually("it writes", || returned() > enough);
        signal("-STOP");
        let state = format!("/proc/{}/stat", child.id());
        eventually("it is stopped", || fs::read_to_string(&state).is_ok_and(|stat| stat.contains(") T ")));
        let count = returned();
        let found = fs::read(pair.b.join("file")).expect("read");
        for n in count.saturating_sub(1999)..count {
            let at = (n % 2000) as usize * 512;
            let record = u64::from_ne_bytes(found[at..at + 8].try_into().expect("eight bytes"));
            assert_eq!(record, n + 1, "record {n} of {count}");
        }
        signal("-CONT");
    }
    child.kill().expect("kill");
    child.wait().expect("wait");
    let taken = counter(&pair.a, "posted_shared");
    assert!(taken > 30, "posts were taken {taken} times");
    pair.stop();
}

/// Goal: if the target is full, the write that does not fit reports this, and the bytes of returned writes are there.
/// Promise S15. Method: a small zone that is filled by posted writes.
#[test]
fn a_full_target_is_reported_by_the_write() {
    let place = Place::new();
    let up = place.up(&["--targets", "1", "--zone-size", "128M", "--log-size", "2M", "--set", "hybrid.mode=buffered"]);
    let output = program("fill", &place.mount()).output().expect("run");
    assert!(output.status.success(), "{} {}", output.status, text(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    let words: Vec<u64> = said.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    assert!(words[0] > 10_000 && words[1..] == [28, 0], "{said}");
    assert!(posted(&output) > 1000, "{}", text(&output));
    fs::remove_file(place.mount().join("file")).expect("delete");
    up.stop();
    place.fsck();
}

/// Goal: if the mount is killed, a program that posts gets errors soon, and does not hang. Method: `kill -9` of the
/// mount.
#[test]
fn programs_notice_that_their_mount_was_killed() {
    let place = Place::new();
    let (server, mount) = (place.server(&[]), place.mount_at("a", &[]));
    let counter = place.path("counter");
    fs::write(&counter, [0; 4096]).expect("write");
    let mut child = program("counts", &place.path("a")).arg(&counter).spawn().expect("run");
    eventually("it writes", || fs::read(&counter).expect("read")[1] > 8);
    mount.kill();
    let began = Instant::now();
    let status = child.wait().expect("wait");
    assert_eq!(status.code(), Some(3), "its write failed");
    assert!(began.elapsed() < Duration::from_secs(30));
    let mounted = place.path("a");
    if is_mounted(&mounted) {
        let _ = Command::new("umount").arg("-l").arg(&mounted).status();
    }
    server.stop();
}

/// `IDENTIFY_WRITER`, and the number of bytes of its answer (docs/IOCTL.md).
const IDENTIFY_WRITER: u64 = 0x8040_410b;

/// Whether the mount admits this open file to post.
fn is_admitted(file: &fs::File) -> bool {
    let mut identity = [0u32; 16];
    assert_eq!(ioctl(file, IDENTIFY_WRITER, &mut identity), 0);
    identity[1] == 1
}

/// Goal: an open file that may not write, or whose writes have to be calls, is not admitted to the ring of a file to
/// which another program posts. Promise S8. Method: such open files beside a program that posts, and one that may.
#[test]
fn only_plain_writers_are_admitted() {
    let place = Place::new();
    let up = place.up(&[]);
    let path = place.mount().join("f");
    fs::write(&path, pattern(1, 10_000)).expect("write");
    let mut writer = Writer::start(&path);
    (0..50).for_each(|n| writer.write(n * 100, 7, 100));
    let open = |read: bool, write: bool, flags: OFlags| {
        let mut options = fs::OpenOptions::new();
        options.read(read).write(write).custom_flags(flags.bits() as i32).open(&path).expect("open")
    };
    let (reader, plain) = (open(true, false, OFlags::empty()), open(false, true, OFlags::empty()));
    let strict = [OFlags::APPEND, OFlags::SYNC, OFlags::DSYNC, OFlags::DIRECT].map(|flags| open(true, true, flags));
    // An open ends the posting, and the program asks again with one of its next writes.
    let mut n = 0;
    eventually("posts go on", || {
        writer.write(n % 10_000, 8, 1);
        n += 1;
        is_admitted(&plain)
    });
    assert!(!is_admitted(&reader), "it may not write");
    assert_eq!(strict.iter().map(is_admitted).collect::<Vec<_>>(), [false; 4]);
    assert!(is_admitted(&plain), "the posting has not ended meanwhile");
    drop((reader, plain, strict));
    assert!(writer.end().status.success());
    up.stop();
    place.fsck();
}

/// Goal: `amphi sync` makes posted writes stable, and the end of a mount that is in use loses none. Promises S10, S11.
/// Method: a program posts, and at once the mount is synced and killed, or ended by a signal while the program has the
/// file open. Another mount has to show everything.
#[test]
fn syncs_and_ends_include_posted_writes() {
    for ends in ["killed after a sync", "ended in use"] {
        let place = Place::new();
        let (server, mut mount) = (place.server(&[]), place.mount_at("m", &[]));
        let path = place.path("m").join("f");
        let mut expected = pattern(5, 100_000);
        let mut posted_writes = 0;
        for round in 0..3u8 {
            fs::write(&path, &expected).expect("write");
            let mut writer = Writer::start(&path);
            for n in 0..200 {
                let at = n * 499;
                writer.write(at as u64, round, 300);
                expected[at..at + 300].fill(round);
            }
            if ends == "ended in use" {
                mount.stop();
            } else {
                assert!(crate::harness::run(&["sync", &place.text("m")]).status.success());
                mount.kill();
            }
            posted_writes += posted(&writer.end());
            if is_mounted(&place.path("m")) {
                let _ = Command::new("umount").arg("-l").arg(place.path("m")).status();
            }
            mount = place.mount_at("m", &[]);
            assert!(fs::read(&path).expect("read") == expected, "{ends}, round {round}");
        }
        assert!(posted_writes > 100, "{ends}: {posted_writes} posted");
        mount.stop();
        server.stop();
        place.fsck();
    }
}

/// Goal: with `AMPHI_PRELOAD=reads` no write is posted. Method: a program that would post.
#[test]
fn posts_can_be_turned_off() {
    let place = Place::new();
    let up: Daemon = place.up(&[]);
    let mut command = program("functions", &place.mount());
    let output = command.env("AMPHI_PRELOAD", "reads,report").output().expect("run");
    assert!(output.status.success() && posted(&output) == 0, "{}", text(&output));
    up.stop();
}
