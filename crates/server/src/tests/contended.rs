//! The replies that report that an object is contended: all replies about locks and data, and those of batches for each
//! part.

use super::locks::{ask, counter, join_group, locked, make, set, with_three};
use super::*;
use amphi_types::ByteRange;
use amphi_wire::{BatchPart, LockExtent, LockMode, ReadPart};

const MTIME: Timespec = Timespec { sec: 2_000_000_000, nsec: 0 };

/// The contention that the answer reports: of the object of the request, and of which parts.
async fn told(client: &Client, op: Request, payload: Option<Buf>) -> (bool, Vec<usize>) {
    let (answer, _) = client.answer(op, payload).await.expect("an answer");
    (answer.contended, answer.contended_places().collect())
}

/// Two sessions want the same bytes.
async fn fight(a: &Client, b: &Client, object: ObjectId) {
    for client in [a, b] {
        locked(client, ask(object, LockMode::Write, 0, 10, LockExtent::Exact)).await;
    }
}

/// A new file, with the lock from the answer.
async fn made(client: &Client, text: &str) -> (ObjectId, Option<u64>, bool) {
    let (answer, _) = client.answer(make(text), None).await.expect("an answer");
    let Ok(Reply::Made { inode, lock, .. }) = answer.result else { panic!("{:?}", answer.result) };
    (ObjectId { ino: inode.attr.ino, stripe: 0 }, lock, answer.contended)
}

/// Goal: every reply about locks or data reports whether its object is contended, whatever the result of the request. A
/// batch reports it for each part. Method: files of which one is contended. Each kind of request is sent for that file
/// and for another one.
#[test]
fn replies_of_every_kind_tell() {
    with_three(101, async |_, [a, b, c], f| {
        set(&a, "server.contended_conflicts", "1").await;
        let (g, first, _) = made(&b, "g").await;
        let (h, second, _) = made(&b, "h").await;
        b.call(Request::LockCancel { locks: [first, second].into_iter().flatten().collect() })
            .await
            .expect("given back");
        fight(&a, &c, f).await;
        for (object, is) in [(f, true), (g, false)] {
            let (range, generation, mtime, server_lock) = (ByteRange::new(100, 200), 0, MTIME, true);
            let write = Request::Write {
                object,
                offset: 100,
                generation,
                mtime,
                server_lock,
                kill_suidgid: false,
                checksums: Default::default(),
                cover: Default::default(),
            };
            let requests = [
                (ask(object, LockMode::Read, 100, 200, LockExtent::Exact), None),
                (ask(object, LockMode::Write, 0, 10, LockExtent::Ahead), None),
                (join_group(object, 7, false, None), None),
                (write, Some(Buf::zeroed(100))),
                (Request::Read { object, range, server_lock, advice: Default::default() }, None),
                (Request::Allocate { object, range, generation, mtime, server_lock }, None),
                (Request::Punch { object, range, generation, mtime, server_lock }, None),
            ];
            for (op, payload) in requests {
                let what = format!("{op:?}");
                assert_eq!(told(&a, op, payload).await, (is, vec![]), "{what}");
            }
        }
        let part = |object, offset| BatchPart {
            object,
            offset,
            len: 10,
            generation: 0,
            mtime: MTIME,
            checksums: Default::default(),
            cover: Default::default(),
        };
        let parts = vec![part(f, 0), part(f, 8192), part(g, 0)];
        let batch = Request::WriteBatch { parts };
        assert_eq!(told(&a, batch, Some(Buf::zeroed(30))).await, (false, vec![0, 1]));
        let part = |object: ObjectId, text| ReadPart { name: name(text), ino: object.ino, data: true };
        let parts = vec![part(h, "h"), part(f, "f"), part(f, "other")];
        let batch = Request::ReadBatch { dir: Ino::ROOT, parts, bytes_max: 1 << 20, ask_back: false, tokens: false };
        assert_eq!(told(&b, batch, None).await, (false, vec![1, 2]), "also of what it did not get");
    });
}

/// Goal: a new file is reported like others, though only a client that knows its number before can have caused
/// contention. Method: inode numbers are consecutive, so the object of the next file is made contended before the file
/// is made.
#[test]
fn a_new_file_tells() {
    with_three(102, async |_, [a, b, c], f| {
        set(&a, "server.contended_conflicts", "1").await;
        let (first, ..) = made(&c, "g1").await;
        let step = first.ino.0 - f.ino.0;
        let next = ObjectId { ino: Ino(first.ino.0 + step), stripe: 0 };
        fight(&a, &b, next).await;
        assert_eq!(counter(&a, "lock_objects_contended").await, 1);
        let held = b.held.pushes.borrow().iter().any(|p| matches!(p, Push::Callback { object, .. } if *object == next));
        assert!(!held, "the second has it still");
        assert_eq!(made(&c, "g2").await, (next, None, true), "not had, and told");
        let (_, lock, contended) = made(&c, "g3").await;
        assert!(lock.is_some() && !contended);
    });
}
