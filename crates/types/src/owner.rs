//! The accounts to which storage is charged, and their limits.
//!
//! Owns: the vocabulary of quotas. Does not own: counting and limits (`amphi_quota`).
//!
//! Every inode, with the blocks of its objects, is charged to three *accounts*: its user, its group, and the project of
//! the tree in which it lies. Project 0 means that it lies in no such tree.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The account to which an inode and the blocks of its objects are charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project of its tree, or 0.
    pub project: u32,
}

impl Owner {
    /// Returns the accounts of the owner: user, group, and the project if there is one.
    pub fn accounts(self) -> impl Iterator<Item = Account> {
        let project = (self.project != 0).then_some(Account { kind: AccountKind::Project, id: self.project });
        let user = Account { kind: AccountKind::User, id: self.uid };
        let group = Account { kind: AccountKind::Group, id: self.gid };
        [Some(user), Some(group), project].into_iter().flatten()
    }
}

/// The kind of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AccountKind {
    /// A user.
    User,
    /// A group.
    Group,
    /// A tree of directories.
    Project,
}

impl AccountKind {
    /// All kinds of accounts.
    pub const ALL: [AccountKind; 3] = [AccountKind::User, AccountKind::Group, AccountKind::Project];

    /// Returns the name of the kind, as people write it.
    pub fn name(self) -> &'static str {
        match self {
            AccountKind::User => "user",
            AccountKind::Group => "group",
            AccountKind::Project => "project",
        }
    }

    /// The kind of this name.
    pub fn of_name(name: &str) -> Option<AccountKind> {
        AccountKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// An account to which storage is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Account {
    /// Kind.
    pub kind: AccountKind,
    /// Number of the user, group or project.
    pub id: u32,
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.id)
    }
}

/// Storage that is used or may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// Blocks of 4096 bytes.
    pub blocks: u64,
    /// Inodes.
    pub inodes: u64,
}

impl Amount {
    /// The largest possible amount.
    pub const MAX: Amount = Amount { blocks: u64::MAX, inodes: u64::MAX };

    /// Returns the sum of both, field by field, limited to the largest number.
    #[must_use]
    pub fn plus(self, other: Amount) -> Amount {
        self.each(other, u64::saturating_add)
    }

    /// The remainder, field by field, at least 0.
    #[must_use]
    pub fn minus(self, other: Amount) -> Amount {
        self.each(other, u64::saturating_sub)
    }

    /// The smaller number of each field.
    #[must_use]
    pub fn min(self, other: Amount) -> Amount {
        self.each(other, u64::min)
    }

    /// The larger number of each field.
    #[must_use]
    pub fn max(self, other: Amount) -> Amount {
        self.each(other, u64::max)
    }

    /// Returns whether each field is at most that of `room`.
    pub fn fits(self, room: Amount) -> bool {
        self.blocks <= room.blocks && self.inodes <= room.inodes
    }

    /// Returns whether it is nothing.
    pub fn is_none(self) -> bool {
        self == Amount::default()
    }

    /// Combines both field by field.
    #[must_use]
    pub fn each(self, other: Amount, f: impl Fn(u64, u64) -> u64) -> Amount {
        Amount { blocks: f(self.blocks, other.blocks), inodes: f(self.inodes, other.inodes) }
    }
}

/// The limits of an account. 0 means that there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The account is refused any further use beyond this limit.
    pub hard: Amount,
    /// Beyond this it is refused more when `grace_s` have passed.
    pub soft: Amount,
    /// How long it may stay beyond `soft`, seconds.
    pub grace_s: u64,
}

impl Limits {
    /// How long an account may exceed its soft limit unless another time is set: a week, as on other file systems.
    pub const GRACE_S: u64 = 7 * 24 * 3600;

    /// Returns whether nothing is limited.
    pub fn is_none(&self) -> bool {
        self.hard.is_none() && self.soft.is_none()
    }
}

/// How near the owner of a file is to his limits, on one target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Nearness {
    /// Nothing limits him.
    #[default]
    Unlimited,
    /// His usage is far below it: each mount may have `FAR_BLOCKS` of his files in its cache before the next report.
    Far,
    /// For each write the server has to be asked whether it exceeds the limit.
    Near,
}

impl Nearness {
    /// Blocks that a mount may have accepted for a target while it writes files of a user whose use is far below the
    /// limit: 32 MiB, which keeps the disk of a target busy while more is accepted.
    pub const FAR_BLOCKS: u64 = 8192;
}

/// An account in the form in which it is shown to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountView {
    /// Which.
    pub account: Account,
    /// The usage of the account on all targets that answered.
    pub used: Amount,
    /// The limits of the account.
    pub limits: Limits,
    /// The time when the use of the account began to exceed its soft limit, in seconds since the epoch; 0 if it does
    /// not exceed it.
    pub over_since_s: u64,
    /// Targets that did not answer. The usage on them is not part of `used`.
    pub silent: u16,
}
