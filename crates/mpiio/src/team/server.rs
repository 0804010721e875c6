//! The leader's side: serves the ranks of other nodes, each by a thread that waits in `read` and never polls.
//!
//! Owns the listener and the proxies. A proxy is a rank of the node's shared memory that executes the requests of a
//! rank of another node, so it takes the same locks as the other ranks. When a connection breaks while the proxy holds
//! locks, its rank ended in the middle of a call: the file is given up for the node.

use super::handover::{SPANS_MAX, encode};
use super::link::Link;
use super::message::{Kind, Message, WHOLE_CALL, receive_hello, send};
use crate::error::{Error, Outcome};
use crate::file::{CachedFile, Extent, HANDOVER_BYTES};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{Builder, JoinHandle};

/// Makes the proxy with this rank.
pub type MakeProxy = dyn Fn(u32) -> Outcome<CachedFile> + Send + Sync;

/// A leader that serves other nodes.
pub struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at an address and serves `clients` ranks, the proxies from rank `first` on.
    pub fn start(
        at: (std::net::IpAddr, u16),
        first: u32,
        clients: u32,
        nonce: u64,
        make: Arc<MakeProxy>,
    ) -> Outcome<Server> {
        let failed = |e: std::io::Error| Error::Os { doing: "listen", errno: e.raw_os_error().unwrap_or(libc::EIO) };
        let listener = TcpListener::bind(at).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let acceptor = Builder::new()
            .name("amphi-mpiio".into())
            .spawn(move || accept(&listener, (first, clients), nonce, &make, &stopping))
            .map_err(failed)?;
        Ok(Server { address, stop, acceptor: Some(acceptor) })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        // Wakes the acceptor if ranks are missing; otherwise it has ended.
        let local = SocketAddr::new(std::net::Ipv4Addr::LOCALHOST.into(), self.address.port());
        let _ = TcpStream::connect(local);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn accept(listener: &TcpListener, ranks: (u32, u32), nonce: u64, make: &Arc<MakeProxy>, stop: &AtomicBool) {
    let mut serving = Vec::new();
    let mut seen = vec![false; ranks.1 as usize];
    while serving.len() < ranks.1 as usize {
        let Ok((stream, _)) = listener.accept() else { break };
        if stop.load(SeqCst) {
            break;
        }
        let mut stream = stream;
        if super::prepare(&stream).is_err() {
            continue;
        }
        // A stranger that says nothing must not keep the ranks away.
        let _ = stream.set_read_timeout(Some(std::time::Duration::from_secs(10)));
        let Ok(hello) = receive_hello(&mut stream) else { continue };
        let _ = stream.set_read_timeout(None);
        let index = hello.number.checked_sub(u64::from(ranks.0)).and_then(|i| seen.get_mut(i as usize));
        let Some(new) = index.filter(|new| !**new && hello.kind == Kind::Hello && hello.second == nonce) else {
            continue;
        };
        *new = true;
        let proxy = make(hello.number as u32);
        let errno = proxy.as_ref().err().map_or(0, |e| e.errno());
        if send(&mut stream, Kind::Reply, (errno as u64, 0), &[], &[]).is_err() {
            continue;
        }
        let Ok(mut proxy) = proxy else { continue };
        if let Some(node) = hello.extents.first() {
            proxy.works_for(node.offset as usize);
        }
        let thread = Builder::new().name("amphi-mpiio".into()).spawn(move || serve(stream, proxy));
        serving.extend(thread);
    }
    for thread in serving {
        let _ = thread.join();
    }
}

/// Executes the requests of a rank of another node, until it says good-bye or the connection ends.
pub fn serve(mut link: impl Link, mut proxy: CachedFile) {
    let ended = loop {
        let message = match link.receive() {
            Ok(message) => message,
            Err(error) => break Err(error),
        };
        let (kind, answer) = (message.kind, answer(&mut proxy, message));
        proxy.publish();
        match kind {
            Kind::Bye => break Ok(()),
            kind if !kind.has_reply() => continue,
            _ => {}
        }
        let sent = match answer {
            Ok(Answer { number, extents, data }) => link.send(Kind::Reply, (0, number), &extents, &data),
            Err(error) => link.send(Kind::Reply, (error.errno() as u64, 0), &[], &[]),
        };
        if let Err(error) = sent {
            break Err(error);
        }
    };
    if ended.is_err() && proxy.holds() {
        proxy.give_up();
    }
    proxy.leave();
}

/// The contents of a reply.
#[derive(Default)]
struct Answer {
    number: u64,
    extents: Vec<Extent>,
    data: Vec<u8>,
}

/// The end of a step of which `done` bytes were done: returns the pages that move. If the step is the whole call and
/// all of it was done, all locks but those of the leaving pages are released.
fn end_step(proxy: &mut CachedFile, message: &Message, wanted: u64, done: u64, data: Vec<u8>) -> Outcome<Answer> {
    let mut answer = Answer { number: done, extents: Vec::new(), data };
    let whole = message.number == WHOLE_CALL && done == wanted;
    if done < wanted {
        answer.extents.extend(proxy.why_it_stopped(&message.extents, done)?.encode());
    } else if whole {
        if message.kind == Kind::Write
            && let Some(last) = message.extents.last()
        {
            proxy.grow(last.offset + last.length);
        }
        proxy.commit();
    }
    let pages = proxy.offer((HANDOVER_BYTES, SPANS_MAX), whole)?;
    encode(&pages, &mut answer.extents, &mut answer.data);
    if whole {
        proxy.release();
    }
    Ok(answer)
}

fn answer(proxy: &mut CachedFile, message: Message) -> Outcome<Answer> {
    let number = |number| Ok(Answer { number, ..Answer::default() });
    let nothing = |()| Answer::default();
    match message.kind {
        Kind::Write | Kind::Read => {
            let answer = step(proxy, &message);
            if answer.is_err() && message.number == WHOLE_CALL {
                proxy.release();
            }
            answer
        }
        Kind::Taken => {
            let taken: Vec<u64> = message.extents.iter().map(|e| e.offset).collect();
            proxy.handed_over(&taken).map(nothing)
        }
        Kind::DropCopy => proxy.drop_copy(message.number).map(nothing),
        Kind::Recalled => proxy.recalled(message.number).map(nothing),
        Kind::Still => {
            proxy.keep_still(message.number != 0);
            number(0)
        }
        Kind::Release => {
            proxy.release();
            number(0)
        }
        Kind::Bye => {
            proxy.release();
            proxy.handed_over(&[]).map(nothing)
        }
        Kind::DropClean => proxy.drop_clean().map(nothing),
        Kind::Discard => proxy.discard().map(nothing),
        Kind::Size => {
            proxy.commit();
            number(proxy.size())
        }
        Kind::Grow => {
            proxy.grow(message.number);
            proxy.commit();
            number(0)
        }
        Kind::PointerAdd => number(proxy.pointer_add(message.number)),
        Kind::PointerSet => {
            proxy.pointer_set(message.number);
            number(0)
        }
        Kind::Pointer => number(proxy.pointer()),
        Kind::Stats => {
            let values = proxy.stats().values();
            Ok(Answer { data: values.iter().flat_map(|v| v.to_le_bytes()).collect(), ..Answer::default() })
        }
        Kind::Settle => proxy.settle_alone(message.number != 0).map(nothing),
        Kind::AgreeSize => {
            proxy.agree_size(message.number);
            number(0)
        }
        Kind::Hello | Kind::Reply | Kind::Alive => {
            Err(Error::Os { doing: "understand another node", errno: libc::EPROTO })
        }
    }
}

fn step(proxy: &mut CachedFile, message: &Message) -> Outcome<Answer> {
    let bytes = message.extents.iter().try_fold(0u64, |sum, e| sum.checked_add(e.length));
    let bytes = bytes.filter(|b| *b <= super::message::MAX_DATA as u64);
    let bytes = bytes.ok_or(Error::Refused("a step is too long"))?;
    proxy.asked_by(message.second);
    let (mut data, done);
    if message.kind == Kind::Write {
        data = Vec::new();
        done = proxy.write_held(&message.extents, &message.data)?;
    } else {
        data = vec![0; bytes as usize];
        done = proxy.read_held(&message.extents, &mut data)?;
        data.truncate(done as usize);
    }
    end_step(proxy, message, bytes, done, data)
}
