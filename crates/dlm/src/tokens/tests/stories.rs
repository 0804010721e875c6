//! Tests each race and each bound by itself.

use super::{attributes, listing, name};
use crate::tokens::client::{TokenCache, TokenCacheLimits};
use crate::tokens::history::{History, HistoryLimits};
use crate::tokens::server::{Changed, NoGrant, SessionEnd, TokenAction, TokenLimits, TokenOverdue, TokenSpace};
use crate::tokens::{Grant, REVOKE_KEYS, Revoke, TokenKey};
use amphi_types::{Ino, SessionId};

const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);
const C: SessionId = SessionId(3);
const LIFE: u64 = 30_000_000_000;
const MARGIN: u64 = 1_000_000_000;

fn space() -> TokenSpace {
    TokenSpace::new(TokenLimits::default(), 1)
}

fn cache() -> TokenCache<&'static str> {
    TokenCache::new(TokenCacheLimits::default())
}

fn grant(space: &mut TokenSpace, session: SessionId, key: TokenKey) -> Grant {
    space.grant(0, session, key, false).expect("nothing is in the way")
}

fn revokes(space: &mut TokenSpace) -> Vec<Revoke> {
    let actions = std::iter::from_fn(|| space.poll_action());
    actions.filter_map(|action| if let TokenAction::Revoke(revoke) = action { Some(revoke) } else { None }).collect()
}

/// Goal: if a revocation overtakes the grant that it covers, the client has nothing to use. A grant made after the
/// change is cached even if its request was sent before. Method: three requests, whose replies arrive after the
/// revocation.
#[test]
fn revocation_overtakes_the_grant() {
    let (mut space, mut cache, key) = (space(), cache(), attributes(5));
    let (first, second) = (cache.ask(0), cache.ask(0));
    let old = grant(&mut space, A, key);
    let change = space.begin_change(0, B, &[Changed::alone(key)]);
    let [revoke] = &revokes(&mut space)[..] else { panic!("one revocation") };
    assert!(!space.is_ready(change));
    assert_eq!(cache.revoke(revoke), 0, "nothing is cached yet");
    assert!(space.revoked(A, revoke.id));
    assert!(space.is_ready(change));
    space.end_change(change);
    let new = grant(&mut space, A, key);
    assert!(!cache.store(0, first, key, old, "old"));
    assert!(!cache.store(0, second, key, old, "old"));
    assert!(cache.store(0, second, key, new, "new"), "a later number is not meant");
    cache.answered(second);
    assert_eq!(cache.footprint()[2], 1, "the first request is still unanswered");
    cache.answered(first);
    assert_eq!(cache.footprint()[1..4], [0, 0, 0]);
    assert_eq!(cache.get(0, key), Some(&"new"));
    assert!(!cache.store(0, first, key, new, "again"), "a reply after the end of its call is not stored");
}

/// Goal: a revocation that arrives late, or twice, does not affect tokens that were granted after it. Method: example.
#[test]
fn late_revocation_spares_later_grants() {
    let (mut space, mut cache, key) = (space(), cache(), attributes(5));
    let ask = cache.ask(0);
    grant(&mut space, A, key);
    let change = space.begin_change(0, B, &[Changed::alone(key)]);
    let revoke = revokes(&mut space).remove(0);
    cache.revoke(&revoke);
    space.revoked(A, revoke.id);
    assert!(!space.revoked(A, revoke.id), "the second answer finds nothing");
    space.end_change(change);
    let new = grant(&mut space, A, key);
    assert!(cache.store(0, ask, key, new, "new"));
    assert_eq!(cache.revoke(&revoke), 0);
    assert_eq!(cache.get(0, key), Some(&"new"));
}

/// Goal: a client does not use values from before its own change, neither while the change is under way nor from a
/// reply that the answer to the change has overtaken. The answer itself may be cached. Method: example.
#[test]
fn own_change_overtakes_own_read() {
    let (mut space, mut cache, key) = (space(), cache(), attributes(5));
    let warm = cache.ask(0);
    let first = grant(&mut space, A, key);
    assert!(cache.store(0, warm, key, first, "old"));
    cache.answered(warm);
    let (read, write) = (cache.ask(0), cache.ask(0));
    let late = grant(&mut space, A, key);
    let own = cache.changing(&[key]);
    assert_eq!(cache.get(0, key), None);
    assert!(!cache.store(0, read, key, first, "old"), "not while the change is under way");
    let change = space.begin_change(0, A, &[Changed::alone(key)]);
    assert!(space.is_ready(change), "its own token is in nobody's way");
    assert_eq!(revokes(&mut space), []);
    let number = space.end_change(change);
    let new = grant(&mut space, A, key);
    cache.changed(own, Some(number));
    assert!(cache.store(0, write, key, new, "new"));
    cache.answered(write);
    assert!(!cache.store(0, read, key, late, "old"));
    assert_eq!(cache.get(0, key), Some(&"new"));
}

/// Goal: a key that the changing session could not name is revoked from it too. Method: a rename over a file.
#[test]
fn unnamed_keys_are_revoked_from_the_changer() {
    let mut space = space();
    let victim = attributes(9);
    grant(&mut space, A, victim);
    grant(&mut space, A, name(1));
    let keys = [Changed::alone(name(1)), Changed::alone(name(2)), Changed::alone(victim).unknown()];
    let change = space.begin_change(0, A, &keys);
    let [revoke] = &revokes(&mut space)[..] else { panic!("one revocation") };
    assert_eq!(revoke.keys, [victim]);
    assert!(!space.is_ready(change));
    space.revoked(A, revoke.id);
    assert!(space.is_ready(change));
}

/// Goal: a create revokes tokens of its own name and of the listings, and of no other name. Each session gets one
/// revocation. Method: example.
#[test]
fn create_revokes_its_name_and_listings() {
    let mut space = space();
    for session in [A, B] {
        for key in [name(1), name(2), listing()] {
            grant(&mut space, session, key);
        }
    }
    let change = space.begin_change(0, C, &[Changed::alone(name(1)), Changed::joint(listing())]);
    let asked = revokes(&mut space);
    assert_eq!(asked.iter().map(|revoke| revoke.session).collect::<Vec<_>>(), [A, B]);
    for revoke in &asked {
        assert_eq!(revoke.keys, [name(1), listing()]);
        assert!(!space.is_ready(change));
        space.revoked(revoke.session, revoke.id);
    }
    assert!(space.is_ready(change));
    assert_eq!(space.len(), 2, "the other name stays with both");
}

/// Goal: changes of one key are made in the order of arrival. Joint changes run side by side, and changes of other keys
/// start at once. Changes that name keys in opposite orders cannot block each other. Method: example.
#[test]
fn changes_wait_in_order() {
    let mut space = space();
    let (x, y) = (attributes(1), attributes(2));
    let first = space.begin_change(0, A, &[Changed::alone(x), Changed::alone(y)]);
    let second = space.begin_change(0, B, &[Changed::alone(y), Changed::alone(x)]);
    let other = space.begin_change(0, C, &[Changed::alone(attributes(3))]);
    let third = space.begin_change(0, C, &[Changed::alone(x)]);
    assert_eq!([first, second, other, third].map(|id| space.is_ready(id)), [true, false, true, false]);
    assert_eq!(space.grant(0, A, y, false), Err(NoGrant::Changing));
    space.end_change(first);
    assert_eq!([second, third].map(|id| space.is_ready(id)), [true, false]);
    space.end_change(second);
    assert!(space.is_ready(third));

    let joint = [1, 2].map(|n| space.begin_change(0, A, &[Changed::alone(name(n)), Changed::joint(listing())]));
    let alone = space.begin_change(0, B, &[Changed::alone(listing())]);
    let after = space.begin_change(0, C, &[Changed::joint(listing())]);
    assert_eq!([joint[0], joint[1], alone, after].map(|id| space.is_ready(id)), [true, true, false, false]);
    space.end_change(joint[1]);
    assert!(!space.is_ready(alone));
    space.end_change(alone);
    assert!(space.is_ready(after), "who gives up holds up nobody");
}

/// Goal: if 50,000 creates in one directory wait for one change of it, the cost grows only in proportion to their
/// number. Method: all creates wait for one change, then continue together. Quadratic work would take minutes.
#[test]
fn crowd_in_one_directory() {
    let mut space = space();
    let first = space.begin_change(0, A, &[Changed::alone(listing())]);
    let create =
        |space: &mut TokenSpace, n| space.begin_change(0, B, &[Changed::alone(name(n)), Changed::joint(listing())]);
    let crowd: Vec<_> = (0..50_000).map(|n| create(&mut space, n)).collect();
    let last = space.begin_change(0, C, &[Changed::alone(listing())]);
    assert!(!space.is_ready(crowd[0]));
    space.end_change(first);
    for id in crowd {
        assert!(space.is_ready(id) && !space.is_ready(last));
        space.end_change(id);
    }
    assert!(space.is_ready(last));
}

/// Goal: a reply may not be cached if another session writes the shown file, or if tokens are off. Method: example.
#[test]
fn written_files_and_switched_off() {
    let mut space = space();
    assert_eq!(space.grant(0, A, attributes(1), true), Err(NoGrant::Written));
    assert!(space.is_empty());
    let mut off = TokenSpace::new(TokenLimits { life_ns: 0, ..TokenLimits::default() }, 1);
    assert_eq!(off.grant(0, A, attributes(1), false), Err(NoGrant::Off));
}

/// Goal: a session that does not answer is reported once, after the deadline. A session that was cut off delays changes
/// until its token has expired, and one that stopped does not. Method: three holders of three kinds.
#[test]
fn overdue_cut_off_and_stopped() {
    let mut space = space();
    let key = attributes(1);
    for session in [A, B] {
        grant(&mut space, session, key);
    }
    let change = space.begin_change(5, C, &[Changed::alone(key)]);
    let asked = revokes(&mut space);
    assert_eq!(space.unanswered(A).collect::<Vec<_>>(), [&asked[0]], "sent again over a new connection");
    let due = 5 + TokenLimits::default().callback_deadline_ns;
    assert_eq!(space.poll_overdue(due - 1), None);
    assert_eq!(space.poll_overdue(due), Some(TokenOverdue { session: A, id: asked[0].id }));
    assert_eq!(space.poll_overdue(due), Some(TokenOverdue { session: B, id: asked[1].id }));
    assert_eq!(space.poll_overdue(due), None);
    assert_eq!(space.drop_session(A, SessionEnd::Stopped), 1);
    assert_eq!(space.drop_session(B, SessionEnd::CutOff), 1);
    assert!(!space.is_ready(change));
    assert!(!space.revoked(B, asked[1].id), "it is no session any more");
    assert_eq!(space.next_deadline(), Some(LIFE + MARGIN));
    space.tick(LIFE + MARGIN - 1);
    assert!(!space.is_ready(change));
    space.tick(LIFE + MARGIN);
    assert!(space.is_ready(change));
    assert_eq!(space.footprint()[..6], [0; 6]);
}

/// Goal: if a session's own change revokes its token, and the session does not answer, it is not reported. The change
/// waits until the token has expired, as it would wait after the end of the session. The revocation is repeated as for
/// others. Method: two holders. One changes keys that the server cannot know, and the other makes a change that waits
/// behind it.
#[test]
fn an_own_change_reports_nobody() {
    let mut space = space();
    let key = attributes(1);
    grant(&mut space, A, key);
    let own = space.begin_change(5, A, &[Changed::alone(key).unknown()]);
    let asked = revokes(&mut space);
    assert_eq!(asked.len(), 1);
    let other = space.begin_change(6, B, &[Changed::alone(key)]);
    let quiet = 1_000;
    assert_eq!(space.unanswered_for(1_004, quiet).count(), 0);
    assert_eq!(space.unanswered_for(1_005, quiet).collect::<Vec<_>>(), [&asked[0]]);
    assert!(space.awaits_answers());
    let due = 5 + TokenLimits::default().callback_deadline_ns;
    assert_eq!(space.poll_overdue(due + 1), None);
    assert!(!space.is_ready(own) && !space.awaits_answers());
    space.tick(LIFE + MARGIN);
    assert!(space.is_ready(own) && !space.is_ready(other));
    space.end_change(own);
    assert!(space.is_ready(other));
    space.end_change(other);
    assert!(space.revoked(A, asked[0].id), "it is asked until it answers");
    assert_eq!(space.footprint()[..6], [0; 6]);
}

/// Goal: a cut-off session that got no revocation before delays later changes too, without getting one. Method:
/// example.
#[test]
fn orphans_are_waited_for() {
    let mut space = space();
    grant(&mut space, A, attributes(1));
    space.drop_session(A, SessionEnd::CutOff);
    let change = space.begin_change(7, B, &[Changed::alone(attributes(1))]);
    assert_eq!(revokes(&mut space), []);
    assert!(!space.is_ready(change));
    assert_eq!(space.drop_session(A, SessionEnd::Stopped), 1, "it turned out to be dead");
    assert!(space.is_ready(change));
}

/// Goal: with clocks that differ by 1 in 100 to either side and a reply of any delay, a client ends its use before the
/// target forgets. Method: both ends in true time, for the extremes of rate and delay.
#[test]
fn client_ends_before_the_target() {
    let life = |rate_percent: u64| LIFE * 100 / rate_percent;
    for client_rate in [99, 100, 101] {
        for server_rate in [99, 100, 101] {
            let server_end = (LIFE + MARGIN) * 100 / server_rate;
            assert!(life(client_rate) < server_end, "{client_rate} {server_rate}");
        }
    }
    let (mut space, mut cache, key) = (space(), cache(), attributes(1));
    let ask = cache.ask(100);
    let grant = grant(&mut space, A, key);
    assert!(!cache.store(100 + LIFE, ask, key, grant, "late"), "a reply that took a whole life");
    assert!(cache.store(200, ask, key, grant, "value"));
    assert_eq!(cache.lend(200, key), Some((&"value", LIFE - 100)), "counted from the request");
    assert_eq!(cache.get(100 + LIFE, key), None);
}

/// Goal: bounds are kept, the oldest token is revoked first, an unanswered reduction of the table is still waited for,
/// and a full table means "not cacheable". Method: one session takes token after token, and at first does not answer at
/// all.
#[test]
fn bounds_and_trims() {
    let limits = TokenLimits { max_session_tokens: 8, trim_batch: 2, ..TokenLimits::default() };
    let mut space = TokenSpace::new(limits, 1);
    for n in 0..7 {
        grant(&mut space, A, attributes(n));
    }
    let trim = revokes(&mut space).remove(0);
    assert_eq!(trim.keys, [attributes(0), attributes(1)], "the oldest of seven, since six is three quarters");
    assert_eq!(space.grant(0, A, attributes(0), false), Err(NoGrant::Unanswered));
    let change = space.begin_change(0, B, &[Changed::alone(attributes(0))]);
    assert_eq!(revokes(&mut space), [], "it was asked already");
    assert!(!space.is_ready(change));
    grant(&mut space, A, attributes(7));
    assert_eq!(space.grant(0, A, attributes(8), false), Err(NoGrant::Full));
    assert!(space.grant(0, B, attributes(8), false).is_ok(), "the bound is one session's");
    space.revoked(A, trim.id);
    assert!(space.is_ready(change));
    grant(&mut space, A, attributes(8));

    let limits = TokenLimits { max_tokens: 8, trim_batch: 2, max_unanswered: 1, ..TokenLimits::default() };
    let mut space = TokenSpace::new(limits, 1);
    for n in 0..7 {
        grant(&mut space, if n % 2 == 0 { A } else { B }, attributes(n));
    }
    let asked: Vec<_> = revokes(&mut space).into_iter().map(|revoke| (revoke.session, revoke.keys)).collect();
    assert_eq!(asked, [(A, vec![attributes(0)]), (B, vec![attributes(1)])]);
    assert_eq!(space.grant(0, A, attributes(9), false), Err(NoGrant::Unanswered));
    const { assert!(TokenSpace::TOKEN_BYTES <= 136, "docs/locking/tokens.md says so") };
}

/// Goal: a change of very many keys is sent in messages of bounded size, all of which have to be answered. Method:
/// example.
#[test]
fn large_revocations_are_cut() {
    let mut space = space();
    let keys: Vec<Changed> = (0..REVOKE_KEYS as u64 + 1).map(|n| Changed::alone(name(n))).collect();
    for changed in &keys {
        grant(&mut space, A, changed.key);
    }
    let change = space.begin_change(0, B, &keys);
    let asked = revokes(&mut space);
    assert_eq!(asked.iter().map(|revoke| revoke.keys.len()).collect::<Vec<_>>(), [REVOKE_KEYS, 1]);
    space.revoked(A, asked[0].id);
    assert!(!space.is_ready(change));
    assert!(!space.revoked(B, asked[1].id), "nobody answers for another");
    space.revoked(A, asked[1].id);
    assert!(space.is_ready(change));
}

/// Goal: a directory that several clients change grants no listing token for a while, but still tokens for names and
/// attributes. For a directory that only one client changes, listing tokens are granted. The history is bounded.
/// Method: example.
#[test]
fn shared_directories_grant_no_listing() {
    let mut space = space();
    let change = |space: &mut TokenSpace, now_ns, by, n| {
        let id = space.begin_change(now_ns, by, &[Changed::alone(name(n)), Changed::joint(listing())]);
        space.end_change(id);
    };
    change(&mut space, 0, A, 1);
    change(&mut space, 1, A, 2);
    assert!(space.grant(2, C, listing(), false).is_ok());
    space.drop_session(C, SessionEnd::Stopped);
    change(&mut space, 3, B, 3);
    assert_eq!(space.grant(4, C, listing(), false), Err(NoGrant::Shared));
    assert!(space.grant(4, C, name(1), false).is_ok());
    assert!(space.grant(3 + HistoryLimits::default().hold_ns, C, listing(), false).is_ok());

    let mut history = History::new(HistoryLimits { max_dirs: 2, ..HistoryLimits::default() });
    for n in 0..10 {
        history.changed(n, Ino(n), A);
        history.changed(n, Ino(n), B);
    }
    assert_eq!(history.len(), (2, 2));
    assert!(history.is_shared(10, Ino(9)) && !history.is_shared(10, Ino(0)));
}

/// Goal: after a restart changes wait for every session known before: until it presents itself, is known to have
/// stopped, or its tokens must have expired. Grants from before are void by their numbers. Method: example.
#[test]
fn restart_waits_for_known_sessions() {
    let (mut before, mut cache, key) = (space(), cache(), attributes(1));
    let (ask, late) = (cache.ask(0), cache.ask(0));
    let old = grant(&mut before, A, key);
    assert!(cache.store(0, ask, key, old, "old"));
    let mut space = TokenSpace::new(TokenLimits::default(), 2);
    space.recover(10, [A, B, C], LIFE);
    let change = space.begin_change(10, SessionId(9), &[Changed::alone(key)]);
    assert!(!space.is_ready(change));
    assert_eq!(space.grant(10, A, attributes(2), false), Err(NoGrant::Unpresented));
    cache.restarted(2);
    assert_eq!(cache.get(10, key), None);
    assert!(!cache.store(10, late, key, old, "old"), "a reply from before the restart");
    space.present(A);
    assert!(space.grant(10, A, attributes(2), false).is_ok());
    space.drop_session(B, SessionEnd::Stopped);
    space.drop_session(C, SessionEnd::CutOff);
    assert_eq!(space.missing().collect::<Vec<_>>(), [C]);
    assert_eq!(space.next_deadline(), Some(10 + LIFE + MARGIN));
    space.tick(10 + LIFE + MARGIN - 1);
    assert!(!space.is_ready(change));
    space.tick(10 + LIFE + MARGIN);
    assert!(space.is_ready(change));
}

/// Goal: a client remembers a bounded number of void grants, and loses grants, not coherence, beyond. Method: more
/// revocations than it remembers while a request is unanswered.
#[test]
fn void_numbers_are_bounded() {
    let (mut space, mut cache) = (space(), TokenCache::new(TokenCacheLimits { max_values: 8, max_void: 2 }));
    let ask = cache.ask(0);
    let grants: Vec<Grant> = (0..4).map(|n| grant(&mut space, A, attributes(n))).collect();
    for n in 0..4 {
        space.begin_change(0, B, &[Changed::alone(attributes(n))]);
    }
    for revoke in revokes(&mut space) {
        cache.revoke(&revoke);
    }
    for (n, &grant) in grants.iter().enumerate() {
        assert!(!cache.store(0, ask, attributes(n as u64), grant, "old"));
    }
    assert!(cache.footprint()[3] <= 2);
    let ask_later = cache.ask(0);
    let fresh = grant(&mut space, A, attributes(7));
    assert!(cache.store(0, ask_later, attributes(7), fresh, "new"));
    cache.answered(ask);
    cache.answered(ask_later);
    assert_eq!(cache.footprint()[1..4], [0, 0, 0]);
}
