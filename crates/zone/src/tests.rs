//! Tests of the zone in the simulated environment: stories, a crash sweep over every disk operation, damage.

mod crash;
mod damage;
mod keep;
mod read;
mod room;
mod story;

use crate::{OpenOptions, Order, Recovered, Zone, ZoneError, ZoneParams};
use amphi_env::sim::{Sim, SimConfig, SimEnv};
use amphi_types::TargetId;
use amphi_types::item::{Key, Txn};
use std::collections::BTreeMap;
use std::rc::Rc;

pub(crate) const PATH: &str = "zone";
pub(crate) const NODE: &str = "n";
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn params() -> ZoneParams {
    ZoneParams { size_bytes: 8 * MIB, log_bytes: MIB, cluster: 0xC1, target: TargetId(3) }
}

pub(crate) fn manual() -> OpenOptions {
    OpenOptions { auto_checkpoint: false, ..OpenOptions::default() }
}

pub(crate) fn sim(seed: u64) -> Sim {
    Sim::new(seed, SimConfig::default())
}

pub(crate) fn txn(key: &str, value: &[u8]) -> Txn {
    let mut t = Txn::default();
    t.put(key.as_bytes(), value);
    t
}

pub(crate) fn apply(items: &mut BTreeMap<Key, Vec<u8>>, txn: &Txn) {
    for c in txn.changes() {
        match c.value() {
            Some(v) => items.insert(c.key().to_vec(), v.to_vec()),
            None => items.remove(c.key()),
        };
    }
}

/// Opens the zone of the node in its present life.
pub(crate) fn open(sim: &Sim, options: &OpenOptions) -> Result<(Zone<SimEnv>, Recovered), ZoneError> {
    let env = sim.node(NODE);
    sim.block_on(Zone::open(&env, PATH, options)).expect("no deadlock")
}

pub(crate) fn format(sim: &Sim, params: &ZoneParams) {
    let env = sim.node(NODE);
    sim.block_on(Zone::format(&env, PATH, params)).expect("no deadlock").expect("formats");
}

/// A small deterministic generator for scenarios.
pub(crate) struct Lcg(pub u64);

impl Lcg {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

pub(crate) type Shared<T> = Rc<std::cell::RefCell<T>>;

/// A read of each of these items returns its value, and scans return all of them, in one step and in several.
pub(crate) fn compare_reads(sim: &Sim, zone: &Zone<SimEnv>, items: &BTreeMap<Key, Vec<u8>>) {
    let all = async {
        for (key, value) in items {
            let found = zone.get(key).await.unwrap();
            assert!(found.as_ref() == Some(value), "{}", String::from_utf8_lossy(key));
            assert_eq!(zone.get(&[key, &b"!"[..]].concat()).await.unwrap(), None);
        }
        for step in [7, usize::MAX] {
            let (mut found, mut from) = (Vec::new(), Vec::new());
            loop {
                let more = zone.scan(&from, &[0xff], step).await.unwrap();
                found.extend_from_slice(&more);
                match more.last() {
                    Some((last, _)) if more.len() == step => from = [last, &[0][..]].concat(),
                    _ => break,
                }
            }
            assert!(found.iter().map(|(key, value)| (key, value)).eq(items), "in steps of {step}");
        }
    };
    sim.block_on(all).unwrap();
}

pub(crate) fn plain(zone: &Zone<SimEnv>, t: Txn) -> crate::Lsn {
    zone.append(t, Order::Plain)
}
