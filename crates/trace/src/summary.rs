//! Summary of a trace: operations, files, sizes, paths through the file system and waits.
//!
//! Owns: adding it up, its text and its JSON (schema `amphi.trace/1`). Reads a trace as a stream, so its length does
//! not matter; the number of reported files is bounded by `FILES_MAX`, and those with the most time come first.

use crate::block::Fault;
use crate::call::{Call, Op, flags};
use crate::reader::{End, Header, Part, Reader, Trace};
use crate::record::Record;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io::Read;

/// Most files that are reported.
const FILES_MAX: usize = 20;
/// Names that are remembered while a trace is read.
const NAMES_MAX: usize = 1 << 20;

/// A name without the bytes on which a terminal would act.
pub fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// What the trace shows about names: in which directory, and under which name, an inode was found.
#[derive(Debug, Default)]
pub struct Names {
    under: BTreeMap<u64, (u64, Box<[u8]>)>,
    paths: BTreeMap<u64, Box<[u8]>>,
}

impl Names {
    /// Notes the names and inodes that a call shows.
    pub fn note(&mut self, call: &Call) {
        if let Some(ino) = call.found()
            && self.under.len() < NAMES_MAX
        {
            let (dir, name) = if call.op == Op::Link { (call.ino, &call.new_name) } else { (call.ino, &call.name) };
            if !matches!(&**name, b"." | b"..") {
                self.under.entry(ino).or_insert_with(|| (dir, name.clone()));
            }
        }
    }

    /// The path of an inode below the mount point, as far as its directories were seen; a path whose beginning is
    /// unknown starts with `...`.
    pub fn path(&self, ino: u64) -> Option<Vec<u8>> {
        if let Some(path) = self.paths.get(&ino) {
            return Some(path.to_vec());
        }
        let (mut at, mut parts) = (ino, Vec::new());
        while let Some((dir, name)) = self.under.get(&at) {
            parts.push(name.clone());
            at = *dir;
            if parts.len() > 64 {
                break;
            }
        }
        if parts.is_empty() {
            return None;
        }
        parts.reverse();
        let below = parts.join(&b'/');
        Some(match (at, self.paths.get(&at)) {
            // The root.
            (1, _) => below,
            (_, Some(dir)) => [&dir[..], b"/", &below].concat(),
            _ => [b".../", &below[..]].concat(),
        })
    }
}

impl Trace {
    /// Paths of the inodes that calls and records name.
    pub(crate) fn names(&self) -> BTreeMap<u64, Vec<u8>> {
        let mut names = Names { paths: self.paths.clone(), ..Names::default() };
        self.calls.iter().for_each(|call| names.note(call));
        let all: BTreeSet<u64> = names.under.keys().chain(names.paths.keys()).copied().collect();
        all.into_iter().filter_map(|ino| Some((ino, names.path(ino)?))).collect()
    }
}

/// Calls of one kind.
#[derive(Clone, Debug, Default)]
struct Sum {
    calls: u64,
    failed: u64,
    bytes: u64,
    ns: u64,
    longest_ns: u64,
    lock_ns: u64,
    fill_ns: u64,
    server_ns: u64,
}

impl Sum {
    fn add(&mut self, call: &Call) {
        self.calls += 1;
        self.failed += u64::from(!call.is_done());
        let (start, end) = call.moved();
        self.bytes = self.bytes.saturating_add(end - start);
        self.ns = self.ns.saturating_add(call.took_ns);
        self.longest_ns = self.longest_ns.max(call.took_ns);
        self.lock_ns = self.lock_ns.saturating_add(call.course.lock_ns);
        self.fill_ns = self.fill_ns.saturating_add(call.course.fill_ns);
        self.server_ns = self.server_ns.saturating_add(call.course.server_ns);
    }

    fn json(&self) -> Value {
        json!({
            "calls": self.calls, "failed": self.failed, "bytes": self.bytes, "ns": self.ns,
            "longest_ns": self.longest_ns, "lock_wait_ns": self.lock_ns, "fill_wait_ns": self.fill_ns,
            "server_wait_ns": self.server_ns,
        })
    }

    fn line(&self, name: &str) -> String {
        let waits: Vec<String> = [("locks", self.lock_ns), ("fills", self.fill_ns), ("servers", self.server_ns)]
            .into_iter()
            .filter(|(_, ns)| *ns > 0)
            .map(|(what, ns)| format!("{what} {}", time(ns)))
            .collect();
        let mean = self.ns.checked_div(self.calls).unwrap_or(0);
        format!(
            "{name:<18} {:>9} {:>7} {:>10} {:>9} {:>9} {:>9}  {}",
            self.calls,
            self.failed,
            if self.bytes > 0 { size(self.bytes) } else { "-".into() },
            time(self.ns),
            time(mean),
            time(self.longest_ns),
            waits.join(", ")
        )
        .trim_end()
        .to_string()
    }
}

/// The report about a file.
#[derive(Clone, Debug, Default)]
struct OfFile {
    all: Sum,
    read: u64,
    written: u64,
    opens: u64,
}

/// Counts of calls that were not recorded, and of opens.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    lost: u64,
    opens: u64,
    opens_of_kernel: u64,
}

/// A trace in short.
#[derive(Debug, Default)]
pub struct Summary {
    /// The header of the trace.
    pub header: Header,
    /// The error that ended the reading.
    pub fault: Option<Fault>,
    end: Option<End>,
    all: Sum,
    ops: BTreeMap<Op, Sum>,
    /// Sums for each operation (read or write) and reason.
    ways: BTreeMap<(Op, String), Sum>,
    sizes: BTreeMap<(Op, u32), u64>,
    files: BTreeMap<u64, OfFile>,
    names: Names,
    reasons: Vec<String>,
    threads: BTreeSet<u32>,
    processes: BTreeMap<u32, String>,
    counts: Counts,
    first_ns: Option<u64>,
    last_ns: u64,
}

impl Summary {
    /// Reads a trace until its end or the first damage.
    ///
    /// Errors: not even its header can be read.
    pub fn read(from: impl Read) -> Result<Summary, Fault> {
        let (mut reader, mut summary) = (Reader::new(from), Summary::default());
        let mut begun = false;
        loop {
            match reader.next_part() {
                Ok(Some(part)) => {
                    begun = true;
                    summary.add(part);
                }
                Ok(None) => return Ok(summary),
                Err(fault) if !begun => return Err(fault),
                Err(fault) => {
                    summary.fault = Some(fault);
                    return Ok(summary);
                }
            }
        }
    }

    fn add(&mut self, part: Part) {
        match part {
            Part::Header(header) => self.header = header,
            Part::End(end) => self.end = Some(end),
            Part::Record(Record::Call(call)) => self.call(&call),
            Part::Record(Record::Caller(caller)) => drop(self.processes.insert(caller.pid, caller.program)),
            Part::Record(Record::Lost(calls)) => self.counts.lost = self.counts.lost.saturating_add(calls),
            Part::Record(Record::Path { ino, path }) => drop(self.names.paths.insert(ino, path)),
            Part::Record(Record::Reasons(names)) => self.reasons = names,
        }
    }

    fn call(&mut self, call: &Call) {
        self.names.note(call);
        self.all.add(call);
        self.ops.entry(call.op).or_default().add(call);
        if call.tid != 0 {
            self.threads.insert(call.tid);
        }
        self.first_ns = Some(self.first_ns.map_or(call.start_ns, |first| first.min(call.start_ns)));
        self.last_ns = self.last_ns.max(call.end_ns());
        let opens = matches!(call.op, Op::Open | Op::Create) && call.is_done();
        self.counts.opens += u64::from(opens);
        self.counts.opens_of_kernel += u64::from(opens && call.has(flags::KERNEL_SERVES));
        let of_file = call.op.is_data()
            || call.op == Op::Copy
            || matches!(call.op, Op::Open | Op::Create | Op::Close | Op::Fsync);
        if of_file {
            let file = self.files.entry(if call.op == Op::Create { call.other } else { call.ino }).or_default();
            file.all.add(call);
            file.opens += u64::from(opens);
            let (start, end) = call.moved();
            *(if call.op != Op::Read { &mut file.written } else { &mut file.read }) += end - start;
        }
        if call.op == Op::Copy {
            let (start, end) = call.copied();
            self.files.entry(call.other).or_default().read += end - start;
        }
        if call.op.is_data() {
            let reason = call.course.reason.and_then(|reason| self.reasons.get(usize::from(reason)));
            let reason = reason.map_or("-", String::as_str).to_string();
            self.ways.entry((call.op, reason)).or_default().add(call);
            let power = u64::BITS - call.len.saturating_sub(1).leading_zeros();
            *self.sizes.entry((call.op, power)).or_default() += 1;
        }
    }

    fn span_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.first_ns.unwrap_or(self.last_ns))
    }

    /// Files by the time of their calls, the most first.
    fn by_time(&self) -> Vec<(u64, &OfFile)> {
        let mut files: Vec<(u64, &OfFile)> = self.files.iter().map(|(ino, file)| (*ino, file)).collect();
        files.sort_by_key(|(_, file)| std::cmp::Reverse(file.all.ns));
        files
    }

    fn name_of(&self, ino: u64) -> String {
        self.names.path(ino).map_or_else(|| format!("inode {ino:#x}"), |path| shown(&path))
    }

    /// One JSON object.
    pub fn json(&self) -> Value {
        let files = self.by_time();
        let shown_files = files.iter().take(FILES_MAX).map(|(ino, file)| {
            let mut value = file.all.json();
            value["file"] = json!(self.name_of(*ino));
            value["inode"] = json!(ino);
            value["opens"] = json!(file.opens);
            value["read_bytes"] = json!(file.read);
            value["written_bytes"] = json!(file.written);
            value
        });
        let named = |name: &str, sum: &Sum| {
            let mut value = sum.json();
            value["name"] = json!(name);
            value
        };
        let sizes = |op: Op| -> Vec<Value> {
            let of = self.sizes.iter().filter(|((kind, _), _)| *kind == op);
            of.map(|((_, power), calls)| json!({ "up_to": 1u128.checked_shl(*power), "calls": calls })).collect()
        };
        let ways = self.ways.iter().map(|((op, reason), sum)| {
            let mut value = named(reason, sum);
            value["kind"] = json!(op.name());
            value
        });
        json!({
            "schema": "amphi.trace/1",
            "command": self.header.command,
            "host": self.header.host,
            "mount": self.header.mount,
            "hashed_names": self.header.hashed,
            "whole": self.end.is_some() && self.fault.is_none(),
            "fault": self.fault.as_ref().map_or(String::new(), Fault::to_string),
            "ended_early": self.end.as_ref().map_or("", |end| &end.early),
            "exit": self.end.as_ref().map_or(-1, |end| end.exit),
            "span_ns": self.span_ns(),
            "calls": self.all.calls,
            "lost": self.counts.lost,
            "threads": self.threads.len(),
            "processes": self.processes.len(),
            "opens": self.counts.opens,
            "opens_served_by_kernel": self.counts.opens_of_kernel,
            "operations": self.ops.iter().map(|(op, sum)| named(op.name(), sum)).collect::<Vec<_>>(),
            "ways": ways.collect::<Vec<_>>(),
            "read_sizes": sizes(Op::Read),
            "write_sizes": sizes(Op::Write),
            "files": shown_files.collect::<Vec<_>>(),
            "further_files": files.len().saturating_sub(FILES_MAX),
        })
    }

    /// Text for people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let command: Vec<String> = self.header.command.iter().map(|word| shown(word.as_bytes())).collect();
        let _ = writeln!(out, "{}", command.join(" "));
        let programs: BTreeSet<&str> = self.processes.values().map(String::as_str).collect();
        let programs: Vec<String> = programs.into_iter().take(8).map(|name| shown(name.as_bytes())).collect();
        let _ = writeln!(
            out,
            "on {} at {}: {} calls in {}, {} threads, {} processes ({})",
            shown(self.header.host.as_bytes()),
            shown(self.header.mount.as_bytes()),
            self.all.calls,
            time(self.span_ns()),
            self.threads.len(),
            self.processes.len(),
            programs.join(", ")
        );
        self.doubts(&mut out);
        let head = ["calls", "failed", "bytes", "time", "mean", "longest"];
        let [calls, failed, bytes, all, mean, longest] = head;
        let head = format!("{calls:>9} {failed:>7} {bytes:>10} {all:>9} {mean:>9} {longest:>9}  waited for");
        let _ = writeln!(out, "\n{:<18} {head}", "operation");
        let mut ops: Vec<(&Op, &Sum)> = self.ops.iter().collect();
        ops.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.ns));
        for (op, sum) in ops {
            let _ = writeln!(out, "{}", sum.line(op.name()));
        }
        if !self.ways.is_empty() {
            let _ = writeln!(out, "\n{:<18} {head}", "way");
            for ((op, reason), sum) in &self.ways {
                let way = if *op == Op::Read { "r" } else { "w" };
                let _ = writeln!(out, "{}", sum.line(&format!("{way} {reason}")));
            }
            for op in [Op::Read, Op::Write] {
                let of = self.sizes.iter().filter(|((kind, _), _)| *kind == op);
                let all: Vec<String> = of
                    .map(|((_, power), n)| format!("{} x {n}", size(1u64.checked_shl(*power).unwrap_or(u64::MAX))))
                    .collect();
                if !all.is_empty() {
                    let _ = writeln!(out, "{} sizes, up to: {}", op.name(), all.join(", "));
                }
            }
        }
        let files = self.by_time();
        if !files.is_empty() {
            let _ = writeln!(out, "\n{:<18} {head}", "file");
        }
        for (ino, file) in files.iter().take(FILES_MAX) {
            let name = self.name_of(*ino);
            let (read, written) = (size(file.read), size(file.written));
            let _ = writeln!(out, "{}", file.all.line(&format!("{} opens", file.opens)));
            let _ = writeln!(out, "    {name}: read {read}, written {written}");
        }
        if files.len() > FILES_MAX {
            let _ = writeln!(out, "and {} further files", files.len() - FILES_MAX);
        }
        out
    }

    /// Facts that are missing in the trace, or uncertain.
    fn doubts(&self, out: &mut String) {
        if let Some(fault) = &self.fault {
            let _ = writeln!(out, "read as far as {fault}");
        }
        if let Some(end) = self.end.as_ref().filter(|end| !end.early.is_empty()) {
            let _ = writeln!(out, "recording ended before the command: {}", shown(end.early.as_bytes()));
        }
        if self.counts.lost > 0 {
            let _ = writeln!(out, "{} calls are missing: there was no room for them", self.counts.lost);
        }
        if self.counts.opens_of_kernel > 0 {
            let _ = writeln!(
                out,
                "of {} opens the kernel served {} from its page cache, whose reads are not seen here",
                self.counts.opens, self.counts.opens_of_kernel
            );
        }
    }
}

/// Bytes for people.
pub fn size(bytes: u64) -> String {
    let mut n = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if n < 1000.0 {
            return if unit == "B" || n >= 100.0 { format!("{n:.0} {unit}") } else { format!("{n:.1} {unit}") };
        }
        n /= 1024.0;
    }
    format!("{n:.1} PiB")
}

/// A time for people.
pub fn time(ns: u64) -> String {
    match ns as f64 / 1e9 {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.1} us", s * 1e6),
    }
}
