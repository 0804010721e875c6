//! Real mounts with a slow link to a real server: ping-pong of locks is detected after few hand-overs, and a file that
//! is handed over once is not taken for it.

use super::cluster::{Cluster, create, in_cluster_of, open, read, root, write};
use crate::policy::decision::Reason;
use crate::telemetry::stats::Way;
use crate::{Client, OpenFile};
use amphi_env::sim::SimConfig;
use amphi_env::{Env, timeout};
use amphi_types::Ino;
use amphi_wire::XattrMode;
use futures_util::future::join;
use std::sync::Arc;
use std::time::Duration;

const RECORD: usize = 40 << 10;

/// A network in which each message takes 5 ms one way.
fn far() -> SimConfig {
    SimConfig { net_ns: 4_500_000..5_500_000, ..SimConfig::default() }
}

fn count(client: &Client, way: Way, reason: Reason) -> u64 {
    client.mount.stats.io_of(way, reason).0
}

/// Both mounts write adjacent records, one every millisecond, until one of the mounts uses direct I/O. Returns how many
/// records used their caches, and whether one mount used direct I/O.
async fn ping_pong(c: &Cluster, [a, b]: &[Client; 2]) -> (u64, bool) {
    let fa = create(a, Ino::ROOT, "f").await;
    let fb = open(b, Ino::ROOT, "f").await;
    let all = |reason| [a, b].iter().map(|client| count(client, Way::Write, reason)).sum::<u64>();
    let direct = || all(Reason::DirectContention);
    let records = async |client: &Client, file: &Arc<OpenFile>, n: u64| {
        for i in 0..600 {
            if direct() > 0 {
                break;
            }
            write(client, file, (2 * i + n) * RECORD as u64, &vec![n as u8 + 1; RECORD]).await;
            c.env.sleep(Duration::from_millis(1)).await;
        }
    };
    join(records(a, &fa, 0), records(b, &fb, 1)).await;
    (all(Reason::BufferedDefault), direct() > 0)
}

/// Goal: if a hand-over takes long, few hand-overs make writers go direct. Without this rule it takes until sixteen
/// conflicts are counted. Method: the same ping-pong with and without the rule.
#[test]
fn slow_ping_pong_ends_soon() {
    let mut all = Vec::new();
    for ping_pongs in ["2", "0"] {
        in_cluster_of(5, far(), 1, async |c| {
            let both = c.two().await;
            let set = async |client: &Client, set: &str| {
                client
                    .setxattr(&root(), Ino::ROOT, b"user.amphi.set", set.as_bytes(), XattrMode::Set)
                    .await
                    .expect("set")
            };
            set(&both[0], &format!("server.contended_ping_pongs={ping_pongs}")).await;
            for client in &both {
                set(client, "hybrid.memory=off").await;
            }
            all.push(ping_pong(c, &both).await);
        });
    }
    println!("{all:?} records through the caches");
    let [(few, seen), (many, _)] = all[..] else { panic!("two rounds") };
    assert!(seen && few * 2 < many, "{all:?}");
}

/// Goal: if one mount has written a file and others read it, this is not ping-pong, however long the write-back takes
/// and however many mounts request it at once. Method: four megabytes over several objects, three readers at the same
/// time, then the writer again and one more reader.
#[test]
fn a_slow_hand_over_is_no_ping_pong() {
    in_cluster_of(6, far(), 3, async |c| {
        let a = c.mount().await;
        let readers = [c.mount().await, c.mount().await, c.mount().await];
        let fa = create(&a, Ino::ROOT, "f").await;
        let striped = b"striped,size=256K,count=3";
        a.setxattr(&root(), fa.ino(), b"user.amphi.layout", striped, XattrMode::Set).await.expect("a layout");
        let pieces = (4 << 20) / RECORD as u64;
        let fill = async |byte: u8| {
            for i in 0..pieces {
                write(&a, &fa, i * RECORD as u64, &vec![byte; RECORD]).await;
            }
        };
        let all = async |client: &Client, byte: u8| {
            let file = open(client, Ino::ROOT, "f").await;
            let begin = c.env.now();
            let bytes = read(client, &file, RECORD).await;
            assert!(bytes == vec![byte; RECORD]);
            Duration::from_nanos(c.env.now().0 - begin.0)
        };
        fill(1).await;
        let [x, y, z] = &readers;
        let (first, _) = join(all(x, 1), join(all(y, 1), all(z, 1))).await;
        assert!(first > Duration::from_millis(20), "handing over takes time: {first:?}");
        fill(2).await;
        all(x, 2).await;
        let done = timeout(&c.env, Duration::from_secs(60), fill(3)).await;
        assert!(done.is_some());
        for client in readers.iter().chain([&a]) {
            let direct = [Way::Read, Way::Write].map(|way| count(client, way, Reason::DirectContention));
            assert_eq!(direct, [0, 0]);
        }
    });
}
