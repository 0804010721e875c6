//! Attributes of directories that come with the answers to changes of names.

use super::cluster::{Cluster, calls, create, dir_on, in_cluster, root, write};
use crate::Client;
use crate::api::OpenFlags;
use crate::telemetry::stats::Count;
use amphi_types::{Attr, Errno, Ino, SetAttr};
use amphi_wire::{RenameMode, XattrMode};
use futures_util::future::join_all;
use futures_util::join;

async fn stat(client: &Client, dir: Ino) -> Attr {
    client.getattr(&root(), dir).await.expect("stat")
}

/// The state on the server. The look-up is sent to the server and not answered from the cache.
async fn truth(client: &Client, name: &str) -> Attr {
    client.lookup(&root(), Ino::ROOT, name.as_bytes()).await.expect("it is there")
}

async fn mkdir(client: &Client, dir: Ino, name: &str) -> Ino {
    client.mkdir(&root(), dir, name.as_bytes(), 0o755).await.expect("mkdir").ino
}

async fn make(client: &Client, dir: Ino, name: &str) {
    client.create(&root(), dir, name.as_bytes(), 0o644, OpenFlags::WRITE).await.expect("create");
}

/// Makes a stat of `d` and returns the number of its messages. Its result must be that of the server.
async fn cost(client: &Client, dir: Ino) -> u64 {
    let before = calls(client);
    let shown = stat(client, dir).await;
    let cost = calls(client) - before;
    assert_eq!(shown, truth(client, "d").await);
    cost
}

/// Goal: in shared mode, a file that this mount has just made is known: its attributes, and those of its directory,
/// cost no message until another mount changes them. The same holds for the look-up of a name that does not exist in a
/// directory whose names this mount has made. Method: two mounts; the kernel's questions around a create are repeated,
/// counting messages, and then the other mount changes what is known.
#[test]
fn what_was_just_made_is_known() {
    in_cluster(61, 1, async |c: &Cluster| {
        let ([a, b], ctx) = (c.two().await, root());
        let dir = mkdir(&a, Ino::ROOT, "d").await;
        for n in 0..20u16 {
            let name = format!("n{n}");
            let before = calls(&a);
            assert!(a.lookup(&ctx, dir, name.as_bytes()).await.is_err());
            let file = create(&a, dir, &name).await;
            let (made, above) = (stat(&a, file.ino()).await, stat(&a, dir).await);
            assert_eq!(calls(&a) - before, if n == 0 { 2 } else { 1 }, "{name}: the create, and the first look-up");
            assert_eq!((made.size, made.perm), (0, 0o644));
            assert_eq!((stat(&b, file.ino()).await, stat(&b, dir).await), (made, above), "{name}");
            let set = SetAttr { perm: Some(0o600 + (n & 7)), ..SetAttr::default() };
            b.setattr(&ctx, file.ino(), set, None).await.expect("chmod");
            assert_eq!(stat(&a, file.ino()).await.perm, 0o600 + (n & 7), "{name}: the other mount has changed it");
            write(&a, &file, 0, &[1; 100]).await;
            assert_eq!(stat(&a, file.ino()).await.size, 100);
            assert_eq!(stat(&b, file.ino()).await.size, 100);
            drop(file);
            c.sleep(3).await;
        }
    });
}

/// The number of messages of a look-up of a name that does not exist.
async fn cost_of_absence(client: &Client, dir: Ino, name: &str) -> u64 {
    let before = calls(client);
    assert_eq!(client.lookup(&root(), dir, name.as_bytes()).await.map(drop), Err(Errno::NoEnt), "{name}");
    calls(client) - before
}

/// Goal: what a mount knows of the names in a directory ends before another mount makes a name there, in every way in
/// which names are made, and when the directory gets shards; it begins again when the directory was empty. Promise S5.
/// Method: one mount makes the only name of a directory, another one changes it.
#[test]
fn names_of_another_mount_are_found() {
    in_cluster(62, 1, async |c: &Cluster| {
        let ([a, b], ctx) = (c.two().await, root());
        let elsewhere = create(&b, Ino::ROOT, "elsewhere").await;
        for way in ["make", "mkdir", "link", "rename"] {
            let dir = mkdir(&a, Ino::ROOT, way).await;
            drop(create(&a, dir, "own").await);
            drop(create(&a, dir, "other").await);
            assert_eq!([cost_of_absence(&a, dir, "x").await, cost_of_absence(&a, dir, "y").await], [0, 0], "{way}");
            // A name that is looked up again gets a token of its own.
            let costs = [cost_of_absence(&a, dir, "again").await, cost_of_absence(&a, dir, "again").await];
            assert_eq!((costs, cost_of_absence(&a, dir, "again").await), ([0, 1], 0), "{way}");
            // The names of this mount are known to exist, or have to be asked for.
            a.unlink(&ctx, dir, b"other").await.expect("unlink");
            assert_eq!(a.lookup(&ctx, dir, b"other").await.map(drop), Err(Errno::NoEnt));
            match way {
                "make" => make(&b, dir, "x").await,
                "mkdir" => drop(mkdir(&b, dir, "x").await),
                "link" => drop(b.link(&ctx, elsewhere.ino(), dir, b"x").await.expect("link")),
                _ => {
                    make(&b, Ino::ROOT, "moved").await;
                    b.rename(&ctx, (Ino::ROOT, b"moved"), (dir, b"x"), RenameMode::NoReplace).await.expect("rename");
                }
            }
            assert!(a.lookup(&ctx, dir, b"x").await.is_ok(), "{way}: the other mount has made it");
            assert_eq!(cost_of_absence(&a, dir, "y").await, 1, "{way}");
            drop(create(&a, dir, "more").await);
            assert_eq!(cost_of_absence(&a, dir, "z").await, 1, "{way}: not all names are its own");
        }
        let dir = mkdir(&a, Ino::ROOT, "sharded").await;
        drop(create(&a, dir, "own").await);
        assert_eq!(cost_of_absence(&a, dir, "x").await, 0);
        a.unlink(&ctx, dir, b"own").await.expect("unlink");
        b.setxattr(&ctx, dir, b"user.amphi.shards", b"2", XattrMode::Set).await.expect("shards");
        make(&b, dir, "x").await;
        assert!(a.lookup(&ctx, dir, b"x").await.is_ok(), "it lies in a shard");
    });
}

/// Goal: in sole mode, the attributes of a directory are known after a name was made, linked or removed in it, as the
/// server has them. After any other operation that may change them, a request is sent. The switch turns this off.
/// Method: each change, then stat, counting messages.
#[test]
fn alone_a_change_brings_its_directory() {
    for servers in [1, 2] {
        in_cluster(20, servers, async |c| {
            let a = c.mount().await;
            let d = mkdir(&a, Ino::ROOT, "d").await;
            assert_eq!(cost(&a, d).await, 1, "nothing is known of it");
            let f = create(&a, d, "f").await.ino();
            assert_eq!(cost(&a, d).await, 0, "a file was made");
            for name in ["x", "y"] {
                mkdir(&a, d, name).await;
                assert_eq!(cost(&a, d).await, 0, "a directory was made");
            }
            a.link(&root(), f, d, b"g").await.expect("link");
            assert_eq!(cost(&a, d).await, 0, "a link was made");
            a.symlink(&root(), d, b"s", b"to").await.expect("symlink");
            a.unlink(&root(), d, b"g").await.expect("unlink");
            assert_eq!((cost(&a, d).await, cost(&a, d).await), (0, 0), "a name was removed");
            let own = a.mount.stats.of(Count::GetAttrOwn).0;
            assert_eq!(own, 6);
            a.rmdir(&root(), d, b"y").await.expect("rmdir");
            assert_eq!(cost(&a, d).await, 0, "a directory was removed");
            assert!(a.unlink(&root(), d, b"g").await.is_err());
            assert_eq!(cost(&a, d).await, 1, "who knows what a refusal means");

            make(&a, d, "h").await;
            a.setattr(&root(), d, SetAttr { perm: Some(0o700), ..SetAttr::default() }, None).await.expect("chmod");
            assert_eq!(cost(&a, d).await, 1, "its mode has changed");
            make(&a, d, "i").await;
            a.setxattr(&root(), d, b"user.k", b"v", XattrMode::Set).await.expect("setxattr");
            assert_eq!(cost(&a, d).await, 1, "its ctime has changed");
            make(&a, d, "j").await;
            make(&a, d, "k").await;
            a.rename(&root(), (Ino::ROOT, b"d"), (Ino::ROOT, b"e"), RenameMode::NoReplace).await.expect("rename");
            a.rename(&root(), (Ino::ROOT, b"e"), (Ino::ROOT, b"d"), RenameMode::NoReplace).await.expect("rename");
            assert_eq!(cost(&a, d).await, 1, "it was moved");
        });
    }
}

/// Goal: in sole mode, attributes of a directory from a look-up, a listing or a stat are known until a possible change,
/// and are not known if they were requested during one. Of a removed directory nothing is known. Method: each way to
/// get the attributes and each change, then a stat, with the messages counted.
#[test]
fn alone_what_was_seen_of_a_directory_is_kept() {
    in_cluster(21, 2, async |c| {
        let a = c.mount().await;
        let asked = async |dir: Ino| {
            let before = calls(&a);
            let seen = a.getattr(&root(), dir).await;
            (calls(&a) - before, seen.map(|attr| attr.nlink))
        };
        // A listing shows the entries that are on the target of the directory listed.
        let d = dir_on(&a, Ino::ROOT.target().0).await;
        let listed = async || {
            let listing = a.readdir(&root(), Ino::ROOT, 0, 100, true).await.expect("list");
            listing.entries.into_iter().find(|e| e.ino == d).expect("it is there")
        };
        let name = listed().await.name;
        let inner = mkdir(&a, d, "inner").await;
        assert_eq!(asked(inner).await, (1, Ok(2)), "it was only made");
        assert_eq!(asked(inner).await, (0, Ok(2)), "a stat has shown it");
        a.setattr(&root(), inner, SetAttr { perm: Some(0o700), ..SetAttr::default() }, None).await.expect("chmod");
        assert_eq!(asked(inner).await.0, 1, "it has changed");
        make(&a, Ino::ROOT, "elsewhere").await;
        assert_eq!(asked(inner).await.0, 0, "another directory has changed");

        a.rename(&root(), (d, b"inner"), (d, b"other"), RenameMode::NoReplace).await.expect("rename");
        a.lookup(&root(), Ino::ROOT, &name).await.expect("it is there");
        assert_eq!(asked(d).await, (0, Ok(3)), "a look-up has shown it");
        assert_eq!(asked(inner).await.0, 1, "a rename touches more than it names");
        a.setxattr(&root(), d, b"user.k", b"v", XattrMode::Set).await.expect("setxattr");
        assert!(listed().await.attr.is_some());
        assert_eq!(asked(d).await, (0, Ok(3)), "a listing has shown it");

        // The request is sent before a change and answered after it.
        let (_, overtaken) = join!(async { a.mkdir(&root(), d, b"more", 0o755).await.expect("mkdir") }, async {
            a.lookup(&root(), Ino::ROOT, &name).await.expect("it is there")
        });
        assert!(overtaken.nlink == 3 || overtaken.nlink == 4);
        assert_eq!(asked(d).await.1, Ok(4));

        assert_eq!(asked(inner).await.0, 0);
        a.rmdir(&root(), d, b"other").await.expect("rmdir");
        assert_eq!(asked(d).await, (0, Ok(3)), "the removal has shown its parent");
        let (cost, gone) = asked(inner).await;
        assert_eq!((cost, gone), (1, Ok(0)), "it has no links left");
    });
}

/// Many callers at once make and remove a hundred names, and each caller makes stats in between.
async fn storm(client: &Client, dir: Ino, who: u64) {
    let caller = async |n: u64| {
        for i in 0..10u64 {
            let name = format!("{who}-{n}-{i}");
            match (n + i) % 4 {
                0 => drop(mkdir(client, dir, &name).await),
                1 => {
                    mkdir(client, dir, &name).await;
                    client.rmdir(&root(), dir, name.as_bytes()).await.expect("rmdir");
                }
                _ => {
                    make(client, dir, &name).await;
                    if i % 2 == 0 {
                        client.unlink(&root(), dir, name.as_bytes()).await.expect("unlink");
                    }
                }
            }
            stat(client, dir).await;
        }
    };
    join_all((0..10).map(caller)).await;
}

/// Goal: answers that arrive in another order than that of their requests leave no wrong state behind, in sole mode and
/// with several mounts that use the same directory. Method: many concurrent operations. After them, stat on every mount
/// equals the state on the server, and one more name costs no message in sole mode.
#[test]
fn storms_leave_the_truth() {
    for seed in 30..36 {
        let servers = 1 + (seed % 2) as usize;
        in_cluster(seed, servers, async |c| {
            let a = c.mount().await;
            let d = mkdir(&a, Ino::ROOT, "d").await;
            for round in 0..3 {
                storm(&a, d, round).await;
                assert_eq!(stat(&a, d).await, truth(&a, "d").await);
                make(&a, d, &format!("last-{round}")).await;
                assert_eq!(cost(&a, d).await, 0);
            }
            let b = c.mount().await;
            for round in 3..5 {
                futures_util::join!(storm(&a, d, 2 * round), storm(&b, d, 2 * round + 1));
                assert_eq!(stat(&a, d).await, stat(&b, d).await);
            }
        });
    }
}

/// Goal: in shared mode a change returns a token with the attributes. So a stat needs no message, and a change by
/// another mount is seen at once. If two mounts change a directory all the time, the answer returns no token, because
/// the other mount would have to revoke it. Method: two mounts change one directory in turn, at first slowly.
#[test]
fn in_company_a_change_brings_a_token() {
    for servers in [1, 2] {
        in_cluster(21, servers, async |c| {
            let [a, b] = c.two().await;
            let d = dir_on(&a, servers as u16 - 1).await;
            let links = stat(&a, d).await.nlink;
            for i in 0..5u32 {
                let (x, y) = (format!("a{i}"), format!("b{i}"));
                // Changes of two mounts within 2 s make a directory shared.
                c.sleep(3).await;
                mkdir(&a, d, &x).await;
                let before = calls(&a);
                assert_eq!((stat(&a, d).await.nlink, calls(&a) - before), (links + 2 * i + 1, 0));
                c.sleep(3).await;
                mkdir(&b, d, &y).await;
                let before = calls(&b);
                assert_eq!((stat(&b, d).await.nlink, calls(&b) - before), (links + 2 * i + 2, 0));
                assert_eq!(stat(&a, d).await, stat(&b, d).await, "made elsewhere");
            }
            let set = SetAttr { perm: Some(0o700), ..SetAttr::default() };
            b.setattr(&root(), d, set, None).await.expect("chmod");
            assert_eq!(stat(&a, d).await.perm, 0o700);
            mkdir(&b, d, "b").await;
            mkdir(&a, d, "a").await;
            let before = calls(&a);
            assert_eq!((stat(&a, d).await.nlink, calls(&a) - before), (links + 12, 1), "shared");
        });
    }
}

/// Goal: attributes known in sole mode do not outlive it, with changes under way as the mode changes. Method: one mount
/// makes names all the time. Meanwhile another one is admitted, makes a name, sees all names, and leaves. The test runs
/// with several seeds.
#[test]
fn company_ends_what_was_known_alone() {
    for seed in 40..46 {
        in_cluster(seed, 1 + (seed % 2) as usize, async |c: &Cluster| {
            let a = c.mount().await;
            let d = mkdir(&a, Ino::ROOT, "d").await;
            let busy = async |from: u64| {
                for i in from..from + 60 {
                    make(&a, d, &format!("f{i}")).await;
                    stat(&a, d).await;
                }
            };
            busy(0).await;
            let ((), b) = futures_util::join!(busy(100), c.mount());
            let links = stat(&a, d).await.nlink;
            mkdir(&b, d, "from b").await;
            assert_eq!(stat(&a, d).await.nlink, links + 1, "made elsewhere");
            let leave = async {
                mkdir(&b, d, "again").await;
                b.shutdown();
                while !a.is_alone() {
                    c.sleep(1).await;
                }
            };
            futures_util::join!(busy(200), leave);
            assert_eq!(stat(&a, d).await.nlink, links + 2);
            make(&a, d, "alone").await;
            assert_eq!(cost(&a, d).await, 0, "alone again");
        });
    }
}

/// Goal: a kernel may keep attributes of a directory in an answer only if no name was made or removed since the
/// request. Otherwise it would take these attributes for later ones. Method: the rule is noted before and after
/// changes. A change of a file's bytes does not count.
#[test]
fn what_was_asked_before_a_change_is_not_kept() {
    in_cluster(21, 1, async |c| {
        let a = c.mount().await;
        let before = a.rule();
        assert!(a.lends_directories(before));
        let file = create(&a, Ino::ROOT, "f").await;
        assert!(!a.lends_directories(before) && a.lend(before).is_some(), "names and files as before");
        let rule = a.rule();
        let bytes = amphi_env::Buf::zeroed(10);
        a.write(&root(), &file, 0, bytes, crate::api::Hints::default()).await.expect("write");
        stat(&a, Ino::ROOT).await;
        assert!(a.lends_directories(rule));
        a.unlink(&root(), Ino::ROOT, b"f").await.expect("unlink");
        assert!(!a.lends_directories(rule));
    });
}
