//! Slots: client and server tables against each other and against simple references.

use amphi_wire::slots::*;
use amphi_wire::{Lane, RequestId};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
enum Step {
    Acquire(Lane),
    Answer(usize),
    Reserve,
    Reconnect,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let lane = prop_oneof![Just(Lane::Normal), Just(Lane::Locking), Just(Lane::Urgent), Just(Lane::Answer)];
    let step = prop_oneof![
        5 => lane.prop_map(Step::Acquire),
        4 => any::<usize>().prop_map(Step::Answer),
        1 => Just(Step::Reserve),
        1 => Just(Step::Reconnect),
    ];
    proptest::collection::vec(step, 0..200)
}

/// The lane that the server knows.
fn wire(lane: Lane) -> Lane {
    if matches!(lane, Lane::Normal | Lane::Locking) { Lane::Normal } else { Lane::Urgent }
}

proptest! {
    /// Goal: every request that the client's table permits is within the server's window, outstanding requests are sent
    /// again in their order, and slots are neither lost nor duplicated. Method: random steps, with a plain list of
    /// outstanding requests as reference.
    #[test]
    fn client_and_server_agree(normal in 1u16..12, urgent in 2u16..12, steps in steps()) {
        let mut table = SlotTable::new(normal, urgent).unwrap();
        let mut window = Window::new(normal, urgent).unwrap();
        let mut open: Vec<(RequestId, Lane)> = Vec::new();
        let free = |open: &[(RequestId, Lane)], lane| {
            let reserve = normal + urgent - 1;
            let lane_used = |id: &RequestId, l: Lane| wire(l) == wire(lane) && id.slot != reserve;
            let used = open.iter().filter(|(id, l)| lane_used(id, *l)).count() as u16;
            let locking = open.iter().filter(|(_, l)| *l == Lane::Locking).count() as u16;
            match lane {
                Lane::Normal => normal - used,
                Lane::Locking => (normal - used).min((normal - normal / 4).saturating_sub(locking)),
                Lane::Urgent => (urgent - 1 - used).saturating_sub(urgent / 4),
                Lane::Answer => urgent - 1 - used,
            }
        };
        for step in steps {
            match step {
                Step::Acquire(lane) => {
                    let left = free(&open, lane);
                    prop_assert_eq!(table.has_free(lane), left > 0);
                    let id = table.acquire(lane);
                    prop_assert_eq!(id.is_some(), left > 0);
                    if let Some(id) = id {
                        prop_assert_eq!(window.handle_request(wire(lane), id), Ok(()));
                        open.push((id, lane));
                    }
                }
                Step::Reserve => {
                    let busy = open.iter().any(|(id, _)| id.slot == table.reserve());
                    let id = table.acquire_reserve();
                    prop_assert_eq!(id.is_none(), busy);
                    if let Some(id) = id {
                        prop_assert_eq!(window.handle_request(Lane::Urgent, id), Ok(()));
                        open.push((id, Lane::Urgent));
                    }
                }
                Step::Answer(at) if !open.is_empty() => {
                    let (id, lane) = open.remove(at % open.len());
                    let next = RequestId { seq: id.seq + 1, ..id };
                    prop_assert_eq!(window.handle_request(wire(lane), next), Err(Violation::Busy { id: next }));
                    prop_assert!(!window.handle_sent(id));
                    prop_assert!(window.handle_reply(id));
                    prop_assert!(!window.handle_reply(id));
                    prop_assert_eq!(window.handle_request(wire(lane), next), Err(Violation::Busy { id: next }));
                    prop_assert!(window.handle_sent(id));
                    prop_assert!(!window.handle_sent(id));
                    prop_assert_eq!(window.handle_request(wire(lane), id), Err(Violation::Sequence { id, last: id.seq }));
                    prop_assert!(table.release(id));
                    prop_assert!(!table.release(id));
                }
                Step::Answer(_) => {}
                Step::Reconnect => {
                    window = Window::new(normal, urgent).unwrap();
                    for (id, (expected, lane)) in table.outstanding().into_iter().zip(open.iter()) {
                        prop_assert_eq!(id, *expected);
                        prop_assert_eq!(window.handle_request(wire(*lane), id), Ok(()));
                    }
                }
            }
            prop_assert_eq!(table.outstanding().len(), open.len());
            prop_assert_eq!(window.open(), open.len());
            prop_assert!(open.iter().all(|(id, _)| table.is_outstanding(*id)));
        }
    }

    /// Goal: each request is executed once, however often and in whichever order messages arrive. Method: random
    /// arrivals (with repetitions and late ones) and completions are compared with a map of executed requests.
    #[test]
    fn executed_once(events in proptest::collection::vec((0u16..3, 1u64..8, any::<bool>()), 0..200)) {
        let mut table = ReplyTable::new();
        let mut last: BTreeMap<u16, (u64, Option<u64>)> = BTreeMap::new();
        for (slot, seq, finish) in events {
            let id = RequestId { slot, seq };
            let known = last.get(&slot).copied();
            let expected = match known {
                Some((s, _)) if seq < s => Begin::Old,
                Some((s, Some(reply))) if seq == s => {
                    prop_assert_eq!(reply, s * 10);
                    prop_assert!(matches!(table.begin(id), Begin::Replay(&r) if r == reply));
                    continue;
                }
                Some((s, None)) if seq == s => Begin::InProgress,
                _ => Begin::Execute,
            };
            let begun = table.begin(id);
            prop_assert_eq!(&begun, &expected);
            if begun == Begin::Execute {
                last.insert(slot, (seq, None));
            }
            if finish && last.get(&slot) == Some(&(seq, None)) {
                table.finish(id, seq * 10);
                last.insert(slot, (seq, Some(seq * 10)));
            }
        }
        let kept: Vec<_> = last.iter().filter_map(|(&slot, &(seq, r))| Some((RequestId { slot, seq }, r?))).collect();
        prop_assert_eq!(table.kept().map(|(id, &r)| (id, r)).collect::<Vec<_>>(), kept);
    }
}

/// Goal: replies overtaken by later requests, forgotten ones and restored ones behave as documented. Method: one
/// story for each.
#[test]
fn reply_table_edges() {
    let id = |seq| RequestId { slot: 4, seq };
    let mut table = ReplyTable::new();
    assert_eq!(table.begin(id(5)), Begin::Execute);
    assert_eq!(table.begin(id(6)), Begin::Execute);
    table.finish(id(5), "late");
    assert_eq!(table.begin(id(5)), Begin::Old);
    assert_eq!(table.begin(id(6)), Begin::InProgress);
    table.forget(id(6));
    assert_eq!(table.begin(id(5)), Begin::Old);
    assert_eq!(table.begin(id(6)), Begin::Execute);
    table.finish(id(6), "six");
    table.forget(id(6));
    assert_eq!(table.begin(id(6)), Begin::Replay(&"six"));
    table.restore(id(4), "old");
    assert_eq!(table.begin(id(6)), Begin::Replay(&"six"));
    table.restore(id(9), "nine");
    assert_eq!(table.begin(id(9)), Begin::Replay(&"nine"));
    assert_eq!(table.begin(id(10)), Begin::Execute);
}

/// Goal: silly credits are refused, and changed ones noticed. Method: the edges.
#[test]
fn credits_are_checked() {
    for (normal, urgent) in [(0, 2), (1, 1), (1, 0), (CREDITS_MAX + 1, 2), (1, CREDITS_MAX + 1)] {
        assert_eq!(SlotTable::new(normal, urgent).err(), Some(BadCredits { normal, urgent }));
        assert_eq!(Window::new(normal, urgent).err(), Some(BadCredits { normal, urgent }));
    }
    let table = SlotTable::new(CREDITS_MAX, CREDITS_MAX).unwrap();
    assert_eq!(table.slots(), 2 * usize::from(CREDITS_MAX));
    let table = SlotTable::new(4, 3).unwrap();
    assert!(table.check(4, 3).is_ok());
    assert!(table.check(3, 4).is_err());
    assert!(table.check(4, 4).is_err());
}
