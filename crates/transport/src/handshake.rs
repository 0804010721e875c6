//! The handshake: challenge, hello, welcome or refuse. Each end proves to the other that it knows the cluster key.
//!
//! Owns: the order of the four messages, and every check of them. Does not own: time limits (the callers').

use crate::auth::{ClusterKey, End, Nonce};
use crate::bell::Ending;
use crate::pipe::{HandshakeOnly, Inbound, Message, Outbound};
use amphi_env::Env;
use amphi_wire::handshake::{Challenge, NONCE_BYTES, REASON_MAX, Refuse, SignedHello, SignedWelcome, proven_bytes};
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

/// The client's side of the handshake.
pub(crate) async fn greet<E: Env>(
    env: &E,
    out: &mut Outbound<E>,
    inb: &mut Inbound<E>,
    hello: Hello,
    key: Option<&ClusterKey>,
) -> Result<Welcome, NotWelcome> {
    let challenge = match inb.recv(&mut HandshakeOnly).await?.0 {
        Message::Challenge(c) => c,
        Message::Refuse(r) => return Err(NotWelcome::Refused(printable(&r.reason))),
        other => return Err(unexpected(&other, "challenge").into()),
    };
    let nonce = nonce(env);
    let proof = key.map(|k| k.proof(End::Client, &challenge.nonce, &nonce, &proven_bytes(&hello)));
    out.send(Message::Hello(SignedHello { hello, nonce, proof })).await?;
    let signed = match inb.recv(&mut HandshakeOnly).await?.0 {
        Message::Welcome(w) => w,
        Message::Refuse(r) => return Err(NotWelcome::Refused(printable(&r.reason))),
        other => return Err(unexpected(&other, "welcome").into()),
    };
    if let Some(key) = key {
        let said = proven_bytes(&signed.welcome);
        let proof = signed.proof.as_ref().map_or(&[][..], |p| p);
        if !key.verify(End::Server, &challenge.nonce, &nonce, &said, proof) {
            return Err(NotWelcome::Foreign("the server does not know the cluster key".into()));
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
    challenge: Nonce,
    nonce: Nonce,
}

/// The server's side of the handshake, up to the client's proof. A client that may connect `without_key` need not prove
/// anything. After an error the client was sent the reason, if that was possible.
pub(crate) async fn challenge<E: Env>(
    env: &E,
    out: &mut Outbound<E>,
    inb: &mut Inbound<E>,
    key: Option<&ClusterKey>,
    without_key: bool,
) -> Result<Guest, Ending> {
    let challenge = nonce(env);
    out.send(Message::Challenge(Challenge { nonce: challenge, keyed: key.is_some() })).await?;
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
    if let Some(key) = key.filter(|_| signed.proof.is_some() || !without_key) {
        let Some(proof) = &signed.proof else {
            return Err(refuse(out, "this cluster needs a key; give its file with --key".into()).await);
        };
        if !key.verify(End::Client, &challenge, &signed.nonce, &proven_bytes(&signed.hello), proof) {
            return Err(refuse(out, "wrong cluster key; give the file that the server was started with".into()).await);
        }
    }
    Ok(Guest { hello: signed.hello, challenge, nonce: signed.nonce })
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
        key: Option<&ClusterKey>,
    ) -> Result<(), Ending> {
        let said = proven_bytes(&welcome);
        let proof = key.map(|k| k.proof(End::Server, &self.challenge, &self.nonce, &said));
        out.send(Message::Welcome(SignedWelcome { welcome, proof })).await
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
