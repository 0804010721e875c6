//! Directories that are removed while a program has them open.

use crate::harness::rerrno;
use crate::two_mounts::Pair;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, fchmod, fstat, fsync, mkdirat, open, openat, renameat, unlinkat};
use std::fs;

const ENOENT: i32 = 2;
const ESTALE: i32 = 116;

/// Goal: a directory that was removed, or replaced by a rename, is to whoever has it open what it was, without links,
/// names or room for new ones; the new one of its name is another. Method: removed by the mount that has it open and by
/// the other one; all calls by its descriptor. (Promise S6)
#[test]
fn removed_while_open() {
    let pair = Pair::new(1, &[], &[]);
    for (here, there) in [(&pair.a, &pair.a), (&pair.a, &pair.b)] {
        for replace in [false, true] {
            let (path, other) = (here.join("d"), there.join("new"));
            fs::create_dir(&path).expect("mkdir");
            let d = open(&path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("open");
            fchmod(&d, Mode::from_raw_mode(0o750)).expect("chmod");
            let before = fstat(&d).expect("fstat");
            if replace {
                fs::create_dir(&other).expect("mkdir");
                renameat(CWD, &other, CWD, there.join("d")).expect("rename over it");
            } else {
                fs::remove_dir(there.join("d")).expect("rmdir");
            }
            let after = fstat(&d).expect("fstat of what was removed");
            assert_eq!(after.st_nlink, 0);
            assert_eq!((after.st_ino, after.st_mode, after.st_uid), (before.st_ino, before.st_mode, before.st_uid));
            fchmod(&d, Mode::from_raw_mode(0o700)).expect("chmod");
            assert_eq!(fstat(&d).expect("fstat").st_mode & 0o777, 0o700);
            fsync(&d).expect("fsync");
            assert_eq!(Dir::read_from(&d).expect("open it again").count(), 0, "nothing is in it");
            let made = mkdirat(&d, "x", Mode::from_raw_mode(0o755));
            assert!([ENOENT, ESTALE].contains(&rerrno(made)), "nothing can be made in it");
            let found = openat(&d, "x", OFlags::RDONLY, Mode::empty());
            assert!([ENOENT, ESTALE].contains(&rerrno(found)));
            drop(d);
            if replace {
                let new = fs::metadata(&path).expect("the new one");
                assert_ne!(std::os::unix::fs::MetadataExt::ino(&new), before.st_ino);
                unlinkat(CWD, &path, AtFlags::REMOVEDIR).expect("rmdir");
            }
            assert!(!path.exists());
        }
    }
    pair.stop();
}
