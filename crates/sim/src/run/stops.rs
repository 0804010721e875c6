//! Mounts that stand still as if by SIGSTOP, in runs of contention.
//!
//! Owns: which mount, for how long, that others go on without it, and what becomes of it. Does not own: what its calls may return
//! (`shared::arena`).
//!
//! A short stop may not be noticed. After a long one the mount may have been ended: others went on without what it held, its calls
//! fail, it writes nothing of before any more, and shows nothing that is not so. Then it is mounted anew.

use super::{Checked, Mounts, Run, line};
use crate::cluster::{CALLBACK_DEADLINE, GRACE, SERVERS};
use amphi_env::Env;
use std::time::Duration;

/// After so long others go on, whatever the stopped mount held: a group lock is kept as long as its session.
const OTHERS_GO_ON: Duration = GRACE.saturating_add(CALLBACK_DEADLINE.saturating_mul(2));
/// Then they make calls within so long: faults do not come while a mount is stopped for long.
const CALLS_WITHIN: Duration = Duration::from_secs(20);

impl Run {
    /// The mount that is to be stopped for long in the coming episode, if any.
    pub(super) fn draw_victim(&self) -> Option<usize> {
        let first = usize::from(self.cluster.shape.embedded);
        let mounts = self.cluster.shape.mounts;
        let stops = self.area.borrow().arena.stops && self.plan.faults == super::Faults::All;
        (stops && mounts > 1 && self.roll(2) == 0).then(|| first + self.pick(mounts - first))
    }

    /// A stop that nobody may notice.
    pub(super) async fn stop_for_short(&self) {
        let node = self.cluster.mount_node(self.pick(self.cluster.shape.mounts));
        let long = self.roll(3) == 0;
        let us = if long { 100_000..CALLBACK_DEADLINE.as_micros() as u64 / 4 } else { 100..50_000 };
        let us = self.dice.borrow_mut().within(us);
        let links: Vec<_> = SERVERS[..self.cluster.shape.servers].iter().map(|server| (*server, node)).collect();
        let Some(long) = self.keep_apart(&links, Duration::from_micros(us)) else { return };
        self.note(format!("{node} is stopped"));
        self.cluster.sim.stop(node);
        self.cluster.env.sleep(long).await;
        self.cluster.sim.go_on(node);
        self.note(format!("{node} goes on"));
        self.progress().await;
    }

    /// Stops a mount for so long that it may be ended.
    ///
    /// Errors: others do not go on.
    pub(super) async fn stop_for_long(&self, victim: usize) -> Checked {
        let node = self.cluster.mount_node(victim);
        let long = Duration::from_millis(5_000 + self.roll(95_000));
        self.note(format!("{node} is stopped for {long:?}"));
        self.area.borrow_mut().arena.was_stopped = true;
        self.summary.borrow_mut().stopped += 1;
        self.cluster.sim.stop(node);
        let env = &self.cluster.env;
        let begin = env.now();
        let others = || (self.area.borrow().arena.others_calls, env.now());
        let mut last = others();
        while env.now().since(begin) < long {
            self.pause(1_000..200_000).await;
            self.complaints()?;
            let now = others();
            if now.0 != last.0 || env.now().since(begin) < OTHERS_GO_ON {
                last = now;
            } else if self.area.borrow().arena.others_working > 0 && now.1.since(last.1) > CALLS_WITHIN {
                return Err(line(format!(
                    "no call of another mount has ended for {CALLS_WITHIN:?} while {node} is stopped"
                )));
            }
        }
        self.cluster.sim.go_on(node);
        self.note(format!("{node} goes on"));
        Ok(())
    }

    /// Takes a mount that was stopped for long, whose tasks have ended, away, and mounts it anew.
    pub(super) async fn replace(&self, victim: usize, mut mounts: Mounts) -> Checked<Mounts> {
        self.count(&mounts).await;
        let mount = mounts.remove(victim);
        let gone = self.cluster.unmount(mount).await;
        self.note(format!("the mount that was stopped is taken away: {gone:?}"));
        mounts.insert(victim, self.cluster.mount_at(victim).await.map_err(line)?);
        self.area.borrow_mut().arena.settle_stopped();
        Ok(mounts)
    }
}
