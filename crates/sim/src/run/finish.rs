//! The end of a run: everything is compared, the zones are checked, all is removed, and nothing may remain.
//!
//! Owns: what counts as a remainder. Does not own: the correct state before (`reference`), the checks of zones
//! (`fsck`).

use super::{Checked, Faults, Mounts, Run, line};
use crate::cluster::{GRACE, Mount};
use crate::observe::Tree;
use crate::op::Op;
use crate::perform::{Files, perform};
use crate::program::Program;
use crate::{shards, shared};
use amphi_client::Ctx;
use amphi_env::Env;
use amphi_types::Ino;
use std::time::Duration;

/// No call takes longer than this where nothing fails: a hang that a time-out ends shows. Of 50 seeds the longest took
/// 0.13 s, and a call that waits for a lost callback waits for 1.7 s.
const LONGEST: Duration = Duration::from_millis(750);

/// Background work of servers is complete after this time.
const BACKGROUND: Duration = Duration::from_secs(5);

impl Run {
    /// Compares, checks the zones, removes everything, and checks that nothing is left.
    pub(super) async fn finish(&self, mounts: Mounts, free: u64) -> Checked {
        let longest = self.longest();
        if self.plan.faults == Faults::None && longest > LONGEST {
            return Err(vec![format!("a call took {longest:?}, and nothing failed that could have held it up")]);
        }
        self.note("the end: unmount, stop, check");
        self.compare(&mounts).await?;
        self.unmount_all(mounts).await?;
        if self.summary.borrow().mount_crashes > 0 {
            // Open files of a crashed mount stay until its session has ended.
            self.cluster.env.sleep(GRACE).await;
        }
        self.cluster.env.sleep(BACKGROUND).await;
        self.cluster.stop_servers().await.map_err(line)?;
        let report = self.cluster.fsck().await?;
        if report.orphans > 0 {
            return Err(vec![format!(
                "{} inodes without names are left, and no mount that had them open",
                report.orphans
            )]);
        }
        self.cluster.start_servers(&self.cluster.all_servers()).await.map_err(line)?;
        let mut mounts = vec![self.cluster.mount().await.map_err(line)?];
        self.compare(&mounts).await?;
        let Some(mount) = mounts.pop() else { return Ok(()) };
        self.note("remove everything");
        for p in &self.programs {
            let (root, index) = (p.borrow().reference.root, p.borrow().index);
            self.remove(&mount, root).await?;
            self.simply(&mount, Op::Rmdir { dir: Ino::ROOT, name: Program::dir_name(index).into_bytes() }).await?;
        }
        let root = self.area.borrow().root;
        self.remove(&mount, root).await?;
        self.simply(&mount, Op::Rmdir { dir: Ino::ROOT, name: shared::DIR.into() }).await?;
        self.simply(&mount, Op::SyncAll).await?;
        let ctx = Ctx::root();
        let mut left = free;
        // Space is returned in the background.
        for _ in 0..200 {
            left = mount.client.statfs(&ctx).await.map_err(|e| line(format!("statfs: {e}")))?.blocks_free;
            if left == free {
                break;
            }
            self.cluster.env.sleep(Duration::from_millis(100)).await;
        }
        if left != free {
            return Err(vec![format!("{left} blocks are free after everything was removed, {free} at the start")]);
        }
        self.cluster.unmount(mount).await.map_err(line)?;
        self.cluster.env.sleep(BACKGROUND).await;
        self.cluster.stop_servers().await.map_err(line)?;
        let report = self.cluster.fsck().await?;
        let (orphans, objects, inodes) = (report.orphans, report.objects, report.inodes);
        if (orphans, objects) != (0, 0) || !shards::is_root_alone(inodes) {
            let left = format!("{inodes} inodes, {orphans} of them without a name, and {objects} objects");
            return Err(vec![format!("{left} are left after everything was removed, should be the root alone")]);
        }
        if self.cluster.shape.servers == 1 && !report.pending.is_empty() {
            return Err(vec![format!("the next start would still have to finish: {:?}", report.pending)]);
        }
        Ok(())
    }

    async fn simply(&self, mount: &Mount, op: Op) -> Checked {
        let done = perform(std::slice::from_ref(&mount.client), 0, &Ctx::root(), &mut Files::new(), &op).await;
        done.map(drop).map_err(|e| line(format!("{op}: {e}")))
    }

    /// Removes everything in a directory.
    async fn remove(&self, mount: &Mount, top: Ino) -> Checked {
        let tree = Tree::read(&mount.client, top, "").await.map_err(line)?;
        let mut dirs = vec![top];
        let mut at = 0;
        while at < dirs.len() {
            let dir = dirs[at];
            at += 1;
            if let Some(crate::observe::Found::Dir(entries)) = tree.nodes.get(&dir).map(|n| &n.body) {
                for (name, ino) in entries {
                    if tree.nodes.get(ino).is_some_and(|n| n.seen.kind == amphi_types::Kind::Dir) {
                        dirs.push(*ino);
                    } else {
                        self.simply(mount, Op::Unlink { dir, name: name.clone() }).await?;
                    }
                }
            }
        }
        for dir in dirs.into_iter().rev() {
            if let Some(crate::observe::Found::Dir(entries)) = tree.nodes.get(&dir).map(|n| &n.body) {
                for (name, ino) in entries {
                    if tree.nodes.get(ino).is_some_and(|n| n.seen.kind == amphi_types::Kind::Dir) {
                        self.simply(mount, Op::Rmdir { dir, name: name.clone() }).await?;
                    }
                }
            }
        }
        Ok(())
    }
}
