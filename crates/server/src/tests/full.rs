//! A target whose metadata region is full.

use super::*;
use amphi_types::SetAttr;
use amphi_wire::XattrMode;

fn name_of(i: u32) -> String {
    format!("f{i:05}")
}

/// Goal: Promise S15: with a metadata region in which nothing has room any more, mounts can come, files are closed,
/// changed, cut and deleted, and what that gives back can be used. Method: files and attributes until both are refused,
/// then everything that adds nothing, more often than there is room for.
#[test]
fn what_adds_nothing_goes_through_on_a_full_region() {
    with_server(120, 1, 1, async |place, c| {
        let dir = c.mkdir(Ino::ROOT, "dir").await.unwrap();
        let attribute = |ino, i: u32, len: usize| {
            let (name, value) = (format!("user.{i}").into_bytes(), vec![7; len]);
            Request::SetXattr { ino, name, value, mode: XattrMode::Set }
        };
        let mut files = Vec::new();
        let full = loop {
            let name = name_of(files.len() as u32);
            match c.create(dir, &name).await {
                Ok(ino) => files.push(ino),
                Err(e) => break e,
            }
            // The region is full sooner with these.
            match c.call(attribute(files[files.len() - 1], 0, 10_000)).await {
                Ok(_) | Err(Errno::NoSpace) => {}
                Err(e) => break e,
            }
        };
        assert_eq!(full, Errno::NoSpace);
        let mut small = 0;
        while c.call(attribute(files[0], 1 + small, 0)).await.is_ok() {
            small += 1;
        }
        assert!(files.len() > 50 && c.mkdir(Ino::ROOT, "more").await == Err(Errno::NoSpace));

        let other = place.client(2).await.expect("a mount comes to a full target");
        let change = async |ino: Ino, set: SetAttr| other.inode(Request::SetAttr { ino, set }).await;
        for round in 0..2000u16 {
            let set = SetAttr { perm: Some(round % 0o1000), ..SetAttr::default() };
            change(files[usize::from(round) % files.len()], set).await.unwrap();
        }
        change(files[1], SetAttr { size: Some(0), ..SetAttr::default() }).await.unwrap();
        other.call(Request::Open { ino: files[2], access: RW, exec: false }).await.unwrap();
        let atime = Some(Timespec { sec: 3_000_000_000, nsec: 0 });
        other.call(Request::Close { ino: files[2], access: RW, atime }).await.unwrap();
        for i in 1..=small {
            let name = format!("user.{i}").into_bytes();
            other.call(Request::RemoveXattr { ino: files[0], name }).await.unwrap();
        }
        for i in 0..files.len() {
            other.unlink(dir, &name_of(i as u32)).await.unwrap();
        }
        other.rmdir(Ino::ROOT, "dir").await.unwrap();
        let again = other.create(Ino::ROOT, "again").await.unwrap();
        other.call(attribute(again, 0, 60_000)).await.unwrap();
    });
}
