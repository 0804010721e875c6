//! `amphi fsck`: check of a stopped server's zones.

use crate::failure::{Failure, Outcome};
use crate::process::server_failure;
use crate::size;
use amphi_env::RealEnv;
use amphi_server::fsck;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Check every zone in a folder, within zones and between them; changes nothing.
#[derive(Args, Debug)]
pub struct Fsck {
    /// Folder with the zones, as given to --data
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Fsck {
    /// Checks and prints; damage is exit code 1.
    pub fn run(self) -> Outcome {
        let dir = self.dir.display().to_string();
        let report = RealEnv::run(Duration::ZERO, {
            let dir = dir.clone();
            |env| async move { fsck(&env, &dir).await }
        })
        .map_err(server_failure)?;
        let findings: Vec<String> = report.findings.iter().map(|f| format!("{}: {}", f.place, f.reason)).collect();
        if self.json {
            let json = serde_json::json!({
                "cluster": format!("{:016x}", report.cluster), "zones": report.zones, "inodes": report.inodes,
                "directories": report.directories, "orphans": report.orphans, "objects": report.objects,
                "blocks": report.blocks, "sessions": report.sessions, "pending": report.pending,
                "notes": report.notes, "damage": findings,
            });
            println!("{json}");
        } else {
            for note in report.notes.iter().chain(&report.pending) {
                println!("note: {note}");
            }
            for finding in &findings {
                println!("damage: {finding}");
            }
            println!(
                "{dir}: {} zones, {} inodes ({} directories, {} unlinked but open), {} objects, {} in use, {} sessions: {}",
                report.zones,
                report.inodes,
                report.directories,
                report.orphans,
                report.objects,
                size::show(report.blocks * 4096),
                report.sessions,
                if report.is_clean() { "sound" } else { "damaged" }
            );
        }
        if report.is_clean() {
            Ok(())
        } else {
            Err(Failure::broken(format!(
                "{dir}: {} findings; nothing was changed. Copy the folder before anything else is tried",
                findings.len()
            )))
        }
    }
}
