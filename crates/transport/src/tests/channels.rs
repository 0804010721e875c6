//! Protected connections: levels, which client accepts which, and a relay between client and server that changes,
//! drops, repeats, moves and truncates data, as an attacker on the network could.

use super::*;
use crate::handshake::agree_for_tests;
use crate::identity::Identity;
use crate::pipe::{HandshakeOnly, Inbound, Message, Outbound, over_stream};
use crate::secure::Hands;
use crate::secure::plant::{self, Plant};
use crate::secure::tags::tags_bytes;
use amphi_env::sim::{SimRx, SimTx};
use amphi_env::{Conn, Listener, Rx, Tx};
use amphi_wire::Lane;
use amphi_wire::frame::{FrameKind, HEAD_BYTES, Head};
use amphi_wire::handshake::Challenge;
use std::collections::VecDeque;

const TCP: &str = "tcp:server:7000";
const RELAY: &str = "tcp:relay:7000";
const PROTECTED: [Secure; 2] = [Secure::Mac, Secure::Tls];

fn cluster_key() -> ClusterKey {
    key("the key of this cluster, 32 bytes")
}

/// A server on TCP, in addition to the one that every place has.
fn listen(place: &Place, auth: ServerAuth) {
    let (env, server) = (place.sim.node("server"), place.server.clone());
    let task = env.clone();
    env.spawn(async move {
        let listener = task.listen(TCP).await.expect("the address is free");
        let connections = server.connections.clone();
        serve(task, listener, server, connections, auth).await.expect("serving goes on");
    });
}

fn keyed(secure: Secure) -> ServerAuth {
    ServerAuth { key: Some(cluster_key()), secure, ..ServerAuth::default() }
}

fn config(place: &Place, addr: &str, secure: Secure) -> LinkConfig {
    let first_connect = Duration::from_secs(2);
    let backoff_max = Duration::from_millis(10);
    let connect = Duration::from_millis(500);
    let timeouts = Timeouts { connect, first_connect, backoff_max, ..Timeouts::default() };
    LinkConfig { addrs: vec![addr.into()], key: Some(cluster_key()), secure, timeouts, ..place.config() }
}

/// Goal: a client accepts the server's level if it is at least the configured one, and gets advice otherwise; at all
/// levels both kinds of proofs work. Method: all levels of both, with a cluster key and with key pairs.
#[test]
fn clients_take_what_is_offered_or_say_why_not() {
    let server = Identity::new([1; 32]);
    let client = Identity::new([2; 32]).trusting([server.fingerprint()]);
    for offered in Secure::ALL {
        for least in Secure::ALL {
            for pairs in [false, true] {
                let place = Place::new(70, Net::Socket);
                let auth = ServerAuth { identity: pairs.then(|| server.clone()), ..keyed(offered) };
                listen(&place, auth);
                place.run(async {
                    let mut config = config(&place, TCP, least);
                    if pairs {
                        (config.key, config.identity) = (None, Some(client.clone()));
                    }
                    match place.try_connect(config).await {
                        Ok(link) => {
                            assert!(offered >= least);
                            assert_eq!(ino(link.call(Lane::Normal, ask(5), None, 0).await), 5);
                            assert_eq!(*place.server.secure.borrow(), [offered]);
                        }
                        Err(e) => {
                            assert!(offered < least, "{offered} {least}: {e}");
                            assert!(e.to_string().contains(&format!("--secure {offered}")), "{e}");
                            assert_eq!(place.server.connected.borrow().len(), 0);
                        }
                    }
                });
            }
        }
    }
    // A client that proves nothing cannot know with whom it shares a channel.
    let place = Place::new(71, Net::Socket);
    listen(&place, keyed(Secure::Tls));
    place.run(async {
        let refused = place.try_connect(LinkConfig { key: None, ..config(&place, TCP, Secure::Mac) }).await;
        assert!(refused.is_err_and(|e| e.to_string().contains("--identity FILE")));
        // Over a Unix socket the machine protects; no level is required there.
        let unix = place.try_connect(LinkConfig { secure: Secure::Tls, ..place.config() }).await;
        assert!(unix.is_ok(), "{:?}", unix.err());
        assert_eq!(*place.server.secure.borrow(), [Secure::Off]);
    });
}

/// Goal: the protection of a connection moves with it to the worker that serves it, with earlier bytes of the client,
/// and continues its counters there. Method: connections of all levels are passed to another thread with a request on
/// its way; then several more requests follow.
#[test]
fn channels_go_with_their_connections() {
    for level in Secure::ALL {
        for seed in 0..10 {
            let place = Place::new(seed, Net::Socket);
            let other = TestServer::new(1, place.durable.clone());
            listen(&place, keyed(level));
            place.run(async {
                place.server.place.set(Some(1));
                let link = place.try_connect(config(&place, TCP, level)).await.expect("a connection");
                let (early, ()) = futures_util::join!(link.call(Lane::Normal, ask(5), None, 0), async {
                    place.until(|| !place.server.parcels.borrow().is_empty()).await;
                    place.client_env().sleep(Duration::from_millis(seed / 2)).await;
                    let (_, parcel) = place.server.parcels.borrow_mut().remove(0);
                    crate::adopt(&place.sim.node("server"), parcel, other.clone(), other.connections.clone());
                });
                assert_eq!(ino(early), 5);
                for n in 6..20 {
                    assert_eq!(ino(link.call(Lane::Normal, ask(n), None, 0).await), n);
                }
                assert_eq!(*other.secure.borrow(), [level]);
                assert!(place.server.order.borrow().is_empty());
                link.close().await;
                place.until(|| other.connections.count() == 0).await;
                place.server.connections.came_back();
            });
        }
    }
}

/// Goal: every kind of message arrives unchanged, whatever its length. Method: requests and answers without payload,
/// with bodies above what is kept, with payloads of lengths around those of records and buffers, several at a time;
/// pushes and pings.
#[test]
fn all_messages_pass_all_levels() {
    for level in Secure::ALL {
        let place = Place::new(72, Net::Socket);
        listen(&place, keyed(level));
        place.run(async {
            let link = place.try_connect(config(&place, TCP, level)).await.expect("a connection");
            let conn = *place.server.connected.borrow().last().expect("a connection");
            for round in 0..3u64 {
                let lens = [1, 4095, 16_383, 16_384, 16_385, 131_000, 131_072, 1 << 20, (4 << 20) + 17];
                for (n, len) in lens.into_iter().enumerate() {
                    let (n, offset) = (round * 100 + n as u64, 4096 * n as u64 + n as u64);
                    let bytes = pattern(n, (offset % 4096) as usize, len);
                    let writing = link.call(Lane::Normal, write(n, offset), Some(bytes), 0);
                    let reading =
                        link.call(Lane::Normal, read(n, offset, offset + len as u64), None, (offset % 4096) as usize);
                    let asking = link.call(Lane::Urgent, ask(n), None, 0);
                    let (written, read, asked) = futures_util::join!(writing, reading, asking);
                    assert!(written.is_ok_and(|(answer, _)| answer.result.is_ok()), "{level} {len}");
                    let (_, data) = read.expect("an answer");
                    let wanted = pattern(n, (offset % 4096) as usize, len);
                    assert!(data.is_some_and(|d| d[..] == wanted[..]), "{level} {len}");
                    assert_eq!(ino(asked), n);
                }
                let names = call(Request::ListXattr { ino: Ino(1) });
                let (answer, _) = link.call(Lane::Normal, names, None, 0).await.expect("an answer");
                assert!(matches!(answer.result, Ok(Reply::Bytes(bytes)) if bytes.len() == 1 << 19), "{level}");
                assert!(place.server.connections.push(conn, Push::Map { epoch: round }));
                assert!(place.server.connections.probe(conn).await.is_some(), "{level}");
                assert_eq!(place.owner.pushes.borrow().len() as u64, round + 1, "{level}");
            }
            assert_eq!(place.server.connected.borrow().len(), 1, "{level}: one connection was enough");
        });
    }
}

/// The action of a relay on the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    /// Nothing.
    None,
    /// One bit at this place of a unit, as a part of 64 of its length.
    Flip(usize),
    Drop,
    Repeat,
    /// The unit arrives after the next one.
    Later,
    /// A part of the unit is followed by the next bytes of the stream.
    Cut,
    /// The unit is replaced by one of the same number of an earlier connection.
    Splice,
    /// The unit is replaced by one that the receiver sent itself.
    Reflect,
    /// The unit is preceded by a forged one.
    Insert,
}

/// The direction in which a unit (a frame or a record of the stream) travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    ToServer,
    ToClient,
}

/// One attack: the unit after the handshake, the direction, and the connection that it changes.
#[derive(Clone, Copy, Debug)]
struct Plan {
    attack: Attack,
    way: Way,
    unit: usize,
}

/// The data that a relay has seen.
#[derive(Default)]
struct Seen {
    connections: Cell<usize>,
    done: Cell<bool>,
    /// Units of the first connection, both ways.
    first: RefCell<[Vec<Vec<u8>>; 2]>,
}

async fn exactly(rx: &mut SimRx, len: usize) -> Option<Vec<u8>> {
    if len == 0 {
        return Some(Vec::new());
    }
    let (done, buf) = rx.recv_exact(Buf::zeroed(len)).await;
    done.ok().map(|()| buf.to_vec())
}

/// The smallest independent piece of the stream: a frame with its tags and payload, or a record of TLS.
async fn unit(rx: &mut SimRx, level: Secure) -> Option<Vec<u8>> {
    let mut bytes = exactly(rx, 5).await?;
    let rest = if bytes.starts_with(b"AMPH") {
        bytes.extend(exactly(rx, HEAD_BYTES - 5).await?);
        let head = Head::parse(bytes[..].try_into().expect("a header")).expect("a header");
        let tags = if level == Secure::Mac && head.sealed { tags_bytes(head.payload_len > 0) } else { 0 };
        head.body_len as usize + tags + head.payload_len as usize
    } else {
        usize::from(u16::from_be_bytes([bytes[3], bytes[4]]))
    };
    bytes.extend(exactly(rx, rest).await?);
    Some(bytes)
}

/// Passes units in one direction, and attacks one.
async fn pass(mut from: SimRx, mut to: SimTx, level: Secure, way: Way, plan: Plan, seen: Rc<Seen>, mine: usize) {
    let mut held: Option<Vec<u8>> = None;
    // Units of the handshake: challenge and welcome of the server, hello of the client, and what TLS exchanges.
    let mut count = 0;
    let mut send = async |bytes: &[u8]| to.send(Buf::copy_of(bytes), None).await.0.is_ok();
    while let Some(bytes) = unit(&mut from, level).await {
        if mine == 0 {
            seen.first.borrow_mut()[way as usize].push(bytes.clone());
        }
        let due = !seen.done.get() && way == plan.way && count == plan.unit && mine > 0;
        count += 1;
        let mut pieces = VecDeque::from([bytes]);
        if due {
            seen.done.set(true);
            let bytes = pieces.pop_front().expect("one");
            match plan.attack {
                Attack::None => pieces.push_back(bytes),
                Attack::Flip(part) => {
                    let at = part * (bytes.len() - 1) / 64;
                    let mut flipped = bytes;
                    flipped[at] ^= 1 << (part % 8);
                    pieces.push_back(flipped);
                }
                Attack::Drop => {}
                Attack::Repeat => pieces.extend([bytes.clone(), bytes]),
                Attack::Later => held = Some(bytes),
                Attack::Cut => pieces.push_back(bytes[..bytes.len() / 2].to_vec()),
                Attack::Splice => pieces.extend(seen.first.borrow()[way as usize].get(plan.unit).cloned()),
                Attack::Reflect => pieces.extend(seen.first.borrow()[1 - way as usize].last().cloned()),
                Attack::Insert => {
                    let mut foreign = bytes.clone();
                    let end = foreign.len() - 1;
                    foreign[end] ^= 0x55;
                    pieces.extend([foreign, bytes]);
                }
            }
        } else if let Some(late) = held.take() {
            pieces.push_back(late);
        }
        for piece in pieces {
            if !send(&piece).await {
                return;
            }
        }
    }
}

fn relay(place: &Place, level: Secure, plan: Plan) -> Rc<Seen> {
    let (env, seen) = (place.sim.node("relay"), Rc::<Seen>::default());
    let (task, kept) = (env.clone(), seen.clone());
    env.spawn(async move {
        let listener = task.listen(RELAY).await.expect("the address is free");
        while let Ok(client) = listener.accept().await {
            let Ok(server) = task.dial(TCP).await else { continue };
            let mine = kept.connections.replace(kept.connections.get() + 1);
            let ((client_tx, client_rx), (server_tx, server_rx)) = (client.split(), server.split());
            task.spawn(pass(client_rx, server_tx, level, Way::ToServer, plan, kept.clone(), mine));
            task.spawn(pass(server_rx, client_tx, level, Way::ToClient, plan, kept.clone(), mine));
        }
    });
    seen
}

/// Calls of which the server must execute each once, in order, and pushes of which the client must receive each once,
/// in order.
const CALLS: u64 = 24;

/// Runs a sequence of calls and pushes over a relay with this plan. Returns the error of its result.
fn story(level: Secure, plan: Plan) -> Result<(), String> {
    let place = Place::new(73, Net::Socket);
    listen(&place, keyed(level));
    let seen = relay(&place, level, plan);
    place.run(async {
        // A first connection, of which units may be recorded.
        let first = place.try_connect(LinkConfig { session: SessionId(4), ..config(&place, RELAY, level) }).await;
        let first = first.map_err(|e| format!("the first connection: {e}"))?;
        for n in 0..4 {
            let _ = first.call(Lane::Normal, ask(500 + n), None, 0).await;
        }
        first.close().await;
        let before = place.server.connected.borrow().len();
        place.server.order.borrow_mut().clear();
        let owner = Rc::<TestOwner>::default();
        let link = Link::connect(place.client_env(), config(&place, RELAY, level), owner.clone()).await;
        let link = link.map_err(|e| format!("the connection: {e}"))?;
        let all = async {
            for n in 0..CALLS {
                let bytes = pattern(n, 0, 5000);
                let writing = link.call(Lane::Normal, write(n, 0), Some(bytes), 0);
                let asking = link.call(Lane::Urgent, ask(n), None, 0);
                let reading = link.call(Lane::Normal, read(n, 0, 40_000), None, 0);
                let (written, asked, read) = futures_util::join!(writing, asking, reading);
                let good = matches!(written, Ok((Answer { result: Ok(Reply::Written { .. }), .. }, _)))
                    && matches!(asked, Ok((Answer { result: Ok(Reply::Ino(Ino(i))), .. }, _)) if i == n)
                    && matches!(&read, Ok((_, Some(data))) if data[..] == pattern(n, 0, 40_000)[..]);
                if !good {
                    return Err(format!("call {n}: {written:?} {asked:?}"));
                }
                let conn = *place.server.connected.borrow().last().expect("a connection");
                place.server.connections.push(conn, Push::Map { epoch: n });
            }
            Ok(())
        };
        amphi_env::timeout(&place.client_env(), Duration::from_secs(200), all)
            .await
            .unwrap_or_else(|| Err("it came to no end".into()))?;
        let order = place.server.order.borrow().clone();
        let ended = place.server.disconnected.borrow().len();
        if order != (0..CALLS).collect::<Vec<_>>() {
            return Err(format!("executed in this order: {order:?}"));
        }
        let written = place.server.written.borrow().clone();
        if written != (0..CALLS).collect::<Vec<_>>() {
            return Err(format!("written in this order: {written:?}"));
        }
        let epochs: Vec<u64> =
            owner.pushes.borrow().iter().map(|p| if let Push::Map { epoch } = p { *epoch } else { 999 }).collect();
        // Pushes are lost with a connection, and with nothing else.
        let lost = (0..CALLS - 2).filter(|n| !epochs.contains(n)).count();
        let connections = place.server.connected.borrow().len() - before;
        if !epochs.is_sorted_by(|a, b| a < b) || (connections == 1 && lost > 0) {
            return Err(format!("pushes came as {epochs:?} over {connections} connections"));
        }
        if !seen.done.get() {
            return Err("the relay had nothing to attack".into());
        }
        match (plan.attack, connections) {
            (Attack::None, 1) => Ok(()),
            (Attack::None, n) => Err(format!("{n} connections without an attack")),
            (_, n) if n >= 2 && ended >= 1 => Ok(()),
            _ => Err("the connection went on after an attack".into()),
        }
    })
}

/// Units of a connection's handshake, in each direction: challenge, flight of TLS (1 or more records), welcome; flight,
/// hello.
const HANDSHAKE_UNITS: usize = 8;

/// Goal: any manipulation of the data on the network ends the connection. No manipulated data is executed or accepted
/// as an answer or a push. The link reconnects and loses nothing. Method: a relay that flips bits of a frame or record,
/// each at many places, and drops, repeats, moves, truncates, splices (with an earlier connection), reflects and
/// inserts one, both ways; calls with and without payload and pushes are compared with the sent ones.
#[test]
fn attacks_end_the_connection_and_nothing_else() {
    let single =
        [Attack::Drop, Attack::Repeat, Attack::Later, Attack::Cut, Attack::Splice, Attack::Reflect, Attack::Insert];
    for level in PROTECTED {
        for way in [Way::ToServer, Way::ToClient] {
            let plan = |attack, unit| Plan { attack, way, unit: HANDSHAKE_UNITS + unit };
            story(level, plan(Attack::None, 0)).unwrap_or_else(|e| panic!("{level} {way:?} without attack: {e}"));
            for unit in 0..4 {
                let flips = (0..=64).step_by(if unit == 0 { 2 } else { 9 }).map(Attack::Flip);
                for attack in flips.chain(single) {
                    story(level, plan(attack, unit))
                        .unwrap_or_else(|e| panic!("{level} {way:?} {attack:?} of unit {unit}: {e}"));
                }
            }
        }
    }
}

/// Goal: whatever is done to the handshake itself, the client gets in by another connection or by this one, and nothing
/// is lost. Method: each unit of the handshake is flipped in some places, dropped, repeated, moved and cut.
#[test]
fn attacks_on_the_handshake_cost_a_connection_at_most() {
    for level in PROTECTED {
        for way in [Way::ToServer, Way::ToClient] {
            for unit in 0..HANDSHAKE_UNITS {
                let flips = (0..=64).step_by(5).map(Attack::Flip);
                let others = [Attack::Drop, Attack::Repeat, Attack::Later, Attack::Cut, Attack::Insert];
                for attack in flips.chain(others) {
                    match story(level, Plan { attack, way, unit }) {
                        Ok(()) => {}
                        // The link tried again before it was handed out.
                        Err(e) if e.contains("went on after an attack") => {}
                        Err(e) => panic!("{level} {way:?} {attack:?} of unit {unit}: {e}"),
                    }
                }
            }
        }
    }
}

/// Goal: the tests of attacks find a channel that ignores counters. Method: both ends ignore the tags; the test's own
/// checks must notice units that are dropped, repeated and moved, and must find no fault without an attack.
#[test]
fn a_channel_that_ignores_counters_is_found() {
    for level in PROTECTED {
        let _planted = plant::set(Plant::CountersIgnored);
        let plan = |attack, unit| Plan { attack, way: Way::ToClient, unit: HANDSHAKE_UNITS + unit };
        story(level, plan(Attack::None, 0)).unwrap_or_else(|e| panic!("{level} without an attack: {e}"));
        for attack in [Attack::Drop, Attack::Repeat, Attack::Later] {
            // Some units would be missed by the rules of slots alone.
            let found = (0..16).filter(|unit| story(level, plan(attack, *unit)).is_err()).count();
            assert!(found > 0, "{level} {attack:?}: nothing was noticed");
        }
    }
}

/// Goal: the same for a channel that checks no tags. Method: bits are flipped.
#[test]
fn a_channel_that_checks_nothing_is_found() {
    let _planted = plant::set(Plant::TagsIgnored);
    let plan = |attack| Plan { attack, way: Way::ToServer, unit: HANDSHAKE_UNITS + 1 };
    let found = (0..=64).filter(|part| story(Secure::Mac, plan(Attack::Flip(*part))).is_err()).count();
    assert!(found > 0);
}

/// Goal: an attacker who raises or lowers the level that a server offers gets no connection, and both ends report the
/// fault. Method: a relay that changes the challenge, with its checksum corrected.
#[test]
fn a_changed_level_is_refused() {
    for offered in Secure::ALL {
        for told in Secure::ALL.into_iter().filter(|told| *told != offered) {
            let place = Place::new(74, Net::Socket);
            listen(&place, keyed(offered));
            let env = place.sim.node("relay");
            let task = env.clone();
            env.spawn(async move {
                let listener = task.listen(RELAY).await.expect("the address is free");
                while let Ok(client) = listener.accept().await {
                    let Ok(server) = task.dial(TCP).await else { continue };
                    let ((mut client_tx, client_rx), (server_tx, mut server_rx)) = (client.split(), server.split());
                    let bytes = unit(&mut server_rx, Secure::Off).await.expect("a challenge");
                    let head = Head::parse(bytes[..HEAD_BYTES].try_into().expect("a header")).expect("a header");
                    let challenge: Challenge = head.decode(&bytes[HEAD_BYTES..]).expect("a challenge");
                    assert_eq!(challenge.secure, offered);
                    let mut changed = vec![0; 4096];
                    let challenge = Challenge { secure: told, ..challenge };
                    let len = Head::new(FrameKind::Challenge).encode(&challenge, &mut changed).expect("it fits");
                    let _ = client_tx.send(Buf::copy_of(&changed[..len]), None).await;
                    let nothing = Plan { attack: Attack::None, way: Way::ToServer, unit: 0 };
                    let seen = Rc::<Seen>::default();
                    task.spawn(pass(client_rx, server_tx, told, Way::ToServer, nothing, seen.clone(), 1));
                    task.spawn(pass(server_rx, client_tx, told, Way::ToClient, nothing, seen, 1));
                }
            });
            place.run(async {
                let error = place.try_connect(config(&place, RELAY, Secure::Off)).await.err();
                let error = error.expect("no connection").to_string();
                assert_eq!(place.server.connected.borrow().len(), 0, "{offered} {told}");
                let words: &[&str] = match (offered, told) {
                    (_, Secure::Off) => &["a hello came in clear"],
                    (Secure::Off, _) => &["went on in clear", "closed", "no answer"],
                    _ => &["nothing of this channel", "closed"],
                };
                assert!(words.iter().any(|w| error.contains(w)), "{offered} told as {told}: {error}");
                // A client that requires a level does not even begin with a lower one.
                if told < offered {
                    let strict = place.try_connect(config(&place, RELAY, offered)).await.err();
                    let strict = strict.expect("no connection").to_string();
                    assert!(strict.contains(&format!("--secure {told}")), "{strict}");
                }
            });
        }
    }
}

/// Goal: an attacker who has one channel with the client and another one with the server cannot pass on any proof, by
/// either kind of key, at any level. Method: a relay that does the key exchange with both, with the code that the ends
/// use, and passes hello and welcome on.
#[test]
fn proofs_of_one_channel_are_worth_nothing_in_another() {
    let server_pair = Identity::new([1; 32]);
    let client_pair = Identity::new([2; 32]).trusting([server_pair.fingerprint()]);
    for level in PROTECTED {
        for inner in Secure::ALL {
            for pairs in [false, true] {
                let place = Place::new(75, Net::Socket);
                listen(&place, ServerAuth { identity: pairs.then(|| server_pair.clone()), ..keyed(level) });
                let (env, passed) = (place.sim.node("relay"), Rc::<Cell<u32>>::default());
                let (task, count) = (env.clone(), passed.clone());
                env.spawn(async move {
                    let listener = task.listen(RELAY).await.expect("the address is free");
                    while let Ok(client) = listener.accept().await {
                        let Ok(server) = task.dial(TCP).await else { continue };
                        let (mut to_server, mut from_server): (Outbound<SimEnv>, Inbound<SimEnv>) = over_stream(server);
                        let (mut to_client, mut from_client): (Outbound<SimEnv>, Inbound<SimEnv>) = over_stream(client);
                        let Ok((Message::Challenge(challenge), _)) = from_server.recv(&mut HandshakeOnly).await else {
                            continue;
                        };
                        assert!(agree_for_tests(&mut to_server, &mut from_server, Hands::Client, &challenge).await);
                        // The relay has a channel of any level with the client.
                        let told = Challenge { secure: inner, ..challenge };
                        let _ = to_client.send(Message::Challenge(told)).await;
                        if !agree_for_tests(&mut to_client, &mut from_client, Hands::Server, &told).await {
                            continue;
                        }
                        let Ok((hello, _)) = from_client.recv(&mut HandshakeOnly).await else { continue };
                        count.set(count.get() + 1);
                        let _ = to_server.send(hello).await;
                        if let Ok((answer, _)) = from_server.recv(&mut HandshakeOnly).await {
                            let _ = to_client.send(answer).await;
                        }
                        let _ = from_client.recv(&mut HandshakeOnly).await;
                    }
                });
                place.run(async {
                    let mut config = config(&place, RELAY, Secure::Off);
                    if pairs {
                        (config.key, config.identity) = (None, Some(client_pair.clone()));
                    }
                    let error = place.try_connect(config).await.err().expect("no connection").to_string();
                    assert!(error.contains("somebody is in between"), "{level} {inner} {pairs}: {error}");
                    assert!(passed.get() > 0, "{level} {inner} {pairs}: the hello was passed on");
                    assert_eq!(place.server.connected.borrow().len(), 0);
                });
            }
        }
    }
}

/// Goal: a connection whose keys were used as often as they may be is replaced by another one, and nothing is lost.
/// Method: channels that begin shortly before the end of their numbers.
#[test]
fn worn_out_keys_are_replaced() {
    let place = Place::new(76, Net::Socket);
    listen(&place, keyed(Secure::Tls));
    let _planted = plant::set(Plant::NearlyWornOut);
    place.run(async {
        let link = place.try_connect(config(&place, TCP, Secure::Tls)).await.expect("a connection");
        for n in 0..200 {
            assert_eq!(ino(link.call(Lane::Normal, ask(n), None, 0).await), n);
        }
        let connections = place.server.connected.borrow().len();
        assert!(connections > 2, "{connections} connections");
        assert_eq!(*place.server.order.borrow(), (0..200).collect::<Vec<_>>());
    });
}
