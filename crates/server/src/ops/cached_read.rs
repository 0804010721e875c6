//! Reading the blocks of a plan: from the server's read cache, from the disk, or from the disk with the surrounding
//! blocks.
//!
//! Owns: the order of looking up, waiting, reading, verifying and keeping. Does not own: the decision (`read_way`),
//! which blocks are kept and when they are dropped (`amphi_object::read_cache`).
//!
//! Invariants: the caller holds the range of the plan, so the requested bytes do not change meanwhile. Surrounding
//! blocks are not locked. They are kept only if no write of them was under way (`OnTheWay::end`) and they match their
//! checksums. No error is reported if they do not match. Kept blocks were verified when they were read from the disk,
//! or were written by a flush. A read waits at most once for concurrent reads of the same blocks; after that it reads
//! the blocks itself. A read of many files does not wait.

use super::read_way::{ReadWay, State, way};
use crate::counters::add;
use crate::worker::request::RequestCx;
use crate::zone_target::verifier::Expected;
use amphi_data::{Checksum, ReadPlan, ReadSegment};
use amphi_env::{Buf, Env};
use amphi_object::Beside;
use amphi_object::OnTheWay;
use amphi_object::Piece;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, Errno, ObjectId, Result};
use amphi_wire::ReadAdvice;
use std::cell::Cell;

/// This many bytes of a large read are verified at once, while the disk reads the rest. In one run, reads of this size
/// in four pieces had 0.87 of the rate without checksums; in another run, reads in one piece that was verified
/// afterwards had 0.91 (docs/LESSONS.md).
const VERIFIED_BYTES: usize = 1 << 20;

/// Blocks of a file that are adjacent on the disk.
#[derive(Clone, Copy)]
struct Run {
    file_block: u64,
    physical: u64,
    blocks: u64,
}

impl Run {
    /// Some blocks of the run, counted from its first block.
    fn part(&self, from: u64, to: u64) -> Run {
        Run { file_block: self.file_block + from, physical: self.physical + from, blocks: to - from }
    }

    fn len(&self) -> usize {
        (self.blocks * BLOCK) as usize
    }
}

/// The parts of a plan that lie on the disk.
fn runs_of(plan: &ReadPlan) -> Vec<Run> {
    let run = |s: &ReadSegment| Some(Run { file_block: s.file_block, physical: s.physical?, blocks: s.blocks });
    plan.segments.iter().filter_map(run).collect()
}

/// A run that is being read from the disk, with its place in a buffer.
pub(super) struct Fetch {
    run: Run,
    at: usize,
    /// Whether a request needs the run.
    is_asked: bool,
    expected: Vec<Expected>,
    way: OnTheWay,
}

impl<E: Env> RequestCx<E> {
    /// The blocks of a plan that was made in this step. Holes, and bytes that are only in memory, have arbitrary
    /// content or zeros.
    pub(super) async fn read_blocks(&self, object: ObjectId, plan: &ReadPlan, advice: ReadAdvice) -> Result<Buf> {
        let counters = &self.worker.counters;
        let runs = runs_of(plan);
        let beside = || self.target.storage.disk.pattern.borrow_mut().note(object, self.session, plan.range);
        match self.read_way(plan, &runs, advice, beside) {
            ReadWay::Kept => {
                let mut buf = Buf::scratch(plan.aligned().len() as usize);
                let missing = self.copy_kept(plan, &runs, &mut buf);
                assert!(missing.is_empty(), "{object:?}: {} runs of a read are not kept as they were", missing.len());
                add(&counters.cache_hits, 1);
                add(&counters.cache_hit_bytes, plan.range.len());
                counters.histograms.read.note(plan.range.len(), [].into_iter());
                Ok(buf)
            }
            ReadWay::Unit(bytes) => self.read_unit(object, plan, &runs, bytes).await,
            other => {
                self.count_direct(other);
                self.read_direct(object, plan).await
            }
        }
    }

    fn count_direct(&self, way: ReadWay) {
        let counters = &self.worker.counters;
        match way {
            ReadWay::DirectLarge => add(&counters.read_through_large, 1),
            ReadWay::DirectAlone => add(&counters.read_through_alone, 1),
            ReadWay::DirectFirst => add(&counters.read_through_first, 1),
            ReadWay::DirectOnce => add(&counters.read_through_once, 1),
            ReadWay::DirectOff | ReadWay::Kept | ReadWay::Unit(_) => {}
        }
    }

    /// The blocks of a plan that is read in one request with others, if all of them are kept. Otherwise the caller has
    /// to read them into a buffer in which the plan begins at byte `base`; after verification it has to keep (`keep`)
    /// what this function returns.
    pub(super) fn kept_or_fetched(&self, plan: &ReadPlan, base: usize) -> std::result::Result<Buf, Vec<Fetch>> {
        let (counters, runs) = (&self.worker.counters, runs_of(plan));
        // Files of a directory that are read together are adjacent on the disk. If each of them were recorded, they
        // would displace the records about reads of large files.
        let way = self.read_way(plan, &runs, ReadAdvice::Normal, || Beside::Neighbour);
        if way == ReadWay::Kept {
            let mut buf = Buf::scratch(plan.aligned().len() as usize);
            let missing = self.copy_kept(plan, &runs, &mut buf);
            assert!(missing.is_empty(), "{} runs of a read are not kept as they were", missing.len());
            add(&counters.cache_hits, 1);
            add(&counters.cache_hit_bytes, plan.range.len());
            return Ok(buf);
        }
        if !matches!(way, ReadWay::Unit(_)) {
            self.count_direct(way);
            return Err(Vec::new());
        }
        add(&counters.cache_misses, 1);
        let from_block = plan.aligned().start / BLOCK;
        let fetch = |run: Run| {
            let at = base + ((run.file_block - from_block) * BLOCK) as usize;
            self.fetch(run, at, true)
        };
        Err(runs.into_iter().map(fetch).collect())
    }

    /// A run begins its way from the disk.
    fn fetch(&self, run: Run, at: usize, is_asked: bool) -> Fetch {
        let segment = ReadSegment { file_block: run.file_block, blocks: run.blocks, physical: Some(run.physical) };
        let expected = self.target.expect(&[segment], run.file_block, at);
        let way = OnTheWay::begin(&self.target.storage.disk.cache, run.physical..run.physical + run.blocks, false);
        Fetch { run, at, is_asked, expected, way }
    }

    fn read_way(&self, plan: &ReadPlan, runs: &[Run], advice: ReadAdvice, beside: impl FnOnce() -> Beside) -> ReadWay {
        let disk = &self.target.storage.disk;
        let cache = disk.cache.borrow();
        if !cache.is_open() || runs.is_empty() {
            return ReadWay::DirectOff;
        }
        // A damaged block is read from the disk, which reports the damage.
        let data = self.target.data.borrow();
        let damaged = |r: &Run| data.checksums.of_run(r.physical, r.blocks).contains(&Checksum::DAMAGED);
        let is_sound = data.checksums.is_empty() || !runs.iter().any(damaged);
        let alone = !self.target.coherence.tokens.on();
        way(&State {
            open: is_sound,
            is_kept: runs.iter().all(|r| cache.has(r.physical..r.physical + r.blocks)),
            alone,
            len: plan.range.len(),
            advice,
            // A read that is done only once predicts nothing about reads of other mounts.
            beside: if advice == ReadAdvice::Once { Beside::Nothing } else { beside() },
        })
    }

    /// Copies kept blocks into the blocks of a plan. Returns the blocks that are not kept. Everything else is filled
    /// with zeros.
    fn copy_kept(&self, plan: &ReadPlan, runs: &[Run], buf: &mut Buf) -> Vec<Run> {
        let from_block = plan.aligned().start / BLOCK;
        let (mut missing, mut filled) = (Vec::new(), 0);
        let mut cache = self.target.storage.disk.cache.borrow_mut();
        for run in runs {
            let at = ((run.file_block - from_block) * BLOCK) as usize;
            buf[filled..at].fill(0);
            filled = at + run.len();
            missing
                .extend(cache.copy(run.physical, &mut buf[at..filled]).into_iter().map(|m| run.part(m.start, m.end)));
        }
        buf[filled..].fill(0);
        missing
    }

    /// Reads the blocks of a plan from the disk.
    async fn read_direct(&self, object: ObjectId, plan: &ReadPlan) -> Result<Buf> {
        let aligned = plan.aligned();
        let from_block = aligned.start / BLOCK;
        let buf = Buf::scratch(aligned.len() as usize);
        let mut pieces: Vec<Piece> = Vec::with_capacity(plan.segments.len());
        for run in runs_of(plan) {
            let at = ((run.file_block - from_block) * BLOCK) as usize;
            amphi_object::push(
                &mut pieces,
                Piece { at, len: run.len(), disk: self.target.block_address(run.physical) },
            );
        }
        let expected = self.target.expect(&plan.segments, from_block, 0);
        let pieces = if expected.is_empty() { pieces } else { amphi_object::cut(pieces, VERIFIED_BYTES) };
        let verified = Cell::new(Ok(()));
        let verify = async |at: usize, part: &mut Buf| {
            if self.target.verify_part(object, &expected, part, at).await.is_err() {
                verified.set(Err(Errno::Io));
            }
        };
        self.worker.counters.histograms.read.request_bytes.note(plan.range.len());
        let (result, buf) = self.read_disk(buf, &pieces, verify).await;
        result.map_err(|e| self.target.disk_error("read", &e))?;
        assert_eq!(buf.len() as u64, aligned.len(), "{object:?}: the disk has filled another buffer");
        verified.get().map(|()| buf)
    }

    /// Reads pieces, and calls `look` with each when it has arrived.
    async fn read_disk(
        &self,
        buf: Buf,
        pieces: &[Piece],
        look: impl AsyncFn(usize, &mut Buf),
    ) -> (std::io::Result<()>, Buf) {
        add(&self.worker.counters.data_reads, pieces.len() as u64);
        let sizes = &self.worker.counters.histograms.read;
        sizes.note_disk(pieces.iter().map(|p| p.len));
        let since_ns = self.worker.now_ns();
        let read = self.target.storage.disk.read_pieces_with(buf, pieces, look).await;
        sizes.disk_us.note(self.worker.now_ns().saturating_sub(since_ns) / 1000);
        read
    }

    /// Takes the kept blocks of a plan, and reads the others from the disk with all surrounding blocks within multiples
    /// of `unit` bytes, which are then kept.
    async fn read_unit(&self, object: ObjectId, plan: &ReadPlan, runs: &[Run], unit: u64) -> Result<Buf> {
        let counters = &self.worker.counters;
        let mut buf = Buf::scratch(plan.aligned().len() as usize);
        let mut missing = self.copy_kept(plan, runs, &mut buf);
        let awaited = missing.first().and_then(|run| self.target.storage.disk.cache.borrow_mut().awaited(run.physical));
        if let Some(awaited) = awaited {
            add(&counters.cache_waits, 1);
            // The wait ends when the other read has ended, or was cancelled.
            let _ = awaited.await;
            missing = self.copy_kept(plan, runs, &mut buf);
        }
        if missing.is_empty() {
            add(&counters.cache_hits, 1);
            add(&counters.cache_hit_bytes, plan.range.len());
            counters.histograms.read.note(plan.range.len(), [].into_iter());
            return Ok(buf);
        }
        let (fetches, len) = self.fetches(object, plan, missing, unit);
        let mut pieces: Vec<Piece> = Vec::with_capacity(fetches.len());
        for f in &fetches {
            let disk = self.target.block_address(f.run.physical);
            amphi_object::push(&mut pieces, Piece { at: f.at, len: f.run.len(), disk });
        }
        let (result, mut read) = self.read_disk(Buf::scratch(len), &pieces, async |_, _| ()).await;
        if let Err(e) = result {
            if fetches.iter().all(|f| f.is_asked) {
                return Err(self.target.disk_error("read", &e));
            }
            // The error may concern a block that was not requested.
            drop(fetches);
            return self.read_direct(object, plan).await;
        }
        assert_eq!(read.len(), len, "{object:?}: the disk has filled another buffer");
        counters.histograms.read.request_bytes.note(plan.range.len());
        for f in fetches.iter().filter(|f| f.is_asked) {
            self.target.verify(object, &f.expected, &mut read).await?;
        }
        add(&counters.cache_misses, 1);
        let from_block = plan.aligned().start / BLOCK;
        for f in fetches {
            if f.is_asked {
                let at = ((f.run.file_block - from_block) * BLOCK) as usize;
                buf[at..at + f.run.len()].copy_from_slice(&read[f.at..f.at + f.run.len()]);
            }
            self.keep(f, &read);
        }
        Ok(buf)
    }

    /// The pieces that a read fetches, in the order of the file, and the total bytes: its missing runs, and the blocks
    /// of the surrounding unit that are not kept.
    fn fetches(&self, object: ObjectId, plan: &ReadPlan, missing: Vec<Run>, unit: u64) -> (Vec<Fetch>, usize) {
        let own = plan.aligned();
        let around = ByteRange::new(own.start / unit * unit, own.end.next_multiple_of(unit));
        let (first, end) = (own.start / BLOCK, own.end / BLOCK);
        let cache = &self.target.storage.disk.cache;
        let mut wanted: Vec<(Run, bool)> = missing.into_iter().map(|run| (run, true)).collect();
        let outside = self.target.data.borrow().plan_read(object, around);
        for run in runs_of(&outside) {
            for at in 0..run.blocks {
                let (block, physical) = (run.file_block + at, run.physical + at);
                if (first..end).contains(&block) || cache.borrow().has(physical..physical + 1) {
                    continue;
                }
                match wanted.last_mut() {
                    Some((last, false))
                        if last.file_block + last.blocks == block && last.physical + last.blocks == physical =>
                    {
                        last.blocks += 1;
                    }
                    _ => wanted.push((Run { file_block: block, physical, blocks: 1 }, false)),
                }
            }
        }
        wanted.sort_unstable_by_key(|(run, _)| run.file_block);
        let mut at = 0;
        let fetches = wanted.into_iter().map(|(run, is_asked)| {
            at += run.len();
            self.fetch(run, at - run.len(), is_asked)
        });
        let fetches = fetches.collect();
        (fetches, at)
    }

    /// Keeps a fetched range that lies in `read`, if it may be kept.
    pub(super) fn keep(&self, f: Fetch, read: &[u8]) {
        let bytes = &read[f.at..f.at + f.run.len()];
        if !f.way.end() {
            return;
        }
        let mut cache = self.target.storage.disk.cache.borrow_mut();
        let sums = f.expected.first().map_or(&[][..], |e| &e.checksums);
        assert!(sums.is_empty() || sums.len() as u64 == f.run.blocks, "{} of {} checksums", sums.len(), f.run.blocks);
        for (i, block) in bytes.chunks_exact(BLOCK as usize).enumerate() {
            let sum = sums.get(i).copied().unwrap_or(Checksum::NONE);
            // Requested blocks have been verified already.
            if f.is_asked || !sum.is_known() || Checksum::of(block) == sum {
                cache.put(f.run.physical + i as u64, block);
            }
        }
        if !f.is_asked {
            add(&self.worker.counters.cache_ahead_bytes, bytes.len() as u64);
        }
    }
}
