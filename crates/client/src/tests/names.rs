//! Operations on names, listings and attributes.

use super::world::World;
use crate::api::{Ctx, OpenFlags, StatFs};
use amphi_types::{Cred, Errno, Ino, Kind, Pattern};
use amphi_wire::{RenameMode, XattrMode};

/// Goal: names work end to end, `.` and `..` included. Method: a sequence of steps.
#[test]
fn a_story_of_names() {
    let mut w = World::new(1, &[]);
    let root = Ctx::root();
    let op = w.client.mkdir(&root, Ino::ROOT, b"d", 0o755);
    let d = w.run(op).unwrap().ino;
    let op = w.client.symlink(&root, d, b"l", b"../x");
    let l = w.run(op).unwrap();
    assert_eq!(l.kind, Kind::Symlink);
    let op = w.client.readlink(&root, l.ino);
    assert_eq!(w.run(op).unwrap(), b"../x");
    let op = w.client.mknod(&root, d, b"p", 0o010644, 0);
    assert_eq!(w.run(op).unwrap().kind, Kind::Fifo);
    let op = w.client.mknod(&root, d, b"f", 0o100600, 0);
    let f = w.run(op).unwrap();
    assert_eq!((f.kind, f.perm), (Kind::File, 0o600));
    for (name, want) in [(&b"."[..], d), (b"..", Ino::ROOT), (b"f", f.ino)] {
        let op = w.client.lookup(&root, d, name);
        assert_eq!(w.run(op).unwrap().ino, want);
    }
    let op = w.client.link(&root, f.ino, Ino::ROOT, b"g");
    assert_eq!(w.run(op).unwrap().ino, f.ino);
    let op = w.client.rename(&root, (d, b"f"), (Ino::ROOT, b"g"), RenameMode::NoReplace);
    assert_eq!(w.run(op), Err(Errno::Exist));
    let op = w.client.rename(&root, (d, b"f"), (Ino::ROOT, b"h"), RenameMode::Replace);
    w.run(op).unwrap();
    let op = w.client.unlink(&root, d, b"f");
    assert_eq!(w.run(op), Err(Errno::NoEnt));
    for (name, errno) in [(&b""[..], Errno::NoEnt), (b"a/b", Errno::Inval), (&[b'x'; 256], Errno::NameTooLong)] {
        let op = w.client.lookup(&root, d, name);
        assert_eq!(w.run(op), Err(errno));
    }
    for (name, errno) in [(&b"."[..], Errno::Inval), (b"..", Errno::NotEmpty)] {
        let op = w.client.rmdir(&root, d, name);
        assert_eq!(w.run(op), Err(errno));
    }
    let op = w.client.mkdir(&root, d, b"..", 0o755);
    assert_eq!(w.run(op), Err(Errno::Exist));
    let op = w.client.statfs(&root);
    let s = w.run(op).unwrap();
    let want = StatFs { block_size: 4096, blocks: 400, blocks_free: 200, inodes: 40, inodes_free: 28, ..s };
    assert_eq!(s, want, "the sum over four targets");
}

/// Goal: a listing in portions of any size shows every entry once (Promise S7). Method: each portion size.
#[test]
fn listings_in_portions() {
    let mut w = World::new(1, &[]);
    for i in 0..10 {
        w.server.plant(&format!("f{i}"), b"abc", Pattern::Growing);
    }
    for max in 1..14 {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let op = w.client.readdir(&Ctx::root(), Ino::ROOT, cookie, max, true);
            let part = w.run(op).unwrap();
            assert!(part.entries.len() <= max as usize);
            cookie = part.entries.last().map_or(cookie, |e| e.cookie);
            names.extend(part.entries.into_iter().map(|e| (e.name, e.attr.map(|a| a.size))));
            if part.end {
                break;
            }
        }
        assert_eq!(names.len(), 12, "portions of {max}");
        assert_eq!((&names[0].0[..], &names[1].0[..]), (&b"."[..], &b".."[..]));
        assert!(names[2..].iter().all(|(_, size)| *size == Some(3)));
    }
}

/// Goal: attributes include changes that are only in the cache. Method: a dirty file seen by stat, lookup and readdir,
/// before and after an explicit time.
#[test]
fn attributes_show_the_cache() {
    let mut w = World::new(1, &[]);
    let root = Ctx::root();
    let file = w.create("f", OpenFlags::WRITE);
    let op = w.client.write(&root, &file, 0, amphi_env::Buf::zeroed(12_345), crate::Hints::default());
    w.run(op).unwrap();
    let op = w.client.getattr(&root, file.ino());
    let attr = w.run(op).unwrap();
    assert_eq!(attr.size, 12_345);
    assert!(attr.mtime > attr.btime);
    let op = w.client.lookup(&root, Ino::ROOT, b"f");
    assert_eq!(w.run(op).unwrap().size, 12_345);
    let op = w.client.readdir(&root, Ino::ROOT, 2, 10, true);
    assert_eq!(w.run(op).unwrap().entries[0].attr.unwrap().size, 12_345);
    let old = amphi_types::Timespec { sec: 5, nsec: 6 };
    let set = amphi_types::SetAttr { mtime: Some(amphi_types::TimeSet::At(old)), ..Default::default() };
    let op = w.client.setattr(&root, file.ino(), set, None);
    assert_eq!(w.run(op).unwrap().mtime, old);
    let op = w.client.fsync(&root, &file, false);
    w.run(op).unwrap();
    let op = w.client.getattr(&root, file.ino());
    let attr = w.run(op).unwrap();
    assert_eq!((attr.size, attr.mtime), (12_345, old), "write-back does not undo an explicit time");
    drop(file);
    w.check_clean();
}

/// Goal: virtual and control attributes have their documented effects, and users who may not see them do not see them.
/// Method: a story with three users.
#[test]
fn virtual_and_control_attributes() {
    let mut w = World::new(1, &[]);
    let root = Ctx::root();
    let user = Ctx { cred: Cred::new(1000, 1000, Vec::new()), ..Ctx::root() };
    let file = w.create("f", OpenFlags::WRITE);
    let ino = file.ino();
    let get = |w: &mut World, ctx: &Ctx, name: &str| {
        let op = w.client.getxattr(ctx, ino, name.as_bytes());
        w.run(op).map(|v| String::from_utf8(v).unwrap())
    };
    let set = |w: &mut World, ctx: &Ctx, name: &str, value: &str| {
        let op = w.client.setxattr(ctx, ino, name.as_bytes(), value.as_bytes(), XattrMode::Set);
        w.run(op)
    };
    assert_eq!(get(&mut w, &root, "user.amphi.layout").unwrap(), "growing,size=1M,count=4");
    set(&mut w, &root, "user.amphi.layout", "striped,size=64K,count=2").unwrap();
    assert_eq!(get(&mut w, &user, "user.amphi.layout").unwrap(), "striped,size=64K,count=2");
    assert_eq!(set(&mut w, &root, "user.amphi.layout", "striped,size=3"), Err(Errno::Inval));
    assert!(get(&mut w, &root, "user.amphi.error").unwrap().contains("power of two"));
    set(&mut w, &root, "user.amphi.mode", "direct").unwrap();
    assert_eq!(get(&mut w, &root, "user.amphi.mode").unwrap(), "direct");
    set(&mut w, &root, "user.own", "1").unwrap();
    let op = w.client.listxattr(&root, ino);
    assert_eq!(w.run(op).unwrap(), b"user.own\0", "who copies all attributes leaves place and mode alone");

    assert!(get(&mut w, &root, "user.amphi.stats").unwrap().contains("create"));
    assert!(get(&mut w, &root, "user.amphi.stats.json").unwrap().starts_with('{'));
    set(&mut w, &root, "user.amphi.stats", "reset").unwrap();
    assert!(!get(&mut w, &root, "user.amphi.stats").unwrap().contains("create "));
    set(&mut w, &root, "user.amphi.set", "hybrid.small_bytes=4K").unwrap();
    let shown = get(&mut w, &root, "user.amphi.tunables.hybrid.small*").unwrap();
    assert!(shown.starts_with("hybrid.small_bytes=4K # "), "{shown}");
    assert_eq!(set(&mut w, &root, "user.amphi.set", "hybrid.smal=4K"), Err(Errno::Inval));
    assert!(get(&mut w, &root, "user.amphi.error").unwrap().contains("no tunable matches"));
    set(&mut w, &root, "user.amphi.set", "server.x=5").unwrap();
    assert_eq!(get(&mut w, &root, "user.amphi.tunables.server.x").unwrap(), "server.x=5 # help\n");
    assert!(get(&mut w, &root, "user.amphi.status").unwrap().contains("\"uptime_s\":1"));
    for name in ["stats", "tunables", "status", "error"] {
        assert_eq!(get(&mut w, &user, &format!("user.amphi.{name}")), Err(Errno::Perm), "{name}");
    }
    assert_eq!(set(&mut w, &user, "user.amphi.set", "hybrid.small_bytes=4K"), Err(Errno::Perm));
    assert_eq!(get(&mut w, &root, "user.amphi.rubbish"), Err(Errno::NoData));
    drop(file);
    w.check_clean();
}
