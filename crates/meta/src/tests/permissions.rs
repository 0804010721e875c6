//! Matrices of the permission functions.

use crate::inode::InodeOwner;
use crate::perm::{self, Want};
use crate::{Facts, Inode, MetaStore};
use amphi_types::{Cred, Errno, Ino, Kind, Result, TargetId};

fn inode(kind: Kind, perm: u16, uid: u32, gid: u32) -> Facts {
    let (store, _) = MetaStore::format(TargetId(0), 1, Default::default(), Some((0, 0)), 1);
    let root: Inode = store.inode(Ino::ROOT).unwrap().clone();
    Inode { kind, perm, owner: InodeOwner { uid, gid, project: 0 }, ..root }.facts(Ino::ROOT)
}

fn user(uid: u32, gid: u32, groups: &[u32]) -> Cred {
    Cred::new(uid, gid, groups.to_vec())
}

/// Goal: the first class that matches decides alone. Method: all 512 modes, all wants, callers that are owner, of the
/// group by either way, others, and root; the expected bits are shifted out by the class written down.
#[test]
fn every_mode_for_every_class() {
    let callers = [
        (user(1, 1, &[]), Some(6)),
        (user(1, 2, &[2]), Some(6)),
        (user(9, 2, &[]), Some(3)),
        (user(9, 9, &[5, 2]), Some(3)),
        (user(9, 9, &[5]), Some(0)),
        (Cred::root(), None),
    ];
    for mode in 0..0o1000_u16 {
        for kind in [Kind::File, Kind::Dir] {
            let facts = inode(kind, mode, 1, 2);
            for want in 0..8_u16 {
                let wanted = Want { read: want & 4 != 0, write: want & 2 != 0, exec: want & 1 != 0 };
                for (cred, class) in &callers {
                    let granted = match class {
                        Some(shift) => (mode >> shift) & want == want,
                        None => want & 1 == 0 || kind == Kind::Dir || mode & 0o111 != 0,
                    };
                    let result = perm::access(cred, &facts, wanted);
                    assert_eq!(result.is_ok(), granted, "{mode:o} {kind:?} {want} {cred:?}");
                    assert!(granted || result == Err(Errno::Access));
                }
            }
        }
    }
}

/// Goal: the sticky rule. Method: every relation of the caller to directory and child, with and without the bit.
#[test]
fn sticky_directories() {
    let child = inode(Kind::File, 0, 3, 3);
    for (perm, uid, wanted) in [
        (0o1777, 3, Ok(())),             // owner of the child
        (0o1777, 2, Ok(())),             // owner of the directory
        (0o1777, 0, Ok(())),             // root
        (0o1777, 4, Err(Errno::Perm)),   // anybody else
        (0o0777, 4, Ok(())),             // no sticky bit
        (0o1755, 4, Err(Errno::Access)), // cannot write at all
        (0o1776, 4, Err(Errno::Access)), // cannot search
        (0o1755, 3, Err(Errno::Access)), // owning the child does not help
    ] {
        let dir = inode(Kind::Dir, perm, 2, 2);
        assert_eq!(perm::delete(&user(uid, 99, &[]), &dir, &child), wanted, "{perm:o} {uid}");
    }
    let file = inode(Kind::File, 0o777, 2, 2);
    assert_eq!(perm::delete(&Cred::root(), &file, &child), Err(Errno::NotDir));
}

/// Goal: rules of opening and of directories. Method: a table.
#[test]
fn opening_and_entering() {
    let both = Want { read: true, write: true, exec: false };
    let root = Cred::root();
    let table: [(Result<()>, Result<()>); 9] = [
        (perm::open(&root, &inode(Kind::Dir, 0o777, 0, 0), Want::READ), Ok(())),
        (perm::open(&root, &inode(Kind::Dir, 0o777, 0, 0), both), Err(Errno::IsDir)),
        (perm::open(&root, &inode(Kind::Symlink, 0o777, 0, 0), Want::READ), Err(Errno::Loop)),
        (perm::open(&user(5, 5, &[]), &inode(Kind::File, 0o644, 0, 0), both), Err(Errno::Access)),
        (perm::open(&root, &inode(Kind::File, 0, 1, 1), both), Ok(())),
        (perm::search(&root, &inode(Kind::File, 0o777, 0, 0)), Err(Errno::NotDir)),
        (perm::insert(&root, &inode(Kind::Symlink, 0o777, 0, 0)), Err(Errno::NotDir)),
        (perm::insert(&root, &Facts { nlink: 0, ..inode(Kind::Dir, 0o777, 0, 0) }), Err(Errno::NoEnt)),
        (perm::owner(&user(5, 5, &[]), &inode(Kind::File, 0o777, 6, 5)), Err(Errno::Perm)),
    ];
    for (number, (result, wanted)) in table.into_iter().enumerate() {
        assert_eq!(result, wanted, "case {number}");
    }
}

/// Goal: when setuid and setgid go. Method: a table of mode, caller and rest.
#[test]
fn losing_setuid_and_setgid() {
    for (perm, cred, wanted) in [
        (0o6755, user(1, 1, &[]), 0o0755),
        (0o6745, user(1, 1, &[]), 0o0745),
        (0o6745, user(1, 7, &[]), 0o2745),
        (0o6745, user(1, 1, &[7]), 0o2745),
        (0o6745, Cred::root(), 0o2745),
        (0o6755, Cred::root(), 0o0755),
        (0o1644, user(1, 1, &[]), 0o1644),
    ] {
        assert_eq!(perm::without_suidgid(&cred, perm, 7), wanted, "{perm:o} {cred:?}");
    }
}

/// Goal: every user may open any inode without access, as by `O_PATH`, and no user a symbolic link with access. Method:
/// both kinds.
#[test]
fn opening_for_nothing() {
    for kind in [Kind::File, Kind::Symlink, Kind::Fifo, Kind::Dir] {
        assert_eq!(perm::open(&user(9, 9, &[]), &inode(kind, 0, 1, 2), Want::default()), Ok(()));
    }
    assert_eq!(perm::open(&Cred::root(), &inode(Kind::Symlink, 0o777, 1, 2), Want::READ), Err(Errno::Loop));
}
