//! The file of cells: all mounts make reads, writes, appends, holes and truncates of whole cells, which `linear`
//! checks.
//!
//! Owns: how cells lie in a file (`Row`), the calls. Does not own: which histories are right (`Linear`).
//!
//! Cells have one length, in most runs not one of blocks, pages or stripes. A crash of a mount loses its data that was
//! not written back, so the history ends there and a new file begins; each remaining byte must have been written there.

use super::{SharedArea, Sharer, Told};
use crate::dice::Dice;
use crate::linear::{CellOp, Cells, Linear};
use crate::perform::{read, write};
use amphi_client::{Client, Ctx, Fallocate, OpenFile, OpenFlags};
use amphi_types::{Ino, Result, SetAttr};
use std::sync::Arc;

/// Lengths of a cell, bytes.
const LENGTHS: [u64; 6] = [1000, 4096, 5003, 16_384, 65_536, 70_001];
/// Most cells that one call covers.
const SPAN: u64 = 6;
/// More cells than this are cut off.
const MANY: usize = 30;

/// How cells lie in a file.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The file.
    pub ino: Ino,
    /// Bytes of a cell.
    pub len: u64,
}

/// The file and its history since the last crash of a mount.
pub struct CellFile {
    /// Whether tasks use the file.
    pub on: bool,
    row: Row,
    made: u64,
    linear: Linear,
}

impl Default for CellFile {
    fn default() -> CellFile {
        CellFile { on: false, row: Row { ino: Ino::ROOT, len: LENGTHS[0] }, made: 0, linear: Linear::default() }
    }
}

impl CellFile {
    /// A file that tasks use, with cells of a length by chance.
    pub fn drawn(dice: &mut Dice) -> CellFile {
        let mut cells = CellFile { on: true, ..CellFile::default() };
        cells.row.len = LENGTHS[dice.below(LENGTHS.len() as u64) as usize];
        cells
    }
}

impl Row {
    fn bytes(&self, n: usize, tag: u64) -> Vec<u8> {
        let cell = tag.to_le_bytes().into_iter().cycle().take(self.len as usize);
        let cell: Vec<u8> = cell.collect();
        cell.repeat(n)
    }

    /// The cells that bytes make up.
    ///
    /// Errors: a cell that is not of one write.
    pub fn cells(&self, bytes: &[u8]) -> Told<Cells> {
        if !(bytes.len() as u64).is_multiple_of(self.len) {
            return Err(format!("{} bytes end inside a cell of {}", bytes.len(), self.len));
        }
        let mut cells = Cells::default();
        for (i, cell) in bytes.chunks(self.len as usize).enumerate() {
            let mut tag = [0; 8];
            tag.copy_from_slice(&cell[..8]);
            if let Some(at) = cell.iter().zip(tag.into_iter().cycle()).position(|(a, b)| *a != b) {
                let (before, behind) =
                    (u64::from_le_bytes(tag), cell[at..].iter().take(16).copied().collect::<Vec<u8>>());
                return Err(format!("cell {i} of them changes at byte {at}, behind {before:x}, to {behind:x?}"));
            }
            cells.0.push(u64::from_le_bytes(tag));
        }
        Ok(cells)
    }

    /// Judges the bytes that a crash has left: each is zero, or of a write to its cell that had begun.
    ///
    /// Errors: the first that is not.
    pub fn judge_left(&self, bytes: &[u8], linear: &Linear) -> Told {
        for (cell, bytes) in bytes.chunks(self.len as usize).enumerate() {
            let tags: Vec<[u8; 8]> = linear.ever(cell).map(u64::to_le_bytes).collect();
            let bad = bytes.iter().enumerate().find(|(i, b)| **b != 0 && !tags.iter().any(|tag| tag[i % 8] == **b));
            if let Some((at, byte)) = bad {
                return Err(format!("byte {at} of cell {cell}, {byte:02x}, was never written there"));
            }
        }
        Ok(())
    }

    /// Makes a call. `end_file` is open to append; with `by_open` a truncate uses the open file.
    ///
    /// Errors: those of the call, or a result that no call may have.
    pub async fn perform(
        &self,
        (client, ctx): (&Client, &Ctx),
        op: &CellOp,
        (file, end_file): (&Arc<OpenFile>, &Arc<OpenFile>),
        direct: bool,
        by_open: bool,
    ) -> Told<Cells> {
        let (len, said) = (self.len, |e: amphi_types::Errno| e.to_string());
        match *op {
            CellOp::Write { n, tag, .. } | CellOp::Append { n, tag } => {
                let bytes = self.bytes(n, tag);
                let (file, offset) = match *op {
                    CellOp::Write { at, .. } => (file, at as u64 * len),
                    _ => (end_file, 0),
                };
                let written = write(client, ctx, file, offset, &bytes, direct).await.map_err(said)?;
                if written != bytes.len() as u64 {
                    return Err(format!("{written} of {} bytes", bytes.len()));
                }
                Ok(Cells::default())
            }
            CellOp::Store { .. } | CellOp::AppendTold { .. } => Err("this needs a kernel in front of the mount".into()),
            CellOp::Read { at, n } => {
                let bytes = read(client, ctx, file, at as u64 * len, n as u64 * len, direct).await.map_err(said)?;
                self.cells(&bytes)
            }
            CellOp::Zero { at, n } => {
                let (at, n, mode) = (at as u64 * len, n as u64 * len, Fallocate::PunchHole);
                client.fallocate(ctx, file, mode, at, n).await.map_err(said)?;
                Ok(Cells::default())
            }
            CellOp::Resize { n } => {
                let set = SetAttr { size: Some(n as u64 * len), ..SetAttr::default() };
                let open = by_open.then(|| file.clone());
                client.setattr(ctx, self.ino, set, open.as_ref()).await.map_err(said)?;
                Ok(Cells::default())
            }
            CellOp::Size => {
                let size = client.getattr(ctx, self.ino).await.map_err(said)?.size;
                if !size.is_multiple_of(len) {
                    return Err(format!("{size} bytes"));
                }
                Ok(Cells(vec![size / len]))
            }
        }
    }
}

/// Makes a new file, with an empty history.
pub(super) async fn new_file(client: &Client, area: &SharedArea) -> Result<()> {
    if !area.borrow().cells.on {
        return Ok(());
    }
    let (root, name) = {
        let mut a = area.borrow_mut();
        a.cells.made += 1;
        (a.root, format!("cells{}", a.cells.made))
    };
    let ino = client.create(&Ctx::root(), root, name.as_bytes(), 0o644, OpenFlags::WRITE).await?.attr.ino;
    let mut a = area.borrow_mut();
    (a.cells.row.ino, a.cells.linear) = (ino, Linear::default());
    Ok(())
}

/// Judges the whole file when all calls have returned.
pub(super) async fn check(client: &Client, area: &SharedArea) -> Told {
    if !area.borrow().cells.on {
        return Ok(());
    }
    let row = area.borrow().cells.row;
    let bytes = super::whole(client, row.ino).await?;
    let all = row.cells(&bytes)?;
    let cells = &mut area.borrow_mut().cells;
    let call = cells.linear.begin(CellOp::Read { at: 0, n: 1 << 20 });
    cells.linear.end(call, &all)
}

/// Judges the file that a crash of a mount has left.
pub(super) async fn crashed(client: &Client, area: &SharedArea) -> Told {
    if !area.borrow().cells.on {
        return Ok(());
    }
    let row = area.borrow().cells.row;
    let bytes = super::whole(client, row.ino).await?;
    row.judge_left(&bytes, &area.borrow().cells.linear)
}

impl Sharer {
    async fn cell_file(&mut self, dice: &mut Dice, append: bool) -> Told<Arc<OpenFile>> {
        let at = usize::from(append);
        if let Some(file) = &self.cells[at] {
            return Ok(file.clone());
        }
        let ino = self.area.borrow().cells.row.ino;
        let flags = OpenFlags { append, direct: dice.one_in(3), dsync: dice.one_in(8), ..OpenFlags::READ_WRITE };
        Ok(self.cells[at].insert(self.open(ino, flags).await?).clone())
    }

    fn draw_op(&self, dice: &mut Dice) -> CellOp {
        let mut a = self.area.borrow_mut();
        let most = a.cells.linear.contents().iter().map(Vec::len).max().unwrap_or(0);
        let (at, n) = (dice.below(most as u64 + 2) as usize, dice.within(1..SPAN + 1) as usize);
        if most > MANY {
            return CellOp::Resize { n: dice.below(4) as usize };
        }
        match dice.weighted(&[5, 2, 6, 1, 2, 1]) {
            0 => CellOp::Write { at, n, tag: a.tag() },
            1 => CellOp::Append { n: n.min(2), tag: a.tag() },
            2 => CellOp::Read { at, n },
            3 => CellOp::Resize { n: at },
            5 => CellOp::Zero { at, n },
            _ => CellOp::Size,
        }
    }

    /// One call on the cells.
    pub(super) async fn cell_call(&mut self, dice: &mut Dice) -> Told {
        let file = self.cell_file(dice, false).await?;
        let end_file = self.cell_file(dice, true).await?;
        let (op, direct, by_open) = (self.draw_op(dice), dice.one_in(4), dice.one_in(2));
        let (row, call) = {
            let cells = &mut self.area.borrow_mut().cells;
            (cells.row, cells.linear.begin(op.clone()))
        };
        let ino = row.ino;
        self.note(format!("cells of {}: {op:x?}{} ...", row.len, if direct { " direct" } else { "" }));
        let returned = row.perform((&self.client, &self.ctx()), &op, (&file, &end_file), direct, by_open).await;
        let returned = returned.map_err(|e| format!("cells {ino}: {op:x?}: {e}"))?;
        self.note(format!("  ... {op:x?} gave {:x?}", returned.0));
        let judged = self.area.borrow_mut().cells.linear.end(call, &returned);
        judged.map_err(|e| format!("cells {ino} are not one file: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: after a crash bytes of other cells, and bytes that were never written, are distinguished from those that
    /// may be there. Method: two cells, one written twice, one appended; mixtures, zeros, and each other's bytes.
    #[test]
    fn what_a_crash_leaves_is_judged() {
        let (row, mut linear) = (Row { ino: Ino::ROOT, len: 20 }, Linear::default());
        linear.begin(CellOp::Write { at: 0, n: 1, tag: 0x0101 });
        linear.begin(CellOp::Write { at: 0, n: 1, tag: 0x0202 });
        linear.begin(CellOp::Write { at: 1, n: 1, tag: 0x0303 });
        linear.begin(CellOp::Append { n: 1, tag: 0x0404 });
        let (a, b, c, d) = (row.bytes(1, 0x0101), row.bytes(1, 0x0202), row.bytes(1, 0x0303), row.bytes(1, 0x0404));
        let mixed = [&a[..7], &b[7..12], &[0; 3], &d[15..]].concat();
        for good in [[&a[..], &c], [&mixed, &d], [&[0; 20], &c[..4]]] {
            assert_eq!(row.judge_left(&good.concat(), &linear), Ok(()));
        }
        for bad in [[&c[..], &c], [&a, &b], [&a, &[5; 20]]] {
            assert!(row.judge_left(&bad.concat(), &linear).is_err(), "{bad:?}");
        }
    }
}
