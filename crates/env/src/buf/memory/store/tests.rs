//! Tests of the store: which memory is kept, converted and returned to the system.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const MIB: usize = 1 << 20;
/// Chunks of 1 MiB.
const LARGE: usize = CLASSES - 2;

/// A store whose runs come from nowhere.
struct World {
    store: Store,
    mapped: usize,
}

impl World {
    fn new() -> World {
        World { store: Store::new(), mapped: 0 }
    }

    fn take(&mut self, class: usize) -> Address {
        self.take_for(class, false).at
    }

    fn take_for(&mut self, class: usize, zero: bool) -> Taken {
        self.store.take(class, zero).unwrap_or_else(|| {
            self.mapped += 1;
            self.store.add(class, self.mapped * RUN_BYTES);
            self.store.take(class, zero).expect("a new run")
        })
    }

    fn take_bytes(&mut self, class: usize, bytes: usize) -> Vec<Address> {
        (0..bytes / chunk_bytes(class)).map(|_| self.take(class)).collect()
    }

    /// Returns chunks to the store, and to the system what the store says. Returns how many bytes of runs and of chunks
    /// these were.
    fn keep(&mut self, class: usize, chunks: Vec<Address>) -> (usize, usize) {
        let mut gone = (0, 0);
        for at in chunks {
            self.store.keep(class, at);
            while let Some(back) = self.store.excess(at) {
                self.gave(back, &mut gone);
            }
        }
        gone
    }

    fn decay(&mut self, all: bool) -> (usize, usize) {
        let mut gone = (0, 0);
        for back in self.store.decay(all) {
            self.gave(back, &mut gone);
        }
        gone
    }

    fn gave(&mut self, back: GiveBack, gone: &mut (usize, usize)) {
        self.store.gave_back(back);
        match back.chunk {
            None => gone.0 += back.bytes,
            Some(_) => gone.1 += back.bytes,
        }
    }
}

/// Goal: memory that one class used and returned is used by another class before new memory is. Method: a cache of
/// small chunks is freed, large ones are allocated, and back again.
#[test]
fn memory_goes_from_class_to_class() {
    let mut w = World::new();
    w.store.keep_bytes(512 * MIB, 0);
    let small = w.take_bytes(0, 128 * MIB);
    assert_eq!(w.mapped, 32);
    assert_eq!(w.keep(0, small), (0, 0));
    let large = w.take_bytes(LARGE, 100 * MIB);
    assert_eq!((w.mapped, large.len()), (32, 100));
    w.keep(LARGE, large);
    w.take_bytes(0, 128 * MIB);
    assert_eq!(w.mapped, 32);
}

/// Goal: the memory that was used last is taken first, and is not returned to the system. Method: one chunk is taken
/// and returned while much memory is kept.
#[test]
fn what_is_used_stays() {
    let mut w = World::new();
    let hot = w.take(LARGE);
    let cold = w.take_bytes(0, 64 * MIB);
    w.keep(LARGE, vec![hot]);
    let (runs, chunks) = w.keep(0, cold);
    assert_eq!((runs, chunks), (20 * MIB, 0), "all beyond the bound and what the hot one's run had more");
    let mut w = World::new();
    let (hot, cold) = (w.take(LARGE), w.take_bytes(0, 64 * MIB));
    w.keep(0, cold);
    w.keep(LARGE, vec![hot]);
    for _ in 0..100 {
        assert_eq!(w.take(LARGE), hot);
        assert_eq!(w.keep(LARGE, vec![hot]), (0, 0));
    }
}

/// Goal: beyond the bound whole runs go, oldest first; single chunks only where no run is idle. Method: all of many
/// runs, then every second chunk.
#[test]
fn whole_runs_go() {
    let mut w = World::new();
    let all = w.take_bytes(0, 256 * MIB);
    assert_eq!(w.keep(0, all), (208 * MIB, 0));
    let mut w = World::new();
    let (mut keep, mut go) = (Vec::new(), Vec::new());
    for (i, at) in w.take_bytes(0, 256 * MIB).into_iter().enumerate() {
        if i % 2 == 0 { keep.push(at) } else { go.push(at) }
    }
    assert_eq!(w.keep(0, go), (0, 80 * MIB));
    assert_eq!(w.store.kept, 48 * MIB);
    let (runs, _) = w.keep(0, keep);
    assert!(runs >= 160 * MIB, "{runs}");
    assert!(w.store.kept <= 48 * MIB, "{}", w.store.kept);
}

/// Goal: a cache that was emptied is filled again from its former memory. Memory in use and kept memory together stay
/// within their bound, even if the kept memory has the wrong class. Method: a cache of 192 MiB is emptied and filled
/// again. Then every second chunk of it is, and then chunks of another class.
#[test]
fn what_was_in_use_serves_again() {
    let mut w = World::new();
    w.store.keep_bytes(48 * MIB, 240 * MIB);
    for _ in 0..3 {
        let all = w.take_bytes(0, 192 * MIB);
        assert_eq!(w.keep(0, all), (0, 0));
    }
    assert_eq!((w.mapped, w.store.kept), (48, 192 * MIB));
    let mut going = Vec::new();
    for (i, at) in w.take_bytes(0, 192 * MIB).into_iter().enumerate() {
        if i % 2 == 0 {
            going.push(at)
        }
    }
    assert_eq!(w.keep(0, going), (0, 0));
    let mut gone = (0, 0);
    for _ in 0..96 {
        let at = w.take(LARGE);
        while let Some(back) = w.store.excess(at) {
            w.gave(back, &mut gone);
        }
        assert!(w.store.out + w.store.kept <= 240 * MIB);
    }
    assert_eq!((gone, w.store.kept), ((0, 48 * MIB), 48 * MIB));
}

/// Goal: unused memory is returned to the system after some time, and used memory stays. When memory is short
/// everything beyond 48 MiB is returned, whole runs before chunks. Method: kept memory of which a part is used in
/// between.
#[test]
fn what_nobody_wants_goes_with_time() {
    let mut w = World::new();
    w.store.keep_bytes(512 * MIB, 0);
    let all = w.take_bytes(LARGE, 250 * MIB);
    w.keep(LARGE, all);
    for _ in 1..2 * STRETCH {
        assert_eq!(w.decay(false), (0, 0));
    }
    for _ in 0..100 {
        let some = w.take_bytes(LARGE, 100 * MIB);
        w.keep(LARGE, some);
        assert_eq!(w.decay(false).1, 0);
    }
    assert!((100 * MIB..130 * MIB).contains(&w.store.kept), "{}", w.store.kept);
    assert_eq!(w.decay(true).1, 0);
    assert!((44 * MIB..=48 * MIB).contains(&w.store.kept), "{}", w.store.kept);
    let mut w = World::new();
    w.store.keep_bytes(512 * MIB, 0);
    let (mut out, mut go) = (Vec::new(), Vec::new());
    for (i, at) in w.take_bytes(0, 256 * MIB).into_iter().enumerate() {
        if i % 2 == 0 { out.push(at) } else { go.push(at) }
    }
    w.keep(0, go);
    for _ in 0..100 {
        assert_eq!(w.decay(false), (0, 0), "within the bound");
    }
    assert_eq!(w.decay(true), (0, 80 * MIB));
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize, bool, usize),
    Keep(usize),
    Decay(bool),
    GaveBack(usize),
    KeepBytes(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..CLASSES, any::<bool>(), 1..80usize).prop_map(|(class, zero, n)| Step::Take(class, zero, n)),
        4 => (0..200usize).prop_map(Step::Keep),
        2 => any::<bool>().prop_map(Step::Decay),
        2 => (0..100usize).prop_map(Step::GaveBack),
        1 => (0..200usize, 0..400usize).prop_map(|(kept, held)| Step::KeepBytes(kept * MIB, held * MIB)),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Goal: no memory is ever given out twice or while it is being returned. Memory that counts as zero was not
    /// touched since it was zero. The counts are right. Method: random steps, with memory returned some time later,
    /// compared with a map of the touched pages.
    #[test]
    fn nobody_gets_what_another_has(steps in steps()) {
        let mut w = World::new();
        let mut out: Vec<(usize, Address)> = Vec::new();
        let mut taken = BTreeMap::new();
        let mut touched = BTreeSet::new();
        let mut going: Vec<GiveBack> = Vec::new();
        let pages = |at: Address, bytes: usize| (at / 4096)..(at + bytes) / 4096;
        for step in steps {
            match step {
                Step::Take(class, zero, n) => for _ in 0..n {
                    let Taken { at, is_zero } = w.take_for(class, zero);
                    let end = at + chunk_bytes(class);
                    let before = taken.range(..end).next_back();
                    prop_assert!(before.is_none_or(|(_, before_end)| *before_end <= at), "given out twice");
                    prop_assert!(going.iter().all(|g| g.at + g.bytes <= at || end <= g.at), "is being given back");
                    prop_assert!(at / RUN_BYTES == (end - 1) / RUN_BYTES);
                    if is_zero {
                        prop_assert!(pages(at, chunk_bytes(class)).all(|p| !touched.contains(&p)));
                    }
                    touched.extend(pages(at, chunk_bytes(class)));
                    taken.insert(at, end);
                    out.push((class, at));
                    going.extend(std::iter::from_fn(|| w.store.excess(at)));
                    prop_assert!(w.store.kept <= w.store.bound());
                },
                Step::Keep(n) => for i in 0..n.min(out.len()) {
                    let (class, at) = out.swap_remove((i * 7919) % out.len());
                    taken.remove(&at);
                    w.store.keep(class, at);
                    going.extend(std::iter::from_fn(|| w.store.excess(at)));
                    prop_assert!(w.store.kept <= w.store.bound());
                },
                Step::Decay(all) => going.extend(w.store.decay(all)),
                Step::GaveBack(n) => for _ in 0..n.min(going.len()) {
                    let back = going.swap_remove((n * 31) % going.len());
                    for page in pages(back.at, back.bytes) {
                        touched.remove(&page);
                    }
                    w.store.gave_back(back);
                },
                Step::KeepBytes(max, held) => w.store.keep_bytes(max, held),
            }
            for back in &going {
                let free = taken.range(..back.at + back.bytes).next_back().is_none_or(|(_, end)| *end <= back.at);
                prop_assert!(free, "somebody has what is given back");
            }
        }
        let s = &w.store;
        prop_assert_eq!(s.out, out.iter().map(|(class, _)| chunk_bytes(*class)).sum::<usize>());
        let n = |set: u64| set.count_ones() as usize;
        for (c, class) in s.classes.iter().enumerate() {
            let of = |set: fn(&Run) -> u64| s.runs.iter().filter(move |(_, r)| r.class == c && set(r) != 0).map(|(at, _)| *at);
            prop_assert_eq!(class.used, s.runs.values().filter(|r| r.class == c).map(|r| n(r.used)).sum::<usize>());
            prop_assert_eq!(class.with_used.values().copied().collect::<BTreeSet<_>>(), of(|r| r.used).collect());
            prop_assert_eq!(&class.with_fresh, &of(|r| r.fresh).collect());
        }
        prop_assert_eq!(s.kept, (0..CLASSES).map(|c| s.classes[c].used * chunk_bytes(c)).sum::<usize>());
        for (at, run) in &s.runs {
            let chunks_out = out.iter().filter(|(_, a)| run_of(*a) == *at).count();
            let chunks_going = going.iter().filter(|g| g.chunk.is_some() && run_of(g.at) == *at).count();
            prop_assert_eq!(run.used & run.fresh, 0);
            prop_assert_eq!(chunks_out + chunks_going + n(run.used) + n(run.fresh), RUN_BYTES / chunk_bytes(run.class));
            prop_assert_eq!(s.idle.get(&run.order) == Some(at), run.used != 0 && chunks_out + chunks_going == 0);
            prop_assert!(run.used == 0 || s.classes[run.class].with_used.get(&run.order) == Some(at));
        }
        prop_assert_eq!(s.idle.len(), s.runs.values().filter(|r| r.is_idle()).count());
        let runs_going = going.iter().filter(|g| g.chunk.is_none()).count();
        prop_assert_eq!(s.runs.len() + s.bare.len() + runs_going, w.mapped, "no run is lost");
    }
}

/// Goal: memory that was touched ahead of its use is taken first by any class, stays within the bound and the goal, and
/// is returned when it is not used. Method: three runs, the last of which was returned before.
#[test]
fn touched_ahead() {
    let mut w = World::new();
    w.store.keep_bytes(64 * MIB, 0);
    assert!(w.store.wants_touched(RUN_BYTES) && !w.store.wants_touched(RUN_BYTES - 1));
    for run in 1..=15 {
        assert!(w.store.wants_touched(usize::MAX));
        w.mapped += 1;
        w.store.add_touched(run * RUN_BYTES);
    }
    assert!(w.store.wants_touched(usize::MAX));
    w.mapped += 1;
    w.store.add_touched(16 * RUN_BYTES);
    assert!(!w.store.wants_touched(usize::MAX), "the bound of what may wait");
    let small = w.take_for(0, false);
    let large = w.take_for(LARGE, false);
    assert!(!small.is_zero && !large.is_zero, "what was touched counts as used");
    assert_eq!((w.mapped, w.store.in_use()), (16, chunk_bytes(0) + MIB));
    assert_eq!(w.keep(0, vec![small.at]), (0, 0));
    assert_eq!(w.keep(LARGE, vec![large.at]), (0, 0));
    let gone: usize = (0..20 * STRETCH).map(|_| w.decay(false).0).sum();
    assert_eq!(gone, 16 * MIB, "beyond the 48 MiB that stay for good");
    assert!(w.store.take_bare().is_some_and(|run| run % RUN_BYTES == 0));
}
