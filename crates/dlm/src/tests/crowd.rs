//! A thousand clients on one object: all of them make progress, and none waits much longer than others.

use super::{Random, object};
use crate::mode::{Growth, LockId, Mode, Owner};
use crate::server::{Action, LockLimits, LockRequest, LockSpace};
use amphi_types::{ByteRange, SessionId};
use std::collections::{BTreeMap, BTreeSet};

const CLIENTS: u64 = 1000;
const ROUNDS: usize = 20;

/// A client and its next step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Nothing,
    /// Since that many grants.
    Waits(u64),
    /// A direct request is under way.
    Direct(LockId),
}

/// Goal: 1,000 clients cache, go direct, read and write, with growth and without. Every request is granted. Waits,
/// counted in grants of the object, are bounded and similar: no client waits on average twice as long as the median,
/// and no single request longer than five rounds of all clients. Method: a random schedule in which holders answer
/// callbacks in any order.
#[test]
fn a_thousand_clients_get_on() {
    let mut space = LockSpace::new(LockLimits::default(), 1);
    let mut random = Random::new(42);
    let mut doing = vec![Doing::Nothing; CLIENTS as usize];
    let mut waits: Vec<Vec<u64>> = vec![Vec::new(); CLIENTS as usize];
    let mut owners: BTreeMap<LockId, u64> = BTreeMap::new();
    let mut called: BTreeSet<(u64, LockId)> = BTreeSet::new();
    let (mut grants, mut now_ns) = (0u64, 0);
    while waits.iter().any(|w| w.len() < ROUNDS) {
        now_ns += 1000;
        let n = random.below(CLIENTS);
        let session = SessionId(n);
        // A client that gets its turn first answers the oldest callback.
        let back: Vec<LockId> = called.range((n, LockId(0))..=(n, LockId(u64::MAX))).map(|(_, id)| *id).collect();
        if !back.is_empty() {
            assert_eq!(space.cancel(now_ns, session, &back), back.len());
            called.retain(|(of, _)| *of != n);
        }
        match doing[n as usize] {
            Doing::Direct(id) => {
                space.release(now_ns, id);
                doing[n as usize] = Doing::Nothing;
            }
            Doing::Nothing if waits[n as usize].len() < ROUNDS => {
                let direct = random.below(3) == 0;
                let owner = if direct { Owner::Direct(session) } else { Owner::Cached(session) };
                let mode = if random.below(2) == 0 { Mode::Read } else { Mode::Write };
                let growth = if random.below(2) == 0 { Growth::Largest } else { Growth::Exact };
                let range = ByteRange::at(random.below(64) * 4096, 4096 * (1 + random.below(4)));
                let request = LockRequest { owner, object: object(0), mode, range, growth };
                let id = space.enqueue(now_ns, request).expect("room");
                owners.insert(id, n);
                doing[n as usize] = Doing::Waits(grants);
            }
            Doing::Nothing | Doing::Waits(_) => {}
        }
        while let Some(action) = space.poll_action() {
            match action {
                Action::Granted { id, owner, .. } => {
                    let n = owners[&id] as usize;
                    let Doing::Waits(since) = doing[n] else { panic!("a grant that nobody waits for") };
                    waits[n].push(grants - since);
                    grants += 1;
                    doing[n] = if owner.is_direct() { Doing::Direct(id) } else { Doing::Nothing };
                }
                Action::Callback { id, session, .. } => assert!(called.insert((session.0, id)), "called back once"),
            }
        }
        assert!(now_ns < 1_000_000_000_000, "somebody is stuck");
    }
    let mut means: Vec<u64> = waits.iter().map(|w| w.iter().sum::<u64>() / w.len() as u64).collect();
    means.sort_unstable();
    let longest = waits.iter().flatten().max().copied().unwrap_or(0);
    let (median, slowest) = (means[means.len() / 2], means[means.len() - 1]);
    eprintln!("{grants} grants; waits in grants: median client {median}, slowest {slowest}, longest request {longest}");
    assert!(slowest <= 2 * median && longest <= 5 * CLIENTS, "{median} {slowest} {longest}");
}
