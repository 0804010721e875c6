//! Ranks of two nodes, as threads of one process, over a library that passes messages: as in `tests/team.rs`, but with
//! other connections, and with the faults of such a library. The library is a table of queues.

#![expect(clippy::disallowed_methods, reason = "threads that wait for each other in real time")]

use amphi_mpiio::backend::Backend;
use amphi_mpiio::backend::memory::MemoryFile;
use amphi_mpiio::error::{Error, Outcome};
use amphi_mpiio::file::{CachedFile, Extent, Settings};
use amphi_mpiio::pace::Futex;
use amphi_mpiio::segment::{Geometry, Segment};
use amphi_mpiio::team::Team;
use amphi_mpiio::team::link::Link;
use amphi_mpiio::team::message::Kind;
use amphi_mpiio::team::passing::{Dispatcher, PIECE_BYTES, Passing, Serving, Silence, ToLeader};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

/// Messages by receiver and tag, each with its sender.
type Queues = BTreeMap<(i32, i32), VecDeque<(i32, Vec<u8>)>>;

/// The shared state of all ranks in the library.
#[derive(Default)]
struct Library {
    queues: Mutex<Queues>,
    /// Longest message so far, and how many.
    longest: AtomicUsize,
    many: AtomicUsize,
    /// Every call fails.
    broken: AtomicBool,
    /// Messages of this rank are lost; 0 means that no rank's messages are.
    mute: AtomicI32,
}

impl Library {
    fn check(&self) -> Outcome {
        if self.broken.load(SeqCst) { Err(Error::Os { doing: "test", errno: libc::EIO }) } else { Ok(()) }
    }
}

/// The library as one rank has it.
#[derive(Clone)]
struct Seat {
    rank: i32,
    library: Arc<Library>,
}

impl Passing for Seat {
    fn probe(&self, from: Option<i32>, tag: i32) -> Outcome<Option<(i32, usize)>> {
        self.library.check()?;
        let queues = self.library.queues.lock().unwrap();
        let Some(queue) = queues.get(&(self.rank, tag)) else { return Ok(None) };
        let found = queue.iter().find(|(sender, _)| from.is_none_or(|from| from == *sender));
        Ok(found.map(|(sender, bytes)| (*sender, bytes.len())))
    }

    fn receive(&self, from: i32, tag: i32, into: &mut [u8]) -> Outcome {
        self.library.check()?;
        let mut queues = self.library.queues.lock().unwrap();
        let queue = queues.get_mut(&(self.rank, tag)).expect("probe has shown it");
        let at = queue.iter().position(|(sender, _)| *sender == from).expect("probe has shown it");
        into.copy_from_slice(&queue.remove(at).unwrap().1);
        Ok(())
    }

    fn send(&self, to: i32, tag: i32, data: &[u8]) -> Outcome {
        self.library.check()?;
        self.library.longest.fetch_max(data.len(), SeqCst);
        self.library.many.fetch_add(1, SeqCst);
        if data.len() == PIECE_BYTES {
            // Others have time to send between two pieces.
            std::thread::sleep(Duration::from_millis(20));
        }
        if self.library.mute.load(SeqCst) != self.rank {
            let mut queues = self.library.queues.lock().unwrap();
            queues.entry((to, tag)).or_default().push_back((self.rank, data.to_vec()));
        }
        Ok(())
    }
}

/// Silence is never noticed during a test, or very soon. Patient ranks never send the question, even on a busy machine:
/// a question that arrives after its leader has ended would remain in the queue.
const PATIENT: Silence = Silence { ask: Duration::from_secs(30), gone: Duration::from_secs(60) };
const CURIOUS: Silence = Silence { ask: Duration::from_millis(1), gone: Duration::from_secs(60) };
const IMPATIENT: Silence = Silence { ask: Duration::from_millis(50), gone: Duration::from_millis(800) };

/// Ranks 1 and 2 are of node 0, ranks 3 and 4 of node 1, led by 1 and 3.
const LEADERS: [i32; 2] = [1, 3];

fn settings(page: u32) -> Settings {
    Settings {
        readable: true,
        writable: true,
        bypass_bytes: 1 << 30,
        stream_bytes: 0,
        aside_bytes: 0,
        merge_parts: false,
        run_bytes: u64::from(page) * 2,
        prefetch_bytes: 0,
    }
}

/// The ranks of two nodes.
struct Job {
    teams: Vec<Team>,
    library: Arc<Library>,
    nonces: Vec<u64>,
}

/// The first `many` of the four ranks; `dead` are ranks by node of which their leaders say that they ended.
fn job(
    backend: &MemoryFile,
    (page, frames): (u32, u32),
    silence: Silence,
    dead: &'static [(usize, u64)],
    many: usize,
) -> Job {
    let library = Arc::new(Library::default());
    let geometry =
        Geometry { ranks: 4, page_bytes: page, frames_per_rank: frames, spans: 3, dir_slots: 256, chunk_entries: 4 };
    let cached = move |segment, backend: &MemoryFile| {
        CachedFile::new(segment, Box::new(backend.clone()), settings(page), Arc::new(Futex))
    };
    let (mut files, mut nonces) = (Vec::new(), Vec::new());
    for (node, leader) in LEADERS.into_iter().enumerate() {
        let segment = Segment::create(geometry, backend.size().unwrap()).unwrap();
        let token = segment.token();
        let (file, cached) = (backend.clone(), cached);
        let serving = Serving {
            ranks: (2, 2),
            nonce: token.nonce,
            make: Arc::new(move |rank| Ok(cached(Segment::attach(token, geometry, rank)?, &file))),
            lives: Box::new(move |rank| !dead.contains(&(node, rank))),
            leaders: LEADERS.to_vec(),
            silence,
        };
        let seat = Seat { rank: leader, library: library.clone() };
        let member = Segment::attach(token, geometry, 1).unwrap();
        files.push((cached(segment, backend), Some(Dispatcher::start(Arc::new(seat), serving).unwrap())));
        files.push((cached(member, backend), None));
        nonces.push(token.nonce);
    }
    let mut teams = Vec::new();
    for (index, (file, dispatcher)) in files.into_iter().enumerate().take(many) {
        let (node, local) = (index / 2, index % 2);
        let mut team = Team::new(file);
        dispatcher.into_iter().for_each(|d| team.serve(d));
        let seat = Arc::new(Seat { rank: index as i32 + 1, library: library.clone() });
        let numbers = (2 + local as u64, nonces[1 - node]);
        let place = (node as u64, local as u64);
        let link = ToLeader::greet(seat, LEADERS[1 - node], numbers, place, silence).unwrap();
        let link: Option<Box<dyn Link>> = Some(Box::new(link));
        team.join(node, if node == 0 { vec![None, link] } else { vec![link, None] }, 2);
        teams.push(team);
    }
    Job { teams, library, nonces }
}

/// Runs a program on each rank at the same time, then closes.
fn on_all(teams: Vec<Team>, program: impl Fn(usize, &mut Team) + Sync) {
    let barrier = Barrier::new(teams.len());
    std::thread::scope(|scope| {
        for (rank, mut team) in teams.into_iter().enumerate() {
            let (program, barrier) = (&program, &barrier);
            scope.spawn(move || {
                program(rank, &mut team);
                barrier.wait();
                team.local().flush_share(rank as u32 % 2, 2).unwrap();
                barrier.wait();
                team.leave();
            });
        }
    });
}

/// Goal: calls over pages of both nodes are atomic, and nothing that was sent is left over at the end.
/// Method: every rank writes scattered ranges with one value and reads them back; the queues are empty afterwards.
#[test]
fn calls_by_messages_are_atomic() {
    for frames in [100, 2] {
        let backend = MemoryFile::new(vec![1; 500]);
        let last = AtomicU32::new(1);
        let Job { teams, library, .. } = job(&backend, (16, frames), PATIENT, &[], 4);
        on_all(teams, |_, team| {
            let scattered: Vec<Extent> = (0..12).map(|i| Extent { offset: i * 40, length: 25 }).collect();
            for _ in 0..40 {
                let value = last.fetch_add(1, SeqCst) as u8;
                team.write(&scattered, &[value; 300]).unwrap();
                let mut seen = [0; 300];
                assert_eq!(team.read(&scattered, &mut seen).unwrap(), 300);
                assert!(seen.iter().all(|b| *b == seen[0]), "mixed: {seen:?}");
            }
            assert_eq!(team.size().unwrap(), 500);
        });
        assert!(backend.bytes().iter().step_by(40).take(12).all(|b| *b == backend.bytes()[0]));
        let left: usize = library.queues.lock().unwrap().values().map(VecDeque::len).sum();
        assert_eq!(left, 0, "messages that nobody received");
        assert!(library.many.load(SeqCst) > 50, "pages moved, but not at once");
    }
}

/// Goal: data longer than the limit of the library is sent in pieces and reassembled, of all ranks at once. Method:
/// pages of two pieces; each rank writes and reads parts of them on both nodes, and all ranks ask all the time whether
/// the others are there.
#[test]
fn long_messages_go_in_pieces() {
    const PAGE: usize = PIECE_BYTES + 4096;
    let backend = MemoryFile::default();
    let Job { teams, library, .. } = job(&backend, (PAGE as u32, 2), CURIOUS, &[], 4);
    let barrier = Barrier::new(4);
    let piece = PAGE + 1000;
    on_all(teams, |rank, team| {
        let mine: Vec<u8> = (0..piece).map(|i| (i / 7 + rank * 31) as u8).collect();
        let at = |rank: usize| Extent { offset: (rank * piece) as u64 + 5, length: piece as u64 };
        // The other node has most of these bytes.
        team.write(&[at((rank + 2) % 4)], &mine).unwrap();
        barrier.wait();
        let mut back = vec![0; piece];
        let other = (rank + 1) % 4;
        assert_eq!(team.read(&[at((other + 2) % 4)], &mut back).unwrap(), piece as u64);
        assert!(back.iter().enumerate().all(|(i, b)| *b == (i / 7 + other * 31) as u8), "other bytes");
    });
    assert_eq!(library.longest.load(SeqCst), PIECE_BYTES);
}

/// Goal: a slow rank is not mistaken for one that has ended. Method: a call waits for a page several times as long as
/// the allowed silence, with a leader that answers; a rank that sends no request meanwhile is served afterwards.
#[test]
fn slow_ranks_are_waited_for() {
    let backend = MemoryFile::new(vec![0; 100]);
    let Job { teams, .. } = job(&backend, (16, 8), IMPATIENT, &[], 4);
    let barrier = Barrier::new(4);
    let first = [Extent { offset: 0, length: 4 }];
    on_all(teams, |rank, team| {
        match rank {
            0 => {
                team.local().write_held(&first, &[1; 4]).unwrap();
                barrier.wait();
                std::thread::sleep(IMPATIENT.gone * 3);
                team.local().release();
            }
            2 => {
                barrier.wait();
                let begun = Instant::now();
                team.write(&first, &[3; 4]).unwrap();
                assert!(begun.elapsed() > IMPATIENT.gone * 2, "it had to wait");
            }
            _ => {
                barrier.wait();
                std::thread::sleep(IMPATIENT.gone * 3);
                assert_eq!(team.size().unwrap(), 100);
            }
        };
    });
    assert_eq!(&backend.bytes()[..4], &[3; 4]);
}

/// Goal: a rank that ended with a page locked is detected by its leader's answer, and the others' calls fail. Method: a
/// connection that the test opens itself and then leaves unused in the middle of a call.
#[test]
fn ranks_that_ended_stop_nobody() {
    let backend = MemoryFile::new(vec![0; 100]);
    let Job { mut teams, library, nonces } = job(&backend, (16, 8), IMPATIENT, &[(1, 1)], 3);
    let seat = Arc::new(Seat { rank: 4, library });
    let greet = |nonce| ToLeader::greet(seat.clone(), 1, (3, nonce), (1, 1), IMPATIENT);
    assert!(matches!(greet(nonces[0] ^ 1), Err(Error::Os { errno: libc::EACCES, .. })), "a stranger");
    let mut link = greet(nonces[0]).unwrap();
    assert!(matches!(greet(nonces[0]), Err(Error::Os { errno: libc::EACCES, .. })), "that proxy is taken");
    let extents = [Extent { offset: 3, length: 5 }];
    link.send(Kind::Write, (0, 0), &extents, b"abcde").unwrap();
    assert_eq!(link.receive().unwrap().number, 0);
    std::mem::forget(link);
    let error = teams[0].write(&extents, &[1; 5]).unwrap_err();
    assert_eq!(error, Error::RankEnded(3));
    leave(teams);
}

/// Goal: if a leader's messages are lost, or the library fails, the calls end with an error; a leader that is there
/// nevertheless learns that it has lost a rank. Method: the leader's messages are lost for a while; then every call of
/// the library fails.
#[test]
fn silent_leaders_and_broken_libraries_end_calls() {
    let backend = MemoryFile::new(vec![0; 100]);
    let Job { mut teams, library, nonces } = job(&backend, (16, 8), IMPATIENT, &[], 3);
    let seat = Arc::new(Seat { rank: 4, library: library.clone() });
    let mut link = ToLeader::greet(seat, 1, (3, nonces[0]), (1, 1), IMPATIENT).unwrap();
    let extents = [Extent { offset: 3, length: 5 }];
    link.send(Kind::Write, (0, 0), &extents, b"abcde").unwrap();
    assert_eq!(link.receive().unwrap().number, 0);
    library.mute.store(1, SeqCst);
    link.send(Kind::Size, (0, 0), &[], &[]).unwrap();
    let begun = Instant::now();
    assert!(matches!(link.receive(), Err(Error::Os { errno: libc::ETIMEDOUT, .. })));
    assert!(begun.elapsed() >= IMPATIENT.gone && begun.elapsed() < Duration::from_secs(20));
    assert!(link.send(Kind::Size, (0, 0), &[], &[]).is_err(), "it is at its end");
    library.mute.store(0, SeqCst);
    // An invalid message ends the connection of its sender, which is notified.
    let strange = Seat { rank: 3, library: library.clone() };
    strange.send(1, 1, &[7; 100]).unwrap();
    assert!(matches!(teams[2].pointer(), Err(Error::Os { errno: libc::ECONNRESET, .. })));
    // The rank had a page locked.
    assert_eq!(teams[0].write(&extents, &[1; 5]).unwrap_err(), Error::RankEnded(3));
    library.broken.store(true, SeqCst);
    let there = [Extent { offset: 35, length: 5 }];
    assert!(matches!(teams[1].write(&there, &[1; 5]), Err(Error::Os { errno: libc::EIO, .. })));
    leave(teams);
}

/// All ranks leave at the same time, because leaders wait for the others.
fn leave(teams: Vec<Team>) {
    std::thread::scope(|scope| {
        for team in teams {
            scope.spawn(move || team.leave());
        }
    });
}
