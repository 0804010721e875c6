//! `amphi status`: targets, space and sessions of a server, asked through a mount or directly.

use crate::failure::{Failure, Outcome};
use crate::{control, process, size};
use amphi_env::RealEnv;
use amphi_transport::{Link, LinkEvents, Recovery};
use amphi_types::{Cred, Errno, TargetId};
use amphi_wire::{Call, Lane, Push, Reply, Request, Role};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Show targets, space and sessions of a cluster.
#[derive(Args, Debug)]
pub struct Status {
    /// Mount point; default: the only mount here
    mount: Option<PathBuf>,
    /// Ask a server directly: unix:PATH or tcp:HOST:PORT
    #[arg(long, value_name = "ADDR", conflicts_with = "mount")]
    cluster: Option<String>,
    /// File with the cluster key
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

struct Silent;

impl LinkEvents<RealEnv> for Silent {
    fn push(&self, _push: Push) {}

    async fn restarted(&self, _recovery: Recovery<RealEnv>) -> Result<(), Errno> {
        Ok(())
    }
}

impl Status {
    /// Asks and prints.
    pub fn run(self) -> Outcome {
        let status = match &self.cluster {
            Some(addr) => ask(addr, self.key.as_deref())?,
            None => {
                let text = control::read(&control::find_mount(self.mount)?, "user.amphi.status")?;
                serde_json::from_str(&text).map_err(|e| Failure::broken(format!("the server's status: {e}")))?
            }
        };
        if self.json {
            println!("{status}");
        } else {
            print!("{}", render(&status));
        }
        Ok(())
    }
}

fn ask(addr: &str, key: Option<&std::path::Path>) -> Outcome<Value> {
    let config =
        process::link_config(vec![addr.to_string()], Role::Admin, process::read_key(key)?.map(|(_, key)| key))?;
    let reply = RealEnv::run(Duration::ZERO, |env| async move {
        let link = Link::connect(env.clone(), config, Rc::new(Silent)).await?;
        let call = Call { target: TargetId(0), cred: Cred::root(), op: Request::Status };
        let answer = amphi_env::timeout(&env, PATIENCE, link.call(Lane::Normal, call, None, 0)).await;
        link.close().await;
        match answer {
            Some(Ok((answer, _))) => Ok(answer.result),
            Some(Err(e)) => Ok(Err(e.errno())),
            None => Ok(Err(Errno::TimedOut)),
        }
    });
    match reply.map_err(|e| process::link_failure(&e))? {
        Ok(Reply::Status { uptime_s, cluster, targets, sessions }) => Ok(json!({
            "uptime_s": uptime_s,
            "cluster": format!("{cluster:016x}"),
            "targets": targets.iter().map(|t| json!({
                "target": t.target.0, "worker": t.worker, "blocks": t.space.blocks, "blocks_free": t.space.free,
                "inodes": t.space.inodes, "inodes_free": t.space.inodes_free, "log_used_bytes": t.log.0,
                "log_bytes": t.log.1, "checkpoints": t.checkpoints,
            })).collect::<Vec<_>>(),
            "sessions": sessions.iter().map(|s| json!({
                "session": format!("{:016x}", s.session.0), "name": s.name, "connected": s.connected,
                "opens": s.opens, "locks": s.locks,
            })).collect::<Vec<_>>(),
        })),
        Ok(_) => Err(Failure::broken(format!("{addr}: the server gave another answer than its status"))),
        Err(e) => Err(Failure::broken(format!("{addr}: {e}"))),
    }
}

fn render(status: &Value) -> String {
    use std::fmt::Write as _;
    let number = |v: &Value, name: &str| v.get(name).and_then(Value::as_u64).unwrap_or(0);
    let text = |v: &Value, name: &str| v.get(name).and_then(Value::as_str).unwrap_or("?").to_string();
    let list = |name: &str| status.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let mut out = String::new();
    let _ = writeln!(out, "cluster {} up {} s", text(status, "cluster"), number(status, "uptime_s"));
    for t in list("targets") {
        let (blocks, free) = (number(&t, "blocks"), number(&t, "blocks_free"));
        let _ = writeln!(
            out,
            "target {:<4} worker {:<3} {:>10} of {:>10} used, {:>9} inodes, log {:>3} % used, {} checkpoints",
            number(&t, "target"),
            number(&t, "worker"),
            size::show(blocks.saturating_sub(free) * 4096),
            size::show(blocks * 4096),
            number(&t, "inodes"),
            100 * number(&t, "log_used_bytes") / number(&t, "log_bytes").max(1),
            number(&t, "checkpoints"),
        );
    }
    for s in list("sessions") {
        let connected = s.get("connected").and_then(Value::as_bool).unwrap_or(false);
        let _ = writeln!(
            out,
            "session {} {} {}, {} open, {} locks",
            text(&s, "session"),
            text(&s, "name"),
            if connected { "connected" } else { "not connected" },
            number(&s, "opens"),
            number(&s, "locks"),
        );
    }
    out
}
