//! A target from what its zone held.
//!
//! Owns: which item of the log belongs to which part. Does not own: the completion of interrupted operations over
//! several targets (`tx::two_phase`), and of interrupted truncates and removals of objects (`objects`).

use crate::coherence::Coherence;
use crate::counters::Counters;
use crate::planted::{self, Mistake};
use crate::records::{self, Intent, Item, SessionRecord};
use crate::session::open_files::OpenFiles;
use crate::session::opens::Opens;
use crate::session::reclaim::Reclaim;
use crate::session::slots::Slots;
use crate::zone_target::freeing::Freeing;
use crate::zone_target::known_sessions::KnownSessions;
use crate::zone_target::place::{ClusterPlace, KeptPlace};
use crate::zone_target::queues::TargetQueues;
use crate::zone_target::quota::TargetQuota;
use crate::zone_target::release::release_freed;
use crate::zone_target::storage::DataStorage;
use crate::zone_target::tx_table::TxTable;
use crate::zone_target::unstable::Unstable;
use crate::zone_target::write_back::WriteBack;
use crate::zone_target::{Target, TargetCounts};
use amphi_data::DataStore;
use amphi_dlm::LockLimits;
use amphi_env::Env;
use amphi_meta::MetaStore;
use amphi_object::DiskQueue;
use amphi_quota::Standing;
use amphi_types::item::{ItemStore, Txn, tag};
use amphi_types::{Account, Ino, SessionId, TargetId};
use amphi_zone::{Recovered, Zone};
use futures_channel::mpsc;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Most bytes of values of extended attributes that a target keeps in memory, beside short ones: enough for those of
/// 4,000 files with 4 KiB each, and a small part of a server's usual memory.
const VALUES_BYTES_MAX: usize = 16 << 20;

/// The state that is built from the items of a zone, one by one, so that no item is in memory twice.
pub struct Loading {
    meta: MetaStore,
    data: DataStore,
    slots: Slots,
    sessions: BTreeMap<SessionId, SessionRecord>,
    txs: Vec<Intent>,
    cut_off: BTreeSet<SessionId>,
    kept: KeptPlace,
    standings: Vec<(Account, Standing)>,
    is_empty: bool,
    /// About the first item that does not fit.
    wrong: Option<String>,
}

/// Most bytes of values of extended attributes that a target keeps in memory.
fn values_max() -> usize {
    if planted::is(Mistake::NoValueKept) { 0 } else { VALUES_BYTES_MAX }
}

impl Loading {
    /// For a target with this many blocks of data, which keeps so many bytes of inodes in memory.
    pub fn new(target: TargetId, data_blocks: u64, inodes_max: usize) -> Loading {
        let mut meta = MetaStore::empty(target);
        meta.set_values_max(values_max());
        meta.set_inodes_max(inodes_max);
        Loading {
            meta,
            data: DataStore::new(data_blocks),
            slots: Slots::default(),
            sessions: BTreeMap::new(),
            txs: Vec::new(),
            cut_off: BTreeSet::new(),
            kept: KeptPlace::default(),
            standings: Vec::new(),
            is_empty: true,
            wrong: None,
        }
    }

    /// Adds an item. The first item that is invalid is remembered, and later ones are ignored.
    pub fn take(&mut self, key: &[u8], value: &[u8]) {
        self.is_empty = false;
        if self.wrong.is_none() {
            self.wrong = self.load(key, value).err();
        }
    }

    fn load(&mut self, key: &[u8], value: &[u8]) -> std::result::Result<(), String> {
        match key.first().copied() {
            Some(tag::INODE | tag::DENTRY | tag::XATTR | tag::META) => {
                self.meta.load(key, value)?;
                self.meta.let_inodes_go(|_| false);
            }
            Some(tag::OBJECT | tag::EXTENT | tag::DELAYED | tag::LOGGED | tag::CHECKSUM | tag::GRANT) => {
                self.data.load(key, value)?
            }
            _ => match records::decode_item(key, value)? {
                Item::Session(session, record) => drop(self.sessions.insert(session, record)),
                Item::CutOff(session) => drop(self.cut_off.insert(session)),
                Item::Slot(session, slot, record) => self.slots.load(session, slot, record),
                Item::Intent(intent) => self.txs.push(intent),
                Item::Cluster(record) => self.kept.cluster = Some(record),
                Item::Home(record) => self.kept.home = Some(record),
                Item::Map(record) => self.kept.map = Some(record),
                Item::Quota(account, standing) => self.standings.push((account, standing)),
                Item::OtherAnswer => {}
                Item::Keys(record) => self.kept.keys = Some(record),
            },
        }
        Ok(())
    }

    /// Ends the loading.
    ///
    /// Errors: a sentence that names the item that does not fit.
    pub fn finish(&mut self) -> std::result::Result<(), String> {
        self.wrong.take().map_or(Ok(()), Err)?;
        if !self.is_empty {
            self.meta.loaded()?;
        }
        self.data.finish_load()
    }
}

impl<E: Env> Target<E> {
    /// Builds the target from the content of its zone, and the bell for its flush agent. Nothing is written before
    /// `begin`.
    #[expect(clippy::too_many_arguments, reason = "made in one place from parts of different origin")]
    pub fn recover(
        env: &E,
        zone: Zone<E>,
        recovered: &Recovered,
        loaded: Loading,
        pool: u16,
        callback_deadline_ns: u64,
        root_owner: (u32, u32),
        counters: Rc<Counters>,
        reads: Rc<DiskQueue>,
    ) -> (Rc<Target<E>>, mpsc::Receiver<()>) {
        let id = zone.target();
        let Loading { mut meta, data, slots, sessions, txs, cut_off, kept, standings, is_empty, .. } = loaded;
        let mut txn = Txn::default();
        if is_empty {
            let root = (id == Ino::ROOT.target()).then_some(root_owner);
            (meta, txn) = MetaStore::format(id, env.rand(), env.wall(), root, pool);
            meta.set_values_max(values_max());
        }
        let limits = LockLimits { callback_deadline_ns, ..LockLimits::default() };
        let (flush_bell, flush_rung) = mpsc::channel(1);
        let write_back = WriteBack::find(env, &zone, &data, flush_bell);
        let lost = recovered.lost || write_back.has_lost();
        let place = ClusterPlace::of(kept, pool, (lost, recovered.lost), txn);
        write_back.writers.numbered_by(place.starts);
        // Ids that clients know from before a restart must not be reused after it.
        let start = (place.starts & 0xffff) as u16;
        let mut opens = Opens::default();
        for (session, ino, access) in slots.kept_opens() {
            opens.open(session, ino, access);
        }
        let coherence = Coherence::new(id, start, limits, env, sessions.keys().chain(&cut_off).copied());
        let (freeing, rung) = Freeing::new();
        let quota = TargetQuota::of(standings, place.starts);
        let target = Rc::new(Target {
            id,
            storage: DataStorage::of(&zone, reads, write_back),
            zone,
            meta: RefCell::new(meta),
            data: RefCell::new(data),
            coherence,
            queues: TargetQueues::default(),
            reclaim: Reclaim::of(sessions.keys().copied()),
            sessions: KnownSessions::recovered(slots, sessions, cut_off),
            files: OpenFiles::of(opens),
            txs: RefCell::new(TxTable::new(id, place.starts, txs)),
            freeing,
            place,
            counts: TargetCounts {
                zone: RefCell::default(),
                locks: Cell::default(),
                worker: counters,
                unstable: Unstable::default(),
                quota,
            },
            closed: Cell::new(false),
        });
        env.spawn(release_freed(Rc::downgrade(&target), rung));
        (target, flush_rung)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_meta::{NodeSpec, XattrMode};
    use amphi_types::{Cred, Name, Timespec};

    /// Goal: values of extended attributes take a bounded part of the memory of a server from its start on, however
    /// many there are. Method: items of 24 MiB of values.
    #[test]
    fn values_take_bounded_memory() {
        let (cred, now, id) = (Cred::root(), Timespec::default(), TargetId(0));
        let (mut meta, txn) = MetaStore::format(id, 1, now, Some((0, 0)), 1);
        let mut loading = Loading::new(id, 1000, usize::MAX);
        let mut take = |txn: &Txn| {
            txn.changes().for_each(|change| loading.take(change.key(), change.value().expect("nothing is deleted")));
        };
        take(&txn);
        for n in 0..400 {
            let mut txn = Txn::default();
            let name = Name::new(format!("f{n}")).expect("a name");
            let ino = meta.make(&cred, Ino::ROOT, &name, &NodeSpec::file(0o600), now, &mut txn).expect("made");
            let value = vec![n as u8; 60_000];
            meta.setxattr(&cred, ino, b"user.a", &value, XattrMode::Set, now, &mut txn).expect("set");
            take(&txn);
        }
        loading.finish().expect("it fits");
        assert!(meta.value_bytes() == 400 * 60_000 && meta.value_bytes() > VALUES_BYTES_MAX);
        let kept = loading.meta.value_bytes();
        assert!(kept <= VALUES_BYTES_MAX && kept > VALUES_BYTES_MAX / 2, "{kept} bytes");
    }
}
