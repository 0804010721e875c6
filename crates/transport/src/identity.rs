//! Identities: the key pair of a server, a host or an administrator, and the proof that it gives in the handshake.
//!
//! Owns: `Identity`, its text in a file, the signatures of both ends. Does not own: reading files and their modes
//! (`amphi_host::identity_file`), what the owner of a key may do (the server's registry).
//!
//! A signature covers both nonces, both public keys, the channel (`secure`) and the message in which it is sent. So it
//! is valid for this one connection to this one server: a server cannot present it to another server as its own. Each
//! end has its own label, so that a signature of one end is not valid for the other.
//!
//! Invariants: signatures are checked strictly (no weak keys, one encoding). A secret is never printed.

use crate::secure::Bound;
use amphi_wire::handshake::{IdentityProof, NONCE_BYTES, Signature};
use amphi_wire::keys::{Fingerprint, unhex};
use ed25519_dalek::{Signature as Ed25519, Signer, SigningKey, VerifyingKey};
use std::fmt;
use std::sync::Arc;

/// Bytes of a secret.
pub const SECRET_BYTES: usize = 32;
/// Most keys of servers that one file trusts.
pub const TRUSTED_MAX: usize = 4096;
/// First line of a file with an identity.
const HEAD: &str = "amphi identity 1";

/// Which end signs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Signing {
    Client,
    Server,
}

impl Signing {
    fn label(self) -> &'static [u8] {
        match self {
            Signing::Client => b"amphi identity client 2",
            Signing::Server => b"amphi identity server 2",
        }
    }
}

/// The values that both ends know when one of them signs.
pub(crate) struct Transcript<'a> {
    pub(crate) server_nonce: &'a [u8; NONCE_BYTES],
    pub(crate) client_nonce: &'a [u8; NONCE_BYTES],
    pub(crate) server_key: Option<Fingerprint>,
    pub(crate) client_key: Option<Fingerprint>,
    pub(crate) bound: &'a Bound,
    pub(crate) said: &'a [u8],
}

impl Transcript<'_> {
    fn bytes(&self, end: Signing) -> Vec<u8> {
        let mut bytes = end.label().to_vec();
        bytes.extend(self.server_nonce);
        bytes.extend(self.client_nonce);
        for key in [self.server_key, self.client_key] {
            bytes.push(u8::from(key.is_some()));
            bytes.extend(key.map_or([0; 32], |k| k.0));
        }
        bytes.extend(self.bound);
        bytes.extend(self.said);
        bytes
    }

    /// Returns whether `signature` is that of `key` over these values.
    pub(crate) fn verify(&self, end: Signing, key: Fingerprint, signature: &Signature) -> bool {
        let mut whole = [0; 64];
        whole[..32].copy_from_slice(&signature.first);
        whole[32..].copy_from_slice(&signature.second);
        let signature = Ed25519::from_bytes(&whole);
        VerifyingKey::from_bytes(&key.0).is_ok_and(|k| k.verify_strict(&self.bytes(end), &signature).is_ok())
    }
}

/// A key pair, and the servers whose keys its holder trusts. Cheap to clone.
#[derive(Clone)]
pub struct Identity {
    key: Arc<SigningKey>,
    servers: Arc<Vec<Fingerprint>>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({}, ..)", self.fingerprint())
    }
}

impl Identity {
    /// A key pair from 32 random bytes, which trusts no server yet.
    pub fn new(secret: [u8; SECRET_BYTES]) -> Identity {
        Identity { key: Arc::new(SigningKey::from_bytes(&secret)), servers: Arc::default() }
    }

    /// The same key pair, whose holder trusts these servers as well.
    pub fn trusting(&self, more: impl IntoIterator<Item = Fingerprint>) -> Identity {
        let mut servers: Vec<Fingerprint> = self.servers.iter().copied().chain(more).collect();
        servers.sort_unstable();
        servers.dedup();
        Identity { key: self.key.clone(), servers: Arc::new(servers) }
    }

    /// The public key.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint(self.key.verifying_key().to_bytes())
    }

    /// Keys of servers that are trusted.
    pub fn servers(&self) -> &[Fingerprint] {
        &self.servers
    }

    pub(crate) fn sign(&self, end: Signing, transcript: &Transcript<'_>) -> Signature {
        let whole = self.key.sign(&transcript.bytes(end)).to_bytes();
        let (mut first, mut second) = ([0; 32], [0; 32]);
        first.copy_from_slice(&whole[..32]);
        second.copy_from_slice(&whole[32..]);
        Signature { first, second }
    }

    pub(crate) fn prove(&self, transcript: &Transcript<'_>) -> IdentityProof {
        IdentityProof { key: self.fingerprint(), signature: self.sign(Signing::Client, transcript) }
    }

    /// The content of a file with this identity.
    pub fn to_text(&self) -> String {
        let secret: String = self.key.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let servers: String = self.servers.iter().map(|server| format!("server {server}\n")).collect();
        format!("{HEAD}\npublic {}\nsecret {secret}\n{servers}end\n", self.fingerprint())
    }

    /// Reads what `to_text` wrote; lines that begin with `#` are passed over.
    ///
    /// Errors: what is wrong with the text, without its secret.
    pub fn parse(text: &str) -> Result<Identity, String> {
        let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
        if lines.next() != Some(HEAD) {
            return Err("this is no identity: make one with amphi key make FILE".into());
        }
        let (mut public, mut secret, mut servers, mut whole) = (None, None, Vec::new(), false);
        for line in lines {
            let (word, value) = line.split_once(' ').unwrap_or((line, ""));
            let fingerprint = || Fingerprint::parse(value).ok_or(format!("its line '{word}' names no public key"));
            match word {
                _ if whole => return Err("there is something behind its end".into()),
                "public" if public.is_none() => public = Some(fingerprint()?),
                "secret" if secret.is_none() => secret = unhex::<SECRET_BYTES>(value),
                "server" if servers.len() < TRUSTED_MAX => servers.push(fingerprint()?),
                "end" => whole = true,
                _ => return Err("it is damaged: it has a line that is unknown, or there twice".into()),
            }
        }
        let (Some(public), Some(secret), true) = (public, secret, whole) else {
            return Err(
                "it is cut short or damaged: take the copy of it, or make another and have that one added".into()
            );
        };
        let identity = Identity::new(secret).trusting(servers);
        if identity.fingerprint() != public {
            return Err("its public and its secret key do not belong together".into());
        }
        Ok(identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a signature is valid only for its end, both nonces, both keys, the channel and the message. Method: change
    /// one input at a time, and each bit of the signature.
    #[test]
    fn signatures_cover_everything() {
        let (client, server) = (Identity::new([1; 32]), Identity::new([2; 32]));
        let (s, c) = ([1; NONCE_BYTES], [2; NONCE_BYTES]);
        let (server_key, client_key) = (Some(server.fingerprint()), Some(client.fingerprint()));
        let right =
            Transcript { server_nonce: &s, client_nonce: &c, server_key, client_key, bound: &[3; 34], said: b"hello" };
        let IdentityProof { key, signature } = client.prove(&right);
        assert_eq!(Some(key), client_key);
        assert!(right.verify(Signing::Client, key, &signature));
        assert!(!right.verify(Signing::Server, key, &signature));
        assert!(!right.verify(Signing::Client, server.fingerprint(), &signature));
        for wrong in [
            Transcript { server_nonce: &c, ..right },
            Transcript { client_nonce: &s, ..right },
            Transcript { server_key: None, ..right },
            Transcript { server_key: client_key, ..right },
            Transcript { client_key: server_key, ..right },
            Transcript { bound: &[4; 34], ..right },
            Transcript { said: b"hellp", ..right },
        ] {
            assert!(!wrong.verify(Signing::Client, key, &signature));
        }
        for bit in 0..512 {
            let mut bent = signature;
            let half = if bit < 256 { &mut bent.first } else { &mut bent.second };
            half[bit % 256 / 8] ^= 1 << (bit % 8);
            assert!(!right.verify(Signing::Client, key, &bent), "bit {bit}");
        }
        // The neutral element is a public key under which anything could be signed.
        let mut weak = [0; 32];
        weak[0] = 1;
        let zero = Signature { first: weak, second: [0; 32] };
        assert!(!right.verify(Signing::Client, Fingerprint(weak), &zero));
    }

    /// Goal: an identity is unchanged after it was written to a file and read again, and no other text is accepted as
    /// one. Method: its text truncated at each place, with each line missing, twice or changed; other files.
    #[test]
    fn files_are_whole_or_refused() {
        let identity = Identity::new([7; 32]).trusting([Fingerprint([9; 32]), Fingerprint([8; 32])]);
        let text = identity.to_text();
        let back = Identity::parse(&format!("# of node 1\n\n{text}")).expect("read");
        assert_eq!((back.fingerprint(), back.servers()), (identity.fingerprint(), identity.servers()));
        for cut in 0..text.len() - 1 {
            assert!(Identity::parse(&text[..cut]).is_err(), "cut to {cut} bytes");
        }
        let lines: Vec<&str> = text.lines().collect();
        for n in (0..lines.len()).filter(|n| !lines[*n].starts_with("server")) {
            let without: Vec<&str> = lines.iter().enumerate().filter(|(at, _)| *at != n).map(|(_, l)| *l).collect();
            assert!(Identity::parse(&without.join("\n")).is_err(), "without line {n}");
            let mut twice = lines.clone();
            twice.insert(n, lines[n]);
            assert!(Identity::parse(&twice.join("\n")).is_err(), "line {n} twice");
        }
        let other = Identity::new([6; 32]).fingerprint().to_string();
        let foreign = text.replace(&identity.fingerprint().to_string(), &other);
        assert!(Identity::parse(&foreign).expect_err("foreign").contains("belong together"));
        for text in
            ["", "a key for this test\n", "-----BEGIN OPENSSH PRIVATE KEY-----\n", &text.replace("secret", "sekret")]
        {
            let refused = Identity::parse(text).expect_err("refused");
            assert!(!refused.contains("0707"), "{refused}");
        }
        assert!(!format!("{identity:?}").contains("0707"), "a secret is not printed");
    }
}
