//! Tests of `Readers`. A model adds up what reads cost when the mount guesses rightly or wrongly in which pieces a
//! program will read a file.

use super::*;
use crate::policy::kernel_reads::{self, Input, Server};
use amphi_types::{IoMode, KernelCache};

const SMALL: u64 = 32 << 10;
const LARGE: u64 = 4 << 20;
/// Time of a read in large pieces that the kernel serves, over the same by the mount.
const BY_KERNEL: f64 = 1.2;
/// Time of a read in small pieces that the mount serves, divided by the time if the kernel serves it: the least and the
/// largest value.
const BY_MOUNT: (f64, f64) = (4.0, 20.0);

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// An open of a large file and how it is read.
#[derive(Clone, Copy)]
struct Open {
    reader: Reader,
    pieces: Pieces,
    /// The stream is long enough that its bytes tell how the file is read.
    long: bool,
    /// The mount serves the file in any case, as it does for programs that also write.
    forced: bool,
}

impl Open {
    fn reads(&self, by_kernel: bool) -> Reads {
        let bytes = if self.long { 64 << 20 } else { 64 << 10 };
        let one = match self.pieces {
            _ if by_kernel => 1 << 20,
            Pieces::Small => 64 << 10,
            Pieces::Large => 16 << 20,
        };
        Reads { requests: bytes / one + 1, bytes: bytes + one }
    }
}

/// A mount with its readers, and what their reads have cost.
#[derive(Default)]
struct Model {
    readers: Readers,
    cost: f64,
    /// The cost if the best choice is made each time.
    best: f64,
    /// The cost if the kernel serves the reads each time.
    kernel: f64,
    /// How often the mount served small pieces although no rule forced it to.
    wrong: u32,
    /// The server of the last stream.
    server: Option<Server>,
}

impl Model {
    fn decide(&self, open: &Open) -> Server {
        let known = self.readers.known(open.reader);
        kernel_reads::decide(&Input {
            kernel_cache: KernelCache::Auto,
            only_reads: !open.forced,
            asked: IoMode::Auto,
            contended: false,
            written: false,
            executable: false,
            size: 64 << 20,
            large_bytes: LARGE,
            memory_short: false,
            advised: None,
            known: known.pieces(open.reader.program != 0),
            look: known.program.is_due(),
        })
    }

    /// Opens, reads and closes a file. `factor`: how much longer the mount takes if it is the wrong choice.
    fn run(&mut self, open: &Open, factor: f64) {
        let server = self.decide(open);
        self.server = Some(server);
        if server == Server::MountLook {
            self.readers.looks(open.reader);
        }
        let chosen = match server {
            Server::MountOpen => Chosen::Otherwise,
            Server::MountLarge => Chosen::Known,
            Server::MountLook => Chosen::Look,
            _ => Chosen::Kernel,
        };
        if !open.forced {
            let (by_kernel, by_mount) = match open.pieces {
                Pieces::Large => (BY_KERNEL, 1.0),
                Pieces::Small => (1.0, factor),
            };
            self.cost += if server.is_kernel() { by_kernel } else { by_mount };
            self.best += by_kernel.min(by_mount);
            self.kernel += by_kernel;
            self.wrong += u32::from(!server.is_kernel() && open.pieces == Pieces::Small);
        }
        self.readers.closed(open.reader, chosen, open.reads(server.is_kernel()), (SMALL, LARGE));
    }
}

/// How a program of the model reads.
#[derive(Clone, Copy)]
enum Kind {
    Small,
    Large,
    /// Large this many times in 100.
    Mixed(u64),
    /// Large pieces and then small ones, or in the opposite order, each for this many opens.
    Turns(u64),
}

fn pieces(kind: Kind, number: u64, random: &mut Random) -> Pieces {
    let large = match kind {
        Kind::Small => false,
        Kind::Large => true,
        Kind::Mixed(percent) => random.below(100) < percent,
        Kind::Turns(length) => (number / length).is_multiple_of(2),
    };
    if large { Pieces::Large } else { Pieces::Small }
}

/// Goal: for any reader, the rule costs little more than leaving everything to the kernel, and at most a quarter more
/// than perfect knowledge. The mount eventually serves a program that reads in large pieces. Method: 1,000 random sets
/// of programs that share files and directories. Some of the programs are unknown, some opens are forced to the mount,
/// and costs are drawn at random. Each run is compared with the rule by which the mount served everything unknown.
#[test]
fn regret_is_bounded() {
    const OPENS: u64 = 2000;
    let (mut worst, mut sum, mut sum_before): (f64, f64, f64) = (0.0, 0.0, 0.0);
    for seed in 0..1000 {
        let mut random = Random(seed);
        let programs: Vec<Kind> = (0..1 + random.below(6))
            .map(|_| match random.below(5) {
                0 | 1 => Kind::Small,
                2 => Kind::Large,
                3 => Kind::Mixed(random.below(101)),
                _ => Kind::Turns(1 + random.below(500)),
            })
            .collect();
        let (files, forced) = (1 + random.below(1000), random.below(3) * 10);
        let mut model = Model::default();
        let mut before = 0.0;
        for number in 0..OPENS {
            let program = random.below(programs.len() as u64);
            let file = random.below(files);
            let reader = Reader {
                file: Ino(1000 + file),
                directory: (!file.is_multiple_of(3)).then_some(Ino(1 + file % 7)),
                program,
            };
            let pieces = pieces(programs[program as usize], number, &mut random);
            let open = Open { reader, pieces, long: random.below(4) > 0, forced: random.below(100) < forced };
            let factor = BY_MOUNT.0 + random.below(1000) as f64 / 1000.0 * (BY_MOUNT.1 - BY_MOUNT.0);
            model.run(&open, factor);
            before += if open.forced || pieces == Pieces::Large { 0.0 } else { factor - 1.0 };
        }
        // Each program pays for its first wrong guess and for some more.
        let allowed = BY_MOUNT.1 * 4.0 * programs.len() as f64;
        assert!(model.cost <= model.kernel + allowed, "seed {seed}: {} beside {}", model.cost, model.kernel);
        assert!(model.wrong <= 6 * programs.len() as u32, "seed {seed}: {} wrong", model.wrong);
        worst = worst.max(model.cost / model.best);
        sum += model.cost / model.best;
        sum_before += (model.best + before) / model.best;
    }
    assert!(worst < 1.25, "{worst}");
    let (mean, mean_before) = (sum / 1000.0, sum_before / 1000.0);
    assert!(mean < 1.1 && mean_before > 5.0, "{mean} beside {mean_before}");
}

/// Goal: no sequence of opens makes the rule wrong more often than the logarithm of the opens. Method: an adversary
/// reads in small pieces whenever the mount serves a file by its own choice, and in large ones otherwise, each time
/// with another file and directory. The test runs with and without forced opens that show large pieces.
#[test]
fn an_adversary_gains_little() {
    for forced in [false, true] {
        let mut model = Model::default();
        for number in 0..50_000u64 {
            let reader = Reader { file: Ino(number / 2 + 2), directory: Some(Ino(1 + number / 10)), program: 7 };
            let mut open =
                Open { reader, pieces: Pieces::Large, long: true, forced: forced && number.is_multiple_of(2) };
            if !open.forced && !model.decide(&open).is_kernel() {
                open.pieces = Pieces::Small;
            }
            model.run(&open, BY_MOUNT.1);
        }
        assert!((1..=8).contains(&model.wrong), "{} wrong guesses", model.wrong);
    }
}

/// Goal: one look finds a program that reads in large pieces, and all of its later opens are served by the mount. A
/// program that changes is detected with one wrong open. Unknown programs are served by the kernel. Method: new files
/// are opened one by one.
#[test]
fn a_look_finds_large_pieces() {
    let mut model = Model::default();
    let run = |model: &mut Model, number: u64, program: u64, pieces| {
        let reader = Reader { file: Ino(number), directory: None, program };
        model.run(&Open { reader, pieces, long: true, forced: false }, 4.0);
        model.server.expect("it ran")
    };
    for number in 1..=u64::from(FIRST) {
        assert_eq!(run(&mut model, number, 5, Pieces::Large), Server::KernelUnknown);
    }
    assert_eq!(run(&mut model, 1000, 5, Pieces::Large), Server::MountLook);
    for number in 2000..2100 {
        assert_eq!(run(&mut model, number, 5, Pieces::Large), Server::MountLarge);
        assert_eq!(run(&mut model, number + 1000, 6, Pieces::Small).is_kernel(), number != 2064, "another program");
    }
    assert_eq!(run(&mut model, 4000, 5, Pieces::Small), Server::MountLarge);
    for number in 5000..5000 + 4 * u64::from(FIRST) {
        assert_eq!(run(&mut model, number, 5, Pieces::Small), Server::KernelSmallReads);
    }
    assert_eq!(run(&mut model, 6000, 5, Pieces::Small), Server::MountLook);
}

/// Goal: knowledge of the file, the directory or the program is sufficient alone, and knowledge that speaks against
/// large pieces has more weight. Method: all combinations.
#[test]
fn small_pieces_speak_louder() {
    let habits = [None, Some(Pieces::Small), Some(Pieces::Large)].map(|known| Habit { known, ..Habit::default() });
    for file in habits {
        for directory in habits {
            for program in habits {
                let all = [file.known, directory.known, program.known];
                let known = Known { file, directory, program };
                let has = |pieces| all.contains(&Some(pieces));
                let expected = match (has(Pieces::Small), has(Pieces::Large)) {
                    (true, _) => Some(Pieces::Small),
                    (_, true) => Some(Pieces::Large),
                    _ => None,
                };
                assert_eq!(known.pieces(true), expected);
                if program.known == Some(Pieces::Large) && !all[..2].iter().any(Option::is_some) {
                    assert_eq!(known.pieces(false), None, "other programs are not known by this one");
                }
            }
        }
    }
}

/// Goal: few and short reads show nothing about a habit, and a single large one does. The amount of knowledge is
/// bounded. Method: examples, and more readers than the tables can remember.
#[test]
fn what_reads_say() {
    let pieces = |requests, bytes| Reads { requests, bytes }.pieces(LARGE);
    assert_eq!(pieces(0, 0), None);
    assert_eq!(pieces(READS_MIN - 1, LARGE - 1), None);
    assert_eq!(pieces(READS_MIN, 16), Some(Pieces::Small));
    assert_eq!(pieces(4, LARGE), Some(Pieces::Small));
    assert_eq!(pieces(1, LARGE), Some(Pieces::Large));
    let readers = Readers::default();
    for n in 0..3 * HABITS_MAX as u64 {
        let reader = Reader { file: Ino(n), directory: Some(Ino(n)), program: n };
        readers.closed(reader, Chosen::Otherwise, Reads { requests: 1, bytes: LARGE }, (SMALL, LARGE));
        assert_eq!(readers.known(reader).pieces(true), Some(Pieces::Large));
    }
    let tables = readers.0.lock();
    assert!([&tables.files, &tables.directories, &tables.programs].iter().all(|t| t.0.len() <= HABITS_MAX));
}
