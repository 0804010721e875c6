//! Worker threads.
//!
//! Owns: starting, naming, placing and joining them. Does not own: their work.
//!
//! Invariant: the first panic of a worker reaches the joining thread, at once, whatever the others do.

use amphi_env::RealEnv;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::any::Any;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How workers run.
#[derive(Clone, Copy, Debug)]
pub struct WorkerConfig {
    /// How long a worker polls after its last progress before it parks.
    pub spin: Duration,
    /// Which cores they use.
    pub cores: Cores,
}

/// Which cores workers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cores {
    /// Workers use the cores that the scheduler chooses, at any time.
    Free,
    /// A worker stays where it is while requests of the process mostly wait for workers, for short times, and another
    /// core is left.
    Kept,
    /// Worker `i` is bound to the `i`-th allowed core (modulo their number).
    Bound,
}

impl Default for WorkerConfig {
    /// 200 us (see `amphi_env::real::WORKER_SPIN`), on any core: other programs share the machine.
    fn default() -> WorkerConfig {
        WorkerConfig { spin: amphi_env::real::WORKER_SPIN, cores: Cores::Free }
    }
}

type Ended<T> = (usize, Result<T, Box<dyn Any + Send>>);

/// Running workers.
pub struct Workers<T> {
    threads: Vec<JoinHandle<()>>,
    ended: mpsc::Receiver<Ended<T>>,
}

/// Starts one thread per seed, named `worker-0` and so on; worker `i` runs `f(env, i, seeds[i])` to its end.
/// A seed is what the worker owns from the start, such as its `Port`.
///
/// Errors: the first thread that could not be started; those before it run on, without a handle.
pub fn spawn_workers<S, T, Fut, F>(seeds: Vec<S>, config: WorkerConfig, f: F) -> io::Result<Workers<T>>
where
    S: Send + 'static,
    T: Send + 'static,
    Fut: Future<Output = T>,
    F: Fn(RealEnv, usize, S) -> Fut + Clone + Send + 'static,
{
    let (tell, ended) = mpsc::channel();
    let mut threads = Vec::with_capacity(seeds.len());
    for (i, seed) in seeds.into_iter().enumerate() {
        let (f, tell) = (f.clone(), tell.clone());
        threads.push(Builder::new().name(format!("worker-{i}")).spawn(move || {
            if config.cores == Cores::Bound {
                bind(i);
            }
            let run = |env: RealEnv| {
                if config.cores == Cores::Kept {
                    env.keep_core();
                }
                f(env, i, seed)
            };
            let result = catch_unwind(AssertUnwindSafe(|| RealEnv::run(config.spin, run)));
            // If the handle was dropped, there is no receiver: the worker then ends without a report.
            let _ = tell.send((i, result));
        })?);
    }
    Ok(Workers { threads, ended })
}

impl<T> Workers<T> {
    /// Waits for all and returns their results in order. A panic of any worker is passed on as soon as it happens; the
    /// other workers then continue to run.
    pub fn join(self) -> Vec<T> {
        let mut results: Vec<Option<T>> = self.threads.iter().map(|_| None).collect();
        for _ in 0..results.len() {
            match self.ended.recv() {
                Ok((i, Ok(value))) => results[i] = Some(value),
                Ok((_, Err(panic))) => resume_unwind(panic),
                Err(mpsc::RecvError) => break,
            }
        }
        for thread in self.threads {
            if let Err(panic) = thread.join() {
                resume_unwind(panic);
            }
        }
        results.into_iter().flatten().collect()
    }
}

/// Binds this thread to the `i`-th core that it may use. Best effort: unbound it is slower, not wrong.
fn bind(i: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    if let Some(core) = cores.get(i % cores.len().max(1)) {
        let mut one = CpuSet::new();
        one.set(*core);
        let _ = sched_setaffinity(None, &one);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::{Lane, mesh};
    use amphi_env::Env;

    /// Goal: workers get their seeds, names and places, talk over the mesh, and return results in order. Method:
    /// each sends its square to worker 0, which sums.
    #[test]
    fn results_in_order() {
        for cores in [Cores::Free, Cores::Kept, Cores::Bound] {
            let config = WorkerConfig { cores, ..WorkerConfig::default() };
            let workers = spawn_workers(mesh::<usize>(4, 8), config, |_env, i, port| async move {
                assert_eq!(std::thread::current().name(), Some(format!("worker-{i}").as_str()));
                let (tx, mut rx) = port.split();
                tx.send(0, Lane::Normal, i * i).expect("room");
                let mut sum = 0;
                if i == 0 {
                    for _ in 0..tx.workers() {
                        sum += rx.recv().await.2;
                    }
                    (1..4).for_each(|to| tx.send(to, Lane::Urgent, sum).expect("room"));
                } else {
                    sum = rx.recv().await.2;
                }
                (i, sum)
            });
            assert_eq!(workers.expect("threads").join(), [(0, 14), (1, 14), (2, 14), (3, 14)]);
        }
    }

    /// Goal: a panic reaches the joiner although another worker never ends. Method: one worker of each kind.
    #[test]
    fn panics_propagate() {
        let workers = spawn_workers(vec![(), ()], WorkerConfig::default(), |env, i, ()| async move {
            env.sleep(Duration::from_millis(1)).await;
            if i == 1 {
                panic!("planted");
            }
            std::future::pending::<()>().await;
        });
        let joined = catch_unwind(AssertUnwindSafe(|| workers.expect("threads").join()));
        assert_eq!(*joined.expect_err("panics").downcast_ref::<&str>().expect("text"), "planted");
    }
}
