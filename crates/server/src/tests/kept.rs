//! Locks that are called back and that the client needs for longer.

use super::*;
use amphi_types::ByteRange;
use amphi_wire::{LockExtent, LockMode};
use futures_util::future::join;

/// Goal: a client that reports in time that it still needs a lock keeps it beyond its deadline, and returns it when it
/// can. One that reports this without end is evicted in the end. Method: a short deadline. The holder does not answer
/// and sends the report repeatedly, once until it returns the lock, and once without end.
#[test]
fn who_says_so_has_longer() {
    for gives_back in [true, false] {
        let mut place = Place::new(78, 1, 1);
        let deadline = Duration::from_millis(200);
        place.config.callback_deadline = deadline;
        let run = async {
            let _server = place.start().await.unwrap();
            let a = place.client(1).await.unwrap();
            let b = place.client(2).await.unwrap();
            let f = a.create(Ino::ROOT, "f").await.unwrap();
            let object = ObjectId { ino: f, stripe: 0 };
            let ask =
                |mode| Request::LockEnqueue { object, mode, range: ByteRange::new(0, 4096), extent: LockExtent::Exact };
            let Ok(Reply::Locked { lock, .. }) = b.call(ask(LockMode::Write)).await else { panic!("a lock") };
            b.held.deaf.set(true);
            let env = place.sim.node("client");
            let begun = env.now();
            let granted = Cell::new(false);
            let waits = async {
                a.call(ask(LockMode::Read)).await.expect("granted in the end");
                granted.set(true);
                env.now().since(begun)
            };
            let says = async {
                let mut rounds = 0;
                while !granted.get() && (!gives_back || rounds < 30) {
                    env.sleep(deadline / 4).await;
                    // After the eviction it is refused.
                    let _ = b.call(Request::LockKept { locks: vec![lock] }).await;
                    rounds += 1;
                }
                if gives_back {
                    b.call(Request::LockCancel { locks: vec![lock] }).await.expect("it was not evicted");
                }
            };
            let (took, ()) = join(waits, says).await;
            let expected = if gives_back { 7 * deadline..8 * deadline } else { 10 * deadline..13 * deadline };
            assert!(expected.contains(&took), "gives back: {gives_back}, took {took:?}");
            let Ok(Reply::Counters(counters)) = a.call(Request::Counters { reset: false }).await else { panic!() };
            let evictions = counters.iter().find(|(n, _)| n == "evictions").unwrap().1;
            assert_eq!(evictions, u64::from(!gives_back));
        };
        place.sim.block_on(run).unwrap();
    }
}
