//! Sizes that `fstat` has returned: mappings, `sendfile`, `splice` and `copy_file_range` reach as far, also where
//! several programs call at the same time.

use crate::harness::Place;
use crate::two_mounts::Pair;
use rustix::fs::{FileType, Mode, OFlags, copy_file_range, fstat, ftruncate, open, sendfile, unlink};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::pipe::{SpliceFlags, pipe, splice};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const PAGE: usize = 4096;
/// The size that the programs set.
const SIZE: u64 = 1 << 20;
/// Files that are set so.
const FILES: usize = 100;
/// Files that grow under the eyes of followers.
const LOGS: usize = 12;
/// Records of each.
const RECORDS: u64 = 60;
/// Bytes of a record.
const RECORD: u64 = 512;

fn size(file: &OwnedFd) -> u64 {
    let stat = fstat(file).expect("fstat");
    assert_eq!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile);
    stat.st_size as u64
}

/// Returns whether the last page below `size` can be touched through a mapping.
fn is_mapped(file: &OwnedFd, size: u64) -> bool {
    let at = (size as usize - 1) / PAGE * PAGE;
    // SAFETY: a fresh mapping that nobody uses but the call which touches it for us, unmapped below.
    unsafe {
        let map = mmap(std::ptr::null_mut(), PAGE, ProtFlags::READ, MapFlags::SHARED, file, at as u64).expect("map");
        let touched = madvise(map, PAGE, Advice::LinuxPopulateRead);
        munmap(map, PAGE).expect("unmap");
        touched.is_ok()
    }
}

/// Programs on these mounts set the size of new files, request it, map them and touch the last byte, all at once.
/// Returns how many could not.
fn set_and_mapped(mounts: &[&Path]) -> usize {
    let (barrier, missed) = (Barrier::new(mounts.len()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for (n, mount) in mounts.iter().enumerate() {
            let (barrier, missed) = (&barrier, &missed);
            scope.spawn(move || {
                for round in 0..FILES {
                    let path = mount.join(format!("f{round}"));
                    barrier.wait();
                    let mode = Mode::from_raw_mode(0o644);
                    let file = open(&path, OFlags::RDWR | OFlags::CREATE, mode).expect("open");
                    if size(&file) < SIZE {
                        ftruncate(&file, SIZE).expect("set the size");
                    }
                    assert_eq!(size(&file), SIZE);
                    missed.fetch_add(usize::from(!is_mapped(&file, SIZE)), SeqCst);
                    barrier.wait();
                    if n == 0 {
                        unlink(&path).expect("unlink");
                    }
                }
            });
        }
    });
    missed.into_inner()
}

/// The way by which a follower reads the bytes of a file.
#[derive(Clone, Copy, Debug)]
enum Way {
    SendFile,
    Splice,
    Copy,
    Map,
}

/// Takes `size` bytes of a file, and returns how many there were.
fn take(way: Way, file: &OwnedFd, size: u64, into: &File) -> u64 {
    let (from_pipe, to_pipe) = pipe().expect("pipe");
    let len = size as usize;
    let taken = match way {
        Way::SendFile => sendfile(&to_pipe, file, Some(&mut 0), len).expect("sendfile"),
        Way::Splice => splice(file, Some(&mut 0), &to_pipe, None, len, SpliceFlags::empty()).expect("splice"),
        Way::Copy => copy_file_range(file, Some(&mut 0), into, Some(&mut 0), len).expect("copy_file_range"),
        Way::Map if is_mapped(file, size) => len,
        Way::Map => 0,
    };
    drop(from_pipe);
    taken as u64
}

/// A program on `writer` makes files longer; followers on `reader` request the size and take as much. Returns how often
/// there was less.
fn grown_and_followed(writer: &Path, reader: &Path) -> usize {
    let ways = [Way::SendFile, Way::SendFile, Way::Splice, Way::Copy, Way::Map];
    let (barrier, missed) = (Barrier::new(ways.len() + 1), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for (n, way) in ways.into_iter().enumerate() {
            let (barrier, missed) = (&barrier, &missed);
            let into = File::create(reader.join(format!("into{n}"))).expect("create");
            scope.spawn(move || {
                for log in 0..LOGS {
                    barrier.wait();
                    let file = open(reader.join(format!("log{log}")), OFlags::RDONLY, Mode::empty()).expect("open");
                    loop {
                        let said = size(&file);
                        if said > 0 {
                            missed.fetch_add(usize::from(take(way, &file, said, &into) < said), SeqCst);
                        }
                        if said == RECORDS * RECORD {
                            break;
                        }
                    }
                }
            });
        }
        for log in 0..LOGS {
            let path = writer.join(format!("log{log}"));
            let mut file = File::options().create(true).append(true).open(path).expect("open");
            barrier.wait();
            for _ in 0..RECORDS {
                file.write_all(&[b'x'; RECORD as usize]).expect("append");
            }
        }
    });
    missed.into_inner()
}

/// Goal: Promise S1: a size that `fstat` has returned holds for mappings and other calls that use the kernel's size,
/// also when several programs set and read the size at the same time. Method: threads of one mount, on many files, that
/// touch the last byte through a mapping; one that appends records beside five that read up to the size that they are
/// given.
#[test]
fn a_size_that_was_said_is_there() {
    let place = Place::new();
    let up = place.up(&[]);
    let mount = place.mount();
    assert_eq!(set_and_mapped(&[mount.as_path(); 8]), 0, "mappings that ended before the size that fstat said");
    assert_eq!(grown_and_followed(&mount, &mount), 0, "shorter than fstat said");
    up.stop();
    place.fsck();
}

/// The same as `a_size_that_was_said_is_there`, across mounts.
fn a_size_that_another_mount_set_is_there(servers: usize) {
    let pair = Pair::new(servers, &[], &[]);
    let mounts = [pair.a.as_path(), &pair.b, &pair.a, &pair.b];
    assert_eq!(set_and_mapped(&mounts), 0, "mappings that ended before the size that fstat said");
    assert_eq!(grown_and_followed(&pair.a, &pair.b), 0, "shorter than fstat said");
    pair.stop();
}

/// Goal: the same across mounts (Promise S1). Method: the programs are on two mounts; one server, and three.
#[test]
fn a_size_that_another_mount_set_is_there_on_one_server() {
    a_size_that_another_mount_set_is_there(1);
}

#[test]
fn a_size_that_another_mount_set_is_there_on_three_servers() {
    a_size_that_another_mount_set_is_there(3);
}
