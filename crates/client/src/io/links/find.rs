//! Finding the master: any server knows the cluster map.

use amphi_env::Env;
use amphi_env::addr::Addr;
use amphi_transport::{CallOptions, Link, LinkConfig, LinkEvents, Recovery, Timeouts};
use amphi_types::{Cred, Errno, SessionId, TargetId};
use amphi_wire::{Call, ClusterMap, Lane, Push, Reply, Request, Role};
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

/// The result of a search for the master.
pub(super) struct Found {
    /// The addresses of the master.
    pub(super) addrs: Vec<String>,
    /// The cluster map in the answer, or `None` from the only server of a cluster, which keeps no map.
    pub(super) map: Option<ClusterMap>,
}

/// Returns whether an address that a server reports about itself can lead to it. An address that means all addresses of
/// its machine cannot.
pub(super) fn leads_here(addr: &str) -> bool {
    let unspecified = |host: &str| host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified());
    !matches!(Addr::parse(addr), Ok(Addr::Tcp(host, _)) if unspecified(&host))
}

struct Deaf;

impl<E: Env> LinkEvents<E> for Deaf {
    fn push(&self, _: Push) {}

    async fn restarted(&self, _: Recovery<E>) -> Result<(), Errno> {
        Ok(())
    }
}

/// Sends a request to the servers at the configured addresses in turn until one answers, for as many attempts as the
/// time for connecting permits.
///
/// Errors: one line with the fault of each address.
pub(super) async fn master<E: Env>(env: &E, config: &LinkConfig) -> io::Result<Found> {
    let begun = env.now();
    let mut pause = config.timeouts.backoff_min;
    loop {
        let mut errors = Vec::new();
        for addr in &config.addrs {
            match ask(env, config, addr).await.and_then(|map| found(config, addr, map)) {
                Ok(found) => return Ok(found),
                Err(e) => errors.push(e),
            }
        }
        if env.now().since(begun) >= config.timeouts.first_connect {
            return Err(all(errors));
        }
        env.sleep(pause).await;
        pause = (pause * 2).min(config.timeouts.backoff_max);
    }
}

/// Combines several errors into one.
fn all(mut errors: Vec<io::Error>) -> io::Error {
    match errors.len() {
        0 => io::Error::new(io::ErrorKind::InvalidInput, "no address to connect to"),
        1 => errors.remove(0),
        _ => {
            let kind = errors[0].kind();
            let kind = if errors.iter().all(|e| e.kind() == kind) { kind } else { io::ErrorKind::Other };
            let lines: Vec<String> = errors.iter().map(io::Error::to_string).collect();
            io::Error::new(kind, lines.join("; "))
        }
    }
}

/// The map that the server at `addr` has.
async fn ask<E: Env>(env: &E, config: &LinkConfig, addr: &str) -> io::Result<Option<ClusterMap>> {
    let timeouts = Timeouts { first_connect: Duration::ZERO, ..config.timeouts };
    let asker = LinkConfig {
        addrs: vec![addr.to_owned()],
        session: SessionId(env.rand()),
        role: Role::Admin,
        timeouts,
        ..config.clone()
    };
    let link = Link::connect(env.clone(), asker, Rc::new(Deaf)).await?;
    let call = Call { target: TargetId(0), cred: Cred::root(), op: Request::Map };
    let options = CallOptions { lane: Lane::Normal, pad: 0, deadline: Some(timeouts.connect), insist: false };
    let answer = link.call_with(options, call, None).await;
    link.close().await;
    match answer.map_err(Errno::from).and_then(|(answer, _)| answer.result) {
        Ok(Reply::Map(map)) => Ok(Some(map)),
        Err(Errno::Perm | Errno::Proto | Errno::NoSys) => Ok(None),
        Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, format!("{addr}: gave another answer than a map"))),
        Err(e) => Err(io::Error::other(format!("{addr}: has no cluster map: {e}"))),
    }
}

fn found(config: &LinkConfig, addr: &str, map: Option<ClusterMap>) -> io::Result<Found> {
    let mut addrs = vec![addr.to_owned()];
    let mut add = |more: &[String]| {
        for a in more.iter().filter(|a| leads_here(a)) {
            if !addrs.contains(a) {
                addrs.push(a.clone());
            }
        }
    };
    let Some(map) = map else {
        add(&config.addrs);
        return Ok(Found { addrs, map: None });
    };
    match &map.servers[..] {
        [] => return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{addr}: its cluster map is empty"))),
        // The only server is the one that answered, whatever its name is.
        [only] => {
            add(&config.addrs);
            add(&only.addrs);
        }
        [master, ..] if master.addrs.iter().any(|a| a == addr) => add(&master.addrs),
        [master, ..] if !master.addrs.iter().any(|a| leads_here(a)) => {
            let line =
                format!("{addr}: the master, server {}, does not listen where other processes reach it", master.name);
            return Err(io::Error::new(io::ErrorKind::NotFound, line));
        }
        [master, ..] => addrs = master.addrs.iter().filter(|a| leads_here(a)).cloned().collect(),
    }
    Ok(Found { addrs, map: Some(map) })
}
