//! The C library: programs get the same results through it as through a mount of the same cluster.
//!
//! `capi/twin.c` makes the same calls in both ways, and `capi/programs.c` has the other programs. The examples are
//! those of `examples/c`. All are compiled with warnings as errors and linked with the library as it is installed.

use crate::harness::{Daemon, Place, Random, errno, pattern};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of the library, made as it is installed.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let profile = Path::new(env!("CARGO_BIN_EXE_amphi")).parent().expect("a folder");
        let target = profile.parent().expect("target");
        let mut cargo = Command::new(env!("CARGO"));
        // Together with `amphi`, the library's dependencies get the features that they have in a run of all tests, so
        // that cargo does not build them a second time.
        cargo.args(["build", "--quiet", "--locked", "-p", "amphi", "-p", "amphi-capi", "--lib", "--target-dir"]);
        cargo.arg(target);
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.current_dir(root()).status().expect("cargo starts").success(), "the library is built");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("capi-{}", std::process::id()));
        let mut made = Command::new(root().join("scripts/capi"));
        assert!(made.arg(profile.join("libamphi_capi.a")).arg(&folder).status().expect("scripts/capi").success());
        folder
    })
}

/// Compiles a program with the shared library, or with the static one if `statically` is set.
fn compiled(compiler: &str, source: &Path, options: &[&str], statically: bool) -> PathBuf {
    let folder = library();
    let name = source.file_stem().expect("a name").to_string_lossy().into_owned();
    let program = folder.join(format!("{name}{}", if statically { "-static" } else { "" }));
    let mut command = Command::new(compiler);
    command.args(options).args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I"]).arg(folder.join("include"));
    command.arg("-o").arg(&program).arg(source);
    if statically {
        command.arg(folder.join("libamphi.a")).args(["-lpthread", "-ldl", "-lm", "-lgcc_s"]);
    } else {
        command.arg("-L").arg(folder).arg("-lamphi").arg(format!("-Wl,-rpath,{}", folder.display())).arg("-lpthread");
    }
    assert!(command.status().expect("a compiler").success(), "{} compiles", source.display());
    program
}

fn own(name: &str) -> PathBuf {
    root().join("crates/amphi/tests/e2e/capi").join(name)
}

fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| compiled("gcc", &own("programs.c"), &["-std=gnu11"], false))
}

fn twin() -> &'static Path {
    static TWIN: OnceLock<PathBuf> = OnceLock::new();
    TWIN.get_or_init(|| compiled("gcc", &own("twin.c"), &["-std=gnu11"], false))
}

/// A server with a mount; programs of other users reach it.
struct World {
    place: Place,
    server: Daemon,
    mount: Daemon,
}

impl World {
    fn new() -> World {
        let place = Place::new();
        let server = place.server(&["--targets", "1"]);
        let mount = place.mount_at("mount", &[]);
        World { place, server, mount }
    }

    fn stop(self) {
        self.mount.stop();
        self.server.stop();
        self.place.fsck();
    }

    /// The two ways to open the file system, a cluster's address and a directory of a mount, each with its argument.
    fn ways(&self) -> [(&'static str, String); 2] {
        [("cluster", self.place.addr()), ("node", self.place.mount().display().to_string())]
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> Output {
        Command::new(program).args(arguments).output().expect("the program runs")
    }

    /// Runs a program of programs.c in both ways. The program has to succeed.
    fn passes(&self, name: &str) {
        for (way, to) in self.ways() {
            let output = self.run(programs(), &[name, way, &to]);
            assert!(output.status.success(), "{name} {way}: {} {}", output.status, said(&output));
        }
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Executes the calls of twin.c in each way, as user `uid`, and compares the results.
fn twins(uid: u32) {
    let world = World::new();
    // A user finds his way to the socket.
    for path in [world.place.path("sock"), world.place.path(""), world.place.mount()] {
        let mut permissions = fs::metadata(&path).expect("it is there").permissions();
        permissions.set_mode(if path.ends_with("sock") { 0o666 } else { 0o755 });
        fs::set_permissions(&path, permissions).expect("chmod");
    }
    let [(_, addr), (_, mount)] = world.ways();
    let outputs = [("calls", &mount), ("cluster", &addr), ("node", &mount)].map(|(way, to)| {
        let dir = world.place.mount().join(way);
        fs::create_dir(&dir).expect("mkdir");
        std::os::unix::fs::chown(&dir, Some(uid), Some(uid)).expect("chown");
        let mut command = Command::new(twin());
        let output = command.args([way, to, way]).uid(uid).gid(uid).output().expect("twin");
        assert!(output.status.success(), "{way}: {}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    });
    let [calls, others @ ..] = outputs;
    assert!(calls.lines().count() > 350, "{calls}");
    for other in others {
        let differ = calls.lines().zip(other.lines()).find(|(call, here)| call != here);
        assert_eq!(differ, None, "a call of the kernel and of the library");
        assert_eq!(calls.lines().count(), other.lines().count());
    }
    // Each way sees the files that the others made.
    let names = |dir: &str| {
        let entries = fs::read_dir(world.place.mount().join(dir)).expect("a directory");
        let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        names
    };
    for way in ["cluster", "node"] {
        assert_eq!(names("calls"), names(way));
        for file in ["direct", "g", "at", "d/file"] {
            let [here, there] =
                ["calls", way].map(|dir| fs::read(world.place.mount().join(dir).join(file)).expect("read"));
            assert!(here == there, "{file} by {way}");
        }
    }
    world.stop();
}

/// Goal: every function returns what the kernel's call on a mount of the same cluster returns, errors as well. Method:
/// some 400 calls by three ways, line by line.
#[test]
fn functions_return_what_calls_return() {
    twins(0);
}

/// Goal: the same with the rights of an ordinary user. Method: as user 1000.
#[test]
fn functions_return_what_calls_return_to_users() {
    twins(1000);
}

/// Goal: null pointers, numbers that are no handles, absurd lengths, offsets, flags and structs give errors with a
/// text, and do no damage. Method: a program that tries them, by both ways.
#[test]
fn what_is_wrong_is_an_error() {
    let world = World::new();
    world.passes("hostile");
    world.stop();
}

/// Goal: a child of `fork` gets the error that handles belong to its parent. The child waits for nothing, and does not
/// disturb the parent. Data of files that a program leaves open at its end is written. Method: programs that fork, and
/// that exit.
#[test]
fn forks_and_exits() {
    let world = World::new();
    world.passes("forks");
    for (way, to) in world.ways() {
        assert!(world.run(programs(), &["leaves", way, &to]).status.success());
        let left = world.place.mount().join("left");
        assert_eq!(fs::read(&left).expect("left behind"), b"left behind");
        fs::remove_file(&left).expect("remove");
    }
    world.stop();
}

/// Goal: a program that changes memory while it is written from damages only its own bytes. Every block has the
/// checksum of what was stored, and memory that is not changed arrives as it is. A child of `fork` cannot change that
/// memory. Method: a program with a thread that changes memory at random. All data is verified at the end.
#[test]
fn memory_that_changes_under_a_write() {
    let world = World::new();
    world.passes("scribbles");
    let World { place, server, mount } = world;
    mount.stop();
    server.stop();
    let data = place.text("data");
    let checked = crate::harness::run(&["fsck", "--data", &data]);
    let text = said(&checked);
    assert!(checked.status.success() && text.contains(" 0 blocks damaged"), "{text}");
    assert!(text.contains(", 0 B without checksums"), "{text}");
}

/// Goal: if threads use handles while others close them, each call uses the right file or gives EBADF. Queues of
/// several threads give one completion for each request and the right bytes, even if their client ends. Method:
/// programs with six and four threads, and one that closes its file system first.
#[test]
fn threads_share_handles_and_have_queues() {
    let world = World::new();
    world.passes("threads");
    world.passes("queues");
    world.passes("ends_early");
    world.stop();
}

/// Goal: the library reads and writes no memory of a program that it was not given, and none that was returned. Method:
/// programs that the address sanitizer watches.
#[test]
fn memory_of_programs_is_left_alone() {
    let folder = library().join("sources");
    fs::create_dir_all(&folder).expect("mkdir");
    let source = folder.join("watched.c");
    fs::copy(own("programs.c"), &source).expect("copy");
    let watched = compiled("gcc", &source, &["-std=gnu11", "-fsanitize=address,undefined"], false);
    let world = World::new();
    for name in ["hostile", "queues", "ends_early"] {
        for (way, to) in world.ways() {
            // Memory that lives as long as the process is no leak.
            let mut command = Command::new(&watched);
            let output =
                command.args([name, way, &to]).env("ASAN_OPTIONS", "detect_leaks=0").output().expect("it runs");
            assert!(output.status.success(), "{name} {way}: {} {}", output.status, said(&output));
        }
    }
    world.stop();
}

/// Goal: reads over a mount are served from memory that the mount shares, and return the right bytes. Descriptors of
/// the program can be used. Method: 2,000 reads; the mount's counter shows how many of them it got.
#[test]
fn cached_reads_of_descriptors() {
    let place = Place::new();
    let up = place.up(&["--set", "hybrid.kernel_cache=off"]);
    fs::write(place.mount().join("shared"), pattern(3, 1 << 16)).expect("write");
    let output = Command::new(programs())
        .args(["descriptors", "node"])
        .arg(place.mount())
        .arg("shared")
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{}", said(&output));
    up.stop();
}

/// A program of programs.c that executes commands from its standard input.
struct Told {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Told {
    fn start(way: &str, to: &str, file: &str) -> Told {
        let mut command = Command::new(programs());
        let mut child = command
            .args(["model", way, to, file])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().expect("piped"));
        Told { child, stdin, stdout: BufReader::new(stdout) }
    }

    fn ask(&mut self, op: char, at: u64, len: u64, seed: u64) -> (i64, u64) {
        writeln!(self.stdin.as_mut().expect("open"), "{op} {at} {len} {seed}").expect("told");
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("an answer");
        let (result, hash) = line.trim().split_once(' ').expect("two numbers");
        (result.parse().expect("a number"), hash.parse().expect("a number"))
    }

    fn end(mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().expect("its end").success());
    }
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(1_469_598_103_934_665_603, |h: u64, b| (h ^ u64::from(*b)).wrapping_mul(1_099_511_628_211))
}

/// A file that three parties write and read in turn: a client in the program's process, the library over the mount, and
/// calls on the mount. Each of them has to read the state of the model at once.
fn three_parties(seed: u64, steps: usize) {
    let world = World::new();
    let [(cluster, addr), (node, mount)] = world.ways();
    let path = world.place.mount().join("model");
    fs::write(&path, b"").expect("create");
    let mut parties = [Told::start(cluster, &addr, "model"), Told::start(node, &mount, "model")];
    let calls = fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
    let appends = fs::OpenOptions::new().append(true).open(&path).expect("open");
    let mut random = Random::new(seed);
    let mut model: Vec<u8> = Vec::new();
    for step in 0..steps {
        let who = random.below(3) as usize;
        let most = [5000, 70_000, 1 << 20][random.below(3) as usize];
        let (at, len) = (random.below(2 << 20), 1 + random.below(most));
        let content = step as u64 + 1;
        let op = ['w', 'w', 'r', 'r', 'a', 't', 'p', 'f', 's', 'W', 'R'][random.below(11) as usize];
        let what = format!("seed {seed} step {step}: {who} {op} {at} {len}");
        let (end, size) = ((at + len) as usize, model.len());
        let shown = model.get((at as usize).min(size)..end.min(size)).unwrap_or_default().to_vec();
        match op {
            'w' | 'W' => {
                model.resize(size.max(end), 0);
                model[at as usize..end].copy_from_slice(&pattern(content, len as usize));
            }
            'a' => model.extend(pattern(content, len as usize)),
            't' => model.resize(at as usize, 0),
            'p' => {
                let hole = (at as usize).min(size)..end.min(size);
                model[hole].fill(0);
            }
            _ => {}
        }
        let told = match (who, op) {
            (2, 'w' | 'W') => {
                calls.write_all_at(&pattern(content, len as usize), at).map(|()| (len as i64, 0)).expect("write")
            }
            (2, 'a') => {
                (&appends).write_all(&pattern(content, len as usize)).map(|()| (len as i64, 0)).expect("append")
            }
            (2, 'r' | 'R') => {
                let mut bytes = vec![0; len as usize];
                let mut read = 0;
                while let n @ 1.. = calls.read_at(&mut bytes[read..], at + read as u64).expect("read") {
                    read += n;
                }
                (read as i64, if read > 0 { hash(&bytes[..read]) } else { 0 })
            }
            (2, 't') => calls.set_len(at).map(|()| (0, 0)).expect("truncate"),
            (2, 'f') => calls.sync_all().map(|()| (0, 0)).expect("fsync"),
            (2, 's') => (calls.metadata().expect("stat").len() as i64, 0),
            (2, _) => {
                use rustix::fs::FallocateFlags as How;
                rustix::fs::fallocate(&calls, How::PUNCH_HOLE | How::KEEP_SIZE, at, len).expect("punch");
                (0, 0)
            }
            _ => parties[who].ask(op, at, len, content),
        };
        let want = match op {
            'w' | 'W' | 'a' => (len as i64, 0),
            'r' | 'R' if shown.is_empty() => (0, 0),
            'r' | 'R' => (shown.len() as i64, hash(&shown)),
            's' => (size as i64, 0),
            _ => (0, 0),
        };
        assert_eq!(told, want, "{what}");
    }
    parties.into_iter().for_each(Told::end);
    assert!(fs::read(&path).expect("read") == model, "seed {seed}: what is left");
    world.stop();
}

/// Goal: a client in a process and a mount are two mounts of one cluster: each sees at once what the other has written
/// (Promise S1). Method: 600 random operations on one file by three parties, against a model, for three seeds.
#[test]
fn random_operations_of_three_parties() {
    (1..=3).for_each(|seed| three_parties(seed, 600));
}

/// Kills a program in the middle of writing. Returns the last record that it reported, and the content of the file.
fn killed(world: &World, way: &str, to: &str, name: &str, more: &[&str]) -> (u64, Vec<u8>) {
    let mut command = Command::new(programs());
    let mut child = command.args(["records", way, to, name]).args(more).stdout(Stdio::piped()).spawn().expect("runs");
    let mut last = 0;
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    for line in lines.map_while(Result::ok) {
        last = line.parse().expect("a number");
        if last == 511 {
            child.kill().expect("killed");
        }
    }
    child.wait().expect("its end");
    assert!(last >= 511);
    // Waits, where locks of the killed program are in the way, until its session has ended.
    (last, fs::read(world.place.mount().join(name)).expect("read"))
}

/// Goal: data that a program has synced survives kill -9, and each record in the file is whole or absent. Over a mount,
/// all completed writes survive as well. Other programs continue with the file. Method: programs that are killed while
/// they write.
#[test]
fn killed_programs_lose_nothing_that_is_stable() {
    const RECORD: usize = 8192;
    let world = World::new();
    for ((way, to), more) in world.ways().into_iter().zip([&[][..], &["all"]]) {
        let name = format!("records-{way}");
        let (last, content) = killed(&world, way, &to, &name, more);
        assert!(content.len() >= (last as usize + 1) * RECORD, "{way}: {} bytes, record {last}", content.len());
        for (at, record) in content.chunks(RECORD).enumerate() {
            let whole = record == pattern(at as u64 + 1, RECORD);
            // Behind the stable records, a record that was not written back reads as a hole.
            let absent = at as u64 > last && record.iter().all(|byte| *byte == 0);
            assert!(whole || absent, "{way}: record {at}, the last stable one is {last}");
        }
        fs::write(world.place.mount().join(&name), b"others go on").expect("write");
    }
    world.stop();
}

/// Goal: the examples work as documented in both ways, and a mount reads their files byte for byte. One of them is
/// linked with the static library. Method: a file of 5 MB, a checkpoint of four threads, a walk of both.
#[test]
fn examples_copy_walk_and_write_checkpoints() {
    let world = World::new();
    let examples = root().join("examples/c");
    let c = ["-std=c11"];
    let copy = compiled("gcc", &examples.join("copy.c"), &c, false);
    let checkpoint = compiled("gcc", &examples.join("checkpoint.c"), &c, true);
    let walk = compiled("g++", &examples.join("walk.cpp"), &["-std=c++17"], false);
    let content = pattern(9, 5_000_123);
    fs::write(world.place.mount().join("from"), &content).expect("write");
    for (way, to) in world.ways() {
        let names = [format!("copied-{way}"), format!("checkpoint-{way}")];
        let output = world.run(&copy, &[&to, "from", &names[0]]);
        assert!(output.status.success(), "{}", said(&output));
        assert!(fs::read(world.place.mount().join(&names[0])).expect("read") == content, "the copy by {way}");
        let output = world.run(&checkpoint, &[&to, &names[1], "4", "3000000"]);
        assert!(output.status.success(), "{}", said(&output));
        let written = fs::read(world.place.mount().join(&names[1])).expect("read");
        assert_eq!(written.len(), 4 * 3_000_000);
        for (at, byte) in written.iter().enumerate() {
            let (part, inside) = (at / 3_000_000, at % 3_000_000);
            assert_eq!(*byte, (part * 31 + inside % 251) as u8, "byte {at} by {way}");
        }
        let listed = world.run(&walk, &[&to, "/"]);
        assert!(listed.status.success(), "{}", said(&listed));
        let mut lines: Vec<String> = String::from_utf8_lossy(&listed.stdout).lines().map(String::from).collect();
        lines.sort();
        let mut want: Vec<String> = fs::read_dir(world.place.mount())
            .expect("a directory")
            .map(|entry| {
                let entry = entry.expect("an entry");
                format!("{} /{}", entry.metadata().expect("stat").len(), entry.file_name().to_string_lossy())
            })
            .collect();
        want.sort();
        assert_eq!(lines, want, "the walk by {way}");
        let missing = world.run(&copy, &[&to, "missing", "x"]);
        assert!(!missing.status.success() && said(&missing).contains("missing"), "{}", said(&missing));
    }
    assert_eq!(errno(fs::metadata(world.place.mount().join("x"))), rustix::io::Errno::NOENT.raw_os_error());
    world.stop();
}

/// Goal: the library exports only `amphi_*`, with versions, and so does the static one. Method: nm.
#[test]
fn only_the_interface_is_exported() {
    let symbols = |arguments: &[&str], file: &str| {
        let output = Command::new("nm").args(arguments).arg(library().join(file)).output().expect("nm");
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let shared = symbols(&["-D", "--defined-only"], "libamphi.so");
    let functions: Vec<&str> = shared.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert!(functions.len() > 50, "{shared}");
    assert!(
        functions.iter().all(|f| *f == "AMPHI_1.0" || (f.starts_with("amphi_") && f.ends_with("@@AMPHI_1.0"))),
        "{shared}"
    );
    let statically = symbols(&["-g", "--defined-only"], "libamphi.a");
    let stray = statically.lines().filter(|line| line.contains(' ')).find(|line| !line.contains(" amphi_"));
    assert_eq!(stray, None);
    let header = fs::read_to_string(library().join("include/amphi.h")).expect("the header");
    for function in functions.iter().filter_map(|f| f.strip_suffix("@@AMPHI_1.0")) {
        assert!(header.contains(&format!("{function}(")), "{function} is in the header");
    }
}

/// Goal: fsync or close reports a failure of write-back once, and the text of the error names the path. Method: a
/// server with too little room, and writes through the cache of a process.
#[test]
fn failed_write_back_is_told() {
    let place = Place::new();
    let server = place.server_of_size(&["--zone-size", "256M", "--targets", "1"]);
    let mount = place.mount_at("mount", &[]);
    let mut told = Told::start("cluster", &place.addr(), "full");
    // The mount takes all the space, so that the other client has none.
    let file = fs::File::create(place.mount().join("fill")).expect("create");
    let block = vec![7u8; 1 << 20];
    let full = (0..1024u64).find_map(|at| file.write_all_at(&block, at << 20).and_then(|()| file.sync_data()).err());
    assert_eq!(full.and_then(|e| e.raw_os_error()), Some(rustix::io::Errno::NOSPC.raw_os_error()));
    let mut results = Vec::new();
    for at in 0..64 {
        results.push(told.ask('w', at << 20, 1 << 20, 1).0);
    }
    results.push(told.ask('f', 0, 0, 0).0);
    let full = -i64::from(rustix::io::Errno::NOSPC.raw_os_error());
    assert!(results.contains(&full), "a write or the sync behind them tells it: {results:?}");
    assert!(results.iter().all(|r| *r >= 0 || *r == full), "{results:?}");
    let _ = told.child.kill();
    let _ = told.child.wait();
    drop(file);
    mount.stop();
    server.stop();
}
