//! Direct requests of this process itself.

use super::memory::Slot;
use super::{folders, mapped};
use crate::read::Piece;
use crate::sys;
use amphi_policy::decision::Way;
use std::os::fd::AsRawFd;
use std::sync::Mutex;

/// The slots and the names of folders are of the process: tests that use them take turns.
pub(crate) static TURN: Mutex<()> = Mutex::new(());

/// Goal: each slot belongs to one request at a time, is aligned, and is free again afterwards. Method: all are claimed
/// twice, with claims in between that fail.
#[test]
fn slots_belong_to_one_request() {
    let _turn = TURN.lock();
    for _ in 0..2 {
        let all: Vec<Slot> = std::iter::from_fn(Slot::claim).collect();
        assert_eq!(all.len(), 16);
        assert!(Slot::claim().is_none() && Slot::claim().is_none());
        let mut places: Vec<usize> = all.iter().map(|slot| slot.data() as usize).collect();
        assert!(places.iter().all(|at| at.is_multiple_of(4096)));
        places.dedup();
        assert_eq!(places.len(), 16);
    }
}

/// Goal: a request goes direct only if the file is in a named folder, is not mapped, and its number still means the
/// file. Method: a file here; what file system it is does not matter for the answers, only for the way.
#[test]
fn which_files_go_direct() {
    let _turn = TURN.lock();
    let folder = std::env::temp_dir().canonicalize().unwrap().join(format!("attach-direct-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("file");
    let options = || std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let file = options().unwrap();
    let fd = file.as_raw_fd();
    let mut bytes = vec![7u8; 3 << 20];
    let mut ask = |way| {
        let pieces = [Piece { base: bytes.as_mut_ptr().cast(), len: bytes.len() }];
        // SAFETY: a buffer of this length.
        unsafe { super::direct_at(fd, way, &pieces, 0) }
    };
    assert_eq!(ask(Way::Write), None, "no folder is named");
    super::turn_direct_on(b"/nowhere/at/all", Some(b"direct"));
    assert_eq!(ask(Way::Write), None, "outside");
    assert!(crate::table::is_outside(fd));
    folders::set(folder.to_str().unwrap().as_bytes());
    assert_eq!(ask(Way::Write), None, "known to be outside");
    crate::table::forget(fd);
    // On a file system that is not known, the caller has to ask the kernel.
    assert!(matches!(ask(Way::Write), None | Some(0x30_0000)));
    assert!(!crate::table::is_outside(fd));
    let identity = sys::details(fd).unwrap().identity;
    assert!(!mapped::contain(identity));
    mapped::note_mapping(fd);
    assert!(mapped::contain(identity));
    assert_eq!(ask(Way::Write), None, "mapped");
    folders::set(b"");
    std::fs::remove_dir_all(&folder).unwrap();
}
