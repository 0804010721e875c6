//! The handshake: challenge, key exchange, hello, welcome or refuse. Each end proves to the other that it knows the
//! cluster key, or that it has the secret of a key of its own.
//!
//! Owns: the order of the messages, and every check of them. Does not own: time limits (the callers'), how the channel
//! protects (`secure`).
//!
//! The challenge is sent in clear and names the protection of all later messages. If it names a channel, the key
//! exchange follows, and hello and welcome travel in the channel already. Their proofs cover the contents of the
//! challenge and the binding of the channel. So an attacker between the ends can neither change the level nor pass
//! proofs from one channel to another.

use crate::auth::{ClusterKey, End, Nonce, Proved, ServerAuth};
use crate::bell::Ending;
use crate::identity::{Identity, Signing, Transcript};
use crate::pipe::{HandshakeOnly, Inbound, Message, Outbound, protect};
use crate::secure::{Binding, Bound, Exchange, Hands};
use amphi_env::Env;
use amphi_wire::handshake::{
    Challenge, IdentityProof, NONCE_BYTES, REASON_MAX, Refuse, Secure, SignedHello, SignedWelcome, proven_bytes,
};
use amphi_wire::{Hello, VERSION, Welcome};

fn nonce<E: Env>(env: &E) -> Nonce {
    let mut nonce = [0; NONCE_BYTES];
    for part in nonce.chunks_exact_mut(8) {
        part.copy_from_slice(&env.rand().to_le_bytes());
    }
    nonce
}

/// The reason why a client was not admitted.
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

/// Most records of a key exchange that one end reads: TLS needs five.
const EXCHANGE_RECORDS_MAX: usize = 16;

/// The input of the proofs for a channel that began with `challenge`.
fn bound(challenge: &Challenge, binding: &Binding) -> Bound {
    let mut bound = [0; size_of::<Bound>()];
    bound[0] = challenge.secure as u8;
    bound[1] = u8::from(challenge.keyed);
    bound[2..].copy_from_slice(binding);
    bound
}

/// The reason why there is no channel.
enum NoChannel {
    /// The other end sent a frame where the key exchange belongs.
    Clear,
    Ended(Ending),
}

impl From<Ending> for NoChannel {
    fn from(e: Ending) -> NoChannel {
        NoChannel::Ended(e)
    }
}

/// Agrees with the other end on the channel that `challenge` requires, which protects everything from here on. Returns
/// the channel's binding for the proofs.
async fn agree<E: Env>(
    out: &mut Outbound<E>,
    inb: &mut Inbound<E>,
    hands: Hands,
    challenge: &Challenge,
) -> Result<Bound, NoChannel> {
    if challenge.secure == Secure::Off {
        return Ok(bound(challenge, &Binding::default()));
    }
    let failed = |why: String| Ending::Violation(format!("no keys for the connection could be agreed on: {why}"));
    let mut exchange = Exchange::new(hands).map_err(failed)?;
    let mut records = 0;
    loop {
        let flight = exchange.outgoing();
        if !flight.is_empty() {
            out.send_clear(&flight).await?;
        }
        if exchange.is_over() {
            break;
        }
        let Some(record) = inb.clear_record().await? else { return Err(NoChannel::Clear) };
        records += 1;
        if records > EXCHANGE_RECORDS_MAX {
            return Err(failed("the other end comes to no end".into()).into());
        }
        if let Err(why) = exchange.incoming(&record) {
            // The other end is notified, if it is still there.
            let _ = out.send_clear(&exchange.outgoing()).await;
            return Err(failed(why).into());
        }
    }
    let (channel, binding) = exchange.channel(challenge.secure, challenge).map_err(failed)?;
    protect(out, inb, channel);
    Ok(bound(challenge, &binding))
}

/// The key exchange for a relay of the tests; whether there is a channel.
#[cfg(test)]
pub(crate) async fn agree_for_tests<E: Env>(
    out: &mut Outbound<E>,
    inb: &mut Inbound<E>,
    hands: Hands,
    challenge: &Challenge,
) -> bool {
    agree(out, inb, hands, challenge).await.is_ok()
}

/// The proofs of a client, and its requirements for the server.
#[derive(Clone, Copy, Default)]
pub(crate) struct Proves<'a> {
    /// The cluster key.
    pub(crate) key: Option<&'a ClusterKey>,
    /// The client's own key.
    pub(crate) identity: Option<&'a Identity>,
    /// Any server at the address is accepted.
    pub(crate) any_server: bool,
    /// The least protection with which the client continues.
    pub(crate) secure: Secure,
    /// Whether the server may have the memory of this process's buffers.
    pub(crate) passes_memory: bool,
}

/// Returns whether a client with a key of its own continues with this server. It signs nothing for a server that it
/// does not trust.
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

/// Returns whether the connection will be protected as the client wants it at least.
fn check_level(proves: Proves<'_>, offered: Secure) -> Result<(), NotWelcome> {
    if offered < proves.secure {
        return Err(NotWelcome::Foreign(format!(
            "the server protects connections to this address by secure = \"{offered}\", and at least \"{}\" was asked \
             for: set secure for the address in the server's configuration, or ask for less (--secure {offered})",
            proves.secure
        )));
    }
    if proves.secure > Secure::Off && proves.key.is_none() && proves.identity.is_none() {
        return Err(NotWelcome::Foreign(format!(
            "without a key nobody knows who is at the other end of a connection with --secure {}: give --key FILE or \
             --identity FILE",
            proves.secure
        )));
    }
    Ok(())
}

/// The client's side of the handshake. Also says whether the server uses the memory that it was passed.
pub(crate) async fn greet<E: Env>(
    env: &E,
    out: &mut Outbound<E>,
    inb: &mut Inbound<E>,
    hello: Hello,
    proves: Proves<'_>,
) -> Result<(Welcome, bool), NotWelcome> {
    let challenge = match inb.recv(&mut HandshakeOnly).await?.0 {
        Message::Challenge(c) => c,
        Message::Refuse(r) => return Err(NotWelcome::Refused(printable(&r.reason))),
        other => return Err(unexpected(&other, "challenge").into()),
    };
    check_level(proves, challenge.secure)?;
    check_server(proves, &challenge)?;
    let bound = match agree(out, inb, Hands::Client, &challenge).await {
        Ok(bound) => bound,
        Err(NoChannel::Ended(e)) => return Err(e.into()),
        Err(NoChannel::Clear) => {
            return Err(NotWelcome::Foreign("the server went on in clear after it had offered protection".into()));
        }
    };
    let nonce = nonce(env);
    let said = proven_bytes(&hello);
    let client_key = proves.identity.map(Identity::fingerprint);
    let transcript = Transcript {
        server_nonce: &challenge.nonce,
        client_nonce: &nonce,
        server_key: challenge.identity,
        client_key,
        bound: &bound,
        said: &said,
    };
    let nonces = (&challenge.nonce, &nonce);
    let proof = proves.key.map(|k| k.proof(End::Client, nonces, &bound, &said));
    let identity = proves.identity.map(|identity| identity.prove(&transcript));
    let signed = SignedHello { hello, nonce, proof, identity };
    let passed = match proves.passes_memory {
        true => out.send_with_memory(signed).await?,
        false => out.send(Message::Hello(signed)).await.map(|()| false)?,
    };
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
        if need && !key.verify(End::Server, nonces, &bound, &said, proof) {
            return Err(NotWelcome::Foreign(
                "the server does not know the cluster key, or somebody is in between".into(),
            ));
        }
    }
    if let Some(server_key) = challenge.identity {
        let transcript = Transcript { said: &said, ..transcript };
        let right = |signature| transcript.verify(Signing::Server, server_key, signature);
        if proves.identity.is_some() && !signed.signature.as_ref().is_some_and(right) {
            return Err(NotWelcome::Foreign(format!(
                "the server does not have the secret of its key {server_key}, or somebody is in between"
            )));
        }
    }
    let version = signed.welcome.version;
    if version != VERSION {
        return Err(NotWelcome::Foreign(format!("the server speaks version {version}, this program {VERSION}")));
    }
    Ok((signed.welcome, passed && signed.memory))
}

/// A client that may be admitted. The server decides about its session, then calls `admit`.
pub(crate) struct Guest {
    pub(crate) hello: Hello,
    /// The keys that the client has proved.
    pub(crate) proved: Proved,
    /// Whether the client has proved that it knows the cluster key.
    pub(crate) knows_cluster_key: bool,
    challenge: Challenge,
    nonce: Nonce,
    bound: Bound,
}

/// The server's side of the handshake, up to the client's proof. A client that may connect `unix_without_key` need not
/// prove anything. After an error the client was sent the reason, if that was possible.
pub(crate) async fn challenge<E: Env>(
    env: &E,
    out: &mut Outbound<E>,
    inb: &mut Inbound<E>,
    auth: &ServerAuth,
) -> Result<Guest, Ending> {
    let server_key = auth.identity.as_ref().map(Identity::fingerprint);
    let keyed = auth.key.is_some();
    let challenge = Challenge { nonce: nonce(env), keyed, identity: server_key, secure: auth.secure };
    out.send(Message::Challenge(challenge)).await?;
    let bound = match agree(out, inb, Hands::Server, &challenge).await {
        Ok(bound) => bound,
        Err(NoChannel::Ended(e)) => return Err(e),
        Err(NoChannel::Clear) => {
            let words = format!(
                "this address takes connections with secure = \"{}\" alone, and a hello came in clear: the client is \
                 another version, which has to be updated, or somebody on the network has changed what the server \
                 offered",
                auth.secure
            );
            return Err(refuse(out, words).await);
        }
    };
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
        if !key.verify(End::Client, (&challenge.nonce, &signed.nonce), &bound, &said, proof) {
            let words = "wrong cluster key; give the file that the server was started with (or somebody is in between)";
            return Err(refuse(out, words.into()).await);
        }
        proved = Proved::ClusterKey;
    }
    let knows_cluster_key = proved == Proved::ClusterKey;
    if let Some(IdentityProof { key, signature }) = &signed.identity {
        let transcript = Transcript {
            server_nonce: &challenge.nonce,
            client_nonce: &signed.nonce,
            server_key,
            client_key: Some(*key),
            bound: &bound,
            said: &said,
        };
        if !transcript.verify(Signing::Client, *key, signature) {
            let words = format!("the client does not have the secret of the key {key}, or somebody is in between");
            return Err(refuse(out, words).await);
        }
        // A proof of a key pair proves more than the cluster key does.
        proved = Proved::Identity(*key);
    }
    if proved == Proved::Nothing && !auth.unix_without_key && (keyed || server_key.is_some()) {
        let words = match keyed {
            true => "this cluster needs a key; give its file with --key",
            false => "this cluster needs an identity; give its file with --identity",
        };
        return Err(refuse(out, words.into()).await);
    }
    Ok(Guest { hello: signed.hello, proved, knows_cluster_key, challenge, nonce: signed.nonce, bound })
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
    /// How the connection is protected.
    pub(crate) fn secure(&self) -> Secure {
        self.challenge.secure
    }

    /// Admits the client, and says whether the memory that it may have passed is used.
    pub(crate) async fn admit<E: Env>(
        &self,
        out: &mut Outbound<E>,
        welcome: Welcome,
        memory: bool,
        auth: &ServerAuth,
    ) -> Result<(), Ending> {
        let said = proven_bytes(&welcome);
        let nonces = (&self.challenge.nonce, &self.nonce);
        let proof = auth.key.as_ref().map(|k| k.proof(End::Server, nonces, &self.bound, &said));
        let client_key = match self.proved {
            Proved::Identity(key) => Some(key),
            Proved::Nothing | Proved::ClusterKey => None,
        };
        let signature = auth.identity.as_ref().map(|identity| {
            let transcript = Transcript {
                server_nonce: &self.challenge.nonce,
                client_nonce: &self.nonce,
                server_key: Some(identity.fingerprint()),
                client_key,
                bound: &self.bound,
                said: &said,
            };
            identity.sign(Signing::Server, &transcript)
        });
        out.send(Message::Welcome(SignedWelcome { welcome, proof, signature, memory })).await
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
