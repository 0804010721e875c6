//! Keys and values of the metadata items (docs/DISK_FORMAT.md, "Metadata items").
//!
//! Owns: their encoding. Does not own: when items are written (`store`, `zone`).
//!
//! Keys are a tag and big-endian numbers, so the order of their bytes is the order of the maps. A value is a version
//! byte and a postcard structure with nothing behind it. Bytes that do not decode are an error that names the item.
//! Values are never guessed.

use crate::{Dentry, Inode};
use amphi_types::item::tag;
use amphi_types::{Acl, Ino, Kind, Name, TargetId, acl, limits};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Version byte of all values.
pub(crate) const VERSION: u8 = 1;
/// Version byte of an inode in a project, whose number (u32, little-endian) lies behind the structure.
pub(crate) const IN_PROJECT: u8 = 2;

/// A decoded key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ItemKey {
    Dentry { dir: u64, cookie: u64 },
    Inode(u64),
    Root,
    Xattr { local: u64, name: Box<[u8]> },
}

/// Value of the one `tag::META` item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoreRecord {
    pub(crate) target: TargetId,
    pub(crate) seed: u64,
    /// Local inode numbers below this one may have been given out.
    pub(crate) reserved: u64,
}

#[derive(Serialize, Deserialize)]
struct XattrRecord(#[serde(with = "serde_bytes")] Box<[u8]>);

fn be64(bytes: &[u8]) -> u64 {
    let mut full = [0; 8];
    full[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
    u64::from_be_bytes(full)
}

impl ItemKey {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut key = Vec::with_capacity(17);
        self.encode_to(&mut key);
        key
    }

    pub(crate) fn encode_to(&self, key: &mut Vec<u8>) {
        match self {
            ItemKey::Dentry { dir, cookie } => {
                key.push(tag::DENTRY);
                key.extend_from_slice(&dir.to_be_bytes());
                key.extend_from_slice(&cookie.to_be_bytes());
            }
            ItemKey::Inode(local) => {
                key.push(tag::INODE);
                key.extend_from_slice(&local.to_be_bytes());
            }
            ItemKey::Root => key.push(tag::META),
            ItemKey::Xattr { local, name } => {
                key.push(tag::XATTR);
                key.extend_from_slice(&local.to_be_bytes());
                key.extend_from_slice(name);
            }
        }
    }

    pub(crate) fn decode(key: &[u8]) -> Result<ItemKey, String> {
        let rest = key.get(1..).unwrap_or_default();
        let decoded = match (key.first().copied(), rest.len()) {
            (Some(tag::DENTRY), 16) => Some(ItemKey::Dentry { dir: be64(rest), cookie: be64(&rest[8..]) }),
            (Some(tag::INODE), 8) => Some(ItemKey::Inode(be64(rest))),
            (Some(tag::META), 0) => Some(ItemKey::Root),
            (Some(tag::XATTR), len) if len > 8 && len <= 8 + limits::XATTR_NAME_MAX => {
                Some(ItemKey::Xattr { local: be64(rest), name: rest[8..].into() })
            }
            _ => None,
        };
        decoded.ok_or_else(|| format!("metadata item with malformed key {}", hex(key)))
    }
}

/// The smallest (first number, second number) of a key greater than `after`, among keys with tag `t` and 8-byte
/// numbers; `None` if there is none.
pub(crate) fn lower_bound(t: u8, after: &[u8]) -> Option<(u64, u64)> {
    match after.split_first() {
        Some((&a, _)) if a > t => None,
        Some((&a, rest)) if a == t => {
            let first = be64(rest);
            let second = be64(rest.get(8..).unwrap_or_default());
            // `after` is a key of full length, or such a key with more bytes behind it. The key itself is not greater
            // than `after`.
            if rest.len() < 16 {
                Some((first, second))
            } else {
                match second.checked_add(1) {
                    Some(next) => Some((first, next)),
                    None => first.checked_add(1).map(|f| (f, 0)),
                }
            }
        }
        _ => Some((0, 0)),
    }
}

/// Appends a value.
fn encode<T: Serialize>(record: &T, out: &mut Vec<u8>) {
    out.push(VERSION);
    // Serialising plain structures into a growing vector cannot fail.
    *out = postcard::to_extend(record, std::mem::take(out)).unwrap_or_default();
}

fn decode<T: DeserializeOwned>(what: &str, key: &[u8], value: &[u8]) -> Result<T, String> {
    match value.split_first() {
        Some((&VERSION, body)) => match postcard::take_from_bytes::<T>(body) {
            Ok((record, [])) => Ok(record),
            Ok((_, rest)) => Err(format!("{what} item {} has {} bytes too many", hex(key), rest.len())),
            Err(e) => Err(format!("{what} item {} does not decode: {e}", hex(key))),
        },
        Some((version, _)) => Err(format!("{what} item {} has version {version}, not {VERSION}", hex(key))),
        None => Err(format!("{what} item {} is empty", hex(key))),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(48).map(|b| format!("{b:02x}")).collect()
}

pub(crate) fn encode_inode(inode: &Inode, out: &mut Vec<u8>) {
    let start = out.len();
    encode(inode, out);
    if inode.owner.project != 0 {
        out[start] = IN_PROJECT;
        out.extend(inode.owner.project.to_le_bytes());
    }
}

/// The parts of an inode's value: the value without its project, and the project.
fn split_project(value: &[u8]) -> Option<(Vec<u8>, u32)> {
    let (&version, rest) = value.split_first()?;
    let (body, project) = rest.split_last_chunk::<4>()?;
    let project = u32::from_le_bytes(*project);
    (version == IN_PROJECT && project != 0).then(|| ([&[VERSION], body].concat(), project))
}

pub(crate) fn decode_inode(key: &[u8], value: &[u8]) -> Result<Inode, String> {
    let in_project = split_project(value);
    let (value, project) = in_project.as_ref().map_or((value, 0), |(value, project)| (value.as_slice(), *project));
    let mut inode: Inode = decode("inode", key, value)?;
    inode.owner.project = project;
    let wrong = if inode.perm > 0o7777 {
        "permission bits"
    } else if inode.layout.check().is_err() {
        "layout"
    } else if inode.symlink.len() > limits::SYMLINK_MAX || (inode.kind == Kind::Symlink) == inode.symlink.is_empty() {
        "symbolic link target"
    } else if inode.size > limits::FILE_MAX {
        "size"
    } else if !inode.flags.is_possible() {
        "flag"
    } else {
        return Ok(inode);
    };
    Err(format!("inode item {} has an impossible {wrong}", hex(key)))
}

pub(crate) fn encode_dentry(entry: &Dentry, out: &mut Vec<u8>) {
    encode(entry, out);
}

pub(crate) fn decode_dentry(key: &[u8], value: &[u8]) -> Result<Dentry, String> {
    let entry: Dentry = decode("directory entry", key, value)?;
    if Name::new(entry.name.to_vec()).is_err() || entry.child.local() == 0 {
        return Err(format!("directory entry item {} has an impossible name or inode", hex(key)));
    }
    Ok(entry)
}

pub(crate) fn encode_xattr(value: &[u8], out: &mut Vec<u8>) {
    encode(&XattrRecord(value.into()), out);
}

pub(crate) fn decode_xattr(key: &[u8], value: &[u8]) -> Result<Box<[u8]>, String> {
    let XattrRecord(bytes) = decode("extended attribute", key, value)?;
    if bytes.len() > limits::XATTR_VALUE_MAX {
        return Err(format!("extended attribute item {} is {} bytes long", hex(key), bytes.len()));
    }
    let is_list = [acl::ACCESS, acl::DEFAULT].contains(&key.get(9..).unwrap_or_default());
    if is_list && Acl::from_xattr(&bytes).is_none() {
        return Err(format!("extended attribute item {} is no valid access control list", hex(key)));
    }
    Ok(bytes)
}

pub(crate) fn encode_store(record: &StoreRecord, out: &mut Vec<u8>) {
    encode(record, out);
}

pub(crate) fn decode_store(key: &[u8], value: &[u8]) -> Result<StoreRecord, String> {
    let record: StoreRecord = decode("metadata store", key, value)?;
    if record.reserved == 0 || record.reserved > Ino::MAX_LOCAL + 1 {
        return Err(format!("metadata store item has an impossible next inode number {}", record.reserved));
    }
    Ok(record)
}
