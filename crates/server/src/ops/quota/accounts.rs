//! Accounts as users see them, and setting limits.
//!
//! Owns: these requests, which go to target 0. Does not own: dealing limits out (`ledger`).

use crate::message::{QuotaRequest, TargetReply, TargetRequest};
use crate::ops::quota::LEDGER;
use crate::ops::quota::counting::PAGE;
use crate::ops::quota::ledger::{pool, tell_all, watch_soft_limits};
use crate::worker::request::RequestCx;
use crate::zone_target::gate::Hold;
use amphi_env::{Env, timeout};
use amphi_quota::Standing;
use amphi_types::item::Txn;
use amphi_types::{Account, AccountKind, AccountView, Amount, Caps, Errno, Limits, Result};
use amphi_wire::Reply;
use amphi_zone::Order;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long setting a limit waits for targets that do not answer. Such targets get the limit when they are reachable
/// again.
const TOLD_WITHIN: Duration = Duration::from_secs(3);

impl<E: Env> RequestCx<E> {
    /// `Request::Account`.
    pub(in crate::ops) async fn account(&self, account: Account) -> Result<Reply> {
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
        let standing = self.target.counts.quota.ledger.borrow().standing(account).unwrap_or_default();
        let Standing { limits, over_since_s } = standing;
        AccountView { account, used, limits, over_since_s, silent }
    }

    /// `Request::Accounts`.
    pub(in crate::ops) async fn accounts(&self, after: Option<Account>) -> Result<Reply> {
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
                // This target may have more accounts behind the last one of a full page.
                let last = page.last().map(|(account, _)| *account);
                end = [end, last].into_iter().flatten().min();
            }
            for (account, used) in page {
                let sum = all.entry(account).or_default();
                *sum = sum.plus(used);
            }
        }
        let limited: Vec<Account> =
            self.target.counts.quota.ledger.borrow().all().map(|(account, _)| account).collect();
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
    pub(in crate::ops) async fn set_limits(&self, account: Account, limits: Limits) -> Result<Reply> {
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
        // What targets return while a limit is divided belongs to that limit.
        let turn = self.target.counts.quota.dealing.take(vec![(account, Hold::Exclusive)]).await;
        let before = self.target.counts.quota.ledger.borrow().standing(account).unwrap_or_default();
        let over_since_s = if before.limits.soft == limits.soft { before.over_since_s } else { 0 };
        self.keep_limits(account, Standing { limits, over_since_s }).await?;
        drop(turn);
        self.tell_all(Some(account)).await;
        watch_soft_limits(&self.worker, &self.target);
        Ok(Reply::Done)
    }

    async fn keep_limits(&self, account: Account, standing: Standing) -> Result<()> {
        let lsn = {
            let mut txn = Txn::default();
            self.target.keep_standing(account, Some(standing), &mut txn);
            self.target.counts.quota.ledger.borrow_mut().set(account, standing);
            self.append(txn, Order::Plain, &Reply::Done, None)
        };
        self.target.zone.stable(lsn).await
    }

    /// Makes all targets drop their knowledge of an account. Targets that cannot be reached do so when they are back.
    async fn tell_all(&self, account: Option<Account>) {
        let told = tell_all(&self.worker, &self.target, account);
        let _ = timeout(&self.worker.env, TOLD_WITHIN, told).await;
    }

    /// `Request::NewProject`.
    pub(in crate::ops) async fn new_project(&self) -> Result<Reply> {
        self.administrates()?;
        self.is_ledger()?;
        let projects = Account { kind: AccountKind::Project, id: 0 };
        let mut last = self.target.counts.quota.last_project.get();
        for target in pool(&self.worker) {
            // A target that cannot be asked may have a tree of any number.
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
        let limited = self.target.counts.quota.ledger.borrow().all().map(|(account, _)| account).collect::<Vec<_>>();
        let limited = limited.into_iter().filter(|account| account.kind == AccountKind::Project).map(|a| a.id).max();
        // A key that is bound to a tree which no longer exists must not become bound to another tree.
        let keys = self.target.place.keys.borrow();
        let bound = keys.iter().flat_map(|r| &r.keys).filter_map(|e| Some(e.subtree.as_ref()?.project)).max();
        drop(keys);
        let given = self.target.counts.quota.last_project.get();
        let next = last.max(limited.unwrap_or(0)).max(bound.unwrap_or(0)).max(given);
        let next = next.checked_add(1).ok_or(Errno::NoSpace)?;
        self.target.counts.quota.last_project.set(next);
        Ok(Reply::Project(next))
    }

    fn administrates(&self) -> Result<()> {
        if self.cred.may(Caps::SYS_ADMIN) { Ok(()) } else { Err(Errno::Perm) }
    }

    fn is_ledger(&self) -> Result<()> {
        if self.target.id == LEDGER { Ok(()) } else { Err(Errno::Proto) }
    }
}
