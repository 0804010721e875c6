//! Locks of applications that tasks take on the shared file, on whichever mount each of them is.
//!
//! Owns: the known holders of locks, and whether an answer agrees with them. Does not own: the bytes of the file.
//!
//! A lock is possibly held from the begin of the call that takes it to the end of the call that releases it, and
//! certainly held from the end of the first to the begin of the second. It is a wrong answer (Promise S19) if a task
//! gets a lock while another task certainly holds a conflicting one, or is refused a lock while no task possibly holds
//! one. A restart of a server changes no claim (Promise S21), and a crash of a mount ends its claims (Promise S20).
//!
//! Circles. In some runs a task that has `fcntl` locks waits for more. If that closes a circle of waiting tasks, one of
//! them must get an error, or none of them ever continues; no task may get the error if there cannot have been a
//! circle. Such runs have no `flock`, because cycles of it are not detected. In other runs a waiting task holds no lock
//! for which others wait.

use super::{Sharer, Told};
use crate::dice::Dice;
use crate::plant;
use amphi_client::{FileLockFamily, FileLockOwner, FileLockSpec, Interrupt, LockMode, OpenFlags};
use amphi_env::Env;
use amphi_types::{ByteRange, Errno, limits};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Parts into which the file is divided for `fcntl` locks; the last one reaches to the end of every file.
const PARTS: u64 = 4;
/// Bytes of a part.
const PART_BYTES: u64 = 1000;
/// Time of what has not happened.
const NEVER: u64 = u64::MAX;
/// For this long an interrupted caller may gain and lose a lock without knowing it.
const BEHIND_NS: u64 = 60_000_000_000;

/// A lock on one part, as far as it is known.
#[derive(Clone, Debug)]
struct Claim {
    task: usize,
    family: FileLockFamily,
    part: u64,
    mode: LockMode,
    possible: Range<u64>,
    certain: Range<u64>,
}

/// The requested lock.
#[derive(Clone, Debug)]
struct Wish {
    task: usize,
    family: FileLockFamily,
    parts: Range<u64>,
    mode: LockMode,
}

impl Wish {
    fn is_of(&self, claim: &Claim) -> bool {
        claim.task == self.task && claim.family == self.family && self.parts.contains(&claim.part)
    }

    fn conflicts(&self, claim: &Claim) -> bool {
        let shared = self.mode == LockMode::Read && claim.mode == LockMode::Read;
        claim.task != self.task && claim.family == self.family && self.parts.contains(&claim.part) && !shared
    }

    fn range(&self) -> ByteRange {
        match self.parts.end {
            PARTS => ByteRange::new(self.parts.start * PART_BYTES, limits::FILE_MAX),
            end => ByteRange::new(self.parts.start * PART_BYTES, end * PART_BYTES),
        }
    }
}

/// A task waits, or waited, for the lock that it wishes to have.
#[derive(Clone, Debug)]
struct Wait {
    wish: Wish,
    during: Range<u64>,
}

/// The present and past locks of tasks.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    all: Vec<Claim>,
    waits: Vec<Wait>,
    /// Waits that would have closed a circle.
    pub circles: u64,
}

impl Claims {
    /// The mounts are gone, and all their locks with them.
    pub(super) fn crashed(&mut self) {
        *self = Claims { circles: self.circles, ..Claims::default() };
    }

    /// The task requests a lock, or releases one: its claims to these parts are not certain meanwhile.
    fn begin(&mut self, wish: &Wish, now: u64) {
        for claim in self.all.iter_mut().filter(|c| wish.is_of(c) && c.certain.end == NEVER) {
            claim.certain.end = now;
        }
    }

    /// Works as `begin`, for a lock.
    fn ask(&mut self, wish: &Wish, now: u64) {
        self.begin(wish, now);
        let Wish { task, family, mode, .. } = *wish;
        let of = |part| Claim { task, family, part, mode, possible: now..NEVER, certain: NEVER..NEVER };
        self.all.extend(wish.parts.clone().map(of));
    }

    /// The lock was granted.
    ///
    /// Errors: another task has a conflicting one.
    fn granted(&mut self, wish: &Wish, now: u64) -> Told {
        for claim in self.all.iter_mut().filter(|c| wish.is_of(c) && c.possible.end == NEVER) {
            match claim.certain.start {
                NEVER => claim.certain = now..NEVER,
                // The task's former claim, which this lock replaced.
                _ => claim.possible.end = now,
            }
        }
        match self.all.iter().find(|c| wish.conflicts(c) && c.certain.start != NEVER && c.certain.end == NEVER) {
            Some(other) => Err(format!("{wish:?} was granted although there is {other:?}")),
            None => Ok(()),
        }
    }

    /// The lock requested at `begin` was refused, or its caller interrupted: then it may be there until `gone`.
    ///
    /// Errors: refused, but no other task can have had a conflicting one.
    fn not_granted(&mut self, wish: &Wish, begin: u64, now: u64, gone: Option<u64>) -> Told {
        // A flock that is converted is given up first.
        let keeps = wish.family != FileLockFamily::Flock;
        for claim in self.all.iter_mut().filter(|c| wish.is_of(c) && c.possible.end == NEVER) {
            match claim.certain.start {
                NEVER => claim.possible.end = gone.unwrap_or(now),
                _ if keeps => claim.certain.end = NEVER,
                _ => claim.possible.end = now,
            }
        }
        let there = |c: &&Claim| wish.conflicts(c) && c.possible.start <= now && c.possible.end >= begin;
        match self.all.iter().find(there) {
            None if gone.is_none() => Err(format!("{wish:?} was refused although nobody has a lock")),
            _ => Ok(()),
        }
    }

    /// No claim to the parts remains.
    fn given_up(&mut self, wish: &Wish, now: u64) {
        for claim in self.all.iter_mut().filter(|c| wish.is_of(c) && c.possible.end == NEVER) {
            claim.possible.end = now;
        }
    }

    /// The result of a query from `begin` to `now` for conflicting locks.
    ///
    /// Errors: it cannot be.
    fn looked(&self, wish: &Wish, begin: u64, now: u64, found: bool) -> Told {
        // Events at one instant have no order: a lock that was granted at `begin` may have been granted after the
        // query.
        let all_the_while = |c: &Claim| c.certain.start < begin && c.certain.end == NEVER;
        let at_all = |c: &Claim| c.possible.start <= now && c.possible.end >= begin;
        let in_the_way = || self.all.iter().filter(|c| wish.conflicts(c));
        match found {
            false if in_the_way().any(all_the_while) => Err(format!("nothing is in the way of {wish:?}")),
            true if !in_the_way().any(at_all) => Err(format!("something is in the way of {wish:?}")),
            _ => Ok(()),
        }
    }

    fn has(&self, task: usize) -> bool {
        self.all.iter().any(|c| c.task == task && c.possible.end == NEVER)
    }

    /// Returns whether the wish makes some of the task's possibly exclusive claims shared. Waits that do and are
    /// interrupted while a server is restarted are not judged: docs/SEMANTICS.md describes their possible results.
    fn weakens(&self, wish: &Wish) -> bool {
        let own = |c: &Claim| wish.is_of(c) && c.possible.end == NEVER && c.mode == LockMode::Write;
        wish.mode == LockMode::Read && self.all.iter().any(own)
    }

    fn begin_wait(&mut self, wish: &Wish, now: u64) {
        self.waits.push(Wait { wish: wish.clone(), during: now..NEVER });
    }

    fn end_wait(&mut self, task: usize, now: u64) {
        let ended = |w: &&mut Wait| w.wish.task == task && w.during.end == NEVER;
        self.waits.iter_mut().filter(ended).for_each(|w| w.during.end = now);
    }

    /// The wait that began at `begin` was refused because it would have closed a cycle.
    ///
    /// Errors: there can have been none.
    fn circle(&mut self, wish: &Wish, begin: u64, now: u64) -> Told {
        let meanwhile = |r: &Range<u64>| r.start <= now && r.end >= begin;
        let (mut wishes, mut met) = (vec![wish.clone()], vec![]);
        while let Some(wanted) = wishes.pop() {
            for claim in self.all.iter().filter(|c| wanted.conflicts(c) && meanwhile(&c.possible)) {
                if claim.task == wish.task {
                    self.circles += 1;
                    return Ok(());
                }
                if !met.contains(&claim.task) {
                    met.push(claim.task);
                    let waits = self.waits.iter().filter(|w| w.wish.task == claim.task && meanwhile(&w.during));
                    wishes.extend(waits.map(|w| w.wish.clone()));
                }
            }
        }
        Err(format!("{wish:?} was refused for a circle, but of those in its way none waits for this task"))
    }
}

impl Sharer {
    fn spec(&self, wish: &Wish) -> FileLockSpec {
        let owner = FileLockOwner { family: wish.family, id: 1 + self.task as u64 };
        let ino = self.area.borrow().record_area.file;
        let range = if wish.family == FileLockFamily::Flock { ByteRange::ALL } else { wish.range() };
        FileLockSpec { ino, owner, pid: 500 + self.task as u32, mode: wish.mode, range }
    }

    fn wish(&self, dice: &mut Dice) -> Wish {
        let mode = if dice.one_in(2) { LockMode::Read } else { LockMode::Write };
        if dice.one_in(3) && !self.area.borrow().circles {
            return Wish { task: self.task, family: FileLockFamily::Flock, parts: 0..1, mode };
        }
        let start = dice.below(PARTS);
        let parts = start..dice.within(start + 1..PARTS + 1);
        Wish { task: self.task, family: FileLockFamily::Posix, parts, mode }
    }

    /// Takes a lock, possibly after a wait, releases one, or queries the conflicting locks.
    pub(super) async fn lock(&mut self, dice: &mut Dice) -> Told {
        if self.locked.is_none() {
            // A program locks only files that it has open.
            let ino = self.area.borrow().record_area.file;
            self.locked = Some(self.open(ino, OpenFlags::READ_WRITE).await?);
        }
        let wish = self.wish(dice);
        let kind = match dice.below(6) {
            // In these runs tasks wait more often, and hold locks for longer.
            0 | 4 if self.area.borrow().circles => 2,
            kind => kind,
        };
        match kind {
            0 | 1 => self.try_lock(wish).await,
            2 => {
                if !self.area.borrow().circles {
                    self.unlock_all().await?;
                } else if self.area.borrow().claims.weakens(&wish) {
                    return self.try_lock(wish).await;
                }
                let interrupt_us = dice.one_in(4).then(|| dice.below(20_000));
                self.wait_lock(wish, interrupt_us).await
            }
            3 => self.look_for_lock(wish).await,
            _ => self.unlock(wish).await,
        }
    }

    async fn try_lock(&mut self, wish: Wish) -> Told {
        let begin = self.env.now().0;
        self.area.borrow_mut().claims.ask(&wish, begin);
        if plant::leaves_out_lock() {
            return self.area.borrow_mut().claims.granted(&wish, begin);
        }
        self.note(format!("try lock {wish:?} ..."));
        let taken = self.client.try_lock(self.spec(&wish)).await;
        self.note(format!("  ... try lock: {taken:?}"));
        let now = self.env.now().0;
        let mut area = self.area.borrow_mut();
        match taken {
            Ok(lock) => {
                lock.keep();
                area.claims.granted(&wish, now)
            }
            Err(Errno::Again) => area.claims.not_granted(&wish, begin, now, None),
            Err(e) => Err(format!("{wish:?}: {e}")),
        }
    }

    async fn wait_lock(&mut self, wish: Wish, interrupt_us: Option<u64>) -> Told {
        let begin = self.env.now().0;
        self.area.borrow_mut().claims.ask(&wish, begin);
        self.note(format!("wait for lock {wish:?}, interrupted after {interrupt_us:?} us ..."));
        self.area.borrow_mut().claims.begin_wait(&wish, begin);
        let interrupt = Arc::new(Interrupt::new());
        if let Some(us) = interrupt_us {
            let (env, interrupt) = (self.env.clone(), interrupt.clone());
            self.env.spawn(async move {
                env.sleep(Duration::from_micros(us)).await;
                interrupt.fire();
            });
        }
        let taken = self.client.wait_lock(self.spec(&wish), interrupt).await;
        self.note(format!("  ... wait for lock: {taken:?}"));
        let now = self.env.now().0;
        let mut area = self.area.borrow_mut();
        area.claims.end_wait(self.task, now);
        match taken {
            Ok(lock) => {
                lock.keep();
                area.claims.granted(&wish, now)
            }
            Err(Errno::Deadlk) if area.circles => {
                area.claims.circle(&wish, begin, now)?;
                area.claims.not_granted(&wish, begin, now, None)
            }
            Err(Errno::Intr) if interrupt_us.is_some() => {
                area.claims.not_granted(&wish, begin, now, Some(now + BEHIND_NS))
            }
            Err(e) => Err(format!("{wish:?}: {e}")),
        }
    }

    async fn look_for_lock(&mut self, wish: Wish) -> Told {
        let begin = self.env.now().0;
        let found = self.client.test_lock(self.spec(&wish)).await.map_err(|e| format!("{wish:?}: {e}"))?;
        self.area.borrow().claims.looked(&wish, begin, self.env.now().0, found.is_some())
    }

    async fn unlock(&mut self, wish: Wish) -> Told {
        self.area.borrow_mut().claims.begin(&wish, self.env.now().0);
        let spec = self.spec(&wish);
        self.note(format!("unlock {wish:?} ..."));
        let done = self.client.unlock(spec.ino, spec.owner, spec.range).await;
        done.map_err(|e| format!("unlock {wish:?}: {e}"))?;
        self.area.borrow_mut().claims.given_up(&wish, self.env.now().0);
        Ok(())
    }

    /// Releases all locks, as a close of the file does.
    pub(super) async fn unlock_all(&mut self) -> Told {
        if !self.area.borrow().claims.has(self.task) {
            return Ok(());
        }
        for (family, parts) in [(FileLockFamily::Flock, 0..1), (FileLockFamily::Posix, 0..PARTS)] {
            let wish = Wish { task: self.task, family, parts, mode: LockMode::Read };
            self.area.borrow_mut().claims.begin(&wish, self.env.now().0);
            let spec = self.spec(&wish);
            let done = self.client.release_locks(spec.ino, spec.owner).await;
            done.map_err(|e| format!("release of {wish:?}: {e}"))?;
            self.area.borrow_mut().claims.given_up(&wish, self.env.now().0);
        }
        self.note("all locks given up");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(task: usize, parts: Range<u64>, mode: LockMode) -> Wish {
        Wish { task, family: FileLockFamily::Posix, parts, mode }
    }

    /// Goal: wrong answers are distinguished from right ones. Method: one task holds a lock, another requests it
    /// meanwhile and later.
    #[test]
    fn answers_are_judged() {
        use LockMode::{Read, Write};
        let mut claims = Claims::default();
        let one = wish(1, 0..2, Write);
        claims.ask(&one, 10);
        assert!(claims.granted(&one, 20).is_ok());
        let answers = |claims: &Claims, wish: &Wish, begin, now| {
            let asked = || {
                let mut claims = claims.clone();
                claims.ask(wish, begin);
                claims
            };
            (asked().granted(wish, now).is_ok(), asked().not_granted(wish, begin, now, None).is_ok())
        };
        assert_eq!(answers(&claims, &wish(2, 1..3, Read), 30, 40), (false, true), "in the way");
        assert_eq!(answers(&claims, &wish(2, 2..3, Write), 30, 40), (true, false), "beside it");
        assert!(claims.looked(&wish(2, 1..3, Read), 30, 40, false).is_err());
        assert!(claims.looked(&wish(2, 2..3, Read), 30, 40, true).is_err());
        claims.ask(&wish(1, 1..2, Read), 50);
        assert!(claims.granted(&wish(1, 1..2, Read), 60).is_ok());
        assert_eq!(answers(&claims, &wish(2, 1..2, Read), 70, 80), (true, false), "both read");
        claims.begin(&one, 90);
        assert_eq!(answers(&claims, &wish(2, 0..1, Write), 92, 95), (true, true), "it is being given up");
        claims.given_up(&one, 100);
        assert_eq!(answers(&claims, &wish(2, 0..2, Write), 101, 110), (true, false), "nobody has it");
        assert!(claims.has(1) == claims.has(2) && !claims.has(1));
    }

    /// Goal: a circle is distinguished from a wait that others end. Method: two tasks, each with the lock that the
    /// other wants, waiting or not.
    #[test]
    fn circles_are_judged() {
        use LockMode::Write;
        let mut claims = Claims::default();
        for task in [1, 2] {
            let own = wish(task, task as u64..task as u64 + 1, Write);
            claims.ask(&own, 10);
            assert!(claims.granted(&own, 20).is_ok());
        }
        let (first, second) = (wish(1, 2..3, Write), wish(2, 1..2, Write));
        claims.ask(&first, 30);
        claims.begin_wait(&first, 30);
        assert!(claims.clone().circle(&first, 30, 40).is_err(), "the other does not wait");
        claims.ask(&second, 50);
        claims.begin_wait(&second, 50);
        assert!(claims.clone().circle(&second, 50, 60).is_ok() && claims.clone().circle(&first, 30, 60).is_ok());
        claims.end_wait(2, 60);
        assert!(claims.circle(&first, 61, 70).is_err(), "it waits no more");
    }

    /// Goal: a refused conversion keeps an fcntl lock and loses a flock, as on Linux.
    #[test]
    fn conversions() {
        for (family, kept) in [(FileLockFamily::Posix, true), (FileLockFamily::Flock, false)] {
            let mut claims = Claims::default();
            let of = |task, mode| Wish { task, family, parts: 0..1, mode };
            for task in [1, 2] {
                claims.ask(&of(task, LockMode::Read), 10);
                assert!(claims.granted(&of(task, LockMode::Read), 20).is_ok());
            }
            claims.ask(&of(1, LockMode::Write), 30);
            assert!(claims.not_granted(&of(1, LockMode::Write), 30, 40, None).is_ok());
            assert_eq!(claims.has(1), kept, "{family:?}");
            claims.ask(&of(2, LockMode::Write), 50);
            assert_eq!(claims.granted(&of(2, LockMode::Write), 60).is_err(), kept, "{family:?}");
        }
    }
}
