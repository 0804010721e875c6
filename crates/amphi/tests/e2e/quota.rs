//! Limits of users, groups and trees, with the programs that people use: dd, cp, mv, ln, df, chattr and amphi quota.

use crate::harness::{Daemon, Place, errno, eventually, run};
use crate::two_mounts::Pair;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

const USER: u32 = 1600;
const OTHER: u32 = 1601;
const MIB: usize = 1 << 20;
/// `EDQUOT`, `EXDEV`.
const QUOTA: i32 = 122;
const CROSS_DEVICE: i32 = 18;

/// The output of a shell of a user, and its exit.
fn shell(dir: &Path, user: u32, script: &str) -> String {
    let user = user.to_string();
    let out = Command::new("setpriv")
        .args(["--reuid", &user, "--regid", &user, "--clear-groups", "bash", "-c"])
        .arg(format!("cd \"$D\" || exit 9\nexec 2>&1\n{script}"))
        .envs([("D", dir.as_os_str()), ("LC_ALL", "C".as_ref())])
        .output()
        .expect("setpriv (util-linux) runs");
    format!("{}[{}]", String::from_utf8_lossy(&out.stdout), out.status.code().unwrap_or(-1))
}

fn quota(args: &[&str]) -> String {
    let out = run(&[&["quota"], args].concat());
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A number of an account in the output of `amphi quota list`.
fn number(dir: &Path, kind: &str, id: u32, name: &str) -> u64 {
    let text = quota(&["list", "--json", "-m", dir.to_str().expect("UTF-8")]);
    let all: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let is_it = |a: &&serde_json::Value| a["kind"] == kind && a["id"] == id;
    all["accounts"].as_array().expect("a list").iter().find(is_it).map_or(0, |a| a[name].as_u64().expect("a number"))
}

fn open_to_all(dir: &Path) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("chmod");
}

/// Goal: Promise S25: a user's call that exceeds his limit is refused, however it writes. Accepted data stays, and
/// space that the user frees can be used again. Other users are not affected. Method: the same with dd in small and
/// large pieces, buffered and direct, with fallocate, and with names. At the end nothing is charged any more.
#[test]
fn a_user_is_refused_what_is_too_much() {
    let place = Place::new();
    let up = place.up(&[]);
    let dir = place.mount();
    open_to_all(&dir);
    let at = dir.to_str().expect("UTF-8");
    quota(&["set", "--user", &USER.to_string(), "--bytes", "10M", "--inodes", "3", "-m", at]);
    for (way, whole) in [
        ("dd if=/dev/zero of=f bs=1M count=20 status=none", 10 * MIB as u64),
        ("dd if=/dev/zero of=f bs=4k count=6000 status=none", 10 * MIB as u64),
        ("dd if=/dev/zero of=f bs=100 count=200000 status=none", 10 * MIB as u64),
        ("dd if=/dev/zero of=f bs=1M count=20 oflag=direct status=none", 10 * MIB as u64),
        ("for i in $(seq 30); do head -c 500000 /dev/zero >> f || exit 1; done", 9 * MIB as u64),
    ] {
        let said = shell(&dir, USER, way);
        assert!(said.contains("Disk quota exceeded") && said.ends_with("[1]"), "{way}: {said}");
        let f = fs::metadata(dir.join("f")).expect("f");
        assert!((whole..=10 * MIB as u64).contains(&f.len()), "{way}: {} bytes", f.len());
        assert!(f.blocks() * 512 <= 10 * MIB as u64, "{way}: {} blocks", f.blocks());
        assert_eq!(shell(&dir, USER, "rm f; head -c 9000000 /dev/zero > f && rm f"), "[0]", "{way}: it is free again");
    }
    let said =
        shell(&dir, USER, "fallocate -l 9M f; fallocate -o 20M -l 2M f; rm f; touch 1 2 3 4; mkdir 5; rm 1; mkdir 5");
    let refused = said.matches("Disk quota exceeded").count();
    assert_eq!((refused, said.ends_with("[0]")), (3, true), "{said}");
    assert_eq!(shell(&dir, OTHER, "dd if=/dev/zero of=g bs=1M count=20 status=none; rm g"), "[0]");
    assert_eq!(number(&dir, "user", USER, "used_inodes"), 3);
    assert_eq!(shell(&dir, USER, "rm 2 3; rmdir 5"), "[0]");
    eventually("nothing is charged", || number(&dir, "user", USER, "used_bytes") == 0);
    quota(&["clear", "--user", &USER.to_string(), "-m", at]);
    assert_eq!(shell(&dir, USER, "dd if=/dev/zero of=f bs=1M count=20 status=none"), "[0]", "nothing limits it");
    up.stop();
    place.fsck();
}

/// Goal: a user without the right sees and sets nothing, and wrong limits are explained. Method: a table.
#[test]
fn limits_are_for_administrators() {
    let place = Place::new();
    let up = place.up(&[]);
    let dir = place.mount();
    open_to_all(&dir);
    let at = dir.to_str().expect("UTF-8");
    let amphi = env!("CARGO_BIN_EXE_amphi");
    for (who, words, why) in [
        (USER, format!("set --user {USER} --bytes 1G -m ."), "permission denied"),
        (USER, format!("show --user {OTHER} -m ."), "permission denied"),
        (USER, "list -m .".into(), "permission denied"),
        (USER, "track .".into(), "permission denied"),
        (USER, "show -m .".into(), "user 1600"),
        (0, "set --user root --bytes 1G -m .".into(), "cannot be limited"),
        (0, format!("set --user {USER} --bytes 1M --soft-bytes 2M -m ."), "soft limit is above"),
        (0, "set --user nobody-has-this-name --bytes 1M -m .".into(), "no such user"),
        (0, format!("set --user {USER} -m ."), "say what to limit"),
        (0, "set --bytes 1M -m .".into(), "say whom"),
        (0, "untrack .".into(), "is no tree"),
        (0, format!("set --user {USER} --bytes 1M -m /proc"), "not on an AmphiFS mount"),
    ] {
        let said = shell(&dir, who, &format!("{amphi} quota {words}"));
        assert!(said.contains(why), "{words}: {said}");
    }
    assert!(quota(&["list", "-m", at]).contains("user root"));
    up.stop();
}

/// Goal: a tree is charged for all files in it, whoever made them, also for existing ones. Data crosses its border only
/// by a copy. df shows its limit. A file's owner may not take it out of the tree. Method: a sequence of steps.
#[test]
fn a_tree_is_limited() {
    let place = Place::new();
    let up = place.up(&[]);
    let (dir, tree) = (place.mount(), place.mount().join("tree"));
    fs::create_dir_all(tree.join("old/deep")).expect("mkdir");
    fs::write(tree.join("old/deep/file"), vec![1; 3 * MIB]).expect("write");
    std::os::unix::fs::symlink("old", tree.join("link")).expect("symlink");
    let at = tree.to_str().expect("UTF-8");
    let shown = quota(&["set", "--tree", at, "--bytes", "10M", "--inodes", "8"]);
    assert!(shown.contains("3 MiB") && shown.contains("10 MiB"), "{shown}");
    fs::write(tree.join("new"), vec![2; 6 * MIB]).expect("write");
    assert_eq!(errno(fs::write(tree.join("more"), vec![3; 2 * MIB])), QUOTA);
    fs::remove_file(tree.join("more")).expect("unlink");
    assert_eq!(errno(fs::rename(tree.join("new"), dir.join("out"))), CROSS_DEVICE);
    assert_eq!(errno(fs::hard_link(tree.join("new"), dir.join("out"))), CROSS_DEVICE);
    assert_eq!(errno(fs::rename(tree.join("old"), dir.join("out"))), CROSS_DEVICE);
    fs::rename(tree.join("new"), tree.join("old/new")).expect("a rename within the tree");
    fs::write(dir.join("in"), b"x").expect("write");
    assert_eq!(errno(fs::rename(dir.join("in"), tree.join("in"))), CROSS_DEVICE);
    assert_eq!(shell(&dir, 0, "mv tree/old/new out; stat -c %s out"), "6291456\n[0]", "mv copies");
    let df = shell(&dir, 0, "df -B1 --output=size,avail,itotal tree | tail -1");
    let numbers: Vec<u64> = df.split_whitespace().filter_map(|n| n.trim_end_matches("[0]").parse().ok()).collect();
    assert_eq!((numbers.len(), numbers[0], numbers[2]), (3, 10 * MIB as u64, 8), "{df}");
    eventually("df shows what is left", || {
        let left = shell(&dir, 0, "df -B1 --output=avail tree | tail -1");
        left.trim_end_matches("[0]").trim() == (7 * MIB).to_string()
    });
    fs::create_dir(tree.join("his")).expect("mkdir");
    chown(tree.join("his"), Some(USER), Some(USER)).expect("chown");
    assert!(shell(&tree.join("his"), USER, "touch a; lsattr -p a; chattr -p 0 a").contains("not permitted"));
    assert!(shell(&tree, 0, "lsattr -pd his").trim_start().starts_with("1 "));
    let said = run(&["quota", "set", "--tree", tree.join("his").to_str().expect("UTF-8"), "--bytes", "1M"]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("has no limits of its own"));
    quota(&["untrack", at]);
    assert_eq!(number(&dir, "project", 1, "used_inodes"), 0);
    fs::write(tree.join("more"), vec![3; 20 * MIB]).expect("nothing limits it any more");
    up.stop();
    place.fsck();
}

/// Goal: Promise S25 with several mounts and servers, and across kills: accounts are charged for stripes on all
/// targets, and chown moves the charge for all of them. Method: two mounts of three servers write at the same time as
/// one user, while servers are killed and started again.
#[test]
fn limits_hold_over_servers_and_mounts() {
    let mut pair = Pair::new(3, &[], &[]);
    let (a, b) = (pair.a.clone(), pair.b.clone());
    open_to_all(&a);
    let at = a.to_str().expect("UTF-8").to_string();
    quota(&["set", "--user", &USER.to_string(), "--bytes", "60M", "-m", &at]);
    std::thread::scope(|scope| {
        for (dir, name) in [(&a, "a"), (&b, "b")] {
            scope.spawn(move || {
                let said = shell(dir, USER, &format!("dd if=/dev/zero of={name} bs=1M count=60 status=none"));
                assert!(said.contains("Disk quota exceeded"), "{said}");
            });
        }
    });
    let used = |dir: &Path, id| number(dir, "user", id, "used_bytes");
    let limit = 60 * MIB as u64;
    assert!((limit - 2 * MIB as u64..=limit).contains(&used(&a, USER)), "{}", used(&a, USER));
    pair.restart_servers();
    let again = used(&b, USER);
    assert!((limit - 2 * MIB as u64..=limit).contains(&again), "{again}");
    let said = shell(&b, USER, "dd if=/dev/zero of=c bs=1M count=9 status=none; rm -f c");
    assert!(said.contains("Disk quota exceeded") && said.ends_with("[0]"), "{said}");
    let freed = fs::metadata(a.join("a")).expect("a").len();
    // A restarted server keeps its last answers, an open of `a` among them, until the mount has used the slot again.
    for name in 0..100 {
        fs::write(a.join(format!("{name}")), b"x").expect("write");
        fs::remove_file(a.join(format!("{name}"))).expect("unlink");
    }
    assert_eq!(shell(&b, USER, &format!("rm a; head -c {} /dev/zero > c", freed - MIB as u64)), "[0]");
    let before = used(&a, USER);
    let moved = fs::metadata(a.join("b")).expect("b").blocks() * 512;
    chown(a.join("b"), Some(OTHER), Some(OTHER)).expect("chown");
    eventually("all stripes have moved", || used(&a, OTHER) == moved && used(&b, USER) == before - moved);
    pair.stop();
}

/// Goal: a program that has a file open while a limit is set is informed as well, at the latest by fsync. A soft limit
/// takes effect when its grace time is over. Method: a sequence of steps.
#[test]
fn limits_count_for_open_files() {
    let place = Place::new();
    let up: Daemon = place.up(&[]);
    let dir = place.mount();
    let at = dir.to_str().expect("UTF-8");
    let mut file = fs::File::create(dir.join("f")).expect("create");
    chown(dir.join("f"), Some(USER), Some(USER)).expect("chown");
    file.write_all(&vec![1; MIB]).expect("write");
    file.sync_all().expect("fsync");
    quota(&["set", "--user", &USER.to_string(), "--bytes", "4M", "-m", at]);
    let refused = (1..8).find_map(|i| {
        let wrote = file.write_all_at(&vec![2; MIB], i * MIB as u64);
        wrote.and_then(|()| file.sync_all()).err().map(|e| (i, e.raw_os_error()))
    });
    assert_eq!(refused, Some((4, Some(QUOTA))));
    quota(&["set", "--user", &USER.to_string(), "--bytes", "0", "--soft-bytes", "2M", "--grace", "1s", "-m", at]);
    let mut at = 9;
    eventually("the grace is over", || {
        at += 1;
        file.write_all_at(&vec![3; MIB / 64], at * MIB as u64).and_then(|()| file.sync_all()).is_err()
    });
    up.stop();
}
