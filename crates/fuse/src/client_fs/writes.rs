//! Writes: where a call's bytes go, and how they get to the client.
//!
//! Owns: the difference between a write to an offset and one to the end of the file, as the call says it. The flags of an open may
//! have changed since (`F_SETFL`): those that come with the request count. What `pwritev2` asks for one call alone, `RWF_APPEND` and
//! `RWF_NOAPPEND`, does not come with it, only the offset that the kernel has made of it: what it takes for the end of the file.
//!
//! * On a mount that has always been alone that is the end: all changes pass through its kernel, one append at a time. So every write goes
//!   to its offset, whichever flag made it.
//! * With other mounts it may be an old end. Where an offset that may be the kernel's end is not the end, or an append does not come with
//!   one, the calling thread is looked at (`syscall`). A call of io_uring, and one of somebody whom this mount may not look at, is taken
//!   for what the descriptor says.

use super::syscall::Syscall;
use super::{ClientFs, keeps_pages};
use crate::file_system::WriteHow;
use crate::{Caller, Payload};
use amphi_client::{Ctx, Hints, OpenFile, WriteTo};
use amphi_types::{Ino, Result};

impl ClientFs {
    pub(super) fn write_file(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        how: &WriteHow,
        mut data: Payload<'_>,
    ) -> Result<usize> {
        let file = self.handles.get(how.handle)?;
        let (ctx, len) = (Self::stream(caller), data.len());
        let hints = Hints {
            write_back: how.from_page_cache,
            kill_suidgid: how.kill_suidgid,
            // Opened with O_DIRECT, which was taken away since: the kernel keeps a copy.
            for_pages: keeps_pages(&file) && how.flags & libc::O_DIRECT as u32 == 0,
            to: self.aim(caller, ino, how),
            ..self.hints(len, how.flags)
        };
        let _changing = self.kernel_view.change(ino);
        if let Some(len) = self.try_write(&ctx, &file, how.offset, &mut data, hints) {
            self.bytes_changed(ino, how.offset, len as u64, len as u64);
            return Ok(len);
        }
        let hints = match hints.to {
            WriteTo::OffsetAtEnd if calls_with(caller, libc::RWF_APPEND) => Hints { to: WriteTo::End, ..hints },
            WriteTo::OffsetAtEnd => {
                self.client.learn_end(&file);
                let hints = Hints { to: WriteTo::Offset, ..hints };
                if let Some(len) = self.try_write(&ctx, &file, how.offset, &mut data, hints) {
                    self.bytes_changed(ino, how.offset, len as u64, len as u64);
                    return Ok(len);
                }
                hints
            }
            _ => hints,
        };
        // Whether setgid stays may depend on the writer's groups.
        let ctx = if how.kill_suidgid { self.ctx(caller) } else { ctx };
        let end = how.offset + len as u64;
        let written = self.wait(caller, self.client.write(&ctx, &file, how.offset, data.into_buf(), hints));
        self.bytes_changed(ino, how.offset, len as u64, written.as_ref().map_or(0, |n| *n as u64));
        // A mount that is alone knows the size.
        if written.is_err() && !how.from_page_cache && !self.client.is_alone() {
            self.rollbacks.failed(how.handle, caller.tid, end);
        }
        written
    }

    fn try_write(
        &self,
        ctx: &Ctx,
        file: &OpenFile,
        offset: u64,
        data: &mut Payload<'_>,
        hints: Hints,
    ) -> Option<usize> {
        match data.unit() {
            Some(unit) => self.client.try_write_buf(ctx, file, offset, unit, hints),
            None => self.client.try_write(ctx, file, offset, data, hints),
        }
    }

    /// Where a write goes; `OffsetAtEnd` to its offset if that is the end, and otherwise it has to be found out.
    fn aim(&self, caller: &Caller<'_>, ino: Ino, how: &WriteHow) -> WriteTo {
        let appends = how.flags & libc::O_APPEND as u32 != 0;
        if how.from_page_cache {
            return WriteTo::Offset;
        }
        if self.client.has_always_been_alone() {
            return match appends {
                false => WriteTo::Offset,
                true if self.kernel_view.knows_end(ino) => WriteTo::KnownEnd,
                true => WriteTo::End,
            };
        }
        match (appends, self.kernel_view.may_be_end(ino, how.offset)) {
            (true, true) => WriteTo::End,
            (true, false) if calls_with(caller, libc::RWF_NOAPPEND) => WriteTo::Offset,
            (true, false) => WriteTo::End,
            (false, true) => WriteTo::OffsetAtEnd,
            (false, false) => WriteTo::Offset,
        }
    }

    /// Bytes of a file were to be changed from `offset` on, `asked` of them; `done` of them were.
    pub(super) fn bytes_changed(&self, ino: Ino, offset: u64, asked: u64, done: u64) {
        if done < asked {
            self.kernel_view.misses_end(ino);
        }
        if done > 0 {
            self.tell_end(ino, offset + done);
        }
    }

    /// The kernel is told that a file, or a change of it, ends there.
    pub(super) fn tell_end(&self, ino: Ino, end: u64) {
        if !self.client.has_always_been_alone() {
            self.kernel_view.tell_end(ino, end);
        }
    }
}

/// Whether the caller is in a `pwritev2` with this flag.
fn calls_with(caller: &Caller<'_>, flag: i32) -> bool {
    Syscall::of(caller.tid).is_some_and(|call| call.writes_with(flag))
}
