//! Calls, slots, and the queues for them: the bookkeeping of a link, without I/O.
//!
//! Owns: the cells and slots of calls. Does not own: connections (`supervise`, `traffic`).
//!
//! A call has a *cell*, where its result waits for the caller. While it is outstanding it also has a *slot entry* with
//! the request, for a resend. When the caller is gone, only the slot entry stays. When the reply has come, only the
//! cell stays. So a caller that is slow to take its result holds no credits.

use super::{Carried, Outcome};
use crate::beside::{Lost, OtherEnd};
use crate::error::LinkError;
use amphi_env::{Buf, Time};
use amphi_types::Errno;
use amphi_wire::frame::DEADLINE_PASSED_MS;
use amphi_wire::slots::SlotTable;
use amphi_wire::{Call, Lane, RequestId, Welcome};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Which slots a call may take, and whether it insists (`CallOptions::insist`).
#[derive(Clone, Copy, Debug)]
pub(super) enum Issue {
    Lane(Lane, bool),
    Reserve,
}

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is no connection, and requests wait.
    Down,
    /// There is a connection, on which only recovery calls are sent.
    Recovering,
    /// Requests are sent.
    Up,
    /// There was no connection for too long, or the link is closed: calls fail at once.
    Failed(LinkError),
}

/// A request until its reply has come.
pub(super) struct Pending {
    pub(super) id: RequestId,
    pub(super) lane: Lane,
    pub(super) pad: u16,
    /// How long the caller still waits, in the form in which the request contains it. 0: without a bound.
    pub(super) deadline_ms: u32,
    /// When the caller stops waiting.
    pub(super) until: Option<Time>,
    /// The request. It is `None` once the request was handed to an in-process server or given up, so that it is never
    /// sent again.
    pub(super) call: Option<Call>,
    /// It is `None` while the payload is being sent.
    pub(super) payload: Option<Buf>,
    /// The place where the server may put the payload of the reply on the present connection.
    pub(super) room: Option<Buf>,
    /// The request may have reached a server.
    pub(super) sent: bool,
    /// The call insists, so it is not given up.
    insist: bool,
    /// The call was given up, and whatever its answer contains has to be returned. A resend only requests an answer
    /// that exists or is being made.
    late: bool,
    cell: Option<usize>,
}

/// A waiting time in the form in which requests contain it.
pub(super) fn deadline_ms(left: Duration) -> u32 {
    u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(DEADLINE_PASSED_MS + 1)
}

impl Pending {
    /// Updates the deadline before the request is sent again.
    fn renew(&mut self, now: Time) {
        if let Some(until) = self.until {
            self.deadline_ms = if until > now { deadline_ms(until.since(now)) } else { DEADLINE_PASSED_MS };
        }
    }
}

/// Takes the outcome of a call as soon as it is there, from within the link's bookkeeping, so it must not call the
/// link.
pub(super) type Sink = Box<dyn FnOnce(Outcome)>;

enum CellState {
    Free {
        next: Option<usize>,
    },
    Waiting {
        slot: u16,
        waker: Option<Waker>,
    },
    /// No task waits: the outcome is passed to a sink.
    Told(Sink),
    /// The outcome. It is boxed because most outcomes are passed to a sink: a cell that contains one would be ten times
    /// as large, and cells are often moved.
    Done(Box<Outcome>),
}

/// The ways of payloads.
#[derive(Default)]
pub(super) struct Payloads {
    /// The server's end of the present connection, if it has memory of this process.
    pub(super) other_end: Option<OtherEnd>,
    pub(super) carried: Carried,
    /// The part of `carried` that was reported to the owner.
    told: Carried,
}

/// The bookkeeping of a link.
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) welcome: Welcome,
    pub(super) closing: bool,
    pub(super) ping_due: bool,
    pub(super) pong_due: bool,
    pub(super) heard: bool,
    pub(super) payloads: Payloads,
    /// Requests to send, in order. Ids that are no longer outstanding are skipped.
    pub(super) queue: VecDeque<RequestId>,
    table: SlotTable,
    pending: Vec<Option<Pending>>,
    cells: Vec<CellState>,
    free_cell: Option<usize>,
    waiting: [VecDeque<(u64, Option<Waker>)>; 4],
    last_ticket: u64,
    /// Recovery calls that wait for each other. All of them check again when the reserved slot is free.
    reserve_waiting: Vec<Waker>,
}

impl State {
    pub(super) fn new(welcome: Welcome, table: SlotTable) -> State {
        let pending = (0..table.slots()).map(|_| None).collect();
        State {
            phase: Phase::Down,
            welcome,
            closing: false,
            ping_due: false,
            pong_due: false,
            heard: false,
            payloads: Payloads::default(),
            queue: VecDeque::new(),
            table,
            pending,
            cells: Vec::new(),
            free_cell: None,
            waiting: Default::default(),
            last_ticket: 0,
            reserve_waiting: Vec::new(),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// Returns whether everything was sent that had to be sent before the end.
    pub(super) fn is_bye_due(&self) -> bool {
        self.closing && self.queue.is_empty()
    }

    pub(super) fn table(&self) -> &SlotTable {
        &self.table
    }

    /// The reason why a call cannot wait for a connection; `None` if it can.
    fn failure(&self, insist: bool) -> Option<LinkError> {
        match self.phase {
            Phase::Failed(LinkError::Unreachable) if insist && !self.closing => None,
            Phase::Failed(e) => Some(e),
            _ if self.closing => Some(LinkError::Closed),
            _ => None,
        }
    }

    /// The slot for a recovery call. Pending while another recovery call uses the slot.
    pub(super) fn poll_reserve(&mut self, cx: &Context<'_>) -> Poll<Result<RequestId, LinkError>> {
        if self.phase != Phase::Recovering {
            return Poll::Ready(Err(LinkError::Closed));
        }
        match self.table.acquire_reserve() {
            Some(id) => Poll::Ready(Ok(id)),
            None => {
                self.reserve_waiting.push(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn release(&mut self, id: RequestId, lane: Lane) {
        self.table.release(id);
        if id.slot == self.table.reserve() {
            self.wake_reserve();
        } else {
            self.wake_waiting(lane);
            self.wake_waiting(if lane == Lane::Normal { Lane::Locking } else { Lane::Answer });
        }
    }

    fn wake_reserve(&mut self) {
        for waker in self.reserve_waiting.drain(..) {
            waker.wake();
        }
    }

    /// Enters a call under `id`. Returns its cell, and whether the writer has to be woken.
    #[expect(clippy::too_many_arguments, reason = "the fields of an entry")]
    pub(super) fn install(
        &mut self,
        id: RequestId,
        pad: u16,
        deadline_ms: u32,
        call: Call,
        payload: Option<Buf>,
        insist: bool,
        sink: Option<Sink>,
    ) -> (usize, bool) {
        let waiting = sink.map_or(CellState::Waiting { slot: id.slot, waker: None }, CellState::Told);
        let cell = match self.free_cell {
            Some(cell) => {
                let CellState::Free { next } = self.cells[cell] else { unreachable!("the free list holds free cells") };
                self.free_cell = next;
                self.cells[cell] = waiting;
                cell
            }
            None => {
                self.cells.push(waiting);
                self.cells.len() - 1
            }
        };
        let reserve = id.slot == self.table.reserve();
        let lane = if id.slot < self.welcome.normal_credits { Lane::Normal } else { Lane::Urgent };
        let call = Some(call);
        let (until, sent, late, cell_of) = (None, false, false, Some(cell));
        let room = None;
        let pending =
            Pending { id, lane, pad, deadline_ms, until, call, payload, room, sent, insist, late, cell: cell_of };
        self.pending[usize::from(id.slot)] = Some(pending);
        let send_now = self.phase == Phase::Up || (reserve && self.phase == Phase::Recovering);
        if send_now {
            self.queue.push_back(id);
        }
        (cell, send_now)
    }

    /// The number carried but not reported yet; it counts as reported now.
    pub(super) fn news_of_carried(&mut self) -> Option<Carried> {
        let carried = self.payloads.carried;
        let before = std::mem::replace(&mut self.payloads.told, carried);
        (before != carried).then(|| Carried {
            beside_bytes: carried.beside_bytes - before.beside_bytes,
            inline_bytes: carried.inline_bytes - before.inline_bytes,
        })
    }

    /// The outstanding request `id`.
    pub(super) fn pending(&mut self, id: RequestId) -> Option<&mut Pending> {
        self.pending.get_mut(usize::from(id.slot))?.as_mut().filter(|p| p.id == id)
    }

    /// The call that was given up and was answered after all, if what its answer brings has to be returned.
    pub(super) fn take_late(&mut self, id: RequestId) -> Option<Call> {
        self.pending(id).filter(|p| p.late)?.call.take()
    }

    /// Ends the request `id` and passes its outcome to the caller, if there still is one.
    pub(super) fn complete(&mut self, id: RequestId, outcome: Outcome) {
        let entry = &mut self.pending[usize::from(id.slot)];
        let Some((lane, cell)) = entry.as_ref().filter(|p| p.id == id).map(|p| (p.lane, p.cell)) else { return };
        *entry = None;
        self.release(id, lane);
        if let Some(cell) = cell {
            self.settle(cell, outcome);
        }
    }

    fn settle(&mut self, cell: usize, outcome: Outcome) {
        match &mut self.cells[cell] {
            CellState::Told(_) => {
                if let CellState::Told(sink) = self.free_cell(cell) {
                    sink(outcome);
                }
            }
            waiting => {
                let done = CellState::Done(Box::new(outcome));
                if let CellState::Waiting { waker: Some(waker), .. } = std::mem::replace(waiting, done) {
                    waker.wake();
                }
            }
        }
    }

    /// A slot of `lane`, if one is free and no call waits for one.
    pub(super) fn try_acquire(&mut self, lane: Lane, insist: bool) -> Option<RequestId> {
        let free =
            self.failure(insist).is_none() && self.waiting[lane as usize].is_empty() && self.table.has_free(lane);
        if free { self.table.acquire(lane) } else { None }
    }

    fn free_cell(&mut self, cell: usize) -> CellState {
        let free = CellState::Free { next: self.free_cell };
        self.free_cell = Some(cell);
        std::mem::replace(&mut self.cells[cell], free)
    }

    /// The caller of `cell` is gone. A request that was never sent is withdrawn.
    fn abandon(&mut self, cell: usize) {
        let CellState::Waiting { slot, .. } = self.free_cell(cell) else { return };
        let entry = &mut self.pending[usize::from(slot)];
        let Some(pending) = entry.as_mut().filter(|p| p.cell == Some(cell)) else { return };
        pending.cell = None;
        if !pending.sent {
            let (id, lane) = (pending.id, pending.lane);
            *entry = None;
            self.release(id, lane);
        }
    }

    fn wake_waiting(&mut self, lane: Lane) {
        if let Some((_, waker)) = self.waiting[lane as usize].front_mut()
            && let Some(waker) = waker.take()
        {
            waker.wake();
        }
    }

    /// A new connection may send. Everything outstanding is sent first, in its order. Slots of calls that were given up
    /// become free.
    pub(super) fn resume(&mut self, now: Time) {
        self.phase = Phase::Up;
        self.queue.clear();
        for id in self.table.outstanding() {
            match self.pending(id) {
                Some(p) if p.call.is_some() => {
                    p.renew(now);
                    self.queue.push_back(id);
                }
                _ => {
                    self.pending[usize::from(id.slot)] = None;
                    self.table.release(id);
                }
            }
        }
        self.wake_waiting(Lane::Normal);
        self.wake_waiting(Lane::Locking);
        self.wake_waiting(Lane::Urgent);
        self.wake_waiting(Lane::Answer);
    }

    /// Gives the present connection up: from now on, whatever the server reads from this process's memory through it is
    /// ignored.
    pub(super) fn abandon_connection(&mut self) {
        if let Some(end) = &self.payloads.other_end {
            end.abandon();
        }
    }

    /// As `abandon_connection`; also takes the memory that was named on the connection for replies which did not come.
    pub(super) fn part_from_connection(&mut self) -> Option<Lost> {
        self.abandon_connection();
        let rooms = self.pending.iter_mut().flatten().filter_map(|p| p.room.take()).collect();
        self.payloads.other_end.take().map(|end| Lost::new(rooms, end))
    }

    /// The connection is gone: recovery calls fail, and the others wait for the next connection.
    pub(super) fn handle_break(&mut self) {
        if !matches!(self.phase, Phase::Failed(_)) {
            self.phase = Phase::Down;
        }
        self.queue.clear();
        (self.ping_due, self.pong_due) = (false, false);
        if let Some(p) = &self.pending[usize::from(self.table.reserve())] {
            self.complete(p.id, Err(LinkError::Closed));
        }
        self.wake_reserve();
    }

    /// Fails every call, present and future, except those that insist while no server is reachable. Slots of requests
    /// that may have been sent stay taken until there is a new connection. Then the requests whose answers create state
    /// that the server would otherwise keep for ever are sent once more.
    pub(super) fn fail(&mut self, error: LinkError) {
        if self.phase == Phase::Failed(LinkError::Closed) {
            return;
        }
        self.phase = Phase::Failed(error);
        // The memory of requests is used for something else now.
        self.abandon_connection();
        self.queue.clear();
        for slot in 0..self.pending.len() {
            let Some(p) = &mut self.pending[slot] else { continue };
            let goes_on = error == LinkError::Unreachable;
            if goes_on && p.insist {
                continue;
            }
            p.late = goes_on && p.sent && p.call.as_ref().is_some_and(|call| call.op.may_bring());
            if p.late {
                p.until = Some(Time(0));
            } else {
                (p.call, p.payload) = (None, None);
            }
            if let Some(cell) = p.cell.take() {
                self.settle(cell, Err(error));
            }
        }
        for lane in &mut self.waiting {
            for waker in lane.iter_mut().filter_map(|(_, waker)| waker.take()) {
                waker.wake();
            }
        }
        self.wake_reserve();
    }

    /// The server has ended the session. The client cannot know any more whether requests that were sent were executed,
    /// and a resend could execute them twice. So calls whose requests were sent fail.
    pub(super) fn session_ended(&mut self) {
        let sent: Vec<RequestId> = self.pending.iter().flatten().filter(|p| p.sent).map(|p| p.id).collect();
        sent.into_iter().for_each(|id| self.lose(id));
    }

    /// A request that lost its payload fails, but its slot stays taken until there is a new connection.
    pub(super) fn lose(&mut self, id: RequestId) {
        if let Some(p) = self.pending(id) {
            p.call = None;
            if let Some(cell) = p.cell.take() {
                self.settle(cell, Err(LinkError::Unreachable));
            }
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        drop(self.part_from_connection());
    }
}

/// A place in the queue for slots.
struct Ticket<'a> {
    state: &'a RefCell<State>,
    lane: Lane,
    insist: bool,
    number: Option<u64>,
}

impl Ticket<'_> {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<RequestId, LinkError>> {
        let state = &mut *self.state.borrow_mut();
        let lane = self.lane as usize;
        let front = match self.number {
            None => state.waiting[lane].is_empty(),
            Some(number) => state.waiting[lane].front().is_some_and(|(n, _)| *n == number),
        };
        let outcome = match state.failure(self.insist) {
            Some(e) => Err(e),
            None if front && state.table.has_free(self.lane) => {
                Ok(state.table.acquire(self.lane).expect("a slot was free a moment ago"))
            }
            None if self.number.is_none() && state.waiting[lane].len() >= super::WAITING_MAX => {
                Err(LinkError::Overloaded)
            }
            None => {
                let waker = Some(cx.waker().clone());
                match self.number {
                    None => {
                        state.last_ticket += 1;
                        self.number = Some(state.last_ticket);
                        state.waiting[lane].push_back((state.last_ticket, waker));
                    }
                    Some(number) => {
                        if let Ok(at) = state.waiting[lane].binary_search_by_key(&number, |(n, _)| *n) {
                            state.waiting[lane][at].1 = waker;
                        }
                    }
                }
                return Poll::Pending;
            }
        };
        Self::leave(state, self.lane, &mut self.number);
        Poll::Ready(outcome)
    }

    fn leave(state: &mut State, lane: Lane, number: &mut Option<u64>) {
        let Some(number) = number.take() else { return };
        let waiting = &mut state.waiting[lane as usize];
        if let Ok(at) = waiting.binary_search_by_key(&number, |(n, _)| *n) {
            waiting.remove(at);
        }
        if state.table.has_free(lane) {
            state.wake_waiting(lane);
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if self.number.is_some() {
            Self::leave(&mut self.state.borrow_mut(), self.lane, &mut self.number);
        }
    }
}

/// Waits for a slot of `lane`.
pub(super) async fn acquire(state: &RefCell<State>, lane: Lane, insist: bool) -> Result<RequestId, LinkError> {
    let mut ticket = Ticket { state, lane, insist, number: None };
    poll_fn(|cx| ticket.poll(cx)).await
}

/// The right to a call's result. Dropping it abandons the call.
pub(super) struct CellGuard<'a> {
    state: &'a RefCell<State>,
    cell: Option<usize>,
}

impl<'a> CellGuard<'a> {
    pub(super) fn new(state: &'a RefCell<State>, cell: usize) -> CellGuard<'a> {
        CellGuard { state, cell: Some(cell) }
    }

    pub(super) async fn answer(mut self) -> Outcome {
        poll_fn(|cx| {
            let state = &mut *self.state.borrow_mut();
            let cell = self.cell.expect("a finished future is not polled");
            match &mut state.cells[cell] {
                CellState::Waiting { waker, .. } => {
                    if !waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                        *waker = Some(cx.waker().clone());
                    }
                    Poll::Pending
                }
                _ => {
                    self.cell = None;
                    match state.free_cell(cell) {
                        CellState::Done(outcome) => Poll::Ready(*outcome),
                        _ => Poll::Ready(Err(LinkError::Lost(Errno::Io))),
                    }
                }
            }
        })
        .await
    }
}

impl Drop for CellGuard<'_> {
    fn drop(&mut self) {
        if let Some(cell) = self.cell.take() {
            self.state.borrow_mut().abandon(cell);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_types::{Cred, Ino, TargetId};
    use amphi_wire::{Answer, Reply, Request};
    use futures_util::FutureExt;

    /// Goal: a free slot is given to the first waiter, even if another call requests one before that waiter is polled,
    /// and a waiter that leaves does not delay the next. Method: one slot, four callers, which the test polls itself.
    #[test]
    fn slots_go_to_who_waited_first() {
        let (normal_credits, urgent_credits) = (1, 2);
        let (version, boot, cluster, resumed, pool, token_ms) = (1, 1, 1, false, 1, 0);
        let welcome = Welcome {
            version,
            boot,
            cluster,
            resumed,
            begun: 0,
            normal_credits,
            urgent_credits,
            pool,
            token_ms,
            alone: true,
            map_epoch: 0,
            mounts: 1,
            links: 1,
            rotating: Vec::new(),
            root: Ino::ROOT,
        };
        let mut state = State::new(welcome, SlotTable::new(normal_credits, urgent_credits).unwrap());
        state.resume(Time(0));
        let state = RefCell::new(state);
        let ask = || Box::pin(acquire(&state, Lane::Normal, false));
        let answer = |id: RequestId| {
            let call = Call { target: TargetId(0), cred: Cred::root(), op: Request::GetAttr { ino: Ino(1) } };
            state.borrow_mut().install(id, 0, 0, call, None, false, None);
            let done = Answer::of(Ok(Reply::Done));
            state.borrow_mut().complete(id, Ok((done, None)));
        };
        let first = ask().now_or_never().expect("a free slot").unwrap();
        let (mut second, mut third, mut fourth) = (ask(), ask(), ask());
        assert!((&mut second).now_or_never().is_none());
        assert!((&mut third).now_or_never().is_none());
        answer(first);
        assert!((&mut fourth).now_or_never().is_none(), "the fourth overtook");
        assert!((&mut third).now_or_never().is_none(), "the third overtook");
        drop(second);
        let id = (&mut third).now_or_never().expect("its turn").unwrap();
        assert_eq!(id, RequestId { slot: 0, seq: 2 });
        answer(id);
        state.borrow_mut().fail(LinkError::Unreachable);
        assert_eq!((&mut fourth).now_or_never(), Some(Err(LinkError::Unreachable)));
    }
}
