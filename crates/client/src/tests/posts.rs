//! Writes that programs post on one mount of several (docs/design/preload.md). A small front end takes them, in the way
//! in which `fuse` does.

use super::sharing::{Cluster, create, in_cluster_of, lookup, open, read, root, write};
use crate::api::{Fallocate, Hints, OpenFlags, PostedWrites};
use crate::locks;
use crate::telemetry::stats::Count;
use crate::{Client, OpenFile, Posting};
use amphi_env::{Buf, Env};
use amphi_pagecache::UNIT;
use amphi_shm::layout::{POST_BYTES, RING_SLOTS};
use amphi_shm::posts::{Post, Refusal};
use amphi_shm::ring::{Reader, Ring, Sink};
use amphi_types::{ByteRange, Errno, Ino, SetAttr};
use amphi_wire::XattrMode;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// What a front end does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// It takes no posts when another mount asks where the file ends.
    IgnoresGlimpses,
    /// It gives the locks of a posting back first, and takes the posts then.
    GivesLocksFirst,
    /// It takes no posts before a call of its own mount is served.
    CallsOvertakePosts,
}

#[derive(Default)]
struct State {
    reader: Reader,
    posting: Option<Posting>,
    queue: Queue,
    is_writing: bool,
}

/// The posts that were taken and not written yet.
#[derive(Default)]
struct Queue(VecDeque<(u64, Vec<u8>)>);

impl Sink for Queue {
    fn place(&mut self, post: &Post) -> Option<&mut [u8]> {
        self.0.push_back((post.offset, vec![0; post.len as usize]));
        self.0.back_mut().map(|(_, bytes)| &mut bytes[..])
    }
}

/// A file of a mount, and programs that post to it.
struct Front {
    client: Client,
    file: Arc<OpenFile>,
    ring: Ring,
    state: Mutex<State>,
    rung: AtomicBool,
    mistake: Mistake,
}

impl Front {
    fn new(c: &Cluster, client: &Client, file: &Arc<OpenFile>, mistake: Mistake) -> Arc<Front> {
        let (client, file) = (client.clone(), file.clone());
        let ring = Ring::new(1).expect("memory");
        let front =
            Arc::new(Front { client, file, ring, state: Mutex::default(), rung: AtomicBool::new(false), mistake });
        Posting::set_front(&front.client, Some(front.clone()));
        let (task, env) = (Arc::downgrade(&front), c.env.clone());
        c.env.clone().spawn(async move {
            for round in 0u64.. {
                let Some(front) = task.upgrade() else { return };
                front.tick(round.is_multiple_of(500)).await;
                drop(front);
                env.sleep(Duration::from_millis(1)).await;
            }
        });
        front
    }

    /// Takes posts, and writes those for which nothing has to wait.
    fn drain(&self, state: &mut State) {
        let State { reader, queue, .. } = state;
        let before = queue.0.len();
        self.ring.drain(reader, queue);
        let posts = (queue.0.len() - before) as u32;
        state.posting.iter().for_each(|posting| posting.count(posts));
        while !state.is_writing
            && let (Some(posting), Some((at, bytes))) = (&state.posting, state.queue.0.front())
            && posting.try_write(&self.client, &root(), &self.file, *at, bytes)
        {
            state.queue.0.pop_front();
        }
        self.end_if_done(state);
    }

    fn end_if_done(&self, state: &mut State) {
        if self.ring.is_stopped() && state.queue.0.is_empty() && !state.is_writing {
            state.posting = None;
        }
    }

    fn stop_ring(&self, state: &mut State) {
        self.ring.set_limit(0);
        if self.mistake == Mistake::GivesLocksFirst {
            state.posting = None;
        }
        self.drain(state);
    }

    /// What the mount's thread does when it was woken, and from time to time.
    async fn tick(&self, regular: bool) {
        if self.rung.swap(false, SeqCst) || regular {
            let mut state = self.state.lock();
            match state.posting.as_ref().is_some_and(Posting::is_over) {
                true => self.stop_ring(&mut state),
                false => self.drain(&mut state),
            }
        }
        let next = || {
            let mut state = self.state.lock();
            let (at, bytes) = state.queue.0.front().filter(|_| !state.is_writing)?.clone();
            state.is_writing = true;
            Some((state.posting.as_ref().map(Posting::rights), at, bytes))
        };
        while let Some((rights, at, bytes)) = next() {
            let range = ByteRange::at(at, bytes.len() as u64);
            let bytes = Buf::copy_of(&bytes);
            let written = match rights {
                Some(rights) => rights.write(&self.client, &root(), &self.file, at, bytes).await,
                None => self.client.write(&root(), &self.file, at, bytes, Hints::default()).await,
            };
            if let Err(e) = written {
                assert_eq!(e, Errno::Io, "only with their locks are posts lost");
                Posting::failed(&self.file, range, e);
            }
            let mut state = self.state.lock();
            state.is_writing = false;
            state.queue.0.pop_front();
            self.end_if_done(&mut state);
        }
    }

    /// Before a call of this mount is served. `exclude`: nothing is posted any more.
    async fn before_call(&self, exclude: bool) {
        if self.mistake == Mistake::CallsOvertakePosts {
            return;
        }
        let done = || {
            let mut state = self.state.lock();
            if exclude {
                self.stop_ring(&mut state)
            } else {
                self.drain(&mut state)
            }
            state.queue.0.is_empty()
        };
        for _ in 0..100_000 {
            if done() {
                return;
            }
            self.client.mount.life.pauses.pause(1_000_000).await;
        }
        panic!("posts are never taken");
    }

    /// Asks whether programs may post. Returns whether they may.
    async fn admit(&self, may_extend: bool) -> bool {
        {
            let state = self.state.lock();
            if state.posting.is_some() {
                return !self.ring.is_stopped();
            }
        }
        let Ok(Some(posting)) = Posting::begin(&self.client, &self.file, may_extend).await else { return false };
        let mut state = self.state.lock();
        if posting.is_over() || posting.limit() == 0 {
            return false;
        }
        let limit = posting.limit();
        state.posting = Some(posting);
        self.ring.reopen(limit);
        true
    }

    fn try_post(&self, at: u64, bytes: &[u8]) -> Result<bool, Refusal> {
        self.ring.try_post(Post { offset: at, len: bytes.len() as u32, handle: 0 }, bytes)
    }

    /// A write of a program under `amphi run`. Returns whether it was posted.
    async fn write(&self, at: u64, bytes: &[u8]) -> bool {
        if self.try_post(at, bytes) == Ok(true) {
            return true;
        }
        self.before_call(false).await;
        write(&self.client, &self.file, at, bytes).await;
        self.admit(true).await;
        false
    }
}

impl PostedWrites for Front {
    fn ring(&self) {
        self.rung.store(true, SeqCst);
    }

    fn take(&self, _: Ino) -> u64 {
        if self.mistake == Mistake::IgnoresGlimpses {
            return 0;
        }
        let mut state = self.state.lock();
        self.drain(&mut state);
        state.queue.0.iter().map(|(at, bytes)| at + bytes.len() as u64).max().unwrap_or(0)
    }
}

/// A cluster whose targets have space to set aside for posts.
fn in_roomy_cluster(seed: u64, story: impl AsyncFnOnce(&Cluster)) {
    in_cluster_of(seed, 1 << 30, story);
}

/// Waits until the file is not contended any more.
async fn calm(c: &Cluster) {
    c.env.sleep(Duration::from_secs(5)).await;
}

/// Waits until both mounts use tokens.
async fn settled(c: &Cluster, mounts: &[&Client]) {
    c.until("tokens", || mounts.iter().all(|m| m.mount.coherence.sharing.uses_tokens())).await;
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn put(expected: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    expected.resize(expected.len().max(at as usize + bytes.len()), 0);
    expected[at as usize..][..bytes.len()].copy_from_slice(bytes);
}

/// Random operations of two mounts, of which the first one has programs that post. Returns how many writes were posted.
async fn story(c: &Cluster, seed: u64, mistake: Mistake) -> u64 {
    let [a, b] = c.two().await;
    settled(c, &[&a, &b]).await;
    let mut changed = a.mount.wall();
    let here = create(&a, "f").await;
    let front = Front::new(c, &a, &here, mistake);
    let mut random = Random(seed * 0x9e37_79b9 + 1);
    // Longer files lie on several targets.
    let mut expected = vec![7; if seed.is_multiple_of(3) { 12_000_000 } else { 0 }];
    if !expected.is_empty() {
        write(&a, &here, 0, &expected).await;
    }
    // With this open, no mount has the token of the attributes.
    let kept = if seed.is_multiple_of(2) { Some(open(&b, "f", OpenFlags::READ_WRITE).await) } else { None };
    let mut posted = 0;
    for round in 0..400u64 {
        let len = expected.len() as u64;
        let at = if random.below(3) == 0 { len } else { random.below(len + 1) };
        let bytes = vec![random.below(256) as u8; 1 + random.below(6000) as usize];
        let what = format!("seed {seed}, round {round}, {at}, {} bytes", bytes.len());
        // Bursts of posts, with single calls in between.
        let step = if random.below(12) > 0 { 0 } else { 1 + random.below(10) };
        if ![1, 4, 5, 6].contains(&step) {
            changed = a.mount.wall();
        }
        match step {
            0 => {
                posted += u64::from(front.write(at, &bytes).await);
                put(&mut expected, at, &bytes);
            }
            1 => {
                front.before_call(false).await;
                let found = read(&a, &here, at, 9000).await;
                let end = expected.len().min(at as usize + 9000);
                assert!(found == expected[at as usize..end], "{what}: a read here");
            }
            2 => {
                front.before_call(false).await;
                write(&a, &here, at, &bytes).await;
                put(&mut expected, at, &bytes);
            }
            3 => {
                front.before_call(true).await;
                let set = SetAttr { size: Some(at), open_for_write: true, ..SetAttr::default() };
                a.setattr(&root(), here.ino(), set, Some(&here)).await.expect("cut");
                expected.resize(at as usize, 0);
            }
            4 => {
                let attr = b.getattr(&root(), here.ino()).await.expect("stat");
                assert_eq!(attr.size, expected.len() as u64, "{what}: stat there");
                assert!(attr.mtime >= changed, "{what}: {:?} is before the last change, {changed:?}", attr.mtime);
            }
            5 | 6 => {
                let there = open(&b, "f", OpenFlags::READ).await;
                let from = if step == 5 { at.saturating_sub(3000) } else { 0 };
                let found = read(&b, &there, from, 2_000_000).await;
                let end = expected.len().min(from as usize + 2_000_000);
                assert!(found == expected[from as usize..end], "{what}: a read there");
                b.release(there);
            }
            7 => {
                let there = open(&b, "f", OpenFlags::READ_WRITE).await;
                write(&b, &there, at, &bytes).await;
                put(&mut expected, at, &bytes);
                b.release(there);
            }
            8 => {
                let there = open(&b, "f", OpenFlags { append: true, ..OpenFlags::READ_WRITE }).await;
                write(&b, &there, 0, &bytes).await;
                let end = expected.len() as u64;
                put(&mut expected, end, &bytes);
                b.release(there);
            }
            9 => {
                let there = open(&b, "f", OpenFlags::READ_WRITE).await;
                let hole = ByteRange::at(at, bytes.len() as u64);
                let punched = b.fallocate(&root(), &there, Fallocate::PunchHole, hole.start, hole.len()).await;
                punched.expect("punch");
                let end = expected.len().min(hole.end as usize);
                expected[at as usize..end].fill(0);
                b.release(there);
            }
            _ => {
                let set = SetAttr { size: Some(at), ..SetAttr::default() };
                b.setattr(&root(), here.ino(), set, None).await.expect("cut");
                expected.resize(at as usize, 0);
            }
        }
        if step > 3 && random.below(4) > 0 {
            calm(c).await;
        }
    }
    front.before_call(true).await;
    a.fsync(&root(), &here, false).await.expect("fsync");
    let there = open(&b, "f", OpenFlags::READ).await;
    assert!(read(&b, &there, 0, expected.len() + 1).await == expected, "seed {seed}: at the end");
    kept.into_iter().for_each(|file| b.release(file));
    let counted = a.mount.stats.of(Count::PostedShared).1;
    assert!(mistake != Mistake::None || counted == posted, "{counted} are counted of {posted}");
    posted
}

/// Goal: a write that a program has posted is seen by every later call, on this mount and on another one, and the posts
/// of a file and calls on both mounts have the effect of one order. Promises S1, S2 and S4. Method: random operations
/// against one reference.
#[test]
fn posts_are_seen_by_other_mounts() {
    let mut posted = 0;
    for seed in 1..13 {
        in_roomy_cluster(seed, async |c| posted += story(c, seed, Mistake::None).await);
    }
    assert!(posted > 1200, "{posted} posted");
}

/// Goal: the test above finds front ends that take posts too late. Method: each planted mistake, which some seed has to
/// find.
#[test]
fn late_takers_are_found() {
    for mistake in [Mistake::IgnoresGlimpses, Mistake::GivesLocksFirst, Mistake::CallsOvertakePosts] {
        let finds = |seed| {
            let run = || {
                in_roomy_cluster(seed, async |c| {
                    story(c, seed, mistake).await;
                })
            };
            std::panic::catch_unwind(run).is_err()
        };
        assert!((1..13).any(finds), "{mistake:?} is not found");
    }
}

/// A file of `len` bytes that programs may post to, and the other mount.
async fn posting(c: &Cluster, len: usize, mistake: Mistake) -> (Client, Client, Arc<OpenFile>, Arc<Front>) {
    let [a, b] = c.two().await;
    settled(c, &[&a, &b]).await;
    let here = create(&a, "f").await;
    write(&a, &here, 0, &vec![1; len]).await;
    let front = Front::new(c, &a, &here, mistake);
    assert!(front.admit(true).await, "this mount alone uses the file");
    (a, b, here, front)
}

/// Goal: when another mount has set the set-user-id bit or capabilities, nothing is posted any more, because a write
/// has to remove them; the posts before are not undone. Promise S8. Method: both, by the other mount.
#[test]
fn nothing_is_posted_beside_privileges() {
    for gives_capabilities in [false, true] {
        in_roomy_cluster(3, async |c| {
            let (_a, b, here, front) = posting(c, 100, Mistake::None).await;
            assert_eq!(front.try_post(0, b"before"), Ok(true));
            if gives_capabilities {
                let name = b"security.capability";
                b.setxattr(&root(), here.ino(), name, &[1; 20], XattrMode::Set).await.expect("setcap");
            } else {
                let set = SetAttr { perm: Some(0o4755), ..SetAttr::default() };
                b.setattr(&root(), here.ino(), set, None).await.expect("chmod");
            }
            assert_eq!(front.try_post(0, b"behind"), Err(Refusal::Stopped));
            calm(c).await;
            assert!(!front.admit(true).await, "a write has to remove them");
            let there = open(&b, "f", OpenFlags::READ).await;
            assert_eq!(read(&b, &there, 0, 8).await, b"before\x01\x01");
        });
    }
}

/// Goal: a posting begins only while the mount can have the locks without asking for them back, and nobody else has
/// wanted the file lately; it ends when another mount reads or writes, and begins again later, also while the other
/// mount has the file open for writing. Method: each of them in turn.
#[test]
fn a_posting_needs_its_locks() {
    in_roomy_cluster(5, async |c| {
        let (a, b, here, front) = posting(c, 100, Mistake::None).await;
        assert_eq!(front.try_post(100, b"longer"), Ok(true));
        let there = open(&b, "f", OpenFlags::READ_WRITE).await;
        assert_eq!(b.getattr(&root(), here.ino()).await.expect("stat").size, 106);
        assert_eq!(front.try_post(106, b"!"), Ok(true), "nobody has asked for bytes");
        assert_eq!(read(&b, &there, 98, 100).await, b"\x01\x01longer!");
        assert_eq!(front.try_post(0, b"x"), Err(Refusal::Stopped));
        write(&a, &here, 0, b"again").await;
        assert!(!front.admit(true).await, "the file is contended");
        calm(c).await;
        write(&a, &here, 0, b"again").await;
        assert!(front.admit(true).await, "nobody has wanted it lately");
        assert_eq!(front.try_post(50, b"x"), Ok(true));
        write(&b, &there, 51, b"y").await;
        assert_eq!(front.try_post(0, b"x"), Err(Refusal::Stopped));
        assert_eq!(read(&a, &here, 49, 4).await, b"\x01xy\x01");
        calm(c).await;
        write(&b, &there, 0, b"there").await;
        assert!(!front.admit(true).await, "the other mount has the locks");
    });
}

/// Goal: a call of this mount that has to wait for the file ends the posting, and is not blocked for long; one that
/// does not wait leaves it. Method: a cached read, a write of one unit, a read of bytes that are not cached; then
/// `fallocate`.
#[test]
fn calls_that_wait_end_a_posting() {
    in_roomy_cluster(7, async |c| {
        let (a, _b, here, front) = posting(c, 300_000, Mistake::None).await;
        a.fsync(&root(), &here, false).await.expect("fsync");
        assert_eq!(front.try_post(70_000, b"posted"), Ok(true));
        front.before_call(false).await;
        assert_eq!(read(&a, &here, 70_000, 6).await, b"posted");
        write(&a, &here, 10, b"by a call").await;
        assert!(!front.ring.is_stopped(), "nobody had to wait");
        a.fsync(&root(), &here, false).await.expect("fsync");
        a.mount.cache.forget(&here.file, ByteRange::new(0, 65_536), amphi_pagecache::Dirty::Keep);
        assert_eq!(front.try_post(0, b"zero"), Ok(true));
        front.before_call(false).await;
        assert_eq!(read(&a, &here, 0, 19).await, b"zero\x01\x01\x01\x01\x01\x01by a call");
        assert!(front.ring.is_stopped(), "the read had to wait");
        assert!(front.admit(true).await);
        front.before_call(true).await;
        a.fallocate(&root(), &here, Fallocate::Allocate, 300_000, 10).await.expect("fallocate");
        assert_eq!(lookup(&a, "f").await.expect("there").size, 300_010);
    });
}

/// Goal: posts that have to wait for space in the cache are seen by another mount as well: their end at once, and their
/// bytes. Promises S1 and S2. Method: a cache full of dirty bytes of another file, and a full ring.
#[test]
fn posts_that_wait_for_space_are_seen() {
    in_roomy_cluster(13, async |c| {
        let (a, b, here, front) = posting(c, 100, Mistake::None).await;
        let other = create(&a, "g").await;
        let unit = vec![9; UNIT as usize];
        write(&a, &other, 0, &unit).await;
        let fits = |n: &u64| a.try_write(&root(), &other, n * UNIT, &unit, Hints::default()).is_some();
        let filled = (1..1000).take_while(fits).count();
        let mut expected = vec![1; 100];
        for n in 0..RING_SLOTS {
            let (at, bytes) = (expected.len() as u64, vec![n as u8; POST_BYTES - 1]);
            assert_eq!(front.try_post(at, &bytes), Ok(true));
            put(&mut expected, at, &bytes);
        }
        let waits = a.mount.coherence.sharing.take_posts(&here.file);
        assert_eq!(waits, expected.len() as u64, "behind {filled} units of another file");
        assert_eq!(b.getattr(&root(), here.ino()).await.expect("stat").size, waits);
        let there = open(&b, "f", OpenFlags::READ).await;
        assert!(read(&b, &there, 0, expected.len() + 1).await == expected);
        assert_eq!(read(&b, &open(&b, "g", OpenFlags::READ).await, UNIT, 10).await, unit[..10]);
    });
}

/// Goal: nothing is posted after the session has ended, and what was posted before is reported as lost. Promise S16.
/// Method: the session ends while posts are in the ring.
#[test]
fn the_end_of_the_session_ends_a_posting() {
    in_roomy_cluster(9, async |c| {
        let (a, _b, here, front) = posting(c, 100, Mistake::None).await;
        a.fsync(&root(), &here, false).await.expect("fsync");
        assert_eq!(front.try_post(0, b"lost"), Ok(true));
        let target = here.ino().target();
        let held = locks::represent(&a.mount, target).0;
        locks::restoring(&a.mount, target);
        // The server has restarted and does not know the locks.
        locks::restored(&a.mount, target, &held, &[]);
        front.drain(&mut front.state.lock());
        assert_eq!(a.mount.cache.dirty_bytes(), 0, "another mount may have the lock by now");
        c.until("the end", || front.state.lock().posting.is_none()).await;
        assert_eq!(front.try_post(0, b"late"), Err(Refusal::Stopped));
        assert_eq!(a.fsync(&root(), &here, false).await, Err(Errno::Io));
    });
}

/// Goal: a mount that does not answer while its programs may post is evicted, and another mount gets the file; what was
/// posted before is not written over the bytes of the other mount, and is reported as lost. Promise S16. Method: the
/// first mount is cut off with posts in the ring.
#[test]
fn an_evicted_mount_loses_its_posts() {
    in_roomy_cluster(11, async |c| {
        let (a, b, here, front) = posting(c, 100, Mistake::None).await;
        a.fsync(&root(), &here, false).await.expect("fsync");
        c.sim.cut("server", "mount1");
        assert_eq!(front.try_post(0, b"from here"), Ok(true));
        let there = open(&b, "f", OpenFlags::READ_WRITE).await;
        write(&b, &there, 2, b"there").await;
        c.sim.heal("server", "mount1");
        c.until("the end of the session", || a.mount.coherence.sharing.is_lost()).await;
        c.until("the end of the posting", || front.state.lock().posting.is_none()).await;
        assert_eq!(front.try_post(0, b"late"), Err(Refusal::Stopped));
        assert_eq!(a.fsync(&root(), &here, false).await, Err(Errno::Io));
        assert_eq!(a.mount.cache.dirty_bytes(), 0);
        assert_eq!(read(&b, &there, 0, 8).await, b"\x01\x01there\x01");
    });
}
