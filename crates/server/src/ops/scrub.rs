//! `scrub_agent`: reads all file data of a target, so that damage is found before a program needs the bytes.
//!
//! Owns: the order of reading, the pace, and checksums for blocks that have none. Does not own: what is done about
//! damage (`checksums`).
//!
//! It reads the objects in their order, a chunk of `CHUNK_BLOCKS` at a time and never more than
//! `server.scrub_bytes_per_s`, and begins again `PAUSE` after its end. Blocks that were written without checksums get
//! the checksum of the bytes that are read, if they would get one when written now. Nobody can know whether they are as
//! they were written, but later changes are detected.
//!
//! Invariant: a chunk is locked as by a reader until the record with its new checksums is appended. So no block of the
//! chunk is written meanwhile, and the record follows all writes of these blocks.

use crate::counters::add;
use crate::zone_target::Target;
use crate::zone_target::gate::Hold;
use amphi_data::{Checksum, ReadPlan};
use amphi_env::{Buf, Env};
use amphi_object::Piece;
use amphi_types::item::Txn;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, Errno, ObjectId, Result};
use amphi_zone::Order;
use futures_channel::mpsc;
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Number of blocks that are read at once.
const CHUNK_BLOCKS: u64 = 256;
/// Pause between the end of a pass and the next pass.
const PAUSE: Duration = Duration::from_secs(60);

/// Bytes of items that a chunk may add, about.
const ITEM_BYTES: u64 = CHUNK_BLOCKS * 8;

/// A position between two chunks. The next chunk begins at this block or later.
type Place = (ObjectId, u64);

impl<E: Env> Target<E> {
    /// Reads and verifies the next chunk after `from`. Returns where the chunk ends and how many bytes it has. `None`:
    /// there is no more.
    async fn scrub_chunk(&self, from: Option<Place>) -> Result<Option<(Place, u64)>> {
        let Some((object, block, blocks)) = self.data.borrow().next_written(from, CHUNK_BLOCKS) else {
            return Ok(None);
        };
        let range = ByteRange::at(block * BLOCK, blocks * BLOCK);
        let held = self.hold([object.ino]).await?;
        let is_asked = self.asked_of(object).unwrap_or_default().are_made(self.storage.verifier.is_on());
        drop(held);
        self.let_inodes_go();
        let adopts = is_asked && self.zone.reserve(ITEM_BYTES).await.is_ok();
        let _span = self.queues.spans.take(object, range, Hold::Shared).await;
        let end = (object, block + blocks);
        if self.is_closed() {
            return Ok(None);
        }
        // The object may have been cut or removed while others had it locked.
        let plan = self.data.borrow().plan_disk_read(object, range);
        if plan.is_hole() {
            return Ok(Some((end, 0)));
        }
        let from_block = plan.aligned().start / BLOCK;
        let expected = self.expect(&plan.segments, from_block, 0);
        let mut bytes = self.read_chunk(&plan).await?;
        // Damage has been reported; the rest of the chunk is processed.
        let _ = self.verify(object, &expected, &mut bytes).await;
        if adopts && !self.is_closed() {
            let (mut txn, mut adopted) = (Txn::default(), 0);
            let mut data = self.data.borrow_mut();
            for (physical, s) in plan.segments.iter().filter_map(|s| s.physical.map(|physical| (physical, s))) {
                let at = ((s.file_block - from_block) * BLOCK) as usize;
                let sums = Checksum::of_each(&bytes[at..at + (s.blocks * BLOCK) as usize]);
                adopted += data.adopt_checksums(physical, &sums, &mut txn);
            }
            drop(data);
            add(&self.counts.worker.scrub_adopted, adopted);
            self.append(txn, Order::AfterData);
        }
        let blocks: u64 = plan.segments.iter().filter(|s| s.physical.is_some()).map(|s| s.blocks).sum();
        add(&self.counts.worker.scrubbed_bytes, blocks * BLOCK);
        Ok(Some((end, blocks * BLOCK)))
    }

    /// The blocks of a plan from the disk, holes as zeros.
    async fn read_chunk(&self, plan: &ReadPlan) -> Result<Buf> {
        let aligned = plan.aligned();
        let mut pieces: Vec<Piece> = Vec::with_capacity(plan.segments.len());
        for s in &plan.segments {
            let Some(physical) = s.physical else { continue };
            let at = (s.file_block * BLOCK - aligned.start) as usize;
            amphi_object::push(
                &mut pieces,
                Piece { at, len: (s.blocks * BLOCK) as usize, disk: self.block_address(physical) },
            );
        }
        let buf = Buf::scratch(aligned.len() as usize);
        let (result, buf) = self.storage.disk.read_pieces(buf, &pieces).await;
        result.map_err(|e| self.disk_error("read", &e))?;
        Ok(buf)
    }
}

/// Reads and verifies, until the target has gone.
pub async fn scrub_agent<E: Env>(env: E, target: Weak<Target<E>>, mut rung: mpsc::Receiver<()>) {
    let mut place = None;
    loop {
        let Some(rate) = target.upgrade().map(|t| t.storage.verifier.scrub_bytes_per_s()) else { return };
        let mut pause = None;
        if rate > 0 {
            let Some(target) = target.upgrade().filter(|t| !t.is_closed()) else { return };
            pause = Some(scrub_step(&target, &mut place, rate).await);
        }
        let woken = match pause {
            Some(pause) => match select(rung.next(), pin!(env.sleep(pause))).await {
                Either::Left((woken, _)) => woken,
                Either::Right(_) => Some(()),
            },
            None => rung.next().await,
        };
        if woken.is_none() {
            return;
        }
    }
}

/// Scrubs one chunk. Returns how long to wait before the next chunk.
async fn scrub_step<E: Env>(target: &Rc<Target<E>>, place: &mut Option<Place>, rate: u64) -> Duration {
    if !target.storage.write_back.has_begun() {
        return Duration::from_secs(1);
    }
    match target.scrub_chunk(*place).await {
        Ok(Some((end, bytes))) => {
            *place = Some(end);
            target.storage.verifier.note_scrubbed(bytes);
            Duration::from_nanos((bytes.saturating_mul(1_000_000_000) / rate).max(1000))
        }
        Ok(None) => {
            *place = None;
            target.storage.verifier.note_pass();
            add(&target.counts.worker.scrub_passes, 1);
            PAUSE
        }
        Err(Errno::Io) => {
            // The disk cannot read it: the line has been written. The chunk is passed over.
            let next = target.data.borrow().next_written(*place, CHUNK_BLOCKS);
            *place = next.map(|(object, block, blocks)| (object, block + blocks));
            Duration::from_secs(1)
        }
        Err(_) => PAUSE,
    }
}
