//! Hostile mounts that claim opens which they do not have: an open without access is no right to data, and a close
//! gives no right.

use super::*;

pub(super) const NONE: Access = Access { read: false, write: false };
pub(super) const R: Access = Access { read: true, write: false };
pub(super) const W: Access = Access { read: false, write: true };

/// A file of root's with these permissions and one object on each of two targets, which each have 5,000 bytes.
pub(super) async fn wide_file(root: &Client, text: &str, perm: u16) -> (Ino, [ObjectId; 2]) {
    let ino = root.make(Ino::ROOT, text, Make::File { open: Some(RW), exclusive: true }).await.unwrap();
    let layout = Layout { pattern: Pattern::Striped, stripe_size: 64 << 10, stripe_count: 2, pool: 2 };
    root.call(Request::SetLayout { ino, layout: Some(layout), advice: None }).await.unwrap();
    root.call(Request::Spread { ino }).await.unwrap();
    let objects = [0, 1].map(|stripe| ObjectId { ino, stripe });
    for object in objects {
        root.ask(data_write(object), Some(bytes(1, 0, 5000))).await.0.unwrap();
    }
    let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
    root.inode(Request::SetAttr { ino, set }).await.unwrap();
    (ino, objects)
}

impl Client {
    async fn opened(&self, ino: Ino, access: Access, exec: bool) -> Result<()> {
        self.call(Request::Open { ino, access, exec }).await.map(drop)
    }

    /// Whether the session may read and change the data of a file, each request asked at both targets.
    async fn data_rights(&self, ino: Ino, objects: [ObjectId; 2]) -> (bool, bool) {
        let (range, mtime) = (ByteRange::new(0, 4096), Timespec { sec: 2_000_000_000, nsec: 0 });
        let (mut looks, mut changes) = (Vec::new(), Vec::new());
        for object in objects {
            looks.push(self.call(data_read(object)).await.map(drop));
            looks.push(self.call(Request::DataMap { object, offset: 0, runs_max: 8 }).await.map(drop));
            looks.push(self.call(Request::Extents { object, offset: 0, extents_max: 8 }).await.map(drop));
            changes.push(self.ask(data_write(object), Some(bytes(1, 0, 5000))).await.0.map(drop));
            let punch = Request::Punch { object, range, generation: 0, mtime, server_lock: true };
            changes.push(self.call(punch).await.map(drop));
            let allocate = Request::Allocate { object, range, generation: 0, mtime, server_lock: true };
            changes.push(self.call(allocate).await.map(drop));
        }
        changes.push(self.call(Request::Spread { ino }).await.map(drop));
        let is_right = |answers: Vec<Result<()>>| {
            let refused = answers.iter().filter(|answer| **answer == Err(Errno::BadFd)).count();
            assert!(refused == 0 || refused == answers.len(), "{ino}: {answers:?}");
            assert!(refused > 0 || answers.iter().all(Result::is_ok), "{ino}: {answers:?}");
            refused == 0
        };
        (is_right(looks), is_right(changes))
    }
}

/// Runs `story` with root's mount and one of a user of the machine.
fn with_user(seed: u64, story: impl AsyncFnOnce(&Client, Client)) {
    with_server(seed, 2, 1, async |place, root| {
        let c = place.users_client(5, Role::Mount).await.expect("let in");
        c.opens.set(false);
        story(root, c).await;
    });
}

/// Goal: an open without access, which every user gets of every file, shows and changes no byte of it, on the target of
/// the inode and on others, and neither does such an open that is presented after a restart. The opens that real mounts
/// make give what they need: an open for execution is one for reading, and one for writing only may read around what it
/// writes. Method: a table of opens of a user on files of root's; the data requests on both targets.
#[test]
fn an_open_without_access_shows_no_data() {
    with_user(870, async |root, c| {
        for (text, perm, access, exec, rights) in [
            ("a", 0o600, NONE, false, (false, false)),
            ("b", 0o666, NONE, false, (false, false)),
            ("c", 0o711, NONE, true, (false, false)),
            ("d", 0o711, R, true, (true, false)),
            ("e", 0o644, R, false, (true, false)),
            ("f", 0o622, W, false, (true, true)),
            ("g", 0o666, RW, false, (true, true)),
        ] {
            let (ino, objects) = wide_file(root, text, perm).await;
            assert_eq!(c.data_rights(ino, objects).await, (false, false), "{text} is not open");
            assert_eq!(c.opened(ino, access, exec).await, Ok(()), "{text}");
            assert_eq!(c.data_rights(ino, objects).await, rights, "{text}");
            c.call(Request::Close { ino, access, atime: None }).await.unwrap();
            assert_eq!(c.data_rights(ino, objects).await, rights, "{text}: requests that were sent before the close");
        }
        let (ino, objects) = wide_file(root, "h", 0o600).await;
        let locks = vec![];
        c.call(Request::Represent { opens: vec![(ino, NONE)], locks }).await.unwrap();
        assert_eq!(c.data_rights(ino, objects).await, (false, false), "presented");
    });
}

/// Goal: a close ends an open of the access that it names, and gives no right that the session did not have. Method: a
/// user has a file open for reading, and his mount closes it, and others, as if they were open for writing.
#[test]
fn a_close_gives_no_right() {
    with_user(871, async |root, c| {
        let (ino, objects) = wide_file(root, "f", 0o644).await;
        let (none, nones) = wide_file(root, "none", 0o600).await;
        c.opened(ino, R, false).await.unwrap();
        c.opened(none, NONE, false).await.unwrap();
        let close = |ino, access| Request::Close { ino, access, atime: None };
        let batch = |ino, access| Request::CloseBatch { closes: vec![(ino, access, None)] };
        let cut = SetAttr { size: Some(0), open_for_write: true, ..SetAttr::default() };
        for access in [RW, W] {
            for op in [close(ino, access), batch(ino, access), close(none, access), batch(none, access)] {
                c.call(op).await.unwrap();
            }
            for op in [close(none, R), batch(none, R)] {
                c.call(op).await.unwrap();
            }
            assert_eq!(c.data_rights(ino, objects).await, (true, false), "{access:?}");
            assert_eq!(c.data_rights(none, nones).await, (false, false), "{access:?}");
            for ino in [ino, none] {
                let cut = Request::SetAttr { ino, set: cut };
                assert_eq!(c.inode(cut).await.map(drop), Err(Errno::Access), "{access:?}");
            }
        }
        root.unlink(Ino::ROOT, "f").await.unwrap();
        root.call(close(ino, RW)).await.unwrap();
        assert_eq!(c.data_rights(ino, objects).await, (true, false), "none of the closes has ended its open");
        c.call(close(ino, R)).await.unwrap();
        assert_eq!(c.opened(ino, NONE, false).await, Err(Errno::Stale), "the last open has ended");
    });
}
