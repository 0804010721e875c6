//! `Story`: the events of a game, the first error, and the faults that happen while players make calls.
//!
//! Owns: the last lines of the story, the verdict. Does not own: what is right (`games`, `directories`).

use super::Tally;
use crate::cluster::{Cluster, MOUNTS, SERVER};
use crate::dice::Dice;
use amphi_env::{Env, SimEnv};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// Lines of the story that are kept.
const LINES: usize = 400;

/// A failed game.
#[derive(Debug)]
pub struct Failure {
    /// The error that was found.
    pub line: String,
    /// The events before it.
    pub story: Vec<String>,
}

/// See the module's head.
pub(super) struct Story {
    env: SimEnv,
    /// Every line is printed as well.
    talks: bool,
    lines: RefCell<VecDeque<String>>,
    wrong: RefCell<Option<String>>,
}

impl Story {
    pub(super) fn new(cluster: &Cluster, talks: bool) -> Rc<Story> {
        let (lines, wrong) = (RefCell::default(), RefCell::default());
        Rc::new(Story { env: cluster.env.clone(), talks, lines, wrong })
    }

    pub(super) fn note(&self, who: &str, line: &str) {
        let line = format!("{:>14} {who} {line}", self.env.now().0 / 1000);
        if self.talks {
            println!("{line}");
        }
        let mut lines = self.lines.borrow_mut();
        if lines.len() >= LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// Something is wrong: the game is over.
    pub(super) fn complain(&self, line: String) {
        self.wrong.borrow_mut().get_or_insert(line);
    }

    pub(super) fn is_wrong(&self) -> bool {
        self.wrong.borrow().is_some()
    }

    /// The end of the game.
    pub(super) fn judge(&self, played: Result<Tally, String>) -> Result<Tally, Failure> {
        let wrong = self.wrong.borrow().clone();
        let played = wrong.map_or(played, Err);
        played.map_err(|line| Failure { line, story: self.lines.borrow().iter().cloned().collect() })
    }

    /// Breaks connections and stops mounts for a moment while there are players.
    pub(super) async fn faults(&self, cluster: &Cluster, dice: &mut Dice, is_played: impl Fn() -> bool) {
        while is_played() && !self.is_wrong() {
            cluster.env.sleep(Duration::from_micros(dice.below(400_000))).await;
            let node = MOUNTS[dice.below(cluster.shape.mounts as u64) as usize];
            match dice.below(12) {
                0 => {
                    self.note("--", &format!("connections of {node} break"));
                    cluster.sim.break_connections(SERVER, node);
                }
                1 => {
                    let us = dice.below(1_500_000);
                    self.note("--", &format!("{node} is stopped for {us} us"));
                    cluster.sim.stop(node);
                    cluster.env.sleep(Duration::from_micros(us)).await;
                    cluster.sim.go_on(node);
                    cluster.env.sleep(Duration::from_secs(1)).await;
                }
                _ => {}
            }
        }
    }
}
