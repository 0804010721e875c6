//! Moving one aligned buffer to and from several places of a disk.
//!
//! A `Buf` has one owner, so just one disk operation can work in it at a time: the largest piece does, the others go
//! through buffers of their own, all at once. Mostly there is one piece, and nothing is copied.

use amphi_env::{Buf, Disk};
use futures_util::future::{join, join_all};
use std::io;

/// Where a part of a buffer lies on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the buffer's window.
    pub at: usize,
    /// Bytes.
    pub len: usize,
    /// Byte address on the disk.
    pub disk: u64,
}

fn largest(pieces: &[Piece]) -> Option<usize> {
    (0..pieces.len()).max_by_key(|&i| pieces[i].len)
}

/// A payload as whole blocks: `len` bytes with the payload `pad` bytes after their start. The payload stays where it
/// is if the room around it is right; otherwise it is copied, and the second value says so.
pub fn widen(mut payload: Buf, pad: usize, len: u64) -> (Buf, bool) {
    let window = payload.window();
    let len = len as usize;
    let aligned = window.start.checked_sub(pad).filter(|s| s.is_multiple_of(amphi_env::buf::ALIGN));
    match aligned {
        Some(start) if start + len <= payload.capacity() => {
            payload.set_window(start..start + len);
            (payload, false)
        }
        _ => {
            let mut copy = Buf::zeroed(len);
            copy[pad..pad + payload.len()].copy_from_slice(&payload);
            (copy, true)
        }
    }
}

/// Writes the pieces of `buf`, all at once. On an error every write has ended.
pub async fn write_pieces<D: Disk>(disk: &D, mut buf: Buf, pieces: &[Piece]) -> io::Result<()> {
    let Some(big) = largest(pieces) else { return Ok(()) };
    let others: Vec<(u64, Buf)> = pieces
        .iter()
        .enumerate()
        .filter(|(i, _)| *i != big)
        .map(|(_, p)| (p.disk, Buf::copy_of(&buf[p.at..p.at + p.len])))
        .collect();
    let piece = pieces[big];
    buf.narrow(piece.at..piece.at + piece.len);
    if others.is_empty() {
        return disk.write(piece.disk, buf).await.0;
    }
    let rest = join_all(others.into_iter().map(|(at, part)| disk.write(at, part)));
    let ((result, _), rest) = join(disk.write(piece.disk, buf), rest).await;
    rest.into_iter().map(|(r, _)| r).fold(result, |a, b| a.and(b))
}

/// Reads the pieces into `buf`, all at once; what no piece covers stays. On an error every read has ended.
pub async fn read_pieces<D: Disk>(disk: &D, mut buf: Buf, pieces: &[Piece]) -> (io::Result<()>, Buf) {
    let Some(big) = largest(pieces) else { return (Ok(()), buf) };
    let window = buf.window();
    let piece = pieces[big];
    buf.narrow(piece.at..piece.at + piece.len);
    let others = pieces.iter().enumerate().filter(|(i, _)| *i != big).map(|(_, p)| async move {
        let (result, part) = disk.read(p.disk, Buf::zeroed(p.len)).await;
        (result, part, p.at)
    });
    let ((mut result, mut buf), others) = join(disk.read(piece.disk, buf), join_all(others)).await;
    buf.set_window(window);
    for (r, part, at) in others {
        match r {
            Ok(()) => buf[at..at + part.len()].copy_from_slice(&part),
            Err(e) => result = result.and(Err(e)),
        }
    }
    (result, buf)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
