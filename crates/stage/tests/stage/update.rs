//! Targets that are brought up to date.

use crate::model::{self, assert_same, names};
use crate::whole::done;
use amphi_stage::{Existing, Options};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

fn update(source: &Path, target: &Path) -> Options {
    Options { existing: Existing::Update, piece_bytes: 1 << 20, sync_bytes: 8 << 20, ..Options::new(source, target) }
}

/// Goal: an update copies the differences and nothing else, keeps entries that are missing in the source unless they
/// are to be removed, and also copies all attributes. Method: the model tree, then changes of all kinds on both sides.
#[test]
fn an_update_copies_what_differs() {
    let dir = tempfile::tempdir().expect("folder");
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    model::build(&source);
    done(&update(&source, &target));
    assert_same(&source, &target);
    let inode = |name: &str| fs::symlink_metadata(target.join(name)).expect("stat").ino();
    let (same, linked) = (inode("many/50"), inode("many/100"));

    let progress = done(&update(&source, &target));
    assert_eq!((progress.copied_files.get(), progress.skipped_files.get()), (0, progress.files.get()));
    assert_same(&source, &target);

    fs::write(source.join("many/51"), b"longer than it was, or shorter").expect("write");
    fs::write(source.join("new"), b"new").expect("write");
    fs::remove_file(source.join("many/52")).expect("remove");
    fs::create_dir(source.join("many/52")).expect("mkdir");
    fs::write(source.join("many/52/in"), b"x").expect("write");
    fs::remove_dir_all(source.join("a/b")).expect("remove");
    fs::write(source.join("a/b"), b"a file now").expect("write");
    fs::remove_file(source.join("links/dangling")).expect("remove");
    std::os::unix::fs::symlink("elsewhere", source.join("links/dangling")).expect("symlink");
    fs::hard_link(source.join("many/100"), source.join("links/hundred")).expect("link");
    fs::set_permissions(source.join("many/53"), std::os::unix::fs::PermissionsExt::from_mode(0o711)).expect("chmod");
    fs::create_dir(target.join("extra")).expect("mkdir");
    fs::write(target.join("extra/file"), b"x").expect("write");
    fs::write(target.join("many/more"), b"x").expect("write");
    let progress = done(&update(&source, &target));
    assert_eq!(progress.copied_files.get(), 4, "51, new, 52/in, a/b");
    assert_eq!((inode("many/50"), inode("many/100")), (same, linked));
    assert!(target.join("extra/file").exists() && target.join("many/more").exists());

    let progress = done(&Options { existing: Existing::UpdateAndDelete, ..update(&source, &target) });
    assert_eq!((progress.copied_files.get(), progress.deleted.get()), (0, 2));
    assert_same(&source, &target);
    assert_eq!(names(dir.path()), ["source", "target"]);
}

/// Goal: an update of a single file, and of a tree behind a link. Method: one of each.
#[test]
fn files_and_links_are_updated() {
    let dir = tempfile::tempdir().expect("folder");
    let at = |name: &str| dir.path().join(name);
    fs::write(at("a"), b"one").expect("write");
    done(&update(&at("a"), &at("b")));
    fs::write(at("a"), b"three").expect("write");
    assert_eq!(done(&update(&at("a"), &at("b"))).copied_files.get(), 1);
    assert_same(&at("a"), &at("b"));
    fs::create_dir_all(at("tree/x")).expect("mkdir");
    fs::create_dir(at("copy")).expect("mkdir");
    std::os::unix::fs::symlink("copy", at("link")).expect("symlink");
    done(&update(&at("tree"), &at("link")));
    assert_same(&at("tree"), &at("copy"));
    assert!(at("link").is_symlink());
    assert_eq!(names(dir.path()), ["a", "b", "copy", "link", "tree"]);
}
