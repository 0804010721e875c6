//! `Verifier`: whether blocks get checksums, how fast they are scrubbed, and which are known to be damaged.
//!
//! Owns: the settings, the progress of a scrub, and at most `DAMAGED_MAX` damaged blocks, so that each is reported
//! once. Does not own: finding them (`checksums`), reading everything (`ops::scrub`).

use amphi_data::Checksum;
use amphi_types::ObjectId;
use amphi_types::limits::BLOCK;
use amphi_wire::FINDINGS_MAX;
use futures_channel::mpsc;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Most damaged blocks of a target that are remembered.
const DAMAGED_MAX: usize = 4096;
/// Most characters of the name of a file that are remembered of a damaged block.
const NAME_CHARS_MAX: usize = 200;

/// A block that does not read as its checksum says.
struct Damaged {
    checksum: Checksum,
    object: ObjectId,
    file_block: u64,
    /// Counts what was found.
    number: u64,
    /// The line that tells the operator which block it is.
    line: String,
}

/// Neighbouring blocks as they should read.
#[derive(Debug)]
pub struct Expected {
    /// The position of the blocks in the buffer, bytes.
    pub at: usize,
    /// First block of the file.
    pub file_block: u64,
    /// First block of the disk.
    pub physical: u64,
    /// The checksum of each block.
    pub checksums: Vec<Checksum>,
}

/// Whether blocks get checksums, and which do not read as theirs say.
#[derive(Default)]
pub struct Verifier {
    on: Cell<bool>,
    scrub_bytes_per_s: Cell<u64>,
    /// Wakes the scrubber.
    bell: RefCell<Option<mpsc::Sender<()>>>,
    /// Bytes that the scrubber has read since it began at the first object.
    pass_bytes: Cell<u64>,
    /// The disk has failed, and the failure was reported.
    failed_once: Cell<bool>,
    /// Damaged blocks, by physical block.
    damaged: RefCell<BTreeMap<u64, Damaged>>,
    /// Number of damaged blocks that were found.
    found: Cell<u64>,
}

impl Verifier {
    /// Returns whether newly written blocks get checksums.
    pub fn is_on(&self) -> bool {
        self.on.get()
    }

    /// Bytes of file data that are read each second to be verified; 0 means none.
    pub fn scrub_bytes_per_s(&self) -> u64 {
        self.scrub_bytes_per_s.get()
    }

    /// Sets both settings.
    pub fn tune(&self, on: bool, scrub_bytes_per_s: u64) {
        self.on.set(on);
        if self.scrub_bytes_per_s.replace(scrub_bytes_per_s) != scrub_bytes_per_s
            && let Some(bell) = &mut *self.bell.borrow_mut()
        {
            // The bell has been rung already, or there is no receiver.
            let _ = bell.try_send(());
        }
    }

    /// Returns whether this failure of the disk has to be reported: only the first one has to be.
    pub fn is_first_failure(&self) -> bool {
        !self.failed_once.replace(true)
    }

    /// The receiver for the scrubber.
    pub fn listen(&self) -> mpsc::Receiver<()> {
        let (bell, rung) = mpsc::channel(1);
        self.bell.replace(Some(bell));
        rung
    }

    /// Counts the bytes that the scrubber has read.
    pub fn note_scrubbed(&self, bytes: u64) {
        self.pass_bytes.set(self.pass_bytes.get() + bytes);
    }

    /// The scrubber has read everything once.
    pub fn note_pass(&self) {
        self.pass_bytes.set(0);
    }

    /// Bytes that the scrubber has read since it began at the first object.
    pub fn pass_bytes(&self) -> u64 {
        self.pass_bytes.get()
    }

    /// Returns whether a damaged block is new, and there is space to remember it.
    pub fn is_new(&self, physical: u64, checksum: Checksum) -> bool {
        let damaged = self.damaged.borrow();
        damaged.len() < DAMAGED_MAX && damaged.get(&physical).is_none_or(|d| d.checksum != checksum)
    }

    /// Remembers a damaged block: a block of a file that is called `name`, at byte `address` of the disk.
    pub fn note(
        &self,
        physical: u64,
        checksum: Checksum,
        (object, file_block): (ObjectId, u64),
        name: &str,
        address: u64,
    ) {
        let number = self.found.get() + 1;
        self.found.set(number);
        let skipped = name.chars().count().saturating_sub(NAME_CHARS_MAX);
        let (dots, end): (&str, String) = (if skipped > 0 { "..." } else { "" }, name.chars().skip(skipped).collect());
        let line = format!("{dots}{end}: 4096 bytes from byte {} on (byte {address} of the disk)", file_block * BLOCK);
        let mut damaged = self.damaged.borrow_mut();
        damaged.insert(physical, Damaged { checksum, object, file_block, number, line });
        assert!(damaged.len() <= DAMAGED_MAX, "{} damaged blocks are noted, at most {DAMAGED_MAX}", damaged.len());
    }

    /// The last findings that are still remembered, newest first.
    pub fn findings(&self) -> Vec<String> {
        let damaged = self.damaged.borrow();
        let mut last: Vec<&Damaged> = damaged.values().collect();
        last.sort_unstable_by_key(|d| std::cmp::Reverse(d.number));
        last.iter().take(FINDINGS_MAX).map(|d| d.line.clone()).collect()
    }

    /// Forgets damaged blocks for which `is` is false. Returns how many are left.
    pub fn still_damaged(&self, is: impl Fn(u64, Checksum, ObjectId, u64) -> bool) -> u64 {
        let mut damaged = self.damaged.borrow_mut();
        damaged.retain(|&physical, d| is(physical, d.checksum, d.object, d.file_block));
        damaged.len() as u64
    }
}
