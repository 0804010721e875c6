//! A mount in sole mode that is cut off from a server other than the master.

use amphi_client::{Ctx, OpenFlags};
use amphi_env::Env;
use amphi_sim::cluster::{CALLBACK_DEADLINE, Cluster, SERVERS, Shape};
use amphi_types::Ino;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Goal: a mount in sole mode is never ended because of its own changes, even when it is cut off from a server that has
/// granted it tokens, for longer than the time in which it has to answer. Method: the mount in the master's process;
/// the other server grants tokens after it has been cut off from the master for a while; then names of inodes that lie
/// there are removed, and at one of many moments the link is cut.
#[test]
fn own_changes_end_nobody() {
    for moment in 0..40 {
        let mut shape = Shape::with(moment, Some(2), Some(1));
        (shape.embedded, shape.sim.net_ns) = (true, 100_000..200_000);
        let cluster = Rc::new(Cluster::new(moment, shape));
        let story = async {
            cluster.start_servers(&cluster.all_servers()).await.expect("the servers start");
            let mount = cluster.mount().await.expect("a mount");
            let (client, ctx) = (mount.client.clone(), Ctx::root());
            let mut dirs = Vec::new();
            for i in 0..12 {
                let made = client.mkdir(&ctx, Ino::ROOT, format!("d{i}").as_bytes(), 0o755).await.expect("mkdir").ino;
                for j in 0..4 {
                    let name = format!("f{j}");
                    let made =
                        client.create(&ctx, made, name.as_bytes(), 0o644, OpenFlags::READ_WRITE).await.expect("create");
                    client.release(made.file);
                }
                dirs.push(made);
            }
            cluster.sim.cut(SERVERS[0], SERVERS[1]);
            cluster.env.sleep(Duration::from_secs(6)).await;
            cluster.sim.heal(SERVERS[0], SERVERS[1]);
            let done = Rc::new(Cell::new(false));
            let (told, own) = (done.clone(), client.clone());
            mount.env.spawn(async move {
                let ctx = Ctx::root();
                for (i, dir) in dirs.iter().enumerate() {
                    for j in 0..4 {
                        own.lookup(&ctx, *dir, format!("f{j}").as_bytes()).await.expect("lookup");
                    }
                    for j in 0..4 {
                        own.unlink(&ctx, *dir, format!("f{j}").as_bytes()).await.expect("unlink");
                    }
                    own.rmdir(&ctx, Ino::ROOT, format!("d{i}").as_bytes()).await.expect("rmdir");
                }
                told.set(true);
            });
            cluster.env.sleep(Duration::from_micros(500 + 900 * moment)).await;
            cluster.sim.cut(SERVERS[0], SERVERS[1]);
            cluster.env.sleep(CALLBACK_DEADLINE + Duration::from_secs(6)).await;
            cluster.sim.heal(SERVERS[0], SERVERS[1]);
            cluster.wait("the changes", || done.get()).await.expect("they end");
            client.getattr(&ctx, Ino::ROOT).await.expect("the mount goes on");
            cluster.unmount(mount).await.expect("the unmount");
        };
        cluster.sim.block_on(story).expect("the story ends");
    }
}
