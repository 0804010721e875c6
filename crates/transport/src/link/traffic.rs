//! Reading, writing and watching one connection of a link.
//!
//! Owns: the three tasks of a connection. Does not own: when connections are made (`supervise`), calls (`state`).

use super::state::{Phase, State};
use super::supervise::Attachment;
use super::{Carried, Link, LinkEvents};
use crate::bell::{Ending, step_aside};
use crate::beside;
use crate::error::LinkError;
use crate::local::LocalTx;
use crate::pipe::{Gate, Inbound, Message, Outbound, StreamTx};
use crate::server::SILENCES_MAX;
use amphi_env::{Buf, Env};
use amphi_wire::frame::{EncodeError, FrameKind};
use amphi_wire::{Lane, RequestId};
use futures_util::future::{Either, select};
use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// How long a send on a broken connection may take to return its payload. Then the payload is lost and its call fails.
/// A failed connection returns it at once, unless the network swallows packets.
const STUCK_SEND: Duration = Duration::from_secs(15);

/// Accepts replies to requests that were sent, and places their payloads as the callers asked.
struct Expected<'a>(&'a RefCell<State>);

impl Gate for Expected<'_> {
    type Room = ();

    /// Payloads that arrive here were requested, and the caller has counted their memory.
    async fn room(&mut self, _bytes: usize) {}

    fn admit(&mut self, kind: FrameKind, _: Lane, id: RequestId, _: u16) -> Result<usize, String> {
        match kind {
            FrameKind::Reply => match self.0.borrow_mut().pending(id) {
                Some(p) if p.sent => Ok(usize::from(p.pad)),
                _ => Err(format!("a reply to slot {} number {}, which is not open", id.slot, id.seq)),
            },
            FrameKind::Push | FrameKind::Ping | FrameKind::Pong | FrameKind::Bye => Ok(0),
            other => Err(format!("a server sends no {other:?} here")),
        }
    }

    fn placed(&mut self, id: RequestId, at: u64, len: usize) -> Result<Buf, String> {
        let mut state = self.0.borrow_mut();
        let room = state.pending(id).and_then(|p| p.room.take_if(|r| r.place() == Some(at) && len <= r.len()));
        let mut room =
            room.ok_or_else(|| format!("a reply to slot {} number {} that was put elsewhere", id.slot, id.seq))?;
        room.narrow(0..len);
        state.payloads.carried.beside_bytes += len as u64;
        Ok(room)
    }
}

/// Passes the message that has arrived to the call or the owner. Returns whether it was a reply.
fn hand_over<E: Env, H: LinkEvents<E>>(link: &Link<E>, inb: &mut Inbound<E>, events: &H) -> Result<bool, Ending> {
    let (message, payload) = inb.take()?;
    link.state.borrow_mut().heard = true;
    events.heard();
    match message {
        Message::Reply { id, answer } => {
            let late = link.state.borrow_mut().take_late(id);
            if let Some(call) = late {
                link.state.borrow_mut().complete(id, Err(LinkError::Unreachable));
                events.late(call, answer);
            } else {
                if !inb.was_beside() {
                    let bytes = payload.as_ref().map_or(0, |payload| payload.len() as u64);
                    link.state.borrow_mut().payloads.carried.inline_bytes += bytes;
                }
                let news = link.state.borrow_mut().news_of_carried();
                if let Some(news) = news {
                    events.carried(news);
                }
                link.state.borrow_mut().complete(id, Ok((answer, payload)));
            }
            return Ok(true);
        }
        Message::Push(push) => events.push(push),
        Message::Bye => return Err(Ending::Bye),
        Message::Ping => {
            link.state.borrow_mut().pong_due = true;
            link.outgoing.ring();
        }
        _ => {}
    }
    Ok(false)
}

pub(super) async fn read<E: Env, H: LinkEvents<E>>(
    link: Rc<Link<E>>,
    mut inb: Inbound<E>,
    conn: Rc<Attachment>,
    events: Rc<H>,
) {
    let reading = async {
        loop {
            if let Err(ending) = inb.arrive(&mut Expected(&link.state)).await {
                return ending;
            }
            match hand_over(&link, &mut inb, &*events) {
                // The task yields twice: once for the caller, which may make another call, and once for the writer.
                Ok(true) => step_aside(2).await,
                Ok(false) => {}
                Err(ending) => return ending,
            }
        }
    };
    if let Some(ending) = conn.cut.guard(reading).await {
        conn.cut.cut(ending);
    }
}

/// Sends a ping to a silent server, and ends the connection if no answer comes.
pub(super) async fn watch<E: Env>(link: Rc<Link<E>>, conn: Rc<Attachment>) {
    let mut silences = 0;
    loop {
        let interval = link.timeouts.get().ping;
        if conn.cut.guard(link.env.sleep(interval)).await.is_none() {
            return;
        }
        let heard = std::mem::take(&mut link.state.borrow_mut().heard);
        silences = if heard { 0 } else { silences + 1 };
        if silences >= SILENCES_MAX {
            conn.cut.cut(Ending::Lost(format!("no sign of life for {:?}", interval * silences)));
        } else if silences > 0 {
            link.state.borrow_mut().ping_due = true;
            link.outgoing.ring();
        }
    }
}

fn has_work(state: &State) -> bool {
    !state.queue.is_empty()
        || state.ping_due
        || state.pong_due
        || (state.closing && matches!(state.phase, Phase::Up | Phase::Recovering))
}

pub(super) async fn write<E: Env>(link: Rc<Link<E>>, mut out: Outbound<E>, conn: Rc<Attachment>) {
    loop {
        let work = link.outgoing.until(|| has_work(&link.state.borrow()).then_some(()));
        if conn.cut.guard(work).await.is_none() {
            return;
        }
        let written = match &mut out {
            Outbound::Stream(tx) => write_stream(&link, tx, &conn).await,
            Outbound::Local(tx) => conn.cut.guard(write_local(&link, tx)).await.unwrap_or(Ok(())),
        };
        if let Err(ending) = written {
            return conn.cut.cut(ending);
        }
        if link.state.borrow().is_bye_due() {
            // The connection ends in either case.
            let _ = conn.cut.guard(out.send(Message::Bye)).await;
            return conn.cut.cut(Ending::Bye);
        }
    }
}

/// Encodes requests up to the first one with a payload, or as many as share a write.
fn stage<E: Env>(state: &mut State, tx: &mut StreamTx<E>) -> Option<(RequestId, Buf)> {
    for (due, kind) in [(&mut state.pong_due, FrameKind::Pong), (&mut state.ping_due, FrameKind::Ping)] {
        if std::mem::take(due) {
            tx.stage_bare(kind).expect("an empty stage has room for two headers");
        }
    }
    let mut sent = Carried::default();
    while let Some(&id) = state.queue.front() {
        let staged = match state.pending(id) {
            Some(p) => match &p.call {
                Some(call) => {
                    if p.room.is_none() && p.payload.is_none() && tx.has_passed_memory() {
                        p.room = beside::room_for_reply(p.pad, call.op.reply_payload_max());
                    }
                    let (payload, room) = (p.payload.as_ref(), p.room.as_ref());
                    let staged = tx.stage_request((p.lane, id, p.deadline_ms), call, payload, room);
                    p.sent |= staged.is_ok();
                    let bytes = payload.map_or(0, |payload| payload.len() as u64);
                    match staged {
                        Ok(true) => sent.inline_bytes += bytes,
                        Ok(false) => sent.beside_bytes += bytes,
                        Err(_) => {}
                    }
                    // A payload that is not sent stays where it was named.
                    staged.map(|follows| if follows { p.payload.take() } else { None })
                }
                None => Ok(None),
            },
            None => Ok(None),
        };
        match staged {
            Err(EncodeError::Full) if tx.is_staged() => {
                state.payloads.carried.add(sent);
                return None;
            }
            Err(_) => state.complete(id, Err(LinkError::TooLarge)),
            Ok(Some(payload)) => {
                state.queue.pop_front();
                state.payloads.carried.add(sent);
                return Some((id, payload));
            }
            Ok(None) => {}
        }
        state.queue.pop_front();
    }
    state.payloads.carried.add(sent);
    None
}

async fn write_stream<E: Env>(link: &Link<E>, tx: &mut StreamTx<E>, conn: &Attachment) -> Result<(), Ending> {
    let carried = stage(&mut link.state.borrow_mut(), tx);
    if !tx.is_staged() {
        return Ok(());
    }
    let (id, payload) = carried.map_or((None, None), |(id, payload)| (Some(id), Some(payload)));
    let breaks = tx.breaker();
    let stuck = async {
        conn.cut.wait().await;
        // A stopped peer accepts nothing, and on some sockets that lasts as long as the peer likes.
        breaks();
        link.closing.guard(link.env.sleep(STUCK_SEND)).await;
    };
    // The send is not dropped when the connection breaks, because it holds the payload that a resend needs.
    let (sent, payload) = match select(pin!(tx.flush(payload)), pin!(stuck)).await {
        Either::Left((flushed, _)) => flushed,
        Either::Right(_) => {
            if let Some(id) = id {
                link.state.borrow_mut().lose(id);
            }
            return Err(Ending::Lost("a send did not end".into()));
        }
    };
    if let (Some(id), Some(payload)) = (id, payload)
        && let Some(p) = link.state.borrow_mut().pending(id)
    {
        p.payload = Some(payload);
    }
    sent.map_err(|e| Outbound::<E>::failed(&e))
}

async fn write_local<E: Env>(link: &Link<E>, tx: &mut LocalTx) -> Result<(), Ending> {
    loop {
        let next = {
            let state = &mut *link.state.borrow_mut();
            if std::mem::take(&mut state.pong_due) {
                Some((Message::Pong, None))
            } else if std::mem::take(&mut state.ping_due) {
                Some((Message::Ping, None))
            } else {
                let Some(id) = state.queue.pop_front() else { return Ok(()) };
                state.pending(id).and_then(|p| {
                    let call = p.call.take()?;
                    p.sent = true;
                    Some((Message::Request { lane: p.lane, id, deadline_ms: p.deadline_ms, call }, p.payload.take()))
                })
            }
        };
        if let Some((message, payload)) = next {
            tx.send(message, payload).await.map_err(|_| Ending::Lost("the peer closed the connection".into()))?;
        }
    }
}
