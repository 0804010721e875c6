//! Servers and mounts on machines of their own: network name spaces with links that are cut and restored.

use crate::harness::{Daemon, Place, Starting, amphi, as_first_start, eventually, pattern};
use rustix::fs::{Mode, OFlags, fsync, open};
use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SERVERS: usize = 3;
/// Mounts at the same time.
const MOUNTS: usize = 2;

/// A network name space, held by a process that does nothing.
pub(crate) struct Machine {
    holder: Child,
}

impl Machine {
    fn new() -> Option<Machine> {
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", "echo up; exec sleep 3600"]);
        let mut holder = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let mut line = String::new();
        use std::io::BufRead;
        std::io::BufReader::new(holder.stdout.take()?).read_line(&mut line).ok()?;
        let machine = Machine { holder };
        (line == "up\n").then_some(machine)
    }

    /// A command that runs on that machine, but with the files of this machine.
    fn command(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args([format!("--net=/proc/{}/ns/net", self.holder.id()), "--".into()]);
        command
    }

    fn ip(&self, args: &str) -> bool {
        let status = self.command().arg("ip").args(args.split(' ')).stderr(Stdio::null()).status();
        status.is_ok_and(|s| s.success())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Machines with a switch between them; machine `i` is 10.77.0.`i + 1`.
pub(crate) struct Network {
    switch: Machine,
    machines: Vec<Machine>,
}

impl Network {
    /// None if name spaces or pairs of interfaces cannot be made.
    pub(crate) fn new(machines: usize) -> Option<Network> {
        let switch = Machine::new()?;
        let mut network = Network { switch, machines: Vec::new() };
        let ready = network.switch.ip("link add switch type bridge") && network.switch.ip("link set switch up");
        for i in 0..machines {
            let machine = Machine::new()?;
            let peer = machine.holder.id();
            let ready = network.switch.ip(&format!("link add port{i} type veth peer name eth0 netns {peer}"))
                && network.switch.ip(&format!("link set port{i} master switch up"))
                && machine.ip("link set lo up")
                && machine.ip(&format!("addr add 10.77.0.{}/24 dev eth0", i + 1))
                && machine.ip("link set eth0 up");
            if !ready {
                return None;
            }
            network.machines.push(machine);
        }
        ready.then_some(network)
    }

    /// Runs `amphi` there to its end.
    pub(crate) fn run(&self, machine: usize, args: &[&str]) -> Output {
        let mut command = self.machines[machine].command();
        command.arg(amphi().get_program()).args(args).output().expect("nsenter (util-linux) runs")
    }

    /// Moves the calling thread to a machine: sockets that it makes from now on are there.
    pub(crate) fn enter(&self, machine: usize) {
        use std::os::fd::AsFd;
        let path = format!("/proc/{}/ns/net", self.machines[machine].holder.id());
        let space = fs::File::open(path).expect("the name space of a machine");
        let net = Some(rustix::thread::LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(space.as_fd(), net).expect("root may enter it");
    }

    pub(crate) fn cut(&self, machine: usize) {
        assert!(self.switch.ip(&format!("link set port{machine} down")));
    }

    pub(crate) fn heal(&self, machine: usize) {
        assert!(self.switch.ip(&format!("link set port{machine} up")));
    }

    pub(crate) fn start(&self, machine: usize, args: &[&str]) -> Starting {
        let mut command = self.machines[machine].command();
        command.arg(amphi().get_program()).args(as_first_start(args));
        Starting::spawn(command)
    }
}

fn server(network: &Network, place: &Place, k: usize) -> Starting {
    let (data, key, listen) = (place.text(&format!("s{k}")), place.text("key"), format!("tcp:10.77.0.{}:7100", k + 1));
    let mut args = vec!["server", "--data", &data, "--key", &key, "--listen", &listen];
    args.extend_from_slice(&["--targets", "2", "--zone-size", "256M", "--log-size", "16M"]);
    if k > 0 {
        args.extend_from_slice(&["--join", "tcp:10.77.0.1:7100"]);
    }
    network.start(k, &args)
}

/// Goal: servers and mounts on different machines lose nothing while links are cut and restored: calls wait, also over
/// a cut that outlasts the connections. Method: a worker on each mount makes, links, renames, appends and syncs. Each
/// machine is cut off in turn, once for longer than a connection lives without a message. Then everything is compared.
#[test]
fn links_are_cut_and_restored() {
    let place = Place::new();
    let Some(network) = Network::new(SERVERS + MOUNTS) else {
        eprintln!("skipped: network name spaces may not be made here; run as root");
        return;
    };
    place.key("key", "a key that nobody guesses");
    let starting: Vec<Starting> = (0..SERVERS).map(|k| server(&network, &place, k)).collect();
    let servers: Vec<Daemon> = starting.into_iter().map(Starting::ready).collect();
    let dirs: Vec<_> =
        (0..MOUNTS).map(|i| if i == 0 { place.mount() } else { place.path(&format!("mount{i}")) }).collect();
    let mut mounts = Vec::new();
    for (i, dir) in dirs.iter().enumerate() {
        fs::create_dir_all(dir).expect("mkdir");
        let (key, dir) = (place.text("key"), dir.display().to_string());
        let args = ["mount", "--key", &key, "--cluster", "tcp:10.77.0.3:7100", &dir];
        mounts.push(network.start(SERVERS + i, &args).ready());
    }
    let mut workers = Vec::new();
    for (i, dir) in dirs.iter().enumerate() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (dir, rounds) = (dir.clone(), Arc::new(AtomicU64::new(0)));
        let done = rounds.clone();
        let worker = std::thread::spawn(move || {
            let log = dir.join(format!("log{i}"));
            let log =
                open(log, OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND, Mode::from_raw_mode(0o644)).expect("open");
            let mut n = 0u64;
            while stopped.try_recv().is_err() {
                let own = dir.join(format!("m{i}d{}", n % 13));
                match fs::create_dir(&own) {
                    Ok(()) => {}
                    Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::AlreadyExists, "mkdir: {e}"),
                }
                fs::write(own.join("new"), pattern(n, 30_000)).expect("write");
                fs::hard_link(own.join("new"), dir.join(format!("m{i}l{n}"))).expect("link");
                fs::rename(own.join("new"), own.join(format!("f{n}"))).expect("rename");
                assert_eq!(rustix::io::write(&log, &n.to_le_bytes()).expect("append"), 8);
                fsync(&log).expect("fsync");
                n += 1;
                done.store(n, Ordering::Relaxed);
            }
            n
        });
        workers.push((stop, worker, rounds));
    }
    for (machine, ms) in [(1, 1500), (3, 800), (0, 2500), (2, 23_000), (3, 3000), (1, 300), (0, 1000)] {
        std::thread::sleep(Duration::from_millis(700));
        network.cut(machine);
        std::thread::sleep(Duration::from_millis(ms));
        network.heal(machine);
    }
    // On a busy machine a round takes some seconds.
    eventually("all go on behind the cuts", || workers.iter().all(|(_, _, n)| n.load(Ordering::Relaxed) > 20));
    let made: Vec<u64> = workers
        .into_iter()
        .map(|(stop, worker, _)| {
            stop.send(()).expect("worker runs");
            worker.join().expect("no call failed")
        })
        .collect();
    for dir in &dirs {
        for (i, n) in made.iter().enumerate() {
            assert_eq!(fs::metadata(dir.join(format!("log{i}"))).expect("log").len(), 8 * n);
            for k in 0..*n {
                let path = dir.join(format!("m{i}d{}/f{k}", k % 13));
                assert!(fs::read(&path).expect("file is there") == pattern(k, 30_000), "{}", path.display());
                assert!(dir.join(format!("m{i}l{k}")).exists());
            }
        }
    }
    mounts.into_iter().for_each(Daemon::stop);
    servers.into_iter().for_each(Daemon::stop);
    place.fsck_of(&["s0", "s1", "s2"]);
}
