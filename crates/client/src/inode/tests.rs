//! Tests of one file: times, blocks, and sizes while answers arrive.

use super::times::ATIME_AGE_S;
use super::*;
use amphi_types::{Advice, Attr, Ino, IoMode, Kind, Layout, Timespec};
use amphi_wire::InodeView;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Goal: the rule of relatime: a read renews the access time if that is not later than the last change, or a day old.
/// Method: a table of ages of the access time in seconds, with writes that only this mount knows of.
#[test]
fn relatime() {
    let now = Timespec { sec: 1_000_000, nsec: 0 };
    let before = |seconds: i64| Timespec { sec: now.sec - seconds, nsec: 0 };
    for (atime, mtime, ctime, renewed) in [
        (10, 20, 20, false),
        (20, 10, 20, true),
        (20, 30, 10, true),
        (10, 10, 20, true),
        (ATIME_AGE_S - 1, ATIME_AGE_S, ATIME_AGE_S, false),
        (ATIME_AGE_S, 2 * ATIME_AGE_S, 2 * ATIME_AGE_S, true),
    ] {
        let stamps = Attr { atime: before(atime), mtime: before(mtime), ctime: before(ctime), ..view(0).attr };
        let view = InodeView { attr: stamps, ..view(0) };
        let attr = view.attr;
        let file = Inode::new(view, AskedAt::PAST, &Arc::default());
        assert!(file.hints.atime_due.load(Relaxed), "the first read asks");
        file.note_access(now);
        assert!(!file.hints.atime_due.load(Relaxed), "the next one does not");
        let want = if renewed { now } else { attr.atime };
        assert_eq!(file.overlay(attr, true).atime, want, "{atime} {mtime} {ctime}");
        file.touch(Timespec { sec: now.sec + 1, nsec: 0 });
        assert!(file.hints.atime_due.load(Relaxed), "a write in the cache makes the next read count");
        file.note_access(Timespec { sec: now.sec + 2, nsec: 0 });
        assert_eq!(file.overlay(attr, true).atime.sec, now.sec + 2);
    }
}

/// The server's view of a file of `size` bytes without storage.
fn view(size: u64) -> InodeView {
    let never = Timespec { sec: 0, nsec: 0 };
    let attr = Attr {
        ino: Ino(9),
        kind: Kind::File,
        perm: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size,
        blocks: 0,
        atime: never,
        mtime: never,
        ctime: never,
        btime: never,
    };
    let (layout, advice, generation) = (Layout::growing(1), Advice::default(), 0);
    InodeView {
        attr,
        layout,
        advice,
        generation,
        spread: false,
        xattrs: false,
        capability: false,
        acl: false,
        flags: Default::default(),
        sharded: false,
    }
}

/// Goal: if an answer from before a write is applied during the write, it does not reduce the size, whenever the two
/// overlap. Method: many files. Method: one thread writes each file into the cache while another one applies an answer
/// that shows the empty file.
#[test]
fn an_answer_beside_a_write_does_not_cut() {
    const FILES: usize = 4000;
    let file = || Arc::new(Inode::new(view(0), AskedAt::PAST, &Arc::default()));
    let files: Vec<Arc<Inode>> = (0..FILES).map(|_| file()).collect();
    let (cache, turn) = (crate::cache::PageCache::new(), AtomicU64::new(0));
    let bytes = vec![7; 32 << 10];
    // Both threads begin with each file at the same moment, as nearly as possible.
    let meet = |round: usize| {
        turn.fetch_add(1, SeqCst);
        while turn.load(SeqCst) < 2 * (round as u64 + 1) {
            std::hint::spin_loop();
        }
    };
    std::thread::scope(|s| {
        s.spawn(|| {
            for (round, file) in files.iter().enumerate() {
                meet(round);
                (0..round % 512 * 8).for_each(|_| std::hint::spin_loop());
                file.adopt(view(0), AskedAt::PAST);
            }
        });
        for (round, file) in files.iter().enumerate() {
            meet(round);
            let taken = || file.size.extend_own(bytes.len() as u64);
            cache.write(file, 0, amphi_pagecache::Source::Copied(&bytes), u64::MAX, || 0, (|| true, taken));
        }
    });
    let cut = files.iter().filter(|f| f.size() < bytes.len() as u64).count();
    assert_eq!(cut, 0, "of {FILES}");
}

/// Goal: a file whose bytes reach the server while its attributes are requested does not look sparse. Method: an answer
/// from before the bytes reached the server, one from after that, and dirty bytes.
#[test]
fn landed_bytes_count() {
    let file = Inode::new(view(1 << 20), AskedAt::PAST, &Arc::default());
    let before = AskedAt::now(1);
    file.size.mark_epoch();
    assert_eq!(file.adopt(view(1 << 20), before).attr.blocks, 2048);
    assert_eq!(file.adopt(view(1 << 20), AskedAt::now(1)).attr.blocks, 0, "it is sparse");
    file.cached.dirty_bytes.store(8192, SeqCst);
    assert_eq!(file.adopt(view(1 << 20), AskedAt::now(1)).attr.blocks, 16);
}

/// Goal: the answer to a change by this mount takes precedence over the answer to a later request that was answered
/// before the change. Of two overlapping changes, the one that the server made last takes precedence. Method: both
/// orders of the answers.
#[test]
fn an_own_change_counts_from_its_answer() {
    let at = |ctime: i64, perm: u16| {
        let attr = Attr { ctime: Timespec { sec: ctime, nsec: 0 }, perm, ..view(0).attr };
        InodeView {
            attr,
            capability: perm == 0o4755,
            advice: if perm == 0o4755 { IoMode::Direct } else { IoMode::Auto }.into(),
            ..view(0)
        }
    };
    let (old, new) = (at(10, 0o644), at(20, 0o4755));
    for change_first in [true, false] {
        let file = Inode::new(old, AskedAt::now(1), &Arc::default());
        let (change, question) = (AskedAt::now(1), AskedAt::now(1));
        if !change_first {
            file.adopt(old, question);
        }
        file.adopt_change(new, change, change);
        file.adopt(old, question);
        assert!(file.has_set_id() && file.gives_capabilities() && file.io_mode() == IoMode::Direct, "{change_first}");
        file.adopt(at(30, 0o600), AskedAt::now(1));
        assert!(!file.has_set_id() && !file.gives_capabilities(), "asked since");
    }
    for last_first in [true, false] {
        let file = Inode::new(old, AskedAt::now(1), &Arc::default());
        let (first, last) = (AskedAt::now(1), AskedAt::now(1));
        let mut changes = [(at(20, 0o4755), first), (at(21, 0o700), last)];
        if last_first {
            changes.reverse();
        }
        for (view, asked) in changes {
            file.adopt_change(view, asked, asked);
        }
        assert_eq!(file.view().attr.perm, 0o700, "{last_first}");
    }
}

/// Goal: after capabilities were set, the file counts as having some until a later request has shown otherwise,
/// whatever late answers say. Method: an answer from before they were set, an answer to another change, and a removal
/// from before.
#[test]
fn capabilities_that_were_set_are_known() {
    let file = Inode::new(view(0), AskedAt::now(1), &Arc::default());
    let before = AskedAt::now(1);
    file.has_xattrs(true);
    file.adopt(view(0), before);
    assert!(file.gives_capabilities());
    file.adopt_change(view(0), before, before);
    assert!(file.gives_capabilities());
    file.lose_capability(before);
    assert!(file.gives_capabilities());
    file.lose_capability(AskedAt::now(1));
    assert!(!file.gives_capabilities());
}

/// Goal: while the end of this mount's own bytes is determined again, the reported end is never lower than the end of
/// the cached bytes. Method: one thread writes farther and farther, and checks the end. Another thread determines the
/// end again and again.
#[test]
fn the_own_end_never_goes_back() {
    let file = Inode::new(view(0), AskedAt::now(1), &Arc::default());
    // The end of the dirty bytes, stored after they are in the cache.
    let (dirty, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                file.size.own_is_at_least(|| {
                    let found = dirty.load(SeqCst);
                    (0..50).for_each(|_| std::hint::spin_loop());
                    found
                });
            }
        });
        let mut short = None;
        for end in 1..300_000 {
            dirty.store(end, SeqCst);
            file.size.extend_own(end);
            let told = file.size.own_end();
            if told < end {
                short = Some((told, end));
                break;
            }
        }
        is_over.store(true, SeqCst);
        assert_eq!(short, None);
    });
    assert_eq!(file.size.own_end(), 299_999);
    file.size.own_ends_by(7);
    assert_eq!(file.size.own_end(), 7);
}
