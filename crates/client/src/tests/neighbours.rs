//! A walk over a tree that another mount has written: locks and tokens of the writer are returned together.

use super::cluster::{Cluster, create, dir_on, in_cluster, read, root, write};
use crate::Client;
use crate::api::OpenFlags;
use crate::prefetch::small_files::kept;
use crate::telemetry::stats::Count;
use amphi_types::Ino;

fn bytes(dir: usize, file: usize) -> Vec<u8> {
    (0..900 + dir * 7 + file % 500).map(|k| (k * 13 + dir + file * 5) as u8).collect()
}

/// Directories of files of about 1 KB.
async fn tree(client: &Client, dirs: usize, files: usize) -> Vec<Ino> {
    let above = dir_on(client, 0).await;
    let mut made = Vec::new();
    for d in 0..dirs {
        let dir = client.mkdir(&root(), above, format!("d{d}").as_bytes(), 0o755).await.expect("mkdir").ino;
        made.push(dir);
        for f in 0..files {
            let file = create(client, dir, &f.to_string()).await;
            write(client, &file, 0, &bytes(d, f)).await;
        }
    }
    made
}

/// Reads every file in the order of the listing, as `grep -r` does.
async fn walk(client: &Client, dirs: &[Ino]) {
    for (d, dir) in dirs.iter().enumerate() {
        let mut cookie = 0;
        loop {
            let listing = client.readdir(&root(), *dir, cookie, 100, true).await.expect("readdir");
            cookie = listing.entries.last().map_or(cookie, |e| e.cookie);
            for entry in listing.entries.iter().filter(|e| !e.name.starts_with(b".")) {
                let file = client.open(&root(), entry.ino, OpenFlags::READ).await.expect("open");
                let number = String::from_utf8_lossy(&entry.name).parse().expect("a number");
                assert!(read(client, &file, 10_000).await == bytes(d, number), "{d}/{number}");
            }
            if listing.end {
                break;
            }
        }
    }
}

fn counted(client: &Client, count: Count) -> u64 {
    client.mount.stats.of(count).0
}

/// Goal: if a mount walks over many files that another mount has written just before or a while ago, the other mount
/// gets one message for many files. This is so in one large directory and in many small ones, even if that mount has
/// just read everything and keeps its opens. Method: two mounts. Callbacks to the first one and its answers are counted
/// while the second one reads everything.
#[test]
fn a_tree_of_another_mount() {
    for (seed, servers, dirs, files, pause, reads) in [
        (1, 1, 1, 1000, 0, false),
        (2, 1, 80, 12, 0, false),
        (3, 1, 80, 12, 12, false),
        (4, 3, 40, 25, 0, false),
        (5, 1, 1, 1000, 0, true),
    ] {
        in_cluster(seed, servers, async |c: &Cluster| {
            let [a, b] = c.two().await;
            let dirs = tree(&a, dirs, files).await;
            let count = (dirs.len() * files) as u64;
            if reads {
                // The files are written back, and their attributes are cached under tokens.
                c.sleep(12).await;
                walk(&a, &dirs).await;
                walk(&a, &dirs).await;
                assert!(2 * kept::count(&a.mount) as u64 > count, "{} opens are kept", kept::count(&a.mount));
            }
            if pause > 0 {
                c.sleep(pause).await;
            }
            let counts = [Count::LockCallback, Count::LockCancelMessages, Count::TokenRevoke, Count::Calls];
            let before = counts.map(|of| counted(&a, of));
            walk(&b, &dirs).await;
            c.sleep(3).await;
            let after = counts.map(|of| counted(&a, of));
            let [asked, answered, revoked, calls] = [0, 1, 2, 3].map(|k| after[k] - before[k]);
            assert!(10 * asked <= count, "{asked} callbacks for {count} files");
            assert!(10 * answered <= count, "{answered} messages that return locks");
            assert!(10 * revoked <= count, "{revoked} revocations");
            assert!(10 * calls <= count, "{calls} messages of all kinds");
        });
    }
}
