//! Peers that break rules: each loses its own connection and harms no other one.

use super::*;
use crate::ServeError;
use crate::pipe::{HandshakeOnly, Inbound, Message, Outbound, over_stream};
use amphi_env::{Conn, Rx, Tx};
use amphi_wire::Lane;
use amphi_wire::frame::{FrameKind, HEAD_BYTES, Head};
use amphi_wire::handshake::{Refuse, SignedHello};
use std::pin::pin;

type Socket = (amphi_env::sim::SimTx, amphi_env::sim::SimRx);

async fn dial(place: &Place) -> Socket {
    let env = place.sim.node("stranger");
    loop {
        match env.dial(ADDR).await {
            Ok(conn) => return conn.split(),
            Err(_) => env.sleep(Duration::from_millis(1)).await,
        }
    }
}

async fn say(socket: &mut Socket, bytes: &[u8]) {
    // The server may have cut already.
    let _ = socket.0.send(Buf::copy_of(bytes), None).await;
}

/// Reads to the end of the stream and returns the bytes.
async fn drain(socket: &mut Socket) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let (done, byte) = socket.1.recv_exact(Buf::zeroed(1)).await;
        match done {
            Ok(()) => all.push(byte[0]),
            Err(_) => return all,
        }
    }
}

fn frame(head: Head, body: &impl serde::Serialize) -> Vec<u8> {
    let mut bytes = vec![0; 64 << 10];
    let len = head.encode(body, &mut bytes).expect("it fits");
    bytes.truncate(len);
    bytes
}

fn hello(session: u64) -> SignedHello {
    let hello = Hello {
        version: VERSION,
        session: SessionId(session),
        role: Role::Mount,
        name: "stranger".into(),
        last_boot: 0,
        clock: amphi_types::Timespec::default(),
        link: 0,
        links: 1,
    };
    SignedHello { hello, nonce: [0; 32], proof: None, identity: None }
}

/// A stranger that has been welcomed.
async fn welcomed(place: &Place, session: u64) -> Socket {
    let mut socket = dial(place).await;
    say(&mut socket, &frame(Head::new(FrameKind::Hello), &hello(session))).await;
    let before = place.server.connected.borrow().len();
    place.until(|| place.server.connected.borrow().len() > before).await;
    socket
}

fn request(slot: u16, seq: u64, lane: Lane, n: u64) -> Vec<u8> {
    let call = ask(n);
    frame(Head { lane, id: RequestId { slot, seq }, target: call.target, ..Head::new(FrameKind::Request) }, &call)
}

fn with(mut bytes: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    bytes[at] = byte;
    bytes
}

/// Goal: whatever a stranger says first, it is cut, and a good client does not notice. Method: a table of bad
/// beginnings, each on a connection of its own while a link works.
#[test]
fn bad_beginnings() {
    let good = frame(Head::new(FrameKind::Hello), &hello(9));
    let long_name = SignedHello { hello: Hello { name: "x".repeat(3000), ..hello(9).hello }, ..hello(9) };
    let mut giant = frame(Head::new(FrameKind::Hello), &long_name);
    giant[28..32].copy_from_slice(&(1u32 << 20).to_le_bytes());
    let call = write(1, 0);
    let big = frame(Head { target: call.target, payload_len: 64 << 20, ..Head::new(FrameKind::Request) }, &call);
    let mut announced = frame(Head::new(FrameKind::Request), &vec![0u8; 50_000]);
    announced.truncate(HEAD_BYTES);
    let mut with_payload = good.clone();
    with_payload[32..36].copy_from_slice(&4096u32.to_le_bytes());
    let table: Vec<(&str, Vec<u8>)> = vec![
        ("foreign", b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\n\r\n".to_vec()),
        ("zeros", vec![0; 100]),
        ("version", with(good.clone(), 4, 99)),
        ("kind", with(good.clone(), 6, 77)),
        ("lane", with(good.clone(), 7, 2)),
        ("reserved", with(good.clone(), 40, 1)),
        ("checksum of the head", with(good.clone(), 16, 1)),
        ("checksum of the body", with(good.clone(), HEAD_BYTES + 3, 0xaa)),
        ("oversize", giant),
        ("payload", with_payload),
        ("request first", request(0, 1, Lane::Normal, 1)),
        ("request with payload first", big),
        ("a long request, announced", announced),
        ("undecodable", frame(Head::new(FrameKind::Hello), &[0xffu8; 5])),
        ("trailing", frame(Head::new(FrameKind::Hello), &(hello(9), 5u8))),
    ];
    let place = Place::new(1, Net::Socket);
    place.run(async {
        let link = place.connect().await;
        for (what, bytes) in table {
            let mut socket = dial(&place).await;
            say(&mut socket, &bytes).await;
            drain(&mut socket).await;
            assert_eq!(ino(link.call(Lane::Normal, ask(5), None, 0).await), 5, "after {what}");
            assert_eq!(place.server.connected.borrow().len(), 1, "{what} was let in");
        }
        assert!(place.sim.now().0 < 2_000_000_000, "a stranger was waited for");
    });
}

/// Goal: a client that was welcomed and then breaks a rule is cut. Method: a table of violations after a valid
/// handshake.
#[test]
fn bad_requests() {
    let twice = [request(0, 1, Lane::Normal, HELD), request(0, 2, Lane::Normal, 1)].concat();
    let back = [request(0, 3, Lane::Normal, 1), request(0, 3, Lane::Normal, 1)].concat();
    let mut oversize = request(0, 1, Lane::Normal, 1);
    oversize[32..36].copy_from_slice(&((64u32 << 20) + 1).to_le_bytes());
    let call = ask(1);
    let other_target = frame(Head { target: TargetId(9), ..Head::new(FrameKind::Request) }, &call);
    let reply = Answer::of(Ok(Reply::Done));
    let table: Vec<(&str, Vec<u8>)> = vec![
        ("credits exceeded", twice),
        ("beyond the credits", request(12, 1, Lane::Urgent, 1)),
        ("other lane's slot", request(8, 1, Lane::Normal, 1)),
        ("sequence", back),
        ("sequence 0", request(0, 0, Lane::Normal, 1)),
        ("oversize payload", oversize),
        ("target", other_target),
        ("a reply", frame(Head::new(FrameKind::Reply), &reply)),
        ("a second hello", frame(Head::new(FrameKind::Hello), &hello(9))),
        ("garbage", vec![0x5a; 64]),
    ];
    let place = Place::new(2, Net::Socket);
    place.run(async {
        let link = place.connect().await;
        for (i, (what, bytes)) in table.into_iter().enumerate() {
            let mut socket = welcomed(&place, 100 + i as u64).await;
            say(&mut socket, &bytes).await;
            drain(&mut socket).await;
            place.until(|| place.server.disconnected.borrow().len() == i + 1).await;
            assert_eq!(ino(link.call(Lane::Normal, ask(5), None, 0).await), 5, "after {what}");
        }
        assert_eq!(place.server.connections.count(), 1);
        assert!(place.sim.now().0 < 2_000_000_000, "a stranger was waited for");
    });
}

/// Goal: half a frame and then silence ends that connection in bounded time, before and after the handshake.
/// Method: virtual time.
#[test]
fn half_a_frame_then_silence() {
    let place = Place::new(3, Net::Socket);
    place.run(async {
        let mut early = dial(&place).await;
        say(&mut early, &frame(Head::new(FrameKind::Hello), &hello(1))[..20]).await;
        drain(&mut early).await;
        let early_end = place.sim.now().0;
        assert!((9_000_000_000..12_000_000_000).contains(&early_end), "{early_end}");
        let mut late = welcomed(&place, 2).await;
        say(&mut late, &request(0, 1, Lane::Normal, 1)[..50]).await;
        drain(&mut late).await;
        let lasted = place.sim.now().0 - early_end;
        assert!((19_000_000_000..27_000_000_000).contains(&lasted), "{lasted}");
        assert_eq!(place.server.disconnected.borrow().len(), 1);
    });
}

/// Goal: only a client that knows the key is admitted, and a client with a key accepts only a server that knows it.
/// Method: all combinations of keys; the reason is in the error.
#[test]
fn keys_are_proven_both_ways() {
    let (right, wrong) = (key("the right key of 32 bytes or so"), key("another key of some 30 bytes"));
    let cases = [
        (Some(&right), Some(&right), None),
        (Some(&right), Some(&wrong), Some("wrong cluster key")),
        (Some(&right), None, Some("needs a key")),
        (None, Some(&right), Some("does not know the cluster key")),
        (None, None, None),
    ];
    for (server_key, client_key, error) in cases {
        let auth = ServerAuth { key: server_key.cloned(), ..ServerAuth::default() };
        let place = Place::with(4, Net::Socket, SimConfig::default(), auth);
        place.run(async {
            let config = LinkConfig { key: client_key.cloned(), ..place.config() };
            match (place.try_connect(config).await, error) {
                (Ok(link), None) => assert_eq!(ino(link.call(Lane::Normal, ask(1), None, 0).await), 1),
                (Err(e), Some(text)) => assert!(e.to_string().contains(text), "{e}"),
                (Ok(_), Some(text)) => panic!("let in, although {text}"),
                (Err(e), None) => panic!("{e}"),
            }
        });
    }
}

/// Goal: where the kernel does not name the user, no client is served without a key, not even on loopback: every user
/// of the machine reaches that. Method: serve such addresses.
#[test]
fn open_addresses_need_a_key() {
    let place = Place::new(5, Net::Socket);
    place.run(async {
        for open in ["tcp:10.1.2.3:99", "tcp:127.0.0.1:99", "tcp:localhost:98"] {
            let env = place.sim.node("server");
            let listener = env.listen(open).await.unwrap();
            let (server, connections) = (place.server.clone(), place.server.connections.clone());
            match serve(env, listener, server, connections, ServerAuth::default()).await {
                Err(ServeError::KeyNeeded { addr }) => assert_eq!(addr, open),
                other => panic!("{other:?}"),
            }
            let keyed = ServerAuth { key: Some(key("a secret of 20 bytes")), ..ServerAuth::default() };
            assert!(crate::check_listen(open, &keyed).is_ok());
        }
    });
}

/// Goal: a Unix socket may be open without the key that other addresses require. A wrong key is refused there all the
/// same, and a client with the right key gets the server's proof of it. Method: all combinations.
#[test]
fn a_unix_socket_without_the_key() {
    let (right, wrong) = (key("the right key of 32 bytes or so"), key("another key of some 30 bytes"));
    for (client_key, error) in [(None, None), (Some(&right), None), (Some(&wrong), Some("wrong cluster key"))] {
        let auth = ServerAuth { key: Some(right.clone()), unix_without_key: true, ..ServerAuth::default() };
        let place = Place::with(14, Net::Socket, SimConfig::default(), auth);
        place.run(async {
            let config = LinkConfig { key: client_key.cloned(), ..place.config() };
            match (place.try_connect(config).await, error) {
                (Ok(link), None) => assert_eq!(ino(link.call(Lane::Normal, ask(1), None, 0).await), 1),
                (Err(e), Some(text)) => assert!(e.to_string().contains(text), "{e}"),
                (other, _) => panic!("{:?}", other.err()),
            }
        });
    }
}

/// Goal: a client over a Unix socket is bound to the user that the kernel names, except root and the user of the
/// server. Method: clients that run as several users, a server that runs as one of them.
#[test]
fn the_kernel_says_who_comes() {
    let auth = ServerAuth { owner: 7, ..ServerAuth::default() };
    let place = Place::with(15, Net::Socket, SimConfig::default(), auth);
    place.run(async {
        for (session, uid) in [(70, 0), (71, 7), (72, 1000)] {
            let cred = amphi_types::Cred::new(uid, uid, vec![uid + 1]);
            place.sim.node("stranger");
            place.sim.run_as("stranger", cred.clone());
            let mut socket = welcomed(&place, session).await;
            say(&mut socket, &request(0, 1, Lane::Normal, 1)).await;
            place.until(|| place.server.bounds.borrow().contains_key(&SessionId(session))).await;
            let bound = place.server.bounds.borrow()[&SessionId(session)].clone();
            assert_eq!(bound.as_deref(), (uid == 1000).then_some(&cred));
        }
    });
}

/// Goal: strangers that send nothing exclude no client, whatever their number. Method: twice as many as may be in the
/// handshake, then a client.
#[test]
fn silent_strangers_keep_nobody_out() {
    let place = Place::new(16, Net::Socket);
    place.run(async {
        let mut sockets = Vec::new();
        for _ in 0..2 * crate::server::GREETINGS_MAX {
            sockets.push(dial(&place).await);
        }
        let link = place.connect().await;
        assert_eq!(ino(link.call(Lane::Normal, ask(5), None, 0).await), 5);
        assert!(place.server.connections.greeting() <= crate::server::GREETINGS_MAX);
        assert!(place.sim.now().0 < 5_000_000_000, "they were waited for");
    });
}

/// Goal: senders that do not complete their payloads hold no more memory than the budget, and delay other clients only
/// briefly. Method: twelve connections announce 64 MiB each and send only a part; then a client writes a small and a
/// large payload.
#[test]
fn payloads_that_do_not_come_have_a_budget() {
    let place = Place::new(17, Net::Socket);
    place.run(async {
        let mut sockets = Vec::new();
        for session in 0..12 {
            let mut socket = welcomed(&place, 80 + session).await;
            let call = write(1, 0);
            let head = Head { target: call.target, payload_len: 64 << 20, ..Head::new(FrameKind::Request) };
            let mut bytes = frame(Head { id: RequestId { slot: 0, seq: 1 }, ..head }, &call);
            bytes.extend([7; 100_000]);
            say(&mut socket, &bytes).await;
            sockets.push(socket);
        }
        let link = place.connect().await;
        let begun = place.sim.now().0;
        let small = link.call(Lane::Normal, write(2, 0), Some(pattern(2, 0, 64 << 10)), 0).await;
        assert!(small.is_ok() && place.sim.now().0 - begun < 1_000_000_000, "small ones wait for no large ones");
        assert!((150 << 20..=256 << 20).contains(&place.server.connections.budget.taken()));
        assert!(link.call(Lane::Normal, write(2, 0), Some(pattern(2, 0, 4 << 20)), 0).await.is_ok());
        let lasted = place.sim.now().0 - begun;
        assert!(lasted < 10_000_000_000, "{lasted}");
        assert!(!place.server.disconnected.borrow().is_empty(), "the slow ones were cut");
    });
}

async fn fake_server(env: SimEnv, answers: Vec<Vec<u8>>) {
    let listener = env.listen("unix:/run/fake").await.unwrap();
    for answer in answers {
        let (mut tx, mut rx) = amphi_env::Listener::accept(&listener).await.unwrap().split();
        let (sent, ..) = tx.send(Buf::copy_of(&answer), None).await;
        sent.unwrap();
        let _ = rx.recv_exact(Buf::zeroed(1 << 20)).await;
    }
}

/// Goal: peers of another version get an error that says so on both sides. Method: a client with another version in its
/// header gets a readable refusal; for a server with another version, and for a peer that is no server, `Link::connect`
/// fails with a clear message.
#[test]
fn other_versions_are_refused() {
    let place = Place::new(6, Net::Socket);
    place.run(async {
        let mut socket = dial(&place).await;
        let other = amphi_wire::VERSION + 1;
        say(&mut socket, &with(frame(Head::new(FrameKind::Hello), &hello(1)), 4, other as u8)).await;
        let came = drain(&mut socket).await;
        let text = String::from_utf8_lossy(&came);
        let told = format!("the peer speaks protocol version {other}, this program speaks {}", amphi_wire::VERSION);
        assert!(text.contains(&told), "{text}");

        let challenge =
            amphi_wire::handshake::Challenge { nonce: [1; 32], keyed: false, identity: None, secure: Secure::Off };
        let newer = with(frame(Head::new(FrameKind::Challenge), &challenge), 4, other as u8);
        let refuse = frame(Head::new(FrameKind::Refuse), &Refuse { reason: "closed today".into() });
        let foreign = b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3 and so on and on\r\n".to_vec();
        let env = place.sim.node("fake");
        env.spawn(fake_server(env.clone(), vec![newer, refuse, foreign]));
        let mut errors = Vec::new();
        while errors.len() < 3 {
            let timeouts = Timeouts { first_connect: Duration::ZERO, ..Timeouts::default() };
            let config = LinkConfig { addrs: vec!["unix:/run/fake".into()], timeouts, ..place.config() };
            let e = place.try_connect(config).await.err().expect("no server of ours");
            if e.kind() != io::ErrorKind::ConnectionRefused {
                errors.push(e);
            }
            place.client_env().sleep(Duration::from_millis(1)).await;
        }
        assert!(errors[0].to_string().contains(&format!("version {other}")), "{}", errors[0]);
        assert_eq!(errors[0].kind(), io::ErrorKind::InvalidData);
        assert!(errors[1].to_string().contains("closed today"), "{}", errors[1]);
        assert_eq!(errors[1].kind(), io::ErrorKind::PermissionDenied);
        assert!(errors[2].to_string().contains("foreign bytes"), "{}", errors[2]);
    });
}

/// Goal: a newer connection of a session takes over. Method: two connections with one session.
#[test]
fn one_connection_for_each_session() {
    let place = Place::new(7, Net::Socket);
    place.run(async {
        let mut first = welcomed(&place, 50).await;
        let _second = welcomed(&place, 50).await;
        drain(&mut first).await;
        let (connected, gone) = (place.server.connected.borrow().clone(), place.server.disconnected.borrow().clone());
        assert_eq!(gone, [(connected[0], false)]);
        assert_eq!(place.server.connections.count(), 1);
    });
}

/// Goal: in-process clients keep to the same rules. Method: a client without `Link` uses a slot twice.
#[test]
fn local_clients_are_held_to_credits() {
    let place = Place::new(8, Net::InProcess);
    place.run(async {
        let near = place.dialer.dial().expect("the server listens");
        let (mut out, mut inb): (Outbound<SimEnv>, Inbound<SimEnv>) = crate::pipe::over_local(near);
        assert!(matches!(inb.recv(&mut HandshakeOnly).await, Ok((Message::Challenge(_), None))));
        assert!(out.send(Message::Hello(hello(3))).await.is_ok());
        assert!(matches!(inb.recv(&mut HandshakeOnly).await, Ok((Message::Welcome(_), None))));
        for seq in [1, 2] {
            let id = RequestId { slot: 0, seq };
            let request = Message::Request { lane: Lane::Normal, id, deadline_ms: 0, call: ask(HELD + seq) };
            assert!(out.send(request).await.is_ok());
        }
        assert!(inb.recv(&mut HandshakeOnly).await.is_err());
        assert_eq!(place.server.disconnected.borrow().len(), 1);
        assert!(place.server.holds(HELD + 1) && !place.server.holds(HELD + 2));
    });
}

/// Goal: random bytes never panic and never get in. Method: random changes of valid streams, many seeds.
#[test]
fn random_bytes() {
    let place = Place::new(9, Net::Socket);
    place.run(async {
        let link = place.connect().await;
        let env = place.sim.node("stranger");
        for round in 0..150u64 {
            let mut bytes = frame(Head::new(FrameKind::Hello), &hello(1000 + round));
            for seq in 1..4 {
                bytes.extend(request(0, seq, Lane::Normal, 1));
            }
            for _ in 0..1 + env.rand() % 4 {
                let at = env.rand() as usize % bytes.len();
                bytes[at] = env.rand() as u8;
            }
            bytes.truncate(bytes.len() - env.rand() as usize % 60);
            let mut socket = dial(&place).await;
            say(&mut socket, &bytes).await;
            drop(socket);
            assert_eq!(ino(link.call(Lane::Normal, ask(5), None, 0).await), 5);
        }
        place.until(|| place.server.connections.count() == 1).await;
        assert_eq!(place.server.connections.greeting(), 0);
    });
}

/// Goal: for a client that does not read, the server keeps no more replies than the client has credits. Method: a
/// client requests large reads in one slot, one after the other, and never reads: one reply is on its way, one waits,
/// and the next request is one too many.
#[test]
fn who_does_not_read_is_cut() {
    let place = Place::new(11, Net::Socket);
    place.run(async {
        let mut socket = welcomed(&place, 60).await;
        for seq in 1..=10 {
            let call = read(1, 0, 1 << 20);
            let id = RequestId { slot: 0, seq };
            say(&mut socket, &frame(Head { id, target: call.target, ..Head::new(FrameKind::Request) }, &call)).await;
        }
        place.until(|| place.server.disconnected.borrow().len() == 1).await;
        let executed = place.server.durable.executions.borrow().len();
        assert!(executed <= 2, "{executed} requests were executed");
        assert!(place.sim.now().0 < 2_000_000_000, "it was cut for its silence");
    });
}

/// Goal: sockets over which a stranger never speaks do not pile up. Method: open some, wait.
#[test]
fn silent_strangers_are_cut() {
    let place = Place::new(10, Net::Socket);
    place.run(async {
        let mut sockets = Vec::new();
        for _ in 0..20 {
            sockets.push(dial(&place).await);
        }
        place.until(|| place.server.connections.greeting() == 20).await;
        for mut socket in sockets {
            let mut drained = pin!(drain(&mut socket));
            drained.as_mut().await;
        }
        assert_eq!(place.server.connections.greeting(), 0);
        let _ = over_stream::<SimEnv>;
    });
}

/// Goal: only the answer to the last `Ping` counts as a sign of life: earlier bytes of the client have arrived. Method:
/// a link answers; a peer says `Pong` without a `Ping`, then answers one `Ping` of two.
#[test]
fn signs_of_life_are_answers() {
    let place = Place::new(18, Net::Socket);
    place.run(async {
        let _link = place.connect().await;
        place.until(|| place.server.connected.borrow().len() == 1).await;
        let conn = place.server.connected.borrow()[0];
        let alive = place.server.connections.probe(conn).await;
        assert_eq!(alive, Some(crate::Alive { has_read_all: true }));
        let mut socket = welcomed(&place, 90).await;
        let conn = place.server.connected.borrow()[1];
        let bare = |kind| {
            let mut bytes = vec![0; HEAD_BYTES];
            Head::new(kind).encode_bare(&mut bytes).expect("it fits");
            bytes
        };
        say(&mut socket, &bare(FrameKind::Pong)).await;
        let env = place.sim.node("watch");
        env.sleep(Duration::from_millis(50)).await;
        for answered in [false, true] {
            let probe = place.server.connections.probe(conn);
            if answered {
                say(&mut socket, &bare(FrameKind::Pong)).await;
            }
            let alive = amphi_env::timeout(&env, Duration::from_millis(300), probe).await;
            // The first `Ping` is still on its way when the second is requested: its answer is none of the second.
            assert_eq!(alive, None);
        }
        let answers = async {
            for _ in 0..2 {
                env.sleep(Duration::from_millis(50)).await;
                say(&mut socket, &bare(FrameKind::Pong)).await;
            }
        };
        let (alive, ()) = futures_util::future::join(place.server.connections.probe(conn), answers).await;
        assert!(alive.is_some());
    });
}
