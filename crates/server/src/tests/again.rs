//! Callbacks, revocations and glimpses that are lost while their connection continues, and answers that arrive twice.

use super::company::{lock, lookup, with_two};
use super::*;
use amphi_wire::LockMode;
use futures_util::future::join3;

async fn counter(client: &Client, wanted: &str) -> u64 {
    let Ok(Reply::Counters(counters)) = client.call(Request::Counters { reset: false }).await else {
        panic!("counters")
    };
    counters.iter().find(|(name, _)| name == wanted).expect("a counter").1
}

/// Goal: an unanswered push is repeated on the same connection, soon enough that no mount is evicted. Method: a holder
/// gets a revocation, a callback and a glimpse without answering, and answers the repeated ones. One worker has the
/// connections, a second one the target.
#[test]
fn what_is_not_answered_comes_again() {
    with_two(81, 2, 2, async |place, a, b| {
        let f = a.create(Ino::ROOT, "f").await.unwrap();
        b.call(Request::Open { ino: f, access: RW, exec: false }).await.unwrap();
        b.call(lock(f, LockMode::Write, 0, 100)).await.unwrap();
        assert!(b.told(lookup(Ino::ROOT, "f")).await.1 != Tokens::default());
        b.held.unwritten.borrow_mut().insert(ObjectId { ino: f, stripe: 0 }, (50, Timespec::default()));
        b.held.deaf.set(true);
        let env = place.sim.node("client");
        let loses = async {
            b.held.revoked().await;
            b.held.pushed(|p| matches!(p, Push::Callback { .. }).then_some(())).await;
            b.held.pushed(|p| matches!(p, Push::Glimpse { .. }).then_some(())).await;
            b.held.deaf.set(false);
        };
        let begun = env.now();
        let renamed = a.rename((Ino::ROOT, "f"), (Ino::ROOT, "g"), RenameMode::Replace);
        let both = async {
            let seen = a.stat(f).await;
            (seen, a.call(lock(f, LockMode::Read, 0, 10)).await)
        };
        let locked = a.call(lock(f, LockMode::Read, 0, 10));
        let ((renamed, _), (seen, again), ()) = join3(futures_util::future::join(renamed, locked), both, loses).await;
        renamed.unwrap();
        again.unwrap();
        assert!([0, 50].contains(&seen.unwrap().size));
        let took = env.now().since(begun);
        assert!(
            took >= Duration::from_secs(5) && took < Duration::from_secs(12),
            "a sixth to a third of 30 s: {took:?}"
        );
        assert_eq!(counter(a, "evictions").await, 0);
        assert!(counter(a, "callbacks_again").await >= 3);
    });
}

/// Goal: a client that never answers is evicted as before, however often it is asked. Method: a holder that does not
/// answer. The callbacks that it got are counted.
#[test]
fn asking_again_is_no_progress() {
    with_two(82, 1, 1, async |place, a, b| {
        let op = |name: &str, value: &str| Request::Tunables { pattern: name.into(), value: Some(value.into()) };
        a.call(op("server.callback_deadline_ms", "6000")).await.unwrap();
        let f = a.create(Ino::ROOT, "f").await.unwrap();
        b.call(lock(f, LockMode::Write, 0, 100)).await.unwrap();
        b.held.deaf.set(true);
        let env = place.sim.node("client");
        let begun = env.now();
        a.call(lock(f, LockMode::Write, 0, 10)).await.unwrap();
        let took = env.now().since(begun);
        assert!(took >= Duration::from_secs(6) && took < Duration::from_secs(8), "{took:?}");
        assert_eq!(counter(a, "evictions").await, 1);
        let asked = b.held.pushes.borrow().iter().filter(|p| matches!(p, Push::Callback { .. })).count();
        assert!((4..=6).contains(&asked), "asked {asked} times");
    });
}

/// Goal: an answer that arrives late or twice ends only the lock that it names. Method: a lock is returned, a new one
/// is taken on the same bytes, and the first is returned again. Another mount still has to wait for the second.
#[test]
fn a_lock_given_back_twice_is_given_back_once() {
    with_two(83, 1, 1, async |_, a, b| {
        let f = a.create(Ino::ROOT, "f").await.unwrap();
        let take = async || match b.call(lock(f, LockMode::Write, 0, 100)).await {
            Ok(Reply::Locked { lock, .. }) => lock,
            other => panic!("{other:?}"),
        };
        let first = take().await;
        b.held.deaf.set(true);
        let back = async |id: u64| b.call(Request::LockCancel { locks: vec![id] }).await.unwrap();
        back(first).await;
        let second = take().await;
        assert_ne!(first, second);
        back(first).await;
        let done = Cell::new(false);
        let answers = async {
            let asked = b.held.pushed(|p| matches!(p, Push::Callback { .. }).then(|| p.clone())).await;
            assert!(matches!(asked, Push::Callback { lock, .. } if lock == second), "{asked:?}");
            back(first).await;
            assert!(!done.get(), "the second is still held");
            back(second).await;
        };
        let waits = async {
            a.call(lock(f, LockMode::Write, 0, 10)).await.unwrap();
            done.set(true);
        };
        futures_util::future::join(waits, answers).await;
    });
}
