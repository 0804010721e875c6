//! Messages to mounts that survive a loss of power of their server.

use super::*;
use amphi_env::sim::CrashKind;

async fn evictions(status: &Client) -> u64 {
    let Ok(Reply::Counters(counters)) = status.call(Request::Counters { reset: false }).await else { panic!() };
    counters.iter().find(|(n, _)| n == "evictions").unwrap().1
}

/// Goal: Promise S22: a mount whose server lost power is notified, for acknowledged changes may be lost: its session
/// ends. After a killed process, or lost power behind an orderly stop, it continues. Method: a change was acknowledged
/// and not synced, and each of the three failures follows. Then another mount reads.
#[test]
fn a_mount_does_not_outlive_lost_power() {
    for (seed, stopped, kind) in
        [(95, false, CrashKind::Process), (96, false, CrashKind::Power), (97, true, CrashKind::Power)]
    {
        let place = Place::new(seed, 2, 2);
        let run = async {
            let server = place.start().await.unwrap();
            let c = place.client(1).await.unwrap();
            let f = c.create(Ino::ROOT, "f").await.unwrap();
            if stopped {
                server.stop().await.unwrap();
            }
            place.sim.crash("server", kind);
            drop(server);
            let _server = place.start().await.unwrap();
            let goes_on = stopped || kind == CrashKind::Process;
            assert_eq!(c.stat(f).await.is_ok(), goes_on, "{kind:?} {stopped}");
            let other = place.client(2).await.unwrap();
            assert!(!goes_on || other.stat(f).await.is_ok());
            other.create(Ino::ROOT, "g").await.unwrap();
            let status = place.client_named(9, "admin:1", Role::Admin).await.unwrap();
            assert_eq!(evictions(&status).await, u64::from(!goes_on), "{kind:?} {stopped}");
        };
        place.sim.block_on(run).unwrap();
    }
}

/// Goal: a session that was admitted is still known after a loss of power, however soon that happens, so its end can be
/// reported. Method: power fails directly after a mount was admitted, and the mount is counted among those evicted.
#[test]
fn who_was_let_in_is_remembered() {
    for seed in 110..118 {
        let place = Place::new(seed, 3, 1);
        let run = async {
            let server = place.start().await.unwrap();
            let c = place.client(1).await.unwrap();
            place.sim.crash("server", CrashKind::Power);
            drop(server);
            let _server = place.start().await.unwrap();
            assert!(c.create(Ino::ROOT, "f").await.is_err());
            let status = place.client_named(9, "admin:1", Role::Admin).await.unwrap();
            assert_eq!(evictions(&status).await, 1, "seed {seed}");
        };
        place.sim.block_on(run).unwrap();
    }
}
