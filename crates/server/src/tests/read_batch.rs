//! Small files that are opened and read ahead: which files are sent, to which mounts, and the effect on locks of
//! others.

use super::data::bytes;
use super::*;
use crate::planted::{Mistake, plant};
use amphi_types::{ByteRange, SetAttr};
use amphi_wire::{FileAhead, ReadPart};
use std::panic::{AssertUnwindSafe, catch_unwind};

const BYTES_MAX: u32 = 64 << 10;

fn part(text: &str, ino: Ino) -> ReadPart {
    ReadPart { name: name(text), ino, data: true }
}

impl Client {
    /// A file of the root with `len` bytes, closed. The lock that was granted with it stays.
    async fn filled(&self, text: &str, seed: u8, len: usize) -> (Ino, u64) {
        let make = Make::File { open: Some(RW), exclusive: true };
        let op = Request::Make { dir: Ino::ROOT, name: name(text), make, perm: 0o644, umask: 0 };
        let Ok(Reply::Made { inode, lock: Some(lock), .. }) = self.call(op).await else { panic!("no file") };
        let ino = inode.attr.ino;
        if len > 0 {
            let (object, mtime) = (ObjectId { ino, stripe: 0 }, Timespec { sec: 2_000_000_000, nsec: 0 });
            let (offset, generation, server_lock, kill_suidgid) = (0, 0, false, false);
            let op = Request::Write {
                object,
                offset,
                generation,
                mtime,
                server_lock,
                kill_suidgid,
                checksums: Default::default(),
                cover: Default::default(),
            };
            self.ask(op, Some(bytes(seed, 0, len))).await.0.expect("written");
        }
        self.call(Request::Close { ino, access: RW, atime: None }).await.expect("closed");
        (ino, lock)
    }

    async fn ahead(&self, parts: &[ReadPart], ask_back: bool) -> (Vec<Result<FileAhead>>, Vec<u8>) {
        let op =
            Request::ReadBatch { dir: Ino::ROOT, parts: parts.to_vec(), bytes_max: BYTES_MAX, ask_back, tokens: true };
        let (reply, payload) = self.ask(op, None).await;
        match reply {
            Ok(Reply::FilesAhead(files)) => (files, payload.map_or(Vec::new(), |p| p.to_vec())),
            other => panic!("{other:?}"),
        }
    }

    async fn locks_held(&self) -> u64 {
        let Ok(Reply::Status { sessions, .. }) = self.call(Request::Status).await else { panic!("status") };
        sessions.iter().map(|s| s.locks).sum()
    }
}

/// Goal: each file is sent with its bytes, an open and a lock of its own. A file that cannot be sent in this way is
/// left out without an effect. Method: files of many sizes, one with a hole at its end, are requested together with a
/// wrong name, a wrong inode, a directory and a file that is too long. One of the files is removed while it is open
/// ahead.
#[test]
fn files_come_together() {
    with_server(81, 1, 1, async |_, c| {
        let sizes = [0usize, 1, 4095, 4096, 5000, 20_000, BYTES_MAX as usize, 1 + BYTES_MAX as usize];
        let mut parts = Vec::new();
        for (i, len) in sizes.into_iter().enumerate() {
            let (ino, lock) = c.filled(&format!("f{i}"), i as u8, len).await;
            c.call(Request::LockCancel { locks: vec![lock] }).await.expect("given back");
            parts.push(part(&format!("f{i}"), ino));
        }
        let set = SetAttr { size: Some(9000), ..SetAttr::default() };
        c.call(Request::SetAttr { ino: parts[4].ino, set }).await.expect("longer");
        let dir = c.mkdir(Ino::ROOT, "dir").await.expect("mkdir");
        parts.push(part("dir", dir));
        parts.push(part("f9", parts[0].ino));
        parts.push(part("f1", parts[2].ino));
        parts.push(ReadPart { data: false, ..parts[7].clone() });
        let (files, payload) = c.ahead(&parts, true).await;
        let mut at = 0;
        let mut locks = Vec::new();
        for (i, file) in files[..7].iter().enumerate() {
            let file = file.unwrap_or_else(|e| panic!("file {i}: {e}"));
            let len = file.bytes.expect("its bytes") as usize;
            assert_eq!(file.inode.attr.size, if i == 4 { 9000 } else { sizes[i] as u64 });
            assert!(payload[at..at + len.min(sizes[i])] == bytes(i as u8, 0, sizes[i])[..], "file {i}");
            assert!(payload[at + len.min(sizes[i])..at + len].iter().all(|b| *b == 0));
            let (lock, range) = file.lock.expect("its lock");
            assert!(range.contains(&ByteRange::new(0, file.inode.attr.size)));
            locks.push(lock);
            at += len;
        }
        assert_eq!(at, payload.len());
        let refused: Vec<_> = files[7..11].iter().map(|f| f.err()).collect();
        let wanted = [Errno::FileTooBig, Errno::Stale, Errno::NoEnt, Errno::Stale];
        assert_eq!(refused, wanted.map(Some));
        let opened = files[11].expect("just opened");
        assert_eq!((opened.lock, opened.bytes), (None, None));
        assert_eq!(c.locks_held().await, 7);
        c.unlink(Ino::ROOT, "f5").await.expect("unlink");
        let read = Request::Read {
            object: ObjectId { ino: parts[5].ino, stripe: 0 },
            range: ByteRange::new(0, 20_000),
            server_lock: true,
            advice: Default::default(),
        };
        assert!(c.call(read).await.is_ok(), "it is open");
        for i in [0, 1, 2, 3, 4, 5, 6, 7] {
            let access = Access { read: true, write: false };
            c.call(Request::Close { ino: parts[i].ino, access, atime: None }).await.expect("closed");
        }
        assert_eq!(c.call(Request::GetAttr { ino: parts[5].ino }).await.err(), Some(Errno::Stale), "closed, it goes");
        c.call(Request::LockCancel { locks }).await.expect("given back");
        assert_eq!(c.locks_held().await, 0);
        let op = Request::ReadBatch { dir: Ino::ROOT, parts: vec![], bytes_max: 1, ask_back: false, tokens: true };
        assert_eq!(c.call(op).await, Err(Errno::Inval));
    });
}

/// Goal: more bytes than a batch may have are left for later. Method: 20 files of 64 KiB.
#[test]
fn a_batch_has_a_bound() {
    with_server(82, 1, 1, async |_, c| {
        let mut parts = Vec::new();
        for i in 0..20u8 {
            let text = format!("f{i}");
            let (ino, _) = c.filled(&text, i, BYTES_MAX as usize).await;
            parts.push(part(&text, ino));
        }
        let (files, payload) = c.ahead(&parts, true).await;
        let came: Vec<bool> = files.iter().map(Result::is_ok).collect();
        assert_eq!(came, (0..20).map(|i| i < 16).collect::<Vec<_>>());
        assert!(files[16..].iter().all(|f| *f == Err(Errno::Again)));
        assert_eq!(payload.len(), 1 << 20);
        for (i, part) in payload.chunks(BYTES_MAX as usize).enumerate() {
            assert!(*part == bytes(i as u8, 0, BYTES_MAX as usize)[..], "file {i}");
        }
    });
}

/// A user requests files of which it may not read one, nor search a directory.
fn asks_for_others_files() {
    with_server(83, 1, 1, async |_, c| {
        let mut parts = Vec::new();
        for i in 0..3u8 {
            let text = format!("f{i}");
            parts.push(part(&text, c.filled(&text, i, 1000).await.0));
        }
        let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        c.call(Request::SetAttr { ino: parts[1].ino, set }).await.expect("chmod");
        *c.cred.borrow_mut() = Cred::new(7, 7, vec![]);
        let (files, payload) = c.ahead(&parts, true).await;
        let came: Vec<_> = files.iter().map(|f| f.map(drop)).collect();
        assert_eq!(came, [Ok(()), Err(Errno::Access), Ok(())]);
        assert_eq!(payload.len(), 2000);
        *c.cred.borrow_mut() = Cred::root();
        let set = SetAttr { perm: Some(0o700), ..SetAttr::default() };
        c.call(Request::SetAttr { ino: Ino::ROOT, set }).await.expect("chmod");
        *c.cred.borrow_mut() = Cred::new(7, 7, vec![]);
        let (files, payload) = c.ahead(&parts, true).await;
        assert!(files.iter().all(|f| *f == Err(Errno::Access)) && payload.is_empty());
    });
}

/// Goal: no client receives files that it may not open, nor names that it may not look up. Method: a file and then a
/// directory of another user. The same test detects a planted error.
#[test]
fn permission_is_checked_for_each() {
    plant(None);
    asks_for_others_files();
    plant(Some(Mistake::UncheckedAhead));
    let found = catch_unwind(AssertUnwindSafe(asks_for_others_files)).is_err();
    plant(None);
    assert!(found, "the mistake was not found");
}

/// Goal: locks that another mount keeps on closed files are called back and waited for, but not for long, and only on
/// request. A writer is not disturbed, and a refusal leaves no lock. Method: two mounts. The one that made the files
/// answers, does not answer, or has a file open.
#[test]
fn locks_in_the_way() {
    let place = Place::new(84, 1, 1);
    let run = async {
        let server = place.start().await.expect("the server starts");
        let a = place.client(1).await.expect("the first comes");
        let b = place.client(2).await.expect("the second comes");
        let mut parts = Vec::new();
        for i in 0..4u8 {
            let text = format!("f{i}");
            parts.push(part(&text, a.filled(&text, i, 1000).await.0));
        }
        let callbacks = || a.held.pushes.borrow().iter().filter(|p| matches!(p, Push::Callback { .. })).count();
        let (files, _) = b.ahead(&parts[..2], false).await;
        assert!(files.iter().all(|f| *f == Err(Errno::Again)));
        assert_eq!(callbacks(), 0, "nobody is asked");
        let env = b.held.env.borrow().clone().expect("its environment");
        let before = env.now().0;
        let (files, payload) = b.ahead(&parts[..2], true).await;
        assert!(files.iter().all(|f| f.is_ok_and(|f| f.lock.is_some() && f.tokens.attributes.is_some())));
        assert!(payload[..1000] == bytes(0, 0, 1000)[..] && payload[1000..] == bytes(1, 0, 1000)[..]);
        assert_eq!(callbacks(), 2);
        assert!(env.now().0 - before < 15_000_000, "no longer than it takes");

        a.held.deaf.set(true);
        let before = env.now().0;
        let (files, payload) = b.ahead(&parts[1..3], true).await;
        assert_eq!((files[0].is_ok(), files[1].err(), payload.len()), (true, Some(Errno::Again), 1000));
        let waited = env.now().0 - before;
        assert!((20_000_000..60_000_000).contains(&waited), "{waited}");
        a.held.deaf.set(false);
        let object = ObjectId { ino: parts[2].ino, stripe: 0 };
        let last = a
            .held
            .pushes
            .borrow()
            .iter()
            .rev()
            .find(|p| matches!(p, Push::Callback { object: o, .. } if *o == object))
            .cloned();
        a.reply(&last.expect("it was asked")).await;
        let (files, _) = b.ahead(&parts[2..3], false).await;
        assert!(files[0].is_ok(), "nothing is left in the way");

        a.call(Request::Open { ino: parts[3].ino, access: RW, exec: false }).await.expect("open");
        let before = callbacks();
        let (files, _) = b.ahead(&parts[3..], true).await;
        assert_eq!((files[0].err(), callbacks()), (Some(Errno::Again), before), "a writer is left alone");
        drop(server);
    };
    place.sim.block_on(run).expect("no deadlock");
}
