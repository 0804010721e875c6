//! Tests of learnt thresholds, with model machines for which the rate of each way is known.

use super::*;

const M: u64 = 1 << 20;
const MS: u64 = 1_000_000;

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

    /// Around one, up to `percent` off.
    fn about_one(&mut self, percent: u64) -> f64 {
        1.0 + (self.below(2001) as f64 / 1000.0 - 1.0) * percent as f64 / 100.0
    }
}

/// The throughput of each way, bytes per second.
#[derive(Clone, Copy)]
struct World {
    cached: f64,
    /// Direct requests of this class are as fast as the cache. Larger ones are faster, and smaller ones are slower.
    crossing: f64,
    /// The factor for each doubling.
    slope: f64,
}

impl World {
    fn random(dice: &mut Random) -> World {
        World {
            cached: (100 + dice.below(3000)) as f64 * M as f64,
            crossing: class(2 * M) as f64 + (dice.below(121) as f64 - 60.0) / 10.0,
            slope: 1.02 + dice.below(40) as f64 / 100.0,
        }
    }

    fn per_s(&self, class: usize, mode: Mode) -> f64 {
        match mode {
            Mode::Buffered => self.cached,
            Mode::Direct => self.cached * self.slope.powf(class as f64 - self.crossing).clamp(0.25, 4.0),
        }
    }

    fn best(&self, class: usize) -> f64 {
        self.per_s(class, Mode::Buffered).max(self.per_s(class, Mode::Direct))
    }
}

/// A program that does I/O, and its clock.
struct Program {
    learnt: Thresholds,
    way: Way,
    is_reused: bool,
    now_ns: u64,
    /// The time of the requests in the way in which they were served, and the time that they would have taken by the
    /// default and by the better way.
    took_ns: [f64; 3],
}

impl Program {
    fn new(way: Way) -> Program {
        Program { learnt: Thresholds::default(), way, is_reused: false, now_ns: SECOND_NS, took_ns: [0.0; 3] }
    }

    fn default_bytes(&self) -> u64 {
        if self.way == Way::Read { 4 * M } else { 2 * M }
    }

    fn mode(&self, bytes: u64, may_try: bool) -> Mode {
        let Program { way, is_reused, .. } = *self;
        let default_bytes = self.default_bytes();
        let asked = Asked { way, bytes, default_bytes, in_company: false, is_reused, may_try };
        if self.learnt.is_large(asked) { Mode::Direct } else { Mode::Buffered }
    }

    fn request(&mut self, bytes: u64, per_s: impl Fn(Mode) -> f64, best: f64) {
        let mode = self.mode(bytes, true);
        let usual = if bytes >= self.default_bytes() { Mode::Direct } else { Mode::Buffered };
        let took = |per_s: f64| bytes as f64 * 1e9 / per_s;
        let times = [took(per_s(mode)), took(per_s(usual)), took(best)];
        self.took_ns.iter_mut().zip(times).for_each(|(all, one)| *all += one);
        let since_ns = self.now_ns;
        self.now_ns += times[0] as u64;
        let direct = (mode == Mode::Direct).then_some(bytes);
        self.learnt.note(self.way, direct, bytes, (since_ns, self.now_ns), true);
    }

    fn forget_times(&mut self) {
        self.took_ns = [0.0; 3];
    }
}

/// Goal: if costs are steady, the better way is found within 10 s of I/O. From then on little time is lost compared
/// with the better way, and before that little compared with the default. Method: 500 random machines, with requests of
/// one size or of several, noise of 30 % from stretch to stretch, and a crossing near the default or far from it.
#[test]
fn steady_worlds_are_learnt() {
    let (mut worst, mut gained) = (1.0f64, 0);
    for seed in 0..500 {
        let mut dice = Random(seed);
        let world = World::random(&mut dice);
        let mut program = Program::new(if seed % 4 == 0 { Way::Read } else { Way::Write });
        let default = class(program.default_bytes());
        let least = if program.way == Way::Read { default } else { default - REACH };
        let only = least + dice.below((default + REACH - least) as u64) as usize;
        let mixed = seed % 3 == 0;
        let (mut noise, mut left) = ([1.0; 2], 0u64);
        let mut run = |program: &mut Program, dice: &mut Random, ns: u64| {
            let end_ns = program.now_ns + ns;
            while program.now_ns < end_ns {
                let of = if mixed { only.saturating_sub(dice.below(2) as usize).max(least) } else { only };
                if left < bytes_of(of) {
                    (noise, left) = ([dice.about_one(30), dice.about_one(30)], 16 * M);
                }
                left = left.saturating_sub(bytes_of(of));
                let now = noise;
                let per_s = |mode| world.per_s(of, mode) * now[usize::from(mode == Mode::Direct)];
                program.request(bytes_of(of), per_s, world.best(of));
            }
        };
        run(&mut program, &mut dice, 10 * SECOND_NS);
        let [took, usual, _] = program.took_ns;
        assert!(took <= usual * 1.05 + 2e8, "seed {seed}: {took} beside {usual}");
        // A slow disk needs more time for eight stretches of what is tried.
        run(&mut program, &mut dice, 60 * SECOND_NS);
        program.forget_times();
        run(&mut program, &mut dice, 10 * SECOND_NS);
        let [took, usual, best] = program.took_ns;
        worst = worst.max(took / best);
        gained += usize::from(took * 1.1 < usual);
        assert!(took <= usual * 1.08, "seed {seed}: {took} beside {usual}");
        if world.cached > 500.0 * M as f64 && !mixed {
            assert!(took <= best * 1.15, "seed {seed}: {} of the better way, at {only}", took / best);
        }
    }
    assert!(gained > 50, "{gained} of 500 gained");
    assert!(worst < 4.0, "{worst}");
}

/// Goal: however the rates of the ways change, trials cost no more than they may. Method: 500 random machines that
/// change at random times. In further workloads the tried way is always the slow one, or whichever way is used becomes
/// slow.
#[test]
fn trials_cost_little_in_any_world() {
    for seed in 0..500 {
        let mut dice = Random(1_000_000 + seed);
        let mut world = World::random(&mut dice);
        let mut program = Program::new(Way::Write);
        let of = class(2 * M) - REACH + dice.below(2 * REACH as u64) as usize;
        let bytes = bytes_of(of);
        let (begun_ns, usual) = (program.now_ns, program.mode(bytes, false));
        let mut change_ns = begun_ns;
        while program.now_ns < begun_ns + 30 * SECOND_NS {
            match seed % 2 {
                0 => {
                    let other_is_slow = |mode| world.cached * if mode == usual { 1.0 } else { 0.25 };
                    program.request(bytes, other_is_slow, world.cached);
                }
                _ => {
                    if program.now_ns >= change_ns {
                        world = World::random(&mut dice);
                        change_ns = program.now_ns + 500 * MS + dice.below(8 * SECOND_NS);
                    }
                    program.request(bytes, |mode| world.per_s(of, mode), world.best(of));
                }
            }
        }
        let [took, by_default, best] = program.took_ns;
        if seed % 2 == 0 {
            // A request that is on its way when a trial ends is the last.
            assert!(took <= by_default * 1.021 + 1e8, "seed {seed}: {took} beside {by_default}");
            assert_eq!(program.learnt.moved(Way::Write), [None; 2], "seed {seed}");
        } else {
            assert!(took < best * 4.0 && took < by_default * 1.3, "seed {seed}: {took}, {by_default}, {best}");
        }
    }
}

/// Goal: the threshold does not move because of data that is used again, requests that other rules decide, and requests
/// of sizes beyond its range. Reads never go direct below the default. A threshold that has moved is shown. Method:
/// direct requests of all sizes have twice the throughput.
#[test]
fn other_rules_come_first() {
    let faster = |mode| if mode == Mode::Direct { 2e9 } else { 1e9 };
    let run = |program: &mut Program, bytes: u64| {
        (0..40_000).for_each(|_| program.request(bytes, faster, 2e9));
        program.learnt.moved(program.way)
    };
    assert_eq!(run(&mut Program::new(Way::Write), M), [Some(M), None]);
    assert_eq!(run(&mut Program::new(Way::Write), 256 << 10), [Some(256 << 10), None]);
    assert_eq!(run(&mut Program::new(Way::Write), 128 << 10), [None; 2], "out of reach");
    assert_eq!(run(&mut Program::new(Way::Read), M), [None; 2]);
    let mut reused = Program { is_reused: true, ..Program::new(Way::Write) };
    assert_eq!(run(&mut reused, M), [None; 2]);
    reused.is_reused = false;
    run(&mut reused, M);
    assert_eq!(reused.mode(M, false), Mode::Direct);
    reused.is_reused = true;
    assert_eq!(reused.mode(M, false), Mode::Buffered, "it is read back again");
    let spoken = Program::new(Way::Write);
    for at in 0..40_000 {
        assert_eq!(spoken.mode(M, false), Mode::Buffered);
        spoken.learnt.note(Way::Write, None, M, (at * MS, (at + 1) * MS), true);
    }
    let slower = |mode| if mode == Mode::Direct { 1e9 } else { 2e9 };
    let mut reads = Program::new(Way::Read);
    (0..20_000).for_each(|_| reads.request(8 * M, slower, 2e9));
    assert_eq!(reads.learnt.moved(Way::Read), [Some(16 * M), None]);
}
