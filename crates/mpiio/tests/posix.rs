//! The POSIX backend on a real file: requests of all alignments, with and without direct I/O.

use amphi_mpiio::backend::Backend;
use amphi_mpiio::backend::posix::{Direct, PosixFile};
use amphi_mpiio::file::{CachedFile, Extent, Settings};
use amphi_mpiio::pace::Futex;
use amphi_mpiio::segment::{Geometry, Segment};
use std::ffi::CString;
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;

fn file(name: &str) -> (PathBuf, CString) {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, "").unwrap();
    let c = CString::new(path.to_str().unwrap()).unwrap();
    (path, c)
}

/// Goal: every byte lies where it was written and the file is never longer than that, whichever requests bypassed the
/// page cache. Method: random writes and reads of a cached file with pages of 4 KiB and memory for twelve pages are
/// compared with an array, and at the end with the file itself.
#[test]
fn direct_and_buffered_requests_agree() {
    for (name, direct) in [("buffered", Direct::Off), ("direct", Direct::On)] {
        let (path, c) = file(name);
        let backend = PosixFile::open(&c, true, true, direct).unwrap();
        let geometry = Geometry::new(1, 4096, 12 * 4096);
        let settings = Settings {
            readable: true,
            writable: true,
            bypass_bytes: 30_000,
            stream_bytes: 0,
            aside_bytes: 0,
            merge_parts: false,
            run_bytes: 16_384,
            prefetch_bytes: 0,
        };
        let segment = Segment::create(geometry, 0).unwrap();
        let mut cached = CachedFile::new(segment, Box::new(backend), settings, Arc::new(Futex));
        let mut model: Vec<u8> = Vec::new();
        let mut seed = 5u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for step in 0..1500 {
            let offset = if next(2) == 0 { next(60) * 4096 } else { next(240_000) };
            let length = [next(300), next(9000), 4096 * next(5), next(60_000)][next(4) as usize];
            let extent = [Extent { offset, length }];
            let (start, end) = (offset as usize, (offset + length) as usize);
            if next(2) == 0 {
                let bytes: Vec<u8> = (0..length).map(|i| (i as u8) ^ (step as u8)).collect();
                assert_eq!(cached.write(&extent, &bytes).unwrap(), length);
                if length > 0 && model.len() < end {
                    model.resize(end, 0);
                }
                if length > 0 {
                    model[start..end].copy_from_slice(&bytes);
                }
            } else {
                let mut bytes = vec![0; length as usize];
                let n = cached.read(&extent, &mut bytes).unwrap() as usize;
                let there = start.min(model.len())..end.min(model.len());
                assert!(bytes[..n] == model[there], "{name}: step {step}: {extent:?}");
            }
            if step % 200 == 199 {
                cached.flush_share(0, 1).unwrap();
                assert!(std::fs::read(&path).unwrap() == model, "{name}: step {step}");
            }
        }
        cached.flush_share(0, 1).unwrap();
        assert!(std::fs::read(&path).unwrap() == model, "{name}");
        let went = cached.stats().fs_direct;
        assert_eq!(went > 100, direct == Direct::On, "{name}: {went} direct requests");
    }
}

/// Goal: a request of thousands of parts arrives whole. Method: more parts than one call of the kernel takes.
#[test]
fn many_parts_are_one_request() {
    let (path, c) = file("parts");
    let backend = PosixFile::open(&c, true, true, Direct::Off).unwrap();
    let bytes: Vec<u8> = (0..30_000u32).map(|i| i as u8).collect();
    let parts: Vec<IoSlice<'_>> = bytes.chunks(7).map(IoSlice::new).collect();
    backend.write_at(&parts, 11).unwrap();
    assert!(std::fs::read(&path).unwrap()[11..] == bytes);
    assert_eq!(backend.size().unwrap(), 30_011);
}

/// Goal: only regular files are cached. Method: a directory and a device.
#[test]
fn only_regular_files() {
    for path in [c"/", c"/dev/null"] {
        assert!(PosixFile::open(path, true, false, Direct::Off).is_err());
    }
}
