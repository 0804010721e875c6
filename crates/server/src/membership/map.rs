//! The cluster map: which servers it contains, which servers may join, and whether a folder of zones belongs to it.
//!
//! Owns: the rules, as plain functions. Does not own: keeping the map (`zone_target`), requesting it
//! (`cluster::follower`), giving it (`cluster::master`).
//!
//! Invariants: target 0 is in the first server. Every target below the pool is in exactly one server. The targets of a
//! server never change. The epoch grows with each change. So there is only one answer per epoch to the question which
//! server has a target, and an answer stays right.

use crate::config::{ADDRS_MAX, NAME_MAX};
use crate::error::{ServerError, ServerErrorKind};
use crate::message::OpenReport;
use crate::records::HomeRecord;
use amphi_types::TargetId;
use amphi_types::limits::TARGETS_MAX;
use amphi_wire::{ClusterMap, ServerInfo};
use std::collections::BTreeSet;

/// The first map of a cluster.
pub fn first(cluster: u64, master: ServerInfo) -> ClusterMap {
    let map = ClusterMap { epoch: 1, cluster, servers: vec![master] };
    debug_assert_eq!(fault(&map), None, "the first server has the first targets");
    map
}

/// The fault of a map, if there is one.
pub fn fault(map: &ClusterMap) -> Option<&'static str> {
    let all: Vec<TargetId> = map.servers.iter().flat_map(|s| s.targets.iter().copied()).collect();
    let distinct: BTreeSet<TargetId> = all.iter().copied().collect();
    if map.server_of(TargetId(0)) != Some(0) {
        Some("its first server does not have target 0")
    } else if distinct.len() != all.len() {
        Some("a target has two servers")
    } else if distinct.last().is_some_and(|t| usize::from(t.0) >= all.len()) {
        Some("a target has no server")
    } else {
        None
    }
}

fn names(targets: &[TargetId]) -> String {
    let all: Vec<String> = targets.iter().map(|t| t.0.to_string()).collect();
    all.join(", ")
}

/// How a server is called in a line for people.
pub fn called(server: &ServerInfo) -> String {
    match server.addrs.first() {
        Some(addr) => format!("{} at {addr}", server.name),
        None => server.name.clone(),
    }
}

/// Numbers for `count` new targets.
///
/// Errors: the reason why there are none.
pub fn new_targets(map: &ClusterMap, count: u16) -> Result<Vec<TargetId>, String> {
    let pool = map.pool();
    if usize::from(pool) + usize::from(count) > TARGETS_MAX {
        return Err(format!("the cluster has {pool} targets, and {TARGETS_MAX} at most: {count} more are too many"));
    }
    debug_assert!((pool..pool + count).all(|t| map.server_of(TargetId(t)).is_none()), "new targets are nobody's");
    Ok((pool..pool + count).map(TargetId).collect())
}

/// Returns whether a server that the map does not know has addresses of its own. If it has those of another server, it
/// is most likely that server, with a folder that does not have its zones.
///
/// Errors: whose address it has, for people.
pub fn check_addresses(map: &ClusterMap, server: &ServerInfo) -> Result<(), String> {
    for other in map.servers.iter().filter(|s| s.id != server.id) {
        if let Some(addr) = other.addrs.iter().find(|a| server.addrs.contains(a)) {
            let (name, targets) = (&other.name, names(&other.targets));
            return Err(format!(
                "{addr} is the address of {name}, which has target {targets}: is its folder mounted? Put its zones back, or give this \
                 server an address of its own"
            ));
        }
    }
    Ok(())
}

/// Adds a server with its targets, or updates its description. Returns `None` if the map has that already.
///
/// Errors: the reason for the refusal, as text for the administrator.
pub fn take_in(map: &ClusterMap, server: &ServerInfo) -> Result<Option<ClusterMap>, String> {
    if server.targets.is_empty() {
        return Err("it has no targets".into());
    }
    if server.addrs.is_empty() || server.addrs.len() > ADDRS_MAX || server.name.len() > NAME_MAX {
        return Err(format!("it needs a name of at most {NAME_MAX} bytes and between 1 and {ADDRS_MAX} addresses"));
    }
    let mut next = ClusterMap { epoch: map.epoch + 1, ..map.clone() };
    if let Some(known) = next.servers.iter_mut().find(|s| s.id == server.id) {
        if known.targets != server.targets {
            return Err(format!(
                "it comes with target {}, but the cluster knows it with target {}; put back what is missing",
                names(&server.targets),
                names(&known.targets)
            ));
        }
        if known == server {
            return Ok(None);
        }
        *known = server.clone();
        return Ok(Some(next));
    }
    for target in &server.targets {
        if let Some(holder) = map.server_of(*target).and_then(|at| map.servers.get(at)) {
            return Err(format!(
                "{target} is claimed by two servers: {} has it, {} claims it; if this folder is a copy, do not use it; if its \
                 first start was interrupted, remove its target-*.zone files and start again",
                called(holder),
                called(server)
            ));
        }
    }
    check_addresses(map, server)?;
    if new_targets(map, server.targets.len() as u16)? != server.targets {
        return Err(format!(
            "its first start was interrupted: the next targets of the cluster are not {}; remove its target-*.zone files and \
             start again",
            names(&server.targets)
        ));
    }
    next.servers.push(server.clone());
    debug_assert_eq!(fault(&next), None, "a map that was sound stays sound");
    Ok(Some(next))
}

/// The data in a server's zones about the cluster to which they belong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Belonging {
    /// Cluster of the zones.
    pub cluster: u64,
    /// The server; `None` if its first start ended before that.
    pub home: Option<HomeRecord>,
    /// The map as kept last.
    pub map: Option<ClusterMap>,
}

/// Checks that the zones of a folder are all those of one server. `path` names a target's zone.
pub fn belonging(
    local: &[TargetId],
    reports: &[OpenReport],
    path: impl Fn(TargetId) -> String,
) -> Result<Belonging, ServerError> {
    let bad = |line: String| Err(ServerError::new(ServerErrorKind::Mismatch, line));
    let first = local.first().copied().unwrap_or_default();
    let cluster = reports.first().map_or(0, |h| h.cluster);
    for (target, report) in local.iter().zip(reports) {
        if report.cluster != cluster {
            return bad(format!(
                "{} belongs to cluster {:016x}, {} to {cluster:016x}; put each cluster's zones into a folder of its own",
                path(*target),
                report.cluster,
                path(first)
            ));
        }
    }
    let home = reports.iter().find_map(|h| h.home.clone());
    for (target, report) in local.iter().zip(reports) {
        let Some(own) = &report.home else { continue };
        if home.as_ref().is_some_and(|h| h.server != own.server) {
            return bad(format!(
                "{} and {} belong to different servers of the cluster; put each server's zones into a folder of its own",
                path(*target),
                path(first)
            ));
        }
        if own.targets != local {
            let missing: Vec<TargetId> = own.targets.iter().filter(|t| !local.contains(t)).copied().collect();
            let line = match missing.is_empty() {
                false => format!("the zone of target {} is missing; put it back", names(&missing)),
                true => format!("it belongs beside target {} alone; take the others out", names(&own.targets)),
            };
            return bad(format!("{}: {line}", path(*target)));
        }
    }
    if home.is_none() {
        // No session ever began here, or the zones are from a version without clusters of several servers.
        for (target, report) in local.iter().zip(reports) {
            if first == TargetId(0) && usize::from(report.pool) != local.len() {
                return bad(format!(
                    "{} belongs to a cluster of {} targets, but the folder has {}; put the missing ones back",
                    path(*target),
                    report.pool,
                    local.len()
                ));
            }
        }
    }
    Ok(Belonging { cluster, home, map: reports.iter().find_map(|h| h.map.clone()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(id: u64, targets: std::ops::Range<u16>) -> ServerInfo {
        let (name, addrs) = (format!("s{id}"), vec![format!("tcp:s{id}:1")]);
        ServerInfo { id, name, addrs, targets: targets.map(TargetId).collect() }
    }

    /// Goal: servers join with the next numbers, join again with the numbers that they have, and are refused with any
    /// others. Every map is valid.
    #[test]
    fn servers_come_in() {
        let map = first(7, server(1, 0..2));
        assert_eq!(new_targets(&map, 3), Ok(vec![TargetId(2), TargetId(3), TargetId(4)]));
        let map = take_in(&map, &server(2, 2..5)).unwrap().expect("new");
        assert_eq!((map.epoch, map.pool(), fault(&map)), (2, 5, None));
        assert_eq!(take_in(&map, &server(2, 2..5)), Ok(None), "known");
        let moved = ServerInfo { addrs: vec!["tcp:elsewhere:1".into()], ..server(2, 2..5) };
        assert_eq!(take_in(&map, &moved).unwrap().expect("moved").epoch, 3);
        for (who, words) in [
            (server(3, 4..6), "two servers"),
            (server(3, 0..2), "two servers"),
            (server(3, 6..8), "interrupted"),
            (server(2, 2..4), "put back"),
            // The server starts on a folder without the zones of server 2.
            (ServerInfo { id: 3, ..server(2, 5..6) }, "tcp:s2:1 is the address of s2, which has target 2, 3, 4"),
            (server(3, 5..5), "no targets"),
            (ServerInfo { addrs: Vec::new(), ..server(3, 5..6) }, "addresses"),
        ] {
            let refused = take_in(&map, &who).expect_err("refused");
            assert!(refused.contains(words), "{refused}");
        }
        assert!(new_targets(&map, u16::MAX - 4).is_err() || TARGETS_MAX > 65_535);
    }

    /// Goal: maps that are not whole are noticed.
    #[test]
    fn broken_maps_are_noticed() {
        let of = |servers| ClusterMap { epoch: 1, cluster: 1, servers };
        assert!(fault(&of(vec![server(1, 1..2), server(2, 0..1)])).is_some());
        assert!(fault(&of(vec![server(1, 0..2), server(2, 1..3)])).is_some());
        assert!(fault(&of(vec![server(1, 0..2), server(2, 3..4)])).is_some());
        assert!(fault(&of(vec![server(1, 0..2), server(2, 2..4)])).is_none());
    }

    /// Goal: a folder with a zone too few, too many, or of another server or cluster is refused, with the place.
    #[test]
    fn folders_are_compared() {
        let local: Vec<TargetId> = [4, 5].map(TargetId).into();
        let report = |cluster, home: Option<HomeRecord>| OpenReport {
            cluster,
            pool: 6,
            sessions: Vec::new(),
            lost: false,
            cut_off: false,
            home,
            map: None,
            keys: None,
        };
        let home = |server, targets: &[u16]| {
            Some(HomeRecord { server, targets: targets.iter().copied().map(TargetId).collect() })
        };
        let check =
            |reports: &[OpenReport]| belonging(&local, reports, |t| format!("zone {}", t.0)).map_err(|e| e.line);
        assert!(check(&[report(1, home(9, &[4, 5])), report(1, home(9, &[4, 5]))]).is_ok());
        assert!(check(&[report(1, home(9, &[4, 5])), report(1, None)]).is_ok(), "its first start was cut short");
        assert!(check(&[report(1, None), report(1, None)]).is_ok());
        for (reports, words) in [
            ([report(1, None), report(2, None)], "zone 5 belongs to cluster"),
            ([report(1, home(9, &[4, 5, 6])), report(1, home(9, &[4, 5, 6]))], "target 6 is missing"),
            ([report(1, home(9, &[4])), report(1, home(8, &[5]))], "zone 4"),
            ([report(1, home(9, &[4, 5])), report(1, home(8, &[4, 5]))], "different servers"),
        ] {
            let line = check(&reports).expect_err("refused");
            assert!(line.contains(words), "{line}");
        }
    }
}
