//! What is known of those who read: how large the pieces are for which a program asks, for which the files of a
//! directory, or one file, are asked for.
//!
//! Owns: what the mount has seen of reads that it served (`Habit`), and when it looks anew at those that the kernel
//! serves. Does not own: what follows from it (`kernel_reads`), what an open file has counted (`inode::open_file`).
//!
//! Pieces are seen only where the mount serves the reads: the kernel asks for as much as it reads ahead. So a program
//! whose long streams go through the kernel is looked at now and then, for the life of one open file. A look or a guess
//! that is wrong costs up to `WRONG` times the read, one that is right saves a fifth of it. Therefore the first look
//! comes after `FIRST` streams, and each time that the mount was chosen wrongly, by a look or by what was known, the
//! next one waits four times as long; it waits less again once as many opens were guessed right. So what looks and
//! wrong guesses cost together grows with the logarithm of the opens alone, whoever reads (see the tests).
//!
//! Invariants: nothing here waits; each table has a bound. A habit that was forgotten is one that is unknown.

use amphi_types::Ino;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Streams through the kernel before the first look.
const FIRST: u32 = 64;
/// How often the wait for the next look grows by four, at most.
const WRONG_MAX: u32 = 8;
/// Habits of each kind that are known at a time; all are forgotten when there are more.
const HABITS_MAX: usize = 4096;
/// Fewer reads of an open file say nothing of its readers, unless they are large.
const READS_MIN: u64 = 16;
/// A stream has at least so many times the large threshold.
const STREAM_PARTS: u64 = 4;

/// How large the pieces are in which somebody reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// Smaller than what is read past all caches.
    Small,
    /// At least as large.
    Large,
}

/// Why an open file has its reads served as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Chosen {
    /// Nobody has asked: there is no front end with pages.
    #[default]
    NotAsked,
    /// Something else than the habits of readers decided.
    Otherwise,
    /// By the kernel.
    Kernel,
    /// By the mount, for what is known.
    Known,
    /// By the mount, to look anew.
    Look,
}

/// What an open file has read until its close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reads {
    /// Requests of the application.
    pub(crate) requests: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
}

impl Reads {
    /// In which pieces a file was read whose reads came here, if they say it.
    pub(crate) fn pieces(self, large_bytes: u64) -> Option<Pieces> {
        let large = self.bytes / self.requests.max(1) >= large_bytes;
        self.says_something(large_bytes).then_some(if large { Pieces::Large } else { Pieces::Small })
    }

    /// Whether it is enough to say anything.
    pub(crate) fn says_something(self, large_bytes: u64) -> bool {
        self.requests >= READS_MIN || self.bytes >= large_bytes
    }

    /// Whether a file was read as a stream whose reads the kernel served.
    fn is_stream(self, small_bytes: u64, large_bytes: u64) -> bool {
        self.bytes >= large_bytes.saturating_mul(STREAM_PARTS) && self.bytes / self.requests.max(1) >= small_bytes
    }
}

/// What is known of one reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Habit {
    known: Option<Pieces>,
    /// Streams, or large reads that count as little as these, since the mount was chosen last; while it is chosen, how
    /// often that was right.
    streams: u32,
    /// How often the mount was chosen wrongly, less what was made good.
    wrong: u32,
}

impl Habit {
    /// Whether one of its next opens is to be looked at anew.
    pub(crate) fn is_due(&self) -> bool {
        self.known != Some(Pieces::Large) && self.streams >= self.patience()
    }

    fn patience(&self) -> u32 {
        FIRST << (2 * self.wrong.min(WRONG_MAX))
    }

    /// The kernel has served a stream.
    fn streamed(&mut self) {
        self.streams = self.streams.saturating_add(1);
    }

    /// The mount begins to serve an open file to look anew: that counts as wrong until it shows otherwise.
    fn looks(&mut self) {
        (self.wrong, self.streams) = ((self.wrong + 1).min(WRONG_MAX), 0);
    }

    /// A look has shown large pieces.
    fn found(&mut self) {
        (self.known, self.wrong) = (Some(Pieces::Large), self.wrong.saturating_sub(1));
    }

    /// The mount has served an open file, since that was `guessed` or for another reason.
    fn saw(&mut self, pieces: Pieces, guessed: bool) {
        match pieces {
            Pieces::Large if self.known == Some(Pieces::Large) => {
                self.streamed();
                if self.wrong > 0 && self.streams >= self.patience() {
                    (self.wrong, self.streams) = (self.wrong - 1, 0);
                }
            }
            // What was wrong before has to show more often that it has changed.
            Pieces::Large if self.wrong > 0 && self.streams < self.patience() => self.streamed(),
            Pieces::Large => (self.known, self.streams) = (Some(Pieces::Large), 0),
            Pieces::Small => {
                self.wrong = (self.wrong + u32::from(guessed)).min(WRONG_MAX);
                (self.known, self.streams) = (Some(Pieces::Small), 0);
            }
        }
    }
}

/// Who reads: what is known of each is known apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reader {
    /// The file itself.
    pub(crate) file: Ino,
    /// The directory that it was found in, if that is known.
    pub(crate) directory: Option<Ino>,
    /// The executable of the program; 0: all programs of which it is not known.
    pub(crate) program: u64,
}

/// What is known of a file, of files of its directory, and of the program that opens it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) file: Habit,
    pub(crate) directory: Habit,
    pub(crate) program: Habit,
}

impl Known {
    /// In which pieces a file is read next: large where one of them is known for that and none for the contrary. Those
    /// programs of which nothing is known are too many to speak for it.
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
    /// The mount serves one of its open files to look anew.
    pub(crate) fn looks(&self, reader: Reader) {
        self.0.lock().programs.change(reader.program, Habit::looks);
    }

    /// What is known of a reader.
    pub(crate) fn known(&self, reader: Reader) -> Known {
        let tables = self.0.lock();
        Known {
            file: tables.files.of(reader.file.0),
            directory: reader.directory.map_or(Habit::default(), |dir| tables.directories.of(dir.0)),
            program: tables.programs.of(reader.program),
        }
    }

    /// A reader has closed a file. `bounds`: the small and the large threshold.
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
                    // It was counted as wrong when it began.
                    (Chosen::Look, Pieces::Small) => tables.programs.change(reader.program, |h| h.saw(pieces, false)),
                    _ => tables.programs.change(reader.program, saw),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
