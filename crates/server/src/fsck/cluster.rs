//! Checks over all zones together.

use super::{Report, ZoneImage};
use crate::records::TxId;
use amphi_meta::Part;
use amphi_types::{Ino, Kind, ObjectId, TargetId, Timespec};
use std::collections::{BTreeMap, BTreeSet};

/// The time and the changes of a decision that contains changes.
pub(super) type Decided = (Timespec, Vec<(TargetId, Vec<Part>)>);

/// Finishes interrupted operations in memory as the next start would.
pub(super) fn finish_intents(images: &mut [ZoneImage], report: &mut Report) {
    let decided: BTreeSet<TxId> = images.iter().flat_map(|i| i.committed.iter().copied()).collect();
    for image in images.iter_mut() {
        for (tx, (now, parts)) in std::mem::take(&mut image.prepared) {
            if !decided.contains(&tx) {
                continue;
            }
            finish(image, tx, now, &parts, report);
        }
    }
    let local_commits: BTreeMap<TxId, Decided> =
        images.iter_mut().flat_map(|i| std::mem::take(&mut i.decided)).collect();
    for (tx, (now, all)) in local_commits {
        for (target, parts) in all {
            let Some(image) = images.iter_mut().find(|i| i.target == target) else { continue };
            if !image.applied.contains(&tx) {
                let (number, coordinator) = (tx.number, tx.coordinator);
                report.pending.push(format!("{}: operation {number} of {coordinator} is decided", image.path));
                finish(image, tx, now, &parts, report);
            }
        }
    }
}

fn finish(image: &mut ZoneImage, tx: TxId, now: Timespec, parts: &[Part], report: &mut Report) {
    match image.meta.check_parts(parts) {
        Ok(()) => drop(image.meta.apply_parts(parts, now, &mut Default::default())),
        Err(e) => report.find(
            &image.path,
            format!("the promised changes of operation {} of {} do not fit: {e:?}", tx.number, tx.coordinator),
        ),
    }
}

/// Checks that the zones of a folder are all those of one server.
pub(super) fn check_folder(dir: &str, zones: &[u16], images: &[ZoneImage], report: &mut Report) {
    let local: Vec<TargetId> = zones.iter().copied().map(TargetId).collect();
    let home = images.iter().find_map(|i| i.home.as_ref());
    for image in images {
        match (&image.home, image.pool) {
            (Some(own), _) if own.targets != local => {
                report.find(&image.path, format!("belongs beside {:?}, here are {:?}", own.targets, local));
            }
            (Some(own), _) if home.is_some_and(|h| h.server != own.server) => {
                report.find(&image.path, "belongs to another server of the cluster");
            }
            (Some(_), _) => {}
            (None, Some(pool)) if usize::from(pool) != images.len() => {
                report.find(&image.path, format!("belongs to a cluster of {pool} targets, here are {}", images.len()));
            }
            (None, Some(_)) => {}
            (None, None) if !image.begun => {}
            (None, None) => report.find(&image.path, "has no cluster record: its first start was interrupted"),
        }
    }
    let map = images.iter().find_map(|i| i.map.as_ref());
    if let Some(fault) = map.and_then(crate::membership::map::fault) {
        report.find(dir, format!("the cluster map: {fault}"));
    }
}

/// Checks everything that concerns more than one store, if the zones are those of the whole cluster.
pub(super) fn check(images: &[ZoneImage], report: &mut Report) {
    // The copy with the highest epoch knows most.
    let map = images.iter().filter_map(|i| i.map.as_ref()).max_by_key(|m| m.epoch);
    if let Some(map) = map {
        let here = |t: &&TargetId| images.iter().any(|i| i.target == **t);
        let all = map.servers.iter().flat_map(|s| &s.targets);
        report.elsewhere = u64::from(map.pool()) - all.filter(here).count() as u64;
    }
    // If not even the root was made, the zones contain nothing.
    let is_new = images.first().is_some_and(|i| !i.begun) && images.iter().all(|i| i.meta.inodes().next().is_none());
    if report.elsewhere > 0 || is_new || images.first().is_none_or(|i| i.target != TargetId(0)) {
        check_each(images, report);
        count(images, report);
        return;
    }
    let stores: Vec<_> = images.iter().filter(|i| i.begun).map(|i| &i.meta).collect();
    for text in amphi_meta::verify_cluster(&stores) {
        report.find("name space", text);
    }
    count(images, report);
    check_reachable(images, report);
    check_objects(images, report);
}

/// Checks the metadata of each zone by itself.
pub(super) fn check_each(images: &[ZoneImage], report: &mut Report) {
    for image in images.iter().filter(|i| i.begun) {
        image.meta.verify().into_iter().for_each(|text| report.find(&image.path, text));
    }
}

fn count(images: &[ZoneImage], report: &mut Report) {
    for image in images {
        for (ino, inode) in image.meta.inodes() {
            report.inodes += 1;
            report.directories += u64::from(inode.kind == Kind::Dir);
            report.orphans += u64::from(inode.nlink == 0);
            if inode.pending.trim {
                report.pending.push(format!("{}: inode {ino} is being truncated to {}", image.path, inode.size));
            }
            if inode.pending.destroy {
                report.pending.push(format!("{}: inode {ino} is being removed", image.path));
            }
        }
        report.objects += image.data.objects.len() as u64;
        report.blocks += image.data.blocks;
    }
}

fn check_reachable(images: &[ZoneImage], report: &mut Report) {
    let mut below: BTreeMap<Ino, Vec<Ino>> = BTreeMap::new();
    for (dir, _, entry) in images.iter().flat_map(|i| i.meta.dentries()) {
        if entry.kind == Kind::Dir {
            below.entry(dir).or_default().push(entry.child);
        }
    }
    for image in images {
        for (dir, _) in image.meta.inodes().filter(|(_, inode)| inode.is_sharded()) {
            below.entry(dir).or_default().extend(image.meta.shards(dir));
        }
    }
    let mut seen = BTreeSet::from([Ino::ROOT]);
    let mut todo = vec![Ino::ROOT];
    while let Some(dir) = todo.pop() {
        for &child in below.get(&dir).into_iter().flatten() {
            if seen.insert(child) {
                todo.push(child);
            }
        }
    }
    for image in images {
        for (ino, inode) in image.meta.inodes() {
            if inode.kind == Kind::Dir && inode.nlink > 0 && !seen.contains(&ino) {
                report.find(&image.path, format!("directory {ino} cannot be reached from the root"));
            }
        }
    }
}

fn check_objects(images: &[ZoneImage], report: &mut Report) {
    for image in images {
        for (id, &(end, generation)) in &image.data.objects {
            if let Some(reason) = object_fault(images, image, *id, end, generation) {
                report.find(&image.path, format!("object {} of {}: {reason}", id.stripe, id.ino));
            }
        }
    }
}

fn object_fault(images: &[ZoneImage], at: &ZoneImage, id: ObjectId, end: u64, generation: u64) -> Option<String> {
    let owner = images.iter().find(|i| i.target == id.ino.target());
    let Some(inode) = owner.and_then(|i| i.meta.inode(id.ino).ok()) else {
        return Some("its inode does not exist".into());
    };
    if inode.kind != Kind::File {
        return Some(format!("its inode is a {:?}", inode.kind));
    }
    if inode.layout.target(id.ino, id.stripe) != at.target {
        return Some(format!("belongs to {}", inode.layout.target(id.ino, id.stripe)));
    }
    if id.stripe > 0 && !inode.objects.wide {
        return Some("its inode knows of no data beyond stripe 0".into());
    }
    if generation > inode.objects.generation {
        return Some(format!("knows truncate {generation}, its inode only {}", inode.objects.generation));
    }
    let settled = !inode.objects.spread && !inode.pending.trim && !inode.pending.destroy;
    (settled && end > inode.size).then(|| format!("ends at {end}, behind the file's end at {}", inode.size))
}
