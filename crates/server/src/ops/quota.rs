//! Quotas: what an owner may use, where space is promised (docs/design/quotas.md).
//!
//! Owns: finding room within limits before something is written or made, the questions between a target and target 0,
//! and what people see and set. Does not own: how limits are dealt out (`amphi_quota`), the counts (`meta`, `data`).
//!
//! Limits are looked at where room is: at a write that has no grant, an allocation, and whatever makes an inode or
//! gives one to another owner. A write with a grant was accepted by its mount, so it is not refused; mounts are told in
//! time that they must not accept any more (`Grant::limits`).
//!
//! Invariants: what is admitted is held until it is counted (`Admitted`); the ledger's answer is waited for with the
//! span of the write held, and collecting takes no span.

use crate::message::{Freeing, QuotaRequest, TargetReply, TargetRequest};
use crate::worker::Worker;
use crate::worker::request::RequestCx;
use crate::zone_target::Target;
use crate::zone_target::gate::Hold;
use crate::zone_target::quota::Admitted;
use amphi_env::{Env, timeout};
use amphi_meta::Part;
use amphi_quota::{Admission, Answer, Need, Standing};
use amphi_types::item::Txn;
use amphi_types::{
    Account, AccountKind, AccountView, Amount, ByteRange, Caps, Errno, Ino, Limits, Nearness, ObjectId, Owner, Result,
    TargetId,
};
use amphi_wire::{Cover, Make, Reply, Request};
use amphi_zone::Order;
use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// The target that has the ledger.
const LEDGER: TargetId = TargetId(0);
/// Pause before it is looked again whether requests that were under way have left something.
const AGAIN: Duration = Duration::from_millis(1);
/// How often a request asks for more of a limit: others may be quicker each time.
const ASKS_MAX: u32 = 1000;
/// Pause before more of a limit is asked for ahead of need again.
const AHEAD_EVERY: Duration = Duration::from_millis(20);
/// Pause before target 0 is asked again whether anything is limited, if it could not be reached.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How often it is looked who uses more than its soft limit.
const SOFT_EVERY: Duration = Duration::from_secs(30);
/// How long whoever sets limits waits for targets that do not answer. They are told when they are back.
const TOLD_WITHIN: Duration = Duration::from_secs(3);
/// How long a question for all accounts waits for owners that a target is asking for.
const WHOLE_WITHIN: Duration = Duration::from_secs(10);
/// How long a target that does not answer is waited for before what is known of it counts.
const COLLECT_WITHIN: Duration = Duration::from_secs(1);
/// How long a refusal waits for files that are being removed.
const FREED_WITHIN: Duration = Duration::from_secs(5);
/// How long a refusal waits for the close of a file that has no name any more.
const CLOSED_WITHIN: Duration = Duration::from_millis(100);
/// Pause before it is looked again what they have left.
const FREED_LOOK: Duration = Duration::from_millis(5);
/// Most inodes in one question for owners, and most accounts in one answer.
const PAGE: usize = 1000;

fn pool<E: Env>(worker: &Worker<E>) -> impl Iterator<Item = TargetId> + use<E> {
    (0..worker.pool()).map(TargetId)
}

/// Seconds since the epoch.
fn now_s<E: Env>(worker: &Worker<E>) -> u64 {
    u64::try_from(worker.env.wall().sec).unwrap_or(0)
}

/// Learns from target 0 whether anything is limited, however long that takes.
pub fn learn_limits<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>) {
    let (worker, target) = (worker.clone(), Rc::downgrade(target));
    worker.env.clone().spawn(async move {
        while !worker.is_stopped() {
            let Some(here) = target.upgrade() else { return };
            if here.is_closed() {
                return;
            }
            match worker.ask(LEDGER, TargetRequest::QuotaIsOn).await {
                Ok(TargetReply::Outcome(true)) => {
                    set_on(&worker, &here, true);
                    if here.id == LEDGER {
                        drop(here);
                        // It may have ended before all were told of what was set last.
                        tell_all(&worker, None).await;
                    }
                    return;
                }
                Ok(_) => return,
                Err(_) => {
                    drop(here);
                    worker.env.sleep(ASK_AGAIN).await;
                }
            }
        }
    });
}

fn set_on<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, on: bool) {
    if on {
        begin_counting(worker, target);
        target.quota.was_on.set(true);
    }
    target.quota.shares.borrow_mut().set_on(on);
}

/// Begins to count, and asks for the owners of stripes of files of other targets.
fn begin_counting<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>) {
    let mut foreign: BTreeMap<TargetId, BTreeSet<Ino>> = BTreeMap::new();
    for object in target.begin_counting() {
        foreign.entry(object.ino.target()).or_default().insert(object.ino);
    }
    if foreign.is_empty() {
        return;
    }
    let (worker, target) = (worker.clone(), target.clone());
    worker.env.clone().spawn(async move {
        for (home, inos) in foreign {
            let inos: Vec<Ino> = inos.into_iter().collect();
            for some in inos.chunks(PAGE) {
                let Ok(TargetReply::Owners(owners)) =
                    worker.insist_ask(home, TargetRequest::Owners(some.to_vec())).await
                else {
                    continue;
                };
                for (ino, owner) in some.iter().zip(owners) {
                    let is_known = target.data.borrow().owner_of(first_of(&target, *ino)).is_some();
                    // A change of the owner that came meanwhile is newer.
                    if let Some(owner) = owner.filter(|_| !is_known) {
                        target.set_owner(*ino, owner);
                    }
                }
            }
        }
        target.quota.is_whole.set(true);
    });
}

/// The first object of a file here.
fn first_of<E: Env>(target: &Target<E>, ino: Ino) -> ObjectId {
    let first = target.data.borrow().objects_of(ino).next().map(|(object, _)| object);
    first.unwrap_or(ObjectId { ino, stripe: 0 })
}

/// Answers a question about quotas.
pub async fn answer<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    question: QuotaRequest,
) -> Result<TargetReply> {
    match question {
        QuotaRequest::Share { account, from, used, wanted, ahead } => {
            let need = Need { used, wanted, collected: false, ahead, targets: u64::from(worker.pool()) };
            deal(worker, target, account, from, need).await
        }
        QuotaRequest::Collect { account, number } => {
            let used = target.used(account);
            let used = target.quota.shares.borrow_mut().give_back(account, number, used);
            Ok(TargetReply::Collected { used, freeing: freeing(target) })
        }
        QuotaRequest::Changed(account) => {
            target.quota.shares.borrow_mut().forget(account);
            // Of several changes the news may come in another order.
            let is_on = !matches!(worker.ask(LEDGER, TargetRequest::QuotaIsOn).await, Ok(TargetReply::Outcome(false)));
            set_on(worker, target, is_on);
            Ok(TargetReply::Done)
        }
        QuotaRequest::Used(account) => {
            whole(worker, target).await?;
            Ok(TargetReply::Used(target.used(account)))
        }
        QuotaRequest::Accounts(after) => {
            whole(worker, target).await?;
            Ok(accounts_behind(target, after))
        }
        QuotaRequest::Admit(owner, amount) => {
            let admitted = admit(worker, target, owner, amount, &|| Ok(())).await?;
            drop(admitted);
            Ok(TargetReply::Done)
        }
    }
}

/// `TargetRequest::Owners`.
pub fn owners<E: Env>(target: &Target<E>, inos: &[Ino]) -> TargetReply {
    let meta = target.meta.borrow();
    TargetReply::Owners(inos.iter().map(|ino| meta.charged(*ino).ok()).collect())
}

/// Counts, and waits until all owners are known.
async fn whole<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>) -> Result<()> {
    begin_counting(worker, target);
    let until_ns = worker.now_ns() + WHOLE_WITHIN.as_nanos() as u64;
    while !target.quota.is_whole.get() {
        if worker.now_ns() >= until_ns || worker.is_stopped() {
            return Err(Errno::Again);
        }
        worker.env.sleep(AGAIN).await;
    }
    Ok(())
}

fn accounts_behind<E: Env>(target: &Target<E>, after: Option<Account>) -> TargetReply {
    let (meta, data) = (target.meta.borrow(), target.data.borrow());
    let mut all: BTreeMap<Account, Amount> = BTreeMap::new();
    let behind = |account: &Account| after.is_none_or(|after| *account > after);
    for (account, blocks) in data.accounts().filter(|(account, _)| behind(account)).take(PAGE) {
        all.entry(account).or_default().blocks = blocks;
    }
    for (account, inodes) in meta.accounts().filter(|(account, _)| behind(account)).take(PAGE) {
        all.entry(account).or_default().inodes = inodes;
    }
    // Both have answered up to the last account of the shorter page, so what is given is complete.
    TargetReply::Accounts(all.into_iter().take(PAGE).map(|(account, _)| (account, target.used(account))).collect())
}

/// Whether what is used here may be less in a moment.
fn freeing<E: Env>(target: &Target<E>) -> Freeing {
    // Until all sessions of an earlier run have said what they have open, nothing without a name is removed.
    if !target.queues.destroying.borrow().is_empty() || !target.reclaim.is_over() {
        return Freeing::Yes;
    }
    let (meta, open) = (target.meta.borrow(), target.files.open.borrow());
    let has_no_name = |ino: Ino| meta.inode(ino).is_ok_and(|inode| inode.nlink == 0);
    if open.inodes().any(has_no_name) { Freeing::Perhaps } else { Freeing::No }
}

/// Whether a refusal that has waited since then waits on.
fn waits<E: Env>(worker: &Worker<E>, since_ns: u64, freeing: Freeing) -> bool {
    let within = match freeing {
        Freeing::No => return false,
        Freeing::Perhaps => CLOSED_WITHIN,
        Freeing::Yes => FREED_WITHIN,
    };
    worker.now_ns().saturating_sub(since_ns) < within.as_nanos() as u64
}

/// Target 0 gives a target more of a limit, and collects from the others what they do not use if it has to.
async fn deal<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    account: Account,
    from: TargetId,
    mut need: Need,
) -> Result<TargetReply> {
    // One at a time: what is collected for one is not given to another.
    let _turn = target.quota.dealing.take(vec![(account, Hold::Exclusive)]).await;
    let mut frees = Freeing::No;
    let since_ns = worker.now_ns();
    loop {
        let now_s = now_s(worker);
        let answer = target.quota.ledger.borrow_mut().ask(account, from, need, now_s);
        match answer {
            // Whoever has just removed a file expects to have its room.
            Answer::Is { refused: true, .. } if !need.ahead && waits(worker, since_ns, frees) => {
                worker.env.sleep(FREED_LOOK).await;
                (need.collected, frees) = (false, Freeing::No);
            }
            Answer::Is { number, share, refused } => return Ok(TargetReply::Share { number, share, refused }),
            Answer::Collect { number } => {
                let others = pool(worker).filter(|other| *other != from);
                let asked = others.map(async |other| {
                    let question = TargetRequest::Quota(QuotaRequest::Collect { account, number });
                    (other, timeout(&worker.env, COLLECT_WITHIN, worker.ask(other, question)).await)
                });
                for (other, reply) in join_all(asked).await {
                    // Of a target that cannot be reached, what is known of it counts.
                    if let Some(Ok(TargetReply::Collected { used, freeing })) = reply {
                        frees = frees.max(freeing);
                        target.quota.ledger.borrow_mut().collected(account, other, number, used);
                    }
                }
                need.collected = true;
            }
        }
    }
}

/// Asks target 0 for more of an account's limit. `is_ahead`: nobody waits for it, so less than that will do.
async fn ask_more<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    account: Account,
    wanted: Amount,
    is_ahead: bool,
) -> Result<()> {
    let used = {
        let used = target.used(account);
        target.quota.shares.borrow_mut().ask(account, used)
    };
    let question = QuotaRequest::Share { account, from: target.id, used, wanted, ahead: is_ahead };
    match worker.insist_ask(LEDGER, TargetRequest::Quota(question)).await? {
        TargetReply::Share { number, share, refused } => {
            target.quota.shares.borrow_mut().told(account, number, share, refused && !is_ahead, worker.now_ns());
            Ok(())
        }
        _ => Err(Errno::Proto),
    }
}

/// Finds room for `wanted` within the limits of an owner; `alive` is looked at whenever something was waited for.
/// `None`: nothing is limited.
///
/// Errors: `Quota`, and what `alive` says.
async fn admit<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    owner: Owner,
    wanted: Amount,
    alive: &impl Fn() -> Result<()>,
) -> Result<Option<Admitted<E>>> {
    let since_ns = worker.now_ns();
    let mut asked = 0;
    loop {
        if !target.quota.shares.borrow().is_on() || wanted.is_none() {
            return Ok(None);
        }
        let admission =
            target.quota.shares.borrow().admit(owner, wanted, worker.now_ns(), |account| target.used(account));
        match admission {
            Admission::Yes => return Ok(Some(target.hold_share(owner, wanted))),
            Admission::Ask(account) if asked < ASKS_MAX => {
                asked += 1;
                ask_more(worker, target, account, wanted, false).await?;
            }
            Admission::Ask(_) => return Err(Errno::Quota),
            Admission::No(account) => {
                // Requests under way may use less than they hold, or have been counted already; and whoever has just
                // removed a file expects to have its room.
                let is_idle = target.quota.shares.borrow().held(account).is_none();
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

impl<E: Env> RequestCx<E> {
    /// Whose an object is, as far as it is known here.
    fn owner_of(&self, object: ObjectId) -> Option<Owner> {
        if object.ino.target() == self.target.id {
            return self.target.meta.borrow().charged(object.ino).ok();
        }
        let known = self.target.data.borrow().owner_of(object);
        known.or_else(|| self.target.files.rights.borrow().get(object.ino, self.session).map(|right| right.owner))
    }

    /// Finds room within limits for the blocks that a write of `range` adds. A write with a grant needs none.
    ///
    /// Errors: `Quota`.
    pub(super) async fn admit_write(
        &self,
        object: ObjectId,
        range: ByteRange,
        cover: Cover,
    ) -> Result<Option<Admitted<E>>> {
        if cover == Cover::Granted || !self.target.quota.shares.borrow().is_on() {
            return Ok(None);
        }
        let blocks = self.target.data.borrow().charge_of_write(object, range);
        let Some(owner) = self.owner_of(object).filter(|_| blocks > 0) else { return Ok(None) };
        admit(&self.worker, &self.target, owner, Amount { blocks, inodes: 0 }, &|| self.alive()).await
    }

    /// Whether a write may add to what a limited account uses, and is not covered by a grant.
    pub(super) fn is_limited(&self, object: ObjectId, range: ByteRange, cover: Cover) -> bool {
        cover != Cover::Granted
            && self.target.quota.shares.borrow().is_on()
            && self.target.data.borrow().charge_of_write(object, range) > 0
    }

    /// Whether a write finds room within limits without waiting. If it does not, nothing is held.
    pub(super) fn admits_write_now(&self, object: ObjectId, range: ByteRange, cover: Cover) -> bool {
        let shares = self.target.quota.shares.borrow();
        if cover == Cover::Granted || !shares.is_on() {
            return true;
        }
        let blocks = self.target.data.borrow().charge_of_write(object, range);
        let Some(owner) = self.owner_of(object).filter(|_| blocks > 0) else { return true };
        let wanted = Amount { blocks, inodes: 0 };
        let used = |account| self.target.used(account);
        shares.admit(owner, wanted, self.worker.now_ns(), used) == Admission::Yes
    }

    /// Finds room within limits for the inode that `parts` make, at its own target.
    ///
    /// Errors: `Quota`.
    pub(super) async fn admit_inode(&self, parts: &[Part]) -> Result<Option<Admitted<E>>> {
        if !self.target.quota.shares.borrow().is_on() {
            return Ok(None);
        }
        let new = parts.iter().find_map(|part| match part {
            Part::MakeInode(new) => Some(new),
            _ => None,
        });
        let project = parts.iter().find_map(|part| match part {
            Part::SetProject { project, .. } => Some(*project),
            _ => None,
        });
        let Some(new) = new else { return Ok(None) };
        let owner = Owner { uid: new.uid, gid: new.gid, project: project.unwrap_or(0) };
        let one = Amount { blocks: 0, inodes: 1 };
        let home = new.ino.target();
        if home == self.target.id {
            return admit(&self.worker, &self.target, owner, one, &|| self.alive()).await;
        }
        self.worker.tell(home, TargetRequest::Quota(QuotaRequest::Admit(owner, one))).await?;
        Ok(None)
    }

    /// Finds room within the limits of those to whom the inode is given, unless the caller may give everything away.
    ///
    /// Errors: `Quota`.
    pub(super) async fn admit_gift(
        &self,
        ino: Ino,
        uid: Option<u32>,
        gid: Option<u32>,
        project: Option<u32>,
    ) -> Result<Option<Admitted<E>>> {
        if self.cred.may(Caps::CHOWN) || !self.target.quota.shares.borrow().is_on() {
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
        // Accounts that have it already need room for it once more. That is rather too strict than too lax.
        admit(&self.worker, &self.target, after, Amount { blocks, inodes: 1 }, &|| self.alive()).await
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

    /// The owner of an inode has changed: its objects go with it, here and elsewhere.
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
            let worker = self.worker.clone();
            self.worker.env.spawn(async move {
                // A target that is started again asks for owners by itself.
                let _ = worker.insist(other, TargetRequest::SetOwner(ino, owner)).await;
            });
        }
    }

    /// `Request::Charged`.
    pub(super) fn charged(&self, ino: Ino) -> Result<Reply> {
        self.target.meta.borrow().charged(ino).map(Reply::Owner)
    }

    /// `Request::Account`.
    pub(super) async fn account(&self, account: Account) -> Result<Reply> {
        let is_own = match account.kind {
            AccountKind::User => account.id == self.cred.uid,
            AccountKind::Group => self.cred.in_group(account.id),
            AccountKind::Project => true,
        };
        if !is_own {
            self.administrates()?;
        }
        self.is_ledger()?;
        let replies =
            pool(&self.worker).map(|target| self.worker.ask(target, TargetRequest::Quota(QuotaRequest::Used(account))));
        let (mut used, mut silent) = (Amount::default(), 0);
        for reply in join_all(replies).await {
            match reply {
                Ok(TargetReply::Used(part)) => used = used.plus(part),
                _ => silent += 1,
            }
        }
        Ok(Reply::Accounts { accounts: vec![self.view_of_account(account, used, silent)], more: false })
    }

    fn view_of_account(&self, account: Account, used: Amount, silent: u16) -> AccountView {
        let standing = self.target.quota.ledger.borrow().standing(account).unwrap_or_default();
        let Standing { limits, over_since_s } = standing;
        AccountView { account, used, limits, over_since_s, silent }
    }

    /// `Request::Accounts`.
    pub(super) async fn accounts(&self, after: Option<Account>) -> Result<Reply> {
        self.administrates()?;
        self.is_ledger()?;
        let replies = pool(&self.worker)
            .map(|target| self.worker.ask(target, TargetRequest::Quota(QuotaRequest::Accounts(after))));
        let mut all: BTreeMap<Account, Amount> = BTreeMap::new();
        let (mut silent, mut end) = (0, None::<Account>);
        for reply in join_all(replies).await {
            let Ok(TargetReply::Accounts(page)) = reply else {
                silent += 1;
                continue;
            };
            if page.len() == PAGE {
                // Behind the last account of a full page this target may have more.
                let last = page.last().map(|(account, _)| *account);
                end = [end, last].into_iter().flatten().min();
            }
            for (account, used) in page {
                let sum = all.entry(account).or_default();
                *sum = sum.plus(used);
            }
        }
        let limited: Vec<Account> = self.target.quota.ledger.borrow().all().map(|(account, _)| account).collect();
        for account in limited.into_iter().filter(|account| after.is_none_or(|after| *account > after)) {
            all.entry(account).or_default();
        }
        let fits = all.into_iter().filter(|(account, _)| end.is_none_or(|end| *account <= end));
        let accounts: Vec<AccountView> =
            fits.take(PAGE).map(|(account, used)| self.view_of_account(account, used, silent)).collect();
        let more = end.is_some() || accounts.len() == PAGE;
        Ok(Reply::Accounts { accounts, more })
    }

    /// `Request::SetLimits`.
    pub(super) async fn set_limits(&self, account: Account, limits: Limits) -> Result<Reply> {
        self.administrates()?;
        self.is_ledger()?;
        let is_odd = |soft: u64, hard: u64| soft != 0 && hard != 0 && soft > hard;
        let root = Account { kind: AccountKind::User, id: 0 };
        let none = Account { kind: AccountKind::Project, id: 0 };
        if account == root || account == none || is_odd(limits.soft.blocks, limits.hard.blocks) {
            return Err(Errno::Inval);
        }
        if is_odd(limits.soft.inodes, limits.hard.inodes) {
            return Err(Errno::Inval);
        }
        self.reserve(256).await?;
        let before = self.target.quota.ledger.borrow().standing(account).unwrap_or_default();
        let over_since_s = if before.limits.soft == limits.soft { before.over_since_s } else { 0 };
        self.keep_limits(account, Standing { limits, over_since_s }).await?;
        self.tell_all(Some(account)).await;
        watch_soft_limits(&self.worker, &self.target);
        Ok(Reply::Done)
    }

    async fn keep_limits(&self, account: Account, standing: Standing) -> Result<()> {
        let lsn = {
            let mut txn = Txn::default();
            self.target.keep_standing(account, Some(standing), &mut txn);
            self.target.quota.ledger.borrow_mut().set(account, standing);
            self.append(txn, Order::Plain, &Reply::Done, None)
        };
        self.target.zone.stable(lsn).await
    }

    /// All targets forget what they know of an account. Those that cannot be reached are told when they are back.
    async fn tell_all(&self, account: Option<Account>) {
        let told = tell_all(&self.worker, account);
        let _ = timeout(&self.worker.env, TOLD_WITHIN, told).await;
    }

    /// `Request::NewProject`.
    pub(super) async fn new_project(&self) -> Result<Reply> {
        self.administrates()?;
        self.is_ledger()?;
        let projects = Account { kind: AccountKind::Project, id: 0 };
        let mut last = self.target.quota.last_project.get();
        for target in pool(&self.worker) {
            // Whoever cannot be asked may have a tree of any number.
            let mut after = projects;
            loop {
                let question = TargetRequest::Quota(QuotaRequest::Accounts(Some(after)));
                let TargetReply::Accounts(page) = self.worker.ask(target, question).await? else {
                    return Err(Errno::Proto);
                };
                last = page.iter().map(|(account, _)| account.id).max().unwrap_or(0).max(last);
                match page.last() {
                    Some((account, _)) if page.len() == PAGE => after = *account,
                    _ => break,
                }
            }
        }
        let limited = self.target.quota.ledger.borrow().all().map(|(account, _)| account).collect::<Vec<_>>();
        let limited = limited.into_iter().filter(|account| account.kind == AccountKind::Project).map(|a| a.id).max();
        let next = last.max(limited.unwrap_or(0)).max(self.target.quota.last_project.get());
        let next = next.checked_add(1).ok_or(Errno::NoSpace)?;
        self.target.quota.last_project.set(next);
        Ok(Reply::Project(next))
    }

    fn administrates(&self) -> Result<()> {
        if self.cred.may(Caps::SYS_ADMIN) { Ok(()) } else { Err(Errno::Perm) }
    }

    fn is_ledger(&self) -> Result<()> {
        if self.target.id == LEDGER { Ok(()) } else { Err(Errno::Proto) }
    }

    /// How near the owner of what was written or opened is to a limit here. If he is near, more is asked for ahead of
    /// need.
    fn nearness(&self, object: ObjectId) -> Nearness {
        let Some(owner) = self.owner_of(object) else { return Nearness::Unlimited };
        // What mounts may accept until they hear of it, and may have on its way.
        let margin = 2 * Nearness::FAR_BLOCKS * self.target.sessions.count().max(1) as u64;
        let shares = self.target.quota.shares.borrow();
        let (nearness, account) = shares.nearness(owner, margin, |account| self.target.used(account));
        drop(shares);
        if let (Nearness::Near, Some(account)) = (nearness, account) {
            ask_ahead(&self.worker, &self.target, account, margin);
        }
        nearness
    }

    /// Says in an answer how near owners of what the request has opened or written are to a limit.
    pub(super) fn tell_nearness(&self, charged: &Charged, answer: &mut amphi_wire::Answer) {
        if !self.target.quota.was_on.get() {
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

/// Whose room a request uses.
pub(super) enum Charged {
    /// Nobody's.
    Nothing,
    /// That of the owner of what it makes or opens by name.
    Made,
    /// That of the owners of these objects.
    Objects(SmallVec<[ObjectId; 1]>),
}

fn first_object(ino: Ino) -> ObjectId {
    ObjectId { ino, stripe: 0 }
}

/// Whose room a request uses, as its answer has to say.
pub(super) fn charged_by(op: &Request) -> Charged {
    match op {
        Request::Make { make: Make::File { open: Some(_), .. }, .. } | Request::MakeTmp { .. } => Charged::Made,
        Request::Open { ino, access, .. } if access.write => Charged::Objects(smallvec![first_object(*ino)]),
        Request::Write { object, .. } | Request::Allocate { object, .. } => Charged::Objects(smallvec![*object]),
        Request::WriteBatch { parts } => Charged::Objects(parts.iter().map(|part| part.object).collect()),
        _ => Charged::Nothing,
    }
}

/// Asks for more of a limit without anybody waiting for it, once at a time.
fn ask_ahead<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, account: Account, blocks: u64) {
    if !target.quota.asking.borrow_mut().insert(account) {
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
            target.quota.asking.borrow_mut().remove(&account);
        }
    });
}

/// All targets forget what they know of an account, or of all. Returns when all have answered.
async fn tell_all<E: Env>(worker: &Rc<Worker<E>>, account: Option<Account>) {
    let (sender, mut receiver) = futures_channel::mpsc::unbounded::<()>();
    for other in pool(worker) {
        let (worker, sender) = (worker.clone(), sender.clone());
        worker.env.clone().spawn(async move {
            let _ = worker.insist(other, TargetRequest::Quota(QuotaRequest::Changed(account))).await;
            drop(sender);
        });
    }
    drop(sender);
    while futures_util::StreamExt::next(&mut receiver).await.is_some() {}
}

/// Looks from time to time who uses more than its soft limit, as long as there is one.
pub fn watch_soft_limits<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>) {
    if target.id != LEDGER || target.quota.watches.replace(true) {
        return;
    }
    let (worker, target) = (worker.clone(), Rc::downgrade(target));
    worker.env.clone().spawn(async move {
        loop {
            let Some(here) = target.upgrade() else { return };
            let soft: Vec<Account> = {
                let ledger = here.quota.ledger.borrow();
                ledger.all().filter(|(_, s)| !s.limits.soft.is_none()).map(|(account, _)| account).collect()
            };
            if soft.is_empty() || here.is_closed() || worker.is_stopped() {
                here.quota.watches.set(false);
                return;
            }
            let mut pause = SOFT_EVERY;
            for account in soft {
                look_at(&worker, &here, account).await;
                let standing = here.quota.ledger.borrow().standing(account).unwrap_or_default();
                if standing.over_since_s != 0 {
                    // Until its grace is over.
                    let left_s = (standing.over_since_s + standing.limits.grace_s).saturating_sub(now_s(&worker));
                    pause = if left_s == 0 { pause } else { pause.min(Duration::from_secs(left_s)) };
                }
            }
            drop(here);
            worker.env.sleep(pause).await;
        }
    });
}

async fn look_at<E: Env>(worker: &Rc<Worker<E>>, target: &Rc<Target<E>>, account: Account) {
    let replies = pool(worker).map(|other| worker.ask(other, TargetRequest::Quota(QuotaRequest::Used(account))));
    let mut used = Amount::default();
    for reply in join_all(replies).await {
        // What a target that cannot be reached holds is not known, so nothing is decided.
        let Ok(TargetReply::Used(part)) = reply else { return };
        used = used.plus(part);
    }
    let now_s = now_s(worker);
    let turn = target.quota.ledger.borrow_mut().note(account, used, now_s);
    if let Some(turn) = turn {
        let mut txn = Txn::default();
        target.keep_standing(account, Some(turn.standing), &mut txn);
        target.append(txn, Order::Plain);
        if turn.is_told {
            tell_all(worker, Some(account)).await;
        }
    }
}
