//! Records: the content of a block of kind 2.
//!
//! Numbers are LEB128 varints; signed ones are zigzag; texts are a length and bytes. A record begins with its tag:
//!
//! | tag | record | fields |
//! |--:|---|---|
//! | 1 | call | operation, signed difference of the start to the call before in this block, duration, a mask of fields that are not 0, these fields in the order of the mask |
//! | 2 | thread | thread, process, program |
//! | 3 | lost | calls that found no room since the record before of this kind |
//! | 4 | path | inode, path below the mount |
//! | 5 | reasons | names, separated by commas, in the order of their numbers |
//!
//! Bits of the mask: 0 thread, 1 inode, 2 handle, 3 offset, 4 length, 5 result (signed), 6 reason + 1, 7 flags, 8 lock
//! wait, 9 fill wait, 10 server wait, 11 other inode, 12 size + 1, 13 name, 14 new name.

use crate::block::{CONTENT_MAX, Fault};
use crate::call::{Call, Caller, Course, Op};

/// Longest name, bytes.
const NAME_MAX: usize = 4096;
/// Space that the longest record needs, and some more, bytes: a block with less is full.
const SLACK: usize = 4 * NAME_MAX;

/// A record of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A call.
    Call(Call),
    /// A thread that makes calls.
    Caller(Caller),
    /// This many calls were not recorded because there was no space for them.
    Lost(u64),
    /// The name under which a file was seen.
    Path {
        /// The inode of the file.
        ino: u64,
        /// The path below the mount point.
        path: Box<[u8]>,
    },
    /// Names of the reasons of decisions.
    Reasons(Vec<String>),
}

/// Puts records into the content of a block.
#[derive(Debug, Default)]
pub struct Packer {
    content: Vec<u8>,
    last_ns: u64,
}

impl Packer {
    /// Returns whether no further record should be added: the content is nearly as long as it may be, or as `want`
    /// bytes.
    pub fn is_full(&self, want: usize) -> bool {
        self.content.len() >= want.min(CONTENT_MAX - SLACK)
    }

    /// Returns whether there is no record in it.
    pub fn is_empty(&self) -> bool {
        self.content.is_empty()
    }

    /// The content; another one begins.
    pub fn take(&mut self) -> Vec<u8> {
        self.last_ns = 0;
        std::mem::take(&mut self.content)
    }

    /// Adds a record. Names are cut at 4,096 bytes.
    pub fn add(&mut self, record: &Record) {
        match record {
            Record::Call(call) => self.call(call),
            Record::Caller(caller) => {
                self.content.push(2);
                self.put(u64::from(caller.tid));
                self.put(u64::from(caller.pid));
                self.text(caller.program.as_bytes());
            }
            Record::Lost(calls) => {
                self.content.push(3);
                self.put(*calls);
            }
            Record::Path { ino, path } => {
                self.content.push(4);
                self.put(*ino);
                self.text(path);
            }
            Record::Reasons(names) => {
                self.content.push(5);
                self.text(names.join(",").as_bytes());
            }
        }
    }

    fn call(&mut self, call: &Call) {
        self.content.extend_from_slice(&[1, call.op as u8]);
        self.put(zigzag(call.start_ns.wrapping_sub(self.last_ns) as i64));
        self.last_ns = call.start_ns;
        self.put(call.took_ns);
        let fields = [
            u64::from(call.tid),
            call.ino,
            call.handle,
            call.offset,
            call.len,
            zigzag(call.result),
            call.course.reason.map_or(0, |reason| u64::from(reason) + 1),
            u64::from(call.flags),
            call.course.lock_ns,
            call.course.fill_ns,
            call.course.server_ns,
            call.other,
            call.size.map_or(0, |size| size.saturating_add(1)),
        ];
        let names = [&call.name, &call.new_name];
        let bits = fields.iter().map(|field| *field != 0).chain(names.iter().map(|name| !name.is_empty()));
        let mask = bits.enumerate().fold(0u64, |mask, (bit, is)| mask | (u64::from(is) << bit));
        self.put(mask);
        fields.into_iter().filter(|field| *field != 0).for_each(|field| self.put(field));
        names.into_iter().filter(|name| !name.is_empty()).for_each(|name| self.text(name));
    }

    fn put(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.content.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.content.push(value as u8);
    }

    fn text(&mut self, text: &[u8]) {
        let text = &text[..text.len().min(NAME_MAX)];
        self.put(text.len() as u64);
        self.content.extend_from_slice(text);
    }
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Takes records from the content of a block.
pub struct Unpacker<'a> {
    content: &'a [u8],
    at: usize,
    last_ns: u64,
}

impl<'a> Unpacker<'a> {
    /// From the beginning.
    pub fn new(content: &'a [u8]) -> Unpacker<'a> {
        Unpacker { content, at: 0, last_ns: 0 }
    }

    fn fault<T>(&self, what: &str) -> Result<T, Fault> {
        Err(Fault::new(self.at as u64, what.to_string()))
    }

    fn byte(&mut self) -> Result<u8, Fault> {
        match self.content.get(self.at) {
            Some(byte) => {
                self.at += 1;
                Ok(*byte)
            }
            None => self.fault("a record ends in the middle"),
        }
    }

    fn get(&mut self) -> Result<u64, Fault> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return self.fault("a number has more than 64 bits");
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        self.fault("a number has more than 64 bits")
    }

    fn small(&mut self) -> Result<u32, Fault> {
        match u32::try_from(self.get()?) {
            Ok(value) => Ok(value),
            Err(_) => self.fault("a number has more than 32 bits"),
        }
    }

    fn text(&mut self) -> Result<&'a [u8], Fault> {
        let len = self.get()?;
        let left = &self.content[self.at..];
        if len > NAME_MAX as u64 || len > left.len() as u64 {
            return self.fault("a text is longer than it can be");
        }
        self.at += len as usize;
        Ok(&left[..len as usize])
    }

    fn call(&mut self) -> Result<Call, Fault> {
        let Some(op) = Op::of(self.byte()?) else { return self.fault("there is no such operation") };
        let mut call = Call::new(op);
        self.last_ns = self.last_ns.wrapping_add(unzigzag(self.get()?) as u64);
        call.start_ns = self.last_ns;
        call.took_ns = self.get()?;
        let mask = self.get()?;
        if mask >= 1 << 15 {
            return self.fault("a call has fields that are not known");
        }
        let has = |bit: u32| mask & (1 << bit) != 0;
        if has(0) {
            call.tid = self.small()?;
        }
        for (bit, field) in (1..).zip([&mut call.ino, &mut call.handle, &mut call.offset, &mut call.len]) {
            if has(bit) {
                *field = self.get()?;
            }
        }
        if has(5) {
            call.result = unzigzag(self.get()?);
        }
        if has(6) {
            call.course.reason = self.get()?.checked_sub(1).and_then(|reason| u8::try_from(reason).ok());
        }
        if has(7) {
            call.flags = self.small()?;
        }
        let Course { lock_ns, fill_ns, server_ns, .. } = &mut call.course;
        for (bit, field) in (8..).zip([lock_ns, fill_ns, server_ns, &mut call.other]) {
            if has(bit) {
                *field = self.get()?;
            }
        }
        if has(12) {
            call.size = self.get()?.checked_sub(1);
        }
        if has(13) {
            call.name = self.text()?.into();
        }
        if has(14) {
            call.new_name = self.text()?.into();
        }
        Ok(call)
    }

    /// The next record; `None` at the end of the content.
    ///
    /// Errors: the place is that in the content.
    pub fn next_record(&mut self) -> Result<Option<Record>, Fault> {
        if self.at == self.content.len() {
            return Ok(None);
        }
        Ok(Some(match self.byte()? {
            1 => Record::Call(self.call()?),
            2 => {
                let (tid, pid) = (self.small()?, self.small()?);
                Record::Caller(Caller { tid, pid, program: String::from_utf8_lossy(self.text()?).into_owned() })
            }
            3 => Record::Lost(self.get()?),
            4 => Record::Path { ino: self.get()?, path: self.text()?.into() },
            5 => Record::Reasons(String::from_utf8_lossy(self.text()?).split(',').map(String::from).collect()),
            _ => {
                self.at -= 1;
                return self.fault("there is no such record");
            }
        }))
    }
}
