//! Bodies of the handshake: what surrounds `Hello` and `Welcome` on the wire.
//!
//! Owns: nonces and proofs as they travel. Does not own: how a proof is computed (`transport::auth`).
//! Invariant: a handshake body is at most `HANDSHAKE_BODY_MAX` bytes and has no payload, so a stranger cannot
//! make a server allocate more than that.

use crate::keys::Fingerprint;
pub use crate::secure::Secure;
use crate::{Hello, Welcome};
use serde::{Deserialize, Serialize};

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a proof: HMAC-SHA256.
pub const PROOF_BYTES: usize = 32;
/// Most bytes of a body before the handshake is done.
pub const HANDSHAKE_BODY_MAX: usize = 4096;
/// Most bytes of the reason in a `Refuse`; longer ones are cut.
pub const REASON_MAX: usize = 1024;

/// First frame of a connection, from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// The server's nonce.
    pub nonce: [u8; NONCE_BYTES],
    /// Whether the server requires a proof of the key and sends one itself.
    pub keyed: bool,
    /// The server's public key, if it has a key pair: then its `Welcome` is signed.
    pub identity: Option<Fingerprint>,
    /// How everything that follows is protected. The proofs of both ends include this choice.
    pub secure: Secure,
}

/// A signature of Ed25519.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The first half of the signature.
    pub first: [u8; 32],
    /// The second half of the signature.
    pub second: [u8; 32],
}

/// A client's key and its signature over both nonces, both public keys, the channel and `hello`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityProof {
    /// The client's public key.
    pub key: Fingerprint,
    /// The signature.
    pub signature: Signature,
}

/// Body of the `Hello` frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedHello {
    /// The message of the client.
    pub hello: Hello,
    /// The client's nonce.
    pub nonce: [u8; NONCE_BYTES],
    /// The client's proof over both nonces, the channel and `hello`, if it has the cluster key.
    pub proof: Option<[u8; PROOF_BYTES]>,
    /// The client's proof with its own key, if it has one.
    pub identity: Option<IdentityProof>,
}

/// Body of the `Welcome` frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedWelcome {
    /// The message of the server.
    pub welcome: Welcome,
    /// The server's proof over both nonces, the channel and `welcome`, if it has the cluster key.
    pub proof: Option<[u8; PROOF_BYTES]>,
    /// The signature of the server's own key over both nonces, both public keys, the channel and `welcome`, if the
    /// server has such a key.
    pub signature: Option<Signature>,
    /// The memory that came with the `Hello` is used: payloads may be named in place of being sent. This is possible
    /// only over Unix sockets.
    pub memory: bool,
}

/// Body of the `Refuse` frame. Its form is the same in all versions of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refuse {
    /// The reason why the server refuses, written for people.
    pub reason: String,
}

/// The bytes of a handshake message that a proof covers.
pub fn proven_bytes<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_stdvec(message).expect("serialising into memory cannot fail")
}
