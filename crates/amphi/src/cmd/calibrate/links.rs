//! The latency and throughput of the links between this machine and each server of a cluster.
//!
//! Owns: the measurements, over separate connections. Does not own: connecting (`reach`).
//!
//! The request is for the cluster map, which a server answers from memory; payload is sent with it and is dropped by
//! the server.

use crate::cmd::reach::connect;
use amphi_env::{Buf, Env, RealEnv};
use amphi_host::failure::{Failure, Outcome};
use amphi_host::link::{Credentials, link_failure};
use amphi_transport::{CallOptions, Link, LinkError};
use amphi_types::{Cred, TargetId};
use amphi_view::calibration::ServerLink;
use amphi_wire::{Call, Lane, Request};
use futures_util::future::join_all;
use serde_json::Value;
use std::io;
use std::time::Duration;

/// Questions that are under way at a time when they are counted.
const AT_A_TIME: usize = 64;
/// Payloads that are under way at a time, and their size.
const STREAMS: usize = 4;
const PAYLOAD: usize = 1 << 20;
/// How long a server may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

async fn ask(link: &Link<RealEnv>, payload: Option<Buf>) -> io::Result<()> {
    let call = Call { target: TargetId(0), cred: Cred::root(), op: Request::Map };
    let options = CallOptions { lane: Lane::Normal, pad: 0, deadline: Some(PATIENCE), insist: false };
    let answer =
        link.call_with(options, call, payload).await.map_err(|e: LinkError| io::Error::other(e.to_string()))?;
    answer.0.result.map(drop).map_err(|e| io::Error::other(e.to_string()))
}

/// How many times `lanes` askers together were answered, a second.
async fn rate(env: &RealEnv, link: &Link<RealEnv>, lanes: usize, payload: usize, long: Duration) -> io::Result<f64> {
    let begun = env.now().0;
    let end = begun + long.as_nanos() as u64;
    let lane = || async {
        let mut done = 0u64;
        while env.now().0 < end {
            let payload = (payload > 0).then(|| Buf::zeroed(payload));
            ask(link, payload).await?;
            done += 1;
        }
        io::Result::Ok(done)
    };
    let done = join_all((0..lanes).map(|_| lane())).await.into_iter().sum::<io::Result<u64>>()?;
    Ok(done as f64 / (env.now().0.saturating_sub(begun).max(1) as f64 / 1e9))
}

async fn server(
    env: &RealEnv,
    name: &str,
    addrs: &[String],
    proves: &Credentials,
    long: Duration,
) -> io::Result<ServerLink> {
    let (address, link) = connect(env, addrs, proves).await?;
    ask(&link, None).await?;
    let trips = rate(env, &link, 1, 0, long).await?;
    let messages = rate(env, &link, AT_A_TIME, 0, long).await?;
    let payloads = rate(env, &link, STREAMS, PAYLOAD, long).await?;
    link.close().await;
    Ok(ServerLink {
        server: name.into(),
        address: address.into(),
        round_trip_us: 1e6 / trips.max(1e-9),
        messages_per_s: messages,
        stream_bytes_per_s: payloads * PAYLOAD as f64,
    })
}

/// Measures each server in the status of a cluster that can be reached at an address; servers inside the process of a
/// mount have none.
///
/// Errors: a server that does not answer.
pub(super) fn measure(status: &str, proves: &Credentials, long: Duration) -> Outcome<Vec<ServerLink>> {
    let status: Value =
        serde_json::from_str(status).map_err(|e| Failure::broken(format!("the status of the cluster: {e}")))?;
    let text = |value: &Value| value.as_str().map(String::from);
    let servers: Vec<(String, Vec<String>)> = status["servers"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|server| {
            let addrs = server["addrs"].as_array().into_iter().flatten().filter_map(text).collect();
            (text(&server["name"]).unwrap_or_default(), addrs)
        })
        .collect();
    let measured = RealEnv::run(Duration::ZERO, async |env| -> io::Result<Vec<ServerLink>> {
        let mut all = Vec::new();
        for (name, addrs) in servers.iter().filter(|(_, addrs)| !addrs.is_empty()) {
            all.push(server(&env, name, addrs, proves, long).await?);
        }
        Ok(all)
    });
    measured.map_err(|e| link_failure(&e))
}
