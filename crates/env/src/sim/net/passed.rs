//! Memory that simulated processes pass to each other, and what each end of a connection learns about the other.
//!
//! Owns: the model of both. All simulated processes share one arena. Writes to memory of a process that has ended have
//! no effect, as if it had been the process's own.

use super::{ConnState, End, Piece};
use crate::buf::arena;
use crate::sim::SimEnv;
use crate::{Ends, PeerMemory};
use std::rc::Rc;

/// The facts about the other end of a simulated connection.
#[derive(Clone)]
pub struct SimEnds(Rc<End>);

impl SimEnds {
    pub(super) fn of(end: &Rc<End>) -> SimEnds {
        SimEnds(end.clone())
    }

    fn look(&self, of: impl Fn(&ConnState, usize) -> bool) -> bool {
        let core = self.0.env.world.core.borrow();
        core.conns.get(&self.0.id).is_none_or(|conn| !conn.open[1 - self.0.side] || of(conn, 1 - self.0.side))
    }
}

impl Ends for SimEnds {
    fn abandon(&self) {
        let End { env, id, side } = &*self.0;
        let mut core = env.world.core.borrow_mut();
        let Some(conn) = core.conns.get_mut(id).filter(|conn| conn.open[*side]) else { return };
        if !std::mem::replace(&mut conn.abandoned[*side], true) && !conn.broken {
            core.queue(*id, *side, Piece::End, &env.world.config.net_ns);
        }
    }

    fn is_abandoned(&self) -> bool {
        self.look(|conn, other| conn.abandoned[other] || conn.broken)
    }

    fn is_closed(&self) -> bool {
        self.look(|_, _| false)
    }
}

/// Memory of another simulated process: the arena, which all of them share, as long as that process lives.
#[derive(Clone)]
pub struct SimMemory {
    env: SimEnv,
    node: usize,
    life: u64,
}

impl SimMemory {
    pub(super) fn of(env: &SimEnv, node: usize, life: u64) -> SimMemory {
        SimMemory { env: env.clone(), node, life }
    }
}

impl PeerMemory for SimMemory {
    fn has(&self, at: u64, len: usize) -> bool {
        at.checked_add(len as u64).is_some_and(|end| end <= arena::passed_bytes())
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        arena::copy_out(at, into);
    }

    fn write(&self, at: u64, from: &[u8]) {
        if self.env.world.lives(self.node, self.life) {
            arena::copy_in(at, from);
        }
    }
}
