//! Ranks of two nodes, as threads of one process, over real connections: two ranks of each node share memory, and each
//! has a proxy at the other node. A page has 16 bytes. A run has two pages, and the runs of the file belong to the two
//! nodes by turns, so most calls touch pages of both nodes.

use amphi_mpiio::backend::Backend;
use amphi_mpiio::backend::memory::MemoryFile;
use amphi_mpiio::file::{CachedFile, Extent, Settings};
use amphi_mpiio::pace::Futex;
use amphi_mpiio::segment::{Geometry, Segment, Token};
use amphi_mpiio::team::Team;
use amphi_mpiio::team::message::{Kind, receive, send};
use amphi_mpiio::team::server::Server;
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

const SETTINGS: Settings = Settings {
    readable: true,
    writable: true,
    bypass_bytes: 4000,
    stream_bytes: 0,
    aside_bytes: 0,
    merge_parts: false,
    run_bytes: 32,
    prefetch_bytes: 0,
};

fn geometry(frames_per_rank: u32) -> Geometry {
    Geometry { ranks: 4, page_bytes: 16, frames_per_rank, spans: 3, dir_slots: 256, chunk_entries: 4 }
}

fn cached(segment: Segment, backend: &MemoryFile) -> CachedFile {
    CachedFile::new(segment, Box::new(backend.clone()), SETTINGS, Arc::new(Futex))
}

struct Node {
    leader: CachedFile,
    member: CachedFile,
    server: Server,
    token: Token,
}

fn node(backend: &MemoryFile, frames: u32) -> Node {
    let leader = Segment::create(geometry(frames), backend.size().unwrap()).unwrap();
    let token = leader.token();
    let member = Segment::attach(token, geometry(frames), 1).unwrap();
    let file = backend.clone();
    let make = move |rank| Ok(cached(Segment::attach(token, geometry(frames), rank)?, &file));
    let server = Server::start((Ipv4Addr::LOCALHOST.into(), 0), 2, 2, token.nonce, Arc::new(make)).unwrap();
    Node { leader: cached(leader, backend), member: cached(member, backend), server, token }
}

/// The four ranks of two nodes, connected: 0 and 1 are of node 0.
fn teams(backend: &MemoryFile, frames: u32, copies: bool) -> Vec<Team> {
    let nodes = [node(backend, frames), node(backend, frames)];
    let ports = nodes.each_ref().map(|n| (n.server.port(), n.token.nonce));
    let mut teams = Vec::new();
    for (index, node) in nodes.into_iter().enumerate() {
        let mut server = Some(node.server);
        for (local, file) in [node.leader, node.member].into_iter().enumerate() {
            let mut team = Team::new(file);
            if let Some(server) = server.take() {
                team.serve(server);
            }
            let leaders = ports.map(|(port, nonce)| ("127.0.0.1".to_owned(), port, 2 + local as u32, nonce));
            team.connect(index, &leaders, 2).unwrap();
            team.keep_copies(copies);
            teams.push(team);
        }
    }
    teams
}

/// Runs a program on each rank at the same time, then closes: flushes all shares and leaves.
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

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

/// Goal: calls over pages of both nodes are atomic, including the length of the file, with memory for all pages and for
/// few, and with and without copies of pages that are read again. Method: every rank writes scattered ranges with one
/// value, and extends a record whose value determines its length.
#[test]
fn calls_over_nodes_are_atomic() {
    for (frames, copies) in [(100, false), (2, false), (100, true), (2, true)] {
        let (copied, recalled) = (AtomicU64::new(0), AtomicU64::new(0));
        let backend = MemoryFile::new(vec![1; 500]);
        let last = AtomicU32::new(1);
        on_all(teams(&backend, frames, copies), |_, team| {
            let scattered: Vec<Extent> = (0..12).map(|i| Extent { offset: i * 40, length: 25 }).collect();
            for _ in 0..60 {
                let value = last.fetch_add(1, Ordering::SeqCst) as u8;
                team.write(&scattered, &[value; 300]).unwrap();
                for _ in 0..3 {
                    let mut seen = [0; 300];
                    assert_eq!(team.read(&scattered, &mut seen).unwrap(), 300);
                    assert!(seen.iter().all(|b| *b == seen[0]), "mixed: {seen:?}");
                }
            }
            copied.fetch_add(team.local().stats().copies, Ordering::SeqCst);
            recalled.fetch_add(team.local().stats().recalls, Ordering::SeqCst);
        });
        let counted = [copied, recalled].map(|count| count.into_inner() > 0);
        assert_eq!(counted, [copies; 2], "copies and their ends, {frames} frames");
        assert!(backend.bytes().iter().step_by(40).take(12).all(|b| *b == backend.bytes()[0]));

        let backend = MemoryFile::default();
        let turn = AtomicU32::new(1);
        on_all(teams(&backend, frames, copies), |rank, team| {
            for step in 0..60 {
                if rank % 2 == 0 {
                    // Writers take turns, so the file only grows.
                    let next = 2 * step + 1 + rank as u32 / 2;
                    while turn.load(Ordering::SeqCst) != next {
                        std::thread::yield_now();
                    }
                    let bytes = vec![next as u8; next as usize * 7];
                    team.write(&[Extent { offset: 0, length: bytes.len() as u64 }], &bytes).unwrap();
                    turn.store(next + 1, Ordering::SeqCst);
                } else {
                    let mut seen = vec![0; 1000];
                    let n = team.read(&[Extent { offset: 0, length: 1000 }], &mut seen).unwrap() as usize;
                    assert!(n == 0 || (n == seen[0] as usize * 7 && seen[..n].iter().all(|b| *b == seen[0])), "{n}");
                }
            }
        });
        assert_eq!(backend.bytes(), vec![120; 840]);
    }
}

/// Goal: ranks that write different bytes of the same pages lose none, and each reads the bytes that it wrote. Method:
/// every fourth piece of seven bytes is a rank's own; random pieces, few frames, drops of clean pages between.
#[test]
fn different_bytes_of_a_page_survive() {
    for seed in 0..6 {
        let backend = MemoryFile::new(vec![0; 900]);
        on_all(teams(&backend, 3, seed % 2 == 1), |rank, team| {
            let mut random = Random(seed * 31 + rank as u64);
            let mut mine = vec![0u8; 900];
            for _ in 0..150 {
                let piece = random.below(30) * 4 + rank as u64;
                let extents: Vec<Extent> =
                    (piece..120).step_by(4).take(4).map(|p| Extent { offset: p * 7, length: 7 }).collect();
                let mut bytes = vec![random.below(255) as u8 + 1; extents.len() * 7];
                if random.below(3) > 0 {
                    team.write(&extents, &bytes).unwrap();
                    for e in &extents {
                        mine[e.offset as usize..][..7].fill(bytes[0]);
                    }
                } else {
                    assert_eq!(team.read(&extents, &mut bytes).unwrap(), bytes.len() as u64);
                    let expected = extents.iter().flat_map(|e| mine[e.offset as usize..][..7].iter());
                    assert!(bytes.iter().eq(expected));
                }
                if random.below(20) == 0 {
                    team.local().flush_share(0, 1).unwrap();
                    team.drop_clean().unwrap();
                }
            }
            assert_eq!(team.size().unwrap(), 900);
            let before = team.pointer_add(5).unwrap();
            assert!(before.is_multiple_of(5) && before < 20);
        });
    }
}

/// Goal: strangers are refused, and a rank that vanishes in the middle of a call blocks no other one for ever. Method:
/// the test makes the connections itself: one with a wrong nonce, one with a wrong first message, and one that ends
/// with a page locked.
#[test]
fn vanished_and_foreign_clients() {
    let backend = MemoryFile::default();
    let Node { mut leader, member, server, token } = node(&backend, 8);
    let connect = |rank: u64, nonce: u64| {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).unwrap();
        send(&mut stream, Kind::Hello, (rank, nonce), &[], &[]).unwrap();
        let answer = receive(&mut stream);
        (stream, answer)
    };
    assert!(connect(2, token.nonce ^ 1).1.is_err());
    assert!(connect(1, token.nonce).1.is_err(), "that is a rank of the node itself");
    assert!(connect(9, token.nonce).1.is_err());
    let (mut good, answer) = connect(2, token.nonce);
    assert_eq!(answer.unwrap().kind, Kind::Reply);
    assert!(connect(2, token.nonce).1.is_err(), "that proxy is taken");
    send(&mut good, Kind::Write, (0, 0), &[Extent { offset: 3, length: 5 }], b"abcde").unwrap();
    assert_eq!(receive(&mut good).unwrap().number, 0);
    drop(good);
    let error = leader.write(&[Extent { offset: 0, length: 4 }], &[1; 4]).unwrap_err();
    assert_eq!(error, amphi_mpiio::error::Error::RankEnded(2));
    member.leave();
    leader.leave();
    drop(server);
}
