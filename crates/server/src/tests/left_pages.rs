//! Pages that a mount could not drop before it returned the locks on them.

use super::*;
use amphi_types::{ByteRange, SetAttr, Timespec};

const PAGE: usize = 4096;

/// Goal: the write-back of pages left behind omits bytes that others have changed since, in every possible way of
/// changing them. Bytes of a page that was read again count as the mount's own. Without a note nothing is written.
/// Method: one session has a page of `o`, in which it has stored `s` everywhere. Another one writes, punches and
/// truncates.
#[test]
fn left_pages_leave_out_what_others_changed() {
    let place = Place::new(81, 1, 1);
    let run = async {
        let _server = place.start().await.unwrap();
        let a = place.client(1).await.unwrap();
        let b = place.client(2).await.unwrap();
        let f = a.create(Ino::ROOT, "f").await.unwrap();
        for client in [&a, &b] {
            let access = Access { read: true, write: true };
            client.call(Request::Open { ino: f, access, exec: false }).await.expect("open");
        }
        let object = ObjectId { ino: f, stripe: 0 };
        let mtime = Timespec { sec: 1, nsec: 0 };
        let write = |offset: u64| Request::Write {
            object,
            offset,
            generation: 9,
            mtime,
            server_lock: true,
            kill_suidgid: false,
            checksums: Default::default(),
            cover: Default::default(),
        };
        let bytes = async || {
            let op = Request::Read {
                object,
                range: ByteRange::new(0, 2 * PAGE as u64),
                server_lock: true,
                advice: Default::default(),
            };
            let (reply, payload) = a.ask(op, None).await;
            assert_eq!(reply, Ok(Reply::Data));
            let mut bytes = payload.map(|p| p.to_vec()).unwrap_or_default();
            bytes.resize(2 * PAGE, 0);
            bytes
        };
        let put = async |client: &Client, op: Request, data: Vec<u8>| client.ask(op, Some(Buf::copy_of(&data))).await.0;
        put(&a, write(0), vec![b'o'; 2 * PAGE]).await.expect("write");
        let Ok(Reply::PagesLeft(left)) = a.call(Request::PagesLeft { ino: f }).await else { panic!("a note") };
        put(&b, write(8), vec![b'b'; 8]).await.expect("write");
        b.call(Request::Punch { object, range: ByteRange::new(100, 200), generation: 9, mtime, server_lock: true })
            .await
            .expect("punch");
        let back = |offset: u64, left: u64| Request::PagesWrite {
            object,
            offset,
            generation: 9,
            mtime,
            left,
            checksums: Default::default(),
        };
        put(&a, back(0, left), vec![b's'; PAGE]).await.expect("write back");
        let mut want = vec![b's'; PAGE];
        want[8..16].fill(b'b');
        want[100..200].fill(0);
        want.resize(2 * PAGE, b'o');
        assert!(bytes().await == want, "others' changes stay, and what they did not change is written");
        let page = ByteRange::new(0, PAGE as u64);
        let (reply, payload) = a.ask(Request::PagesRead { object, range: page, left }, None).await;
        assert!(reply == Ok(Reply::Data) && payload.is_some_and(|p| p[..] == want[..PAGE]));
        put(&a, back(0, left), vec![b'n'; PAGE]).await.expect("write back");
        want[..PAGE].fill(b'n');
        assert!(bytes().await == want, "a page that was read anew is written whole");
        let set = SetAttr { size: Some(PAGE as u64), open_for_write: true, ..SetAttr::default() };
        b.inode(Request::SetAttr { ino: f, set }).await.expect("cut");
        put(&a, back(PAGE as u64, left), vec![b's'; PAGE]).await.expect("nothing of it is left");
        assert_eq!(a.stat(f).await.unwrap().size, PAGE as u64, "what was cut off does not come back");
        assert_eq!(put(&a, back(0, left + 1), vec![b'x'; PAGE]).await, Err(Errno::Stale), "no such note");
        a.call(Request::PagesTaken { ino: f, left }).await.expect("the end");
        assert_eq!(put(&a, back(0, left), vec![b'x'; PAGE]).await, Err(Errno::Stale), "it has ended");
        want[PAGE..].fill(0);
        assert!(bytes().await == want);
    };
    place.sim.block_on(run).unwrap();
}
