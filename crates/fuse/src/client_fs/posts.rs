//! Writes that programs have posted are carried out before a request is served that could show that they were not.
//!
//! Owns: which requests wait for posts, and which requests exclude posts while they are served. Does not own: how posts
//! are taken (`front/posts`).
//!
//! Before a request for one file is served, the posts to that file are carried out. Before a request is served that
//! shows attributes of an inode which it finds by name, all posts are carried out. A request ends posting (programs
//! then make calls until they request a ring again) if it changes a condition for posting to the file: who has it open,
//! pages in the kernel, privileges, or attributes that a write changes as well.

use super::ClientFs;
use crate::calls::{Arrival, Handle};
use crate::front::appended::TELL_WAIT;
use crate::request::{Caller, Operation as Op, Request};
use amphi_client::{OpenFile, Pending};
use amphi_shm::talk::{IDENTIFY, IDENTIFY_WRITER, Identity};
use amphi_types::{Errno, Ino, Result};
use std::sync::Arc;

/// The control attribute that is set to make everything stable.
const SYNC: &[u8] = b"user.amphi.sync";

/// The posts that have to be taken before a request is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Nothing,
    /// The posts to the file of the request; `Read`: for a read.
    File,
    Read,
    /// The posts to the file, and no new posts while the request is served.
    Exclusion,
    /// The posts to all files.
    All,
}

/// Returns which posts have to be taken before a request is served.
fn need(op: &Op<'_>) -> Need {
    match op {
        Op::Read { how } if !how.into_page_cache => Need::Read,
        // Pages that are written back were read, so nothing is posted.
        Op::Write { how, .. } if how.from_page_cache => Need::Nothing,
        Op::Ioctl { call } if [IDENTIFY, IDENTIFY_WRITER].contains(&call.cmd) => Need::Nothing,
        Op::Write { .. }
        | Op::Getattr { .. }
        | Op::Statx { .. }
        | Op::Fsync { .. }
        | Op::Getxattr { .. }
        | Op::Listxattr { .. }
        | Op::Lseek { .. }
        | Op::Getlk { .. }
        | Op::Setlk { .. } => Need::File,
        Op::Setxattr { name, .. } if *name == SYNC => Need::All,
        Op::Read { .. }
        | Op::Setattr { .. }
        | Op::Setxattr { .. }
        | Op::Removexattr { .. }
        | Op::Open { .. }
        | Op::Fallocate { .. }
        | Op::Ioctl { .. } => Need::Exclusion,
        Op::Lookup { .. }
        | Op::Readdir { plus: true, .. }
        | Op::Link { .. }
        | Op::Create { .. }
        | Op::CopyFileRange { .. }
        | Op::Syncfs => Need::All,
        _ => Need::Nothing,
    }
}

impl ClientFs {
    /// It has to be called before a request is served; the request ends when the result is dropped.
    pub(super) fn take_posts(&self, caller: &Caller<'_>, request: &Request<'_>) -> Result<Arrival<'_>> {
        let (posts, ino) = (&self.handles.posts, request.ino);
        let need = need(&request.op);
        // This is done before it is known whether there are any posts, because a program may be about to be admitted.
        let barrier = if need == Need::Exclusion { posts.exclude(ino) } else { Arrival::default() };
        if !posts.any() && !matches!(request.op, Op::Open { .. }) {
            return Ok(barrier);
        }
        match need {
            Need::Nothing => {}
            Need::File => self.settle(caller, posts.drain(ino, false))?,
            Need::Read => self.settle(caller, posts.drain(ino, true))?,
            Need::Exclusion => self.settle(caller, posts.stop(ino))?,
            Need::All => posts.drain_all().into_iter().try_for_each(|rest| self.settle(caller, Some(rest)))?,
        }
        if matches!(request.op, Op::Open { .. }) && posts.owes_end(ino) {
            caller.will_block();
            self.sizes().tell_now(ino, TELL_WAIT);
        }
        Ok(barrier)
    }

    fn settle(&self, caller: &Caller<'_>, rest: Option<Pending<()>>) -> Result<()> {
        match rest {
            None => Ok(()),
            // No request may wait on such a thread. The thread asks again, or does without the answer.
            Some(_) if self.names.is_own(caller.tid) => Err(Errno::Intr),
            Some(rest) => self.wait(caller, rest),
        }
    }

    /// The close of a descriptor, whose handle has a new generation: the writes that were posted under the former
    /// generation are carried out.
    pub(super) fn close_posts(&self, caller: &Caller<'_>, ino: Ino) -> Result<()> {
        self.settle(caller, self.handles.posts.drain(ino, false))
    }

    /// Called when the last descriptor of an open file is closed.
    pub(super) fn release_file(&self, handle: Handle) {
        self.locks_released(handle);
        self.rollbacks.closed(handle);
        if let Some(file) = self.handles.remove(handle) {
            self.kernel_view.appended.closed(&file);
            let ino = file.ino();
            self.client.release(file);
            self.handles.posts.closed(ino);
        }
    }

    /// The identity of a descriptor for a program that is about to post.
    pub(super) fn identify_writer(&self, caller: &Caller<'_>, handle: Handle, file: &Arc<OpenFile>) -> Identity {
        let posts = &self.handles.posts;
        let admit = || {
            let parts = (&self.client, &self.kernel_view);
            posts.admit(parts, (handle.0, file, caller.tid), |pending| self.wait(caller, pending))
        };
        self.handles.exports.identify_writer(&self.client, posts, handle.0, admit)
    }
}
