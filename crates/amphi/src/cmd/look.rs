//! A sample of a mount: the counters of it, its servers and its jobs, its busy files, and the state of the cluster; and
//! what a server says of itself.
//!
//! Owns: reading all of it, through the kernel or in the process that has it. Does not own: what is made of it
//! (`amphi_view`).

use super::{stats, status};
use amphi_client::status::{STATUS_PART_BYTES, json as status_json};
use amphi_client::{Client, Ctx};
use amphi_host::control;
use amphi_host::failure::{Failure, Outcome};
use amphi_server::Observed;
use amphi_types::Ino;
use amphi_view::Snapshot;
use amphi_view::snapshot::{Texts, labels};
use amphi_wire::ServerInfo;
use serde_json::json;
use std::path::Path;
use std::time::Duration;

/// How long a mount may take to answer in its own process: a server that is away is waited for 2 s.
const PATIENCE: Duration = Duration::from_secs(8);

/// Who answers for a mount.
pub trait Attributes {
    /// A control attribute.
    ///
    /// Errors: it cannot be read, or the mount has none of this name.
    fn attribute(&self, name: &str) -> Outcome<String>;

    /// The status of its cluster.
    fn status(&self) -> Outcome<String>;
}

/// The mount of a path, through the kernel.
impl Attributes for &Path {
    fn attribute(&self, name: &str) -> Outcome<String> {
        control::read(self, name)
    }

    fn status(&self) -> Outcome<String> {
        status::of_mount(self.to_path_buf())
    }
}

/// The mount of this process.
impl Attributes for Client {
    fn attribute(&self, name: &str) -> Outcome<String> {
        // A long status is kept for the process that asks; each thread here is one.
        let pid = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let ctx = Ctx { pid, ..Ctx::root() };
        let failed = |why: String| Failure::broken(format!("{name} of this mount: {why}"));
        match self.getxattr(&ctx, Ino::ROOT, name.as_bytes()).wait_for(None, Some(PATIENCE)) {
            Ok(Ok(bytes)) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Ok(Err(e)) => Err(failed(e.to_string())),
            Err(_) => Err(failed(format!("no answer within {} s", PATIENCE.as_secs()))),
        }
    }

    fn status(&self) -> Outcome<String> {
        let mut text = self.attribute("user.amphi.status")?;
        let mut last = text.len();
        while last >= STATUS_PART_BYTES {
            let more = self.attribute(&format!("user.amphi.status.from.{}", text.len()))?;
            last = more.len();
            text.push_str(&more);
        }
        Ok(text)
    }
}

/// Looks at a mount; `at` is the time, on a clock that does not go back. Servers that do not answer are missing in it.
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
        // A mount whose program is older knows only these.
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

/// What a server says of itself as the same kind of sample, in which it is the only server.
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
