//! Grants of space: how many blocks a session may have dirty in its cache without finding the target full.
//!
//! Owns: how much is granted to which session, and requesting grants back. Does not own: the grants and how writes use
//! them (`amphi_data`), how a mount counts its grant (the client).
//!
//! A session has to request a grant only once. Later its own writes renew its share. The blocks that a write takes are
//! granted again in the same record. So nothing changes and nothing is logged, as long as the share has not become
//! smaller. A share is a part of the blocks that are not granted, so it shrinks with the free space. If a request
//! without a grant finds no space, all sessions are asked to return blocks that they do not need, before the request is
//! refused.
//!
//! Invariants: a session learns of blocks only when the record that grants them survives a kill of the server. These
//! blocks are reserved for its writes, whatever others do, until it returns them or its session ends. A write with a
//! grant waits for no mount.
//!
//! The number: with one mount a share is an eighth of the free space, so a mount with 2.5 GiB of dirty bytes is not
//! affected by grants above 20 GiB of free space.

use crate::worker::request::RequestCx;
use crate::zone_target::Target;
use amphi_env::Env;
use amphi_types::item::Txn;
use amphi_types::{Result, SessionId};
use amphi_wire::{Answer, Cover, Grant, Push, Reply, Request};
use amphi_zone::Order;
use std::rc::Rc;
use std::time::Duration;

/// At any time, all sessions together are granted one part in this many of the space that is not granted.
const SHARE: u64 = 4;
/// A smaller grant is not worth a record, blocks.
const LEAST: u64 = 32;
/// How often the target checks whether all sessions that got the request have answered.
const LOOK: Duration = Duration::from_millis(1);
/// How much time mounts have to write back before they get the request again.
const AGAIN: Duration = Duration::from_millis(20);
/// How often mounts get the request before a write is refused.
pub(super) const CALLS_MAX: u32 = 16;

/// Adds to answers what the session has been granted, for requests that concern grants.
pub(super) fn teller<E: Env>(
    target: &Rc<Target<E>>,
    session: SessionId,
    op: &Request,
) -> impl Fn(Answer) -> Answer + use<E> {
    let (target, concerns) = (target.clone(), concerns(op));
    move |mut answer| {
        if concerns {
            tell(&target, session, &mut answer);
        }
        answer
    }
}

/// Returns whether the answer to a request reports the session's grant.
fn concerns(op: &Request) -> bool {
    match op {
        Request::Grant { .. } => true,
        Request::Write { cover, .. } => *cover != Cover::None,
        Request::WriteBatch { parts } => parts.iter().any(|part| part.cover != Cover::None),
        _ => false,
    }
}

/// Adds the present grant of the session to an answer.
fn tell<E: Env>(target: &Target<E>, session: SessionId, answer: &mut Answer) {
    let kept = target.zone.kept_lsn().0;
    let blocks = target.data.borrow().grants.told(session, kept).unwrap_or(0);
    answer.grant = Some(Box::new(Grant { blocks: Some(blocks), limits: Vec::new(), kept }));
}

impl<E: Env> Target<E> {
    /// The grant that each session may have at this moment, in blocks.
    fn grant_level(&self) -> u64 {
        let sessions = self.sessions.count() as u64;
        let below = self.free_blocks(false);
        let data = self.data.borrow();
        let room = data.ungranted_blocks().min(below.saturating_sub(data.grants.total()));
        Some(room / (SHARE * (sessions + 1))).filter(|level| *level >= LEAST).unwrap_or(0)
    }
}

impl<E: Env> RequestCx<E> {
    /// `Request::Grant`.
    pub(super) async fn grant(&self, give_back: Option<u64>) -> Result<Reply> {
        let target = &self.target;
        let mut txn = Txn::default();
        match give_back {
            Some(blocks) => {
                target.data.borrow_mut().grants.give_back(self.session, blocks, &mut txn);
                target.queues.grant_calls.answered(self.session);
            }
            None => self.top_up(Cover::Wanted),
        }
        // This comes after the record of the grant.
        let lsn = self.append(txn, Order::Plain, &Reply::Done, None);
        target.zone.kept(lsn).await?;
        Ok(Reply::Done)
    }

    /// The session whose grant a write uses.
    pub(super) fn holder(&self, cover: Cover) -> Option<SessionId> {
        (cover == Cover::Granted).then_some(self.session)
    }

    /// Grants a session with a cache the rest of its share, if that is much, in a record of its own.
    pub(super) fn top_up(&self, cover: Cover) {
        let target = &self.target;
        if cover == Cover::None || !target.has_session(self.session) {
            return;
        }
        let (level, kept) = (target.grant_level(), target.zone.kept_lsn().0);
        let mut txn = Txn::default();
        {
            let grants = &mut target.data.borrow_mut().grants;
            grants.level = level;
            grants.begin(self.session);
            let held = grants.held(self.session).unwrap_or(0);
            if held >= level.div_ceil(2) || !grants.is_settled(self.session, kept) {
                return;
            }
            assert!(held <= level, "a grant of {held} blocks is raised to {level}");
            grants.raise(self.session, level - held, &mut txn);
        }
        let lsn = target.append(txn, Order::Plain);
        target.data.borrow_mut().grants.raised_by(self.session, lsn.0);
    }

    /// Asks the sessions to return unused grants, and waits for their answers. Returns whether it pays to look for
    /// space again: blocks were returned, or are being written back and may be free the next time.
    pub(super) async fn call_grants_back(&self) -> bool {
        let target = &self.target;
        let (calls, now_ns) = (&target.queues.grant_calls, || self.worker.now_ns());
        let holders = || target.data.borrow().grants.holders();
        let before = target.data.borrow().grants.total();
        for session in calls.due(now_ns(), holders()) {
            self.worker.push(session, Push::GrantWanted { target: target.id });
        }
        while calls.are_awaited(now_ns()) {
            self.worker.env.sleep(LOOK).await;
        }
        if target.data.borrow().grants.total() < before {
            return true;
        }
        let may_help = calls.may_help(now_ns(), &holders());
        if may_help {
            self.worker.env.sleep(AGAIN).await;
        }
        may_help
    }
}
