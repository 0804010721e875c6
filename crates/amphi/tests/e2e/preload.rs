//! `amphi run`: programs that read without system calls see the same bytes as with them, whatever they do with their
//! descriptors, on one mount and on two.
//!
//! `preload/programs.c` holds the programs that need C. Each test also checks how many reads were served without a
//! call, so that no test passes without shared memory.

use crate::harness::{Daemon, Place, amphi, eventually, pattern};
use crate::two_mounts::Pair;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;

/// Every open file is served by the mount: what the kernel serves is not shared.
const OWN: [&str; 2] = ["--set", "hybrid.kernel_cache=off"];
const RECORD: usize = 4096;
const FILE_BYTES: usize = 150 * RECORD + 123;

/// The library, built as it is installed.
pub fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = Path::new(env!("CARGO_BIN_EXE_amphi")).parent().and_then(Path::parent).expect("target").to_owned();
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--locked", "--profile", "preload", "-p", "amphi-preload", "--target-dir"])
            .arg(&target)
            .current_dir(root)
            .status();
        assert!(built.expect("cargo starts").success(), "the library is built");
        target.join("preload/libamphi_preload.so")
    })
}

/// A C program of the tests.
fn compiled(name: &str, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/preload/programs.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-o"]).arg(&program).arg(source).args(options).arg("-lpthread");
    assert!(gcc.status().expect("gcc").success());
    program
}

fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| compiled("preload-programs", &[]))
}

/// `amphi run -- PROGRAM`, which reports how its reads went.
pub fn under(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = amphi();
    command.env("AMPHI_PRELOAD_LIBRARY", library()).env("AMPHI_PRELOAD", "report").env_remove("LD_PRELOAD");
    command.args(["run", "--"]).arg(program);
    command
}

/// Returns how many reads in a report used a given way.
fn reported(output: &Output, way: &str) -> u64 {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines =
        text.lines().filter_map(|line| line.strip_prefix("amphi: reads ")?.strip_prefix(way)?.strip_prefix(": "));
    lines.map(|count| count.parse::<u64>().expect("a number")).sum()
}

fn shared(output: &Output) -> u64 {
    reported(output, "from shared memory")
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The content that programs.c expects in file `n`.
fn content(n: usize) -> Vec<u8> {
    (0..FILE_BYTES).map(|at| (n * 37 + at / RECORD * 11 + at % 251) as u8).collect()
}

/// A mount with the files of programs.c.
fn mounted() -> (Place, Daemon) {
    let place = Place::new();
    let up = place.up(&OWN);
    (0..6).for_each(|n| fs::write(place.mount().join(format!("n{n}")), content(n)).expect("write"));
    (place, up)
}

/// Runs a program of programs.c on a mount of its own. It must succeed, and make this many reads without a system call.
fn passes(name: &str, least_shared: u64) {
    let (place, up) = mounted();
    let output = under(programs()).arg(name).arg(place.mount()).output().expect("run");
    assert!(output.status.success(), "{name}: {} {}", output.status, text(&output));
    assert!(shared(&output) >= least_shared, "{name}: {}", text(&output));
    up.stop();
}

/// Goal: every function that reads returns the same as without the library, at all offsets of a file, and leaves the
/// right position and errno. Method: a program that calls each of them.
#[test]
fn functions_that_read() {
    passes("functions", 30);
}

/// Goal: a descriptor number that was closed or replaced, by whatever means, never shows the file that it stood for
/// before. Method: random closes, opens, `dup2`s and system calls, with reads of all numbers after each.
#[test]
fn numbers_that_change_their_file() {
    passes("numbers", 5000);
}

/// Goal: the same while threads read the numbers. Method: each read has to return bytes of only one file.
#[test]
fn numbers_replaced_under_threads() {
    passes("threads", 5000);
}

/// Goal: processes that share a position read each record once, all together. Method: four children.
#[test]
fn a_position_is_shared_after_fork() {
    passes("position", 20);
}

/// Goal: a child of `vfork`, which shares its parent's memory but has descriptors of its own, makes neither the parent
/// nor the child read a wrong file. Method: the child replaces a descriptor from which its parent reads by one of
/// another file.
#[test]
fn children_of_vfork_have_their_own_descriptors() {
    passes("in_vfork", 2000);
}

/// Goal: reads in signal handlers that interrupt reads are right, also in handlers that never return. Method: a timer.
#[test]
fn signal_handlers_read() {
    passes("handlers", 1000);
}

/// Goal: a thread that waits in `read` can be cancelled. Method: a pipe.
#[test]
fn reads_of_pipes_are_cancelled() {
    passes("cancel", 0);
}

/// Goal: the library makes no call once a program has forbidden itself calls. Method: strict seccomp, which ends a
/// program at its first forbidden call.
#[test]
fn sandboxed_programs_go_on() {
    let (place, up) = mounted();
    // The program ends by a system call, so it reports nothing.
    let output = under(programs()).arg("sandbox").arg(place.mount()).output().expect("run");
    assert!(output.status.success(), "{} {}", output.status, text(&output));
    up.stop();
}

/// Goal: reads see bytes stored through mappings, and mappings see bytes written by calls. Method: bytes are stored and
/// read alternately.
#[test]
fn mappings_and_reads_agree() {
    passes("mapping", 1);
}

/// Goal: descriptors that are passed over a socket read the file that they refer to. Method: a number that is used
/// again for the next file, and closed by a system call.
#[test]
fn descriptors_that_are_passed() {
    passes("passed", 400);
}

/// Goal: with `AMPHI_PRELOAD=strict` a bad buffer is EFAULT. Method: memory that is not mapped.
#[test]
fn bad_buffers_are_errors_if_asked_for() {
    let (place, up) = mounted();
    let mut command = under(programs());
    let output = command.env("AMPHI_PRELOAD", "strict").arg("bad_buffer").arg(place.mount()).output().expect("run");
    assert!(output.status.success(), "{} {}", output.status, text(&output));
    up.stop();
}

/// Goal: a program that is linked statically, and one with the library turned off, work as ever and share nothing.
/// Method: the same programs.
#[test]
fn without_the_library() {
    let (place, up) = mounted();
    let statically = compiled("preload-static", &["-static"]);
    for (program, setting) in [(statically.as_path(), "report"), (programs(), "off")] {
        let mut command = under(program);
        let output = command.env("AMPHI_PRELOAD", setting).arg("numbers").arg(place.mount()).output().expect("run");
        assert!(output.status.success() && shared(&output) == 0, "{setting}: {}", text(&output));
    }
    up.stop();
}

/// A program that reads a file on request.
struct Reader {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

const READER: &str = "
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
for line in sys.stdin:
    offset, length = map(int, line.split())
    bytes = [os.pread(fd, length, offset) for i in range(4)]
    assert len(set(bytes)) == 1, 'reads one after the other differ'
    print(bytes[0].hex() or '-', flush=True)
";

impl Reader {
    fn start(file: &Path) -> Reader {
        let mut command = under("python3");
        command.args(["-c", READER]).arg(file).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("python");
        let (to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Reader { child, to, from: BufReader::new(from) }
    }

    fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        writeln!(self.to, "{offset} {len}").expect("it runs");
        let mut line = String::new();
        self.from.read_line(&mut line).expect("it answers");
        let digits = line.trim().trim_matches('-').as_bytes();
        assert!(!line.is_empty(), "it has ended");
        digits.chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
    }

    fn end(self) -> Output {
        drop(self.to);
        self.child.wait_with_output().expect("wait")
    }
}

/// Changes a file at random through `there`, and compares the bytes that a program reads of `here` after each completed
/// change. Returns the number of reads that were served without a call.
fn changes_are_seen(here: &Path, there: &Path, rounds: usize) -> u64 {
    let mut random = crate::harness::Random::new(rounds as u64);
    let mut expected = pattern(7, 300_000);
    fs::write(here, &expected).expect("write");
    let writer = fs::OpenOptions::new().read(true).write(true).open(there).expect("open");
    let mut reader = Reader::start(here);
    for round in 0..rounds {
        let at = random.below(expected.len() as u64 + 5000);
        let what = random.below(10);
        let mut changed = at;
        match what {
            0 if random.below(3) == 0 => {
                expected = pattern(round as u64, 250_000);
                changed = 0;
                fs::write(there, &expected).expect("cut and write");
            }
            0 => {
                expected.resize(at as usize, 0);
                writer.set_len(at).expect("truncate");
            }
            1 => {
                let more = pattern(round as u64, 3000);
                changed = expected.len() as u64;
                writer.write_all_at(&more, changed).expect("append");
                expected.extend(more);
            }
            _ => {
                let len = [1, 700, 5000, 90_000][random.below(4) as usize];
                let bytes = pattern(round as u64, len);
                if expected.len() < at as usize + len {
                    expected.resize(at as usize + len, 0);
                }
                expected[at as usize..][..len].copy_from_slice(&bytes);
                writer.write_all_at(&bytes, at).expect("write");
            }
        }
        for _ in 0..2 {
            let from = [changed.saturating_sub(random.below(70_000)), random.below(expected.len() as u64 + 1000)];
            for from in from {
                let len = [10, 4096, 100_000][random.below(3) as usize];
                let end = expected.len().min(from as usize + len);
                let right = expected.get(from as usize..end).unwrap_or_default();
                let found = reader.read(from, len);
                assert!(
                    found == right,
                    "round {round}, change {what} at {at}: {len} bytes at {from}: {} of {}",
                    found.len(),
                    right.len()
                );
            }
        }
    }
    let output = reader.end();
    assert!(output.status.success(), "{}", text(&output));
    shared(&output)
}

/// Goal: what another process has written or cut is seen by the next read. Promise S1. Method: random changes, reads
/// around them that are repeated so that they are served without calls.
#[test]
fn changes_of_other_processes_are_seen() {
    let (place, up) = mounted();
    let file = place.mount().join("changed");
    let shared = changes_are_seen(&file, &file, 400);
    assert!(shared > 1000, "{shared} reads without a call");
    up.stop();
}

/// Goal: what another mount has written or cut is seen by the next read. Promise S2. Method: the same, through the
/// other mount, on one server and on three.
#[test]
fn changes_of_other_mounts_are_seen() {
    for servers in [1, 3] {
        let pair = Pair::new(servers, &[], &OWN);
        let shared = changes_are_seen(&pair.a.join("f"), &pair.b.join("f"), 250);
        assert!(shared > 300, "{servers} servers: {shared} reads without a call");
        pair.stop();
    }
}

/// Goal: a read sees all or nothing of a write of another mount, over several units of the cache. Promise S2. Method:
/// the other mount repeatedly writes 200,000 equal bytes, and every read has to find equal bytes.
#[test]
fn writes_of_other_mounts_are_seen_whole() {
    // Reads of a contended file that go past the cache would leave nothing to share.
    let pair = Pair::new(1, &[], &[OWN[0], OWN[1], "--set", "hybrid.contention=off"]);
    let (here, there) = (pair.a.join("f"), pair.b.join("f"));
    fs::write(&here, vec![0; 200_000]).expect("write");
    let script = "
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
seen = set()
while b'z' not in seen:
    for i in range(20):
        bytes = os.pread(fd, 150000, 30000)
        assert bytes == bytes[:1] * 150000, 'parts of two writes'
        seen.add(bytes[:1])
print(len(seen))
";
    let reader = under("python3")
        .args(["-c", script])
        .arg(&here)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python");
    let writer = fs::OpenOptions::new().write(true).open(&there).expect("open");
    for round in 0..300u32 {
        writer.write_all_at(&vec![(round % 20) as u8; 200_000], 0).expect("write");
        std::thread::sleep(std::time::Duration::from_millis(u64::from(round % 4)));
    }
    writer.write_all_at(&[b'z'; 200_000], 0).expect("write");
    let output = reader.wait_with_output().expect("wait");
    assert!(output.status.success() && shared(&output) > 100, "{}", text(&output));
    drop(writer);
    pair.stop();
}

/// Goal: shells, their redirections, here-documents and subprocesses give the same results as without the library.
/// Method: a script of bash and coreutils, and one of Python, run with and without the library.
#[test]
fn scripts_give_the_same() {
    let (place, up) = mounted();
    let bash = r#"
set -eu
exec 3<n1; head -c 5000 <&3 | md5sum; cat <&3 | md5sum; exec 3<&-
exec 10<n2 255<n3; md5sum <&10; md5sum <&255; exec 10<&- 255<&-
while read -r line; do echo "got $line"; done <<< "here"
cat > text << END
one
two
three
END
while read -r line; do echo "line $line"; done < text
(head -c 100 > a; head -c 100 > b; cat > c) < n4; cat a b c | cmp - n4 && echo equal
{ read -r x; read -r y; echo "$x $y"; } < text
cp n5 copy; cmp n5 copy; sed -i s/two/2/ text; cat text; sort -r text; grep -c e text; tail -c 10 n1 | md5sum
tar cf t.tar n1 n2 n3; tar xOf t.tar n2 | md5sum; wc -c n*; dd if=n1 bs=777 skip=3 count=50 2>/dev/null | md5sum
for i in 1 2 3 4 5 6; do dd if=n1 bs=100 count=9 2>/dev/null; done | md5sum
"#;
    let python = r#"
import hashlib, io, mmap, multiprocessing, os, subprocess
def digest(name):
    with open(name, 'rb', buffering=0) as f:
        h = hashlib.md5()
        while True:
            part = f.read(1000)
            if not part: return h.hexdigest()
            h.update(part)
print([digest(f'n{i}') for i in range(6)])
with open('n1', 'rb') as f:
    for i in range(50):
        f.seek(i * 997); f.read(10); f.seek(5, os.SEEK_CUR)
        print(f.tell(), f.read(20).hex())
    print(subprocess.run(['md5sum'], stdin=f.fileno(), capture_output=True).stdout)
fd = os.open('n2', os.O_RDONLY)
for i in range(20):
    os.read(fd, 100)
    print(subprocess.run(['head', '-c', '50'], stdin=fd, capture_output=True).stdout.hex(), os.lseek(fd, 0, 1) > 0)
os.dup2(os.open('n3', os.O_RDONLY), fd)
print([os.read(fd, 30).hex() for i in range(5)])
with multiprocessing.get_context('fork').Pool(3) as pool: print(pool.map(digest, ['n1', 'n2', 'n3'] * 3))
print(os.pread(os.open(f'/proc/self/fd/{fd}', os.O_RDONLY), 10, 10).hex())
os.closerange(3, 200)
try: os.read(fd, 1)
except OSError as e: print(e)
"#;
    // Most commands of a shell read a file once, which is better done by calls.
    for (shell, script, least) in [("bash", bash, 0), ("python3", python, 500)] {
        let run = |mut command: Command| {
            command.args(["-c", script]).current_dir(place.mount()).env_remove("LD_PRELOAD").output().expect("run")
        };
        let (plain, preloaded) = (run(Command::new(shell)), run(under(shell)));
        assert!(plain.status.success(), "{}", text(&plain));
        assert!(preloaded.status.success(), "{}", text(&preloaded));
        assert_eq!(String::from_utf8_lossy(&preloaded.stdout), String::from_utf8_lossy(&plain.stdout));
        assert!(shared(&preloaded) >= least, "{shell}: {}", text(&preloaded));
    }
    up.stop();
}

/// Goal: a user who may not open a file cannot read it, although other users read it without system calls. A program
/// that has it open continues after its permissions have changed. Method: a program of another user, and one of root.
#[test]
fn rights_stay_those_of_the_open() {
    let (place, up) = mounted();
    let file = place.mount().join("n1");
    fs::set_permissions(place.mount(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let script = "
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
for i in range(20): os.pread(fd, 100, 0)
print('open', flush=True)
sys.stdin.readline()
assert all(os.pread(fd, 100, 0) == os.pread(fd, 100, 0) for i in range(50))
try:
    os.open(sys.argv[1], os.O_RDONLY)
    print('opened again')
except PermissionError:
    print('refused')
";
    // The library and the mount must be reachable for the other user.
    let library_copy = Path::new("/tmp").join(format!("amphi-preload-test-{}.so", std::process::id()));
    fs::copy(library(), &library_copy).expect("copy");
    fs::set_permissions(&library_copy, fs::Permissions::from_mode(0o755)).expect("chmod");
    let mut folders = place.mount();
    while folders.pop() && folders != Path::new("/") && folders != Path::new("/tmp") {
        fs::set_permissions(&folders, fs::Permissions::from_mode(0o755)).expect("chmod");
    }
    let start = |user: u32| {
        let mut command = Command::new("/usr/bin/python3");
        command.env("LD_PRELOAD", &library_copy).env("AMPHI_PRELOAD", "report").args(["-c", script]).arg(&file);
        command.current_dir("/").uid(user).gid(user);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("python")
    };
    let mut first = start(65534);
    let mut from = BufReader::new(first.stdout.take().expect("piped"));
    let mut line = String::new();
    from.read_line(&mut line).expect("it runs");
    assert_eq!(line, "open\n");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("chmod");
    let second = start(65534).wait_with_output().expect("wait");
    assert!(!second.status.success() && text(&second).contains("PermissionError"), "{}", text(&second));
    first.stdin.take().expect("piped").write_all(b"\n").expect("it runs");
    line.clear();
    from.read_line(&mut line).expect("it runs");
    let output = first.wait_with_output().expect("wait");
    assert!(line == "refused\n" && output.status.success() && shared(&output) > 50, "{line} {}", text(&output));
    fs::remove_file(library_copy).expect("remove");
    up.stop();
}

/// Goal: when the mount ends, or is killed, reads end with its error within the lease. Method: a program that reads
/// without a pause.
#[test]
fn reads_end_with_the_mount() {
    for killed in [false, true] {
        let (place, up) = mounted();
        let mut command = under(programs());
        command.arg("until_error").arg(place.mount()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("run");
        let mut from = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        from.read_line(&mut line).expect("it runs");
        assert_eq!(line, "reading\n");
        let began = std::time::Instant::now();
        if killed {
            up.kill();
        } else {
            up.stop();
        }
        line.clear();
        from.read_line(&mut line).expect("it runs");
        let long = began.elapsed();
        let output = child.wait_with_output().expect("wait");
        assert!(output.status.success() && shared(&output) > 100, "{}", text(&output));
        assert!(["107\n", "103\n", "5\n"].contains(&line.as_str()), "the error is {line}");
        assert!(!killed || long < std::time::Duration::from_secs(4), "killed: {long:?}");
        if killed {
            let out = crate::harness::run(&["umount", &place.mount().display().to_string()]);
            drop(out);
        }
    }
}

/// Goal: if programs are killed while they read, the mount continues to serve others. Method: many of them, then a
/// whole read.
#[test]
fn killed_programs_leave_nothing() {
    let (place, up) = mounted();
    for _ in 0..20 {
        let mut command = under(programs());
        command.arg("until_error").arg(place.mount()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("run");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it runs");
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
    let output = under(programs()).arg("functions").arg(place.mount()).output().expect("run");
    assert!(output.status.success() && shared(&output) > 30, "{}", text(&output));
    up.stop();
}

/// Goal: where memory for mappings is limited, nothing is mapped, and everything works. Method: `ulimit -v`.
#[test]
fn limited_address_space_is_left_alone() {
    let (place, up) = mounted();
    let mut command = under("bash");
    command.args(["-c", "ulimit -v 500000; exec \"$0\" functions \"$1\""]).arg(programs()).arg(place.mount());
    let output = command.output().expect("run");
    assert!(output.status.success() && shared(&output) == 0, "{}", text(&output));
    up.stop();
}

/// Goal: a program that never touches a mount makes no more system calls than with any other preloaded library. Method:
/// `strace` counts the calls of `cat` with the library and with an empty one.
#[test]
fn other_programs_make_no_further_calls() {
    let folder = tempfile::tempdir().expect("folder");
    let empty = folder.path().join("libempty.so");
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-x", "c", "/dev/null", "-o"]).arg(&empty);
    assert!(gcc.status().expect("gcc").success());
    fs::write(folder.path().join("file"), "some text").expect("write");
    let calls = |library: &Path| {
        let trace = folder.path().join("trace");
        let mut strace = Command::new("strace");
        strace.args(["-f", "-o"]).arg(&trace).arg("-E").arg(format!("LD_PRELOAD={}", library.display()));
        let traced = strace.args(["cat"]).arg(folder.path().join("file")).output().expect("strace is installed");
        assert!(traced.status.success() && traced.stdout == b"some text", "{}", text(&traced));
        let names =
            |line: &str| line.split_whitespace().nth(1).and_then(|call| call.split('(').next()).map(str::to_owned);
        fs::read_to_string(&trace).expect("trace").lines().filter_map(names).collect::<Vec<_>>()
    };
    let (own, other) = (calls(library()), calls(&empty));
    let count = |all: &[String], name: &str| all.iter().filter(|call| *call == name).count();
    // A library with unwritable data takes the loader one `mprotect` more, one with more segments some `mmap`s.
    let loading = ["mmap", "mprotect"];
    let rest =
        |all: &[String]| all.iter().filter(|call| !loading.contains(&call.as_str())).cloned().collect::<Vec<_>>();
    assert_eq!(rest(&own), rest(&other));
    assert!(loading.iter().all(|name| count(&own, name) <= count(&other, name) + 3));
}

/// Goal: other preloaded libraries stay, and ours is loaded once, even if programs are nested or a user names it.
/// If the library is missing, the command is refused and says what to do. Method: the variable as a program sees it.
#[test]
fn the_library_is_preloaded_once() {
    let show = ["-c", "echo $LD_PRELOAD"];
    let own = library().canonicalize().expect("path").display().to_string();
    let output = under("sh").env("LD_PRELOAD", "/usr/lib/other.so").args(show).output().expect("run");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), format!("/usr/lib/other.so:{own}"));
    let twice = under(env!("CARGO_BIN_EXE_amphi")).args(["run", "--", "sh"]).args(show).output().expect("run");
    assert_eq!(String::from_utf8_lossy(&twice.stdout).trim(), own);
    let (place, up) = mounted();
    let mut command = Command::new(programs());
    command.env("LD_PRELOAD", format!("{own} {own}")).env("AMPHI_PRELOAD", "report");
    let output = command.arg("functions").arg(place.mount()).output().expect("run");
    assert!(output.status.success() && shared(&output) > 30, "{}", text(&output));
    up.stop();
    let missing = under("true").env("AMPHI_PRELOAD_LIBRARY", "/nowhere.so").output().expect("run");
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing).contains("make build"), "{}", text(&missing));
}

/// Goal: the first read after a change renews the access time, also if the read makes no system call. Method: a program
/// that reads before and after a write, and the times that `stat` shows.
#[test]
fn access_times_are_renewed() {
    let (place, up) = mounted();
    let file = place.mount().join("n1");
    let mut reader = Reader::start(&file);
    for round in 0..3u8 {
        for _ in 0..3 {
            reader.read(0, 100);
        }
        let writer = fs::OpenOptions::new().write(true).open(&file).expect("open");
        // The write is to another unit than the read.
        writer.write_all_at(&[round], 400_000).expect("write");
        drop(writer);
        let changed = fs::metadata(&file).expect("stat");
        reader.read(0, 100);
        eventually("the access time is renewed", || {
            let now = fs::metadata(&file).expect("stat");
            (now.atime(), now.atime_nsec()) > (changed.atime(), changed.atime_nsec())
                && (now.atime(), now.atime_nsec()) >= (changed.mtime(), changed.mtime_nsec())
        });
    }
    let output = reader.end();
    assert!(output.status.success() && shared(&output) > 10, "{}", text(&output));
    up.stop();
}
