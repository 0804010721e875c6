//! How commands connect to a server if they query servers directly.
//!
//! Owns: the options for addresses of servers and for the credentials, connecting to the first that answers, one
//! request. Does not own: the requests themselves (`status`, `key`, `evict`).

use crate::secure::LeastSecure;
use amphi_env::RealEnv;
use amphi_host::failure::{Failure, Outcome};
use amphi_host::link::{Credentials, all_errors, link_config, link_failure};
use amphi_transport::{CallOptions, Link, LinkConfig, LinkEvents, Recovery};
use amphi_types::{Cred, Errno, TargetId};
use amphi_wire::{Call, Lane, Push, Reply, Request, Role};
use clap::Args;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The servers, and the identity with which the command connects.
#[derive(Args, Debug)]
pub(super) struct Reach {
    /// Address of a server: unix:PATH or tcp:HOST:PORT; may be repeated; the addresses are tried in turn
    #[arg(long, required = true, value_name = "ADDR")]
    cluster: Vec<String>,
    /// File with the cluster key
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// File with a key pair of one's own; its key has the role admin
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
    #[command(flatten)]
    secure: LeastSecure,
}

/// Handles events of a link whose client has no state that it would have to present again.
pub(super) struct Silent;

impl LinkEvents<RealEnv> for Silent {
    fn push(&self, _push: Push) {}

    async fn restarted(&self, _recovery: Recovery<RealEnv>) -> Result<(), Errno> {
        Ok(())
    }
}

/// The configuration of a link of a command.
pub(super) fn config(addrs: Vec<String>, proves: &Credentials) -> io::Result<LinkConfig> {
    link_config(addrs, Role::Admin, proves.clone()).map_err(|e| io::Error::other(e.text))
}

/// Connects to the first of `addrs` that answers.
pub(super) async fn connect<'a>(
    env: &RealEnv,
    addrs: &'a [String],
    proves: &Credentials,
) -> io::Result<(&'a str, Rc<Link<RealEnv>>)> {
    let mut errors = Vec::new();
    for addr in addrs {
        match Link::connect(env.clone(), config(vec![addr.clone()], proves)?, Rc::new(Silent)).await {
            Ok(link) => return Ok((addr, link)),
            Err(e) => errors.push(e),
        }
    }
    Err(all_errors(errors))
}

/// Sends one request to one server and returns its answer.
pub(super) async fn ask_one(link: &Link<RealEnv>, op: Request, limit: Duration) -> Result<Reply, Errno> {
    let call = Call { target: TargetId(0), cred: Cred::root(), op };
    let options = CallOptions { lane: Lane::Normal, pad: 0, deadline: Some(limit), insist: false };
    link.call_with(options, call, None).await.map_err(Errno::from)?.0.result
}

impl Reach {
    /// Asks the master of the cluster, whichever of its servers was named.
    ///
    /// Errors: what the servers refuse, with their reason.
    pub(super) fn ask_master(&self, op: Request) -> Outcome<Reply> {
        let proves = self.secure.of(Credentials::read(self.key.as_deref(), self.identity.as_deref())?);
        let asked = RealEnv::run(Duration::ZERO, async |env| -> io::Result<Outcome<Reply>> {
            let (addr, link) = connect(&env, &self.cluster, &proves).await?;
            let failed = |addr: &str, e: Errno| match e {
                Errno::Perm => Failure::refused(format!("{addr}: only administrators may do this: {e}")),
                e => Failure::broken(format!("{addr}: {e}")),
            };
            let first = ask_one(&link, op.clone(), PATIENCE).await;
            link.close().await;
            let Ok(Reply::Map(map)) = first else { return Ok(first.map_err(|e| failed(addr, e))) };
            // The server is not the master, but knows the address of the master.
            let master = map.servers.first().map(|s| s.addrs.clone()).unwrap_or_default();
            let (addr, link) = connect(&env, &master, &proves).await?;
            let answer = ask_one(&link, op, PATIENCE).await;
            link.close().await;
            Ok(answer.map_err(|e| failed(addr, e)))
        });
        match asked.map_err(|e| link_failure(&e))?? {
            Reply::Refused(why) => Err(Failure::refused(why)),
            reply => Ok(reply),
        }
    }
}
