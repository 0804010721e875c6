//! The conformance suite over both environments, and nothing else.

use crate::sim::{Sim, SimConfig, SimEnv};
use crate::{Env, RealEnv, conformance};
use std::time::Duration;

/// Runs a check in production, spinning and parking, in a fresh directory.
macro_rules! real {
    ($(#[$doc:meta])* $name:ident, $env:ident, $dir:ident => $check:expr) => {
        $(#[$doc])*
        #[test]
        fn $name() {
            for spin in [Duration::ZERO, Duration::from_micros(50)] {
                let dir = tempfile::tempdir().expect("temporary directory");
                let $dir = dir.path().to_str().expect("UTF-8").to_string();
                RealEnv::run(spin, |$env| async move { $check.await });
            }
        }
    };
}

/// Seeds of each check in the simulator; the largest takes 10 ms for each.
const SEEDS: u64 = 30;

/// Runs a check in the simulator over many seeds.
fn sim<F: Future<Output = ()>>(check: impl Fn(SimEnv) -> F) {
    for seed in 0..SEEDS {
        let sim = Sim::new(seed, SimConfig::default());
        let env = sim.node("node");
        env.make_dir("/data").expect("directory");
        sim.block_on(check(env)).expect("no deadlock");
    }
}

real!(
    /// Goal: production keeps the promises of timers. Method: the suite.
    real_timers, env, _dir => conformance::timers(env)
);
real!(
    /// Goal: production keeps the promise of the boot id. Method: the suite.
    real_boots, env, _dir => conformance::boots(env)
);
real!(
    /// Goal: production keeps the promises of memory that outlives the process. Method: the suite.
    real_memory, env, dir => conformance::memory(env, &dir, super::super::real::memory_outlives().is_ok())
);
real!(
    /// Goal: production keeps the promises of tasks. Method: the suite.
    real_tasks, env, _dir => conformance::tasks(env)
);
real!(
    /// Goal: production keeps the promises of directories. Method: the suite.
    real_directories, env, dir => conformance::directories(env, &dir)
);
real!(
    /// Goal: production keeps the promises of disks with O_DIRECT. Method: the suite.
    real_disks, env, dir => conformance::disks(env, &dir)
);
real!(
    /// Goal: production keeps the promises of Unix streams. Method: the suite.
    real_unix_streams, env, dir => conformance::streams(env, &format!("unix:{dir}/s"))
);
real!(
    /// Goal: production keeps the promises of TCP streams. Method: the suite.
    real_tcp_streams, env, _dir => conformance::streams(env, "tcp:127.0.0.1:0")
);
real!(
    /// Goal: production keeps the promises of streams that end early. Method: the suite.
    real_half_message, env, dir => conformance::half_message(env, &format!("unix:{dir}/s"))
);
real!(
    /// Goal: production keeps the promises of connections that change threads. Method: the suite, on one thread.
    real_moved, env, dir => conformance::moved(env, &format!("unix:{dir}/s"))
);
real!(
    /// Goal: production keeps the promises of connections that change threads. Method: the suite, on one thread.
    real_tcp_moved, env, _dir => conformance::moved(env, "tcp:127.0.0.1:0")
);
real!(
    /// Goal: production keeps the promises of Unix listeners. Method: the suite.
    real_unix_listening, env, dir => conformance::listening(env, &format!("unix:{dir}/s"))
);
real!(
    /// Goal: production keeps the promises of TCP listeners. Method: the suite.
    real_tcp_listening, env, _dir => conformance::listening(env, "tcp:127.0.0.1:0")
);

/// Goal: the simulator keeps the promises of timers. Method: the suite, many seeds.
#[test]
fn sim_timers() {
    sim(conformance::timers);
}

/// Goal: the simulator keeps the promise of the boot id. Method: the suite, many seeds.
#[test]
fn sim_boots() {
    sim(conformance::boots);
}

/// Goal: the simulator keeps the promises of memory that outlives the process. Method: the suite, many seeds.
#[test]
fn sim_memory() {
    sim(|env| conformance::memory(env, "/data", true));
}

/// Goal: the simulator keeps the promises of tasks. Method: the suite, many seeds.
#[test]
fn sim_tasks() {
    sim(conformance::tasks);
}

/// Goal: the simulator keeps the promises of directories and disks. Method: the suite, many seeds.
#[test]
fn sim_disks() {
    sim(|env| conformance::directories(env, "/data"));
    sim(|env| conformance::disks(env, "/data"));
}

/// Goal: the simulator keeps the promises of streams. Method: the suite, many seeds, both forms of address.
#[test]
fn sim_streams() {
    sim(|env| conformance::streams(env, "unix:/data/s"));
    sim(|env| conformance::half_message(env, "tcp:host:0"));
}

/// Goal: the simulator keeps the promises of connections that change threads. Method: the suite, many seeds.
#[test]
fn sim_moved() {
    sim(|env| conformance::moved(env, "unix:/data/s"));
    sim(|env| conformance::moved(env, "tcp:host:0"));
}

/// Goal: the simulator keeps the promises of listeners. Method: the suite, many seeds, both forms of address.
#[test]
fn sim_listening() {
    sim(|env| conformance::listening(env, "unix:/data/s"));
    sim(|env| conformance::listening(env, "tcp:host:0"));
}
