//! Calls, credits, lanes, payloads, pushes and closing: the same over sockets and in-process.

use super::*;
use crate::{CallOptions, LinkError};
use amphi_wire::Lane;
use futures_util::future::join_all;
use futures_util::{FutureExt, poll};
use std::pin::pin;

fn options(deadline: Option<Duration>) -> CallOptions {
    CallOptions { lane: Lane::Normal, pad: 0, deadline, insist: false }
}

/// Goal: many calls in parallel get their own answers, also out of order. Method: held requests are answered in
/// reverse, with others in between.
#[test]
fn answers_find_their_calls() {
    for net in BOTH {
        let place = Place::new(1, net);
        place.run(async {
            let link = place.connect().await;
            let held: Vec<_> = (0..4).map(|n| link.call(Lane::Normal, ask(HELD + n), None, 0)).collect();
            let mut held = pin!(join_all(held));
            assert!(poll!(held.as_mut()).is_pending());
            place.until(|| place.server.holds(HELD + 3)).await;
            let quick = join_all((0..50).map(|n| link.call(Lane::Normal, ask(n), None, 0))).await;
            assert_eq!(quick.into_iter().map(ino).collect::<Vec<_>>(), (0..50).collect::<Vec<_>>());
            for n in (0..4).rev() {
                place.server.release(HELD + n);
            }
            let held: Vec<u64> = held.await.into_iter().map(ino).collect();
            assert_eq!(held, [HELD, HELD + 1, HELD + 2, HELD + 3]);
        });
    }
}

/// Goal: no more requests than credits are in flight, and waiting calls go in their order. Method: fill the lane
/// with held requests, queue more, release one at a time.
#[test]
fn credits_bound_what_is_in_flight() {
    for net in BOTH {
        let place = Place::new(2, net);
        place.run(async {
            let link = place.connect().await;
            let calls: Vec<_> = (0..12).map(|n| link.call(Lane::Normal, ask(HELD + n), None, 0)).collect();
            let mut calls = pin!(join_all(calls));
            assert!(poll!(calls.as_mut()).is_pending());
            place.until(|| place.server.holds(HELD + 7)).await;
            place.client_env().sleep(Duration::from_millis(100)).await;
            assert!(!place.server.holds(HELD + 8), "a ninth request with eight credits");
            for n in 0..12 {
                place.server.release(HELD + n);
                let next = n + 8;
                while next < 12 && !place.server.holds(HELD + next) {
                    assert!(poll!(calls.as_mut()).is_pending());
                    place.client_env().sleep(Duration::from_micros(50)).await;
                }
            }
            assert_eq!(calls.await.len(), 12);
            assert_eq!(*place.server.order.borrow(), (HELD..HELD + 12).collect::<Vec<_>>());
        });
    }
}

/// Goal: the urgent lane passes a full normal lane, and answers pass a full urgent lane. Method: the test keeps all
/// credits that the lower lane may take (8 normal; 4 urgent without the reserve and the one for answers) in use, and
/// calls on the higher lane.
#[test]
fn higher_lanes_pass() {
    for (net, lower, taken, higher) in
        BOTH.into_iter().flat_map(|net| [(net, Lane::Normal, 8, Lane::Urgent), (net, Lane::Urgent, 2, Lane::Answer)])
    {
        let place = Place::new(3, net);
        place.run(async {
            let link = place.connect().await;
            let calls: Vec<_> = (0..20).map(|n| link.call(lower, ask(HELD + n), None, 0)).collect();
            let mut calls = pin!(join_all(calls));
            assert!(poll!(calls.as_mut()).is_pending());
            place.until(|| place.server.holds(HELD + taken - 1)).await;
            for n in 0..10 {
                assert_eq!(ino(link.call(higher, ask(n), None, 0).await), n);
            }
            assert!(!place.server.holds(HELD + taken));
        });
    }
}

/// Goal: payloads arrive whole, where their file offset wants them, and in-process without a copy. Method: sizes and
/// offsets near those of blocks and staging buffers; the server and the client check bytes and place.
#[test]
fn payloads_are_placed() {
    for net in BOTH {
        let place = Place::new(4, net);
        place.run(async {
            let link = place.connect().await;
            for (n, (offset, len)) in
                [(0, 1), (4095, 1), (1, 4096), (513, 70_000), (8192, 1 << 20)].into_iter().enumerate()
            {
                let (n, pad) = (n as u64, offset as usize % 4096);
                let sent = pattern(n, pad, len);
                let at = sent.as_ptr() as usize;
                let (answer, payload) = link.call(Lane::Normal, write(n, offset), Some(sent), 0).await.unwrap();
                assert_eq!((answer.result, payload.is_none()), (Ok(Reply::Written { roomy: true }), true));
                let end = offset + len as u64;
                let (answer, payload) = link.call(Lane::Normal, read(n, offset, end), None, pad).await.unwrap();
                let payload = payload.expect("data");
                assert_eq!(answer.result, Ok(Reply::Data));
                assert_eq!(payload[..], pattern(n, pad, len)[..]);
                assert_eq!(payload.as_ptr() as usize % 4096, pad);
                if net == Net::InProcess {
                    assert_eq!(payload.as_ptr() as usize, place.server.payload_at.get(), "the reply was copied");
                    let sent = pattern(n, pad, len);
                    let at_again = sent.as_ptr() as usize;
                    link.call(Lane::Normal, write(n, offset), Some(sent), 0).await.unwrap();
                    assert_eq!(at_again, place.server.payload_at.get(), "the request was copied");
                }
                assert!(at > 0);
            }
        });
    }
}

/// Goal: a dropped call keeps its slot until the reply arrives, so that no slot carries two requests. Method: drop all
/// eight calls in flight, see that a further one waits for a release.
#[test]
fn dropped_calls_keep_their_slots() {
    for net in BOTH {
        let place = Place::new(5, net);
        place.run(async {
            let link = place.connect().await;
            {
                let calls: Vec<_> = (0..8).map(|n| link.call(Lane::Normal, ask(HELD + n), None, 0)).collect();
                let mut calls = pin!(join_all(calls));
                assert!(poll!(calls.as_mut()).is_pending());
                place.until(|| place.server.holds(HELD + 7)).await;
            }
            let mut next = pin!(link.call(Lane::Normal, ask(1), None, 0));
            assert!(poll!(next.as_mut()).is_pending());
            place.client_env().sleep(Duration::from_millis(50)).await;
            assert!(poll!(next.as_mut()).is_pending());
            assert!(!place.server.order.borrow().contains(&1));
            place.server.release(HELD + 4);
            assert_eq!(ino(next.await), 1);
        });
    }
}

/// Goal: a call that is dropped before it was sent is never executed, and gives its slot back. Method: drop calls
/// at once after their first poll, again and again, far beyond the credits.
#[test]
fn withdrawn_calls_are_not_sent() {
    for net in BOTH {
        let place = Place::new(6, net);
        place.run(async {
            let link = place.connect().await;
            for n in 0..100 {
                assert!(link.call(Lane::Normal, ask(n), None, 0).boxed_local().as_mut().now_or_never().is_none());
            }
            assert_eq!(ino(link.call(Lane::Normal, ask(500), None, 0).await), 500);
            assert_eq!(*place.server.order.borrow(), [500]);
        });
    }
}

/// Goal: a call ends at its deadline, in flight or waiting for a slot. Method: hold everything.
#[test]
fn deadlines_end_calls() {
    for net in BOTH {
        let place = Place::new(7, net);
        place.run(async {
            let link = place.connect().await;
            let wait = Some(Duration::from_millis(30));
            let calls = join_all((0..10).map(|n| link.call_with(options(wait), ask(HELD + n), None))).await;
            assert!(calls.into_iter().all(|c| matches!(c, Err(LinkError::Deadline))));
        });
    }
}

/// Goal: a resent request carries the remaining time that its caller waits, or that it waits no more. Method: hold
/// calls with several deadlines, break the connection when some have passed, check the arriving requests.
#[test]
fn deadlines_go_on_over_a_break() {
    let place = Place::new(71, Net::Socket);
    place.run(async {
        let link = place.connect().await;
        let call =
            |ms: u64, n| link.call_with(options((ms > 0).then(|| Duration::from_millis(ms))), ask(HELD + n), None);
        let (mut short, mut long, mut unbound) = (pin!(call(300, 0)), pin!(call(60_000, 1)), pin!(call(0, 2)));
        assert!(poll!(long.as_mut()).is_pending() && poll!(unbound.as_mut()).is_pending());
        assert!(matches!(short.as_mut().await, Err(LinkError::Deadline)));
        let first = std::mem::take(&mut *place.server.deadlines.borrow_mut());
        let conn = place.server.connected.borrow()[0];
        place.server.connections.cut(conn, "test");
        place.until(|| place.server.deadlines.borrow().len() == 3).await;
        let again = place.server.deadlines.borrow().clone();
        assert_eq!(first[&HELD], Some(Duration::from_millis(300)));
        assert_eq!(again[&HELD], Some(Duration::ZERO), "nobody waits for it");
        let left = again[&(HELD + 1)].expect("bounded");
        assert!(left <= Duration::from_millis(59_700) && left > Duration::from_secs(50), "{left:?}");
        assert_eq!((first[&(HELD + 2)], again[&(HELD + 2)]), (None, None));
        (0..3).for_each(|n| place.server.release(HELD + n));
        assert_eq!((ino(long.await), ino(unbound.await)), (HELD + 1, HELD + 2));
    });
}

/// Goal: pushes reach the owner in order; a push beyond the server's bound ends the client's connection. Method: push a
/// few, then without end in one go.
#[test]
fn pushes_arrive() {
    for net in BOTH {
        let place = Place::new(8, net);
        place.run(async {
            let link = place.connect().await;
            assert_eq!(ino(link.call(Lane::Normal, ask(1), None, 0).await), 1);
            let conn = place.server.connected.borrow()[0];
            let pushes: Vec<Push> = (0..40).map(|id| Push::Glimpse { id, object: object(id) }).collect();
            for push in &pushes {
                assert!(place.server.connections.push(conn, push.clone()));
            }
            place.until(|| place.owner.pushes.borrow().len() == 40).await;
            assert_eq!(*place.owner.pushes.borrow(), pushes);
            while place.server.connections.push(conn, pushes[0].clone()) {}
            place.until(|| place.server.disconnected.borrow().first() == Some(&(conn, false))).await;
        });
    }
}

/// Goal: the client distinguishes an orderly end from a broken connection; calls on a closed link fail. Method: close
/// one link, with a call outstanding.
#[test]
fn closing_is_clean() {
    for net in BOTH {
        let place = Place::new(9, net);
        place.run(async {
            let link = place.connect().await;
            let mut held = pin!(link.call(Lane::Normal, ask(HELD), None, 0));
            assert!(poll!(held.as_mut()).is_pending());
            place.until(|| place.server.holds(HELD)).await;
            link.close().await;
            assert!(matches!(held.await, Err(LinkError::Closed)));
            assert!(matches!(link.call(Lane::Urgent, ask(1), None, 0).await, Err(LinkError::Closed)));
            let conn = place.server.connected.borrow()[0];
            place.until(|| place.server.disconnected.borrow().as_slice() == [(conn, true)]).await;
            assert_eq!(place.server.connections.count(), 0);
        });
    }
}

/// Goal: a refusal reaches the caller with its reason; silly credits are refused too. Method: a server that
/// refuses, then one that grants nothing.
#[test]
fn refusals_say_why() {
    for net in BOTH {
        let place = Place::new(10, net);
        place.run(async {
            *place.server.refuse.borrow_mut() = Some("another mount is there".into());
            let e = place.try_connect(place.config()).await.err().expect("refused");
            assert_eq!(e.kind(), io::ErrorKind::PermissionDenied);
            assert!(e.to_string().contains("another mount is there"), "{e}");
            *place.server.refuse.borrow_mut() = None;
            place.server.credits.set((4, 1));
            let e = place.try_connect(place.config()).await.err().expect("refused");
            assert!(e.to_string().contains("1 urgent credits"), "{e}");
        });
    }
}

/// Goal: large bodies pass, those above the limit become errors of their call alone. Method: replies and requests
/// around the bound, over a socket.
#[test]
fn bodies_have_a_bound() {
    let place = Place::new(11, Net::Socket);
    place.run(async {
        let link = place.connect().await;
        let (answer, _) = link.call(Lane::Normal, call(Request::ListXattr { ino: Ino(1) }), None, 0).await.unwrap();
        assert_eq!(answer.result, Ok(Reply::Bytes(vec![7; 1 << 19])));
        let too_large = call(Request::GetXattr { ino: Ino(1), name: vec![] });
        assert_eq!(link.call(Lane::Normal, too_large, None, 0).await.unwrap().0.result, Err(Errno::Overflow));
        let set = |len| Request::SetXattr {
            ino: Ino(1),
            name: vec![1],
            value: vec![2; len],
            mode: amphi_wire::XattrMode::Set,
        };
        assert_eq!(link.call(Lane::Normal, call(set(1 << 19)), None, 0).await.unwrap().0.result, Ok(Reply::Done));
        let too_large = link.call(Lane::Normal, call(set(1 << 20)), None, 0).await;
        assert!(matches!(too_large, Err(LinkError::TooLarge)));
        let payload = Buf::zeroed(amphi_types::limits::PAYLOAD_MAX + 1);
        assert!(matches!(link.call(Lane::Normal, write(1, 0), Some(payload), 0).await, Err(LinkError::TooLarge)));
        assert_eq!(ino(link.call(Lane::Normal, ask(3), None, 0).await), 3);
        assert_eq!(place.server.disconnected.borrow().len(), 0);
    });
}
