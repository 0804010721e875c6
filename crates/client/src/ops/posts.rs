//! `Posting`: programs of this machine may write to a file without calls (docs/design/preload.md).
//!
//! Owns: the conditions for posting, and what has to be ended, reserved or locked while programs may post. Does not
//! own: how writes get here (the front end), putting them into the cache (`write`).
//!
//! A write that a program has posted has happened for the program, while this mount does not know of it. So posts are
//! permitted only while the same write, made by a call, would go into the cache at once, and while everything that
//! could show the bytes comes to this mount first: requests of this machine, because the front end takes posted writes
//! before it serves them; other mounts, because there are none (sole mode) or because they need a right that this mount
//! holds (shared mode).
//!
//! Invariants, as long as a `Posting` exists: in sole mode the mount does not leave that mode (`Begun`). In shared mode
//! it pins write locks on all bytes (`PostLocks`), which other mounts need for whatever a post must not miss: other
//! bytes, another size, set-id bits, capabilities. The targets keep room for `BLOCKS` blocks, so a posted write finds
//! space; and no program reads the file from an export, which cannot show what was posted.
//!
//! Lock order: a posting takes the file's range lock before it pins, waits for neither, and then waits for nothing but
//! space in the cache. So callers of this mount and other mounts may wait for its end.

use crate::coherence::attributes;
use crate::coherence::lease;
use crate::coherence::sharing::{self, Begun};
use crate::coherence::tokens;
use crate::inode::range_lock::{Hidden, PostingHold};
use crate::inode::{Inode, OpenFile};
use crate::locks::{self, Pin};
use crate::mount::Mount;
use crate::ops::read::is_wanted_elsewhere;
use crate::ops::write::posted;
use crate::policy::decision;
use crate::telemetry::tunables::Tunable;
use crate::writeback::grants::{self, Covered};
use amphi_dlm::Mode as LockMode;
use amphi_env::Buf;
use amphi_shm::layout::{POST_BYTES, RING_SLOTS};
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, Cred, Errno, IoMode, Result, limits};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

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
    rights: Rights,
    _hidden: Hidden,
}

/// What keeps other mounts from seeing the file without what was posted.
enum Rights {
    /// There is no other mount, and none is admitted before this ends.
    Sole(#[expect(dead_code, reason = "held until the posting ends")] Begun),
    Locks(Arc<PostLocks>),
}

/// By which rights posted writes go into the cache.
#[derive(Clone)]
pub enum PostRights {
    /// As writes by calls.
    Sole,
    /// Under locks that are held for all of them.
    Locks(Arc<PostLocks>),
}

/// Locks of shared mode for all writes that are posted to a file. Other mounts wait for them until this is dropped.
pub struct PostLocks {
    mount: Arc<Mount>,
    file: Arc<Inode>,
    /// A call of this mount waits for the file.
    wanted: Arc<AtomicBool>,
    pins: Vec<Pin>,
    _hold: PostingHold,
}

impl Drop for PostLocks {
    fn drop(&mut self) {
        self.file.locks.set_posted_to(false);
    }
}

impl PostLocks {
    /// Takes the locks, if they are held or free, and nobody waits for the file.
    async fn take(mount: &Arc<Mount>, file: &Arc<Inode>) -> Option<PostLocks> {
        let wanted = Arc::new(AtomicBool::new(false));
        let (told, weak) = (wanted.clone(), Arc::downgrade(mount));
        let hold = file.range.try_post(Arc::new(move || {
            told.store(true, SeqCst);
            weak.upgrade().into_iter().for_each(|mount| mount.postings_may_end());
        }))?;
        // A callback that does not find this mark has come before it is looked whether the locks are usable.
        file.locks.set_posted_to(true);
        let (mount, file) = (mount.clone(), file.clone());
        let mut locks = PostLocks { mount, file, wanted, pins: Vec::new(), _hold: hold };
        locks.pins = locks::try_pin_objects(&locks.mount, &locks.file, LockMode::Write, ByteRange::ALL).await.ok()?;
        Some(locks)
    }

    /// Whether somebody waits for the locks, or they are not to be used any longer.
    fn are_over(&self) -> bool {
        let (mount, file) = (&self.mount, &self.file);
        self.wanted.load(SeqCst)
            || !file.locks.cover_stripes(file.all_stripe_bits())
            || !mount.coherence.locks.permit_writing_all(file)
    }

    /// The end of the file and whether it has privileges that a write removes, from after the locks were taken.
    async fn look(&self) -> Result<(u64, bool)> {
        let (mount, file) = (&self.mount, &self.file);
        let has_privileges = match tokens::is_sure(mount, file) {
            true => file.has_set_id() || file.gives_capabilities(),
            false => {
                let (view, _) = attributes::ask(mount, &Cred::root(), file.ino).await?;
                view.capability || view.attr.has_set_id()
            }
        };
        Ok((attributes::end_now(mount, file, true).await?, has_privileges))
    }

    /// Returns whether a server does not know one of the locks any more. Another mount may have used the bytes since,
    /// so what was posted is lost, like bytes that are dirty under such a lock.
    fn are_lost(&self) -> bool {
        !self.file.locks.cover_stripes(self.file.all_stripe_bits()) && self.pins.iter().any(Pin::is_lost)
    }

    /// Works as `posted::try_write`.
    pub(crate) fn try_write(&self, open: &OpenFile, offset: u64, bytes: &[u8]) -> bool {
        !self.are_lost() && posted::try_write(&self.mount, open, offset, bytes)
    }

    /// Works as `posted::write`.
    ///
    /// Errors: `Io` if a lock was lost.
    pub(crate) async fn write(&self, open: &Arc<OpenFile>, offset: u64, bytes: Buf) -> Result<usize> {
        if self.are_lost() { Err(Errno::Io) } else { posted::write(&self.mount, open, offset, bytes).await }
    }
}

impl Posting {
    /// The largest offset at which posted writes may end. Posted writes may make the file longer only while a single
    /// open file leads to the inode: another program might map the file, and its kernel does not know the new end.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns whether the posting has to end because somebody waits for that, or what permits it ends.
    pub fn is_over(&self) -> bool {
        let sharing = &self.mount.coherence.sharing;
        let has_ended = sharing.rule() != self.rule || sharing.is_lost() || self.mount.life.stopping.load(SeqCst);
        has_ended || matches!(&self.rights, Rights::Locks(locks) if locks.are_over())
    }

    /// By which rights the posted writes go into the cache.
    pub fn rights(&self) -> PostRights {
        match &self.rights {
            Rights::Sole(_) => PostRights::Sole,
            Rights::Locks(locks) => PostRights::Locks(locks.clone()),
        }
    }

    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.rights, Rights::Locks(_))
    }

    pub(crate) fn mount(&self) -> &Mount {
        &self.mount
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
    let sharing = &mount.coherence.sharing;
    // If another mode comes meanwhile, the posting is over from the start.
    let (rule, alone) = (sharing.rule(), sharing.is_alone());
    let is_contended = || !alone && is_wanted_elsewhere(&mount, file);
    if !may_begin(&mount, &open) || is_contended() {
        return Ok(None);
    }
    if alone && !tokens::is_sure(&mount, file) {
        attributes::reload(&mount, file).await?;
    }
    let Some(covered) = grants::cover_each(&mount, file, BLOCKS).await else { return Ok(None) };
    let mut end = None;
    let rights = match alone {
        true => sharing::begin(&mount).map(Rights::Sole),
        false => {
            let Some(locks) = PostLocks::take(&mount, file).await else { return Ok(None) };
            lease::touch(&mount, file, ByteRange::ALL).await?;
            let (found, has_privileges) = locks.look().await?;
            end = Some(found);
            Some(Rights::Locks(Arc::new(locks))).filter(|_| !has_privileges)
        }
    };
    let Some(rights) = rights else { return Ok(None) };
    let end = end.unwrap_or_else(|| file.size());
    let hidden = file.range.hide();
    let may_extend = may_extend && file.used_opens() <= 1 && !open.front.is_mapped.load(SeqCst);
    let limit = if may_extend { limits::FILE_MAX } else { end };
    let posting = Posting {
        mount: mount.clone(),
        file: file.clone(),
        covered: Some(covered),
        rule,
        limit,
        size: end,
        rights,
        _hidden: hidden,
    };
    let is_sure = !alone || tokens::is_sure(&mount, file);
    let is_right = is_sure && may_begin(&mount, &open) && !is_contended() && !posting.is_over();
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
