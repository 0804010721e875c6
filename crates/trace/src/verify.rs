//! Pairs of calls of different processes that touch the same bytes, of which at least one is a write, without the calls
//! between them that a consistency model requires.
//!
//! Owns: finding them in the traces of one cluster. Does not own: knowledge about the program, for example about its
//! barriers: calls are ordered by time alone, so a pair is a candidate and never an error.
//!
//! The models are those of the study of Wang, Mohror and Snir (File system semantics requirements of HPC applications,
//! HPDC 2021), section 3. `posix` requires that the first call has ended before the second begins. `commit` also
//! requires that the writer has synced or closed the file in between, and `session` that the writer has closed it and
//! that the other process has opened it after that.
//!
//! Bounds: each range is compared with its last write and its `READERS_MAX` last reads; pairs of the same two processes
//! on one file are counted, and the first is kept as an example; at most `PAIRS_MAX` such pairs are reported.

use crate::call::{Call, Op, flags};
use crate::reader::Trace;
use crate::spans::Spans;
use std::collections::BTreeMap;

/// Reads of a range that are compared with the next write.
const READERS_MAX: usize = 8;
/// The pairs of processes and files that are reported.
pub const PAIRS_MAX: usize = 1000;

/// The event that is required between two calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// One call has ended before the other begins.
    Posix,
    /// The writer has also synced or closed the file.
    Commit,
    /// The writer has also closed the file, and the other process has opened it since.
    Session,
}

/// One of the two calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// Number of the trace.
    pub trace: usize,
    /// Process and thread.
    pub process: u32,
    /// Thread.
    pub thread: u32,
    /// Read or write.
    pub op: Op,
    /// The bytes of the call, half-open.
    pub range: (u64, u64),
    /// When it began and ended, nanoseconds of the first trace's clock.
    pub time: (u64, u64),
}

/// Calls of two processes on one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The file.
    pub ino: u64,
    /// The name of the file, if one was seen.
    pub file: String,
    /// The first example.
    pub calls: [Side; 2],
    /// How many such pairs there are.
    pub count: u64,
    /// The clocks of the two are not near enough to say.
    pub undecided: bool,
}

/// The result of the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Pairs, those of one file together.
    pub pairs: Vec<Pair>,
    /// Reads and writes that were compared.
    pub accesses: u64,
    /// There were more pairs than are reported.
    pub more: bool,
}

/// A process: the trace and its number.
type Process = (usize, u32);

/// A read or write.
#[derive(Clone, Copy, Debug)]
struct Access {
    trace: usize,
    thread: u32,
    process: u32,
    op: Op,
    range: (u64, u64),
    time: (u64, u64),
}

impl Access {
    fn who(&self) -> Process {
        (self.trace, self.process)
    }

    fn side(&self) -> Side {
        let Access { trace, process, thread, op, range, time } = *self;
        Side { trace, process, thread, op, range, time }
    }
}

/// For one range: the last write, and the reads since then.
#[derive(Clone, Debug, Default)]
struct Last {
    write: Option<Access>,
    reads: Vec<Access>,
}

/// When a process synced, closed or opened a file, in the order of time.
#[derive(Debug, Default)]
struct Marks {
    commits: Vec<(u64, u64)>,
    closes: Vec<(u64, u64)>,
    opens: Vec<(u64, u64)>,
}

/// The end of the first of `marks` that began at `from` or later, if it ended until `until`.
fn between(marks: &[(u64, u64)], from: u64, until: u64) -> Option<u64> {
    let first = marks.partition_point(|(start, _)| *start < from);
    marks.get(first).map(|(_, end)| *end).filter(|end| *end <= until)
}

/// The result of the search for what is required between the first and the second call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Fine,
    Missing,
    Undecided,
}

struct Search {
    model: Model,
    /// How far clocks of two boots may be apart, ns.
    uncertainty_ns: u64,
    /// Traces with one clock have the same number.
    clocks: Vec<usize>,
    marks: BTreeMap<(u64, Process), Marks>,
    pairs: BTreeMap<(u64, Process, Process, [Op; 2], bool), Pair>,
    more: bool,
}

impl Search {
    fn order(&self, ino: u64, first: &Access, second: &Access) -> Order {
        let one_clock = self.clocks[first.trace] == self.clocks[second.trace];
        let slack = if one_clock { 0 } else { self.uncertainty_ns };
        if first.time.1.saturating_add(slack) > second.time.0 {
            let apart = first.time.1.saturating_sub(second.time.0).min(second.time.1.saturating_sub(first.time.0));
            return if slack > 0 && apart <= slack { Order::Undecided } else { Order::Missing };
        }
        if first.op != Op::Write || self.model == Model::Posix {
            return Order::Fine;
        }
        let none = Marks::default();
        let of = |who| self.marks.get(&(ino, who)).unwrap_or(&none);
        let until = second.time.0.saturating_sub(slack);
        let marks = of(first.who());
        let fine = match self.model {
            Model::Posix => true,
            Model::Commit => between(&marks.commits, first.time.1, until).is_some(),
            Model::Session => between(&marks.closes, first.time.1, until).is_some_and(|closed| {
                between(&of(second.who()).opens, closed.saturating_add(slack), second.time.0).is_some()
            }),
        };
        if fine { Order::Fine } else { Order::Missing }
    }

    fn compare(&mut self, ino: u64, file: &str, first: &Access, second: &Access) {
        if first.who() == second.who() || (first.op == Op::Read && second.op == Op::Read) {
            return;
        }
        let undecided = match self.order(ino, first, second) {
            Order::Fine => return,
            Order::Missing => false,
            Order::Undecided => true,
        };
        let key = (ino, first.who(), second.who(), [first.op, second.op], undecided);
        if let Some(pair) = self.pairs.get_mut(&key) {
            pair.count += 1;
        } else if self.pairs.len() < PAIRS_MAX {
            let calls = [first.side(), second.side()];
            self.pairs.insert(key, Pair { ino, file: file.into(), calls, count: 1, undecided });
        } else {
            self.more = true;
        }
    }
}

/// Looks for pairs in traces of one cluster. `uncertainty_ns`: how far the clocks of two nodes may be apart.
pub fn verify(traces: &[Trace], model: Model, uncertainty_ns: u64) -> Found {
    let clocks = traces.iter().map(|trace| {
        let boot = &trace.header.boot;
        traces.iter().position(|other| other.header.boot == *boot && !boot.is_empty()).unwrap_or(usize::MAX)
    });
    let clocks = clocks.enumerate().map(|(own, found)| if found == usize::MAX { own } else { found }).collect();
    let (marks, pairs) = (BTreeMap::new(), BTreeMap::new());
    let mut search = Search { model, uncertainty_ns, clocks, marks, pairs, more: false };
    let mut accesses: BTreeMap<u64, Vec<Access>> = BTreeMap::new();
    let mut names = BTreeMap::new();
    for (n, trace) in traces.iter().enumerate() {
        names.extend(trace.names());
        // Times of other clocks, by the time of day.
        let shift = match search.clocks[n] {
            0 => 0,
            clock => clock_shift(&traces[0], &traces[clock]),
        };
        gather(n, trace, shift, &mut search.marks, &mut accesses);
    }
    for marks in search.marks.values_mut() {
        [&mut marks.commits, &mut marks.closes, &mut marks.opens].into_iter().for_each(|all| all.sort_unstable());
    }
    let mut count = 0;
    for (ino, mut all) in accesses {
        all.sort_by_key(|access| access.time);
        count += all.len() as u64;
        let file = names.get(&ino).map_or_else(|| format!("inode {ino:#x}"), |name| crate::summary::shown(name));
        let mut spans = Spans::<Last>::default();
        for access in &all {
            let mut against: Vec<Access> = Vec::new();
            spans.visit(access.range.0, access.range.1, |_, last| {
                against.extend(last.write);
                if access.op == Op::Write {
                    against.append(&mut last.reads);
                    last.write = Some(*access);
                } else {
                    if last.reads.len() == READERS_MAX {
                        last.reads.remove(0);
                    }
                    last.reads.push(*access);
                }
            });
            // One call may meet another one in several ranges.
            against.sort_by_key(|a| (a.time, a.range, a.thread));
            against.dedup_by_key(|a| (a.time, a.range, a.thread));
            against.iter().for_each(|first| search.compare(ino, &file, first, access));
        }
    }
    Found { pairs: search.pairs.into_values().collect(), accesses: count, more: search.more }
}

/// The difference between the clocks of two traces: it is added to times of `from` to get times of `to`. It is computed
/// from the time of day that both traces contain.
fn clock_shift(to: &Trace, from: &Trace) -> i64 {
    let of = |trace: &Trace| trace.header.wall_ns.wrapping_sub(trace.header.start_ns) as i64;
    of(from).wrapping_sub(of(to))
}

fn gather(
    n: usize,
    trace: &Trace,
    shift: i64,
    marks: &mut BTreeMap<(u64, Process), Marks>,
    accesses: &mut BTreeMap<u64, Vec<Access>>,
) {
    let mut openers: BTreeMap<u64, u32> = BTreeMap::new();
    for call in trace.calls.iter().filter(|call| call.is_done()) {
        let moved = |at: u64| at.saturating_add_signed(shift);
        let time = (moved(call.start_ns), moved(call.end_ns()));
        let process = match (call.tid, openers.get(&call.handle)) {
            (0, Some(opener)) => *opener,
            (tid, _) => trace.process(tid),
        };
        match call.op {
            Op::Open | Op::Create => {
                openers.insert(call.handle, process);
                let ino = if call.op == Op::Open { call.ino } else { call.other };
                marks.entry((ino, (n, process))).or_default().opens.push(time);
            }
            Op::Fsync => marks.entry((call.ino, (n, process))).or_default().commits.push(time),
            Op::Close => {
                let own = marks.entry((call.ino, (n, process))).or_default();
                own.commits.push(time);
                own.closes.push(time);
            }
            Op::Read | Op::Write | Op::Copy if !(call.op == Op::Read && call.has(flags::OF_PAGES) && call.tid == 0) => {
                let mut note = |ino: u64, op: Op, range: (u64, u64)| {
                    let access = Access { trace: n, thread: call.tid, process, op, range, time };
                    accesses.entry(ino).or_default().extend((range.0 < range.1).then_some(access));
                };
                let op = if call.op == Op::Copy { Op::Write } else { call.op };
                note(call.other, Op::Read, call.copied());
                note(call.ino, op, call.moved());
            }
            _ => {}
        }
    }
}

impl Call {
    /// The inode that a call found or made under its name, if any.
    pub(crate) fn found(&self) -> Option<u64> {
        let finds = matches!(self.op, Op::Lookup | Op::Create | Op::Mkdir | Op::Mknod | Op::Symlink | Op::Link);
        (finds && self.is_done() && self.other != 0).then_some(self.other)
    }
}
