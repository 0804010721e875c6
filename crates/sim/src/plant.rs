//! Planted bugs: faults of the simulation's own layer that the checks must find, which proves that a check that finds
//! nothing works.
//!
//! Owns: the list, and the bugs between a program and the client. Bugs in the environment and in the cluster's
//! configuration are switched on by `cluster`, and bugs of faults by `run`. The product contains no part of them.

use amphi_client::{Client, Ctx, Hints, OpenFile};
use amphi_env::Buf;
use amphi_types::{Ino, Result};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Disks say that they have synced and have not: found by lost power.
    SyncLies,
    /// One write in 40 is dropped: found by a read.
    LostWrites,
    /// One append in 10 is executed twice.
    TwiceAppended,
    /// Writes are done in two parts, between which others may read.
    SplitWrites,
    /// The server forgets a session as soon as its connection breaks: its calls under way fail.
    ForgottenSessions,
    /// A killed server other than the master comes back without its unstable state, while the others and the mount
    /// continue.
    MembersLosePower,
    /// One lock in 10 of those that do not wait is not requested, although the call reports it as held.
    UnaskedLocks,
    /// Direct reads are executed in two parts, as if no lock covered both.
    UnlockedReads,
    /// One read in 20 returns the result of the last read of the same bytes, as if a cache had kept the bytes in spite
    /// of a callback.
    KeptPages,
    /// Direct writes of shared records stay in the cache of their mount: a kill of the mount drops them.
    CachedRecords,
    /// One change of names in 20 is executed twice, as by a server that forgot its answer; the second answer is
    /// returned.
    TwiceDone,
    /// The server does not send a callback again that was lost.
    ForgottenCallbacks,
    /// A client mistakes a repeated callback for one of its newer lock, reports that it is returned, and continues to
    /// use it.
    MistakenCallbacks,
}

impl Plant {
    /// All bugs except those of callbacks.
    pub const ALL: [Plant; 11] = [
        Plant::SyncLies,
        Plant::LostWrites,
        Plant::TwiceAppended,
        Plant::SplitWrites,
        Plant::ForgottenSessions,
        Plant::MembersLosePower,
        Plant::UnaskedLocks,
        Plant::UnlockedReads,
        Plant::KeptPages,
        Plant::CachedRecords,
        Plant::TwiceDone,
    ];
    /// Bugs of callbacks: runs of contention in which callbacks alone meet faults are to find them soon.
    pub const OF_CALLBACKS: [Plant; 2] = [Plant::ForgottenCallbacks, Plant::MistakenCallbacks];
    /// Bugs of caches and locks: runs of contention are to find them soon.
    pub const OF_CONTENTION: [Plant; 4] =
        [Plant::LostWrites, Plant::SplitWrites, Plant::UnlockedReads, Plant::KeptPages];
}

/// File, offset, length.
type Place = (Ino, u64, u64);

thread_local! {
    static ACTIVE: Cell<Option<Plant>> = const { Cell::new(None) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static KEPT: RefCell<BTreeMap<Place, Vec<u8>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Keeps a bug planted in this thread.
pub struct Planted(());

/// Plants a bug, or none.
pub fn plant(bug: Option<Plant>) -> Planted {
    ACTIVE.set(bug);
    COUNT.set(0);
    KEPT.take();
    Planted(())
}

impl Drop for Planted {
    fn drop(&mut self) {
        ACTIVE.set(None);
    }
}

/// The bug of this thread.
pub fn active() -> Option<Plant> {
    ACTIVE.get()
}

fn one_in(n: u64) -> bool {
    COUNT.set(COUNT.get() + 1);
    COUNT.get().is_multiple_of(n)
}

/// Returns whether a bug leaves out the lock that is requested now.
pub(crate) fn leaves_out_lock() -> bool {
    active() == Some(Plant::UnaskedLocks) && one_in(10)
}

/// Returns whether a bug keeps direct writes of shared records in the cache.
pub(crate) fn keeps_in_cache() -> bool {
    active() == Some(Plant::CachedRecords)
}

/// Returns whether a bug does a change of names once more.
pub(crate) fn does_again() -> bool {
    active() == Some(Plant::TwiceDone) && one_in(20)
}

/// A write as a bug does it; `None` leaves it to the caller.
pub(crate) async fn bad_write(
    client: &Client,
    ctx: &Ctx,
    file: &Arc<OpenFile>,
    offset: u64,
    bytes: &[u8],
    hints: Hints,
) -> Result<Option<u64>> {
    let part = |from: usize, to: usize| {
        let at = offset + from as u64;
        let mut buf = Buf::padded((at % 4096) as usize, to - from);
        buf.copy_from_slice(&bytes[from..to]);
        client.write(ctx, file, at, buf, hints)
    };
    let len = bytes.len();
    match active() {
        Some(Plant::LostWrites) if one_in(40) => Ok(Some(len as u64)),
        Some(Plant::TwiceAppended) if file.flags().append && one_in(10) => {
            part(0, len).await?;
            Ok(Some(part(0, len).await? as u64))
        }
        Some(Plant::SplitWrites) if len > 1 && !file.flags().append => {
            let n = part(0, len / 2).await? + part(len / 2, len).await?;
            Ok(Some(n as u64))
        }
        _ => Ok(None),
    }
}

/// Makes a read with the effect of a bug; `None` leaves the read to the caller.
pub(crate) async fn bad_read(
    client: &Client,
    ctx: &Ctx,
    file: &Arc<OpenFile>,
    (offset, len): (u64, u64),
    hints: Hints,
) -> Result<Option<Vec<u8>>> {
    match active() {
        Some(Plant::UnlockedReads) if len > 1 && (hints.direct || file.flags().direct) => {
            let half = len / 2;
            let mut bytes = client.read(ctx, file, offset, half as usize, hints).await?.to_vec();
            if bytes.len() as u64 == half {
                bytes.extend(client.read(ctx, file, offset + half, (len - half) as usize, hints).await?.to_vec());
            }
            Ok(Some(bytes))
        }
        Some(Plant::KeptPages) => {
            let place = (file.ino(), offset, len);
            let kept = KEPT.with_borrow(|kept| kept.get(&place).cloned()).filter(|_| one_in(20));
            if kept.is_some() {
                return Ok(kept);
            }
            let bytes = client.read(ctx, file, offset, len as usize, hints).await?.to_vec();
            KEPT.with_borrow_mut(|kept| kept.insert(place, bytes.clone()));
            Ok(Some(bytes))
        }
        _ => Ok(None),
    }
}
