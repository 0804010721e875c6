//! The leader's side: serves the ranks of other nodes, each by a thread that waits in `read` and spins never.
//!
//! Owns the listener and the proxies. A proxy is a rank of the node's shared memory that does what a rank of another
//! node asks for, so it takes the same locks as everybody. When a connection breaks while the proxy holds locks, the
//! rank behind it is gone in the middle of a call: the file is given up for the node.

use super::message::{Kind, Message, WHOLE_CALL, receive, send};
use crate::error::{Error, Outcome};
use crate::file::CachedFile;
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
        // Wakes the acceptor if ranks are missing; otherwise nobody listens any more.
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
        let Ok(hello) = receive(&mut stream) else { continue };
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
        let Ok(proxy) = proxy else { continue };
        let thread = Builder::new().name("amphi-mpiio".into()).spawn(move || serve(stream, proxy));
        serving.extend(thread);
    }
    for thread in serving {
        let _ = thread.join();
    }
}

fn serve(mut stream: TcpStream, mut proxy: CachedFile) {
    let ended = loop {
        let message = match receive(&mut stream) {
            Ok(message) => message,
            Err(error) => break Err(error),
        };
        let (kind, answer) = (message.kind, answer(&mut proxy, message));
        proxy.publish();
        match kind {
            Kind::Bye => break Ok(()),
            Kind::Release => continue,
            _ => {}
        }
        let sent = match answer {
            Ok((number, data)) => send(&mut stream, Kind::Reply, (0, number), &[], &data),
            Err(error) => send(&mut stream, Kind::Reply, (error.errno() as u64, 0), &[], &[]),
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

fn answer(proxy: &mut CachedFile, message: Message) -> Outcome<(u64, Vec<u8>)> {
    let nothing = Vec::new;
    match message.kind {
        Kind::Write => {
            let result = proxy.write_held(&message.extents, &message.data);
            if message.number == WHOLE_CALL {
                if result.is_ok()
                    && let Some(last) = message.extents.last()
                {
                    proxy.grow(last.offset + last.length);
                }
                proxy.release();
            }
            result.map(|()| (0, nothing()))
        }
        Kind::Read => {
            let bytes = message.extents.iter().try_fold(0u64, |sum, e| sum.checked_add(e.length));
            let bytes = bytes.filter(|b| *b <= super::message::MAX_DATA as u64);
            let bytes = bytes.ok_or(Error::Refused("a step of a read is too long"))?;
            let mut data = vec![0; bytes as usize];
            let result = proxy.read_held(&message.extents, &mut data);
            if message.number == WHOLE_CALL {
                proxy.release();
            }
            result.map(|()| (0, data))
        }
        Kind::Release | Kind::Bye => {
            proxy.release();
            Ok((0, nothing()))
        }
        Kind::DropClean => proxy.drop_clean().map(|()| (0, nothing())),
        Kind::Discard => proxy.discard().map(|()| (0, nothing())),
        Kind::Size => Ok((proxy.size(), nothing())),
        Kind::Grow => {
            proxy.grow(message.number);
            Ok((0, nothing()))
        }
        Kind::PointerAdd => Ok((proxy.pointer_add(message.number), nothing())),
        Kind::PointerSet => {
            proxy.pointer_set(message.number);
            Ok((0, nothing()))
        }
        Kind::Pointer => Ok((proxy.pointer(), nothing())),
        Kind::Stats => {
            let values = proxy.stats().values();
            Ok((0, values.iter().flat_map(|v| v.to_le_bytes()).collect()))
        }
        Kind::Settle => proxy.settle_alone(message.number != 0).map(|()| (0, nothing())),
        Kind::AgreeSize => {
            proxy.agree_size(message.number);
            Ok((0, nothing()))
        }
        Kind::Hello | Kind::Reply => Err(Error::Os { doing: "understand another node", errno: libc::EPROTO }),
    }
}
