//! Asking targets for room, giving it back, and covering writes that go past the cache.
//!
//! Owns: the messages, and how a write under way is covered by a grant. Does not own: the granted blocks
//! (`tables::writeback::grants`), which blocks of the page cache are covered (the page cache).
//!
//! A mount requests a grant from a target once, before the first bytes for the target are dirty. Later the answers to
//! write-back, and those to direct writes that could have returned early, report what it keeps for this mount. Bytes
//! that cannot be covered are written back at once, and their writer waits for that and gets the error (`ops::write`);
//! a direct write that cannot be covered waits for its answer (`ops::write_behind`).

use crate::inode::Inode;
use crate::mount::Mount;
use crate::writeback::flush;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, Cred, TargetId};
use amphi_wire::{Lane, Request};
use smallvec::SmallVec;
use std::sync::Arc;

/// Most stripes of a file for which room is set aside on each of their targets.
const EACH_MAX: u32 = 16;

/// Room that is set aside for a write past the cache, until this is dropped.
#[must_use = "the room is given up when this is dropped"]
pub(crate) struct Covered {
    mount: Arc<Mount>,
    /// Blocks on each target.
    blocks: SmallVec<[(TargetId, u64); 4]>,
}

impl Drop for Covered {
    fn drop(&mut self) {
        self.blocks.iter().for_each(|(target, blocks)| self.mount.writeback.grants.uncover(*target, *blocks));
    }
}

/// Counts all blocks of `range` against the grants, if its targets have granted enough beyond the blocks that are dirty
/// or under way.
pub(crate) fn cover(mount: &Arc<Mount>, file: &Inode, range: ByteRange) -> Option<Covered> {
    let layout = file.layout();
    let mut covered = Covered { mount: mount.clone(), blocks: SmallVec::new() };
    for (object, piece) in layout.pieces(file.ino, range) {
        let target = layout.target(file.ino, object.stripe);
        let blocks = piece.align_out(BLOCK).len() / BLOCK;
        if !mount.writeback.grants.cover(file.ino, target, blocks) {
            return None;
        }
        match covered.blocks.iter_mut().find(|(of, _)| *of == target) {
            Some((_, all)) => *all += blocks,
            None => covered.blocks.push((target, blocks)),
        }
    }
    Some(covered)
}

/// Sets `blocks` aside on each target on which the file may have bytes, for writes whose offsets are not known yet, if
/// these targets have granted enough. This is not done for files with more than `EACH_MAX` stripes.
pub(crate) async fn cover_each(mount: &Arc<Mount>, file: &Inode, blocks: u64) -> Option<Covered> {
    let layout = file.layout();
    let mut covered = Covered { mount: mount.clone(), blocks: SmallVec::new() };
    if layout.stripes() > EACH_MAX {
        return None;
    }
    for target in (0..layout.stripes()).map(|stripe| layout.target(file.ino, stripe)) {
        if covered.blocks.iter().any(|(of, _)| *of == target) {
            continue;
        }
        ask_target(mount, target).await;
        if !mount.writeback.grants.cover(file.ino, target, blocks) {
            return None;
        }
        covered.blocks.push((target, blocks));
    }
    Some(covered)
}

/// Called before the first bytes of `range` are dirty: requests grants from the targets, unless they were requested
/// before.
pub(crate) async fn ask(mount: &Arc<Mount>, file: &Inode, range: ByteRange) {
    let layout = file.layout();
    for (object, _) in layout.pieces(file.ino, range) {
        ask_target(mount, layout.target(file.ino, object.stripe)).await;
    }
}

async fn ask_target(mount: &Arc<Mount>, target: TargetId) {
    if !mount.writeback.grants.is_known(target) {
        let op = Request::Grant { give_back: None };
        let answer = mount.send(Lane::Urgent, target, &Cred::root(), op, None, 0).await;
        // If the target does not answer, bytes are written through, and their writer gets the error.
        if let Ok((answer, _)) = answer {
            mount.writeback.grants.told_by(target, &answer);
        }
    }
}

/// `Push::GrantWanted`: returns blocks that no dirty bytes need, and writes back dirty bytes there. Write-back of
/// overwrites uses up none of their blocks, so the target sends its request again. The function waits for nothing,
/// because requests under way may wait for this answer.
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
