//! `Rights`: a target's record of the rights of sessions that access its stripes of files of other targets.
//!
//! Owns: the table of answers and its bound. Does not own: when a request is checked, and which code asks
//! (`ops::rights`).

use amphi_types::{Errno, Ino, Layout, ObjectId, Owner, SessionId, TargetId};
use amphi_wire::Access;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most pairs of a session and a file of another target that a target remembers. If there are more, all are forgotten,
/// and requested again.
const RIGHTS_MAX: usize = 65_536;

/// The kind of access of a request to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// The request reads the object: needs an open for reading or for writing. A mount that writes a part of a block
    /// reads the block first, so an open for writing only permits reading too. An open without access does not.
    Look,
    /// The request changes the object: needs an open for writing.
    Change,
    /// The request locks all others out of the object, which need not exist yet: needs an open for writing.
    Lock,
}

impl Touch {
    /// Returns whether a session that has a file open with this access may do that.
    pub fn is_allowed_by(self, access: Access) -> bool {
        access.write || (access.read && self == Touch::Look)
    }
}

/// The rights of a session on the stripes of a file, as the inode's target has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Right {
    /// How the session has the file open, or had it open lately.
    pub access: Access,
    /// The file may have objects beyond stripe 0.
    pub wide: bool,
    /// The layout of the file, which says where its objects lie.
    pub layout: Layout,
    /// The owner to whom the objects are charged.
    pub owner: Owner,
}

impl Right {
    /// Returns whether the session may access the object, which has to be on target `here`.
    pub fn allows(&self, object: ObjectId, here: TargetId, touch: Touch) -> bool {
        self.lies(object, here) && touch.is_allowed_by(self.access) && (touch != Touch::Change || self.wide)
    }

    fn lies(&self, object: ObjectId, here: TargetId) -> bool {
        object.stripe < self.layout.stripes() && self.layout.target(object.ino, object.stripe) == here
    }

    /// The reason why a request that is not permitted is refused. A file that was never spread has no such object, so
    /// the range is a hole.
    pub fn refusal(&self, object: ObjectId, here: TargetId) -> Errno {
        if self.lies(object, here) && self.access.write && !self.wide { Errno::NoEnt } else { Errno::BadFd }
    }
}

/// Rights of sessions in files of other targets. `None` means that the request to the inode's target is under way.
#[derive(Default)]
pub struct Rights(BTreeMap<(Ino, SessionId), Option<Right>>);

impl Rights {
    /// Called when the objects of the inode are about to go.
    pub fn forget_file(&mut self, ino: Ino) {
        let of_file = (ino, SessionId(0))..=(ino, SessionId(u64::MAX));
        let gone: Vec<_> = self.0.range(of_file).map(|(key, _)| *key).collect();
        for key in gone {
            self.0.remove(&key);
        }
    }

    /// From now on the file belongs to this owner.
    pub fn set_owner(&mut self, ino: Ino, owner: Owner) {
        let of_file = (ino, SessionId(0))..=(ino, SessionId(u64::MAX));
        self.0.range_mut(of_file).filter_map(|(_, right)| right.as_mut()).for_each(|right| right.owner = owner);
    }

    /// Called when the session has ended.
    pub fn forget_session(&mut self, session: SessionId) {
        self.0.retain(|(_, of), _| *of != session);
    }

    /// The known rights of a session on a file.
    pub fn get(&self, ino: Ino, session: SessionId) -> Option<&Right> {
        self.0.get(&(ino, session)).and_then(Option::as_ref)
    }

    /// Called when the inode's target is being asked.
    pub fn asking(&mut self, ino: Ino, session: SessionId) {
        if self.0.len() >= RIGHTS_MAX {
            self.0.clear();
        }
        self.0.entry((ino, session)).or_default();
        assert!(self.0.len() <= RIGHTS_MAX, "{} rights are remembered, at most {RIGHTS_MAX}", self.0.len());
    }

    /// Keeps an answer, unless it is outdated.
    pub fn answered(&mut self, ino: Ino, session: SessionId, right: Right) -> bool {
        self.0.get_mut(&(ino, session)).map(|place| *place = Some(right)).is_some()
    }
}
