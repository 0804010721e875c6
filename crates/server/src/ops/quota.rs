//! Quotas: whether an owner may use more space, at the places where space is promised (docs/design/quotas.md).
//!
//! Owns: checking limits before something is written or made, the requests between a target and target 0, and what
//! users see and set. Does not own: how limits are divided (`amphi_quota`), the counts (`meta`, `data`).
//!
//! Limits are checked where space is needed: for a write without a grant, an allocation, and every operation that makes
//! an inode or changes its owner. A write with a grant was accepted by its mount, so it is not refused. Mounts are
//! informed in time that they must not accept more (`Grant::limits`).
//!
//! Invariants: an amount that is admitted is reserved until it is counted (`Admitted`). A write waits for the ledger's
//! answer while it holds its span; collecting shares takes no span.

pub(crate) mod accounts;
pub(crate) mod counting;
pub(crate) mod ledger;

use self::counting::counted;
use crate::message::{Freeing, QuotaRequest, TargetReply, TargetRequest};
use crate::worker::Worker;
use crate::worker::request::RequestCx;
use crate::zone_target::Target;
use crate::zone_target::quota::{Admitted, NewInodes, new_inodes};
use amphi_env::Env;
use amphi_meta::Part;
use amphi_quota::Admission;
use amphi_types::{Account, Amount, ByteRange, Caps, Errno, Ino, Nearness, ObjectId, Owner, Result, TargetId};
use amphi_wire::{Cover, Make, Reply, Request};
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// The target that has the ledger.
pub(crate) const LEDGER: TargetId = TargetId(0);
/// Pause before checking again whether requests under way have left some space.
const AGAIN: Duration = Duration::from_millis(1);
/// How often a request asks for a larger share of a limit. Other requests may use up the share each time.
const ASKS_MAX: u32 = 1000;
/// Least time between two requests for more share ahead of need.
const AHEAD_EVERY: Duration = Duration::from_millis(20);
/// How long a refusal waits for files that are being removed.
const FREED_WITHIN: Duration = Duration::from_secs(5);
/// How long a refusal waits for the close of a file that has no name any more.
const CLOSED_WITHIN: Duration = Duration::from_millis(100);

/// Returns whether the use on this target may fall in a moment.
pub(super) fn freeing<E: Env>(target: &Target<E>) -> Freeing {
    // Until all sessions of an earlier run have presented their opens, no inode without a name is removed.
    if !target.queues.destroying.borrow().is_empty() || !target.reclaim.is_over() {
        return Freeing::Yes;
    }
    let (meta, open) = (target.meta.borrow(), target.files.open.borrow());
    let has_no_name = |ino: Ino| !meta.is_away(ino) && meta.inode(ino).is_ok_and(|inode| inode.nlink == 0);
    if open.inodes().any(has_no_name) { Freeing::Perhaps } else { Freeing::No }
}

/// Returns whether a refusal that has waited since this time continues to wait.
pub(super) fn waits<E: Env>(worker: &Worker<E>, since_ns: u64, freeing: Freeing) -> bool {
    let within = match freeing {
        Freeing::No => return false,
        Freeing::Perhaps => CLOSED_WITHIN,
        Freeing::Yes => FREED_WITHIN,
    };
    worker.now_ns().saturating_sub(since_ns) < within.as_nanos() as u64
}

/// Asks target 0 for more of an account's limit. `is_ahead`: no request waits for it, so a smaller amount suffices.
async fn ask_more<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    account: Account,
    wanted: Amount,
    is_ahead: bool,
) -> Result<()> {
    if !target.is_counted() {
        // The ledger relies on the use that it is told.
        let question = TargetRequest::Quota(QuotaRequest::IsLimited(account));
        if let TargetReply::Share { number, share, .. } = worker.insist_ask(LEDGER, question).await? {
            target.counts.quota.shares.borrow_mut().told(account, number, share, false, worker.now_ns());
            return Ok(());
        }
        counted(worker, target).await?;
    }
    let used = {
        let used = target.used(account);
        target.counts.quota.shares.borrow_mut().ask(account, used)
    };
    let question = QuotaRequest::Share { account, from: target.id, used, wanted, ahead: is_ahead };
    match worker.insist_ask(LEDGER, TargetRequest::Quota(question)).await? {
        TargetReply::Share { number, share, refused } => {
            target.counts.quota.shares.borrow_mut().told(account, number, share, refused && !is_ahead, worker.now_ns());
            Ok(())
        }
        _ => Err(Errno::Proto),
    }
}

/// Gets space for `wanted` within the limits of an owner. `alive` is checked after every wait. `None`: the owner has no
/// limit.
///
/// Errors: `Quota`, and the errors of `alive`.
pub(super) async fn admit<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    owner: Owner,
    wanted: Amount,
    alive: &impl Fn() -> Result<()>,
) -> Result<Option<Admitted<E>>> {
    let since_ns = worker.now_ns();
    let mut asked = 0;
    loop {
        if !target.counts.quota.shares.borrow().is_on() || wanted.is_none() {
            return Ok(None);
        }
        target.counts.quota.end_reservations(worker.now_ns());
        let used = |account| target.used_at_most(account);
        let admission = target.counts.quota.shares.borrow().admit(owner, wanted, worker.now_ns(), used);
        match admission {
            Admission::Yes => return Ok(Some(target.hold_share(owner, wanted))),
            Admission::Ask(account) if asked < ASKS_MAX => {
                asked += 1;
                ask_more(worker, target, account, wanted, false).await?;
            }
            Admission::Ask(_) => return Err(Errno::Quota),
            Admission::No(account) => {
                // Requests under way may use less than they have reserved, or may have been counted already; and a user
                // who has just removed a file expects that its space is available.
                let is_idle = target.counts.quota.shares.borrow().held(account).is_none();
                let freeing = if is_idle { freeing(target) } else { Freeing::Yes };
                if asked > 0 && !waits(worker, since_ns, freeing) {
                    return Err(Errno::Quota);
                }
                worker.env.sleep(AGAIN).await;
            }
        }
        alive()?;
    }
}

/// Space within limits for the new inodes of an operation. When this is dropped, the operation has ended, or is planned
/// again.
pub(super) struct AdmittedInodes<E: Env> {
    worker: Rc<Worker<E>>,
    _own: Option<Admitted<E>>,
    /// Other targets that hold some of it, and the first inode there.
    elsewhere: SmallVec<[(TargetId, Ino); 1]>,
}

impl<E: Env> Drop for AdmittedInodes<E> {
    fn drop(&mut self) {
        for (home, first) in self.elsewhere.drain(..) {
            self.worker.tell_later(home, TargetRequest::Quota(QuotaRequest::Unreserve(first)));
        }
    }
}

impl<E: Env> RequestCx<E> {
    /// The owner of an object, as far as this target knows it.
    fn owner_of(&self, object: ObjectId) -> Option<Owner> {
        let meta = self.target.meta.borrow();
        if object.ino.target() == self.target.id && !meta.is_away(object.ino) {
            return meta.charged(object.ino).ok();
        }
        // An inode does not change its owner while it is away.
        let known = meta.owner_away(object.ino).or_else(|| self.target.data.borrow().owner_of(object));
        drop(meta);
        known.or_else(|| self.target.files.rights.borrow().get(object.ino, self.session).map(|right| right.owner))
    }

    /// Finds room within limits for the blocks that a write of `range` adds. A write with a grant needs no such check.
    ///
    /// Errors: `Quota`.
    pub(super) async fn admit_write(
        &self,
        object: ObjectId,
        range: ByteRange,
        cover: Cover,
    ) -> Result<Option<Admitted<E>>> {
        if cover == Cover::Granted || !self.target.counts.quota.shares.borrow().is_on() {
            return Ok(None);
        }
        let blocks = self.target.data.borrow().charge_of_write(object, range);
        let Some(owner) = self.owner_of(object).filter(|_| blocks > 0) else { return Ok(None) };
        admit(&self.worker, &self.target, owner, Amount { blocks, inodes: 0 }, &|| self.alive()).await
    }

    /// Returns whether a write may increase the use of an account with a limit, and is not covered by a grant.
    pub(super) fn is_limited(&self, object: ObjectId, range: ByteRange, cover: Cover) -> bool {
        cover != Cover::Granted
            && self.target.counts.quota.shares.borrow().is_on()
            && self.target.data.borrow().charge_of_write(object, range) > 0
    }

    /// Returns whether a write is within the limits, as far as this can be decided without waiting. If it does not,
    /// nothing is held.
    pub(super) fn admits_write_now(&self, object: ObjectId, range: ByteRange, cover: Cover) -> bool {
        let shares = self.target.counts.quota.shares.borrow();
        if cover == Cover::Granted || !shares.is_on() {
            return true;
        }
        let blocks = self.target.data.borrow().charge_of_write(object, range);
        let Some(owner) = self.owner_of(object).filter(|_| blocks > 0) else { return true };
        let wanted = Amount { blocks, inodes: 0 };
        let used = |account| self.target.used_at_most(account);
        shares.admit(owner, wanted, self.worker.now_ns(), used) == Admission::Yes
    }

    /// Gets space within the limits for the inodes that `parts` make, at their own targets. There it is held until they
    /// are promised, and then until they are counted; here as long as what is returned.
    ///
    /// Errors: `Quota`.
    pub(super) async fn admit_inodes(&self, parts: &[Part]) -> Result<Option<AdmittedInodes<E>>> {
        if !self.target.counts.quota.shares.borrow().is_on() {
            return Ok(None);
        }
        let mut admitted = AdmittedInodes { worker: self.worker.clone(), _own: None, elsewhere: SmallVec::new() };
        let homes: BTreeSet<TargetId> = parts.iter().map(Part::target).collect();
        for home in homes {
            let of_home = parts.iter().filter(|part| part.target() == home);
            let Some(NewInodes { first, owner, amount }) = new_inodes(of_home) else { continue };
            if home == self.target.id {
                admitted._own = admit(&self.worker, &self.target, owner, amount, &|| self.alive()).await?;
            } else {
                let question = TargetRequest::Quota(QuotaRequest::Admit(owner, amount, first));
                self.worker.tell(home, question).await?;
                admitted.elsewhere.push((home, first));
            }
        }
        Ok(Some(admitted))
    }

    /// Gets space within the limits of the new owners of an inode, unless the caller may give away any file.
    ///
    /// Errors: `Quota`.
    pub(super) async fn admit_gift(
        &self,
        ino: Ino,
        uid: Option<u32>,
        gid: Option<u32>,
        project: Option<u32>,
    ) -> Result<Option<Admitted<E>>> {
        if self.cred.may(Caps::CHOWN) || !self.target.counts.quota.shares.borrow().is_on() {
            return Ok(None);
        }
        let before = self.target.meta.borrow().charged(ino)?;
        let after = Owner {
            uid: uid.unwrap_or(before.uid),
            gid: gid.unwrap_or(before.gid),
            project: project.unwrap_or(before.project),
        };
        if after == before {
            return Ok(None);
        }
        let blocks = self.target.data.borrow().objects_of(ino).map(|(_, o)| o.blocks).sum();
        // A directory goes with its shards. Accounts that own the data already need space for it once more. The check
        // is too strict rather than too lax.
        let inodes = 1 + self.target.meta.borrow().shards(ino).len() as u64;
        admit(&self.worker, &self.target, after, Amount { blocks, inodes }, &|| self.alive()).await
    }

    /// An object that may have been made is counted for its owner.
    pub(super) fn own(&self, object: ObjectId) {
        let is_known = {
            let data = self.target.data.borrow();
            !data.is_counting() || data.owner_of(object).is_some()
        };
        if !is_known && let Some(owner) = self.owner_of(object) {
            self.target.data.borrow_mut().set_owner(object, owner);
        }
    }

    /// Called when the owner of an inode has changed: its objects go with it, here and elsewhere.
    pub(super) fn moved_to_owner(&self, ino: Ino) {
        let (owner, wide, layout) = {
            let meta = self.target.meta.borrow();
            let Ok(inode) = meta.inode(ino) else { return };
            (inode.charged(), inode.objects.wide, inode.layout)
        };
        self.target.set_owner(ino, owner);
        if !wide {
            return;
        }
        for other in crate::objects::others(&layout, ino, self.target.id) {
            let (worker, target) = (self.worker.clone(), Rc::downgrade(&self.target));
            self.worker.env.spawn(async move {
                let mut told = owner;
                // A target that is started again asks for owners by itself.
                while worker.insist(other, TargetRequest::SetOwner(ino, told)).await.is_ok() {
                    // This message may have arrived behind one about a later owner.
                    let Some(target) = target.upgrade() else { return };
                    let Ok(held) = target.hold([ino]).await else { return };
                    let now = target.meta.borrow().charged(ino);
                    drop(held);
                    target.let_inodes_go();
                    match now {
                        Ok(now) if now != told => told = now,
                        _ => return,
                    }
                }
            });
        }
    }

    /// `Request::Charged`.
    pub(super) fn charged(&self, ino: Ino) -> Result<Reply> {
        self.target.meta.borrow().charged(ino).map(Reply::Owner)
    }

    /// How near the owner of a written or opened file is to a limit on this target. If the owner is near the limit, a
    /// larger share is requested ahead of need.
    fn nearness(&self, object: ObjectId) -> Nearness {
        let Some(owner) = self.owner_of(object) else { return Nearness::Unlimited };
        // The amount that mounts may accept until they are informed, and may have under way.
        let margin = 2 * Nearness::FAR_BLOCKS * self.target.sessions.count().max(1) as u64;
        let shares = self.target.counts.quota.shares.borrow();
        let (nearness, account) = shares.nearness(owner, margin, |account| self.target.used_at_most(account));
        drop(shares);
        if let (Nearness::Near, Some(account)) = (nearness, account) {
            ask_ahead(&self.worker, &self.target, account, margin);
        }
        nearness
    }

    /// Adds to an answer how near the owners of what the request has opened or written are to a limit.
    pub(super) fn tell_nearness(&self, charged: &Charged, answer: &mut amphi_wire::Answer) {
        if !self.target.counts.quota.was_on.get() {
            return;
        }
        let limits = match (charged, &answer.result) {
            (Charged::Objects(objects), _) => objects.iter().map(|o| (o.ino, self.nearness(*o))).collect(),
            (Charged::Made, Ok(Reply::Made { inode, .. })) => {
                vec![(inode.attr.ino, self.nearness(first_object(inode.attr.ino)))]
            }
            _ => return,
        };
        answer.grant.get_or_insert_default().limits = limits;
    }
}

/// The account whose space a request uses.
pub(super) enum Charged {
    /// Nobody's.
    Nothing,
    /// The nearness of the owner of what the request makes or opens by name.
    Made,
    /// The nearness of the owners of these objects.
    Objects(SmallVec<[ObjectId; 1]>),
}

fn first_object(ino: Ino) -> ObjectId {
    ObjectId { ino, stripe: 0 }
}

/// The account whose space a request uses, in the form for its answer.
pub(super) fn charged_by(op: &Request) -> Charged {
    match op {
        Request::Make { make: Make::File { open: Some(_), .. }, .. } | Request::MakeTmp { .. } => Charged::Made,
        Request::Open { ino, access, .. } if access.write => Charged::Objects(smallvec![first_object(*ino)]),
        Request::Write { object, .. } | Request::Allocate { object, .. } => Charged::Objects(smallvec![*object]),
        Request::WriteBatch { parts } => Charged::Objects(parts.iter().map(|part| part.object).collect()),
        _ => Charged::Nothing,
    }
}

/// Requests more of a limit without a waiting caller, once at a time.
fn ask_ahead<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, account: Account, blocks: u64) {
    if !target.counts.quota.asking.borrow_mut().insert(account) {
        return;
    }
    let (worker, target) = (worker.clone(), target.clone());
    worker.env.clone().spawn(async move {
        let _ = ask_more(&worker, &target, account, Amount { blocks, inodes: 0 }, true).await;
        // A target that is closed meanwhile is not kept open.
        let target = {
            let weak = Rc::downgrade(&target);
            drop(target);
            worker.env.sleep(AHEAD_EVERY).await;
            weak.upgrade()
        };
        if let Some(target) = target {
            target.counts.quota.asking.borrow_mut().remove(&account);
        }
    });
}
