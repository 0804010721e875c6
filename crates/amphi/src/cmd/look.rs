//! A sample of a mount: its counters, those of its servers and jobs, its busy files, and the state of the cluster; and
//! a sample of a server.
//!
//! Owns: which attributes make a sample. Does not own: the answers to requests for them (`attributes`), the evaluation
//! of a sample (`amphi_view`).

use super::attributes::Attributes;
use super::stats;
use amphi_client::status::json as status_json;
use amphi_host::failure::{Failure, Outcome};
use amphi_server::Observed;
use amphi_view::Snapshot;
use amphi_view::snapshot::{Texts, labels};
use amphi_wire::ServerInfo;
use serde_json::json;
use std::time::Duration;

/// Looks at a mount; `at` is the time, on a clock that does not go back. Servers that do not answer are missing in the
/// sample.
///
/// Errors: a mount that does not answer, or that belongs to somebody else.
pub fn look(mount: &impl Attributes, at: Duration) -> Outcome<Snapshot> {
    let counters = mount.attribute("user.amphi.stats.json")?;
    let jobs = json!({ "jobs": stats::jobs_of(mount)? }).to_string();
    let cluster = mount.status().unwrap_or_default();
    let known = Snapshot::read(at, Texts { cluster: &cluster, ..Texts::default() }).map_err(Failure::broken)?.cluster;
    let mut by_server = Vec::new();
    for (server, label) in known.servers.iter().zip(known.labels()).filter(|(server, _)| server.up) {
        if let Ok(rows) = mount.attribute(&format!("user.amphi.counters.server.{}", server.id)) {
            by_server.push((label, stats::servers_json(&rows).to_string()));
        }
    }
    let sums = match by_server.is_empty() {
        // A mount of an older program has only these texts.
        true => mount.attribute("user.amphi.counters.server").map(|rows| stats::servers_json(&rows).to_string()),
        false => Ok(String::new()),
    };
    let files = mount.attribute("user.amphi.hot").unwrap_or_default();
    let texts = Texts {
        mount: &counters,
        servers: sums.as_deref().unwrap_or(""),
        by_server: &by_server,
        cluster: &cluster,
        jobs: &jobs,
        files: &files,
    };
    Snapshot::read(at, texts).map_err(Failure::broken)
}

/// The report of a server about itself in the form of a sample in which it is the only server.
pub fn look_at_server(observed: Observed) -> Outcome<Snapshot> {
    let Observed { id, mut map, status, counters } = observed;
    let numbers: Vec<String> = map.servers.iter().map(|server| format!("{:016x}", server.id)).collect();
    let names = map.servers.iter().zip(&numbers).map(|(server, number)| (server.name.as_str(), number.as_str()));
    let labels = labels(names);
    let own: Vec<ServerInfo> = map.servers.iter().filter(|server| server.id == id).cloned().collect();
    let at = map.servers.iter().position(|server| server.id == id);
    let label = at.and_then(|at| labels.get(at)).cloned().unwrap_or_default();
    map.servers = own.into_iter().map(|server| ServerInfo { name: label.clone(), ..server }).collect();
    let cluster = status_json(&map, &[Some(status)]);
    let rows = counters.into_iter().map(|(name, n)| (name, n.into())).collect();
    let by_server = [(label, serde_json::Value::Object(rows).to_string())];
    let texts = Texts { cluster: &cluster, by_server: &by_server, ..Texts::default() };
    Snapshot::read(Duration::ZERO, texts).map_err(Failure::broken)
}
