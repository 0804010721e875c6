//! A server on real threads, with one thread for each worker.

use crate::config::ServerConfig;
use crate::error::{ServerError, ServerErrorKind};
use crate::server::{Seeds, Server, WorkerSeed, run_worker};
use amphi_env::RealEnv;
use amphi_sched::{WorkerConfig, spawn_workers};
use std::pin::Pin;
use std::rc::Rc;

type Body<T> = Box<dyn FnOnce(RealEnv, Rc<Server<RealEnv>>) -> Pin<Box<dyn Future<Output = T>>> + Send>;

enum Start<T> {
    Lead(WorkerSeed, Body<T>),
    Other(WorkerSeed),
}

/// Starts a server with one thread for each worker, runs `body` on the thread of worker 0 when it serves, and stops it
/// in order when `body` ends. Blocks until then.
pub fn run_threads<T: Send + 'static>(
    mut config: ServerConfig,
    workers: WorkerConfig,
    body: impl FnOnce(RealEnv, Rc<Server<RealEnv>>) -> Pin<Box<dyn Future<Output = T>>> + Send + 'static,
) -> Result<T, ServerError> {
    config.worker_spin = workers.spin;
    let seeds = RealEnv::run(workers.spin, |env| async move { Seeds::prepare(&env, &config).await })?;
    let mut starts: Vec<Start<T>> = vec![Start::Lead(seeds.lead, Box::new(body))];
    starts.extend(seeds.others.into_iter().map(Start::Other));
    let running = spawn_workers(starts, workers, |env, _, start| async move {
        match start {
            Start::Other(seed) => {
                run_worker(env, seed).await;
                None
            }
            Start::Lead(seed, body) => Some(lead(env, seed, body).await),
        }
    })
    .map_err(|e| ServerError::new(ServerErrorKind::Config, format!("a worker thread cannot be started: {e}")))?;
    let ended = running.join().into_iter().flatten().next();
    ended.unwrap_or_else(|| Err(ServerError::new(ServerErrorKind::Disk, "the first worker ended early")))
}

async fn lead<T>(env: RealEnv, seed: WorkerSeed, body: Body<T>) -> Result<T, ServerError> {
    let server = Server::lead(env.clone(), seed).await?;
    let value = body(env, server.clone()).await;
    server.stop().await?;
    Ok(value)
}
