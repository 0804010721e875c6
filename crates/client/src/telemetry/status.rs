//! The status of a cluster as JSON, from the map and from each server's answer.
//!
//! Owns: the shape of that text, which `amphi status` prints. Does not own: asking.

use amphi_types::SessionId;
use amphi_wire::{ClusterMap, Reply, ServerStatus, SessionStatus};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Bytes of the status that one attribute of a mount shows (`user.amphi.status`, `user.amphi.status.from.N`).
pub const STATUS_PART_BYTES: usize = 60_000;

/// Text for JSON, without what would need an escape.
pub(crate) fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() && *c != '"' && *c != '\\').collect()
}

/// Writes `items`, separated by commas.
fn list<T>(out: &mut String, items: impl IntoIterator<Item = T>, mut one: impl FnMut(&mut String, T)) {
    out.push('[');
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        one(out, item);
    }
    out.push(']');
}

/// When the master, which answers first, received the last message from a server.
fn last_heard(answers: &[Option<Reply>], id: u64) -> Option<&ServerStatus> {
    match answers.first() {
        Some(Some(Reply::Status { servers, .. })) => servers.iter().find(|s| s.info.id == id),
        _ => None,
    }
}

/// One line of JSON. `answers` are the servers' answers to `Request::Status`, in the order of the map. A server that is
/// down has no answer there. Sessions are those of the master, with their locks and opens on all servers.
pub fn json(map: &ClusterMap, answers: &[Option<Reply>]) -> String {
    let (mut targets, mut uptimes) = (Vec::new(), Vec::new());
    let mut sessions: BTreeMap<SessionId, SessionStatus> = BTreeMap::new();
    for (at, server) in map.servers.iter().enumerate() {
        let Some(Reply::Status { uptime_s, targets: own, sessions: theirs, .. }) =
            answers.get(at).and_then(Option::as_ref)
        else {
            uptimes.push(None);
            let heard = last_heard(answers, server.id);
            targets.extend(heard.into_iter().flat_map(|s| &s.targets).map(|t| (t, server)));
            continue;
        };
        uptimes.push(Some(*uptime_s));
        targets.extend(own.iter().map(|t| (t, server)));
        for s in theirs {
            match sessions.get_mut(&s.session) {
                Some(known) => {
                    (known.opens, known.locks) = (known.opens + s.opens, known.locks + s.locks);
                    // If a session has several connections, the lowest protection is shown.
                    known.secure = known.secure.into_iter().chain(s.secure).min();
                    known.memory |= s.memory;
                }
                // The master, which comes first, knows all clients; without its answer those of the other servers are
                // used.
                None if at == 0 || uptimes[0].is_none() => drop(sessions.insert(s.session, s.clone())),
                None => {}
            }
        }
    }
    targets.sort_by_key(|(t, _)| t.target);
    let mut out = format!(
        "{{\"uptime_s\":{},\"cluster\":\"{:016x}\",\"epoch\":{},\"servers\":",
        uptimes.first().copied().flatten().unwrap_or(0),
        map.cluster,
        map.epoch
    );
    list(&mut out, map.servers.iter().zip(&uptimes), |out, (s, uptime)| {
        let _ = write!(out, "{{\"id\":\"{:016x}\",\"name\":\"{}\",\"up\":{}", s.id, plain(&s.name), uptime.is_some());
        let silent_ms = last_heard(answers, s.id).filter(|_| uptime.is_none()).map_or(0, |s| s.silent_ms);
        let _ = write!(out, ",\"uptime_s\":{},\"silent_ms\":{silent_ms},\"addrs\":", uptime.unwrap_or(0));
        list(out, &s.addrs, |out, a| {
            let _ = write!(out, "\"{}\"", plain(a));
        });
        out.push_str(",\"targets\":");
        list(out, &s.targets, |out, t| {
            let _ = write!(out, "{}", t.0);
        });
        out.push('}');
    });
    out.push_str(",\"targets\":");
    list(&mut out, &targets, |out, (t, server)| {
        let _ = write!(
            out,
            "{{\"target\":{},\"server\":\"{}\",\"worker\":{},\"blocks\":{},\"blocks_free\":{},\"inodes\":{},\
             \"inodes_free\":{},\"log_used_bytes\":{},\"log_bytes\":{},\"checkpoints\":{},\"rotating\":{},\"damaged_blocks\":{},\
             \"rebuilt_blocks\":{},\
             \"findings\":",
            t.target.0,
            plain(&server.name),
            t.worker,
            t.space.blocks,
            t.space.free,
            t.space.inodes,
            t.space.inodes_free,
            t.log.0,
            t.log.1,
            t.checkpoints,
            t.rotating,
            t.damaged,
            t.rebuilt
        );
        list(out, &t.findings, |out, line| {
            let _ = write!(out, "\"{}\"", plain(line));
        });
        out.push('}');
    });
    out.push_str(",\"sessions\":");
    list(&mut out, sessions.values(), |out, s| {
        let _ = write!(
            out,
            "{{\"session\":\"{:016x}\",\"name\":\"{}\",\"connected\":{},\"opens\":{},\"locks\":{},\"key\":\"{}\",\
             \"subtree\":\"{}\",\"secure\":\"{}\",\"memory\":{}}}",
            s.session.0,
            plain(&s.name),
            s.connected,
            s.opens,
            s.locks,
            plain(&s.key),
            plain(&s.subtree),
            match s.secure {
                Some(level) => level.to_string(),
                None if s.connected => "local".into(),
                None => String::new(),
            },
            s.memory
        );
    });
    out.push('}');
    out
}
