//! Planted bugs: faults of the simulation's own layer that the checks must find, so that a check that finds nothing is
//! known to look.
//!
//! Owns: the list, and the bugs that sit between a program and the client. Those in the environment and the cluster's
//! configuration are switched on by `cluster`, those of faults by `run`. Nothing in the product knows of them.

use amphi_client::{Client, Ctx, Hints, OpenFile};
use amphi_env::Buf;
use amphi_types::Result;
use std::cell::Cell;
use std::sync::Arc;

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Disks say that they have synced and have not: found by lost power.
    SyncLies,
    /// One write in 40 is dropped: found by a read.
    LostWrites,
    /// One append in 10 is done twice.
    TwiceAppended,
    /// Writes are done in two parts, between which others may read.
    SplitWrites,
    /// The server forgets a session as soon as its connection breaks, so that resent calls are done twice.
    ForgottenSessions,
    /// A killed server comes back without what was not stable, while the others and the mounts go on.
    KillsLosePower,
}

impl Plant {
    /// All of them.
    pub const ALL: [Plant; 6] = [
        Plant::SyncLies,
        Plant::LostWrites,
        Plant::TwiceAppended,
        Plant::SplitWrites,
        Plant::ForgottenSessions,
        Plant::KillsLosePower,
    ];
}

thread_local! {
    static ACTIVE: Cell<Option<Plant>> = const { Cell::new(None) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Keeps a bug planted in this thread.
pub struct Planted(());

/// Plants a bug, or none.
pub fn plant(bug: Option<Plant>) -> Planted {
    ACTIVE.set(bug);
    COUNT.set(0);
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
