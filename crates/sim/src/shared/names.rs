//! Names that tasks fight for, listings meanwhile, directories moved about.

use super::{KEPT, MOVED, Sharer, Told};
use crate::dice::Dice;
use crate::op::Name;
use crate::perform::list;
use amphi_client::OpenFlags;
use amphi_types::{Errno, Ino};
use amphi_wire::RenameMode;
use std::collections::BTreeMap;

/// The certain holders of names.
#[derive(Clone, Debug, Default)]
pub struct Holdings {
    held: BTreeMap<Name, usize>,
}

impl Holdings {
    fn take(&mut self, name: &[u8], task: usize) -> Told {
        match self.held.insert(name.to_vec(), task) {
            None => Ok(()),
            Some(other) => {
                let name = String::from_utf8_lossy(name);
                Err(format!("task {task} made {name} exclusively while task {other} had it"))
            }
        }
    }

    fn of(&self, task: usize) -> Vec<Name> {
        self.held.iter().filter(|(_, t)| **t == task).map(|(n, _)| n.clone()).collect()
    }

    /// The errors of a listing when all tasks are idle.
    pub fn check(&self, names: &[(Name, Ino)]) -> Vec<String> {
        let there: Vec<&Name> = names.iter().map(|(n, _)| n).filter(|n| !n.starts_with(b"kept")).collect();
        let want: Vec<&Name> = self.held.keys().collect();
        if there == want { Vec::new() } else { vec![format!("shared names are {there:?}, should be {want:?}")] }
    }

    /// The certainly held names that are missing in a listing after a crash.
    pub fn missing(&self, names: &[(Name, Ino)]) -> Vec<String> {
        let gone = self.held.iter().filter(|(held, _)| !names.iter().any(|(n, _)| n == *held));
        gone.map(|(n, task)| format!("shared name {}, which task {task} had, is gone", String::from_utf8_lossy(n)))
            .collect()
    }
}

impl Sharer {
    /// Makes a name exclusively, moves one to another, or gives one up.
    pub(super) async fn fight(&mut self, dice: &mut Dice) -> Told {
        let (dir, mine) = {
            let a = self.area.borrow();
            (a.fought.dir, a.holdings.of(self.task))
        };
        let name = format!("n{}", dice.below(5)).into_bytes();
        let shown = String::from_utf8_lossy(&name).into_owned();
        let old = dice.pick(&mine).cloned();
        let ctx = self.ctx();
        match (dice.below(4), old) {
            (0 | 1, Some(old)) => {
                self.area.borrow_mut().holdings.held.remove(&old);
                self.note(format!("give up {}", String::from_utf8_lossy(&old)));
                let gone = self.client.unlink(&ctx, dir, &old).await;
                gone.map_err(|e| format!("unlink of {}, which it has: {e}", String::from_utf8_lossy(&old)))?;
            }
            (2, Some(old)) => {
                // From now on the name may be free.
                self.area.borrow_mut().holdings.held.remove(&old);
                let moved = self.client.rename(&ctx, (dir, &old), (dir, &name), RenameMode::NoReplace).await;
                self.note(format!("move {} to {shown}: {moved:?}", String::from_utf8_lossy(&old)));
                match moved {
                    Ok(()) => self.area.borrow_mut().holdings.take(&name, self.task)?,
                    Err(Errno::Exist) => self.area.borrow_mut().holdings.take(&old, self.task)?,
                    Err(e) => return Err(format!("rename to {shown}: {e}")),
                }
            }
            (way, _) => {
                let flags = OpenFlags { exclusive: true, ..OpenFlags::WRITE };
                let made = if way == 3 {
                    self.client.symlink(&ctx, dir, &name, b"x").await.map(drop)
                } else {
                    self.client.create(&ctx, dir, &name, 0o600, flags).await.map(drop)
                };
                self.note(format!("make {shown}: {made:?}"));
                match made {
                    Ok(()) => self.area.borrow_mut().holdings.take(&name, self.task)?,
                    Err(Errno::Exist) => {}
                    Err(e) => return Err(format!("making {shown}: {e}")),
                }
            }
        }
        Ok(())
    }

    /// Lists the names while others are made and removed (Promise S7).
    pub(super) async fn listing(&mut self, dice: &mut Dice) -> Told {
        let dir = self.area.borrow().fought.dir;
        let (max, plus) = (1 + dice.below(6) as u32, dice.one_in(2));
        let names = list(&self.client, &self.ctx(), dir, max, plus).await.map_err(|e| format!("listing: {e}"))?;
        for i in 0..KEPT {
            let kept = format!("kept{i}").into_bytes();
            let n = names.iter().filter(|(name, _)| *name == kept).count();
            if n != 1 {
                return Err(format!("a listing by {max} shows kept{i} {n} times"));
            }
        }
        Ok(())
    }

    /// Moves one directory into another, while other tasks do the opposite.
    pub(super) async fn move_about(&mut self, dice: &mut Dice) -> Told {
        let shown = MOVED[dice.below(MOVED.len() as u64) as usize];
        let (top, mut places, lies_in) = {
            let a = self.area.borrow();
            (
                a.fought.move_dir,
                a.fought.moved.keys().copied().collect::<Vec<Ino>>(),
                a.fought.lies_in.get(shown).copied(),
            )
        };
        places.push(top);
        let (from, to) = (*dice.pick(&places).unwrap_or(&top), *dice.pick(&places).unwrap_or(&top));
        // Mostly from where it was last moved to: others may have moved it since.
        let from = lies_in.filter(|_| !dice.one_in(5)).unwrap_or(from);
        let name = shown.as_bytes();
        let moved = self.client.rename(&self.ctx(), (from, name), (to, name), RenameMode::NoReplace).await;
        self.note(format!("move {from}/{shown} to {to}: {moved:?}"));
        match moved {
            Ok(()) => {
                self.area.borrow_mut().fought.lies_in.insert(shown, to);
                Ok(())
            }
            Err(Errno::NoEnt | Errno::Inval | Errno::Exist) => Ok(()),
            Err(e) => Err(format!("moving {shown} from {from} to {to}: {e}")),
        }
    }
}
