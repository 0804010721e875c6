//! `Posting`: programs of this machine may write to a file without calls (docs/design/preload.md).
//!
//! Owns: the conditions for posting, and what has to be ended or reserved while programs may post. Does not own: how
//! writes get here (the front end), carrying them out (`write`).
//!
//! A write that a program has posted has happened for the program, while this mount does not know of it. So posts are
//! permitted only while the same write, made by a call, would go into the cache at once, and while every request for
//! the file reaches the front end, which first takes the posted writes.
//!
//! Invariants, as long as a `Posting` exists: the mount does not leave sole mode (`Begun`), so no other mount can see
//! the file; the targets keep room for `BLOCKS` blocks, so a posted write finds space; and no program reads the file
//! from an export, which cannot show what was posted.

use crate::coherence::attributes;
use crate::coherence::sharing::{self, Begun};
use crate::coherence::tokens;
use crate::inode::range_lock::Hidden;
use crate::inode::{Inode, OpenFile};
use crate::mount::Mount;
use crate::policy::decision;
use crate::telemetry::tunables::Tunable;
use crate::writeback::grants::{self, Covered};
use amphi_shm::layout::{POST_BYTES, RING_SLOTS};
use amphi_types::limits::BLOCK;
use amphi_types::{IoMode, Result, limits};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Blocks that posts may need at most: those that were taken of a ring and those that were posted meanwhile, each of
/// which may begin and end within a block.
const BLOCKS: u64 = 2 * RING_SLOTS as u64 * (POST_BYTES as u64 / BLOCK + 1);

/// Programs may write to the file without calls, until this is dropped.
#[must_use = "writes may be posted as long as this lives"]
pub struct Posting {
    mount: Arc<Mount>,
    file: Arc<Inode>,
    covered: Option<Covered>,
    rule: u64,
    limit: u64,
    size: u64,
    _begun: Begun,
    _hidden: Hidden,
}

impl Posting {
    /// The largest offset at which posted writes may end. Posted writes may make the file longer only while a single
    /// open file leads to the inode: another program might map the file, and its kernel does not know the new end.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns whether the posting has to end because other mounts come, or the session has ended.
    pub fn is_over(&self) -> bool {
        let sharing = &self.mount.coherence.sharing;
        sharing.rule() != self.rule || sharing.is_lost() || self.mount.life.stopping.load(SeqCst)
    }

    /// Whether writes of this open file may be posted as well.
    pub fn admits(&self, open: &OpenFile) -> bool {
        open.file.ino == self.file.ino && may_begin(&self.mount, open)
    }

    /// Gives the room back, for the writes that were posted until now; from now on nothing may be posted. Returns
    /// whether there was any such room.
    pub fn uncover(&mut self) -> bool {
        self.covered.take().is_some()
    }

    /// Returns whether a new one would let posted writes make the file longer, which this one does not.
    pub fn is_outgrown(&self) -> bool {
        self.limit < limits::FILE_MAX && self.file.used_opens() <= 1
    }

    /// Returns whether the file is longer than at the beginning.
    pub fn has_grown(&self) -> bool {
        self.file.size() > self.size
    }
}

/// Allows posts by programs that have `open` open, if that may be. The caller has made sure that no program of this
/// machine has older attributes of the file.
pub(crate) async fn begin(mount: Arc<Mount>, open: Arc<OpenFile>, may_extend: bool) -> Result<Option<Posting>> {
    let file = &open.file;
    if !mount.coherence.sharing.is_alone() || !may_begin(&mount, &open) {
        return Ok(None);
    }
    if !tokens::is_sure(&mount, file) {
        attributes::reload(&mount, file).await?;
    }
    let Some(covered) = grants::cover_each(&mount, file, BLOCKS).await else { return Ok(None) };
    let rule = mount.coherence.sharing.rule();
    let Some(begun) = sharing::begin(&mount) else { return Ok(None) };
    let hidden = file.range.hide();
    let limit = if may_extend && file.used_opens() <= 1 { limits::FILE_MAX } else { file.size() };
    let posting = Posting {
        mount: mount.clone(),
        file: file.clone(),
        covered: Some(covered),
        rule,
        limit,
        size: file.size(),
        _begun: begun,
        _hidden: hidden,
    };
    let is_right = tokens::is_sure(&mount, file) && may_begin(&mount, &open) && !posting.is_over();
    Ok(Some(posting).filter(|_| is_right))
}

/// Returns whether writes by this open file go into the cache unchanged, as far as that can be seen.
fn may_begin(mount: &Mount, open: &OpenFile) -> bool {
    let (file, flags) = (&open.file, open.flags);
    let is_plain = flags.write && !flags.append && !flags.direct && !flags.sync && !flags.dsync;
    let is_single = open.member() == 0 && file.group.id() == 0 && !mount.is_commit(file);
    let has_privileges = file.has_set_id() || file.gives_capabilities();
    let has_pages = file.pages.any() || file.pages.is_taking();
    let asked = decision::asked([open.io_mode(), file.io_mode()], open.process_mode, mount.tunables.mode());
    is_plain
        && is_single
        && !has_privileges
        && !has_pages
        && asked != IoMode::Direct
        && !open.has_error()
        && mount.tunables.get(Tunable::SharedBytes) > 0
}
