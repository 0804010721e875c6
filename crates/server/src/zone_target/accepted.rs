//! The handling of accepted writes by a target from its start to its end.
//!
//! Owns: bringing accepted bytes of an earlier process to the disk, `fsync` of accepted bytes, switching, giving the
//! memory up, closing. Does not own: the memory (`write_back`), accepting and flushing (`ops`).
//!
//! The `fsync` of a small change costs one write of the disk and one sync. Its bytes are logged in a record that is
//! written together with the record that accepted them. The bytes stay in memory until they are flushed with others. If
//! they were flushed at once, they would cost a write, the record, a sync, a mark and another sync.

use crate::counters::add;
use crate::planted::{self, Mistake};
use crate::zone_target::write_back::{self, Settings};
use crate::zone_target::{DELAYED_SHARE, EXTENTS_A_RECORD, Target};
use amphi_data::{DELAYED_ITEM_BYTES, Overlay};
use amphi_env::Env;
use amphi_types::item::Txn;
use amphi_types::{Errno, Ino, ObjectId, Result};
use amphi_zone::{Order, ZoneError, ZoneErrorKind};

/// Most bytes that an `fsync` logs. If there are more, they are flushed. A sync of the log with as many in front takes
/// an SSD as long as one with a block.
const SYNC_LOG_BYTES: u64 = 64 << 10;
/// Most extents of these bytes, so that a record of tiny writes is no longer than one of large writes.
const SYNC_LOG_EXTENTS: usize = 512;
/// Logged bytes of a target that are not flushed, at most, where its log is large. All are in memory.
const LOGGED_BYTES_MAX: u64 = 1 << 20;
/// Logged bytes take at most this part of the largest record, as its inverse.
const LOGGED_SHARE: u64 = 4;
/// A target with fewer free blocks that are not reserved flushes delayed bytes before it accepts more.
const SHORT_BLOCKS: u64 = 512;
/// Flushing for space is not done for fewer reserved blocks than these, because each flush is a write of the disk.
const PROMISED_MIN: u64 = 16;
/// Bytes of a record for a logged piece in addition to its content.
const PIECE_BYTES: u64 = 64;

impl<E: Env> Target<E> {
    /// Brings accepted bytes of an earlier process to the disk, makes them stable, and gives up the bytes that were
    /// lost with the memory. A server that joins a cluster begins twice. The memory that exists the second time is its
    /// own.
    pub(super) async fn land_left(&self, env: &E) -> Result<()> {
        if self.storage.write_back.has_begun() {
            return Ok(());
        }
        let lost = self.storage.write_back.take_lost();
        if !lost.is_empty() {
            let bytes: u64 = lost.iter().filter(|lost| !lost.is_logged).map(|lost| lost.range.len()).sum();
            if bytes > 0 {
                tracing::error!("{}: {bytes} bytes of unsynced writes are gone with the memory they were in", self.id);
            }
            if bytes > 0 && !self.place.noted_lost {
                self.zone.note_lost().await.map_err(|_| Errno::Io)?;
            }
        }
        for some in lost.chunks(EXTENTS_A_RECORD) {
            self.zone.reserve(0).await?;
            let mut txn = Txn::default();
            for lost in some {
                self.data.borrow_mut().drop_delayed(lost.object, lost.range, &mut txn);
            }
            self.append(txn, Order::Plain);
        }
        self.flush_all().await?;
        debug_assert!(self.data.borrow().delayed.is_empty(), "what an earlier process left is on the disk");
        let memory = self.data.borrow().memory();
        if let Some(number) = memory {
            let mut txn = Txn::default();
            self.data.borrow_mut().set_memory(None, &mut txn);
            let lsn = self.append(txn, Order::Plain);
            self.zone.stable(lsn).await?;
            write_back::forget(env, &self.zone, number);
        }
        self.storage.write_back.begin();
        Ok(())
    }

    /// Takes new settings of write-back.
    pub fn tune_write_back(&self, env: &E, settings: Settings) {
        let mut txn = Txn::default();
        self.storage.write_back.tune(env, &self.zone, &mut self.data.borrow_mut(), settings, &mut txn);
        self.append(txn, Order::Plain);
    }

    /// Removes memory for accepted bytes that is no longer wanted, if it contains no bytes.
    pub async fn give_up_memory(&self, env: &E) {
        if self.closed.get() || !self.storage.write_back.is_spare(&self.data.borrow()) {
            return;
        }
        let mut txn = Txn::default();
        let Some(number) = self.storage.write_back.give_up(&mut self.data.borrow_mut(), &mut txn) else { return };
        let lsn = self.append(txn, Order::Plain);
        if self.zone.kept(lsn).await.is_ok() {
            write_back::forget(env, &self.zone, number);
        }
    }

    /// Most delayed extents. One record could name all of them.
    pub fn delayed_max(&self) -> u64 {
        self.zone.record_bytes_max() / DELAYED_SHARE / DELAYED_ITEM_BYTES
    }

    /// Ensures that the delayed bytes of a file, or of all files, survive power loss as soon as the log is synced. If
    /// there are few bytes they are logged, otherwise they are flushed.
    pub async fn secure_delayed(&self, file: Option<Ino>) -> Result<()> {
        if self.log_delayed(file).await? {
            return Ok(());
        }
        let units = {
            let delayed = &self.data.borrow().delayed;
            let mut units = delayed.unlogged_units(file);
            if delayed.logged().0 * 2 > self.logged_max() {
                // Earlier logged bytes have to be flushed to make space.
                units.extend(delayed.logged_units());
                units.sort_unstable();
                units.dedup();
            }
            units
        };
        self.flush_units(units).await
    }

    /// If space is short, frees blocks that are reserved for bytes which need no new blocks. Until it is flushed, each
    /// delayed block counts as one that needs a new block, even if it will be overwritten in place. A program that
    /// stays within the available space must not be refused because of that. The caller holds no span and no plan.
    pub async fn make_way(&self) {
        let is_short = {
            let data = self.data.borrow();
            data.delayed.promised() >= PROMISED_MIN && data.space().1 < SHORT_BLOCKS
        };
        if is_short {
            add(&self.counts.worker.flushes_for_room, 1);
            // If bytes cannot be written, their blocks stay reserved, and a write without space gets an error.
            let _ = self.flush_all().await;
        }
    }

    /// Most logged bytes that there may be.
    fn logged_max(&self) -> u64 {
        LOGGED_BYTES_MAX.min(self.zone.record_bytes_max() / LOGGED_SHARE)
    }

    /// The delayed extents of a file, or of all, that the log does not have, if they are few enough to be logged.
    fn small_change(&self, file: Option<Ino>) -> Option<Vec<(ObjectId, Overlay)>> {
        let data = self.data.borrow();
        let (delayed, (logged, pieces)) = (&data.delayed, data.delayed.logged());
        let items = delayed.extents() + pieces + SYNC_LOG_EXTENTS as u64;
        let parts = delayed.unlogged(file, SYNC_LOG_EXTENTS).filter(|_| items <= self.delayed_max())?;
        let bytes: u64 = parts.iter().map(|(_, part)| part.range.len()).sum();
        (bytes <= SYNC_LOG_BYTES && logged + bytes <= self.logged_max()).then_some(parts)
    }

    /// Logs the delayed bytes of a file, or of all, that the log does not have, if they are few. Returns whether the
    /// log has all of them now.
    async fn log_delayed(&self, file: Option<Ino>) -> Result<bool> {
        let Some(parts) = self.small_change(file) else { return Ok(false) };
        if parts.is_empty() {
            return Ok(true);
        }
        drop(parts);
        match self.zone.reserve(SYNC_LOG_BYTES + PIECE_BYTES * SYNC_LOG_EXTENTS as u64).await {
            Err(Errno::NoSpace) => return Ok(false),
            reserved => reserved?,
        }
        // Other tasks may have changed the bytes meanwhile.
        let Some(parts) = self.small_change(file) else { return Ok(false) };
        let mut loaded = Vec::with_capacity(parts.len());
        for (object, part) in &parts {
            let mut bytes = vec![0; part.range.len() as usize];
            self.storage.write_back.load(part, &mut bytes)?;
            loaded.push((*object, part.range, bytes));
        }
        let sum: u64 = loaded.iter().map(|(_, range, _)| range.len()).sum();
        debug_assert!(sum <= SYNC_LOG_BYTES && loaded.len() <= SYNC_LOG_EXTENTS, "no more than was reserved");
        let mut txn = Txn::default();
        let extents = loaded.iter().map(|(object, range, bytes)| (*object, *range, &bytes[..]));
        self.data.borrow_mut().delayed.log(extents, &mut txn);
        loaded.iter().for_each(|(object, range, _)| self.counts.unstable.written(*object, range.len()));
        add(&self.counts.worker.logged, loaded.len() as u64);
        add(&self.counts.worker.logged_bytes, sum);
        if !planted::is(Mistake::ForgottenLog) {
            self.append(txn, Order::Plain);
        }
        Ok(true)
    }

    /// Makes unneeded pages available again.
    pub fn exhume(&self) {
        self.storage.write_back.exhume(self.zone.kept_lsn());
    }

    /// Writes the accepted bytes, takes a checkpoint and closes the zone.
    pub async fn close(&self, env: &E) -> std::result::Result<(), ZoneError> {
        self.storage.write_back.stop();
        let flushed = self.flush_all().await;
        let is_empty = self.data.borrow().delayed.is_empty();
        debug_assert!(flushed.is_err() || is_empty, "nothing is accepted any more, and all of it has been flushed");
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
