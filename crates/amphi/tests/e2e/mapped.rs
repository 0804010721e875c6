//! Memory mappings: shared and private, beside reads and writes.

use crate::harness::{Place, pattern};
use rustix::fs::{Mode, OFlags, ftruncate, open};
use rustix::io::{pread, pwrite};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// Goal: Promise S1 for mappings: what a shared mapping wrote is read after msync, what pwrite wrote is seen in
/// a mapping, private mappings write nothing. Method: one file, both ways, then a restart.
#[test]
fn shared_and_private_mappings() {
    let place = Place::new();
    let up = place.up(&[]);
    let path = place.mount().join("f");
    let f = open(&path, OFlags::RDWR | OFlags::CREATE, Mode::from_raw_mode(0o644)).expect("open");
    let size = 3 * 4096 + 100;
    ftruncate(&f, size as u64).expect("truncate");
    let rw = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: fresh mappings within the file, unmapped at the end and not used after.
    unsafe {
        let shared = mmap(std::ptr::null_mut(), size, rw, MapFlags::SHARED, &f, 0).expect("shared");
        let private = mmap(std::ptr::null_mut(), size, rw, MapFlags::PRIVATE, &f, 0).expect("private");
        let s = std::slice::from_raw_parts_mut(shared.cast::<u8>(), size);
        let p = std::slice::from_raw_parts_mut(private.cast::<u8>(), size);
        let bytes = pattern(4, size);
        s.copy_from_slice(&bytes);
        msync(shared, size, MsyncFlags::SYNC).expect("msync");
        let mut back = vec![0; size];
        assert_eq!(pread(&f, &mut back, 0).expect("read"), size);
        assert!(back == bytes, "msync made it readable");
        pwrite(&f, b"written", 4096).expect("write");
        assert_eq!(&s[4096..4103], b"written", "a write shows in the mapping");
        p[0..4].copy_from_slice(b"priv");
        assert_eq!(pread(&f, &mut back[..4], 0).expect("read"), 4);
        assert!(back[..4] == bytes[..4], "a private mapping writes nothing");
        s[8192..8197].copy_from_slice(b"later");
        munmap(shared, size).expect("munmap");
        munmap(private, size).expect("munmap");
    }
    drop(f);
    up.stop();
    place.fsck();
    let up = place.up(&[]);
    let bytes = std::fs::read(&path).expect("read");
    assert_eq!(bytes.len(), size);
    assert_eq!(&bytes[4096..4103], b"written");
    assert_eq!(&bytes[8192..8197], b"later", "munmap wrote the rest back");
    up.stop();
}
