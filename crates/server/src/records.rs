//! Items of the server itself: sessions, slots, intents, configuration.
//!
//! Owns: their keys and values (postcard). Does not own: when they are written. The byte layout is part of
//! docs/DISK_FORMAT.md. Numbers in keys are big-endian, so keys of one session or of one kind of intent are adjacent.

use amphi_meta::Part;
use amphi_quota::Standing;
use amphi_types::item::{Key, tag};
use amphi_types::{Account, AccountKind, SessionId, TargetId, Timespec};
use amphi_wire::ClusterMap;
use amphi_wire::keys::{AddressRange, Fingerprint, KeyEntry, KeyRegistry, KeyRole, Squash};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Number of an operation over several targets: its coordinator, and a number that the coordinator never uses twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TxId {
    /// The target that decides.
    pub coordinator: TargetId,
    /// Count of starts of the coordinator in the upper 16 bits, operations since then below.
    pub number: u64,
}

/// The record of a session that every target keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// `host:pid`.
    pub name: String,
    /// Random number of the session's begin: a session with the same id may begin again after this one was ended.
    pub start: u64,
}

/// The record of the cluster on every target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// Number of targets.
    pub pool: u16,
    /// How often the target was opened. It makes numbers of operations and locks unique across restarts.
    pub starts: u64,
}

/// The server to which the zone belongs, recorded on every target, so that a single zone shows which others belong to
/// the same server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeRecord {
    /// Random number of the server.
    pub server: u64,
    /// Targets of the server, ascending.
    pub targets: Vec<TargetId>,
}

/// An intent: work that a crash must not leave half done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Intent {
    /// A participant has promised these changes; the coordinator knows whether they happen.
    Prepared {
        /// The operation.
        tx: TxId,
        /// Time stamp of the changes.
        now: Timespec,
        /// The changes on this target.
        parts: Vec<Part>,
    },
    /// The coordinator has decided that the operation happens; these participants may not know yet.
    Committed {
        /// The operation.
        tx: TxId,
        /// The targets that have to be informed.
        participants: Vec<TargetId>,
    },
    /// As `Committed`, by a coordinator whose server has all participants. They have not logged a promise, so the
    /// decision contains their changes.
    Decided {
        /// The operation.
        tx: TxId,
        /// Time stamp of the changes.
        now: Timespec,
        /// The changes of the participants.
        parts: Vec<(TargetId, Vec<Part>)>,
    },
    /// A participant has made the changes that a decision contains, and must not make them again.
    Applied {
        /// The operation.
        tx: TxId,
    },
}

const KIND_PREPARED: u8 = b'p';
const KIND_COMMITTED: u8 = b'c';
const KIND_DECIDED: u8 = b'd';
const KIND_APPLIED: u8 = b'a';
const KIND_CUT_OFF: u8 = b'e';

impl Intent {
    /// Key of the intent's item.
    pub fn key(&self) -> Key {
        let (kind, tx) = match self {
            Intent::Prepared { tx, .. } => (KIND_PREPARED, tx),
            Intent::Committed { tx, .. } => (KIND_COMMITTED, tx),
            Intent::Decided { tx, .. } => (KIND_DECIDED, tx),
            Intent::Applied { tx } => (KIND_APPLIED, tx),
        };
        let mut key = vec![tag::INTENT, kind];
        key.extend(u64::from(tx.coordinator.0).to_be_bytes());
        key.extend(tx.number.to_be_bytes());
        key
    }
}

/// Key of a session.
pub fn session_key(session: SessionId) -> Key {
    let mut key = vec![tag::SESSION];
    key.extend(session.0.to_be_bytes());
    key
}

/// The key of a mark, without a value, that a session was cut off and may still use its tokens.
pub fn cut_off_key(session: SessionId) -> Key {
    let mut key = session_key(session);
    key.push(KIND_CUT_OFF);
    key
}

/// Key of a slot.
pub fn slot_key(session: SessionId, slot: u16) -> Key {
    let mut key = vec![tag::REPLY];
    key.extend(session.0.to_be_bytes());
    key.extend(slot.to_be_bytes());
    key
}

/// Key of the cluster record.
pub fn cluster_key() -> Key {
    vec![tag::CONFIG, b'c']
}

/// Key of the home record.
pub fn home_key() -> Key {
    vec![tag::CONFIG, b'h']
}

/// Key of the cluster map. On target 0 it is the valid map, and on the first target of any other server a copy.
pub fn map_key() -> Key {
    vec![tag::CONFIG, b'm']
}

/// Key of the limits of an account, on target 0.
pub fn quota_key(account: Account) -> Key {
    let kind = match account.kind {
        AccountKind::User => b'u',
        AccountKind::Group => b'g',
        AccountKind::Project => b'p',
    };
    let mut key = vec![tag::QUOTA, kind];
    key.extend(account.id.to_be_bytes());
    key
}

/// Value of the limits of an account.
pub fn quota_value(standing: Standing) -> Vec<u8> {
    encode(&(standing.limits, standing.over_since_s))
}

/// Key of the registry of keys. The target that keeps the cluster map keeps the registry too.
pub fn keys_key() -> Key {
    vec![tag::CONFIG, b'k']
}

/// An item of the server as read back.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A session.
    Session(SessionId, SessionRecord),
    /// A session was cut off a short time ago.
    CutOff(SessionId),
    /// A slot.
    Slot(SessionId, u16, crate::session::slots::SlotRecord),
    /// An intent.
    Intent(Intent),
    /// The cluster.
    Cluster(ClusterRecord),
    /// The server.
    Home(HomeRecord),
    /// The cluster map.
    Map(ClusterMap),
    /// The limits of an account.
    Quota(Account, Standing),
    /// The answer of a slot in the form of another version of the wire protocol. No client can repeat its request,
    /// since clients of that version are not admitted.
    OtherAnswer,
    /// The registry of keys.
    Keys(KeyRegistry),
}

/// Appends the encoding of a value.
pub fn encode_to<T: Serialize>(value: &T, out: &mut Vec<u8>) {
    *out = postcard::to_extend(value, std::mem::take(out)).expect("plain data in memory always encodes");
}

/// Encodes a value.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain data in memory always encodes")
}

fn decode<T: DeserializeOwned>(what: &str, value: &[u8]) -> Result<T, String> {
    match postcard::take_from_bytes(value) {
        Ok((v, [])) => Ok(v),
        Ok((_, rest)) => Err(format!("{what}: {} bytes behind its end", rest.len())),
        Err(e) => Err(format!("{what}: {e}")),
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

/// An entry of a registry of keys before keys could be bound to a tree.
#[derive(Serialize, Deserialize)]
struct UnboundKey {
    name: String,
    fingerprint: Fingerprint,
    next: Option<Fingerprint>,
    role: KeyRole,
    read_only: bool,
    squash: Squash,
    addresses: Vec<AddressRange>,
    sessions_max: u32,
    id: u64,
}

/// A registry of keys, also one that an earlier version has written. The entries of an earlier format are shorter, so
/// the last one of them is no entry of the present format.
fn decode_keys(value: &[u8]) -> Result<KeyRegistry, String> {
    let before = |_| {
        let (version, stamp, require_identity, keys) =
            decode::<(u64, u64, bool, Vec<UnboundKey>)>("registry of keys", value)?;
        let keys = keys.into_iter().map(|key| {
            let UnboundKey { name, fingerprint, next, role, read_only, squash, addresses, sessions_max, id } = key;
            let subtree = None;
            KeyEntry { name, fingerprint, next, role, read_only, squash, addresses, sessions_max, id, subtree }
        });
        Ok(KeyRegistry { version, stamp, require_identity, keys: keys.collect() })
    };
    decode("registry of keys", value).or_else(before)
}

/// Decodes an item with a tag of the server. Errors: a sentence that names what does not decode.
pub fn decode_item(key: &[u8], value: &[u8]) -> Result<Item, String> {
    let bad = || format!("a key of {} bytes with tag {:?} is no item of the server", key.len(), key.first());
    match (key.first().copied(), key.len()) {
        (Some(tag::SESSION), 9) => {
            let id = SessionId(number(&key[1..]).ok_or_else(bad)?);
            // Zones of an earlier build contain only the name.
            let old = |_| decode(&format!("session {:x}", id.0), value).map(|name| SessionRecord { name, start: 0 });
            decode("session", value).or_else(old).map(|record| Item::Session(id, record))
        }
        (Some(tag::SESSION), 10) if key[9] == KIND_CUT_OFF && value.is_empty() => {
            Ok(Item::CutOff(SessionId(number(&key[1..9]).ok_or_else(bad)?)))
        }
        (Some(tag::REPLY), 11) => {
            let id = SessionId(number(&key[1..9]).ok_or_else(bad)?);
            let slot = u16::from_be_bytes([key[9], key[10]]);
            let record = decode(&format!("slot {slot} of session {:x}", id.0), value);
            Ok(record.map_or(Item::OtherAnswer, |record| Item::Slot(id, slot, record)))
        }
        (Some(tag::INTENT), 18) => {
            let intent: Intent = decode("intent", value)?;
            if intent.key() != key {
                return Err("an intent lies under the key of another".into());
            }
            Ok(Item::Intent(intent))
        }
        (Some(tag::CONFIG), 2) if key[1] == b'c' => Ok(Item::Cluster(decode("cluster record", value)?)),
        (Some(tag::CONFIG), 2) if key[1] == b'h' => Ok(Item::Home(decode("home record", value)?)),
        (Some(tag::CONFIG), 2) if key[1] == b'm' => Ok(Item::Map(decode("cluster map", value)?)),
        (Some(tag::QUOTA), 6) => {
            let kind = match key[1] {
                b'u' => AccountKind::User,
                b'g' => AccountKind::Group,
                b'p' => AccountKind::Project,
                _ => return Err(bad()),
            };
            let id = u32::from_be_bytes(key[2..].try_into().map_err(|_| bad())?);
            let (limits, over_since_s) = decode("limits of an account", value)?;
            Ok(Item::Quota(Account { kind, id }, Standing { limits, over_since_s }))
        }
        (Some(tag::CONFIG), 2) if key[1] == b'k' => decode_keys(value).map(Item::Keys),
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every kind of item is read back as written, and foreign bytes are refused without a panic.
    #[test]
    fn items_round_trip() {
        let tx = TxId { coordinator: TargetId(3), number: 77 };
        for intent in [
            Intent::Prepared { tx, now: Timespec::default(), parts: Vec::new() },
            Intent::Committed { tx, participants: vec![TargetId(1)] },
            Intent::Decided { tx, now: Timespec::default(), parts: vec![(TargetId(1), Vec::new())] },
            Intent::Applied { tx },
        ] {
            let value = encode(&intent);
            assert_eq!(decode_item(&intent.key(), &value), Ok(Item::Intent(intent.clone())));
            let mut key = intent.key();
            key[9] ^= 1;
            assert!(decode_item(&key, &value).is_err());
        }
        let record = SessionRecord { name: "host:1".into(), start: 8 };
        let item = decode_item(&session_key(SessionId(5)), &encode(&record));
        assert_eq!(item, Ok(Item::Session(SessionId(5), record)));
        assert_eq!(decode_item(&cut_off_key(SessionId(5)), &[]), Ok(Item::CutOff(SessionId(5))));
        let home = HomeRecord { server: 9, targets: vec![TargetId(4), TargetId(5)] };
        assert_eq!(decode_item(&home_key(), &encode(&home)), Ok(Item::Home(home)));
        let map = ClusterMap { epoch: 3, cluster: 7, servers: Vec::new() };
        assert_eq!(decode_item(&map_key(), &encode(&map)), Ok(Item::Map(map)));
        let account = Account { kind: AccountKind::Group, id: 77 };
        let standing = Standing { over_since_s: 9, ..Standing::default() };
        let item = decode_item(&quota_key(account), &quota_value(standing));
        assert_eq!(item, Ok(Item::Quota(account, standing)));
        let unbound = |name: &str| UnboundKey {
            name: name.into(),
            fingerprint: Fingerprint([1; 32]),
            next: None,
            role: KeyRole::Client,
            read_only: true,
            squash: Squash::default(),
            addresses: vec![AddressRange::Unix],
            sessions_max: 3,
            id: 1,
        };
        for keys in [vec![], vec![unbound("a")], vec![unbound("a"), unbound("\u{1}"), unbound("long name")]] {
            let count = keys.len();
            let Ok(Item::Keys(read)) = decode_item(&keys_key(), &encode(&(7u64, 8u64, true, keys))) else {
                panic!("a registry of an earlier version is read");
            };
            assert_eq!((read.version, read.keys.len()), (7, count));
            assert!(read.keys.iter().all(|key| key.subtree.is_none() && key.sessions_max == 3));
            assert_eq!(decode_item(&keys_key(), &encode(&read)), Ok(Item::Keys(read)));
        }
        let old = decode_item(&slot_key(SessionId(5), 1), &[0xff; 7]);
        assert_eq!(old, Ok(Item::OtherAnswer), "an answer of another version");
        for n in 0..32 {
            for t in [tag::SESSION, tag::INTENT, tag::CONFIG, tag::QUOTA, 0] {
                let mut key = vec![t; n];
                key.truncate(n);
                assert!(decode_item(&key, &[0xff; 7]).is_err());
            }
        }
    }
}
