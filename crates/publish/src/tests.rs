//! Commits that are interrupted before each step; reports of ranks; generations; invalid names.

use super::*;
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

fn options<'a>(step: &'a dyn Fn(&'static str) -> Result<(), Error>) -> Options<'a> {
    Options { keep: 2, wait: Duration::ZERO, progress: &|_, _| (), step }
}

fn plain(tree: &Path) -> Result<Committed, Error> {
    commit(tree, &options(&|_| Ok(())))
}

/// A tree of a few files with `text` in each.
fn fill(tree: &Path, text: &str) {
    fs::create_dir_all(tree.join("a/b")).expect("mkdir");
    for name in ["one", "a/two", "a/b/three"] {
        fs::write(tree.join(name), text).expect("write");
    }
}

/// The contents of all files of a whole tree; `None` if it is absent.
fn content(dir: &Path) -> Option<String> {
    let texts: Vec<String> =
        ["one", "a/two", "a/b/three"].iter().filter_map(|name| fs::read_to_string(dir.join(name)).ok()).collect();
    if !dir.exists() {
        return None;
    }
    assert_eq!(texts.len(), 3, "half a tree at {}: {texts:?}", dir.display());
    assert!(texts.iter().all(|text| *text == texts[0]), "two trees mixed: {texts:?}");
    Some(texts[0].clone())
}

/// Begins, writes, says that all is ready.
fn written(dir: &Path, text: &str) -> PathBuf {
    let tree = begin(dir, 1).expect("begin");
    fill(&tree, text);
    ready(&tree, 0, &[]).expect("ready");
    tree
}

/// Goal: wherever a commit is interrupted, the name leads to the complete old tree or the complete new one; the same
/// commit continues, also after another commit; nothing temporary remains. Method: a commit is ended before each of its
/// steps: with nothing at the name, with a tree there, and with another publication in between.
#[test]
fn a_commit_is_interrupted_anywhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut run, mut interrupted) = (0, 0);
    for earlier in [0, 1, 3] {
        for other in [false, true] {
            for at in 0.. {
                run += 1;
                let dir = folder.path().join(format!("run{run}"));
                for n in 0..earlier {
                    plain(&written(&dir, &format!("old{n}"))).expect("commit");
                }
                let before = content(&dir);
                let tree = written(&dir, "new");
                let steps = Cell::new(0);
                let ended = commit(
                    &tree,
                    &options(&|step| {
                        steps.set(steps.get() + 1);
                        if steps.get() > at {
                            Err(Error { kind: ErrorKind::Failed, text: step.into() })
                        } else {
                            Ok(())
                        }
                    }),
                );
                let seen = content(&dir);
                assert!(seen == before || seen.as_deref() == Some("new"), "{seen:?} at step {at}");
                let Err(_) = ended else {
                    assert_eq!(seen.as_deref(), Some("new"));
                    break;
                };
                interrupted += 1;
                let was_new = seen.as_deref() == Some("new");
                if other {
                    plain(&written(&dir, "other")).expect("the other one commits");
                    assert_eq!(content(&dir).as_deref(), Some("other"));
                }
                let again = plain(&tree);
                match (other, was_new) {
                    // The tree had the name, and the other tree has it now.
                    (true, true) => assert!(again.is_err(), "{again:?}"),
                    _ => assert_eq!(again.expect("it goes on").dir, dir),
                }
                let wanted = if other && was_new { "other" } else { "new" };
                assert_eq!(content(&dir).as_deref(), Some(wanted), "step {at}");
                let listed = list(&dir).expect("list");
                assert!(listed.open.is_empty(), "{listed:?}");
                let had = earlier + usize::from(other);
                assert_eq!(listed.generations.len(), had.min(2), "step {at}, {earlier} earlier, other {other}");
                for generation in listed.generations {
                    content(&generation.tree).expect("a whole tree");
                }
            }
        }
    }
    assert!(interrupted >= 2 * (5 + 6 + 6), "{interrupted} steps");
}

/// Goal: a commit needs all ranks and their files. Method: ranks that are missing, that do not exist, or whose files
/// change, are removed, or are in another tree.
#[test]
fn ranks() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("it");
    let tree = begin(&dir, 3).expect("begin");
    fill(&tree, "x");
    let refused = |outcome: Result<(), Error>, words: &str| {
        let e = outcome.expect_err(words);
        assert!(e.kind == ErrorKind::Refused && e.text.contains(words), "{e}");
    };
    ready(&tree, 1, &[tree.join("a")]).expect("ready");
    refused(plain(&tree).map(drop), "of 3 ranks these are not ready: 0, 2");
    refused(ready(&tree, 3, &[]), "has ranks 0 to 2");
    refused(ready(&tree, 0, &[folder.path().join("elsewhere")]), "is not in");
    ready(&tree, 0, &[PathBuf::from("one")]).expect("ready");
    ready(&tree, 2, &[]).expect("ready");
    fs::write(tree.join("a/two"), "longer").expect("write");
    fs::remove_file(tree.join("one")).expect("remove");
    refused(plain(&tree).map(drop), "2 files changed or went");
    assert_eq!(content(&dir), None);
    fill(&tree, "y");
    ready(&tree, 0, &[PathBuf::from("one")]).expect("ready");
    ready(&tree, 1, &[tree.join("a")]).expect("ready");
    let done = plain(&tree).expect("commit");
    assert_eq!((done.files, done.bytes, done.before), (3, 3, false));
    assert_eq!(content(&dir).as_deref(), Some("y"));
    let again = plain(&tree).expect("said again");
    assert!(again.before && again.files == 0);
}

/// Goal: a commit waits for ranks that are late. Method: one that is ready after a while.
#[test]
fn waits_for_ranks() {
    let folder = tempfile::tempdir().expect("a folder");
    let tree = begin(&folder.path().join("it"), 2).expect("begin");
    fill(&tree, "x");
    ready(&tree, 0, &[]).expect("ready");
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(Duration::from_millis(250));
            ready(&tree, 1, &[]).expect("ready");
        });
        commit(&tree, &Options { wait: Duration::from_secs(60), ..options(&|_| Ok(())) }).expect("commit");
    });
}

/// Goal: earlier generations are restored and replaced again, the wanted number stays, and idle ones are removed.
/// Method: four commits, back and forth, to a number.
#[test]
fn generations_come_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("it");
    for n in 0..4 {
        plain(&written(&dir, &n.to_string())).expect("commit");
    }
    let listed = list(&dir).expect("list").generations;
    assert_eq!(listed.iter().map(|g| content(&g.tree).expect("whole")).collect::<Vec<_>>(), ["2", "1"]);
    let back = rollback(&dir, None).expect("back");
    assert_eq!((content(&dir).as_deref(), content(&back.tree).as_deref()), (Some("2"), Some("3")));
    rollback(&dir, Some(back.number)).expect("and forth");
    assert_eq!(content(&dir).as_deref(), Some("3"));
    rollback(&dir, Some(listed[1].number)).expect("further back");
    assert_eq!(content(&dir).as_deref(), Some("1"));
    assert!(rollback(&dir, Some(99)).is_err_and(|e| e.text.contains("no generation 99")));
    assert!(rollback(&folder.path().join("other"), None).is_err_and(|e| e.kind == ErrorKind::Refused));
    let tree = written(&dir, "late");
    assert!(clean(&dir, Duration::from_secs(3600)).expect("clean").is_empty());
    assert_eq!(clean(&dir, Duration::ZERO).expect("clean"), std::slice::from_ref(&tree));
    assert!(plain(&tree).is_err_and(|e| e.text.contains("is no publication")));
    let aborted = written(&dir, "no");
    abort(&aborted).expect("abort");
    assert!(!aborted.exists() && abort(&aborted).is_err() && plain(&aborted).is_err());
    assert_eq!(content(&dir).as_deref(), Some("1"));
}

/// Goal: a tree in which ranks still write, at any depth, is not taken for abandoned, and one in which nothing changes
/// is. Method: times of change are those of now, so the clock of the call is set forward; the time of modification of
/// one deep file as if it had just been written; folder and root as old as programs can make them.
#[test]
fn a_tree_that_is_written_is_not_idle() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("it");
    let tree = written(&dir, "x");
    let now = SystemTime::now();
    let (hour, deep) = (Duration::from_secs(3600), tree.join("a/b/three"));
    let set = |path: &Path, at: SystemTime| {
        fs::File::open(path).and_then(|file| file.set_modified(at)).expect("set its time");
    };
    for old in [&tree, &tree.join("a"), &tree.join("a/b"), &deep, tree.parent().expect("a folder")] {
        set(old, now - 10 * hour);
    }
    // All were made just now, whatever times they were given.
    assert!(clean(&dir, hour).expect("clean").is_empty());
    assert!(list(&dir).expect("list").open[0].idle < hour);
    set(&deep, now + 2 * hour);
    assert!(generations::clean_at(&dir, hour, now + 2 * hour).expect("clean").is_empty());
    assert!(tree.exists());
    set(&deep, now - hour);
    assert_eq!(generations::clean_at(&dir, hour, now + 2 * hour).expect("clean"), [tree]);
}

/// Goal: paths that are no publication, and names that cannot be published, are refused. Method: such paths; a file in
/// the place of the name.
#[test]
fn names_that_are_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = |e: Error| assert_eq!(e.kind, ErrorKind::Refused, "{e}");
    refused(begin(Path::new("/"), 1).expect_err("the root"));
    refused(begin(&folder.path().join("no/such"), 1).expect_err("no folder"));
    refused(begin(&folder.path().join("it"), 0).expect_err("no ranks"));
    fs::write(folder.path().join("file"), "").expect("write");
    refused(begin(&folder.path().join("file"), 1).expect_err("a file"));
    for path in ["/", "tree", "/x/tree", "/x/.y.publish/old/tree", "/x/.y.publish/a.b/tree", "/x/.y.publish/abc/other"]
    {
        refused(ready(Path::new(path), 0, &[]).expect_err(path));
        refused(abort(Path::new(path)).expect_err(path));
    }
    let tree = begin(&folder.path().join("it"), 1).expect("begin");
    fs::write(tree.parent().expect("a folder").join("begun"), "{").expect("write");
    assert!(plain(&tree).is_err_and(|e| e.text.contains("is damaged")));
}
