//! Crash sweeps over operations on several targets.
//!
//! The scenario is a list of operations. The tree after each of them is known from a run without a crash. Then the
//! server is crashed at every single write or sync of the scenario, and started again.

use super::*;
use crate::{Report, fsck};
use amphi_env::sim::CrashKind;
use amphi_types::{SetAttr, layout};
use std::cell::Cell;

type Tree = BTreeMap<String, (Kind, u32)>;

fn dir_name(target: u16) -> String {
    let on = |n: &String| layout::directory_target(Ino::ROOT, n.as_bytes(), 3).0 == target;
    (0..).map(|i| format!("d{i}")).find(on).expect("a name")
}

/// Pauses between the steps. The long one gives background work, such as deleting decisions, time to run in between.
const PAUSES: [Duration; 2] = [Duration::ZERO, Duration::from_millis(170)];

/// The kind of operations that the sweep runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Story {
    /// Operations between ordinary directories.
    Directories,
    /// Operations in and between directories with shards.
    Shards,
}

/// Runs the scenario from step 0; `done` counts the steps that were answered, `trees` gets the tree after each.
async fn scenario(
    story: Story,
    (place, c): (&Place, &Client),
    pause: Duration,
    done: &Cell<usize>,
    mut trees: Option<&mut Vec<Tree>>,
) -> Result<()> {
    let root = Ino::ROOT;
    let clock = place.sim.node("client");
    let (an, bn) = (dir_name(1), dir_name(2));
    macro_rules! step {
        ($call:expr) => {{
            let result = $call;
            let value = result?;
            done.set(done.get() + 1);
            if let Some(trees) = trees.as_deref_mut() {
                trees.push(c.tree(root).await?);
            }
            clock.sleep(pause).await;
            value
        }};
    }
    if story == Story::Shards {
        let s = step!(c.mkdir(root, &an).await);
        step!(c.call(Request::SetShards { ino: s, count: 3 }).await);
        let other = step!(c.mkdir(root, &bn).await);
        for text in ["f", "g", "h"] {
            step!(c.create(s, text).await);
        }
        step!(c.mkdir(s, "sub").await);
        step!(c.rename((s, "f"), (s, "i"), RenameMode::NoReplace).await);
        step!(c.rename((s, "sub"), (s, "bus"), RenameMode::Replace).await);
        let set = SetAttr { perm: Some(0o2710), gid: Some(7), ..SetAttr::default() };
        step!(c.call(Request::SetAttr { ino: s, set }).await);
        step!(c.rename((s, "bus"), (other, "bus"), RenameMode::Replace).await);
        step!(c.rename((s, "g"), (s, "h"), RenameMode::Exchange).await);
        let i = c.lookup(s, "i").await?.attr.ino;
        step!(c.link(i, s, "k").await);
        step!(c.unlink(s, "g").await);
        step!(c.rename((s, "h"), (s, "i"), RenameMode::Replace).await);
        assert_eq!(c.rmdir(root, &an).await, Err(Errno::NotEmpty));
        step!(c.unlink(s, "i").await);
        step!(c.unlink(s, "k").await);
        step!(c.rename((other, "bus"), (root, &an), RenameMode::Replace).await);
        let last = step!(c.mkdir(other, "last").await);
        step!(c.call(Request::SetShards { ino: last, count: 5 }).await);
        step!(c.rmdir(other, "last").await);
        step!(c.rmdir(root, &bn).await);
        return Ok(());
    }
    let a = step!(c.mkdir(root, &an).await);
    let b = step!(c.mkdir(root, &bn).await);
    let make = Request::Make {
        dir: a,
        name: name("f"),
        make: Make::File { open: Some(RW), exclusive: true },
        perm: 0o644,
        umask: 0,
    };
    let f = step!(c.inode(make).await).attr.ino;
    step!(c.link(f, b, "g").await);
    step!(c.rename((a, "f"), (b, "h"), RenameMode::Replace).await);
    step!(c.mkdir(a, "sub").await);
    step!(c.rename((a, "sub"), (b, "sub"), RenameMode::Replace).await);
    step!(c.make(a, "x", Make::Symlink(b"there".to_vec())).await);
    step!(c.rename((a, "x"), (b, "h"), RenameMode::Exchange).await);
    step!(c.rename((b, "sub"), (root, "top"), RenameMode::NoReplace).await);
    step!(c.unlink(b, "g").await);
    step!(c.rename((a, "x"), (b, "h"), RenameMode::Replace).await);
    step!(c.unlink(b, "h").await);
    c.call(Request::Close { ino: f, access: RW, atime: None }).await?;
    step!(c.rmdir(root, "top").await);
    step!(c.rmdir(root, &bn).await);
    Ok(())
}

fn assert_clean(report: &Report, what: &str) {
    assert!(report.is_clean(), "{what}: {:#?}", report.findings);
}

/// The trees before any step and after each, and how many writes and syncs the scenario needs.
fn golden(story: Story, pause: Duration) -> (Vec<Tree>, u64) {
    let place = Place::new(50, 3, 2);
    let mut trees = vec![Tree::new()];
    let run = async {
        let server = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        let done = Cell::new(0);
        let before = place.sim.disk_ops("server");
        scenario(story, (&place, &c), pause, &done, Some(&mut trees)).await.unwrap();
        let ops = place.sim.disk_ops("server");
        c.call(Request::Goodbye).await.unwrap();
        server.stop().await.unwrap();
        let report = fsck(&place.sim.node("server"), "data").await.unwrap();
        assert_clean(&report, "no crash");
        assert_eq!((report.inodes, report.orphans, report.pending.len(), report.objects), (2, 0, 0, 0), "{report:?}");
        ops.writes + ops.syncs - before.writes - before.syncs
    };
    let ops = place.sim.block_on(run).unwrap();
    (trees, ops)
}

/// Goal: a client that stays connected through a crash of the server at any write gets every answer once, and the right
/// one. Method: kill the process at every write. The scenario must end as without a crash, and the zones must be sound.
#[test]
fn every_answer_survives_a_kill() {
    answers_survive_kills(Story::Directories);
}

/// Goal and method: as `every_answer_survives_a_kill`, with names in shards.
#[test]
fn every_answer_of_shards_survives_a_kill() {
    answers_survive_kills(Story::Shards);
}

fn answers_survive_kills(story: Story) {
    let (trees, ops) = golden(story, Duration::ZERO);
    let mut crashes = 0;
    for nth in 1..=ops {
        let place = Place::new(50, 3, 2);
        let run = async {
            let mut server = place.start().await.unwrap();
            let c = place.client(1).await.unwrap();
            place.sim.crash_at("server", nth, CrashKind::Process);
            let done = Cell::new(0);
            // The last crash may come during the final comparison.
            let story = async {
                scenario(story, (&place, &c), Duration::ZERO, &done, None).await.expect("every step is answered");
                let tree = c.tree(Ino::ROOT).await.unwrap();
                place.sim.clear_crash_at("server");
                tree
            };
            let keeper = async {
                loop {
                    place.sim.node("client").sleep(Duration::from_millis(5)).await;
                    if !place.sim.alive("server") {
                        crashes += 1;
                        server = place.start().await.unwrap();
                    }
                }
            };
            let tree = match futures_util::future::select(std::pin::pin!(story), std::pin::pin!(keeper)).await {
                futures_util::future::Either::Left((tree, _)) => tree,
                futures_util::future::Either::Right(_) => unreachable!("the keeper never ends"),
            };
            assert_eq!(Some(&tree), trees.last(), "crash at {nth}");
            if !place.sim.alive("server") {
                server = place.start().await.unwrap();
            }
            c.call(Request::Goodbye).await.unwrap();
            server.stop().await.unwrap();
            let report = fsck(&place.sim.node("server"), "data").await.unwrap();
            assert_clean(&report, &format!("crash at {nth}"));
            assert_eq!((report.inodes, report.pending.len(), report.objects), (2, 0, 0), "crash at {nth}: {report:#?}");
        };
        place.sim.block_on(run).unwrap();
    }
    assert!(crashes > 20, "the scenario has many writes, {crashes} crashes");
}

/// Goal: an operation that a crash interrupts has happened as a whole or not at all. After a kill everything that was
/// answered is there. After a power failure at least the zones are sound and consistent. Method: client and server
/// crash at every write.
#[test]
fn nothing_is_left_half_done() {
    nothing_stays_half_done(Story::Directories);
}

/// Goal and method: as `nothing_is_left_half_done`, with names in shards.
#[test]
fn nothing_of_shards_is_left_half_done() {
    nothing_stays_half_done(Story::Shards);
}

fn nothing_stays_half_done(story: Story) {
    for (pause, kind) in PAUSES.into_iter().flat_map(|p| [(p, CrashKind::Process), (p, CrashKind::Power)]) {
        let (trees, ops) = golden(story, pause);
        for nth in 1..=ops {
            let place = Place::new(50, 3, 2);
            let what = format!("{kind:?} at {nth}, pauses of {pause:?}");
            let run = async {
                let first = place.start().await.unwrap();
                let c = place.client(1).await.unwrap();
                place.sim.crash_at("server", nth, kind);
                let done = Rc::new(Cell::new(0));
                let story = scenario(story, (&place, &c), pause, &done, None);
                let dead = async {
                    while place.sim.alive("server") {
                        place.sim.node("client").sleep(Duration::from_micros(200)).await;
                    }
                };
                let _ = futures_util::future::select(std::pin::pin!(story), std::pin::pin!(dead)).await;
                place.sim.clear_crash_at("server");
                place.sim.crash("client", CrashKind::Process);
                if place.sim.alive("server") {
                    place.sim.crash("server", kind);
                }
                drop(first);
                let report = fsck(&place.sim.node("server"), "data").await.unwrap();
                assert_clean(&report, &format!("{what}, as it lies"));
                let server = place.start().await.unwrap();
                let late = place.client(2).await.expect("the first does not keep it out");
                // State that the first one left ends with its session.
                loop {
                    let Ok(Reply::Status { sessions, .. }) = late.call(Request::Status).await else { panic!("status") };
                    if sessions.len() == 1 {
                        break;
                    }
                    place.sim.node("server").sleep(Duration::from_secs(5)).await;
                }
                let tree = late.tree(Ino::ROOT).await.unwrap();
                let k = done.get();
                if kind == CrashKind::Process {
                    let allowed = &trees[k..(k + 2).min(trees.len())];
                    assert!(allowed.contains(&tree), "{what}, {k} steps answered: {tree:?} is none of {allowed:?}");
                }
                late.call(Request::Goodbye).await.unwrap();
                server.stop().await.unwrap();
                let report = fsck(&place.sim.node("server"), "data").await.unwrap();
                assert_clean(&report, &what);
                assert_eq!((report.orphans, report.pending.len()), (0, 0), "{what}: {report:#?}");
            };
            place.sim.block_on(run).unwrap();
        }
    }
}
