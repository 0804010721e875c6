//! Accepting connections and running each: handshake, then reader, writer and watcher.
//!
//! Owns: the tasks of a connection. Does not own: its queues (`connection`), sessions (`Handler`).

use super::budget::Room;
use super::connection::{ConnState, Connections, Outgoing, ReplyRoute};
use super::{ConnId, Guest, HANDSHAKE_TIMEOUT, Handler, Incoming, PING_INTERVAL, Peer, SILENCES_MAX};
use crate::auth::{Proved, ServerAuth, is_unix};
use crate::bell::{Ending, step_aside};
use crate::error::ServeError;
use crate::handshake;
use crate::local::LocalListener;
use crate::pipe::{self, Gate, Inbound, Message, Outbound, StreamTx, over_local, over_stream};
use amphi_env::{Buf, Conn, Env, Listener};
use amphi_wire::frame::{DEADLINE_PASSED_MS, EncodeError, FrameKind, Head};
use amphi_wire::handshake::Secure;
use amphi_wire::slots::{LINKS_MAX, Window};
use amphi_wire::{Hello, Lane, RequestId, Role};
use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, info, warn};

/// Pause after a failed accept, mostly because file descriptors are exhausted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Most characters of a client's name. Names of servers begin with two numbers of 16 digits.
const NAME_CHARS_MAX: usize = 300;
/// One in this many of successive failed accepts is logged.
const ACCEPT_FAILURES_LOG: u32 = 100;

/// Refuses to serve an address without a key if the kernel does not report who connects to it.
pub fn check_listen(addr: &str, auth: &ServerAuth) -> Result<(), ServeError> {
    if auth.key.is_some() || auth.identity.is_some() || is_unix(addr) {
        Ok(())
    } else {
        Err(ServeError::KeyNeeded { addr: addr.to_owned() })
    }
}

/// Accepts connections and serves them. A failed accept is repeated. Dropping the future stops accepting; connections
/// live on until `Connections::shutdown` or `cut`.
pub async fn serve<E: Env, H: Handler>(
    env: E,
    listener: E::Listener,
    handler: Rc<H>,
    connections: Rc<Connections>,
    auth: ServerAuth,
) -> Result<(), ServeError> {
    check_listen(&listener.local_addr(), &auth)?;
    let is_unix = is_unix(&listener.local_addr());
    let mut failures = 0u32;
    loop {
        match listener.accept().await {
            Ok(conn) => {
                failures = 0;
                let bound = match conn.peer_cred() {
                    Some(cred) => Some(cred).filter(|cred| ![0, auth.owner].contains(&cred.uid)).map(Arc::new),
                    None if is_unix => {
                        warn!("{}: cut: the kernel does not say who it is", conn.peer());
                        continue;
                    }
                    // The client has to prove the key.
                    None => None,
                };
                let peer = Peer {
                    addr: conn.peer(),
                    in_process: false,
                    unix: is_unix,
                    bound,
                    proved: Proved::Nothing,
                    knows_cluster_key: false,
                    secure: Secure::Off,
                    memory: false,
                };
                let pipe = over_stream::<E>(conn);
                let mut auth = auth.clone();
                if is_unix {
                    auth.secure = Secure::Off;
                } else {
                    auth.unix_without_key = false;
                }
                welcome_task(&env, pipe, peer, &handler, &connections, auth);
            }
            Err(e) => {
                // For instance, too many files are open, and some may be closed soon.
                if failures.is_multiple_of(ACCEPT_FAILURES_LOG) {
                    warn!("accept on {}: {e}", listener.local_addr());
                }
                failures = failures.wrapping_add(1);
                env.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Works as `serve`, for connections inside this thread, which need no key.
pub async fn serve_local<E: Env, H: Handler>(
    env: E,
    listener: LocalListener,
    handler: Rc<H>,
    connections: Rc<Connections>,
) {
    loop {
        let pipe = over_local::<E>(listener.accept().await);
        let peer = Peer {
            addr: "local".into(),
            in_process: true,
            unix: false,
            bound: None,
            proved: Proved::Nothing,
            knows_cluster_key: false,
            secure: Secure::Off,
            memory: false,
        };
        welcome_task(&env, pipe, peer, &handler, &connections, ServerAuth::default());
    }
}

type Pipe<E> = (Outbound<E>, Inbound<E>);

fn welcome_task<E: Env, H: Handler>(
    env: &E,
    pipe: Pipe<E>,
    peer: Peer,
    handler: &Rc<H>,
    connections: &Rc<Connections>,
    auth: ServerAuth,
) {
    if !connections.has_room() {
        warn!("{}: cut: {} connections are open", peer.addr, connections.count());
        return;
    }
    let stranger = connections.greet();
    let (task_env, handler, connections) = (env.clone(), handler.clone(), connections.clone());
    env.spawn(async move {
        let env = task_env;
        let greeting = greet(&env, pipe, peer.clone(), &*handler, &connections, &auth);
        let greeted = stranger.cut.guard(amphi_env::timeout(&env, HANDSHAKE_TIMEOUT, greeting)).await;
        let outdone = stranger.cut.ending().cloned();
        drop(stranger);
        match greeted.unwrap_or_else(|| outdone.map(Err)) {
            None => warn!("{}: cut: no handshake within {HANDSHAKE_TIMEOUT:?}", peer.addr),
            Some(Err(Ending::Violation(why))) => warn!("{}: cut: {why}", peer.addr),
            Some(Err(other)) => debug!("{}: {other} in the handshake", peer.addr),
            Some(Ok(greeted)) => match greeted.place {
                None => run(env, greeted, handler, connections).await,
                Some(to) => give_away(greeted, to, &*handler, &connections),
            },
        }
    });
}

struct Greeted<E: Env> {
    guest: Guest,
    /// The name of the client, for log lines.
    name: String,
    /// Slots of the normal and the urgent lane.
    credits: (u16, u16),
    /// The thread that serves the connection, if it is another one.
    place: Option<usize>,
    peer: Peer,
    pipe: Pipe<E>,
}

/// A connection that has been welcomed, on its way from the thread that accepted it to the one that serves it.
pub struct Parcel {
    conn: ConnId,
    packed: Box<dyn Any + Send>,
}

impl Parcel {
    /// The connection that the parcel contains.
    pub fn conn(&self) -> ConnId {
        self.conn
    }
}

/// The contents of a parcel.
struct Packed<E: Env> {
    guest: Guest,
    name: String,
    credits: (u16, u16),
    peer: Peer,
    moved: pipe::Moved<E>,
}

async fn greet<E: Env, H: Handler>(
    env: &E,
    (mut out, mut inb): Pipe<E>,
    peer: Peer,
    handler: &H,
    connections: &Connections,
    auth: &ServerAuth,
) -> Result<Greeted<E>, Ending> {
    let guest = handshake::challenge(env, &mut out, &mut inb, auth).await.inspect_err(|ending| {
        if let Ending::Violation(why) = ending {
            handler.stranger(&peer.addr, why);
        }
    })?;
    let (proved, knows_cluster_key) = (guest.proved, guest.knows_cluster_key);
    let peer = Peer { proved, knows_cluster_key, secure: guest.secure(), ..peer };
    // From here on the name is one line of printable text, for the log, for records and for users.
    let name = handshake::printable(&guest.hello.name).chars().take(NAME_CHARS_MAX).collect();
    let hello = Hello { name, ..guest.hello.clone() };
    if hello.link >= LINKS_MAX || hello.links == 0 || (hello.link > 0 && hello.role != Role::Mount) {
        let why = format!("connection {} of {} of a {:?}", hello.link, hello.links, hello.role);
        return Err(handshake::refuse(&mut out, why).await);
    }
    let welcome = match handler.hello(&hello, &peer).await {
        Ok(welcome) => welcome,
        Err(reason) => return Err(handshake::refuse(&mut out, reason).await),
    };
    let credits = (welcome.normal_credits, welcome.urgent_credits);
    if let Err(e) = Window::new(credits.0, credits.1) {
        return Err(handshake::refuse(&mut out, e.to_string()).await);
    }
    let place = if peer.in_process { None } else { handler.place(&hello, &welcome, &peer) };
    // Only mounts send payloads that are large enough for shared memory to be worth it.
    let memory = inb.has_memory() && hello.role == Role::Mount;
    guest.admit(&mut out, welcome, memory, auth).await?;
    let peer = Peer { memory, ..peer };
    if memory {
        pipe::take_memory(&mut out, &mut inb);
    }
    let name = format!("{} ({})", peer.addr, hello.name);
    let guest = Guest { session: hello.session, role: hello.role, link: hello.link, conn: connections.new_id() };
    Ok(Greeted { guest, name, credits, place, peer, pipe: (out, inb) })
}

/// Gives a connection to another thread.
fn give_away<E: Env, H: Handler>(greeted: Greeted<E>, to: usize, handler: &H, connections: &Connections) {
    let Greeted { guest, name, credits, peer, pipe, .. } = greeted;
    match pipe::detach(pipe) {
        Ok(moved) => {
            connections.goes_away();
            let parcel = Parcel {
                conn: guest.conn,
                packed: Box::new(Packed { guest, name, credits, peer: peer.clone(), moved }),
            };
            handler.hand_over(to, guest, &peer, parcel);
        }
        Err(e) => warn!("{name}: cut: it cannot be served by another thread: {e}"),
    }
}

/// Takes over a connection that another thread has accepted and welcomed, and serves it. Pushes may be sent to it when
/// this returns.
///
/// Panics if the parcel was packed in another kind of environment.
pub fn adopt<E: Env, H: Handler>(env: &E, parcel: Parcel, handler: Rc<H>, connections: Rc<Connections>) {
    let packed = parcel.packed.downcast::<Packed<E>>().unwrap_or_else(|_| panic!("a parcel of this environment"));
    let Packed { guest, name, credits, peer, moved } = *packed;
    let pipe = pipe::adopt(env, moved);
    let greeted = Greeted { guest, name, credits, place: None, peer, pipe };
    let serving = begin(env, greeted, handler, connections);
    env.spawn(serving);
}

async fn run<E: Env, H: Handler>(env: E, greeted: Greeted<E>, handler: Rc<H>, connections: Rc<Connections>) {
    begin(&env, greeted, handler, connections).await;
}

/// Enters a connection that has been welcomed. The returned value serves it.
fn begin<E: Env, H: Handler>(
    env: &E,
    greeted: Greeted<E>,
    handler: Rc<H>,
    connections: Rc<Connections>,
) -> impl Future<Output = ()> + 'static {
    let Greeted { guest, name, credits: (normal, urgent), peer, pipe: (out, inb), .. } = greeted;
    let Guest { session, role, link, conn: id } = guest;
    let window = Window::new(normal, urgent).expect("the credits of a welcome that was sent");
    let conn = Rc::new(ConnState::new(id, (session, link), peer.bound.clone(), name, window));
    if let Some(old) = connections.of_session(session, link) {
        old.cut.cut(Ending::Lost("a newer connection of the session took over".into()));
        connections.remove(old.id);
        handler.disconnected(session, old.id, false);
    }
    connections.insert(conn.clone());
    handler.connected(guest, &peer);
    info!("{}: connected", conn.name);
    env.spawn(write(out, conn.clone()));
    env.spawn(watch(env.clone(), conn.clone()));
    serve_one(env.clone(), inb, conn, role, handler, connections)
}

async fn serve_one<E: Env, H: Handler>(
    env: E,
    inb: Inbound<E>,
    conn: Rc<ConnState>,
    role: Role,
    handler: Rc<H>,
    connections: Rc<Connections>,
) {
    let (session, id) = (conn.session, conn.id);
    let ending = conn.cut.guard(read(&env, inb, &conn, role, &handler, &connections)).await;
    if let Some(ending) = ending {
        conn.cut.cut(ending);
    }
    let ending = conn.cut.ending().cloned().unwrap_or(Ending::Bye);
    match &ending {
        Ending::Violation(why) => warn!("{}: cut: {why}", conn.name),
        other => info!("{}: {other}", conn.name),
    }
    if connections.remove(id) {
        handler.disconnected(session, id, ending == Ending::Bye);
    }
}

/// Admits requests within the credits, and their payloads when there is memory.
struct Admission<'a, E> {
    env: &'a E,
    conn: &'a Rc<ConnState>,
    connections: &'a Connections,
}

impl<E: Env> Gate for Admission<'_, E> {
    type Room = Room;

    async fn room(&mut self, bytes: usize) -> Room {
        self.connections.budget.take(self.env, self.conn, bytes).await
    }

    fn admit(&mut self, kind: FrameKind, lane: Lane, id: RequestId, pad: u16) -> Result<usize, String> {
        match kind {
            FrameKind::Request => {
                self.conn.window.borrow_mut().handle_request(lane, id).map_err(|v| v.to_string())?;
                Ok(usize::from(pad))
            }
            FrameKind::Ping | FrameKind::Pong | FrameKind::Bye => Ok(0),
            other => Err(format!("a client sends no {other:?} here")),
        }
    }
}

/// Reads until the connection ends. Returns the reason.
async fn read<E: Env, H: Handler>(
    env: &E,
    mut inb: Inbound<E>,
    conn: &Rc<ConnState>,
    role: Role,
    handler: &Rc<H>,
    connections: &Connections,
) -> Ending {
    loop {
        if let Err(ending) = inb.arrive(&mut Admission { env, conn, connections }).await {
            return ending;
        }
        match hand_over(&mut inb, conn, role, handler) {
            Ok(true) => step_aside(1).await,
            Ok(false) => {}
            Err(ending) => return ending,
        }
    }
}

/// Passes the message that has arrived to the handler. Returns whether it was a request.
fn hand_over<E: Env, H: Handler>(
    inb: &mut Inbound<E>,
    conn: &ConnState,
    role: Role,
    handler: &Rc<H>,
) -> Result<bool, Ending> {
    let (message, payload) = inb.take()?;
    conn.heard.set(true);
    match message {
        Message::Request { lane, id, deadline_ms, call } => {
            let deadline = match deadline_ms {
                0 => None,
                DEADLINE_PASSED_MS => Some(Duration::ZERO),
                ms => Some(Duration::from_millis(ms.into())),
            };
            let route = ReplyRoute { conn: conn.id, id };
            let (session, link, bound) = (conn.session, conn.link, conn.bound.clone());
            handler.clone().call(Incoming { session, role, bound, link, route, lane, deadline, call, payload });
            return Ok(true);
        }
        Message::Bye => return Err(Ending::Bye),
        Message::Ping => {
            conn.pong_due.set(true);
            conn.bell.ring();
        }
        Message::Pong => conn.pong(),
        _ => {}
    }
    Ok(false)
}

/// Sends a ping to a silent peer, and ends the connection if no answer comes.
async fn watch<E: Env>(env: E, conn: Rc<ConnState>) {
    let mut silences = 0;
    while conn.cut.guard(env.sleep(PING_INTERVAL)).await.is_some() {
        silences = if conn.heard.replace(false) { 0 } else { silences + 1 };
        if silences >= SILENCES_MAX {
            conn.cut.cut(Ending::Violation(format!("no sign of life for {:?}", PING_INTERVAL * silences)));
        } else if silences > 0 {
            conn.ping_due.set(true);
            conn.bell.ring();
        }
    }
}

/// Sends what is queued until the connection ends.
async fn write<E: Env>(mut out: Outbound<E>, conn: Rc<ConnState>) {
    // One guard serves for the whole life of the connection, because a guard is as large as the future in it.
    let ended = conn.cut.guard(write_all(&mut out, &conn)).await;
    if let Some(ending) = ended {
        conn.cut.cut(ending);
    }
}

async fn write_all<E: Env>(out: &mut Outbound<E>, conn: &ConnState) -> Ending {
    loop {
        conn.bell.until(|| conn.has_work().then_some(())).await;
        if let Err(ending) = write_some(out, conn).await {
            return ending;
        }
    }
}

/// Control messages that are due. `Bye` is due only when nothing else is queued.
fn due_control(conn: &ConnState) -> Option<FrameKind> {
    if conn.pong_due.replace(false) {
        Some(FrameKind::Pong)
    } else if conn.take_ping() {
        Some(FrameKind::Ping)
    } else {
        None
    }
}

enum Staged {
    /// Nothing was queued.
    Nothing,
    /// A message was added.
    Message,
    /// A message was added whose payload has to follow at once.
    Before(Buf),
}

/// Encodes the first message of the queue in place, and removes it. A reply that does not fit into a message is sent as
/// an error.
fn stage_next<E: Env>(tx: &mut StreamTx<E>, conn: &ConnState) -> Result<Staged, EncodeError> {
    let mut queue = conn.queue.borrow_mut();
    let Some(next) = queue.front_mut() else { return Ok(Staged::Nothing) };
    let staged = match next {
        Outgoing::Reply { id, answer, payload } => tx.stage_reply(*id, answer, payload.as_ref()),
        Outgoing::Push(push) => tx.stage(Head::new(FrameKind::Push), push).map(|()| false),
    };
    let payload = match (staged, next) {
        (Ok(true), Outgoing::Reply { payload, .. }) => payload.take(),
        (Ok(_), _) => None,
        (Err(e), Outgoing::Reply { answer, payload, .. })
            if answer.result.is_ok() && !(e == EncodeError::Full && tx.is_staged()) =>
        {
            warn!("{}: a reply is too large for a message ({e:?}) and is answered as an error", conn.name);
            answer.overflow();
            *payload = None;
            return Ok(Staged::Message);
        }
        (Err(e), _) => return Err(e),
    };
    drop(queue);
    drop(conn.next());
    Ok(payload.map_or(Staged::Message, Staged::Before))
}

async fn write_some<E: Env>(out: &mut Outbound<E>, conn: &ConnState) -> Result<(), Ending> {
    match out {
        Outbound::Stream(tx) => {
            while let Some(kind) = due_control(conn) {
                tx.stage_bare(kind).expect("an empty stage has room for two headers");
            }
            let mut with_payload = None;
            loop {
                match stage_next(tx, conn) {
                    Ok(Staged::Nothing) => break,
                    Ok(Staged::Message) => {}
                    Ok(Staged::Before(payload)) => {
                        with_payload = Some(payload);
                        break;
                    }
                    Err(EncodeError::Full) if tx.is_staged() => {
                        tx.flush(None).await.0.map_err(|e| Outbound::<E>::failed(&e))?;
                    }
                    Err(e) => return Err(Ending::Lost(format!("a message cannot be encoded: {e:?}"))),
                }
            }
            let bye = conn.bye_due.get() && !conn.has_queued();
            if tx.is_staged() {
                tx.flush(with_payload).await.0.map_err(|e| Outbound::<E>::failed(&e))?;
            }
            if bye {
                out.send(Message::Bye).await?;
                return Err(Ending::Lost("this server shuts down".into()));
            }
            Ok(())
        }
        Outbound::Local(tx) => {
            let gone = |_| Ending::Lost("the peer closed the connection".into());
            while let Some(kind) = due_control(conn) {
                let message = if kind == FrameKind::Ping { Message::Ping } else { Message::Pong };
                tx.send(message, None).await.map_err(gone)?;
            }
            while let Some(next) = conn.next() {
                let (message, payload) = match next {
                    Outgoing::Reply { id, answer, payload } => (Message::Reply { id, answer }, payload),
                    Outgoing::Push(push) => (Message::Push(push), None),
                };
                tx.send(message, payload).await.map_err(gone)?;
            }
            if conn.bye_due.get() {
                tx.send(Message::Bye, None).await.map_err(gone)?;
                return Err(Ending::Lost("this server shuts down".into()));
            }
            Ok(())
        }
    }
}
