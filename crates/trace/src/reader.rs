//! Reading a trace: block by block, up to the first error.

use crate::block::{Fault, HEAD_BYTES, Head, Kind};
use crate::call::{Call, Caller};
use crate::record::{Record, Unpacker};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::io::Read;

/// The first block of a trace, which describes it. Fields that are missing in a file are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Header {
    /// The program that recorded.
    pub amphi: String,
    /// The node.
    pub host: String,
    /// The boot of the node: traces of one boot use the same clock.
    pub boot: String,
    /// Mount point.
    pub mount: String,
    /// The command, as it was typed.
    pub command: Vec<String>,
    /// Wall-clock time of `start_ns`, nanoseconds since 1970.
    pub wall_ns: u64,
    /// When recording began, by the clock of all times in this trace.
    pub start_ns: u64,
    /// Names are hashed.
    pub hashed: bool,
    /// The mount's tunables that were not at their defaults, as `NAME=VALUE`.
    pub tunables: Vec<String>,
}

/// The last record of a trace; a trace without it is incomplete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct End {
    /// When recording ended, by the clock of the trace.
    pub end_ns: u64,
    /// How the command ended, in the form of a shell's exit status.
    pub exit: i32,
    /// The reason why recording ended before the command; empty if it did not.
    pub early: String,
}

/// A part of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The first.
    Header(Header),
    /// A record.
    Record(Record),
    /// The last.
    End(End),
}

/// Reads a trace, a block at a time.
pub struct Reader<R> {
    from: R,
    at: u64,
    ready: VecDeque<Part>,
    seen_header: bool,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// A reader that begins at the first byte.
    pub fn new(from: R) -> Reader<R> {
        Reader { from, at: 0, ready: VecDeque::new(), seen_header: false, ended: false }
    }

    /// The next part; `None` after the last one.
    ///
    /// Errors: where and what. Nothing that follows is read; what was returned before is as it was written.
    pub fn next_part(&mut self) -> Result<Option<Part>, Fault> {
        while self.ready.is_empty() {
            if !self.block()? {
                return Ok(None);
            }
        }
        Ok(self.ready.pop_front())
    }

    /// Reads until `into` is full or the file ends, and says how far.
    fn fill(&mut self, into: &mut [u8]) -> Result<usize, Fault> {
        let mut done = 0;
        while done < into.len() {
            match self.from.read(&mut into[done..]) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Fault::new(self.at + done as u64, format!("cannot be read: {e}"))),
            }
        }
        Ok(done)
    }

    /// Reads one block. Returns whether there was one.
    fn block(&mut self) -> Result<bool, Fault> {
        let at = self.at;
        let mut bytes = [0; HEAD_BYTES];
        match self.fill(&mut bytes)? {
            0 if self.ended => return Ok(false),
            0 if at == 0 => return Err(Fault::new(0, "the file is empty")),
            0 => return Err(Fault::cut(at, "the trace ends here without its end: it was cut")),
            HEAD_BYTES => {}
            n if at == 0 => return Err(Fault::new(0, format!("{n} bytes are no trace of amphi record"))),
            n => return Err(Fault::cut(at, format!("the trace is cut in a block, after {n} bytes of its head"))),
        }
        if self.ended {
            return Err(Fault::new(at, "something follows the end of the trace"));
        }
        let head = Head::parse(&bytes, at)?;
        let mut stored = vec![0; head.stored];
        let got = self.fill(&mut stored)?;
        if got < stored.len() {
            return Err(Fault::cut(
                at,
                format!("the trace is cut in a block, {} bytes of it are missing", stored.len() - got),
            ));
        }
        let (kind, content) = head.open(&bytes, &stored, at)?;
        self.at += (HEAD_BYTES + stored.len()) as u64;
        let body = at + HEAD_BYTES as u64;
        if (kind == Kind::Header) == self.seen_header {
            return Err(Fault::new(at, if self.seen_header { "a second header" } else { "the header is missing" }));
        }
        match kind {
            Kind::Header => {
                let header = serde_json::from_slice(&content);
                self.ready.push_back(Part::Header(header.map_err(|e| Fault::new(body, format!("the header: {e}")))?));
                self.seen_header = true;
            }
            Kind::Records => {
                let mut records = Unpacker::new(&content);
                loop {
                    match records.next_record() {
                        Ok(Some(record)) => self.ready.push_back(Part::Record(record)),
                        Ok(None) => break,
                        Err(fault) => {
                            let what = format!("byte {} of the content of this block: {}", fault.at, fault.what);
                            return Err(Fault::new(at, what));
                        }
                    }
                }
            }
            Kind::End => {
                let end = serde_json::from_slice(&content);
                self.ready.push_back(Part::End(end.map_err(|e| Fault::new(body, format!("the end: {e}")))?));
                self.ended = true;
            }
        }
        Ok(true)
    }
}

/// The records of one block in the form in which the mount writes it.
///
/// Errors: if the bytes are not one complete block of records.
pub fn records(block: &[u8]) -> Result<Vec<Record>, Fault> {
    let short = || Fault::cut(0, "the block is too short");
    let (bytes, stored) = block.split_first_chunk::<HEAD_BYTES>().ok_or_else(short)?;
    let head = Head::parse(bytes, 0)?;
    let (kind, content) = head.open(bytes, stored.get(..head.stored).ok_or_else(short)?, 0)?;
    if kind != Kind::Records || stored.len() != head.stored {
        return Err(Fault::new(0, "this is no block of records"));
    }
    let (mut unpacker, mut all) = (Unpacker::new(&content), Vec::new());
    while let Some(record) = unpacker.next_record()? {
        all.push(record);
    }
    Ok(all)
}

/// A whole trace in memory, as far as it could be read.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The header of the trace.
    pub header: Header,
    /// Calls in the order in which they began.
    pub calls: Vec<Call>,
    /// Threads that made these calls.
    pub callers: BTreeMap<u32, Caller>,
    /// Paths of inodes below the mount point.
    pub paths: BTreeMap<u64, Box<[u8]>>,
    /// Names of reasons.
    pub reasons: Vec<String>,
    /// Calls that were lost for want of room.
    pub lost: u64,
    /// The end block of the trace.
    pub end: Option<End>,
    /// The error that ended the reading.
    pub fault: Option<Fault>,
}

/// Most calls of a trace that is read into memory: about 4 GB.
pub const CALLS_MAX: usize = 25_000_000;

impl Trace {
    /// Reads until the end of the trace or the first damage.
    ///
    /// Errors: not even a header can be read, or there are more than [`CALLS_MAX`] calls.
    pub fn read(from: impl Read) -> Result<Trace, Fault> {
        let (mut reader, mut trace) = (Reader::new(from), Trace::default());
        loop {
            match reader.next_part() {
                Ok(Some(Part::Header(header))) => trace.header = header,
                Ok(Some(Part::End(end))) => trace.end = Some(end),
                Ok(Some(Part::Record(record))) => trace.add(record),
                Ok(None) => break,
                Err(fault) if !reader.seen_header => return Err(fault),
                Err(fault) => {
                    trace.fault = Some(fault);
                    break;
                }
            }
            if trace.calls.len() > CALLS_MAX {
                return Err(Fault::new(
                    reader.at,
                    format!("more than {CALLS_MAX} calls are too many to be kept in memory"),
                ));
            }
        }
        trace.calls.sort_by_key(|call| call.start_ns);
        Ok(trace)
    }

    fn add(&mut self, record: Record) {
        match record {
            Record::Call(call) => self.calls.push(call),
            Record::Caller(caller) => {
                self.callers.insert(caller.tid, caller);
            }
            Record::Lost(calls) => self.lost = self.lost.saturating_add(calls),
            Record::Path { ino, path } => {
                self.paths.insert(ino, path);
            }
            Record::Reasons(names) => self.reasons = names,
        }
    }

    /// The process of a thread; the thread's own number if it is not known.
    pub fn process(&self, tid: u32) -> u32 {
        self.callers.get(&tid).map_or(tid, |caller| caller.pid)
    }

    /// The reason why a call was buffered or direct; empty if nothing was decided.
    pub fn reason(&self, call: &Call) -> &str {
        call.course.reason.and_then(|reason| self.reasons.get(usize::from(reason))).map_or("", String::as_str)
    }
}
