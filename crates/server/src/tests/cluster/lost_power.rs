//! Messages to mounts when one of several servers loses power.

use super::*;

/// Goal: the same if one of several servers loses power. The mount's session ends on all of them, and a mount in sole
/// mode learns that it cannot continue either. Method: the second server loses power, or is only killed. The master's
/// answer to the mount that reconnects is checked.
#[test]
fn one_of_several_servers_loses_power() {
    for (seed, kind) in [(120, CrashKind::Process), (121, CrashKind::Power)] {
        let world = World::new(seed, &[1, 1], 1);
        let run = async {
            let mut servers = world.start_all().await;
            let a = world.mount_everywhere("a", 1).await;
            let dir = a.dir_at(1).await;
            a.create(dir, "f").await.unwrap();
            let master = a.links.borrow()[&0].0.clone();
            let before = (master.welcome().mounts, a.held(0).restarts.get());
            assert!(!master.welcome().resumed);
            let begun = || (master.welcome().begun, a.links.borrow()[&1].0.welcome().begun);
            let first = begun();
            assert!(first.0 == first.1 && first.0 != 0, "{first:?}");
            crash(&world, 1, kind);
            servers[1] = None;
            servers[1] = Some(world.start(1).await.unwrap());
            sleep(&world, Duration::from_secs(30)).await;
            let after_power_loss = u64::from(kind == CrashKind::Power);
            let after = (master.welcome().mounts, a.held(0).restarts.get());
            assert_eq!(after.1, before.1 + after_power_loss as u32, "{kind:?}: the master has ended the session");
            assert_eq!(after.0, before.0 + 2 * after_power_loss, "{kind:?}: one more than its own");
            let again = begun();
            assert!(again.0 == again.1 && (again == first) == (after_power_loss == 0), "{kind:?}: {first:?} {again:?}");
            let b = world.mount_everywhere("b", 2).await;
            b.create(Ino::ROOT, "g").await.unwrap();
            b.mkdir(dir, "h").await.unwrap();
        };
        world.sim.block_on(run).unwrap();
    }
}

/// Goal: a loss is known until all mounts have been notified of it, also over a kill in between, and then no more.
/// Method: the second server loses power, starts again while it cannot reach the master, and is killed. Later it is
/// killed again.
#[test]
fn a_kill_forgets_no_loss() {
    let world = World::new(122, &[1, 1], 2);
    let run = async {
        let mut servers = world.start_all().await;
        let a = world.mount_everywhere("a", 1).await;
        let dir = a.dir_at(1).await;
        a.create(dir, "f").await.unwrap();
        let master = a.links.borrow()[&0].0.clone();
        let before = (master.welcome().mounts, a.held(0).restarts.get());
        for kind in [CrashKind::Power, CrashKind::Process] {
            crash(&world, 1, kind);
            servers[1] = None;
            world.sim.cut("s0", "s1");
            servers[1] = Some(world.start(1).await.unwrap());
            sleep(&world, Duration::from_secs(2)).await;
            assert_eq!((master.welcome().mounts, a.held(0).restarts.get()), before, "the master does not know yet");
        }
        world.sim.heal("s0", "s1");
        sleep(&world, Duration::from_secs(30)).await;
        assert_eq!((master.welcome().mounts, a.held(0).restarts.get()), (before.0 + 2, before.1 + 1));
        let b = world.mount_everywhere("b", 2).await;
        b.mkdir(dir, "h").await.unwrap();
        crash(&world, 1, CrashKind::Process);
        servers[1] = None;
        servers[1] = Some(world.start(1).await.unwrap());
        sleep(&world, Duration::from_secs(30)).await;
        b.create(dir, "i").await.unwrap();
        assert_eq!(b.held(0).restarts.get(), 0, "that loss is over");
    };
    world.sim.block_on(run).unwrap();
}
