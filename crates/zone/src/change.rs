//! Changes of items: by key in memory, and their encoding, in log records and in segments alike.
//!
//! Owns: the map and the byte form. Does not own: when a change counts (`state`, `recover`).
//!
//! | bytes | field |
//! |--:|---|
//! | 2 | key length |
//! | 4 | value length; 0xFFFF_FFFF: the item is deleted |
//! | .. | key |
//! | .. | value |

use amphi_types::item::Key;
use std::collections::BTreeMap;

/// Bytes in front of key and value.
pub const CHANGE_HEADER: usize = 6;
/// Value length of a deletion.
const DELETED: u32 = u32::MAX;

/// Changes by key; `None` deletes.
pub type Changes = BTreeMap<Key, Option<Vec<u8>>>;

/// A decoded change: key, and value or deletion.
pub type Decoded = (Key, Option<Vec<u8>>);

/// The header of a change. Panics if key or value are too long (programmer's error).
pub fn header(key: &[u8], value: Option<&[u8]>) -> [u8; CHANGE_HEADER] {
    let key_len = u16::try_from(key.len()).expect("keys are short");
    let value_len = value.map_or(DELETED, |v| u32::try_from(v.len()).expect("values are below 4 GiB"));
    let mut h = [0; CHANGE_HEADER];
    h[..2].copy_from_slice(&key_len.to_le_bytes());
    h[2..].copy_from_slice(&value_len.to_le_bytes());
    h
}

/// Encoded size.
pub fn encoded_len(key: &[u8], value: Option<&[u8]>) -> usize {
    CHANGE_HEADER + key.len() + value.map_or(0, <[u8]>::len)
}

/// Takes one change off the front of `bytes`; `None` if it is cut short.
pub fn take(bytes: &mut &[u8]) -> Option<Decoded> {
    let (key_len, rest) = bytes.split_first_chunk::<2>()?;
    let (value_len, rest) = rest.split_first_chunk::<4>()?;
    let (key, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*key_len)))?;
    let (value, rest) = match u32::from_le_bytes(*value_len) {
        DELETED => (None, rest),
        n => {
            let (value, rest) = rest.split_at_checked(n as usize)?;
            (Some(value.to_vec()), rest)
        }
    };
    *bytes = rest;
    Some((key.to_vec(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is encoded is decoded, and every prefix is refused. Method: three changes, all cuts.
    #[test]
    fn round_trip_and_cuts() {
        let changes: [Decoded; 3] =
            [(b"key".to_vec(), Some(b"value".to_vec())), (b"".to_vec(), None), (vec![7; 300], Some(vec![]))];
        for (key, value) in &changes {
            let mut bytes = header(key, value.as_deref()).to_vec();
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(value.as_deref().unwrap_or(&[]));
            assert_eq!(bytes.len(), encoded_len(key, value.as_deref()));
            for cut in 0..bytes.len() {
                assert_eq!(take(&mut &bytes[..cut]), None);
            }
            let mut all = &bytes[..];
            assert_eq!(take(&mut all), Some((key.clone(), value.clone())));
            assert!(all.is_empty());
        }
    }
}
