//! A directory entry's name: 1 to 255 bytes without `/` and NUL.

use crate::{Errno, Result, limits};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A checked entry name. `.` and `..` are not names: the kernel and the client resolve them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "serde_bytes::ByteBuf", into = "serde_bytes::ByteBuf")]
pub struct Name(Vec<u8>);

impl Name {
    /// Checks and wraps `bytes`.
    ///
    /// Errors: `NoEnt` if empty, `NameTooLong` beyond 255 bytes, `Inval` for `.`, `..`, `/` or NUL.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Name> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Err(Errno::NoEnt);
        }
        if bytes.len() > limits::NAME_MAX {
            return Err(Errno::NameTooLong);
        }
        if bytes == b"." || bytes == b".." || bytes.iter().any(|&b| b == b'/' || b == 0) {
            return Err(Errno::Inval);
        }
        Ok(Name(bytes))
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Hash by which a token names this name (`TokenKey::Name`): the same on servers and clients.
    pub fn token_hash(&self) -> u64 {
        use siphasher::sip::SipHasher13;
        use std::hash::Hasher;
        let mut h = SipHasher13::new_with_keys(0x746f_6b65, 0);
        h.write(&self.0);
        h.finish()
    }

    /// The shard, among `shards` of a directory, in which this name lies.
    pub fn shard(&self, shards: usize) -> usize {
        ((u128::from(self.token_hash()) * shards as u128) >> 64) as usize
    }
}

impl TryFrom<serde_bytes::ByteBuf> for Name {
    type Error = Errno;
    fn try_from(b: serde_bytes::ByteBuf) -> Result<Name> {
        Name::new(b.into_vec())
    }
}

impl From<Name> for serde_bytes::ByteBuf {
    fn from(n: Name) -> Self {
        serde_bytes::ByteBuf::from(n.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}
