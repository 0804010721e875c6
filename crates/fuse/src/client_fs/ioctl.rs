//! Device control (`ioctl`) of open files, for programs that know their I/O pattern. `docs/IOCTL.md` has the numbers.
//!
//! Owns: numbers, sizes and checks of the commands. Does not own: how the commands are executed (the client).
//!
//! Invariants: the sizes are encoded in the numbers (`_IOR`, `_IOW`, `_IOWR`), so the kernel copies the arguments and
//! the mount never sees a pointer. A command that may wait for hours (joining a group) occupies no thread.

use super::ClientFs;
use crate::calls::{IoctlCall, IoctlReply};
use crate::front::handles::Handles;
use crate::later::Later;
use crate::request::Caller;
use amphi_client::{Ahead, FileAdvice, Interrupt, OpenFile};
use amphi_shm::talk::{IDENTIFY, IDENTIFY_WRITER, MAPPED};
use amphi_types::{ByteRange, Errno, IoMode, Result};
use std::sync::Arc;
use std::task::{Wake, Waker};

/// The letter of all commands.
const LETTER: u32 = b'A' as u32;
const WRITES: u32 = 1;
const READS: u32 = 2;

const fn command(direction: u32, number: u32, size: u32) -> u32 {
    direction << 30 | size << 16 | LETTER << 8 | number
}

/// `u32` in: the mode of the open file's requests: 0 auto, 1 buffered, 2 direct.
pub const SET_MODE: u32 = command(WRITES, 1, 4);
/// `u32` out: the mode that is set.
pub const GET_MODE: u32 = command(READS, 2, 4);
/// Argument: `u32`. With 1, locks of the open file are granted as requested. With 0 they grow as far as nothing
/// conflicts.
pub const NO_EXPAND: u32 = command(WRITES, 3, 4);
/// Requests a lock ahead. In: `u64` offset, `u64` length, `u32` mode (0 read, 1 write), `u32` flags (1: wait for the
/// answer). Returns 0 if the request was sent (with flag 1: if it was refused), 1 if this mount holds the same lock
/// already, 2 if another lock covers it.
pub const LOCK_AHEAD: u32 = command(WRITES, 4, 24);
/// Joins a group. In: `u64` group, `u32` flags (1: do not wait for another group), `u32` zero.
pub const GROUP_LOCK: u32 = command(WRITES, 5, 16);
/// Leaves a group. Argument: `u64` group.
pub const GROUP_UNLOCK: u32 = command(WRITES, 6, 8);

/// Out: `u32`, which says whether another open file waits for the end of the group of this open file: 0 no, 1 yes.
pub const GROUP_WANTED: u32 = command(READS, 8, 4);

/// Advice for a range. In: `u64` offset, `u64` length (0: to the end), `u32` advice (0 normal, 1 random, 2 sequential,
/// 3 will need, 4 do not need, 5 once), `u32` zero.
pub const ADVISE: u32 = command(WRITES, 9, 24);

/// Lock-ahead for several ranges. In: `u32` number of ranges, `u32` zero, then 32 entries of `u64` offset, `u64`
/// length, `u32` mode, `i32` zero. Out: in the last field of each entry, what `LOCK_AHEAD` would return, or minus the
/// errno. Returns the number of requests that were sent.
pub const LOCK_AHEAD_LIST: u32 = command(READS | WRITES, 7, LIST_HEAD as u32 + (RANGES_MAX * RANGE_BYTES) as u32);

/// Most ranges in one list.
const RANGES_MAX: usize = 32;
const LIST_HEAD: usize = 8;
const RANGE_BYTES: usize = 24;
/// Offset of the result in an entry.
const RESULT_AT: usize = 20;
/// Flag: do not wait for another group.
const NO_WAIT: u32 = 1;
/// Flag: wait for the server's answer to a lock-ahead.
const WAIT_ANSWER: u32 = 1;

fn u32_at(input: &[u8], at: usize) -> Result<u32> {
    let bytes = input.get(at..at + 4).ok_or(Errno::Inval)?;
    Ok(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

fn u64_at(input: &[u8], at: usize) -> Result<u64> {
    let bytes = input.get(at..at + 8).ok_or(Errno::Inval)?;
    let mut all = [0; 8];
    all.copy_from_slice(bytes);
    Ok(u64::from_ne_bytes(all))
}

fn switch(value: u32) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Errno::Inval),
    }
}

/// A waker that interrupts a wait.
struct Fire(Arc<Interrupt>);

impl Wake for Fire {
    fn wake(self: Arc<Self>) {
        self.0.fire();
    }
}

/// Reads an entry of 20 bytes: the range, and whether the lock is for writing.
fn range_at(input: &[u8], at: usize) -> Result<(ByteRange, bool)> {
    let (offset, len, write) = (u64_at(input, at)?, u64_at(input, at + 8)?, switch(u32_at(input, at + 16)?)?);
    let end = offset.checked_add(len).filter(|end| *end > offset && *end <= i64::MAX as u64);
    Ok((ByteRange::new(offset, end.ok_or(Errno::Inval)?), write))
}

/// Reads an entry of a list, whose last four bytes have to be zero.
fn range_of_list(input: &[u8], at: usize) -> Result<(ByteRange, bool)> {
    if u32_at(input, at + RESULT_AT)? == 0 { range_at(input, at) } else { Err(Errno::Inval) }
}

/// Reads the range and the advice, 24 bytes.
fn advice_at(input: &[u8]) -> Result<(ByteRange, FileAdvice)> {
    let (offset, len) = (u64_at(input, 0)?, u64_at(input, 8)?);
    let end = if len == 0 { Some(i64::MAX as u64) } else { offset.checked_add(len) };
    let end = end.filter(|end| *end >= offset && *end <= i64::MAX as u64).ok_or(Errno::Inval)?;
    let advice = match (u32_at(input, 16)?, u32_at(input, 20)?) {
        (0, 0) => FileAdvice::Normal,
        (1, 0) => FileAdvice::Random,
        (2, 0) => FileAdvice::Sequential,
        (3, 0) => FileAdvice::WillNeed,
        (4, 0) => FileAdvice::DontNeed,
        (5, 0) => FileAdvice::Once,
        _ => return Err(Errno::Inval),
    };
    Ok((ByteRange::new(offset, end), advice))
}

fn done(result: i32) -> Result<IoctlReply> {
    Ok(IoctlReply { result, output: Vec::new() })
}

fn ahead_result(found: Ahead) -> i32 {
    match found {
        Ahead::Asked => 0,
        Ahead::Same => 1,
        Ahead::Different => 2,
    }
}

impl ClientFs {
    fn controlled(&self, call: &IoctlCall<'_>) -> Result<Arc<OpenFile>> {
        if call.on_directory { Err(Errno::NoTty) } else { self.handles.get(call.handle) }
    }

    pub(super) fn control(&self, caller: &Caller<'_>, call: &IoctlCall<'_>) -> Result<IoctlReply> {
        let known = [
            SET_MODE,
            GET_MODE,
            NO_EXPAND,
            LOCK_AHEAD,
            LOCK_AHEAD_LIST,
            GROUP_UNLOCK,
            GROUP_WANTED,
            ADVISE,
            IDENTIFY,
            IDENTIFY_WRITER,
            MAPPED,
        ];
        if !known.contains(&call.cmd) {
            return Err(Errno::NoTty);
        }
        let (file, input) = (self.controlled(call)?, call.input);
        match call.cmd {
            SET_MODE => {
                let mode = match u32_at(input, 0)? {
                    0 => IoMode::Auto,
                    1 => IoMode::Buffered,
                    2 => IoMode::Direct,
                    _ => return Err(Errno::Inval),
                };
                file.set_io_mode(mode);
                done(0)
            }
            IDENTIFY => {
                let Handles { exports, posts, .. } = &self.handles;
                let identity = exports.identify(&self.client, posts, call.handle.0, &file);
                Ok(IoctlReply { result: 0, output: identity.to_bytes().to_vec() })
            }
            IDENTIFY_WRITER => {
                let identity = self.identify_writer(caller, call.handle, &file);
                Ok(IoctlReply { result: 0, output: identity.to_bytes().to_vec() })
            }
            MAPPED => {
                file.set_mapped();
                done(0)
            }
            GET_MODE => Ok(IoctlReply { result: 0, output: (file.io_mode() as u32).to_ne_bytes().to_vec() }),
            NO_EXPAND => {
                file.set_no_expand(switch(u32_at(input, 0)?)?);
                done(0)
            }
            LOCK_AHEAD => {
                let (range, write) = range_at(input, 0)?;
                match u32_at(input, RESULT_AT)? {
                    0 => done(ahead_result(self.client.lock_ahead(&file, range, write)?)),
                    WAIT_ANSWER => {
                        let pending = self.client.lock_ahead_answered(&file, range, write);
                        done(ahead_result(self.wait(caller, pending)?))
                    }
                    _ => Err(Errno::Inval),
                }
            }
            LOCK_AHEAD_LIST => self.ahead_list(&file, input),
            ADVISE => {
                let (range, advice) = advice_at(input)?;
                self.client.advise(&file, range, advice)?;
                done(0)
            }
            GROUP_WANTED => {
                let wanted = self.wait(caller, self.client.group_wanted(&file))?;
                Ok(IoctlReply { result: 0, output: u32::from(wanted).to_ne_bytes().to_vec() })
            }
            _ => {
                let group = u64_at(input, 0)?;
                if group == 0 || file.group() != group {
                    return Err(Errno::Inval);
                }
                self.wait(caller, self.client.group_unlock(&file))?;
                done(0)
            }
        }
    }

    /// Sends no request unless all ranges are valid.
    fn ahead_list(&self, file: &OpenFile, input: &[u8]) -> Result<IoctlReply> {
        let (count, zero) = (u32_at(input, 0)? as usize, u32_at(input, 4)?);
        if !(1..=RANGES_MAX).contains(&count) || zero != 0 {
            return Err(Errno::Inval);
        }
        let places = (0..count).map(|n| LIST_HEAD + n * RANGE_BYTES);
        let ranges = places.clone().map(|at| range_of_list(input, at)).collect::<Result<Vec<_>>>()?;
        let (mut output, mut asked) = (input.to_vec(), 0);
        for (at, (range, write)) in places.zip(ranges) {
            let result = self.client.lock_ahead(file, range, write).map_or_else(|e| -e.raw(), ahead_result);
            asked += i32::from(result == 0);
            output[at + RESULT_AT..at + RANGE_BYTES].copy_from_slice(&result.to_ne_bytes());
        }
        Ok(IoctlReply { result: asked, output })
    }

    /// Returns whether the command is answered by `control_later`.
    pub(super) fn control_waits(call: &IoctlCall<'_>) -> bool {
        call.cmd == GROUP_LOCK
    }

    pub(super) fn control_later(&self, caller: &Caller<'_>, call: &IoctlCall<'_>, later: Later) {
        let asked = || {
            let (group, flags, zero) = (u64_at(call.input, 0)?, u32_at(call.input, 8)?, u32_at(call.input, 12)?);
            if flags & !NO_WAIT != 0 || zero != 0 {
                return Err(Errno::Inval);
            }
            Ok((self.controlled(call)?, group, flags & NO_WAIT == 0))
        };
        let (file, group, wait) = match asked() {
            Ok(asked) => asked,
            Err(e) => return later.answer_control(Err(e)),
        };
        // A signal ends the wait at once, as it does for file locks.
        let interrupt = Arc::new(Interrupt::new());
        later.wake_on_interrupt(Waker::from(Arc::new(Fire(interrupt.clone()))));
        let mut pending = self.client.group_lock(&file, group, wait, interrupt);
        let quick = pending.try_take().or_else(|| if caller.is_alone() { pending.linger() } else { None });
        match quick {
            Some(result) => later.answer_control(result.map(|()| 0)),
            None => self.client.spawn(async move { later.answer_control(pending.await.map(|()| 0)) }),
        }
    }
}
