//! The compact records: every inode is decoded unchanged, and memory is proportional to the records.

use super::harness::Rng;
use crate::inode::{DirState, InodeFlags, InodeOwner, InodeTimes, ObjectsState};
use crate::inodes::Inodes;
use crate::{Inode, Pending};
use amphi_types::layout::Pattern;
use amphi_types::{Advice, Ino, Kind, Layout, Timespec, limits};
use std::collections::BTreeMap;

const KINDS: [Kind; 7] =
    [Kind::File, Kind::Dir, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::CharDev, Kind::BlockDev];
const PATTERNS: [Pattern; 6] = [
    Pattern::GrowingNear,
    Pattern::StripedNear,
    Pattern::Whole,
    Pattern::GrowingLate,
    Pattern::Striped,
    Pattern::Growing,
];

/// A file as a program makes it in directory 7 of target 3.
fn plain(now: Timespec) -> Inode {
    Inode {
        kind: Kind::File,
        perm: 0o644,
        nlink: 1,
        owner: InodeOwner { uid: 1000, gid: 100, project: 0 },
        rdev: 0,
        size: 0,
        blocks: 0,
        times: InodeTimes::of(now),
        layout: Layout::growing(16),
        advice: Advice::default(),
        objects: ObjectsState::default(),
        flags: InodeFlags::default(),
        pending: Pending::default(),
        dir: DirState { parent: Ino((3 << 48) | 7), entries: 0 },
        symlink: Box::default(),
    }
}

/// A number near 0, near a power of two, near the largest, or anywhere.
fn number(rng: &mut Rng) -> u64 {
    match rng.below(5) {
        0 => rng.below(3) as u64,
        1 => (1u64 << rng.below(64)).wrapping_sub(rng.below(2) as u64),
        2 => u64::MAX - rng.below(2) as u64,
        3 => rng.below(100_000) as u64,
        _ => rng.next(),
    }
}

fn any_time(rng: &mut Rng, near: Timespec) -> Timespec {
    match rng.below(4) {
        0 => near,
        1 => Timespec { sec: near.sec.wrapping_add(rng.below(5) as i64 - 2), nsec: rng.below(1_000_000_000) as u32 },
        2 => rng.pick(&[
            Timespec::default(),
            Timespec { sec: i64::MIN, nsec: u32::MAX },
            Timespec { sec: i64::MAX, nsec: u32::MAX },
            Timespec { sec: i64::MIN, nsec: 0 },
        ]),
        _ => Timespec { sec: number(rng) as i64, nsec: number(rng) as u32 },
    }
}

/// Changes one field of an inode to anything.
fn change(rng: &mut Rng, inode: &mut Inode) {
    let near = inode.times.btime;
    match rng.below(20) {
        0 => inode.kind = rng.pick(&KINDS),
        1 => inode.perm = number(rng) as u16,
        2 => inode.nlink = number(rng) as u32,
        3 => inode.owner = InodeOwner { uid: number(rng) as u32, gid: number(rng) as u32, project: number(rng) as u32 },
        4 => inode.rdev = number(rng) as u32,
        5 => inode.size = number(rng),
        6 => inode.blocks = number(rng),
        7 => inode.times.atime = any_time(rng, near),
        8 => inode.times.mtime = any_time(rng, near),
        9 => inode.times.ctime = any_time(rng, near),
        10 => inode.times.btime = any_time(rng, near),
        11 => inode.times.mtime_set_ctime = any_time(rng, near),
        12 => inode.times = InodeTimes::of(any_time(rng, near)),
        13 => {
            inode.layout = Layout {
                pattern: rng.pick(&PATTERNS),
                stripe_size: number(rng) as u32,
                stripe_count: number(rng) as u16,
                pool: number(rng) as u16,
            }
        }
        14 => inode.advice = Advice::try_from(rng.below(27) as u8).expect("there are 27"),
        15 => {
            let (spread, wide) = (rng.below(2) == 0, rng.below(2) == 0);
            inode.objects = ObjectsState { generation: number(rng), spread, wide };
        }
        16 => inode.flags = InodeFlags::from_bits(number(rng) as u8),
        17 => inode.pending = Pending { trim: rng.below(2) == 0, destroy: rng.below(2) == 0 },
        18 => inode.dir = DirState { parent: Ino(number(rng)), entries: number(rng) },
        _ => {
            let len = rng.pick(&[0, 1, 20, 59, 60, 61, 255, limits::SYMLINK_MAX]);
            inode.symlink = (0..len).map(|_| rng.next() as u8).collect();
        }
    }
}

fn check(inodes: &Inodes, model: &BTreeMap<u64, Inode>) {
    assert_eq!(inodes.len(), model.len());
    assert!(inodes.iter(0).eq(model.iter().map(|(local, inode)| (*local, inode.clone()))));
}

/// Goal: `Inodes` is a map, whatever the fields of inodes are, and its form does not show. Method: inserts, changes and
/// removals at random beside a `BTreeMap`, with numbers that are dense, at the ends of blocks, far apart, and largest;
/// at the end everything is removed.
#[test]
fn inodes_are_a_map() {
    for seed in 0..20 {
        let mut rng = Rng(seed);
        let (mut inodes, mut model) = (Inodes::default(), BTreeMap::new());
        for step in 0..3000u64 {
            let local = match rng.below(4) {
                0 => rng.below(300) as u64,
                1 => 64 * rng.below(4) as u64 + rng.pick(&[0, 63]),
                2 => Ino::MAX_LOCAL - rng.below(70) as u64,
                _ => rng.next() & Ino::MAX_LOCAL,
            };
            match rng.below(8) {
                0..3 => {
                    let mut inode = plain(Timespec { sec: 1_700_000_000, nsec: step as u32 });
                    (0..rng.below(6)).for_each(|_| change(&mut rng, &mut inode));
                    inodes.insert(local, &inode);
                    model.insert(local, inode);
                }
                3..6 => {
                    // The same change of both.
                    let seed = rng.next();
                    let changed = inodes.edit(local, |inode| change(&mut Rng(seed), inode));
                    assert_eq!(changed, model.contains_key(&local));
                    if let Some(inode) = model.get_mut(&local) {
                        change(&mut Rng(seed), inode);
                    }
                }
                6 => {
                    inodes.remove(local);
                    model.remove(&local);
                }
                _ => {
                    let from = model.range(local..).map(|(local, inode)| (*local, inode.clone()));
                    assert!(inodes.iter(local).take(70).eq(from.take(70)));
                    assert!(inodes.numbers(local).take(70).eq(model.range(local..).map(|(local, _)| *local).take(70)));
                }
            }
            assert_eq!(inodes.get(local).as_ref(), model.get(&local), "seed {seed}, step {step}");
            assert_eq!(inodes.contains(local), model.contains_key(&local));
            let brief = inodes.brief(local).map(|b| (b.kind, b.nlink, b.entries, b.flags, b.pending));
            assert_eq!(brief, model.get(&local).map(|i| (i.kind, i.nlink, i.dir.entries, i.flags, i.pending)));
        }
        check(&inodes, &model);
        let mut again = Inodes::default();
        model.iter().rev().for_each(|(local, inode)| again.insert(*local, inode));
        assert_eq!(inodes, again, "the way in which inodes came does not matter");
        assert_eq!(format!("{inodes:?}"), format!("{model:?}"));
        for local in model.keys().copied().collect::<Vec<_>>() {
            inodes.remove(local);
            model.remove(&local);
        }
        check(&inodes, &model);
        assert_eq!(inodes.bytes(), 0, "empty blocks and targets are given back");
    }
}

/// Goal: an inode with the longest numbers in all fields has a record. Method: all of them at once, and their opposites
/// in the same block, so that all differences are largest.
#[test]
fn the_longest_records_fit() {
    let longest = |sec: i64, nsec: u32, number: u64| {
        let mut inode = plain(Timespec { sec, nsec });
        inode.kind = Kind::BlockDev;
        (inode.perm, inode.nlink, inode.rdev) = (number as u16, number as u32, number as u32);
        (inode.size, inode.blocks) = (number, number);
        let other = |sec: i64, less: u32| Timespec { sec: !sec, nsec: !nsec - less.min(!nsec) };
        inode.times.mtime = other(sec, 1);
        inode.times.ctime = other(sec, 2);
        inode.times.atime = other(sec, 3);
        inode.times.mtime_set_ctime = other(sec, 4);
        inode.owner = InodeOwner { uid: number as u32, gid: number as u32, project: number as u32 };
        inode.layout =
            Layout { pattern: Pattern::Striped, stripe_size: number as u32, stripe_count: number as u16, pool: 1 };
        inode.objects = ObjectsState { generation: number, spread: true, wide: true };
        inode.flags = InodeFlags::from_bits(u8::MAX);
        inode.pending = Pending { trim: true, destroy: true };
        inode.dir = DirState { parent: Ino(number), entries: number };
        inode.symlink = vec![b'x'; 60].into();
        inode
    };
    let mut inodes = Inodes::default();
    inodes.insert(64, &longest(i64::MAX, u32::MAX, 0));
    for local in 65..128 {
        inodes.insert(local, &longest(i64::MIN, local as u32 % 2, u64::MAX));
        assert_eq!(inodes.get(local), Some(longest(i64::MIN, local as u32 % 2, u64::MAX)));
    }
    assert_eq!(inodes.get(64), Some(longest(i64::MAX, u32::MAX, 0)));
}

/// Goal: memory is within its bound, and shrinking records release memory. Method: files as a program makes them, then
/// written, truncated again, and all but one of each block removed.
#[test]
fn memory_follows_the_records() {
    const FILES: u64 = 64 * 100;
    let mut inodes = Inodes::default();
    let per_file = |inodes: &Inodes, files: u64| inodes.bytes() as f64 / files as f64;
    for local in 0..FILES {
        inodes.insert(local, &plain(Timespec::from_ns(1_700_000_000_000_000_000 + local * 40_000)));
    }
    let empty = per_file(&inodes, FILES);
    assert!(empty < 12.0, "{empty} bytes an empty file");
    for local in 0..FILES {
        inodes.edit(local, |inode| {
            (inode.size, inode.blocks) = (3901, 8);
            inode.times.mtime.nsec += 1_000_000;
            inode.times.ctime = inode.times.mtime;
        });
    }
    let written = per_file(&inodes, FILES);
    assert!(written < 16.0, "{written} bytes a written file");
    for local in 0..FILES {
        inodes.edit(local, |inode| *inode = plain(inode.times.btime));
    }
    let cut = per_file(&inodes, FILES);
    assert!(cut < 1.25 * empty + 1.0, "{cut} bytes a file that is empty again, {empty} at first");
    for local in (0..FILES).filter(|local| local % 64 != 17) {
        inodes.remove(local);
    }
    let alone = per_file(&inodes, FILES / 64);
    println!("bytes: empty {empty:.1}, written {written:.1}, cut {cut:.1}, alone {alone:.1}");
    assert!(alone < 250.0, "{alone} bytes an inode that is alone in its block");
}

/// Goal: the owner of an inode that is not in memory is known as long as its block has one. Method: a block of one
/// owner, and a block of two, of which the inodes of one come back.
#[test]
fn owners_of_inodes_that_are_away() {
    let of = |uid| Inode { owner: InodeOwner { uid, gid: 100, project: 3 }, ..plain(Timespec::default()) };
    let mut inodes = Inodes::default();
    inodes.set_bytes_max(0);
    (64..128).for_each(|local| inodes.insert(local, &of(5)));
    (128..192).for_each(|local| inodes.insert(local, &of(5 + (local % 2) as u32)));
    assert_eq!(inodes.owner_away(64), None, "it is in memory");
    while inodes.let_go(|_| false) {}
    assert_eq!(inodes.away_count(), 128);
    assert_eq!((inodes.owner_away(64), inodes.owner_away(128)), (Some(of(5).charged()), None));
    (129..192).step_by(2).for_each(|local| assert!(inodes.restore(local, &of(6))));
    assert_eq!(inodes.owner_away(128), Some(of(5).charged()));
}
