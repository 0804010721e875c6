//! Accepted data that a server cannot write: which programs receive the error.

use crate::harness::{Place, close_error, counter, errno, eventually, pattern};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

const EIO: i32 = 5;

/// Goal: if a server cannot write bytes that it has accepted from two mounts, both of them get the error, by `close`
/// and by `fsync`. A mount that did not write them does not, and another file is not affected. Method: the server's
/// memory is cut off under it, so what a flush would write cannot be read.
#[test]
fn what_cannot_be_flushed_is_told_to_each_mount_that_wrote() {
    let place = Place::new();
    let server = place.server(&["--targets", "1"]);
    let mounts = ["m0", "m1", "m2"].map(|name| (place.path(name), place.mount_at(name, &[])));
    let dirs = mounts.each_ref().map(|(dir, _)| dir.clone());
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT);
    let f = dirs.each_ref().map(|dir| options.open(dir.join("f")).expect("open"));
    let calm = options.open(dirs[2].join("calm")).expect("open");
    for (n, file) in f[..2].iter().enumerate() {
        let mut bytes = amphi_env::Buf::zeroed(40 << 10);
        bytes.copy_from_slice(&pattern(n as u64, 40 << 10));
        file.write_all_at(&bytes, n as u64 * (40 << 10)).expect("write");
    }
    let refused = |n: usize| counter(&dirs[n], "write_refused");
    assert_eq!((refused(0), refused(1)), (0, 0));
    let memory = place.memory().into_iter().find(|path| path.to_string_lossy().ends_with("-data")).expect("memory");
    File::options().write(true).open(&memory).expect("open").set_len(0).expect("cut");
    eventually("both are told", || refused(0) == 1 && refused(1) == 1);
    let [a, b, c] = f;
    assert_eq!(close_error(a), EIO);
    assert_eq!(errno(b.sync_all()), EIO);
    assert_eq!(close_error(c), 0);
    calm.write_all_at(&[7; 4096], 0).expect("write");
    calm.sync_all().expect("another file");
    assert_eq!(refused(2), 0);
    // An orderly end would report an error, since not everything can be made stable.
    mounts.into_iter().for_each(|(_, mount)| mount.kill());
    server.kill();
}
