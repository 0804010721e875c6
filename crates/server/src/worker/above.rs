//! The interfaces through which a worker uses the layers above it. It gets them at the start.
//!
//! Owns: three interfaces. Does not own: their implementations (`dispatch`, `cluster`).

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

/// Answers a request of another target to a target of this worker. Boxed, because some answers send requests
/// themselves.
pub type AnswerTarget<E> = fn(&Rc<Worker<E>>, &Rc<Target<E>>, TargetRequest) -> Replying;

/// Clients that are connected to this server, as each worker reaches them.
pub trait Clients {
    /// Sends a message to a session's client, if it is connected.
    fn push(self: Rc<Self>, session: SessionId, push: Push);

    /// Ends a session that broke the rules. `why` completes the sentence "it is evicted:".
    fn evict(self: Rc<Self>, session: SessionId, why: &str);

    /// A message of the same part of another worker (`Message::Sessions`).
    fn take(self: Rc<Self>, from: usize, message: Box<dyn Any + Send>);
}

/// The other servers of the cluster.
pub trait Peers {
    /// Asks a target of another server. `Io` if that cannot be reached for long, `Stale` if no server has the target.
    fn ask(self: Rc<Self>, target: TargetId, question: TargetRequest) -> Replying;
}

/// The three interfaces to the code above a worker.
pub struct Above<E: Env> {
    /// Answers to other targets.
    pub answer: AnswerTarget<E>,
    /// The code with the connections of this worker, and on worker 0 the sessions.
    pub clients: RefCell<Option<Weak<dyn Clients>>>,
    /// At worker 0: the other servers.
    pub peers: RefCell<Option<Weak<dyn Peers>>>,
}
