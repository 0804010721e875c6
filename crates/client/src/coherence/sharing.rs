//! Alone, or in company of other mounts: which of the two rules for caching is in force.
//!
//! Owns: the switch from one rule to the other, what is begun or lent to a front end while alone. Does not own: the
//! table of that (`tables::coherence::sharing`), what is cached under either rule (`tokens`, `cache`, the front end).
//!
//! A mount that is alone caches without asking, and its front end may keep names and attributes for a while. With
//! company it caches what tokens and locks back, and lends nothing on. Invariants: the server is told that the switch
//! to company is done after everything begun alone has ended and everything lent alone has expired; what was asked for
//! under one rule is not lent under another. In company, what a server granted counts as long as that server is heard
//! (`lease`). The master alone says which rule is in force and whether the session goes on.

use crate::coherence::front_pages;
use crate::mount::Mount;
use amphi_env::Env;
use amphi_types::{Cred, TargetId};
use amphi_wire::{Lane, Request, Welcome};
use futures_util::future::{Either, select};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Silence of the master after which a lone mount of several servers takes it that others have come: two of its pings.
/// Servers count on it (`crates/server`, `front::sharing`).
pub(crate) const CAUTION_NS: u64 = 10_000_000_000;
/// Added to what a front end may keep: how late its clock may be.
const LEND_MARGIN: Duration = Duration::from_millis(20);
/// How often the server hears that a switch is being worked on: it takes who is silent for longer for deaf.
const KEPT: Duration = Duration::from_secs(1);
/// How often the switch looks whether what was begun alone has ended.
const LOOK: Duration = Duration::from_millis(1);

/// An operation or loan that was begun alone.
pub(crate) struct Begun(Arc<Mount>);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.coherence.sharing.under_way.fetch_sub(1, SeqCst);
    }
}

/// What a front end may keep of an answer: to be dropped once the answer has been given.
pub struct Lending {
    begun: Begun,
    life: Duration,
}

impl Lending {
    /// For how long.
    pub fn life(&self) -> Duration {
        self.life
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        let mount = &self.begun.0;
        let until = mount.clock.now_ns() + self.life.as_nanos() as u64;
        mount.coherence.sharing.lent_until_ns.fetch_max(until, SeqCst);
    }
}

/// A rule, as a front end notes it before it asks, and how much has happened to directories by then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    rule: u64,
    directories: u64,
}

/// Enters an operation, if the mount is alone: the switch to company waits for its end.
pub(crate) fn begin(mount: &Arc<Mount>) -> Option<Begun> {
    if !mount.coherence.sharing.is_alone() {
        return None;
    }
    mount.coherence.sharing.under_way.fetch_add(1, SeqCst);
    let begun = Begun(mount.clone());
    // The switch sets the rule, then looks at the count.
    (mount.coherence.sharing.rule.load(SeqCst) & 1 == 1).then_some(begun)
}

/// For a front end that is about to ask.
pub(crate) fn rule_for_front(mount: &Mount) -> Rule {
    Rule { rule: mount.coherence.sharing.rule(), directories: crate::coherence::directories::events(mount) }
}

/// Whether no directory has been changed since `rule` was noted: its attributes, as an answer shows them, may be kept.
/// Those from before a change would hide what the change has told.
pub(crate) fn knows_directories(mount: &Mount, rule: Rule) -> bool {
    crate::coherence::directories::events(mount) == rule.directories
}

/// What a front end may keep of an answer to a question that it asked under `rule`.
pub(crate) fn lend(mount: &Arc<Mount>, Rule { rule, .. }: Rule) -> Option<Lending> {
    let life = mount.cluster.token_life();
    if rule & 1 == 0 || life.is_zero() {
        return None;
    }
    let begun = begin(mount)?;
    (mount.coherence.sharing.rule() == rule).then_some(Lending { begun, life })
}

/// A lone mount has not heard the master for `CAUTION_NS`, which may let others in meanwhile, while it still reaches
/// other servers: from now on it takes locks, and lends and trusts nothing.
pub(crate) fn be_cautious(mount: &Mount) {
    let sharing = &mount.coherence.sharing;
    if sharing.is_alone() && !sharing.is_lost() {
        tracing::info!("the master is silent: other mounts may have come");
        sharing.cautious.store(true, SeqCst);
        sharing.settled.store(false, SeqCst);
        sharing.set(false);
        mount.files.all().iter().for_each(|file| file.turn());
    }
}

/// The master says hello, at first or again.
pub(crate) fn welcomed(mount: &Mount, welcome: &Welcome) {
    let sharing = &mount.coherence.sharing;
    if sharing.cautious.swap(false, SeqCst) && welcome.alone {
        // Whatever was cached before is asked for anew.
        sharing.set(true);
        mount.files.all().iter().for_each(|file| file.turn());
        unlock_pages(mount);
    }
    let boot = sharing.boot.swap(welcome.boot, SeqCst);
    // Of a server that was started anew the count begins anew, also for who is known to it.
    let before = sharing.mounts.swap(welcome.mounts, SeqCst);
    if boot == 0 || !welcome.resumed {
        let same = boot == welcome.boot && welcome.mounts == before + 1;
        sharing.undisturbed.store(same && welcome.alone && sharing.is_alone(), SeqCst);
    }
    if boot == 0 && !welcome.alone {
        // Nothing has been cached yet.
        sharing.set(false);
        sharing.settled.store(true, SeqCst);
    }
}

/// Whether a session that the server has ended may go on as if it had not: it was alone, and nobody else has come
/// since.
pub(crate) fn may_go_on(mount: &Mount) -> bool {
    mount.coherence.sharing.undisturbed.load(SeqCst)
}

/// `Push::Company`: takes the rule over at once. Returns whether it has to be answered by `settle`.
pub(crate) fn told(mount: &Arc<Mount>, change: u64, alone: bool) -> bool {
    let sharing = &mount.coherence.sharing;
    let before = sharing.change.fetch_max(change, SeqCst);
    if change < before {
        return false;
    }
    sharing.cautious.store(false, SeqCst);
    if sharing.is_alone() != alone {
        tracing::info!(alone, "{}", if alone { "no other mount is left" } else { "other mounts have come" });
        sharing.settled.store(false, SeqCst);
        sharing.set(alone);
        crate::coherence::tokens::lose_all(mount);
        for file in mount.files.all() {
            file.turn();
            if !alone {
                file.times_told();
            }
        }
        if alone {
            unlock_pages(mount);
        }
    }
    true
}

/// This mount is alone: no lock that goes asks for pages of files any more, and these need not be known for that.
fn unlock_pages(mount: &Mount) {
    for file in mount.files.all() {
        file.pages.unlock();
        mount.files.reap(&file);
    }
}

/// Waits until nothing is used any more that was cached under the old rule, and says so; meanwhile it says that it is
/// at it.
pub(crate) async fn settle<E: Env>(mount: Arc<Mount>, change: u64, env: E) {
    let settled = {
        let still = async {
            loop {
                env.sleep(KEPT).await;
                let op = Request::CompanyKept { change };
                drop(mount.send(Lane::Answer, TargetId(0), &Cred::root(), op, None, 0));
            }
        };
        match select(pin!(until_settled(&mount, change, &env)), pin!(still)).await {
            Either::Left((settled, _)) => settled,
            Either::Right(((), _)) => false,
        }
    };
    if !settled {
        return;
    }
    let known = mount.send(Lane::Answer, TargetId(0), &Cred::root(), Request::CompanyKnown { change }, None, 0);
    if let Err(e) = known.await {
        tracing::debug!("the server does not know that this mount knows of others: {e}");
    }
}

/// False: the rule has changed once more, or the session is over.
async fn until_settled<E: Env>(mount: &Arc<Mount>, change: u64, env: &E) -> bool {
    let sharing = &mount.coherence.sharing;
    if sharing.is_alone() || sharing.settled.load(SeqCst) {
        return true;
    }
    loop {
        if sharing.change.load(SeqCst) != change || sharing.is_lost() {
            return false;
        }
        // Names of the time in company before this one may still be on their way back.
        if sharing.under_way.load(SeqCst) > 0 || mount.coherence.tokens.names.is_any_going() {
            env.sleep(LOOK).await;
            continue;
        }
        // Behind that look: a loan says until when it is before it counts as ended.
        let lent_until = sharing.lent_until_ns.load(SeqCst);
        let left = lent_until.saturating_add(LEND_MARGIN.as_nanos() as u64);
        let now = mount.clock.now_ns();
        if lent_until > 0 && now < left {
            env.sleep(Duration::from_nanos(left - now)).await;
        } else {
            break;
        }
    }
    front_pages::drop_open_pages(mount).await;
    if sharing.change.load(SeqCst) != change {
        return false;
    }
    sharing.settled.store(true, SeqCst);
    true
}
