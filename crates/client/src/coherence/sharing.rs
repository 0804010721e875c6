//! Sole and shared mode: which of the two caching modes is in force, and the switch between them.
//!
//! Owns: the switch, and the operations and timeouts that began in sole mode. Does not own: the table for that
//! (`tables::coherence::sharing`), what is cached in either mode (`tokens`, `cache`, the front end).
//!
//! In sole mode a mount caches without tokens and locks, and its front end may cache names and attributes for a fixed
//! time. In shared mode it caches only under tokens and locks (docs/locking/sharing.md). The master alone decides which
//! mode is in force and whether the session continues.
//!
//! Invariants: the client reports that the switch to shared mode is complete only after every operation that began in
//! sole mode has ended and every timeout that was given in sole mode has passed. An answer that was requested in one
//! mode is not cached in the other. In shared mode, rights that a server granted are used only while messages from that
//! server arrive (`lease`).

use crate::coherence::front_pages;
use crate::mount::Mount;
use crate::tables::coherence::leases::LEASE_NS;
use amphi_env::Env;
use amphi_types::{Cred, TargetId};
use amphi_wire::{Lane, Request, Welcome};
use futures_util::future::{Either, select};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// If the master sends nothing for this time (two of its pings), a mount in sole mode with several servers assumes that
/// other mounts exist. Servers count on it (`cluster/sessions` in `crates/server`).
pub(crate) const CAUTION_NS: u64 = 10_000_000_000;
const _: () = assert!(CAUTION_NS < LEASE_NS, "a mount is cautious before its leases end");
/// Added to a front end's timeouts: how late its clock may be.
const LEND_MARGIN: Duration = Duration::from_millis(20);
/// How often the client reports to the server that it is still working on a switch. The server considers a mount
/// unresponsive if it sends no such report for longer.
const KEPT: Duration = Duration::from_secs(1);
/// How often the switch checks whether operations and timeouts of sole mode have ended.
const LOOK: Duration = Duration::from_millis(1);

/// An operation that was begun, or a timeout that was given, in sole mode.
pub(crate) struct Begun(Arc<Mount>);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.coherence.sharing.under_way.fetch_sub(1, SeqCst);
    }
}

/// The timeout that an answer to a front end carries. It is dropped when the front end has written the answer.
pub struct Lending {
    begun: Begun,
    life: Duration,
}

impl Lending {
    /// The timeout.
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

/// The caching mode and the count of changes of directories, which a front end notes before it sends a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    rule: u64,
    directories: u64,
}

/// Registers an operation if the mount is in sole mode. The switch to shared mode waits for its end.
pub(crate) fn begin(mount: &Arc<Mount>) -> Option<Begun> {
    if !mount.coherence.sharing.is_alone() {
        return None;
    }
    mount.coherence.sharing.under_way.fetch_add(1, SeqCst);
    let begun = Begun(mount.clone());
    // The switch sets the mode first and reads the count afterwards.
    (mount.coherence.sharing.rule.load(SeqCst) & 1 == 1).then_some(begun)
}

/// The present mode, for a front end that is about to send a request.
pub(crate) fn rule_for_front(mount: &Mount) -> Rule {
    Rule { rule: mount.coherence.sharing.rule(), directories: crate::coherence::directories::events(mount) }
}

/// Returns whether no directory was changed since `rule` was noted, so that attributes of directories in an answer may
/// get a timeout. Attributes from before a change would hide what the answer to the change has shown.
pub(crate) fn knows_directories(mount: &Mount, rule: Rule) -> bool {
    crate::coherence::directories::events(mount) == rule.directories
}

/// The timeout that a front end may give to the answer to a request that it sent under `rule`.
pub(crate) fn lend(mount: &Arc<Mount>, Rule { rule, .. }: Rule) -> Option<Lending> {
    let life = mount.cluster.token_life();
    if rule & 1 == 0 || life.is_zero() {
        return None;
    }
    let begun = begin(mount)?;
    (mount.coherence.sharing.rule() == rule).then_some(Lending { begun, life })
}

/// This mount is in sole mode and has received nothing from the master for `CAUTION_NS`, but still reaches other
/// servers. The master may be admitting other mounts. From now on this mount takes locks, gives no timeouts and trusts
/// nothing cached.
pub(crate) fn be_cautious(mount: &Mount) {
    let sharing = &mount.coherence.sharing;
    if sharing.is_alone() && !sharing.is_lost() {
        tracing::info!("the master is silent: other mounts may have come");
        sharing.cautious.store(true, SeqCst);
        sharing.settled.store(false, SeqCst);
        sharing.set(false);
        mount.files.all().iter().for_each(|file| file.size.turn());
        sharing.ring();
    }
}

/// Called when the master has answered a `Hello`, the first one or a later one.
pub(crate) fn welcomed(mount: &Mount, welcome: &Welcome) {
    let sharing = &mount.coherence.sharing;
    if sharing.cautious.swap(false, SeqCst) && welcome.alone {
        // Whatever was cached before this welcome is requested anew.
        sharing.set(true);
        mount.files.all().iter().for_each(|file| file.size.turn());
        unlock_pages(mount);
    }
    let boot = sharing.boot.swap(welcome.boot, SeqCst);
    // A server that was restarted counts mounts from the beginning, also for sessions that it had before.
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

/// Returns whether a session that the server has ended may continue as if it had not been ended: the mount was in sole
/// mode, and no other mount has existed since.
pub(crate) fn may_go_on(mount: &Mount) -> bool {
    mount.coherence.sharing.undisturbed.load(SeqCst)
}

/// `Push::Company`: switches to the mode at once. Returns whether the push has to be answered by `settle`.
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
            file.size.turn();
            if !alone {
                file.times_told();
            }
        }
        if alone {
            unlock_pages(mount);
        }
        sharing.ring();
    }
    true
}

/// In sole mode the return of a lock drops no pages of files, so files need not stay in the table for that.
fn unlock_pages(mount: &Mount) {
    for file in mount.files.all() {
        file.pages.unlock();
        mount.files.reap(&file);
    }
}

/// Waits until nothing is used any more that was cached in the old mode, and answers the push then. Meanwhile it sends
/// `CompanyKept` to report that it is at work.
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

/// Returns false if the mode has changed once more, or the session is over.
async fn until_settled<E: Env>(mount: &Arc<Mount>, change: u64, env: &E) -> bool {
    let sharing = &mount.coherence.sharing;
    if sharing.is_alone() || sharing.settled.load(SeqCst) {
        return true;
    }
    loop {
        if sharing.change.load(SeqCst) != change || sharing.is_lost() {
            return false;
        }
        // The invalidation of names that were cached in an earlier time of shared mode may still be under way.
        if sharing.under_way.load(SeqCst) > 0 || mount.coherence.tokens.names.is_any_going() {
            env.sleep(LOOK).await;
            continue;
        }
        // This is read after the count of operations under way: an operation that gives a timeout records its end
        // before it leaves the count.
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
