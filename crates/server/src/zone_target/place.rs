//! `ClusterPlace`: the place of a target in the cluster, as its zone keeps it.
//!
//! Owns: number of starts, size of the pool, server, cluster map, registry of keys, and whether the start found that
//! something is lost. Does not own: which server decides on the map (`cluster`).

use crate::records::{self, ClusterRecord, HomeRecord};
use amphi_types::item::Txn;
use amphi_wire::ClusterMap;
use amphi_wire::keys::KeyRegistry;
use std::cell::RefCell;

/// The place of a target in the cluster.
pub struct ClusterPlace {
    /// Number of targets of the cluster, as the target remembers it.
    pub pool: u16,
    /// How often the target was opened, this time included.
    pub starts: u64,
    /// The server to which the target belongs, if the target was begun before.
    pub home: RefCell<Option<HomeRecord>>,
    /// The cluster map as it was kept last.
    pub map: RefCell<Option<ClusterMap>>,
    /// The registry of keys as it was kept last.
    pub keys: RefCell<Option<KeyRegistry>>,
    /// Changes that were answered before the zone was opened, and were not stable, may be lost.
    pub lost: bool,
    /// The zone itself says that such changes may be lost.
    pub noted_lost: bool,
    /// Changes that are logged first.
    first: RefCell<Txn>,
}

/// The data in the zone of a target about its place in the cluster.
#[derive(Default)]
pub struct KeptPlace {
    /// Pool and starts.
    pub cluster: Option<ClusterRecord>,
    /// Server.
    pub home: Option<HomeRecord>,
    /// The cluster map.
    pub map: Option<ClusterMap>,
    /// Registry of keys.
    pub keys: Option<KeyRegistry>,
}

impl ClusterPlace {
    /// The place of a target that is opened again. `pool` is used if its zone has none, and `lost` says what was lost
    /// in all and by the zone itself. `first` is logged at its begin, with the new count of starts.
    pub fn of(kept: KeptPlace, pool: u16, (lost, noted_lost): (bool, bool), mut first: Txn) -> ClusterPlace {
        let pool = kept.cluster.as_ref().map_or(pool, |c| c.pool);
        let starts = kept.cluster.map_or(0, |c| c.starts) + 1;
        first.put(records::cluster_key(), records::encode(&ClusterRecord { pool, starts }));
        let (home, map, first) = (RefCell::new(kept.home), RefCell::new(kept.map), RefCell::new(first));
        ClusterPlace { pool, starts, home, map, keys: RefCell::new(kept.keys), lost, noted_lost, first }
    }

    /// The target begins to serve at a server. Returns the items that have to be in the first record of this start.
    pub fn begin(&self, home: HomeRecord) -> Txn {
        let mut txn = self.first.take();
        if self.home.borrow().as_ref() != Some(&home) {
            txn.put(records::home_key(), records::encode(&home));
            self.home.replace(Some(home));
        }
        txn
    }

    /// Notes in `txn` that a newer map is kept.
    pub fn keep_map(&self, map: ClusterMap, txn: &mut Txn) {
        txn.put(records::map_key(), records::encode(&map));
        self.map.replace(Some(map));
    }

    /// Notes in `txn` that a later registry of keys is kept.
    pub fn keep_keys(&self, keys: KeyRegistry, txn: &mut Txn) {
        txn.put(records::keys_key(), records::encode(&keys));
        self.keys.replace(Some(keys));
    }
}
