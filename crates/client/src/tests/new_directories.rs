//! Names that do not exist in directories that the mount has made.

use super::cluster::{calls, in_cluster, root};
use crate::Client;
use crate::api::{Ctx, OpenFlags};
use amphi_types::{Cred, Errno, Ino, SetAttr};
use amphi_wire::RenameMode;

async fn mkdir(client: &Client, ctx: &Ctx, dir: Ino, name: &str) -> Ino {
    client.mkdir(ctx, dir, name.as_bytes(), 0o755).await.expect("mkdir").ino
}

async fn make(client: &Client, dir: Ino, name: &str) -> Ino {
    client.create(&root(), dir, name.as_bytes(), 0o644, OpenFlags::WRITE).await.expect("create").attr.ino
}

/// The result of a look-up, and the number of its messages.
async fn look(client: &Client, ctx: &Ctx, dir: Ino, name: &str) -> (Result<Ino, Errno>, u64) {
    let before = calls(client);
    let found = client.lookup(ctx, dir, name.as_bytes()).await.map(|attr| attr.ino);
    (found, calls(client) - before)
}

const ABSENT: (Result<Ino, Errno>, u64) = (Err(Errno::NoEnt), 0);

/// Goal: in sole mode, a name that was never made in a directory that this mount made costs no message. After any
/// operation that may have made it, a message is sent and the name is found. So are names in other directories. Method:
/// each way to make a name, followed by look-ups.
#[test]
fn alone_absent_names_are_known() {
    for servers in [1, 2] {
        in_cluster(20, servers, async |c| {
            let a = c.mount().await;
            let (client, ctx) = (&a, &root());
            assert_eq!(look(client, ctx, Ino::ROOT, "x").await, (Err(Errno::NoEnt), 1), "not made by this mount");
            for n in 0..4 {
                let d = mkdir(client, ctx, Ino::ROOT, &format!("d{n}")).await;
                assert_eq!(look(client, ctx, d, "file").await, ABSENT);
                let file = make(client, d, "file").await;
                assert_eq!(look(client, ctx, d, "file").await.0, Ok(file));
                client.link(ctx, file, d, b"link").await.expect("link");
                client.symlink(ctx, d, b"symlink", b"to").await.expect("symlink");
                client.rename(ctx, (d, b"file"), (d, b"moved"), RenameMode::Replace).await.expect("rename");
                for name in ["link", "symlink", "moved"] {
                    assert!(look(client, ctx, d, name).await.0.is_ok(), "{name}");
                }
                assert_eq!(
                    look(client, ctx, d, "file").await,
                    (Err(Errno::NoEnt), 1),
                    "it is gone, as the server says"
                );
                assert_eq!(look(client, ctx, d, "other").await, ABSENT);
                let sub = mkdir(client, ctx, d, "sub").await;
                assert_eq!(look(client, ctx, sub, "f").await, ABSENT);
                make(client, Ino::ROOT, &format!("f{n}")).await;
                let from = format!("f{n}");
                client.rename(ctx, (Ino::ROOT, from.as_bytes()), (sub, b"f"), RenameMode::NoReplace).await.expect("in");
                assert!(look(client, ctx, sub, "f").await.0.is_ok(), "moved in from elsewhere");
                client.unlink(ctx, sub, b"f").await.expect("unlink");
                client.rmdir(ctx, d, b"sub").await.expect("rmdir");
                assert!(look(client, ctx, sub, "f").await.0.is_err(), "the directory has gone");
            }
        });
    }
}

/// Goal: a user without permission to search the directory is refused, and a user with permission gets the answer.
/// Method: a user, before and after chmod.
#[test]
fn permission_comes_first() {
    in_cluster(21, 1, async |c| {
        let a = c.mount().await;
        let user = Ctx { cred: Cred::new(7, 7, vec![]), ..root() };
        let d = mkdir(&a, &root(), Ino::ROOT, "d").await;
        assert_eq!(look(&a, &user, d, "x").await.0, Err(Errno::NoEnt));
        let set = SetAttr { perm: Some(0o700), ..SetAttr::default() };
        a.setattr(&root(), d, set, None).await.expect("chmod");
        assert_eq!(look(&a, &user, d, "x").await.0, Err(Errno::Access));
        assert_eq!(look(&a, &root(), d, "x").await, ABSENT);
    });
}

/// Goal: once another mount exists, the names that it makes are seen in all directories, whether they were made before
/// it came or after it has left. Method: a second mount makes names between look-ups of the first.
#[test]
fn others_end_it() {
    in_cluster(22, 1, async |c| {
        let a = c.mount().await;
        let d = mkdir(&a, &root(), Ino::ROOT, "d").await;
        assert_eq!(look(&a, &root(), d, "x").await, ABSENT);
        let b = c.mount().await;
        let x = make(&b, d, "x").await;
        assert_eq!(look(&a, &root(), d, "x").await.0, Ok(x));
        let e = mkdir(&a, &root(), Ino::ROOT, "e").await;
        let y = make(&b, e, "y").await;
        assert_eq!(look(&a, &root(), e, "y").await.0, Ok(y));
    });
}
