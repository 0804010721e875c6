//! `SlotMap`: which slots of the metadata region are taken.
//!
//! Owns: the set of taken slots. Does not own: by which segment. Invariant: a slot is taken once or free.

/// Which slots are taken.
#[derive(Clone, Debug)]
pub struct SlotMap {
    taken: Vec<bool>,
    free: usize,
    cursor: usize,
    /// Slots from here on have no storage of the file system below yet.
    backed: usize,
}

impl SlotMap {
    pub fn new(slots: u64) -> SlotMap {
        SlotMap { taken: vec![false; slots as usize], free: slots as usize, cursor: 0, backed: slots as usize }
    }

    /// Only slots below this number may be taken.
    pub fn set_backed(&mut self, slots: u64) {
        self.backed = (slots as usize).min(self.taken.len());
    }

    /// Slots that may be taken.
    pub fn backed(&self) -> u64 {
        self.backed as u64
    }

    /// Returns the number behind the highest slot that is used.
    pub fn end(&self) -> u64 {
        self.taken.iter().rposition(|taken| *taken).map_or(0, |last| last as u64 + 1)
    }

    /// Takes a free slot, preferably behind the last one taken.
    pub fn take(&mut self) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        let n = self.backed.max(1);
        let slot = (0..n).map(|i| (self.cursor + i) % n).find(|&i| !self.taken[i])?;
        self.mark(slot as u32);
        self.cursor = slot + 1;
        Some(slot as u32)
    }

    /// Takes a given slot; whether it was free and exists.
    pub fn mark(&mut self, slot: u32) -> bool {
        match self.taken.get_mut(slot as usize) {
            Some(taken) if !*taken => {
                *taken = true;
                self.free -= 1;
                true
            }
            _ => false,
        }
    }

    pub fn release(&mut self, slots: &[u32]) {
        for &slot in slots {
            assert!(std::mem::replace(&mut self.taken[slot as usize], false), "slot {slot} is freed twice");
            self.free += 1;
        }
    }
}
