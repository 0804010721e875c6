//! `amphi job run`: file systems of jobs on this machine, and the proof that nothing is left of them, however they end.

use crate::harness::{Place, amphi, eventually};
use crate::json_shapes::described;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Folders for jobs and their files; the tests search here for what jobs have left.
struct Site {
    place: Place,
    /// Memory that was kept for servers of jobs.
    kept: RefCell<Vec<PathBuf>>,
}

impl Site {
    fn new() -> Site {
        let place = Place::new();
        for part in ["s", "in", "out"] {
            std::fs::create_dir(place.path(part)).expect("mkdir");
        }
        std::fs::write(place.path("in/a"), vec![7; 300_000]).expect("write");
        std::fs::write(place.path("in/b"), b"bytes").expect("write");
        Site { place, kept: RefCell::default() }
    }

    fn scratch(&self) -> PathBuf {
        self.place.path("s")
    }

    /// `amphi job run` with small zones, up to the options of the test.
    fn job(&self, args: &[&str]) -> Command {
        let mut command = amphi();
        command
            .env_remove("SLURM_JOB_NODELIST")
            .env("AMPHI_JOB_SCRATCH", self.scratch())
            .current_dir(self.place.path("."));
        command.args(["job", "run", "--size", "512M", "--targets", "2"]).args(args).stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        let out = self.job(args).output().expect("amphi starts");
        eprintln!("{}", String::from_utf8_lossy(&out.stderr));
        out
    }

    /// The remains of jobs: folders, mounts, processes, memory.
    fn left(&self) -> Vec<String> {
        let scratch = self.scratch();
        let mut left: Vec<String> = Vec::new();
        let mut folders = vec![scratch.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.file_name().to_string_lossy().starts_with("amphi-job-") {
                    true => left.push(entry.path().display().to_string()),
                    false => folders.push(entry.path()),
                }
            }
        }
        let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
        let below = scratch.display().to_string();
        left.extend(mounts.lines().filter(|line| line.contains(&below)).map(String::from));
        for process in std::fs::read_dir("/proc").expect("processes").flatten() {
            let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
            let is = |entry: &[u8]| {
                let text = String::from_utf8_lossy(entry);
                text.starts_with("AMPHI_JOB_FOLDER=") && text.contains(&below)
            };
            if environment.split(|b| *b == 0).any(is) {
                left.push(format!("process {}", process.path().display()));
            }
        }
        let kept = self.kept.borrow();
        left.extend(kept.iter().filter(|path| path.exists()).map(|path| path.display().to_string()));
        left
    }

    fn nothing_left(&self) {
        assert_eq!(self.left(), Vec::<String>::new());
    }

    /// Starts a job whose program prints where its mount is, and waits for that line.
    fn started(&self, options: &[&str]) -> (std::process::Child, PathBuf) {
        let mark = self.place.path("began");
        let script = "trap 'exit 3' TERM; echo $AMPHI_JOB_DIR >began.new; mv began.new began; sleep 600 & wait";
        let mut args = options.to_vec();
        args.extend(["--", "sh", "-c", script]);
        let child = self.job(&args).spawn().expect("amphi starts");
        eventually("the program begins", || mark.exists());
        let mount = std::fs::read_to_string(&mark).expect("read").trim().to_string();
        std::fs::remove_file(mark).expect("remove");
        self.kept.borrow_mut().extend(self.place.memory());
        (child, mount.into())
    }
}

fn signal(child: &std::process::Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("signal");
}

/// Processes whose command line has all these words.
fn processes(words: &[&str]) -> Vec<Pid> {
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc").expect("processes").flatten() {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let pid = process.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        if let (true, Some(pid)) = (words.iter().all(|word| line.contains(word)), pid) {
            found.push(pid);
        }
    }
    found
}

/// Goal: a job gets its files and its program a mount, the program's results are brought out, its exit code is the exit
/// code of the job, the JSON output is as described, and nothing is left. Method: a job of one node that copies within
/// its file system; then jobs that are refused.
#[test]
fn a_job_of_one_node() {
    let site = Site::new();
    let script = "cmp in/a $AMPHI_JOB_DIR/deep/data/a && mkdir $AMPHI_JOB_DIR/made && \
                  cp $AMPHI_JOB_DIR/deep/data/b $AMPHI_JOB_DIR/made/c && exit 5";
    let args = ["--json", "--stage-in", "in:deep/data", "--stage-out", "made:out/made", "--", "sh", "-c", script];
    let out = site.run(&args);
    assert_eq!(out.status.code(), Some(5));
    assert_eq!(std::fs::read(site.place.path("out/made/c")).expect("brought out"), b"bytes");
    site.nothing_left();
    let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(described("job_run", &report), Vec::<String>::new(), "{report}");
    assert_eq!((&report["program"]["exit"], &report["ended_by"]), (&5.into(), &"program".into()));
    assert_eq!((&report["staged"][0]["files"], &report["staged"][0]["bytes"]), (&2.into(), &300_005.into()));

    // If something could not be brought out, the job says so before the program begins.
    for (option, words) in [
        ("x:out/made", "is there already"),
        ("x:out/none/y", "No such file"),
        ("../x:out/y", "leads out"),
        ("x", "where to?"),
    ] {
        let out = site.run(&["--stage-out", option, "--", "touch", "began"]);
        assert_eq!(out.status.code(), Some(2), "{option}");
        assert!(String::from_utf8_lossy(&out.stderr).contains(words), "{option}");
    }
    let out = site.run(&["--stage-in", "in/none", "--", "touch", "began"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(!site.place.path("began").exists());
    let out = site.run(&["--", "/no/such/program"]);
    assert_eq!(out.status.code(), Some(2));
    // A file that was not made cannot be brought out, and the job reports this even if the program succeeded.
    let out = site.run(&["--stage-out", "x:out/y", "--", "true"]);
    assert_eq!(out.status.code(), Some(1));
    site.nothing_left();
}

/// Goal: a program that is killed, SIGTERM with and without files to bring out, a program that does not end then, and
/// the death of the command itself leave nothing. Method: one job for each case.
#[test]
fn jobs_that_end_otherwise() {
    let site = Site::new();
    let out = site.run(&["--stage-out", "x:out/killed", "--", "sh", "-c", "echo 1 >$AMPHI_JOB_DIR/x; kill -9 $$"]);
    assert_eq!(out.status.code(), Some(137));
    assert_eq!(std::fs::read(site.place.path("out/killed")).expect("brought out"), b"1\n");
    site.nothing_left();

    for (on_term, target) in [(true, "out/term"), (false, "out/never")] {
        let stage = format!("in:{target}");
        let mut options = vec!["--stage-in", "in", "--stage-out", &stage];
        options.extend(on_term.then_some("--stage-out-on-term"));
        let (mut job, mount) = site.started(&options);
        assert!(mount.join("in/b").exists());
        signal(&job, Signal::TERM);
        assert_eq!(job.wait().expect("wait").code(), Some(3), "that of the program");
        assert_eq!(site.place.path(target).join("b").exists(), on_term);
        site.nothing_left();
    }

    // A batch system may send the signal only to the processes of the file system.
    let (mut job, mount) = site.started(&["--stage-in", "in", "--stage-out", "in:out/step", "--stage-out-on-term"]);
    let own = Pid::from_child(&job);
    let keeper = processes(&["job node"]).into_iter().find(|pid| parent_of(*pid) == Some(own)).expect("a keeper");
    let server = processes(&["--with-parent", &mount.parent().expect("folder").display().to_string()]);
    assert!(!server.is_empty());
    for pid in server.into_iter().chain([keeper]) {
        kill_process(pid, Signal::TERM).expect("signal");
    }
    assert_eq!(job.wait().expect("wait").code(), Some(3), "that of the program");
    assert_eq!(std::fs::read(site.place.path("out/step/b")).expect("brought out"), b"bytes");
    site.nothing_left();

    let mut job = site.job(&["--kill-after", "1", "--", "sh", "-c", "trap '' TERM; touch began; sleep 600"]);
    let mut job = job.spawn().expect("amphi starts");
    eventually("the program begins", || site.place.path("began").exists());
    signal(&job, Signal::TERM);
    assert_eq!(job.wait().expect("wait").code(), Some(137));
    std::fs::remove_file(site.place.path("began")).expect("remove");
    site.nothing_left();

    // The keeper notices this, and removes everything.
    let (mut job, _) = site.started(&[]);
    job.kill().expect("kill");
    job.wait().expect("wait");
    eventually("nothing is left", || site.left().is_empty());

    // All processes that could notice the end are killed, and the file system ends in order by itself.
    let (mut job, mount) = site.started(&[]);
    let folder = mount.parent().expect("folder").display().to_string();
    let own = Pid::from_child(&job);
    let keeper = processes(&["job node"]).into_iter().find(|pid| parent_of(*pid) == Some(own)).expect("a keeper");
    kill_process(keeper, Signal::STOP).expect("signal");
    job.kill().expect("kill");
    job.wait().expect("wait");
    kill_process(keeper, Signal::KILL).expect("kill");
    eventually("the file system ends", || processes(&["--with-parent", &folder]).is_empty());
    let out = amphi().args(["job", "clean", "--scratch"]).arg(site.scratch()).output().expect("amphi starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    site.nothing_left();

    // The keeper dies: the job ends and cleans up.
    let (mut job, mount) = site.started(&[]);
    let folder = mount.parent().expect("folder").display().to_string();
    let own = Pid::from_child(&job);
    let keeper = processes(&["job node"]).into_iter().find(|pid| parent_of(*pid) == Some(own));
    kill_process(keeper.expect("a keeper"), Signal::KILL).expect("kill");
    assert_eq!(job.wait().expect("wait").code(), Some(1));
    assert!(!Path::new(&folder).exists());
    site.nothing_left();
}

/// Goal: files that could not be brought out are not lost: the job says what and why, keeps them, and they can be
/// brought out to another place by the command that it prints, or are named when they are given up; what the program
/// has not made is not waited for. Method: a target that the program of the job takes, so that the copy is refused.
#[test]
fn files_that_cannot_be_brought_out_stay() {
    let site = Site::new();
    let script = "echo bytes >$AMPHI_JOB_DIR/x; mkdir out/x; exit 3";
    let begin = |log: &str| {
        let log = std::fs::File::create(site.place.path(log)).expect("a log");
        let mut job = site.job(&["--stage-out", "x:out/x", "--stage-out", "none:out/none", "--", "sh", "-c", script]);
        job.env_remove("SLURM_JOB_ID").stderr(log).spawn().expect("amphi starts")
    };
    let said = |log: &str| std::fs::read_to_string(site.place.path(log)).expect("a log");
    let mut job = begin("first");
    eventually("the job keeps the files", || said("first").contains("to bring them out now"));
    let text = said("first");
    assert!(text.contains("stage-out of x to") && text.contains("stage-out of none to"), "{text}");
    let id = text.split_once("amphi: job ").and_then(|(_, rest)| rest.split_once(':')).expect("the job").0.to_string();
    let stage_out = |more: &[&str]| {
        let mut command = amphi();
        command.args(["job", "stage-out", &id, "--scratch"]).arg(site.scratch()).args(more);
        let out = command.current_dir(site.place.path(".")).output().expect("amphi starts");
        eprintln!("{}", String::from_utf8_lossy(&out.stderr));
        out.status.code()
    };
    assert_eq!(stage_out(&[]), Some(1), "the target is still taken");
    assert_eq!(job.try_wait().expect("wait"), None, "the job waits");
    assert_eq!(stage_out(&["--to", "in"]), Some(0));
    assert_eq!(job.wait().expect("wait").code(), Some(3), "that of the program");
    assert_eq!(std::fs::read(site.place.path("in/x")).expect("brought out"), b"bytes\n");
    let text = said("first");
    let lost = text.lines().find(|line| line.contains("is lost")).expect("a line");
    assert!(lost.contains("none to") && !lost.contains("x to"), "{lost}");
    assert_eq!(stage_out(&[]), Some(2), "no such job");
    site.nothing_left();

    std::fs::remove_dir(site.place.path("out/x")).expect("remove");
    let mut job = begin("second");
    eventually("the job keeps the files", || said("second").contains("to bring them out now"));
    signal(&job, Signal::TERM);
    assert_eq!(job.wait().expect("wait").code(), Some(3), "that of the program");
    assert!(said("second").contains("is lost: x to"), "{}", said("second"));
    site.nothing_left();
}

fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    Pid::from_raw(stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?)
}

/// Goal: if all processes of a job are killed, `amphi job clean` and the next job remove what is left, but not the
/// files of a job that still runs. Method: two such jobs, and one that still runs.
#[test]
fn what_killed_jobs_leave() {
    let site = Site::new();
    let kill_all = |mut job: std::process::Child, mount: &Path| {
        let folder = mount.parent().expect("folder").to_path_buf();
        let own = Pid::from_child(&job);
        let keeper = processes(&["job node"]).into_iter().find(|pid| parent_of(*pid) == Some(own)).expect("a keeper");
        let both = processes(&["--with-parent", &folder.display().to_string()]);
        assert!(!both.is_empty());
        // Stopped first, so that none of them sees the end of another.
        let all: Vec<Pid> = [own, keeper].into_iter().chain(both).collect();
        for step in [Signal::STOP, Signal::KILL] {
            all.iter().for_each(|pid| kill_process(*pid, step).expect("signal"));
        }
        job.wait().expect("wait");
        folder
    };
    let (job, mount) = site.started(&[]);
    let folder = kill_all(job, &mount);
    assert!(folder.exists());
    let (mut lives, living) = site.started(&[]);
    assert!(!folder.exists(), "the next job has removed it");
    let (job, mount) = site.started(&[]);
    let folder = kill_all(job, &mount);
    assert!(folder.exists() && living.exists());
    let clean = |args: &[&str]| {
        let mut command = amphi();
        let out = command.args(["job", "clean", "--json", "--scratch"]).arg(site.scratch()).args(args).output();
        let out = out.expect("amphi starts");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        assert_eq!(described("job_clean", &report), Vec::<String>::new(), "{report}");
        report
    };
    assert_eq!(clean(&["--job", "none"])["removed"], Value::Array(Vec::new()));
    let report = clean(&[]);
    assert_eq!(report["removed"][0]["folder"], folder.display().to_string());
    assert_eq!(report["alive"][0], living.parent().expect("folder").display().to_string());
    assert!(!folder.exists() && living.exists());
    signal(&lives, Signal::TERM);
    lives.wait().expect("wait");
    site.nothing_left();
}

/// Goal: a job that another one has submitted goes on when that one ends, with its file system and with the shell that
/// started it; what the program has left otherwise ends; also where the folder of jobs is named by a symbolic link.
/// Method: a program that starts a batch job of another number and a process, and ends.
#[test]
fn a_submitted_job_outlives_its_job() {
    let site = Site::new();
    let link = site.place.path("link");
    std::os::unix::fs::symlink("s", &link).expect("symlink");
    let next = "touch $AMPHI_JOB_DIR/x began; until test -e go; do sleep 0.1; done; test -e $AMPHI_JOB_DIR/x";
    let batch =
        format!("\"$AMPHI\" job run --size 512M --targets 2 -- sh -c '{next}'; echo $? >ended.new; mv ended.new ended");
    let script = "SLURM_JOB_ID=78 setsid sh -c \"$BATCH\" </dev/null >batch.log 2>&1 & \
                  setsid sh -c 'echo $$ >left.new; mv left.new left; exec sleep 600' </dev/null >/dev/null 2>&1 & \
                  until test -e began && test -e left; do sleep 0.1; done";
    let mut job = site.job(&["--", "sh", "-c", script]);
    job.env("AMPHI_JOB_SCRATCH", &link).env("SLURM_JOB_ID", "77").env("BATCH", batch);
    let out = job.env("AMPHI", amphi().get_program()).output().expect("amphi starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let left = std::fs::read_to_string(site.place.path("left")).expect("read");
    let words = std::fs::read(Path::new("/proc").join(left.trim()).join("cmdline")).unwrap_or_default();
    assert!(words.is_empty(), "what the program left has ended");
    assert!(!site.place.path("ended").exists(), "the other job lives");
    std::fs::write(site.place.path("go"), b"").expect("write");
    eventually("the other job ends", || site.place.path("ended").exists());
    assert_eq!(std::fs::read_to_string(site.place.path("ended")).expect("read"), "0\n");
    site.nothing_left();
}

/// Goal: several nodes have a server and a mount each, which see each other's files, with a key of the job's own; and
/// nothing is left, also if one of them is lost. Method: two "nodes" on this machine, whose launch commands differ only
/// in the names.
#[test]
fn a_job_of_two_nodes() {
    let site = Site::new();
    let scratch = format!("{}/{{host}}", site.scratch().display());
    for node in ["n1", "n2"] {
        std::fs::create_dir(site.scratch().join(node)).expect("mkdir");
    }
    let launcher = ["--nodes", "n1,n2", "--launcher", "env AMPHI_TEST_NODE={host}", "--address", "127.0.0.1"];
    let args = |more: &[&'static str]| {
        let mut all = launcher.map(String::from).to_vec();
        all.extend(["--scratch".to_string(), scratch.clone()]);
        all.extend(more.iter().map(|arg| (*arg).to_string()));
        all
    };
    let script = "other=$(echo $AMPHI_JOB_DIR | sed s,/n1/,/n2/,); test $other != $AMPHI_JOB_DIR && \
                  cat $other/in/b >$AMPHI_JOB_DIR/x && echo more >>$other/x && cat $AMPHI_JOB_DIR/x";
    let all = args(&["--json", "--stage-in", "in", "--stage-out", "x:out/x", "--", "sh", "-c", script]);
    let out = site.run(&all.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(out.status.code(), Some(0));
    assert_eq!(std::fs::read(site.place.path("out/x")).expect("brought out"), b"bytesmore\n");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let report: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    assert_eq!(report["nodes"], serde_json::json!(["n1", "n2"]));
    site.nothing_left();

    let all = args(&[]);
    let (mut job, mount) = site.started(&all.iter().map(String::as_str).collect::<Vec<_>>());
    let second = mount.display().to_string().replace("/n1/", "/n2/");
    assert_ne!(second, mount.display().to_string());
    let server = processes(&["server", "--with-parent", second.trim_end_matches("mnt")]);
    assert!(!server.is_empty());
    server.iter().for_each(|pid| kill_process(*pid, Signal::KILL).expect("kill"));
    assert_eq!(job.wait().expect("wait").code(), Some(1));
    site.nothing_left();

    // A node that cannot be reached ends the start, and the others are cleaned.
    let fails = site.place.path("fails");
    std::fs::write(&fails, "#!/bin/sh\n[ $1 = n1 ] || exit 1\nshift\nexec \"$@\"\n").expect("write");
    std::fs::set_permissions(&fails, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
    let mut all = args(&["--", "touch", "began"]);
    all[3] = format!("{} {{host}}", fails.display());
    let out = site.run(&all.iter().map(String::as_str).collect::<Vec<_>>());
    assert_ne!(out.status.code(), Some(0));
    assert!(!site.place.path("began").exists());
    site.nothing_left();
}

/// Goal: the nodes of a whole job of a batch system make one file system without orders from each other, with a key
/// that they all make; `amphi job clean --running` ends it on each node, and only that job's; a node without the others
/// says so and leaves nothing. Method: two "nodes" on this machine, as their prologs and epilogs start and end them.
#[test]
fn a_job_whose_nodes_hold_it() {
    let site = Site::new();
    let secret = site.place.path("secret");
    std::fs::write(&secret, "0b6d1f6e4a5c9c3e").expect("write");
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("chmod");
    for node in ["n1", "n2"] {
        std::fs::create_dir(site.scratch().join(node)).expect("mkdir");
    }
    let scratch = format!("{}/{{host}}", site.scratch().display());
    let key = |job: &str| {
        let out = amphi().args(["job", "key", "--secret"]).arg(&secret).args(["cluster", job]).output();
        String::from_utf8(out.expect("amphi starts").stdout).expect("digits")
    };
    assert_ne!(key("5"), key("6"));
    let hold = |job: &str, node: &str, nodes: &str, within: &str| {
        let mut command = amphi();
        command.args(["job", "hold", "--job", job, "--node", node, "--nodes", nodes, "--scratch", &scratch]);
        command.args(["--address", "127.0.0.1", "--size", "512M", "--within", within]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("amphi starts");
        child.stdin.take().expect("piped").write_all(key(job).as_bytes()).expect("write");
        child
    };
    let line_of = |child: &mut std::process::Child| {
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        line.trim_end().to_string()
    };
    let mut nodes = ["n1", "n2"].map(|node| hold("5", node, "n1,n2", "60"));
    let mounts = nodes.each_mut().map(|child| {
        let line = line_of(child);
        PathBuf::from(line.strip_prefix("ready ").unwrap_or_else(|| panic!("{line}")))
    });
    assert_eq!(mounts[0].display().to_string().replace("/n1/", "/n2/"), mounts[1].display().to_string());
    std::fs::write(mounts[0].join("x"), b"bytes").expect("write");
    assert_eq!(std::fs::read(mounts[1].join("x")).expect("read"), b"bytes");
    site.kept.borrow_mut().extend(site.place.memory());

    let clean = |job: &str, more: &[&str]| {
        let mut command = amphi();
        command.args(["job", "clean", "--job", job]).args(more);
        for node in ["n1", "n2"] {
            command.arg("--scratch").arg(site.scratch().join(node));
        }
        assert!(command.status().expect("amphi starts").success());
    };
    let mut other = hold("6", "n1", "n1", "60");
    let line = line_of(&mut other);
    let mount = PathBuf::from(line.strip_prefix("ready ").unwrap_or_else(|| panic!("{line}")));
    clean("5", &[]);
    assert!(mounts[0].join("x").exists(), "its keepers run");
    clean("5", &["--running"]);
    nodes.iter_mut().for_each(|child| _ = child.wait().expect("wait"));
    assert!(mounts.iter().all(|mount| !mount.exists()));
    std::fs::write(mount.join("y"), b"1").expect("the other job goes on");
    clean("6", &["--running"]);
    other.wait().expect("wait");
    site.nothing_left();

    let mut alone = hold("7", "n1", "n1,n2", "5");
    let line = line_of(&mut alone);
    assert!(line.starts_with("failed ") && line.ends_with(" ready within 5 s"), "{line}");
    assert_eq!(alone.wait().expect("wait").code(), Some(1));
    site.nothing_left();
}
