//! Byte streams of production: Unix and TCP sockets on the ring.
//!
//! Owns: sockets, the staging buffer of receivers, vectored sends, and the identity of the other end of a Unix socket
//! (`peer`). Does not own: frames.
//!
//! Invariants: TCP never delays small segments (without TCP_NODELAY two small writes cost 88 ms). A TCP peer that
//! vanishes ends the connection. No bytes are skipped or repeated by short reads and writes. A receiver whose future
//! was dropped refuses further use.

use super::lent::{Frame, Held, Leases, Lent};
use super::passed::RealMemory;
use crate::addr::Addr;
use crate::buf::arena;
use crate::{Buf, Conn, Ends, IoBuf, Listener, Rx, Tx};
use amphi_types::Cred;
use compio::buf::{BufResult, IntoInner};
use compio::driver::SharedFd;
use compio::driver::op::{Accept, Interest, PollOnce, Recv, Send, SendVectored};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// Most bytes that one receive may fetch ahead, so that header and body of small messages come with one system call.
const STAGING_BYTES: usize = 64 << 10;
/// If at least this many bytes are missing, a receive goes directly into the caller's buffer: for fewer the copy costs
/// less than the additional system call (16 KiB copy in about 1 us).
const DIRECT_BYTES: usize = 16 << 10;

/// Capacity of a Unix socket, bytes (the kernel takes twice that, its own structures included). Measured with payloads
/// of 4 MiB: 8 GB/s; with the default of 208 KiB 2 to 8, because sender and receiver wait for each other; from 1 MiB on
/// 5, because the bytes no longer fit into the processor's cache.
const UNIX_SEND_BYTES: usize = 256 << 10;
/// A TCP peer that acknowledges nothing for this long is gone: sends then fail, and so does a receive that waits.
const TCP_SILENCE_MAX: Duration = Duration::from_secs(30);
/// A silent TCP connection is probed after this, and again as often as fits `TCP_SILENCE_MAX`.
const TCP_PROBE: Duration = Duration::from_secs(10);

/// Connections to a Unix socket that may wait to be accepted.
const UNIX_BACKLOG: i32 = 128;

type Fd = SharedFd<OwnedFd>;

/// A connected socket.
pub struct RealConn {
    fd: Fd,
    peer: String,
    cred: Option<Cred>,
    tcp: bool,
    /// Bytes that were received on the thread that had the connection before.
    ahead: Option<Staging>,
    memory: Memory,
    leases: Arc<Leases>,
}

/// Memory of the other end's process.
#[derive(Clone)]
enum Memory {
    /// A descriptor may come with the bytes that are received.
    Expected,
    /// The memory has been received.
    There(RealMemory),
    /// No descriptor came, and none is expected any more.
    None,
}

/// A connected socket between two threads.
pub struct RealMoved {
    fd: OwnedFd,
    peer: String,
    cred: Option<Cred>,
    tcp: bool,
    ahead: Staging,
    memory: Memory,
}

impl RealConn {
    /// Takes a socket over from another thread.
    pub(super) fn adopt(moved: RealMoved, leases: &Arc<Leases>) -> RealConn {
        let RealMoved { fd, peer, cred, tcp, ahead, memory } = moved;
        RealConn { fd: SharedFd::new(fd), peer, cred, tcp, ahead: Some(ahead), memory, leases: leases.clone() }
    }

    fn new(fd: OwnedFd, peer: String, cred: Option<Cred>, tcp: bool, leases: &Arc<Leases>) -> io::Result<RealConn> {
        if tcp {
            set_up_tcp(&fd)?;
        } else if sockopt::set_socket_send_buffer_size_force(&fd, UNIX_SEND_BYTES).is_err() {
            // Without the privilege the socket gets as much as the system permits, which is only slower.
            let _ = sockopt::set_socket_send_buffer_size(&fd, UNIX_SEND_BYTES);
        }
        // Only the side that made the connection passes memory.
        let memory = if cred.is_some() { Memory::Expected } else { Memory::None };
        Ok(RealConn { fd: SharedFd::new(fd), peer, cred, tcp, ahead: None, memory, leases: leases.clone() })
    }

    pub(super) async fn dial(text: &str, leases: &Arc<Leases>) -> io::Result<RealConn> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{text}: {e}"));
        // The stream types of the runtime stay on this thread; the duplicate belongs to us alone.
        let (fd, tcp) = match Addr::parse(text)? {
            Addr::Unix(path) => {
                let stream = compio::net::UnixStream::connect(path).await.map_err(named)?;
                (stream.as_fd().try_clone_to_owned()?, false)
            }
            Addr::Tcp(host, port) => {
                let stream = compio::net::TcpStream::connect((host.as_str(), port)).await.map_err(named)?;
                (stream.as_fd().try_clone_to_owned()?, true)
            }
        };
        RealConn::new(fd, text.to_string(), None, tcp, leases)
    }
}

fn set_up_tcp(fd: &OwnedFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(fd, true)?;
    sockopt::set_socket_keepalive(fd, true)?;
    sockopt::set_tcp_keepidle(fd, TCP_PROBE)?;
    sockopt::set_tcp_keepintvl(fd, TCP_PROBE)?;
    sockopt::set_tcp_keepcnt(fd, (TCP_SILENCE_MAX.as_secs() / TCP_PROBE.as_secs()) as u32 - 1)?;
    sockopt::set_tcp_user_timeout(fd, TCP_SILENCE_MAX.as_millis() as u32)?;
    Ok(())
}

impl Conn for RealConn {
    type Tx = RealTx;
    type Rx = RealRx;
    type Moved = RealMoved;

    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn peer_cred(&self) -> Option<Cred> {
        self.cred.clone()
    }

    fn is_network(&self) -> bool {
        self.tcp
    }

    fn split(self) -> (RealTx, RealRx) {
        let RealConn { fd, peer, cred, tcp, ahead, memory, leases } = self;
        let staging = ahead.unwrap_or_else(|| Staging { buf: Buf::zeroed(STAGING_BYTES), start: 0, end: 0 });
        let rx = RealRx { fd: fd.clone(), staging: Some(staging), memory, leases: leases.clone() };
        (RealTx { fd, peer, cred, tcp, leases }, rx)
    }

    fn detach(tx: RealTx, rx: RealRx) -> io::Result<RealMoved> {
        let RealTx { fd, peer, cred, tcp, .. } = tx;
        let Some(ahead) = rx.staging else {
            return Err(io::Error::other("a receive on this connection was dropped before its end"));
        };
        drop(rx.fd);
        // The reference count of a descriptor belongs to this thread, so the other thread gets a duplicate if it is
        // still shared.
        let fd = fd.try_unwrap().or_else(|shared| shared.as_fd().try_clone_to_owned())?;
        Ok(RealMoved { fd, peer, cred, tcp, ahead, memory: rx.memory })
    }
}

/// Sending half.
pub struct RealTx {
    fd: Fd,
    peer: String,
    cred: Option<Cred>,
    tcp: bool,
    leases: Arc<Leases>,
}

/// The facts about the other end of a socket.
#[derive(Clone)]
pub struct RealEnds(Fd);

impl RealEnds {
    /// Returns whether the kernel reports one of `wanted` now, or `None` if it reports nothing.
    fn poll(&self, wanted: PollFlags) -> Option<bool> {
        let mut fds = [PollFd::new(&self.0, wanted)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).ok()?;
        Some(fds[0].revents().intersects(wanted))
    }
}

impl Ends for RealEnds {
    fn abandon(&self) {
        let _ = rustix::net::shutdown(&self.0, Shutdown::Write);
    }

    fn is_abandoned(&self) -> bool {
        self.poll(PollFlags::RDHUP | PollFlags::HUP).unwrap_or(true)
    }

    fn is_closed(&self) -> bool {
        self.poll(PollFlags::HUP).unwrap_or(false)
    }
}

/// Sends as many of `bytes` as possible without waiting, and a descriptor together with the first of them.
fn send_with_fd(socket: &Fd, bytes: &[u8], fd: BorrowedFd<'_>) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    if !beside.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::NOBUFS);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut beside, flags)
}

/// Receives the bytes that are available without waiting, and the first descriptor that came with them. Other
/// descriptors are closed.
fn receive_with_fd(socket: &Fd, into: &mut [u8]) -> rustix::io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(into)], &mut beside, flags)?;
    let mut fds = beside.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let first = fds.next().and_then(|mut fds| fds.next());
    Ok((received.bytes, first))
}

impl Tx for RealTx {
    type Ends = RealEnds;

    async fn send_with_memory(&mut self, mut head: Buf) -> (io::Result<bool>, Buf) {
        let Some(memory) = arena::passed().filter(|_| !self.tcp) else {
            let (sent, head, _) = self.send(head, None).await;
            return (sent.map(|()| false), head);
        };
        // A handshake finds an empty socket. If this connection cannot carry a descriptor, or if the descriptor is
        // refused, all bytes go without it.
        let sent = send_with_fd(&self.fd, &head, memory).unwrap_or(0);
        let whole = head.window();
        head.set_window(whole.start + sent..whole.end);
        let (rest, mut head, _) = self.send(head, None).await;
        head.set_window(whole);
        (rest.map(|()| sent > 0), head)
    }

    fn ends(&self) -> RealEnds {
        RealEnds(self.fd.clone())
    }

    fn breaker(&self) -> impl Fn() + 'static {
        // On one machine, shutting down one direction is enough, and shutting down both would look as if the other end
        // had closed (`RealEnds`).
        let (fd, how) = (self.fd.clone(), if self.tcp { Shutdown::Both } else { Shutdown::Write });
        move || {
            let _ = rustix::net::shutdown(&fd, how);
        }
    }

    async fn send(&mut self, mut head: Buf, mut payload: Option<Buf>) -> (io::Result<()>, Buf, Option<Buf>) {
        // With MSG_WAITALL the ring itself continues after a short write.
        let flags = SendFlags::NOSIGNAL | SendFlags::from_bits_retain(libc::MSG_WAITALL as u32);
        let total = head.len() + payload.as_ref().map_or(0, |p| p.len());
        let mut sent = 0;
        while sent < total {
            let res;
            if let Some(body) = payload.take_if(|p| !p.is_empty()) {
                let op = SendVectored::new(
                    Held::new(&self.fd, &self.leases),
                    Frame::new(head, body, sent, &self.leases),
                    flags,
                );
                let BufResult(r, op) = compio::runtime::submit(op).await;
                let (h, b) = op.into_inner().into_bufs();
                (res, head, payload) = (r, h, Some(b));
            } else {
                let op = Send::new(Held::new(&self.fd, &self.leases), Lent::new(head, sent, &self.leases), flags);
                let BufResult(r, op) = compio::runtime::submit(op).await;
                (res, head) = (r, op.into_inner().into_buf());
            }
            match res {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), head, payload),
                Ok(n) => sent += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return (Err(e), head, payload),
            }
        }
        (Ok(()), head, payload)
    }
}

/// Bytes received ahead: `start..end` of `buf` are not yet delivered.
struct Staging {
    buf: Buf,
    start: usize,
    end: usize,
}

/// Receiving half.
pub struct RealRx {
    fd: Fd,
    /// It is `None` while a receive runs; a dropped receive leaves `None`.
    staging: Option<Staging>,
    memory: Memory,
    leases: Arc<Leases>,
}

impl RealRx {
    /// Receives like `recv` from the start of `buf`, and also the descriptor that comes with the bytes.
    async fn recv_expecting(&mut self, mut buf: Buf) -> (io::Result<usize>, Buf) {
        loop {
            match receive_with_fd(&self.fd, &mut buf) {
                Ok((received, fd)) => {
                    if let (Some(fd), Memory::Expected) = (fd, &self.memory) {
                        self.memory = match RealMemory::of(&fd) {
                            Ok(memory) => Memory::There(memory),
                            Err(why) => {
                                tracing::debug!("memory of a client is not used: {why}");
                                Memory::None
                            }
                        };
                    }
                    return (Ok(received), buf);
                }
                Err(Errno::AGAIN) => {
                    let ready = PollOnce::new(Held::new(&self.fd, &self.leases), Interest::Readable);
                    if let BufResult(Err(e), _) = compio::runtime::submit(ready).await {
                        return (Err(e), buf);
                    }
                }
                Err(e) => return (Err(e.into()), buf),
            }
        }
    }

    async fn recv(&self, buf: Buf, from: usize, flags: RecvFlags) -> (io::Result<usize>, Buf) {
        let op = Recv::new(Held::new(&self.fd, &self.leases), Lent::new(buf, from, &self.leases), flags);
        let BufResult(res, op) = compio::runtime::submit(op).await;
        (res, op.into_inner().into_buf())
    }
}

impl Rx for RealRx {
    type Memory = RealMemory;

    fn memory(&mut self) -> Option<RealMemory> {
        match &self.memory {
            Memory::There(memory) => Some(memory.clone()),
            Memory::Expected | Memory::None => {
                self.memory = Memory::None;
                None
            }
        }
    }

    async fn recv_exact(&mut self, mut buf: Buf) -> IoBuf<()> {
        let Some(mut staging) = self.staging.take() else {
            return (Err(io::Error::other("an earlier receive on this connection was dropped")), buf);
        };
        let mut filled = 0;
        let result = loop {
            let n = (staging.end - staging.start).min(buf.len() - filled);
            buf[filled..filled + n].copy_from_slice(&staging.buf[staging.start..staging.start + n]);
            staging.start += n;
            filled += n;
            if filled == buf.len() {
                break Ok(());
            }
            let res;
            if let Memory::Expected = self.memory {
                (res, staging.buf) = self.recv_expecting(staging.buf).await;
                (staging.start, staging.end) = (0, res.as_ref().copied().unwrap_or(0));
            } else if buf.len() - filled >= DIRECT_BYTES {
                (res, buf) = self.recv(buf, filled, RecvFlags::WAITALL).await;
                filled += res.as_ref().copied().unwrap_or(0);
            } else {
                (res, staging.buf) = self.recv(staging.buf, 0, RecvFlags::empty()).await;
                (staging.start, staging.end) = (0, res.as_ref().copied().unwrap_or(0));
            }
            match res {
                Ok(0) => break Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => break Err(e),
            }
        };
        self.staging = Some(staging);
        (result, buf)
    }
}

type Accepting = Pin<Box<dyn Future<Output = io::Result<RealConn>>>>;

/// A listening socket; one task at a time accepts.
pub struct RealListener {
    fd: Fd,
    addr: String,
    /// Path, device and inode of our Unix socket, to be removed at the end if it is still ours.
    path: Option<(String, u64, u64)>,
    /// The running accept outlives the futures that wait for it, so that no connection is lost with one.
    accepting: RefCell<Option<Accepting>>,
    leases: Arc<Leases>,
}

impl RealListener {
    pub(super) fn listen(text: &str, leases: &Arc<Leases>) -> io::Result<RealListener> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{text}: {e}"));
        let (fd, addr, path) = match Addr::parse(text)? {
            Addr::Unix(path) => {
                remove_stale(&path)?;
                let socket = listen_unix(&path).map_err(|e| named(e.into()))?;
                let meta = std::fs::symlink_metadata(&path).map_err(named)?;
                (socket, text.to_string(), Some((path, meta.dev(), meta.ino())))
            }
            Addr::Tcp(host, port) => {
                let listener = TcpListener::bind((host.as_str(), port)).map_err(named)?;
                let bound = listener.local_addr()?;
                (OwnedFd::from(listener), format!("tcp:{bound}"), None)
            }
        };
        Ok(RealListener { fd: SharedFd::new(fd), addr, path, accepting: RefCell::new(None), leases: leases.clone() })
    }
}

/// Binds a Unix socket to which only this user and root can connect, from its first moment on. The kernel gives the
/// file the permission bits that the socket has before it is bound.
fn listen_unix(path: &str) -> rustix::io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, UNIX_BACKLOG)?;
    Ok(socket)
}

/// How often a socket is checked whose process has ended, and the pause in between.
const GONE_LOOKS: u32 = 100;
const GONE_PAUSE: Duration = Duration::from_millis(20);

/// Removes a socket that no process serves. Refuses a socket that answers, and anything that is not a socket.
fn remove_stale(path: &str) -> io::Result<()> {
    let in_use = |why: &str| Err(io::Error::new(io::ErrorKind::AddrInUse, format!("unix:{path}: {why}")));
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(io::Error::new(e.kind(), format!("unix:{path}: {e}"))),
        Ok(meta) if !meta.file_type().is_socket() => return in_use("a file that is not a socket lies there"),
        Ok(_) => {}
    }
    for _ in 0..GONE_LOOKS {
        match UnixStream::connect(path) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => return std::fs::remove_file(path),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(io::Error::new(e.kind(), format!("unix:{path}: {e}"))),
            // The kernel closes what a killed process had in io_uring a moment after the process is gone.
            Ok(socket) if is_gone(&socket) => wait_for_close(),
            Ok(_) => break,
        }
    }
    in_use("another process serves it")
}

/// Returns whether the process that began to listen has ended.
fn is_gone(socket: &UnixStream) -> bool {
    let Ok(who) = sockopt::socket_peercred(socket) else { return false };
    match std::fs::read_to_string(format!("/proc/{}/status", who.pid.as_raw_nonzero())) {
        Ok(status) => status.contains("\nState:\tZ"),
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    }
}

#[expect(clippy::disallowed_methods, reason = "a moment of the start of a server, at which nothing else runs")]
fn wait_for_close() {
    std::thread::sleep(GONE_PAUSE);
}

pub(super) async fn accept_one(fd: Fd, tcp: bool, leases: Arc<Leases>) -> io::Result<RealConn> {
    let BufResult(res, op) = compio::runtime::submit(Accept::new(Held::new(&fd, &leases))).await;
    res?;
    let (socket, addr) = op.into_inner();
    let fd = OwnedFd::from(socket);
    let (peer, cred) = match addr.as_socket() {
        Some(addr) => (format!("tcp:{addr}"), None),
        None => match super::peer::of(&fd) {
            Ok((pid, cred)) => (format!("unix:pid={pid}"), Some(cred)),
            Err(_) => ("unix:?".to_string(), None),
        },
    };
    RealConn::new(fd, peer, cred, tcp, &leases)
}

impl Listener for RealListener {
    type Conn = RealConn;

    async fn accept(&self) -> io::Result<RealConn> {
        poll_fn(|cx| {
            let mut accepting = self.accepting.borrow_mut();
            let running = accepting
                .get_or_insert_with(|| Box::pin(accept_one(self.fd.clone(), self.path.is_none(), self.leases.clone())));
            let Poll::Ready(conn) = running.as_mut().poll(cx) else { return Poll::Pending };
            *accepting = None;
            Poll::Ready(conn)
        })
        .await
    }

    fn local_addr(&self) -> String {
        self.addr.clone()
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        match &self.path {
            Some((path, ..)) => std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode & 0o777)),
            None => Ok(()),
        }
    }
}

impl Drop for RealListener {
    fn drop(&mut self) {
        if let Some((path, dev, ino)) = &self.path
            && let Ok(meta) = std::fs::symlink_metadata(path)
            && (meta.dev(), meta.ino()) == (*dev, *ino)
        {
            // An error is ignored: the next server recognises a socket that is left behind as stale.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Env, RealEnv};

    /// Goal: the connection to a TCP peer that vanishes ends within `TCP_SILENCE_MAX`, sending or not, on both ends.
    /// Method: a peer cannot be made to vanish without privileges, so the socket options are read back.
    #[test]
    fn silent_tcp_peers_are_given_up() {
        RealEnv::run(Duration::ZERO, |env| async move {
            let listener = env.listen("tcp:127.0.0.1:0").await.expect("listen");
            let near = env.dial(&listener.local_addr()).await.expect("dial");
            let far = listener.accept().await.expect("accept");
            for conn in [&near, &far] {
                let fd = conn.fd.as_fd();
                let probes = sockopt::tcp_keepcnt(fd).expect("count");
                let idle =
                    sockopt::tcp_keepidle(fd).expect("idle") + sockopt::tcp_keepintvl(fd).expect("pause") * probes;
                assert!(sockopt::socket_keepalive(fd).expect("keepalive") && idle <= TCP_SILENCE_MAX);
                assert_eq!(sockopt::tcp_user_timeout(fd).expect("timeout"), TCP_SILENCE_MAX.as_millis() as u32);
                assert!(sockopt::tcp_nodelay(fd).expect("no delay"));
            }
        });
    }
}
