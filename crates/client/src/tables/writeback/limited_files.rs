//! `LimitedFiles`: files whose owners have a quota limit (docs/design/quotas.md).
//!
//! Owns: which files these are, and how near their owners are to a limit, as targets have said. Does not own: the
//! limits (the servers), and what the client does about them. If the owner of a file is far from the limit, only few
//! bytes are accepted before the target has them; if the owner is near the limit, none are, so each write waits for its
//! target and gets EDQUOT if it exceeds the limit.
//!
//! Bound: `FILES_MAX`. If there are more files, all files count as near their limits until there are fewer again.

use amphi_types::{Ino, Nearness, TargetId};
use amphi_wire::Grant;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Most files that are remembered.
const FILES_MAX: usize = 65_536;

/// Files by number, with the target that has reported last that the file is near a limit, if any has.
#[derive(Default)]
pub(crate) struct LimitedFiles {
    count: AtomicUsize,
    files: RwLock<BTreeMap<Ino, Option<TargetId>>>,
}

impl LimitedFiles {
    /// How near the owner of the file is to a limit.
    #[inline]
    pub(crate) fn nearness(&self, ino: Ino) -> Nearness {
        match self.count.load(Relaxed) {
            0 => Nearness::Unlimited,
            count if count >= FILES_MAX => Nearness::Near,
            _ => match self.files.read().get(&ino) {
                None => Nearness::Unlimited,
                Some(None) => Nearness::Far,
                Some(Some(_)) => Nearness::Near,
            },
        }
    }

    /// An answer says so of some files. Each target reports only for itself. If a file is near its limit at one target,
    /// it stays so until that target reports otherwise.
    pub(crate) fn told(&self, target: TargetId, grant: &Grant) {
        for &(ino, nearness) in &grant.limits {
            if nearness == Nearness::Unlimited && self.count.load(Relaxed) == 0 {
                continue;
            }
            let mut files = self.files.write();
            let before = files.get(&ino).copied();
            let is_elsewhere = before.flatten().is_some_and(|near| near != target);
            let next = match nearness {
                Nearness::Near => Some(Some(target)),
                _ if is_elsewhere => before,
                Nearness::Far => Some(None),
                Nearness::Unlimited => None,
            };
            match next {
                Some(next) if before.is_some() || files.len() < FILES_MAX => drop(files.insert(ino, next)),
                Some(_) => {}
                None => drop(files.remove(&ino)),
            }
            assert!(files.len() <= FILES_MAX, "{} files with limits, at most {FILES_MAX}", files.len());
            self.count.store(files.len(), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a file counts as near its limit until the target that reported it reports otherwise; with too many files
    /// all of them count as near. Method: a story of reports.
    #[test]
    fn targets_speak_for_themselves() {
        use Nearness::{Far, Near, Unlimited};
        let limited = LimitedFiles::default();
        let say = |target, ino, nearness| {
            limited.told(TargetId(target), &Grant { limits: vec![(Ino(ino), nearness)], ..Grant::default() });
            limited.nearness(Ino(ino))
        };
        assert_eq!((say(1, 7, Unlimited), say(1, 7, Far), say(2, 7, Near)), (Unlimited, Far, Near));
        assert_eq!((say(1, 7, Far), say(1, 7, Unlimited)), (Near, Near));
        assert_eq!((say(2, 7, Far), limited.nearness(Ino(8)), say(1, 7, Unlimited)), (Far, Unlimited, Unlimited));
        for ino in 0..FILES_MAX as u64 {
            say(1, ino, Far);
        }
        assert_eq!(limited.nearness(Ino(u64::MAX)), Near);
        assert_eq!((say(1, 0, Unlimited), limited.nearness(Ino(u64::MAX))), (Unlimited, Unlimited));
    }
}
