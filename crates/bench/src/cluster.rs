//! The cluster under measurement: `amphi up` as a child process, with its mount, counters and tunables.

use super::program::Program;
use super::round_trip::Way;
use amphi_host::control;
use amphi_host::failure::{During, Failure, Outcome};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Setting of a mount whose own reads are measured: by default the kernel serves the reads that it can.
pub const OWN_READS: &str = "hybrid.kernel_cache=off";

/// A cluster with a mount, in a process of its own.
pub struct Cluster {
    program: Program,
    /// The server, if the mount is a process of its own; it is stopped after the mount.
    server: Option<Program>,
    /// Where it is mounted.
    pub mount: PathBuf,
    /// Its storage folder.
    pub data: PathBuf,
}

impl Cluster {
    /// Starts `amphi up` in the folder `dir`, a fresh one or one that was left, with further arguments.
    pub fn up(dir: &Path, args: &[&str]) -> Outcome<Cluster> {
        let (data, mount) = (dir.join("data"), dir.join("mount"));
        for d in [&data, &mount] {
            std::fs::create_dir_all(d).during(|| format!("make {}", d.display()))?;
        }
        let mut all: Vec<OsString> =
            vec!["up".into(), "--data".into(), data.clone().into(), "--mount".into(), mount.clone().into()];
        // An empty folder is the benchmark's own, whatever was in one of that name before.
        let is_new = !std::fs::read_dir(&data).is_ok_and(|mut names| names.next().is_some());
        all.extend(is_new.then(|| OsString::from("--format")));
        all.extend(args.iter().map(OsString::from));
        let all: Vec<_> = all.iter().map(OsString::as_os_str).collect();
        let program = Program::start(&all, Some(&mount))?;
        Ok(Cluster { program, server: None, mount, data })
    }

    /// Starts `amphi server` and `amphi mount` with a socket between them.
    pub fn apart(dir: &Path, way: Way) -> Outcome<Cluster> {
        let (data, mount) = (dir.join("data"), dir.join("mount"));
        std::fs::create_dir_all(&mount).during(|| format!("make {}", mount.display()))?;
        let (server, addr) = Program::server(&data, way)?;
        let mut args: Vec<&OsStr> = vec!["mount".as_ref(), "--cluster".as_ref(), addr.as_ref(), mount.as_os_str()];
        let own = data.join(amphi_process::own_key::OWN_KEY);
        if own.exists() {
            args.extend(["--key".as_ref(), own.as_os_str()]);
        }
        let program = Program::start(&args, Some(&mount))?;
        Ok(Cluster { program, server: Some(server), mount, data })
    }

    /// The process that is everything: front end, client and server.
    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Sets a tunable of the mount or its servers.
    pub fn set(&self, assignment: &str) -> Outcome {
        control::write(&self.mount, "user.amphi.set", assignment, |_| format!("{assignment} was refused"))
    }

    /// The counters at present.
    pub fn counters(&self) -> Outcome<Counters> {
        let text = control::read(&self.mount, "user.amphi.stats.json")?;
        let client =
            serde_json::from_str(&text).map_err(|e| Failure::broken(format!("the counters of the mount: {e}")))?;
        let text = control::read(&self.mount, "user.amphi.counters.server")?;
        let rows = text.lines().filter_map(|l| l.rsplit_once(' '));
        let server = rows.filter_map(|(name, n)| Some((name.trim().to_string(), n.parse().ok()?))).collect();
        Ok(Counters { client, server })
    }

    /// Stops it; its folder stays, for the next one.
    pub fn leave(self) -> Outcome {
        self.program.stop()?;
        self.server.map_or(Ok(()), Program::stop)
    }

    /// Stops it and removes its folder.
    pub fn stop(self) -> Outcome {
        let data = self.data.clone();
        self.leave()?;
        let dir = data.parent().unwrap_or(&data);
        std::fs::remove_dir_all(dir).during(|| format!("remove {}", dir.display()))
    }
}

/// Sets the I/O mode of a file.
pub fn set_mode(path: &Path, mode: &str) -> Outcome {
    control::write(path, "user.amphi.mode", mode, |_| format!("mode {mode} was refused"))
}

/// Counters of the mount that go up by one for each request of the kernel of their kind.
const FRONT: [&str; 25] = [
    "lookup",
    "lookup_cached",
    "lookup_absent",
    "getattr",
    "getattr_cached",
    "getattr_own",
    "setattr",
    "create",
    "open",
    "close",
    "mknod",
    "mkdir",
    "symlink",
    "link",
    "unlink",
    "rmdir",
    "rename",
    "readlink",
    "readdir",
    "statfs",
    "xattr",
    "fsync",
    "seek",
    "fallocate",
    "copy_range",
];
/// How the names of reasons begin, behind `read_` and `write_`.
const REASONS: [&str; 3] = ["direct_", "buffered_", "cache_"];

/// Counters of a mount and its server: names and numbers of events.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    client: Value,
    server: BTreeMap<String, u64>,
}

impl Counters {
    /// Events of the server's counter `name`.
    pub fn server(&self, name: &str) -> u64 {
        self.server.get(name).copied().unwrap_or(0)
    }

    /// Requests that the kernel sent: each is counted once at the front of the client, by its kind, reads and writes by
    /// the reason of their way.
    pub fn kernel_requests(&self) -> u64 {
        let Some(all) = self.client.get("counters").and_then(Value::as_object) else { return 0 };
        let by_reason = |name: &str| {
            let reason = name.strip_prefix("read_").or_else(|| name.strip_prefix("write_"));
            reason.is_some_and(|reason| REASONS.iter().any(|begin| reason.starts_with(begin)))
        };
        all.iter()
            .filter(|(name, _)| FRONT.contains(&name.as_str()) || by_reason(name))
            .filter_map(|(_, c)| c.get("samples").and_then(Value::as_u64))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: requests of the kernel are counted once, work behind the front is not. Method: made-up counters of each
    /// kind.
    #[test]
    fn kernel_requests() {
        let client = serde_json::json!({"counters": {
            "lookup": {"samples": 3, "unit": "reqs"}, "getattr_cached": {"samples": 20, "unit": "reqs"},
            "read_cache_hit": {"samples": 300, "unit": "bytes"}, "write_direct_large": {"samples": 1000, "unit": "bytes"},
            "server_calls": {"samples": 100, "unit": "reqs"}, "getattr_now": {"samples": 5, "unit": "reqs"},
            "write_call": {"samples": 8, "unit": "ns"}, "write_adopted": {"samples": 6, "unit": "bytes"},
            "write_pipelined": {"samples": 6, "unit": "bytes"}, "batch_requests": {"samples": 4, "unit": "reqs"},
            "readahead_small_used": {"samples": 4, "unit": "reqs"}, "lock_enqueue": {"samples": 70, "unit": "reqs"},
            "lock_cancel_messages": {"samples": 70, "unit": "reqs"}, "token_revoke": {"samples": 70, "unit": "reqs"},
            "write_buffered_small": {"samples": 2, "unit": "bytes"}, "writeback": {"samples": 50, "unit": "bytes"},
            "write_throttled": {"samples": 9, "unit": "reqs"}, "copy_range": {"samples": 7, "unit": "bytes"}}});
        assert_eq!(Counters { client, ..Counters::default() }.kernel_requests(), 1332);
    }
}
