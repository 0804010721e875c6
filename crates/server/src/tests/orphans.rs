//! Inodes without a name: inodes that get their first name while their last open ends, and inodes that a restart keeps
//! open for clients that may repeat a request.

use super::company::{name_key, with_two};
use super::*;
use crate::message::{TargetReply, TargetRequest};
use crate::ops::KEPT_FOR;
use crate::records::TxId;
use crate::session::reach::Terms;
use amphi_env::sim::CrashKind;
use amphi_meta::Part;
use amphi_wire::RequestId;
use futures_util::future::{join, join_all};

const R: Access = Access { read: true, write: false };
const T1: TargetId = TargetId(1);

/// A directory of the root on target 1.
async fn apart(c: &Client) -> Ino {
    let text = (0..).map(|i| format!("d{i}")).find(|text| {
        let pool = c.link.welcome().pool;
        amphi_types::layout::directory_target(Ino::ROOT, text.as_bytes(), pool) == T1
    });
    c.mkdir(Ino::ROOT, &text.expect("some are there")).await.expect("mkdir")
}

async fn tmp(c: &Client, dir: Ino, open: Access) -> Ino {
    c.inode(Request::MakeTmp { dir, perm: 0o600, umask: 0, open }).await.expect("made").attr.ino
}

/// Returns how many links an inode of target 1 has, or `None` if it does not exist.
async fn links(server: &Server<SimEnv>, ino: Ino) -> Option<u32> {
    match server.worker.ask(T1, TargetRequest::View { ino, asker: None }).await {
        Ok(TargetReply::View(view, _)) => Some(view.attr.nlink),
        Err(Errno::Stale) => None,
        other => panic!("{other:?}"),
    }
}

/// Goal: if a first name is promised to a file without a name, the file outlives its last open until the outcome is
/// known, whether the open is closed or its session ends. After that it has a name, or is removed. Its bytes are not
/// freed meanwhile. Method: the test sends the request for the promise, as target 0 would, and commits or aborts it.
#[test]
fn a_promised_first_name_counts() {
    for (closes, happens) in [(true, true), (true, false), (false, true), (false, false)] {
        let place = Place::new(441, 2, 1);
        let run = async {
            let server = place.start().await.unwrap();
            let c = place.client(1).await.unwrap();
            let dir = apart(&c).await;
            let ino = tmp(&c, dir, RW).await;
            let tx = TxId { coordinator: TargetId(0), number: 1 << 60 };
            let (session, now) = (SessionId(1), Timespec { sec: 2_000_000_000, nsec: 0 });
            let hold = TargetRequest::Hold { tx, session, now, parts: vec![Part::Link { ino }] };
            assert!(matches!(server.worker.ask(T1, hold).await, Ok(TargetReply::Done)));
            let discard = Call { target: T1, cred: Cred::root(), op: Request::Discard { ino, opens: 1 } };
            let discarded = c.link.call(Lane::Normal, discard, None, 0).await.unwrap().0.result;
            assert_eq!(discarded, Err(Errno::Busy), "its bytes will be wanted");
            if closes {
                c.call(Request::Close { ino, access: RW, atime: None }).await.unwrap();
            } else {
                server.worker.tell(T1, TargetRequest::SessionStop(session)).await.unwrap();
                server.worker.tell(T1, TargetRequest::SessionForget(session, true)).await.unwrap();
            }
            assert_eq!(links(&server, ino).await, Some(0), "closes: {closes}");
            let outcome = if happens { TargetRequest::Commit(tx) } else { TargetRequest::Abort(tx) };
            server.worker.tell(T1, outcome).await.unwrap();
            place.sim.node("client").sleep(Duration::from_millis(10)).await;
            assert_eq!(links(&server, ino).await, happens.then_some(1), "closes: {closes}");
        };
        place.sim.block_on(run).expect("no deadlock");
    }
}

/// Goal: the same on one target, where the link waits for the revocation of tokens of another mount: the file has its
/// name and its bytes. Method: a small file, and one over two targets. The other mount answers the revocation after the
/// close.
#[test]
fn a_first_name_that_waits_counts() {
    with_two(442, 2, 1, async |_, a, b| {
        for (text, wide) in [("small", false), ("wide", true)] {
            let ino = tmp(a, Ino::ROOT, RW).await;
            if wide {
                a.call(Request::Spread { ino }).await.unwrap();
            }
            for stripe in 0..=u32::from(wide) {
                let (object, offset) = (ObjectId { ino, stripe }, u64::from(stripe) << 20);
                let mtime = Timespec { sec: 2_000_000_000, nsec: 0 };
                let (generation, server_lock, kill_suidgid) = (0, true, false);
                let op = Request::Write {
                    object,
                    offset,
                    generation,
                    mtime,
                    server_lock,
                    kill_suidgid,
                    checksums: Default::default(),
                    cover: Default::default(),
                };
                a.ask(op, Some(Buf::zeroed(8192))).await.0.unwrap();
            }
            assert_eq!(b.lookup(Ino::ROOT, text).await, Err(Errno::NoEnt));
            b.held.pushes.borrow_mut().clear();
            b.held.deaf.set(true);
            let (linked, ()) = join(a.link(ino, Ino::ROOT, text), async {
                let (target, id, keys) = b.held.revoked().await;
                assert!(keys.contains(&name_key(Ino::ROOT, text)), "{keys:?}");
                a.call(Request::Close { ino, access: RW, atime: None }).await.unwrap();
                b.held.deaf.set(false);
                b.reply(&Push::Revoke { target, id, upto: 0, keys }).await;
                for push in b.held.pushes.take() {
                    b.reply(&push).await;
                }
            })
            .await;
            assert_eq!(linked.unwrap().attr.nlink, 1);
            let seen = b.lookup(Ino::ROOT, text).await.unwrap().attr;
            assert_eq!((seen.ino, seen.nlink, seen.size), (ino, 1, (u64::from(wide) << 20) + 8192));
            a.unlink(Ino::ROOT, text).await.unwrap();
        }
    });
}

/// Goal: a file that was made and closed before a restart does not stay open after it. If it is unlinked it is removed,
/// and no session counts as its writer. Method: many files are made at once, so in as many slots, and closed. The
/// server is killed, and later requests use only one slot.
#[test]
fn opens_of_an_earlier_run_end() {
    let place = Place::new(443, 1, 1);
    let run = async {
        let _server = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        let inodes = async || {
            let Ok(Reply::StatFs(space)) = c.call(Request::StatFs).await else { panic!("no space") };
            space.inodes
        };
        let before = inodes().await;
        let names: Vec<String> = (0..20).map(|i| format!("f{i}")).collect();
        let made = |text| c.make(Ino::ROOT, text, Make::File { open: Some(RW), exclusive: true });
        let made = join_all(names.iter().map(|text| made(text))).await;
        let made: Vec<Ino> = made.into_iter().collect::<Result<_>>().unwrap();
        let close = |ino| c.call(Request::Close { ino, access: RW, atime: None });
        join_all(made.iter().map(|ino| close(*ino))).await.into_iter().collect::<Result<Vec<_>>>().unwrap();
        place.sim.crash("server", CrashKind::Process);
        let _server = place.start().await.unwrap();
        for text in &names {
            c.unlink(Ino::ROOT, text).await.unwrap();
        }
        assert!(inodes().await > before + 10, "any of them may be asked for again");
        place.sim.node("client").sleep(KEPT_FOR + Duration::from_secs(1)).await;
        assert_eq!(inodes().await, before);
        for ino in made {
            assert_eq!(c.stat(ino).await, Err(Errno::Stale));
        }
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: a client that repeats a request of an earlier run after its open has ended has the file open, if it exists.
/// Method: two files are made by requests in slots that the link does not use. The server is killed, one of the files
/// is removed, and both requests are repeated.
#[test]
fn an_answer_that_is_asked_for_late_opens_again() {
    let place = Place::new(444, 1, 1);
    let run = async {
        let server = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        let call = |text| {
            let make = Make::File { open: Some(R), exclusive: true };
            let op = Request::Make { dir: Ino::ROOT, name: name(text), make, perm: 0o644, umask: 0 };
            Call { target: TargetId(0), cred: Cred::root(), op }
        };
        let id = |slot| RequestId { slot, seq: 1 };
        let mut made = Vec::new();
        for (slot, text) in [(900, "stays"), (901, "goes")] {
            let (answer, _) =
                crate::dispatch::call(&server.worker, SessionId(1), id(slot), call(text), None, Terms::default()).await;
            let Ok(Reply::Made { inode, .. }) = answer.result else { panic!("{answer:?}") };
            made.push(inode.attr.ino);
        }
        drop(server);
        place.sim.crash("server", CrashKind::Process);
        let server = place.start().await.unwrap();
        c.unlink(Ino::ROOT, "goes").await.unwrap();
        assert_eq!(c.stat(made[1]).await.unwrap().nlink, 0, "it may be asked for");
        place.sim.node("client").sleep(KEPT_FOR + Duration::from_secs(1)).await;
        assert_eq!(c.stat(made[1]).await, Err(Errno::Stale));
        let again = async |slot, text| {
            crate::dispatch::call(&server.worker, SessionId(1), id(slot), call(text), None, Terms::default())
                .await
                .0
                .result
        };
        assert_eq!(again(901, "goes").await, Err(Errno::Stale));
        assert!(matches!(again(900, "stays").await, Ok(Reply::Made { inode, .. }) if inode.attr.ino == made[0]));
        c.unlink(Ino::ROOT, "stays").await.unwrap();
        assert_eq!(c.stat(made[0]).await.unwrap().nlink, 0, "it is open");
        c.call(Request::Close { ino: made[0], access: R, atime: None }).await.unwrap();
        assert_eq!(c.stat(made[0]).await, Err(Errno::Stale));
    };
    place.sim.block_on(run).unwrap();
}

/// Goal: a mount that has listed a directory without a name that is moved elsewhere finds it there (Promise S5).
/// Method: the test requests the promise of the directory that gets the name. The listing waits for its outcome, and
/// not for a name that is promised later.
#[test]
fn listings_wait_for_promised_names() {
    let place = Place::new(445, 2, 1);
    let run = async {
        let server = place.start().await.unwrap();
        let c = place.client(1).await.unwrap();
        let dir = apart(&c).await;
        let child = c.create(Ino::ROOT, "f").await.unwrap();
        let promise = async |number: u64, text| {
            let tx = TxId { coordinator: TargetId(0), number: (1 << 60) + number };
            let insert = Part::InsertDentry { dir, name: name(text), child, kind: Kind::File };
            let parts = vec![insert, Part::TouchDir { dir, links: 0 }];
            let now = Timespec { sec: 2_000_000_000, nsec: 0 };
            let hold = TargetRequest::Hold { tx, session: SessionId(1), now, parts };
            assert!(matches!(server.worker.ask(T1, hold).await, Ok(TargetReply::Done)));
            tx
        };
        let first = promise(1, "moved").await;
        let listed = Cell::new(false);
        let lists = async {
            let all = c.list(dir).await.unwrap();
            listed.set(true);
            all
        };
        let (all, second) = join(lists, async {
            let env = place.sim.node("client");
            env.sleep(Duration::from_secs(1)).await;
            assert!(!listed.get(), "the name may be gone where it was");
            let second = promise(2, "later").await;
            server.worker.tell(T1, TargetRequest::Commit(first)).await.unwrap();
            env.sleep(Duration::from_secs(1)).await;
            assert!(listed.get());
            second
        })
        .await;
        assert_eq!(all, ["moved"]);
        server.worker.tell(T1, TargetRequest::Abort(second)).await.unwrap();
        assert_eq!(c.list(dir).await.unwrap(), ["moved"]);
    };
    place.sim.block_on(run).expect("no deadlock");
}
