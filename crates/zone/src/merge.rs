//! `Merge`: changes of several sources as one, by key.
//!
//! Owns: the order of the sources, by which the newest change of each key wins. Does not own: the use of the changes
//! (`checkpoint`, `recover`). Nothing is copied: a change is a slice of the arena or of its page.

use crate::ZoneError;
use crate::change::Order;
use crate::layout::SEGMENTS_MAX;
use crate::segment::SegmentReader;
use amphi_env::Disk;
use amphi_types::item::Change;
use std::iter::Peekable;

/// The changes of the log and those of segments.
pub struct Merge<'log, 'a, D: Disk> {
    log: Peekable<Order<'log>>,
    /// Newest first.
    segments: Vec<SegmentReader<'a, D>>,
    /// Which sources have the present key: the log, then the segments.
    has_key: [bool; SEGMENTS_MAX + 1],
}

impl<'log, 'a, D: Disk> Merge<'log, 'a, D> {
    /// Begins with the first change. `segments`: the newest first.
    pub async fn begin(
        log: Order<'log>,
        mut segments: Vec<SegmentReader<'a, D>>,
    ) -> Result<Merge<'log, 'a, D>, ZoneError> {
        for segment in &mut segments {
            segment.next().await?;
        }
        Ok(Merge::of(log, segments))
    }

    /// A merge of the log and of segments that are already at the change with which the merge begins.
    pub fn of(log: Order<'log>, segments: Vec<SegmentReader<'a, D>>) -> Merge<'log, 'a, D> {
        assert!(segments.len() <= SEGMENTS_MAX, "a merge of {} segments, at most {SEGMENTS_MAX}", segments.len());
        let mut merge = Merge { log: log.peekable(), segments, has_key: [false; SEGMENTS_MAX + 1] };
        merge.look();
        merge
    }

    /// The present changes of all sources, the newest source first.
    fn heads(&mut self) -> impl Iterator<Item = Option<Change<'_>>> {
        std::iter::once(self.log.peek().copied()).chain(self.segments.iter().map(SegmentReader::present))
    }

    /// Notes which sources have the lowest key.
    fn look(&mut self) {
        let mut has_key = [false; SEGMENTS_MAX + 1];
        let mut lowest: Option<&[u8]> = None;
        for (index, head) in self.heads().enumerate() {
            let Some(key) = head.map(Change::key) else { continue };
            if lowest.is_none_or(|lowest| key < lowest) {
                lowest = Some(key);
                has_key = [false; SEGMENTS_MAX + 1];
            }
            has_key[index] = lowest == Some(key);
        }
        self.has_key = has_key;
    }

    /// The present change: of its key the newest. `None` at the end.
    pub fn present(&mut self) -> Option<Change<'_>> {
        let newest = self.has_key.iter().position(|has_key| *has_key)?;
        self.heads().nth(newest).flatten()
    }

    /// Continues to the next key.
    pub async fn advance(&mut self) -> Result<(), ZoneError> {
        if self.has_key[0] {
            self.log.next();
        }
        for (segment, _) in self.segments.iter_mut().zip(&self.has_key[1..]).filter(|(_, has_key)| **has_key) {
            segment.next().await?;
        }
        self.look();
        Ok(())
    }

    /// The segments, without the changes of the log.
    pub fn into_segments(self) -> Vec<SegmentReader<'a, D>> {
        self.segments
    }

    /// Returns the segments, the newest first, by which the merge knows how much of each was read.
    pub fn segments(&mut self) -> &mut [SegmentReader<'a, D>] {
        &mut self.segments
    }
}
