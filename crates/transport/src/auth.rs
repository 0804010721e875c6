//! Authentication: the cluster key, the proofs of the handshake, what a client has proved, and which addresses need a
//! key.
//!
//! Owns: `ClusterKey` and its two proofs (HMAC-SHA256), `is_unix`, `ServerAuth`. Does not own: the order of the
//! handshake (`handshake`).
//!
//! The proofs show that both ends know the key when the connection starts, and cover its channel (`secure`). Later
//! messages have the protection of the channel. Without a channel, a key protects a trusted network from strangers, but
//! not from an attacker who can change its packets.
//!
//! Invariants: proofs are compared in constant time. A key is never printed.

use crate::identity::Identity;
use crate::secure::Bound;
use amphi_env::addr::Addr;
use amphi_wire::handshake::{NONCE_BYTES, PROOF_BYTES, Secure};
use amphi_wire::keys::Fingerprint;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::collections::BTreeSet;
use std::fmt;

/// Fewest bytes of a cluster key: 128 bits.
pub const KEY_BYTES_MIN: usize = 16;
/// Fewest different bytes of a key. 16 random hexadecimal digits have 10 on average, and fewer than 7 once in 10,000
/// times.
const KEY_DIFFERENT_MIN: usize = 7;
/// If a piece is repeated for at least this many bytes, the repetition is no coincidence.
const KEY_REPEATED_MIN: usize = 4;
/// Fewest different steps from one byte to the next. A key that was typed along a row of the keyboard, or counted up,
/// has one or two.
const KEY_STEPS_MIN: usize = 4;

/// A random number that one end chooses and uses once.
pub(crate) type Nonce = [u8; NONCE_BYTES];

/// The secret that clients and servers of one cluster share.
#[derive(Clone)]
pub struct ClusterKey(Vec<u8>);

/// The reason why a key is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeakKey {
    /// The key has this many bytes, fewer than `KEY_BYTES_MIN`.
    Short(usize),
    /// The key is one short piece repeated, a row of adjacent characters, or made of very few different ones. Such keys
    /// can be guessed.
    Guessable,
}

impl fmt::Display for WeakKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeakKey::Short(bytes) => {
                write!(f, "the cluster key has {bytes} bytes, at least {KEY_BYTES_MIN} are needed")
            }
            WeakKey::Guessable => {
                f.write_str("the cluster key can be guessed; make a random one: head -c 32 /dev/urandom | base64")
            }
        }
    }
}

impl std::error::Error for WeakKey {}

/// Returns whether a key is so regular that an attacker would try it early.
fn is_guessable(key: &[u8]) -> bool {
    let different = key.iter().collect::<BTreeSet<_>>().len();
    let steps = key.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect::<BTreeSet<_>>().len();
    // A key that repeats a piece is no better than the piece.
    let repeats = |period: usize| key[period..].iter().zip(key).all(|(later, earlier)| later == earlier);
    let periods = 1..KEY_BYTES_MIN.min((key.len() + 1).saturating_sub(KEY_REPEATED_MIN));
    different < KEY_DIFFERENT_MIN || steps < KEY_STEPS_MIN || periods.into_iter().any(repeats)
}

impl ClusterKey {
    /// A key from the content of a key file, without white space at both ends.
    ///
    /// Errors: the key is too short, or can be guessed.
    pub fn new(content: &[u8]) -> Result<ClusterKey, WeakKey> {
        let key = content.trim_ascii();
        if key.len() < KEY_BYTES_MIN {
            return Err(WeakKey::Short(key.len()));
        }
        if is_guessable(key) {
            return Err(WeakKey::Guessable);
        }
        Ok(ClusterKey(key.to_vec()))
    }

    fn mac(&self, label: &[u8], (server, client): (&Nonce, &Nonce), bound: &Bound, said: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(label);
        mac.update(server);
        mac.update(client);
        mac.update(bound);
        mac.update(said);
        mac
    }

    /// The proof of one end over the nonces of the server and the client, the channel, and the message that it sends.
    /// The label prevents that one end's proof is sent back as the other's.
    pub(crate) fn proof(&self, end: End, nonces: (&Nonce, &Nonce), bound: &Bound, said: &[u8]) -> [u8; PROOF_BYTES] {
        self.mac(end.label(), nonces, bound, said).finalize().into_bytes().into()
    }

    /// Returns whether `proof` is what `proof()` gives.
    pub(crate) fn verify(&self, end: End, nonces: (&Nonce, &Nonce), bound: &Bound, said: &[u8], proof: &[u8]) -> bool {
        self.mac(end.label(), nonces, bound, said).verify_slice(proof).is_ok()
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

/// Which end made a proof.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Client,
    Server,
}

impl End {
    fn label(self) -> &'static [u8] {
        match self {
            End::Client => b"amphi client 2",
            End::Server => b"amphi server 2",
        }
    }
}

/// The requirements of a server for clients that connect.
#[derive(Clone, Debug, Default)]
pub struct ServerAuth {
    /// Clients must know this key. `None`: only Unix sockets are served, where the kernel reports who connects.
    pub key: Option<ClusterKey>,
    /// The server's own key pair: with it the server lets clients prove a key pair of theirs instead of the cluster
    /// key.
    pub identity: Option<Identity>,
    /// Clients on a Unix socket need no key. If such a client proves a key, the proof is checked all the same.
    pub unix_without_key: bool,
    /// The user as whom the server runs. This user and root may do everything. Any other user on a Unix socket acts as
    /// itself only.
    pub owner: u32,
    /// How connections over a network are protected; clients cannot choose. Those over Unix sockets and in a process
    /// are not.
    pub secure: Secure,
}

/// The proof of a client in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proved {
    /// No proof: the client is in this process, or the kernel names its user.
    Nothing,
    /// The client has proved that it knows the cluster key.
    ClusterKey,
    /// The client has proved that it has the secret of this key. The handler has to check whether the cluster knows the
    /// key.
    Identity(Fingerprint),
}

/// Returns whether the kernel reports the user at the other end of connections to `addr`: it does for `unix:PATH`. A
/// loopback address is open to every user of the machine.
pub fn is_unix(addr: &str) -> bool {
    matches!(Addr::parse(addr), Ok(Addr::Unix(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only addresses on which the kernel names the user admit clients without a key. Method: a table.
    #[test]
    fn addresses_without_a_key() {
        for addr in ["unix:/run/a.sock", "unix:rel"] {
            assert!(is_unix(addr), "{addr}");
        }
        for addr in ["tcp:127.0.0.1:9", "tcp:localhost:1", "tcp:[::1]:7", "tcp:0.0.0.0:9", "tcp:9", "other", ""] {
            assert!(!is_unix(addr), "{addr}");
        }
    }

    /// Goal: keys that an attacker would try first are refused, and random ones are not. Method: a table; bytes and
    /// letters of a generator.
    #[test]
    fn keys_that_can_be_guessed() {
        for weak in [
            "aaaaaaaaaaaaaaaaaaaaaaaa",
            "1234567890123456",
            "passwordpassword",
            "abcdefghijklmnopqrstuvwxyz",
            "0123456789abcdef",
            "abababababababababababab",
            "00000000000000000000000000000001",
            "amphifs.amphifs.amphifs.",
        ] {
            assert_eq!(ClusterKey::new(weak.as_bytes()).unwrap_err(), WeakKey::Guessable, "{weak}");
        }
        let mut state = 88_172_645_463_325_252u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        for _ in 0..2_000 {
            let bytes: Vec<u8> = (0..16).map(|_| next() | 0x80).collect();
            assert!(ClusterKey::new(&bytes).is_ok(), "{bytes:?}");
            let hex: Vec<u8> = (0..32).map(|_| b"0123456789abcdef"[usize::from(next() >> 4)]).collect();
            assert!(ClusterKey::new(&hex).is_ok(), "{hex:?}");
        }
    }

    /// Goal: a proof holds for its end, nonces, channel and message only, and short keys are refused. Method: change
    /// one input at a time.
    #[test]
    fn proofs_cover_everything() {
        assert_eq!(ClusterKey::new(b" 123456789012345\n").unwrap_err(), WeakKey::Short(15));
        let key = ClusterKey::new(b"a key for this t\n").unwrap();
        let other = ClusterKey::new(b"a key for this u").unwrap();
        let (s, c, bound) = ([1; NONCE_BYTES], [2; NONCE_BYTES], [3; 34]);
        let proof = key.proof(End::Client, (&s, &c), &bound, b"hello");
        assert!(key.verify(End::Client, (&s, &c), &bound, b"hello", &proof));
        assert!(!key.verify(End::Server, (&s, &c), &bound, b"hello", &proof));
        assert!(!key.verify(End::Client, (&c, &c), &bound, b"hello", &proof));
        assert!(!key.verify(End::Client, (&s, &s), &bound, b"hello", &proof));
        assert!(!key.verify(End::Client, (&s, &c), &[4; 34], b"hello", &proof));
        assert!(!key.verify(End::Client, (&s, &c), &bound, b"hellp", &proof));
        assert!(!key.verify(End::Client, (&s, &c), &bound, b"hello", &proof[..31]));
        assert!(!other.verify(End::Client, (&s, &c), &bound, b"hello", &proof));
        assert_eq!(format!("{key:?}"), "ClusterKey(..)");
    }
}
