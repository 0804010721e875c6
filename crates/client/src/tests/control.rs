//! Control attributes: tunables of mount and servers together, a status longer than an attribute.

use super::world::World;
use crate::api::Ctx;
use crate::policy::thresholds::Asked;
use crate::telemetry::stats::Way;
use crate::telemetry::status::STATUS_PART_BYTES;
use crate::telemetry::tunables::Tunable;
use amphi_types::{Errno, Ino, Result};
use amphi_wire::{ServerInfo, XattrMode};

fn get(w: &mut World, ctx: &Ctx, name: &str) -> Result<String> {
    let op = w.client.getxattr(ctx, Ino::ROOT, format!("user.amphi.{name}").as_bytes());
    w.run(op).map(|v| String::from_utf8(v).expect("text"))
}

fn set(w: &mut World, assignment: &str) -> Result<()> {
    let op = w.client.setxattr(&Ctx::root(), Ino::ROOT, b"user.amphi.set", assignment.as_bytes(), XattrMode::Set);
    w.run(op)
}

/// Goal: a pattern that could match the servers' tunables need not match one. A pattern that matches tunables of both
/// sets both or neither. An unknown name is no attribute, and the server's refusal is passed on. Method: patterns for
/// tunables of a server that has two.
#[test]
fn patterns_over_mount_and_servers() {
    let mut w = World::new(1, &[]);
    let root = Ctx::root();
    assert_eq!(set(&mut w, "*small_bytes=48K"), Ok(()), "the server has none of these");
    assert_eq!(w.client.mount.tunables.get(Tunable::Small), 48 << 10);
    assert_eq!(set(&mut w, "*spin_us=500000"), Err(Errno::Inval), "too much for the mount's");
    assert!(w.server.tuned.is_empty(), "a refused value changes nothing elsewhere: {:?}", w.server.tuned);
    assert!(get(&mut w, &root, "error").expect("text").contains("client.spin_us: 500000 is not within"));
    let before = w.client.mount.tunables.spin_us();
    assert_eq!(set(&mut w, "*spin_us=13"), Err(Errno::Inval), "the server refuses this one");
    assert_eq!(w.client.mount.tunables.spin_us(), before, "nor here");
    assert_eq!(set(&mut w, "*spin_us=70"), Ok(()));
    assert_eq!((w.client.mount.tunables.spin_us(), w.server.tuned["server.spin_us"].as_str()), (70, "70"));
    assert_eq!(set(&mut w, "server.nothing=1"), Err(Errno::Inval));
    assert!(get(&mut w, &root, "error").expect("text").contains("no tunable matches"));
    assert_eq!(get(&mut w, &root, "tunables.server.nothing"), Err(Errno::NoData));
    let shown = get(&mut w, &root, "tunables.*spin_us").expect("both");
    assert!(shown.contains("client.spin_us=70 # ") && shown.contains("\nserver.spin_us=70 # help\n"), "{shown}");
}

/// Goal: for a threshold the output says whether it was set or learnt, and shows the value in force. Method: a
/// threshold that has moved is set to its default, which is a setting as well. Then learning is turned off.
#[test]
fn thresholds_say_what_is_learnt() {
    let mut w = World::new(1, &[]);
    let shown = |w: &mut World| get(w, &Ctx::root(), "tunables.hybrid.large_write_bytes").expect("text");
    let end = |text: String| text.lines().last().unwrap_or_default().to_string();
    let learnt = "# hybrid.large_write_bytes: learnt and in force are";
    assert_eq!(end(shown(&mut w)), format!("{learnt} 2M alone, 2M beside other mounts"));
    let thresholds = &w.client.mount.policy.throughput.thresholds;
    let asked = Asked {
        way: Way::Write,
        bytes: 1 << 20,
        default_bytes: 2 << 20,
        in_company: false,
        is_reused: false,
        may_try: true,
    };
    let mut now_ns = 0;
    for _ in 0..40_000 {
        // Direct carries twice as much.
        let large = thresholds.is_large(asked);
        let since_ns = now_ns;
        now_ns += if large { 500_000 } else { 1_000_000 };
        thresholds.note(Way::Write, large.then_some(1 << 20), 1 << 20, (since_ns, now_ns), true);
    }
    assert_eq!(end(shown(&mut w)), format!("{learnt} 1M alone, 2M beside other mounts"));
    set(&mut w, "hybrid.learn=off").unwrap();
    assert!(end(shown(&mut w)).ends_with("2M is the default and in force (hybrid.learn is off)"));
    set(&mut w, "hybrid.large_write_bytes=2M").unwrap();
    assert_eq!(end(shown(&mut w)), "# hybrid.large_write_bytes: 2M was set and is in force");
}

/// Goal: the values of a tunable on other servers, or their missing answers, are shown beside the master's value.
/// Method: a server without targets, which cannot be reached.
#[test]
fn servers_that_do_not_answer_are_named() {
    let mut w = World::new(2, &[]);
    let away = ServerInfo { id: 2, name: "two".into(), addrs: vec!["tcp:two:1".into()], targets: Vec::new() };
    w.client.mount.cluster.map.lock().servers.push(away);
    let shown = get(&mut w, &Ctx::root(), "tunables.server.x").expect("the master's");
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[0], "server.x=1 # help");
    assert!(lines.len() == 2 && lines[1].starts_with("# two at tcp:two:1 does not answer"), "{shown}");
}

/// Goal: if two processes read a long status at the same time, each gets the parts of one status. Method: two callers
/// read on in turn, and the cluster grows between their first parts. Meanwhile more callers begin than are remembered,
/// and then they get no part instead of a wrong one.
#[test]
fn a_long_status_is_its_readers_own() {
    let mut w = World::new(3, &[]);
    let grow = |w: &World, from: u64, count: u64| {
        for id in from..from + count {
            let name = format!("server-{id}-{}", "x".repeat(200));
            w.client.mount.cluster.map.lock().servers.push(ServerInfo {
                id,
                name,
                addrs: Vec::new(),
                targets: Vec::new(),
            });
        }
    };
    grow(&w, 2, 400);
    let callers = [1, 2].map(|pid| Ctx { pid, ..Ctx::root() });
    let mut texts = Vec::new();
    for caller in &callers {
        texts.push(get(&mut w, caller, "status").expect("the first part"));
        grow(&w, 1000, 100);
    }
    assert!(texts.iter().all(|t| t.len() == STATUS_PART_BYTES));
    for part in 1.. {
        let from = format!("status.from.{}", part * STATUS_PART_BYTES);
        let more = callers.each_ref().map(|caller| get(&mut w, caller, &from).expect("another part"));
        if more.iter().all(String::is_empty) {
            break;
        }
        texts.iter_mut().zip(more).for_each(|(text, more)| text.push_str(&more));
    }
    let servers = texts.iter().map(|text| {
        assert!(text.starts_with('{') && text.ends_with("\"sessions\":[]}"), "{}", &text[text.len() - 100..]);
        text.matches("\"id\"").count()
    });
    assert_eq!(servers.collect::<Vec<_>>(), [401, 501]);
    for pid in 3..20 {
        get(&mut w, &Ctx { pid, ..Ctx::root() }, "status").expect("the first part");
    }
    assert_eq!(get(&mut w, &callers[0], "status.from.0").expect("nothing"), "");
}
