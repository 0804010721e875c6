//! Path walks that are repeated, and attributes that are not there, with real servers in the simulated environment.

use super::sharing::{create, in_cluster, lookup, root};
use crate::api::{Ctx, OpenFlags};
use crate::telemetry::stats::Count;
use amphi_env::Env;
use amphi_types::{Errno, Ino, SetAttr};
use amphi_wire::{RenameMode, XattrMode};
use futures_util::future::join;
use std::time::Duration;

/// Goal: the inode that a repeated walk returned exists for the operation that follows, although another mount has
/// replaced the name by then. This is so for every kind of inode. Without a repeated walk the inode is stale.
/// Afterwards no state is left. Method: one mount looks a name up, the other one renames over it, and the first one
/// continues with the inode.
#[test]
fn what_a_repeated_walk_is_shown_stays() {
    in_cluster(1, async |cluster| {
        let [a, b] = cluster.two().await;
        let walker = Ctx { tid: 7, ..root() };
        let replace = async || {
            drop(create(&b, "t").await);
            b.rename(&root(), (Ino::ROOT, b"t"), (Ino::ROOT, b"n"), RenameMode::Replace).await.expect("rename");
        };
        let shown = async || a.lookup(&walker, Ino::ROOT, b"n").await.expect("the name is always there").ino;
        replace().await;
        let ino = shown().await;
        replace().await;
        assert_eq!(a.open(&walker, ino, OpenFlags::READ).await.map(drop), Err(Errno::Stale));
        a.walk_failed(7);
        let ino = shown().await;
        replace().await;
        let attr = a.getattr(&walker, ino).await.expect("it is held");
        assert_eq!((attr.ino, attr.nlink), (ino, 0));
        let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        a.setattr(&walker, ino, set, None).await.expect("its permissions are changed");
        let file = a.open(&walker, ino, OpenFlags::READ_WRITE).await.expect("it is opened");
        assert_eq!(a.walked(7, ino), Some((Ino::ROOT, b"n".to_vec())));
        a.walk_ended(7);
        assert!(!a.repeats_walk(7) && a.getattr(&walker, ino).await.is_ok(), "the open holds it");
        drop(file);
        // A link is held as well, and by time alone if nothing follows.
        b.symlink(&root(), Ino::ROOT, b"l", b"to").await.expect("symlink");
        a.walk_failed(7);
        let link = a.lookup(&walker, Ino::ROOT, b"l").await.expect("lookup").ino;
        b.unlink(&root(), Ino::ROOT, b"l").await.expect("unlink");
        assert_eq!(a.readlink(&walker, link).await, Ok(b"to".to_vec()));
        cluster.env.sleep(Duration::from_secs(10)).await;
        for gone in [ino, link] {
            assert_eq!(a.readlink(&walker, gone).await, Err(Errno::Stale), "nobody holds it any more");
            assert_eq!(b.getattr(&root(), gone).await.map(|attr| attr.ino), Err(Errno::Stale));
        }
        assert!(!a.repeats_walk(7));
    });
}

/// Goal: a create at the end of a repeated walk waits, for a bounded time, until other mounts have removed a link of
/// that name. If the walk is not repeated, the error is returned at once. Method: a link that another mount removes
/// later, or never.
#[test]
fn a_repeated_create_waits_for_a_link_to_go() {
    in_cluster(1, async |cluster| {
        let [a, b] = cluster.two().await;
        let walker = Ctx { tid: 7, ..root() };
        let tries =
            async || a.create(&walker, Ino::ROOT, b"n", 0o644, OpenFlags::READ_WRITE).await.map(|made| made.created);
        b.symlink(&root(), Ino::ROOT, b"n", b"to").await.expect("symlink");
        let before = cluster.env.now();
        assert_eq!(tries().await, Err(Errno::Loop), "who has not walked again yet will");
        assert!(cluster.env.now().since(before) < Duration::from_millis(100));
        a.walk_failed(7);
        assert_eq!(tries().await, Err(Errno::Loop), "it stays");
        assert!(cluster.env.now().since(before) > Duration::from_secs(1));
        let remove = async {
            cluster.env.sleep(Duration::from_millis(500)).await;
            b.unlink(&root(), Ino::ROOT, b"n").await.expect("unlink");
        };
        let (made, ()) = join(tries(), remove).await;
        assert_eq!(made, Ok(true), "it has gone");
    });
}

/// Goal: the only mount sends no request for security attributes of inodes that were shown without any, and shows such
/// an attribute as soon as it has set it. Method: calls counted.
#[test]
fn attributes_that_are_not_there_cost_nothing() {
    in_cluster(2, async |cluster| {
        let a = cluster.mount().await;
        drop(create(&a, "f").await);
        let ino = lookup(&a, "f").await.expect("lookup").ino;
        let get = async |name: &str| a.getxattr(&root(), ino, name.as_bytes()).await;
        let calls = || a.mount.stats.of(Count::Calls).0;
        let before = calls();
        assert_eq!(get("security.selinux").await, Err(Errno::NoData));
        assert_eq!(a.listxattr(&root(), ino).await, Ok(Vec::new()));
        assert_eq!(calls(), before);
        a.setxattr(&root(), ino, b"security.selinux", b"x", XattrMode::Set).await.expect("setxattr");
        assert_eq!(get("security.selinux").await, Ok(b"x".to_vec()));
        lookup(&a, "f").await.expect("lookup");
        assert_eq!(a.listxattr(&root(), ino).await, Ok(b"security.selinux\0".to_vec()));
        a.removexattr(&root(), ino, b"security.selinux").await.expect("removexattr");
        lookup(&a, "f").await.expect("lookup");
        let before = calls();
        assert_eq!(get("security.selinux").await, Err(Errno::NoData));
        assert_eq!(calls(), before);
        // If another mount exists, its tokens say so, and its changes are seen at once.
        let b = cluster.mount().await;
        assert_eq!(get("security.selinux").await, Err(Errno::NoData));
        b.setxattr(&root(), ino, b"security.selinux", b"y", XattrMode::Set).await.expect("setxattr");
        assert_eq!(get("security.selinux").await, Ok(b"y".to_vec()));
    });
}
