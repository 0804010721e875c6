//! `amphi evict`: ends sessions of mounts.

use super::reach::Reach;
use amphi_host::failure::{Failure, Outcome};
use amphi_wire::{Reply, Request};
use clap::Args;

/// End the session of a mount, or all sessions of a key, at once; what the mounts have not written back is lost.
///
/// The mount answers EIO from then on and has to be mounted again. A key that shall not come back is removed: amphi key
/// remove.
#[derive(Args, Debug)]
pub struct Evict {
    /// Number of a session as amphi status shows it, or name or fingerprint of a key
    who: String,
    #[command(flatten)]
    reach: Reach,
}

impl Evict {
    /// Asks the master to end the sessions.
    pub fn run(self) -> Outcome {
        match self.reach.ask_master(Request::Evict { who: self.who })? {
            Reply::Evicted(1) => println!("1 session is ended"),
            Reply::Evicted(n) => println!("{n} sessions are ended"),
            _ => return Err(Failure::broken("the server's answer makes no sense")),
        }
        Ok(())
    }
}
