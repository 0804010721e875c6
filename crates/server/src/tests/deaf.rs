//! Clients that run and do not answer, and clients that only seem to be so.

use super::*;
use amphi_types::{ByteRange, SetAttr};
use amphi_wire::{LockExtent, LockMode};

const MOST: Duration = Duration::from_secs(5);

fn lock(ino: Ino) -> Request {
    let object = ObjectId { ino, stripe: 0 };
    Request::LockEnqueue { object, mode: LockMode::Write, range: ByteRange::new(0, 4096), extent: LockExtent::Exact }
}

/// A world in which clients that do not answer are evicted after the usual time.
fn with_ears<F>(seed: u64, story: F)
where
    F: AsyncFnOnce(&Place, &Client, &Client),
{
    let mut place = Place::new(seed, 2, 2);
    place.config.tunables.clear();
    let run = async {
        let server = place.start().await.expect("the server starts");
        let a = place.client_on("a", 1, "a:1", Role::Mount).await.expect("the client connects");
        let b = place.client_on("b", 2, "b:1", Role::Mount).await.expect("the client connects");
        b.held.mortal.set(true);
        story(&place, &a, &b).await;
        drop(server);
    };
    place.sim.block_on(run).expect("no deadlock");
}

async fn evictions(c: &Client) -> u64 {
    let Ok(Reply::Counters(all)) = c.call(Request::Counters { reset: false }).await else { panic!("counters") };
    all.iter().find(|(n, _)| n == "evictions").expect("counted").1
}

/// Goal: a live client that answers no callback, no revocation and no switch delays others, including new mounts, for
/// at most 5 s. Its locks and cached state are then free. Method: each kind of push is sent to a client that reads and
/// does not answer. Its session does not begin again.
#[test]
fn who_does_not_listen_is_evicted_soon() {
    for (seed, kind) in ["lock", "name", "switch"].into_iter().enumerate() {
        with_ears(100 + seed as u64, async |place, a, b| {
            let env = place.sim.node("watch");
            let f = a.create(Ino::ROOT, "f").await.unwrap();
            b.lookup(Ino::ROOT, "f").await.unwrap();
            let Ok(Reply::Locked { .. }) = b.call(lock(f)).await else { panic!("a lock") };
            b.held.deaf.set(true);
            let begun = env.now();
            match kind {
                "lock" => drop(a.call(lock(f)).await.expect("granted")),
                "name" => drop(
                    a.call(Request::SetAttr { ino: f, set: SetAttr { perm: Some(0o600), ..SetAttr::default() } })
                        .await
                        .expect("changed"),
                ),
                _ => {
                    // Alone again, then not.
                    a.call(Request::Goodbye).await.expect("goes");
                    b.held.deaf.set(false);
                    env.sleep(Duration::from_secs(60)).await;
                    b.held.deaf.set(true);
                }
            }
            let begun = if kind == "switch" { env.now() } else { begun };
            let late = place.client_on("c", 3, "c:1", Role::Mount).await.expect("let in");
            let took = env.now().since(begun);
            assert!(took <= MOST, "{kind}: {took:?}");
            assert_eq!(evictions(&late).await, 1, "{kind}");
            let begun = env.now();
            late.call(lock(f)).await.expect("free");
            late.unlink(Ino::ROOT, "f").await.expect("free");
            assert!(env.now().since(begun) < Duration::from_secs(1), "{kind}: nothing of it is left");
            let again = place.client_on("b", 2, "b:1", Role::Mount).await.err().expect("it has ended").to_string();
            assert!(again.contains("did not answer"), "{kind}: {again}");
        });
    }
}

/// Goal: a client that reports that it is at work, or that does not run, is not treated as unresponsive. Neither is one
/// that never received the push because only that message was lost. Method: a client that sends `LockKept` every 3 s
/// for 20 s; one that is stopped for 20 s, before and during a push; one that the network cuts off. Each of them
/// returns its lock in the end.
#[test]
fn who_only_looks_deaf_stays() {
    for (seed, kind) in ["says so", "stopped", "stopped while asked", "cut off"].into_iter().enumerate() {
        with_ears(110 + seed as u64, async |place, a, b| {
            let env = place.sim.node("watch");
            let f = a.create(Ino::ROOT, "f").await.unwrap();
            let Ok(Reply::Locked { lock: held, .. }) = b.call(lock(f)).await else { panic!("a lock") };
            b.held.deaf.set(kind == "says so" || kind == "stopped while asked");
            let begun = env.now();
            let waits = async {
                a.call(lock(f)).await.expect("granted");
                env.now().since(begun)
            };
            let lives = async {
                match kind {
                    "says so" => {
                        for _ in 0..7 {
                            env.sleep(Duration::from_secs(3)).await;
                            b.call(Request::LockKept { locks: vec![held] }).await.expect("alive");
                        }
                    }
                    "cut off" => {
                        place.sim.cut("b", "server");
                        env.sleep(Duration::from_secs(15)).await;
                        place.sim.heal("b", "server");
                    }
                    _ => {
                        if kind == "stopped while asked" {
                            env.sleep(Duration::from_secs(2)).await;
                        }
                        place.sim.stop("b");
                        env.sleep(Duration::from_secs(15)).await;
                        b.held.deaf.set(false);
                        place.sim.go_on("b");
                    }
                }
                b.held.deaf.set(false);
                // Pushes that it ignored are repeated, or it answers them now.
                let _ = b.call(Request::LockCancel { locks: vec![held] }).await;
            };
            let (took, ()) = futures_util::future::join(waits, lives).await;
            assert!(took >= Duration::from_secs(14) && took < Duration::from_secs(27), "{kind}: {took:?}");
            assert_eq!(evictions(a).await, 0, "{kind}");
            assert!(b.lookup(Ino::ROOT, "f").await.is_ok(), "{kind}: its session goes on");
        });
    }
}
