//! Machines of their own for the servers and for each mount: network name spaces, each mount's behind a link of limited
//! speed.
//!
//! On one machine all mounts share its processors and its memory, so a mount that waits for another's lock loses
//! little: the other uses the processor meanwhile. Behind links of their own, mounts that wait for each other leave
//! their links idle, as the nodes of a cluster do.
//!
//! Owns: the name spaces (each held by a process that does nothing), the switch between them, the limits. Needs root,
//! `ip` and `tc`. Invariant: name spaces and interfaces are gone when the value is dropped: they end with their
//! holders.

use amphi_host::failure::{During, Failure, Outcome};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Bytes that may pass at once, at least; links of more than 1 Gbit/s need more for each tick of the kernel's clock.
const BURST_BYTES: u64 = 256 << 10;
/// Bits of a Mbit.
const MBIT: u64 = 1_000_000;

/// A network name space, held by a process that does nothing.
struct Machine {
    holder: Child,
}

impl Machine {
    fn start() -> Outcome<Machine> {
        let mut holder = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo up; exec sleep infinity"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .during(|| "start unshare".into())?;
        let stdout = holder.stdout.take();
        let machine = Machine { holder };
        let mut line = String::new();
        if let Some(stdout) = stdout {
            BufReader::new(stdout).read_line(&mut line).during(|| "make a network name space".into())?;
        }
        match line.as_str() {
            "up\n" => Ok(machine),
            _ => Err(Failure::refused("a network name space could not be made; run it as root")),
        }
    }

    /// The prefix of a command line that runs there, with the files of this machine.
    fn enter(&self) -> Vec<String> {
        vec!["nsenter".into(), format!("--net=/proc/{}/ns/net", self.holder.id()), "--".into()]
    }

    /// Runs a command there.
    fn run(&self, line: &str) -> Outcome {
        let enter = self.enter();
        let out = Command::new(&enter[0])
            .args(&enter[1..])
            .args(line.split(' '))
            .stdin(Stdio::null())
            .output()
            .during(|| format!("run {line}"))?;
        match out.status.success() {
            true => Ok(()),
            false => {
                let said = String::from_utf8_lossy(&out.stderr);
                Err(Failure::refused(format!("{line}: {}; links need root, ip and tc (iproute2)", said.trim())))
            }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// One machine for the servers, one for each mount, a switch between them.
pub struct Links {
    switch: Machine,
    machines: Vec<Machine>,
}

impl Links {
    /// Makes `mounts` machines behind links of `mbit` Mbit/s each way, and one without a limit.
    ///
    /// Errors: this user may not make name spaces, or `ip` or `tc` is missing.
    pub fn make(mounts: usize, mbit: u32) -> Outcome<Links> {
        let mut links = Links { switch: Machine::start()?, machines: Vec::new() };
        links.switch.run("ip link add switch type bridge")?;
        links.switch.run("ip link set switch up")?;
        for at in 0..=mounts {
            links.machines.push(Machine::start()?);
            let (switch, machine) = (&links.switch, &links.machines[at]);
            let peer = machine.holder.id();
            switch.run(&format!("ip link add port{at} type veth peer name eth0 netns {peer}"))?;
            switch.run(&format!("ip link set port{at} master switch up"))?;
            machine.run("ip link set lo up")?;
            machine.run(&format!("ip addr add {}/24 dev eth0", Links::address(at)))?;
            machine.run("ip link set eth0 up")?;
            if at > 0 {
                let burst = BURST_BYTES.max(u64::from(mbit) * MBIT / 8 / 250);
                let limit = format!("root tbf rate {mbit}mbit burst {burst} latency 50ms");
                machine.run(&format!("tc qdisc add dev eth0 {limit}"))?;
                switch.run(&format!("tc qdisc add dev port{at} {limit}"))?;
            }
        }
        Ok(links)
    }

    fn address(machine: usize) -> String {
        format!("10.78.0.{}", machine + 1)
    }

    /// Where the servers listen.
    pub fn listen() -> String {
        format!("tcp:{}:0", Links::address(0))
    }

    /// The prefix of a command of the servers.
    pub fn server(&self) -> Vec<String> {
        self.machines[0].enter()
    }

    /// The prefix of a command of mount `n`.
    pub fn mount(&self, n: usize) -> Vec<String> {
        self.machines[n + 1].enter()
    }
}
