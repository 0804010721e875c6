//! `ServerConfig`: the settings with which a server is started.

use amphi_env::addr::Addr;
use amphi_env::memory_groups;
use amphi_transport::{ClusterKey, Identity, Secure, ServerAuth, check_listen, is_unix};
use amphi_types::limits::{BLOCK, TARGETS_MAX};
use amphi_types::setting::words;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{ServerError, ServerErrorKind};

/// Most addresses of a server.
pub const ADDRS_MAX: usize = 16;
/// Most bytes of a server's name.
pub const NAME_MAX: usize = 255;
/// Smallest zone in bytes: superblock, log and some space for data.
pub const ZONE_MIN_BYTES: u64 = 16 << 20;
/// Smallest log, bytes.
pub const LOG_MIN_BYTES: u64 = 1 << 20;
/// Largest zone that is made by default, bytes: the bitmap of a zone is kept in memory (32 MiB for this size).
pub const ZONE_AUTO_MAX_BYTES: u64 = 1 << 40;

/// Most workers of a server. Every two share a pair of rings, and machines with more cores than this are rare.
pub const WORKERS_MAX: u16 = 256;

/// Says whether the holder of a session, by its `host:pid`, is known to have ended.
pub type HolderGone = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Returns whether the zone at this path is on rotating storage.
pub type IsRotating = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Reads a small text file such as `/proc/meminfo`; `None` if it cannot be read.
pub type ReadFile = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The memory of a target for its read cache if the size of the machine's memory is not known, in bytes.
const READ_CACHE_BYTES: u64 = 16 << 20;
/// If no size is configured, the read cache gets one part in this many of the memory. A server has four targets by
/// default.
const READ_CACHE_SHARE: u64 = 256;
/// The read cache has at most this many bytes if no size is configured.
const READ_CACHE_MAX_BYTES: u64 = 1 << 30;

/// Properties of the machine that a server needs to know.
#[derive(Clone)]
pub struct Machine {
    /// Returns whether a zone is on rotating storage. It is called once for each zone at the start, when the zone
    /// exists.
    pub is_rotating: IsRotating,
    /// Reads `/proc/meminfo` and the files of memory groups; without it memory is never short.
    pub read_file: Option<ReadFile>,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine { is_rotating: Arc::new(|_| false), read_file: None }
    }
}

impl Machine {
    /// The default of `server.read_cache_bytes`.
    pub fn read_cache_bytes(&self) -> u64 {
        let all = self.read_file.as_ref().and_then(|read| memory_groups::usable_bytes(&**read));
        all.map_or(READ_CACHE_BYTES, |bytes| (bytes / READ_CACHE_SHARE).min(READ_CACHE_MAX_BYTES))
    }
}

/// The handling of a data folder without zones, which may be empty or belong to a disk that is not mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NewZones {
    /// Zones are made in the folder.
    #[default]
    Made,
    /// The folder is refused.
    Refused,
    /// Zones are made in the folder, as was requested. A folder that has zones is refused.
    Wanted,
}

/// Called with a sentence on the thread of a zone that has failed, before any request that waits for the zone is
/// answered.
pub type ZoneFailed = Arc<dyn Fn(&str) + Send + Sync>;

/// Takes one line of the audit log, without its end. Returns whether the log has stored the line.
pub type AuditSink = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// The behaviour while the audit log cannot be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuditFull {
    /// The server continues, and reports it in its log.
    #[default]
    GoOn,
    /// No new client is admitted, and no key is changed.
    Stop,
}

/// The settings with which a server is started. They are cheap to clone; every worker has a copy.
#[derive(Clone)]
pub struct ServerConfig {
    /// Folder with the zones.
    pub data_dir: String,
    /// Whether to make zones in the folder if it has none.
    pub new_zones: NewZones,
    /// Number of targets, for the first start. A later start uses the zones that it finds, and refuses to start if this
    /// number differs.
    pub targets: Option<u16>,
    /// Addresses to listen on: `unix:PATH`, `tcp:HOST:PORT`.
    pub listen: Vec<String>,
    /// How connections to addresses on TCP are protected.
    pub secure: Secure,
    /// Addresses of `listen` for which that is different.
    pub secure_exceptions: BTreeMap<String, Secure>,
    /// The least protection of connections that this server makes to other servers.
    pub peers_secure: Secure,
    /// Addresses of the master, for a server that is not the master: it has none of target 0 and joins a cluster.
    /// Empty: this server is the master.
    pub join: Vec<String>,
    /// Addresses under which mounts and other servers reach this one. If the list is empty, these are the addresses on
    /// which it listens.
    pub advertise: Vec<String>,
    /// The name of the server, for users.
    pub name: String,
    /// Cluster key that connections must prove. With `None` the server listens only on Unix sockets, where the kernel
    /// identifies clients.
    pub key: Option<Vec<u8>>,
    /// The server's own key pair. With it clients may connect by their own keys, and other servers can identify this
    /// one.
    pub identity: Option<Identity>,
    /// Takes lines of the audit log. `None` means that there is no audit log.
    pub audit: Option<AuditSink>,
    /// The behaviour while the audit log cannot be written.
    pub audit_full: AuditFull,
    /// Unix sockets need no key, though there is one for other addresses.
    pub unix_without_key: bool,
    /// Permission bits of Unix sockets, which decide which users may connect.
    pub socket_mode: u32,
    /// The user who runs the server. He and root may send every request, even without a key.
    pub owner_uid: u32,
    /// Most workers, at least 1. There is at most one worker for each target. The server's targets are assigned to them
    /// in turn.
    pub workers: u16,
    /// Whether the number of workers was set explicitly. In that case a message is logged if there are fewer targets.
    pub workers_wanted: bool,
    /// Size of a new zone in bytes. `None` means 90 % of the free space divided by the number of targets.
    pub zone_bytes: Option<u64>,
    /// Size of a new zone's log in bytes.
    pub log_bytes: u64,
    /// User and group that own the root directory of a new cluster.
    pub root_owner: (u32, u32),
    /// How long the session of a disconnected mount is kept.
    pub session_grace: Duration,
    /// How long a client may take to answer a lock callback without progress.
    pub callback_deadline: Duration,
    /// Initial value of the tunable: free bytes of a target, for each mount, from which on large writes may return
    /// before they have landed.
    pub roomy_bytes: u64,
    /// How long a worker polls after its last work: the initial value of the tunable. The threads set it by themselves.
    pub worker_spin: Duration,
    /// Memory of each target for inodes, bytes. `None`: as much as the read cache may have (`server.read_cache_bytes`),
    /// and at least 16 MiB. With 0, which is for tests, no inode that may leave memory stays longer than a request.
    pub inodes_bytes: Option<usize>,
    /// Names or patterns of tunables, and the values that they begin with.
    pub tunables: Vec<(String, String)>,
    /// Returns whether a session's process is known to have ended, so that the session need not be kept.
    pub holder_gone: HolderGone,
    /// The machine on which the server runs.
    pub machine: Machine,
    /// The behaviour when a zone fails. By default it does nothing: the target answers EIO until the server is started
    /// again.
    pub zone_failed: ZoneFailed,
}

impl ServerConfig {
    /// Number of targets of a cluster by default.
    pub const TARGETS: u16 = 4;

    /// How connections over TCP are protected by default: an administrator who gave a cluster a key does not trust all
    /// users of its network, and signing costs about as much as the checksums that it replaces.
    pub const SECURE: Secure = Secure::Mac;

    /// The defaults for a folder.
    pub fn new(data_dir: impl Into<String>) -> ServerConfig {
        ServerConfig {
            data_dir: data_dir.into(),
            new_zones: NewZones::default(),
            targets: None,
            listen: Vec::new(),
            secure: ServerConfig::SECURE,
            secure_exceptions: BTreeMap::new(),
            peers_secure: Secure::Off,
            join: Vec::new(),
            advertise: Vec::new(),
            name: "server".into(),
            key: None,
            identity: None,
            audit: None,
            audit_full: AuditFull::default(),
            unix_without_key: false,
            socket_mode: 0o600,
            owner_uid: 0,
            workers: 1,
            workers_wanted: false,
            zone_bytes: None,
            // 64 MiB hold some 100,000 operations: at 50,000 operations a second a checkpoint has a second to run.
            log_bytes: 64 << 20,
            root_owner: (0, 0),
            session_grace: Duration::from_secs(30),
            callback_deadline: Duration::from_secs(30),
            roomy_bytes: 128 << 20,
            worker_spin: Duration::ZERO,
            inodes_bytes: None,
            tunables: Vec::new(),
            holder_gone: Arc::new(|_| false),
            machine: Machine::default(),
            zone_failed: Arc::new(|_| {}),
        }
    }

    /// Checks what can be checked without looking at the folder.
    pub fn check(&self) -> Result<(), ServerError> {
        let bad = |line: String| Err(ServerError::new(ServerErrorKind::Config, line));
        if self.workers == 0 || self.workers > WORKERS_MAX {
            return bad(format!("{} workers make no sense; give between 1 and {WORKERS_MAX}", self.workers));
        }
        if let Some(n) = self.targets
            && (n == 0 || usize::from(n) > TARGETS_MAX)
        {
            return bad(format!("{n} targets make no sense; give between 1 and {TARGETS_MAX}"));
        }
        if self.log_bytes < LOG_MIN_BYTES {
            let (own, least) = (words(self.log_bytes), words(LOG_MIN_BYTES));
            return bad(format!("a log of {own} is too small; give at least {least}"));
        }
        if let Some(z) = self.zone_bytes
            && z < ZONE_MIN_BYTES.max(self.log_bytes + (8 << 20))
        {
            return bad(format!(
                "a zone of {} is too small for a log of {}; give at least {}",
                words(z),
                words(self.log_bytes),
                words(ZONE_MIN_BYTES.max(self.log_bytes + (8 << 20)))
            ));
        }
        let auth = self.auth()?;
        for addr in &self.listen {
            let refused = |line: String| ServerError::new(ServerErrorKind::Listen, line);
            Addr::parse(addr).map_err(|e| refused(format!("cannot listen: {e}")))?;
            check_listen(addr, &auth).map_err(|e| refused(e.to_string()))?;
        }
        for addr in self.join.iter().chain(&self.advertise) {
            Addr::parse(addr).map_err(|e| ServerError::new(ServerErrorKind::Config, format!("no address: {e}")))?;
        }
        if !self.join.is_empty() && self.listen.is_empty() {
            return bad("a server that joins a cluster needs an address that others reach it under; give one".into());
        }
        if self.advertise.len() > ADDRS_MAX || self.listen.len() > ADDRS_MAX || self.name.len() > NAME_MAX {
            return bad(format!("at most {ADDRS_MAX} addresses, and {NAME_MAX} bytes of name"));
        }
        Ok(())
    }

    /// The key of which this server and its peers prove the possession to each other.
    pub fn cluster_key(&self) -> Result<Option<ClusterKey>, ServerError> {
        Ok(self.auth()?.key)
    }

    /// The credentials that connections must prove.
    pub fn auth(&self) -> Result<ServerAuth, ServerError> {
        let key = self.key.as_deref().map(ClusterKey::new).transpose();
        let key = key.map_err(|e| ServerError::new(ServerErrorKind::Config, e.to_string()))?;
        let identity = self.identity.clone();
        let (unix_without_key, owner, secure) = (self.unix_without_key, self.owner_uid, self.secure);
        Ok(ServerAuth { key, identity, unix_without_key, owner, secure })
    }

    /// How connections to an address of `listen` are protected.
    pub fn secure_of(&self, addr: &str) -> Secure {
        if is_unix(addr) { Secure::Off } else { self.secure_exceptions.get(addr).copied().unwrap_or(self.secure) }
    }

    /// Path of the zone of target `index`.
    pub fn zone_path(&self, index: u16) -> String {
        zone_path(&self.data_dir, index)
    }

    /// Size of each of `targets` new zones when `free` bytes are free.
    pub fn new_zone_bytes(&self, targets: u16, free: u64) -> Result<u64, ServerError> {
        let wanted = self.zone_bytes.unwrap_or((free / 10 * 9 / u64::from(targets.max(1))).min(ZONE_AUTO_MAX_BYTES));
        let bytes = wanted / BLOCK * BLOCK;
        let least = ZONE_MIN_BYTES.max(self.log_bytes + (8 << 20));
        if bytes < least {
            return Err(ServerError::new(
                ServerErrorKind::NoSpace,
                format!(
                    "{}: {} free are too few for {targets} zones of at least {}; free some space \
                     or ask for fewer targets or a smaller log",
                    self.data_dir,
                    words(free),
                    words(least)
                ),
            ));
        }
        let all = bytes.saturating_mul(u64::from(targets));
        if all > free {
            return Err(ServerError::new(
                ServerErrorKind::NoSpace,
                format!(
                    "{}: {targets} zones of {} need {}, {} are free; ask for smaller or fewer zones",
                    self.data_dir,
                    words(bytes),
                    words(all),
                    words(free)
                ),
            ));
        }
        Ok(bytes)
    }
}

/// Path of the zone of target `index` in folder `dir`.
pub fn zone_path(dir: &str, index: u16) -> String {
    format!("{}/{}", dir.trim_end_matches('/'), zone_name(index))
}

/// File name of the zone of target `index`.
pub fn zone_name(index: u16) -> String {
    format!("target-{index:04}.zone")
}

/// Index of the target whose zone has this file name.
pub fn zone_index(name: &str) -> Option<u16> {
    let index: u16 = name.strip_prefix("target-")?.strip_suffix(".zone")?.parse().ok()?;
    (zone_name(index) == name).then_some(index)
}

/// The configuration, shared by the tasks of a worker.
pub type SharedConfig = Rc<ServerConfig>;

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: names of zones and indexes are a bijection, and foreign names are not taken for zones.
    #[test]
    fn zone_names_round_trip() {
        for i in [0u16, 7, 9999, 65535] {
            assert_eq!(zone_index(&zone_name(i)), Some(i));
        }
        for name in ["target-7.zone", "target-00007.zone", "target-0007.zone.bak", "x", "target--001.zone"] {
            assert_eq!(zone_index(name), None, "{name}");
        }
    }

    /// Goal: bad addresses are refused before anything is made. Method: a table of address, key, words of the line.
    #[test]
    fn bad_addresses_are_refused() {
        for (addr, key, words) in [
            ("smoke", None, "unknown form"),
            ("tcp:127.0.0.1:99999", None, "the port"),
            ("tcp:0.0.0.0:0", None, "--key"),
            ("tcp:127.0.0.1:0", None, "--key"),
            ("tcp:0.0.0.0:0", Some(b"1234567890123456".to_vec()), "can be guessed"),
            ("tcp:0.0.0.0:0", Some(b"short".to_vec()), "at least 16"),
        ] {
            let mut config = ServerConfig::new("d");
            config.listen = vec![addr.into()];
            config.key = key;
            let line = config.check().unwrap_err().line;
            assert!(line.contains(words), "{addr}: {line}");
        }
    }

    /// Goal: silly sizes are refused with one clear line.
    #[test]
    fn silly_sizes_are_refused() {
        let mut config = ServerConfig::new("d");
        assert!(config.check().is_ok());
        config.targets = Some(0);
        assert_eq!(config.check().unwrap_err().kind, ServerErrorKind::Config);
        config.targets = None;
        config.zone_bytes = Some(4096);
        assert!(config.check().unwrap_err().line.contains("too small"));
        config.zone_bytes = Some(1 << 40);
        assert_eq!(config.new_zone_bytes(4, 1 << 41).unwrap_err().kind, ServerErrorKind::NoSpace, "too many in all");
        config.zone_bytes = None;
        assert_eq!(config.new_zone_bytes(4, 1 << 20).unwrap_err().kind, ServerErrorKind::NoSpace);
        assert_eq!(config.new_zone_bytes(4, 40 << 30).unwrap(), 9 << 30);
    }
}
