//! `Recorded`: a call that is recorded, from its request to its answer.
//!
//! Owns: what an answer contains of a call, and passing it to the recording. Does not own: which calls are recorded,
//! and what their requests contain (`front::record`).

use crate::clock::monotonic_ns;
use crate::kernel::structs as k;
use amphi_client::decision::Reason;
use amphi_client::record::Recording;
use amphi_client::{CallNotes, noting};
use amphi_trace::{Call, Op as Kind, flags};
use amphi_types::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use zerocopy::FromBytes;

thread_local! {
    static NUMBER: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Relaxed)
    };
}

/// A number of this thread: recordings have rings for several.
pub(crate) fn thread_number() -> usize {
    NUMBER.with(|number| *number)
}

/// A call that is recorded and not answered yet.
pub struct Recorded {
    pub(crate) recording: Arc<Recording>,
    pub(crate) call: Call,
    pub(crate) notes: Arc<CallNotes>,
}

impl Recorded {
    /// Notes that the client makes on this thread are added to this call until the returned value is dropped.
    pub(crate) fn noting(&self) -> impl Drop + use<> {
        noting(self.notes.clone())
    }

    /// The number of the open file that an open has made.
    pub(crate) fn opened(&self) -> Option<crate::calls::Handle> {
        let is_new = self.call.op == Kind::Open && self.call.result >= 0;
        is_new.then(|| crate::calls::Handle(self.call.handle.wrapping_sub(1)))
    }

    /// When the mount began with the call.
    pub(crate) fn began(&mut self, at_ns: u64) {
        self.call.start_ns = at_ns;
    }

    /// Notes what the answer contains of the call. It has to be called before the answer is sent, because the caller
    /// may continue as soon as it has the answer.
    pub(crate) fn answered(&mut self, error: i32, parts: &[&[u8]]) {
        self.call.took_ns = monotonic_ns().saturating_sub(self.call.start_ns);
        let call = &mut self.call;
        if error != 0 {
            call.result = i64::from(error);
            return;
        }
        let first = parts.first().copied().unwrap_or_default();
        match call.op {
            Kind::Read => call.result = parts.iter().map(|part| part.len() as i64).sum(),
            Kind::Write | Kind::Copy => {
                let wide = k::CopyFileRangeOut::read_from_bytes(first).map_or(0, |out| out.bytes_copied as i64);
                let narrow = k::WriteOut::read_from_prefix(first).map_or(0, |(out, _)| i64::from(out.size));
                call.result = if call.op == Kind::Copy { wide } else { narrow };
            }
            Kind::Seek => call.result = k::LseekOut::read_from_bytes(first).map_or(0, |out| out.offset as i64),
            Kind::Lookup | Kind::Create | Kind::Mkdir | Kind::Mknod | Kind::Symlink | Kind::Link => {
                if let Ok((out, _)) = k::EntryOut::read_from_prefix(first) {
                    call.found(&out);
                }
                let open = parts.get(1).and_then(|part| k::OpenOut::read_from_bytes(part).ok());
                if let Some(open) = open.filter(|_| call.op == Kind::Create) {
                    call.opened(&open);
                }
            }
            Kind::Open => {
                if let Ok(open) = k::OpenOut::read_from_bytes(first) {
                    call.opened(&open);
                }
            }
            Kind::OpenDir => {
                call.handle = k::OpenOut::read_from_bytes(first).map_or(0, |open| open.fh.wrapping_add(1));
            }
            Kind::ReadDir => call.result = first.len() as i64,
            Kind::Stat | Kind::SetAttr => {
                let old = k::AttrOut::read_from_bytes(first).map(|out| out.attr.size);
                let new = k::StatxOut::read_from_bytes(first).map(|out| out.stat.size);
                call.size = old.or(new).ok();
            }
            _ => {}
        }
    }

    /// Called when the call has ended. Adds it to its recording.
    pub(crate) fn ends(mut self) {
        let call = &mut self.call;
        let mut course = self.notes.course();
        if course.reason.is_none() && call.op == Kind::Read && call.result > 0 {
            // Hits on the calling thread are not decided.
            course.reason = Some(Reason::CacheHit as u8);
        }
        // If a call waited for several answers at the same time, that time counts once.
        course.lock_ns = course.lock_ns.min(call.took_ns);
        course.fill_ns = course.fill_ns.min(call.took_ns - course.lock_ns);
        course.server_ns = course.server_ns.min(call.took_ns - course.lock_ns - course.fill_ns);
        call.course = course;
        let Recorded { recording, call, .. } = self;
        recording.add(thread_number(), call);
    }
}

/// The contents of answers to look-ups and opens.
trait Answers {
    fn found(&mut self, out: &k::EntryOut);
    fn opened(&mut self, out: &k::OpenOut);
}

impl Answers for Call {
    fn found(&mut self, out: &k::EntryOut) {
        if out.nodeid == 0 {
            self.result = -i64::from(Errno::NoEnt.raw());
            return;
        }
        self.other = out.attr.ino;
        self.size = Some(out.attr.size);
        self.flags |= match out.attr.mode & libc::S_IFMT {
            libc::S_IFREG => 0,
            libc::S_IFDIR => flags::DIRECTORY,
            _ => flags::SPECIAL,
        };
    }

    fn opened(&mut self, out: &k::OpenOut) {
        self.handle = out.fh.wrapping_add(1);
        if out.open_flags & crate::kernel::flags::fopen::DIRECT_IO == 0 {
            self.flags |= flags::KERNEL_SERVES;
        }
    }
}
