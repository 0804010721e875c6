//! Who may speak: the cluster key, the proofs of the handshake, and which addresses need a key.
//!
//! Owns: `ClusterKey` and its two proofs (HMAC-SHA256), `is_local`, `ServerAuth`. Does not own: the order of
//! the handshake (`handshake`). The proofs show that both ends know the key when the connection starts; what
//! follows is neither encrypted nor signed, so a key protects a trusted network from strangers, not from
//! whoever can change its packets.
//!
//! Invariants: proofs are compared in constant time; a key is never printed.

use amphi_env::addr::Addr;
use amphi_wire::handshake::{NONCE_BYTES, PROOF_BYTES};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;

/// Fewest bytes of a cluster key: 128 bits.
pub const KEY_BYTES_MIN: usize = 16;

/// A random number used once, chosen by one end.
pub(crate) type Nonce = [u8; NONCE_BYTES];

/// The secret that clients and servers of one cluster share.
#[derive(Clone)]
pub struct ClusterKey(Vec<u8>);

/// A key with fewer than `KEY_BYTES_MIN` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyTooShort {
    /// Bytes found.
    pub bytes: usize,
}

impl fmt::Display for KeyTooShort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the cluster key has {} bytes, at least {KEY_BYTES_MIN} are needed", self.bytes)
    }
}

impl std::error::Error for KeyTooShort {}

impl ClusterKey {
    /// A key from the content of a key file: white space at both ends is not part of it.
    pub fn new(content: &[u8]) -> Result<ClusterKey, KeyTooShort> {
        let key = content.trim_ascii();
        if key.len() < KEY_BYTES_MIN {
            return Err(KeyTooShort { bytes: key.len() });
        }
        Ok(ClusterKey(key.to_vec()))
    }

    fn mac(&self, label: &[u8], server: &Nonce, client: &Nonce, said: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(label);
        mac.update(server);
        mac.update(client);
        mac.update(said);
        mac
    }

    /// The proof of one end over both nonces and the message it sends. The label keeps one end's proof from
    /// being sent back as the other's.
    pub(crate) fn proof(&self, end: End, server: &Nonce, client: &Nonce, said: &[u8]) -> [u8; PROOF_BYTES] {
        self.mac(end.label(), server, client, said).finalize().into_bytes().into()
    }

    /// Whether `proof` is what `proof()` gives.
    pub(crate) fn verify(&self, end: End, server: &Nonce, client: &Nonce, said: &[u8], proof: &[u8]) -> bool {
        self.mac(end.label(), server, client, said).verify_slice(proof).is_ok()
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
            End::Client => b"amphi client 1",
            End::Server => b"amphi server 1",
        }
    }
}

/// What a server asks of those who connect.
#[derive(Clone, Debug, Default)]
pub struct ServerAuth {
    /// They must know this key; `None` serves anyone, on local addresses only.
    pub key: Option<ClusterKey>,
}

/// Whether only processes of this machine can reach `addr` (`unix:PATH`, or `tcp:HOST:PORT` with a loopback
/// host).
pub fn is_local(addr: &str) -> bool {
    match Addr::parse(addr) {
        Ok(Addr::Unix(_)) => true,
        Ok(Addr::Tcp(host, _)) => {
            host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only addresses that other machines cannot reach pass without a key. Method: a table.
    #[test]
    fn local_addresses() {
        for addr in ["unix:/run/a.sock", "tcp:127.0.0.1:9", "tcp:127.3.2.1:0", "tcp:localhost:1", "tcp:[::1]:7"] {
            assert!(is_local(addr), "{addr}");
        }
        for addr in ["tcp:0.0.0.0:9", "tcp:[::]:7", "tcp:10.0.0.1:1", "tcp:example.org:1", "tcp:9", "other", ""] {
            assert!(!is_local(addr), "{addr}");
        }
    }

    /// Goal: a proof holds for its end, nonces and message only, and short keys are refused. Method: change one
    /// input at a time.
    #[test]
    fn proofs_cover_everything() {
        assert_eq!(ClusterKey::new(b" 123456789012345\n").unwrap_err(), KeyTooShort { bytes: 15 });
        let key = ClusterKey::new(b"1234567890123456\n").unwrap();
        let other = ClusterKey::new(b"1234567890123457").unwrap();
        let (s, c) = ([1; NONCE_BYTES], [2; NONCE_BYTES]);
        let proof = key.proof(End::Client, &s, &c, b"hello");
        assert!(key.verify(End::Client, &s, &c, b"hello", &proof));
        assert!(!key.verify(End::Server, &s, &c, b"hello", &proof));
        assert!(!key.verify(End::Client, &c, &c, b"hello", &proof));
        assert!(!key.verify(End::Client, &s, &s, b"hello", &proof));
        assert!(!key.verify(End::Client, &s, &c, b"hellp", &proof));
        assert!(!key.verify(End::Client, &s, &c, b"hello", &proof[..31]));
        assert!(!other.verify(End::Client, &s, &c, b"hello", &proof));
        assert_eq!(format!("{key:?}"), "ClusterKey(..)");
    }
}
