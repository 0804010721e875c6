//! Opens that are kept for the next program that opens the file.
//!
//! Programs open the same files again and again. For example, each start of an interpreter opens its modules, and each
//! walk of a tree opens the whole tree. After the close of an open for reading, the file stays open at the server for a
//! while. The next open for reading takes this open over without a message, as it takes over one that was made ahead.
//!
//! Owns: keeping and handing out. Does not own: the table (`tables::prefetch::kept_opens`), what changes and
//! revocations take away (`coherence::opened_ahead`), closing (`writeback::release`).
//!
//! Invariants:
//! * **Permission.** In sole mode, a kept open is given only to a caller with exactly the credentials for which the
//!   server opened the file, and only if this mount has sent no change of the inode since that request. In shared mode
//!   it is given, while the attributes token is held, to any caller that may read the file by the attributes under that
//!   token.
//! * **Names.** If a file loses its last name by a call of this mount, its kept open is closed when the answer says so.
//!   If it does by a call of another mount, it is closed when the attributes token is revoked. Without that token, or
//!   after a switch of mode, no open is kept.
//! * An open with an access time to report is not kept: the time is sent with the close.
//!
//! Bound: `KEPT_MAX` files, each for `KEPT_NS`. The server counts them as opens of this mount.

use crate::api::{Ctx, OpenFlags};
use crate::coherence::{sharing, tokens};
use crate::inode::OpenFile;
use crate::mount::Mount;
use crate::tables::prefetch::kept_opens::{Kept, KeptOpens, Opener};
use crate::tables::prefetch::small_files::Opened;
use crate::telemetry::stats::Count;
use amphi_types::{Cred, Ino, Kind};
use amphi_wire::InodeView;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// How long an open is kept.
const KEPT_NS: u64 = 60_000_000_000;

/// A request under way that opens a file for reading.
pub(crate) struct Question {
    mount: Arc<Mount>,
    ino: Ino,
    opener: Option<Opener>,
}

/// It has to be called before a request to the server opens a file.
pub(crate) fn asks(mount: &Arc<Mount>, cred: &Cred, ino: Ino, flags: OpenFlags) -> Option<Question> {
    if !super::is_on(mount) || !super::takes_over(flags) {
        return None;
    }
    mount.prefetch.small_files.state.lock().kept.begin(ino);
    let opener = Opener { cred: Arc::new(cred.clone()), rule: mount.coherence.sharing.rule() };
    Some(Question { mount: mount.clone(), ino, opener: Some(opener) })
}

impl Question {
    /// Called when the file has been opened: its close may keep it.
    pub(crate) fn opened(mut self) {
        self.end(true);
    }

    fn end(&mut self, opened: bool) {
        let Some(opener) = self.opener.take() else { return };
        let mut state = self.mount.prefetch.small_files.state.lock();
        if state.kept.end(self.ino) && opened {
            state.kept.note(self.ino, opener);
        }
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        self.end(false);
    }
}

/// Called when a file is closed. Returns whether its open is kept: then it is not to be closed.
pub(crate) fn keep(mount: &Arc<Mount>, open: &OpenFile) -> bool {
    let file = &open.file;
    if !super::takes_over(open.flags) || open.member() != 0 {
        return false;
    }
    let mut guard = mount.prefetch.small_files.state.lock();
    let state = &mut *guard;
    let Some(opener) = state.kept.closes(file.ino) else { return false };
    let is_kept = super::is_on(mount)
        && opener.rule == mount.coherence.sharing.rule()
        && !mount.coherence.sharing.is_lost()
        && !file.life.nameless.load(SeqCst)
        && !file.known.lock().accessed_due
        && state.kept.has_room(file.ino)
        && (opener.rule & 1 == 1 || tokens::holds_attributes(mount, file.ino));
    if !is_kept {
        return false;
    }
    let until_ns = mount.clock.boot_ns() + KEPT_NS;
    let opened = Opened::new(Arc::downgrade(mount) as _, file.clone());
    state.kept.keep(file.ino, Kept { opened, opener, until_ns });
    mount.prefetch.small_files.note_busy(state);
    mount.stats.count(Count::Close);
    true
}

/// Takes over a kept open, if there is one and this caller may use it.
pub(super) fn take(mount: &Arc<Mount>, ctx: &Ctx, ino: Ino, flags: OpenFlags) -> Option<Arc<OpenFile>> {
    let begun = sharing::begin(mount);
    let file = {
        let mut guard = mount.prefetch.small_files.state.lock();
        let state = &mut *guard;
        if !may_use(mount, state.kept.get(ino)?, ino, &ctx.cred, begun.is_some()) {
            return None;
        }
        let Kept { mut opened, opener, .. } = state.kept.take(ino)?;
        state.kept.note(ino, opener);
        mount.prefetch.small_files.note_busy(state);
        opened.take()?
    };
    mount.stats.count(Count::Open);
    mount.stats.count(Count::OpenKept);
    Some(Arc::new(mount.open_file(file, flags, ctx, true)))
}

fn may_use(mount: &Mount, kept: &Kept, ino: Ino, cred: &Cred, alone: bool) -> bool {
    let rule = mount.coherence.sharing.rule();
    let may_read = |view: &InodeView| view.attr.kind == Kind::File && view.surely_allows(cred, 4);
    let allowed = match rule & 1 == 1 {
        true => alone && *kept.opener.cred == *cred,
        false => tokens::view(mount, ino).is_some_and(|view| may_read(&view)),
    };
    kept.opener.rule == rule && mount.clock.boot_ns() < kept.until_ns && allowed
}

/// Opens that are kept no longer, to be closed outside the lock.
pub(super) fn ended(mount: &Mount, kept: &mut KeptOpens) -> Vec<Kept> {
    let (now_ns, rule, on) = (mount.clock.boot_ns(), mount.coherence.sharing.rule(), super::is_on(mount));
    let certain = |ino| rule & 1 == 1 || tokens::holds_attributes(mount, ino);
    kept.take_out(|ino, one| !on || one.opener.rule != rule || one.until_ns <= now_ns || !certain(ino))
}

/// Returns how many are kept.
#[cfg(test)]
pub(crate) fn count(mount: &Mount) -> usize {
    mount.prefetch.small_files.state.lock().kept.len()
}
