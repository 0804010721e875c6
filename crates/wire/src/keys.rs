//! Keys: who may connect to the cluster, and in which role.
//!
//! Owns: the registry of keys in the form in which servers store and send it, and the changes that an administrator
//! requests. Does not own: what a key proves (`transport::identity`), the rules of a change
//! (`server::membership::keys`), which requests a key's session may make (`server::cluster::sessions::gate`).

use amphi_types::Ino;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes of an Ed25519 public key.
pub const PUBLIC_KEY_BYTES: usize = 32;
/// Most keys of a registry: with the largest entries it fits half a message.
pub const KEYS_MAX: usize = 2048;
/// Most bytes of a key's name.
pub const KEY_NAME_MAX: usize = 64;
/// Most bytes of the path by which an administrator named the tree of a key.
pub const KEY_PATH_MAX: usize = 1024;
/// Most ranges of each kind of one key.
pub const KEY_RANGES_MAX: usize = 16;
/// The user and group for users without a number of their own: `nobody` of Linux.
pub const NOBODY: u32 = 65_534;

/// The hash of a public key, by which servers and people distinguish keys. A hash of it would be no shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fingerprint(pub [u8; PUBLIC_KEY_BYTES]);

/// The beginning of a fingerprint in text.
const PREFIX: &str = "ed25519:";

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Reads exactly `N` bytes of hexadecimal digits.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |c: u8| (c as char).to_digit(16).map(|d| d as u8);
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

impl Fingerprint {
    /// Reads what `Display` wrote.
    pub fn parse(text: &str) -> Option<Fingerprint> {
        unhex(text.strip_prefix(PREFIX)?).map(Fingerprint)
    }
}

/// The role of the holder of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyRole {
    /// The holder mounts the file system.
    Client,
    /// The holder is a server of the cluster.
    Server,
    /// The holder administers the cluster, and does not mount.
    Admin,
}

impl fmt::Display for KeyRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyRole::Client => "client",
            KeyRole::Server => "server",
            KeyRole::Admin => "admin",
        })
    }
}

/// The user and the group that replace those of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SquashTo {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// How a range of user or group numbers of a client is mapped to numbers on the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// First number at the client.
    pub client: u32,
    /// First number on the servers.
    pub server: u32,
    /// How many, at least 1.
    pub count: u32,
}

/// The addresses from which a key may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AddressRange {
    /// Connections over Unix sockets of the server's own machine.
    Unix,
    /// IPv4 addresses whose first bits, this many of them, equal those of this address.
    V4([u8; 4], u8),
    /// IPv6 addresses whose first bits, this many of them, equal those of this address.
    V6([u8; 16], u8),
}

/// The users as whom the users of a client count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Squash {
    /// The user as whom the super-user counts; `None`: as super-user, with all capabilities.
    pub root: Option<SquashTo>,
    /// The user as whom all users count; `None`: each counts as the user with the same number.
    pub all: Option<SquashTo>,
    /// How users of the client are mapped to users of the servers; empty if they are the same.
    pub uids: Vec<IdRange>,
    /// How groups of the client are mapped to groups of the servers; empty if they are the same.
    pub gids: Vec<IdRange>,
}

/// The tree of directories to which a key is bound. The tree is a project: what does not belong to it does not exist
/// for the holder of the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subtree {
    /// The top directory of the tree, which is the root of mounts with the key.
    pub root: Ino,
    /// The project to which everything in the tree belongs; not 0.
    pub project: u32,
    /// The path at which the administrator saw the tree, for people.
    pub path: String,
}

/// The entry of a key in the registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyEntry {
    /// The name of the key: letters, digits, `.`, `_`, `-` and `@`.
    pub name: String,
    /// The fingerprint of the key.
    pub fingerprint: Fingerprint,
    /// The key that is replacing this one: both are valid.
    pub next: Option<Fingerprint>,
    /// The role of the key's holder.
    pub role: KeyRole,
    /// The holder cannot change anything in the file system.
    pub read_only: bool,
    /// The users as whom the users of clients with this key count.
    pub squash: Squash,
    /// The addresses from which the key may be used; empty: from anywhere.
    pub addresses: Vec<AddressRange>,
    /// The most mounts at a time; 0 if the key has no bound of its own.
    pub sessions_max: u32,
    /// Number that no other key of the cluster has or had; given by the master.
    pub id: u64,
    /// The tree beyond which the key gives no access; `None`: it gives access to all of the file system.
    pub subtree: Option<Subtree>,
}

/// All keys of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRegistry {
    /// Grows with each change.
    pub version: u64,
    /// Random number of the last change: two registries of one version that differ are two histories.
    pub stamp: u64,
    /// Over a network, the cluster key is not sufficient by itself to connect.
    pub require_identity: bool,
    /// The keys, by name.
    pub keys: Vec<KeyEntry>,
}

/// The fields of an entry that are changed; absent ones stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeySettings {
    /// `KeyEntry::read_only`.
    pub read_only: Option<bool>,
    /// `Squash::root`.
    pub root: Option<Option<SquashTo>>,
    /// `Squash::all`.
    pub all: Option<Option<SquashTo>>,
    /// All of `Squash::uids`.
    pub uids: Option<Vec<IdRange>>,
    /// All of `Squash::gids`.
    pub gids: Option<Vec<IdRange>>,
    /// All of `KeyEntry::addresses`.
    pub addresses: Option<Vec<AddressRange>>,
    /// `KeyEntry::sessions_max`.
    pub sessions_max: Option<u32>,
    /// `KeyEntry::subtree`.
    pub subtree: Option<Option<Subtree>>,
}

/// A change that an administrator requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyChange {
    /// A new key.
    Add(KeyEntry),
    /// The key of this name or fingerprint is gone, and its sessions end.
    Remove(String),
    /// The rights of the holder of this name's key change from now on; its sessions continue.
    Set {
        /// Name.
        name: String,
        /// The settings that change.
        settings: Box<KeySettings>,
    },
    /// Adds a second key under the same name.
    Rotate {
        /// Name.
        name: String,
        /// The key that will replace the present key.
        next: Fingerprint,
    },
    /// The second key of this name is its only one from now on.
    FinishRotation(String),
    /// Whether the cluster key alone is insufficient to connect over a network.
    RequireIdentity(bool),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a fingerprint is unchanged after conversion to text and back, and no other text is accepted as one.
    /// Method: a table.
    #[test]
    fn fingerprints_round_trip() {
        let fingerprint = Fingerprint(std::array::from_fn(|n| n as u8 * 7));
        let text = fingerprint.to_string();
        assert_eq!((Fingerprint::parse(&text), text.len()), (Some(fingerprint), 72));
        let cut = &text[..71];
        for foreign in ["", "ed25519:", cut, &text[8..], &format!("{text}0"), &text.replace('0', "g")] {
            assert_eq!(Fingerprint::parse(foreign), None, "{foreign}");
        }
        assert_eq!(unhex::<1>("+1"), None, "signs are no digits");
    }
}
