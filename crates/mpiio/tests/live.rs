//! The state of a cache in use for an outside observer.

use amphi_mpiio::backend::Backend;
use amphi_mpiio::backend::posix::{Direct, PosixFile};
use amphi_mpiio::file::{CachedFile, Extent, Settings};
use amphi_mpiio::live;
use amphi_mpiio::pace::Futex;
use amphi_mpiio::segment::{Geometry, Segment};
use amphi_mpiio::stats::NAMES;
use std::ffi::CString;
use std::sync::Arc;

/// Goal: a cache is found by its file, shows the sums of all ranks as of their last calls, and disappears with its last
/// user; other files have no cache. Method: two ranks of this process use a file; a third rank, which belongs to a
/// proxy, does nothing.
#[test]
fn a_cache_in_use_is_seen_from_outside() {
    let path = std::env::temp_dir().join(format!("amphi-mpiio-live-{}", std::process::id()));
    let other = path.with_extension("other");
    std::fs::write(&path, [7; 100]).unwrap();
    std::fs::write(&other, b"").unwrap();
    assert_eq!(live::find(&path).unwrap(), []);
    let name = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    let file = || PosixFile::open(&name, true, true, Direct::Off).unwrap();
    let geometry = Geometry::new(3, 4096, 16 << 10);
    let first = Segment::create(geometry, file().size().unwrap()).unwrap();
    first.identify(file().identity().unwrap(), 2);
    let second = Segment::attach(first.token(), geometry, 1).unwrap();
    let use_of = Settings {
        readable: true,
        writable: true,
        bypass_bytes: 1 << 30,
        stream_bytes: 0,
        aside_bytes: 0,
        merge_parts: false,
        run_bytes: 4096,
        prefetch_bytes: 0,
    };
    let open = |segment| CachedFile::new(segment, Box::new(file()), use_of, Arc::new(Futex));
    let (mut first, mut second) = (open(first), open(second));
    first.write(&[Extent { offset: 100, length: 5000 }], &[1; 5000]).unwrap();
    first.publish();
    let mut bytes = [0; 300];
    second.read(&[Extent { offset: 0, length: 300 }], &mut bytes).unwrap();
    second.publish();
    let seen = live::find(&path).unwrap();
    assert_eq!(seen.len(), 1, "one memory, though two ranks have it: {seen:?}");
    let (seen, value) = (&seen[0], |name| seen[0].counters[NAMES.iter().position(|n| *n == name).unwrap()]);
    assert_eq!((seen.ranks, seen.clients, seen.page_bytes, seen.size), (2, 1, 4096, 5100));
    assert_eq!((seen.pid, seen.late_error), (u64::from(std::process::id()), 0));
    assert_eq!((value("calls_write"), value("bytes_written")), (1, 5000));
    assert_eq!((value("calls_read"), value("bytes_read")), (1, 300));
    assert_eq!(live::find(&other).unwrap(), []);
    drop((first, second));
    assert_eq!(live::find(&path).unwrap(), []);
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(&other).unwrap();
}
