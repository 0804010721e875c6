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
    /// Also end the keepers that run: for an epilog, when nothing of the job may go on
    #[arg(long, requires = "job")]
    running: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Clean {
    /// Removes.
    pub fn run(self) -> Outcome {
        let mut removed: Vec<Value> = Vec::new();
        let (mut alive, mut stays) = (Vec::new(), 0);
        for place in places(&self.scratch) {
            let (mut left, mut living) = Folder::left_in(&place);
            if self.running {
                let ends = |folder: &Folder| self.means(&folder.id()) && folder.is_here();
                left.extend(living.iter().map(|path| Folder::at(path)).filter(ends));
                living.retain(|path| !ends(&Folder::at(path)));
            }
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
        self.job.as_ref().is_none_or(|job| is_meant(job, id))
    }
}

/// Whether a user who names a job means the one with this id.
pub fn is_meant(job: &str, id: &str) -> bool {
    job == id || Some(job) == id.split('-').next()
}

/// The folders in which jobs have theirs, as the table of mounts has them. Where there is none, no job has one.
pub fn places(named: &[PathBuf]) -> Vec<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let default = || set("AMPHI_JOB_SCRATCH").or_else(|| set("TMPDIR")).unwrap_or_else(|| "/tmp".into());
    let places = if named.is_empty() { vec![default()] } else { named.to_vec() };
    places.into_iter().map(|place| place.canonicalize().unwrap_or(place)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::owner::Owner;
    use super::*;
    use std::collections::BTreeMap;
    use std::ffi::CString;
    use std::os::fd::AsRawFd;
    use std::path::Path;

    fn owner() -> Owner {
        Owner::here("no process has this", &BTreeMap::new())
    }

    fn clean(scratch: &Path) -> Outcome {
        Clean { scratch: vec![scratch.to_path_buf()], job: None, running: false, json: false }.run()
    }

    /// The keeper of the folder ends. A process that another test is starting has a copy of its lock until it executes
    /// its program, so this waits for the lock.
    fn ends(folder: Folder) -> PathBuf {
        let path = folder.path().to_path_buf();
        drop(folder);
        let lock = std::fs::OpenOptions::new().read(true).open(path.join("lock")).expect("a lock");
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("locked");
        path
    }

    /// Goal: folders of ended jobs go with all that is in them, what is not one of this user's stays, and so does that
    /// of a living keeper. Method: folders that are made as keepers make them.
    #[test]
    fn folders_of_ended_jobs_go() {
        let place = tempfile::tempdir().expect("temporary folder");
        let scratch = place.path();
        let lives = Folder::make(scratch, "7-aa", owner()).expect("made");
        let ended = Folder::make(scratch, "8-bb", owner()).expect("made");
        std::fs::write(ended.path().join("data/target-0000.zone"), [0; 4096]).expect("write");
        ended.write_key("00").expect("written");
        assert!(Folder::make(scratch, "8-bb", owner()).expect_err("is there").text.contains("no shared one"));
        let path = ends(ended);
        std::fs::create_dir(scratch.join("amphi-job-4294967294-9-cc")).expect("mkdir");
        let clean = |job: Option<&str>| {
            let job = job.map(String::from);
            Clean { scratch: vec![scratch.to_path_buf()], job, running: false, json: false }.run().expect("cleaned");
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
        let folder = Folder::make(place.path(), "9-dd", owner()).expect("made");
        let file = folder.mount().join("file");
        std::fs::write(&file, b"1").expect("write");
        assert!(!folder.remove().is_empty());
        assert!(file.exists());
    }

    /// Goal: a folder is removed only if it says that it is a job's of this node, however free its lock is. Method:
    /// folders of another host, of a node that looks the same, of this one before it was started again, one whose lock
    /// says nothing, and one that a job was killed over before it had a lock.
    #[test]
    fn only_folders_of_this_node_go() {
        let place = tempfile::tempdir().expect("temporary folder");
        let scratch = place.path();
        let age = |path: &Path| {
            let file = std::fs::OpenOptions::new().read(true).open(path);
            file.and_then(|file| file.set_modified(std::time::UNIX_EPOCH)).expect("set its time");
        };
        let make = |id: &str, owner: Option<Owner>, is_old: bool| {
            let folder = Folder::make(scratch, id, self::owner()).expect("made");
            let path = ends(folder);
            let lock = path.join("lock");
            std::fs::write(path.join("data/file"), b"1").expect("write");
            let file = std::fs::OpenOptions::new().write(true).truncate(true).open(&lock).expect("open");
            owner.iter().for_each(|owner| owner.write(&file, &lock).expect("write"));
            [lock, path.clone()].iter().filter(|_| is_old).for_each(|path| age(path));
            path
        };
        let other = make("1-aa", Some(owner().elsewhere("other", "")), true);
        let alike = make("2-bb", Some(owner().elsewhere("", "other")), false);
        let before = make("3-cc", Some(owner().elsewhere("", "other")), true);
        let nobody = make("4-dd", None, true);
        clean(scratch).expect_err("one is told");
        assert!(
            other.join("data/file").exists() && alike.join("data/file").exists() && nobody.join("data/file").exists()
        );
        assert!(!before.exists());
        let left = Folder::of(scratch, "1-aa").remove();
        assert!(left[0].contains("is of node other") && other.join("data/file").exists(), "{left:?}");
        std::fs::remove_dir_all(nobody).expect("remove");

        let begun = scratch.join(format!("amphi-job-{}-5-ee", rustix::process::geteuid().as_raw()));
        std::fs::create_dir(&begun).expect("mkdir");
        std::fs::write(begun.join("lock.new"), b"").expect("write");
        clean(scratch).expect("it may just be made");
        assert!(begun.exists());
        age(&begun);
        clean(scratch).expect("removed");
        assert!(!begun.exists());
    }

    /// Goal: a dead mount goes, however the folder of jobs is named. Method: a mount of which nobody answers requests,
    /// in a folder that is named by a symbolic link and by a way back.
    #[test]
    fn paths_are_those_of_the_kernel() {
        let place = tempfile::tempdir().expect("temporary folder");
        let real = place.path().canonicalize().expect("a path").join("real");
        std::fs::create_dir_all(real.join("in")).expect("mkdir");
        std::os::unix::fs::symlink("real", place.path().join("link")).expect("symlink");
        for way in ["link", "real/in/.."] {
            let folder = Folder::make(&real, "6-ff", owner()).expect("made");
            let mount = folder.mount();
            let path = ends(folder);
            let Ok(device) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") else { return };
            let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
            let options = CString::new(options).expect("no zeros");
            let flags = rustix::mount::MountFlags::empty();
            if rustix::mount::mount("amphi", &mount, "fuse.amphi", flags, options.as_c_str()).is_err() {
                return; // Only root may mount.
            }
            drop(device);
            clean(&place.path().join(way)).expect("removed");
            assert!(!path.exists(), "{way}");
        }
    }
}
