//! `Leases`: the time when the last message from each server arrived, and therefore whether the rights that it granted
//! may be used.
//!
//! Owns: the time of the last message of each server. Does not own: cached data, connections, and the request to a
//! server that was silent (`coherence::lease`).
//!
//! A server evicts a mount that is silent for 30 s. A mount that has received nothing from a server for `LEASE_NS` uses
//! nothing that is cached under that server's locks and tokens, until a request of its own is answered. So this mount
//! has stopped using its cache before other mounts continue. Whatever other servers granted can still be used.
//!
//! The number behind `all_until_ns`: while messages arrive from all servers, one comparison decides for all of them.

use crate::inode::Inode;
use amphi_types::{ByteRange, TargetId};
use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Silence of a server after which nothing cached is used, in nanoseconds: four of its pings.
pub(crate) const LEASE_NS: u64 = 20_000_000_000;
/// A message that follows another one sooner than this is not noted.
const COARSE_NS: u64 = 500_000_000;
const _: () = assert!(COARSE_NS < LEASE_NS / 2, "messages renew a lease before it ends");
/// Most pieces of a range that are checked one by one. For more pieces, all stripes of the file are checked.
const PIECES_MAX: usize = 4096;

/// When the last message from a server arrived, by the clock that also runs during suspend. 0 means that it was never
/// heard, so it has granted nothing.
#[derive(Default)]
pub(crate) struct Lease {
    heard_ns: AtomicU64,
}

impl Lease {
    fn end_ns(&self) -> u64 {
        match self.heard_ns.load(Relaxed) {
            0 => u64::MAX,
            heard => heard.saturating_add(LEASE_NS),
        }
    }

    pub(crate) fn in_touch(&self, boot_ns: u64) -> bool {
        boot_ns < self.end_ns()
    }
}

/// The leases of all servers.
#[derive(Default)]
pub(crate) struct Leases {
    by_target: RwLock<Vec<Arc<Lease>>>,
    /// The time until which none of the leases expires.
    pub(crate) all_until_ns: AtomicU64,
}

impl Leases {
    /// Sets the server of each target, from a new cluster map.
    pub(crate) fn set(&self, by_target: Vec<Arc<Lease>>) {
        *self.by_target.write() = by_target;
        self.look();
    }

    fn look(&self) {
        let end = self.by_target.read().iter().map(|lease| lease.end_ns()).min().unwrap_or(0);
        self.all_until_ns.store(end, Relaxed);
    }

    /// Called when a message has arrived. After a long silence a message may be an old one that waited in a buffer.
    /// Then only an answer counts.
    pub(crate) fn hear(&self, lease: &Lease, boot_ns: u64) {
        let heard = lease.heard_ns.load(Relaxed);
        if lease.in_touch(boot_ns) && boot_ns >= heard.saturating_add(COARSE_NS) {
            self.surely_heard(lease, boot_ns);
        }
    }

    /// Everything that the server has sent until `boot_ns` was received.
    pub(crate) fn surely_heard(&self, lease: &Lease, boot_ns: u64) {
        lease.heard_ns.fetch_max(boot_ns.max(1), Relaxed);
        self.look();
    }

    pub(crate) fn of(&self, target: TargetId) -> Option<Arc<Lease>> {
        self.by_target.read().get(usize::from(target.0)).cloned()
    }

    /// Returns whether the last message from the server of a target is recent enough to use what the server granted.
    #[inline]
    pub(crate) fn in_touch(&self, boot_ns: u64, target: TargetId) -> bool {
        let here = || self.by_target.read().get(usize::from(target.0)).is_none_or(|lease| lease.in_touch(boot_ns));
        boot_ns < self.all_until_ns.load(Relaxed) || here()
    }

    /// Works as `in_touch`, for the servers of a file's inode and of these bytes.
    #[inline]
    pub(crate) fn in_touch_for(&self, boot_ns: u64, file: &Inode, range: ByteRange) -> bool {
        let all = boot_ns < self.all_until_ns.load(Relaxed);
        all || targets(file, range).into_iter().all(|target| self.in_touch(boot_ns, target))
    }
}

/// The targets of a file's inode and of these bytes.
pub(crate) fn targets(file: &Inode, range: ByteRange) -> BTreeSet<TargetId> {
    let layout = file.layout();
    let mut targets = BTreeSet::from([file.ino.target()]);
    for (looked, (object, _)) in layout.pieces(file.ino, range).enumerate() {
        targets.insert(layout.target(file.ino, object.stripe));
        if targets.len() >= layout.stripes() as usize {
            break;
        }
        if looked >= PIECES_MAX {
            targets.extend((0..layout.stripes()).map(|stripe| layout.target(file.ino, stripe)));
            break;
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: rights that a silent server granted are not used, and all others are. After a long silence, a push does
    /// not renew the lease, but an answer does. Method: two servers, one of which sends messages.
    #[test]
    fn each_server_has_its_own() {
        let leases = Leases::default();
        let (a, b) = (Arc::<Lease>::default(), Arc::<Lease>::default());
        leases.set(vec![a.clone(), b.clone(), a.clone()]);
        let (one, two) = (TargetId(0), TargetId(1));
        let at = |s: u64| s * 1_000_000_000;
        assert!(leases.in_touch(at(100), two), "it has granted nothing yet");
        leases.surely_heard(&a, at(100));
        leases.surely_heard(&b, at(100));
        for s in 101..130 {
            leases.hear(&a, at(s));
        }
        assert!(leases.in_touch(at(119), two) && !leases.in_touch(at(120), two));
        assert!(
            leases.in_touch(at(148), one) && leases.in_touch(at(148), TargetId(2)) && !leases.in_touch(at(149), one)
        );
        leases.hear(&b, at(130));
        assert!(!leases.in_touch(at(130), two), "it may be an old one");
        leases.surely_heard(&b, at(130));
        assert!(leases.in_touch(at(140), two));
    }
}
