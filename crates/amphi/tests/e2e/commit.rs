//! Commit consistency through real mounts: what writers see, what others see and when, and kills of servers.

use crate::harness::{counter, pattern, run};
use crate::two_mounts::Pair;
use rustix::fs::{FlockOperation, Mode, OFlags, fcntl_lock, fstat, fsync, open};
use rustix::io::{pread, pwrite};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

const LEN: usize = 47_008;

fn opened(path: &Path, flags: OFlags) -> OwnedFd {
    open(path, OFlags::CREATE | OFlags::RDWR | flags, Mode::from_raw_mode(0o644)).expect("open")
}

/// A pair of mounts with a directory `c` whose files ask for commit consistency and go direct.
fn pair(servers: usize) -> Pair {
    let pair = Pair::new(servers, &["--targets", "3"], &["--cache", "16M"]);
    let dir = pair.a.join("c");
    fs::create_dir(&dir).expect("mkdir");
    let dir = dir.to_str().expect("text");
    let set = run(&["layout", "set", "--consistency", "commit", "--mode", "direct", dir]);
    assert!(set.status.success(), "{set:?}");
    // The zones are so small that their targets would not count as having ample space.
    let set = run(&["set", "server.roomy_bytes=1M", "--mount", pair.a.to_str().expect("text")]);
    assert!(set.status.success(), "{set:?}");
    pair
}

/// `bytes` through the descriptor.
fn put(f: &OwnedFd, at: usize, bytes: &[u8]) {
    assert_eq!(pwrite(f, bytes, at as u64), Ok(bytes.len()));
}

fn got(f: &OwnedFd, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let len = pread(f, &mut bytes, at as u64).expect("read");
    bytes.truncate(len);
    bytes
}

/// Goal: Promise S26: on files of commit consistency, writers of two mounts take no locks, and each sees its own writes
/// at once. Each sees all of them once the other has closed, called `fsync` or released a lock, even if servers are
/// killed meanwhile. Method: records that share blocks are written in turn, with a kill between two rounds of
/// unanswered writes, on one server and on three.
#[test]
fn writers_of_two_mounts() {
    for servers in [1, 3] {
        let mut pair = pair(servers);
        let files = [&pair.a, &pair.b].map(|m| opened(&m.join("c/f"), OFlags::empty()));
        for round in 0..3 {
            for i in 0..40 {
                let (f, record) = (&files[i % 2], pattern((round * 40 + i) as u64, LEN));
                put(f, i * LEN, &record);
                assert!(got(f, i * LEN, LEN) == record, "its own record {i}");
                assert!(fstat(f).expect("fstat").st_size as usize >= (i + 1) * LEN, "its own end {i}");
                if round == 1 && i == 20 {
                    pair.restart_servers();
                }
            }
            match round {
                0 => files.iter().for_each(|f| fsync(f).expect("fsync")),
                1 => [&pair.a, &pair.b].iter().for_each(|m| drop(opened(&m.join("c/f"), OFlags::empty()))),
                _ => files.iter().for_each(|f| {
                    fcntl_lock(f, FlockOperation::LockExclusive).expect("lock");
                    fcntl_lock(f, FlockOperation::Unlock).expect("unlock");
                }),
            }
            for (who, f) in files.iter().enumerate() {
                for i in 0..40 {
                    let wanted = pattern((round * 40 + i) as u64, LEN);
                    assert!(got(f, i * LEN, LEN) == wanted, "round {round}, record {i} on mount {who}");
                }
            }
        }
        for m in [&pair.a, &pair.b] {
            assert!(counter(m, "write_commit") > 20, "{} writes returned early", counter(m, "write_commit"));
        }
        drop(files);
        pair.stop();
    }
}

/// Goal: new files inherit the consistency of their directory, which is shown and can be reset. A mount can have this
/// consistency for all files. Invalid words are refused, and the error names the valid ones. Method: the command, and a
/// mount with the option.
#[test]
fn asked_for_and_shown() {
    let pair = pair(1);
    let (dir, file) = (pair.a.join("c"), pair.a.join("c/f"));
    fs::write(&file, b"x").expect("write");
    let said = |args: &[&str], path: &Path| {
        let out = run(&[args, &[path.to_str().expect("text")]].concat());
        (
            out.status.success(),
            format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr)),
        )
    };
    assert!(
        said(&["layout", "get"], &file).1.contains("mode direct kernel-cache auto checksums auto consistency commit")
    );
    assert!(said(&["explain"], &file).1.contains("commit consistency"));
    let (done, text) = said(&["layout", "set", "--consistency", "loose"], &file);
    assert!(!done && text.contains("posix") && text.contains("commit"), "{text}");
    assert!(said(&["layout", "set", "--consistency", "posix"], &file).0);
    assert!(
        said(&["layout", "get"], &file).1.contains("mode direct kernel-cache auto checksums auto consistency posix")
    );
    assert!(!said(&["explain"], &file).1.contains("commit consistency"));
    assert!(said(&["layout", "get"], &dir).1.contains("consistency commit"), "the directory keeps it");
    let third = pair.place.mount_at("third", &["-o", "consistency=commit"]);
    assert!(said(&["layout", "get"], &pair.place.path("third").join("c/f")).1.contains("consistency commit"));
    third.stop();
    pair.stop();
}
