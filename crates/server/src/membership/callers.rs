//! Other servers as callers: their sessions, and the rule that each request is answered once.
//!
//! Owns: the last answer of each slot of each link to this server, and which locks on moving directories a caller has.
//! Does not own: the answers (`cluster::peers`).
//!
//! The answers are kept in memory: a server that restarts forgets them, and its callers send their requests again.
//!
//! Invariants: only one run of each server is served. A later run is accepted when the connections of the earlier one
//! have ended, and this ends the sessions of the earlier run. So two processes with the zones of one server never both
//! act as that server.

use crate::membership::peer_link::{ALREADY_HERE, PeerName};
use amphi_transport::{ConnId, Connections, Incoming, ReplyRoute};
use amphi_types::{Errno, SessionId};
use amphi_wire::slots::{Begin, ReplyTable};
use amphi_wire::{Answer, Hello, RequestId};
use std::cell::RefCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Most sessions of callers. Each server has one, and a second one while it joins.
const CALLERS_MAX: usize = 4096;
struct Caller {
    name: PeerName,
    conn: Option<ConnId>,
    answers: ReplyTable<Answer>,
    /// The connections to which the answers to requests under execution have to be sent.
    routes: BTreeMap<u16, ReplyRoute>,
    moves: BTreeSet<u64>,
}

/// Callers of this server.
pub(crate) struct Callers {
    connections: Rc<Connections>,
    sessions: RefCell<BTreeMap<SessionId, Caller>>,
}

/// A question that is being answered.
pub(crate) struct Ticket {
    session: SessionId,
    id: RequestId,
    server: u64,
}

impl Ticket {
    /// The server that sent the request.
    pub(crate) fn server(&self) -> u64 {
        self.server
    }
}

impl Callers {
    pub(crate) fn new(connections: Rc<Connections>) -> Callers {
        Callers { connections, sessions: RefCell::default() }
    }

    /// Another server connects. Returns whether its session is known, and which locks on moving directories an earlier
    /// run of it left.
    ///
    /// Errors: the reason of the refusal.
    pub(crate) fn admit(&self, hello: &Hello) -> Result<(bool, Vec<u64>), String> {
        let name = PeerName::parse(&hello.name).ok_or("this is no name of a server")?;
        let mut sessions = self.sessions.borrow_mut();
        if let Some(known) = sessions.get(&hello.session) {
            return if known.name == name {
                Ok((true, Vec::new()))
            } else {
                Err("this session is another server's".into())
            };
        }
        let other_run = |c: &Caller| c.name.server == name.server && c.name.boot != name.boot;
        if let Some(there) = sessions.values().find(|c| other_run(c) && c.conn.is_some()) {
            return Err(format!("{ALREADY_HERE} as {}: two processes have its zones", there.name.name));
        }
        let mut moves = Vec::new();
        sessions.retain(|_, c| {
            let stays = !other_run(c);
            if !stays {
                moves.extend(std::mem::take(&mut c.moves));
            }
            stays
        });
        if sessions.len() >= CALLERS_MAX {
            return Err("too many servers are connected".into());
        }
        let (answers, routes) = (ReplyTable::new(), BTreeMap::new());
        sessions.insert(hello.session, Caller { name, conn: None, answers, routes, moves: BTreeSet::new() });
        assert!(sessions.len() <= CALLERS_MAX, "{} servers are connected, at most {CALLERS_MAX}", sessions.len());
        Ok((false, moves))
    }

    /// Returns whether the session is another server's.
    pub(crate) fn is_caller(&self, session: SessionId) -> bool {
        self.sessions.borrow().contains_key(&session)
    }

    pub(crate) fn connected(&self, session: SessionId, conn: ConnId) {
        if let Some(caller) = self.sessions.borrow_mut().get_mut(&session) {
            caller.conn = Some(conn);
        }
    }

    /// Called when a connection has ended; if it ended with `Bye`, the session has ended too.
    pub(crate) fn disconnected(&self, session: SessionId, conn: ConnId, clean: bool) -> Vec<u64> {
        let mut sessions = self.sessions.borrow_mut();
        let Some(caller) = sessions.get_mut(&session) else { return Vec::new() };
        if caller.conn != Some(conn) {
            return Vec::new();
        }
        caller.conn = None;
        if !clean {
            return Vec::new();
        }
        let moves = std::mem::take(&mut caller.moves).into_iter().collect();
        sessions.remove(&session);
        moves
    }

    /// Takes the locks on moving directories of servers that are not `alive`.
    pub(crate) fn take_moves(&self, alive: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut sessions = self.sessions.borrow_mut();
        let gone = sessions.values_mut().filter(|c| c.conn.is_none() && !alive(c.name.server));
        gone.flat_map(|c| std::mem::take(&mut c.moves)).collect()
    }

    /// A request arrived. `None`: it is answered already, or will be.
    pub(crate) fn begin(&self, incoming: &Incoming) -> Option<Ticket> {
        let (session, id, route) = (incoming.session, incoming.id(), incoming.route);
        let mut sessions = self.sessions.borrow_mut();
        let Some(caller) = sessions.get_mut(&session) else {
            self.connections.reply(route, Answer::of(Err(Errno::Io)), None);
            return None;
        };
        let answer = match caller.answers.begin(id) {
            Begin::Execute => {
                caller.routes.insert(id.slot, route);
                return Some(Ticket { session, id, server: caller.name.server });
            }
            Begin::InProgress => {
                caller.routes.insert(id.slot, route);
                return None;
            }
            Begin::Replay(answer) => answer.clone(),
            Begin::Old => Answer::of(Err(Errno::Proto)),
        };
        self.connections.reply(route, answer, None);
        None
    }

    /// Called when a request has been executed.
    pub(crate) fn finish(&self, ticket: Ticket, answer: Answer) {
        if let Some(route) = self.route_of(&ticket, &answer) {
            // Without a connection the answer waits for the request to be sent again.
            self.connections.reply(route, answer, None);
        }
    }

    /// Stores the answer; returns where to send it. A request that its caller gave up may end when the slot has a later
    /// request. Its answer is then not sent, and the route belongs to the later request.
    fn route_of(&self, ticket: &Ticket, answer: &Answer) -> Option<ReplyRoute> {
        let mut sessions = self.sessions.borrow_mut();
        let caller = sessions.get_mut(&ticket.session)?;
        caller.answers.finish(ticket.id, answer.clone());
        match caller.routes.entry(ticket.id.slot) {
            Entry::Occupied(route) if route.get().id == ticket.id => Some(route.remove()),
            _ => None,
        }
    }

    /// Called when the caller has got a lock on moving directories. Returns false if the caller will not connect again,
    /// or has given up the request.
    pub(crate) fn locked(&self, ticket: &Ticket, number: u64) -> bool {
        let mut sessions = self.sessions.borrow_mut();
        let caller = sessions.get_mut(&ticket.session).filter(|caller| caller.answers.is_last(ticket.id));
        caller.is_some_and(|caller| caller.moves.insert(number))
    }

    pub(crate) fn unlocked(&self, ticket: &Ticket, number: u64) {
        for caller in self.sessions.borrow_mut().values_mut().filter(|c| c.name.server == ticket.server) {
            caller.moves.remove(&number);
        }
    }

    /// Ends all connections of callers.
    pub(crate) fn cut_all(&self, why: &str) {
        let conns: Vec<ConnId> = self.sessions.borrow().values().filter_map(|c| c.conn).collect();
        for conn in conns {
            self.connections.cut(conn, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_types::{Cred, TargetId, Timespec};
    use amphi_wire::{Call, Lane, Reply, Request, Role, VERSION};

    const S: SessionId = SessionId(7);

    fn callers() -> Callers {
        let callers = Callers::new(Connections::new());
        let name = PeerName { server: 1, boot: 2, name: "s1".into() }.to_string();
        let (version, role, last_boot, clock) = (VERSION, Role::Server, 0, Timespec::default());
        callers.admit(&Hello { version, session: S, role, name, last_boot, clock, link: 0, links: 1 }).expect("let in");
        callers
    }

    /// Question `seq` of slot 0 on a connection.
    fn question(conn: u64, seq: u64) -> Incoming {
        let route = ReplyRoute { conn: ConnId(conn), id: RequestId { slot: 0, seq } };
        let call = Call { target: TargetId(0), cred: Cred::root(), op: Request::Map };
        let (role, lane) = (Role::Server, Lane::Normal);
        Incoming { session: S, role, bound: None, route, lane, link: 0, deadline: None, call, payload: None }
    }

    fn answer(n: u64) -> Answer {
        Answer::of(Ok(Reply::Told(vec![n as u8])))
    }

    /// Goal: a request that its caller gave up neither answers the next request of its slot nor uses the route of its
    /// answer. Method: two requests of one slot on two connections, of which the first ends first.
    #[test]
    fn a_question_given_up_answers_no_later_one() {
        let callers = callers();
        let first = callers.begin(&question(1, 5)).expect("new");
        let second = callers.begin(&question(2, 6)).expect("new");
        assert_eq!(callers.route_of(&first, &answer(5)), None, "nobody waits for it");
        assert!(callers.begin(&question(3, 6)).is_none(), "it is being answered");
        assert_eq!(callers.route_of(&second, &answer(6)), Some(question(3, 6).route), "to the newest connection");
        assert_eq!(callers.route_of(&second, &answer(6)), None, "once");
    }

    /// Goal: a lock on moving directories that is granted to a request which its caller gave up belongs to no caller.
    /// Method: it is granted before and after the slot has a later question.
    #[test]
    fn a_lock_for_a_question_given_up_is_nobodys() {
        let callers = callers();
        let first = callers.begin(&question(1, 5)).expect("new");
        assert!(callers.locked(&first, 77));
        let second = callers.begin(&question(2, 6)).expect("new");
        assert!(!callers.locked(&first, 78), "the caller has gone on");
        assert!(callers.locked(&second, 79));
        assert_eq!(callers.disconnected(S, ConnId(2), true), Vec::<u64>::new(), "not its connection");
        callers.connected(S, ConnId(2));
        assert_eq!(callers.disconnected(S, ConnId(2), true), [77, 79]);
    }
}
