//! Moving one aligned buffer to and from several places of a disk.
//!
//! Owns: cutting the buffer. Each part is one disk operation, all run at once, and nothing is copied. Does not own:
//! which places these are (the caller).
//!
//! Invariant: pieces are ascending, do not overlap and are whole blocks.

use crate::DiskQueue;
use amphi_env::{Buf, Disk};
use futures_util::future::{join, join_all, poll_fn};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

/// Adjacent pieces are joined up to this size. A disk takes requests of about this size, and several of them keep it
/// busy.
const PIECE_MAX_BYTES: usize = 4 << 20;

/// From this size on, a payload is examined while the disk writes it.
const ASIDE_MIN_BYTES: usize = 128 << 10;
/// How often a task yields so that the operations that it has begun are submitted to the kernel: a worker submits after
/// a round of four tasks in which something large was begun.
const ASIDE_YIELDS: u32 = 5;

/// The place of a part of a buffer on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the buffer's window.
    pub at: usize,
    /// Length in bytes.
    pub len: usize,
    /// Byte address on the disk.
    pub disk: u64,
}

/// Adds a piece, or extends the last one if the new piece continues it both in the buffer and on the disk. Joined
/// pieces are one request to the disk instead of two.
pub fn push(pieces: &mut Vec<Piece>, next: Piece) {
    if let Some(last) = pieces.last_mut()
        && last.at + last.len == next.at
        && last.disk + last.len as u64 == next.disk
        && last.len + next.len <= PIECE_MAX_BYTES
    {
        last.len += next.len;
        return;
    }
    pieces.push(next);
}

/// Cuts pieces so that none is longer than `len_max`, a multiple of the block size.
pub fn cut(pieces: Vec<Piece>, len_max: usize) -> Vec<Piece> {
    let parts = |p: Piece| {
        let part = move |from| Piece { at: p.at + from, len: len_max.min(p.len - from), disk: p.disk + from as u64 };
        (0..p.len).step_by(len_max).map(part)
    };
    pieces.into_iter().flat_map(parts).collect()
}

/// A payload as whole blocks: `len` bytes with the payload `pad` bytes after their start. The payload stays where it is
/// if its buffer has the right room around it. Otherwise it is copied, and the second value is true.
pub fn widen(mut payload: Buf, pad: usize, len: u64) -> (Buf, bool) {
    let window = payload.window();
    let len = len as usize;
    let aligned = window.start.checked_sub(pad).filter(|s| s.is_multiple_of(amphi_env::buf::ALIGN));
    match aligned {
        Some(start) if start >= payload.room().start && start + len <= payload.room().end => {
            payload.set_window(start..start + len);
            (payload, false)
        }
        _ => {
            let mut copy = Buf::scratch(len);
            copy[..pad].fill(0);
            copy[pad + payload.len()..].fill(0);
            copy[pad..pad + payload.len()].copy_from_slice(&payload);
            (copy, true)
        }
    }
}

/// Writes the pieces of `buf`, all at once. On an error, every write has ended before the function returns.
pub async fn write_pieces<D: Disk>(disk: &D, buf: Buf, pieces: &[Piece]) -> io::Result<()> {
    write_each(disk, buf, pieces).await.into_iter().collect()
}

/// Writes the pieces of `buf` as `write_pieces`, and calls `look` with its bytes. For a large buffer that happens after
/// the kernel has got the writes, so that the disk does not wait for it.
pub async fn write_pieces_aside<D: Disk, T>(
    disk: &D,
    buf: Buf,
    pieces: &[Piece],
    look: impl FnOnce(&[u8]) -> T,
) -> io::Result<T> {
    if buf.len() < ASIDE_MIN_BYTES {
        let seen = look(&buf);
        return write_pieces(disk, buf, pieces).await.map(|()| seen);
    }
    let whole = Arc::new(buf);
    let Some(lent) = Buf::shared([whole.clone()]) else { unreachable!("one buffer follows itself") };
    let looking = async {
        let mut left = ASIDE_YIELDS;
        poll_fn(|cx| {
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        look(&whole)
    };
    let (written, seen) = join(write_pieces(disk, lent, pieces), looking).await;
    written.map(|()| seen)
}

/// Writes the pieces of `buf`, all at once, and returns the result of each.
pub async fn write_each<D: Disk>(disk: &D, mut buf: Buf, pieces: &[Piece]) -> Vec<io::Result<()>> {
    let whole = 0..buf.len();
    let mut writes = Vec::with_capacity(pieces.len());
    let mut at = whole.start;
    for piece in pieces {
        drop(buf.split_to(piece.at - at));
        at = piece.at + piece.len;
        let part = if at == whole.end { std::mem::take(&mut buf) } else { buf.split_to(piece.len) };
        writes.push(disk.write(piece.disk, part));
    }
    join_all(writes).await.into_iter().map(|(result, _)| result).collect()
}

/// Reads the pieces into `buf`, as many at a time as the disk's queue allows. Bytes that no piece covers become zeros.
/// On an error, every read has ended before the function returns.
pub async fn read_pieces<D: Disk>(
    queue: &Rc<DiskQueue>,
    disk: &D,
    buf: Buf,
    pieces: &[Piece],
) -> (io::Result<()>, Buf) {
    read_pieces_with(queue, disk, buf, pieces, async |_, _| ()).await
}

/// Works as `read_pieces`. `look` is called for each piece as soon as it was read, with its place in the buffer, while
/// others are still being read.
pub async fn read_pieces_with<D: Disk>(
    queue: &Rc<DiskQueue>,
    disk: &D,
    mut buf: Buf,
    pieces: &[Piece],
    look: impl AsyncFn(usize, &mut Buf),
) -> (io::Result<()>, Buf) {
    let read = async |from: u64, at: usize, part: Buf| {
        let turn = queue.turn(part.len() as u64).await;
        let (result, mut part) = disk.read(from, part).await;
        drop(turn);
        if result.is_ok() {
            look(at, &mut part).await;
        }
        (result, part)
    };
    if let [one] = pieces
        && one.len == buf.len()
    {
        return read(one.disk, 0, buf).await;
    }
    let mut parts = Vec::with_capacity(2 * pieces.len() + 1);
    let mut at = 0;
    for piece in pieces {
        parts.push((None, buf.split_to(piece.at - at)));
        parts.push((Some(piece), buf.split_to(piece.len)));
        at = piece.at + piece.len;
    }
    parts.push((None, buf));
    let read = &read;
    let reads = parts.into_iter().map(|(piece, mut part)| async move {
        match piece {
            Some(piece) => read(piece.disk, piece.at, part).await,
            None => {
                part.fill(0);
                (Ok(()), part)
            }
        }
    });
    let mut result = Ok(());
    let mut whole: Option<Buf> = None;
    for (read, part) in join_all(reads).await {
        result = result.and(read);
        whole = Some(match whole {
            Some(manager) => manager.join(part).unwrap_or_else(|_| unreachable!("a disk returns its buffer as it was")),
            None => part,
        });
    }
    (result, whole.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_env::sim::SimConfig;
    use amphi_env::{DiskMode, Env, Sim};

    /// Goal: a well placed payload is not copied, any other is, and both give the same bytes.
    #[test]
    fn payloads_are_widened_in_place() {
        let mut placed = Buf::padded(100, 5000);
        placed.fill(7);
        let (wide, copied) = widen(placed, 100, 8192);
        assert!(!copied);
        assert_eq!(wide.len(), 8192);
        let mut foreign = Buf::padded(7, 5000);
        foreign.fill(7);
        let (other, copied) = widen(foreign, 100, 8192);
        assert!(copied);
        assert_eq!(wide[100..5100], other[100..5100]);
        let (_, copied) = widen(Buf::zeroed(4096), 0, 8192);
        assert!(copied, "no room behind it");
    }

    /// Goal: the check of a payload sees the bytes that are written, for small and for large payloads; the check of a
    /// read sees each piece once, at its place; pieces are divided at the bound. Method: buffers of sizes near the
    /// bound, one of them shared, are written to two places of the disk.
    #[test]
    fn bytes_are_looked_at_on_their_way() {
        let sim = Sim::new(2, SimConfig::default());
        let env = sim.node("n");
        let done = sim.block_on(async {
            let disk = env.disk("d", DiskMode::Create(4 << 20)).await.expect("create");
            for (len, is_shared) in [(8192, false), (ASIDE_MIN_BYTES, false), (1 << 20, true)] {
                let bytes: Vec<u8> = (0..len).map(|i| (i / 4096 * 7 + i % 251) as u8).collect();
                let buf = Buf::copy_of(&bytes);
                let buf = if is_shared { Buf::shared([Arc::new(buf)]).expect("one") } else { buf };
                let half = len / 2;
                let pieces =
                    vec![Piece { at: 0, len: half, disk: 2 << 20 }, Piece { at: half, len: len - half, disk: 4096 }];
                let seen = write_pieces_aside(&*disk, buf, &pieces, <[u8]>::to_vec).await.expect("write");
                assert!(seen == bytes);
                let queue = Rc::new(DiskQueue::default());
                let parts = cut(pieces, 256 << 10);
                assert_eq!(parts.len(), if len == 1 << 20 { 4 } else { 2 });
                let looked = std::cell::RefCell::new(Vec::new());
                let look = async |at: usize, part: &mut Buf| looked.borrow_mut().push((at, part.to_vec()));
                let (result, back) = read_pieces_with(&queue, &*disk, Buf::scratch(len), &parts, look).await;
                result.expect("read");
                assert!(back[..] == bytes[..]);
                let mut looked = looked.into_inner();
                looked.sort();
                assert_eq!(
                    looked.iter().map(|(at, _)| *at).collect::<Vec<_>>(),
                    parts.iter().map(|p| p.at).collect::<Vec<_>>()
                );
                assert!(looked.into_iter().flat_map(|(_, part)| part).eq(bytes));
            }
        });
        done.expect("no deadlock");
    }

    /// Goal: a buffer with pieces anywhere is written to the disk and read back whole, holes between pieces as zeros
    /// also in used memory, and neighbours become one request. Method: pieces out of order on the disk, with gaps at
    /// start, middle and end; a second buffer of other bytes reads them.
    #[test]
    fn pieces_move_between_buffer_and_disk() {
        const B: usize = 4096;
        let sim = Sim::new(1, SimConfig::default());
        let env = sim.node("n");
        let mut pieces = Vec::new();
        for (at, blocks, disk) in [(1, 1, 5), (2, 2, 6), (5, 1, 0), (6, 1, 9)] {
            push(&mut pieces, Piece { at: at * B, len: blocks * B, disk: (disk * B) as u64 });
        }
        assert_eq!(pieces.len(), 3, "the first two are neighbours in both places");
        let done = sim.block_on(async {
            let disk = env.disk("d", DiskMode::Create(64 << 10)).await.expect("create");
            let mut buf = Buf::zeroed(8 * B);
            buf.chunks_mut(B).enumerate().for_each(|(i, block)| block.fill(i as u8 + 1));
            let queue = Rc::new(DiskQueue::default());
            write_pieces(&*disk, buf, &pieces).await.expect("write");
            let (result, back) = read_pieces(&queue, &*disk, Buf::scratch(8 * B), &pieces).await;
            result.expect("read");
            assert_eq!(back.window(), 0..8 * B);
            let blocks: Vec<u8> = back.chunks(B).map(|block| block[0]).collect();
            assert_eq!(blocks, [0, 2, 3, 4, 0, 6, 7, 0]);
            assert!(back.chunks(B).all(|block| block.iter().all(|&byte| byte == block[0])));
            let (_, whole) = read_pieces(&queue, &*disk, Buf::scratch(B), &[Piece { at: 0, len: B, disk: 0 }]).await;
            assert!(whole.iter().all(|&byte| byte == 6));
        });
        done.expect("no deadlock");
        assert_eq!(sim.disk_ops("n").writes, 3);
    }
}
