//! Damage to a zone at rest: every block of every structure.

use super::*;
use crate::layout::{Geometry, LOG_OFFSET, SLOT_BYTES, Superblock, VERSION, VERSION_PARITY};
use crate::planted::{Mistake, plant};
use crate::{ZoneErrorKind, fsck};
use amphi_env::sim::DiskOpKind;
use zerocopy::IntoBytes;

const SIZE: usize = 8 << 20;

/// A zone with two segments and some log, closed. It has no memory that outlives its process, whose name each opening
/// would write to the superblocks.
fn zone_with_everything() -> (Sim, BTreeMap<Key, Vec<u8>>) {
    let sim = Sim::new(11, SimConfig { keeps: false, ..SimConfig::default() });
    format(&sim, &params());
    let (zone, _) = open(&sim, &manual()).unwrap();
    let mut model = BTreeMap::new();
    for (round, count, size) in [(0, 40, 5600), (1, 30, 500), (2, 15, 9000)] {
        for i in 0..count {
            let t = txn(&format!("I{round}-{i}"), &vec![i as u8 + 1; size]);
            apply(&mut model, &t);
            let lsn = plain(&zone, t);
            sim.block_on(zone.written(lsn)).unwrap().unwrap();
        }
        if round < 2 {
            sim.block_on(zone.checkpoint()).unwrap().unwrap();
        }
    }
    assert_eq!(zone.shared_segments(), 2);
    sim.block_on(zone.close()).unwrap().unwrap();
    (sim, model)
}

impl Zone<SimEnv> {
    fn shared_segments(&self) -> usize {
        self.state().medium.segments.len()
    }
}

/// The blocks of a closed zone that count: superblocks, log from the root's start, segment pages.
fn used_blocks(whole: &[u8]) -> (Geometry, Vec<u64>) {
    let root = Superblock::decode(&whole[..4096], "copy 0").unwrap();
    let g = root.geometry();
    let used = |block: u64| {
        let at = (block * 4096) as usize;
        whole[at..at + 4096].iter().any(|&b| b != 0)
    };
    let start = root.start_position.get() % g.log_blocks;
    let log_first = LOG_OFFSET / 4096 + start;
    let log = (log_first..LOG_OFFSET / 4096 + g.log_blocks).take_while(|&b| used(b));
    let meta = (g.meta_offset / 4096..(g.meta_offset + g.meta_slots * SLOT_BYTES) / 4096).filter(|&b| used(b));
    (g, [0, 1].into_iter().chain(log).chain(meta).collect())
}

/// Goal: any one damaged block of a structure is survived: its content is served, the damage is reported with its
/// place, counted, and repaired. Method: in each block of superblocks, log and segments in turn, a bit is flipped, a
/// sector is overwritten, or the block is lost; the zone was closed and opened again without a restart of the machine,
/// so that the opening changes nothing else.
#[test]
fn every_damaged_block_is_rebuilt() {
    let (sim, model) = zone_with_everything();
    drop(open(&sim, &manual()).unwrap());
    sim.crash(NODE, amphi_env::sim::CrashKind::Process);
    sim.node(NODE);
    let whole = sim.peek(NODE, PATH, 0, SIZE).unwrap();
    let (g, blocks) = used_blocks(&whole);
    let mut rng = Lcg(3);
    let (mut log_blocks, mut meta_blocks) = (0, 0);
    for &block in &blocks {
        let at = (block * 4096) as usize;
        let mut bytes = whole[at..at + 4096].to_vec();
        match block % 3 {
            0 => bytes[rng.below(4096) as usize] ^= 1 << rng.below(8),
            1 => bytes[rng.below(8) as usize * 512..][..512].fill(0xe7),
            _ => bytes.fill(0),
        }
        if bytes == whole[at..at + 4096] {
            continue;
        }
        sim.poke(NODE, PATH, at as u64, &bytes).unwrap();
        let damaged = sim.peek(NODE, PATH, 0, SIZE).unwrap();
        let env = sim.node(NODE);
        let report = sim.block_on(fsck(&env, PATH)).unwrap().unwrap();
        assert!(report.problems.is_empty() && report.items == model, "block {block}: {:?}", report.problems);
        assert_eq!(report.notes.len(), 1, "block {block}: {:?}", report.notes);
        assert!(sim.peek(NODE, PATH, 0, SIZE).unwrap() == damaged, "the check has written");
        let (zone, found) = open(&sim, &manual()).unwrap_or_else(|e| panic!("block {block}: {e}"));
        assert!(found.items == model && found.notes == report.notes, "block {block}: {:?}", found.notes);
        let in_log = block < g.meta_offset / 4096;
        let place = if block < 2 {
            "superblock copy"
        } else if in_log {
            "log group"
        } else {
            "segment"
        };
        assert!(found.notes[0].contains(place), "{:?}", found.notes);
        let is_last = found.notes[0].contains("torn");
        assert!(found.rebuilt == u64::from(!is_last) && zone.stats().rebuilt_blocks == found.rebuilt);
        assert!(sim.peek(NODE, PATH, 0, SIZE).unwrap() == whole, "block {block} is restored");
        *(if in_log { &mut log_blocks } else { &mut meta_blocks }) += 1;
        drop(zone);
        sim.crash(NODE, amphi_env::sim::CrashKind::Process);
        sim.node(NODE);
    }
    assert!(log_blocks >= 50 && meta_blocks > 50, "{log_blocks} log and {meta_blocks} segment blocks");
}

/// Goal: what cannot be rebuilt is reported with its place, and nothing is written. Method: two blocks of one structure
/// are damaged: of a group that the root says to be stable, of a page, both superblocks.
#[test]
fn two_damaged_blocks_are_reported() {
    let (sim, model) = zone_with_everything();
    let whole = sim.peek(NODE, PATH, 0, SIZE).unwrap();
    let (g, blocks) = used_blocks(&whole);
    let meta = g.meta_offset / 4096;
    let mut rng = Lcg(4);
    let mut count = 0;
    for pair in blocks.chunks_exact(2) {
        // Groups are three blocks and their parity, and pages begin at multiples of 16 blocks.
        let (at, place) = match pair[0] {
            0 => (pair[0], "superblock"),
            n if n < meta => (pair[0], "log group"),
            _ => (pair[0] & !1, "segment"),
        };
        if blocks.binary_search(&(at + 1)).is_err() {
            continue;
        }
        for block in [at, at + 1] {
            let at = block * 4096 + rng.below(4096);
            sim.poke(NODE, PATH, at, &[whole[at as usize] ^ 1 << rng.below(8)]).unwrap();
        }
        let damaged = sim.peek(NODE, PATH, 0, SIZE).unwrap();
        let env = sim.node(NODE);
        let report = sim.block_on(fsck(&env, PATH)).unwrap().unwrap();
        let e = open(&sim, &manual()).err().unwrap_or_else(|| panic!("block {at} was accepted"));
        assert!(matches!(e.kind, ZoneErrorKind::Corrupt | ZoneErrorKind::NotAZone), "{e}");
        assert!(e.place.contains(place), "{e}");
        assert!(report.problems == [e], "{report:?}");
        assert!(sim.peek(NODE, PATH, 0, SIZE).unwrap() == damaged, "something was written");
        sim.poke(NODE, PATH, at * 4096, &whole[(at * 4096) as usize..][..8192]).unwrap();
        count += 1;
    }
    assert!(count > 30, "{count}");
    assert!(open(&sim, &manual()).unwrap().1.items == model);
}

/// Goal: a block that cannot be read is rebuilt as one that is damaged; two are an error. Method: reads of the blocks
/// of a page and of a group fail, one block after the other.
#[test]
fn unreadable_blocks_are_rebuilt() {
    let (sim, model) = zone_with_everything();
    let whole = sim.peek(NODE, PATH, 0, SIZE).unwrap();
    let (g, blocks) = used_blocks(&whole);
    let meta = blocks.partition_point(|&b| b < g.meta_offset / 4096);
    for (first, count) in [(blocks[2], 1), (blocks[7], 1), (blocks[meta], 1), (blocks[meta + 5], 1), (blocks[4], 2)] {
        let bad = first * 4096..(first + count) * 4096;
        sim.on_disk_op(NODE, move |op| {
            let hit = op.kind == DiskOpKind::Read && op.at < bad.end && bad.start < op.at + op.len;
            hit.then_some(std::io::ErrorKind::Other)
        });
        let opened = open(&sim, &manual());
        if count == 1 {
            let (zone, found) = opened.unwrap();
            assert!(found.items == model && found.rebuilt == 1, "block {first}: {:?}", found.notes);
            sim.block_on(zone.close()).unwrap().unwrap();
        } else {
            assert_eq!(opened.err().unwrap().kind, ZoneErrorKind::Io);
        }
        sim.on_disk_op(NODE, |_| None);
    }
}

/// Goal: a group in the middle of a log that was not closed is reported too, because a later group proves that it
/// was stable. Method: damage before and after the last sync of a zone that was killed.
#[test]
fn damage_before_a_synced_group_is_reported() {
    for (damaged, reported) in [(2u64, true), (5, true), (8, false)] {
        let sim = sim(12);
        format(&sim, &params());
        let (zone, _) = open(&sim, &manual()).unwrap();
        for i in 0..10u64 {
            let lsn = plain(&zone, txn(&format!("I{i}"), &i.to_le_bytes()));
            sim.block_on(zone.written(lsn)).unwrap().unwrap();
            if i == 6 {
                sim.block_on(zone.sync()).unwrap().unwrap();
            }
        }
        drop(zone);
        sim.crash(NODE, amphi_env::sim::CrashKind::Process);
        // A group is one block and its parity.
        for block in [damaged * 2, damaged * 2 + 1] {
            sim.poke(NODE, PATH, LOG_OFFSET + block * 4096 + 70, &[0xFF, 0xEE]).unwrap();
        }
        match open(&sim, &manual()) {
            Ok((_, found)) => {
                assert!(!reported);
                assert_eq!(found.items.len() as u64, damaged, "cut at the damage");
                assert!(found.notes[0].contains("were cut"), "{:?}", found.notes);
            }
            Err(e) => assert!(reported && e.place.contains(&format!("log group {}", damaged + 1)), "{e}"),
        }
    }
}

/// Goal: both superblocks damaged, foreign, of another version, empty, or cut storage are distinguished and change
/// nothing. Method: each written over a good zone.
#[test]
fn superblocks_are_judged() {
    let (sim, _) = zone_with_everything();
    let whole = sim.peek(NODE, PATH, 0, 8192).unwrap();
    let mut other = Superblock::decode(&whole[..4096], "copy 0").unwrap();
    other.version = (VERSION + 1).into();
    other.seal();
    let newer = other.as_bytes().to_vec();
    let mut torn = whole[..4096].to_vec();
    torn[100] ^= 1;
    let cases: [(&[u8], &[u8], ZoneErrorKind); 5] = [
        // The log says that it was in use.
        (&[0; 4096], &[0; 4096], ZoneErrorKind::Corrupt),
        (&torn, &torn, ZoneErrorKind::Corrupt),
        (&[b'x'; 4096], &[b'y'; 4096], ZoneErrorKind::NotAZone),
        (&newer, &newer, ZoneErrorKind::Version),
        (&newer, &whole[..4096], ZoneErrorKind::Version),
    ];
    for (a, b, kind) in cases {
        let both = [a, b].concat();
        sim.poke(NODE, PATH, 0, &both).unwrap();
        let e = open(&sim, &manual()).err().unwrap();
        assert_eq!(e.kind, kind, "{e}");
        assert!(e.to_string().starts_with(PATH), "{e}");
        assert!(sim.peek(NODE, PATH, 0, 8192).unwrap() == both);
    }
    // An interrupted format can be repeated, but never over a zone.
    sim.poke(NODE, PATH, 0, &[0; 8192]).unwrap();
    let env = sim.node(NODE);
    let e = sim.block_on(Zone::<SimEnv>::format(&env, PATH, &params())).unwrap().unwrap_err();
    assert_eq!(e.kind, ZoneErrorKind::Exists, "{e}");
    sim.poke(NODE, PATH, LOG_OFFSET, &[0; 4096]).unwrap();
    assert_eq!(open(&sim, &manual()).err().unwrap().kind, ZoneErrorKind::Unfinished);
    format(&sim, &params());
    assert!(open(&sim, &manual()).unwrap().1.items.is_empty());
}

/// Goal: zones of versions 2 to 5 open, are of the present version from then on, and everything that is written anew
/// has parity and an index. Method: zones whose groups and pages were written without these, or with parity, with the
/// version in both superblocks changed; they differ in nothing else. Each item is read, by the index that is not on the
/// disk. The log is replayed, then merged with the old pages.
#[test]
fn older_versions_are_taken_over() {
    for version in [2, 3, 4, 5] {
        plant(Some(if version < VERSION_PARITY { Mistake::Version3 } else { Mistake::Version5 }));
        let (sim, mut model) = zone_with_everything();
        plant(None);
        let whole = sim.peek(NODE, PATH, 0, SIZE).unwrap();
        let mut old = Superblock::decode(&whole[..4096], "copy 0").unwrap();
        assert_eq!((old.kept.get(), old.boot.get()), (0, 0), "it is closed");
        old.version = version.into();
        old.seal();
        sim.poke(NODE, PATH, 0, &[old.as_bytes(), old.as_bytes()].concat()).unwrap();
        if version < VERSION_PARITY {
            // A page of an old segment is damaged: nothing can rebuild it.
            let page = old.geometry().slot_offset(old.segments()[0].first_slot.get()) + 100;
            sim.poke(NODE, PATH, page, &[!whole[page as usize]]).unwrap();
            assert_eq!(open(&sim, &manual()).err().unwrap().kind, ZoneErrorKind::Corrupt);
            sim.poke(NODE, PATH, page, &whole[page as usize..][..1]).unwrap();
        }
        let (zone, found) = open(&sim, &manual()).unwrap();
        assert!(found.items == model && !found.lost && found.rebuilt == 0);
        for copy in 0..2 {
            let now = Superblock::decode(&sim.peek(NODE, PATH, copy * 4096, 4096).unwrap(), "copy").unwrap();
            assert_eq!(now.version.get(), VERSION);
        }
        assert!(zone.state().medium.segments.iter().all(|segment| segment.index_bytes == 0));
        compare_reads(&sim, &zone, &model);
        for i in 0..40 {
            let t = txn(&format!("I2-{i}"), &vec![i as u8; 3000]);
            apply(&mut model, &t);
            plain(&zone, t);
        }
        sim.block_on(zone.checkpoint()).unwrap().unwrap();
        assert!(zone.state().medium.segments.iter().any(|segment| segment.index_bytes > 0));
        compare_reads(&sim, &zone, &model);
        let t = txn("I9", b"behind");
        apply(&mut model, &t);
        plain(&zone, t);
        sim.block_on(zone.close()).unwrap().unwrap();
        drop(zone);
        assert!(open(&sim, &manual()).unwrap().1.items == model);
    }
}

/// Goal: a page that was damaged while the zone was open is rebuilt by the checkpoint that merges it, and counted.
/// Method: a block of each page is changed under an open zone.
#[test]
fn a_merge_rebuilds_what_it_reads() {
    let (sim, mut model) = zone_with_everything();
    let (zone, _) = open(&sim, &manual()).unwrap();
    let slots: Vec<u32> = zone.state().medium.segments.iter().flat_map(|s| s.slots.clone()).collect();
    for &slot in &slots {
        let at = zone.shared().geometry.slot_offset(slot) + 4096;
        sim.poke(NODE, PATH, at, &[0x99; 512]).unwrap();
    }
    // The changes are as large as the segments that the merge reads.
    for i in 0..80 {
        let t = txn(&format!("I5-{i}"), &vec![i as u8; 6000]);
        apply(&mut model, &t);
        plain(&zone, t);
    }
    sim.block_on(zone.checkpoint()).unwrap().unwrap();
    assert_eq!(zone.shared_segments(), 1);
    assert_eq!(zone.stats().rebuilt_blocks, slots.len() as u64);
    sim.block_on(zone.close()).unwrap().unwrap();
    drop(zone);
    let found = open(&sim, &manual()).unwrap().1;
    assert!(found.items == model && found.rebuilt == 0);
}

/// Goal: in a zone of version 4, whose log may be far ahead of its last sync, a proof is found wherever it is in the
/// ring, while a zone of the present version is read no further than a proof can be. Method: a writer that does not
/// keep the bound; a group that was synced late is destroyed, and the mark of the next sync is at the end of the ring.
#[test]
fn proof_of_an_older_version_is_found_anywhere() {
    for (version, is_found) in [(4, true), (VERSION, false)] {
        let sim = sim(14);
        format(&sim, &params());
        let (zone, _) = open(&sim, &manual()).unwrap();
        plant(Some(Mistake::SyncsLate));
        let append = |i: u8| {
            let lsn = plain(&zone, txn(&format!("I{i}"), &[i; 100_000]));
            sim.block_on(zone.written(lsn)).unwrap().unwrap();
        };
        (0..8).for_each(append);
        sim.block_on(zone.sync()).unwrap().unwrap();
        append(8);
        plant(None);
        drop(zone);
        sim.crash(NODE, amphi_env::sim::CrashKind::Process);
        sim.node(NODE);
        let mut root = Superblock::decode(&sim.peek(NODE, PATH, 0, 4096).unwrap(), "copy 0").unwrap();
        root.version = version.into();
        root.seal();
        sim.poke(NODE, PATH, 0, &[root.as_bytes(), root.as_bytes()].concat()).unwrap();
        [1, 2].iter().for_each(|block| sim.poke(NODE, PATH, LOG_OFFSET + block * 4096, &[0xee; 4096]).unwrap());
        match open(&sim, &manual()) {
            Ok((_, found)) => assert!(!is_found && found.items.is_empty()),
            Err(e) => assert!(is_found && e.place.contains("log group 1"), "{e}"),
        }
    }
}

/// Goal: the layout of version 6 does not change unnoticed. Method: the checksum of a superblock with fixed
/// fields, and offsets of the regions.
#[test]
fn version_6_is_what_it_was() {
    let g = Geometry::of(&params()).unwrap();
    assert_eq!((g.meta_offset, g.meta_slots, g.data_offset, g.data_blocks), (2 << 20, 64, 6 << 20, 512));
    let mut s = Superblock::first(&g, 0x0123_4567_89ab_cdef, &params());
    s.segments[0].id = 9.into();
    s.segment_count = 1.into();
    s.stable_seq = 5.into();
    s.boot = 7.into();
    s.kept = 8.into();
    s.indexes[0].slot = 10.into();
    s.indexes[0].bytes = 11.into();
    s.seal();
    assert_eq!(s.crc.get(), FIXTURE_CRC, "{:#010x}", s.crc.get());
    let default = Geometry::of(&ZoneParams { size_bytes: 20 << 30, log_bytes: 0, ..params() }).unwrap();
    assert_eq!(default.log_blocks * 4096, 64 << 20);
    assert_eq!(default.meta_slots * SLOT_BYTES, (20 << 30) / 8);
}

/// Checksum of the superblock above in format version 6.
const FIXTURE_CRC: u32 = 0x0fb3_f843;
