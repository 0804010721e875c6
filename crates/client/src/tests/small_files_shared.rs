//! Small files fetched ahead with several mounts of real servers: another mount's changes are seen, its cached locks
//! are called back.

use super::cluster::{Cluster, calls, create, dir_on, in_cluster, read, root, write};
use crate::api::{Ctx, OpenFlags};
use crate::telemetry::stats::Count;
use crate::{Client, OpenFile};
use amphi_types::{Cred, Errno, Ino, SetAttr};
use std::sync::Arc;

fn name(i: usize) -> String {
    format!("f{:03}", (i * 37) % 200)
}

fn bytes(i: usize, version: u8) -> Vec<u8> {
    (0..2000 + i * 10).map(|k| (k * 17 + i) as u8 ^ version).collect()
}

/// Files of 2 to 4 KB made by a mount, on the disk.
async fn made(client: &Client, dir: Ino, count: usize) {
    for i in 0..count {
        let file = create(client, dir, &name(i)).await;
        write(client, &file, 0, &bytes(i, 0)).await;
    }
    client.sync_all(&root()).await.expect("sync");
}

/// Names in the order of the listing.
async fn list(client: &Client, dir: Ino, plus: bool) -> Vec<String> {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let listing = client.readdir(&root(), dir, cookie, 64, plus).await.expect("readdir");
        cookie = listing.entries.last().map_or(cookie, |e| e.cookie);
        names.extend(listing.entries.iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()));
        if listing.end {
            names.retain(|n| !n.starts_with('.'));
            return names;
        }
    }
}

async fn open(client: &Client, ctx: &Ctx, dir: Ino, name: &str) -> Result<Arc<OpenFile>, Errno> {
    let ino = client.lookup(ctx, dir, name.as_bytes()).await?.ino;
    client.open(ctx, ino, OpenFlags::READ).await
}

async fn cat(client: &Client, dir: Ino, name: &str) -> Vec<u8> {
    let file = open(client, &root(), dir, name).await.expect("open");
    read(client, &file, 10_000).await
}

fn number(name: &str) -> usize {
    (0..200).find(|i| self::name(*i) == name).expect("one of them")
}

fn used(client: &Client) -> u64 {
    client.mount.stats.of(Count::SmallAheadUsed).1
}

fn off(client: &Client) {
    client.mount.tunables.set("readahead.small_files", "off").expect("a switch");
}

/// Goal: a mount that has never seen the files of another one reads them in order with a fraction of a message for
/// each, although the other one keeps their locks. The bytes are right. Method: 200 files are made on one mount, and
/// read on the second in the orders of names and of the listing, on one server and on three. A third mount with the
/// feature off reads them once more.
#[test]
fn files_of_another_mount() {
    for (seed, servers, plus) in [(1, 1, true), (2, 3, false)] {
        in_cluster(seed, servers, async |c: &Cluster| {
            let [a, b] = c.two().await;
            let dir = dir_on(&a, servers as u16 - 1).await;
            made(&a, dir, 200).await;
            let mut names = list(&b, dir, plus).await;
            if seed == 1 {
                names.sort();
            }
            let before = (calls(&a), calls(&b));
            for name in &names {
                assert!(cat(&b, dir, name).await == bytes(number(name), 0), "{name}");
            }
            c.sleep(3).await;
            let (of_a, of_b) = (calls(&a) - before.0, calls(&b) - before.1);
            assert!(used(&b) > 150, "{} of 200 had been opened ahead", used(&b));
            assert!(of_b < 150, "{of_b} messages for 200 files");
            assert!(of_a <= 20, "many locks go back in a message: {of_a}");
            let third = c.mount().await;
            off(&third);
            let before = calls(&third);
            for name in &names {
                assert!(cat(&third, dir, name).await == bytes(number(name), 0), "{name}");
            }
            let slow = calls(&third) - before;
            assert!(slow > 4 * of_b, "{slow} without");
        });
    }
}

/// Goal: what another mount writes, cuts, renames and removes while files are being read ahead is seen by each later
/// read. Method: one mount reads all files again and again in order. After every few files, the other one changes some
/// that have been fetched by then or will be.
#[test]
fn changes_elsewhere_are_seen() {
    for seed in 10..18 {
        in_cluster(seed, 1 + seed as usize % 2, async |c: &Cluster| {
            let [a, b] = c.two().await;
            let dir = dir_on(&a, (seed % 2) as u16).await;
            made(&a, dir, 60).await;
            let mut versions = [Some(0u8); 60];
            for round in 0..4u8 {
                let mut names = list(&b, dir, round % 2 == 0).await;
                names.sort();
                for (at, name) in names.iter().enumerate() {
                    let i = number(name);
                    match versions[i] {
                        Some(version) => {
                            assert!(cat(&b, dir, name).await == bytes(i, version), "{seed} {round} {name}")
                        }
                        None => assert_eq!(open(&b, &root(), dir, name).await.err(), Some(Errno::NoEnt)),
                    }
                    if at % 5 != 0 {
                        continue;
                    }
                    for ahead in [1, 3, 20] {
                        let Some(name) = names.get(at + ahead) else { continue };
                        let i = number(name);
                        if versions[i].is_none() {
                            continue;
                        }
                        let ino = a.lookup(&root(), dir, name.as_bytes()).await.expect("it is there").ino;
                        match (at + ahead + usize::from(round)) % 4 {
                            0 => {
                                a.unlink(&root(), dir, name.as_bytes()).await.expect("unlink");
                                versions[i] = None;
                            }
                            1 => {
                                let set = SetAttr { size: Some(0), ..SetAttr::default() };
                                a.setattr(&root(), ino, set, None).await.expect("cut");
                                let file = a.open(&root(), ino, OpenFlags::WRITE).await.expect("open");
                                write(&a, &file, 0, &bytes(i, round + 1)).await;
                                versions[i] = Some(round + 1);
                            }
                            _ => {
                                let file = a.open(&root(), ino, OpenFlags::READ_WRITE).await.expect("open");
                                write(&a, &file, 0, &bytes(i, round + 50)).await;
                                versions[i] = Some(round + 50);
                            }
                        }
                    }
                }
            }
            assert!(used(&b) > 30, "{}", used(&b));
        });
    }
}

/// Goal: if another mount removes a permission, this takes effect at the next open (Promise of permissions at open).
/// Method: a user reads in order. Of the files that were opened ahead for this user, some get another mode, some get
/// another owner, and for one the permission of its directory is removed.
#[test]
fn permission_taken_elsewhere() {
    in_cluster(30, 1, async |c: &Cluster| {
        let [a, b] = c.two().await;
        let dir = dir_on(&a, 0).await;
        made(&a, dir, 60).await;
        let user = Ctx { cred: Cred::new(7, 7, vec![]), ..Ctx::root() };
        let mut names = list(&b, dir, true).await;
        names.sort();
        for name in &names[..4] {
            let file = open(&b, &user, dir, name).await.expect("readable");
            assert!(read(&b, &file, 10_000).await == bytes(number(name), 0));
        }
        c.sleep(1).await;
        for name in &names[5..8] {
            let ino = a.lookup(&root(), dir, name.as_bytes()).await.expect("it is there").ino;
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            a.setattr(&root(), ino, set, None).await.expect("chmod");
        }
        drop(open(&b, &user, dir, &names[4]).await.expect("readable"));
        assert!(used(&b) > 0, "it was opened ahead");
        for name in &names[5..8] {
            assert_eq!(open(&b, &user, dir, name).await.err(), Some(Errno::Access), "{name}");
            drop(open(&b, &root(), dir, name).await.expect("the super-user may"));
        }
        drop(open(&b, &user, dir, &names[8]).await.expect("readable"));
        let set = SetAttr { perm: Some(0o700), ..SetAttr::default() };
        a.setattr(&root(), dir, set, None).await.expect("chmod");
        assert_eq!(open(&b, &user, dir, &names[9]).await.err(), Some(Errno::Access));
    });
}

/// Goal: no listing of the directory is needed in shared mode either. Method: one mount looks up files after another
/// one has made them, and then opens them in the order in which they were made. Their maker keeps the locks.
#[test]
fn unlisted_files_of_another_mount() {
    in_cluster(40, 1, async |c: &Cluster| {
        let [a, b] = c.two().await;
        let dir = dir_on(&a, 0).await;
        made(&a, dir, 200).await;
        for i in 0..200 {
            b.lookup(&root(), dir, name(i).as_bytes()).await.expect("it is there");
        }
        let before = calls(&b);
        for i in 0..200 {
            assert!(cat(&b, dir, &name(i)).await == bytes(i, 0), "{i}");
        }
        c.sleep(3).await;
        let of_b = calls(&b) - before;
        assert!(used(&b) > 150 && of_b < 150, "{} opened ahead, {of_b} messages", used(&b));
    });
}
