//! Checking a stopped server's folder: every zone by itself, and all of them together.
//!
//! Owns: the checks that need more than one zone or more than one store. Does not own: the checks of a zone
//! (`amphi_zone::fsck`), of names (`amphi_meta::verify_cluster`), of extents (`amphi_data::fsck_items`).
//! File data itself is read only where that is requested (`data`).
//!
//! Zones are opened for reading and nothing is changed. Operations over several targets that a crash interrupted are
//! listed, and finished in memory as the next start would finish them. So the check sees the state that a client would
//! see. Only a repair (`repair`) writes.

mod cluster;
mod data;
mod repair;

pub use repair::{RepairPlan, plan_repair};

use crate::error::{ServerError, ServerErrorKind};
use crate::folder;
use crate::records::{self, HomeRecord, Intent, Item, TxId};
use amphi_data::DataReport;
use amphi_env::Env;
use amphi_meta::MetaStore;
use amphi_types::item::{ItemStore, tag};
use amphi_types::{SessionId, TargetId, Timespec};
use amphi_wire::ClusterMap;
use amphi_zone::ZoneErrorKind;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Most findings that a report keeps; a damaged folder could have millions.
pub const FINDINGS_MAX: usize = 1000;

/// Something that a sound folder does not contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The place of the fault, for people.
    pub place: String,
    /// The kind of damage at that place.
    pub reason: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.reason)
    }
}

/// The findings of the check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Id of the cluster.
    pub cluster: u64,
    /// Zones read.
    pub zones: u64,
    /// All inodes, including directories and inodes without a name.
    pub inodes: u64,
    /// Inodes that are directories.
    pub directories: u64,
    /// Inodes without a name: they go with the sessions that have them open.
    pub orphans: u64,
    /// Objects of files.
    pub objects: u64,
    /// Blocks of 4096 bytes that files hold.
    pub blocks: u64,
    /// Blocks of file data that were read and match their checksums; blocks that have none; blocks that do not match or
    /// cannot be read. Without a check of data these are 0.
    pub verified_blocks: u64,
    /// Blocks of file data without a checksum.
    pub unverified_blocks: u64,
    /// Blocks of file data that do not match their checksums or cannot be read.
    pub damaged_blocks: u64,
    /// Sessions that may reconnect.
    pub sessions: u64,
    /// Targets of other servers, whose folders were not given: consistency with those was not checked.
    pub elsewhere: u64,
    /// Work that the next start completes, one sentence each.
    pub pending: Vec<String>,
    /// Traces of a crash that opening repairs.
    pub notes: Vec<String>,
    /// Damage.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Returns whether nothing is damaged.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    fn find(&mut self, place: impl Into<String>, reason: impl Into<String>) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { place: place.into(), reason: reason.into() });
        }
    }
}

/// The content of one zone.
struct ZoneImage {
    path: String,
    /// The means to read the zone's file data, if the data is to be read.
    store: Option<data::ZoneData>,
    target: TargetId,
    meta: MetaStore,
    data: DataReport,
    prepared: BTreeMap<TxId, (Timespec, Vec<amphi_meta::Part>)>,
    committed: BTreeSet<TxId>,
    decided: BTreeMap<TxId, cluster::Decided>,
    applied: BTreeSet<TxId>,
    /// The zone has items: the first start of the server has got as far as writing them.
    begun: bool,
    /// The basis of a repair.
    basis: repair::Basis,
    pool: Option<u16>,
    home: Option<HomeRecord>,
    map: Option<ClusterMap>,
}

/// Whether file data is read and verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckData {
    /// Only the metadata of the file data is checked.
    No,
    /// All file data is read.
    Yes,
}

/// Checks the folder of a stopped server, with its file data. Changes nothing.
///
/// Errors: only when there is nothing to check: no zones or those of another format version (`Mismatch`), a server that
/// runs (`InUse`), files that cannot be read (`Unreachable`). Damage is in the report.
pub async fn fsck<E: Env>(env: &E, dir: &str) -> Result<Report, ServerError> {
    fsck_folders(&[(env.clone(), dir.to_string())], CheckData::Yes).await
}

/// Checks the folders of stopped servers of one cluster together. Consistency between zones is checked if all zones of
/// the cluster are in them and can be read, otherwise only each zone in itself.
///
/// Errors: as `fsck`, and `Mismatch` if the folders are those of several clusters, or have a target twice.
pub async fn fsck_folders<E: Env>(folders: &[(E, String)], check_data: CheckData) -> Result<Report, ServerError> {
    Ok(read_folders(folders, check_data).await?.0)
}

async fn read_folders<E: Env>(
    folders: &[(E, String)],
    check_data: CheckData,
) -> Result<(Report, Vec<ZoneImage>), ServerError> {
    let mut report = Report::default();
    let (mut images, mut found) = (Vec::new(), 0);
    for (folder, (env, dir)) in folders.iter().enumerate() {
        let zones = folder::zones(env, dir)?;
        if zones.is_empty() {
            let line = format!("{dir}: there are no zones here; give the folder that `amphi server --data` was given");
            return Err(ServerError::new(ServerErrorKind::Mismatch, line));
        }
        found += zones.len();
        let (before, mut cluster) = (images.len(), 0);
        for &index in &zones {
            if let Some(mut image) = read_zone(env, dir, index, check_data, &mut cluster, &mut report).await? {
                image.basis.folder = folder;
                images.push(image);
            }
        }
        if report.cluster == 0 {
            report.cluster = cluster;
        } else if ![0, report.cluster].contains(&cluster) {
            let (first, own) = (&folders[0].1, report.cluster);
            let line =
                format!("{dir} belongs to cluster {cluster:016x}, {first} to {own:016x}; check each cluster by itself");
            return Err(ServerError::new(ServerErrorKind::Mismatch, line));
        }
        if images.len() - before == zones.len() {
            cluster::check_folder(dir, &zones, &images[before..], &mut report);
        }
        if zones.first() == Some(&0)
            && let Err(e) = folder::check_complete(dir, &zones)
        {
            report.find(dir, e.line);
        }
    }
    report.zones = found as u64;
    let mut seen = BTreeMap::new();
    for image in &images {
        if let Some(other) = seen.insert(image.target, &image.path) {
            let line =
                format!("{other} and {} are both of {}; give the folder of each server once", image.path, image.target);
            return Err(ServerError::new(ServerErrorKind::Mismatch, line));
        }
    }
    if images.len() == found {
        images.sort_by_key(|i| i.target);
        cluster::finish_intents(&mut images, &mut report);
        cluster::check(&images, &mut report);
    } else {
        cluster::check_each(&images, &mut report);
    }
    if check_data == CheckData::Yes {
        let envs: Vec<E> = folders.iter().map(|(env, _)| env.clone()).collect();
        data::check(&envs, &images, &mut report).await;
    }
    Ok((report, images))
}

async fn read_zone<E: Env>(
    env: &E,
    dir: &str,
    index: u16,
    check_data: CheckData,
    cluster: &mut u64,
    report: &mut Report,
) -> Result<Option<ZoneImage>, ServerError> {
    let path = crate::config::zone_path(dir, index);
    let zone = match amphi_zone::fsck(env, &path).await {
        Ok(zone) => zone,
        // A zone of another version does not count as damaged, because this program cannot check it.
        Err(e) if matches!(e.kind, ZoneErrorKind::Busy | ZoneErrorKind::Missing | ZoneErrorKind::Version) => {
            return Err(folder::zone_error(e));
        }
        Err(e) => {
            report.find(e.place, e.text);
            return Ok(None);
        }
    };
    report.notes.extend(zone.notes.iter().map(|n| format!("{path}: {n}")));
    if !zone.problems.is_empty() {
        zone.problems.into_iter().for_each(|p| report.find(p.place, p.text));
        return Ok(None);
    }
    if zone.target.0 != index {
        report.find(&path, format!("is the zone of {}", zone.target));
        return Ok(None);
    }
    if *cluster == 0 {
        *cluster = zone.cluster;
    } else if zone.cluster != *cluster {
        report.find(&path, format!("belongs to cluster {:016x}, not {cluster:016x}", zone.cluster));
    }
    let mut image = ZoneImage {
        target: zone.target,
        meta: MetaStore::empty(zone.target),
        data: amphi_data::fsck_items(zone.items.iter().map(|(k, v)| (&**k, &**v)), zone.data_blocks),
        prepared: BTreeMap::new(),
        committed: BTreeSet::new(),
        decided: BTreeMap::new(),
        applied: BTreeSet::new(),
        begun: !zone.items.is_empty(),
        pool: None,
        home: None,
        map: None,
        basis: repair::Basis::of(&zone),
        store: None,
        path,
    };
    if check_data == CheckData::Yes && image.data.problems.is_empty() {
        image.store = data::ZoneData::of(&zone.items, zone.data_blocks, zone.data_offset);
    }
    if zone.items.is_empty() {
        report.notes.push(format!("{}: nothing was begun in it: its first start was interrupted", image.path));
    }
    let (mut sessions, mut slots) = (BTreeSet::new(), BTreeMap::new());
    for (key, value) in &zone.items {
        let loaded = match key.first().copied() {
            Some(tag::INODE | tag::DENTRY | tag::XATTR | tag::META) => image.meta.load(key, value),
            Some(tag::OBJECT | tag::EXTENT | tag::DELAYED | tag::LOGGED | tag::CHECKSUM | tag::GRANT) => Ok(()),
            _ => load_item(&mut image, key, value, &mut sessions, &mut slots, report),
        };
        if let Err(text) = loaded {
            image.basis.has_undecoded = true;
            report.find(&image.path, text);
        }
    }
    image.meta.place_early_names();
    for (id, slot) in slots.iter().filter(|(id, _)| !sessions.contains(id)) {
        report.find(&image.path, format!("slot {slot} belongs to session {:x}, which does not exist", id.0));
    }
    report.sessions = report.sessions.max(sessions.len() as u64);
    image.basis.has_operations = !(image.prepared.is_empty() && image.committed.is_empty() && image.decided.is_empty());
    let delayed: u64 = image.data.delayed.values().sum();
    if delayed > 0 {
        let line = format!(
            "{}: {delayed} bytes of accepted writes lie in memory or in the log; the next start writes them",
            image.path
        );
        report.pending.push(line);
    }
    let problems: Vec<String> = image.data.problems.clone();
    problems.into_iter().for_each(|text| report.find(&image.path, text));
    Ok(Some(image))
}

fn load_item(
    image: &mut ZoneImage,
    key: &[u8],
    value: &[u8],
    sessions: &mut BTreeSet<SessionId>,
    slots: &mut BTreeMap<SessionId, u16>,
    report: &mut Report,
) -> Result<(), String> {
    match records::decode_item(key, value)? {
        Item::Session(id, _) => drop(sessions.insert(id)),
        Item::CutOff(_) | Item::Quota(..) | Item::OtherAnswer => {}
        Item::Slot(id, slot, _) => {
            // Keys of slots come before keys of sessions, so slots without a session are found at the end.
            slots.entry(id).or_insert(slot);
        }
        Item::Cluster(record) => image.pool = Some(record.pool),
        Item::Home(home) => image.home = Some(home),
        Item::Map(map) => image.map = Some(map),
        // The code that uses the registry checks whether it is valid (`membership::keys`).
        Item::Keys(_) => {}
        Item::Intent(Intent::Prepared { tx, now, parts }) => {
            let text = format!(
                "{}: {} changes of operation {} of {} are promised",
                image.path,
                parts.len(),
                tx.number,
                tx.coordinator
            );
            report.pending.push(text);
            image.prepared.insert(tx, (now, parts));
        }
        Item::Intent(Intent::Committed { tx, participants }) => {
            let text = format!("{}: operation {} is decided, {participants:?} may not know", image.path, tx.number);
            report.pending.push(text);
            image.committed.insert(tx);
        }
        Item::Intent(Intent::Decided { tx, now, parts }) => drop(image.decided.insert(tx, (now, parts))),
        Item::Intent(Intent::Applied { tx }) => drop(image.applied.insert(tx)),
    }
    Ok(())
}
