//! Directories whose names lie in shards: the messages that they cost a mount, and the names that it records of them.

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
/// names are made in all shards while messages are counted; then the state that this mount shows is compared with what
/// another mount gets.
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

/// The shards of a directory as a mount shows them.
async fn shown(client: &Client, dir: Ino) -> String {
    let text = client.getxattr(&root(), dir, b"user.amphi.shards").await.expect("shown");
    String::from_utf8(text).expect("text")
}

/// Goal: in a directory whose new sub-directories get shards, every new directory gets shards and the same setting,
/// whichever user makes it, even if the parent has shards itself. After the setting is changed back to plain, new
/// directories get none. Method: one mount and then two mounts make trees, with directories of a user; the test checks
/// what each mount shows, and makes names in one directory from both.
#[test]
fn new_subdirectories_get_shards() {
    for mounts in [1, 2] {
        in_cluster(90 + mounts, 3, async |c| {
            let (a, ctx) = (c.mount().await, root());
            let b = if mounts == 2 { c.mount().await } else { a.clone() };
            let user = Ctx { cred: Cred { caps: Caps::NONE, ..Cred::new(5, 6, vec![]) }, ..root() };
            let top = a.mkdir(&ctx, Ino::ROOT, b"top", 0o777).await.expect("mkdir").ino;
            let set = |text: &'static [u8]| a.setxattr(&ctx, top, b"user.amphi.subdirectories", text, XattrMode::Set);
            assert_eq!(set(b"wide").await, Err(Errno::Inval));
            let old = a.mkdir(&ctx, top, b"old", 0o755).await.expect("mkdir").ino;
            set(b"sharded").await.expect("set");
            assert_eq!((shown(&b, top).await, shown(&b, old).await), ("none".into(), "none".into()));
            let made = b.mkdir(&user, top, b"new", 0o777).await.expect("mkdir");
            assert_eq!(stat(&a, made.ino).await, stat(&b, made.ino).await);
            assert_eq!((made.nlink, made.uid, made.perm), (2, 5, 0o777));
            let below = a.mkdir(&ctx, made.ino, b"below", 0o777).await.expect("mkdir").ino;
            let lowest = b.mkdir(&ctx, below, b"lowest", 0o777).await.expect("mkdir").ino;
            for dir in [made.ino, below, lowest] {
                assert_eq!(shown(&a, dir).await.split(',').count(), 3, "one on each target");
                assert_eq!(a.getxattr(&ctx, dir, b"user.amphi.subdirectories").await.expect("shown"), b"sharded");
            }
            let mut targets = std::collections::BTreeSet::new();
            for n in 0..30 {
                let (client, name) = (if n % 2 == 0 { &a } else { &b }, format!("n{n}"));
                let made = client.symlink(&user, lowest, name.as_bytes(), b"to").await.expect("made");
                targets.insert(made.ino.target());
            }
            assert_eq!(targets.len(), 3, "inodes lie beside their names");
            set(b"plain").await.expect("set");
            let plain = b.mkdir(&ctx, top, b"plain", 0o755).await.expect("mkdir").ino;
            assert_eq!(shown(&a, plain).await, "none");
            let text = a.symlink(&ctx, top, b"link", b"to").await.expect("symlink").ino;
            let of_link = a.setxattr(&ctx, text, b"user.amphi.subdirectories", b"sharded", XattrMode::Set).await;
            assert_eq!(of_link, Err(Errno::NotDir));
        });
    }
}

/// Goal: with the setting of its directory, a new directory costs three messages and a name in it one, as in any new
/// directory. Method: the messages of the only mount are counted.
#[test]
fn alone_a_new_directory_with_shards_costs_few_messages() {
    in_cluster(95, 3, async |c| {
        let (a, ctx) = (c.mount().await, root());
        let top = a.mkdir(&ctx, Ino::ROOT, b"top", 0o777).await.expect("mkdir").ino;
        a.setxattr(&ctx, top, b"user.amphi.subdirectories", b"sharded", XattrMode::Set).await.expect("set");
        let before = calls(&a);
        let dir = a.mkdir(&ctx, top, b"new", 0o755).await.expect("mkdir").ino;
        // The three messages are Make, SetShards and Shards.
        assert_eq!(calls(&a) - before, 3);
        for n in 0..10 {
            let (before, name) = (calls(&a), format!("n{n}"));
            assert_eq!(a.lookup(&ctx, dir, name.as_bytes()).await.map(drop), Err(Errno::NoEnt));
            a.symlink(&ctx, dir, name.as_bytes(), b"to").await.expect("symlink");
            assert_eq!(calls(&a) - before, 1, "{name}");
        }
    });
}
