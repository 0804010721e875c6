//! Mounts that stop as if by SIGSTOP, and in runs of contention one mount that is killed while the others live.
//!
//! Owns: which mount, for how long, that others continue without it, and its fate. Does not own: the valid results of
//! its calls (`shared::arena`).
//!
//! A short stop may have no effect. After a long stop the mount may have been ended: then other mounts continued
//! without its locks, its calls fail, and it neither writes nor shows old data. Then it is mounted again. A killed
//! mount is gone at once, but its session stays until servers end it: until then, and no longer, other mounts wait for
//! its locks. Each of its calls that the kill cut off happens once or not at all, until its session has ended. The
//! mount is mounted again at once, or when the other programs are idle.

use super::{Checked, Faults, LIFE, Mounts, Run, line};
use crate::cluster::{CALLBACK_DEADLINE, GRACE, SERVERS};
use amphi_env::Env;
use amphi_env::sim::CrashKind;
use std::time::Duration;

/// After this time other mounts continue, whatever the stopped mount held: a group lock is kept as long as its session.
const OTHERS_GO_ON: Duration = GRACE.saturating_add(CALLBACK_DEADLINE.saturating_mul(2));
/// Then they make calls within this time: no faults occur while a mount is stopped for long.
const CALLS_WITHIN: Duration = Duration::from_secs(20);

/// The fate of a mount while the others continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The mount stops for a long time.
    Stop,
    /// The process of the mount ends.
    Kill,
}

/// The mount that is stopped or killed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Victim {
    pub(super) mount: usize,
    fate: Fate,
}

impl Run {
    /// The mount that is to be stopped for long or killed in the coming episode, if any.
    pub(super) fn draw_victim(&self) -> Option<Victim> {
        let first = usize::from(self.cluster.shape.embedded);
        let mounts = self.cluster.shape.mounts;
        let may = self.area.borrow().arena.stops && self.plan.faults >= Faults::Crashes;
        if !may || mounts == 1 || self.roll(4) == 0 {
            return None;
        }
        let fate = if self.plan.faults == Faults::All && self.roll(2) == 0 { Fate::Stop } else { Fate::Kill };
        Some(Victim { mount: first + self.pick(mounts - first), fate })
    }

    /// Stops or kills the mount while the others continue.
    ///
    /// Errors: others do not continue.
    pub(super) async fn meets_fate(&self, victim: Victim, mounts: &mut Mounts) -> Checked {
        match victim.fate {
            Fate::Stop => self.stop_for_long(victim.mount).await,
            Fate::Kill => self.kill(victim.mount, mounts).await,
        }
    }

    /// Kills a mount. Half of the time it is mounted anew at once, and not used.
    async fn kill(&self, victim: usize, mounts: &mut Mounts) -> Checked {
        let node = self.cluster.mount_node(victim);
        self.note(format!("{node} is killed"));
        self.summary.borrow_mut().killed += 1;
        self.cluster.sim.crash(node, CrashKind::Process);
        self.cluster.has_gone(&mounts[victim]);
        {
            // The tasks of the mount have ended where they were.
            let mut area = self.area.borrow_mut();
            area.tasks.working = area.arena.others_working;
        }
        if self.roll(2) == 0 {
            mounts[victim] = self.cluster.mount_at(victim).await.map_err(line)?;
            self.note(format!("{node} is mounted again"));
        }
        Ok(())
    }

    /// A stop that no program may notice, of a mount from number `first` on.
    pub(super) async fn stop_for_short(&self, first: usize) {
        let node = self.cluster.mount_node(first + self.pick(self.cluster.shape.mounts - first));
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

    /// Stops a mount for so long that its session may be ended.
    ///
    /// Errors: others do not continue.
    async fn stop_for_long(&self, victim: usize) -> Checked {
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

    /// Removes a mount that was stopped for long or killed, whose tasks have ended, and mounts it again, if that has
    /// not been done.
    pub(super) async fn replace(&self, victim: Victim, mut mounts: Mounts) -> Checked<Mounts> {
        let at = victim.mount;
        if victim.fate == Fate::Stop {
            self.count(&mounts[at..at + 1]).await;
            let gone = self.cluster.unmount(mounts.remove(at)).await;
            self.note(format!("the mount that was stopped is taken away: {gone:?}"));
            mounts.insert(at, self.cluster.mount_at(at).await.map_err(line)?);
        } else {
            if !self.cluster.sim.alive(self.cluster.mount_node(at)) {
                mounts[at] = self.cluster.mount_at(at).await.map_err(line)?;
            }
            // Requests of the mount may wait for locks of others, until its session has ended.
            self.cluster.env.sleep(GRACE + LIFE).await;
        }
        self.area.borrow_mut().arena.settle_victim();
        Ok(mounts)
    }
}
