//! Admission of clients and their identity: keys, sockets, users of this machine, set-user-ID programs on a mount.

use crate::harness::{Daemon, Place, amphi, as_first_start, run};
use rustix::fs::{Mode, chmod};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Output, Stdio};

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// `amphi` with `args` as a user without rights here, with the binary where he can run it.
fn as_nobody(place: &Place, args: &[&str]) -> Output {
    let binary = place.path("amphi");
    if !binary.exists() {
        fs::copy(amphi().get_program(), &binary).expect("copy");
    }
    let who = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
    Command::new("setpriv").args(who).arg(binary).args(args).output().expect("setpriv (util-linux) runs")
}

/// Mount options of the mount at `name`, as the kernel lists them.
fn options(place: &Place, name: &str) -> Vec<String> {
    let dir = fs::canonicalize(place.path(name)).expect("there").display().to_string();
    let table = fs::read_to_string("/proc/self/mounts").expect("mounts");
    let line = table.lines().find(|l| l.split(' ').nth(1) == Some(&dir)).expect("mounted");
    line.split(' ').nth(3).unwrap_or_default().split(',').map(str::to_string).collect()
}

/// A server on a loopback address, and its lines on standard error before it was ready.
fn on_tcp(args: &[&str]) -> (Daemon, String, String) {
    let mut command = amphi();
    command.args(as_first_start(args)).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("amphi starts");
    let (mut said, mut ready) = (String::new(), String::new());
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut ready).expect("text");
    let mut errors = BufReader::new(child.stderr.take().expect("piped"));
    while !said.contains("--key") {
        let mut line = String::new();
        assert!(errors.read_line(&mut line).expect("text") > 0, "{ready}{said}");
        said.push_str(&line);
    }
    std::thread::spawn(move || for _ in errors.lines() {});
    let addr = ready.split_whitespace().nth(1).unwrap_or_default().to_string();
    (Daemon::of(child), addr, said)
}

/// Goal: no client is admitted over TCP without a key, not even on loopback. Nobody has to make a key: the first server
/// makes one that only its user can read, prints its place, and keeps it. Method: a server without `--key` on loopback;
/// with and without its key; a restart; a second server.
#[test]
fn a_server_on_tcp_makes_its_key() {
    let place = Place::new();
    let (data, key) = (place.text("data"), place.text("data/cluster.key"));
    let args = ["server", "--data", &data, "--zone-size", "128M", "--targets", "1", "--listen", "tcp:127.0.0.1:0"];
    let (server, addr, said) = on_tcp(&args);
    assert!(addr.starts_with("tcp:127.0.0.1:") && said.contains(&key), "{addr} {said}");
    assert_eq!(fs::metadata(&key).expect("made").mode() & 0o777, 0o600);
    let out = run(&["status", "--cluster", &addr]);
    assert!(!out.status.success() && text(&out).contains("needs a key"), "{}", text(&out));
    let out = run(&["mount", "--cluster", &addr, &place.text("mount")]);
    assert!(!out.status.success() && text(&out).contains("needs a key"), "{}", text(&out));
    let mount = Daemon::start(&["mount", "--cluster", &addr, "--key", &key, &place.text("mount")]);
    fs::write(place.mount().join("f"), b"over tcp").expect("write");
    let member = place.text("data-1");
    let joining = ["server", "--data", &member, "--zone-size", "128M", "--targets", "1", "--join", &addr];
    let second = Daemon::start(&[&joining[..], &["--listen", "tcp:127.0.0.1:0", "--key", &key]].concat());
    mount.stop();
    second.stop();
    server.stop();
    let before = fs::read(&key).expect("kept");
    let (server, addr, _) = on_tcp(&args);
    assert_eq!(fs::read(&key).expect("kept"), before);
    // The second server is away, so its exit code is 1.
    let out = run(&["status", "--cluster", &addr, "--key", &key]);
    assert!(out.status.code() == Some(1) && !text(&out).contains("needs a key"), "{}", text(&out));
    server.stop();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("chmod");
    let out = run(&args);
    assert!(!out.status.success() && text(&out).contains("chmod 600"), "{}", text(&out));
}

/// Goal: a Unix socket is accessible to its user alone by default, and a user who may connect is no administrator.
/// Method: `up` and a server with a mode; their sockets; `status` as nobody, as root without the key that TCP requests.
#[test]
fn sockets_are_their_users() {
    let place = Place::new();
    chmod(place.path(""), Mode::from_raw_mode(0o755)).expect("chmod");
    let mode = |name: &str| fs::metadata(place.path(name)).expect("listens").mode() & 0o777;
    let up = place.up(&["--listen", &place.addr(), "--listen", "tcp:127.0.0.1:0"]);
    assert_eq!(mode("sock"), 0o600);
    assert!(run(&["status", "--cluster", &place.addr()]).status.success(), "the kernel vouches for root");
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let out = as_nobody(&place, &["status", "--cluster", &place.addr()]);
    assert!(!out.status.success() && text(&out).contains("ermission denied"), "{}", text(&out));
    up.stop();
    let mut up = place.up(&["--listen", &place.addr(), "--socket-mode", "0666"]);
    let up_pid = up.pid();
    assert_eq!(mode("sock"), 0o666);
    let session = |out: &Output| text(out).contains(&format!(":{}", up_pid));
    assert!(session(&run(&["status", "--cluster", &place.addr()])), "root sees who mounts");
    let out = as_nobody(&place, &["status", "--cluster", &place.addr()]);
    assert!(out.status.success() && !session(&out), "he sees no sessions but his own: {}", text(&out));
    up.stop();
}

/// Goal: a mount of a cluster that others can write to ignores set-user-ID bits, unless an option enables them; a mount
/// of a cluster in the same process honours them. Method: the options that the kernel lists.
#[test]
fn network_mounts_trust_no_set_user_id() {
    let place = Place::new();
    let has = |name: &str, word: &str| options(&place, name).iter().any(|o| o == word);
    let server = place.server(&[]);
    let mount = place.mount_at("plain", &[]);
    assert!(has("plain", "nosuid") && has("plain", "nodev"), "{:?}", options(&place, "plain"));
    mount.stop();
    if rustix::process::geteuid().is_root() {
        let mount = place.mount_at("asked", &["-o", "suid,dev"]);
        assert!(!has("asked", "nosuid") && !has("asked", "nodev"), "{:?}", options(&place, "asked"));
        mount.stop();
    }
    server.stop();
    let alone = Place::new();
    let up = alone.up(&[]);
    if rustix::process::geteuid().is_root() {
        assert!(!options(&alone, "mount").iter().any(|o| o == "nosuid"), "nobody else writes to it");
    }
    up.stop();
    let up = alone.up(&["--listen", &alone.addr()]);
    assert!(options(&alone, "mount").iter().any(|o| o == "nosuid"), "others do");
    up.stop();
}
