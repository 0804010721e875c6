//! A target from what its zone held.
//!
//! Owns: which item of the log belongs to which part. Does not own: what an operation over several targets that was
//! interrupted needs (`tx::two_phase`), objects that are to be trimmed or removed (`objects`).

use crate::coherence::Coherence;
use crate::counters::Counters;
use crate::records::{self, Item};
use crate::session::open_files::OpenFiles;
use crate::session::opens::Opens;
use crate::session::reclaim::Reclaim;
use crate::session::slots::Slots;
use crate::zone_target::freeing::Freeing;
use crate::zone_target::known_sessions::KnownSessions;
use crate::zone_target::place::{ClusterPlace, KeptPlace};
use crate::zone_target::queues::TargetQueues;
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
use amphi_types::Ino;
use amphi_types::item::{ItemStore, Txn, tag};
use amphi_zone::{Recovered, Zone};
use futures_channel::mpsc;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

impl<E: Env> Target<E> {
    /// Builds the target from what its zone held, and the bell that its flush agent listens to. Nothing is written
    /// before `begin`.
    ///
    /// Errors: a sentence that names the item that does not fit.
    #[expect(clippy::too_many_arguments, reason = "made in one place from parts of different origin")]
    pub fn recover(
        env: &E,
        zone: Zone<E>,
        recovered: Recovered,
        pool: u16,
        callback_deadline_ns: u64,
        root_owner: (u32, u32),
        counters: Rc<Counters>,
        reads: Rc<DiskQueue>,
    ) -> std::result::Result<(Rc<Target<E>>, mpsc::Receiver<()>), String> {
        let id = zone.target();
        let mut meta = MetaStore::empty(id);
        let mut data = DataStore::new(zone.data_blocks());
        let (mut slots, mut sessions) = (Slots::default(), BTreeMap::new());
        let (mut txs, mut cut_off) = (Vec::new(), BTreeSet::new());
        let mut kept = KeptPlace::default();
        // It has the key of the hash by which the store places entries.
        if let Some(value) = recovered.items.get([tag::META].as_slice()) {
            meta.load(&[tag::META], value)?;
        }
        for (key, value) in &recovered.items {
            match key.first().copied() {
                Some(tag::INODE | tag::DENTRY | tag::XATTR | tag::META) => meta.load(key, value)?,
                Some(tag::OBJECT | tag::EXTENT | tag::DELAYED | tag::LOGGED | tag::CHECKSUM | tag::GRANT) => {
                    data.load(key, value)?
                }
                _ => match records::decode_item(key, value)? {
                    Item::Session(session, record) => drop(sessions.insert(session, record)),
                    Item::CutOff(session) => drop(cut_off.insert(session)),
                    Item::Slot(session, slot, record) => slots.load(session, slot, record),
                    Item::Intent(intent) => txs.push(intent),
                    Item::Cluster(record) => kept.cluster = Some(record),
                    Item::Home(record) => kept.home = Some(record),
                    Item::Map(record) => kept.map = Some(record),
                },
            }
        }
        let mut txn = Txn::default();
        if recovered.items.is_empty() {
            let root = (id == Ino::ROOT.target()).then_some(root_owner);
            (meta, txn) = MetaStore::format(id, env.rand(), env.wall(), root, pool);
        }
        meta.loaded()?;
        data.finish_load()?;
        let limits = LockLimits { callback_deadline_ns, ..LockLimits::default() };
        let (flush_bell, flush_rung) = mpsc::channel(1);
        let write_back = WriteBack::find(env, &zone, &data, flush_bell);
        let lost = recovered.lost || write_back.has_lost();
        let place = ClusterPlace::of(kept, pool, (lost, recovered.lost), txn);
        write_back.writers.numbered_by(place.starts);
        // What clients name by number after a restart must not be what they named before.
        let start = (place.starts & 0xffff) as u16;
        let mut opens = Opens::default();
        for (session, ino, access) in slots.kept_opens() {
            opens.open(session, ino, access);
        }
        let coherence = Coherence::new(id, start, limits, env, sessions.keys().chain(&cut_off).copied());
        let (freeing, rung) = Freeing::new();
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
            },
            closed: Cell::new(false),
        });
        env.spawn(release_freed(Rc::downgrade(&target), rung));
        Ok((target, flush_rung))
    }
}
