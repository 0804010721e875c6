//! Files of other file systems under the library: programs see the same as without it, while their large requests go
//! direct.
//!
//! `elsewhere/programs.c` has the programs. Random operations are compared with a run through the kernel alone; the
//! others check by themselves what they see. Each test counts the requests that went direct, so that none passes
//! because none did. The file systems are made on loop devices, which takes root; those that cannot be made here are
//! left out, with a line that says why.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The library, built as it is installed.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target").to_owned();
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--locked", "--profile", "preload", "-p", "amphi-preload", "--target-dir"])
            .arg(&target)
            .current_dir(root)
            .status();
        assert!(built.expect("cargo starts").success(), "the library is built");
        target.join("preload/libamphi_preload.so")
    })
}

fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/elsewhere/programs.c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("elsewhere-{}", std::process::id()));
        let gcc = Command::new("gcc").args(["-O1", "-o"]).arg(&program).arg(source).arg("-lpthread").status();
        assert!(gcc.expect("gcc starts").success());
        program
    })
}

fn text(output: &Output) -> String {
    format!("{} {}{}", output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A folder on a file system of its own.
struct Place {
    folder: PathBuf,
    system: &'static str,
    is_mounted: bool,
    _home: tempfile::TempDir,
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
        }
    }
}

/// Says why a file system is left out.
fn left_out<T>(system: &str, why: &str) -> Option<T> {
    eprintln!("left out: {system}: {why}");
    None
}

impl Place {
    /// The file system of the folder for temporary files.
    fn here() -> Place {
        let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("folder");
        let folder = home.path().canonicalize().expect("real");
        Place { folder, system: "here", is_mounted: false, _home: home }
    }

    /// A new file system, or nothing if it cannot be made.
    fn made(system: &'static str) -> Option<Place> {
        let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("folder");
        let folder = home.path().canonicalize().expect("real").join("mounted");
        fs::create_dir(&folder).expect("folder");
        let mut mount = Command::new("mount");
        if system == "tmpfs" {
            mount.args(["-t", "tmpfs", "-o", "size=300M", "none"]);
        } else {
            let image = home.path().join("image");
            let made = Command::new("truncate").args(["-s", "320M"]).arg(&image).status();
            assert!(made.expect("truncate starts").success());
            match Command::new(format!("mkfs.{system}")).arg("-q").arg(&image).output() {
                Err(_) => return left_out(system, "its mkfs is not installed"),
                Ok(output) if !output.status.success() => return left_out(system, &text(&output)),
                Ok(_) => {}
            }
            mount.args(["-o", "loop"]).arg(&image);
        }
        match mount.arg(&folder).output() {
            Ok(output) if output.status.success() => {}
            _ => return left_out(system, "it cannot be mounted here"),
        }
        Some(Place { folder, system, is_mounted: true, _home: home })
    }

    fn all() -> impl Iterator<Item = Place> {
        let made = ["ext4", "xfs", "btrfs", "tmpfs"].into_iter().filter_map(Place::made);
        std::iter::once(Place::here()).chain(made)
    }

    /// Whether requests go direct here, which nobody knows of the folder for temporary files.
    fn goes_direct(&self) -> bool {
        matches!(self.system, "ext4" | "xfs" | "btrfs")
    }

    /// Runs a program under the library.
    fn under(&self, program: &Path, args: &[&str], mode: &str) -> Output {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", library()).env("AMPHI_PRELOAD", "strict,report").env("AMPHI_HYBRID", &self.folder);
        command.env("AMPHI_IO_MODE", mode).current_dir(&self.folder).args(args).output().expect("the program starts")
    }
}

/// Number of requests in a report that went a way.
fn reported(output: &Output, way: &str) -> u64 {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines = text.lines().filter_map(|line| line.strip_prefix("amphi: ")?.split_once(&format!("{way}: ")));
    lines.map(|(_, rest)| rest.split(',').next().expect("a part").parse::<u64>().expect("a number")).sum()
}

fn direct(output: &Output) -> u64 {
    ["direct_user", "direct_large"].map(|way| reported(output, way)).iter().sum()
}

/// A program that checks by itself what it sees, in both modes on all file systems.
fn passes(name: &str, least_direct: u64) {
    for place in Place::all() {
        for mode in ["auto", "direct"] {
            let output = place.under(programs(), &[name, "file"], mode);
            assert!(output.status.success(), "{name} on {} ({mode}): {}", place.system, text(&output));
            if place.goes_direct() {
                assert!(direct(&output) >= least_direct, "{name} on {} ({mode}): {}", place.system, text(&output));
            }
            if place.system == "tmpfs" {
                assert_eq!(direct(&output), 0, "{}", text(&output));
            }
            let _ = fs::remove_file(place.folder.join("file"));
        }
    }
}

/// Goal: every operation on a file returns the same, and leaves the same position, size and bytes, as without the
/// library: alone, from the middle on in turns with a child of `fork`, and in turns with a process without the library.
/// Method: random operations, with offsets and lengths around pages; the logs of two runs are compared.
#[test]
fn random_operations() {
    for place in Place::all() {
        for (seed, processes) in [("1", "alone"), ("2", "fork"), ("3", "mixed"), ("4", "fork")] {
            let plain = Command::new(programs())
                .args(["random", "plain", seed, processes])
                .current_dir(&place.folder)
                .output()
                .expect("the program starts");
            assert!(plain.status.success(), "{}", text(&plain));
            for mode in ["auto", "direct"] {
                let output = place.under(programs(), &["random", "under", seed, processes], mode);
                let what = format!("{} {seed} {processes} {mode}", place.system);
                assert!(output.status.success(), "{what}: {}", text(&output));
                let logs = [&plain, &output].map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
                let differs = logs[0].lines().zip(logs[1].lines()).find(|(a, b)| a != b);
                assert_eq!(differs, None, "{what}");
                assert_eq!(logs[0].lines().count(), logs[1].lines().count(), "{what}");
                let files = ["plain", "under"].map(|name| fs::read(place.folder.join(name)).expect("read"));
                assert!(files[0] == files[1], "{what}: the files differ");
                let least = if mode == "direct" { 40 } else { 1 };
                assert!(!place.goes_direct() || direct(&output) >= least, "{what}: {}", text(&output));
            }
        }
    }
}

/// Goal: a process keeps its record locks on a file while large requests go direct. Method: a child asks who has the
/// lock, after each request.
#[test]
fn record_locks_stay() {
    passes("locks", 10);
}

/// Goal: no other thread and no child of `fork` finds a descriptor of the library, or gets another number than without
/// it. Method: a thread writes while another opens, closes, forks and lists descriptors.
#[test]
fn no_descriptor_is_seen() {
    passes("descriptors", 2);
}

/// Goal: no thread of the library is left when a call has returned. Method: threads are counted after each request.
#[test]
fn no_thread_stays() {
    passes("alone", 51);
}

/// Goal: requests go direct in a program that has used up its descriptors. Method: a limit.
#[test]
fn all_descriptors_in_use() {
    passes("full", 2);
}

/// Goal: more threads than the library has memory for write and read their parts. Method: 24 threads.
#[test]
fn many_threads() {
    passes("threads", 10);
}

/// Goal: processes that share a position write and read each byte once. Method: three children; each record is read by
/// exactly one of them.
#[test]
fn a_shared_position() {
    for place in Place::all() {
        let output = place.under(programs(), &["position", "file"], "direct");
        assert!(output.status.success(), "{}: {}", place.system, text(&output));
        let log = String::from_utf8_lossy(&output.stdout);
        let mut records: Vec<u8> = log.lines().map(|line| line.parse().expect("a record")).collect();
        records.sort_unstable();
        assert_eq!(records, (1..=24).collect::<Vec<u8>>(), "{}", place.system);
    }
}

/// Goal: a full file system is reported by the write that does not fit, and what was written before is there. Method:
/// writes until an error, on file systems of their own.
#[test]
fn a_full_file_system() {
    for place in Place::all().filter(|place| place.is_mounted) {
        let output = place.under(programs(), &["space", "file"], "auto");
        assert!(output.status.success(), "{}: {}", place.system, text(&output));
        assert!(!place.goes_direct() || direct(&output) >= 10, "{}: {}", place.system, text(&output));
    }
}

/// Goal: large requests and mappings of one file agree, and `fsync` succeeds. Method: stores through a writable
/// mapping, whose file is left to the page cache, and loads through a mapping that only reads.
#[test]
fn mapped_files() {
    passes("mapped", 21);
}

/// Goal: a limit on the length of files counts as without the library. Method: writes across it.
#[test]
fn limited_lengths() {
    passes("limits", 0);
}

/// Goal: errors are those of the kernel: bad buffers, descriptors and offsets. Method: a program that provokes them.
#[test]
fn errors() {
    passes("bad", 1);
}

/// Goal: signal handlers read while the program reads and writes, and a thread is cancelled that does nothing but large
/// writes. Method: a timer.
#[test]
fn signals_and_cancellation() {
    passes("handlers", 20);
}

/// Goal: appends, synchronous writes, leases and files without rights to open them again work as without the library.
/// Method: a program that uses them.
#[test]
fn unusual_opens() {
    passes("keeps", 1);
}

/// Goal: files outside the named folders, and all files when the library is off or the mode is buffered, never go
/// direct. Method: the same program with other settings.
#[test]
fn only_named_folders() {
    let Some(place) = Place::made("ext4") else { return };
    let run = |variables: &[(&str, &str)]| {
        let mut command = Command::new(programs());
        command.env("LD_PRELOAD", library()).env("AMPHI_PRELOAD", "report").current_dir(&place.folder);
        command.env_remove("AMPHI_HYBRID").env_remove("AMPHI_IO_MODE");
        let output = command.envs(variables.iter().copied()).args(["locks", "file"]).output().expect("starts");
        assert!(output.status.success(), "{}", text(&output));
        direct(&output)
    };
    let folder = place.folder.to_str().expect("text");
    assert_eq!(run(&[("AMPHI_HYBRID", folder)]), 10);
    assert_eq!(run(&[("AMPHI_HYBRID", &format!("/nowhere:{folder}/"))]), 10);
    assert_eq!(run(&[]), 0);
    assert_eq!(run(&[("AMPHI_HYBRID", &format!("{folder}/other"))]), 0);
    assert_eq!(run(&[("AMPHI_HYBRID", &folder[..folder.len() - 1])]), 0);
    assert_eq!(run(&[("AMPHI_HYBRID", folder), ("AMPHI_IO_MODE", "buffered")]), 0);
    assert_eq!(run(&[("AMPHI_HYBRID", folder), ("AMPHI_PRELOAD", "off,report")]), 0);
}

/// Goal: programs that people use give the same results. Method: a script of those that are installed, with and without
/// the library, compared by its output and the files that it leaves.
#[test]
fn programs_of_every_day() {
    const SCRIPT: &str = r#"
        set -e
        mkdir work && cd work
        awk 'BEGIN { for (i = 0; i < 300000; i++) print i, i * 7919 % 104729 }' > lines
        cp lines copy
        dd if=lines of=dd bs=3000001 2> /dev/null
        dd if=lines of=dd bs=2M seek=1 conv=notrunc oflag=append 2> /dev/null
        dd if=dd of=second bs=9M skip=0 2> /dev/null
        tar --blocking-factor=8192 -cf all.tar --mtime=@0 --owner=0 --group=0 --mode=644 lines copy
        mkdir out && tar --blocking-factor=8192 -xf all.tar -C out
        cmp lines out/copy
        sort -S 64M -k2n lines > sorted
        if command -v sqlite3 > /dev/null; then
            sqlite3 data.db "create table u (a integer, b text); with recursive n(i) as (select 1 union all select i + 1
                from n where i < 20000) insert into u select i, hex(i * 31) from n; select sum(a), max(b) from u;"
        fi
        if command -v git > /dev/null; then
            export GIT_CONFIG_NOSYSTEM=1 HOME=$PWD GIT_AUTHOR_DATE='1700000000 +0000'
            export GIT_COMMITTER_DATE="$GIT_AUTHOR_DATE"
            git init -q repository && cd repository && cp ../lines ../sorted .
            git add . && git -c user.name=n -c user.email=e commit -q -m one && git gc -q && git fsck --full 2>&1
            git rev-parse HEAD && cd ..
        fi
        if command -v gcc > /dev/null; then
            echo 'char big[5000000] = {1}; int main(void) { return big[4999999]; }' > big.c
            gcc -o big big.c && ./big && echo compiled
        fi
        for file in lines copy dd second all.tar out/lines sorted; do cksum $file; done
    "#;
    for place in Place::all() {
        let shell = |folder: &str| {
            let path = place.folder.join(folder);
            fs::create_dir(&path).expect("folder");
            let mut command = Command::new("sh");
            command.args(["-c", SCRIPT]).current_dir(path).env_remove("LD_PRELOAD");
            command
        };
        let plain = shell("plain").output().expect("sh");
        assert!(plain.status.success(), "{}", text(&plain));
        for mode in ["auto", "direct"] {
            let mut command = shell(mode);
            command.env("LD_PRELOAD", library()).env("AMPHI_HYBRID", &place.folder).env("AMPHI_IO_MODE", mode);
            let output = command.output().expect("sh");
            assert!(output.status.signal().is_none() && output.status.success(), "{}", text(&output));
            let logs = [&plain, &output].map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
            assert_eq!(logs[0], logs[1], "{} {mode}", place.system);
            fs::remove_dir_all(place.folder.join(mode)).expect("removed");
        }
    }
}
