//! What a target does with writes that were accepted into memory, from its start to its end.
//!
//! Owns: bringing what an earlier process left to the disk, switching, giving the memory up, closing. Does not own: the
//! memory (`write_back`), accepting and flushing (`ops`).

use crate::target::write_back::{self, Settings};
use crate::target::{DELAYED_SHARE, EXTENTS_A_RECORD, Target};
use amphi_data::DELAYED_ITEM_BYTES;
use amphi_env::Env;
use amphi_types::item::Txn;
use amphi_types::{Errno, Result};
use amphi_zone::{Order, ZoneError, ZoneErrorKind};

impl<E: Env> Target<E> {
    /// Brings what an earlier process had in memory to the disk, stable, and gives up what was lost with that memory.
    pub(super) async fn land_left(&self, env: &E) -> Result<()> {
        let lost = self.write_back.take_lost();
        if !lost.is_empty() {
            let bytes: u64 = lost.iter().map(|(_, range)| range.len()).sum();
            tracing::error!("{}: {bytes} bytes of unsynced writes are gone with the memory they were in", self.id);
            if !self.noted_lost {
                self.zone.note_lost().await.map_err(|_| Errno::Io)?;
            }
        }
        for some in lost.chunks(EXTENTS_A_RECORD) {
            self.zone.reserve(0).await?;
            let mut txn = Txn::default();
            for (object, range) in some {
                self.data.borrow_mut().drop_delayed(*object, *range, &mut txn);
            }
            self.append(txn, Order::Plain);
        }
        self.flush_all().await?;
        let memory = self.data.borrow().memory();
        if let Some(number) = memory {
            let mut txn = Txn::default();
            self.data.borrow_mut().set_memory(None, &mut txn);
            let lsn = self.append(txn, Order::Plain);
            self.zone.stable(lsn).await?;
            write_back::forget(env, &self.zone, number);
        }
        self.write_back.begin();
        Ok(())
    }

    /// Takes new settings of write-back.
    pub fn tune_write_back(&self, env: &E, settings: Settings) {
        let mut txn = Txn::default();
        self.write_back.tune(env, &self.zone, &mut self.data.borrow_mut(), settings, &mut txn);
        self.append(txn, Order::Plain);
    }

    /// Removes memory for accepted bytes that is not wanted any more, if nothing lies in it.
    pub async fn give_up_memory(&self, env: &E) {
        if self.closed.get() || !self.write_back.is_spare(&self.data.borrow()) {
            return;
        }
        let mut txn = Txn::default();
        let Some(number) = self.write_back.give_up(&mut self.data.borrow_mut(), &mut txn) else { return };
        let lsn = self.append(txn, Order::Plain);
        if self.zone.kept(lsn).await.is_ok() {
            write_back::forget(env, &self.zone, number);
        }
    }

    /// Delayed extents that there may be: all of them could be named by one record.
    pub fn delayed_max(&self) -> u64 {
        self.zone.record_bytes_max() / DELAYED_SHARE / DELAYED_ITEM_BYTES
    }

    /// Lets pages be used again that nobody needs any more.
    pub fn exhume(&self) {
        self.write_back.exhume(self.zone.kept_lsn());
    }

    /// Writes what was accepted, takes a checkpoint and closes the zone.
    pub async fn close(&self, env: &E) -> std::result::Result<(), ZoneError> {
        self.write_back.stop();
        let flushed = self.flush_all().await;
        self.give_up_memory(env).await;
        self.closed.set(true);
        self.zone.checkpoint().await?;
        self.zone.close().await?;
        flushed.map_err(|e| {
            let text = format!("accepted bytes cannot be written: {e}; they are in memory until the machine stops");
            ZoneError::new(ZoneErrorKind::Io, self.zone.path(), text)
        })
    }
}
