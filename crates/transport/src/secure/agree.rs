//! The key exchange: TLS 1.3 by rustls, and the secrets that both ends derive from it.
//!
//! Owns: the settings of TLS, the flights of its handshake as bytes (sans-IO), keys and binding. Does not own: reading
//! and writing (`handshake`), the proofs that cover the binding (`handshake`, `auth`, `identity`).
//!
//! TLS establishes here with whom an end shares keys, not the identity of that end. The server presents a raw public
//! key (RFC 7250) that it made for this run and that no client checks. Both ends prove their identity inside the
//! channel, with the cluster key or key pairs, over a *binding* that TLS exports (as RFC 9266): it is the same at both
//! ends only if they share the keys, so an attacker who has one channel with each of them cannot pass a proof on from
//! one to the other. One way serves both kinds of proofs, and rustls has no pre-shared keys from outside.
//!
//! Invariants: X25519, AES-128-GCM and SHA-256 alone, so nothing is negotiated that could be negotiated down. Each
//! connection has fresh keys (no tickets, no early data): an attacker who learns a key of a cluster or a host later
//! cannot read earlier traffic.

use super::records::Secret;
use super::tags::{Tagger, Verifier};
use super::{Channel, KEY_BYTES, Opener, ReceiveChannel, Sealer, SendChannel};
use amphi_wire::handshake::{Challenge, Secure, proven_bytes};
use aws_lc_rs::signature::Ed25519KeyPair;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider, kx_group};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, ClientConnection, Connection, ConnectionTrafficSecrets, DigitallySignedStruct, ServerConfig,
    ServerConnection, SignatureScheme,
};
use std::net::Ipv4Addr;
use std::sync::{Arc, OnceLock};

/// The protocol inside, for peers that speak others over TLS.
const PROTOCOL: &[u8] = b"amphi";
/// Labels of the exports of TLS: the binding of the proofs, and the keys of tags.
const BINDING_LABEL: &[u8] = b"EXPORTER-amphi binding 1";
const TAGS_LABEL: &[u8] = b"EXPORTER-amphi tags 1";

/// The value that both ends share if they have one channel: the proofs of both cover it. Zeros where the channel has no
/// protection.
pub(crate) type Binding = [u8; 32];

/// The TLS configuration of both ends, made once for a process.
struct Settings {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

/// Accepts any key of a server if the server has its secret.
#[derive(Debug)]
struct AnyServer(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.3 alone is spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature_with_raw_key(message, &SubjectPublicKeyInfoDer::from(cert.as_ref()), dss, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

fn make_settings() -> Result<Settings, rustls::Error> {
    let provider = Arc::new(CryptoProvider {
        cipher_suites: vec![cipher_suite::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![kx_group::X25519],
        ..default_provider()
    });
    let versions = [&rustls::version::TLS13];
    let verifier = Arc::new(AnyServer(provider.signature_verification_algorithms));
    let client = ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(&versions)?;
    let mut client = client.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    client.alpn_protocols = vec![PROTOCOL.to_vec()];
    client.resumption = Resumption::disabled();
    client.enable_sni = false;
    client.enable_secret_extraction = true;

    let failed = |_| rustls::Error::General("a key for TLS cannot be made".into());
    let pair = Ed25519KeyPair::generate().map_err(failed)?;
    let secret = pair.to_pkcs8().map_err(failed)?;
    let secret = PrivatePkcs8KeyDer::from(secret.as_ref().to_vec());
    let secret = provider.key_provider.load_private_key(secret.into())?;
    let public = secret.public_key().ok_or_else(|| rustls::Error::General("a key without its public half".into()))?;
    let key = CertifiedKey::new(vec![CertificateDer::from(public.as_ref().to_vec())], secret);
    let server = ServerConfig::builder_with_provider(provider).with_protocol_versions(&versions)?;
    let keys = AlwaysResolvesServerRawPublicKeys::new(Arc::new(key));
    let mut server = server.with_no_client_auth().with_cert_resolver(Arc::new(keys));
    server.alpn_protocols = vec![PROTOCOL.to_vec()];
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    server.enable_secret_extraction = true;
    Ok(Settings { client: Arc::new(client), server: Arc::new(server) })
}

fn settings() -> Result<&'static Settings, String> {
    static SETTINGS: OnceLock<Result<Settings, rustls::Error>> = OnceLock::new();
    SETTINGS.get_or_init(make_settings).as_ref().map_err(|e| e.to_string())
}

/// The end of the connection on which the code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hands {
    Client,
    Server,
}

/// One end of a key exchange in progress.
pub(crate) struct Exchange {
    tls: Connection,
    hands: Hands,
}

impl Exchange {
    /// Begins. The client has bytes to send at once.
    pub(crate) fn new(hands: Hands) -> Result<Exchange, String> {
        let settings = settings()?;
        let failed = |e: rustls::Error| e.to_string();
        let tls = match hands {
            // The name of the server is neither sent nor checked.
            Hands::Client => {
                let name = ServerName::from(std::net::IpAddr::from(Ipv4Addr::LOCALHOST));
                ClientConnection::new(settings.client.clone(), name).map_err(failed)?.into()
            }
            Hands::Server => ServerConnection::new(settings.server.clone()).map_err(failed)?.into(),
        };
        Ok(Exchange { tls, hands })
    }

    /// The bytes to send now, after an error too: they notify the other end.
    pub(crate) fn outgoing(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.tls.wants_write() && self.tls.write_tls(&mut bytes).is_ok_and(|n| n > 0) {}
        bytes
    }

    /// Returns whether nothing more is read.
    pub(crate) fn is_over(&self) -> bool {
        !self.tls.is_handshaking()
    }

    /// Takes a record, header and all.
    pub(crate) fn incoming(&mut self, mut record: &[u8]) -> Result<(), String> {
        while !record.is_empty() {
            match self.tls.read_tls(&mut record) {
                Ok(n) if n > 0 => {}
                _ => return Err("a record that TLS has no room for".into()),
            }
        }
        self.tls.process_new_packets().map(|_| ()).map_err(|e| e.to_string())
    }

    /// The channel of level `secure` after a challenge that both ends must have in the same form, and the value that
    /// binds proofs to it.
    pub(crate) fn channel(self, secure: Secure, challenge: &Challenge) -> Result<(Channel, Binding), String> {
        let failed = |e: rustls::Error| e.to_string();
        let context = proven_bytes(challenge);
        let binding = self.tls.export_keying_material([0; 32], BINDING_LABEL, Some(&context)).map_err(failed)?;
        let channel = match secure {
            Secure::Off => Channel::default(),
            Secure::Mac => {
                let keys = self.tls.export_keying_material([0; 2 * KEY_BYTES], TAGS_LABEL, Some(&context));
                let keys = keys.map_err(failed)?;
                let (by_client, by_server) = keys.split_at(KEY_BYTES);
                let (mine, theirs) = match self.hands {
                    Hands::Client => (by_client, by_server),
                    Hands::Server => (by_server, by_client),
                };
                Channel {
                    send: SendChannel::Mac(Tagger::new(mine)),
                    receive: ReceiveChannel::Mac(Verifier::new(theirs)),
                }
            }
            Secure::Tls => {
                let secrets = self.tls.dangerous_extract_secrets().map_err(failed)?;
                let (ours, theirs) = (secret(&secrets.tx)?, secret(&secrets.rx)?);
                Channel {
                    send: SendChannel::Tls(Box::new(Sealer::new(&ours))),
                    receive: ReceiveChannel::Tls(Box::new(Opener::new(&theirs))),
                }
            }
        };
        Ok((channel, binding))
    }
}

fn secret((number, secrets): &(u64, ConnectionTrafficSecrets)) -> Result<Secret<'_>, String> {
    let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else {
        return Err("TLS agreed on an algorithm that was not offered".into());
    };
    let iv = iv.as_ref().try_into().map_err(|_| "TLS gave a nonce of another length")?;
    Ok(Secret { key: key.as_ref(), iv, number: *number })
}

#[cfg(test)]
mod tests {
    use super::super::records::{Opened, RECORD_HEAD, RECORD_MORE, body_bytes};
    use super::*;
    use std::io::{Read, Write};

    fn challenge(secure: Secure) -> Challenge {
        Challenge { nonce: [7; 32], keyed: true, identity: None, secure }
    }

    /// Both ends after their handshake.
    fn agreed() -> (Exchange, Exchange) {
        let mut client = Exchange::new(Hands::Client).expect("a client");
        let mut server = Exchange::new(Hands::Server).expect("a server");
        while !(client.is_over() && server.is_over()) {
            let flight = client.outgoing();
            server.incoming(&flight).expect("the server goes on");
            let flight = server.outgoing();
            client.incoming(&flight).expect("the client goes on");
        }
        assert!(client.outgoing().is_empty() && server.outgoing().is_empty(), "no tickets");
        (client, server)
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n * 31 % 251) as u8).collect()
    }

    /// Goal: records are those of TLS 1.3. Method: one end uses rustls for every byte; it reads records encrypted by
    /// this code and writes records that this code decrypts, in all lengths near the record size.
    #[test]
    fn records_are_those_of_rustls() {
        let (client, server) = agreed();
        let mut rustls = client.tls;
        let (channel, _) = server.channel(Secure::Tls, &challenge(Secure::Tls)).expect("a channel");
        let (SendChannel::Tls(mut sealer), ReceiveChannel::Tls(mut opener)) = (channel.send, channel.receive) else {
            panic!("a channel of another level")
        };
        for len in [1, 2, 100, 16_383, 16_384, 16_385, 50_000] {
            let sent = bytes(len);
            let mut out = vec![0; len + (len / 16_384 + 1) * RECORD_MORE];
            assert_eq!(sealer.put(&sent, &mut out[..RECORD_MORE]).map(|(taken, _)| taken), Ok(0), "no room");
            let (taken, filled) = sealer.put(&sent, &mut out).expect("sealed");
            assert_eq!((taken, filled), (len, len + len.div_ceil(16_384) * RECORD_MORE));
            let (mut wire, mut came) = (&out[..filled], Vec::new());
            while !wire.is_empty() {
                rustls.read_tls(&mut wire).expect("room");
                rustls.process_new_packets().expect("records of TLS 1.3");
                let mut some = [0; 70_000];
                let read = rustls.reader().read(&mut some).unwrap_or(0);
                came.extend_from_slice(&some[..read]);
            }
            assert_eq!(came, sent, "{len}");
            rustls.writer().write_all(&sent).expect("room");
            let mut wire = Vec::new();
            while rustls.wants_write() {
                rustls.write_tls(&mut wire).expect("memory");
            }
            let (mut rest, mut came) = (&mut wire[..], Vec::new());
            while !rest.is_empty() {
                let body = body_bytes(&rest[..RECORD_HEAD]).expect("a record");
                let (record, behind) = rest.split_at_mut(RECORD_HEAD + body);
                let record = &mut record[RECORD_HEAD..];
                // Every second record fits into the memory that it is for.
                let mut to = vec![0; if came.len() % 32_768 == 0 { body } else { 0 }];
                match opener.open(record, &mut to).expect("opened") {
                    Opened::Out(n) => came.extend_from_slice(&to[..n]),
                    Opened::InPlace(n) => came.extend_from_slice(&record[..n]),
                }
                rest = behind;
            }
            assert_eq!(came, sent, "{len}");
        }
        // The peer ends TLS.
        rustls.send_close_notify();
        let mut wire = Vec::new();
        rustls.write_tls(&mut wire).expect("memory");
        assert_eq!(opener.open(&mut wire[RECORD_HEAD..], &mut []), Err(super::super::ChannelError::Ended));
    }

    /// Goal: the binding of proofs is the same at both ends of a channel, and differs for each other channel, level and
    /// challenge. Method: a few channels of each kind.
    #[test]
    fn a_binding_belongs_to_one_channel() {
        let mut all = Vec::new();
        for _ in 0..3 {
            for secure in [Secure::Mac, Secure::Tls] {
                for keyed in [true, false] {
                    let (client, server) = agreed();
                    let challenge = Challenge { keyed, ..challenge(secure) };
                    let (_, mine) = client.channel(secure, &challenge).expect("a channel");
                    let (_, theirs) = server.channel(secure, &challenge).expect("a channel");
                    assert_eq!(mine, theirs);
                    all.push(mine);
                }
            }
        }
        let (client, server) = agreed();
        all.push(client.channel(Secure::Mac, &challenge(Secure::Mac)).expect("a channel").1);
        all.push(server.channel(Secure::Mac, &challenge(Secure::Tls)).expect("a channel").1);
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
    }

    /// Goal: bytes that are no handshake end it with an error, and never panic. Method: each flight with each byte
    /// changed.
    #[test]
    fn foreign_bytes_end_the_exchange() {
        let flight = Exchange::new(Hands::Client).expect("a client").outgoing();
        let mut refused = 0;
        for at in 0..flight.len() {
            let mut bent = flight.clone();
            bent[at] ^= 1 << (at % 8);
            let mut server = Exchange::new(Hands::Server).expect("a server");
            refused += usize::from(server.incoming(&bent).is_err());
            let answer = server.outgoing();
            let mut client = Exchange::new(Hands::Client).expect("a client");
            let _ = client.outgoing();
            assert!(client.incoming(&answer).is_err() || answer.is_empty(), "another client's flight, changed at {at}");
        }
        assert!(refused > 20, "{refused} of {} are noticed at once, the others by the keys", flight.len());
    }
}
