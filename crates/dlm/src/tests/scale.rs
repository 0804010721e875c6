//! Work of large lock tables, counted in tree nodes looked at, and single promises that need no model.

use super::object;
use crate::client::{CacheLimits, CallbackPlan, Granted, Hit, LockAction, LockCache};
use crate::mode::{GroupId, Growth, LockId, Mode, Owner};
use crate::server::{Action, ContentionLimits, LockCounts, LockLimits, LockRequest, LockSpace, Overdue, Refusal};
use amphi_types::{ByteRange, SessionId};

const SECOND: u64 = 1_000_000_000;

fn write(owner: Owner, range: ByteRange, growth: Growth) -> LockRequest {
    LockRequest { owner, object: object(0), mode: Mode::Write, range, growth }
}

fn drain(space: &mut LockSpace) -> Vec<Action> {
    std::iter::from_fn(|| space.poll_action()).collect()
}

/// Goal: 100,000 locks on one object cost O(log n) each. Method: four writers each take every fourth block, another
/// client requests everything, and all locks are returned. The number of nodes visited for each lock stays below a
/// small multiple of log n.
#[test]
fn strided_locks_are_not_quadratic() {
    let mut space = LockSpace::new(LockLimits::default(), 1);
    let count = 100_000u64;
    let mut ids = Vec::new();
    for block in 0..count {
        let owner = Owner::Cached(SessionId(block % 4));
        let growth = if block % 2 == 0 { Growth::Exact } else { Growth::Largest };
        ids.push(space.enqueue(0, write(owner, ByteRange::at(block * 4096, 4096), growth)).expect("room"));
    }
    let (bytes, visits) = (space.bytes() as u64 / count, space.counts().nodes / count);
    eprintln!("100,000 locks on one object: {bytes} bytes and {visits} nodes looked at for each");
    assert!(bytes <= 400 && visits <= 400, "{bytes} bytes, {visits} nodes");
    let called = drain(&mut space).iter().filter(|action| matches!(action, Action::Callback { .. })).count();
    assert!(called > 0, "grown locks were in the way");
    space.enqueue(0, write(Owner::Cached(SessionId(9)), ByteRange::ALL, Growth::Largest)).expect("room");
    drain(&mut space);
    for (block, id) in ids.iter().enumerate() {
        space.cancel(0, SessionId(block as u64 % 4), &[*id]);
    }
    assert_eq!(space.len(), (1, 0));
    let per_lock = space.counts().nodes / count;
    assert!(per_lock < 1200, "{per_lock} nodes for each lock");
}

/// Goal: many requests that wait for one byte are served in order, at O(log n) each. Method: 100,000 direct writers of
/// one byte.
#[test]
fn crowd_on_one_byte_is_not_quadratic() {
    let limits = LockLimits { max_direct: 200_000, ..LockLimits::default() };
    let mut space = LockSpace::new(limits, 1);
    let count = 100_000u64;
    let ids: Vec<LockId> = (0..count)
        .map(|n| {
            let owner = Owner::Direct(SessionId(n % 7));
            space.enqueue(0, write(owner, ByteRange::at(5, 1), Growth::Exact)).expect("room")
        })
        .collect();
    for id in ids {
        let granted: Vec<LockId> = drain(&mut space)
            .iter()
            .map(|action| match action {
                Action::Granted { id, .. } => *id,
                Action::Callback { .. } => panic!("a direct request was called back"),
            })
            .collect();
        assert_eq!(granted, [id], "first come, first served, one at a time");
        space.release(0, id);
    }
    assert!(space.is_empty());
    let per_lock = space.counts().nodes / count;
    assert!(per_lock < 1200, "{per_lock} nodes for each request");
}

/// Goal: a single client gets the whole object with one request. With a second client, locks grow only upward, to the
/// neighbour. Method: example.
#[test]
fn growth_examples() {
    let mut space = LockSpace::new(LockLimits::default(), 1);
    let (a, b) = (Owner::Cached(SessionId(1)), Owner::Cached(SessionId(2)));
    let first = space.enqueue(0, write(a, ByteRange::at(0, 10), Growth::Largest)).expect("room");
    assert_eq!(space.granted_range(first), Some(ByteRange::ALL));
    let second = space.enqueue(0, write(b, ByteRange::at(1000, 10), Growth::Largest)).expect("room");
    assert_eq!(space.granted_range(second), None);
    assert_eq!(space.cancel(0, SessionId(2), &[first]), 0, "only the holder gives back");
    space.cancel(0, SessionId(1), &[first]);
    assert_eq!(space.granted_range(second), Some(ByteRange::ALL));
    let third = space.enqueue(0, write(a, ByteRange::at(100, 10), Growth::Largest)).expect("room");
    space.cancel(0, SessionId(2), &[second]);
    assert_eq!(space.granted_range(third), Some(ByteRange::ALL));
    let fourth = space.enqueue(0, write(b, ByteRange::at(200, 10), Growth::Largest)).expect("room");
    let fifth = space.enqueue(0, write(a, ByteRange::at(50, 10), Growth::Largest)).expect("room");
    assert_eq!(space.granted_range(fifth), Some(ByteRange::new(50, 200)), "up to what somebody waits for");
    space.cancel(0, SessionId(1), &[third]);
    assert_eq!(space.granted_range(fourth), Some(ByteRange::new(200, u64::MAX)));
}

/// Goal: widening to whole units keeps the request inside, also at the end of the address space. Method: example.
#[test]
fn granularity_widens() {
    let limits = LockLimits { granularity_bytes: 4096, ..LockLimits::default() };
    let mut space = LockSpace::new(limits, 1);
    let owner = Owner::Direct(SessionId(1));
    let id = space.enqueue(0, write(owner, ByteRange::new(5000, 8193), Growth::Exact)).expect("room");
    assert_eq!(space.granted_range(id), Some(ByteRange::new(4096, 12288)));
    space.release(0, id);
    let id = space.enqueue(0, write(owner, ByteRange::ALL, Growth::Exact)).expect("room");
    assert_eq!(space.granted_range(id), Some(ByteRange::ALL));
}

/// Goal: direct requests of one session that share a unit wait for each other and cause no contention. Those of two
/// sessions do make the object contended. Method: more requests than are needed to make an object contended, by one
/// session and by two.
#[test]
fn who_is_alone_does_not_contend() {
    for (sessions, contended) in [(1, false), (2, true)] {
        let limits = LockLimits { granularity_bytes: 4096, ..LockLimits::default() };
        let mut space = LockSpace::new(limits, 1);
        for n in 0..40u64 {
            let owner = Owner::Direct(SessionId(1 + n % sessions));
            let id = space.enqueue(n, write(owner, ByteRange::at(100 * n, 100), Growth::Exact)).expect("room");
            assert_eq!(space.granted_range(id).is_some(), n == 0, "they share a unit");
        }
        assert_eq!(space.counts().conflicts > 0, contended);
        assert_eq!(space.contended(40, object(0)), contended, "{sessions}");
    }
}

/// Goal: with locks on whole units, two writers of different bytes of one unit conflict, count as contention, and grow
/// up to a neighbour's unit. Without growth every request is granted exactly. Without counting nothing is contended. A
/// change of a setting applies only to later requests. Method: one pattern of requests under each setting, which is
/// changed while locks are held.
#[test]
fn switches_of_the_lock_server() {
    let limits = LockLimits { granularity_bytes: 4096, ..LockLimits::default() };
    let mut space = LockSpace::new(limits, 1);
    let (a, b) = (Owner::Cached(SessionId(1)), Owner::Cached(SessionId(2)));
    let exact = |owner, at| write(owner, ByteRange::at(at, 10), Growth::Exact);
    let first = space.enqueue(0, exact(a, 0)).expect("room");
    let waits = space.enqueue(0, exact(b, 100)).expect("room");
    let direct = space.enqueue(0, LockRequest { owner: Owner::Direct(SessionId(3)), ..exact(b, 4000) }).expect("room");
    assert_eq!((space.granted_range(waits), space.granted_range(direct)), (None, None), "one unit");
    let counts = LockCounts { nodes: 0, ..space.counts() };
    assert_eq!(counts, LockCounts { requests: 3, conflicts: 3, ..LockCounts::default() });
    space.cancel(0, SessionId(1), &[first]);
    space.cancel(0, SessionId(2), &[waits]);
    assert_eq!(space.granted_range(direct), Some(ByteRange::new(0, 4096)));
    assert_eq!(space.counts().waited, 2);
    let grown = space.enqueue(0, LockRequest { growth: Growth::Largest, ..exact(a, 5000) }).expect("room");
    assert_eq!(space.granted_range(grown), Some(ByteRange::new(4096, u64::MAX)), "from its unit on");
    space.tune(LockLimits { grows: false, ..LockLimits::default() });
    space.cancel(0, SessionId(1), &[grown]);
    space.release(0, direct);
    let largest = |owner, at| LockRequest { growth: Growth::Largest, ..exact(owner, at) };
    let ids = [(a, 0), (b, 10), (a, 20), (b, 30)].map(|(o, at)| space.enqueue(0, largest(o, at)).expect("room"));
    for (n, id) in ids.into_iter().enumerate() {
        assert_eq!(space.granted_range(id), Some(ByteRange::at(n as u64 * 10, 10)), "as asked");
    }
    let quiet = ContentionLimits { enabled: false, threshold: 1, ..ContentionLimits::default() };
    space.tune(LockLimits { contention: quiet, ..LockLimits::default() });
    let before = space.counts().conflicts;
    space.enqueue(0, exact(b, 0)).expect("room");
    assert!(!space.contended(0, object(0)) && space.counts().conflicts == before);
    space.tune(LockLimits { contention: ContentionLimits { enabled: true, ..quiet }, ..LockLimits::default() });
    space.enqueue(0, exact(b, 5)).expect("room");
    assert!(space.contended(0, object(0)) && space.counts().contended == 1);
}

/// Goal: a callback has a deadline, which progress prolongs and which is reported once. Requests beyond the bounds are
/// refused. Method: example with set times.
#[test]
fn deadlines_and_bounds() {
    let limits = LockLimits { max_locks: 2, max_direct: 1, ..LockLimits::default() };
    let mut space = LockSpace::new(limits, 1);
    let (a, b) = (SessionId(1), SessionId(2));
    let held = space.enqueue(0, write(Owner::Cached(a), ByteRange::at(0, 1), Growth::Exact)).expect("room");
    assert_eq!(space.next_deadline(), None);
    let waits = space.enqueue(SECOND, write(Owner::Cached(b), ByteRange::at(0, 1), Growth::Exact)).expect("room");
    let full = space.enqueue(SECOND, write(Owner::Cached(b), ByteRange::at(9, 1), Growth::Exact));
    assert_eq!(full, Err(Refusal::Full));
    let empty = space.enqueue(SECOND, write(Owner::Direct(b), ByteRange::at(9, 0), Growth::Exact));
    assert_eq!(empty, Err(Refusal::EmptyRange));
    let direct = space.enqueue(SECOND, write(Owner::Direct(b), ByteRange::at(9, 1), Growth::Exact)).expect("room");
    let full = space.enqueue(SECOND, write(Owner::Direct(b), ByteRange::at(19, 1), Growth::Exact));
    assert_eq!(full, Err(Refusal::Full));
    space.release(SECOND, direct);
    assert_eq!(space.next_deadline(), Some(31 * SECOND));
    space.progress(20 * SECOND, b, held);
    assert_eq!(space.next_deadline(), Some(31 * SECOND), "only the holder makes progress");
    space.progress(20 * SECOND, a, held);
    assert_eq!(space.poll_overdue(49 * SECOND), None);
    let overdue = Overdue { session: a, id: held, object: object(0) };
    assert_eq!(space.poll_overdue(50 * SECOND), Some(overdue));
    assert_eq!(space.poll_overdue(90 * SECOND), None);
    assert!(space.holds(a, held, object(0), Mode::Read, ByteRange::at(0, 1)));
    space.drop_session(90 * SECOND, a);
    assert!(!space.holds(a, held, object(0), Mode::Read, ByteRange::at(0, 1)));
    assert_eq!(space.granted_range(waits), Some(ByteRange::at(0, 1)));
}

/// Goal: a session gets no more than its share of the table, by requests or by presenting locks, and the rest is left
/// to others. Method: small bounds.
#[test]
fn a_session_has_a_share_of_the_table() {
    let limits = LockLimits { max_locks: 4, max_locks_per_session: 2, ..LockLimits::default() };
    let mut space = LockSpace::new(limits, 2);
    let (a, b) = (Owner::Cached(SessionId(1)), Owner::Cached(SessionId(2)));
    let byte = |n: u64| ByteRange::at(n, 1);
    let ask = |space: &mut LockSpace, owner, n| space.enqueue(0, write(owner, byte(n), Growth::Exact));
    let first = ask(&mut space, b, 0).expect("room");
    let held = ask(&mut space, a, 1).expect("room");
    let waits = ask(&mut space, a, 0).expect("room");
    let group = Owner::Group(SessionId(1), GroupId(5));
    for owner in [a, group] {
        assert_eq!(ask(&mut space, owner, 5), Err(Refusal::Full));
        assert_eq!(space.take_in(owner, object(1), Mode::Write, byte(5)), Err(Refusal::Full));
        assert_eq!(space.restore(owner, LockId::new(1, 9), object(1), Mode::Write, byte(5)), Err(Refusal::Full));
    }
    assert!(ask(&mut space, Owner::Direct(SessionId(1)), 6).is_ok(), "I/O goes direct");
    assert!(ask(&mut space, b, 7).is_ok(), "there is room for others");
    assert_eq!(ask(&mut space, Owner::Cached(SessionId(3)), 9), Err(Refusal::Full), "now the table is full");
    space.cancel(0, SessionId(2), &[first]);
    assert_eq!(ask(&mut space, a, 9), Err(Refusal::Full), "what waited is held");
    space.cancel(0, SessionId(1), &[held]);
    assert!(ask(&mut space, a, 9).is_ok());
    space.cancel(0, SessionId(1), &[waits]);
    space.drop_session(0, SessionId(1));
    for n in 20..22 {
        assert!(space.take_in(a, object(1), Mode::Write, byte(n)).is_ok(), "it begins anew");
    }
    assert_eq!(space.take_in(a, object(1), Mode::Write, byte(22)), Err(Refusal::Full));
}

/// Goal: conflicts of direct requests make an object contended, and it stays so without any lock. Method: two sessions
/// write one byte in turn.
#[test]
fn contention_outlives_the_locks() {
    let mut space = LockSpace::new(LockLimits::default(), 1);
    let mut now_ns = 100 * SECOND;
    for n in 0..17 {
        assert!(!space.contended(now_ns, object(0)), "after {n} conflicts");
        let one = space
            .enqueue(now_ns, write(Owner::Direct(SessionId(1)), ByteRange::at(0, 1), Growth::Exact))
            .expect("room");
        if n == 16 {
            break;
        }
        let two = space
            .enqueue(now_ns, write(Owner::Direct(SessionId(2)), ByteRange::at(0, 1), Growth::Exact))
            .expect("room");
        space.release(now_ns, one);
        space.release(now_ns, two);
        if n == 15 {
            break;
        }
        now_ns += SECOND / 10;
    }
    assert!(space.is_empty());
    assert!(space.contended(now_ns, object(0)) && !space.contended(now_ns, object(1)));
    assert!(space.contended(now_ns + 5 * SECOND - 1, object(0)));
    assert!(!space.contended(now_ns + 5 * SECOND, object(0)));
}

/// Goal: locks held before a restart are restored with their ids, and conflicting and unknown ones are refused. Method:
/// example.
#[test]
fn restart_restores_locks() {
    let mut before = LockSpace::new(LockLimits::default(), 1);
    let id = before.enqueue(0, write(Owner::Cached(SessionId(1)), ByteRange::at(0, 8), Growth::Exact)).expect("room");
    let mut space = LockSpace::new(LockLimits::default(), 2);
    let range = ByteRange::at(0, 8);
    assert_eq!(space.restore(Owner::Cached(SessionId(1)), id, object(0), Mode::Write, range), Ok(()));
    assert_eq!(
        space.restore(Owner::Cached(SessionId(1)), id, object(0), Mode::Write, range),
        Ok(()),
        "presented again"
    );
    let other = LockId::new(1, 99);
    let conflict = Err(Refusal::Conflict);
    assert_eq!(space.restore(Owner::Cached(SessionId(2)), other, object(0), Mode::Read, range), conflict);
    assert_eq!(space.restore(Owner::Cached(SessionId(2)), id, object(0), Mode::Read, ByteRange::at(9, 1)), conflict);
    assert_eq!(
        space.restore(Owner::Cached(SessionId(2)), LockId::new(2, 1), object(0), Mode::Read, ByteRange::at(9, 1)),
        conflict
    );
    assert_eq!(space.restore(Owner::Cached(SessionId(2)), other, object(0), Mode::Read, ByteRange::at(9, 1)), Ok(()));
    let next = space.enqueue(0, write(Owner::Cached(SessionId(2)), range, Growth::Exact)).expect("room");
    let called = drain(&mut space);
    assert!(matches!(called[..], [Action::Callback { id: called, .. }] if called == id));
    space.cancel(0, SessionId(1), &[id]);
    assert_eq!(space.granted_range(next), Some(range));
}

fn hold(cache: &mut LockCache, now_ns: u64, id: u64, range: ByteRange) -> LockId {
    let request = cache.ask(object(0), Mode::Write, range);
    let Granted::Pinned(lock) = cache.granted(now_ns, request, LockId(id), range) else { panic!("wanted") };
    cache.unpin(lock);
    lock.id
}

/// Goal: unused locks are returned after their age or beyond the bound, the oldest first, and used ones stay. Their
/// cancels are sent together. Method: example with set times.
#[test]
fn ageing_and_bound() {
    let mut cache = LockCache::new(CacheLimits { max_locks: 3, ..CacheLimits::default() });
    for n in 1..=3 {
        hold(&mut cache, n * SECOND, n, ByteRange::at(n * 10, 10));
    }
    let Hit::Hit(pinned) = cache.pin(50 * SECOND, object(0), Mode::Read, ByteRange::at(12, 2)) else { panic!("held") };
    assert_eq!(pinned.id, LockId(1));
    assert_eq!(cache.pin(50 * SECOND, object(0), Mode::Read, ByteRange::at(18, 4)), Hit::Miss, "two locks");
    assert_eq!(cache.poll_action(), None);
    hold(&mut cache, 60 * SECOND, 4, ByteRange::at(40, 10));
    let flush = cache.poll_action();
    assert!(
        matches!(&flush, Some(LockAction::Flush { id: LockId(2), ranges, .. }) if ranges[..] == [ByteRange::at(20, 10)])
    );
    cache.flushed(LockId(2));
    let drop = LockAction::Drop {
        object: object(0),
        mode: Mode::Write,
        ranges: vec![ByteRange::at(20, 10)],
        discard_dirty: false,
    };
    assert_eq!(cache.poll_action(), Some(drop));
    assert_eq!(cache.poll_action(), None, "the cancel waits for company");
    assert_eq!(cache.callback(60 * SECOND, LockId(2), object(0)), CallbackPlan::Underway);
    assert_eq!(cache.poll_action(), Some(LockAction::Cancel { ids: vec![LockId(2)] }), "now somebody waits for it");
    cache.tick(640 * SECOND);
    let closing: Vec<LockId> = std::iter::from_fn(|| cache.poll_action())
        .filter_map(|action| if let LockAction::Flush { id, .. } = action { Some(id) } else { None })
        .collect();
    assert_eq!(closing, [LockId(3)], "1 is in use, 4 is young");
    cache.flushed(LockId(3));
    assert!(matches!(cache.poll_action(), Some(LockAction::Drop { .. })));
    assert_eq!(cache.poll_action(), None);
    assert_eq!(cache.next_deadline(), Some(641 * SECOND));
    cache.tick(641 * SECOND);
    assert_eq!(cache.poll_action(), Some(LockAction::Cancel { ids: vec![LockId(3)] }));
    cache.unpin(pinned);
    cache.tick(2000 * SECOND);
    cache.flushed(LockId(1));
    assert_eq!(cache.len(), 2, "on their way back");
}

/// Goal: an evicted client drops everything, dirty data too, and sends no cancel. Method: example.
#[test]
fn eviction_loses_all() {
    let mut cache = LockCache::new(CacheLimits::default());
    hold(&mut cache, 0, 1, ByteRange::at(0, 10));
    let used = hold(&mut cache, 0, 2, ByteRange::at(10, 10));
    let Hit::Hit(pinned) = cache.pin(0, object(0), Mode::Write, ByteRange::at(10, 1)) else { panic!("held") };
    assert_eq!(pinned.id, used);
    let request = cache.ask(object(0), Mode::Read, ByteRange::at(30, 1));
    cache.lose_all();
    let drop = |start| LockAction::Drop {
        object: object(0),
        mode: Mode::Write,
        ranges: vec![ByteRange::at(start, 10)],
        discard_dirty: true,
    };
    assert_eq!(cache.poll_action(), Some(drop(0)));
    assert_eq!(cache.poll_action(), None, "one is in use");
    cache.unpin(pinned);
    assert_eq!(cache.poll_action(), Some(drop(10)));
    assert_eq!(cache.poll_action(), None);
    assert_eq!(cache.granted(0, request, LockId(9), ByteRange::at(30, 1)), Granted::Unwanted);
    assert_eq!(cache.footprint(), [0; 4]);
}
