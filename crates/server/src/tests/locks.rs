//! Raw requests to the lock server: switches, lock-ahead, groups.

use super::*;
use amphi_env::sim::CrashKind;
use amphi_types::ByteRange;
use amphi_wire::{LockExtent, LockMode};
use futures_util::future::{join, join3};

/// Runs `story` with three mounts and an empty file.
pub(super) fn with_three(seed: u64, story: impl AsyncFnOnce(&Place, [Client; 3], ObjectId)) {
    let place = Place::new(seed, 1, 1);
    let run = async {
        let server = place.start().await.expect("the server starts");
        let mut clients = Vec::new();
        for n in 1..=3 {
            clients.push(place.client(n).await.expect("it comes"));
        }
        let clients: [Client; 3] = clients.try_into().ok().expect("three");
        let made = clients[0].call(make("f")).await;
        let Ok(Reply::Made { inode, lock: Some(lock), .. }) = made else { panic!("{made:?}") };
        // The file stays open; the lock that was granted with the open is returned.
        clients[0].call(Request::LockCancel { locks: vec![lock] }).await.expect("given back");
        let ino = inode.attr.ino;
        clients[0].held.opens.borrow_mut().push((ino, RW));
        for other in &clients[1..] {
            other.call(Request::Open { ino, access: RW, exec: false }).await.expect("opened");
            other.held.opens.borrow_mut().push((ino, RW));
        }
        story(&place, clients, ObjectId { ino, stripe: 0 }).await;
        drop(server);
    };
    place.sim.block_on(run).expect("the simulation ends");
}

pub(super) fn make(text: &str) -> Request {
    let make = Make::File { open: Some(RW), exclusive: true };
    Request::Make { dir: Ino::ROOT, name: name(text), make, perm: 0o644, umask: 0 }
}

pub(super) fn ask(object: ObjectId, mode: LockMode, start: u64, end: u64, extent: LockExtent) -> Request {
    Request::LockEnqueue { object, mode, range: ByteRange::new(start, end), extent }
}

pub(super) async fn locked(client: &Client, request: Request) -> (u64, ByteRange) {
    match client.call(request).await {
        Ok(Reply::Locked { lock, range }) => (lock, range),
        other => panic!("{other:?}"),
    }
}

async fn write(client: &Client, object: ObjectId, offset: u64, len: usize) -> (bool, Result<Reply>) {
    let mtime = Timespec { sec: 2_000_000_000, nsec: 0 };
    let op = Request::Write {
        object,
        offset,
        generation: 0,
        mtime,
        server_lock: true,
        kill_suidgid: false,
        checksums: Default::default(),
        cover: Default::default(),
    };
    let call = Call { target: TargetId(0), cred: Cred::root(), op };
    let (answer, _) = client.link.call(Lane::Normal, call, Some(Buf::zeroed(len)), 0).await.expect("an answer");
    (answer.contended, answer.result)
}

pub(super) async fn counter(client: &Client, name: &str) -> u64 {
    let Ok(Reply::Counters(all)) = client.call(Request::Counters { reset: false }).await else { panic!("counters") };
    all.iter().find(|(n, _)| n == name).expect("a counter of that name").1
}

pub(super) async fn set(client: &Client, name: &str, value: &str) {
    let op = Request::Tunables { pattern: name.into(), value: Some(value.into()) };
    assert!(matches!(client.call(op).await, Ok(Reply::Tunables(_))), "{name}={value}");
}

/// Goal: if a cached request waited for a direct request, and others wait for it, it is called back when it is granted,
/// although nothing else happens on the target then. Method: a direct write, behind it a cached request, and behind
/// that another one. The sizes make the write take long enough.
#[test]
fn who_goes_on_after_a_direct_request_is_called_back() {
    with_three(91, async |_, [a, b, c], object| {
        let env = a.held.env.borrow().clone().expect("its environment");
        let direct = write(&a, object, 0, 4 << 20);
        let cached = |client, after| {
            let (env, request) = (env.clone(), ask(object, LockMode::Write, 0, 10, LockExtent::Exact));
            async move {
                env.sleep(Duration::from_micros(after)).await;
                locked(client, request).await
            }
        };
        let all = join3(direct, cached(&b, 1), cached(&c, 2));
        let done = amphi_env::timeout(&env, Duration::from_secs(5), all).await;
        assert!(done.is_some(), "nobody told the second that the third waits");
    });
}

/// Goal: granularity, growth and counting follow their tunables from the next request on, and the counters tell.
/// Method: the same requests for neighbouring bytes under each setting.
#[test]
fn switches_are_live() {
    with_three(92, async |_, [a, b, _], object| {
        let at = |start| ask(object, LockMode::Write, start, start + 10, LockExtent::Exact);
        locked(&a, at(0)).await;
        locked(&b, at(100)).await;
        assert_eq!(counter(&a, "lock_callbacks").await, 0, "byte exact");
        set(&a, "server.lock_granularity_bytes", "4K").await;
        let (_, range) = locked(&a, at(200)).await;
        assert_eq!(range, ByteRange::new(0, 4096), "a page, which the other has given back");
        assert!(counter(&a, "lock_callbacks").await == 1 && counter(&a, "lock_conflicts").await == 1);
        assert_eq!(counter(&a, "lock_grants_waited").await, 1);
        set(&a, "server.lock_granularity_bytes", "1").await;
        let grown = ask(object, LockMode::Read, 1 << 20, (1 << 20) + 1, LockExtent::Grown);
        assert_eq!(locked(&b, grown.clone()).await.1, ByteRange::new(1 << 20, u64::MAX));
        set(&a, "server.lock_growth", "off").await;
        assert_eq!(locked(&b, grown).await.1, ByteRange::at(1 << 20, 1));
        assert!(matches!(b.call(make("g")).await, Ok(Reply::Made { lock: None, .. })), "no lock on all of a new file");
        set(&a, "server.contention", "off").await;
        let before = counter(&a, "lock_conflicts").await;
        set(&a, "server.contended_conflicts", "1").await;
        locked(&b, at(205)).await;
        assert_eq!(counter(&a, "lock_conflicts").await, before);
        assert!(!write(&a, object, 205, 5).await.0, "not told of contention");
        set(&a, "server.contention", "on").await;
        locked(&b, at(205)).await;
        assert!(write(&a, object, 205, 5).await.0);
        assert_eq!(counter(&a, "lock_objects_contended").await, 1);
    });
}

/// Goal: with more than 32 locks on an object, a grant ends 32 MiB after its start. With fewer, it ends where the next
/// lock begins. Method: locks far behind, and the same request before and after the lock that makes their number large.
/// (The bounds themselves are tested in `dlm`.)
#[test]
fn growth_ends_where_it_is_crowded() {
    with_three(98, async |_, [a, b, _], object| {
        const FAR: u64 = 1 << 40;
        for (locks, end) in [(0..32, FAR), (32..33, 32 << 20)] {
            for n in locks {
                locked(&a, ask(object, LockMode::Write, FAR + n * 16, FAR + n * 16 + 8, LockExtent::Exact)).await;
            }
            let (lock, range) = locked(&b, ask(object, LockMode::Write, 0, 10, LockExtent::Grown)).await;
            assert_eq!(range, ByteRange::new(0, end));
            b.call(Request::LockCancel { locks: vec![lock] }).await.expect("given back");
        }
    });
}

/// Goal: the rules about which requests count as a conflict. Method: the cases of Lustre's test 32c. Writers one after
/// the other cause no conflict, and writers at the same time more and more. Readers, and a lock-ahead for reading,
/// cause none. A lock-ahead for writing that is refused causes one.
#[test]
fn what_counts_as_a_conflict() {
    with_three(93, async |_, [a, b, c], object| {
        for round in 0..20 {
            write(&a, object, round * 10, 10).await.1.expect("written");
        }
        assert_eq!(counter(&a, "lock_conflicts").await, 0, "one after the other");
        let mut before = 0;
        for _ in 0..3 {
            let all = [&a, &b, &c].map(|client| write(client, object, 0, 1 << 20));
            futures_util::future::join_all(all).await.into_iter().for_each(|(_, done)| assert!(done.is_ok()));
            let now = counter(&a, "lock_conflicts").await;
            assert!(now > before + 1, "at the same time: {before}, {now}");
            before = now;
        }
        let read = |extent| ask(object, LockMode::Read, 0, 100, extent);
        join(locked(&a, read(LockExtent::Grown)), locked(&b, read(LockExtent::Grown))).await;
        locked(&c, read(LockExtent::Ahead)).await;
        assert_eq!(counter(&a, "lock_conflicts").await, before, "readers");
        let refused = c.call(ask(object, LockMode::Write, 0, 100, LockExtent::Ahead)).await;
        assert_eq!(refused, Err(Errno::Again));
        assert_eq!(counter(&a, "lock_conflicts").await, before + 1);
        assert_eq!(counter(&a, "lock_callbacks").await, 0, "nobody was asked for anything");
    });
}

pub(super) fn join_group(object: ObjectId, group: u64, wait: bool, asked: Option<u64>) -> Request {
    Request::GroupLock { object, group, wait, asked }
}

/// Goal: members of a group join and do I/O without waiting for each other or for requests that wait for the end of the
/// group. Requests of others wait. `stat` does not wait and includes the members' cached sizes. Another group waits in
/// the queue, is informed of its turn, and is refused if it may not wait. The end of a session ends its group locks.
/// Method: a sequence of steps of three mounts.
#[test]
fn groups_keep_others_out() {
    with_three(94, async |_, [a, b, c], object| {
        let (cached, _) = locked(&c, ask(object, LockMode::Write, 0, 10, LockExtent::Grown)).await;
        let (first, range) = {
            let Ok(Reply::LockWaits { lock }) = a.call(join_group(object, 7, true, None)).await else {
                panic!("waits")
            };
            let news = |push: &Push| matches!(push, Push::GroupLockNews { lock: l, .. } if *l == lock).then_some(());
            a.held.pushed(news).await;
            locked(&a, join_group(object, 7, true, Some(lock))).await
        };
        assert_eq!(range, ByteRange::ALL);
        let asked_back =
            c.held.pushes.borrow().iter().any(|p| matches!(p, Push::Callback { lock, .. } if *lock == cached));
        assert!(asked_back, "what was cached before has to go");
        let done = Cell::new(false);
        let env = a.held.env.borrow().clone().expect("its environment");
        let stranger = async {
            write(&c, object, 0, 100).await.1.expect("written in the end");
            done.set(true);
        };
        let members = async {
            env.sleep(Duration::from_millis(10)).await;
            let (second, _) = locked(&b, join_group(object, 7, true, None)).await;
            write(&a, object, 0, 50).await.1.expect("a member");
            write(&b, object, 50, 50).await.1.expect("a member");
            assert_eq!(c.call(join_group(object, 8, false, None)).await, Err(Errno::Again));
            let Ok(Reply::LockWaits { lock: other }) = c.call(join_group(object, 8, true, None)).await else {
                panic!()
            };
            b.held.unwritten.borrow_mut().insert(object, (5000, Timespec { sec: 2_100_000_000, nsec: 0 }));
            a.held.unwritten.borrow_mut().insert(object, (9000, Timespec { sec: 2_100_000_000, nsec: 0 }));
            let Ok(Reply::Inode(view)) = c.call(Request::GetAttr { ino: object.ino }).await else { panic!() };
            assert_eq!(view.attr.size, 9000, "every member is asked");
            assert!(!done.get(), "the stranger waits");
            a.call(Request::LockCancel { locks: vec![first] }).await.unwrap();
            env.sleep(Duration::from_millis(10)).await;
            assert!(!done.get(), "the other member is left");
            assert_eq!(c.call(join_group(object, 8, true, Some(other))).await, Ok(Reply::LockWaits { lock: other }));
            b.call(Request::LockCancel { locks: vec![second] }).await.unwrap();
            other
        };
        let ((), other) = join(stranger, members).await;
        locked(&c, join_group(object, 8, true, Some(other))).await;
        let waiting = a.call(join_group(object, 7, true, None)).await;
        assert!(matches!(waiting, Ok(Reply::LockWaits { .. })), "{waiting:?}");
        assert_eq!(counter(&a, "evictions").await, 0, "a group lock has no deadline");
        c.call(Request::Goodbye).await.unwrap();
        a.held.pushed(|push| matches!(push, Push::GroupLockNews { .. }).then_some(())).await;
    });
}

/// Goal: group locks survive a restart of the server like others. Method: a member presents its locks. A stranger's
/// write waits for it, and the member's own write does not.
#[test]
fn groups_survive_a_restart() {
    with_three(95, async |place, [a, b, _c], object| {
        locked(&a, join_group(object, 7, true, None)).await;
        let held = HeldLock { object, mode: LockMode::Write, range: ByteRange::ALL, group: Some(7) };
        a.held.locks.borrow_mut().push(held);
        place.sim.crash("server", CrashKind::Process);
        let server = place.start().await.expect("it starts again");
        write(&a, object, 0, 10).await.1.expect("a member");
        let env = a.held.env.borrow().clone().expect("its environment");
        let stranger = amphi_env::timeout(&env, Duration::from_secs(40), write(&b, object, 0, 10));
        assert!(stranger.await.is_none(), "still in force, longer than any deadline");
        assert_eq!(counter(&a, "evictions").await, 0);
        drop(server);
    });
}

/// Goal: with 100,000 locks on one file, a request costs no more than a few steps down a tree for each lock with which
/// it conflicts. Afterwards no state remains. Method: two sessions request bytes in turn, in an order that jumps about.
/// The nodes visited for each of the last thousand requests are compared with 1,000, 10,000 and 100,000 held locks. A
/// third session conflicts with one lock, and the end of another session frees the rest.
#[test]
fn a_hundred_thousand_locks_on_one_file() {
    const MOST: u64 = 100_000;
    with_three(96, async |_, [a, b, c], object| {
        let two = [&a, &b];
        let place = |n: u64| n * 618_033 % MOST * 16;
        let one = |n: u64| {
            locked(two[(n % 2) as usize], ask(object, LockMode::Write, place(n), place(n) + 8, LockExtent::Exact))
        };
        let mut held = 0;
        for count in [1_000, 10_000, MOST] {
            let mut before = 0;
            while held < count {
                if held + 1_000 == count {
                    before = counter(&c, "lock_nodes_visited").await;
                }
                for first in (held..held + 1_000).step_by(50) {
                    futures_util::future::join_all((first..first + 50).map(one)).await;
                }
                held += 1_000;
            }
            let nodes = (counter(&c, "lock_nodes_visited").await - before) / 1_000;
            println!("{count} locks: {nodes} nodes for each of the last 1,000");
            assert!(nodes < 40 * u64::from(count.ilog2()), "{nodes} nodes for a lock among {count}");
        }
        let before = counter(&c, "lock_nodes_visited").await;
        locked(&c, ask(object, LockMode::Write, place(7), place(7) + 8, LockExtent::Exact)).await;
        assert_eq!(counter(&c, "lock_callbacks").await, 1, "only the one that is in the way");
        let nodes = counter(&c, "lock_nodes_visited").await - before;
        // Several searches; trees of other orders of arrival take 850 to 1,460.
        assert!(nodes < 100 * u64::from(MOST.ilog2()), "{nodes} nodes to meet a lock");
        for client in two {
            client.call(Request::Goodbye).await.expect("it ends");
        }
        let before = counter(&c, "lock_nodes_visited").await;
        locked(&c, ask(object, LockMode::Write, 0, u64::MAX, LockExtent::Grown)).await;
        let nodes = counter(&c, "lock_nodes_visited").await - before;
        assert!(nodes < 100, "nothing of them is left: {nodes} nodes");
        let callbacks = counter(&c, "lock_callbacks").await;
        assert_eq!(callbacks, 1);
    });
}
