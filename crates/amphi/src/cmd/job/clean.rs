//! `amphi job clean`: removes what jobs have left whose processes were all killed.
//!
//! Owns: which folders are removed, and what the command prints. Does not own: the removal (`folder`).

use super::folder::Folder;
use amphi_host::failure::{Failure, Outcome};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Remove what jobs of this user have left on this node: dead mounts, processes, memory, folders; for an epilog, and
/// where power was lost. Folders of jobs whose keeper runs are left alone.
#[derive(Args, Debug)]
pub struct Clean {
    /// Folder in which jobs have theirs; may be repeated [default: AMPHI_JOB_SCRATCH, TMPDIR, /tmp]
    #[arg(long, value_name = "DIR")]
    scratch: Vec<PathBuf>,
    /// Only this job: its number in Slurm, or its whole name
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Clean {
    /// Removes.
    pub fn run(self) -> Outcome {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let default = || set("AMPHI_JOB_SCRATCH").or_else(|| set("TMPDIR")).unwrap_or_else(|| "/tmp".into());
        let places = if self.scratch.is_empty() { vec![default()] } else { self.scratch.clone() };
        let mut removed: Vec<Value> = Vec::new();
        let (mut alive, mut stays) = (Vec::new(), 0);
        for place in places {
            let place = std::path::absolute(&place).unwrap_or(place);
            let (left, living) = Folder::left_in(&place);
            alive.extend(living.iter().map(|path| path.display().to_string()));
            for folder in left.into_iter().filter(|folder| self.means(&folder.id())) {
                let path = folder.path().display().to_string();
                let remains = folder.remove();
                if !self.json {
                    match remains.is_empty() {
                        true => println!("{path}: removed"),
                        false => println!("{path}: is left: {}", remains.join("; ")),
                    }
                }
                stays += usize::from(!remains.is_empty());
                removed.push(json!({ "folder": path, "left": remains }));
            }
        }
        if self.json {
            println!("{}", json!({ "schema": "amphi.job_clean/1", "removed": removed, "alive": alive }));
        }
        match stays {
            0 => Ok(()),
            n => Err(Failure::broken(format!("{n} folders could not be removed"))),
        }
    }

    fn means(&self, id: &str) -> bool {
        let number = id.split('-').next().unwrap_or(id);
        self.job.as_ref().is_none_or(|job| job == id || job == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: folders of ended jobs go with all that is in them, what is not one of this user's stays, and so does that
    /// of a living keeper. Method: folders that are made as keepers make them.
    #[test]
    fn folders_of_ended_jobs_go() {
        let place = tempfile::tempdir().expect("temporary folder");
        let scratch = place.path();
        let lives = Folder::make(scratch, "7-aa").expect("made");
        let ended = Folder::make(scratch, "8-bb").expect("made");
        std::fs::write(ended.path().join("data/target-0000.zone"), [0; 4096]).expect("write");
        ended.write_key("00").expect("written");
        let path = ended.path().to_path_buf();
        assert!(Folder::make(scratch, "8-bb").expect_err("is there").text.contains("no shared one"));
        drop(ended);
        std::fs::create_dir(scratch.join("amphi-job-4294967294-9-cc")).expect("mkdir");
        let clean = |job: Option<&str>| {
            let job = job.map(String::from);
            Clean { scratch: vec![scratch.to_path_buf()], job, json: false }.run().expect("cleaned");
        };
        clean(Some("7"));
        assert!(lives.path().exists() && path.exists());
        clean(Some("8"));
        assert!(lives.path().exists() && !path.exists());
        assert!(scratch.join("amphi-job-4294967294-9-cc").exists());
        let path = lives.path().to_path_buf();
        assert_eq!(lives.remove(), Vec::<String>::new());
        assert!(!path.exists());
    }

    /// Goal: what somebody put below a mount point that is no mount is not removed. Method: a file below the mount
    /// point.
    #[test]
    fn what_lies_below_the_mount_point_stays() {
        let place = tempfile::tempdir().expect("temporary folder");
        let folder = Folder::make(place.path(), "9-dd").expect("made");
        let file = folder.mount().join("file");
        std::fs::write(&file, b"1").expect("write");
        assert!(!folder.remove().is_empty());
        assert!(file.exists());
    }
}
