//! Incoming messages of a worker, from clients and from other workers, and the code that handles them.
//!
//! Owns: which operation a message begins. Does not own: the operations (`ops`, `tx`), the way between workers
//! (`worker`), answers to other targets (`target_requests`).

pub(crate) mod target_requests;

use crate::message::Message;
use crate::session::reach::Terms;
use crate::worker::{Called, Worker, lane_of};
use amphi_env::{Buf, Env};
use amphi_sched::{Lane, MeshRx};
use amphi_types::{Errno, SessionId};
use amphi_wire::{Answer, Call, Request, RequestId};
use std::rc::Rc;

/// Receives for a worker until the server ends it. Everything received becomes a task.
pub async fn run<E: Env>(worker: Rc<Worker<E>>, mut mesh: MeshRx<Message>) {
    loop {
        let (from, _, message) = mesh.recv().await;
        match message {
            Message::Call { token, session, id, call, payload, terms } => {
                let own = worker.clone();
                worker.env.spawn(async move {
                    let lane = lane_of(&call.op);
                    let (answer, payload) = call_here(&own, session, id, *call, payload, terms).await;
                    own.send(from, lane, Message::Called { token, answer: Box::new(answer), payload });
                });
            }
            Message::Called { token, answer, payload } => worker.called(token, *answer, payload),
            Message::Ask { token, target, question } => {
                let own = worker.clone();
                worker.env.spawn(async move {
                    let told = Box::new(own.ask_here(target, *question).await);
                    own.send(from, Lane::Urgent, Message::TargetReply { token, told });
                });
            }
            Message::TargetReply { token, told } => worker.told(token, *told),
            Message::Push { session, push } => worker.push(session, push),
            Message::Overdue { session } => worker.overdue(session),
            Message::Sessions(message) => worker.take(from, message),
            Message::Stop => {
                worker.give_up_waiting();
                return;
            }
        }
    }
}

/// Executes a client's request, wherever its target is, on these terms.
pub async fn call<E: Env>(
    worker: &Rc<Worker<E>>,
    session: SessionId,
    id: RequestId,
    call: Call,
    payload: Option<Buf>,
    terms: Terms,
) -> Called {
    match worker.routes.owner(call.target) {
        None => (Answer::of(Err(Errno::Inval)), None),
        Some(to) if to == usize::from(worker.index) => call_here(worker, session, id, call, payload, terms).await,
        Some(to) => worker.forward(to, session, id, call, payload, terms).await,
    }
}

/// The answer to a request that a target of this worker can give without waiting for anything. With `None`, the request
/// has to be executed by `call`.
pub fn at_once<E: Env>(worker: &Rc<Worker<E>>, session: SessionId, call: &Call) -> Option<Answer> {
    let Request::GetAttr { ino } = call.op else { return None };
    let target = worker.target(call.target)?;
    let answer = crate::ops::at_once(worker, &target, session, ino)?;
    worker.counters.request(&call.op);
    tracing::trace!(?session, op = ?call.op, ?answer, "answered at once");
    Some(answer)
}

async fn call_here<E: Env>(
    worker: &Rc<Worker<E>>,
    session: SessionId,
    id: RequestId,
    call: Call,
    payload: Option<Buf>,
    terms: Terms,
) -> Called {
    worker.counters.request(&call.op);
    match worker.target(call.target) {
        Some(target) => crate::ops::execute(worker, &target, session, id, call, payload, terms).await,
        None => (Answer::of(Err(Errno::Inval)), None),
    }
}
