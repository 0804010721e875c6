//! Returning blocks whose record is stable, and using such blocks when the zone is full.
//!
//! Owns: the agent that gives them back. Does not own: which blocks wait (`freeing`).

use crate::counters::add;
use crate::zone_target::Target;
use amphi_data::{DataStore, Freed};
use amphi_env::Env;
use amphi_types::limits::BLOCK;
use amphi_types::{Errno, Result};
use amphi_zone::Lsn;
use futures_channel::mpsc;
use futures_util::future::{Either, select};
use std::pin::pin;
use std::rc::Weak;

impl<E: Env> Target<E> {
    /// Blocks that `lsn` freed: they are returned when it is stable.
    pub fn release_later(&self, lsn: Lsn, freed: Freed) {
        self.freeing.push(lsn, freed);
    }

    /// Makes the log stable now and makes freed blocks available.
    pub async fn release_now(&self) -> Result<()> {
        self.zone.sync().await?;
        self.release_stable();
        Ok(())
    }

    /// Plans with `plan`. If the zone is full but freed blocks wait, makes these usable and tries once more.
    pub async fn plan<T>(&self, mut plan: impl FnMut(&mut DataStore) -> Result<T>) -> Result<T> {
        let first = plan(&mut self.data.borrow_mut());
        if !matches!(first, Err(Errno::NoSpace)) || self.data.borrow().pending_blocks() == 0 {
            return first;
        }
        self.release_now().await?;
        plan(&mut self.data.borrow_mut())
    }

    fn release_stable(&self) {
        let stable = self.zone.stable_lsn();
        while let Some(freed) = self.freeing.pop_stable(stable) {
            add(&self.counts.worker.freed_blocks, freed.blocks());
            self.data.borrow_mut().release(freed);
        }
    }
}

/// Makes freed blocks available when their records have become stable, and makes these stable when there are many. The
/// task ends with the target.
pub(super) async fn release_freed<E: Env>(target: Weak<Target<E>>, mut rung: mpsc::UnboundedReceiver<()>) {
    use futures_util::StreamExt;
    while rung.next().await.is_some() {
        while let Some((zone, lsn, many)) = target.upgrade().and_then(|t| {
            t.release_stable();
            let lsn = t.freeing.last()?;
            let bytes = t.data.borrow().pending_blocks() * BLOCK;
            Some((t.zone.clone(), lsn, t.freeing.is_much(bytes)))
        }) {
            let ended = if many {
                zone.stable(lsn).await
            } else {
                match select(pin!(zone.became_stable(lsn)), rung.next()).await {
                    Either::Left((ended, _)) => ended,
                    Either::Right((Some(()), _)) => Ok(()),
                    Either::Right((None, _)) => return,
                }
            };
            if ended.is_err() {
                return;
            }
        }
    }
}
