//! Asking targets for room, and giving it back.
//!
//! Owns: the messages. Does not own: what was granted (`tables::writeback::grants`), what is covered (the page cache).
//!
//! A target is asked once, before the first bytes for it are dirty. From then on the answers to write-back say what it
//! keeps for this mount. Bytes that cannot be covered are written back at once, and whoever writes them waits for that
//! and is told (`ops::write`).

use crate::inode::Inode;
use crate::mount::Mount;
use crate::writeback::flush;
use amphi_types::{ByteRange, Cred, TargetId};
use amphi_wire::{Lane, Request};
use std::sync::Arc;

/// Before the first bytes of `range` are dirty: asks its targets, if they were not asked before.
pub(crate) async fn ask(mount: &Arc<Mount>, file: &Inode, range: ByteRange) {
    let layout = file.layout();
    for (object, _) in layout.pieces(file.ino, range) {
        let target = layout.target(file.ino, object.stripe);
        if !mount.writeback.grants.is_known(target) {
            let op = Request::Grant { give_back: None };
            let answer = mount.send(Lane::Urgent, target, &Cred::root(), op, None, 0).await;
            // Without an answer bytes go through, and are told.
            if let Ok((answer, _)) = answer {
                mount.writeback.grants.told_by(target, &answer);
            }
        }
    }
}

/// `Push::GrantWanted`: gives back what nothing dirty needs, and writes back what is dirty there: overwrites need none
/// of what covers them, so the target asks again. Nothing is waited for: what is under way may wait for this answer.
pub(crate) fn wanted(mount: &Arc<Mount>, target: TargetId) {
    flush::start_target(mount, target);
    let blocks = mount.writeback.grants.leave(target);
    let sent = mount.insist(Lane::Answer, target, Request::Grant { give_back: Some(blocks) });
    let mount2 = mount.clone();
    mount.spawn(async move {
        if let Ok((answer, _)) = sent.await {
            mount2.writeback.grants.told_by(target, &answer);
            mount2.writeback.grants.has_left(target, blocks);
        }
    });
}
