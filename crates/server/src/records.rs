//! Items of the server itself: sessions, slots, intents, configuration.
//!
//! Owns: their keys and values (postcard). Does not own: when they are written. The byte layout is part of
//! docs/DISK_FORMAT.md. Numbers in keys are big-endian, so keys of one session or one kind of intent lie together.

use amphi_meta::Part;
use amphi_types::item::{Key, tag};
use amphi_types::{SessionId, TargetId, Timespec};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Number of an operation over several targets: its coordinator and a number of its own, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TxId {
    /// The target that decides.
    pub coordinator: TargetId,
    /// Count of starts of the coordinator in the upper 16 bits, operations since then below.
    pub number: u64,
}

/// A session as every target keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// `host:pid`.
    pub name: String,
}

/// What the cluster is, kept on every target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// Number of targets.
    pub pool: u16,
    /// How often the target was opened: makes numbers of operations and locks unique over restarts.
    pub starts: u64,
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
        /// What will be changed here.
        parts: Vec<Part>,
    },
    /// The coordinator has decided that the operation happens; these participants may not know yet.
    Committed {
        /// The operation.
        tx: TxId,
        /// Who has to be told.
        participants: Vec<TargetId>,
    },
}

const KIND_PREPARED: u8 = b'p';
const KIND_COMMITTED: u8 = b'c';

impl Intent {
    /// Key of the intent's item.
    pub fn key(&self) -> Key {
        let (kind, a, b) = match self {
            Intent::Prepared { tx, .. } => (KIND_PREPARED, u64::from(tx.coordinator.0), tx.number),
            Intent::Committed { tx, .. } => (KIND_COMMITTED, u64::from(tx.coordinator.0), tx.number),
        };
        let mut key = vec![tag::INTENT, kind];
        key.extend(a.to_be_bytes());
        key.extend(b.to_be_bytes());
        key
    }
}

/// Key of a session.
pub fn session_key(session: SessionId) -> Key {
    let mut key = vec![tag::SESSION];
    key.extend(session.0.to_be_bytes());
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

/// An item of the server as read back.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A session.
    Session(SessionId, SessionRecord),
    /// A slot.
    Slot(SessionId, u16, crate::slots::SlotRecord),
    /// An intent.
    Intent(Intent),
    /// The cluster.
    Cluster(ClusterRecord),
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

/// Decodes an item with a tag of the server. Errors: a sentence that names what does not decode.
pub fn decode_item(key: &[u8], value: &[u8]) -> Result<Item, String> {
    let bad = || format!("a key of {} bytes with tag {:?} is no item of the server", key.len(), key.first());
    match (key.first().copied(), key.len()) {
        (Some(tag::SESSION), 9) => {
            let id = SessionId(number(&key[1..]).ok_or_else(bad)?);
            Ok(Item::Session(id, decode(&format!("session {:x}", id.0), value)?))
        }
        (Some(tag::REPLY), 11) => {
            let id = SessionId(number(&key[1..9]).ok_or_else(bad)?);
            let slot = u16::from_be_bytes([key[9], key[10]]);
            Ok(Item::Slot(id, slot, decode(&format!("slot {slot} of session {:x}", id.0), value)?))
        }
        (Some(tag::INTENT), 18) => {
            let intent: Intent = decode("intent", value)?;
            if intent.key() != key {
                return Err("an intent lies under the key of another".into());
            }
            Ok(Item::Intent(intent))
        }
        (Some(tag::CONFIG), 2) if key[1] == b'c' => Ok(Item::Cluster(decode("cluster record", value)?)),
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
        ] {
            let value = encode(&intent);
            assert_eq!(decode_item(&intent.key(), &value), Ok(Item::Intent(intent.clone())));
            let mut key = intent.key();
            key[9] ^= 1;
            assert!(decode_item(&key, &value).is_err());
        }
        let record = SessionRecord { name: "host:1".into() };
        let item = decode_item(&session_key(SessionId(5)), &encode(&record));
        assert_eq!(item, Ok(Item::Session(SessionId(5), record)));
        for n in 0..32 {
            for t in [tag::SESSION, tag::REPLY, tag::INTENT, tag::CONFIG, 0] {
                let mut key = vec![t; n];
                key.truncate(n);
                assert!(decode_item(&key, &[0xff; 7]).is_err());
            }
        }
    }
}
