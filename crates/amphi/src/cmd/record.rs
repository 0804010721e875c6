//! `amphi record`: runs a program and writes down the calls that it makes at a mount.
//!
//! Owns: the file of the trace, the program, names of files that the program holds open. Does not own: the calls, which
//! the mount keeps in memory until this program has fetched them (`client::record`), the format (`amphi_trace`).
//!
//! The mount writes no file: this process fetches blocks through an attribute of the mount and writes them with the
//! rights of the user who started it.

use amphi_client::record::{RECORD_VARIABLE, hashed};
use amphi_host::control;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_host::say::say;
use amphi_trace::block::{Kind, seal};
use amphi_trace::reader::records;
use amphi_trace::record::Packer;
use amphi_trace::summary::{Summary, size};
use amphi_trace::{Call, End, Header, Op};
use clap::Args;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

/// Most bytes of a trace.
const TRACE_MAX: u64 = 1 << 30;
/// Pause after the mount had no further block.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the end of a recording waits for calls that are just being answered.
const LAST_PAUSE: Duration = Duration::from_millis(30);
/// Most names of files that are searched for at a time.
const NAMELESS_MAX: usize = 4096;

/// Entries of the mount that are searched for names that no call has shown.
const WALK_MAX: usize = 50_000;
/// Bytes of a block of names.
const BLOCK_BYTES: usize = 1 << 16;

/// Run a program and record its calls at a mount: when, by which thread, on which file and bytes, which way they went
/// and why, and what they waited for; no data. `amphi record -- ./app`, then `amphi record --show FILE`.
#[derive(Args, Debug)]
pub struct Record {
    /// The trace file, which must not exist [default: PROGRAM.PID.trace in this folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Mount point, or a file or directory of your own there; default: the only mount here
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// Write sums in the place of names
    #[arg(long)]
    hash_names: bool,
    /// Show what is in a trace: operations, ways, sizes, waits, files
    #[arg(long, value_name = "FILE", conflicts_with_all = ["out", "mount", "hash_names", "command"])]
    show: Option<PathBuf>,
    /// With --show: print JSON
    #[arg(long, requires = "show")]
    json: bool,
    /// The command, best behind --
    #[arg(
        required_unless_present = "show",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

impl Record {
    /// Records, and ends as the command did; or shows.
    pub fn run(self) -> Outcome {
        if let Some(file) = &self.show {
            return show(file, self.json);
        }
        let status = self.record()?;
        // The exit code is the one that a shell would report.
        std::process::exit(exit_of(status));
    }

    fn record(&self) -> Outcome<ExitStatus> {
        let path = control::find_mount(self.mount.clone(), " with --mount")?;
        let [id, key] = random()?;
        let wanted = format!("start {id:x}{}", if self.hash_names { format!(" hash={key:x}") } else { String::new() });
        let header = self.header(&path);
        control::write(&path, "user.amphi.record", &wanted, |e| match e {
            Errno::BUSY => format!("{}: there are too many recordings on this mount", path.display()),
            _ => format!("{}: the mount cannot record; it runs an older amphi", path.display()),
        })?;
        let mount = mount_of(&path);
        let nameless =
            Nameless { mount, named: [1].into(), wanted: BTreeSet::new(), processes: BTreeSet::new(), is_new: false };
        let mut recording = Recording { path, id, key: self.hash_names.then_some(key), next: 1, nameless };
        let begun = self.begin(id).map(|(child, out, name)| (child, File { out, name, written: 0 }));
        let (mut child, mut file) = match begun {
            Ok(begun) => begun,
            Err(e) => {
                recording.command("forget");
                return Err(e);
            }
        };
        let mut early = String::new();
        if let Err(e) = file.write(&sealed(Kind::Header, &header)) {
            early = e.text;
        }
        let status = recording.follow(&mut child, &mut file, &mut early)?;
        let lost = recording.end(&mut file, &mut early);
        recording.command("forget");
        let end = End { end_ns: now_ns(), exit: exit_of(status), early: early.clone() };
        if let Err(e) = file.write(&sealed(Kind::End, &end))
            && early.is_empty()
        {
            early = e.text;
        }
        let name = file.name.display();
        if early.is_empty() {
            say(&format!("amphi: {} of calls in {name}; look at them: amphi record --show {name}", size(file.written)));
        } else {
            say(&format!("amphi: recording ended before the command: {early}; what there is can be read: {name}"));
        }
        if let Err(e) = lost {
            say(&format!("amphi: {e}"));
        }
        Ok(status)
    }

    fn header(&self, path: &Path) -> Header {
        // Arguments of a program can be names, too.
        let words = if self.hash_names { 1 } else { usize::MAX };
        let text = |file: &str| std::fs::read_to_string(file).unwrap_or_default().trim().to_string();
        Header {
            amphi: env!("CARGO_PKG_VERSION").into(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            boot: text("/proc/sys/kernel/random/boot_id"),
            mount: mount_of(path).display().to_string(),
            command: self.command.iter().take(words).map(|word| word.to_string_lossy().into_owned()).collect(),
            wall_ns: clock(ClockId::Realtime),
            start_ns: now_ns(),
            hashed: self.hash_names,
            tunables: changed_tunables(path),
        }
    }

    /// Starts the program, and makes the file.
    fn begin(&self, id: u64) -> Outcome<(Child, OwnedFd, PathBuf)> {
        let program = Path::new(&self.command[0]);
        let name = match &self.out {
            Some(name) => name.clone(),
            None => {
                let base = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy();
                PathBuf::from(format!("{base}.{}.trace", std::process::id()))
            }
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let out = open(&name, flags, Mode::RUSR | Mode::WUSR).map_err(|e| match e {
            Errno::EXIST => {
                Failure::refused(format!("{}: is there already; name another file with --out", name.display()))
            }
            e => Failure::refused(format!("{}: cannot be made: {e}", name.display())),
        })?;
        let child = Command::new(program).args(&self.command[1..]).env(RECORD_VARIABLE, format!("{id:x}")).spawn();
        let child = child.map_err(|e| {
            let _ = std::fs::remove_file(&name);
            Failure::refused(format!("cannot start {}: {e}", program.display()))
        })?;
        if let Ok(pid) = i32::try_from(child.id())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            amphi_host::signals::leave_to(pid)?;
        }
        Ok((child, out, name))
    }
}

/// A JSON block.
fn sealed(kind: Kind, what: &impl serde::Serialize) -> Vec<u8> {
    seal(kind, &serde_json::to_vec(what).unwrap_or_default())
}

fn clock(id: ClockId) -> u64 {
    let now = clock_gettime(id);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn now_ns() -> u64 {
    clock(ClockId::Monotonic)
}

fn random() -> Outcome<[u64; 2]> {
    let mut bytes = [0u8; 16];
    let got = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    if got != Ok(bytes.len()) {
        return Err(Failure::broken("no random number is to be had"));
    }
    let number = u128::from_le_bytes(bytes);
    Ok([number as u64 | 1, (number >> 64) as u64])
}

/// The exit code that a shell would report.
fn exit_of(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// The mount point above a path.
fn mount_of(path: &Path) -> PathBuf {
    let full = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let mounts = control::mounts().into_iter().filter(|mount| full.starts_with(mount));
    mounts.max_by_key(|mount| mount.as_os_str().len()).unwrap_or(full)
}

/// Tunables of the mount and the servers that are not at their defaults; none for callers who may not see them.
fn changed_tunables(path: &Path) -> Vec<String> {
    let text = control::read(path, "user.amphi.tunables").unwrap_or_default();
    let rows = amphi_client::Client::tunables().iter().chain(amphi_server::TUNABLES);
    let defaults: BTreeMap<&str, String> = rows.map(|row| (row.name, row.default_text())).collect();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let values = lines.filter_map(|line| line.split(" # ").next()?.split_once('='));
    // A tunable whose default depends on the machine is not compared.
    let differs = |name: &str, value: &str| defaults.get(name).is_some_and(|d| d != value && !d.contains(' '));
    values.filter(|(name, value)| differs(name, value)).map(|(name, value)| format!("{name}={value}")).collect()
}

/// The file of the trace.
struct File {
    out: OwnedFd,
    name: PathBuf,
    written: u64,
}

impl File {
    /// Appends a block.
    ///
    /// Errors: the file would be too long, or cannot be written; the partly written block is then removed.
    fn write(&mut self, block: &[u8]) -> Outcome {
        if self.written + block.len() as u64 > TRACE_MAX {
            return Err(Failure::broken(format!("the trace has reached {}, the most it may have", size(TRACE_MAX))));
        }
        let mut rest = block;
        while !rest.is_empty() {
            match rustix::io::write(&self.out, rest) {
                Ok(n) => rest = &rest[n..],
                Err(Errno::INTR) => {}
                Err(e) => {
                    // Otherwise the blocks behind it could not be read.
                    let _ = rustix::fs::ftruncate(&self.out, self.written);
                    let _ = rustix::fs::seek(&self.out, rustix::fs::SeekFrom::Start(self.written));
                    return Err(Failure::broken(format!("cannot write {}: {e}", self.name.display())));
                }
            }
        }
        self.written += block.len() as u64;
        Ok(())
    }
}

/// A recording of a mount.
struct Recording {
    path: PathBuf,
    id: u64,
    key: Option<u64>,
    /// The block that is fetched next.
    next: u64,
    nameless: Nameless,
}

/// Files that were opened, and directories that were used, and that have no name in the trace yet.
struct Nameless {
    mount: PathBuf,
    named: BTreeSet<u64>,
    wanted: BTreeSet<u64>,
    /// Recorded processes, which may have files without a name open.
    processes: BTreeSet<u32>,
    /// Whether `wanted` has an entry that has not been searched for yet.
    is_new: bool,
}

impl Recording {
    /// Errors are no concern: the mount may have ended.
    fn command(&self, what: &str) {
        let _ = control::command(&self.path, "user.amphi.record", &format!("{what} {:x}", self.id));
    }

    /// The next block, if there is one.
    fn fetch(&mut self) -> Outcome<Option<Vec<u8>>> {
        let block = control::read_bytes(&self.path, &format!("user.amphi.record.{:x}.{}", self.id, self.next))?;
        let block = block.ok_or_else(|| Failure::broken("the mount has forgotten this recording"))?;
        if block.is_empty() {
            return Ok(None);
        }
        self.next += 1;
        Ok(Some(block))
    }

    /// Fetches and writes until the program has ended. An error meanwhile ends the recording, not the program.
    #[expect(clippy::disallowed_methods, reason = "a program that waits for another one")]
    fn follow(&mut self, child: &mut Child, file: &mut File, early: &mut String) -> Outcome<ExitStatus> {
        loop {
            let ended = child.try_wait().during(|| "wait for the program".into())?;
            if early.is_empty() {
                match self.fetch().and_then(|block| self.keep(block, file)) {
                    // Further blocks may exist already.
                    Ok(true) => {
                        if let Some(status) = ended {
                            return Ok(status);
                        }
                        continue;
                    }
                    Ok(false) => {}
                    Err(e) => {
                        *early = e.text;
                        self.command("end");
                    }
                }
            }
            match ended {
                Some(status) => return Ok(status),
                None if early.is_empty() => std::thread::sleep(PAUSE),
                None => return child.wait().during(|| "wait for the program".into()),
            }
        }
    }

    /// Writes a block and what it makes known. Returns whether there was a block.
    fn keep(&mut self, block: Option<Vec<u8>>, file: &mut File) -> Outcome<bool> {
        if let Some(block) = &block {
            file.write(block)?;
            let all =
                records(block).map_err(|fault| Failure::broken(format!("the mount sent a bad block: {fault}")))?;
            all.iter().for_each(|record| self.nameless.note(record));
        }
        let found = self.nameless.look();
        self.write_names(found, file)?;
        Ok(block.is_some())
    }

    fn write_names(&self, found: Vec<(u64, Vec<u8>)>, file: &mut File) -> Outcome {
        let mut packer = Packer::default();
        let mut left = found.len();
        for (ino, path) in found {
            let path = match self.key {
                None => path,
                Some(key) => path.split(|b| *b == b'/').map(|name| hashed(key, name)).collect::<Vec<_>>().join(&b'/'),
            };
            packer.add(&amphi_trace::Record::Path { ino, path: path.into() });
            left -= 1;
            if left == 0 || packer.is_full(BLOCK_BYTES) {
                file.write(&seal(Kind::Records, &packer.take()))?;
            }
        }
        Ok(())
    }

    /// Fetches the remaining blocks after the program has ended.
    ///
    /// Errors: a sentence about what is missing in the trace.
    #[expect(clippy::disallowed_methods, reason = "answers of calls that are just leaving the mount")]
    fn end(&mut self, file: &mut File, early: &mut String) -> Outcome {
        if !early.is_empty() {
            return Ok(());
        }
        std::thread::sleep(LAST_PAUSE);
        self.command("end");
        loop {
            match self.fetch() {
                Ok(block) => {
                    let is_last = block.is_none();
                    let kept = self.keep(block, file).and_then(|_| {
                        let names = if is_last { self.nameless.walk() } else { Vec::new() };
                        self.write_names(names, file)
                    });
                    if let Err(e) = kept {
                        *early = e.text;
                    }
                    if is_last || !early.is_empty() {
                        return Ok(());
                    }
                }
                Err(e) => return Err(Failure::broken(format!("the last calls are missing: {e}"))),
            }
        }
    }
}

impl Nameless {
    fn note(&mut self, record: &amphi_trace::Record) {
        match record {
            amphi_trace::Record::Call(call) => self.note_call(call),
            amphi_trace::Record::Caller(caller) => drop(self.processes.insert(caller.pid)),
            _ => {}
        }
    }

    fn note_call(&mut self, call: &Call) {
        match call.op {
            Op::Lookup | Op::Create | Op::Mkdir if call.is_done() => {
                self.wanted.remove(&call.other);
                self.named.insert(call.other);
                self.want(call.ino);
            }
            Op::Open | Op::OpenDir if call.is_done() => self.want(call.ino),
            _ => {}
        }
    }

    fn want(&mut self, ino: u64) {
        if !self.named.contains(&ino) && self.wanted.len() < NAMELESS_MAX {
            self.is_new |= self.wanted.insert(ino);
        }
    }

    /// A name was found.
    fn found(&mut self, ino: u64, path: &Path) -> Option<(u64, Vec<u8>)> {
        if !self.wanted.remove(&ino) {
            return None;
        }
        self.named.insert(ino);
        Some((ino, path.as_os_str().as_bytes().to_vec()))
    }

    /// Names of files that processes of the program have open at the moment, below the mount point.
    fn look(&mut self) -> Vec<(u64, Vec<u8>)> {
        let mut all = Vec::new();
        if !std::mem::take(&mut self.is_new) {
            return all;
        }
        let (processes, mount) = (self.processes.clone(), self.mount.clone());
        for pid in processes {
            let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
                self.processes.remove(&pid);
                continue;
            };
            for link in entries.flatten().map(|entry| entry.path()) {
                let Ok(at) = std::fs::read_link(&link) else { continue };
                let Ok(below) = at.strip_prefix(&mount) else { continue };
                let Ok(ino) = std::fs::metadata(&link).map(|m| m.ino()) else { continue };
                all.extend(self.found(ino, below));
            }
        }
        all
    }

    /// Names that are found among the first entries of the mount, after the program has ended.
    fn walk(&mut self) -> Vec<(u64, Vec<u8>)> {
        let (mut all, mut left, mount) = (Vec::new(), WALK_MAX, self.mount.clone());
        let mut dirs = VecDeque::from([mount.clone()]);
        while let Some(dir) = dirs.pop_front().filter(|_| !self.wanted.is_empty() && left > 0) {
            let Ok(entries) = std::fs::read_dir(&dir) else { continue };
            for entry in entries.flatten().take(left) {
                left -= 1;
                let path = entry.path();
                let below = path.strip_prefix(&mount).map(Path::to_path_buf).unwrap_or_default();
                all.extend(self.found(entry.ino(), &below));
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    dirs.push_back(path);
                }
            }
        }
        all
    }
}

/// Opens a trace for reading.
#[expect(clippy::disallowed_types, reason = "a file of the user that is read as a stream")]
pub fn open_trace(file: &Path) -> Outcome<impl std::io::Read + use<>> {
    let opened = std::fs::File::open(file).map_err(|e| Failure::refused(format!("{}: {e}", file.display())))?;
    Ok(std::io::BufReader::with_capacity(1 << 20, opened))
}

fn show(file: &Path, json: bool) -> Outcome {
    let summary = Summary::read(open_trace(file)?);
    let summary = summary.map_err(|fault| Failure::refused(format!("{}: {fault}", file.display())))?;
    let text = if json { format!("{}\n", summary.json()) } else { summary.text() };
    std::io::Write::write_all(&mut std::io::stdout().lock(), text.as_bytes())
        .during(|| "write to standard output".into())?;
    match &summary.fault {
        // A trace that was cut is read as far as it goes.
        Some(fault) if !fault.is_cut => Err(Failure::broken(format!("{}: {fault}", file.display()))),
        _ => Ok(()),
    }
}
