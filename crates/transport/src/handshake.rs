//! The handshake: challenge, hello, welcome or refuse. Each end proves to the other that it knows the cluster key,
//! or that it has the secret of a key of its own.
//!
//! Owns: the order of the four messages, and every check of them. Does not own: time limits (the callers').

use crate::auth::{ClusterKey, End, Nonce, Proved, ServerAuth};
use crate::bell::Ending;
use crate::identity::{Identity, Signing, Transcript};
use crate::pipe::{HandshakeOnly, Inbound, Message, Outbound};
use amphi_env::Env;
use amphi_wire::handshake::{
    Challenge, IdentityProof, NONCE_BYTES, REASON_MAX, Refuse, SignedHello, SignedWelcome, proven_bytes,
};
use amphi_wire::{Hello, VERSION, Welcome};

fn nonce<E: Env>(env: &E) -> Nonce {
    let mut nonce = [0; NONCE_BYTES];
    for part in nonce.chunks_exact_mut(8) {
        part.copy_from_slice(&env.rand().to_le_bytes());
    }
    nonce
}

/// Why a client was not admitted.
#[derive(Debug)]
pub(crate) enum NotWelcome {
    /// The server refused, for this reason.
    Refused(String),
    /// The server cannot be trusted or understood.
    Foreign(String),
    /// The connection ended.
    Ended(Ending),
}

impl From<Ending> for NotWelcome {
    fn from(e: Ending) -> NotWelcome {
        match e {
            Ending::Violation(why) => NotWelcome::Foreign(why),
            e => NotWelcome::Ended(e),
        }
    }
}

/// A text from the other end in a form that may be shown. Characters that could move a terminal's cursor or imitate a
/// line of the log are escaped.
pub(crate) fn printable(text: &str) -> String {
    let shown = |c: char| match c {
        '\'' | '"' | '\\' => vec![c],
        c => c.escape_debug().collect(),
    };
    text.chars().flat_map(shown).collect()
}

fn unexpected(message: &Message, instead_of: &str) -> Ending {
    Ending::Violation(format!("a {:?} came instead of a {instead_of}", message.kind()))
}

/// What a client proves, and what it asks of the server.
#[derive(Clone, Copy, Default)]
pub(crate) struct Proves<'a> {
    /// The cluster key.
    pub(crate) key: Option<&'a ClusterKey>,
    /// Its own key.
    pub(crate) identity: Option<&'a Identity>,
    /// Any server at the address will do.
    pub(crate) any_server: bool,
}

/// Whether a client with a key of its own goes on with this server. It signs nothing for one that it does not trust.
fn check_server(proves: Proves<'_>, challenge: &Challenge) -> Result<(), NotWelcome> {
    let Some(identity) = proves.identity.filter(|_| !proves.any_server) else { return Ok(()) };
    let trusted = challenge.identity.is_some_and(|key| identity.servers().contains(&key));
    if trusted || (proves.key.is_some() && challenge.keyed) {
        return Ok(());
    }
    Err(NotWelcome::Foreign(match challenge.identity {
        Some(key) => format!(
            "the server's key {key} is not one that this identity trusts; if it is right, add it to the file: \
             amphi key trust FILE {key}"
        ),
        None => "the server has no key of its own; start it with --identity FILE".into(),
    }))
}

/// The client's side of the handshake.
pub(crate) async fn greet<E: Env>(
    env: &E,
    out: &mut Outbound<E>,
    inb: &mut Inbound<E>,
    hello: Hello,
    proves: Proves<'_>,
) -> Result<Welcome, NotWelcome> {
    let challenge = match inb.recv(&mut HandshakeOnly).await?.0 {
        Message::Challenge(c) => c,
        Message::Refuse(r) => return Err(NotWelcome::Refused(printable(&r.reason))),
        other => return Err(unexpected(&other, "challenge").into()),
    };
    check_server(proves, &challenge)?;
    let nonce = nonce(env);
    let said = proven_bytes(&hello);
    let client_key = proves.identity.map(Identity::fingerprint);
    let transcript = Transcript {
        server_nonce: &challenge.nonce,
        client_nonce: &nonce,
        server_key: challenge.identity,
        client_key,
        said: &said,
    };
    let proof = proves.key.map(|k| k.proof(End::Client, &challenge.nonce, &nonce, &said));
    let identity = proves.identity.map(|identity| identity.prove(&transcript));
    out.send(Message::Hello(SignedHello { hello, nonce, proof, identity })).await?;
    let signed = match inb.recv(&mut HandshakeOnly).await?.0 {
        Message::Welcome(w) => w,
        Message::Refuse(r) => return Err(NotWelcome::Refused(printable(&r.reason))),
        other => return Err(unexpected(&other, "welcome").into()),
    };
    let said = proven_bytes(&signed.welcome);
    if let Some(key) = proves.key {
        let proof = signed.proof.as_ref().map_or(&[][..], |p| p);
        // A server without the cluster key will do if its own key is trusted.
        let need = proves.identity.is_none() || challenge.keyed;
        if need && !key.verify(End::Server, &challenge.nonce, &nonce, &said, proof) {
            return Err(NotWelcome::Foreign("the server does not know the cluster key".into()));
        }
    }
    if let Some(server_key) = challenge.identity {
        let transcript = Transcript { said: &said, ..transcript };
        let right = |signature| transcript.verify(Signing::Server, server_key, signature);
        if proves.identity.is_some() && !signed.signature.as_ref().is_some_and(right) {
            return Err(NotWelcome::Foreign(format!("the server does not have the secret of its key {server_key}")));
        }
    }
    let version = signed.welcome.version;
    if version != VERSION {
        return Err(NotWelcome::Foreign(format!("the server speaks version {version}, this program {VERSION}")));
    }
    Ok(signed.welcome)
}

/// A client that may be admitted. The server decides about its session, then calls `admit`.
pub(crate) struct Guest {
    pub(crate) hello: Hello,
    /// What it has proved.
    pub(crate) proved: Proved,
    /// Whether the cluster key is among that.
    pub(crate) knows_cluster_key: bool,
    challenge: Nonce,
    nonce: Nonce,
}

/// The server's side of the handshake, up to the client's proof. A client that may connect `unix_without_key` need not
/// prove anything. After an error the client was sent the reason, if that was possible.
pub(crate) async fn challenge<E: Env>(
    env: &E,
    out: &mut Outbound<E>,
    inb: &mut Inbound<E>,
    auth: &ServerAuth,
) -> Result<Guest, Ending> {
    let challenge = nonce(env);
    let server_key = auth.identity.as_ref().map(Identity::fingerprint);
    let keyed = auth.key.is_some();
    out.send(Message::Challenge(Challenge { nonce: challenge, keyed, identity: server_key })).await?;
    let signed = match inb.recv(&mut HandshakeOnly).await {
        Ok((Message::Hello(h), _)) => h,
        Ok((other, _)) => return Err(unexpected(&other, "hello")),
        Err(Ending::Violation(why)) => return Err(refuse(out, why).await),
        Err(e) => return Err(e),
    };
    let version = signed.hello.version;
    if version != VERSION {
        return Err(refuse(out, format!("this server speaks version {VERSION}, the client {version}")).await);
    }
    let said = proven_bytes(&signed.hello);
    let mut proved = Proved::Nothing;
    if let Some(key) = &auth.key
        && let Some(proof) = &signed.proof
    {
        if !key.verify(End::Client, &challenge, &signed.nonce, &said, proof) {
            return Err(refuse(out, "wrong cluster key; give the file that the server was started with".into()).await);
        }
        proved = Proved::ClusterKey;
    }
    let knows_cluster_key = proved == Proved::ClusterKey;
    if let Some(IdentityProof { key, signature }) = &signed.identity {
        let transcript = Transcript {
            server_nonce: &challenge,
            client_nonce: &signed.nonce,
            server_key,
            client_key: Some(*key),
            said: &said,
        };
        if !transcript.verify(Signing::Client, *key, signature) {
            return Err(refuse(out, format!("the client does not have the secret of the key {key}")).await);
        }
        // It says more than the cluster key.
        proved = Proved::Identity(*key);
    }
    if proved == Proved::Nothing && !auth.unix_without_key && (keyed || server_key.is_some()) {
        let words = match keyed {
            true => "this cluster needs a key; give its file with --key",
            false => "this cluster needs an identity; give its file with --identity",
        };
        return Err(refuse(out, words.into()).await);
    }
    Ok(Guest { hello: signed.hello, proved, knows_cluster_key, challenge, nonce: signed.nonce })
}

/// Sends the client the reason for its refusal. Returns that reason as the end of the connection.
pub(crate) async fn refuse<E: Env>(out: &mut Outbound<E>, mut reason: String) -> Ending {
    let mut end = reason.len().min(REASON_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason.truncate(end);
    let ending = Ending::Violation(format!("refused: {reason}"));
    // If the peer is gone already, it needs no reason.
    let _ = out.send(Message::Refuse(Refuse { reason })).await;
    ending
}

impl Guest {
    /// Admits the client.
    pub(crate) async fn admit<E: Env>(
        &self,
        out: &mut Outbound<E>,
        welcome: Welcome,
        auth: &ServerAuth,
    ) -> Result<(), Ending> {
        let said = proven_bytes(&welcome);
        let proof = auth.key.as_ref().map(|k| k.proof(End::Server, &self.challenge, &self.nonce, &said));
        let client_key = match self.proved {
            Proved::Identity(key) => Some(key),
            Proved::Nothing | Proved::ClusterKey => None,
        };
        let signature = auth.identity.as_ref().map(|identity| {
            let transcript = Transcript {
                server_nonce: &self.challenge,
                client_nonce: &self.nonce,
                server_key: Some(identity.fingerprint()),
                client_key,
                said: &said,
            };
            identity.sign(Signing::Server, &transcript)
        });
        out.send(Message::Welcome(SignedWelcome { welcome, proof, signature })).await
    }
}

#[cfg(test)]
mod tests {
    use super::printable;

    /// Goal: nothing from the other end reaches a terminal or the log as more than text of one line. Method: a table.
    #[test]
    fn only_text_is_shown() {
        for plain in ["host:17", "1f 2e server-0", "cluster 'a' of \"b\" \\ c", "Gr\u{fc}n"] {
            assert_eq!(printable(plain), plain);
        }
        for (foreign, shown) in [
            ("a\nWARN all is well", "a\\nWARN all is well"),
            ("\u{1b}[2Jgone", "\\u{1b}[2Jgone"),
            ("\u{202e}gnp", "\\u{202e}gnp"),
            ("\r\t\0", "\\r\\t\\0"),
        ] {
            assert_eq!(printable(foreign), shown);
        }
    }
}
