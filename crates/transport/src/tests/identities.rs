//! Handshakes with key pairs: which end trusts which, and the result of a handshake whose bytes are changed on the way.

use super::*;
use crate::identity::{Identity, Signing, Transcript};
use crate::pipe::{HandshakeOnly, Inbound, Message, Outbound, over_stream};
use amphi_env::{Conn, Listener, Rx, Tx};
use amphi_wire::Lane;
use amphi_wire::frame::{FrameKind, HEAD_BYTES, Head};
use amphi_wire::handshake::{Challenge, SignedHello, SignedWelcome, proven_bytes};
use amphi_wire::keys::Fingerprint;
use serde::ser::SerializeTuple;

const TCP: &str = "tcp:server:7000";
const FAKE: &str = "tcp:fake:7000";

fn identity(n: u8) -> Identity {
    Identity::new([n; 32])
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

fn config(place: &Place, addr: &str, key: Option<ClusterKey>, identity: Option<Identity>) -> LinkConfig {
    let timeouts = Timeouts { first_connect: Duration::from_millis(50), ..Timeouts::default() };
    LinkConfig { addrs: vec![addr.into()], key, identity, timeouts, ..place.config() }
}

/// Goal: a client with a key pair continues with a server whose key it trusts, or that proves the cluster key, and
/// reveals nothing to any other server. A server accepts a client by either proof. The handler receives the proven
/// identity. Method: all combinations of the ends' keys.
#[test]
fn both_ends_prove_what_they_have() {
    let (right, wrong) = (key("the right key of 32 bytes or so"), key("another key of some 30 bytes"));
    let (server, other) = (identity(1), identity(2).fingerprint());
    let trusts = |keys: &[Fingerprint]| Some(identity(3).trusting(keys.iter().copied()));
    let client = Proved::Identity(identity(3).fingerprint());
    let known = server.fingerprint();
    let auth = |key: Option<&ClusterKey>, with: bool| ServerAuth {
        key: key.cloned(),
        identity: with.then(|| server.clone()),
        ..ServerAuth::default()
    };
    let table = [
        (auth(None, true), None, trusts(&[known]), Ok(client)),
        (auth(None, true), None, trusts(&[other, known]), Ok(client)),
        (auth(Some(&right), true), None, trusts(&[known]), Ok(client)),
        (auth(Some(&right), true), Some(&right), trusts(&[known]), Ok(client)),
        (auth(Some(&right), true), Some(&right), trusts(&[]), Ok(client)),
        (auth(Some(&right), false), Some(&right), trusts(&[]), Ok(client)),
        (auth(Some(&right), true), Some(&right), None, Ok(Proved::ClusterKey)),
        (auth(None, true), Some(&right), trusts(&[known]), Ok(client)),
        (auth(None, true), None, trusts(&[other]), Err("is not one that this identity trusts")),
        (auth(None, true), None, trusts(&[]), Err("is not one that this identity trusts")),
        (auth(None, true), Some(&right), trusts(&[other]), Err("is not one that this identity trusts")),
        (auth(Some(&right), false), None, trusts(&[known]), Err("has no key of its own")),
        (auth(Some(&right), true), Some(&wrong), trusts(&[known]), Err("wrong cluster key")),
        (auth(Some(&right), true), None, None, Err("needs a key")),
        (auth(None, true), None, None, Err("needs an identity")),
        (auth(None, true), Some(&right), None, Err("needs an identity")),
    ];
    for (n, (auth, cluster_key, identity, wanted)) in table.into_iter().enumerate() {
        let place = Place::new(30 + n as u64, Net::Socket);
        listen(&place, auth);
        place.run(async {
            let link = place.try_connect(config(&place, TCP, cluster_key.cloned(), identity)).await;
            match (link, wanted) {
                (Ok(link), Ok(proved)) => {
                    assert_eq!(ino(link.call(Lane::Normal, ask(5), None, 0).await), 5);
                    assert_eq!(place.server.proved.borrow().last(), Some(&proved), "{n}");
                }
                (Err(e), Err(words)) => {
                    assert!(e.to_string().contains(words), "{n}: {e}");
                    assert_eq!(place.server.connected.borrow().len(), 0, "{n}");
                }
                (link, wanted) => panic!("{n}: {:?} instead of {wanted:?}", link.err()),
            }
        });
    }
}

/// A body whose bytes are as they are.
struct Raw<'a>(&'a [u8]);

impl serde::Serialize for Raw<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tuple = serializer.serialize_tuple(self.0.len())?;
        self.0.iter().try_for_each(|byte| tuple.serialize_element(byte))?;
        tuple.end()
    }
}

fn frame(body: &impl serde::Serialize) -> Vec<u8> {
    let mut bytes = vec![0; 64 << 10];
    let len = Head::new(FrameKind::Hello).encode(body, &mut bytes).expect("it fits");
    bytes.truncate(len);
    bytes
}

type Socket = (amphi_env::sim::SimTx, amphi_env::sim::SimRx);

/// Connects, and reads the server's nonce and key.
async fn challenged(place: &Place) -> (Socket, [u8; 32], Option<Fingerprint>) {
    let env = place.sim.node("stranger");
    let mut socket = loop {
        match env.dial(TCP).await {
            Ok(conn) => break conn.split(),
            Err(_) => env.sleep(Duration::from_millis(1)).await,
        }
    };
    let (done, head) = socket.1.recv_exact(Buf::zeroed(HEAD_BYTES)).await;
    done.expect("a challenge");
    let len = u32::from_le_bytes(head[28..32].try_into().expect("four bytes")) as usize;
    let (done, body) = socket.1.recv_exact(Buf::zeroed(len)).await;
    done.expect("a challenge");
    let nonce = body[..32].try_into().expect("a nonce");
    let key = (body[33] == 1).then(|| Fingerprint(body[34..66].try_into().expect("a key")));
    (socket, nonce, key)
}

/// The hello of `identity(3)` as it should be.
fn signed(server_nonce: &[u8; 32], server_key: Option<Fingerprint>, session: u64) -> SignedHello {
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
    let (said, nonce) = (proven_bytes(&hello), [7; 32]);
    let client_key = Some(identity(3).fingerprint());
    let transcript =
        Transcript { server_nonce, client_nonce: &nonce, server_key, client_key, bound: &CLEAR, said: &said };
    let identity = Some(identity(3).prove(&transcript));
    SignedHello { hello, nonce, proof: None, identity }
}

/// Goal: a hello with any bit changed, or with bytes dropped, repeated, reordered or truncated, admits no client, with
/// or without a corrected checksum; neither does a recorded hello. The unchanged one does. Method: each of these on a
/// connection of its own.
#[test]
fn changed_handshakes_let_nobody_in() {
    let place = Place::new(60, Net::Socket);
    listen(&place, ServerAuth { identity: Some(identity(1)), ..ServerAuth::default() });
    place.run(async {
        let whole = proven_bytes(&signed(&[0; 32], Some(identity(1).fingerprint()), 9));
        let len = whole.len();
        type Change = (&'static str, Box<dyn Fn(&mut Vec<u8>)>);
        let mut changes: Vec<Change> = Vec::new();
        for at in 0..len {
            changes.push(("flipped", Box::new(move |b| b[at] ^= 1 << (at % 8))));
            changes.push((
                "dropped",
                Box::new(move |b| {
                    b.remove(at);
                }),
            ));
            changes.push(("repeated", Box::new(move |b| b.insert(at, b[at]))));
            changes.push((
                "in another order",
                Box::new(move |b| {
                    let other = (at + 1..b.len()).find(|n| b[*n] != b[at]).unwrap_or(0);
                    b.swap(at, other);
                }),
            ));
            changes.push(("cut", Box::new(move |b| b.truncate(at))));
        }
        for (what, change) in &changes {
            for mended in [true, false] {
                let (mut socket, nonce, key) = challenged(&place).await;
                let body = proven_bytes(&signed(&nonce, key, 9));
                let mut changed = body.clone();
                let bytes = match mended {
                    true => {
                        change(&mut changed);
                        frame(&Raw(&changed))
                    }
                    false => {
                        let mut bytes = frame(&Raw(&body));
                        let mut tail = bytes.split_off(HEAD_BYTES);
                        change(&mut tail);
                        changed.clone_from(&tail);
                        bytes.extend(tail);
                        bytes
                    }
                };
                assert_ne!(changed, body, "{what}");
                if !mended && changed.starts_with(&body) {
                    // The frame is as it was, and the next one begins behind it.
                    continue;
                }
                // The server may have cut already; the end of the stream ends a frame that is too short.
                let _ = socket.0.send(Buf::copy_of(&bytes), None).await;
                drop(socket.0);
                while socket.1.recv_exact(Buf::zeroed(1)).await.0.is_ok() {}
                assert_eq!(place.server.connected.borrow().len(), 0, "{what} {mended}");
            }
        }
        // A proof from one connection is not valid on another one.
        let (first, nonce, key) = challenged(&place).await;
        let recorded = frame(&signed(&nonce, key, 9));
        let (mut second, ..) = challenged(&place).await;
        let _ = second.0.send(Buf::copy_of(&recorded), None).await;
        while second.1.recv_exact(Buf::zeroed(1)).await.0.is_ok() {}
        assert_eq!(place.server.connected.borrow().len(), 0);
        drop(first);
        let (mut third, nonce, key) = challenged(&place).await;
        let _ = third.0.send(Buf::copy_of(&frame(&signed(&nonce, key, 9))), None).await;
        place.until(|| place.server.connected.borrow().len() == 1).await;
    });
}

/// Goal: a server that names a key it does not have, relays another server's signature, or signs something else than it
/// sends, is refused by a client that trusts that key; one that names an untrusted key receives nothing from the
/// client. Method: servers of the test's own.
#[test]
fn a_server_proves_its_key() {
    let real = identity(1);
    let trusting = identity(3).trusting([real.fingerprint()]);
    let welcome = Welcome {
        version: VERSION,
        boot: 1,
        cluster: 1,
        resumed: false,
        begun: 0,
        normal_credits: 8,
        urgent_credits: 8,
        pool: 1,
        token_ms: 0,
        alone: true,
        map_epoch: 0,
        mounts: 1,
        links: 1,
        rotating: Vec::new(),
        root: amphi_types::Ino::ROOT,
    };
    for how in ["right", "no signature", "another key", "another client", "another welcome", "untrusted"] {
        let place = Place::new(61, Net::Socket);
        place.sim.node("fake");
        let heard = Rc::<Cell<bool>>::default();
        let env = place.sim.node("fake");
        let (task, said, real, welcome) = (env.clone(), heard.clone(), real.clone(), welcome.clone());
        env.spawn(async move {
            let listener = task.listen(FAKE).await.expect("the address is free");
            let (mut out, mut inb): (Outbound<SimEnv>, Inbound<SimEnv>) =
                over_stream(listener.accept().await.expect("a client"));
            let named = if how == "untrusted" { identity(2) } else { real.clone() };
            let challenge =
                Challenge { nonce: [1; 32], keyed: false, identity: Some(named.fingerprint()), secure: Secure::Off };
            assert!(out.send(Message::Challenge(challenge)).await.is_ok());
            let Ok((Message::Hello(hello), _)) = inb.recv(&mut HandshakeOnly).await else { return };
            said.set(true);
            let proven = proven_bytes(&match how {
                "another welcome" => Welcome { cluster: 2, ..welcome.clone() },
                _ => welcome.clone(),
            });
            let client_key = match how {
                "another client" => Some(identity(9).fingerprint()),
                _ => hello.identity.map(|i| i.key),
            };
            let signer = if how == "another key" { identity(2) } else { real };
            let transcript = Transcript {
                server_nonce: &[1; 32],
                client_nonce: &hello.nonce,
                server_key: Some(named.fingerprint()),
                client_key,
                bound: &CLEAR,
                said: &proven,
            };
            let signature = (how != "no signature").then(|| signer.sign(Signing::Server, &transcript));
            let _ = out.send(Message::Welcome(SignedWelcome { welcome, proof: None, signature, memory: false })).await;
            // It stays until the client has gone.
            let _ = inb.recv(&mut HandshakeOnly).await;
        });
        place.run(async {
            let timeouts = Timeouts { first_connect: Duration::ZERO, ..Timeouts::default() };
            let config = LinkConfig { timeouts, ..config(&place, FAKE, None, Some(trusting.clone())) };
            place.client_env().sleep(Duration::from_millis(5)).await;
            let link = place.try_connect(config).await;
            match how {
                "right" => assert!(link.is_ok(), "{:?}", link.err()),
                "untrusted" => {
                    assert!(link.is_err_and(|e| e.to_string().contains("amphi key trust")));
                    assert!(!heard.get(), "it hears nothing");
                }
                _ => assert!(link.is_err_and(|e| e.to_string().contains("does not have the secret")), "{how}"),
            }
        });
    }
}
