//! `amphi sync`: makes everything on a mount stable.

use amphi_host::control;
use amphi_host::failure::Outcome;
use clap::Args;
use std::path::PathBuf;

/// Write back everything that programs wrote on a mount, through mappings too, and make it survive power loss; what
/// sync(1) cannot do through FUSE.
#[derive(Args, Debug)]
pub struct Sync {
    /// Mount point, or any file or directory there; default: the only mount here
    mount: Option<PathBuf>,
}

impl Sync {
    /// Returns when everything is stable.
    pub fn run(self) -> Outcome {
        let mount = control::find_mount(self.mount, "")?;
        control::read(&mount, "user.amphi.mode")?;
        control::sync(&mount)
    }
}
