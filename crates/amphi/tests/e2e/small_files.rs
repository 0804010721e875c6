//! Many small files.

use crate::harness::{Place, counter, pattern, run};
use crate::two_mounts::Pair;
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

/// Goal: many small files cost fewer messages with batches, and their content is the same with and without, also after
/// a restart. Another mount sees each file at once. Method: 3,000 files of 3,091 and 3,901 bytes in one directory, by
/// one mount and by two in turn. The other mount compares the contents, also after the servers were started again.
#[test]
fn three_thousand_small_files() {
    let mut per_file = Vec::new();
    for (switch, mounts) in [("off", 1), ("on", 1), ("off", 2), ("on", 2)] {
        let place = Place::new();
        let server = place.server(&[]);
        let batch = format!("writeback.batch={switch}");
        let set = ["--set", &batch];
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

/// Goal: a mount that has never seen the small files of a directory, which one mount made, reads them in order with a
/// fraction of a message for each, with the right bytes. It also sees what the first mount writes meanwhile. Method:
/// 500 files, and counters of both mounts, with the feature on and off. Then the writer replaces, appends to and cuts
/// files that the reader comes to a little later.
#[test]
fn files_read_in_order_travel_together() {
    let mut per_file = Vec::new();
    for switch in ["off", "on"] {
        let place = Place::new();
        let server = place.server(&[]);
        let set = format!("readahead.small_files={switch}");
        let first = place.mount_at("mount", &["--set", &set]);
        let (a, b) = (place.path("mount"), place.path("other"));
        fs::create_dir(a.join("d")).expect("mkdir");
        let name = |i: u64| format!("f{i:04}");
        for i in 0..500 {
            fs::write(a.join("d").join(name(i)), contents(i)).expect("write");
        }
        assert!(run(&["sync", &a.display().to_string()]).status.success());
        let second = place.mount_at("other", &["--set", &set]);
        let before = [stats(&a), stats(&b)].map(|s| s["server_calls"].0);
        let mut names: Vec<String> = fs::read_dir(b.join("d"))
            .expect("list")
            .map(|e| e.expect("entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        assert_eq!(names, (0..500).map(name).collect::<Vec<_>>());
        for i in 0..500 {
            assert!(fs::read(b.join("d").join(name(i))).expect("read") == contents(i), "file {i}, {switch}");
        }
        let after = [stats(&a), stats(&b)];
        let [of_a, of_b] = [0, 1].map(|m| (after[m]["server_calls"].0 - before[m]) as f64 / 500.0);
        let used = after[1].get("readahead_small_used").map_or(0, |s| s.0);
        println!(
            "read ahead {switch}: {of_b:.2} messages per file of the reader, {of_a:.2} of the writer, {used} of 500 opened ahead"
        );
        per_file.push(of_b);

        let mut wanted: Vec<Vec<u8>> = (0..500).map(contents).collect();
        for i in 0..500usize {
            assert!(fs::read(b.join("d").join(name(i as u64))).expect("read") == wanted[i], "file {i} again, {switch}");
            for ahead in [1, 5, 40] {
                let at = i + ahead;
                if i % 10 != 0 || at >= 500 {
                    continue;
                }
                let path = a.join("d").join(name(at as u64));
                match ahead {
                    1 => wanted[at].truncate(100),
                    5 => wanted[at] = pattern(9000 + at as u64, 5000),
                    _ => wanted[at].extend(b"and more"),
                }
                match ahead {
                    1 => fs::File::options().write(true).open(&path).and_then(|f| f.set_len(100)).expect("cut"),
                    5 => fs::write(&path, &wanted[at]).expect("replace"),
                    _ => {
                        let mut file = fs::File::options().append(true).open(&path).expect("open");
                        std::io::Write::write_all(&mut file, b"and more").expect("append");
                    }
                }
            }
        }
        second.stop();
        first.stop();
        server.stop();
        place.fsck();
    }
    assert!(per_file[0] > 4.0 * per_file[1], "messages per file without and with reading ahead: {per_file:?}");
}

/// Goal: another mount walks over a tree that one mount has just written, or wrote before the other one read there
/// first. The walk costs the writing mount one message for many files, not one for each. Method: a tree of 40
/// directories of 25 files is written on one mount and read in the order of names on the other one. Callbacks, returns
/// and revocations of the first are counted.
#[test]
fn a_tree_of_another_mount_comes_back_in_batches() {
    const DIRS: u64 = 40;
    const EACH: u64 = 25;
    let pair = Pair::new(1, &["--targets", "2"], &[]);
    for d in 0..DIRS {
        fs::create_dir(pair.a.join(format!("d{d}"))).expect("mkdir");
        for f in 0..EACH {
            fs::write(pair.a.join(format!("d{d}/f{f}")), contents(d * EACH + f)).expect("write");
        }
    }
    let names = ["lock_callback", "lock_cancel_messages", "token_revoke"];
    let counted = || names.map(|name| counter(&pair.a, name));
    let before = counted();
    for d in 0..DIRS {
        let mut files: Vec<_> = fs::read_dir(pair.b.join(format!("d{d}"))).expect("list").flatten().collect();
        files.sort_by_key(|entry| entry.file_name());
        assert_eq!(files.len() as u64, EACH);
        for entry in files {
            let f: u64 = entry.file_name().to_string_lossy()[1..].parse().expect("a number");
            assert!(fs::read(entry.path()).expect("read") == contents(d * EACH + f), "d{d}/f{f}");
        }
    }
    std::thread::sleep(std::time::Duration::from_secs(2));
    for ((name, before), after) in names.iter().zip(before).zip(counted()) {
        assert!(10 * (after - before) <= DIRS * EACH, "{name}: {} for {} files", after - before, DIRS * EACH);
    }
    pair.stop();
}

/// Goal: a mount in a small memory group accepts any number of small files. The memory of its cache is counted,
/// including what is kept in addition to the bytes. Method: only the mount is in a group of 64 MiB. It gets 6,000 files
/// of 5,000 bytes, of which it could not hold 3,000 before.
#[test]
fn a_small_memory_group_holds_many_small_files() {
    let Some(group) = crate::memory_group::MemoryGroup::make(64 << 20) else { return };
    let place = Place::new();
    let server = place.server(&["--targets", "2"]);
    let dir = place.path("a");
    fs::create_dir(&dir).expect("mkdir");
    let mut mount = crate::harness::amphi();
    mount.args(["mount", "--cluster", &place.addr(), &place.text("a")]);
    let mount = crate::harness::Starting::spawn(group.command(&mount)).ready();
    let bytes = vec![7; 5000];
    for i in 0..6000 {
        let inside = dir.join(format!("{}", i / 500));
        if i % 500 == 0 {
            fs::create_dir(&inside).expect("mkdir");
        }
        fs::write(inside.join(format!("{i}")), &bytes).expect("the mount is there");
    }
    assert_eq!(fs::read(dir.join("0").join("0")).expect("read"), bytes);
    mount.stop();
    server.stop();
    drop(group);
    place.fsck();
}
