//! `Acl`: POSIX access control lists (IEEE 1003.1e, draft 17), as Linux stores, checks and inherits them.
//!
//! Owns: the format of the attributes that carry them, the conditions of a valid list, and the three rules: access
//! checks, inheritance by a new inode, changes by chmod. Does not own: the places where lists are stored, and the right
//! to change them (`meta`).
//!
//! A list names users and groups in addition to the owner, the group and the others, which every list has. Its mask
//! bounds the permissions of named users and all groups. The permission bits of the inode are always those of the list:
//! owner, mask (or the group where there is no mask) and others.

use crate::{Cred, Kind};
use serde::{Deserialize, Serialize};

/// Extended attribute with the list that decides about access.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Extended attribute of a directory with the list that new inodes in it inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Most entries of a list. Linux hands lists to a FUSE file system in one page of 4096 bytes.
pub const ENTRIES_MAX: usize = (4096 - HEAD_BYTES) / ENTRY_BYTES;

/// Length of the value of a list without entries, which means that there is no list.
pub const EMPTY_BYTES: usize = HEAD_BYTES;

const VERSION: u32 = 2;
const HEAD_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The id of entries that name no user or group.
const NO_ID: u32 = u32::MAX;

/// The subject of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Who {
    /// The owner of the inode.
    Owner,
    /// The user with this number.
    User(u32),
    /// The group of the inode.
    OwningGroup,
    /// The group with this number.
    Group(u32),
    /// No user: the bound for named users and all groups.
    Mask,
    /// All other users.
    Others,
}

impl Who {
    /// Tag and id of the stored form.
    fn raw(self) -> (u16, u32) {
        match self {
            Who::Owner => (0x01, NO_ID),
            Who::User(id) => (0x02, id),
            Who::OwningGroup => (0x04, NO_ID),
            Who::Group(id) => (0x08, id),
            Who::Mask => (0x10, NO_ID),
            Who::Others => (0x20, NO_ID),
        }
    }

    fn from_raw(tag: u16, id: u32) -> Option<Who> {
        Some(match tag {
            0x01 => Who::Owner,
            0x02 => Who::User(id),
            0x04 => Who::OwningGroup,
            0x08 => Who::Group(id),
            0x10 => Who::Mask,
            0x20 => Who::Others,
            _ => return None,
        })
    }

    /// Entries are stored in this order.
    fn rank(self) -> u16 {
        self.raw().0
    }
}

/// The permissions of one entry: 4 read, 2 write, 1 execute or search, as in a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Whom.
    pub who: Who,
    /// The bits, `0o7`.
    pub bits: u16,
}

/// A valid access control list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acl {
    entries: Vec<Entry>,
}

/// The lists of an inode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acls {
    /// Decides about access, instead of the permission bits.
    pub access: Option<Acl>,
    /// The list that new inodes in a directory inherit.
    pub default: Option<Acl>,
}

impl Acls {
    /// Bytes of the values of their attributes.
    pub fn stored_bytes(&self) -> u64 {
        let lists = [&self.access, &self.default].into_iter().flatten();
        lists.map(|list| (HEAD_BYTES + list.entries.len() * ENTRY_BYTES) as u64).sum()
    }
}

impl Acl {
    /// A list of these entries: each kind that has no id at most once, in order (owner, users, group, groups, mask,
    /// others), with a mask if users or groups are named. Returns `None` if it is not valid.
    pub fn new(entries: Vec<Entry>) -> Option<Acl> {
        let count = |who: Who| entries.iter().filter(|e| e.who == who).count();
        let ordered = entries.is_sorted_by_key(|e| e.who.rank());
        let complete = [Who::Owner, Who::OwningGroup, Who::Others].into_iter().all(|who| count(who) == 1);
        let names = entries.iter().any(|e| matches!(e.who, Who::User(_) | Who::Group(_)));
        let masked = count(Who::Mask) == 1 || (count(Who::Mask) == 0 && !names);
        let sound = entries.iter().all(|e| e.bits <= 0o7 && !matches!(e.who, Who::User(NO_ID) | Who::Group(NO_ID)));
        (ordered && complete && masked && sound && entries.len() <= ENTRIES_MAX).then_some(Acl { entries })
    }

    /// From the value of an extended attribute (Linux, `posix_acl_xattr.h`: version 2, then tag, bits and id of each
    /// entry, little-endian). Returns `None` if it is not a valid list.
    pub fn from_xattr(value: &[u8]) -> Option<Acl> {
        let (head, body) = value.split_first_chunk::<HEAD_BYTES>()?;
        if u32::from_le_bytes(*head) != VERSION || body.len() % ENTRY_BYTES != 0 {
            return None;
        }
        let entry = |raw: &[u8]| {
            let (tag, rest) = raw.split_first_chunk::<2>()?;
            let (bits, rest) = rest.split_first_chunk::<2>()?;
            let who = Who::from_raw(u16::from_le_bytes(*tag), u32::from_le_bytes(*rest.first_chunk::<4>()?))?;
            Some(Entry { who, bits: u16::from_le_bytes(*bits) })
        };
        Acl::new(body.chunks_exact(ENTRY_BYTES).map(entry).collect::<Option<Vec<_>>>()?)
    }

    /// The value of the extended attribute.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(HEAD_BYTES + self.entries.len() * ENTRY_BYTES);
        value.extend(VERSION.to_le_bytes());
        for entry in &self.entries {
            let (tag, id) = entry.who.raw();
            value.extend(tag.to_le_bytes());
            value.extend(entry.bits.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    /// The entries, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn bits_of(&self, who: Who) -> Option<u16> {
        self.entries.iter().find(|e| e.who == who).map(|e| e.bits)
    }

    fn set(&mut self, who: Who, bits: u16) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.who == who) {
            entry.bits = bits & 0o7;
        }
    }

    /// The entry that the group's permission bits show: the mask, or the group where there is none.
    fn group_class(&self) -> Who {
        if self.bits_of(Who::Mask).is_some() { Who::Mask } else { Who::OwningGroup }
    }

    /// The permission bits of an inode with this list, `0o777`.
    pub fn perm(&self) -> u16 {
        let bits = |who| self.bits_of(who).unwrap_or(0);
        bits(Who::Owner) << 6 | bits(self.group_class()) << 3 | bits(Who::Others)
    }

    /// Returns whether the permission bits express everything that the list says.
    pub fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// The list after a chmod to `perm`, `0o777`.
    pub fn chmod(&mut self, perm: u16) {
        self.set(Who::Owner, perm >> 6);
        self.set(self.group_class(), perm >> 3);
        self.set(Who::Others, perm);
    }

    /// The permissions of a new inode that is requested with `perm` in a directory with this default list, without
    /// umask, and the inode's own list if the permissions are not equivalent to it.
    pub fn inherit(&self, perm: u16) -> (u16, Option<Acl>) {
        let mut own = self.clone();
        let class = own.perm() & perm;
        own.chmod(class);
        (perm & !0o777 | class, (!own.is_minimal()).then_some(own))
    }

    /// The bits that `cred` is given on an inode of this group, which it does not own: those of its own entry under the
    /// mask; otherwise, if it is in a group of the list, all of `want` if one such group has it; otherwise those of the
    /// others.
    fn gives(&self, cred: &Cred, gid: u32, want: u16) -> bool {
        let mask = self.bits_of(Who::Mask).unwrap_or(0o7);
        if let Some(own) = self.bits_of(Who::User(cred.uid)) {
            return want & !(own & mask) == 0;
        }
        let mine = |entry: &&Entry| match entry.who {
            Who::OwningGroup => cred.in_group(gid),
            Who::Group(id) => cred.in_group(id),
            _ => false,
        };
        let mut groups = self.entries.iter().filter(mine).peekable();
        if groups.peek().is_some() {
            return groups.any(|entry| want & !(entry.bits & mask) == 0);
        }
        want & !self.bits_of(Who::Others).unwrap_or(0) == 0
    }
}

impl Cred {
    /// Works as `has_access`, on an inode that may have a list, which then decides about all users but the owner.
    ///
    /// As in Linux (`acl_permission_check`) the list is not used while the group bits of `perm` are all 0, that is
    /// while its mask permits nothing: named users then have the permissions of others.
    pub fn has_access_by(&self, acl: Option<&Acl>, kind: Kind, perm: u16, owner: (u32, u32), want: u16) -> bool {
        let want = want & 0o7;
        match acl {
            Some(acl) if self.uid != owner.0 && perm & 0o070 != 0 => {
                acl.gives(self, owner.1, want) || self.overrides(kind, perm, want)
            }
            _ => self.has_access(kind, perm, owner, want),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(Who, u16)]) -> Acl {
        Acl::new(entries.iter().map(|&(who, bits)| Entry { who, bits }).collect()).expect("a valid list")
    }

    fn project() -> Acl {
        acl(&[
            (Who::Owner, 7),
            (Who::User(10), 7),
            (Who::User(11), 0),
            (Who::OwningGroup, 4),
            (Who::Group(20), 6),
            (Who::Group(21), 1),
            (Who::Mask, 6),
            (Who::Others, 1),
        ])
    }

    /// Goal: the stored form is that of Linux and comes back. Method: a list whose bytes are in the test, a round trip,
    /// and damaged bytes.
    #[test]
    fn stored_form() {
        let small =
            acl(&[(Who::Owner, 6), (Who::User(258), 4), (Who::OwningGroup, 0), (Who::Mask, 4), (Who::Others, 0)]);
        let value = small.to_xattr();
        assert_eq!(value[..12], [2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255]);
        assert_eq!(value[12..20], [2, 0, 4, 0, 2, 1, 0, 0]);
        assert_eq!(Acl::from_xattr(&value), Some(small));
        assert_eq!(Acl::from_xattr(&project().to_xattr()), Some(project()));
        for damage in [&value[..3], &value[..value.len() - 1], &value[..12], &[1, 0, 0, 0], &[]] {
            assert_eq!(Acl::from_xattr(damage), None, "{damage:?}");
        }
        let mut wrong = value.clone();
        wrong[6] = 8;
        assert_eq!(Acl::from_xattr(&wrong), None, "bits beyond 7");
    }

    /// Goal: lists that say nothing certain are refused. Method: the test breaks each rule once.
    #[test]
    fn only_valid_lists() {
        use Who::*;
        let base = [(Owner, 7), (OwningGroup, 5), (Others, 0)];
        let made = |entries: &[(Who, u16)]| Acl::new(entries.iter().map(|&(who, bits)| Entry { who, bits }).collect());
        assert!(made(&base).is_some_and(|acl| acl.is_minimal() && acl.perm() == 0o750));
        assert!(made(&base[..2]).is_none() && made(&[]).is_none(), "an entry is missing");
        assert!(made(&[base[1], base[0], base[2]]).is_none(), "order");
        assert!(made(&[base[0], (User(1), 7), base[1], base[2]]).is_none(), "named without a mask");
        assert!(made(&[base[0], base[1], (Mask, 1), (Mask, 2), base[2]]).is_none(), "two masks");
        assert!(made(&[base[0], (User(NO_ID), 7), base[1], (Mask, 7), base[2]]).is_none(), "a user without a number");
        let many = (0..ENTRIES_MAX as u32).map(|id| (User(id), 1));
        let many: Vec<_> = [base[0]].into_iter().chain(many).chain([base[1], (Mask, 7), base[2]]).collect();
        assert!(made(&many).is_none(), "more than a page");
    }

    /// Goal: the list decides as in Linux. Method: a table of callers.
    #[test]
    fn who_may() {
        let list = project();
        assert_eq!(list.perm(), 0o761);
        let may = |uid, gid, groups: &[u32], want| {
            let cred = Cred::new(uid, gid, groups.to_vec());
            cred.has_access_by(Some(&list), Kind::File, list.perm(), (1, 2), want)
        };
        assert!(may(1, 9, &[], 7), "the owner, whom the mask does not bound");
        assert!(may(10, 9, &[], 6) && !may(10, 9, &[], 1), "a named user under the mask");
        assert!(!may(11, 20, &[2], 4), "a named user, whose groups do not count");
        assert!(may(12, 2, &[], 4) && !may(12, 2, &[], 2), "the group");
        assert!(may(12, 2, &[20], 6), "one group gives it all");
        assert!(!may(12, 2, &[21], 5), "two groups are not added up, and the mask takes execution away");
        assert!(!may(12, 21, &[], 1), "in a group, so not one of the others");
        assert!(may(12, 9, &[], 1) && !may(12, 9, &[], 4), "others");
        assert!(may(0, 9, &[], 7), "the super-user");
        let none = acl(&[(Who::Owner, 7), (Who::User(10), 7), (Who::OwningGroup, 7), (Who::Mask, 0), (Who::Others, 4)]);
        let named = Cred::new(10, 10, vec![]);
        assert!(
            named.has_access_by(Some(&none), Kind::File, none.perm(), (1, 2), 4),
            "an empty mask: one of the others"
        );
    }

    /// Goal: chmod changes owner, mask and others; a new inode gets no more than the requested permissions. Method:
    /// lists with given entries.
    #[test]
    fn chmod_and_inheritance() {
        let mut list = project();
        list.chmod(0o640);
        assert_eq!(list.perm(), 0o640);
        assert_eq!((list.bits_of(Who::Mask), list.bits_of(Who::OwningGroup)), (Some(4), Some(4)));
        let (perm, own) = project().inherit(0o1666);
        assert_eq!((perm, own.as_ref().map(Acl::perm)), (0o1660, Some(0o660)));
        assert_eq!(own.and_then(|own| own.bits_of(Who::User(10))), Some(7), "named entries stay as they are");
        let plain = acl(&[(Who::Owner, 7), (Who::OwningGroup, 7), (Who::Others, 5)]);
        assert_eq!(plain.inherit(0o666), (0o664, None));
    }
}
