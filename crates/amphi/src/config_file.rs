//! The configuration file of `amphi server`: TOML, one field for each option of the command.
//!
//! Owns: fields, their checks, the example that is printed. Does not own: what the fields do (`cmd::server`).
//!
//! Invariants: a field that is unknown or wrong is an error that names its line. A relative path is relative to the
//! folder of the file, so that the file means the same wherever the server is started.

use crate::storage::SPIN_US_MAX;
use crate::storage_kind::Rotational;
use amphi_host::failure::{Failure, Outcome};
use amphi_host::size;
use amphi_process::audit_file::WhenFull;
use amphi_transport::Secure;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Fields of the file; all may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigFile {
    /// Name of the server, for people.
    pub name: Option<String>,
    /// Folder with the zones.
    pub data: Option<PathBuf>,
    /// Number of targets.
    pub targets: Option<u16>,
    /// Size of each zone, bytes.
    #[serde(default, deserialize_with = "bytes")]
    pub zone_size: Option<u64>,
    /// Size of each log, bytes.
    #[serde(default, deserialize_with = "bytes")]
    pub log_size: Option<u64>,
    /// Addresses to listen on.
    #[serde(default)]
    pub listen: Vec<String>,
    /// How connections over TCP are protected.
    #[serde(default, deserialize_with = "secure")]
    pub secure: Option<Secure>,
    /// The least protection of connections to other servers.
    #[serde(default, deserialize_with = "secure")]
    pub peers_secure: Option<Secure>,
    /// Addresses that the server advertises.
    #[serde(default)]
    pub advertise: Vec<String>,
    /// Addresses of servers of the cluster to join.
    #[serde(default)]
    pub join: Vec<String>,
    /// File with the cluster key.
    pub key: Option<PathBuf>,
    /// The server's own key pair, and the audit log.
    #[serde(default)]
    pub identity: IdentityFields,
    /// Worker threads.
    pub workers: Option<u16>,
    /// Polling of the workers, microseconds.
    #[serde(default, deserialize_with = "spin_us")]
    pub worker_spin_us: Option<u64>,
    /// First values of tunables of the server, by their names without `server.`.
    #[serde(default, deserialize_with = "tunables")]
    pub tunables: Vec<(String, String)>,
    /// Permission bits of Unix sockets, octal in quotes.
    #[serde(default, deserialize_with = "mode")]
    pub socket_mode: Option<u32>,
    /// Whether the zones lie on rotating disks.
    #[serde(default, deserialize_with = "Rotational::from_file")]
    pub rotational: Option<Rotational>,
}

/// The table `identity`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentityFields {
    /// File with the server's own key pair.
    pub file: Option<PathBuf>,
    /// Folder of the audit log.
    pub audit: Option<PathBuf>,
    /// The behaviour while that cannot be written.
    pub audit_full: Option<WhenFull>,
}

/// The output of `amphi server --example-config`: every field, with its default if there is one.
pub const EXAMPLE: &str = r#"# Configuration of one AmphiFS server: amphi server --config FILE
# Options on the command line win over this file. Paths that are not absolute count from the folder of this file.

# Name of the server, for people [default: the name of the machine].
name = "alpha"

# Folder with the zones; made and formatted at the first start. Must be empty or new then.
data = "/var/lib/amphi"

# Number of targets of this server; fixed at the first start [default: 4].
targets = 4

# Size of each zone at the first start [default: 90 % of the free space over the targets].
# zone_size = "1T"

# Size of each zone's log at the first start.
log_size = "64M"

# Addresses to listen on: unix:PATH or tcp:HOST:PORT.
listen = ["tcp:10.0.0.1:7100"]

# How connections over TCP are protected: "off"; "mac": each message is signed, so that nobody on the network can
# change, repeat or drop one unnoticed; "tls": all is encrypted as well. An address may have a level of its own behind
# it, as "tcp:192.0.2.1:7100,secure=tls".
secure = "mac"

# The least protection of the connections that this server makes to others [default: what they offer].
# peers_secure = "mac"

# Addresses that clients and other servers are told [default: those of listen]; needed if listen says 0.0.0.0.
# advertise = ["tcp:alpha.example.org:7100"]

# Servers of the cluster to be part of, tried in turn. Without this the server is the master of a cluster of its own,
# which others join.
# join = ["tcp:10.0.0.2:7100"]

# File with the cluster key, at least 16 random bytes, the same on all servers and clients, and readable for its user
# alone (mode 0600). Needed for TCP; a first server that has none makes one in its data folder, cluster.key.
key = "cluster.key"

# This server's own key pair, in a file that `amphi key make` has made (mode 0600): clients that have keys come in, and
# other servers know this one by it. With audit the folder of the audit log [default: audit in the data folder], and
# with audit_full what happens while that cannot be written: "go-on", or "stop" to let nobody new in and change no keys.
# identity = { file = "alpha.id", audit = "/var/log/amphi", audit_full = "go-on" }

# Permission bits of Unix sockets to listen on: who may connect. Others than root and the server's user act there as
# themselves alone.
socket_mode = "0600"

# Worker threads; the targets are spread over them [default: half of the cores that the process may use, at least 1, and
# no more than there are targets].
# workers = 4

# How long a worker polls after its last work before it sleeps, if nobody else needs the core; microseconds.
worker_spin_us = 200

# What tunables of this server begin with, by the names that `amphi get 'server.*'` shows, without "server.".
# tunables = { sync_interval_ms = 1000, checkpoint_bytes = "16M", checksums = true }

# Whether the zones lie on rotating disks: true, false, or "auto" to look at their devices. Mounts then send only larger
# requests past their caches.
rotational = "auto"
"#;

/// Permission bits, as text.
fn mode<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let text = String::deserialize(from).map_err(|_| serde::de::Error::custom("a mode is text such as \"0660\""))?;
    crate::storage::socket_mode(&text).map(Some).map_err(serde::de::Error::custom)
}

/// A level of protection.
fn secure<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Secure>, D::Error> {
    let text = String::deserialize(from);
    let text = text.map_err(|_| serde::de::Error::custom("a level is \"off\", \"mac\" or \"tls\""))?;
    crate::secure::level(&text).map(Some).map_err(serde::de::Error::custom)
}

/// A size: a number of bytes, or text such as "64M".
fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Number(u64),
        Text(String),
    }
    match Size::deserialize(from) {
        Ok(Size::Number(n)) => Ok(Some(n)),
        Ok(Size::Text(text)) => size::parse(&text).map(Some).map_err(serde::de::Error::custom),
        Err(_) => Err(serde::de::Error::custom("a size is a number of bytes or text such as \"64M\"")),
    }
}

/// A polling time.
fn spin_us<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    match u64::deserialize(from)? {
        us if us <= SPIN_US_MAX => Ok(Some(us)),
        us => Err(serde::de::Error::custom(format!("{us} us are too long to poll; give at most {SPIN_US_MAX}"))),
    }
}

/// A table of tunables.
fn tunables<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(String, String)>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Value {
        Switch(bool),
        Number(u64),
        Text(String),
    }
    let table = BTreeMap::<String, Value>::deserialize(from)
        .map_err(|_| serde::de::Error::custom("tunables are a table of names with numbers, sizes or switches"))?;
    let text = |value| match value {
        Value::Switch(on) => on.to_string(),
        Value::Number(n) => n.to_string(),
        Value::Text(text) => text,
    };
    Ok(table.into_iter().map(|(name, value)| (format!("server.{name}"), text(value))).collect())
}

impl ConfigFile {
    /// Reads a file.
    pub fn read(path: &Path) -> Outcome<ConfigFile> {
        let shown = path.display();
        let text =
            std::fs::read_to_string(path).map_err(|e| Failure::refused(format!("configuration {shown}: {e}")))?;
        let mut config = Self::parse(&text).map_err(|(line, e)| Failure::refused(format!("{shown}:{line}: {e}")))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        for file in [&mut config.data, &mut config.key, &mut config.identity.file, &mut config.identity.audit]
            .into_iter()
            .flatten()
        {
            *file = folder.join(&*file);
        }
        for addr in config.listen.iter_mut().chain(&mut config.advertise).chain(&mut config.join) {
            if let Some(path) = addr.strip_prefix("unix:").filter(|p| !p.is_empty()) {
                *addr = format!("unix:{}", folder.join(path).display());
            }
        }
        Ok(config)
    }

    /// Reads text; an error is a line number and a sentence.
    fn parse(text: &str) -> Result<ConfigFile, (usize, String)> {
        toml::from_str(text).map_err(|e| {
            let at = e.span().map_or(0, |s| s.start).min(text.len());
            let line = text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count() + 1;
            (line, e.message().lines().collect::<Vec<_>>().join(" "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the example is valid and shows every field. Method: the file is parsed once as it is, and once with the
    /// fields that it only has in comments. The error for an unknown field lists all fields.
    #[test]
    fn the_example_is_whole() {
        let config = ConfigFile::parse(EXAMPLE).expect("the example is valid");
        assert_eq!((config.targets, config.log_size, config.workers), (Some(4), Some(64 << 20), None));
        let all: Vec<String> = EXAMPLE
            .lines()
            .map(|l| if l.contains(" = ") { l.trim_start_matches("# ").into() } else { l.to_string() })
            .collect();
        let all = all.join("\n");
        let full = ConfigFile::parse(&all).expect("with all fields");
        let tunables: Vec<_> = full.tunables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(tunables, ["server.checkpoint_bytes=16M", "server.checksums=true", "server.sync_interval_ms=1000"]);
        assert_eq!((full.zone_size, full.join.len(), full.advertise.len()), (Some(1 << 40), 1, 1));
        let (_, error) = ConfigFile::parse("no_such = 1").expect_err("unknown");
        let fields: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
        assert!(fields.len() >= 12, "{error}");
        for field in fields {
            assert!(all.lines().any(|l| l.starts_with(&format!("{field} = "))), "{field} is in the example");
        }
    }

    /// Goal: errors name the line. Method: a table of bad files.
    #[test]
    fn errors_name_the_line() {
        for (text, line, words) in [
            ("data = 'd'\nworker = 3\n", 2, "unknown field"),
            ("\n\ntargets = 'many'\n", 3, "invalid type"),
            ("targets = 4\nlog_size = '12Q'\n", 2, "12Q"),
            ("targets = 4\nlog_size = true\n", 2, "a size is"),
            ("targets = 4\nworker_spin_us = 1000001\n", 2, "at most 1000000"),
            ("\ntunables = 'many'\n", 2, "tunables are a table"),
            ("rotational = 'sometimes'\n", 1, "rotational is true"),
            ("name = 'a'\n\nname = 'b'\n", 3, "duplicate"),
            ("listen = 'tcp:a:1'\n", 1, "sequence"),
            ("name\n", 1, "expected"),
        ] {
            let (at, error) = ConfigFile::parse(text).expect_err(text);
            assert_eq!(at, line, "{text:?}: {error}");
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }
}
