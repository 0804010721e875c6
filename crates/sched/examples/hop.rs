//! Prints, as JSON lines, the round trip of one message between two workers over the mesh, spinning and parking.

use amphi_env::Env;
use amphi_sched::{Cores, Lane, WorkerConfig, mesh, spawn_workers};
use std::time::Duration;

const ROUNDS: usize = 100_000;

fn main() {
    for (mode, spin, rounds) in [("spin", Duration::MAX, ROUNDS), ("park", Duration::ZERO, ROUNDS / 10)] {
        let config = WorkerConfig { spin, cores: Cores::Bound };
        let workers = spawn_workers(mesh::<u64>(2, 4), config, move |env, i, port| async move {
            let (tx, mut rx) = port.split();
            let mut times = Vec::with_capacity(rounds);
            for n in 0..rounds as u64 {
                let start = env.now();
                if i == 0 {
                    tx.send(1, Lane::Normal, n).expect("room");
                    rx.recv().await;
                    times.push(env.now().0 - start.0);
                } else {
                    let (from, lane, m) = rx.recv().await;
                    tx.send(from, lane, m).expect("room");
                }
            }
            times.sort_unstable();
            times
        });
        let times = workers.expect("threads").join().swap_remove(0);
        let (p50, p99) = (times[rounds / 2] as f64 / 1e3, times[rounds / 100 * 99] as f64 / 1e3);
        println!("{{\"bench\":\"mesh_round_trip\",\"mode\":\"{mode}\",\"p50_us\":{p50:.2},\"p99_us\":{p99:.2}}}");
    }
}
