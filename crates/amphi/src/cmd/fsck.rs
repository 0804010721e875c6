//! `amphi fsck`: check of the zones of stopped servers, and their repair.

use crate::members::Site;
use amphi_env::{Env, RealEnv};
use amphi_host::failure::{Failure, Outcome};
use amphi_host::size;
use amphi_process::cluster::server_failure;
use amphi_server::{CheckData, RepairPlan, Report, fsck_folders, plan_repair};
use clap::Args;
use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Check every zone in the folders of stopped servers, within zones and, if the folders are those of all servers of a
/// cluster, between them; changes nothing without --repair. Exit code 0: sound, or repaired; 1: damaged, and the repair
/// was declined or left damage; 2: the folders cannot be checked.
#[derive(Args, Debug)]
pub struct Fsck {
    /// Folders with the zones, as given to --data, one for each server
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Read all file data too, and compare it with its checksums (server.checksums)
    #[arg(long)]
    data: bool,
    /// Show what can be repaired, then repair it, after a question on a terminal or with --yes
    #[arg(long, conflicts_with = "data")]
    repair: bool,
    /// Repair without a question
    #[arg(long, requires = "repair")]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result of a plan.
#[derive(Clone, Copy, PartialEq)]
enum Repaired {
    Nothing,
    Yes,
    NotWanted,
}

impl Fsck {
    /// Checks and prints; damage is exit code 1.
    pub fn run(self) -> Outcome {
        let mut dirs = Vec::new();
        let mut seen = BTreeSet::new();
        for dir in self.dirs.iter().flat_map(|d| Site::folders(d)) {
            // The check names a folder that is absent.
            if seen.insert(std::fs::canonicalize(&dir).unwrap_or_else(|_| dir.clone())) {
                dirs.push(dir.display().to_string());
            }
        }
        let shown = self.dirs.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(" ");
        if self.repair {
            return self.run_repair(&dirs, &shown);
        }
        let check_data = if self.data { CheckData::Yes } else { CheckData::No };
        let report = RealEnv::run(Duration::ZERO, |env| async move {
            let folders: Vec<_> = dirs.into_iter().map(|dir| (env.clone(), dir)).collect();
            fsck_folders(&folders, check_data).await
        })
        .map_err(server_failure)?;
        let findings: Vec<String> = report.findings.iter().map(|f| format!("{}: {}", f.place, f.reason)).collect();
        if self.json {
            let mut json = serde_json::json!({
                "cluster": format!("{:016x}", report.cluster), "zones": report.zones, "inodes": report.inodes,
                "directories": report.directories, "orphans": report.orphans, "objects": report.objects,
                "blocks": report.blocks, "sessions": report.sessions, "pending": report.pending,
                "notes": report.notes, "damage": findings, "targets_elsewhere": report.elsewhere,
            });
            if self.data {
                json["data_verified_blocks"] = report.verified_blocks.into();
                json["data_unverified_blocks"] = report.unverified_blocks.into();
                json["data_damaged_blocks"] = report.damaged_blocks.into();
            }
            println!("{json}");
        } else {
            for note in report.notes.iter().chain(&report.pending) {
                println!("note: {note}");
            }
            for finding in &findings {
                println!("damage: {finding}");
            }
            if report.elsewhere > 0 {
                println!(
                    "note: {} targets of the cluster are elsewhere: what lies between zones was not checked; give the folders of all servers",
                    report.elsewhere
                );
            }
            if self.data {
                println!(
                    "data: {} verified, {} without checksums, {} blocks damaged",
                    size::show(report.verified_blocks * 4096),
                    size::show(report.unverified_blocks * 4096),
                    report.damaged_blocks
                );
            }
            println!(
                "{shown}: {} zones, {} inodes ({} directories, {} unlinked but open), {} objects, {} in use, {} sessions: {}",
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
                "{shown}: {} findings; nothing was changed. Copy the folder before anything else is tried",
                findings.len()
            )))
        }
    }

    /// Shows the plan, carries it out if the user agrees, and checks again.
    fn run_repair(&self, dirs: &[String], shown: &str) -> Outcome {
        let dirs = dirs.to_vec();
        let (yes, quiet) = (self.yes, self.json);
        let (steps, left, repaired, report) = RealEnv::run(Duration::ZERO, |env| async move {
            let folders: Vec<_> = dirs.into_iter().map(|dir| (env.clone(), dir)).collect();
            let (report, plan) = plan_repair(&folders, env.wall()).await?;
            if !quiet {
                print_plan(&report, &plan);
            }
            let (steps, left) = (plan.steps.clone(), plan.left.clone());
            if plan.is_empty() {
                return Ok((steps, left, Repaired::Nothing, report));
            }
            if !yes && !is_wanted() {
                return Ok((steps, left, Repaired::NotWanted, report));
            }
            plan.carry_out(&folders).await?;
            let report = fsck_folders(&folders, CheckData::No).await?;
            Ok((steps, left, Repaired::Yes, report))
        })
        .map_err(server_failure)?;
        let findings: Vec<String> = report.findings.iter().map(|f| format!("{}: {}", f.place, f.reason)).collect();
        if self.json {
            let done = repaired == Repaired::Yes;
            println!(
                "{}",
                serde_json::json!({ "plan": steps, "not_repaired": left, "repaired": done, "damage": findings })
            );
        } else if repaired == Repaired::Yes {
            findings.iter().for_each(|finding| println!("damage: {finding}"));
            let made = if steps.len() == 1 { "1 change".into() } else { format!("{} changes", steps.len()) };
            println!("{shown}: {made} made: {}", if report.is_clean() { "sound" } else { "damaged" });
        }
        match repaired {
            Repaired::NotWanted => {
                Err(Failure::broken(format!("{shown}: nothing was changed; --yes does what is planned")))
            }
            _ if report.is_clean() => Ok(()),
            _ => Err(Failure::broken(format!("{shown}: {} findings are left", findings.len()))),
        }
    }
}

fn print_plan(report: &Report, plan: &RepairPlan) {
    report.findings.iter().for_each(|f| println!("damage: {}: {}", f.place, f.reason));
    plan.steps.iter().for_each(|step| println!("repair: {step}"));
    plan.left.iter().for_each(|line| println!("note: {line}"));
    if plan.is_empty() {
        println!("there is nothing to repair, or nothing that can be");
    }
}

/// Asks on a terminal; elsewhere nobody can answer.
fn is_wanted() -> bool {
    if !std::io::stdin().is_terminal() {
        return false;
    }
    print!("Do this? Copy the folders first. [y/N] ");
    let mut answer = String::new();
    let asked = std::io::stdout().flush().and_then(|()| std::io::stdin().read_line(&mut answer));
    asked.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}
