//! Changes of a file's bytes: the offset of a write, how its bytes get to the client, and the updates when a change is
//! done.
//!
//! Owns: whether a write goes to its offset or to the end of the file. The flags of the request count, because
//! `F_SETFL` may have changed those of the open. `RWF_APPEND` and `RWF_NOAPPEND` of `pwritev2` are not in the request.
//! The mount only gets the offset that the kernel derived from them: the end of the file as the kernel knows it. Does
//! not own: how long calls wait (`deferred`).
//!
//! * In a mount that was always the only one, the kernel knows the end: all changes pass through it, one append at a
//!   time. So every write goes to its offset.
//! * In shared mode, and for files to which programs have posted writes, the end that the kernel knows may be outdated.
//!   The mount then looks at the system call of the calling thread (`syscall`) in two cases: the offset could be the
//!   kernel's end but is not the end, or an append comes with another offset. A call of io_uring, or of a thread that
//!   may not be looked at, is treated according to the flags of its descriptor.

use super::ClientFs;
use crate::calls::{AttrReply, WriteHow};
use crate::data::Payload;
use crate::front::kernel_view::{KernelView, SharedChange};
use crate::front::names::lender::Lender;
use crate::front::syscall::Syscall;
use crate::groups::Rights;
use crate::kernel::structs::WriteOut;
use crate::later::Later;
use crate::reply::attr_out;
use crate::request::Caller;
use amphi_client::{Client, Ctx, Hints, OpenFile, Pending, WriteTo};
use amphi_types::{Attr, Caps, Cred, Errno, Ino, Result, SetAttr};
use std::sync::Arc;
use std::time::Duration;

/// Returns whether the kernel serves an open file from its page cache. The pieces of a long append keep their order
/// only if the kernel sends them one after the other.
pub(super) fn keeps_pages(file: &OpenFile) -> bool {
    file.flags().direct && !file.flags().append
}

/// Returns whether writes of the open file go to the end unless a call says otherwise.
fn appends_as_opened(how: &WriteHow) -> bool {
    how.flags & libc::O_APPEND as u32 != 0
}

/// Returns whether a write goes to the end of the file. A write to the end that the kernel knows is written elsewhere
/// if another mount was admitted meanwhile.
fn appends(hints: Hints) -> bool {
    matches!(hints.to, WriteTo::End | WriteTo::KnownEnd)
}

impl ClientFs {
    /// Works as `kill_suidgid`, for `fallocate` and `copy_file_range`. For these calls the kernel neither clears the
    /// bits nor asks the mount to do so.
    pub(super) fn kill_suidgid_unless_capable(&self, caller: &Caller<'_>, ino: Ino) -> Result<()> {
        if self.ctx(caller).cred.may(Caps::FSETID) { Ok(()) } else { self.kill_suidgid(caller, ino) }
    }

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
            // The file was opened with `O_DIRECT`, which was removed since. The kernel keeps a copy of the bytes.
            for_pages: keeps_pages(&file) && how.flags & libc::O_DIRECT as u32 == 0,
            to: self.aim(caller, ino, how),
            ..self.hints(len, how.flags)
        };
        let changing = self.change(caller, ino);
        if let Some(len) = self.try_write(&ctx, &file, how.offset, &mut data, hints) {
            self.has_written(caller, ino, how, len);
            if appends(hints) {
                self.tells_end_behind(caller, &file, how, len);
            }
            return Ok(len);
        }
        let hints = match hints.to {
            WriteTo::OffsetAtEnd => {
                let to_end = match appends_as_opened(how) {
                    true => !calls_with(caller, libc::RWF_NOAPPEND),
                    false => calls_with(caller, libc::RWF_APPEND),
                };
                if !to_end {
                    self.client.learn_end(&file);
                }
                let hints = Hints { to: if to_end { WriteTo::End } else { WriteTo::Offset }, ..hints };
                if let Some(len) = self.try_write(&ctx, &file, how.offset, &mut data, hints) {
                    self.has_written(caller, ino, how, len);
                    if to_end {
                        self.tells_end_behind(caller, &file, how, len);
                    }
                    return Ok(len);
                }
                hints
            }
            _ => hints,
        };
        // Whether the setgid bit stays may depend on the writer's groups.
        let ctx = if how.kill_suidgid { self.ctx(caller) } else { ctx };
        let (offset, end) = (how.offset, how.offset + len as u64);
        let pending = self.client.write(&ctx, &file, offset, data.into_buf(), hints);
        let (changes, rollbacks) = (self.changes(), self.rollbacks.clone());
        let (tid, handle, by_program) = (caller.tid, how.handle, !how.from_page_cache);
        let past_pages = how.flags & libc::O_DIRECT as u32 != 0;
        let note = move |written: &Result<usize>| {
            changes.note(ino, offset, len as u64, written.as_ref().map_or(0, |n| *n as u64));
            if let (Ok(n), true) = (written, by_program) {
                changes.wrote(ino, tid, offset + *n as u64);
            }
            // In sole mode the kernel knows the size, unless programs have written without it.
            let may_lag = || !changes.client.is_alone() || changes.view.was_posted_to(ino);
            if written.is_err() && by_program && past_pages && may_lag() {
                rollbacks.failed(handle, tid, end);
            }
        };
        let changing = changing.shared(&self.kernel_view);
        let appends = appends(hints);
        let tell = appends.then(|| self.end_behind(&file, how));
        let written = self.wait_change(caller, pending, len, &changing, note, move |later, written| {
            let told = written.as_ref().copied().unwrap_or(0);
            let answer = move || later.answer_struct(written.map(|n| WriteOut { size: n.min(len) as u32, padding: 0 }));
            match tell.filter(|_| told > 0) {
                Some(tell) => tell(told, Box::new(answer)),
                None => answer(),
            }
        });
        if by_program && written.is_ok() {
            self.size_arrives(caller, ino);
        }
        if let Ok(written) = written
            && appends
        {
            self.tells_end_behind(caller, &file, how, written);
        }
        written
    }

    /// Called when a write was done at once, on the calling thread.
    fn has_written(&self, caller: &Caller<'_>, ino: Ino, how: &WriteHow, len: usize) {
        self.bytes_changed(ino, how.offset, len as u64, len as u64);
        if !how.from_page_cache && self.sizes().wrote(ino, caller.tid, how.offset + len as u64) {
            self.size_arrives(caller, ino);
        }
    }

    /// Sets the size and the other attributes that the request names. If that takes long, the answer is sent later and
    /// the returned value is ignored. If the server refuses the request, the caller's rights are read again, as in
    /// `asked`. The caller waits in this call, so its thread can still be looked at.
    pub(super) fn truncate(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        set: &SetAttr,
        file: Option<&Arc<OpenFile>>,
        changing: &SharedChange,
    ) -> Result<Attr> {
        let ctx = self.ctx(caller);
        let (groups, known) = (self.groups.clone(), ctx.cred.clone());
        let (tid, uid, gid) = (caller.tid, caller.uid, caller.gid);
        let again = move || {
            let Rights { groups, caps } = groups.again(tid, uid, gid);
            let cred = Cred { uid, gid, groups, caps };
            (cred != known).then_some(cred)
        };
        let pending = self.client.setattr_again(&ctx, ino, *set, file, again);
        let (view, client, names) = (self.kernel_view.clone(), self.client.clone(), self.names.lender.clone());
        let note = move |changed: &Result<Attr>| match changed {
            Ok(attr) => {
                client.walk_ended(tid);
                names.sizes.has_cut(tid, attr);
            }
            Err(_) => view.misses_end(ino),
        };
        self.wait_change(caller, pending, 0, changing, note, |later, changed| {
            // The answer has no timeout, so the kernel caches nothing of it.
            later.answer_struct(changed.map(|attr| attr_out(&AttrReply { attr, ttl: Duration::ZERO })));
        })
    }

    /// Waits for a change of a file's bytes, of which `bytes` are in memory, and records it when it is done. If that
    /// takes long, the thread is returned and a task calls `answer`. The returned value is then ignored.
    pub(super) fn wait_change<T: Send + 'static>(
        &self,
        caller: &Caller<'_>,
        pending: Pending<T>,
        bytes: usize,
        changing: &SharedChange,
        note: impl Fn(&Result<T>) + Clone + Send + 'static,
        answer: impl FnOnce(Later, Result<T>) + Send + 'static,
    ) -> Result<T> {
        let (note_later, over) = (note.clone(), changing.clone());
        let (client, tid) = (self.client.clone(), caller.tid);
        let done = self.wait_or_defer(caller, pending, bytes, move |later, done| {
            note_later(&done);
            if matches!(done, Err(Errno::Stale)) {
                client.walk_failed(tid);
            }
            over.ends();
            answer(later, done);
        });
        let Some(done) = done else { return Err(Errno::Intr) };
        note(&done);
        if matches!(done, Err(Errno::Stale)) {
            self.client.walk_failed(tid);
        }
        done
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

    /// The place to which a write goes. `OffsetAtEnd`: the write is made at its offset if that is the end of the file.
    /// Otherwise the client has to find out whether the offset or the end was meant.
    fn aim(&self, caller: &Caller<'_>, ino: Ino, how: &WriteHow) -> WriteTo {
        if how.from_page_cache {
            return WriteTo::Offset;
        }
        let appends = appends_as_opened(how);
        if self.client.has_always_been_alone() && !self.kernel_view.was_posted_to(ino) {
            return match appends {
                false => WriteTo::Offset,
                true if self.kernel_view.knows_end(ino) => WriteTo::KnownEnd,
                true => WriteTo::OffsetAtEnd,
            };
        }
        match (appends, self.kernel_view.may_be_end(ino, how.offset)) {
            (_, true) => WriteTo::OffsetAtEnd,
            (true, false) if calls_with(caller, libc::RWF_NOAPPEND) => WriteTo::Offset,
            (true, false) => WriteTo::End,
            (false, false) => WriteTo::Offset,
        }
    }

    /// Clears setuid and setgid when an unprivileged caller opens the file with truncation.
    pub(super) fn kill_suidgid(&self, caller: &Caller<'_>, ino: Ino) -> Result<()> {
        let ctx = self.ctx(caller);
        let attr = self.wait(caller, self.client.getattr(&ctx, ino))?;
        if attr.has_set_id() {
            let set = SetAttr { kill_suidgid: true, open_for_write: true, ..SetAttr::default() };
            self.wait(caller, self.client.setattr(&ctx, ino, set, None))?;
        }
        Ok(())
    }

    /// The parts that record changes of bytes, for answers that come later.
    pub(super) fn changes(&self) -> Changes {
        Changes { client: self.client.clone(), view: self.kernel_view.clone(), names: self.names.lender.clone() }
    }

    /// A call was to change `asked` bytes from `offset` on, and has changed `done` of them.
    pub(super) fn bytes_changed(&self, ino: Ino, offset: u64, asked: u64, done: u64) {
        note_change(&self.client, &self.kernel_view, ino, offset, asked, done);
    }

    /// Notes that the kernel is about to be shown this end of the file.
    pub(super) fn tell_end(&self, ino: Ino, end: u64) {
        tell_end(&self.client, &self.kernel_view, ino, end);
    }
}

/// The parts that record changes of bytes.
#[derive(Clone)]
pub(super) struct Changes {
    client: Client,
    view: Arc<KernelView>,
    names: Arc<Lender>,
}

impl Changes {
    /// It has to be called before the answer to a write, from which the kernel concludes that the file ends at `end` or
    /// later.
    pub(super) fn wrote(&self, ino: Ino, tid: u32, end: u64) {
        self.names.sizes.wrote(ino, tid, end);
    }

    /// Works as `wrote`, for a reservation or a copy. While one of these is under way, the kernel uses no other answer.
    pub(super) fn extended(&self, ino: Ino, tid: u32, end: u64) {
        self.wrote(ino, tid, end);
        self.names.sizes.cuts(ino, tid);
    }

    /// As `ClientFs::bytes_changed`.
    pub(super) fn note(&self, ino: Ino, offset: u64, asked: u64, done: u64) {
        note_change(&self.client, &self.view, ino, offset, asked, done);
    }
}

fn note_change(client: &Client, view: &KernelView, ino: Ino, offset: u64, asked: u64, done: u64) {
    if done < asked {
        view.misses_end(ino);
    }
    if done > 0 {
        tell_end(client, view, ino, offset + done);
    }
}

fn tell_end(client: &Client, view: &KernelView, ino: Ino, end: u64) {
    if !client.has_always_been_alone() {
        view.tell_end(ino, end);
    }
}

/// Returns whether the calling thread is in a `pwritev2` with this flag.
fn calls_with(caller: &Caller<'_>, flag: i32) -> bool {
    Syscall::of(caller.tid).is_some_and(|call| call.writes_with(flag))
}
