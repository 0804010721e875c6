//! Deadlocks known from other file systems of this kind, as tests with real mounts and a real server. Each test has to
//! end, without an eviction. Callbacks have 30 s; every story ends long before that.

use super::sharing::*;
use crate::api::{Hints, OpenFlags};
use crate::conn::pending::Pending;
use crate::inode::OpenFile;
use crate::writeback::flush;
use crate::{Client, Segments};
use amphi_env::{Buf, Env};
use amphi_types::{ByteRange, Cred, IoMode, Result};
use amphi_wire::{Reply, Request};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// More requests than a mount may have under way in all lanes together.
const CROWD: usize = 1500;
/// Far below the time after which a client is evicted that does not answer.
const SOON: Duration = Duration::from_secs(20);

/// Operations under way, and how many of them have ended.
#[derive(Default)]
struct Crowd {
    begun: usize,
    ended: Rc<Cell<usize>>,
}

impl Crowd {
    fn add<T: Send + 'static>(&mut self, c: &Cluster, op: Pending<T>) {
        self.begun += 1;
        let ended = self.ended.clone();
        c.env.spawn(async move {
            op.await.map(drop).expect("it succeeds");
            ended.set(ended.get() + 1);
        });
    }

    async fn end(self, c: &Cluster) {
        let begun = c.env.now();
        c.until("the crowd", || self.ended.get() == self.begun).await;
        let took = c.env.now().since(begun);
        assert!(took < SOON, "{took:?} for {} operations", self.begun);
    }
}

fn a_read(client: &Client, file: &Arc<OpenFile>, at: u64, len: usize) -> Pending<Segments> {
    client.read(&root(), file, at, len, Hints::default())
}

fn a_write(client: &Client, file: &Arc<OpenFile>, at: u64, len: usize) -> Pending<usize> {
    client.write(&root(), file, at, Buf::copy_of(&vec![7; len]), Hints::default())
}

async fn evictions(client: &Client) -> u64 {
    let mut sum = 0;
    for reply in client.mount.ask_servers(&Cred::root(), &Request::Counters { reset: false }).await {
        let reply: Result<Reply> = reply;
        let Ok(Reply::Counters(all)) = reply else { panic!("counters") };
        sum += all.iter().filter(|(name, _)| name == "evictions").map(|(_, n)| n).sum::<u64>();
    }
    sum
}

/// Bytes of the files.
const LEN: usize = 300_000;

/// Writes the file so that only its first page is in the cache, dirty under a lock on everything.
async fn some_dirty(client: &Client, file: &Arc<OpenFile>, value: u8) {
    write(client, file, 0, &[value; LEN]).await;
    flush::flush_and_forget(&client.mount, &file.file, ByteRange::ALL).await;
    write(client, file, 0, &[value; 4096]).await;
    assert_eq!(file.file.cached.dirty_bytes.load(SeqCst), 4096);
}

async fn opened(client: &Client, name: &str, mode: IoMode) -> Arc<OpenFile> {
    let file = open(client, name, OpenFlags::READ_WRITE).await;
    file.set_io_mode(mode);
    file
}

/// Goal: direct requests may occupy all slots that a mount has for requests under way, and wait for a lock. They do not
/// prevent the holder of that lock, which is the same mount, from writing back the data that has to be written before
/// (LU-17190). Method: one mount has the file dirty. Another mount requests it, so the lock is called back. Then the
/// holder sends more direct requests than it has slots.
#[test]
fn direct_requests_leave_room_for_the_flush() {
    for seed in 0..3 {
        in_cluster(300 + seed, async |c| {
            let [a, b] = c.two().await;
            let fa = create(&a, "f").await;
            let (direct_a, direct_b) = (opened(&a, "f", IoMode::Direct).await, opened(&b, "f", IoMode::Direct).await);
            for round in 0..3 {
                some_dirty(&a, &fa, round).await;
                let mut crowd = Crowd::default();
                for n in 0..CROWD {
                    if n == 10 {
                        crowd.add(c, a_write(&b, &direct_b, 0, LEN));
                    }
                    crowd.add(c, a_read(&a, &direct_a, 8192 + (n as u64 % 60) * 4096, 4096));
                }
                crowd.end(c).await;
            }
            assert_eq!(evictions(&a).await, 0);
        });
    }
}

/// Goal: to answer a callback, a mount needs nothing that is held by a reader which waits for a slot of the connection
/// (LU-19427). Method: two mounts each have a dirty file for which many requests of the other mount wait, direct and
/// buffered. So all slots of both are occupied by requests that wait for the other. Among them are buffered readers of
/// the very bytes that have to be written back.
#[test]
fn callbacks_need_nothing_that_readers_hold() {
    for seed in 0..3 {
        in_cluster(310 + seed, async |c| {
            let [a, b] = c.two().await;
            let (fa, gb) = (create(&a, "f").await, create(&b, "g").await);
            let (ga, fb) = (open(&a, "g", OpenFlags::READ_WRITE).await, open(&b, "f", OpenFlags::READ_WRITE).await);
            some_dirty(&a, &fa, 1).await;
            some_dirty(&b, &gb, 2).await;
            for (client, other) in [(&a, &ga), (&b, &fb)] {
                assert_eq!(client.getattr(&root(), other.ino()).await.map(|x| x.size), Ok(LEN as u64));
            }
            let (direct_g, direct_f) = (opened(&a, "g", IoMode::Direct).await, opened(&b, "f", IoMode::Direct).await);
            let mut crowd = Crowd::default();
            for n in 0..CROWD {
                let at = (n as u64 % 60) * 4096;
                for (client, direct, buffered, own) in [(&a, &direct_g, &ga, &fa), (&b, &direct_f, &fb, &gb)] {
                    crowd.add(c, a_read(client, direct, at, 4096));
                    if n > CROWD / 2 {
                        crowd.add(c, a_read(client, buffered, at, 4096));
                        crowd.add(c, a_read(client, own, at, 70_000));
                        crowd.add(c, a_write(client, direct, at, 5000));
                    }
                }
            }
            crowd.end(c).await;
            assert_eq!(evictions(&a).await, 0);
        });
    }
}

/// Goal: flushes and cancels always get through (LU-13131). Method: one mount has hundreds of dirty files, more than it
/// may write back at a time. Another mount reads and truncates all of them at once, while the first one fills its slots
/// with its own requests.
#[test]
fn flushes_and_cancels_always_get_through() {
    const FILES: usize = 150;
    in_cluster(320, async |c| {
        let [a, b] = c.two().await;
        let mut files = Vec::new();
        for n in 0..FILES {
            let name = format!("f{n}");
            let file = create(&a, &name).await;
            write(&a, &file, 0, &[n as u8; 20_000]).await;
            files.push((file, open(&b, &name, OpenFlags::READ_WRITE).await));
        }
        let mut crowd = Crowd::default();
        for n in 0..CROWD {
            let (own, theirs) = &files[n % FILES];
            crowd.add(c, a_read(&b, theirs, 0, 20_000));
            crowd.add(c, a_read(&a, own, (n as u64 % 5) * 4096, 4096));
            if n % 5 == 0 {
                crowd.add(c, a_write(&a, own, 4096, 8192));
                crowd.add(c, a_write(&b, theirs, 30_000, 100));
            }
        }
        crowd.end(c).await;
        assert_eq!(evictions(&a).await, 0);
    });
}
