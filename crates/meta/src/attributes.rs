//! `Attributes`: the extended attributes of a target: all names, and as many values as memory is given.
//!
//! Owns: names and lengths of values, the values in memory, and which of these go first. Does not own: the rules
//! (`xattr`), or where values that are not in memory come from (`Absent`).
//!
//! A value that was put into memory stays there until the values together take more than a bound. Then values are
//! dropped that were not used for the longest time, approximately: a value that was used since it was last checked is
//! kept once more. Values of up to 64 bytes never go, because little would be won; nor do access control lists and the
//! lists of shards, which checks need that cannot wait.
//!
//! Invariants: the length of a value is known, so that limits can be checked without the value. A value is removed only
//! in `trim`, which is called when the record of the change that put it in has been made.
//!
//! The number that drove the design: a value may have 64 KiB, and all values of an inode 128 KiB, ten thousand times as
//! much as the inode itself.

use crate::shared_attrs::LIST;
use amphi_types::acl;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};

/// Longest value that is always in memory, bytes.
pub(crate) const ALWAYS_BYTES: usize = 64;
/// How many entries of the order of use may be obsolete, in addition to as many as are in use.
const ORDER_SPARE: usize = 64;

/// Inode, and name of the attribute.
type Of = (u64, Box<[u8]>);

/// The value of an attribute.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    len: usize,
    bytes: Option<Box<[u8]>>,
    /// Whether the value is in `Attributes::order`, so that it may be removed from memory.
    may_go: bool,
    /// Whether the value was used since it was last considered for removal.
    used: Cell<bool>,
}

impl Value {
    /// Bytes of the value.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the value is not in memory.
    pub(crate) fn is_absent(&self) -> bool {
        self.bytes.is_none()
    }

    /// The value, if it is in memory.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        self.used.set(true);
        self.bytes.as_deref()
    }
}

/// All extended attributes of a target.
#[derive(Clone, Debug)]
pub(crate) struct Attributes {
    all: BTreeMap<Of, Value>,
    /// The values that may be removed from memory, in the order in which they are considered.
    order: VecDeque<Of>,
    /// Values in memory that may go, and their bytes.
    held: usize,
    held_bytes: usize,
    bytes_max: usize,
}

impl Default for Attributes {
    fn default() -> Attributes {
        Attributes { all: BTreeMap::new(), order: VecDeque::new(), held: 0, held_bytes: 0, bytes_max: usize::MAX }
    }
}

impl Attributes {
    /// Bounds the bytes of values in memory that may go.
    pub(crate) fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        self.trim();
    }

    /// Bytes of values in memory that may go.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// An attribute.
    pub(crate) fn get(&self, local: u64, name: &[u8]) -> Option<&Value> {
        self.all.get(&(local, name.into()))
    }

    /// The value of an attribute that is always in memory.
    pub(crate) fn list(&self, local: u64, name: &[u8]) -> Option<&[u8]> {
        self.get(local, name)?.bytes()
    }

    /// Returns whether an inode has an attribute.
    pub(crate) fn has(&self, local: u64, name: &[u8]) -> bool {
        self.get(local, name).is_some()
    }

    /// The attributes of an inode, by name.
    pub(crate) fn of(&self, local: u64) -> impl Iterator<Item = (&[u8], &Value)> {
        let all = self.all.range((local, Box::default())..).take_while(move |((of, _), _)| *of == local);
        all.map(|((_, name), value)| (&**name, value))
    }

    /// Inode and name of all attributes.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Of> {
        self.all.keys()
    }

    /// Inode and name of the attributes that follow this attribute.
    pub(crate) fn keys_after(&self, local: u64, name: &[u8]) -> impl Iterator<Item = &Of> {
        let from = std::ops::Bound::Excluded((local, Box::from(name)));
        self.all.range((from, std::ops::Bound::Unbounded)).map(|(of, _)| of)
    }

    /// Puts an attribute in, with its value.
    pub(crate) fn insert(&mut self, local: u64, name: &[u8], bytes: Box<[u8]>) {
        let of = (local, Box::from(name));
        self.forget(&of);
        let may_go = bytes.len() > ALWAYS_BYTES && ![acl::ACCESS, acl::DEFAULT, LIST].contains(&name);
        if may_go {
            self.held += 1;
            self.held_bytes += bytes.len();
            self.order.push_back(of.clone());
        }
        self.all.insert(of, Value { len: bytes.len(), bytes: Some(bytes), may_go, used: Cell::new(false) });
    }

    /// Inserts an attribute from another target's copy, unchanged.
    pub(crate) fn insert_as(&mut self, local: u64, name: &[u8], value: &Value) {
        self.all.insert((local, name.into()), Value { may_go: false, ..value.clone() });
    }

    /// Removes an attribute. Returns whether it existed.
    pub(crate) fn remove(&mut self, local: u64, name: &[u8]) -> bool {
        let of = (local, Box::from(name));
        self.forget(&of);
        self.all.remove(&of).is_some()
    }

    /// Called when the value of an attribute is not counted any more.
    fn forget(&mut self, of: &Of) {
        if let Some(value) = self.all.get_mut(of).filter(|value| value.may_go) {
            value.may_go = false;
            self.held -= 1;
            self.held_bytes -= value.len;
        }
    }

    /// Lets values go until the others are within the bound. The records of all changes must have been made.
    pub(crate) fn trim(&mut self) {
        while self.held_bytes > self.bytes_max
            && let Some(of) = self.order.pop_front()
        {
            let Some(value) = self.all.get_mut(&of).filter(|value| value.may_go) else { continue };
            if self.bytes_max > 0 && value.used.take() {
                self.order.push_back(of);
                continue;
            }
            value.bytes = None;
            self.forget(&of);
        }
        if self.order.len() > 2 * self.held + ORDER_SPARE {
            self.order.clear();
            let may_go = self.all.iter().filter(|(_, value)| value.may_go);
            self.order.extend(may_go.map(|(of, _)| of.clone()));
        }
    }
}

/// Two that have the same attributes are equal, whichever values are in memory.
impl PartialEq for Attributes {
    fn eq(&self, other: &Attributes) -> bool {
        let same =
            |(a, b): (&Value, &Value)| a.len == b.len && (a.bytes == b.bytes || a.bytes.is_none() || b.bytes.is_none());
        self.all.keys().eq(other.all.keys()) && self.all.values().zip(other.all.values()).all(same)
    }
}

impl Eq for Attributes {}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(n: usize) -> Box<[u8]> {
        vec![n as u8; 1000].into()
    }

    /// Goal: values beyond the bound are dropped, but not values that were used later than others, short values or
    /// lists; a value that was inserted again or removed counts once. Method: twenty values of 1,000 bytes in memory
    /// for ten.
    #[test]
    fn values_beyond_the_bound_go() {
        let mut all = Attributes::default();
        all.set_bytes_max(10_000);
        all.insert(1, b"user.short", vec![7; ALWAYS_BYTES].into());
        all.insert(1, acl::ACCESS, value(1));
        for n in 0..20 {
            all.insert(2, format!("user.{n:02}").as_bytes(), value(n));
            all.trim();
            assert_eq!(all.get(2, b"user.00").and_then(Value::bytes), Some(&*value(0)), "it is used all the time");
        }
        let held: Vec<_> =
            all.of(2).filter(|(_, value)| value.bytes.is_some()).map(|(name, _)| name.to_vec()).collect();
        assert_eq!((held.len(), all.held, all.held_bytes()), (10, 10, 10_000));
        assert!(held.contains(&b"user.19".to_vec()) && held.contains(&b"user.00".to_vec()), "{held:?}");
        assert!(all.of(2).all(|(_, value)| value.len() == 1000) && all.of(2).count() == 20);
        for name in held {
            all.insert(2, &name, vec![1; 100].into());
        }
        assert_eq!((all.held, all.held_bytes()), (10, 1000));
        (0..20).for_each(|n| assert!(all.remove(2, format!("user.{n:02}").as_bytes())));
        assert_eq!((all.held, all.held_bytes(), all.of(2).count()), (0, 0, 0));
        all.set_bytes_max(0);
        assert!(all.list(1, acl::ACCESS).is_some() && all.list(1, b"user.short").is_some());
    }

    /// Goal: the order does not grow while values come and go within the bound. Method: one that is put in and removed.
    #[test]
    fn the_order_is_bounded() {
        let mut all = Attributes::default();
        for n in 0..10_000 {
            all.insert(1, b"user.a", value(n));
            all.remove(1, b"user.a");
            all.insert(1, b"user.b", value(n));
            all.trim();
        }
        assert!(all.order.len() <= 2 + ORDER_SPARE, "{}", all.order.len());
    }
}
