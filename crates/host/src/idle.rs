//! The behaviour of idle cores of this machine: sleep at once, or poll for a while first.
//!
//! In a virtual machine a sleeping core takes 30 to 40 us to wake up, and a call through a mount wakes two cores: the
//! reader's and the program's own. Polling of our own keeps the first awake, but only the kernel can keep the second,
//! whose program waits for its answer. Owns: detecting this, and the advice about it. Does not own: our own polling
//! (`amphi_env`, `amphi_fuse`).

use std::fs::read_to_string;
use std::path::Path;

/// How the kernel's governor for virtual machines is set, ns.
const HALT_POLL: &str = "module/haltpoll/parameters/guest_halt_poll_ns";
/// The kernel's default, ns.
const USUAL_NS: u64 = 200_000;
/// Polling for less than a core takes to wake buys little, ns.
const LITTLE_NS: u64 = 40_000;

/// The behaviour of idle cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Idle cores poll for this many ns at most, then sleep.
    Poll(u64),
    /// The kernel's governor of this name decides.
    Governor(String),
    /// It is unknown what idle cores do.
    Unknown,
}

impl Idle {
    /// Finds out the behaviour of this machine.
    pub fn look() -> Idle {
        Idle::look_in(Path::new("/sys"))
    }

    fn look_in(sys: &Path) -> Idle {
        let text = |path: &str| read_to_string(sys.join(path)).ok().map(|t| t.trim().to_string());
        match text("devices/system/cpu/cpuidle/current_governor") {
            Some(name) if name == "haltpoll" => match text(HALT_POLL).and_then(|t| t.parse().ok()) {
                Some(ns) => Idle::Poll(ns),
                None => Idle::Governor(name),
            },
            Some(name) if !name.is_empty() && name != "none" => Idle::Governor(name),
            _ => Idle::Unknown,
        }
    }

    /// A description of a few words.
    pub fn describe(&self) -> String {
        match self {
            Idle::Poll(0) => "idle cores sleep at once".into(),
            Idle::Poll(ns) => format!("idle cores poll for {} us", ns / 1000),
            Idle::Governor(name) => format!("idle governor {name}"),
            Idle::Unknown => "idle governor unknown".into(),
        }
    }

    /// Advice by which small calls become faster, if there is any.
    pub fn advice(&self) -> Option<String> {
        match self {
            Idle::Poll(ns) if *ns < LITTLE_NS => Some(format!(
                "{} on this virtual machine, so that small calls take two to four times as long; the kernel's usual value: \
                 echo {USUAL_NS} > /sys/{HALT_POLL} (docs/OPERATIONS.md, Virtual machines)",
                self.describe()
            )),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    /// Goal: a user whose cores sleep at once gets the advice, nobody else. Method: made-up settings of the kernel.
    #[test]
    fn advice_where_it_helps() {
        let sys = tempfile::tempdir().unwrap();
        let governor = "devices/system/cpu/cpuidle/current_governor";
        let set = |path: &str, text: &str| {
            let path = sys.path().join(path);
            create_dir_all(path.parent().unwrap()).unwrap();
            write(path, text).unwrap();
        };
        assert_eq!(Idle::look_in(sys.path()), Idle::Unknown);
        set(governor, "menu\n");
        assert_eq!(Idle::look_in(sys.path()), Idle::Governor("menu".into()));
        set(governor, "haltpoll\n");
        assert_eq!(Idle::look_in(sys.path()), Idle::Governor("haltpoll".into()), "an old kernel");
        for (ns, told) in [("0\n", true), ("39999\n", true), ("200000\n", false)] {
            set(HALT_POLL, ns);
            let idle = Idle::look_in(sys.path());
            assert_eq!(idle, Idle::Poll(ns.trim().parse().unwrap()));
            assert_eq!(idle.advice().is_some_and(|a| a.contains("echo 200000 > /sys/module/haltpoll/")), told, "{ns}");
        }
        assert_eq!(Idle::Poll(200_000).describe(), "idle cores poll for 200 us");
    }
}
