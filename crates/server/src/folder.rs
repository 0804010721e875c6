//! The data folder: which zones it contains, making zones, and opening one.
//!
//! Owns: file names, and that a folder holds a server's zones or nothing. Does not own: the inside of a zone.
//!
//! Zones of a new cluster are made from the last to the first. So a folder without `target-0000.zone` is one whose
//! first start did not finish.

use crate::cluster::follower::{Enlisted, enlist};
use crate::config::{NewZones, ServerConfig, zone_index, zone_name, zone_path};
use crate::counters::Counters;
use crate::error::{ServerError, ServerErrorKind};
use crate::ops::flush_agent;
use crate::tunables::{Tunable, Tunables};
use crate::zone_target::recover::Loading;
use crate::zone_target::{Target, residency};
use amphi_env::{Disk, Env};
use amphi_object::DiskQueue;
use amphi_types::TargetId;
use amphi_zone::{OnFailure, OpenOptions, Zone, ZoneError, ZoneErrorKind, ZoneParams};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::rc::Rc;

/// Indexes of the zones in folder `dir`, ascending. The list is empty if there is no such folder.
pub fn zones<E: Env>(env: &E, dir: &str) -> Result<Vec<u16>, ServerError> {
    match env.list(dir) {
        Ok(names) => {
            let mut found: Vec<u16> = names.iter().filter_map(|n| zone_index(n)).collect();
            found.sort_unstable();
            Ok(found)
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(ServerError::io(dir, &e)),
    }
}

/// Name of the key in a data folder that its server made, or that was put there for it.
pub const OWN_KEY: &str = "cluster.key";

/// The permitted contents of a folder before its zones are made: the folder that a new file system has in its root, and
/// a key.
const NOT_FOREIGN: [&str; 2] = ["lost+found", OWN_KEY];

/// Refuses to make zones among other people's files.
fn check_empty<E: Env>(env: &E, dir: &str) -> Result<(), ServerError> {
    let names = match env.list(dir) {
        Ok(names) => names,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(ServerError::io(dir, &e)),
    };
    match names.iter().find(|n| !NOT_FOREIGN.contains(&n.as_str())) {
        None => Ok(()),
        Some(name) => Err(ServerError::new(
            ServerErrorKind::Mismatch,
            format!("{dir}: holds no zones but other things ({name}); give an empty folder or a new one"),
        )),
    }
}

/// Refuses to make new zones unless this was requested, because a folder without zones may be the mount point of a disk
/// that is not mounted.
fn check_wanted(dir: &str, new: NewZones) -> Result<(), ServerError> {
    if new != NewZones::Refused {
        return Ok(());
    }
    Err(ServerError::new(
        ServerErrorKind::Mismatch,
        format!(
            "{dir}: holds no zones: is its disk mounted? If a new server shall begin there, say so once with --format"
        ),
    ))
}

/// Checks that the zones found are `0..n`. Returns n.
pub fn check_complete(dir: &str, found: &[u16]) -> Result<u16, ServerError> {
    let bad = |line: String| Err(ServerError::new(ServerErrorKind::Mismatch, line));
    for (i, &index) in found.iter().enumerate() {
        let wanted = i as u16;
        if index == wanted {
            continue;
        }
        if wanted == 0 {
            return bad(format!(
                "{}: missing: either put it back, or, if the first start of this folder was interrupted, remove \
                 its target-*.zone files and start again",
                zone_path(dir, 0)
            ));
        }
        return bad(format!("{}: missing, but {} is there; put it back", zone_path(dir, wanted), zone_name(index)));
    }
    Ok(found.len() as u16)
}

/// The purpose for which a folder was prepared.
pub(crate) struct Prepared {
    /// The targets of the folder, ascending.
    pub(crate) targets: Vec<TargetId>,
    /// The master's data for a server that is new in its cluster.
    pub(crate) enlisted: Option<Enlisted>,
}

/// Prepares the folder. If it has no zones, they are made, with numbers from the master if another server is the
/// master. `addrs`: where others reach this server.
pub(crate) async fn prepare<E: Env>(env: &E, config: &ServerConfig, addrs: &[String]) -> Result<Prepared, ServerError> {
    let dir = &config.data_dir;
    let found = zones(env, dir)?;
    if found.is_empty() {
        check_empty(env, dir)?;
        check_wanted(dir, config.new_zones)?;
        let count = config.targets.unwrap_or(ServerConfig::TARGETS);
        check_room(env, config, count)?;
        let enlisted = match config.join.is_empty() {
            true => None,
            false => Some(enlist(env, config, addrs).await?),
        };
        let (cluster, targets) = match &enlisted {
            Some(e) => (e.map.cluster, e.targets.clone()),
            None => (env.rand(), (0..count).map(TargetId).collect()),
        };
        format(env, config, cluster, &targets).await?;
        return Ok(Prepared { targets, enlisted });
    }
    if config.new_zones == NewZones::Wanted {
        let line = format!("{dir} holds zones already, which stay as they are; start it without --format");
        return Err(ServerError::new(ServerErrorKind::Mismatch, line));
    }
    if config.join.is_empty() || found.first() == Some(&0) {
        check_complete(dir, &found)?;
    }
    let (count, first) = (found.len() as u16, found.first().copied().unwrap_or(0));
    if first == 0 && !config.join.is_empty() {
        let line = format!("{dir} has the master's zones, so its server does not join; start it as the master");
        return Err(ServerError::new(ServerErrorKind::Mismatch, line));
    }
    match config.targets {
        Some(n) if n != count => Err(ServerError::new(
            ServerErrorKind::Mismatch,
            format!("{dir} has {count} targets, not {n}; start it with {count}, or give another folder"),
        )),
        _ => Ok(Prepared { targets: found.into_iter().map(TargetId).collect(), enlisted: None }),
    }
}

/// Free bytes where a folder will be made, if they can be determined.
fn free_near<E: Env>(env: &E, dir: &str) -> Option<u64> {
    let mut at = dir.trim_end_matches('/');
    loop {
        match env.free_bytes(if at.is_empty() { "/" } else { at }) {
            Ok(free) => return Some(free),
            Err(e) if e.kind() == ErrorKind::NotFound && !at.is_empty() && at != "." => {
                at = at.rsplit_once('/').map_or(".", |(parent, _)| parent);
            }
            Err(_) => return None,
        }
    }
}

/// Called before the folder is made, so that a refusal changes nothing.
fn check_room<E: Env>(env: &E, config: &ServerConfig, count: u16) -> Result<(), ServerError> {
    match free_near(env, &config.data_dir) {
        Some(free) => config.new_zone_bytes(count, free).map(drop),
        None => Ok(()),
    }
}

async fn format<E: Env>(env: &E, config: &ServerConfig, cluster: u64, targets: &[TargetId]) -> Result<(), ServerError> {
    let dir = &config.data_dir;
    env.make_dir(dir).map_err(|e| ServerError::io(dir, &e))?;
    let free = env.free_bytes(dir).map_err(|e| ServerError::io(dir, &e))?;
    let size_bytes = config.new_zone_bytes(targets.len() as u16, free)?;
    let log_bytes = config.log_bytes.min(size_bytes / 4) / (1 << 20) * (1 << 20);
    for &target in targets.iter().rev() {
        let params = ZoneParams { size_bytes, log_bytes, cluster, target };
        Zone::<E>::format(env, &config.zone_path(target.0), &params).await.map_err(zone_error)?;
    }
    Ok(())
}

/// Opens the zone of target `index` and loads the target. Nothing is written to the zone yet. `queues`: of the worker's
/// disks, by device.
pub async fn open_target<E: Env>(
    env: &E,
    config: &ServerConfig,
    tunables: &Tunables,
    index: u16,
    pool: u16,
    counters: &Rc<Counters>,
    queues: &mut BTreeMap<u64, Rc<DiskQueue>>,
) -> Result<Rc<Target<E>>, ServerError> {
    let path = config.zone_path(index);
    let told = config.zone_failed.clone();
    let on_failure = OnFailure(Some(Rc::new(move |line: &str| told(line))));
    let keeps = tunables.on(Tunable::LogMemory);
    let options = OpenOptions { target: Some(TargetId(index)), keeps, on_failure, ..OpenOptions::default() };
    let mut found = Zone::find(env, &path, &options).await.map_err(zone_error)?;
    let inodes_max = residency::bytes_max(config.inodes_bytes, tunables);
    let mut loading = Loading::new(found.target(), found.data_blocks(), inodes_max);
    found.items(|key, value| loading.take(key, value)).await.map_err(zone_error)?;
    loading.finish().map_err(|text| {
        ServerError::new(
            ServerErrorKind::Corrupt,
            format!("{path}: {text}; run `amphi fsck` on the folder and restore it from a copy"),
        )
    })?;
    let (zone, recovered) = found.open().await.map_err(zone_error)?;
    for note in &recovered.notes {
        tracing::info!("{path}: {note}");
    }
    if recovered.rebuilt > 0 {
        tracing::warn!("{path}: {} damaged blocks of metadata were rebuilt; look at the disk", recovered.rebuilt);
    }
    let deadline_ns = config.callback_deadline.as_nanos() as u64;
    let reads = queues.entry(zone.disk().device()).or_default().clone();
    let owner = config.root_owner;
    let (target, flush_rung) =
        Target::recover(env, zone, &recovered, loading, pool, deadline_ns, owner, counters.clone(), reads);
    target.queues.inodes.configure(config.inodes_bytes);
    env.spawn(flush_agent(env.clone(), Rc::downgrade(&target), flush_rung));
    target.storage.rotating.set((config.machine.is_rotating)(&path));
    let (env, dir) = (env.clone(), config.data_dir.clone());
    let (clock, sharing) = (env.clone(), zones(&env, &dir)?.len() as u64);
    target.storage.below.begin(&target, move || env.free_bytes(&dir).ok(), move || clock.now().0, sharing);
    Ok(target)
}

/// A zone's error as a line for the user who starts the server.
pub fn zone_error(e: ZoneError) -> ServerError {
    let (kind, advice) = match e.kind {
        ZoneErrorKind::Busy => {
            return ServerError::new(
                ServerErrorKind::InUse,
                format!("{}: another server uses this folder; stop it first, or give this one its own folder", e.place),
            );
        }
        ZoneErrorKind::Unfinished => (
            ServerErrorKind::Mismatch,
            "if this folder was ever in use, restore it from a copy; only if its first start was interrupted, remove the \
             target-*.zone files and start again",
        ),
        ZoneErrorKind::Version => (ServerErrorKind::Mismatch, "use the version of amphi that made it"),
        ZoneErrorKind::Cluster | ZoneErrorKind::Target => (ServerErrorKind::Mismatch, "put back the right one"),
        // Only a file with the name of a zone is opened as one, so this file is a damaged zone.
        ZoneErrorKind::Corrupt | ZoneErrorKind::NotAZone => {
            (ServerErrorKind::Corrupt, "copy the folder, run `amphi fsck` and restore it from a copy")
        }
        ZoneErrorKind::NoSpace => (ServerErrorKind::NoSpace, "free some space, or ask for smaller zones"),
        ZoneErrorKind::Params => (ServerErrorKind::Config, "choose other sizes"),
        ZoneErrorKind::Io | ZoneErrorKind::Exists | ZoneErrorKind::Missing => {
            (ServerErrorKind::Unreachable, "check the path and its rights")
        }
    };
    ServerError::new(kind, format!("{e}; {advice}"))
}
