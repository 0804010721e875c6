//! What a worker needs of the floors above it. They hand it over at the start.
//!
//! Owns: three contracts. Does not own: who keeps them (`dispatch`, `cluster`).

use crate::message::{TargetReply, TargetRequest};
use crate::worker::Worker;
use crate::zone_target::Target;
use amphi_env::Env;
use amphi_types::{Result, SessionId, TargetId};
use amphi_wire::Push;
use std::any::Any;
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::{Rc, Weak};

/// A reply that is on its way.
pub type Replying = Pin<Box<dyn Future<Output = Result<TargetReply>>>>;

/// Answers what another target asks a target of this worker. Boxed, because some answers ask on.
pub type AnswerTarget<E> = fn(&Rc<Worker<E>>, &Rc<Target<E>>, TargetRequest) -> Replying;

/// Clients that are connected to this server, as each worker reaches them.
pub trait Clients {
    /// Sends a message to a session's client, if it is connected.
    fn push(self: Rc<Self>, session: SessionId, push: Push);

    /// Ends a session that did not keep to the rules; `why` completes "it is evicted:".
    fn evict(self: Rc<Self>, session: SessionId, why: &str);

    /// What the same part of another worker says (`Message::Sessions`).
    fn take(self: Rc<Self>, from: usize, message: Box<dyn Any + Send>);
}

/// The other servers of the cluster.
pub trait Peers {
    /// Asks a target of another server. `Io` if that cannot be reached for long, `Stale` if nobody has the target.
    fn ask(self: Rc<Self>, target: TargetId, question: TargetRequest) -> Replying;
}

/// All three as a worker has them.
pub struct Above<E: Env> {
    /// Answers to other targets.
    pub answer: AnswerTarget<E>,
    /// Who has the connections of this worker, and at worker 0 the sessions.
    pub clients: RefCell<Option<Weak<dyn Clients>>>,
    /// At worker 0: the other servers.
    pub peers: RefCell<Option<Weak<dyn Peers>>>,
}
