//! `amphi bench sessions`: the cost of 1,000 sessions for a server, beside 10: memory for each, and the rate of small
//! requests over all of them.
//!
//! All clients run on one thread of this process, each with a connection of its own; each request goes to another
//! session in turn, so that the server's tables are walked as a large cluster would. The request reads a symbolic link:
//! as small as a stat, and no client caches its answer.

use super::Run;
use super::idle::memory_mib;
use super::program::Program;
use super::report::{Finding, Table, digits, spread};
use super::round_trip::Way;
use super::series::Series;
use amphi_client::{Client, Ctx};
use amphi_env::{Env, RealEnv};
use amphi_host::failure::{During, Failure, Outcome};
use amphi_types::Ino;
use amphi_wire::Role;
use std::time::Duration;

const FEW: usize = 10;
const MANY: usize = 1000;
/// Requests under way at a time.
const DEPTH: usize = 8;

/// Measures both in turn.
pub fn run(run: &mut Run) -> Outcome {
    let many = if run.quick { 100 } else { MANY };
    let requests = if run.quick { 4_000 } else { 20_000 };
    let dir = run.dir.join("sessions");
    std::fs::create_dir_all(&dir).during(|| format!("make {}", dir.display()))?;
    let (server, addr) = Program::server(&dir.join("data"), Way::Unix)?;
    let bar = run.bar("sessions", 1 + 2 * (run.pairs as u64 + 1));
    let (pid, pairs) = (server.pid(), run.pairs);
    let measured = RealEnv::try_run(Duration::ZERO, |env| async move {
        let before = memory_mib(pid, "Rss:")?;
        let mut clients = Vec::with_capacity(many);
        while clients.len() < many {
            clients.push(connect(&env, &addr).await?);
        }
        let ctx = Ctx::root();
        let made = clients[0].symlink(&ctx, Ino::ROOT, b"link", b"somewhere").await;
        let link = made.during(|| "make a symbolic link".into())?.ino;
        let after = memory_mib(pid, "Rss:")?;
        bar.inc(1);
        let (mut few_rate, mut many_rate) = (Series::default(), Series::default());
        for round in 0..=pairs {
            for (count, series) in [(FEW, &mut few_rate), (many, &mut many_rate)] {
                let rate = rate(&clients[..count], link, requests).await?;
                if round > 0 {
                    series.0.push(rate);
                }
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        clients[0].unlink(&ctx, Ino::ROOT, b"link").await.during(|| "remove a symbolic link".into())?;
        for client in &clients {
            client.shutdown();
        }
        while !clients.iter().all(Client::is_stopped) {
            env.sleep(Duration::from_millis(10)).await;
        }
        Ok::<_, Failure>(((after - before) * 1024.0 / many as f64, few_rate, many_rate))
    });
    let (kib, few_rate, many_rate) = measured.during(|| "start a thread with its own ring".into())??;
    server.stop()?;
    std::fs::remove_dir_all(&dir).during(|| format!("remove {}", dir.display()))?;
    let ratio = many_rate.over(&few_rate);
    let mut table = Table::new(
        format!("{many} sessions of one server (requests/s, median and range)"),
        &["memory for each session, KiB", "rate over 10", "rate over all", "ratio"],
    );
    table.row(vec![digits(kib), spread(&few_rate), spread(&many_rate), spread(&ratio)]);
    table.note("Memory: growth of the server's resident memory. One thread has all clients, so the rate is its as much as the server's.");
    run.show(&table);
    run.report.findings.push(
        Finding::new("sessions", "memory and rate")
            .with("sessions", many)
            .with("kib_for_each_session", kib)
            .series("rate_over_10", &few_rate)
            .series("rate_over_all", &many_rate)
            .value(ratio.median()),
    );
    Ok(())
}

/// A client on this thread.
async fn connect(env: &RealEnv, addr: &str) -> Outcome<Client> {
    let (client, half) = Client::new(amphi_host::client::client_config(Some(16 << 20), &[])?);
    let link = amphi_host::link::link_config(vec![addr.to_string()], Role::Mount, None)?;
    let own = env.clone();
    env.spawn(async move {
        if let Err(e) = half.run(own, link, amphi_client::Way::Addresses).await {
            tracing::error!("a session ended: {e}");
        }
    });
    client.getattr(&Ctx::root(), Ino::ROOT).await.during(|| "start a session".into())?;
    Ok(client)
}

/// Requests per second, each over the next client, a few at a time.
async fn rate(clients: &[Client], link: Ino, requests: usize) -> Outcome<f64> {
    let start = super::clock::now();
    let walker = |first: usize| async move {
        for i in (first..requests).step_by(DEPTH) {
            let answer = clients[i % clients.len()].readlink(&Ctx::root(), link).await;
            answer.during(|| "read a symbolic link".into())?;
        }
        Ok::<_, Failure>(())
    };
    let done = futures_util::future::join_all((0..DEPTH).map(walker)).await;
    done.into_iter().collect::<Outcome>()?;
    Ok(requests as f64 / start.elapsed().as_secs_f64())
}
