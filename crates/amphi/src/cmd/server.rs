//! `amphi server`: the storage side alone.

use super::up::Storage;
use crate::failure::{Failure, Outcome};
use crate::process::{self, Stop};
use amphi_server::run_threads;
use clap::Args;
use futures_channel::oneshot;
use std::path::PathBuf;
use std::sync::mpsc;

/// Serve the zones of a folder.
#[derive(Args, Debug)]
pub struct Server {
    #[command(flatten)]
    storage: Storage,
    /// Address to listen on: unix:PATH or tcp:HOST:PORT; may be repeated
    #[arg(long, required = true, value_name = "ADDR")]
    listen: Vec<String>,
    /// File with the cluster key (at least 16 bytes); needed for addresses that other machines reach
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

impl Server {
    /// Serves until a signal.
    #[expect(clippy::disallowed_methods, reason = "the thread that waits for the workers")]
    pub fn run(self) -> Outcome {
        let mut config = self.storage.config()?;
        config.listen = self.listen.clone();
        config.key = process::read_key(self.key.as_deref())?.map(|(bytes, _)| bytes);
        process::complete(&mut config);
        let stop = Stop::on_signals()?;
        let workers = self.storage.workers();
        let (end, ends) = oneshot::channel::<()>();
        let (up, is_up) = mpsc::channel();
        let ended = stop.also();
        let thread = std::thread::spawn(move || {
            let result = run_threads(config, workers, move |_env, server| {
                Box::pin(async move {
                    let _ = up.send(server.addrs().to_vec());
                    let _ = ends.await;
                })
            });
            let _ = ended.send(());
            result
        });
        if let Ok(addrs) = is_up.recv() {
            println!("ready {}", addrs.join(" "));
            stop.wait();
        }
        let _ = end.send(());
        match thread.join() {
            Ok(result) => result.map_err(process::server_failure),
            Err(_) => Err(Failure::broken("a worker thread panicked; its message is above")),
        }
    }
}
