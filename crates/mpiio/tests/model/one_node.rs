//! N ranks, threads of one process, run under a scheduler that lets one of them continue at a time and chooses by a
//! seed which; tiny pages, three pages of memory for each rank. The result of each call is compared with an array of
//! bytes to which the calls are applied in the order in which they held all of their locks.

use super::scheduler::{ActorPace, Random, Scheduler, go_on, random_extents};
use amphi_mpiio::backend::Backend;
use amphi_mpiio::backend::memory::MemoryFile;
use amphi_mpiio::file::idle::{Looker, Seen};
use amphi_mpiio::file::{CachedFile, Extent, Settings};
use amphi_mpiio::locks::{Locks, Mode};
use amphi_mpiio::meeting::Meeting;
use amphi_mpiio::pace::Futex;
use amphi_mpiio::rounds::Rounds;
use amphi_mpiio::segment::{Geometry, Segment};
use amphi_mpiio::stats::Stats;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const FILE_BYTES: u64 = 400;

fn geometry(ranks: u32) -> Geometry {
    Geometry { ranks, page_bytes: 16, frames_per_rank: 3, spans: 2, dir_slots: 32, chunk_entries: 4 }
}

fn segments(geometry: Geometry, size: u64) -> Vec<Segment> {
    let first = Segment::create(geometry, size).unwrap();
    let token = first.token();
    let mut all = vec![first];
    for rank in 1..geometry.ranks {
        all.push(Segment::attach(token, geometry, rank).unwrap());
    }
    all
}

/// One rank's part of a phase.
fn program(file: &mut CachedFile, pace: &ActorPace, random: &mut Random, readable: bool, calls: u32) {
    let scheduler = pace.scheduler();
    let mut seen = Seen::default();
    let mut extents = random_extents(random, FILE_BYTES);
    for _ in 0..calls {
        if random.below(3) == 0 {
            go_on(&mut extents, FILE_BYTES);
        } else {
            extents = random_extents(random, FILE_BYTES);
        }
        let total: usize = extents.iter().map(|e| e.length as usize).sum();
        match random.below(if readable { 12 } else { 7 }) {
            0 => {
                let share = random.below(2) as u32;
                file.flush_share(share, 2).unwrap();
            }
            1 if random.below(3) == 0 => {
                let start = random.below(FILE_BYTES);
                file.flush_parts(start..start + random.below(100), random.below(2) as u32, 2).unwrap();
            }
            1 if random.below(2) == 0 => file.flush_idle(&mut seen).unwrap(),
            1 => file.drop_clean().unwrap(),
            2..=6 => {
                let bytes: Vec<u8> = (0..total).map(|_| random.below(256) as u8).collect();
                scheduler.announce(pace.rank, &extents, Some(&bytes));
                assert_eq!(file.write(&extents, &bytes).unwrap(), total as u64);
                assert!(scheduler.locked().calls[pace.rank].expected.is_some() || total == 0);
            }
            _ => {
                let mut bytes = vec![0xee; total];
                scheduler.announce(pace.rank, &extents, None);
                let n = file.read(&extents, &mut bytes).unwrap() as usize;
                scheduler.check_read(pace.rank, &bytes, n);
            }
        }
    }
}

struct Totals {
    evictions: u64,
    remote: u64,
    waits: u64,
    uncached: u64,
    stream: u64,
    prefetched: u64,
}

fn run_seed(seed: u64, totals: &mut Totals) {
    let mut random = Random::new(seed ^ 0xabcdef);
    let ranks = 2 + random.below(4) as u32;
    let readable = random.below(5) != 0;
    let start: Vec<u8> = (0..random.below(300)).map(|i| i as u8 ^ 0x55).collect();
    let backend = MemoryFile::new(start.clone());
    let settings = Settings {
        readable,
        writable: true,
        bypass_bytes: if random.below(2) == 0 { 40 } else { 1000 },
        stream_bytes: if random.below(2) == 0 { 0 } else { 48 },
        aside_bytes: if random.below(3) == 0 { 12 } else { 0 },
        merge_parts: random.below(2) == 0,
        run_bytes: 64,
        prefetch_bytes: if random.below(2) == 0 { 0 } else { 64 },
    };
    let mut model = start;
    let scheduler = Scheduler::new(ranks as usize, seed, model.clone());
    let paces: Vec<Arc<ActorPace>> = (0..ranks as usize).map(|rank| ActorPace::new(&scheduler, rank, rank)).collect();
    let mut files: Vec<CachedFile> = segments(geometry(ranks), model.len() as u64)
        .into_iter()
        .zip(&paces)
        .map(|(segment, pace)| CachedFile::new(segment, Box::new(backend.clone()), settings, pace.clone()))
        .collect();
    for phase in 0..3 {
        let scheduler = Scheduler::new(ranks as usize, seed * 31 + phase, model.clone());
        paces.iter().for_each(|p| *p.scheduler.lock().unwrap() = scheduler.clone());
        std::thread::scope(|scope| {
            for (file, pace) in files.iter_mut().zip(&paces) {
                let mut random = Random::new(seed * 1009 + phase * 97 + pace.rank as u64);
                let scheduler = scheduler.clone();
                scope.spawn(move || {
                    scheduler.act(pace.rank, || program(file, pace, &mut random, readable, 12));
                });
            }
        });
        model = scheduler.locked().model.clone();
        assert_eq!(files[0].size(), model.len() as u64);
        match random.below(3) {
            // Nothing: the next phase continues with the cached pages.
            0 => {}
            // Sync.
            1 => {
                for (share, file) in files.iter_mut().enumerate() {
                    file.flush_share(share as u32, ranks).unwrap();
                }
                assert_eq!(backend.bytes(), model, "seed {seed} after sync");
                files.iter_mut().for_each(|f| f.drop_clean().unwrap());
                files[0].refresh_size().unwrap();
            }
            // The file gets another length.
            _ => {
                files.iter_mut().enumerate().for_each(|(r, f)| f.flush_share(r as u32, ranks).unwrap());
                files.iter_mut().for_each(|f| f.drop_clean().unwrap());
                let size = random.below(FILE_BYTES);
                files[0].set_size(size).unwrap();
                model.resize(size as usize, 0);
            }
        }
    }
    for (share, file) in files.iter_mut().enumerate() {
        file.flush_share(share as u32, ranks).unwrap();
    }
    assert_eq!(backend.bytes(), model, "seed {seed} at close");
    for file in &files {
        let s = file.stats();
        totals.evictions += s.evictions;
        totals.remote += s.remote;
        totals.waits += s.lock_waits;
        totals.uncached += s.uncached;
        totals.stream += s.stream_bytes;
        totals.prefetched += s.prefetched;
    }
}

/// Goal: every call of every rank is atomic and sees the bytes of all calls before it, with any pages evicted,
/// uncached, flushed and dropped meanwhile; at close the file equals the model; no rank waits for ever. Method: random
/// programs of 2 to 5 ranks under a scheduler with a seed; all kinds of paths have to occur.
#[test]
fn ranks_agree_with_an_array_of_bytes() {
    let mut totals = Totals { evictions: 0, remote: 0, waits: 0, uncached: 0, stream: 0, prefetched: 0 };
    let seeds = std::env::var("AMPHI_MPIIO_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(120);
    for seed in 0..seeds {
        run_seed(seed, &mut totals);
    }
    println!(
        "evictions {} remote {} waits {} uncached {} stream bytes {} ahead {}",
        totals.evictions, totals.remote, totals.waits, totals.uncached, totals.stream, totals.prefetched
    );
    assert!(totals.evictions > 500 && totals.remote > 500 && totals.waits > 100);
    assert!(totals.uncached > 100 && totals.stream > 100 && totals.prefetched > 20);
}

fn two_ranks(backend: &MemoryFile, page_bytes: u32) -> Vec<CachedFile> {
    let geometry = Geometry::new(2, page_bytes, u64::from(page_bytes) * 64);
    let settings = Settings {
        readable: true,
        writable: true,
        bypass_bytes: 1 << 20,
        stream_bytes: 0,
        aside_bytes: 0,
        merge_parts: false,
        run_bytes: 1 << 16,
        prefetch_bytes: 0,
    };
    segments(geometry, backend.size().unwrap())
        .into_iter()
        .map(|segment| CachedFile::new(segment, Box::new(backend.clone()), settings, Arc::new(Futex)))
        .collect()
}

/// Goal: many small interleaved writes of two ranks leave as a few long, aligned ones.
/// Method: 2 x 512 writes of 100 bytes that alternate; the requests to the file are counted.
#[test]
fn small_writes_leave_as_aligned_runs() {
    let backend = MemoryFile::default();
    let mut files = two_ranks(&backend, 4096);
    for i in 0..1024u64 {
        let bytes = [i as u8; 100];
        files[(i % 2) as usize].write(&[Extent { offset: i * 100, length: 100 }], &bytes).unwrap();
    }
    files.iter_mut().enumerate().for_each(|(share, f)| f.flush_share(share as u32, 2).unwrap());
    let writes: u64 = files.iter().map(|f| f.stats().fs_writes).sum();
    let aligned: u64 = files.iter().map(|f| f.stats().fs_writes_aligned).sum();
    assert_eq!((writes, aligned), (2, 2));
    assert!(backend.bytes().iter().enumerate().all(|(i, b)| *b == (i / 100) as u8));
    assert_eq!(backend.bytes().len(), 102_400);
}

/// Goal: a read of many uncached pages reads them from the file system in runs that skip the cached pages, not one by
/// one, and all bytes are right. Method: 40 pages in runs of 16; another rank has changed a part of one page; the
/// requests are counted.
#[test]
fn missing_pages_are_read_by_runs() {
    let content: Vec<u8> = (0..40 * 4096u32).map(|i| (i / 100) as u8).collect();
    let backend = MemoryFile::new(content.clone());
    let mut files = two_ranks(&backend, 4096);
    let mut seen = vec![0; content.len()];
    let all = [Extent { offset: 0, length: content.len() as u64 }];
    files[0].read(&all, &mut seen).unwrap();
    assert!(seen == content);
    assert_eq!((files[0].stats().fs_reads, files[0].stats().fills, files[0].stats().hits), (3, 40, 0));
    files.iter_mut().for_each(|file| file.drop_clean().unwrap());
    files[1].write(&[Extent { offset: 5 * 4096 + 10, length: 5 }], &[255; 5]).unwrap();
    seen.fill(0);
    files[0].read(&all, &mut seen).unwrap();
    let mut expected = content;
    expected[5 * 4096 + 10..][..5].fill(255);
    assert!(seen == expected);
    // Before the changed page, the rest of that one, and two runs and a half behind it.
    assert_eq!(files[0].stats().fs_reads, 3 + 1 + 1 + 3);
    files[1].read(&all, &mut seen).unwrap();
    assert_eq!((files[1].stats().fs_reads, files[1].stats().remote), (0, 39));
}

/// Goal: with read-ahead, a rank that reads ranges in sequence requests runs from the file system, also beyond its own
/// memory, and misses no change by other ranks meanwhile. A rank that reads in random order reads nothing ahead, and
/// neither does a rank without the hint. Method: a file of 40 pages is read in pieces, with memory for 16 pages; the
/// requests are counted.
#[test]
fn what_is_read_in_order_is_read_ahead() {
    let content: Vec<u8> = (0..40 * 64u32).map(|i| (i / 10) as u8).collect();
    let reads = |prefetch_bytes, step: u64| {
        let backend = MemoryFile::new(content.clone());
        let geometry = Geometry { page_bytes: 64, frames_per_rank: 16, ..geometry(2) };
        let settings = Settings {
            readable: true,
            writable: true,
            bypass_bytes: 1 << 20,
            stream_bytes: 0,
            aside_bytes: 0,
            merge_parts: false,
            run_bytes: 1024,
            prefetch_bytes,
        };
        let open = |segment| CachedFile::new(segment, Box::new(backend.clone()), settings, Arc::new(Futex));
        let mut files: Vec<CachedFile> = segments(geometry, content.len() as u64).into_iter().map(open).collect();
        let mut expected = content.clone();
        for piece in 0..128u64 {
            let offset = piece * step % 128 * 20;
            if piece == 30 {
                files[1].write(&[Extent { offset: 700, length: 50 }], &[255; 50]).unwrap();
                expected[700..750].fill(255);
            }
            let mut seen = [0; 20];
            files[0].read(&[Extent { offset, length: 20 }], &mut seen).unwrap();
            assert_eq!(seen, expected[offset as usize..][..20], "piece {piece}");
        }
        (files[0].stats().fs_reads, files[0].stats().prefetched)
    };
    let (requests, ahead) = reads(8 * 64, 1);
    assert!(requests <= 12 && ahead >= 30, "{requests} requests, {ahead} pages ahead");
    assert_eq!(reads(0, 1), (40, 0));
    assert_eq!(reads(8 * 64, 53).1, 0);
}

/// Goal: a sync is passed to the file system only if something was written since the last one. Method: the counter,
/// over writes by another rank.
#[test]
fn a_sync_without_writes_asks_nobody() {
    let backend = MemoryFile::default();
    let mut files = two_ranks(&backend, 64);
    files[0].sync_backend().unwrap();
    assert_eq!(files[0].stats().fs_syncs, 0);
    files[1].write(&[Extent { offset: 0, length: 5 }], &[7; 5]).unwrap();
    files[1].flush_share(0, 1).unwrap();
    files[0].sync_backend().unwrap();
    files[0].sync_backend().unwrap();
    assert_eq!(files[0].stats().fs_syncs, 1);
    files[0].set_size(3).unwrap();
    files[1].sync_backend().unwrap();
    assert_eq!(files[1].stats().fs_syncs, 1);
}

/// Goal: idle runs are written back in the background, each once: whole pages at the next check, and parts of pages
/// much later. A page that is written meanwhile stays, and so does a page that a rank holds. Method: checks alternate
/// with writes; the file below and the counters.
#[test]
fn idle_runs_leave_in_the_background() {
    let backend = MemoryFile::default();
    let mut files = two_ranks(&backend, 4096);
    let whole = [7u8; 2 * 4096];
    files[0].write(&[Extent { offset: 0, length: whole.len() as u64 }], &whole).unwrap();
    files[0].write(&[Extent { offset: 1 << 20, length: 10 }], &[8; 10]).unwrap();
    let mut seen = Seen::default();
    files[1].flush_idle(&mut seen).unwrap();
    assert_eq!(backend.bytes().len(), 0, "nothing is idle at the first look");
    files[0].write(&[Extent { offset: 5, length: 1 }], &[9]).unwrap();
    files[1].flush_idle(&mut seen).unwrap();
    assert_eq!(backend.bytes().len(), 0, "one page of the run was written");
    files[1].flush_idle(&mut seen).unwrap();
    assert_eq!((backend.bytes().len(), backend.bytes()[5]), (8192, 9), "the run left, the part of a page did not");
    assert_eq!((files[1].stats().fs_writes, files[1].stats().idle_pages), (1, 2));
    (0..40).for_each(|_| files[1].flush_idle(&mut seen).unwrap());
    assert_eq!(backend.bytes().len(), (1 << 20) + 10);
    assert_eq!((files[1].stats().fs_writes, files[1].stats().idle_pages), (2, 3), "each once");
    assert_eq!(files[0].late_error(), 0);

    // A failure is not reported to any rank yet, and loses nothing.
    files[0].write(&[Extent { offset: 0, length: 4096 }], &whole[..4096]).unwrap();
    backend.fail_writes(libc::ENOSPC);
    files[1].flush_idle(&mut seen).unwrap();
    assert!(files[1].flush_idle(&mut seen).is_err());
    assert_eq!(files[0].late_error(), 0);
    backend.fail_writes(0);
    files[0].flush_share(0, 1).unwrap();
    assert_eq!(backend.bytes()[5], 7);
}

/// Goal: a rank that writes whole pages, each once, stops adding them to the cache when its memory is full, and begins
/// again when it returns to an earlier page or reads; parts of pages are cached throughout. Method: pages are written
/// one after the other; the counters and the file are checked.
#[test]
fn large_data_written_once_goes_past_the_cache() {
    let backend = MemoryFile::default();
    let geometry = Geometry { page_bytes: 64, frames_per_rank: 8, ..geometry(2) };
    let settings = Settings {
        readable: true,
        writable: true,
        bypass_bytes: 1 << 20,
        stream_bytes: 1 << 20,
        aside_bytes: 0,
        merge_parts: false,
        run_bytes: 64,
        prefetch_bytes: 0,
    };
    let mut file =
        CachedFile::new(segments(geometry, 0).remove(0), Box::new(backend.clone()), settings, Arc::new(Futex));
    let write = |file: &mut CachedFile, page: u64, length: usize| {
        file.write(&[Extent { offset: page * 64, length: length as u64 }], &vec![page as u8; length]).unwrap();
        (file.stats().once_pages, file.stats().evictions)
    };
    assert_eq!((0..8).map(|page| write(&mut file, page, 64)).max(), Some((0, 0)), "there is room");
    assert_eq!((8..20).map(|page| write(&mut file, page, 64)).max(), Some((12, 0)), "nothing makes room for them");
    assert_eq!(write(&mut file, 20, 10), (12, 1), "a part of a page");
    assert_eq!(write(&mut file, 20, 64), (12, 1), "it comes back");
    assert_eq!(write(&mut file, 21, 64), (12, 2));
    assert_eq!((22..40).map(|page| write(&mut file, page, 64)).max(), Some((23, 9)));
    file.read(&[Extent { offset: 0, length: 64 }], &mut [1; 64]).unwrap();
    assert_eq!(write(&mut file, 40, 64).0, 23, "it reads");
    file.flush_share(0, 1).unwrap();
    let expected: Vec<u8> = (0..41u8).flat_map(|page| [page; 64]).collect();
    assert!(backend.bytes() == expected);
}

/// Goal: pages in many small parts are written back as one part each, with the bytes of the file between the parts, if
/// no other program writes the file; otherwise every part is written by itself. Nothing is written before the first
/// part or after the last one. Method: a file with other bytes, and two ranks that write every tenth byte of a part of
/// it; the requests and the file are checked.
#[test]
fn small_parts_are_merged_where_nobody_else_writes() {
    for merge_parts in [false, true] {
        let mut expected: Vec<u8> = (0..3000u32).map(|i| (i / 7) as u8).collect();
        let backend = MemoryFile::new(expected.clone());
        let geometry = Geometry::new(2, 4096, 1 << 20);
        let settings = Settings {
            readable: true,
            writable: true,
            bypass_bytes: 1 << 20,
            stream_bytes: 0,
            aside_bytes: 0,
            merge_parts,
            run_bytes: 1 << 16,
            prefetch_bytes: 0,
        };
        let open = |segment| CachedFile::new(segment, Box::new(backend.clone()), settings, Arc::new(Futex));
        let mut files: Vec<CachedFile> = segments(geometry, 3000).into_iter().map(open).collect();
        for (part, offset) in (500..4000).step_by(10).enumerate() {
            files[part % 2].write(&[Extent { offset, length: 1 }], b"x").unwrap();
            expected.resize(expected.len().max(offset as usize + 1), 0);
            expected[offset as usize] = b'x';
        }
        // Bytes that another program writes stay where there is no part.
        backend.write_at(&[std::io::IoSlice::new(b"outside")], 100).unwrap();
        expected[100..107].copy_from_slice(b"outside");
        files.iter_mut().enumerate().for_each(|(share, f)| f.flush_share(share as u32, 2).unwrap());
        let count = |of: fn(&CachedFile) -> u64| files.iter().map(of).sum::<u64>();
        assert!(backend.bytes() == expected, "merged: {merge_parts}");
        let (reads, writes) = (count(|f| f.stats().fs_reads), count(|f| f.stats().fs_writes));
        // A page has room for 32 parts.
        assert_eq!((reads, writes), if merge_parts { (11, 11) } else { (0, 350) });
    }
}

/// Goal: ranks write the columns of a matrix one after the other, in pieces of eight bytes. The pages are full before
/// any of them is written to the file. Method: four ranks with one call each. The test counts the requests to the file
/// and compares its bytes.
#[test]
fn columns_of_small_pieces_fill_pages() {
    const BYTES: u64 = 2 << 20;
    let backend = MemoryFile::default();
    let geometry = Geometry::new(4, 1 << 20, BYTES);
    let settings = Settings {
        readable: true,
        writable: true,
        bypass_bytes: 1 << 30,
        stream_bytes: 0,
        aside_bytes: 0,
        merge_parts: false,
        run_bytes: BYTES,
        prefetch_bytes: 0,
    };
    let open = |segment| CachedFile::new(segment, Box::new(backend.clone()), settings, Arc::new(Futex));
    let mut files: Vec<CachedFile> = segments(geometry, 0).into_iter().map(open).collect();
    for rank in [2, 0, 3, 1] {
        let column: Vec<Extent> =
            (0..BYTES / 32).map(|row| Extent { offset: row * 32 + rank * 8, length: 8 }).collect();
        files[rank as usize].write(&column, &vec![rank as u8 + 1; BYTES as usize / 4]).unwrap();
    }
    assert!(backend.bytes().is_empty());
    files[0].flush_share(0, 1).unwrap();
    assert_eq!(files.iter().map(|f| f.stats().fs_writes).sum::<u64>(), 1);
    assert!(backend.bytes().iter().enumerate().all(|(at, byte)| *byte == (at / 8 % 4) as u8 + 1));
    assert_eq!(backend.bytes().len() as u64, BYTES);
}

/// One rank's part of collective writes and reads of pieces of 4 bytes, a slot for each rank, with as many bytes from
/// one slot of a rank to the next one. Either in rounds, as the shim does it, or with each rank independent of the
/// others.
fn small_pieces(file: &mut CachedFile, meeting: &Meeting, rank: u64, stride: u64, in_rounds: bool) {
    let page = u64::from(file.memory().geometry().page_bytes);
    let meet = || {
        let mut arrival = meeting.arrive(0);
        while meeting.wait(&mut arrival).unwrap().is_none() {}
    };
    let pieces = SMALL_BYTES / stride;
    let all: Vec<Extent> = (0..pieces).map(|i| Extent { offset: i * stride + rank * 4, length: 4 }).collect();
    let mut rounds = Rounds::default();
    for writes in [true, false] {
        meeting.want(rank * 4..all.last().unwrap().offset + 4);
        meet();
        rounds.cut(meeting.wanted(), page, page, meeting.frames_per_rank());
        assert_eq!(rounds.count, SMALL_BYTES / page, "memory holds three pages, so a window has one");
        let windows: Vec<_> = (0..rounds.count).map(|round| rounds.window(round)).collect();
        let whole = rounds.window(0).start..SMALL_BYTES;
        for window in if in_rounds { windows } else { Vec::from([whole]) } {
            let part: Vec<Extent> = all.iter().filter(|piece| window.contains(&piece.offset)).copied().collect();
            let mut bytes = vec![rank as u8 + 1; part.len() * 4];
            if writes {
                file.write(&part, &bytes).unwrap();
            } else {
                bytes.fill(0);
                file.read(&part, &mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| u64::from(*byte) == rank + 1));
            }
            meet();
            if writes && in_rounds {
                file.flush_parts(window, rank as u32, 4).unwrap();
            }
        }
    }
}

const SMALL_BYTES: u64 = 40 * 1280;

/// Goal: collective calls of small pieces over many more pages than memory holds read each page at most once and write
/// it once. This also holds with gaps between the pieces, where the file keeps its bytes. Without rounds the same calls
/// make many more requests. Method: four ranks as threads, three frames each; the requests and the file.
#[test]
fn rounds_bound_the_requests_by_pages() {
    const PAGE: u32 = 256;
    const PAGES: u64 = SMALL_BYTES / PAGE as u64;
    for (stride, in_rounds) in [(16, true), (20, true), (20, false)] {
        let backend = MemoryFile::new(vec![0x77; SMALL_BYTES as usize]);
        let geometry = Geometry { page_bytes: PAGE, spans: 32, dir_slots: 256, ..geometry(4) };
        let settings = Settings {
            readable: true,
            writable: true,
            bypass_bytes: 1 << 20,
            stream_bytes: 0,
            aside_bytes: 0,
            merge_parts: false,
            run_bytes: u64::from(PAGE),
            prefetch_bytes: 0,
        };
        let open = |segment| CachedFile::new(segment, Box::new(backend.clone()), settings, Arc::new(Futex));
        let mut files: Vec<CachedFile> = segments(geometry, SMALL_BYTES).into_iter().map(open).collect();
        std::thread::scope(|scope| {
            for (rank, file) in files.iter_mut().enumerate() {
                scope.spawn(move || {
                    let meeting = Meeting::new(file.memory().share());
                    small_pieces(file, &meeting, rank as u64, stride, in_rounds);
                });
            }
        });
        files[0].flush_share(0, 1).unwrap();
        let slot = |at: u64| at % stride / 4;
        let expected = |at: u64| if slot(at) < 4 { slot(at) as u8 + 1 } else { 0x77 };
        assert!(backend.bytes().iter().zip(0..).all(|(byte, at)| *byte == expected(at)), "stride {stride}");
        let sum = |value: fn(&Stats) -> u64| files.iter().map(|file| value(&file.stats())).sum::<u64>();
        let (reads, writes) = (sum(|stats| stats.fs_reads), sum(|stats| stats.fs_writes));
        if in_rounds {
            assert_eq!(writes, PAGES, "stride {stride}");
            // Once between the pieces that are written, and once when they are read.
            assert!(reads <= 2 * PAGES, "{reads} reads");
        } else {
            assert!(writes > 8 * PAGES, "{writes} writes");
        }
    }
}

/// Goal: a page that is written back as one part after a collective call takes the present bytes of the file between
/// the parts, not those read before; a page in few parts stays. Method: the file changes between a read and a write of
/// parts.
#[test]
fn merged_parts_keep_what_others_have_written() {
    let backend = MemoryFile::new(vec![1; 8192]);
    let mut files = two_ranks(&backend, 4096);
    files[0].read(&[Extent { offset: 0, length: 4096 }], &mut [0; 4096]).unwrap();
    let outside = backend.clone();
    outside.write_at(&[IoSlice::new(&[9; 4096])], 0).unwrap();
    let parts: Vec<Extent> = (0..10).map(|i| Extent { offset: 100 + i * 10, length: 2 }).collect();
    files[0].write(&parts, &[5; 20]).unwrap();
    files[0].write(&[Extent { offset: 5000, length: 1 }], &[6]).unwrap();
    files[1].flush_parts(0..4096, 0, 1).unwrap();
    let expected = |at: usize| if (100..200).contains(&at) && at % 10 < 2 { 5 } else { 9 };
    assert!(backend.bytes()[..4096].iter().enumerate().all(|(at, byte)| *byte == expected(at)));
    assert_eq!((files[1].stats().fs_reads, files[1].stats().fs_writes), (1, 1));
    files[1].flush_parts(4096..8192, 0, 1).unwrap();
    assert_eq!((backend.bytes()[5000], files[1].stats().fs_writes), (1, 1));
}

fn two_readers(content: &[u8], stream_bytes: u64, aside_bytes: u64) -> Vec<CachedFile> {
    let geometry = Geometry { page_bytes: 64, frames_per_rank: 32, ..geometry(2) };
    let settings = Settings {
        readable: true,
        writable: true,
        bypass_bytes: 1 << 20,
        stream_bytes,
        aside_bytes,
        merge_parts: false,
        run_bytes: 256,
        prefetch_bytes: 0,
    };
    let backend = MemoryFile::new(content.to_vec());
    let open = |segment| CachedFile::new(segment, Box::new(backend.clone()), settings, Arc::new(Futex));
    segments(geometry, content.len() as u64).into_iter().map(open).collect()
}

fn read_checked(file: &mut CachedFile, content: &[u8], offset: u64, length: usize) -> (u64, u64, u64) {
    let mut seen = vec![0; length];
    assert_eq!(file.read(&[Extent { offset, length: length as u64 }], &mut seen).unwrap(), length as u64);
    assert!(seen == content[offset as usize..][..length], "other bytes at {offset}");
    (file.stats().fs_reads, file.stats().fills, file.stats().hits)
}

/// Goal: a long range that is read once is not cached; the next read of the same range, by any rank, loads it into the
/// cache, where every rank finds it from then on. Bytes that a rank has written there are seen throughout. Method: two
/// ranks read one range; the counters are checked.
#[test]
fn a_long_range_is_cached_when_it_is_read_again() {
    let mut content: Vec<u8> = (0..1024u32).map(|i| (i / 3) as u8).collect();
    let mut files = two_readers(&content, 512, 0);
    files[1].write(&[Extent { offset: 300, length: 4 }], &[255; 4]).unwrap();
    content[300..304].fill(255);
    // Pages 0 to 3, the page that has a frame, and pages 5 to 9.
    assert_eq!(read_checked(&mut files[0], &content, 0, 640), (3, 1, 0));
    assert_eq!(files[0].stats().stream_bytes, 576);
    assert_eq!(read_checked(&mut files[1], &content, 0, 640), (3, 9, 1), "the second reader fills, by runs");
    assert_eq!(read_checked(&mut files[0], &content, 0, 640), (3, 1, 10), "and all find it");
    assert_eq!(read_checked(&mut files[1], &content, 704, 320), (5, 14, 1), "a shorter range is cached at once");
}

/// Goal: if the cache of the file system serves all ranks, long ranges are read from it and not cached here, in any
/// pages, unless a rank has cached data in these pages; shorter ranges are cached. Method: two ranks; the counters.
#[test]
fn long_reads_are_left_to_a_cache_below() {
    let mut content: Vec<u8> = (0..1024u32).map(|i| (i / 3) as u8).collect();
    let mut files = two_readers(&content, 1 << 20, 40);
    assert_eq!(read_checked(&mut files[0], &content, 50, 100), (1, 0, 0), "parts of three pages, one request");
    assert_eq!(read_checked(&mut files[1], &content, 150, 39), (1, 1, 0), "a short one");
    assert_eq!(read_checked(&mut files[0], &content, 100, 100), (3, 0, 1), "around the page that is cached now");
    files[1].write(&[Extent { offset: 500, length: 4 }], &[255; 4]).unwrap();
    content[500..504].fill(255);
    assert_eq!(read_checked(&mut files[0], &content, 480, 60), (5, 1, 1), "a page of which a part is dirty");
    let all = [Extent { offset: 0, length: 45 }, Extent { offset: 704, length: 50 }, Extent { offset: 760, length: 3 }];
    let mut seen = [0; 98];
    files[0].read(&all, &mut seen).unwrap();
    let wanted: Vec<u8> = [&content[..45], &content[704..754], &content[760..763]].concat();
    assert!(seen[..] == wanted);
    assert_eq!((files[0].stats().fs_reads, files[0].stats().fills), (7, 2), "a page with a short range is cached");
}

/// Goal: the thread makes its checks, even while its rank waits for it, and ends at once when it has to. Method: a
/// thread that acts as rank 0, whose writes appear in the file below without a flush.
#[test]
fn a_thread_looks_for_idle_runs() {
    let backend = MemoryFile::default();
    let mut files = two_ranks(&backend, 4096);
    let again = files[0].memory().again().unwrap();
    let acting = CachedFile::new(again, Box::new(backend.clone()), *files[0].settings(), Arc::new(Futex));
    let mut looker = Looker::start(acting, Duration::from_millis(1)).unwrap();
    for value in 1..200u8 {
        files[usize::from(value) % 2].write(&[Extent { offset: 0, length: 8192 }], &[value; 8192]).unwrap();
        while value % 50 == 0 && backend.bytes().first() != Some(&value) {
            std::thread::yield_now();
        }
    }
    looker.stop();
    assert!(looker.stats().idle_pages >= 4);
    let mut slow = Looker::start(
        CachedFile::new(
            files[0].memory().again().unwrap(),
            Box::new(backend.clone()),
            *files[0].settings(),
            Arc::new(Futex),
        ),
        Duration::from_secs(3600),
    )
    .unwrap();
    slow.stop();
}

/// Goal: a full disk is reported to every rank, loses nothing, and the next flush writes the kept data. Method: writes
/// fail during a flush by one rank; afterwards they succeed again.
#[test]
fn a_full_disk_is_late_news_for_every_rank() {
    let backend = MemoryFile::default();
    let mut files = two_ranks(&backend, 64);
    files[0].write(&[Extent { offset: 0, length: 500 }], &[7; 500]).unwrap();
    backend.fail_writes(libc::ENOSPC);
    assert_eq!(files[1].flush_share(0, 1).unwrap_err().errno(), libc::ENOSPC);
    assert_eq!((files[0].late_error(), files[1].late_error()), (libc::ENOSPC, libc::ENOSPC));
    let mut seen = [0; 500];
    assert_eq!(files[1].read(&[Extent { offset: 0, length: 500 }], &mut seen).unwrap(), 500);
    assert_eq!(seen, [7; 500]);
    backend.fail_writes(0);
    files[0].clear_late_error();
    files[1].flush_share(0, 1).unwrap();
    assert_eq!(files[0].late_error(), 0);
    assert_eq!(backend.bytes(), vec![7; 500]);
}

/// Goal: no rank waits for ever for a page of a rank that ended; a rank that left properly does not end the file for
/// others. Method: one rank takes a page and ends without a message; another rank requests the page.
#[test]
fn a_rank_that_ended_is_noticed() {
    let backend = MemoryFile::default();
    let mut geometry = geometry(3);
    geometry.spans = 8;
    let mut parts = segments(geometry, 0);
    parts.remove(1).leave();
    let gone = Locks { segment: parts.remove(1), pace: Arc::new(Futex) };
    assert!(!gone.lock(1, Mode::Exclusive).unwrap());
    let settings = Settings {
        readable: true,
        writable: true,
        bypass_bytes: 64,
        stream_bytes: 0,
        aside_bytes: 0,
        merge_parts: false,
        run_bytes: 64,
        prefetch_bytes: 0,
    };
    let mut file = CachedFile::new(parts.remove(0), Box::new(backend), settings, Arc::new(Futex));
    file.write(&[Extent { offset: 0, length: 16 }], &[1; 16]).unwrap();
    drop(gone);
    let error = file.write(&[Extent { offset: 16, length: 4 }], &[1; 4]).unwrap_err();
    assert_eq!(error, amphi_mpiio::error::Error::RankEnded(2));
    assert!(file.write(&[Extent { offset: 0, length: 4 }], &[1; 4]).is_err(), "the file is of no use any more");
}

/// Goal: an eviction that looks for dirty neighbours allocates no entries in the table of pages for unused ones, and
/// keeps no lock. Method: a table of four pages, of which three are used.
#[test]
fn an_eviction_asks_for_no_metadata() {
    let geometry = Geometry { frames_per_rank: 2, dir_slots: 4, chunk_entries: 1, ..geometry(1) };
    let settings = Settings {
        readable: true,
        writable: true,
        bypass_bytes: 64,
        stream_bytes: 0,
        aside_bytes: 0,
        merge_parts: false,
        run_bytes: 64,
        prefetch_bytes: 0,
    };
    let backend = MemoryFile::default();
    let mut file =
        CachedFile::new(segments(geometry, 0).remove(0), Box::new(backend.clone()), settings, Arc::new(Futex));
    for page in [20, 4, 5, 20, 5, 4, 20] {
        file.write(&[Extent { offset: page * 16, length: 16 }], &[page as u8; 16]).unwrap();
        assert_eq!(file.late_error(), 0, "page {page}");
    }
    assert_eq!((file.stats().evictions, file.stats().uncached), (4, 0));
    file.flush_share(0, 1).unwrap();
    assert!([20, 4, 5].iter().all(|page| backend.bytes()[page * 16..][..16] == [*page as u8; 16]));
}

/// Goal: a sync that has failed is not called a success later: the system may have dropped the bytes that it could not
/// write. Method: a sync fails once; then the file is written and synced again.
#[test]
fn a_failed_sync_stays() {
    let backend = MemoryFile::default();
    let mut files = two_ranks(&backend, 64);
    files[0].write(&[Extent { offset: 0, length: 50 }], &[7; 50]).unwrap();
    files[0].flush_share(0, 1).unwrap();
    backend.fail_writes(libc::EIO);
    assert_eq!(files[0].sync_backend().unwrap_err().errno(), libc::EIO);
    backend.fail_writes(0);
    files[1].write(&[Extent { offset: 0, length: 50 }], &[8; 50]).unwrap();
    files[1].flush_share(0, 1).unwrap();
    assert_eq!(files[1].sync_backend().unwrap_err().errno(), libc::EIO, "for every rank");
    assert_eq!(files[0].stats().fs_syncs + files[1].stats().fs_syncs, 1);
}

/// Goal: a rank does not return from its sync because another rank is syncing the same bytes. Method: during the sync
/// of one rank the other one syncs as well; it has to ask the file system itself.
#[test]
fn a_sync_under_way_counts_when_it_has_ended() {
    let backend = MemoryFile::default();
    let mut files = two_ranks(&backend, 64);
    files[1].write(&[Extent { offset: 0, length: 50 }], &[7; 50]).unwrap();
    files[0].flush_share(0, 1).unwrap();
    let (mut other, (told, syncs)) = (files.remove(1), std::sync::mpsc::channel());
    backend.during_next_sync(move || {
        other.sync_backend().unwrap();
        told.send(other.stats().fs_syncs).unwrap();
    });
    files[0].sync_backend().unwrap();
    assert_eq!(syncs.recv(), Ok(1));
    files[0].sync_backend().unwrap();
    assert_eq!(files[0].stats().fs_syncs, 1, "both are done");
}

/// Goal: requests that make no sense are refused and change nothing.
/// Method: ranges that descend, overlap, end beyond the largest file or do not fit the memory.
#[test]
fn senseless_requests_are_refused() {
    let backend = MemoryFile::default();
    let mut file = two_ranks(&backend, 64).remove(0);
    let e = |offset, length| Extent { offset, length };
    assert!(file.write(&[e(10, 5), e(0, 5)], &[0; 10]).is_err());
    assert!(file.write(&[e(10, 5), e(12, 5)], &[0; 10]).is_err());
    assert!(file.write(&[e(i64::MAX as u64, 5)], &[0; 5]).is_err());
    assert!(file.write(&[e(u64::MAX, 5)], &[0; 5]).is_err());
    assert!(file.write(&[e(0, 5)], &[0; 6]).is_err());
    assert_eq!(file.size(), 0);
}

/// Goal: with the lock scope of a page, a call releases each page as soon as the page is done; otherwise it keeps all
/// pages to its end. In both cases all bytes arrive, and the length is right. Method: a write of two pages waits for
/// the second page; the test checks whether the first page is free then.
#[test]
fn a_lock_scope_of_a_page_gives_pages_back_early() {
    for relaxed in [false, true] {
        let backend = MemoryFile::default();
        let mut files = two_ranks(&backend, 4096);
        files[0].relax(relaxed);
        let locks = Locks { segment: files[0].memory().again().unwrap(), pace: Arc::new(Futex) };
        locks.lock(1, Mode::Exclusive).unwrap();
        std::thread::scope(|scope| {
            let writer = &mut files[1];
            scope.spawn(move || writer.write(&[Extent { offset: 0, length: 8192 }], &[3; 8192]).unwrap());
            while locks.segment.meta(1).unwrap().head.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let free = locks.try_lock(0).unwrap();
            if free {
                locks.unlock(0, Mode::Exclusive).unwrap();
            }
            locks.unlock(1, Mode::Exclusive).unwrap();
            assert_eq!(free, relaxed);
        });
        let mut seen = [0; 9000];
        assert_eq!(files[0].read(&[Extent { offset: 0, length: 9000 }], &mut seen).unwrap(), 8192);
        assert!(seen[..8192].iter().all(|b| *b == 3));
    }
}
