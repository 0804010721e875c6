//! Repair of the folders of stopped servers: a plan first, then its changes.
//!
//! Owns: which zones are opened, what of the findings can be repaired, and the order of the writes. Does not own: the
//! repairs of every start (`Zone::open`: blocks rebuilt from their parity, a torn end of the log dropped), and the
//! repair of names (`amphi_meta::repair_cluster`).
//!
//! A repair never makes bytes readable that were not readable before: inodes are kept, objects are removed only if
//! their inode does not exist, and names only if they lead to nothing. Each record is absolute, so an interrupted
//! repair can be repeated. References between zones are not repaired while operations have to be completed by the next
//! start, or while zones are missing.

use super::{CheckData, Report, ZoneImage, read_folders};
use crate::error::{ServerError, ServerErrorKind};
use crate::folder;
use amphi_env::Env;
use amphi_meta::{MetaStore, repair_cluster};
use amphi_types::item::{Key, Txn, tag};
use amphi_types::{ObjectId, TargetId, Timespec};
use amphi_zone::{OpenOptions, Order, Zone};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Items changed by one record of a repair.
const RECORD_ITEMS: usize = 256;

/// The data about a zone that a repair needs.
#[derive(Debug)]
pub(super) struct Basis {
    /// The index of the folder that contains the zone.
    pub folder: usize,
    /// Notes of what each start of a server repairs.
    notes: Vec<String>,
    /// Operations over several targets are open.
    pub has_operations: bool,
    /// Whether some items of the zone do not decode.
    pub has_undecoded: bool,
    /// A digest of all items.
    digest: u64,
}

impl Basis {
    /// The data that a repair needs about the zone of this report.
    pub fn of(zone: &amphi_zone::Report) -> Basis {
        let (notes, digest) = (zone.notes.clone(), digest(&zone.items));
        Basis { folder: 0, notes, has_operations: false, has_undecoded: false, digest }
    }
}

/// The changes of a planned repair.
#[derive(Debug, Default)]
pub struct RepairPlan {
    /// One sentence for each change, in order.
    pub steps: Vec<String>,
    /// The reasons why some findings are not repaired.
    pub left: Vec<String>,
    /// The zones that are opened: folder, path, target, and the changes of each.
    zones: Vec<ZonePlan>,
}

#[derive(Debug)]
struct ZonePlan {
    folder: usize,
    path: String,
    target: TargetId,
    /// A digest of the items on which the plan is based.
    digest: u64,
    changes: Txn,
}

/// Plans the repair of what `fsck_folders` finds; changes nothing. Returns the plan together with the report of the
/// check.
///
/// Errors: as `fsck_folders`.
pub async fn plan_repair<E: Env>(folders: &[(E, String)], now: Timespec) -> Result<(Report, RepairPlan), ServerError> {
    let (report, images) = read_folders(folders, CheckData::No).await?;
    let mut plan = RepairPlan::default();
    let mut changes: BTreeMap<TargetId, Txn> = BTreeMap::new();
    for image in images.iter().filter(|image| !image.basis.notes.is_empty()) {
        plan.steps.extend(image.basis.notes.iter().map(|note| format!("{}: as at a start: {note}", image.path)));
        changes.entry(image.target).or_default();
    }
    if !report.is_clean() {
        match obstacle(&report, &images) {
            Some(line) => plan.left.push(line),
            None => repair_between(folders, &images, now, &mut plan, &mut changes).await?,
        }
    }
    for (target, changes) in changes {
        let Some(image) = images.iter().find(|image| image.target == target) else { continue };
        let (folder, path, digest) = (image.basis.folder, image.path.clone(), image.basis.digest);
        plan.zones.push(ZonePlan { folder, path, target, digest, changes });
    }
    Ok((report, plan))
}

/// The reason why only the repairs of every start may be made.
fn obstacle(report: &Report, images: &[ZoneImage]) -> Option<String> {
    if images.len() as u64 != report.zones || report.elsewhere > 0 {
        return Some("zones are missing or cannot be read, so what lies between them stays as it is".into());
    }
    if images.iter().any(|image| image.basis.has_undecoded) {
        return Some("metadata cannot be decoded, so what names it stays as it is".into());
    }
    if images.iter().any(|image| image.basis.has_operations) {
        return Some("operations wait for the next start: start the server and stop it, then repair again".into());
    }
    None
}

async fn repair_between<E: Env>(
    folders: &[(E, String)],
    images: &[ZoneImage],
    now: Timespec,
    plan: &mut RepairPlan,
    changes: &mut BTreeMap<TargetId, Txn>,
) -> Result<(), ServerError> {
    let mut stores: Vec<MetaStore> = images.iter().filter(|i| i.begun).map(|i| i.meta.clone()).collect();
    let mut all: Vec<&mut MetaStore> = stores.iter_mut().collect();
    match repair_cluster(&mut all, now) {
        Ok(repair) => {
            plan.steps.extend(repair.steps);
            for (target, txn) in repair.changes {
                changes.entry(target).or_default().append(&txn);
            }
        }
        Err(_) => {
            plan.left.push("the root directory or the state of a store is gone, which nothing can replace".into());
            return Ok(());
        }
    }
    for image in images {
        let has_inode = |id: &&ObjectId| {
            let owner = images.iter().find(|i| i.target == id.ino.target());
            owner.is_some_and(|i| i.meta.inode(id.ino).is_ok())
        };
        let leaked: Vec<ObjectId> = image.data.objects.keys().filter(|id| !has_inode(id)).copied().collect();
        if leaked.is_empty() {
            continue;
        }
        let zone = amphi_zone::fsck(&folders[image.basis.folder].0, &image.path).await.map_err(folder::zone_error)?;
        for id in leaked {
            let name = format!("{}: object {} of {}, whose inode is gone,", image.path, id.stripe, id.ino);
            if image.data.delayed.contains_key(&id) {
                plan.left.push(format!("{name} has accepted bytes: start the server once, then repair again"));
                continue;
            }
            plan.steps.push(format!("{name} is removed, and its blocks are free"));
            let txn = changes.entry(image.target).or_default();
            let place = [&id.ino.0.to_be_bytes()[..], &id.stripe.to_be_bytes()].concat();
            for kind in [tag::EXTENT, tag::OBJECT] {
                let first = [&[kind][..], &place].concat();
                let own = zone.items.range(first.clone()..).take_while(|(key, _)| key.starts_with(&first));
                own.for_each(|(key, _)| txn.delete(key));
            }
        }
    }
    Ok(())
}

impl RepairPlan {
    /// Returns whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.zones.is_empty()
    }

    /// Carries the repair out. It is stable when this returns.
    ///
    /// Errors: `Mismatch` if a zone has changed since the plan was made. In that case only the repairs of every start
    /// were made. For a zone that cannot be opened or written, completed changes stay, and a further run does the rest.
    pub async fn carry_out<E: Env>(self, folders: &[(E, String)]) -> Result<(), ServerError> {
        let mut open = Vec::new();
        for zone in self.zones {
            let options = OpenOptions { target: Some(zone.target), ..OpenOptions::default() };
            let env = &folders[zone.folder].0;
            let (handle, found) = Zone::open(env, &zone.path, &options).await.map_err(folder::zone_error)?;
            let changed = (digest(&found.items) != zone.digest).then(|| zone.path.clone());
            open.push((handle, zone));
            if let Some(path) = changed {
                for (handle, _) in open {
                    handle.close().await.map_err(folder::zone_error)?;
                }
                let line = format!("{path}: it has changed since the plan was made; plan again");
                return Err(ServerError::new(ServerErrorKind::Mismatch, line));
            }
        }
        for (handle, zone) in open {
            let failed = |e| ServerError::new(ServerErrorKind::Unreachable, format!("{}: {e}", zone.path));
            let mut changes = zone.changes.changes().peekable();
            while changes.peek().is_some() {
                let mut part = Txn::default();
                changes.by_ref().take(RECORD_ITEMS).for_each(|change| part.push(change));
                handle.reserve(0).await.map_err(failed)?;
                let lsn = handle.append(part, Order::Plain);
                handle.stable(lsn).await.map_err(failed)?;
            }
            handle.close().await.map_err(folder::zone_error)?;
        }
        Ok(())
    }
}

/// A digest of the items; other items have another one.
fn digest(items: &BTreeMap<Key, Vec<u8>>) -> u64 {
    let mut hasher = DefaultHasher::new();
    items.hash(&mut hasher);
    hasher.finish()
}
