//! Tests of the cost to make an inode on another target than its name.

use super::*;

/// Inodes that are made of each kind.
const MADE: u64 = 50;

/// Counters of all servers since they were started.
#[derive(Clone, Copy, Debug)]
struct Done {
    records: u64,
    syncs: u64,
    two_phase: u64,
}

fn done(servers: &[Option<Rc<Server<SimEnv>>>]) -> Done {
    let mut sum = Done { records: 0, syncs: 0, two_phase: 0 };
    for server in servers.iter().flatten() {
        sum.two_phase += server.worker.counters.two_phase.get();
        for target in (0..8).filter_map(|target| server.worker.target(TargetId(target))) {
            let stats = target.zone.stats();
            sum.records += stats.appends;
            sum.syncs += stats.syncs;
        }
    }
    sum
}

/// Goal: a file beside its name costs one record and waits for no disk; an inode on another target costs several
/// records and at least one sync, which is why files lie beside their names (docs/design/objects.md). Method: files,
/// and directories on the own target, on another one of the same server and on another server, one after the other, in
/// an otherwise idle cluster.
#[test]
fn an_inode_elsewhere_costs_syncs() {
    let world = World::new(980, &[2, 2], 1);
    let run = async {
        let servers = world.start_all().await;
        let mount = world.mount_everywhere("client", 1).await;
        let dir = mount.dir_at(0).await;
        let mut costs = Vec::new();
        for target in [None, Some(0), Some(1), Some(2)] {
            sleep(&world, Duration::from_secs(20)).await;
            let names: Vec<String> = match target {
                None => (0..MADE).map(|n| format!("f{n}")).collect(),
                Some(target) => {
                    let on = |n: &String| layout::directory_target(dir, n.as_bytes(), 4).0 == target;
                    (0..).map(|n| format!("d{n}")).filter(on).take(MADE as usize).collect()
                }
            };
            let (before, begun) = (done(&servers), world.sim.node("client").now());
            for text in &names {
                match target {
                    None => mount.open_new(dir, text).await.expect("made").attr.ino,
                    Some(_) => mount.mkdir(dir, text).await.expect("made"),
                };
            }
            let waited_us = world.sim.node("client").now().since(begun).as_micros();
            // Work that the servers do later also belongs to the operation.
            sleep(&world, Duration::from_secs(20)).await;
            let after = done(&servers);
            let (records, syncs) = (after.records - before.records, after.syncs - before.syncs);
            let two_phase = after.two_phase - before.two_phase;
            println!("{target:?}: {records} records, {syncs} syncs, {two_phase} two-phase, {waited_us} us for {MADE}");
            costs.push((records, syncs, two_phase));
        }
        let [file, near, beside, far] = costs[..] else { panic!("four kinds") };
        for one in [file, near] {
            assert!(one.0 < 2 * MADE && one.1 < MADE / 2 && one.2 == 0, "{one:?}");
        }
        for two in [beside, far] {
            assert!(two.0 >= 2 * MADE && two.1 >= MADE && two.2 == MADE, "{two:?}");
        }
        mount.goodbye().await;
        world.stop_all(servers).await;
    };
    world.sim.block_on(run).expect("no deadlock");
}
