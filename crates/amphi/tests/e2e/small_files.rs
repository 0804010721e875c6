//! Many small files.

use crate::harness::{Place, pattern, run};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Files of each size.
const FILES: u64 = 1500;
/// Sizes of the original's workloads, bytes.
const SIZES: [usize; 2] = [3091, 3901];

fn contents(i: u64) -> Vec<u8> {
    pattern(i, SIZES[i as usize % SIZES.len()])
}

/// Counters of a mount: samples and sum.
fn stats(mount: &Path) -> BTreeMap<String, (u64, u64)> {
    let out = run(&["stats", &mount.display().to_string()]);
    let text = String::from_utf8(out.stdout).expect("text");
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let samples = fields.get(1)?.parse().ok()?;
        // Name, samples, `samples`, unit, least, most, sum.
        let sum = fields.get(6).and_then(|f| f.parse().ok()).unwrap_or(samples);
        Some((fields.first()?.to_string(), (samples, sum)))
    };
    text.lines().filter_map(row).collect()
}

/// Goal: many small files cost fewer messages with batches, and are the same with and without, also after a restart; a mount beside
/// them sees each at once. Method: 3,000 files of 3,091 and 3,901 bytes in one directory, by one mount and by two in turn; contents
/// are compared by the other mount, and after the servers were started again.
#[test]
fn three_thousand_small_files() {
    let mut per_file = Vec::new();
    for (switch, mounts) in [("off", 1), ("on", 1), ("off", 2), ("on", 2)] {
        let place = Place::new();
        let server = place.server(&[]);
        let batch = [format!("writeback.batch={switch}"), format!("client.close_batch={switch}")];
        let set = ["--set", &batch[0], "--set", &batch[1]];
        let names = ["mount", "other"];
        let daemons: Vec<_> = names[..mounts].iter().map(|name| place.mount_at(name, &set)).collect();
        let dirs: Vec<_> = names[..mounts].iter().map(|name| place.path(name)).collect();
        fs::create_dir(dirs[0].join("d")).expect("mkdir");
        let total = 2 * FILES;
        for i in 0..total {
            fs::write(dirs[i as usize % mounts].join(format!("d/f{i}")), contents(i)).expect("write");
        }
        if mounts == 2 {
            for i in (0..total).step_by(7) {
                let other = &dirs[1 - i as usize % mounts];
                assert!(fs::read(other.join(format!("d/f{i}"))).expect("read") == contents(i), "file {i} elsewhere");
            }
        }
        let (mut calls, mut batched) = (0, 0);
        for dir in &dirs {
            assert!(run(&["sync", &dir.display().to_string()]).status.success());
            let stats = stats(dir);
            calls += stats["server_calls"].0;
            batched += stats.get("batch_files").map_or(0, |s| s.1);
        }
        println!(
            "{mounts} mounts, batches {switch}: {:.2} messages per file, {batched} in batches",
            calls as f64 / total as f64
        );
        match switch {
            "off" => assert_eq!(batched, 0),
            _ => assert!(batched > total / 2, "{batched} in batches"),
        }
        per_file.push(calls as f64 / total as f64);
        daemons.into_iter().for_each(|daemon| daemon.stop());
        server.stop();
        place.fsck();
        let server = place.server(&[]);
        let mount = place.mount_at("mount", &set);
        for i in 0..total {
            assert!(
                fs::read(dirs[0].join(format!("d/f{i}"))).expect("read") == contents(i),
                "file {i} after a restart"
            );
        }
        mount.stop();
        server.stop();
    }
    for pair in per_file.chunks(2) {
        assert!(pair[1] < pair[0] - 1.0, "messages per file without and with batches: {pair:?}");
    }
}
