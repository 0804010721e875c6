//! `Program`: a sequence of random calls on a directory of its own, each checked against the reference.
//!
//! Owns: the reference and the possible states after a crash for one directory, the call under way, the history for
//! people. Does not own: operations of several programs on the same files (`shared`).
//!
//! A program is data outside the mount's node and a task on it: when the node crashes the task ends at its await point,
//! and the data has the call that was under way.

use crate::dice::Dice;
use crate::generate::Generator;
use crate::observe::{Found, Tree, attr_difference, bytes_difference};
use crate::op::{Op, Outcome};
use crate::perform::{Files, mount_of, perform};
use crate::reference::{Effect, Reference, Window};
use crate::survive::{Level, Survival};
use amphi_client::{Client, Ctx};
use amphi_env::{Env, SimEnv};
use amphi_types::{Cred, Ino, Result, Timespec};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// Lines of history that are kept for a report.
pub const HISTORY_LINES: usize = 400;

/// Virtual time after which an interrupted call has happened or will not: longer than a server is away, than the wait
/// for sessions that do not come back, and than the lease of their caches.
const SETTLES: Duration = Duration::from_secs(200);

/// A program, which its task and the controller share.
pub type SharedProgram = Rc<RefCell<Program>>;

/// A program.
pub struct Program {
    /// The number of the program.
    pub index: u64,
    /// Decides what the program does next.
    pub generator: Generator,
    /// The true state of the program's directory.
    pub reference: Reference,
    /// The possible states after a crash, by level.
    pub written: Survival,
    /// As `written`, for lost power.
    pub stable: Survival,
    /// The call whose outcome is not known.
    pub under_way: Option<(Cred, Op)>,
    /// Calls that the program still makes before it rests.
    pub left: u64,
    /// Asked to rest after the present call.
    pub stop: bool,
    /// The program is idle: all files are closed.
    pub rests: bool,
    /// Which mount makes the next call.
    mount_dice: Dice,
    /// Calls made.
    pub calls: u64,
    /// How long the longest call took that returned.
    pub longest: Duration,
    /// The first disagreement.
    pub wrong: Option<String>,
    /// The events of the run, newest last.
    pub history: VecDeque<String>,
    /// Print history as it happens.
    pub talks: bool,
}

impl Program {
    /// A program whose directory `root` is empty, belongs to the generator's owner and has permissions `perm`.
    /// `mount_dice` says which mount makes each call.
    pub fn new(index: u64, generator: Generator, mount_dice: Dice, root: Ino, perm: u16) -> Program {
        let owner = generator.owner().clone();
        let reference = Reference::new(root, perm, owner.uid, owner.gid);
        Program {
            index,
            written: Survival::settled(Level::Written, &reference),
            stable: Survival::settled(Level::Stable, &reference),
            generator,
            reference,
            under_way: None,
            left: 0,
            stop: false,
            rests: true,
            mount_dice,
            calls: 0,
            longest: Duration::ZERO,
            wrong: None,
            history: VecDeque::new(),
            talks: false,
        }
    }

    /// The mount that makes the next call.
    fn pick_mount(&mut self, mounts: usize) -> usize {
        if mounts == 1 { 0 } else { self.mount_dice.below(mounts as u64) as usize }
    }

    /// Name of the directory of program `index`.
    pub fn dir_name(index: u64) -> String {
        format!("p{index}")
    }

    /// Adds a line to the history.
    pub fn note(&mut self, at_ns: u64, line: String) {
        let line = format!("{:>12.6} ms  p{}  {line}", at_ns as f64 / 1e6, self.index);
        if self.talks {
            println!("{line}");
        }
        if self.history.len() == HISTORY_LINES {
            self.history.pop_front();
        }
        self.history.push_back(line);
    }

    fn complain(&mut self, what: String) {
        let index = self.index;
        self.wrong.get_or_insert_with(|| format!("program {index}: {what}"));
        self.stop = true;
    }

    /// Applies the outcome of the call under way.
    fn settle(&mut self, span: Window, got: Result<Outcome>) {
        let Some((cred, op)) = self.under_way.take() else { return };
        let made = match (&op, &got) {
            (Op::Mkdir { .. } | Op::Mknod { .. } | Op::Symlink { .. }, Ok(Outcome::Attr(s))) => Some(s.ino),
            (_, Ok(Outcome::Opened(s, true))) => Some(s.ino),
            _ => None,
        };
        if let Some(ino) = made
            && self.reference.nodes.contains_key(&ino)
        {
            return self.complain(format!("{op}: the new inode {ino} is in use"));
        }
        let want = self.reference.apply(&cred, &op, span, made);
        if let Some(what) = self.disagreement(&want, &got) {
            return self.complain(format!("{op} as {}: {what}", cred.uid));
        }
        if want.is_ok() {
            self.written.apply(self.reference.effects(), &self.reference, true);
            self.stable.apply(self.reference.effects(), &self.reference, true);
        }
    }

    /// Determines from the state whether the interrupted call under way has happened (Promise S18).
    fn resolve(&mut self, span: Window, tree: &Tree) {
        let Some((cred, op)) = self.under_way.take() else { return };
        let not_done = tree.differences(&self.reference);
        if not_done.is_empty() {
            return;
        }
        let made = match &op {
            Op::Mkdir { dir, name, .. }
            | Op::Mknod { dir, name, .. }
            | Op::Symlink { dir, name, .. }
            | Op::Create { dir, name, .. } => tree.find(*dir, name),
            _ => None,
        };
        let mut then = self.reference.clone();
        let done = match then.apply(&cred, &op, span, made) {
            Ok(_) => {
                let effects = then.effects().to_vec();
                // The open of this call has been closed again.
                if let Op::Create { handle, .. } | Op::Open { handle, .. } | Op::Tmpfile { handle, .. } = &op {
                    then.forget_open(*handle);
                }
                let wrong = tree.differences(&then);
                if wrong.is_empty() {
                    self.written.apply(&effects, &then, true);
                    self.stable.apply(&effects, &then, true);
                    self.reference = then;
                    return;
                }
                wrong
            }
            Err(e) => vec![format!("it should have failed with {}", e.posix_name())],
        };
        let (op, no, yes) = (op.to_string(), not_done.join("; "), done.join("; "));
        self.complain(format!("{op} was interrupted and happened by half: if not, {no}; if so, {yes}"));
    }

    fn disagreement(&self, want: &Result<Outcome>, got: &Result<Outcome>) -> Option<String> {
        let (want, got) = match (want, got) {
            (Ok(want), Ok(got)) => (want, got),
            (Err(want), Err(got)) if want == got => return None,
            (want, got) => {
                let text = |r: &Result<Outcome>| r.as_ref().map_or_else(|e| e.posix_name().into(), |o| o.to_string());
                return Some(format!("returned {}, should return {}", text(got), text(want)));
            }
        };
        match (want, got) {
            (Outcome::Attr(want), Outcome::Attr(got)) => {
                let node = self.reference.nodes.get(&want.ino)?;
                attr_difference(got, want, (node.mtime, node.ctime))
            }
            (Outcome::Opened(want, new), Outcome::Opened(got, got_new)) => {
                if new != got_new {
                    return Some(format!("new: {got_new}, should be {new}"));
                }
                let node = self.reference.nodes.get(&want.ino)?;
                attr_difference(got, want, (node.mtime, node.ctime))
            }
            (Outcome::Bytes(want), Outcome::Bytes(got)) => bytes_difference(got, want),
            (want, got) => (want != got).then(|| format!("returned {got}, should return {want}")),
        }
    }

    /// The crash has cut off the call under way: it may have happened.
    fn cut_off(&mut self) {
        let Some((cred, op)) = self.under_way.take() else { return };
        let mut then = self.reference.clone();
        let span = (Default::default(), Default::default());
        // A sync that did not return promises nothing, but it may have made changes stable.
        if then.apply(&cred, &op, span, None).is_ok() {
            let effects: Vec<Effect> = then.effects().to_vec();
            self.written.apply(&effects, &then, false);
            self.stable.apply(&effects, &then, false);
        }
    }

    /// Judges the state after a crash of the mount, and continues from there. The state must be made stable before the
    /// next call.
    ///
    /// Errors: a line for everything that must not be.
    pub fn crashed(&mut self, level: Level, tree: &Tree) -> std::result::Result<(), Vec<String>> {
        self.cut_off();
        let wrong = match level {
            Level::Written => self.written.judge(tree),
            Level::Stable => self.stable.judge(tree),
        };
        if !wrong.is_empty() {
            return Err(wrong);
        }
        self.reference = self.reference.after_crash(tree);
        self.settle_all();
        self.rests = true;
        Ok(())
    }

    /// From now on the check expects the present state of the reference: all of it survives a crash at either level.
    pub fn settle_all(&mut self) {
        self.written = Survival::settled(Level::Written, &self.reference);
        self.stable = Survival::settled(Level::Stable, &self.reference);
    }
}

impl Reference {
    /// The reference after a crash that left `tree`.
    pub fn after_crash(&self, tree: &Tree) -> Reference {
        let mut r = Reference::new(tree.root, 0, 0, 0);
        for node in tree.nodes.values() {
            let body = match &node.body {
                Found::File(bytes) => crate::reference::Body::File(bytes.clone()),
                Found::Dir(entries) => crate::reference::Body::Dir(entries.clone(), tree.root),
                Found::Symlink(to) => crate::reference::Body::Symlink(to.clone()),
                Found::Node => crate::reference::Body::Node,
            };
            r.adopt(&node.seen, body, node.xattrs.clone());
        }
        r.find_parents();
        r
    }
}

/// Makes the calls of a program until it has none left or is asked to rest, then closes its files.
///
/// Each call is made on one of the mounts, which sees all earlier changes by other mounts.
pub async fn run(env: SimEnv, mounts: Vec<Client>, program: SharedProgram) {
    let mut files = Files::new();
    program.borrow_mut().rests = false;
    loop {
        let pause_us = {
            let mut p = program.borrow_mut();
            if p.left == 0 || p.stop {
                break;
            }
            p.left -= 1;
            p.calls += 1;
            p.generator.pause_us()
        };
        if pause_us > 0 {
            env.sleep(Duration::from_micros(pause_us)).await;
        }
        let next = {
            let mut p = program.borrow_mut();
            let p = &mut *p;
            p.generator.next(&p.reference, env.wall())
        };
        call(&env, &mounts, &program, &mut files, next).await;
    }
    while program.borrow().wrong.is_none() {
        let Some(handle) = program.borrow().reference.opens.keys().next().copied() else { break };
        call(&env, &mounts, &program, &mut files, (Cred::root(), Op::Close { handle })).await;
    }
    program.borrow_mut().rests = true;
}

async fn call(env: &SimEnv, mounts: &[Client], program: &SharedProgram, files: &mut Files, next: (Cred, Op)) {
    let begin = env.wall();
    let which = mount_of(files, &next.1, program.borrow_mut().pick_mount(mounts.len()));
    let (cred, op) = next.clone();
    {
        let mut p = program.borrow_mut();
        p.under_way = Some(next);
        let by = if mounts.len() > 1 { format!(" by mount {which}") } else { String::new() };
        let line = format!("{op} as {}{by} ...", cred.uid);
        p.note(env.now().0, line);
    }
    let started = env.now();
    let thread = program.borrow().index as u32;
    let ctx = Ctx { cred, pid: 100 + thread, tid: 1000 + thread, ..Ctx::default() };
    let interrupt = {
        let p = &mut *program.borrow_mut();
        p.generator.interrupt_us(&p.reference, &op)
    };
    let got = match interrupt {
        None => Some(perform(mounts, which, &ctx, files, &op).await),
        Some(us) => {
            let call = perform(mounts, which, &ctx, files, &op);
            amphi_env::timeout(env, Duration::from_micros(us), call).await
        }
    };
    let Some(got) = got else { return interrupted(env, &mounts[which], program, begin).await };
    let mut p = program.borrow_mut();
    p.longest = p.longest.max(env.now().since(started));
    let line = got.as_ref().map_or_else(|e| e.posix_name().to_string(), |o| o.to_string());
    p.note(env.now().0, format!("  ... {line}"));
    // The wall clock may stand still between the stamp and the end, never go back.
    p.settle((begin, env.wall()), got);
}

/// A signal has ended the wait for the call under way: it has happened as a whole or not at all.
async fn interrupted(env: &SimEnv, client: &Client, program: &SharedProgram, begin: Timespec) {
    program.borrow_mut().note(env.now().0, "  ... interrupted".into());
    env.sleep(SETTLES).await;
    let (root, name) = {
        let p = program.borrow();
        (p.reference.root, Program::dir_name(p.index))
    };
    let tree = Tree::read(client, root, &name).await;
    let mut p = program.borrow_mut();
    match tree {
        Ok(tree) => p.resolve((begin, env.wall()), &tree),
        Err(e) => p.complain(format!("after an interrupted call: {e}")),
    }
    let line = if p.wrong.is_some() { "  ... half of it happened" } else { "  ... that is known now" };
    p.note(env.now().0, line.into());
}
