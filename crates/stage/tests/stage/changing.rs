//! Sources that change while they are copied: success only if the copy is complete.

use crate::model::{self, assert_same};
use amphi_stage::{Options, Progress, stage};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// A stage that may fail; whether it was complete, and what failed.
fn try_stage(source: &Path, target: &Path) -> (bool, Vec<String>) {
    let (options, progress) = (Options { piece_bytes: 1 << 20, ..Options::new(source, target) }, Progress::default());
    let manifest = stage(&options, &progress).unwrap_or_else(|e| panic!("{e}"));
    (manifest.complete, progress.failed.first().into_iter().map(|n| format!("{}: {}", n.path, n.reason)).collect())
}

/// Changes a source from another thread for as long as it is staged.
fn while_changing(source: &Path, target: &Path, change: impl Fn(u64) + Sync) -> (bool, Vec<String>) {
    let (ready, stop) = (std::sync::Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            change(0);
            ready.wait();
            let mut n = 1;
            while !stop.load(Ordering::Relaxed) {
                change(n);
                n += 1;
            }
        });
        ready.wait();
        let result = try_stage(source, target);
        stop.store(true, Ordering::Relaxed);
        result
    })
}

/// Goal: a file that grows, shrinks or is rewritten all the time is a failure by its name, and once it rests the same
/// command completes. Method: each kind of change, without a pause, beside files that do not change.
#[test]
fn files_that_change_fail_by_name() {
    type Change = fn(&fs::File, u64);
    let kinds: [(&str, Change); 3] = [
        ("grows", |f, n| f.set_len((4 << 20) + n).expect("grow")),
        ("shrinks", |f, n| f.set_len((4 << 20) - n % (1 << 20)).expect("shrink")),
        ("rewritten", |f, n| f.write_all_at(&n.to_le_bytes(), (n * 4096) % (4 << 20)).expect("write")),
    ];
    for (name, change) in kinds {
        let dir = tempfile::tempdir().expect("folder");
        let (source, target) = (dir.path().join("source"), dir.path().join("target"));
        fs::create_dir(&source).expect("mkdir");
        fs::write(source.join("rests"), model::bytes(2 << 20, 3)).expect("write");
        fs::write(source.join(name), model::bytes(4 << 20, 4)).expect("write");
        let file = fs::File::options().write(true).open(source.join(name)).expect("open");
        let (complete, failed) = while_changing(&source, &target, |n| change(&file, n));
        assert!(!complete && failed.len() == 1, "{failed:?}");
        assert!(failed[0].starts_with(&format!("source/{name}: ")) && failed[0].ends_with(", twice"), "{failed:?}");
        assert!(!target.exists());
        let (complete, failed) = try_stage(&source, &target);
        assert!(complete, "{failed:?}");
        assert_same(&source, &target);
    }
}

/// Goal: names that come and go while a directory is copied are a failure of that directory. Method: one that does.
#[test]
fn directories_that_change_fail_by_name() {
    let dir = tempfile::tempdir().expect("folder");
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    fs::create_dir_all(source.join("busy")).expect("mkdir");
    let (complete, failed) = while_changing(&source, &target, |n| {
        let _ = fs::write(source.join(format!("busy/{}", n % 7)), n.to_string());
        let _ = fs::remove_file(source.join(format!("busy/{}", (n + 3) % 7)));
    });
    assert!(!complete && failed.iter().any(|f| f.starts_with("source/busy: ")), "{failed:?}");
    let (complete, failed) = try_stage(&source, &target);
    assert!(complete, "{failed:?}");
    assert_same(&source, &target);
}

/// Goal: a file that four writers fill together is never staged in part and reported as complete (the error of a
/// stage-out that reported success and left short files). Method: four threads write their quarters in small steps;
/// stages run until one succeeds, and its copy has to equal the finished file.
#[test]
fn four_writers_of_one_file() {
    const PART: u64 = 8 << 20;
    let dir = tempfile::tempdir().expect("folder");
    let source = dir.path().join("shared");
    let file = fs::File::create(&source).expect("create");
    let (written, mut stages) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4u64)
            .map(|n| {
                let file = &file;
                scope.spawn(move || {
                    for (at, part) in model::bytes(PART as usize, n).chunks(8192).enumerate() {
                        file.write_all_at(part, n * PART + at as u64 * 8192).expect("write");
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            writers.into_iter().for_each(|w| w.join().expect("a writer"));
            written.store(true, Ordering::SeqCst);
        });
        loop {
            let over = written.load(Ordering::SeqCst);
            stages += 1;
            let target = dir.path().join(format!("out{stages}"));
            let (complete, _) = try_stage(&source, &target);
            assert_eq!(target.exists(), complete);
            if complete {
                let meta = fs::metadata(&target).expect("stat");
                let now = fs::metadata(&source).expect("stat");
                if meta.len() == now.len() && meta.modified().expect("time") == now.modified().expect("time") {
                    assert!(fs::read(&source).expect("read") == fs::read(&target).expect("read"));
                } else {
                    // Complete at one moment, after which the writers continued.
                    assert!(!over, "a file that rests is staged whole");
                }
            }
            if over {
                assert!(complete);
                return;
            }
        }
    });
}
