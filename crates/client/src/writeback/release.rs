//! The work after the last reference to an open file, and after the last name of a file.
//!
//! Owns: when a close is sent, dropping bytes that no program can reach any more, and holding back write-back for that
//! and for truncates. Does not own: sending closes (`coherence::closes`), batches of small files (`batch`).
//!
//! Invariant: the server gets a writer's close only after its dirty bytes have been written, since after the last
//! writer's close only the target of the inode knows the size.

use super::batch;
use crate::coherence::{closes, opened_ahead};
use crate::inode::Inode;
use crate::mount::Mount;
use crate::telemetry::stats::Count;
use amphi_pagecache::Dirty;
use amphi_types::{ByteRange, Cred, Ino};
use amphi_wire::{Access, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Called when the last reference to an open file is gone. `linger`: the close may wait for others with which to share
/// a message.
pub(crate) fn release(mount: &Arc<Mount>, file: &Arc<Inode>, access: Access, linger: bool) {
    mount.stats.count(Count::Close);
    let brings_time = {
        let mut known = file.known.lock();
        if let Some(i) = known.opens.iter().position(|a| *a == access) {
            known.opens.swap_remove(i);
        }
        known.closes.push(access);
        known.accessed_due
    };
    // In shared mode an access time causes a revocation to all mounts that cache the attributes, so access times of
    // many files are sent at once.
    let linger = linger || brings_time && !access.write && !mount.coherence.sharing.is_alone();
    batch::released(mount, file);
    if file.life.nameless.load(SeqCst) && file.open_count() == 0 {
        useless(mount, file.clone());
    }
    if linger {
        closes::linger(mount, closes::due_closes(file));
        mount.files.reap(file);
    } else {
        closes::send_closes(mount, file);
    }
}

/// Called when the last name of a file was removed. If no program on this mount has it open, or when it is closed, its
/// cached bytes are useless, and dirty ones need not be written. The server decides that, because an open of the file
/// may be on its way.
pub(crate) fn nameless(mount: &Arc<Mount>, ino: Ino) {
    opened_ahead::nameless(mount, ino);
    let Some(file) = mount.files.get(ino) else { return mount.files.nameless(ino) };
    file.life.nameless.store(true, SeqCst);
    if file.open_count() == 0 {
        useless(mount, file);
    }
}

/// No program on this mount can reach the bytes of a file any more. Its pages leave the cache unused, but this does not
/// count for locality, since no other file needed their space.
fn useless(mount: &Arc<Mount>, file: Arc<Inode>) {
    if file.cached.dirty_bytes.load(SeqCst) == 0 {
        if file.cached.bytes.load(SeqCst) > 0 {
            mount.cache.forget(&file, ByteRange::new(0, file.size()), Dirty::Keep);
        }
        mount.files.reap(&file);
        return;
    }
    let ino = file.ino;
    let ended = {
        let mut known = file.known.lock();
        if !known.opens.is_empty() {
            return;
        }
        let ended = std::mem::take(&mut known.closes);
        known.closing.extend(&ended);
        ended
    };
    let frozen = Frozen::from(mount, &file, 0);
    let mount = mount.clone();
    mount.clone().spawn(async move {
        file.signal.until(|| !file.in_flight(ByteRange::ALL)).await;
        let discard = Request::Discard { ino, opens: ended.len() as u32 };
        let done = mount.call(ino.target(), &Cred::root(), discard).await.is_ok();
        if done {
            mount.cache.forget(&file, ByteRange::ALL, Dirty::Discard);
        }
        drop(frozen);
        ended.iter().for_each(|access| file.closed(*access));
        if done {
            mount.files.reap(&file);
        } else {
            file.known.lock().closes.extend(ended);
            closes::send_closes(&mount, &file);
        }
    });
}

/// A hold on write-back: nothing sets out from an offset on until it is dropped.
pub(crate) struct Frozen {
    file: Arc<Inode>,
    mount: Arc<Mount>,
    from: u64,
}

impl Frozen {
    /// Holds back the bytes from `from` on.
    pub(crate) fn from(mount: &Arc<Mount>, file: &Arc<Inode>, from: u64) -> Frozen {
        file.flights.lock().freeze(from);
        Frozen { file: file.clone(), mount: mount.clone(), from }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.file.flights.lock().thaw(self.from);
        self.file.signal.notify();
        self.mount.writeback.landed.notify();
    }
}
