//! Directories whose names lie in shards: what they cost a mount, and what it knows of them.

use super::cluster::{calls, in_cluster, root};
use crate::Client;
use crate::api::{Ctx, OpenFlags};
use amphi_env::Env;
use amphi_types::{Attr, Caps, Cred, Errno, Ino, SetAttr, TimeSet, Timespec};
use amphi_wire::{RenameMode, XattrMode};
use std::time::Duration;

/// A new directory `d` with shards.
async fn sharded(client: &Client, count: &str) -> Ino {
    let dir = client.mkdir(&root(), Ino::ROOT, b"d", 0o755).await.expect("mkdir").ino;
    let set = client.setxattr(&root(), dir, b"user.amphi.shards", count.as_bytes(), XattrMode::Set);
    set.await.expect("shards");
    dir
}

async fn stat(client: &Client, dir: Ino) -> Attr {
    client.getattr(&root(), dir).await.expect("stat")
}

/// Goal: in sole mode, creating a name in a directory with shards costs one message, as in any other directory that
/// this mount has made: the look-up before it and the attributes of the directory after it cost no message. Method:
/// names in all shards, counting messages; then what the mount knows is what another mount is told.
#[test]
fn alone_a_name_costs_one_message() {
    for servers in [1, 3] {
        in_cluster(60, servers, async |c| {
            let (a, ctx) = (c.mount().await, root());
            let dir = sharded(&a, "5").await;
            let mut last = stat(&a, dir).await;
            for n in 0..40 {
                let name = format!("n{n}");
                let before = calls(&a);
                assert_eq!(a.lookup(&ctx, dir, name.as_bytes()).await.map(drop), Err(Errno::NoEnt));
                if n % 2 == 0 {
                    a.mkdir(&ctx, dir, name.as_bytes(), 0o755).await.expect("mkdir");
                } else {
                    a.symlink(&ctx, dir, name.as_bytes(), b"to").await.expect("symlink");
                }
                let now = stat(&a, dir).await;
                assert_eq!(calls(&a) - before, 1, "{name}");
                assert_eq!(now.nlink, last.nlink + u32::from(n % 2 == 0));
                assert!(now.mtime >= last.mtime && now.ctime >= last.ctime);
                last = now;
            }
            let b = c.mount().await;
            assert_eq!(stat(&b, dir).await, last, "what was known is what is there");
            assert_eq!(b.lookup(&ctx, dir, b"n7").await.map(drop), Ok(()));
        });
    }
}

/// Goal: attributes that were set on a directory with shards are shown afterwards, in sole mode and in shared mode,
/// until the next change of a name. Method: times, permissions and an access list, each set after a name was made, so
/// that the attributes gathered from the shards are cached.
#[test]
fn what_was_set_is_shown() {
    for mounts in [1, 2] {
        in_cluster(61, 2, async |c| {
            let (a, ctx) = (c.mount().await, root());
            let others = if mounts == 2 { vec![c.mount().await] } else { Vec::new() };
            let dir = sharded(&a, "4").await;
            let other = Ctx { cred: Cred { caps: Caps::NONE, ..Cred::new(5, 6, vec![]) }, ..root() };
            for n in 0..8 {
                let name = format!("n{n}");
                a.mkdir(&ctx, dir, name.as_bytes(), 0o755).await.expect("mkdir");
                let made = stat(&a, dir).await;
                let old = Timespec { sec: 1000 + n, nsec: 1 };
                let set = |set: SetAttr| a.setattr(&ctx, dir, set, None);
                let shown =
                    set(SetAttr { mtime: Some(TimeSet::At(old)), ..SetAttr::default() }).await.expect("utimens");
                for client in std::iter::once(&a).chain(&others) {
                    let attr = stat(client, dir).await;
                    assert_eq!((attr.mtime, attr.nlink), (old, made.nlink));
                    assert_eq!((attr.mtime, attr.ctime), (shown.mtime, shown.ctime));
                    assert!(attr.ctime > made.ctime, "a change of times is one of the inode");
                }
                set(SetAttr { perm: Some(0o700), ..SetAttr::default() }).await.expect("chmod");
                let denied = a.mkdir(&other, dir, b"denied", 0o755).await;
                assert_eq!(denied.map(drop), Err(Errno::Access));
                set(SetAttr { perm: Some(0o777), ..SetAttr::default() }).await.expect("chmod");
                for client in std::iter::once(&a).chain(&others) {
                    assert_eq!((stat(client, dir).await.mtime, stat(client, dir).await.perm), (old, 0o777));
                    client.mkdir(&other, dir, b"allowed", 0o755).await.expect("mkdir");
                    assert!(stat(client, dir).await.mtime > old, "a name counts again");
                    client
                        .rename(&ctx, (dir, b"allowed"), (dir, b"moved"), RenameMode::NoReplace)
                        .await
                        .expect("renamed");
                    client.rmdir(&ctx, dir, b"moved").await.expect("rmdir");
                    assert_eq!(stat(client, dir).await.nlink, made.nlink);
                    a.setattr(&ctx, dir, SetAttr { mtime: Some(TimeSet::At(old)), ..SetAttr::default() }, None)
                        .await
                        .expect("utimens");
                }
            }
        });
    }
}

/// Goal: a name that another thread of the mount makes in a shard while the directory is getting shards is not taken
/// for absent. Method: both at once, then a look-up of that name.
#[test]
fn names_made_meanwhile_are_known() {
    for seed in 0..20 {
        in_cluster(70 + seed, 2, async |c| {
            let (a, ctx) = (c.mount().await, root());
            let dir = a.mkdir(&ctx, Ino::ROOT, b"d", 0o755).await.expect("mkdir").ino;
            let set = a.setxattr(&ctx, dir, b"user.amphi.shards", b"3", XattrMode::Set);
            let make = async {
                c.env.sleep(Duration::from_micros(20 * seed)).await;
                a.create(&ctx, dir, b"x", 0o644, OpenFlags::WRITE).await.expect("create").attr.ino
            };
            let (set, made) = futures_util::join!(set, make);
            assert!(matches!(set, Ok(()) | Err(Errno::NotEmpty)), "{set:?}");
            assert_eq!(a.lookup(&ctx, dir, b"x").await.map(|attr| attr.ino), Ok(made));
            assert_eq!(a.lookup(&ctx, dir, b"y").await.map(drop), Err(Errno::NoEnt));
        });
    }
}
