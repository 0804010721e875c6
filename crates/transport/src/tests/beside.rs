//! Payloads in memory that the client has passed to the server.

use super::*;
use crate::{Carried, LinkError};
use amphi_env::{Conn as _, Tx as _};
use amphi_wire::Lane;
use amphi_wire::frame::{FrameKind, HEAD_BYTES, Head, Place as Where};
use amphi_wire::handshake::SignedHello;
use futures_util::future::join_all;
use futures_util::poll;
use std::pin::pin;

const KIB: usize = 1 << 10;

fn passing(break_one_in: u64) -> SimConfig {
    SimConfig { passes_memory: true, break_one_in, ..SimConfig::default() }
}

fn place(seed: u64, sim: SimConfig) -> Place {
    Place::with(seed, Net::Socket, sim, ServerAuth::default())
}

/// Goal: large payloads are passed in memory and small ones in the stream, in both directions. Each request is executed
/// once with the bytes that its caller gave, and no answer changes later. This holds over connections that break
/// anywhere, and with callers that reuse memory as soon as they have it back. Method: many seeds with 8 callers on 8
/// slots; the server compares the bytes that it gets, and so do the callers, once more at the end.
#[test]
fn payloads_beside_the_stream_are_whole() {
    let (mut breaks, mut all) = (0, Carried::default());
    for seed in 0..40 {
        let place = place(seed, passing([0, 15, 30][seed as usize % 3]));
        let (calls, carried) = place.run(async {
            let config = LinkConfig {
                timeouts: Timeouts { first_connect: Duration::from_secs(5), ..Timeouts::default() },
                ..place.config()
            };
            let link = place.try_connect(config).await.expect("a connection in the end");
            let callers = (0..8u64).map(|caller| {
                let link = link.clone();
                async move {
                    let mut kept = Vec::new();
                    for i in 0..6 {
                        let n = caller * 10 + i;
                        let (offset, len) = (n * 777, [3, 65, 300, 1100][n as usize % 4] * KIB + n as usize);
                        let pad = (offset % 4096) as usize;
                        if i % 2 == 0 {
                            let call = read(n, offset, offset + len as u64);
                            let (answer, data) = link.call(Lane::Normal, call, None, pad).await.expect("an answer");
                            assert_eq!(answer.result, Ok(Reply::Data));
                            let data = data.expect("bytes");
                            assert_eq!((data.len(), data.window().start % 4096), (len, pad));
                            kept.push((n, pad, data));
                        } else {
                            let payload = pattern(n, pad, len);
                            let done = link.call(Lane::Normal, write(n, offset), Some(payload), 0).await.unwrap();
                            assert_eq!(done.0.result, Ok(Reply::Written { roomy: true }));
                        }
                        // The next owner of memory that is free.
                        drop(pattern(n + 1, 0, 300 * KIB));
                    }
                    for (n, pad, data) in kept {
                        assert!(data[..] == pattern(n, pad, data.len())[..], "answer {n} has changed");
                    }
                }
            });
            let calls = join_all(callers).await.len() * 6;
            (calls, link.carried())
        });
        let executions = place.durable.executions.borrow();
        assert!(executions.len() >= calls, "seed {seed}");
        let written = place.server.written.borrow();
        let mut once = written.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), written.len(), "seed {seed}: a write was executed twice");
        breaks += place.server.connected.borrow().len() - 1;
        all.add(carried);
    }
    assert!(breaks > 50, "only {breaks} breaks were met");
    assert!(all.beside_bytes > 100 << 20 && all.inline_bytes < all.beside_bytes / 20, "{all:?}");
}

/// A client that has given its connection up while the server knows nothing of that, because nothing passes between
/// them.
async fn part(place: &Place, link: &Link<SimEnv>) {
    place.sim.cut("client", "server");
    place.until(|| !link.is_up()).await;
    place.client_env().sleep(Duration::from_millis(1)).await;
}

fn impatient(place: &Place) -> LinkConfig {
    let (first_connect, give_up) = (Duration::from_secs(1), Duration::from_secs(1));
    let timeouts = Timeouts { ping: Duration::from_millis(200), first_connect, give_up, ..Timeouts::default() };
    LinkConfig { timeouts, ..place.config() }
}

/// Goal: a server that answers by a connection which its client has given up writes to memory that nobody uses. Method:
/// the server delays the answer to a read; the client disconnects and allocates memory of that size; only then the
/// server answers.
#[test]
fn late_answers_meet_nobodys_memory() {
    let place = place(1, passing(0));
    place.run(async {
        let link = place.try_connect(impatient(&place)).await.expect("a connection");
        let mut asked = pin!(link.call(Lane::Normal, read(HELD, 0, 300 << 10), None, 0));
        assert!(poll!(asked.as_mut()).is_pending());
        place.until(|| place.server.holds(HELD)).await;
        part(&place, &link).await;
        assert_eq!(asked.await.expect_err("nobody is reachable"), LinkError::Unreachable);
        // Memory that was used before comes first.
        let mine: Vec<Buf> = (0..16).map(|n| Buf::copy_of(&pattern(n, 0, 300 * KIB))).collect();
        assert_eq!(place.server.connections.count(), 1, "the server knows nothing");
        place.server.release_read(HELD, 300 * KIB);
        place.client_env().sleep(Duration::from_millis(5)).await;
        for (n, buf) in mine.iter().enumerate() {
            assert!(buf[..] == pattern(n as u64, 0, 300 * KIB)[..], "buffer {n} was written to");
        }
        place.sim.heal("client", "server");
        place.until(|| link.is_up()).await;
        assert_eq!(ino(link.call(Lane::Normal, ask(7), None, 0).await), 7);
        assert!(link.passes_memory());
    });
}

/// Goal: a write whose client has given up the connection, and has given its memory to another client, is not executed.
/// Method: the request is sent while the network delivers nothing; it arrives when the memory has other bytes.
#[test]
fn memory_that_was_given_up_is_not_stored() {
    for seed in 0..20 {
        let place = place(seed, passing(0));
        place.run(async {
            let link = place.try_connect(impatient(&place)).await.expect("a connection");
            assert_eq!(ino(link.call(Lane::Normal, ask(6), None, 0).await), 6);
            place.sim.cut("client", "server");
            let payload = pattern(5, 0, 300 * KIB);
            assert!(payload.place().is_some());
            let called = link.call(Lane::Normal, write(5, 0), Some(payload), 0).await;
            assert_eq!(called.expect_err("nobody is reachable"), LinkError::Unreachable);
            let mine: Vec<Buf> = (10..26).map(|n| pattern(n, 0, 300 * KIB)).collect();
            place.sim.heal("client", "server");
            place.until(|| link.is_up()).await;
            assert_eq!(ino(link.call(Lane::Normal, ask(7), None, 0).await), 7);
            assert!(place.server.written.borrow().is_empty(), "seed {seed}: bytes of somebody else were stored");
            drop(mine);
        });
    }
}

type Socket = (amphi_env::sim::SimTx, amphi_env::sim::SimRx);

async fn say(socket: &mut Socket, bytes: &[u8]) {
    // A connection that is cut takes nothing more.
    let _ = socket.0.send(Buf::copy_of(bytes), None).await.0;
}

/// Goal: a client that names memory which it has not passed, or beyond its end, or where no payload belongs, loses its
/// connection, and a good client at the same time is served. Method: a table of frames behind a valid handshake, with
/// and without memory.
#[test]
fn places_are_checked() {
    let place = place(3, passing(0));
    let beyond = u32::MAX;
    place.run(async {
        let link = place.connect().await;
        for (passes, at, len) in [
            (false, Where::At(0), 4096),
            (false, Where::ForReply(0), 4096),
            (true, Where::At(beyond), 4096),
            (true, Where::ForReply(beyond), 4096),
            (true, Where::At(beyond), 64 << 20),
        ] {
            let (tx, rx) = place.sim.node("stranger").dial(ADDR).await.expect("dial").split();
            let mut socket = (tx, rx);
            let hello = Hello {
                version: VERSION,
                session: SessionId(9),
                role: Role::Mount,
                name: "stranger".into(),
                last_boot: 0,
                clock: Timespec::default(),
                link: 0,
                links: 1,
            };
            let hello = SignedHello { hello, nonce: [0; 32], proof: None, identity: None };
            let mut bytes = vec![0; 64 << 10];
            let whole = Head::new(FrameKind::Hello).encode(&hello, &mut bytes).expect("it fits");
            let hello = Buf::copy_of(&bytes[..whole]);
            match passes {
                true => drop(socket.0.send_with_memory(hello).await),
                false => say(&mut socket, &hello).await,
            }
            let before = place.server.connected.borrow().len();
            place.until(|| place.server.connected.borrow().len() > before).await;
            let call = write(77, 0);
            let id = RequestId { slot: 0, seq: 1 };
            let (target, place_of) = (call.target, Some(at));
            let head = Head { id, target, payload_len: len, place: place_of, ..Head::new(FrameKind::Request) };
            let whole = head.encode(&call, &mut bytes).expect("it fits");
            assert!(whole > HEAD_BYTES);
            say(&mut socket, &bytes[..whole]).await;
            let ended = place.server.disconnected.borrow().len();
            place.until(|| place.server.disconnected.borrow().len() > ended).await;
            assert_eq!(ino(link.call(Lane::Normal, ask(5), None, 0).await), 5, "after {at:?}");
        }
        assert!(place.server.written.borrow().is_empty());
    });
}

/// Goal: clients and servers that cannot pass memory, and connections that a channel protects, do without, and nobody
/// notices. Method: the same calls; the counts of carried payloads show the path.
#[test]
fn without_memory_all_is_in_the_stream() {
    for (sim, role) in [(SimConfig::default(), Role::Mount), (passing(0), Role::Admin)] {
        let place = place(4, sim);
        place.run(async {
            let link = place.try_connect(LinkConfig { role, ..place.config() }).await.expect("a connection");
            let done =
                link.call(Lane::Normal, write(5, 0), Some(pattern(5, 0, 300 * KIB)), 0).await.expect("an answer");
            assert_eq!(done.0.result, Ok(Reply::Written { roomy: true }));
            assert!(!link.passes_memory());
            assert_eq!(link.carried(), Carried { beside_bytes: 0, inline_bytes: 300 << 10 });
        });
    }
}
