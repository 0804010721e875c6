//! Views of made-up numbers: rates, screens, findings, metrics.

use crate::calibration::{Asker, Calibration, Disk, FRESH_DAYS, Machine, SCHEMA};
use crate::change::quantile;
use crate::files::files;
use crate::findings::{Weight, findings};
use crate::limits::limits;
use crate::screen::{Screen, lines, text};
use crate::snapshot::{HotFile, OfServer, Server, Snapshot, Texts};
use crate::terminal::{History, draw};
use crate::{Change, metrics, report};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Texts as the program prints them.
fn snapshot(at_s: u64, mount: &[(&str, u64, u64)], gauges: &[(&str, u64)], servers: &[(&str, u64)]) -> Snapshot {
    let counter = |(name, samples, sum): &(&str, u64, u64)| {
        format!("\"{name}\":{{\"samples\":{samples},\"unit\":\"bytes\",\"min\":0,\"max\":0,\"sum\":{sum}}}")
    };
    let number = |(name, n): &(&str, u64)| format!("\"{name}\":{n}");
    let list = |all: Vec<String>| all.join(",");
    let mount = format!(
        "{{\"elapsed_ns\":5,\"counters\":{{{}}},\"gauges\":{{{}}}}}",
        list(mount.iter().map(counter).collect()),
        list(gauges.iter().map(number).collect())
    );
    let servers = format!("{{{}}}", list(servers.iter().map(number).collect()));
    let cluster = r#"{"uptime_s":90,"cluster":"c1","servers":[{"id":"1","name":"a","up":true,"uptime_s":7}],
        "targets":[{"target":0,"server":"a","blocks":1000,"blocks_free":600,"inodes":5,"inodes_free":9,
        "log_used_bytes":10,"log_bytes":100,"damaged_blocks":0}],"sessions":[{"name":"n:1","connected":true,"opens":2,
        "locks":3}]}"#;
    let jobs =
        r#"{"jobs":[{"job":"train","counters":{"read_cache_hit":{"bytes":100,"requests":1}},"open":1,"opens":2}]}"#;
    let by_server = [("a".to_string(), servers)];
    let files = r#"{"files":[{"ino":7,"open":1,"read_requests":0,"read_bytes":0,"write_requests":0,"write_bytes":0,
        "lock_wait_ns":0,"lock_callbacks":0,"contended_told":0,"dirty_bytes":9}]}"#;
    let texts = Texts { mount: &mount, by_server: &by_server, cluster, jobs, files, ..Texts::default() };
    Snapshot::read(Duration::from_secs(at_s), texts).expect("readable")
}

fn nothing(at_s: u64) -> Snapshot {
    snapshot(at_s, &[], &[], &[])
}

fn shown(screen: Screen, before: &Snapshot, after: &Snapshot) -> String {
    shown_at(screen, &Change { before, after })
}

fn shown_at(screen: Screen, change: &Change<'_>) -> String {
    text(&lines(screen, "/mnt", change))
}

/// Goal: rates are differences by time, and a counter that began anew counts from zero. Method: two looks 2 s apart.
#[test]
fn rates() {
    let before = snapshot(10, &[("read_cache_hit", 5, 5 * MIB), ("lookup", 100, 100)], &[], &[("disk_syncs", 7)]);
    let after = snapshot(12, &[("read_cache_hit", 25, 45 * MIB), ("lookup", 40, 40)], &[], &[("disk_syncs", 9)]);
    let change = Change { before: &before, after: &after };
    assert_eq!(change.total("read_"), (10.0, 20.0 * MIB as f64));
    assert_eq!((change.often("lookup"), change.at_servers("disk_syncs")), (20.0, 1.0));
    assert_eq!((change.often("no such"), change.total("write_")), (0.0, (0.0, 0.0)));
}

/// Goal: each screen shows its numbers, and one for a mount that has counted nothing shows zeros. Method: search the
/// text of the screens for the numbers.
#[test]
fn screens() {
    let before = snapshot(0, &[], &[], &[]);
    let mount = [("read_cache_hit", 30, 30 * MIB), ("write_direct_large", 10, 10 * MIB), ("create", 500, 500)];
    let after = snapshot(1, &mount, &[("cache_dirty_bytes", 3 * MIB)], &[("data_disk_writes", 12)]);
    let overview = shown(Screen::Overview, &before, &after);
    for wanted in ["30.0 MiB/s", "cache hit", "direct large", "100.0 %", "create     500/s", "3.0 MiB dirty"] {
        assert!(overview.contains(wanted), "{wanted} in\n{overview}");
    }
    assert!(overview.contains("1 of 1 servers up, 1 targets, 1 mounts   cluster c1 for 90 s"), "{overview}");
    assert!(overview.contains("nothing stands out"), "{overview}");
    let cluster = shown(Screen::Cluster, &before, &after);
    assert!(cluster.contains("40.0 % of   3.9 MiB") && cluster.contains("12 writes/s"), "{cluster}");
    assert!(shown(Screen::Jobs, &nothing(0), &after).contains("train"), "jobs");
    assert!(shown(Screen::Counters, &before, &after).contains("data_disk_writes"));
    let empty = Snapshot::default();
    for screen in Screen::ALL {
        assert!(!shown(screen, &empty, &empty).is_empty());
    }
}

/// Goal: lines fit a terminal of 120 columns. Method: large numbers everywhere.
#[test]
fn lines_are_short() {
    let mount: Vec<(&str, u64, u64)> =
        ["read_cache_hit", "write_buffered_default", "lookup", "getattr", "open", "create", "unlink", "readdir"]
            .map(|name| (name, 123_456_789, 123_456_789_012_345))
            .to_vec();
    let mut after = snapshot(1, &mount, &[("cache_used_bytes", u64::MAX / 2)], &[("unstable_bytes", u64::MAX / 2)]);
    let (many, bytes) = (123_456_789, 123_456_789_012_345);
    after.files[0] = HotFile {
        ino: 7,
        open: many,
        read_requests: many,
        read_bytes: bytes,
        write_requests: many,
        write_bytes: bytes,
        lock_wait_ns: many,
        lock_callbacks: many,
        contended_told: many,
        dirty_bytes: bytes,
    };
    after.file_names.insert(7, "/a/long/name".repeat(30));
    for screen in Screen::ALL {
        for line in shown(screen, &nothing(0), &after).lines() {
            assert!(line.chars().count() <= 120, "{line}");
        }
    }
}

/// Goal: each rule reports its own case and not similar ones. Method: a snapshot of each kind.
#[test]
fn rules() {
    let weigh = |before: &Snapshot, after: &Snapshot| {
        findings(&Change { before, after }).into_iter().map(|f| (f.weight, f.what)).collect::<Vec<_>>()
    };
    let none = |after: Snapshot| assert_eq!(weigh(&nothing(0), &after), vec![]);
    let one = |after: Snapshot, weight, part: &str| {
        let found = weigh(&nothing(0), &after);
        assert!(found.len() == 1 && found[0].0 == weight && found[0].1.contains(part), "{part}: {found:?}");
    };
    none(nothing(1));
    let with = |change: &dyn Fn(&mut Snapshot)| {
        let mut after = nothing(1);
        change(&mut after);
        after
    };
    one(with(&|s| s.cluster.servers[0].up = false), Weight::Trouble, "no answer from a");
    one(with(&|s| s.cluster.targets[0].damaged_blocks = 2), Weight::Trouble, "2 blocks");
    one(with(&|s| s.cluster.targets[0].blocks_free = 90), Weight::Trouble, "0 at 91 %");
    none(with(&|s| s.cluster.targets[0].blocks_free = 110));
    one(with(&|s| s.cluster.targets[0].log_used_bytes = 85), Weight::Slow, "85 % full");
    none(with(&|s| s.cluster.targets[0].log_used_bytes = 70));
    one(snapshot(1, &[("writeback_failed", 1, MIB)], &[], &[]), Weight::Trouble, "1.0 MiB failed");
    let ping = |ns| snapshot(1, &[], &[], &[("time_lock_ping_pongs_ns", ns), ("lock_ping_pongs", 900)]);
    one(ping(400_000_000), Weight::Slow, "900 times a second, which takes 40 %");
    none(ping(10_000_000));
    let held = |n| snapshot(1, &[("write_throttled", n, n)], &[("cache_dirty_bytes", 7 * MIB)], &[]);
    one(held(30), Weight::Slow, "30 times a second, for 7.0 MiB");
    none(held(0));
    one(snapshot(1, &[], &[("memory_short", 1)], &[]), Weight::Slow, "memory is short");
    let disk = |writes, bytes| {
        snapshot(
            1,
            &[],
            &[],
            &[("data_disk_writes", writes), ("write_bytes", bytes), ("time_write_disk_ns", 900_000_000)],
        )
    };
    one(disk(3000, 3000 * 4096), Weight::Slow, "3000 pieces of 4.0 KiB");
    none(disk(3000, 3000 * MIB));
    none(disk(20, 20 * 4096));
}

/// Goal: metrics are what Prometheus takes: names with the prefix, counters with `_total`, labels escaped, one end; the
/// number of series is bounded. Method: read the text.
#[test]
fn metrics_text() {
    let mount = [("read_cache_hit", 3, 300), ("lookup", 5, 5), ("write_throttled", 2, 2), ("lock_wait", 4, 999)];
    let servers = [("request_make", 6), ("write_bytes", 70), ("histogram_disk_us_write_to_512", 3), ("evictions", 1)];
    let mut now = snapshot(1, &mount, &[("cache_used_bytes", 9)], &servers);
    now.jobs[0].job = "a\"b\\c\nd".into();
    let times = crate::snapshot::Times { count: 6, sum_ns: 1_500_000, up_to_us: [(2, 3), (8, 2)].into() };
    now.mount.calls = [("read.at_once".to_string(), times)].into();
    let text = metrics::text(&now, "1.2.3");
    for wanted in [
        "# TYPE amphifs_client_io_bytes counter\n",
        "amphifs_client_io_bytes_total{op=\"read\",way=\"cache\",reason=\"hit\"} 300",
        "amphifs_client_requests_total{op=\"lookup\"} 5",
        "amphifs_client_events_total{event=\"write_throttled\"} 2",
        "amphifs_client_event_amount_total{event=\"lock_wait\"} 999",
        "amphifs_client_state{state=\"cache_used_bytes\"} 9",
        "# TYPE amphifs_client_call_duration_seconds histogram\n",
        "amphifs_client_call_duration_seconds_sum{op=\"read\",served=\"at_once\"} 0.0015",
        "amphifs_client_call_duration_seconds_count{op=\"read\",served=\"at_once\"} 6",
        "_bucket{le=\"0.000001\",op=\"read\",served=\"at_once\"} 0",
        "_bucket{le=\"0.000004\",op=\"read\",served=\"at_once\"} 3",
        "_bucket{le=\"+Inf\",op=\"read\",served=\"at_once\"} 6",
        "amphifs_server_requests_total{server=\"a\",op=\"make\"} 6",
        "amphifs_server_bytes_total{server=\"a\",what=\"write\"} 70",
        "amphifs_server_sizes_total{server=\"a\",what=\"disk_us_write\",upto=\"512\"} 3",
        "amphifs_server_up{server=\"a\"} 1",
        "amphifs_target_space_bytes{target=\"0\",state=\"used\"} 1638400",
        "amphifs_build_info{version=\"1.2.3\"} 1",
        "amphifs_job_bytes_total{jobid=\"a\\\"b\\\\c\\nd\",op=\"read\"} 100",
    ] {
        assert!(text.contains(wanted), "{wanted} in\n{text}");
    }
    assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1);
    for name in text.lines().filter(|line| line.starts_with("# TYPE")) {
        assert_eq!(text.matches(&format!("{name}\n")).count(), 1, "{name} comes once");
    }
    let job = now.jobs[0].clone();
    now.jobs = (0..1000).map(|n| crate::snapshot::Job { job: format!("j{n}"), ..job.clone() }).collect();
    let many = metrics::text(&now, "1.2.3");
    assert_eq!(many.matches("amphifs_job_bytes_total{").count(), 2 * 65, "the busiest and a rest");
    assert!(many.contains("jobid=\"_other\",op=\"read\"} 93600"));
    // If a server does not answer, its numbers are left out, and those of the others stay.
    now.cluster.servers[0].up = false;
    now.by_server.clear();
    let less = metrics::text(&now, "1.2.3");
    assert!(less.contains("amphifs_server_up{server=\"a\"} 0") && !less.contains("amphifs_server_requests_total"));
}

/// Goal: each server has its own series, also if several servers have the same name, and a large cluster has a bounded
/// number of them; a sum that lacks a server is left out, since it would decrease. Method: clusters of made-up servers.
#[test]
fn metrics_of_servers() {
    let cluster = |names: &[&str]| {
        let mut now = snapshot(1, &[], &[], &[("request_make", 6), ("histogram_disk_us_write_to_8", 1)]);
        let (server, rows) = (now.cluster.servers[0].clone(), now.by_server[0].rows.clone());
        let one =
            |(at, name): (usize, &&str)| Server { id: format!("{at:x}"), name: name.to_string(), ..server.clone() };
        now.cluster.servers = names.iter().enumerate().map(one).collect();
        let labels = now.cluster.labels();
        now.by_server = labels.into_iter().map(|label| OfServer { label, rows: rows.clone() }).collect();
        now
    };
    let lines = |now: &Snapshot| -> Vec<String> {
        let text = metrics::text(now, "1");
        text.lines().filter(|line| line.starts_with("amphifs_server_requests_total")).map(String::from).collect()
    };
    let labels = |now: &Snapshot| -> Vec<String> {
        lines(now).iter().map(|line| line.split('"').nth(1).unwrap_or_default().to_string()).collect()
    };
    assert_eq!(labels(&cluster(&["a", "b"])), ["a", "b"]);
    assert_eq!(labels(&cluster(&["a", "b", "a"])), ["a-0", "b", "a-2"]);
    let names: Vec<String> = (0..300).map(|n| format!("s{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut many = cluster(&names);
    let shown = lines(&many);
    assert_eq!(shown.len(), 9);
    assert_eq!(shown[8], "amphifs_server_requests_total{server=\"_other\",op=\"make\"} 1752.0");
    many.cluster.servers[200].up = false;
    assert_eq!(labels(&many).last().map(String::as_str), Some("s7"));
    many.cluster.servers[200].up = true;
    many.by_server.remove(200);
    assert_eq!(lines(&many).len(), 8);
    let times = crate::snapshot::Times { count: 3, sum_ns: 9_000_000, up_to_us: [(2, 1), (4096, 1)].into() };
    let served = ["at_once", "waited"];
    let calls = (0..12).flat_map(|kind| served.map(|way| (format!("kind{kind}.{way}"), times.clone())));
    many.mount.calls = calls.collect();
    let session = many.cluster.sessions[0].clone();
    many.cluster.sessions = vec![session; 1000];
    let series = metrics::text(&many, "1").lines().filter(|line| !line.starts_with('#')).count();
    assert!(series < 1500, "{series} series");
}

/// Goal: the counters of servers that were unreachable for some time, or that were restarted, do not look as if
/// everything that they count had happened now. Method: a server that is in one of two samples, one whose counters
/// began anew, and a sample of the time since the beginning.
#[test]
fn rates_of_servers() {
    let look = |servers: &[(&str, u64)]| {
        let mut now = nothing(if servers.len() == 1 { 1 } else { 3 });
        let of = |(label, n): &(&str, u64)| OfServer {
            label: label.to_string(),
            rows: [("disk_syncs".to_string(), *n)].into(),
        };
        now.by_server = servers.iter().map(of).collect();
        now
    };
    let (one, two) = (look(&[("a", 10)]), look(&[("a", 30), ("b", 1_000_000)]));
    assert_eq!(Change { before: &one, after: &two }.at_servers("disk_syncs"), 10.0);
    let anew = look(&[("a", 6), ("b", 1_000_000)]);
    assert_eq!(Change { before: &one, after: &anew }.at_servers("disk_syncs"), 3.0);
    let all = Change { before: &Snapshot::default(), after: &two };
    assert_eq!((all.at_servers("disk_syncs") * 3.0).round(), 1_000_030.0);
}

/// Goal: quantiles of rates by powers of two. Method: a table.
#[test]
fn quantiles() {
    let buckets = [(8, 10.0), (16, 80.0), (512, 10.0), (1024, 0.0)].into();
    for (share, bound) in [(0.01, 8), (0.1, 8), (0.5, 16), (0.9, 16), (0.99, 512), (1.0, 512)] {
        assert_eq!(quantile(&buckets, share), Some(bound), "{share}");
    }
    assert_eq!(quantile(&[(8, 0.0)].into(), 0.5), None);
}

/// Goal: busy files are found by the difference between two samples, with their names where these are known, and files
/// for which calls wait are listed before files that are only written a little. Method: three files, one of them new.
#[test]
fn busy_files() {
    let file = |ino, write_bytes, lock_wait_ns| HotFile {
        ino,
        write_requests: write_bytes / 4096,
        write_bytes,
        lock_wait_ns,
        ..HotFile::default()
    };
    let (mut before, mut after) = (nothing(0), nothing(2));
    before.files = vec![file(1, 9 * MIB, 0), file(2, 0, 0), file(4, 5, 5)];
    after.files = vec![file(1, 11 * MIB, 0), file(2, 8192, 1_000_000_000), file(3, 900 * MIB, 0), file(4, 5, 5)];
    after.file_names.insert(2, "/mnt/log".into());
    let change = Change { before: &before, after: &after };
    let shown: Vec<(String, f64, f64)> = files(&change).into_iter().map(|f| (f.name, f.written, f.lock_wait)).collect();
    assert_eq!(shown, [("/mnt/log".into(), 4096.0, 0.5), ("inode 1".into(), MIB as f64, 0.0)]);
    let screen = shown_at(Screen::Files, &change);
    assert!(screen.contains("/mnt/log") && screen.contains("1.0 MiB/s"), "{screen}");
    assert_eq!(report::json("m", &change)["files"][0]["file"], "/mnt/log");
}

/// Goal: a calibration is used only where and while it is valid, and only for rates that were measured; shares are
/// shares of the limit. Method: one for a cluster, asked for by it, another one, another machine, and too late.
#[test]
fn limits_of_a_machine() {
    let calibration = Calibration {
        schema: SCHEMA.into(),
        unix_s: 1_000_000,
        machine: Machine { host: "n1".into(), cores: 4, memory_bytes: 1 },
        source: "/data".into(),
        copy_bytes_per_s: 8.0 * MIB as f64,
        disks: vec![Disk { write_bytes_per_s: 2.0 * MIB as f64, small_writes_per_s: 50.0, ..Disk::default() }; 2],
        ..Calibration::default()
    };
    let text = serde_json::to_string(&calibration).expect("JSON");
    assert_eq!(serde_json::from_str::<Calibration>(&text).ok().as_ref(), Some(&calibration));
    let own = Asker { host: "n1", cores: 4, unix_s: 1_000_000, source: "/data" };
    let mut after = snapshot(1, &[("cache_copied_in", 4, 2 * MIB)], &[], &[("write_bytes", MIB), ("flush_bytes", MIB)]);
    let before = snapshot(0, &[], &[], &[]);
    let mut shown = |asker: &Asker<'_>| -> Vec<(&str, f64)> {
        after.limits = calibration.limits(asker).expect("counts");
        let all = limits(&Change { before: &before, after: &after });
        all.into_iter().map(|limit| (limit.what, limit.rate / limit.limit)).collect()
    };
    assert_eq!(shown(&own), [("disk written bytes", 0.5), ("memory copies", 0.25), ("disk writes", 0.0)]);
    assert_eq!(shown(&Asker { source: "/other", ..own.clone() }), [("memory copies", 0.25)]);
    let late = Asker { unix_s: 1_000_000 + FRESH_DAYS * 86_400, ..own.clone() };
    for (asker, why) in [
        (late, "30 days old"),
        (Asker { host: "n2", ..own.clone() }, "is of n1 with 4 cores"),
        (Asker { cores: 8, ..own.clone() }, "is of n1 with 4 cores"),
    ] {
        assert!(calibration.limits(&asker).is_err_and(|e| e.contains(why)), "{why}");
    }
    assert!(Calibration { schema: "x".into(), ..calibration.clone() }.limits(&own).is_err());
    after.limits = calibration.limits(&own).expect("counts");
    assert_eq!(findings(&Change { before: &before, after: &after }), vec![]);
    let mut busy = snapshot(1, &[], &[], &[("write_bytes", 2 * MIB), ("flush_bytes", 2 * MIB)]);
    busy.limits = after.limits;
    let found = findings(&Change { before: &before, after: &busy });
    assert!(found.len() == 1 && found[0].what.contains("disk written bytes at 100 %"), "{found:?}");
    let screen = shown_at(Screen::Overview, &Change { before: &before, after: &after });
    assert!(screen.contains("disk written bytes") && screen.contains("50.0 % of what was measured"), "{screen}");
}

/// Goal: an unreadable text is an error that names it; unknown fields do not matter. Method: texts and samples that the
/// test composes.
#[test]
fn unreadable_texts() {
    let texts = Texts { mount: "{\"counters\":3}", ..Texts::default() };
    assert!(Snapshot::read(Duration::ZERO, texts).is_err_and(|e| e.starts_with("the counters of the mount")));
    let texts = Texts { mount: "{\"new\":[1],\"counters\":{}}", ..Texts::default() };
    assert_eq!(Snapshot::read(Duration::ZERO, texts), Ok(Snapshot::default()));
}

/// Goal: the terminal shows tabs, bars and the chosen screen at common sizes, and a tiny terminal causes no panic.
/// Method: a terminal in memory.
#[test]
fn terminals() {
    let before = nothing(0);
    let after = snapshot(1, &[("write_direct_large", 10, 10 * MIB)], &[], &[]);
    let change = Change { before: &before, after: &after };
    let mut history = History::default();
    (0..300).for_each(|_| history.note(&change));
    for (width, height) in [(80, 24), (140, 50), (10, 3)] {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        let drawn = terminal.draw(|frame| draw(frame, Screen::Overview, "/mnt", &change, &history)).expect("drawn");
        let shown: String = drawn.buffer.content.iter().map(|cell| cell.symbol()).collect();
        for wanted in ["1 overview", "at most 10.0 MiB/s", "direct large", "/mnt"] {
            assert!(width == 10 || shown.contains(wanted), "{wanted} at {width} x {height}");
        }
    }
}

/// Goal: the JSON has its schema and the same numbers. Method: texts and samples that the test composes.
#[test]
fn json_of_a_look() {
    let after = snapshot(2, &[("read_cache_hit", 4, 8 * MIB)], &[("memory_short", 1)], &[]);
    let json = report::json("/mnt", &Change { before: &nothing(0), after: &after });
    assert_eq!((&json["schema"], &json["read"]["bytes_per_s"]), (&"amphi.top/1".into(), &(4.0 * MIB as f64).into()));
    assert_eq!((&json["read"]["ways"][0]["reason"], &json["findings"][0]["weight"]), (&"hit".into(), &"slow".into()));
}
