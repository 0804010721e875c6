//! A sample of a mount: the counters of it, its servers and its jobs, and the state of the cluster.
//!
//! Owns: reading all of it. Does not own: what is made of it (`amphi_view`).

use super::{stats, status};
use amphi_host::control;
use amphi_host::failure::{Failure, Outcome};
use amphi_view::Snapshot;
use amphi_view::snapshot::Texts;
use serde_json::json;
use std::path::Path;
use std::time::Duration;

/// Looks at the mount of `path`; `at` is the time, on a clock that does not go back. Servers that do not answer are
/// missing in it.
///
/// Errors: a mount that does not answer, or that belongs to somebody else.
pub fn look(path: &Path, at: Duration) -> Outcome<Snapshot> {
    let mount = control::read(path, "user.amphi.stats.json")?;
    let jobs = json!({ "jobs": stats::jobs(path)? }).to_string();
    let servers = control::read(path, "user.amphi.counters.server").map(|rows| stats::servers_json(&rows).to_string());
    let cluster = status::of_mount(path.to_path_buf());
    let texts = Texts {
        mount: &mount,
        servers: servers.as_deref().unwrap_or(""),
        cluster: cluster.as_deref().unwrap_or(""),
        jobs: &jobs,
    };
    Snapshot::read(at, texts).map_err(Failure::broken)
}
