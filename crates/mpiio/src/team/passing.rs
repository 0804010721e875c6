//! Connections that are made of messages which a library passes between ranks, such as those of MPI.
//!
//! Owns both ends of such a connection, how a message of the exchange is divided into messages of the library, and the
//! thread of a leader that receives messages and passes them to the thread of each rank (`server::serve`). Does not own
//! the library: it is behind `Passing`, since the cache does not depend on MPI.
//!
//! No rank spins: a waiting rank polls, with longer pauses the longer it has received nothing. The system does not
//! report the end of such a connection, so a rank that receives nothing sends a question. A rank that waits for an
//! answer asks whether the leader still runs. A leader that receives nothing from a rank asks the leader of that rank's
//! node, which sees in its shared memory whether the rank has ended.
//!
//! Bounds: a rank has one request under way, followed by a few messages that need no reply, so queues hold a few
//! messages.

use super::link::Link;
use super::message::{Kind, Message, head, length, receive};
use super::server::{MakeProxy, serve};
use crate::error::{Error, Outcome};
use crate::file::Extent;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle, park_timeout};
use std::time::{Duration, Instant};

/// The tag of the messages that a rank sends to a leader.
const TO_LEADER: i32 = 1;

/// Tag of replies.
const REPLY: i32 = 2;

/// Tag of questions whether a process still runs. Several threads of a process send them, so these messages have one
/// piece each and do not get between the pieces of others.
const QUESTION: i32 = 3;

/// Tag of the answer to a rank that asked whether the leader still runs; the tags of answers to leaders follow it.
const ALIVE: i32 = 4;

/// The number of tags for answers to leaders: MPI promises 32,768 tags.
const ALIVE_TAGS: i32 = 30_000;

/// The number of a good-bye of a rank that has lost the connection. A leader that has lost a rank sends it a good-bye,
/// too.
const BROKEN: u64 = 1;

/// Longest message of the library; counts of MPI are ints.
pub const PIECE_BYTES: usize = 16 << 20;

/// Shortest pause between two looks.
const PAUSE_LEAST: Duration = Duration::from_micros(20);

/// Longest pause of a rank that waits for its answer.
const PAUSE_ANSWER: Duration = Duration::from_millis(1);

/// Longest pause of a leader: short for a request, and long enough to cost less than a hundredth of a core.
const PAUSE_LEADER: Duration = Duration::from_millis(10);

/// The interval at which a leader checks for questions, which can wait.
const QUESTIONS_LOOK: Duration = Duration::from_millis(50);

/// A pause is this part of the time since the last message arrived.
const PAUSE_PART: u32 = 8;

/// How long the last end of a connection waits for an answer that is on its way and of no interest any more.
const DRAIN: Duration = Duration::from_secs(1);

/// After how long a silent process is probed, and after how long it counts as ended.
#[derive(Clone, Copy, Debug)]
pub struct Silence {
    /// A peer that is silent for this long is asked whether it lives.
    pub ask: Duration,
    /// A peer that is silent for this long counts as ended.
    pub gone: Duration,
}

/// The same intervals as with sockets.
pub const SILENCE: Silence = Silence { ask: Duration::from_secs(10), gone: Duration::from_secs(40) };

/// A library that passes messages between numbered ranks. Messages from one rank with one tag arrive in the order in
/// which they were sent.
pub trait Passing: Send + Sync {
    /// Returns whether a message is there, from this rank or from anybody: from whom, and its bytes. The function
    /// returns at once.
    fn probe(&self, from: Option<i32>, tag: i32) -> Outcome<Option<(i32, usize)>>;
    /// Receives a message that `probe` has shown.
    fn receive(&self, from: i32, tag: i32, into: &mut [u8]) -> Outcome;
    /// Sends a message of at most `PIECE_BYTES`.
    fn send(&self, to: i32, tag: i32, data: &[u8]) -> Outcome;
}

/// For how long nothing was heard. A process that was stopped meanwhile, perhaps with the rest of its job, has not
/// listened for that time: so each step counts as at most its planned duration plus a second.
struct Heard {
    silent: Duration,
    last: Instant,
}

impl Heard {
    fn now() -> Heard {
        Heard { silent: Duration::ZERO, last: now() }
    }

    /// The silence so far, after a step that should have taken this long.
    fn silent(&mut self, step: Duration) -> Duration {
        self.silent += self.last.elapsed().min(step + Duration::from_secs(1));
        self.last = now();
        self.silent
    }
}

#[expect(clippy::disallowed_methods, reason = "how long a rank has waited for others, outside any simulation")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "the pause between two looks")]
fn rest(pause: Duration) {
    std::thread::sleep(pause);
}

fn gone(errno: i32) -> Error {
    Error::Os { doing: "talk to another node", errno }
}

/// Returns how long to pause before the next look.
fn pause(since: Instant, most: Duration) -> Duration {
    (since.elapsed() / PAUSE_PART).clamp(PAUSE_LEAST, most)
}

/// Sends a message in as many pieces as it needs; the head is never cut.
fn post(
    passing: &dyn Passing,
    (to, tag): (i32, i32),
    kind: Kind,
    numbers: (u64, u64),
    extents: &[Extent],
    data: &[u8],
) -> Outcome {
    let mut first = head(kind, numbers, extents, data);
    if first.len() + data.len() <= PIECE_BYTES {
        first.extend_from_slice(data);
        return passing.send(to, tag, &first);
    }
    passing.send(to, tag, &first)?;
    data.chunks(PIECE_BYTES).try_for_each(|piece| passing.send(to, tag, piece))
}

/// A message of which some pieces have not come yet.
#[derive(Default)]
struct Assembly {
    bytes: Vec<u8>,
}

impl Assembly {
    /// Takes the piece that `probe` has shown; returns the message if that was its last piece.
    fn take(&mut self, passing: &dyn Passing, (from, tag): (i32, i32), piece: usize) -> Outcome<Option<Message>> {
        let before = self.bytes.len();
        if piece == 0 || piece > PIECE_BYTES {
            return Err(gone(libc::EPROTO));
        }
        self.bytes.resize(before + piece, 0);
        passing.receive(from, tag, &mut self.bytes[before..])?;
        let all = length(&self.bytes)?;
        self.bytes.reserve_exact(all.saturating_sub(self.bytes.len()));
        if self.bytes.len() > all {
            return Err(gone(libc::EPROTO));
        }
        if self.bytes.len() < all {
            return Ok(None);
        }
        let bytes = std::mem::take(&mut self.bytes);
        receive(&mut bytes.as_slice()).map(Some)
    }
}

/// An answer to the question whether a process is there, for which a thread waits or once waited.
struct Question {
    passing: Arc<dyn Passing>,
    /// The rank that is asked.
    whom: i32,
    tag: i32,
    asked: bool,
}

impl Question {
    /// Asks for a rank of the node whose leader is asked.
    fn ask(&mut self, about: u64) -> Outcome {
        self.asked = true;
        post(&*self.passing, (self.whom, QUESTION), Kind::Alive, (about, self.tag as u64), &[], &[])
    }

    /// The answer if it is there: whether the rank lives.
    fn answer(&mut self) -> Outcome<Option<bool>> {
        if !self.asked {
            return Ok(None);
        }
        let Some((from, bytes)) = self.passing.probe(Some(self.whom), self.tag)? else { return Ok(None) };
        self.asked = false;
        let answer = Assembly::default().take(&*self.passing, (from, self.tag), bytes)?;
        Ok(answer.map(|message| message.number == 0))
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        let since = now();
        while self.asked && since.elapsed() < DRAIN && matches!(self.answer(), Ok(None)) {
            rest(PAUSE_ANSWER);
        }
    }
}

/// The end of a rank: a connection with the leader of another node.
pub struct ToLeader {
    leader: i32,
    silence: Silence,
    question: Question,
    /// The error that ended the connection.
    ended: Option<Error>,
}

impl ToLeader {
    /// A connection with a leader that has accepted this process: `numbers` are our proxy rank there and the leader's
    /// nonce, `place` is our node and our rank in it.
    pub fn greet(
        passing: Arc<dyn Passing>,
        leader: i32,
        numbers: (u64, u64),
        place: (u64, u64),
        silence: Silence,
    ) -> Outcome<ToLeader> {
        let question = Question { passing, whom: leader, tag: ALIVE, asked: false };
        let mut link = ToLeader { leader, silence, question, ended: None };
        link.send(Kind::Hello, numbers, &[Extent { offset: place.0, length: place.1 }], &[])?;
        let answer = link.receive()?;
        if answer.number == 0 {
            return Ok(link);
        }
        // A client that was not accepted has nothing to end.
        let error = Error::Os { doing: "ask another node", errno: answer.number as i32 };
        link.ended = Some(error);
        Err(error)
    }

    fn wait(&mut self) -> Outcome<Message> {
        let (mut heard, mut came, mut assembly) = (Heard::now(), now(), Assembly::default());
        loop {
            if let Some((from, bytes)) = self.question.passing.probe(Some(self.leader), REPLY)? {
                (heard, came) = (Heard::now(), now());
                match assembly.take(&*self.question.passing, (from, REPLY), bytes)? {
                    Some(message) if message.kind == Kind::Bye => return Err(gone(libc::ECONNRESET)),
                    Some(message) => return Ok(message),
                    None => continue,
                }
            }
            let silent = heard.silent(PAUSE_ANSWER);
            match self.question.answer()? {
                Some(true) => heard = Heard::now(),
                Some(false) => return Err(gone(libc::ECONNRESET)),
                None if silent > self.silence.gone => return Err(gone(libc::ETIMEDOUT)),
                None if silent > self.silence.ask && !self.question.asked => self.question.ask(0)?,
                None => {}
            }
            rest(pause(came, PAUSE_ANSWER));
        }
    }

    /// After an error the connection cannot be used any more. The leader may be there, with locks in our name, so it is
    /// notified.
    fn remember<T>(&mut self, result: Outcome<T>) -> Outcome<T> {
        if let Err(error) = &result
            && self.ended.is_none()
        {
            self.ended = Some(*error);
            let to = (self.leader, TO_LEADER);
            let _ = post(&*self.question.passing, to, Kind::Bye, (BROKEN, 0), &[], &[]);
        }
        result
    }
}

impl Link for ToLeader {
    fn send(&mut self, kind: Kind, numbers: (u64, u64), extents: &[Extent], data: &[u8]) -> Outcome {
        if let Some(error) = self.ended {
            return Err(error);
        }
        let sent = post(&*self.question.passing, (self.leader, TO_LEADER), kind, numbers, extents, data);
        if kind == Kind::Bye {
            self.ended = Some(gone(libc::ESHUTDOWN));
        }
        self.remember(sent)
    }

    fn receive(&mut self) -> Outcome<Message> {
        if let Some(error) = self.ended {
            return Err(error);
        }
        let message = self.wait();
        self.remember(message)
    }
}

impl Drop for ToLeader {
    fn drop(&mut self) {
        // A connection over sockets ends when it is dropped, and so does this one.
        let _ = self.send(Kind::Bye, (0, 0), &[], &[]);
    }
}

/// The end of a leader: a connection with a rank of another node.
struct ToRank {
    rank: i32,
    /// The rank's number in its own node.
    local: u64,
    silence: Silence,
    inbox: Receiver<Message>,
    /// The question to the leader of the rank's node whether the rank lives.
    question: Question,
    /// The rank knows that the connection has ended.
    parted: bool,
}

/// The interval between two checks for the answer about a silent rank.
const ANSWER_LOOK: Duration = Duration::from_millis(100);

impl Link for ToRank {
    fn send(&mut self, kind: Kind, numbers: (u64, u64), extents: &[Extent], data: &[u8]) -> Outcome {
        post(&*self.question.passing, (self.rank, REPLY), kind, numbers, extents, data)
    }

    fn receive(&mut self) -> Outcome<Message> {
        let mut heard = Heard::now();
        loop {
            let look = if self.question.asked { ANSWER_LOOK.min(self.silence.ask) } else { self.silence.ask };
            match self.inbox.recv_timeout(look) {
                Ok(message) => {
                    self.parted = message.kind == Kind::Bye;
                    let broken = self.parted && message.number == BROKEN;
                    return if broken { Err(gone(libc::ECONNRESET)) } else { Ok(message) };
                }
                Err(RecvTimeoutError::Disconnected) => return Err(gone(libc::ECONNRESET)),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let silent = heard.silent(look);
            match self.question.answer()? {
                Some(true) => heard = Heard::now(),
                Some(false) => return Err(gone(libc::ECONNRESET)),
                None if silent > self.silence.gone => return Err(gone(libc::ETIMEDOUT)),
                None if !self.question.asked => self.question.ask(self.local)?,
                None => {}
            }
        }
    }
}

impl Drop for ToRank {
    fn drop(&mut self) {
        if !self.parted {
            // The leader may be there and wait.
            let _ = self.send(Kind::Bye, (0, 0), &[], &[]);
        }
    }
}

/// The data of a leader before the first client.
pub struct Serving {
    /// First proxy rank, and how many there are.
    pub ranks: (u32, u32),
    /// A client that knows it is admitted.
    pub nonce: u64,
    /// Makes the proxies.
    pub make: Arc<MakeProxy>,
    /// Whether a rank of this node lives.
    pub lives: Box<dyn Fn(u64) -> bool + Send>,
    /// The rank of the library that leads each node.
    pub leaders: Vec<i32>,
    /// After how long a silence a rank is probed.
    pub silence: Silence,
}

/// The thread of a leader that receives messages. Dropped, it continues until all ranks have left.
pub struct Dispatcher {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Dispatcher {
    /// Starts serving.
    pub fn start(passing: Arc<dyn Passing>, serving: Serving) -> Outcome<Dispatcher> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let seen = vec![false; serving.ranks.1 as usize];
        let desk = Desk { passing, serving, seen, clients: BTreeMap::new(), threads: Vec::new() };
        let thread = Builder::new()
            .name("amphi-mpiio".into())
            .spawn(move || desk.run(&stopping))
            .map_err(|e| Error::Os { doing: "start a thread", errno: e.raw_os_error().unwrap_or(libc::EAGAIN) })?;
        Ok(Dispatcher { stop, thread: Some(thread) })
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// The buffers in which the pieces of a rank are reassembled, and through which its messages are passed.
#[derive(Default)]
struct Client {
    assembly: Assembly,
    inbox: Option<Sender<Message>>,
}

struct Desk {
    passing: Arc<dyn Passing>,
    serving: Serving,
    /// For each proxy, whether it was given out.
    seen: Vec<bool>,
    clients: BTreeMap<i32, Client>,
    threads: Vec<JoinHandle<()>>,
}

impl Desk {
    fn run(mut self, stop: &AtomicBool) {
        let (mut came, mut looked) = (now(), now());
        loop {
            if looked.elapsed() > QUESTIONS_LOOK {
                match self.passing.probe(None, QUESTION) {
                    Ok(Some((from, bytes))) => self.tell(from, bytes),
                    Ok(None) => looked = now(),
                    Err(_) => break,
                }
            }
            match self.passing.probe(None, TO_LEADER) {
                Ok(Some((from, bytes))) => {
                    came = now();
                    self.take(from, bytes);
                }
                Ok(None) => {
                    let stopping = stop.load(SeqCst);
                    if stopping && self.threads.iter().all(JoinHandle::is_finished) {
                        break;
                    }
                    park_timeout(pause(came, if stopping { PAUSE_ANSWER } else { PAUSE_LEADER }));
                }
                // The library has failed: no message can be received.
                Err(_) => break,
            }
        }
        self.clients.clear();
        for thread in self.threads {
            let _ = thread.join();
        }
    }

    /// Takes a piece; if that fails, the rank that sent it counts as gone.
    fn take(&mut self, from: i32, bytes: usize) {
        let client = self.clients.entry(from).or_default();
        match client.assembly.take(&*self.passing, (from, TO_LEADER), bytes) {
            Ok(None) => {}
            Ok(Some(message)) if message.kind == Kind::Hello => self.admit(from, &message),
            Ok(Some(message)) => {
                let waits = message.kind.has_reply();
                let taken = client.inbox.as_ref().is_some_and(|inbox| inbox.send(message).is_ok());
                if !taken && waits {
                    // No thread serves this rank.
                    let _ = post(&*self.passing, (from, REPLY), Kind::Bye, (0, 0), &[], &[]);
                }
            }
            Err(_) => *client = Client::default(),
        }
    }

    /// Reports whether a rank of this node is alive; an error is reported by the process that asks, since it waits for
    /// the answer.
    fn tell(&self, from: i32, bytes: usize) {
        let question = Assembly::default().take(&*self.passing, (from, QUESTION), bytes);
        let Ok(Some(question)) = question else { return };
        let tag = i32::try_from(question.second).unwrap_or(0);
        if (ALIVE..=ALIVE + ALIVE_TAGS).contains(&tag) {
            let number = if (self.serving.lives)(question.number) { 0 } else { libc::EOWNERDEAD as u64 };
            let _ = post(&*self.passing, (from, tag), Kind::Reply, (number, question.number), &[], &[]);
        }
    }

    /// Gives a rank its proxy, and a thread that serves it.
    fn admit(&mut self, from: i32, hello: &Message) {
        let started = self.start(from, hello);
        let errno = started.as_ref().err().map_or(0, |e| e.errno());
        // This is answered before the thread runs, so that the thread's replies come later.
        let sent = post(&*self.passing, (from, REPLY), Kind::Reply, (errno as u64, 0), &[], &[]);
        if let (Ok(inbox), Ok(())) = (started, sent) {
            self.clients.entry(from).or_default().inbox = Some(inbox);
        }
    }

    fn start(&mut self, from: i32, hello: &Message) -> Outcome<Sender<Message>> {
        let stranger = Error::Os { doing: "let a rank in", errno: libc::EACCES };
        let place = hello.extents.first().ok_or(stranger)?;
        let node = usize::try_from(place.offset).map_err(|_| stranger)?;
        let whom = *self.serving.leaders.get(node).ok_or(stranger)?;
        let index = hello.number.checked_sub(u64::from(self.serving.ranks.0)).map(|i| i as usize);
        let new = index.and_then(|i| self.seen.get_mut(i)).ok_or(stranger)?;
        if *new || hello.second != self.serving.nonce {
            return Err(stranger);
        }
        *new = true;
        let mut proxy = (self.serving.make)(hello.number as u32)?;
        proxy.works_for(node);
        let tag = ALIVE + 1 + index.map_or(0, |i| (i % (ALIVE_TAGS as usize - 1)) as i32);
        let question = Question { passing: self.passing.clone(), whom, tag, asked: false };
        let (sender, inbox) = channel();
        let link =
            ToRank { rank: from, local: place.length, silence: self.serving.silence, inbox, question, parted: false };
        let thread = Builder::new()
            .name("amphi-mpiio".into())
            .spawn(move || serve(link, proxy))
            .map_err(|e| Error::Os { doing: "start a thread", errno: e.raw_os_error().unwrap_or(libc::EAGAIN) })?;
        self.threads.push(thread);
        Ok(sender)
    }
}
