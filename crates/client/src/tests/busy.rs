//! Files that a mount changes all the time while it requests the changes of others.

use super::cluster::{create, dir_on, in_cluster, open, root, write};
use crate::api::{Hints, OpenFlags};
use crate::telemetry::stats::Count;
use crate::{Client, OpenFile};
use amphi_env::Buf;
use futures_util::future::{join, join_all};
use std::cell::Cell;
use std::sync::Arc;

const WRITERS: u64 = 6;
const START: u64 = 64 << 10;

/// Writes past the cache, below the end of the file, until `stop` is set.
async fn overwrite(client: &Client, file: &Arc<OpenFile>, at: u64, stop: &Cell<bool>) {
    while !stop.get() {
        let bytes = Buf::zeroed(4096);
        assert_eq!(client.write(&root(), file, at, bytes, Hints::default()).await, Ok(4096));
    }
}

/// Goal: if another mount has reported a size, a mount that changes the file without a pause sees it: by stat, by
/// lookup, and by reads of the end. Method: six writers of one mount write direct, so the answers about the file are
/// never used. The other mount appends.
#[test]
fn sizes_are_seen_by_who_writes_all_the_time() {
    for (seed, servers) in [(31, 1), (32, 3)] {
        in_cluster(seed, servers, async |c| {
            let [a, b] = c.two().await;
            let dir = dir_on(&a, 0).await;
            let f = create(&a, dir, "f").await;
            write(&a, &f, 0, &vec![1; START as usize]).await;
            let past = OpenFlags { direct: true, ..OpenFlags::READ_WRITE };
            let past = a.open(&root(), f.ino(), past).await.expect("open");
            let other = open(&b, dir, "f").await;
            let stop = Cell::new(false);
            let writers = join_all((0..WRITERS).map(|n| overwrite(&a, &past, n * 8192, &stop)));
            let checks = async {
                for n in 0..30 {
                    let end = START + n * 100;
                    assert_eq!(b.getattr(&root(), f.ino()).await.expect("stat").size, end);
                    write(&b, &other, end, &[2; 100]).await;
                    let found = match n % 3 {
                        0 => a.getattr(&root(), f.ino()).await.expect("stat").size,
                        1 => a.lookup(&root(), dir, b"f").await.expect("lookup").size,
                        _ => {
                            let tail = a.read(&root(), &f, START, 1 << 20, Hints::default()).await.expect("read");
                            assert!(tail.to_vec().iter().all(|byte| *byte == 2));
                            START + tail.len() as u64
                        }
                    };
                    assert_eq!(found, end + 100, "seed {seed}, append {n}");
                }
                stop.set(true);
            };
            join(writers, checks).await;
            assert!(a.mount.stats.of(Count::GetAttrNow).0 > 0, "its own changes came between all the time");
        });
    }
}
