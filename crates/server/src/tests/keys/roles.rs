//! The roles of holders of keys, and what read-only keys may do.

use super::requests::{called, every_request};
use super::*;

/// Goal: a key has only the rights of its role. A client's key does not serve, administer, or look at others' counters
/// or sessions. An administrator's key does not mount, touches no file and does not act as a server. Method: all kinds
/// of connections with all keys, and then all requests on the connections that are admitted.
#[test]
fn a_role_is_all_that_a_key_has() {
    with_server(91, 2, 2, async |place, root| {
        let f = root.make(Ino::ROOT, "f", Make::File { open: None, exclusive: true }).await.unwrap();
        root.chmod(f, 0o666).await;
        root.chmod(Ino::ROOT, 0o777).await;
        for (name, n, role) in [("c", 1, KeyRole::Client), ("s", 2, KeyRole::Server), ("a", 3, KeyRole::Admin)] {
            root.add(entry(name, n, role)).await;
        }
        for (n, role, words) in [
            (1, Role::Server, "this is the key of a client; a server needs one with the role server"),
            (2, Role::Mount, "this is the key of a server, which does not mount"),
            (2, Role::Admin, "this is the key of a server"),
            (3, Role::Mount, "this is the key of an administrator, which does not mount"),
            (3, Role::Server, "this is the key of a admin"),
            (4, Role::Mount, "is not one of this cluster's"),
            (4, Role::Admin, "is not one of this cluster's"),
            (4, Role::Server, "is not one of this cluster's"),
        ] {
            let refused = why(place.keyed(50 + u64::from(n), role, n).await);
            assert!(refused.contains(words), "{refused}");
        }
        let client = place.keyed(11, Role::Mount, 1).await.expect("a client mounts");
        let looks = place.keyed(12, Role::Admin, 1).await.expect("a client looks around");
        let admin = place.keyed(13, Role::Admin, 3).await.expect("an administrator");
        let administration = ["Counters", "Keys", "Evict"];
        let peers = ["Join", "Ask", "RepresentFor"];
        let around = ["StatFs", "Status", "Map", "Goodbye"];
        for op in every_request(Ino::ROOT, f) {
            let name = called(&op);
            let sets = matches!(op, Request::Tunables { value: Some(_), .. });
            let no_mount = peers.contains(&name.as_str()) || administration.contains(&name.as_str()) || sets;
            if name == "Goodbye" {
                continue;
            }
            let asked = client.call(op.clone()).await;
            assert_eq!(asked == Err(Errno::Perm), no_mount, "a client's mount: {name} {asked:?}");
            let tunes = matches!(op, Request::Tunables { value: None, .. });
            let looked = looks.call(op.clone()).await;
            let allowed = around.contains(&name.as_str()) || tunes;
            // Requests that only mounts may send are refused behind the gate, or have no effect without the session of
            // a mount.
            assert!(allowed == looked.is_ok() || name.starts_with("Company"), "a client looks: {name} {looked:?}");
            let asked = admin.call(op.clone()).await;
            let allowed = allowed || sets || administration.contains(&name.as_str());
            assert!(allowed == asked.is_ok() || name.starts_with("Company"), "an administrator: {name} {asked:?}");
        }
        let Ok(Reply::Status { sessions, .. }) = looks.call(Request::Status).await else { panic!("no status") };
        let seen: Vec<(u64, &str)> = sessions.iter().map(|s| (s.session.0, s.key.as_str())).collect();
        assert_eq!(seen, [(11, "c")], "its own alone");
        let Ok(Reply::Status { sessions, .. }) = admin.call(Request::Status).await else { panic!("no status") };
        assert_eq!(sessions.iter().map(|s| s.key.as_str()).collect::<Vec<_>>(), ["", "c"], "all of them");
    });
}

/// Goal: a read-only key changes nothing by any request, not even access times, and reads. Method: every request, and
/// the state of the files afterwards.
#[test]
fn a_read_only_key_changes_nothing() {
    with_server(92, 1, 1, async |place, root| {
        let f = root.make(Ino::ROOT, "n", Make::File { open: Some(RW), exclusive: true }).await.unwrap();
        root.chmod(f, 0o666).await;
        root.chmod(Ino::ROOT, 0o777).await;
        let object = ObjectId { ino: f, stripe: 0 };
        root.add(KeyEntry { read_only: true, ..entry("reader", 1, KeyRole::Client) }).await;
        let c = place.keyed(2, Role::Mount, 1).await.expect("it mounts");
        let before = (root.stat(f).await.unwrap(), root.stat(Ino::ROOT).await.unwrap());
        let read = Access { read: true, write: false };
        c.call(Request::Open { ino: f, access: read, exec: false }).await.expect("it reads");
        let changes = [
            "SetAttr",
            "Make",
            "MakeTmp",
            "Link",
            "Unlink",
            "RmDir",
            "Rename",
            "Open",
            "SetXattr",
            "RemoveXattr",
            "SetLayout",
            "SetShards",
            "SetLimits",
            "NewProject",
            "Write",
            "Punch",
            "Allocate",
            "Spread",
            "LockEnqueue",
            "GroupLock",
            "Represent",
            "WriteBatch",
            "PagesWrite",
            "Grant",
        ];
        for op in every_request(Ino::ROOT, f).into_iter().filter(|op| *op != Request::Goodbye) {
            let asked = c.call(op.clone()).await;
            let name = called(&op);
            assert_eq!(asked == Err(Errno::ReadOnly), changes.contains(&name.as_str()), "{name} {asked:?}");
        }
        let later = Timespec { sec: 3_000_000_000, nsec: 0 };
        c.call(Request::Open { ino: f, access: read, exec: false }).await.expect("again");
        c.call(Request::Close { ino: f, access: read, atime: Some(later) }).await.expect("closed");
        let bytes =
            Request::Read { object, range: ByteRange::new(0, 10), server_lock: true, advice: Default::default() };
        c.call(Request::Open { ino: f, access: read, exec: false }).await.expect("again");
        c.call(bytes).await.expect("its data");
        c.call(Request::LockEnqueue {
            object,
            mode: LockMode::Read,
            range: ByteRange::new(0, 10),
            extent: LockExtent::Exact,
        })
        .await
        .expect("a lock to read under");
        assert_eq!((root.stat(f).await.unwrap(), root.stat(Ino::ROOT).await.unwrap()), before);
        assert_eq!(root.list(Ino::ROOT).await.unwrap(), ["n"]);
    });
}
