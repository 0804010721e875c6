//! Damage to a zone at rest: every block of every structure.

use super::*;
use crate::layout::{Geometry, LOG_OFFSET, SLOT_BYTES, Superblock, VERSION};
use crate::{ZoneErrorKind, fsck};
use zerocopy::IntoBytes;

const SIZE: usize = 8 << 20;

/// A zone with two segments and some log, closed. Without memory that outlives its process, whose name each opening
/// writes to the superblocks.
fn zone_with_everything() -> (Sim, BTreeMap<Key, Vec<u8>>) {
    let sim = Sim::new(11, SimConfig { keeps: false, ..SimConfig::default() });
    format(&sim, &params());
    let (zone, _) = open(&sim, &manual()).unwrap();
    let mut model = BTreeMap::new();
    for (round, count, size) in [(0, 90, 2500), (1, 30, 500), (2, 25, 900)] {
        for i in 0..count {
            let t = txn(&format!("I{round}-{i}"), &vec![i as u8; size]);
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
        self.state().segments.len()
    }
}

/// Goal: damage in any block that counts is reported with its place, and nothing is written; one damaged superblock
/// copy is survived and restored. Method: one byte of each block of superblocks, log and segments flipped in turn, of a
/// zone that was closed and opened again in the same life of the machine, so that opening it changes nothing.
#[test]
fn every_damaged_block_is_reported() {
    let (sim, model) = zone_with_everything();
    drop(open(&sim, &manual()).unwrap());
    sim.crash(NODE, amphi_env::sim::CrashKind::Process);
    sim.node(NODE);
    let whole = sim.peek(NODE, PATH, 0, SIZE).unwrap();
    let root = Superblock::decode(&whole[..4096], "copy 0").unwrap();
    let g = Geometry::of(&params()).unwrap();
    let used = |block: u64| {
        let at = (block * 4096) as usize;
        whole[at..at + 4096].iter().any(|&b| b != 0)
    };
    let start = root.start_position.get() % g.log_blocks;
    let log_first = LOG_OFFSET / 4096 + start;
    let log = (log_first..LOG_OFFSET / 4096 + g.log_blocks).take_while(|&b| used(b));
    let meta = (g.meta_offset / 4096..(g.meta_offset + g.meta_slots * SLOT_BYTES) / 4096).filter(|&b| used(b));
    let mut rng = Lcg(3);
    let (mut log_blocks, mut meta_blocks) = (0, 0);
    for block in [0, 1].into_iter().chain(log).chain(meta) {
        let at = block * 4096 + rng.below(4096);
        sim.poke(NODE, PATH, at, &[whole[at as usize] ^ 1 << rng.below(8)]).unwrap();
        let damaged = sim.peek(NODE, PATH, 0, SIZE).unwrap();
        let env = sim.node(NODE);
        let report = sim.block_on(fsck(&env, PATH)).unwrap().unwrap();
        if block < 2 {
            assert!(report.notes[0].contains("superblock copy"), "{report:?}");
            let (zone, found) = open(&sim, &manual()).unwrap();
            assert!(found.items == model);
            assert!(sim.peek(NODE, PATH, 0, SIZE).unwrap() == whole, "restored");
            drop(zone);
            sim.crash(NODE, amphi_env::sim::CrashKind::Process);
            sim.node(NODE);
        } else {
            let e = open(&sim, &manual()).err().unwrap_or_else(|| panic!("block {block} was accepted"));
            assert_eq!(e.kind, ZoneErrorKind::Corrupt, "{e}");
            let in_log = block < g.meta_offset / 4096;
            assert!(e.place.contains(if in_log { "log group" } else { "segment" }), "{e}");
            assert!(report.problems == [e], "{report:?}");
            assert!(sim.peek(NODE, PATH, 0, SIZE).unwrap() == damaged, "something was written");
            *(if in_log { &mut log_blocks } else { &mut meta_blocks }) += 1;
        }
        sim.poke(NODE, PATH, at, &whole[at as usize..at as usize + 1]).unwrap();
    }
    assert!(log_blocks >= 25 && meta_blocks > 50, "{log_blocks} log and {meta_blocks} segment blocks");
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
        sim.poke(NODE, PATH, LOG_OFFSET + damaged * 4096 + 70, &[0xFF, 0xEE]).unwrap();
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

/// Goal: both superblocks damaged, foreign, of another version, empty, or cut storage are told apart and change
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

/// Goal: a zone of version 2 opens, and is one of the present version from then on. Method: the version in both
/// superblocks of a closed zone is changed; it differs in nothing else.
#[test]
fn version_2_is_taken_over() {
    let (sim, model) = zone_with_everything();
    let whole = sim.peek(NODE, PATH, 0, 4096).unwrap();
    let mut old = Superblock::decode(&whole, "copy 0").unwrap();
    assert_eq!((old.kept.get(), old.boot.get()), (0, 0), "it is closed");
    old.version = 2.into();
    old.seal();
    sim.poke(NODE, PATH, 0, &[old.as_bytes(), old.as_bytes()].concat()).unwrap();
    let (zone, found) = open(&sim, &manual()).unwrap();
    assert!(found.items == model && !found.lost);
    for copy in 0..2 {
        let now = Superblock::decode(&sim.peek(NODE, PATH, copy * 4096, 4096).unwrap(), "copy").unwrap();
        assert_eq!(now.version.get(), VERSION);
    }
    drop(zone);
}

/// Goal: the layout of version 3 does not change unnoticed. Method: the checksum of a superblock with fixed
/// fields, and offsets of the regions.
#[test]
fn version_3_is_what_it_was() {
    let g = Geometry::of(&params()).unwrap();
    assert_eq!((g.meta_offset, g.meta_slots, g.data_offset, g.data_blocks), (2 << 20, 64, 6 << 20, 512));
    let mut s = Superblock::first(&g, 0x0123_4567_89ab_cdef, &params());
    s.segments[0].id = 9.into();
    s.segment_count = 1.into();
    s.stable_seq = 5.into();
    s.boot = 7.into();
    s.kept = 8.into();
    s.seal();
    assert_eq!(s.crc.get(), FIXTURE_CRC, "{:#010x}", s.crc.get());
    let default = Geometry::of(&ZoneParams { size_bytes: 20 << 30, log_bytes: 0, ..params() }).unwrap();
    assert_eq!(default.log_blocks * 4096, 64 << 20);
    assert_eq!(default.meta_slots * SLOT_BYTES, (20 << 30) / 8);
}

/// Checksum of the superblock above in format version 3.
const FIXTURE_CRC: u32 = 0x6a99_5c59;
