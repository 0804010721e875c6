//! Crash sweeps over operations on several servers: one server at a time is crashed at every write or sync that it
//! makes, and started again while the others continue.

use super::*;
use std::cell::Cell;

type Tree = BTreeMap<String, (Kind, u32)>;

/// Runs the scenario from step 0; `done` counts the steps that were answered, `trees` gets the tree after each.
async fn scenario(m: &Mount<'_>, done: &Cell<usize>, mut trees: Option<&mut Vec<Tree>>) -> Result<()> {
    let root = Ino::ROOT;
    let (an, bn, cn) = (dir_on(root, 1, 4), dir_on(root, 2, 4), dir_on(root, 3, 4));
    macro_rules! step {
        ($call:expr) => {{
            let result = $call;
            let value = result?;
            done.set(done.get() + 1);
            if let Some(trees) = trees.as_deref_mut() {
                trees.push(m.tree(root).await?);
            }
            value
        }};
    }
    let a = step!(m.mkdir(root, &an).await);
    let b = step!(m.mkdir(root, &bn).await);
    let c = step!(m.mkdir(root, &cn).await);
    let f = step!(m.open_new(a, "f").await).attr.ino;
    m.opened(f);
    step!(m.link(f, b, "g").await);
    // Opened through a directory of the other server.
    let open = Make::File { open: Some(RW), exclusive: false };
    step!(m.inode(Request::Make { dir: b, name: name("g"), make: open, perm: 0o644, umask: 0 }).await);
    m.opened(f);
    step!(m.rename((a, "f"), (b, "h"), RenameMode::Replace).await);
    step!(m.mkdir(b, "sub").await);
    step!(m.rename((b, "sub"), (a, "sub"), RenameMode::Replace).await);
    step!(m.rename((root, &cn), (b, "c"), RenameMode::NoReplace).await);
    step!(m.create(c, "x").await);
    step!(m.rename((c, "x"), (b, "h"), RenameMode::Exchange).await);
    step!(m.rename((a, "sub"), (c, "top"), RenameMode::Replace).await);
    step!(m.unlink(b, "g").await);
    step!(m.unlink(c, "x").await);
    m.call(Request::Close { ino: f, access: RW, atime: None }).await?;
    assert_eq!(m.stat(f).await.map(|a| a.nlink), Ok(0), "it is open once more");
    m.call(Request::Close { ino: f, access: RW, atime: None }).await?;
    step!(m.rmdir(c, "top").await);
    step!(m.rmdir(b, "c").await);
    step!(m.unlink(b, "h").await);
    step!(m.rmdir(root, &bn).await);
    Ok(())
}

fn assert_clean(report: &crate::Report, what: &str) {
    assert!(report.is_clean(), "{what}: {:#?}", report.findings);
}

fn world() -> World {
    World::new(70, &[2, 2], 2)
}

/// The trees before any step and after each, and how many writes and syncs the scenario needs on each server.
fn golden() -> (Vec<Tree>, [u64; 2]) {
    let world = world();
    let mut trees = vec![Tree::new()];
    let run = async {
        let servers = world.start_all().await;
        let m = world.mount(1).await.unwrap();
        let before = [0, 1].map(|at| world.sim.disk_ops(&format!("s{at}")));
        let done = Cell::new(0);
        scenario(&m, &done, Some(&mut trees)).await.unwrap();
        let after = [0, 1].map(|at| world.sim.disk_ops(&format!("s{at}")));
        m.goodbye().await;
        world.stop_all(servers).await;
        let report = world.fsck().await;
        assert_clean(&report, "no crash");
        assert_eq!((report.inodes, report.orphans, report.pending.len(), report.objects), (2, 0, 0, 0));
        [0, 1].map(|at| after[at].writes + after[at].syncs - before[at].writes - before[at].syncs)
    };
    let ops = world.sim.block_on(run).unwrap();
    (trees, ops)
}

/// Starts a server again whenever it is down.
async fn keep(world: &World, at: usize, server: &RefCell<Option<Rc<Server<SimEnv>>>>, crashes: &Cell<u32>) {
    loop {
        sleep(world, Duration::from_millis(5)).await;
        if !world.sim.alive(&format!("s{at}")) {
            crashes.set(crashes.get() + 1);
            let again = world.start(at).await.expect("it starts again");
            server.replace(Some(again));
        }
    }
}

/// Goal: a client that survives a crash of either server at any write gets every answer once and right. Method: kill
/// the process, or cut its power, at every write of one server. The scenario must end as without a crash, and the zones
/// must be sound. After lost power the server may have lost unsynced changes, so only the zones count.
#[test]
fn every_answer_survives_one_server() {
    let (trees, ops) = golden();
    for at in [0, 1] {
        let crashes = Cell::new(0);
        for nth in 1..=ops[at] {
            let world = world();
            let what = format!("crash of s{at} at {nth}");
            let run = async {
                let mut servers = world.start_all().await;
                let m = world.mount(1).await.unwrap();
                let kept = RefCell::new(servers[at].take());
                world.sim.crash_at(&format!("s{at}"), nth, CrashKind::Process);
                let done = Cell::new(0);
                {
                    let story = std::pin::pin!(scenario(&m, &done, None));
                    let keeper = std::pin::pin!(keep(&world, at, &kept, &crashes));
                    match futures_util::future::select(story, keeper).await {
                        futures_util::future::Either::Left((result, _)) => {
                            result.unwrap_or_else(|e| panic!("{what}: step {}: {e}", done.get()))
                        }
                        futures_util::future::Either::Right(_) => unreachable!("the keeper never ends"),
                    }
                }
                world.sim.clear_crash_at(&format!("s{at}"));
                assert_eq!(Some(&m.tree(Ino::ROOT).await.unwrap()), trees.last(), "{what}");
                m.goodbye().await;
                servers[at] = kept.take();
                world.stop_all(servers).await;
                let report = world.fsck().await;
                assert_clean(&report, &what);
                let left = (report.inodes, report.pending.len(), report.objects);
                assert_eq!(left, (2, 0, 0), "{what}: {report:#?}");
            };
            world.sim.block_on(run).unwrap();
        }
        assert!(crashes.get() > 20, "the scenario has many writes on s{at}, {} crashes", crashes.get());
    }
}

/// Goal: whatever a crash interrupts happened wholly or not at all, on both servers, also when power fails. Method: one
/// server and the client crash at every write of the server. The other server continues, or crashes at the same time.
/// After a kill everything that was answered is there.
#[test]
fn nothing_is_left_half_done() {
    let (trees, ops) = golden();
    for (at, kind, both) in [
        (0, CrashKind::Process, false),
        (1, CrashKind::Process, false),
        (0, CrashKind::Power, false),
        (1, CrashKind::Power, false),
        (1, CrashKind::Power, true),
    ] {
        for nth in 1..=ops[at] {
            let world = world();
            let what = format!("{kind:?} of s{at} at {nth}, both: {both}");
            let run = async {
                let mut servers = world.start_all().await;
                let m = world.mount(1).await.unwrap();
                world.sim.crash_at(&format!("s{at}"), nth, kind);
                let done = Rc::new(Cell::new(0));
                let dead = async {
                    while world.sim.alive(&format!("s{at}")) {
                        world.node(1 - at).sleep(Duration::from_micros(200)).await;
                    }
                };
                let story = std::pin::pin!(scenario(&m, &done, None));
                futures_util::future::select(story, std::pin::pin!(dead)).await;
                world.sim.clear_crash_at(&format!("s{at}"));
                world.sim.crash("client", CrashKind::Process);
                if world.sim.alive(&format!("s{at}")) {
                    crash(&world, at, kind);
                }
                servers[at] = None;
                if both {
                    crash(&world, 1 - at, kind);
                    servers[1 - at] = None;
                    assert_clean(&world.fsck().await, &format!("{what}, as it lies"));
                    servers[1 - at] = Some(world.start(1 - at).await.unwrap_or_else(|e| panic!("{what}: {e}")));
                }
                servers[at] = Some(world.start(at).await.unwrap_or_else(|e| panic!("{what}: {e}")));
                let late = loop {
                    match world.mount(2).await {
                        Ok(m) => break m,
                        Err(_) => world.node(0).sleep(Duration::from_secs(5)).await,
                    }
                };
                // The test waits until the session of the first one has ended.
                sleep(&world, Duration::from_secs(60)).await;
                let tree = late.tree(Ino::ROOT).await.unwrap();
                let k = done.get();
                if kind == CrashKind::Process {
                    let allowed = &trees[k..(k + 2).min(trees.len())];
                    assert!(allowed.contains(&tree), "{what}, {k} steps answered: {tree:?} is none of {allowed:?}");
                }
                late.goodbye().await;
                world.stop_all(servers).await;
                let report = world.fsck().await;
                assert_clean(&report, &what);
                assert_eq!((report.orphans, report.pending.len()), (0, 0), "{what}: {report:#?}");
            };
            world.sim.block_on(run).unwrap();
        }
    }
}
