//! Files that could not be brought out of a job's file system: they are tried again while the job still has time.
//!
//! Owns: the list of such copies, which lies in the job's folder on its first node; how long `amphi job run` waits for
//! them; and `amphi job stage-out`, by which they are brought out, to another place if need be. The user starts it, and
//! every minute the keeper does. Does not own: the copying.
//!
//! Invariants: once the list is made, only `amphi job stage-out` changes it, and holds its lock as long as it copies.
//! So no two of them copy at the same time, and `amphi job run` does not give up meanwhile. A copy leaves the list when
//! it is complete. What is still on the list when the time is over is named once more before it is lost. The file
//! system ends with the job in any case: its servers are processes of the job, which the batch system ends.

use super::clean::{is_meant, places};
use super::folder::{Folder, UNSTAGED};
use super::messages::{Copy, Said, Task, To};
use super::told::Told;
use super::world::World;
use amphi_env::real::monotonic;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_host::say::{say, say_error};
use clap::Args;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, ftruncate, open};
use rustix::io::{pread, pwrite};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Pause between two looks at the list.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Pause between two tries.
const TRY_AGAIN: Duration = Duration::from_secs(60);
/// How long the keeper may take to answer.
const ANSWER: Duration = Duration::from_secs(60);

/// Bring out what a job could not bring out, while its amphi job run keeps the file system for that: on the first node
/// of the job, as its user; with --to to another place than the job wanted.
#[derive(Args, Debug)]
pub struct StageOut {
    /// The job: its number in Slurm, or its whole name
    #[arg(value_name = "JOB")]
    job: String,
    /// Folder in which the copies get the names that the job wanted [default: where the job wanted them]
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Folder in which jobs have theirs; may be repeated [default: AMPHI_JOB_SCRATCH, TMPDIR, /tmp]
    #[arg(long, value_name = "DIR")]
    scratch: Vec<PathBuf>,
}

impl StageOut {
    /// Copies.
    pub fn run(self) -> Outcome {
        let places = places(&self.scratch);
        let all = places.iter().flat_map(|place| Folder::left_in(place).1).map(|path| Folder::at(&path));
        let mut meant = all.filter(|folder| is_meant(&self.job, &folder.id()));
        let Some((folder, list)) = meant.find_map(|folder| List::open(&folder).ok().map(|list| (folder, list))) else {
            let shown: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
            return Err(Failure::refused(format!(
                "job {} waits for no copies in {}; they are on its first node, in the folder of its --scratch",
                self.job,
                shown.join(", ")
            )));
        };
        list.lock()?;
        let program = std::env::current_exe().during(|| "find this program".into())?;
        let (mut left, all) = (Vec::new(), list.read()?);
        for (k, copy) in all.iter().enumerate() {
            let (from, to) = (copy.source.at(&folder.mount()), copy.target.at(&folder.mount()));
            let to = self.to.as_ref().map_or(to.clone(), |dir| dir.join(to.file_name().unwrap_or_default()));
            say(&format!("amphi job stage-out: {} to {}", from.display(), to.display()));
            let status = Command::new(&program).arg("stage").args(&copy.options).arg("--").args([&from, &to]).status();
            if !status.during(|| "start amphi stage".into())?.success() {
                left.push(copy.clone());
                continue;
            }
            list.write(&[&left, &all[k + 1..]].concat())?;
        }
        match left.len() {
            0 => Ok(()),
            n => Err(Failure::broken(format!("{n} copies are not complete; the job still waits for them"))),
        }
    }
}

/// The list in the folder of a job.
pub struct List {
    path: PathBuf,
    file: OwnedFd,
}

impl List {
    /// Makes the list of a folder.
    pub fn make(folder: &Folder, copies: &[Copy]) -> Outcome {
        List::with(folder, OFlags::CREATE)?.write(copies)
    }

    /// The list of a folder that has one.
    pub fn open(folder: &Folder) -> Outcome<List> {
        List::with(folder, OFlags::empty())
    }

    fn with(folder: &Folder, how: OFlags) -> Outcome<List> {
        let path = folder.path().join(UNSTAGED);
        let how = how | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = open(&path, how, Mode::RUSR | Mode::WUSR).during(|| format!("open {}", path.display()))?;
        Ok(List { path, file })
    }

    /// Locks it, as long as it is open, when no other `amphi job stage-out` copies any more.
    fn lock(&self) -> Outcome {
        flock(&self.file, FlockOperation::LockExclusive).during(|| format!("lock {}", self.path.display()))
    }

    /// Whether `amphi job stage-out` copies.
    pub fn is_busy(&self) -> bool {
        flock(&self.file, FlockOperation::NonBlockingLockShared).is_err()
    }

    /// The copies.
    pub fn read(&self) -> Outcome<Vec<Copy>> {
        let (mut text, mut part) = (Vec::new(), [0; 4096]);
        loop {
            let read = pread(&self.file, &mut part, text.len() as u64);
            match read.during(|| format!("read {}", self.path.display()))? {
                0 => break,
                n => text.extend_from_slice(&part[..n]),
            }
        }
        serde_json::from_slice(&text).during(|| format!("read {}", self.path.display()))
    }

    fn write(&self, copies: &[Copy]) -> Outcome {
        let text = serde_json::to_vec(copies).during(|| "write a list of copies".into())?;
        ftruncate(&self.file, 0).during(|| format!("write {}", self.path.display()))?;
        match pwrite(&self.file, &text, 0).during(|| format!("write {}", self.path.display()))? {
            n if n == text.len() => Ok(()),
            _ => Err(Failure::broken(format!("write {}: there is no room", self.path.display()))),
        }
    }
}

/// Keeps the file system and tries again, for at most that long. Returns the copies that are still not complete.
pub fn retry(world: &mut World, told: &mut Told, kept: &Kept<'_>, mut open: Vec<Copy>) -> Vec<Copy> {
    let outcome = tries(world, told, kept, &mut open);
    if let Err(e) = outcome {
        say_error(&e.text);
    }
    open
}

fn tries(world: &mut World, told: &mut Told, kept: &Kept<'_>, open: &mut Vec<Copy>) -> Outcome {
    let can = note(world, open)?;
    if can.is_empty() {
        return Ok(());
    }
    // What does not exist stays on the list of what is lost.
    let missing: Vec<Copy> = open.iter().filter(|copy| !can.contains(copy)).cloned().collect();
    kept.say(world.host(0), &told.id);
    let (until, mut next) = (monotonic() + kept.limit, monotonic() + TRY_AGAIN);
    loop {
        if let Some(event) = world.next(Some(LOOK_AGAIN))
            && let Some(wish) = world.wish(&event)
        {
            return Err(wish.failure());
        }
        let left = world.ask(To::Node(0), &Task::Unstaged, Some(ANSWER), |_| false, list)?;
        // None: `amphi job stage-out` copies.
        let Some(left) = left.into_iter().flatten().next() else { continue };
        let is_left = |copy: &Copy| missing.contains(copy) || left.contains(copy);
        open.iter().filter(|copy| !is_left(copy)).for_each(|copy| told.brought_out(copy));
        open.retain(is_left);
        if left.is_empty() || monotonic() >= until {
            return Ok(());
        }
        if monotonic() >= next {
            world.give(To::Node(0), &Task::Retry)?;
            next = monotonic() + TRY_AGAIN;
        }
    }
}

/// Writes the list. Returns the copies in it whose source exists.
fn note(world: &mut World, copies: &[Copy]) -> Outcome<Vec<Copy>> {
    let noted = world.ask(To::Node(0), &Task::Keep(copies.to_vec()), Some(ANSWER), |_| false, list)?;
    Ok(noted.into_iter().flatten().flatten().collect())
}

fn list(said: Said) -> Option<Option<Vec<Copy>>> {
    match said {
        Said::Unstaged(list) => Some(list),
        _ => None,
    }
}

/// What is kept, and how long.
pub struct Kept<'a> {
    /// The mount on the first node.
    pub mount: &'a str,
    /// The folder there in which the job has its own.
    pub scratch: &'a str,
    /// How long to try.
    pub limit: Duration,
}

impl Kept<'_> {
    fn say(&self, host: &str, id: &str) {
        let srun = match std::env::var("SLURM_JOB_ID") {
            Ok(number) => format!("srun --jobid={number} --overlap --nodes=1 --ntasks=1 --nodelist={host} "),
            Err(_) => String::new(),
        };
        let (mount, scratch) = (self.mount, self.scratch);
        let (limit, pause) = (self.limit.as_secs(), TRY_AGAIN.as_secs());
        say(&format!(
            "amphi: job {id}: the files stay in {mount} on {host} for {limit} s; this is tried again every {pause} s"
        ));
        say(&format!(
            "amphi: job {id}: to bring them out now, or elsewhere: {srun}amphi job stage-out {id} --scratch {scratch} \
             [--to DIR]; to give them up: SIGTERM to amphi job run"
        ));
    }
}
