//! One direction of a connection in whole messages, over a stream or a local queue.
//!
//! Owns: encoding into and decoding from reused buffers, and the memory of received payloads. Does not own: the order
//! of messages (`handshake`, `link`, `server`).
//!
//! Invariants: lengths are checked before memory is taken for them. A request is admitted by the caller's `Gate` before
//! its payload is received.

use crate::bell::Ending;
use crate::local::{LocalRx, LocalTx};
use amphi_env::{Buf, Conn, Env, Rx as _, Tx as _};
use amphi_types::TargetId;
use amphi_wire::frame::{EncodeError, FrameError, FrameKind, HEAD_BYTES, Head, payload_sum};
use amphi_wire::handshake::{Challenge, Refuse, SignedHello, SignedWelcome};
use amphi_wire::{Answer, Call, Lane, Push, RequestId};
use std::io;

/// Bytes of frames without payload that share one write, and of the body buffer that is kept between messages.
pub(crate) const STAGE_BYTES: usize = 16 << 10;
/// Bytes that are enough for every body.
const STAGE_BYTES_MAX: usize = HEAD_BYTES + amphi_types::limits::BODY_MAX;

type ConnTx<E> = <<E as Env>::Conn as Conn>::Tx;
type ConnRx<E> = <<E as Env>::Conn as Conn>::Rx;

/// A message without its payload.
#[derive(Debug)]
pub(crate) enum Message {
    Challenge(Challenge),
    Hello(SignedHello),
    Welcome(SignedWelcome),
    Refuse(Refuse),
    Request { lane: Lane, id: RequestId, deadline_ms: u32, call: Call },
    Reply { id: RequestId, answer: Answer },
    Push(Push),
    Bye,
    Ping,
    Pong,
}

impl Message {
    pub(crate) fn kind(&self) -> FrameKind {
        match self {
            Message::Challenge(_) => FrameKind::Challenge,
            Message::Hello(_) => FrameKind::Hello,
            Message::Welcome(_) => FrameKind::Welcome,
            Message::Refuse(_) => FrameKind::Refuse,
            Message::Request { .. } => FrameKind::Request,
            Message::Reply { .. } => FrameKind::Reply,
            Message::Push(_) => FrameKind::Push,
            Message::Bye => FrameKind::Bye,
            Message::Ping => FrameKind::Ping,
            Message::Pong => FrameKind::Pong,
        }
    }
}

/// The header for `payload`: its payload fields, with its checksum if `sums`.
fn describe(mut head: Head, payload: Option<&Buf>, sums: bool) -> Head {
    if let Some(p) = payload {
        head.payload_crc = sums.then(|| payload_sum(p));
        head.payload_len = u32::try_from(p.len()).unwrap_or(u32::MAX);
        head.pad = (p.window().start % amphi_env::buf::ALIGN) as u16;
    }
    head
}

/// Header of a request.
fn request_head(lane: Lane, id: RequestId, target: TargetId, ms: u32) -> Head {
    Head { lane, id, target, deadline_ms: ms, ..Head::new(FrameKind::Request) }
}

/// Header of a reply.
fn reply_head(id: RequestId) -> Head {
    Head { id, ..Head::new(FrameKind::Reply) }
}

/// The sending half of a stream, with the frames that wait for the next write.
pub(crate) struct StreamTx<E: Env> {
    tx: ConnTx<E>,
    stage: Buf,
    filled: usize,
    /// Payloads are sent with a checksum.
    sums: bool,
}

impl<E: Env> StreamTx<E> {
    /// Adds a request, whose payload has to follow with the next flush. `Full`: flush first.
    pub(crate) fn stage_request(
        &mut self,
        (lane, id, deadline_ms): (Lane, RequestId, u32),
        call: &Call,
        payload: Option<&Buf>,
    ) -> Result<(), EncodeError> {
        let head = describe(request_head(lane, id, call.target, deadline_ms), payload, self.sums);
        self.stage(&head, call)
    }

    /// Adds a reply, whose payload has to follow with the next flush. `Full`: flush first.
    pub(crate) fn stage_reply(
        &mut self,
        id: RequestId,
        answer: &Answer,
        payload: Option<&Buf>,
    ) -> Result<(), EncodeError> {
        let head = describe(reply_head(id), payload, self.sums);
        self.stage(&head, answer)
    }

    /// See `Tx::breaker`.
    pub(crate) fn breaker(&self) -> impl Fn() + 'static {
        self.tx.breaker()
    }

    /// Adds a frame. `Full`: flush first.
    pub(crate) fn stage<T: serde::Serialize>(&mut self, head: &Head, body: &T) -> Result<(), EncodeError> {
        loop {
            match head.encode(body, &mut self.stage[self.filled..]) {
                Ok(bytes) => {
                    self.filled += bytes;
                    return Ok(());
                }
                Err(EncodeError::Full) if self.filled == 0 && self.stage.len() < STAGE_BYTES_MAX => {
                    self.stage = Buf::zeroed(STAGE_BYTES_MAX);
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Adds a frame without a body. `Full`: flush first.
    pub(crate) fn stage_bare(&mut self, kind: FrameKind) -> Result<(), EncodeError> {
        self.filled += Head::new(kind).encode_bare(&mut self.stage[self.filled..])?;
        Ok(())
    }

    pub(crate) fn is_staged(&self) -> bool {
        self.filled > 0
    }

    /// Sends what was added and then `payload`, which is returned.
    pub(crate) async fn flush(&mut self, payload: Option<Buf>) -> (io::Result<()>, Option<Buf>) {
        let mut head = std::mem::take(&mut self.stage);
        head.set_window(0..self.filled);
        self.filled = 0;
        let (done, mut head, payload) = self.tx.send(head, payload).await;
        if head.capacity() > STAGE_BYTES {
            head = Buf::zeroed(STAGE_BYTES);
        } else {
            head.set_window(0..head.capacity());
        }
        self.stage = head;
        (done, payload)
    }
}

/// The receiving half of a stream, with the message that has arrived.
pub(crate) struct StreamRx<E: Env> {
    rx: ConnRx<E>,
    head: Buf,
    body: Buf,
    payload: Option<Buf>,
}

/// Sending half of any connection.
pub(crate) enum Outbound<E: Env> {
    Stream(StreamTx<E>),
    Local(LocalTx),
}

/// Receiving half of any connection.
pub(crate) enum Inbound<E: Env> {
    Stream(StreamRx<E>),
    Local(LocalRx),
}

/// Both halves over a socket.
pub(crate) fn over_stream<E: Env>(conn: E::Conn) -> (Outbound<E>, Inbound<E>) {
    let sums = conn.is_network();
    let (tx, rx) = conn.split();
    let out = StreamTx { tx, stage: Buf::zeroed(STAGE_BYTES), filled: 0, sums };
    (
        Outbound::Stream(out),
        Inbound::Stream(StreamRx { rx, head: Buf::zeroed(HEAD_BYTES), body: Buf::zeroed(STAGE_BYTES), payload: None }),
    )
}

/// A connection after its handshake, on its way to another thread: all that travels with it is in here.
pub(crate) struct Moved<E: Env> {
    conn: <E::Conn as Conn>::Moved,
}

/// Takes a connection off this thread. Nothing of it may be under way, and no message may wait to be taken or sent.
///
/// Errors: why it cannot be moved; an in-process connection never can.
pub(crate) fn detach<E: Env>((out, inb): (Outbound<E>, Inbound<E>)) -> io::Result<Moved<E>> {
    let (Outbound::Stream(tx), Inbound::Stream(rx)) = (out, inb) else {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "a connection inside a thread stays there"));
    };
    debug_assert!(!tx.is_staged() && rx.payload.is_none(), "a connection is moved between two messages");
    Ok(Moved { conn: E::Conn::detach(tx.tx, rx.rx)? })
}

/// Takes a connection over from another thread.
pub(crate) fn adopt<E: Env>(env: &E, Moved { conn }: Moved<E>) -> (Outbound<E>, Inbound<E>) {
    over_stream::<E>(env.adopt(conn))
}

/// Both halves over local queues.
pub(crate) fn over_local<E: Env>((tx, rx): crate::local::LocalConn) -> (Outbound<E>, Inbound<E>) {
    (Outbound::Local(tx), Inbound::Local(rx))
}

fn lost(e: &io::Error) -> Ending {
    match e.kind() {
        io::ErrorKind::UnexpectedEof => Ending::Lost("the peer closed the connection".into()),
        _ => Ending::Lost(format!("the connection failed: {e}")),
    }
}

fn gone() -> Ending {
    Ending::Lost("the peer closed the connection".into())
}

impl<E: Env> Outbound<E> {
    /// Sends at once a message of the handshake, or one without a request.
    pub(crate) async fn send(&mut self, message: Message) -> Result<(), Ending> {
        match self {
            Outbound::Local(tx) => tx.send(message, None).await.map_err(|_| gone()),
            Outbound::Stream(tx) => {
                let head = Head::new(message.kind());
                let staged = match &message {
                    Message::Challenge(body) => tx.stage(&head, body),
                    Message::Hello(body) => tx.stage(&head, body),
                    Message::Welcome(body) => tx.stage(&head, body),
                    Message::Refuse(body) => tx.stage(&head, body),
                    Message::Push(body) => tx.stage(&head, body),
                    Message::Reply { id, answer } => tx.stage(&reply_head(*id), answer),
                    Message::Request { lane, id, deadline_ms, call } => {
                        tx.stage(&request_head(*lane, *id, call.target, *deadline_ms), call)
                    }
                    Message::Bye | Message::Ping | Message::Pong => tx.stage_bare(message.kind()),
                };
                staged.map_err(|e| Ending::Lost(format!("a {:?} cannot be encoded: {e:?}", message.kind())))?;
                tx.flush(None).await.0.map_err(|e| lost(&e))
            }
        }
    }

    /// The `Ending` for a failed `flush` of the stream half.
    pub(crate) fn failed(e: &io::Error) -> Ending {
        lost(e)
    }
}

/// Decides about a frame whose header and body are sound, before its payload is received: where the payload has to lie
/// relative to an aligned address, or why the connection ends.
pub(crate) trait Gate {
    /// The right to memory for a payload, dropped when the payload has arrived.
    type Room;

    /// Waits until memory for a payload may be taken.
    fn room(&mut self, bytes: usize) -> impl Future<Output = Self::Room>;

    fn admit(&mut self, kind: FrameKind, lane: Lane, id: RequestId, pad: u16) -> Result<usize, String>;

    /// Most bytes of the body of such a frame that may come before it is admitted.
    fn body_max(&self, kind: FrameKind) -> usize {
        kind.body_max()
    }
}

/// Admits nothing but the handshake.
pub(crate) struct HandshakeOnly;

impl Gate for HandshakeOnly {
    type Room = ();

    async fn room(&mut self, _bytes: usize) {}

    fn admit(&mut self, kind: FrameKind, _: Lane, _: RequestId, _: u16) -> Result<usize, String> {
        if kind.is_handshake() { Ok(0) } else { Err(format!("a {kind:?} before the handshake is done")) }
    }

    /// A client before the end of its handshake gets no more memory than a handshake needs.
    fn body_max(&self, kind: FrameKind) -> usize {
        kind.body_max().min(FrameKind::Hello.body_max())
    }
}

impl<E: Env> Inbound<E> {
    /// The next message. Not to be called again after an error, or if the future was dropped.
    pub(crate) async fn recv(&mut self, gate: &mut impl Gate) -> Result<(Message, Option<Buf>), Ending> {
        self.arrive(gate).await?;
        self.take()
    }

    /// Waits until all of the next message has arrived and was admitted by `gate`. The message has to be taken next.
    /// Not to be called again after an error, or if the future was dropped.
    ///
    /// Waiting and taking are two steps because a message has 200 bytes. As the result of a future it would be copied
    /// at each level of waiting.
    pub(crate) async fn arrive(&mut self, gate: &mut impl Gate) -> Result<(), Ending> {
        match self {
            Inbound::Stream(rx) => rx.arrive(gate).await,
            Inbound::Local(rx) => {
                let (kind, lane, id) = rx.peek(describe_local).await.ok_or_else(gone)?;
                gate.admit(kind, lane, id, 0).map_err(Ending::Violation)?;
                Ok(())
            }
        }
    }

    /// Takes the message that has arrived.
    #[inline]
    pub(crate) fn take(&mut self) -> Result<(Message, Option<Buf>), Ending> {
        match self {
            Inbound::Stream(rx) => rx.take(),
            Inbound::Local(rx) => rx.take().ok_or_else(gone),
        }
    }
}

/// The kind of a message of a local queue, and what a gate needs to know of it.
fn describe_local(message: &Message) -> (FrameKind, Lane, RequestId) {
    let (lane, id) = match message {
        Message::Request { lane, id, .. } => (*lane, *id),
        Message::Reply { id, .. } => (Lane::Normal, *id),
        _ => (Lane::Normal, RequestId { slot: 0, seq: 0 }),
    };
    (message.kind(), lane, id)
}

fn bad(e: FrameError) -> Ending {
    Ending::Violation(e.to_string())
}

impl<E: Env> StreamRx<E> {
    async fn fill(&mut self, buf: Buf) -> Result<Buf, Ending> {
        let (done, buf) = self.rx.recv_exact(buf).await;
        done.map_err(|e| lost(&e))?;
        Ok(buf)
    }

    async fn arrive(&mut self, gate: &mut impl Gate) -> Result<(), Ending> {
        let head_buf = std::mem::take(&mut self.head);
        self.head = self.fill(head_buf).await?;
        let head = Head::parse(self.head_bytes()).map_err(bad)?;
        let body_len = head.body_len as usize;
        if body_len > gate.body_max(head.kind) {
            return Err(Ending::Violation(format!(
                "a {:?} of {body_len} bytes before the handshake is done",
                head.kind
            )));
        }
        let mut body = std::mem::take(&mut self.body);
        if body_len > body.capacity() {
            body = Buf::zeroed(body_len);
        }
        body.set_window(0..body_len);
        if body_len > 0 {
            body = self.fill(body).await?;
        }
        self.body = body;
        Head::check(self.head_bytes(), &self.body).map_err(bad)?;
        let pad = gate.admit(head.kind, head.lane, head.id, head.pad).map_err(Ending::Violation)?;
        self.payload = match head.payload_len as usize {
            0 => None,
            len => {
                let _room = gate.room(len).await;
                let payload = self.fill(Buf::scratch_padded(pad, len)).await?;
                head.check_payload(&payload).map_err(bad)?;
                Some(payload)
            }
        };
        Ok(())
    }

    fn head_bytes(&self) -> &[u8; HEAD_BYTES] {
        self.head[..].try_into().expect("the head buffer has the head's size")
    }

    #[inline]
    fn take(&mut self) -> Result<(Message, Option<Buf>), Ending> {
        let head = Head::parse(self.head_bytes()).map_err(bad)?;
        let message = decode(&head, &self.body).map_err(bad)?;
        if self.body.capacity() > STAGE_BYTES {
            self.body = Buf::zeroed(STAGE_BYTES);
        }
        Ok((message, self.payload.take()))
    }
}

#[inline]
fn decode(head: &Head, body: &[u8]) -> Result<Message, FrameError> {
    Ok(match head.kind {
        FrameKind::Challenge => Message::Challenge(head.decode(body)?),
        FrameKind::Hello => Message::Hello(head.decode(body)?),
        FrameKind::Welcome => Message::Welcome(head.decode(body)?),
        FrameKind::Refuse => Message::Refuse(head.decode(body)?),
        FrameKind::Request => {
            let call: Call = head.decode(body)?;
            if call.target != head.target {
                return Err(FrameError::Target);
            }
            Message::Request { lane: head.lane, id: head.id, deadline_ms: head.deadline_ms, call }
        }
        FrameKind::Reply => Message::Reply { id: head.id, answer: head.decode(body)? },
        FrameKind::Push => Message::Push(head.decode(body)?),
        FrameKind::Bye => Message::Bye,
        FrameKind::Ping => Message::Ping,
        FrameKind::Pong => Message::Pong,
    })
}
