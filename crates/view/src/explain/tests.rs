//! Each rule with a file that triggers it and one near it that must not; the words; names that need escapes.

use super::*;
use crate::{Change, Snapshot};
use std::collections::BTreeMap;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A file of 1 GiB with rows of counters.
fn file(rows: &[(&str, u64, u64)]) -> FileFacts {
    let counters =
        rows.iter().map(|(name, requests, bytes)| format!("\"{name}\":{{\"requests\":{requests},\"bytes\":{bytes}}}"));
    let counters = format!("{{\"counters\":{{{}}},\"dirty_bytes\":0}}", counters.collect::<Vec<_>>().join(","));
    let facts = FileFacts { path: "/mnt/f".into(), size: 1 << 30, layout: "growing".into(), ..FileFacts::default() };
    let texts = FileTexts { counters: &counters, ..FileTexts::default() };
    FileFacts { mode: "auto".into(), ..facts.read(texts).expect("readable") }
}

/// `n` requests of `size` bytes, of which a part goes back and a part is not aligned.
fn side(n: u64, size: u64, goes_back: u64, unaligned: u64) -> Side {
    Side { requests: n, sizes: vec![((size + 1).next_power_of_two(), n)], follows: n - goes_back, goes_back, unaligned }
}

fn with(mut facts: FileFacts, change: impl FnOnce(&mut FileFacts)) -> FileFacts {
    change(&mut facts);
    facts
}

fn found(facts: &FileFacts) -> Vec<&'static str> {
    of_file(facts).findings.iter().map(|f| f.rule).collect()
}

/// Goal: each rule speaks where something costs and nowhere else. Method: for each a file that triggers it, and a very
/// similar file that is sound.
#[test]
fn rules_of_a_file() {
    let contended = |callbacks: u64, wait_ms: u64| {
        let facts = file(&[("write_direct_contention", 1000, 1000 * 47 * KIB), ("lock_callback", callbacks, 0)]);
        with(facts, |f| {
            f.portrait.lock_wait_ns = wait_ms * 1_000_000;
            f.portrait.writes = side(1000, 47 * KIB, 0, 900);
        })
    };
    let asked = |kind: &str, n: u64, size: u64| {
        with(file(&[(kind, n, n * size)]), |f| {
            let of = if kind.starts_with("read") { &mut f.portrait.reads } else { &mut f.portrait.writes };
            *of = side(n, size, 0, 0);
        })
    };
    let synced = |writes: u64, fsyncs: u64| {
        with(file(&[("write_buffered_small", writes, writes * 4096)]), |f| {
            f.portrait.writes = side(writes, 4096, 0, 0);
            f.portrait.fsyncs = fsyncs;
        })
    };
    let missed = |goes_back: u64, hits: u64| {
        with(file(&[("read_buffered_small", 2000, 2000 * 4096), ("read_cache_hit", hits, hits * 4096)]), |f| {
            f.portrait.reads = side(2000, 4096, goes_back, 0);
        })
    };
    let edges = |unaligned: u64, size: u64| {
        with(file(&[("write_direct_large", 500, 500 * size)]), |f| {
            f.portrait.writes = side(500, size, 0, unaligned);
        })
    };
    let lies = |objects: &[(u16, u64, u64)]| {
        with(file(&[("write_direct_large", 64, 256 * MIB)]), |f| {
            f.targets = [(0, "a".to_string()), (1, "b".to_string())].into();
            f.objects = objects
                .iter()
                .map(|(target, extents, bytes)| Object { target: *target, extents: *extents, bytes: *bytes })
                .collect();
        })
    };
    let served = |by: &str, size: u64| {
        with(file(&[("read_cache_hit", 100_000, 100_000 * size)]), |f| f.portrait.reads_served_by = by.into())
    };
    let cases = [
        ("contended", contended(300, 400), contended(4, 400)),
        ("contended", contended(300, 400), contended(300, 1)),
        ("forced_direct", asked("read_direct_user", 1000, 4096), asked("read_direct_user", 1000, MIB)),
        ("forced_direct", asked("write_direct_user", 1000, 8192), asked("write_direct_user", 100, 8192)),
        ("forced_buffered", asked("write_buffered_user", 500, 4 * MIB), asked("write_buffered_user", 500, 64 * KIB)),
        ("sync_for_each", synced(1000, 1000), synced(1000, 50)),
        ("sync_for_each", synced(1000, 1000), synced(10_000, 1000)),
        ("small_and_missed", missed(1000, 100), missed(10, 100)),
        ("small_and_missed", missed(1000, 100), missed(1000, 50_000)),
        ("unaligned", edges(400, 2 * MIB), edges(0, 2 * MIB)),
        ("unaligned", edges(400, 2 * MIB), edges(400, 16 * MIB)),
        (
            "unaligned_held_back",
            file(&[("write_buffered_unaligned", 100, 100 * MIB)]),
            file(&[("write_buffered_unaligned", 100, MIB)]),
        ),
        (
            "too_large_for_cache",
            file(&[("read_direct_overcache", 3000, 3000 * MIB), ("read_cache_hit", 2000, 2000 * MIB)]),
            file(&[("read_direct_overcache", 3000, 3000 * MIB), ("read_cache_hit", 1, MIB)]),
        ),
        (
            "memory_short",
            file(&[("write_direct_memory", 200, 200 * MIB)]),
            file(&[("write_direct_memory", 200, 200 * MIB), ("write_direct_large", 9000, 9000 * MIB)]),
        ),
        ("one_server", lies(&[(0, 3, 256 * MIB)]), lies(&[(0, 3, 128 * MIB), (1, 3, 128 * MIB)])),
        ("one_server", lies(&[(1, 3, 256 * MIB), (0, 0, 0)]), lies(&[(1, 3, MIB)])),
        ("in_pieces", lies(&[(0, 2000, 32 * MIB), (1, 2000, 32 * MIB)]), lies(&[(0, 20, 32 * MIB), (1, 2, 32 * MIB)])),
        ("written_while_read", served("open_mount_written", 4096), served("open_kernel_small_file", 4096)),
        ("written_while_read", served("open_mount_open", 4096), served("open_mount_open", MIB)),
    ];
    for (rule, bad, sound) in &cases {
        assert_eq!(found(bad), [*rule], "{bad:?}");
        assert!(found(sound).is_empty(), "{rule} near: {:?} of {sound:?}", found(sound));
    }
}

fn look(rows: &[(&str, u64, u64)], gauges: &[(&str, u64)]) -> Snapshot {
    let mut all = Snapshot { at: std::time::Duration::from_secs(1), ..Snapshot::default() };
    for (name, samples, sum) in rows {
        all.mount.counters.insert(name.to_string(), crate::snapshot::Counter { samples: *samples, sum: *sum });
    }
    all.mount.gauges.extend(gauges.iter().map(|(name, value)| (name.to_string(), *value)));
    all
}

/// Goal: the rules of a mount speak where something costs and nowhere else. Method: as above, over one second.
#[test]
fn rules_of_a_mount() {
    let before = Snapshot::default();
    let found = |after: &Snapshot| {
        let told = of_mount("m", &Change { before: &before, after }, &BTreeMap::new());
        told.findings.iter().map(|f| f.rule).collect::<Vec<_>>()
    };
    let ahead = |used: u64, wasted: u64| {
        look(&[], &[("readahead_used_bytes", used * MIB), ("readahead_wasted_bytes", wasted * MIB)])
    };
    assert_eq!(found(&ahead(10, 500)), ["useless_read_ahead"]);
    assert!(found(&ahead(1000, 500)).is_empty() && found(&ahead(0, 5)).is_empty());
    let names = |stats: u64, reads: u64| {
        look(&[("getattr", stats, stats), ("server_calls", stats, stats), ("read_cache_hit", reads, reads * 4096)], &[])
    };
    assert_eq!(found(&names(5000, 100)), ["metadata_storm"]);
    assert!(found(&names(5000, 20_000)).is_empty() && found(&names(500, 0)).is_empty());
}

/// Goal: the output names the ways of requests, with the value of the tunable that decided, and commands are ready for
/// a shell. Method: a file with a name that needs quotes.
#[test]
fn words() {
    let facts = with(file(&[("read_direct_user", 1000, 1000 * 4096), ("write_direct_large", 2, 8 * MIB)]), |f| {
        f.path = "/mnt/it's a file".into();
        f.mode = "direct".into();
        f.consistency = "commit".into();
        f.portrait.reads = side(1000, 4096, 600, 0);
        f.portrait.fsyncs = 3;
        f.portrait.reads_served_by = "open_mount_large".into();
        f.tunables = tunables("hybrid.large_write_bytes=2M # bytes\n# learnt\n");
    });
    let told = of_file(&facts);
    let text = told.text();
    for wanted in [
        "/mnt/it's a file: 1.0 GiB, layout growing, mode direct, commit consistency (others see",
        "at the latest); reads are served by the mount",
        "written   8.0 MiB in        2 requests, 100 % direct: they are large (hybrid.large_write_bytes=2M)",
        "read      3.9 MiB in     1000 requests, 100 % direct: O_DIRECT, or open file",
        "reads that the cache did not have: 100 % of 4.0 KiB to 8.0 KiB, to and fro, all aligned",
        "synced 3 times",
        "1. 1000 reads of 4.0 KiB go direct because that is asked for",
        "$ amphi layout set --mode auto '/mnt/it'\\''s a file'",
    ] {
        assert!(text.contains(wanted), "{wanted}\nin\n{text}");
    }
    let json = told.json();
    assert_eq!((&json["schema"], &json["findings"][0]["rule"]), (&"amphi.explain/1".into(), &"forced_direct".into()));
    let nothing = of_file(&FileFacts::default()).text();
    assert!(nothing.contains("no reads or writes") && nothing.contains("nothing costs more"), "{nothing}");
}

/// Goal: invalid JSON is refused with a name, and the shorter output of an old mount is read. Method: such texts.
#[test]
fn texts_that_cannot_be_read() {
    let broken = FileFacts::default().read(FileTexts { portrait: "{\"reads\":7}", ..FileTexts::default() });
    assert!(broken.is_err_and(|e| e.starts_with("the portrait of the file")));
    let old = FileFacts::default().read(FileTexts { counters: "{}", portrait: "{}", ..FileTexts::default() });
    assert_eq!(old, Ok(FileFacts::default()));
}
