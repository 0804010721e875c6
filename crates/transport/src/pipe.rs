//! One direction of a connection in whole messages, over a stream or a local queue.
//!
//! Owns: encoding into and decoding from reused buffers, the memory of received payloads, where tags and records of the
//! channel lie. Its parts: `gate`, which decides what is received, and `memory`, for payloads passed in memory. Does
//! not own: the order of messages (`handshake`, `link`, `server`), their protection (`secure`).
//!
//! Invariants: lengths are checked before memory is taken for them. A request is admitted by the caller's `Gate` before
//! its payload is received, and after its header and body are known to be the peer's, if the channel protects them.

mod gate;
mod memory;

pub(crate) use gate::{Gate, HandshakeOnly};
pub(crate) use memory::{passed_memory, take_memory};

use crate::bell::Ending;
use crate::beside::Beside;
use crate::local::{LocalRx, LocalTx};
use crate::secure::records::{Opened, RECORD_BODY_MAX, RECORD_HEAD, RECORD_MAX, RECORD_MORE, SEALED_BYTES, body_bytes};
use crate::secure::tags::{TAGS_BYTES_MAX, tags_bytes};
use crate::secure::{Channel, ChannelError, ReceiveChannel, SendChannel};
use amphi_env::{Buf, Conn, Env, Rx as _, Tx as _};
use amphi_types::TargetId;
use amphi_wire::frame::{EncodeError, FrameError, FrameKind, HEAD_BYTES, Head, MAGIC, payload_sum};
use amphi_wire::handshake::{Challenge, Refuse, SignedHello, SignedWelcome};
use amphi_wire::{Answer, Call, Lane, Push, RequestId};
use std::io;
use std::ops::Range;

/// Bytes of frames without payload that share one write, and of the body buffer that is kept between messages.
pub(crate) const STAGE_BYTES: usize = 16 << 10;
/// Bytes that are enough for every body.
const STAGE_BYTES_MAX: usize = HEAD_BYTES + amphi_types::limits::BODY_MAX + TAGS_BYTES_MAX;
/// Bytes of the buffer for header, body and tags that is kept between messages.
const FRAME_BYTES: usize = HEAD_BYTES + STAGE_BYTES + TAGS_BYTES_MAX;
/// Most bytes of a clear record, of the key exchange.
const CLEAR_RECORD_MAX: usize = RECORD_HEAD + RECORD_BODY_MAX;

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
    /// Payloads are sent with a checksum, if nothing else protects them.
    sums: bool,
    channel: SendChannel,
    /// Records of a `tls` channel that are sent next.
    sealed: Buf,
    beside: Beside<E>,
}

impl<E: Env> StreamTx<E> {
    /// Adds a request, and says whether its payload has to follow with the next flush. The payload of the reply may be
    /// put into `room`. `Full`: flush first.
    pub(crate) fn stage_request(
        &mut self,
        (lane, id, deadline_ms): (Lane, RequestId, u32),
        call: &Call,
        payload: Option<&Buf>,
        room: Option<&Buf>,
    ) -> Result<bool, EncodeError> {
        let mut head = request_head(lane, id, call.target, deadline_ms);
        if let (None, Some(room)) = (payload, room) {
            self.beside.describe_room(&mut head, room);
        }
        self.stage_with(head, call, payload)
    }

    /// Adds a reply, and says whether its payload has to follow with the next flush. `Full`: flush first.
    pub(crate) fn stage_reply(
        &mut self,
        id: RequestId,
        answer: &Answer,
        payload: Option<&Buf>,
    ) -> Result<bool, EncodeError> {
        self.stage_with(reply_head(id), answer, payload)
    }

    /// See `Tx::breaker`.
    pub(crate) fn breaker(&self) -> impl Fn() + 'static {
        self.tx.breaker()
    }

    /// Adds a frame without a payload. `Full`: flush first.
    pub(crate) fn stage<T: serde::Serialize>(&mut self, head: Head, body: &T) -> Result<(), EncodeError> {
        self.stage_with(head, body, None).map(drop)
    }

    fn stage_with<T: serde::Serialize>(
        &mut self,
        head: Head,
        body: &T,
        payload: Option<&Buf>,
    ) -> Result<bool, EncodeError> {
        let head = self.describe(head, payload);
        loop {
            let room = self.room();
            match head.encode(body, &mut self.stage[self.filled..room]) {
                Ok(bytes) => {
                    let inline = payload.filter(|_| head.place.is_none());
                    self.add(bytes, inline);
                    self.beside.carry_out(&head, payload);
                    return Ok(inline.is_some());
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
        let head = self.describe(Head::new(kind), None);
        let room = self.room();
        let bytes = head.encode_bare(&mut self.stage[self.filled..room])?;
        self.add(bytes, None);
        Ok(())
    }

    /// The last possible end of frames in the buffer, which leaves space for the tags of the last frame.
    fn room(&self) -> usize {
        match self.channel {
            SendChannel::Mac(_) => self.stage.len().saturating_sub(TAGS_BYTES_MAX).max(self.filled),
            SendChannel::Off | SendChannel::Tls(_) => self.stage.len(),
        }
    }

    /// The header with the fields that describe `payload`.
    fn describe(&self, mut head: Head, payload: Option<&Buf>) -> Head {
        head.sealed = !matches!(self.channel, SendChannel::Off);
        if let Some(p) = payload {
            head.payload_len = u32::try_from(p.len()).unwrap_or(u32::MAX);
            head.pad = (p.window().start % amphi_env::buf::ALIGN) as u16;
            self.beside.describe(&mut head, p);
            if head.place.is_none() {
                head.payload_crc = (self.sums && !head.sealed).then(|| payload_sum(p));
            }
        }
        head
    }

    /// A frame of `bytes` bytes was encoded behind the earlier frames.
    fn add(&mut self, bytes: usize, payload: Option<&Buf>) {
        let frame = &mut self.stage[self.filled..];
        self.filled += match &mut self.channel {
            SendChannel::Mac(tagger) => tagger.put(frame, bytes, payload.filter(|p| !p.is_empty()).map(|p| &p[..])),
            SendChannel::Off | SendChannel::Tls(_) => bytes,
        };
    }

    pub(crate) fn is_staged(&self) -> bool {
        self.filled > 0
    }

    /// Sends what was added and then `payload`, which is returned.
    pub(crate) async fn flush(&mut self, payload: Option<Buf>) -> (io::Result<()>, Option<Buf>) {
        let mut head = std::mem::take(&mut self.stage);
        head.set_window(0..self.filled);
        self.filled = 0;
        let (done, mut head, payload) = match self.channel {
            SendChannel::Off | SendChannel::Mac(_) => self.tx.send(head, payload).await,
            SendChannel::Tls(_) => {
                let done = self.send_sealed(&head, payload.as_deref().unwrap_or(&[])).await;
                (done, head, payload)
            }
        };
        if head.capacity() > STAGE_BYTES {
            head = Buf::zeroed(STAGE_BYTES);
        } else {
            head.set_window(0..head.capacity());
        }
        self.stage = head;
        (done, payload)
    }

    /// Sends `first` and `second` in records.
    async fn send_sealed(&mut self, mut first: &[u8], mut second: &[u8]) -> io::Result<()> {
        while !first.is_empty() || !second.is_empty() {
            let SendChannel::Tls(sealer) = &mut self.channel else { return Ok(()) };
            let worn_out = |e: ChannelError| io::Error::new(io::ErrorKind::ConnectionAborted, e.to_string());
            let all = first.len() + second.len();
            let wanted = (all + (all.div_ceil(RECORD_MAX) + 1) * RECORD_MORE).min(SEALED_BYTES);
            let mut out = std::mem::take(&mut self.sealed);
            if out.capacity() < wanted {
                out = Buf::zeroed(wanted);
            }
            out.set_window(0..out.capacity());
            let mut filled = 0;
            for content in [&mut first, &mut second] {
                let (taken, more) = sealer.put(content, &mut out[filled..]).map_err(worn_out)?;
                *content = &content[taken..];
                filled += more;
                if !content.is_empty() {
                    break;
                }
            }
            out.set_window(0..filled);
            let (done, out, _) = self.tx.send(out, None).await;
            self.sealed = out;
            done?;
        }
        Ok(())
    }

    /// Sends bytes of the key exchange.
    async fn send_clear(&mut self, bytes: &[u8]) -> Result<(), Ending> {
        self.tx.send(Buf::copy_of(bytes), None).await.0.map_err(|e| lost(&e))
    }
}

/// The receiving half of a stream, with the message that has arrived.
pub(crate) struct StreamRx<E: Env> {
    rx: ConnRx<E>,
    /// Header and body, and the tags behind them.
    frame: Buf,
    /// Bytes of the body.
    body: usize,
    payload: Option<Buf>,
    channel: ReceiveChannel,
    /// The record that was received last.
    record: Buf,
    /// The part of `record` that has been opened and not been delivered.
    opened: Range<usize>,
    beside: Beside<E>,
    /// The payload of the last message did not come in the stream.
    was_beside: bool,
}

/// Sending half of any connection.
pub(crate) enum Outbound<E: Env> {
    Stream(StreamTx<E>),
    Local(LocalTx),
}

/// Receiving half of any connection.
#[expect(clippy::large_enum_variant, reason = "one for each connection, and nearly all are streams")]
pub(crate) enum Inbound<E: Env> {
    Stream(StreamRx<E>),
    Local(LocalRx),
}

/// Both halves over a socket.
pub(crate) fn over_stream<E: Env>(conn: E::Conn) -> (Outbound<E>, Inbound<E>) {
    let sums = conn.is_network();
    let (tx, rx) = conn.split();
    let stage = Buf::zeroed(STAGE_BYTES);
    let out = StreamTx {
        tx,
        stage,
        filled: 0,
        sums,
        channel: SendChannel::Off,
        sealed: Buf::default(),
        beside: Beside::Nothing,
    };
    let inb = StreamRx {
        rx,
        frame: Buf::zeroed(FRAME_BYTES),
        body: 0,
        payload: None,
        channel: ReceiveChannel::Off,
        record: Buf::default(),
        opened: 0..0,
        beside: Beside::Nothing,
        was_beside: false,
    };
    (Outbound::Stream(out), Inbound::Stream(inb))
}

/// From now on `channel` protects both halves of one connection, between two frames.
pub(crate) fn protect<E: Env>(out: &mut Outbound<E>, inb: &mut Inbound<E>, channel: Channel) {
    if let (Outbound::Stream(tx), Inbound::Stream(rx)) = (out, inb) {
        assert!(!tx.is_staged() && rx.opened.is_empty(), "a channel begins between two frames");
        (tx.channel, rx.channel) = (channel.send, channel.receive);
    }
}

/// A connection after its handshake, on its way to another thread, with its whole state.
pub(crate) struct Moved<E: Env> {
    conn: <E::Conn as Conn>::Moved,
    channel: Channel,
    /// Bytes of an opened record that have not been delivered.
    opened: Vec<u8>,
    /// Payloads may lie in the client's memory.
    takes_memory: bool,
}

/// Takes a connection off this thread. No message of it may be under way, and none may wait to be received or sent.
///
/// Errors: why the connection cannot be moved; an in-process connection never can.
pub(crate) fn detach<E: Env>((out, inb): (Outbound<E>, Inbound<E>)) -> io::Result<Moved<E>> {
    let (Outbound::Stream(tx), Inbound::Stream(rx)) = (out, inb) else {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "a connection inside a thread stays there"));
    };
    debug_assert!(!tx.is_staged() && rx.payload.is_none(), "a connection is moved between two messages");
    let opened = rx.record.get(rx.opened).unwrap_or_default().to_vec();
    let channel = Channel { send: tx.channel, receive: rx.channel };
    let takes_memory = matches!(tx.beside, Beside::Taken(_));
    drop((tx.beside, rx.beside));
    Ok(Moved { conn: E::Conn::detach(tx.tx, rx.rx)?, channel, opened, takes_memory })
}

/// Takes a connection over from another thread.
pub(crate) fn adopt<E: Env>(env: &E, moved: Moved<E>) -> (Outbound<E>, Inbound<E>) {
    let Moved { conn, channel, opened, takes_memory } = moved;
    let (mut out, mut inb) = over_stream::<E>(env.adopt(conn));
    protect(&mut out, &mut inb, channel);
    if takes_memory {
        take_memory(&mut out, &mut inb);
    }
    if let (Inbound::Stream(rx), false) = (&mut inb, opened.is_empty()) {
        (rx.record, rx.opened) = (Buf::copy_of(&opened), 0..opened.len());
    }
    (out, inb)
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
                    Message::Challenge(body) => tx.stage(head, body),
                    Message::Hello(body) => tx.stage(head, body),
                    Message::Welcome(body) => tx.stage(head, body),
                    Message::Refuse(body) => tx.stage(head, body),
                    Message::Push(body) => tx.stage(head, body),
                    Message::Reply { id, answer } => tx.stage(reply_head(*id), answer),
                    Message::Request { lane, id, deadline_ms, call } => {
                        tx.stage(request_head(*lane, *id, call.target, *deadline_ms), call)
                    }
                    Message::Bye | Message::Ping | Message::Pong => tx.stage_bare(message.kind()),
                };
                staged.map_err(|e| Ending::Lost(format!("a {:?} cannot be encoded: {e:?}", message.kind())))?;
                tx.flush(None).await.0.map_err(|e| lost(&e))
            }
        }
    }

    /// Sends bytes of the key exchange.
    pub(crate) async fn send_clear(&mut self, bytes: &[u8]) -> Result<(), Ending> {
        match self {
            Outbound::Stream(tx) => tx.send_clear(bytes).await,
            Outbound::Local(_) => Err(Ending::Violation("a key exchange within a process".into())),
        }
    }

    /// The `Ending` for a failed `flush` of the stream half.
    pub(crate) fn failed(e: &io::Error) -> Ending {
        lost(e)
    }
}

impl<E: Env> Inbound<E> {
    /// The next record of the key exchange, header and all. `None`: a frame arrived instead, and nothing more can be
    /// received afterwards. It must not be called again after an error, or after the future was dropped.
    pub(crate) async fn clear_record(&mut self) -> Result<Option<Vec<u8>>, Ending> {
        match self {
            Inbound::Stream(rx) => rx.clear_record().await,
            Inbound::Local(_) => Err(Ending::Violation("a key exchange within a process".into())),
        }
    }

    /// The next message. It must not be called again after an error, or after the future was dropped.
    pub(crate) async fn recv(&mut self, gate: &mut impl Gate) -> Result<(Message, Option<Buf>), Ending> {
        self.arrive(gate).await?;
        self.take()
    }

    /// Waits until all of the next message has arrived and was admitted by `gate`. The message has to be taken next. It
    /// must not be called again after an error, or after the future was dropped.
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

/// The kind of a message of a local queue, and the other facts that a gate needs.
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

fn broken(e: ChannelError) -> Ending {
    match e {
        ChannelError::Ended | ChannelError::WornOut => Ending::Lost(e.to_string()),
        ChannelError::Forged | ChannelError::Foreign => Ending::Violation(e.to_string()),
    }
}

impl<E: Env> StreamRx<E> {
    /// Fills the window of `buf` with what the channel delivers.
    async fn fill(&mut self, buf: Buf) -> Result<Buf, Ending> {
        match self.channel {
            ReceiveChannel::Off | ReceiveChannel::Mac(_) => self.receive(buf).await,
            ReceiveChannel::Tls(_) => self.fill_opened(buf).await,
        }
    }

    async fn receive(&mut self, buf: Buf) -> Result<Buf, Ending> {
        let (done, buf) = self.rx.recv_exact(buf).await;
        done.map_err(|e| lost(&e))?;
        Ok(buf)
    }

    /// Fills `buf` from records. A payload that fits is decrypted into it, and a longer one in its own place.
    async fn fill_opened(&mut self, mut buf: Buf) -> Result<Buf, Ending> {
        let mut filled = 0;
        loop {
            let ready = self.opened.len().min(buf.len() - filled);
            let from = self.opened.start;
            buf[filled..filled + ready].copy_from_slice(&self.record[from..from + ready]);
            self.opened.start += ready;
            filled += ready;
            if filled == buf.len() {
                return Ok(buf);
            }
            let mut record = std::mem::take(&mut self.record);
            if record.capacity() < RECORD_BODY_MAX {
                record = Buf::zeroed(RECORD_BODY_MAX);
            }
            record.set_window(0..RECORD_HEAD);
            record = self.receive(record).await?;
            let body = body_bytes(&record).map_err(broken)?;
            record.set_window(0..body);
            record = self.receive(record).await?;
            let ReceiveChannel::Tls(opener) = &mut self.channel else { return Err(gone()) };
            match opener.open(&mut record, &mut buf[filled..]).map_err(broken)? {
                Opened::Out(bytes) => (filled, self.opened) = (filled + bytes, 0..0),
                Opened::InPlace(bytes) => self.opened = 0..bytes,
            }
            self.record = record;
        }
    }

    async fn clear_record(&mut self) -> Result<Option<Vec<u8>>, Ending> {
        let head = self.receive(Buf::zeroed(RECORD_HEAD)).await?;
        if head[..MAGIC.len()] == MAGIC {
            return Ok(None);
        }
        let len = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if RECORD_HEAD + len > CLEAR_RECORD_MAX || head[1] != 3 {
            return Err(broken(ChannelError::Foreign));
        }
        let mut record = head.to_vec();
        if len > 0 {
            record.extend_from_slice(&self.receive(Buf::zeroed(len)).await?);
        }
        Ok(Some(record))
    }

    async fn arrive(&mut self, gate: &mut impl Gate) -> Result<(), Ending> {
        let mut frame = std::mem::take(&mut self.frame);
        frame.set_window(0..HEAD_BYTES);
        frame = self.fill(frame).await?;
        let head = Head::parse(head_bytes(&frame)).map_err(|e| match (&e, &self.channel) {
            (FrameError::Magic { .. }, ReceiveChannel::Mac(_)) => broken(ChannelError::Foreign),
            _ => bad(e),
        })?;
        if head.sealed == matches!(self.channel, ReceiveChannel::Off) {
            return Err(Ending::Violation(
                "a frame of another channel: the peer does not protect what it sends".into(),
            ));
        }
        let body = head.body_len as usize;
        if body > gate.body_max(head.kind) {
            return Err(Ending::Violation(format!("a {:?} of {body} bytes before the handshake is done", head.kind)));
        }
        let tags = match self.channel {
            ReceiveChannel::Mac(_) => tags_bytes(head.inline_len() > 0),
            ReceiveChannel::Off | ReceiveChannel::Tls(_) => 0,
        };
        let whole = HEAD_BYTES + body + tags;
        if whole > frame.capacity() {
            let mut larger = Buf::zeroed(whole);
            larger[..HEAD_BYTES].copy_from_slice(&frame);
            frame = larger;
        }
        if whole > HEAD_BYTES {
            frame.set_window(HEAD_BYTES..whole);
            frame = self.fill(frame).await?;
        }
        frame.set_window(0..whole);
        (self.frame, self.body) = (frame, body);
        match &mut self.channel {
            ReceiveChannel::Off => Head::check(head_bytes(&self.frame), self.body()).map_err(bad)?,
            ReceiveChannel::Mac(verifier) => verifier.check(&self.frame, head.inline_len() > 0).map_err(broken)?,
            ReceiveChannel::Tls(_) => {}
        }
        let pad = gate.admit(head.kind, head.lane, head.id, head.pad).map_err(Ending::Violation)?;
        self.was_beside = head.place.is_some();
        if self.was_beside {
            self.payload = self.beside_stream(gate, &head, pad).await?;
            return Ok(());
        }
        self.payload = match head.payload_len as usize {
            0 => None,
            len => {
                let _room = gate.room(len).await;
                let payload = self.fill(Buf::scratch_padded(pad, len)).await?;
                match &self.channel {
                    ReceiveChannel::Off => head.check_payload(&payload).map_err(bad)?,
                    ReceiveChannel::Mac(verifier) => verifier.check_payload(&payload).map_err(broken)?,
                    ReceiveChannel::Tls(_) => {}
                }
                Some(payload)
            }
        };
        Ok(())
    }

    fn body(&self) -> &[u8] {
        &self.frame[HEAD_BYTES..HEAD_BYTES + self.body]
    }

    #[inline]
    fn take(&mut self) -> Result<(Message, Option<Buf>), Ending> {
        let head = Head::parse(head_bytes(&self.frame)).map_err(bad)?;
        let message = decode(&head, self.body()).map_err(bad)?;
        if self.frame.capacity() > FRAME_BYTES {
            self.frame = Buf::zeroed(FRAME_BYTES);
        }
        Ok((message, self.payload.take()))
    }
}

fn head_bytes(frame: &[u8]) -> &[u8; HEAD_BYTES] {
    frame.first_chunk().expect("a frame begins with a header")
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
