//! The rules that every implementation of the traits must keep.
//!
//! Owns: checks that are generic over `Env`; tests run them over each implementation. Does not own: faults (only the
//! simulator has them) or speed.
//!
//! Each check panics with the broken promise. `dir` must exist, be empty, and lie where disks can be made.

use crate::{Buf, Conn, Disk, DiskMode, Env, Kept, Listener, Rx, Tx, timeout};
use amphi_types::limits::BLOCK;
use futures_util::future::{join, join_all};
use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// Bytes of the disk that the checks make.
const DISK_BYTES: u64 = 1 << 20;
/// Bytes of the large payload: beyond every socket buffer and window.
const LARGE: usize = 3 << 20;
/// Bound on what must happen soon.
const SOON: Duration = Duration::from_secs(30);

/// `len` bytes that depend on `salt` and position.
fn pattern(salt: u64, len: usize) -> Buf {
    let mut buf = Buf::zeroed(len);
    for (i, byte) in buf.iter_mut().enumerate() {
        *byte = (salt.wrapping_mul(31).wrapping_add(i as u64).wrapping_mul(2_654_435_761) >> 13) as u8;
    }
    buf
}

/// Time passes in order, sleeps last long enough, `timeout` cuts, dropped sleeps do not disturb.
pub async fn timers<E: Env>(env: E) {
    let start = env.now();
    let order = Rc::new(RefCell::new(Vec::new()));
    join_all([30u64, 10, 20].map(|ms| {
        let (sleep, order) = (env.sleep(Duration::from_millis(ms)), order.clone());
        async move {
            sleep.await;
            order.borrow_mut().push(ms);
        }
    }))
    .await;
    assert_eq!(*order.borrow(), [10, 20, 30]);
    assert!(env.now().since(start) >= Duration::from_millis(30));
    assert!(timeout(&env, Duration::from_millis(1), std::future::pending::<()>()).await.is_none());
    assert_eq!(timeout(&env, SOON, async { 5 }).await, Some(5));
    env.sleep(Duration::ZERO).await;
    let wall = env.wall();
    assert!(wall.sec > 1_600_000_000 && wall.nsec < 1_000_000_000);
    assert_ne!((env.rand(), env.rand()), (env.rand(), env.rand()));
}

/// The boot id identifies one run of the machine, and does not change within it.
pub async fn boots<E: Env>(env: E) {
    let boot = env.boot_id();
    assert_ne!(boot, 0);
    env.sleep(Duration::from_millis(1)).await;
    assert_eq!((env.boot_id(), env.clone().boot_id()), (boot, boot));
}

/// Spawned tasks run beside their parent and can spawn on.
pub async fn tasks<E: Env>(env: E) {
    let (tell, told) = futures_channel::oneshot::channel();
    let count = Rc::new(Cell::new(0));
    let (inner, n) = (env.clone(), count.clone());
    env.spawn(async move {
        for _ in 0..100 {
            let n = n.clone();
            inner.spawn(async move { n.set(n.get() + 1) });
        }
        inner.sleep(Duration::from_millis(1)).await;
        // The receiver waits until then.
        let _ = tell.send(n.get());
    });
    assert_eq!(told.await, Ok(100));
    assert_eq!(count.get(), 100);
}

/// Directories: made with parents, listed sorted, missing ones reported.
pub async fn directories<E: Env>(env: E, dir: &str) {
    assert_eq!(env.list(dir).expect("list"), Vec::<String>::new());
    env.make_dir(&format!("{dir}/b/c")).expect("make");
    env.make_dir(&format!("{dir}/b/c")).expect("make again");
    env.disk(&format!("{dir}/a"), DiskMode::Create(BLOCK)).await.expect("create");
    assert_eq!(env.list(dir).expect("list"), ["a", "b"]);
    assert_eq!(env.list(&format!("{dir}/x")).expect_err("missing").kind(), ErrorKind::NotFound);
    assert!(env.free_bytes(dir).expect("free") > 0);
    assert!(env.free_bytes(&format!("{dir}/x")).is_err());
}

/// Kept memory is empty at first, keeps what was written even after its handle is gone, and can be removed. If there is
/// none, it is refused as unsupported.
pub async fn memory<E: Env>(env: E, of: &str, has_memory: bool) {
    let name = format!("test-{:016x}", env.rand());
    let kind = |r: std::io::Result<Vec<u8>>| r.expect_err("must fail").kind();
    assert_eq!(kind(env.kept(&name, of, 100)), ErrorKind::NotFound);
    env.forget(&name).expect("forget nothing");
    let kept = match env.keep(&name, of) {
        Err(e) if !has_memory => return assert_eq!(e.kind(), ErrorKind::Unsupported),
        other => other.expect("keep"),
    };
    assert_eq!(env.kept(&name, of, 100).expect("kept"), b"");
    kept.write(5, b"world").expect("write");
    kept.write(0, b"hello").expect("write");
    assert_eq!(env.kept(&name, of, 100).expect("kept"), b"helloworld");
    assert_eq!(env.kept(&name, of, 7).expect("kept"), b"hellowo");
    let mut part = [0; 6];
    kept.read(3, &mut part).expect("read");
    assert_eq!(&part, b"loworl");
    assert_eq!(kept.read(5, &mut part).expect_err("behind the end").kind(), ErrorKind::UnexpectedEof);
    assert!(kept.is_there());
    assert!(kept.room().expect("room") > 0);
    drop(kept);
    assert_eq!(env.kept(&name, of, 100).expect("kept"), b"helloworld");
    let again = env.keep(&name, of).expect("keep again");
    let kept = env.keep(&name, of).expect("and again");
    assert!(kept.is_there() && !again.is_there());
    assert_eq!(env.kept(&name, of, 100).expect("kept"), b"");
    env.forget(&name).expect("forget");
    assert_eq!(kind(env.kept(&name, of, 100)), ErrorKind::NotFound);
    assert!(!kept.is_there());
    kept.write(0, b"x").expect("write for nobody");
    assert_eq!(kind(env.kept(&name, of, 100)), ErrorKind::NotFound);
}

/// Disks: creation, bytes read back, windows, parallel operations, ends, discards, persistence, locks.
pub async fn disks<E: Env>(env: E, dir: &str) {
    let path = format!("{dir}/disk");
    let kind = |r: std::io::Result<Rc<E::Disk>>| r.map(|_| ()).expect_err("must fail").kind();
    assert_eq!(kind(env.disk(&path, DiskMode::Open).await), ErrorKind::NotFound);
    assert_eq!(kind(env.disk(&format!("{dir}/no/disk"), DiskMode::Create(BLOCK)).await), ErrorKind::NotFound);
    let disk = env.disk(&path, DiskMode::Create(DISK_BYTES)).await.expect("create");
    assert_eq!(disk.size(), DISK_BYTES);
    assert_eq!(kind(env.disk(&path, DiskMode::Create(BLOCK)).await), ErrorKind::AlreadyExists);
    assert_eq!(kind(env.disk(&path, DiskMode::Open).await), ErrorKind::WouldBlock);
    assert_eq!(kind(env.disk(&path, DiskMode::ReadOnly).await), ErrorKind::WouldBlock);

    // Fresh storage reads as zeros, whatever the buffer held.
    let (r, buf) = disk.read(0, pattern(9, 8192)).await;
    r.expect("read");
    assert!(buf.len() == 8192 && buf.iter().all(|b| *b == 0));

    // Parallel writes of several sizes, read back in parallel, also into windows with room around.
    let spans: Vec<(u64, usize)> = vec![(0, 4096), (4096, 65536), (131_072, 262_144), (DISK_BYTES - 4096, 4096)];
    join_all(spans.iter().map(|&(at, len)| {
        let disk = disk.clone();
        async move {
            let (r, buf) = disk.write(at, pattern(at, len)).await;
            r.expect("write");
            assert_eq!(buf[..], pattern(at, len)[..], "a write changed its buffer");
        }
    }))
    .await;
    join_all(spans.iter().map(|&(at, len)| {
        let disk = disk.clone();
        async move {
            let mut buf = Buf::zeroed(len + 8192);
            buf.fill(7);
            buf.set_window(4096..4096 + len);
            let (r, mut buf) = disk.read(at, buf).await;
            r.expect("read");
            assert_eq!(buf.window(), 4096..4096 + len, "a read moved the window");
            assert_eq!(buf[..], pattern(at, len)[..]);
            buf.set_window(0..len + 8192);
            assert!(buf[..4096].iter().chain(&buf[4096 + len..]).all(|b| *b == 7), "a read left its window");
        }
    }))
    .await;
    disk.sync().await.expect("sync");

    // A part is written from a window; its neighbours stay.
    let mut buf = pattern(77, 12288);
    buf.narrow(4096..8192);
    disk.write(8192, buf).await.0.expect("write");
    let (r, buf) = disk.read(4096, Buf::zeroed(12288)).await;
    r.expect("read");
    assert_eq!(buf[..4096], pattern(4096, 65536)[..4096]);
    assert_eq!(buf[4096..8192], pattern(77, 12288)[4096..8192]);
    assert_eq!(buf[8192..], pattern(4096, 65536)[8192..12288]);

    // Ends, empty operations.
    for at in [DISK_BYTES, DISK_BYTES - 4096, 1 << 62, u64::MAX - 4095] {
        let (r, buf) = disk.read(at, Buf::zeroed(8192)).await;
        assert_eq!(r.expect_err("beyond the end").kind(), ErrorKind::UnexpectedEof);
        assert_eq!(buf.len(), 8192);
        assert_eq!(disk.write(at, buf).await.0.expect_err("beyond the end").kind(), ErrorKind::InvalidInput);
        assert_eq!(disk.discard(at, 8192).await.expect_err("beyond the end").kind(), ErrorKind::InvalidInput);
    }
    disk.read(0, Buf::default()).await.0.expect("empty read");
    disk.write(0, Buf::default()).await.0.expect("empty write");

    // Discarded blocks are zeros or have their old contents; their neighbours stay.
    disk.discard(135_168, 8192).await.expect("discard");
    let (r, buf) = disk.read(131_072, Buf::zeroed(16384)).await;
    r.expect("read");
    let old = pattern(131_072, 262_144);
    for (i, (now, was)) in buf.chunks(4096).zip(old.chunks(4096)).enumerate() {
        let zero = (i == 1 || i == 2) && now.iter().all(|b| *b == 0);
        assert!(zero || now == was, "block {i} after a discard");
    }

    // Closing gives the lock back, bytes persist, readers share.
    drop(disk);
    let disk = env.disk(&path, DiskMode::Open).await.expect("open again");
    assert_eq!(disk.size(), DISK_BYTES);
    let (r, buf) = disk.read(DISK_BYTES - 4096, Buf::zeroed(4096)).await;
    r.expect("read");
    assert_eq!(buf[..], pattern(DISK_BYTES - 4096, 4096)[..]);
    drop(disk);
    let one = env.disk(&path, DiskMode::ReadOnly).await.expect("read only");
    let two = env.disk(&path, DiskMode::ReadOnly).await.expect("read only twice");
    assert_eq!(kind(env.disk(&path, DiskMode::Open).await), ErrorKind::WouldBlock);
    assert!(one.write(0, Buf::zeroed(4096)).await.0.is_err(), "a read-only disk was written");
    two.read(0, Buf::zeroed(4096)).await.0.expect("read");
}

/// Streams: small and large frames both ways, split and joined reads, padded buffers, silence, closing.
pub async fn streams<E: Env>(env: E, addr: &str) {
    let listener = env.listen(addr).await.expect("listen");
    let (near, far) = join(env.dial(&listener.local_addr()), listener.accept()).await;
    let (near, far) = (near.expect("dial"), far.expect("accept"));
    assert!(!near.peer().is_empty() && !far.peer().is_empty());
    let ((mut tx, mut rx), (mut far_tx, mut far_rx)) = (near.split(), far.split());

    // A frame is read in three parts, the third into a padded window.
    let (r, head, payload) = tx.send(pattern(1, 100), Some(pattern(2, 5000))).await;
    r.expect("send");
    assert_eq!((head[..] == pattern(1, 100)[..], payload.map(|p| p.len())), (true, Some(5000)));
    let (r, got) = far_rx.recv_exact(Buf::zeroed(60)).await;
    r.expect("receive");
    assert_eq!(got[..], pattern(1, 100)[..60]);
    let (r, got) = far_rx.recv_exact(Buf::zeroed(40)).await;
    r.expect("receive");
    assert_eq!(got[..], pattern(1, 100)[60..]);
    let (r, mut got) = far_rx.recv_exact(Buf::padded(1234, 5000)).await;
    r.expect("receive");
    assert_eq!(got.window(), 1234..6234);
    assert_eq!(got[..], pattern(2, 5000)[..]);
    got.set_window(0..1234);
    assert!(got.iter().all(|b| *b == 0), "a receive left its window");

    // Several frames, read as one; empty parts send nothing.
    for i in 0..4 {
        tx.send(pattern(i, 10), (i % 2 == 0).then(Buf::default)).await.0.expect("send");
    }
    tx.send(Buf::default(), Some(pattern(4, 10))).await.0.expect("send");
    tx.send(Buf::default(), None).await.0.expect("send");
    let (r, got) = far_rx.recv_exact(Buf::zeroed(50)).await;
    r.expect("receive");
    for i in 0..5u64 {
        assert_eq!(got[i as usize * 10..][..10], pattern(i, 10)[..]);
    }
    far_rx.recv_exact(Buf::default()).await.0.expect("empty receive");

    // Large payloads in both directions at once, larger than a sender may have in flight.
    let send = |mut tx: <E::Conn as Conn>::Tx, salt| async move {
        tx.send(pattern(salt, 77), Some(pattern(salt + 1, LARGE))).await.0.expect("send");
        tx
    };
    let recv = |mut rx: <E::Conn as Conn>::Rx, salt| async move {
        let (r, got) = rx.recv_exact(Buf::zeroed(77)).await;
        r.expect("receive");
        assert_eq!(got[..], pattern(salt, 77)[..]);
        // Into unaligned memory, in two reads.
        let want = pattern(salt + 1, LARGE);
        for (from, len) in [(0, LARGE - 100_001), (LARGE - 100_001, 100_001)] {
            let (r, got) = rx.recv_exact(Buf::padded(16, len)).await;
            r.expect("receive");
            assert!(got[..] == want[from..from + len], "bytes of a large payload differ");
        }
        rx
    };
    let ((sent, far_sent), (got, far_got)) =
        join(join(send(tx, 10), send(far_tx, 20)), join(recv(rx, 20), recv(far_rx, 10))).await;
    (tx, far_tx, rx, far_rx) = (sent, far_sent, got, far_got);

    // No byte arrives that was not sent, so a waiting receive keeps waiting.
    assert!(timeout(&env, Duration::from_millis(5), rx.recv_exact(Buf::zeroed(1))).await.is_none());
    // That receive was dropped, so this side is closed; the other side reads what was sent before, and then the end.
    tx.send(pattern(30, 10), None).await.0.expect("send");
    drop(tx);
    drop(rx);
    let (r, got) = far_rx.recv_exact(Buf::zeroed(10)).await;
    r.expect("receive");
    assert_eq!(got[..], pattern(30, 10)[..]);
    let (r, got) = timeout(&env, SOON, far_rx.recv_exact(Buf::zeroed(10))).await.expect("the end is noticed");
    assert!(matches!(r.expect_err("closed").kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset));
    assert_eq!(got.len(), 10);
    let refused = timeout(&env, SOON, async { while far_tx.send(pattern(1, 65536), None).await.0.is_ok() {} });
    refused.await.expect("sending to a closed end fails");
}

/// A partial message before the end is an error, not a short read.
pub async fn half_message<E: Env>(env: E, addr: &str) {
    let listener = env.listen(addr).await.expect("listen");
    let (near, far) = join(env.dial(&listener.local_addr()), listener.accept()).await;
    let (mut tx, _) = near.expect("dial").split();
    let (_, mut rx) = far.expect("accept").split();
    tx.send(pattern(1, 60_000), None).await.0.expect("send");
    drop(tx);
    let (r, _) = timeout(&env, SOON, rx.recv_exact(Buf::zeroed(60_001))).await.expect("the end is noticed");
    assert_eq!(r.expect_err("half a message").kind(), ErrorKind::UnexpectedEof);
}

/// A connection that is given up and taken over again loses no byte, received ahead or not. A connection that nobody
/// takes over is closed.
pub async fn moved<E: Env>(env: E, addr: &str) {
    let listener = env.listen(addr).await.expect("listen");
    let local = listener.local_addr();
    let (near, far) = join(env.dial(&local), listener.accept()).await;
    let (mut near_tx, mut near_rx) = near.expect("dial").split();
    let far = far.expect("accept");
    let (peer, cred, network) = (far.peer(), far.peer_cred(), far.is_network());
    let (mut tx, mut rx) = far.split();
    near_tx.send(pattern(1, 300), None).await.0.expect("send");
    let (r, got) = rx.recv_exact(Buf::zeroed(100)).await;
    r.expect("received");
    assert_eq!(got[..], pattern(1, 300)[..100]);
    // The rest may have been received ahead.
    near_tx.send(pattern(2, 50), None).await.0.expect("send");
    let taken = env.adopt(E::Conn::detach(tx, rx).expect("nothing is under way"));
    assert_eq!((taken.peer(), taken.peer_cred(), taken.is_network()), (peer, cred, network));
    (tx, rx) = taken.split();
    let (r, got) = rx.recv_exact(Buf::zeroed(250)).await;
    r.expect("received");
    assert_eq!((&got[..200], &got[200..]), (&pattern(1, 300)[100..], &pattern(2, 50)[..]));
    tx.send(pattern(3, 70), None).await.0.expect("send");
    let (r, got) = near_rx.recv_exact(Buf::zeroed(70)).await;
    r.expect("received");
    assert_eq!(got[..], pattern(3, 70)[..]);
    drop(E::Conn::detach(tx, rx).expect("nothing is under way"));
    let (r, _) = timeout(&env, SOON, near_rx.recv_exact(Buf::zeroed(1))).await.expect("the end is noticed");
    assert!(matches!(r.expect_err("closed").kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset));
}

/// Listening and dialing: refusals, addresses in use, bad addresses, accepts that were dropped.
pub async fn listening<E: Env>(env: E, addr: &str) {
    for bad in ["", "nonsense", "udp:a:1", "tcp:host", "tcp:host:99999", "unix:"] {
        assert_eq!(env.dial(bad).await.map(|_| ()).expect_err("bad").kind(), ErrorKind::InvalidInput, "{bad}");
        assert_eq!(env.listen(bad).await.map(|_| ()).expect_err("bad").kind(), ErrorKind::InvalidInput, "{bad}");
    }
    let nobody = |r: std::io::Result<E::Conn>| {
        let kind = r.map(|_| ()).expect_err("nobody listens").kind();
        assert!(matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::NotFound), "{kind:?}");
    };
    let listener = env.listen(addr).await.expect("listen");
    let local = listener.local_addr();
    assert!(!local.ends_with(":0"), "port 0 is resolved");

    // If an accept is dropped, before or after a connection came, no connection is lost.
    assert!(timeout(&env, Duration::from_millis(2), listener.accept()).await.is_none());
    // The refused listener may have knocked to see whether the address is served.
    assert_eq!(env.listen(&local).await.map(|_| ()).expect_err("in use").kind(), ErrorKind::AddrInUse);
    let mut dialed = Vec::new();
    for i in 0..3u64 {
        let (mut tx, rx) = env.dial(&local).await.expect("dial").split();
        tx.send(pattern(i, 20), None).await.0.expect("send");
        dialed.push((tx, rx));
    }
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let Some(conn) = timeout(&env, Duration::from_millis(20), listener.accept()).await else { continue };
        let (tx, mut rx) = conn.expect("accept").split();
        let (r, got) = rx.recv_exact(Buf::zeroed(20)).await;
        if r.is_err() {
            continue;
        }
        seen.extend((0..3u64).filter(|i| got[..] == pattern(*i, 20)[..]));
        dialed.push((tx, rx));
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2]);

    // After the close, the address is free again.
    drop(listener);
    nobody(env.dial(&local).await);
    let again = env.listen(&local).await;
    drop(again.expect("listen again"));
}
