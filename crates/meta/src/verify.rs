//! Checks of the invariants of metadata, for one store and for all stores of a cluster.
//!
//! Owns: what is checked. Does not own: repairs (`repair`).
//!
//! The checks are used after recovery, by the checker of stopped zones, and by the simulator. Each finding is a
//! sentence.

use crate::MetaStore;
use crate::inode::InodeFlags;
use amphi_types::{Acls, Ino, Kind, Name, acl};
use std::collections::{BTreeMap, BTreeSet};

/// Most findings that are reported, because a damaged store could have millions.
const FINDINGS_MAX: usize = 100;

impl MetaStore {
    /// It has to be called when all items are loaded: checks that the store is consistent in itself.
    ///
    /// Errors: the first finding of `verify`.
    pub fn loaded(&self) -> Result<(), String> {
        self.verify().into_iter().next().map_or(Ok(()), Err)
    }

    /// Violations within this store alone: entries, entry counts and extended attributes without an inode; inode
    /// numbers beyond those that were given out.
    pub fn verify(&self) -> Vec<String> {
        let mut findings = Vec::new();
        if self.reserved == 0 {
            findings.push(format!("{} has no metadata store item", self.target));
        }
        let mut counts: BTreeMap<Ino, u64> = BTreeMap::new();
        for (dir, entries) in self.index.dirs() {
            *counts.entry(self.ino(dir)).or_default() += entries as u64;
        }
        for (dir, cookie) in self.index.misplaced() {
            let dir = self.ino(dir);
            findings.push(format!("entry {cookie} of directory {dir} is not at its name's place"));
        }
        for (ino, inode) in self.inodes() {
            let entries = counts.remove(&ino).unwrap_or(0);
            if entries != inode.dir.entries {
                findings.push(format!("inode {ino} says {} entries and has {entries}", inode.dir.entries));
            }
            if entries > 0 && (inode.kind != Kind::Dir || inode.nlink == 0) {
                findings.push(format!("inode {ino} has entries and is no living directory"));
            }
            if inode.flags.has(InodeFlags::LISTS) {
                match self.acls(ino) {
                    Acls { access: None, default: None } => {
                        findings.push(format!("inode {ino} says that it has an access control list and has none"));
                    }
                    Acls { access: Some(list), .. } if list.perm() != inode.perm & 0o777 => {
                        findings.push(format!("inode {ino} has other permissions than its access control list"));
                    }
                    _ => {}
                }
            }
            if inode.is_sharded() == self.shards(ino).is_empty() {
                findings.push(format!("directory {ino} and the list of its shards do not agree that it has shards"));
            }
            if inode.is_sharded() && entries > 0 {
                findings.push(format!("directory {ino} has {entries} entries beside its shards"));
            }
            if ino.given() >= self.reserved {
                findings.push(format!("inode {ino} is beyond the numbers given out"));
            }
        }
        for ino in self.inodes.away().map(|local| self.ino(local)).filter(|ino| ino.given() >= self.reserved) {
            findings.push(format!("inode {ino} is beyond the numbers given out"));
        }
        findings.extend(counts.keys().map(|dir| format!("directory {dir} has entries and does not exist")));
        for (local, name) in self.xattrs.keys() {
            let is_list = [acl::ACCESS, acl::DEFAULT].contains(&&**name);
            if self.inodes.is_away(*local) {
                // An inode with lists does not leave memory.
                if is_list {
                    let ino = self.ino(*local);
                    findings.push(format!("inode {ino} does not say that it has an access control list"));
                }
                continue;
            }
            match self.inodes.get(*local) {
                None => findings.push(format!("inode {} has extended attributes and does not exist", self.ino(*local))),
                Some(inode) if is_list && !inode.flags.has(InodeFlags::LISTS) => {
                    findings
                        .push(format!("inode {} does not say that it has an access control list", self.ino(*local)));
                }
                Some(_) => {}
            }
        }
        findings.truncate(FINDINGS_MAX);
        findings
    }
}

/// Violations in the metadata of a whole cluster at rest (no intents open): in each store by itself, entries that name
/// nothing or another kind, link counts, parents, the root.
pub fn verify_cluster(stores: &[&MetaStore]) -> Vec<String> {
    let mut findings: Vec<String> = stores.iter().flat_map(|store| store.verify()).collect();
    let find = |ino: Ino| stores.iter().find_map(|store| store.inode(ino).ok());
    // Number of names of each inode, and of sub-directories of each directory.
    let mut names: BTreeMap<Ino, u32> = BTreeMap::new();
    let mut subdirs: BTreeMap<Ino, u32> = BTreeMap::new();
    for (dir, _, entry) in stores.iter().flat_map(|store| store.dentries()) {
        let name = String::from_utf8_lossy(&entry.name);
        *names.entry(entry.child).or_default() += 1;
        match find(entry.child) {
            None => findings.push(format!("{name:?} in {dir} names inode {}, which does not exist", entry.child)),
            Some(inode) if inode.kind != entry.kind => {
                findings.push(format!("{name:?} in {dir} says {:?}, its inode {:?}", entry.kind, inode.kind));
            }
            Some(inode) if inode.kind == Kind::Dir => {
                *subdirs.entry(dir).or_default() += 1;
                if inode.dir.parent != dir {
                    findings.push(format!("directory {name:?} in {dir} has the parent {}", inode.dir.parent));
                }
            }
            Some(_) => {}
        }
    }
    let listed = verify_shards(stores, &mut findings);
    for (ino, inode) in stores.iter().flat_map(|store| store.inodes()) {
        let named = names.get(&ino).copied().unwrap_or(0) + u32::from(listed.contains(&ino));
        let wanted = match inode.kind {
            Kind::Dir if ino == Ino::ROOT || named == 1 => 2 + subdirs.get(&ino).copied().unwrap_or(0),
            Kind::Dir if named > 1 => {
                findings.push(format!("directory {ino} has {named} names"));
                continue;
            }
            _ => named,
        };
        if inode.nlink != wanted {
            findings.push(format!("inode {ino} has {} links and needs {wanted}", inode.nlink));
        }
    }
    if find(Ino::ROOT).is_none_or(|root| root.kind != Kind::Dir || root.dir.parent != Ino::ROOT) {
        findings.push("there is no root directory".into());
    }
    findings.truncate(FINDINGS_MAX);
    findings
}

/// Violations between directories and their shards. Returns the shards of directories that have a name.
fn verify_shards(stores: &[&MetaStore], findings: &mut Vec<String>) -> BTreeSet<Ino> {
    let store_of = |ino: Ino| stores.iter().find(|store| store.target == ino.target());
    let (mut listed, mut places) = (BTreeSet::new(), BTreeMap::new());
    for (dir, inode) in stores.iter().flat_map(|store| store.inodes()).filter(|(_, inode)| inode.is_sharded()) {
        if inode.nlink == 0 {
            continue;
        }
        let shared = store_of(dir).and_then(|store| store.shared_attrs(dir));
        let shards = store_of(dir).map(|store| store.shards(dir)).unwrap_or_default();
        let count = shards.len();
        for (place, shard) in shards.into_iter().enumerate() {
            listed.insert(shard);
            places.insert(shard, (place, count));
            if shard.shard_place().map(usize::from) != Some(place) {
                findings.push(format!("shard {shard} of directory {dir} is not at its place {place}"));
            }
            let Some((found, attrs)) =
                store_of(shard).and_then(|store| Some((store.inode(shard).ok()?, store.shared_attrs(shard)?)))
            else {
                findings.push(format!("directory {dir} has the shard {shard}, which does not exist"));
                continue;
            };
            if found.kind != Kind::Dir || found.dir.parent != dir {
                findings.push(format!("shard {shard} of directory {dir} belongs to {}", found.dir.parent));
            }
            if !shared.as_ref().is_some_and(|shared| shared.agrees(&attrs)) {
                findings.push(format!("shard {shard} has other permissions or settings than its directory {dir}"));
            }
        }
    }
    for (shard, _, entry) in stores.iter().flat_map(|store| store.dentries()).filter(|(dir, ..)| dir.is_shard()) {
        let is_elsewhere =
            |(place, count): &(usize, usize)| Name::new(&*entry.name).is_ok_and(|name| name.shard(*count) != *place);
        if places.get(&shard).is_some_and(is_elsewhere) {
            let name = String::from_utf8_lossy(&entry.name).escape_debug().to_string();
            findings.push(format!("the name {name} does not belong in shard {shard}"));
        }
    }
    for (ino, inode) in stores.iter().flat_map(|store| store.inodes()) {
        if ino.is_shard() && inode.nlink > 0 && !listed.contains(&ino) {
            findings.push(format!("shard {ino} is none of directory {}", inode.dir.parent));
        }
    }
    listed
}
