//! The worker that serves each connection, and the messages from workers with connections to the worker with the
//! sessions.
//!
//! Owns: which worker has a connection, how many connections a mount should open, and what a message of another worker
//! causes. Does not own: the messages, and what those workers do with the messages that they get (`front`).

use super::SessionManager;
use super::front::FrontMessage;
use crate::worker::above::Clients;
use amphi_env::Env;
use amphi_wire::{Hello, Role, Welcome};
use std::rc::Rc;

impl<E: Env> SessionManager<E> {
    /// A message of another worker's front.
    pub(super) fn take(self: Rc<Self>, from: usize, message: FrontMessage) {
        match message {
            FrontMessage::Request { token, request } => {
                let incoming = request.incoming();
                self.front.executing.begin(None);
                self.worker.env.clone().spawn(async move {
                    let session = incoming.session;
                    let (answer, over) = self.serve(incoming).await;
                    self.front.tell(from, FrontMessage::Answered { token, answer: Box::new(answer) });
                    if over {
                        self.remove(session);
                    }
                    self.front.executing.end(None);
                });
            }
            FrontMessage::Gone { session, conn, clean } => {
                self.front.connections.came_back();
                self.disconnected(session, conn, clean);
            }
            FrontMessage::Watch { session, conn } => self.watch(session, conn),
            FrontMessage::Squashed { conn } => {
                if let Some(gate) = self.gate(conn) {
                    self.note_squashed(&gate);
                }
            }
            other => self.front.clone().take(from, Box::new(other)),
        }
    }

    /// The worker that serves a client. A mount's connections are spread over all workers, so that each is served by
    /// the worker of the targets for which it is used. A mount with one connection has it at any worker.
    pub(super) fn place(&self, hello: &Hello, welcome: &Welcome) -> Option<usize> {
        if hello.role != Role::Mount {
            return None;
        }
        let workers = u64::from(self.worker.workers);
        let spread = hello.link > 0 || welcome.links > 1;
        let at = if spread { u64::from(hello.link) } else { hello.session.0 } % workers;
        Some(at as usize).filter(|at| *at != 0)
    }

    /// Number of connections over which a client should spread its requests to the targets of this server. It is the
    /// number of workers, or a divisor of it.
    pub(super) fn links_for(&self, hello: &Hello) -> u16 {
        let workers = self.worker.workers;
        if hello.role != Role::Mount || !(hello.link > 0 || self.front.connections.is_roomy()) {
            return 1;
        }
        (1..=hello.links.min(workers)).rev().find(|n| workers.is_multiple_of(*n)).unwrap_or(1)
    }
}
