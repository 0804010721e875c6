//! A scheduler that lets one of several threads continue at a time and chooses by a seed which, and the array of bytes
//! to which the calls of ranks are applied in the order in which they held all of their locks.
//!
//! An actor is a thread that is scheduled: a rank, or a proxy that works for one.

use amphi_mpiio::file::Extent;
use amphi_mpiio::pace::Pace;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// The present call of a rank and, once it has committed, the result that it should return.
#[derive(Clone, Default)]
pub struct Call {
    pub extents: Vec<Extent>,
    pub write: Option<Vec<u8>>,
    pub expected: Option<Vec<u8>>,
}

pub struct State {
    running: usize,
    /// Actors that may continue; one that waits may not until a wake.
    pub ready: Vec<bool>,
    done: Vec<bool>,
    failed: bool,
    random: Random,
    pub model: Vec<u8>,
    /// The number of the write that made each byte, and of the last one.
    pub stamps: Vec<u64>,
    pub writes: u64,
    pub calls: Vec<Call>,
    /// Ranks that wait for each other, and how often all have met.
    waiting: usize,
    meetings: usize,
}

pub struct Scheduler {
    state: Mutex<State>,
    turns: Vec<Condvar>,
}

impl Scheduler {
    pub fn new(actors: usize, seed: u64, model: Vec<u8>) -> Arc<Scheduler> {
        let state = State {
            running: 0,
            ready: vec![true; actors],
            done: vec![false; actors],
            failed: false,
            random: Random::new(seed),
            stamps: vec![0; model.len()],
            writes: 0,
            model,
            calls: vec![Call::default(); actors],
            waiting: 0,
            meetings: 0,
        };
        let turns = (0..actors).map(|_| Condvar::new()).collect();
        Arc::new(Scheduler { state: Mutex::new(state), turns })
    }

    /// The known state, also after a check has failed while the lock was held.
    pub fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, state: &mut State) {
        state.failed = true;
        self.turns.iter().for_each(Condvar::notify_all);
    }

    /// Chooses who continues. When no actor can continue, all fail.
    fn choose(&self, state: &mut State) {
        let can: Vec<usize> = (0..state.ready.len()).filter(|r| state.ready[*r] && !state.done[*r]).collect();
        if can.is_empty() {
            if !state.done.iter().all(|d| *d) {
                println!("all actors wait for each other");
                self.fail(state);
            }
            return;
        }
        state.running = can[state.random.below(can.len() as u64) as usize];
        self.turns[state.running].notify_all();
    }

    pub fn await_turn(&self, actor: usize) {
        let state = self.locked();
        let state = self.turns[actor].wait_while(state, |s| s.running != actor && !s.failed);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        let failed = state.failed;
        drop(state);
        if failed && !std::thread::panicking() {
            // Without a report: the first one that failed has reported the error.
            std::panic::resume_unwind(Box::new("another actor failed"));
        }
    }

    pub fn give_turn(&self, actor: usize, ready: bool) {
        let mut state = self.locked();
        state.ready[actor] = ready;
        self.choose(&mut state);
        drop(state);
        self.await_turn(actor);
    }

    pub fn finish(&self, actor: usize) {
        let mut state = self.locked();
        state.done[actor] = true;
        if std::thread::panicking() {
            self.fail(&mut state);
        } else {
            self.choose(&mut state);
        }
    }

    /// Waiting actors check again.
    pub fn wake(&self) {
        self.locked().ready.fill(true);
    }

    /// Waits until `ranks` actors have arrived here.
    pub fn meet(&self, actor: usize, ranks: usize) {
        let mut state = self.locked();
        let meeting = state.meetings;
        state.waiting += 1;
        if state.waiting == ranks {
            state.waiting = 0;
            state.meetings += 1;
            state.ready.fill(true);
            return;
        }
        drop(state);
        while self.locked().meetings == meeting {
            self.give_turn(actor, false);
        }
    }

    /// Runs a program as an actor, on its own thread.
    pub fn act(self: &Arc<Scheduler>, actor: usize, program: impl FnOnce()) {
        struct Finish(Arc<Scheduler>, usize);
        impl Drop for Finish {
            fn drop(&mut self) {
                SCHEDULED.set(false);
                self.0.finish(self.1);
            }
        }
        let _finish = Finish(self.clone(), actor);
        self.await_turn(actor);
        SCHEDULED.set(true);
        program();
    }

    /// A rank is about to make a call.
    pub fn announce(&self, rank: usize, extents: &[Extent], write: Option<&[u8]>) {
        let call = Call { extents: extents.to_vec(), write: write.map(<[u8]>::to_vec), expected: None };
        self.locked().calls[rank] = call;
    }

    /// A read by a rank returned these bytes; memory behind them has to be unchanged, `0xee`.
    pub fn check_read(&self, rank: usize, bytes: &[u8], n: usize) {
        let state = self.locked();
        let call = &state.calls[rank];
        let expected = call.expected.as_ref().expect("a call commits");
        assert_eq!(n, expected.len(), "rank {rank} reads {:?}", call.extents);
        assert_eq!(&bytes[..n], &expected[..], "rank {rank} reads {:?}", call.extents);
        assert!(bytes[n..].iter().all(|b| *b == 0xee), "memory behind the end of the file was touched");
    }
}

/// How an actor waits.
pub struct ActorPace {
    pub scheduler: Mutex<Arc<Scheduler>>,
    pub actor: usize,
    /// The rank for which it works.
    pub rank: usize,
}

impl ActorPace {
    pub fn new(scheduler: &Arc<Scheduler>, actor: usize, rank: usize) -> Arc<ActorPace> {
        Arc::new(ActorPace { scheduler: Mutex::new(scheduler.clone()), actor, rank })
    }

    pub fn scheduler(&self) -> Arc<Scheduler> {
        self.scheduler.lock().unwrap().clone()
    }
}

thread_local! {
    static SCHEDULED: Cell<bool> = const { Cell::new(false) };
}

impl Pace for ActorPace {
    fn wait(&self, word: &AtomicU32, expected: u32) -> bool {
        assert!(SCHEDULED.get(), "nobody else runs between the phases, so nothing is to be waited for");
        while word.load(Ordering::SeqCst) == expected {
            self.scheduler().give_turn(self.actor, false);
        }
        true
    }

    fn wake(&self, _: &AtomicU32, _: u32) {
        self.scheduler().wake();
    }

    fn point(&self) {
        if SCHEDULED.get() {
            self.scheduler().give_turn(self.actor, true);
        }
    }

    /// Time continues with the writes.
    fn seconds(&self) -> u32 {
        self.scheduler().locked().writes as u32 / 8
    }

    fn committed(&self) {
        let scheduler = self.scheduler();
        let state = &mut *scheduler.locked();
        let call = &mut state.calls[self.rank];
        let mut expected = Vec::new();
        let Some(bytes) = &call.write else {
            let length = state.model.len();
            for e in &call.extents {
                let (start, end) = (e.offset as usize, (e.offset + e.length) as usize);
                expected.extend_from_slice(&state.model[start.min(length)..end.min(length)]);
            }
            call.expected = Some(expected);
            return;
        };
        // A call over several nodes reports this once more, when it releases the last lock.
        if call.expected.is_some() {
            return;
        }
        state.writes += 1;
        let mut at = 0;
        for e in call.extents.iter().filter(|e| e.length > 0) {
            let (start, end) = (e.offset as usize, (e.offset + e.length) as usize);
            if state.model.len() < end {
                state.model.resize(end, 0);
                state.stamps.resize(end, state.writes);
            }
            state.model[start..end].copy_from_slice(&bytes[at..at + e.length as usize]);
            state.stamps[start..end].fill(state.writes);
            at += e.length as usize;
        }
        call.expected = Some(expected);
    }
}

/// Random ranges of a file of about this length.
pub fn random_extents(random: &mut Random, file_bytes: u64) -> Vec<Extent> {
    let mut at = random.below(file_bytes - 100);
    let many = 1 + random.below(4);
    (0..many)
        .map(|_| {
            let length = if random.below(12) == 0 { random.below(90) } else { random.below(20) };
            let extent = Extent { offset: at, length };
            at += length + random.below(12);
            extent
        })
        .collect()
}

/// The same ranges again, moved behind the original ones, as far as the file reaches.
pub fn go_on(extents: &mut [Extent], file_bytes: u64) {
    let (begin, end) = (extents[0].offset, extents.last().map_or(0, |e| e.offset + e.length));
    if 2 * end - begin < file_bytes {
        extents.iter_mut().for_each(|e| e.offset += end - begin);
    }
}
