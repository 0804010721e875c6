//! `amphi status`: servers, targets, space and clients of a cluster, asked through a mount or directly.

use super::reach::{self, Silent, ask_one};
use crate::secure::LeastSecure;
use amphi_client::status;
use amphi_env::{Env, RealEnv};
use amphi_host::failure::{During, Failure, Outcome};
use amphi_host::link::Credentials;
use amphi_host::{control, size};
use amphi_transport::{Link, LinkConfig};
use amphi_types::Errno;
use amphi_wire::{Reply, Request, ServerInfo};
use clap::Args;
use futures_util::future::join_all;
use serde_json::Value;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

/// How long the server that was named may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a mount may take, which gives each server two seconds.
const MOUNT_PATIENCE: Duration = Duration::from_secs(8);
/// How long each other server may take to answer.
const OTHERS: Duration = Duration::from_secs(2);

/// Show servers, targets, space and clients of a cluster.
#[derive(Args, Debug)]
pub struct Status {
    /// Mount point, or any file or directory there; default: the only mount here
    mount: Option<PathBuf>,
    /// Ask any server of the cluster directly: unix:PATH or tcp:HOST:PORT; may be repeated; the addresses are tried in
    /// turn
    #[arg(long, value_name = "ADDR", conflicts_with = "mount")]
    cluster: Vec<String>,
    /// File with the cluster key
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// File with your own key pair
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
    #[command(flatten)]
    secure: LeastSecure,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Status {
    /// Queries the status and prints it.
    pub fn run(self) -> Outcome {
        let text = if self.cluster.is_empty() {
            of_mount(control::find_mount(self.mount, "")?)?
        } else {
            let proves = Credentials::read(self.key.as_deref(), self.identity.as_deref())?;
            let proves = self.secure.of(proves);
            RealEnv::run(Duration::ZERO, |env| ask(env, self.cluster, proves))
                .map_err(|e| amphi_host::link::link_failure(&e))?
        };
        let json: Value =
            serde_json::from_str(&text).map_err(|e| Failure::broken(format!("the status of the cluster: {e}")))?;
        if self.json {
            println!("{text}");
        } else {
            print!("{}", render(&json));
        }
        let servers = list(&json, "servers");
        let down: Vec<String> = servers.iter().filter(|s| !is(s, "up")).map(|s| self::text(s, "name")).collect();
        if !down.is_empty() {
            return Err(Failure::broken(format!("no answer from {}", down.join(", "))));
        }
        match list(&json, "targets").iter().map(|t| number(t, "damaged_blocks")).sum::<u64>() {
            0 => Ok(()),
            n => Err(Failure::broken(format!(
                "{n} blocks of file data are damaged, and reading them fails; write them anew or remove their files"
            ))),
        }
    }
}

/// The status that the mount of `path` gives.
///
/// The kernel may first ask the mount who may read `path`, and the mount may ask its servers. If none of these can be
/// reached, this ends only after `transport.give_up_s`, so the command does not wait for it.
pub fn of_mount(path: PathBuf) -> Outcome<String> {
    let (answer, answered) = mpsc::channel();
    let asked = path.clone();
    let ask = move || drop(answer.send(control::read_long(&asked, "user.amphi.status")));
    std::thread::Builder::new().name("status".into()).spawn(ask).during(|| "start a thread".into())?;
    answered.recv_timeout(MOUNT_PATIENCE).unwrap_or_else(|_| {
        let shown = path.display();
        let source = control::source_of(&path).unwrap_or_else(|| "unknown source".into());
        Err(Failure::broken(format!(
            "{shown}: DOWN: the mount has not answered for {} s, as when its server cannot be reached (mounted from \
             {source}); once it is back, calls that wait go on",
            MOUNT_PATIENCE.as_secs()
        )))
    })
}

/// The status of the cluster of which one of `addrs` is a server.
async fn ask(env: RealEnv, addrs: Vec<String>, proves: Credentials) -> io::Result<String> {
    let (addr, link) = reach::connect(&env, &addrs, &proves).await?;
    let failed = |e: Errno| io::Error::other(format!("{addr}: {e}"));
    let map = match ask_one(&link, Request::Map, PATIENCE).await {
        Ok(Reply::Map(map)) => map,
        Ok(_) => return Err(failed(Errno::Proto)),
        Err(e) => return Err(failed(e)),
    };
    let answers = if map.servers.len() == 1 {
        vec![Some(ask_one(&link, Request::Status, PATIENCE).await.map_err(failed)?)]
    } else {
        let config = reach::config(Vec::new(), &proves)?;
        join_all(map.servers.iter().map(|s| ask_server(&env, &config, s))).await
    };
    link.close().await;
    Ok(status::json(&map, &answers))
}

/// The answer of one server of the map, if it gives one soon.
async fn ask_server(env: &RealEnv, config: &LinkConfig, server: &ServerInfo) -> Option<Reply> {
    let whole = async {
        let session = amphi_types::SessionId(env.rand());
        let config = LinkConfig { addrs: server.addrs.clone(), session, ..config.clone() };
        let link = Link::connect(env.clone(), config, Rc::new(Silent)).await.ok()?;
        let answer = ask_one(&link, Request::Status, OTHERS).await.ok();
        link.close().await;
        answer
    };
    amphi_env::timeout(env, OTHERS, whole).await.flatten()
}

fn number(v: &Value, name: &str) -> u64 {
    v.get(name).and_then(Value::as_u64).unwrap_or(0)
}

fn text(v: &Value, name: &str) -> String {
    v.get(name).and_then(Value::as_str).unwrap_or("?").to_string()
}

fn list(v: &Value, name: &str) -> Vec<Value> {
    v.get(name).and_then(Value::as_array).cloned().unwrap_or_default()
}

fn is(v: &Value, name: &str) -> bool {
    v.get(name).and_then(Value::as_bool).unwrap_or(false)
}

/// `0-3 8`: numbers with runs put together.
fn runs(numbers: &[u64]) -> String {
    let mut out: Vec<(u64, u64)> = Vec::new();
    for &n in numbers {
        match out.last_mut() {
            Some((_, end)) if *end + 1 == n => *end = n,
            _ => out.push((n, n)),
        }
    }
    let shown = |(a, b): &(u64, u64)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    out.iter().map(shown).collect::<Vec<_>>().join(" ")
}

fn render(status: &Value) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    let (servers, targets) = (list(status, "servers"), list(status, "targets"));
    let sum = |name| targets.iter().map(|t| number(t, name)).sum::<u64>() * 4096;
    let (all, free) = (sum("blocks"), sum("blocks_free"));
    let _ = writeln!(
        out,
        "cluster {} epoch {}, {}, {} of {} used",
        text(status, "cluster"),
        number(status, "epoch"),
        match servers.first() {
            Some(master) if !is(master, "up") => "its master does not answer".into(),
            _ => format!("up {} s", number(status, "uptime_s")),
        },
        size::show(all.saturating_sub(free)),
        size::show(all)
    );
    for (i, s) in servers.iter().enumerate() {
        let own: Vec<u64> = list(s, "targets").iter().filter_map(Value::as_u64).collect();
        let addrs: Vec<String> = list(s, "addrs").iter().filter_map(|a| a.as_str().map(str::to_owned)).collect();
        let _ = writeln!(
            out,
            "server {:<12} {:<4} {:<6} targets {} {}",
            text(s, "name"),
            if is(s, "up") { "up" } else { "DOWN" },
            if i == 0 { "master" } else { "" },
            runs(&own),
            if addrs.is_empty() { "in its own process".into() } else { addrs.join(" ") }
        );
        if number(s, "silent_ms") > 0 {
            let _ = writeln!(out, "       {:<12} not heard of for {} s", "", number(s, "silent_ms") / 1000);
        }
    }
    for t in &targets {
        let (blocks, free) = (number(t, "blocks"), number(t, "blocks_free"));
        let _ = writeln!(
            out,
            "target {:<4} {:<12} worker {:<3} {:>10} of {:>10} used, {:>9} inodes, log {:>3} % used, {} checkpoints{}{}{}",
            number(t, "target"),
            text(t, "server"),
            number(t, "worker"),
            size::show(blocks.saturating_sub(free) * 4096),
            size::show(blocks * 4096),
            number(t, "inodes"),
            100 * number(t, "log_used_bytes") / number(t, "log_bytes").max(1),
            number(t, "checkpoints"),
            if is(t, "rotating") { ", rotating" } else { "" },
            match number(t, "damaged_blocks") {
                0 => String::new(),
                n => format!(", {n} DAMAGED BLOCKS"),
            },
            match number(t, "rebuilt_blocks") {
                0 => String::new(),
                n => format!(", {n} damaged blocks of metadata rebuilt"),
            },
        );
        let findings = list(t, "findings");
        for line in findings.iter().filter_map(Value::as_str) {
            let _ = writeln!(out, "       damaged: {line}");
        }
        let others = number(t, "damaged_blocks").saturating_sub(findings.len() as u64);
        if others > 0 && !findings.is_empty() {
            let _ = writeln!(out, "       and {others} more");
        }
    }
    for s in list(status, "sessions") {
        let _ = writeln!(
            out,
            "client {} {}{} {}{}{}, {} open, {} locks",
            text(&s, "session"),
            text(&s, "name"),
            match s.get("key").and_then(Value::as_str) {
                None | Some("") => String::new(),
                Some(key) => match s.get("subtree").and_then(Value::as_str) {
                    None | Some("") => format!(" key {key}"),
                    Some(tree) => format!(" key {key} in {}", tree.escape_debug()),
                },
            },
            if is(&s, "connected") { "connected" } else { "not connected" },
            match s.get("secure").and_then(Value::as_str) {
                Some(level @ ("off" | "mac" | "tls")) => format!(" secure {level}"),
                _ => String::new(),
            },
            if is(&s, "memory") { " shared memory" } else { "" },
            number(&s, "opens"),
            number(&s, "locks"),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_types::TargetId;
    use amphi_wire::{ClusterMap, ServerStatus, TargetSpace, TargetStatus};

    fn server(id: u64, name: &str, targets: &[u16]) -> ServerInfo {
        let targets = targets.iter().map(|t| TargetId(*t)).collect();
        ServerInfo { id, name: name.into(), addrs: vec![format!("tcp:{name}:1")], targets }
    }

    /// Goal: a server that is down is shown as such, with its targets; everything in the map and the answers is shown,
    /// and the output is valid JSON. Method: a made-up cluster of two servers, one of which does not answer.
    #[test]
    fn a_server_that_is_down_is_shown() {
        let map =
            ClusterMap { epoch: 7, cluster: 0xab, servers: vec![server(1, "a\"b", &[0, 1, 3]), server(2, "c", &[2])] };
        let up = Reply::Status {
            uptime_s: 5,
            cluster: 0xab,
            targets: Vec::new(),
            sessions: Vec::new(),
            map_epoch: 7,
            servers: vec![ServerStatus {
                info: server(2, "c", &[2]),
                up: false,
                epoch: 7,
                silent_ms: 9100,
                targets: vec![TargetStatus {
                    target: TargetId(2),
                    worker: 0,
                    space: TargetSpace::default(),
                    log: (0, 0),
                    checkpoints: 0,
                    rotating: true,
                    damaged: 9,
                    findings: vec!["/d/f (inode 7): 4096 bytes from byte 0 on (byte 5 of the disk)".into()],
                    rebuilt: 3,
                }],
            }],
        };
        let json = serde_json::from_str(&status::json(&map, &[Some(up), None])).expect("JSON");
        let shown = render(&json);
        for words in [
            "epoch 7",
            "ab           up   master targets 0-1 3 tcp:a",
            "c            DOWN        targets 2 tcp:c:1",
            "not heard of for 9 s",
            "target 2    c ",
            "0 checkpoints, rotating, 9 DAMAGED BLOCKS, 3 damaged blocks of metadata rebuilt",
            "       damaged: /d/f (inode 7): 4096 bytes from byte 0 on (byte 5 of the disk)",
            "       and 8 more",
        ] {
            assert!(shown.contains(words), "{words:?} in {shown}");
        }
        let json = serde_json::from_str(&status::json(&map, &[None, None])).expect("JSON");
        let shown = render(&json);
        assert!(shown.contains("its master does not answer") && !shown.contains("up 0 s"), "{shown}");
    }
}
