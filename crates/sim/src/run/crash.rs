//! The servers that crash together with the mounts at the end of an episode, and during which operation.
//!
//! Owns: the choice of victims. Does not own: the state that has to be there afterwards (`survive`).

use super::{End, Run};
use crate::cluster::SERVERS;
use amphi_env::Env;
use amphi_env::sim::CrashKind;
use std::time::Duration;

impl Run {
    /// Which servers crash at the end of an episode, and how. If there are several servers, in half of the cases each
    /// server crashes or continues separately.
    pub(super) fn victims(&self, end: End, kind: CrashKind) -> Vec<(usize, CrashKind)> {
        if end == End::MountCrash {
            return Vec::new();
        }
        let all = self.cluster.all_servers().into_iter();
        if self.cluster.shape.servers == 1 || self.roll(2) == 0 {
            return all.map(|at| (at, kind)).collect();
        }
        let certain = self.pick(self.cluster.shape.servers);
        // A server in the process of a mount crashes with it.
        let certainly = |at: usize| at == certain || (at == 0 && self.cluster.shape.embedded);
        let fate = |at: usize| match self.roll(3) {
            _ if certainly(at) => Some((at, kind)),
            0 => Some((at, kind)),
            1 => Some((at, CrashKind::Process)),
            _ => None,
        };
        all.filter_map(fate).collect()
    }

    pub(super) fn names_of(&self, victims: &[(usize, CrashKind)]) -> String {
        if self.cluster.shape.servers == 1 {
            return String::new();
        }
        let names: Vec<String> = victims.iter().map(|(at, kind)| format!("{} {kind:?}", SERVERS[*at])).collect();
        format!(" of {names:?}")
    }

    /// Crashes servers in the middle of a write or sync, if they have one soon.
    pub(super) async fn crash_in_writes(&self, victims: &[(usize, CrashKind)]) {
        for (at, kind) in victims {
            self.cluster.sim.crash_at(SERVERS[*at], 1 + self.roll(20), *kind);
        }
        let until = self.cluster.env.now() + Duration::from_millis(50);
        while victims.iter().any(|(at, _)| self.cluster.server_lives(*at)) && self.cluster.env.now() < until {
            self.cluster.env.sleep(Duration::from_micros(10)).await;
        }
        for (at, _) in victims {
            self.cluster.sim.clear_crash_at(SERVERS[*at]);
        }
    }
}
