//! `amphi job`: a file system that lives as long as a job, on the nodes of the job, as an ordinary user.
//!
//! Owns: the command line. `run` is the process that the user starts: it starts a keeper on each node, gives orders to
//! the keepers, and runs the program. `node` is a keeper: it has the folder of the job on its node, the server and the
//! mount there. `hold` does the same for a whole job of a batch system: its prolog starts one on each node, and `key`
//! makes the key that they share. `messages` is what both say to each other, `channel` how it gets there, `folder` what
//! a node has of a job and how it is removed, `owner` whose that is, `processes` how a job's processes are known and
//! ended, `program` the user's program.
//!
//! Invariants: a keeper ends, and takes everything of the job on its node along, when its standard input ends; so
//! nothing of a job outlives `amphi job run`, however that ended. If the keeper was killed as well, `amphi job clean`
//! removes what is left; the next job of the same user in the same place begins with this step.

mod channel;
mod clean;
mod folder;
mod hold;
mod key;
mod messages;
mod node;
mod owner;
pub mod processes;
mod program;
mod run;
mod staging;
mod told;
mod unstaged;
mod world;

use amphi_host::failure::Outcome;
use clap::{Args, Subcommand};

/// A file system of a job's own, on the nodes of the job, that is gone when the job ends.
#[derive(Args, Debug)]
pub struct Job {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    Run(Box<run::Run>),
    StageOut(unstaged::StageOut),
    Clean(clean::Clean),
    #[command(hide = true)]
    Hold(hold::Hold),
    #[command(hide = true)]
    Key(key::MakeKey),
    #[command(hide = true)]
    Node(node::Node),
}

impl Job {
    /// Executes the subcommand.
    pub fn run(self) -> Outcome {
        match self.what {
            What::Run(run) => run.run(),
            What::StageOut(stage) => stage.run(),
            What::Clean(clean) => clean.run(),
            What::Hold(hold) => hold.run(),
            What::Key(key) => key.run(),
            What::Node(node) => node.run(),
        }
    }
}
