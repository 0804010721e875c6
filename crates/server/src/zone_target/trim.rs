//! Truncates and punches on one target: the bytes beyond a size, or in a range, become a hole.
//!
//! Owns: cutting them into records, rewriting the blocks at their edges, committing them. Does not own: the plans
//! (`amphi_data`), the objects of other targets (`objects`).

use crate::zone_target::{EXTENTS_A_RECORD, Target};
use amphi_data::{Extent, TrimPlan};
use amphi_env::Env;
use amphi_types::item::Txn;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, ObjectId, Result, Timespec};
use amphi_zone::{Lsn, Order};

impl<E: Env> Target<E> {
    /// End of the `count`-th extent of an object from byte `at` on, if more extents follow it.
    pub fn extents_end(&self, object: ObjectId, at: u64, count: usize) -> Option<u64> {
        assert!(count > 0, "{object:?}: the end of no extents");
        let data = self.data.borrow();
        let mut behind = data.extents(object).filter(|(b, e)| (b + u64::from(e.blocks)) * BLOCK > at);
        let (b, e) = behind.by_ref().nth(count - 1)?;
        behind.next()?;
        Some((b + u64::from(e.blocks)) * BLOCK)
    }

    /// Makes everything of an object beyond `size` a hole, as far as it does not fit into one record with the truncate
    /// that follows. The caller holds the span.
    ///
    /// Errors: `Io` if the block at the new end cannot be read. Then nothing has changed.
    pub async fn punch_behind(&self, object: ObjectId, size: u64, generation: u64, mtime: Timespec) -> Result<()> {
        let from = size.next_multiple_of(BLOCK);
        if from > size && self.extents_end(object, from, EXTENTS_A_RECORD).is_some() {
            self.check_edge(object, size / BLOCK).await?;
        }
        while let Some(end) = self.extents_end(object, from, EXTENTS_A_RECORD) {
            let last = ByteRange::new(end, amphi_types::limits::FILE_MAX);
            let step = match self.extents_end(object, end, EXTENTS_A_RECORD) {
                Some(next) => ByteRange::new(end, next),
                None => last,
            };
            let (lsn, _) = self.punch_part(object, step, generation, mtime).await?;
            self.zone.kept(lsn).await?;
        }
        Ok(())
    }

    /// Errors: `Io` if the content of a block on the disk is not as it was written.
    async fn check_edge(&self, object: ObjectId, block: u64) -> Result<()> {
        let written = |(first, e): &(u64, Extent)| e.written && (*first..first + u64::from(e.blocks)).contains(&block);
        let extent = self.data.borrow().extents(object).find(written);
        match extent {
            Some((first, e)) => self.sound_block(object, block, e.physical + (block - first)).await.map(drop),
            None => Ok(()),
        }
    }

    /// Punches a part of an object in a record of its own. The caller holds the span.
    pub async fn punch_part(
        &self,
        object: ObjectId,
        range: ByteRange,
        generation: u64,
        mtime: Timespec,
    ) -> Result<(Lsn, u64)> {
        self.zone.reserve(0).await?;
        let plan = self.plan(|data| data.plan_punch(object, range, generation)).await?;
        let plan = self.rewrite_edges(plan).await?;
        Ok(self.commit_trim(plan, mtime, Txn::default()))
    }

    /// Commits a truncate or punch whose edges are rewritten, together with `txn`. Returns the record and how many
    /// blocks it freed.
    pub fn commit_trim(&self, plan: TrimPlan, mtime: Timespec, mut txn: Txn) -> (Lsn, u64) {
        let order = if plan.points_at_new_data() { Order::AfterData } else { Order::Plain };
        let freed = self.data.borrow_mut().commit_trim(plan, mtime, &mut txn);
        let blocks = freed.blocks();
        let lsn = self.append(txn, order);
        self.release_later(lsn, freed);
        (lsn, blocks)
    }

    /// Does the disk work of a truncate or punch. If an error occurs, the plan is given up.
    pub async fn rewrite_edges(&self, mut plan: TrimPlan) -> Result<TrimPlan> {
        for (i, edge) in plan.edges.clone().into_iter().enumerate() {
            let old = self.sound_block(plan.object, edge.file_block, edge.old).await;
            let result = match old {
                Ok(mut block) => {
                    block[edge.zero.clone()].fill(0);
                    plan.edges[i].checksum = self.checksum_of_edge(plan.object, edge.old, &block);
                    let written = self.storage.disk.write_block(edge.fresh, block).await;
                    written.map_err(|e| self.disk_error("rewrite", &e))
                }
                Err(e) => Err(e),
            };
            if let Err(e) = result {
                self.data.borrow_mut().abort_trim(plan);
                return Err(e);
            }
        }
        Ok(plan)
    }
}
