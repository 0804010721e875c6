//! Plans of small traces, and their replays in a folder.

use super::*;
use crate::run::{Options, make, replay};
use amphi_trace::Trace;
use std::sync::Arc;

/// A trace that is built call by call; each call takes 10 ns and follows the previous one.
#[derive(Default)]
struct Story(Trace);

impl Story {
    fn add(&mut self, tid: u32, call: Call) -> &mut Story {
        let start_ns = 100 * (self.0.calls.len() as u64 + 1);
        self.0.calls.push(Call { tid, start_ns, took_ns: 10, ..call });
        self
    }

    fn create(&mut self, tid: u32, dir: u64, name: &str, ino: u64, handle: u64) -> &mut Story {
        let bits = flags::READS | flags::WRITES;
        let name = name.as_bytes().into();
        self.add(tid, Call { ino: dir, name, other: ino, handle, size: Some(0), flags: bits, ..Call::new(Op::Create) })
    }

    fn open(&mut self, tid: u32, ino: u64, size: u64, handle: u64) -> &mut Story {
        let bits = flags::READS | flags::WRITES;
        self.add(tid, Call { ino, handle, size: Some(size), flags: bits, ..Call::new(Op::Open) })
    }

    fn bytes(&mut self, tid: u32, op: Op, (ino, handle): (u64, u64), from: u64, len: u64) -> &mut Story {
        self.add(tid, Call { ino, handle, offset: from, len, result: len as i64, ..Call::new(op) })
    }

    fn close(&mut self, tid: u32, ino: u64, handle: u64) -> &mut Story {
        self.add(tid, Call { ino, handle, ..Call::new(Op::Close) });
        self.add(0, Call { ino, handle, ..Call::new(Op::Release) })
    }

    fn name(&mut self, tid: u32, op: Op, dir: u64, name: &str, other: u64, new_name: &str) -> &mut Story {
        let (name, new_name) = (name.as_bytes().into(), new_name.as_bytes().into());
        self.add(tid, Call { ino: dir, name, other, new_name, ..Call::new(op) })
    }

    /// Replays it without think time in a new folder, many times; panics unless every call has its recorded result.
    fn replays(&self) -> Arc<Plan> {
        let plan = Arc::new(plan(&self.0));
        for _ in 0..20 {
            let dir = tempfile::tempdir().expect("folder");
            make(&plan, dir.path()).expect("made");
            let report = replay(plan.clone(), dir.path(), Options { think: 0.0 }).expect("replayed");
            assert_eq!((report.failed, report.wrong, report.short), (0, 0, 0), "{:?}", report.notes);
        }
        plan
    }
}

/// Goal: threads that pass names, open files and bytes to each other do so in the replay as well. Method: each step is
/// made by another thread, and only these rules order them.
#[test]
fn threads_wait_for_each_other() {
    let mut story = Story::default();
    // All threads are there from the start.
    (1..=6).for_each(|tid| {
        story.name(tid, Op::Lookup, 1, "x", 0, "").0.calls[tid as usize - 1].result = -2;
    });
    story.name(1, Op::Mkdir, 1, "dir", 50, "").create(2, 50, "file", 60, 1);
    story.bytes(3, Op::Write, (60, 1), 0, 100_000).bytes(4, Op::Read, (60, 1), 50_000, 20_000);
    story.open(5, 60, 100_000, 2).bytes(6, Op::Read, (60, 2), 99_000, 1000).close(1, 60, 1).close(2, 60, 2);
    story.name(3, Op::Rename, 50, "file", 1, "moved").name(4, Op::Rmdir, 50, "", 0, "").0.calls.pop();
    story.name(4, Op::Rmdir, 1, "dir", 0, "").name(5, Op::Unlink, 1, "moved", 0, "");
    let plan = story.replays();
    assert_eq!((plan.threads(), plan.skipped.len()), (6, 0), "{:?}", plan.skipped);
}

/// Goal: files that the program found exist before the replay: files of their sizes, with bytes where they are read,
/// and names that are removed or looked up. Method: a program that finds everything.
#[test]
fn what_was_found_is_made() {
    let mut story = Story::default();
    story.open(1, 70, 5_000_000, 1).bytes(1, Op::Read, (70, 1), 4_999_000, 1000).bytes(1, Op::Read, (70, 1), 0, 4096);
    let found = Call { size: Some(77), ..Call::new(Op::Lookup) };
    let sub = Call { ino: 1, name: b"sub"[..].into(), other: 80, flags: flags::DIRECTORY, ..found.clone() };
    let file = Call { ino: 80, name: b"seen"[..].into(), other: 81, ..found };
    story.add(1, sub).add(1, file).open(1, 81, 77, 2).bytes(1, Op::Read, (81, 2), 0, 77);
    story.close(1, 81, 2).close(1, 70, 1);
    story.name(1, Op::Unlink, 80, "never-seen", 0, "").name(1, Op::Rmdir, 80, "old", 0, "");
    story.name(1, Op::Rename, 80, "seen", 1, "new").open(1, 81, 77, 3).close(1, 81, 3);
    let plan = story.replays();
    let path = |name: &[u8]| plan.nodes.iter().find(|n| n.before.as_deref() == Some(name)).expect("there");
    assert_eq!((path(b"file-46").size, path(b"sub/seen").size), (5_000_000, 77));
    assert_eq!(path(b"sub/old").kind, NodeKind::Dir);
    assert!(plan.bytes_before() < 300_000, "only what is read");
}

/// Goal: copies between files are made, from files that are there and from others. Method: a copy of a copy.
#[test]
fn copies_are_made() {
    let mut story = Story::default();
    story.open(1, 70, 100_000, 1).create(1, 1, "one", 71, 2).create(2, 1, "two", 72, 3);
    let copy =
        |ino, handle, other, from| Call { ino, handle, other, size: Some(from), len: 1 << 20, ..Call::new(Op::Copy) };
    story.add(1, Call { result: 60_000, ..copy(71, 2, 70, 40_000) });
    story.add(2, Call { result: 50_000, ..copy(72, 3, 71, 10_000) });
    story.bytes(2, Op::Read, (72, 3), 0, 50_000);
    let plan = story.replays();
    assert_eq!((plan.bytes_written(), plan.skipped.len()), (110_000, 0));
}

/// Goal: a copy reads from an open file that can be read, and not from one that the program had closed. Method: a file
/// that a writer closes, while its release comes after the copy by another thread.
#[test]
fn copies_read_what_can_be_read() {
    let mut story = Story::default();
    let makes = |ino, handle, name: &str| Call {
        ino: 1,
        name: name.as_bytes().into(),
        other: ino,
        handle,
        size: Some(0),
        flags: flags::WRITES,
        ..Call::new(Op::Create)
    };
    let copy = |from, handle| Call { ino: 72, handle, other: from, len: 1000, result: 1000, ..Call::new(Op::Copy) };
    story.add(1, makes(71, 1, "one")).bytes(1, Op::Write, (71, 1), 0, 1000);
    story.open(2, 71, 1000, 2).add(2, makes(72, 3, "two"));
    story.add(1, Call { ino: 71, handle: 1, ..Call::new(Op::Close) }).add(2, copy(71, 3));
    story.add(0, Call { ino: 71, handle: 1, ..Call::new(Op::Release) });
    // The same with a reader that has closed one of its descriptors before.
    story.add(2, Call { ino: 71, handle: 2, ..Call::new(Op::Close) }).add(3, copy(71, 3));
    story.add(0, Call { ino: 71, handle: 2, ..Call::new(Op::Release) });
    // The kernel fills the rest of a page.
    story.bytes(1, Op::Read, (72, 3), 0, 1000);
    let plan = story.replays();
    assert_eq!((plan.bytes_written(), &plan.skipped), (3000, &[(Op::Read, 1)].into_iter().collect()));
}

/// Goal: a forged name leads nowhere. Method: names with slashes and dots.
#[test]
fn names_stay_inside() {
    let mut story = Story::default();
    for (n, name) in ["../out", "..", "a/b", "\0", "."].iter().enumerate() {
        story.create(1, 1, name, 100 + n as u64, 1).name(1, Op::Unlink, 1, name, 0, "").name(
            1,
            Op::Mkdir,
            1,
            name,
            200,
            "",
        );
    }
    let plan = plan(&story.0);
    assert_eq!((plan.calls(), plan.nodes.len()), (0, 1));
}

/// Goal: the replay reports bytes that differ from those that were written, and calls that fail. Method: a file that
/// somebody changes between making and replaying.
#[test]
fn wrong_bytes_are_found() {
    let mut story = Story::default();
    story.open(1, 70, 4096, 1).bytes(1, Op::Read, (70, 1), 0, 4096).open(1, 71, 0, 2);
    let plan = Arc::new(plan(&story.0));
    let dir = tempfile::tempdir().expect("folder");
    make(&plan, dir.path()).expect("made");
    let mut bytes = std::fs::read(dir.path().join("file-46")).expect("read");
    bytes[1000] ^= 1;
    std::fs::write(dir.path().join("file-46"), bytes).expect("write");
    std::fs::remove_file(dir.path().join("file-47")).expect("remove");
    let report = replay(plan, dir.path(), Options { think: 0.0 }).expect("replayed");
    assert_eq!((report.wrong, report.failed), (1, 1), "{:?}", report.notes);
}

/// Goal: think time is kept, and a replay without it does not wait. Method: two calls half a second apart, judged by
/// the delays in the report.
#[test]
fn think_time_is_kept() {
    let mut story = Story::default();
    story.open(1, 70, 0, 1).bytes(1, Op::Write, (70, 1), 0, 10);
    story.0.calls[1].start_ns += 50_000_000;
    let plan = Arc::new(plan(&story.0));
    let took = |think| {
        let dir = tempfile::tempdir().expect("folder");
        make(&plan, dir.path()).expect("made");
        replay(plan.clone(), dir.path(), Options { think }).expect("replayed").took_ns
    };
    assert!(took(1.0) >= 50_000_000);
}
