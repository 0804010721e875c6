//! Positions of descriptors after an append, which Linux computes from the size that it received last.

use crate::harness::eventually;
use crate::two_mounts::Pair;
use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, StatxFlags, fcntl_lock, flock, fstat, ftruncate, open, statx, tell,
};
use rustix::io::{pread, read, write};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

fn appender(path: &Path) -> OwnedFd {
    open(path, OFlags::RDWR | OFlags::APPEND, Mode::empty()).expect("open")
}

/// The start of the record just appended, computed from the position of the descriptor.
fn append(file: &OwnedFd, record: &[u8]) -> Option<u64> {
    assert_eq!(write(file, record), Ok(record.len()));
    tell(file).expect("position").checked_sub(record.len() as u64)
}

/// Returns whether a record lies at that offset.
fn leads_to(file: &OwnedFd, at: Option<u64>, record: &[u8]) -> bool {
    let mut found = vec![0; record.len()];
    at.is_some_and(|at| pread(file, &mut found, at) == Ok(record.len()) && found == record)
}

/// Appends records, each under a lock. Counts the records to which the position does not lead.
fn misled(path: &Path, writer: usize, lock: fn(&OwnedFd, FlockOperation)) -> usize {
    const RECORDS: usize = 25;
    let file = appender(path);
    let one = |i: usize| {
        let record = format!("<{writer}:{i:04}>").repeat(1 + (i + writer) % 7).into_bytes();
        lock(&file, FlockOperation::LockExclusive);
        let at = append(&file, &record);
        let is_right = leads_to(&file, at, &record);
        lock(&file, FlockOperation::Unlock);
        is_right
    };
    (0..RECORDS).filter(|i| !one(*i)).count()
}

/// Goal: with file locks, a program can append in turn with writers on other mounts, and its positions are right. The
/// program finds each record that it has appended by the position of its descriptor, because the kernel gets the end of
/// the file with the lock. Method: two writers on each of two mounts with `flock`, one on each with `fcntl`, on one
/// server and on three.
#[test]
fn positions_of_appends_under_locks() {
    for servers in [1, 3] {
        let pair = Pair::new(servers, &[], &[]);
        let by_flock: fn(&OwnedFd, FlockOperation) = |file, how| flock(file, how).expect("flock");
        let by_fcntl: fn(&OwnedFd, FlockOperation) = |file, how| fcntl_lock(file, how).expect("fcntl");
        for (name, writers, lock) in [("flock", 4, by_flock), ("fcntl", 2, by_fcntl)] {
            fs::write(pair.a.join(name), b"").expect("write");
            let wrong: Vec<usize> = std::thread::scope(|s| {
                let write = |writer: usize| {
                    let path = [&pair.a, &pair.b][writer % 2].join(name);
                    s.spawn(move || misled(&path, writer, lock))
                };
                let writers: Vec<_> = (0..writers).map(write).collect();
                writers.into_iter().map(|writer| writer.join().expect("a writer")).collect()
            });
            assert_eq!(wrong, vec![0; writers], "{name}, {servers} servers");
        }
        pair.stop();
    }
}

/// Goal: the position after an append is right if no other mount has moved the end since the last one, whatever had
/// happened before. A read continues after the appended bytes. Method: the other mount appends, writes behind the end
/// and cuts. The next append informs the kernel.
#[test]
fn positions_behind_own_appends() {
    let pair = Pair::new(1, &[], &[]);
    let (here, there) = (pair.a.join("f"), pair.b.join("f"));
    fs::write(&here, b"").expect("write");
    let (x, y) = (appender(&here), appender(&there));
    let kept_size = || {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        statx(&y, c"", flags, StatxFlags::SIZE).expect("statx").stx_size
    };
    for round in 0..12u64 {
        let cut = round % 3 == 2;
        match cut {
            true => ftruncate(&x, 500).expect("cut"),
            false => assert_eq!(write(&x, &vec![b'x'; 777]), Ok(777)),
        }
        append(&y, b"first of these");
        if cut {
            // The kernel is notified after the answer.
            eventually("the kernel goes by the end", || kept_size() == 514);
        }
        let record = format!("record {round}");
        let at = append(&y, record.as_bytes());
        assert!(leads_to(&y, at, record.as_bytes()), "round {round}: {at:?}");
        assert_eq!(read(&y, &mut [0; 100][..]), Ok(0), "round {round}: nothing is behind it");
        assert_eq!(tell(&y).expect("position"), fstat(&y).expect("stat").st_size as u64);
        assert_eq!(append(&y, b"no other came"), at.map(|at| at + record.len() as u64));
    }
    drop((x, y));
    pair.stop();
}
