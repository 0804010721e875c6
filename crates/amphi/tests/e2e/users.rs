//! Users other than root: programs they may run but not read, what their writes cost, and mounts of their own.

use crate::harness::{Place, amphi, counter, is_mounted};
use rustix::fs::{Mode, OFlags, RawDir, chmod, open};
use rustix::io::Errno;
use std::fs;
use std::process::{Command, Output};

/// User and group of the tests' other user.
const OTHER: &str = "1000";

/// Runs a shell script as the other user, with `env` set.
fn as_other(script: &str, env: &[(&str, &str)]) -> Output {
    Command::new("setpriv")
        .args(["--reuid", OTHER, "--regid", OTHER, "--clear-groups", "bash", "-euc", script])
        .envs(env.iter().copied())
        .output()
        .expect("setpriv (util-linux) runs")
}

/// Returns whether this process can become another user; without that there is nothing to test here.
fn can_change_user() -> bool {
    rustix::process::geteuid().is_root()
}

fn succeeded(out: &Output) {
    assert!(out.status.success(), "{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
}

/// Goal: a file of mode 0111 can be executed and not read, and a file of mode 0444 can be read and not executed.
/// Method: copied programs, another user, the mount checked by the server as well as by the kernel.
#[test]
fn execute_only_programs_run() {
    if !can_change_user() {
        return;
    }
    let place = Place::new();
    let up = place.up(&[]);
    chmod(place.path(""), Mode::from_raw_mode(0o755)).expect("chmod");
    for (name, mode) in [("runs", 0o111), ("reads", 0o444), ("neither", 0o600)] {
        fs::copy("/bin/true", place.mount().join(name)).expect("copy");
        chmod(place.mount().join(name), Mode::from_raw_mode(mode)).expect("chmod");
    }
    let script = r#"
cd "$MOUNT"
fails() { if "$@" 2>/tmp/amphi-e2e-error.$$; then echo "worked: $*"; exit 1; fi; grep -q 'Permission denied' /tmp/amphi-e2e-error.$$; rm /tmp/amphi-e2e-error.$$; }
./runs; fails cat runs
fails ./reads; cat reads >/dev/null
fails ./neither; fails cat neither
"#;
    succeeded(&as_other(script, &[("MOUNT", &place.text("mount"))]));
    up.stop();
}

/// Goal: writes of an unprivileged user, which the kernel marks each, cost no more than root's: large ones return while
/// they are on their way, small ones send no request to the server. Method: `dd` as the other user; the mount's
/// counters meanwhile.
#[test]
fn marked_writes_are_pipelined_and_ask_nothing() {
    if !can_change_user() {
        return;
    }
    let place = Place::new();
    let up = place.up(&[]);
    chmod(place.path(""), Mode::from_raw_mode(0o755)).expect("chmod");
    chmod(place.mount(), Mode::from_raw_mode(0o777)).expect("chmod");
    let mount = place.text("mount");
    let dd = |what: &str| {
        succeeded(&as_other(&format!("dd if=/dev/zero of=\"$MOUNT\"/{what} status=none"), &[("MOUNT", &mount)]))
    };
    dd("large bs=8M count=8");
    assert!(
        counter(&place.mount(), "write_pipelined") >= 7,
        "{} writes were pipelined",
        counter(&place.mount(), "write_pipelined")
    );
    dd("small bs=4k count=1");
    let before = counter(&place.mount(), "server_calls");
    dd("small bs=4k count=256 conv=notrunc seek=1");
    let calls = counter(&place.mount(), "server_calls") - before;
    assert!(calls < 64, "{calls} calls of the server for 256 small writes");
    assert_eq!(fs::metadata(place.mount().join("small")).expect("stat").len(), 257 * 4096);
    up.stop();
}

/// Goal: an open directory is listed with the rights of its opener, also by a program that has given them up. Method:
/// root opens a directory of mode 0700; a thread that has become the other user cannot open it, and lists it, from the
/// start and again.
#[test]
fn open_directories_are_listed() {
    if !can_change_user() {
        return;
    }
    let place = Place::new();
    let up = place.up(&[]);
    chmod(place.path(""), Mode::from_raw_mode(0o755)).expect("chmod");
    let dir = place.mount().join("private");
    fs::create_dir(&dir).expect("mkdir");
    fs::write(dir.join("f"), b"x").expect("write");
    chmod(&dir, Mode::from_raw_mode(0o700)).expect("chmod");
    let opened = || open(&dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
    let fd = opened().expect("root may");
    std::thread::scope(|s| {
        s.spawn(|| {
            // Only this thread has these credentials.
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(1000)).expect("setuid");
            assert_eq!(opened().err(), Some(Errno::ACCESS));
            for _ in 0..2 {
                rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0)).expect("rewind");
                let mut buf = Vec::with_capacity(4096);
                let mut listing = RawDir::new(&fd, buf.spare_capacity_mut());
                let mut names = Vec::new();
                while let Some(entry) = listing.next() {
                    names.push(entry.expect("listed").file_name().to_string_lossy().into_owned());
                }
                names.sort();
                assert_eq!(names, [".", "..", "f"]);
            }
        });
    });
    drop(fd);
    up.stop();
}

/// Goal: only root can make devices, except the character device 0:0, which anybody may make, as on Linux. Method:
/// `mknod` as the other user.
#[test]
fn whiteouts_are_for_all() {
    if !can_change_user() {
        return;
    }
    let place = Place::new();
    let up = place.up(&[]);
    chmod(place.path(""), Mode::from_raw_mode(0o755)).expect("chmod");
    chmod(place.mount(), Mode::from_raw_mode(0o777)).expect("chmod");
    let script = r#"
cd "$MOUNT"
mknod whiteout c 0 0; test "$(stat -c %t:%T:%u whiteout)" = 0:0:1000
if mknod null c 1 3 || mknod block b 0 0; then exit 1; fi
rm whiteout; test -z "$(ls)"
"#;
    succeeded(&as_other(script, &[("MOUNT", &place.text("mount"))]));
    up.stop();
}

/// Goal: a user who may not use the control attributes of a mount gets that error, and not that this is no mount.
/// Method: the other user gives commands for root's mount.
#[test]
fn commands_of_other_users_are_refused_as_such() {
    if !can_change_user() {
        return;
    }
    let place = place_of_other();
    let up = place.up(&[]);
    chmod(place.mount(), Mode::from_raw_mode(0o777)).expect("chmod");
    let script = r#"
touch "$ROOT/mount/own"
cd "$HOME_DIR"
refused() { local code=0; "$ROOT/amphi" "$@" >/dev/null 2>said || code=$?; test $code = 2 || { cat said; exit 1; }; }
for command in "get -m" "status" "stats" "sync" "set cache.max_bytes=64M -m"; do
  refused $command "$ROOT/mount"; grep -q 'permission denied' said || { cat said; exit 1; }
done
"$ROOT/amphi" layout get "$ROOT/mount/own"
"$ROOT/amphi" stats "$ROOT/mount/own"
"#;
    let root = place.path("").display().to_string();
    succeeded(&as_other(script, &[("ROOT", root.trim_end_matches('/')), ("HOME_DIR", &place.text("home"))]));
    up.stop();
}

/// A place where the other user may be and can run the binary under test, with a folder `home` of his own.
fn place_of_other() -> Place {
    let place = Place::new();
    chmod(place.path(""), Mode::from_raw_mode(0o755)).expect("chmod");
    fs::create_dir(place.path("dev")).expect("mkdir");
    fs::create_dir(place.path("home")).expect("mkdir");
    std::os::unix::fs::chown(place.path("home"), Some(1000), Some(1000)).expect("chown");
    // The tests' binary may lie where the other user cannot go.
    fs::copy(amphi().get_program(), place.path("amphi")).expect("copy");
    place
}

/// Runs `user` as the other user behind `before` as root, in a mount name space of its own, where `/dev/fuse` can be
/// opened to him as it is on most machines. `refuse` is run as root before that if he cannot open it yet.
fn with_fuse(place: &Place, refuse: &str, before: &str, user: &str) {
    let outer = format!(
        r#"
cd "$ROOT/home"
if ! setpriv --reuid 1000 --regid 1000 --clear-groups test -w /dev/fuse; then
  {refuse}
  mount -t tmpfs -o mode=755 none "$ROOT/dev"; mknod "$ROOT/dev/fuse" c 10 229; chmod 666 "$ROOT/dev/fuse"
  mount --bind "$ROOT/dev/fuse" /dev/fuse
fi
{before}
setpriv --reuid 1000 --regid 1000 --clear-groups bash -euc "$USER_SCRIPT"
"#
    );
    let out = Command::new("unshare")
        .args(["-m", "bash", "-euc", &outer])
        .env("ROOT", place.path("").display().to_string().trim_end_matches('/'))
        .env("USER_SCRIPT", user)
        .output()
        .expect("unshare (util-linux) runs");
    succeeded(&out);
}

/// Goal: a user who mounts another user's cluster and may write in a part of it uses the commands there, and gets an
/// error where he may not; mount points that he cannot use are refused before anything is made. Method: root's server
/// has a directory that belongs to the other user, who mounts it.
#[test]
fn a_mount_of_root_s_cluster() {
    if !can_change_user() {
        return;
    }
    let place = place_of_other();
    let before = r#"
wait_for() { for _ in $(seq 600); do if grep -q ready "$1"; then return; fi; sleep 0.05; done; exit 1; }
"$ROOT/amphi" server --format --data "$ROOT/data" --listen "unix:$ROOT/sock" --zone-size 128M >"$ROOT/server.out" &
server=$!; trap 'kill $server; wait $server' EXIT; wait_for "$ROOT/server.out"; chmod 666 "$ROOT/sock"
"$ROOT/amphi" mount --cluster "unix:$ROOT/sock" "$ROOT/mount" >"$ROOT/mount.out" &
mount=$!; wait_for "$ROOT/mount.out"
mkdir "$ROOT/mount/own"; chown 1000:1000 "$ROOT/mount/own"
kill $mount; wait $mount
mkdir "$ROOT/roots" "$ROOT/sticky" "$ROOT/closed"; chmod 1777 "$ROOT/sticky"; chmod 700 "$ROOT/closed"; mkdir "$ROOT/closed/in"
"#;
    let user = r#"
cd "$ROOT/home"; mkdir mount
refused() { local code=0; "$ROOT/amphi" "$@" >/dev/null 2>said || code=$?; test $code = 2 || { cat said; exit 1; }; }
for at in roots sticky closed/in; do
  refused up --data data --mount "$ROOT/$at"; grep -q "mount point $ROOT/$at" said || { cat said; exit 1; }
  test ! -e data
done
PATH=/nowhere refused up --data data --mount mount
/usr/bin/grep -q fuse3 said
test ! -e data
"$ROOT/amphi" mount --cluster "unix:$ROOT/sock" mount >out 2>err &
pid=$!
for _ in $(seq 600); do if grep -q ready out; then break; fi; kill -0 $pid || { cat err; exit 1; }; sleep 0.05; done
"$ROOT/amphi" status mount >/dev/null
refused set -m mount cache.max_bytes=64M
grep -q 'this needs the right to write mount; name a file or directory of your own' said || { cat said; exit 1; }
"$ROOT/amphi" set -m mount/own cache.max_bytes=64M | grep -q 64M
"$ROOT/amphi" sync mount/own
kill $pid; wait $pid
"#;
    with_fuse(&place, "", before, user);
    assert!(!is_mounted(&place.path("home/mount")));
}

/// Goal: a user who is not root mounts his own cluster, works on it, tunes it, and ends it; no mount remains. Method: a
/// script as the other user with `fusermount3`; in a mount name space of its own, so that `/dev/fuse` can be opened to
/// him as it is on most machines.
#[test]
fn a_mount_without_root() {
    if !can_change_user() {
        return;
    }
    let place = place_of_other();
    let user = r#"
cd "$ROOT/home"; mkdir mount
"$ROOT/amphi" up --data 'my, data' --mount mount --zone-size 128M >out 2>err &
pid=$!
for _ in $(seq 600); do if grep -q ready out; then break; fi; kill -0 $pid || { cat err; exit 1; }; sleep 0.05; done
grep -q ready out
test "$(stat -c %u mount)" = "$(id -u)"
test "$(findmnt -no SOURCE,FSTYPE "$ROOT/home/mount")" = "$ROOT/home/my, data fuse.amphi"
echo hello > mount/f; mkdir mount/d; head -c 3000000 /dev/urandom > mount/d/big
cp mount/d/big copy; cmp copy mount/d/big
"$ROOT/amphi" set --mount mount cache.max_bytes=64M | grep -q 64M
"$ROOT/amphi" status mount | grep -q connected
if "$ROOT/amphi" up --data data2 --mount mount 2>again; then exit 1; fi; grep -q 'is busy' again
kill -TERM $pid; wait $pid
if grep -q "$ROOT/home/mount" /proc/mounts; then echo "still mounted"; exit 1; fi
test ! -e mount/f
"$ROOT/amphi" fsck 'my, data'
"#;
    let refuse = r#"
  mkdir early; chmod 777 early; code=0
  setpriv --reuid 1000 --regid 1000 --clear-groups "$ROOT/amphi" up --data none --mount early 2>refusal || code=$?
  test $code = 2; grep -q '/dev/fuse' refusal; test ! -e none
"#;
    with_fuse(&place, refuse, "", user);
    assert!(!is_mounted(&place.path("home/mount")));
}
