//! Failures of write-back and of direct writes.

use super::world::World;
use crate::api::{Ctx, Hints, OpenFlags};
use amphi_env::Buf;
use amphi_types::Errno;
use amphi_wire::XattrMode;

fn filled(len: usize, byte: u8) -> Buf {
    let mut buf = Buf::zeroed(len);
    buf.fill(byte);
    buf
}

/// Goal: a failed write-back is reported once on each open file, the bytes stay readable until then and the server's
/// come back after (Promise S16). Method: the server refuses one write; two handles.
#[test]
fn write_back_errors_stick_once_per_handle() {
    let mut w = World::new(3, &[]);
    let root = Ctx::root();
    let file = w.create("f", OpenFlags::READ_WRITE);
    let op = w.client.open(&root, file.ino(), OpenFlags::READ_WRITE);
    let second = w.run(op).unwrap();
    let op = w.client.write(&root, &file, 0, filled(5000, b'x'), Hints::default());
    w.run(op).unwrap();
    w.server.refuse_writes = vec![(0, Errno::NoSpace)];
    crate::writeback::start(&w.client.core, &file.file, amphi_types::ByteRange::ALL);
    w.settle();
    let mut into = [0; 5000];
    assert_eq!(w.client.try_read(&root, &second, 0, &mut into, Hints::default()), Some(5000), "still readable");
    assert_eq!(into, [b'x'; 5000]);
    let op = w.client.fsync(&root, &file, false);
    assert_eq!(w.run(op), Err(Errno::NoSpace));
    let op = w.client.fsync(&root, &file, false);
    assert_eq!(w.run(op), Ok(()), "once");
    assert_eq!(w.client.flush(&root, &second).wait(None), Err(Errno::NoSpace), "and once on the other handle");
    assert_eq!(w.client.flush(&root, &second).wait(None), Ok(()));
    w.settle();
    let op = w.client.getattr(&root, file.ino());
    assert_eq!(w.run(op).unwrap().size, 0, "the server never got them");
    let op = w.client.open(&root, file.ino(), OpenFlags::READ);
    let late = w.run(op).unwrap();
    assert_eq!(w.client.flush(&root, &late).wait(None), Ok(()), "who opens later hears nothing");
    drop((file, second, late));
    w.check_clean();
}

/// Goal: bytes written again while their write-back failed are not lost. Method: dirty again between start and failure.
#[test]
fn writing_again_survives_a_failed_write_back() {
    let mut w = World::new(4, &[]);
    let root = Ctx::root();
    let file = w.create("f", OpenFlags::READ_WRITE);
    let op = w.client.write(&root, &file, 0, filled(5000, b'x'), Hints::default());
    w.run(op).unwrap();
    w.server.refuse_writes = vec![(0, Errno::Io)];
    crate::writeback::start(&w.client.core, &file.file, amphi_types::ByteRange::ALL);
    assert_eq!(w.client.try_write(&root, &file, 1000, &[b'y'; 100], Hints::default()), Some(100));
    w.settle();
    assert_eq!(w.client.flush(&root, &file).wait(None), Err(Errno::Io));
    let op = w.client.fsync(&root, &file, false);
    w.run(op).unwrap();
    let bytes = w.server.contents(file.ino());
    assert_eq!((bytes.len(), &bytes[1000..1100]), (1100, &[b'y'; 100][..]));
    drop(file);
    w.check_clean();
}

/// Goal: a direct write of which a part failed returns what is contiguous from its start, or the error, and what failed
/// pieces extended is cut off (Promise S17). Method: refuse one piece of four at each place.
#[test]
fn partly_failed_direct_writes() {
    for refused in 0..4u64 {
        for old in [0usize, 300_000] {
            let mut w = World::new(5 + refused, &[]);
            let root = Ctx::root();
            let flags = OpenFlags { direct: true, ..OpenFlags::READ_WRITE };
            let file = w.create("f", flags);
            let op = w.client.setxattr(&root, file.ino(), b"user.amphi.layout", b"striped,size=64K", XattrMode::Set);
            w.run(op).unwrap();
            if old > 0 {
                let op = w.client.write(&root, &file, 0, filled(old, b'o'), Hints::default());
                assert_eq!(w.run(op), Ok(old));
            }
            // Answers come in random order; the refusal counts for the first write at or behind the offset, so the last
            // piece is refused exactly, others at least behind the offset.
            w.server.refuse_writes = vec![(refused * 65536, Errno::NoSpace)];
            let op = w.client.write(&root, &file, 0, filled(4 * 65536, b'n'), Hints::default());
            let result = w.run(op);
            let op = w.client.getattr(&root, file.ino());
            let size = w.run(op).unwrap().size;
            let good = match result {
                Ok(n) => n,
                Err(e) => {
                    assert_eq!(e, Errno::NoSpace);
                    0
                }
            };
            assert!(good as u64 >= refused * 65536 && good < 4 * 65536, "{good}");
            assert_eq!(size as usize, good.max(old));
            assert_eq!(w.server.contents(file.ino()).len(), size as usize);
            assert!(w.server.contents(file.ino())[..good].iter().all(|b| *b == b'n'));
            drop(file);
            w.check_clean();
        }
    }
}

/// Goal: writes to a file that nobody can reach any more are dropped in silence. Method: unlink and close before the
/// write-back.
#[test]
fn write_back_of_a_removed_file() {
    let mut w = World::new(6, &[]);
    let root = Ctx::root();
    let file = w.create("f", OpenFlags::READ_WRITE);
    let ino = file.ino();
    let op = w.client.write(&root, &file, 0, filled(5000, b'x'), Hints::default());
    w.run(op).unwrap();
    drop(file);
    let op = w.client.unlink(&root, amphi_types::Ino::ROOT, b"f");
    w.run(op).unwrap();
    w.server.nodes.remove(&ino);
    w.check_clean();
}
