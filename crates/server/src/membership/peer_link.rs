//! The connections of servers to each other: their names, the settings of a link, and the reasons of refusals.
//!
//! Owns: these, as plain values. Does not own: the connections (`cluster::peers`, `callers`).

use amphi_env::Env;
use amphi_transport::{ClusterKey, Identity, LinkConfig, LinkEvents, Recovery, Secure, Timeouts};
use amphi_types::{Result, SessionId};
use amphi_wire::{Push, Role};
use std::fmt;

/// Credits of another server in each lane. It sends requests on behalf of all its sessions.
pub const PEER_CREDITS: u16 = 1024;
/// The reason why a server that stops admits no client.
pub const STOPPING: &str = "the server is stopping";
/// Begins the reason for refusing a second process of one server.
pub const ALREADY_HERE: &str = "this server is already connected";

/// How a server identifies itself to another one: by the name in its `Hello`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerName {
    /// The number of the server.
    pub server: u64,
    /// Random number of the server's run.
    pub boot: u64,
    /// The name, for messages to people.
    pub name: String,
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x} {:016x} {}", self.server, self.boot, self.name)
    }
}

impl PeerName {
    /// Parses the form that `Display` writes.
    pub fn parse(text: &str) -> Option<PeerName> {
        let mut parts = text.splitn(3, ' ');
        let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
        let (server, boot) = (number()?, number()?);
        Some(PeerName { server, boot, name: parts.next()?.to_string() })
    }
}

/// How a server connects to another one, at least protected as `secure`.
pub fn peer_link_config(
    addrs: Vec<String>,
    session: SessionId,
    name: &PeerName,
    (key, identity): (Option<ClusterKey>, Option<Identity>),
    secure: Secure,
) -> LinkConfig {
    let (name, timeouts) = (name.to_string(), Timeouts::default());
    LinkConfig { addrs, session, role: Role::Server, name, key, identity, secure, timeouts }
}

/// A link without any state that would have to be presented to a restarted server.
pub struct Plain;

impl<E: Env> LinkEvents<E> for Plain {
    fn push(&self, _push: Push) {}

    async fn restarted(&self, _recovery: Recovery<E>) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a server's name can be encoded and decoded, and no other name decodes.
    #[test]
    fn peer_names_round_trip() {
        let name = PeerName { server: 7, boot: u64::MAX, name: "node 1:77".into() };
        assert_eq!(PeerName::parse(&name.to_string()), Some(name));
        for other in ["host:1", "", "7 8", "x y z", "0000000000000007 zz name"] {
            assert_eq!(PeerName::parse(other), None, "{other}");
        }
    }
}
