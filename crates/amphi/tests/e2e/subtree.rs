//! Keys that are bound to a tree: what a mount with such a key sees, and that it cannot access anything else.

use crate::handles::Handle;
use crate::harness::{errno, eventually, run};
use crate::keys::{Cluster, as_user, done, is_root, refused, text};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("chmod");
}

fn ino(path: &Path) -> u64 {
    fs::metadata(path).expect("stat").ino()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("list");
    let mut names: Vec<String> =
        entries.map(|e| e.expect("entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A script that has to succeed as a user.
fn succeeds(uid: &str, script: &str) -> String {
    let out = as_user(uid, script);
    assert!(out.status.success(), "{script}: {}", text(&out));
    String::from_utf8_lossy(&out.stdout).trim().to_string()
}

/// The directories of two groups on the mount of a user who is root of the cluster.
fn plant(base: &Path) {
    for group in ["a", "b"] {
        let dir = base.join("groups").join(group);
        fs::create_dir_all(dir.join("sub")).expect("mkdir");
        fs::write(dir.join("sub/f"), format!("of {group}")).expect("write");
        symlink("sub/f", dir.join("link")).expect("symlink");
        symlink(format!("../{}/sub/f", if group == "a" { "b" } else { "a" }), dir.join("out")).expect("symlink");
        let made = Command::new("mkfifo").arg(dir.join("pipe")).status();
        assert!(made.expect("mkfifo runs").success());
        for path in [&dir, &dir.join("sub"), &dir.join("sub/f")] {
            open_to_all(path);
        }
    }
}

/// Goal: a mount with a key that is bound to a tree has the tree's directory as its root, with all files that were
/// there before it became a tree, and works like any other. Nothing outside can be accessed, even by handles of the
/// kernel. No operation takes anything out of the tree. Method: root, who keeps his rights, and two users on such a
/// mount, compared with a mount of the whole file system.
#[test]
fn subtree_mounts_see_their_tree_alone() {
    if !is_root() {
        return;
    }
    let cluster = Cluster::start();
    let trusted = cluster.trusted();
    let base = cluster.place.path("trusted");
    plant(&base);
    let tree = base.join("groups/a");
    let at = tree.to_str().expect("UTF-8");
    let key = cluster.make("node");
    let add = ["key", "add", "node", &key, "--role", "client", "--root", "keep", "--subtree"];
    cluster.boss_is_refused(&[&add[..], &[at]].concat(), "is no tree; amphi quota track");
    cluster.boss_is_refused(&[&add[..], &["/tmp"]].concat(), "is not on an AmphiFS mount");
    done(&["quota", "track", at]);
    cluster.boss_is_refused(&[&add[..], &[&format!("{at}/sub")]].concat(), "is not its top");
    let line = cluster.as_boss(&[&add[..], &[at]].concat());
    assert!(line.contains(&format!("subtree={at:?} tree=")), "{line}");
    assert!(cluster.as_boss(&["key", "list"]).contains(&format!("subtree={at:?}")));
    let host = cluster.mount("node", "node");
    let here = cluster.place.path("node");
    let status = text(&run(&["status", &base.display().to_string()]));
    assert!(status.contains(&format!("key node in {at}")), "{status}");
    assert_eq!(names(&here), ["link", "out", "pipe", "sub"]);
    assert_eq!(ino(&here), ino(&tree));
    let shown = here.display();
    for uid in ["0", "1000", "1001"] {
        assert_eq!(succeeds(uid, &format!("cat {shown}/sub/f {shown}/link")), "of aof a");
        let listed =
            succeeds(uid, &format!("cd {shown}/sub; ls -i .. | wc -l; cd ..; pwd -P; stat -c %F {shown}/pipe"));
        assert_eq!(listed, format!("4\n{shown}\nfifo"));
        // The host follows a link that leads out of the tree. The link leads outside the mount, as on any other mount.
        assert!(!as_user(uid, &format!("cat {shown}/out")).status.success());
        let script = format!(
            "cd {shown}; mkdir d{uid}; echo x > d{uid}/f; ln d{uid}/f d{uid}/g; mv d{uid}/f sub/m{uid}; \
             ln -s d{uid} l{uid}; mkfifo p{uid}; cp sub/f d{uid}/c; truncate -s 1M d{uid}/c; rm l{uid} p{uid}; \
             flock d{uid}/g true; setfattr -n user.x -v y d{uid}/g; mv d{uid} e{uid}; rm -r e{uid}; rm sub/m{uid}"
        );
        succeeds(uid, &script);
    }
    // By number: the handle of a file is its inode number.
    let at_mount = fs::File::open(&here).expect("the mount");
    for (path, is_within) in [("groups/a/sub/f", true), ("groups/b/sub/f", false), ("groups/b", false), (".", false)] {
        let opened = Handle::of(&base.join(path)).open(&at_mount, libc::O_RDONLY);
        assert_eq!(opened.is_ok() || path == ".", is_within || path == ".", "{path}: {opened:?}");
        // The kernel's number of the root means this mount's root.
        assert!(path != "." || opened.is_ok_and(|f| f.metadata().expect("stat").ino() == ino(&here)), "{path}");
    }
    for (args, what) in [
        (vec!["setfattr", "-n", "user.amphi.project", "-v", "0"], "sub/f"),
        (vec!["setfattr", "-n", "user.amphi.project", "-v", "new"], "sub"),
        (vec!["setfattr", "-n", "user.amphi.set", "-v", "server.token_ms=1"], "sub"),
        (vec!["chattr", "-p", "77"], "sub/f"),
        (vec!["getfattr", "-n", "user.amphi.quota"], "sub"),
        (vec!["getfattr", "-n", "user.amphi.counters.server"], "sub"),
    ] {
        let out = Command::new(args[0]).args(&args[1..]).arg(here.join(what)).output();
        assert!(!out.expect("attr and e2fsprogs are here").status.success(), "{args:?}");
    }
    drop(at_mount);
    host.stop();
    trusted.stop();
    cluster.server.stop();
    cluster.place.fsck();
}

/// Goal: limits of the tree apply to a mount that is bound to it, and df on that mount shows them. `amphi quota` does
/// not remove the border. A tree that is moved stays bound to its keys, and mounts continue. If the key gets another
/// tree, or none, this applies from the next call of existing mounts on, and to their root when they mount again. A
/// tree that was removed is reported. Method: a story.
#[test]
fn subtree_changes_with_its_tree() {
    if !is_root() {
        return;
    }
    let cluster = Cluster::start();
    let trusted = cluster.trusted();
    let base = cluster.place.path("trusted");
    plant(&base);
    let (a, b) = (base.join("groups/a"), base.join("groups/b"));
    let (at, other) = (a.to_str().expect("UTF-8"), b.to_str().expect("UTF-8"));
    for tree in [at, other] {
        done(&["quota", "track", tree]);
    }
    let host = cluster.host("node", &["--root", "keep", "--subtree", at]);
    let here = cluster.place.path("node");
    done(&["quota", "set", "--tree", at, "--bytes", "8M"]);
    let df = |dir: &Path| {
        let out = Command::new("df").args(["--output=size", "-B1M"]).arg(dir).output().expect("df runs");
        String::from_utf8_lossy(&out.stdout).lines().last().unwrap_or_default().trim().to_string()
    };
    assert_eq!((df(&here), df(&a)), ("8".into(), "8".into()));
    let big = fs::write(here.join("big"), vec![1u8; 20 << 20]);
    assert_eq!(errno(big), 122, "the quota is used up");
    fs::remove_file(here.join("big")).expect("unlink");
    refused(&["quota", "untrack", at], "a key is bound to the tree");
    assert_eq!(df(&here), "8", "its limits stay as well");
    let name = |n: u32| base.join(format!("moved{n}"));
    fs::rename(&a, name(0)).expect("a tree is renamed as a whole");
    assert_eq!(fs::read(here.join("sub/f")).expect("it goes on"), b"of a");
    fs::write(here.join("sub/new"), b"x").expect("it goes on");
    fs::File::open(here.join("sub/new")).and_then(|file| file.sync_all()).expect("written back");
    assert!(name(0).join("sub/new").exists());
    cluster.as_boss(&["key", "set", "node", "--subtree", other]);
    let refused_now =
        || fs::write(here.join("sub/later"), b"x").is_err() && fs::create_dir(here.join("later")).is_err();
    eventually("the next call", refused_now);
    host.stop();
    let host = cluster.mount("node", "node");
    assert_eq!(fs::read(here.join("sub/f")).expect("the other one"), b"of b");
    cluster.as_boss(&["key", "set", "node", "--subtree", "none"]);
    assert_eq!(fs::read(here.join("sub/f")).expect("it keeps its root"), b"of b");
    host.stop();
    let host = cluster.mount("node", "node");
    assert!(here.join("groups").exists() && here.join("moved0").exists(), "all of it");
    host.stop();
    done(&["quota", "untrack", name(0).to_str().expect("UTF-8")]);
    cluster.as_boss(&["key", "set", "node", "--subtree", other]);
    fs::remove_dir_all(&b).expect("rm -r");
    let said =
        run(&["mount", "--cluster", &cluster.tcp, "--identity", &cluster.id("node"), &cluster.place.text("node")]);
    assert!(!said.status.success() && text(&said).contains("is gone"), "{}", text(&said));
    let audit = cluster.audit();
    assert!(audit.contains("subtree=none") && audit.contains("subtree="), "{audit}");
    trusted.stop();
    cluster.server.stop();
    cluster.place.fsck();
}
