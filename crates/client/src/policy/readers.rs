//! `Readers`: the sizes of the pieces in which programs read, and in which files and the files of a directory are read.
//!
//! Owns: the properties of the reads that the mount served (`Habit`), and the times at which it examines again a
//! program whose reads the kernel serves. Does not own: the use of this knowledge (`kernel_reads`), the counts of one
//! open file (`inode::open_file`).
//!
//! The size of the pieces is visible only where the mount serves the reads, because the kernel requests as much as it
//! reads ahead. So from time to time the mount serves one open file of a program whose long streams go through the
//! kernel (a *look*). A wrong look or guess costs up to `WRONG` times the read, and a right one saves a fifth of the
//! read. Therefore the first look at a program comes only after `FIRST` streams. After each wrong choice of the mount,
//! by a look or by a guess, the wait for the next look is four times as long. The wait becomes shorter again when as
//! many opens were guessed right. So the total cost of looks and wrong guesses grows with the logarithm of the number
//! of opens, whatever the program does (see the tests).
//!
//! Invariants: nothing here waits, and each table has a bound. An entry that was dropped counts as unknown.

use amphi_types::Ino;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Number of streams that the kernel serves before the first look.
const FIRST: u32 = 64;
/// How often the wait for the next look can be multiplied by four.
const WRONG_MAX: u32 = 8;
const _: () = assert!(FIRST.leading_zeros() > 2 * WRONG_MAX, "the longest wait can be counted");
/// Most habits of each kind. When there are more, all are forgotten.
const HABITS_MAX: usize = 4096;
/// An open file with fewer reads says nothing about its readers, unless the reads are large.
const READS_MIN: u64 = 16;
/// A stream is at least this many times as long as the large threshold.
const STREAM_PARTS: u64 = 4;

/// The size of the pieces in which something is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// Smaller than the size from which reads bypass all caches.
    Small,
    /// Pieces of at least the size from which reads bypass all caches.
    Large,
}

/// The reason why the kernel or the mount serves the reads of an open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Chosen {
    /// There is no front end that caches pages, so there was no choice.
    #[default]
    NotAsked,
    /// Another rule than the habits of readers decided who serves the reads.
    Otherwise,
    /// The kernel serves the reads.
    Kernel,
    /// The mount serves the reads, because of a known habit.
    Known,
    /// The mount serves the reads, to observe the program again.
    Look,
}

/// The reads of an open file until its close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reads {
    /// Number of requests of the application.
    pub(crate) requests: u64,
    /// Bytes of these requests.
    pub(crate) bytes: u64,
}

impl Reads {
    /// The size of the pieces in which a file was read, if the mount served its reads and they show it.
    pub(crate) fn pieces(self, large_bytes: u64) -> Option<Pieces> {
        let large = self.bytes / self.requests.max(1) >= large_bytes;
        self.says_something(large_bytes).then_some(if large { Pieces::Large } else { Pieces::Small })
    }

    /// Returns whether there were enough reads to draw a conclusion.
    pub(crate) fn says_something(self, large_bytes: u64) -> bool {
        self.requests >= READS_MIN || self.bytes >= large_bytes
    }

    /// Returns whether the file was read as a stream whose reads the kernel served.
    fn is_stream(self, small_bytes: u64, large_bytes: u64) -> bool {
        self.bytes >= large_bytes.saturating_mul(STREAM_PARTS) && self.bytes / self.requests.max(1) >= small_bytes
    }
}

/// The habit of one reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Habit {
    known: Option<Pieces>,
    /// Number of streams while the kernel serves the reads, and of large reads that are as unimportant as these, since
    /// the mount was chosen last. While the mount is chosen: how often that was right.
    streams: u32,
    /// How often choosing the mount was wrong, minus what later right choices have compensated.
    wrong: u32,
}

impl Habit {
    /// Returns whether one of the reader's next opens has to be observed.
    pub(crate) fn is_due(&self) -> bool {
        self.known != Some(Pieces::Large) && self.streams >= self.patience()
    }

    fn patience(&self) -> u32 {
        FIRST << (2 * self.wrong.min(WRONG_MAX))
    }

    /// Called when the kernel has served a stream.
    fn streamed(&mut self) {
        self.streams = self.streams.saturating_add(1);
    }

    /// Called when the mount begins a look at an open file. The look counts as a wrong choice until it proves to be
    /// right.
    fn looks(&mut self) {
        (self.wrong, self.streams) = ((self.wrong + 1).min(WRONG_MAX), 0);
    }

    /// Called when a look has shown large pieces.
    fn found(&mut self) {
        (self.known, self.wrong) = (Some(Pieces::Large), self.wrong.saturating_sub(1));
    }

    /// Called when the mount has served an open file, because of a habit (`guessed`) or for another reason.
    fn saw(&mut self, pieces: Pieces, guessed: bool) {
        match pieces {
            Pieces::Large if self.known == Some(Pieces::Large) => {
                self.streamed();
                if self.wrong > 0 && self.streams >= self.patience() {
                    (self.wrong, self.streams) = (self.wrong - 1, 0);
                }
            }
            // After wrong choices, more large reads are required as evidence that the habit has changed.
            Pieces::Large if self.wrong > 0 && self.streams < self.patience() => self.streamed(),
            Pieces::Large => (self.known, self.streams) = (Some(Pieces::Large), 0),
            Pieces::Small => {
                self.wrong = (self.wrong + u32::from(guessed)).min(WRONG_MAX);
                (self.known, self.streams) = (Some(Pieces::Small), 0);
            }
        }
    }
}

/// A reader: the file, its directory and the program, each with a habit of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reader {
    /// The habit of the file itself.
    pub(crate) file: Ino,
    /// The directory in which the file was found, if that is known.
    pub(crate) directory: Option<Ino>,
    /// The executable of the program. 0 means all programs whose executable is not known.
    pub(crate) program: u64,
}

/// The habits of a file, of the files of its directory, and of the program that opens it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) file: Habit,
    pub(crate) directory: Habit,
    pub(crate) program: Habit,
}

impl Known {
    /// The size of the pieces in which the file will be read: large if at least one habit says so and no habit says the
    /// opposite. Programs with an unknown executable are too many to count here.
    pub(crate) fn pieces(&self, program_is_known: bool) -> Option<Pieces> {
        let program = self.program.known.filter(|pieces| program_is_known || *pieces == Pieces::Small);
        let mut known = [self.file.known, self.directory.known, program].into_iter().flatten();
        known.clone().find(|pieces| *pieces == Pieces::Small).or_else(|| known.next())
    }
}

#[derive(Default)]
struct Habits(BTreeMap<u64, Habit>);

impl Habits {
    fn of(&self, key: u64) -> Habit {
        self.0.get(&key).copied().unwrap_or_default()
    }

    fn change(&mut self, key: u64, change: impl Fn(&mut Habit)) {
        if self.0.len() >= HABITS_MAX && !self.0.contains_key(&key) {
            self.0.clear();
        }
        change(self.0.entry(key).or_default());
        assert!(self.0.len() <= HABITS_MAX, "{} habits of one kind, at most {HABITS_MAX}", self.0.len());
    }
}

#[derive(Default)]
struct Tables {
    files: Habits,
    directories: Habits,
    programs: Habits,
}

/// The habits of all readers of a mount.
#[derive(Default)]
pub(crate) struct Readers(Mutex<Tables>);

impl Readers {
    /// Called when the mount begins to observe one of the reader's open files.
    pub(crate) fn looks(&self, reader: Reader) {
        self.0.lock().programs.change(reader.program, Habit::looks);
    }

    /// The known facts about a reader.
    pub(crate) fn known(&self, reader: Reader) -> Known {
        let tables = self.0.lock();
        Known {
            file: tables.files.of(reader.file.0),
            directory: reader.directory.map_or(Habit::default(), |dir| tables.directories.of(dir.0)),
            program: tables.programs.of(reader.program),
        }
    }

    /// Called when a reader has closed a file. `bounds` are the small and the large threshold.
    pub(crate) fn closed(&self, reader: Reader, chosen: Chosen, reads: Reads, bounds: (u64, u64)) {
        match chosen {
            Chosen::NotAsked => {}
            Chosen::Kernel if reads.is_stream(bounds.0, bounds.1) => {
                self.0.lock().programs.change(reader.program, Habit::streamed);
            }
            Chosen::Kernel => {}
            Chosen::Otherwise | Chosen::Known | Chosen::Look => {
                let Some(pieces) = reads.pieces(bounds.1) else { return };
                let saw = |habit: &mut Habit| habit.saw(pieces, chosen != Chosen::Otherwise);
                let mut tables = self.0.lock();
                tables.files.change(reader.file.0, saw);
                if let Some(dir) = reader.directory {
                    tables.directories.change(dir.0, saw);
                }
                match (chosen, pieces) {
                    (Chosen::Look, Pieces::Large) => tables.programs.change(reader.program, Habit::found),
                    // The look was counted as wrong when it began.
                    (Chosen::Look, Pieces::Small) => tables.programs.change(reader.program, |h| h.saw(pieces, false)),
                    _ => tables.programs.change(reader.program, saw),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
