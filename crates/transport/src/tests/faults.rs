//! Broken connections, restarts, silence, and giving up.

use super::*;
use crate::{CallOptions, LinkError};
use amphi_wire::Lane;
use futures_util::future::join_all;
use futures_util::poll;
use std::pin::pin;

fn breaking(one_in: u64) -> SimConfig {
    SimConfig { break_one_in: one_in, ..SimConfig::default() }
}

/// Goal: over connections that break anywhere, also in the middle of frames and payloads, every call is executed
/// once and gets its own answer. Method: many seeds, each with 12 callers on 8 slots, writes and questions.
#[test]
fn resends_are_answered_once() {
    let mut breaks = 0;
    for seed in 0..30 {
        let place = Place::with(seed, Net::Socket, breaking(15), ServerAuth::default());
        let calls = place.run(async {
            let config = LinkConfig {
                timeouts: Timeouts { first_connect: Duration::from_secs(5), ..Timeouts::default() },
                ..place.config()
            };
            let link = place.try_connect(config).await.expect("a connection in the end");
            let callers = (0..12u64).map(|caller| {
                let link = link.clone();
                async move {
                    for i in 0..6 {
                        let n = caller * 10 + i;
                        if i % 2 == 0 {
                            assert_eq!(ino(link.call(Lane::Normal, ask(n), None, 0).await), n);
                        } else {
                            let (offset, len) = (n * 777, 3000 + n as usize * 500);
                            let payload = pattern(n, (offset % 4096) as usize, len);
                            let done = link.call(Lane::Normal, write(n, offset), Some(payload), 0).await.unwrap();
                            assert_eq!(done.0.result, Ok(Reply::Written { roomy: true }));
                        }
                    }
                }
            });
            join_all(callers).await.len() * 6
        });
        let executions = place.durable.executions.borrow();
        assert_eq!(executions.len(), calls, "seed {seed}: requests and executions differ in number");
        assert!(executions.values().all(|&times| times == 1), "seed {seed}: {executions:?}");
        breaks += place.server.connected.borrow().len() - 1;
    }
    assert!(breaks > 100, "only {breaks} breaks were met");
}

/// Goal: a payload that the network damages is seen by who receives it, sent again, and executed once with the bytes
/// that were sent. Method: one bit is changed in one of eight payloads, in both directions; the server compares the
/// payloads that it gets.
#[test]
fn damaged_payloads_are_sent_again() {
    let mut breaks = 0;
    for seed in 0..20 {
        let sim = SimConfig { damage_one_in: 8, ..SimConfig::default() };
        let place = Place::with(seed, Net::Socket, sim, ServerAuth::default());
        let calls = place.run(async {
            let link = place.connect().await;
            let callers = (0..6u64).map(|caller| {
                let link = link.clone();
                async move {
                    for i in 0..6 {
                        let (n, len) = (caller * 10 + i, 1 + (i as usize * 3371) % 20_000);
                        let offset = n * 777;
                        let payload = pattern(n, (offset % 4096) as usize, len);
                        let done = link.call(Lane::Normal, write(n, offset), Some(payload), 0).await.expect("a call");
                        assert_eq!(done.0.result, Ok(Reply::Written { roomy: true }));
                    }
                }
            });
            join_all(callers).await.len() * 6
        });
        let executions = place.durable.executions.borrow();
        assert_eq!(executions.len(), calls, "seed {seed}");
        assert!(executions.values().all(|&times| times == 1), "seed {seed}: {executions:?}");
        breaks += place.server.connected.borrow().len() - 1;
    }
    assert!(breaks > 20, "only {breaks} payloads were damaged");
}

/// Goal: a request whose answer was lost is answered from memory. Method: the server executes, then cuts the
/// connection instead of answering.
#[test]
fn lost_answers_are_kept() {
    let place = Place::new(1, Net::Socket);
    place.run(async {
        let link = place.connect().await;
        place.server.drop_answers.set(true);
        let payload = pattern(9, 5, 10_000);
        let mut lost = pin!(link.call(Lane::Normal, write(9, 5), Some(payload), 0));
        assert!(poll!(lost.as_mut()).is_pending());
        place.until(|| place.server.disconnected.borrow().len() >= 2).await;
        place.server.drop_answers.set(false);
        assert_eq!(lost.await.unwrap().0.result, Ok(Reply::Written { roomy: true }));
        assert_eq!(place.durable.executions.borrow().values().copied().collect::<Vec<_>>(), [1]);
    });
}

/// Goal: after a restart the owner speaks first, then outstanding requests follow in their order. Method: requests of
/// all lanes are delayed, the server crashes and restarts, and the order of requests at the new server is checked.
#[test]
fn restarts_recover_first() {
    let mut place = Place::new(2, Net::Socket);
    let link = place.run(place.connect());
    let calls: Vec<_> = (0..11)
        .map(|n| {
            let link = link.clone();
            let lane = [Lane::Normal, Lane::Urgent, Lane::Answer][usize::from(n >= 8) + usize::from(n >= 10)];
            async move { link.call(lane, ask(HELD + n), None, 0).await }
        })
        .collect();
    let mut calls = pin!(join_all(calls));
    place.run(async {
        assert!(poll!(calls.as_mut()).is_pending());
        place.until(|| place.server.holds(HELD + 10)).await;
    });
    place.crash();
    place.sim.run_for(Duration::from_secs(3)).unwrap();
    assert!(!link.is_up());
    place.restart();
    place.run(async {
        place.until(|| place.server.holds(HELD + 10)).await;
        let mut expected = vec![REPRESENTED, REPRESENTED];
        expected.extend(HELD..HELD + 11);
        assert_eq!(*place.server.order.borrow(), expected);
        for n in 0..11 {
            place.server.release(HELD + n);
        }
        assert_eq!(calls.await.into_iter().map(ino).collect::<Vec<_>>(), (HELD..HELD + 11).collect::<Vec<_>>());
        assert_eq!(place.owner.recoveries.get(), 1);
        assert_eq!(link.welcome().boot, 2);
        assert_eq!(*place.owner.ups.borrow(), [true, false, true]);
    });
}

/// Goal: a recovery that breaks off is begun again, until it is whole. Method: connections that break often, a
/// restart, many seeds.
#[test]
fn recovery_is_repeated_until_it_succeeds() {
    let mut repeated = 0;
    for seed in 0..40 {
        let mut place = Place::with(seed, Net::Socket, breaking(6), ServerAuth::default());
        let link = place.run(async {
            let config = LinkConfig {
                timeouts: Timeouts { first_connect: Duration::from_secs(5), ..Timeouts::default() },
                ..place.config()
            };
            place.try_connect(config).await.expect("a connection in the end")
        });
        place.crash();
        place.restart();
        place.run(async {
            assert_eq!(ino(link.call(Lane::Normal, ask(1), None, 0).await), 1);
        });
        let order = place.server.order.borrow();
        let first = order.iter().position(|&n| n == 1).expect("the question was executed");
        assert!(first >= 2 && order[..first].iter().all(|&n| n == REPRESENTED), "seed {seed}: {order:?}");
        repeated += u32::from(place.owner.recoveries.get() > 1);
    }
    assert!(repeated > 3, "only {repeated} recoveries broke off");
}

/// Goal: an owner that cannot recover ends the link with its error. Method: an owner that fails.
#[test]
fn failed_recovery_fails_calls() {
    let mut place = Place::new(3, Net::Socket);
    let link = place.run(place.connect());
    place.crash();
    place.restart();
    place.owner.recovery_fails.set(Some(Errno::Stale));
    place.run(async {
        let failed = link.call(Lane::Normal, ask(1), None, 0).await;
        assert!(matches!(failed, Err(LinkError::Lost(Errno::Stale))));
        assert!(matches!(link.call(Lane::Normal, ask(1), None, 0).await, Err(LinkError::Lost(Errno::Stale))));
    });
}

/// Goal: calls wait for a server that is down, fail after `give_up`, and succeed again when it is back; a failed call
/// is not executed later. Method: virtual time.
#[test]
fn giving_up_is_not_forever() {
    let mut place = Place::new(4, Net::Socket);
    let link = place.run(place.connect());
    place.crash();
    let began = place.sim.now();
    place.run(async {
        let calls = join_all((0..12).map(|n| link.call(Lane::Normal, ask(n), None, 0))).await;
        assert!(calls.into_iter().all(|c| matches!(c, Err(LinkError::Unreachable))));
        let waited = place.sim.now().since(began);
        assert!((59..70).contains(&waited.as_secs()), "{waited:?}");
        let at_once = place.sim.now();
        assert!(matches!(link.call(Lane::Normal, ask(1), None, 0).await, Err(LinkError::Unreachable)));
        assert_eq!(place.sim.now(), at_once);
    });
    place.restart();
    place.run(async {
        place.until(|| link.is_up()).await;
        assert_eq!(ino(link.call(Lane::Normal, ask(20), None, 0).await), 20);
        assert_eq!(*place.server.order.borrow(), [REPRESENTED, REPRESENTED, 20]);
    });
}

/// Goal: the owner of a failed call, whose answer may create state to be returned, receives the answer when it arrives.
/// A call that was never sent is not executed. A call that insists does not fail. Method: such calls before and during
/// a cut that lasts longer than calls wait.
#[test]
fn what_was_given_up_leaves_nothing_behind() {
    let place = Place::new(6, Net::Socket);
    place.run(async {
        let link = place.connect().await;
        let access = amphi_wire::Access { read: true, write: false };
        let open = || call(Request::Open { ino: Ino(1), access, exec: false });
        let insist = CallOptions { lane: Lane::Normal, pad: 0, deadline: None, insist: true };
        place.server.drop_answers.set(true);
        let mut executed = pin!(link.call(Lane::Normal, open(), None, 0));
        assert!(poll!(executed.as_mut()).is_pending());
        place.until(|| place.durable.executions.borrow().len() == 1).await;
        place.sim.cut("client", "server");
        place.sim.break_connections("client", "server");
        place.until(|| !link.is_up()).await;
        let mut before = pin!(link.call_with(insist, ask(5), None));
        let mut never = pin!(link.call(Lane::Normal, open(), None, 0));
        assert!(poll!(before.as_mut()).is_pending() && poll!(never.as_mut()).is_pending());
        assert!(matches!(executed.await, Err(LinkError::Unreachable)));
        assert!(matches!(never.await, Err(LinkError::Unreachable)));
        let mut after = pin!(link.call_with(insist, ask(6), None));
        assert!(poll!(before.as_mut()).is_pending() && poll!(after.as_mut()).is_pending());
        place.server.drop_answers.set(false);
        place.sim.heal("client", "server");
        assert_eq!((ino(before.await), ino(after.await)), (5, 6));
        place.until(|| !place.owner.late.borrow().is_empty()).await;
        assert_eq!(*place.owner.late.borrow(), [(open(), Answer::of(Ok(Reply::Done)))]);
        let executions = place.durable.executions.borrow();
        assert!(executions.len() == 3 && executions.values().all(|times| *times == 1), "{executions:?}");
    });
}

/// Goal: a connection over which nothing arrives any more is noticed by both ends, and calls continue over a new one.
/// Method: cut the network under a call with a large payload, heal it after the ends have noticed.
#[test]
fn silence_ends_connections() {
    let place = Place::new(5, Net::Socket);
    place.run(async {
        let link = place.connect().await;
        place.sim.cut("client", "server");
        let payload = pattern(1, 0, 2 << 20);
        let mut call = pin!(link.call(Lane::Normal, write(1, 0), Some(payload), 0));
        assert!(poll!(call.as_mut()).is_pending());
        place.until(|| !link.is_up() && place.server.disconnected.borrow().len() == 1).await;
        place.sim.heal("client", "server");
        assert_eq!(call.await.unwrap().0.result, Ok(Reply::Written { roomy: true }));
        assert_eq!(place.owner.recoveries.get(), 0, "the server did not restart");
    });
}

/// Goal: an idle connection stays up. Method: an hour of silence.
#[test]
fn idle_connections_live() {
    for net in BOTH {
        let place = Place::new(6, net);
        place.run(async {
            let link = place.connect().await;
            place.client_env().sleep(Duration::from_secs(3600)).await;
            assert_eq!(ino(link.call(Lane::Normal, ask(1), None, 0).await), 1);
            assert_eq!(place.server.connected.borrow().len(), 1);
        });
    }
}

/// Goal: closing works while there is no server. Method: crash, then close.
#[test]
fn closing_needs_no_server() {
    let place = Place::new(7, Net::Socket);
    place.run(async {
        let link = place.connect().await;
        place.crash();
        let mut call = pin!(link.call(Lane::Normal, ask(1), None, 0));
        assert!(poll!(call.as_mut()).is_pending());
        place.client_env().sleep(Duration::from_millis(500)).await;
        link.close().await;
        assert!(matches!(call.await, Err(LinkError::Closed)));
    });
}

/// Goal: a server that shuts down says so and loses no reply that was queued; the client waits for the next server.
/// Method: shut down right after releasing a held call.
#[test]
fn shutdown_delivers_queued_replies() {
    let place = Place::new(8, Net::Socket);
    place.run(async {
        let link = place.connect().await;
        let mut call = pin!(link.call(Lane::Normal, ask(HELD), None, 0));
        assert!(poll!(call.as_mut()).is_pending());
        place.until(|| place.server.holds(HELD)).await;
        place.server.release(HELD);
        place.server.connections.shutdown();
        assert_eq!(ino(call.await), HELD);
        place.until(|| place.server.disconnected.borrow().len() == 1).await;
        assert!(!place.server.disconnected.borrow()[0].1, "the client did not say Bye");
        assert_eq!(ino(link.call(Lane::Normal, ask(2), None, 0).await), 2);
    });
}

/// Goal: an in-process link fails its calls when the server's side ends. Method: cut the connection.
#[test]
fn local_links_do_not_reconnect() {
    let place = Place::new(9, Net::InProcess);
    place.run(async {
        let link = place.connect().await;
        let mut call = pin!(link.call(Lane::Normal, ask(HELD), None, 0));
        assert!(poll!(call.as_mut()).is_pending());
        place.until(|| place.server.holds(HELD)).await;
        place.server.connections.cut(place.server.connected.borrow()[0], "test");
        assert!(matches!(call.await, Err(LinkError::Closed)));
        assert!(matches!(link.call(Lane::Normal, ask(1), None, 0).await, Err(LinkError::Closed)));
    });
}
