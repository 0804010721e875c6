//! Keys of hosts and administrators: who mounts with which identity, the rights of a client's root on the servers, the
//! end of a mount whose key is removed, and the records of the audit log.

use crate::harness::{Daemon, Place, amphi, errno, eventually, run};
use rustix::fs::{Mode, chmod};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

pub(crate) fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Runs a command that has to succeed, and returns its output.
pub(crate) fn done(args: &[&str]) -> String {
    let out = run(args);
    assert!(out.status.success(), "{args:?}: {}", text(&out));
    String::from_utf8_lossy(&out.stdout).trim().to_string()
}

/// Runs a command that has to be refused with these words.
pub(crate) fn refused(args: &[&str], words: &str) {
    let out = run(args);
    assert_eq!(out.status.code(), Some(2), "{args:?}: {}", text(&out));
    assert!(text(&out).contains(words), "{args:?}: {}", text(&out));
}

/// A shell script as a user of this machine.
pub(crate) fn as_user(uid: &str, script: &str) -> Output {
    Command::new("setpriv")
        .args(["--reuid", uid, "--regid", uid, "--clear-groups", "bash", "-euc", script])
        .output()
        .expect("setpriv (util-linux) runs")
}

/// Unmounts what a killed mount has left.
pub(crate) fn detach(dir: &Path) {
    let command = if is_root() { "umount" } else { "fusermount3" };
    let how: &[&str] = if is_root() { &["-l"] } else { &["-u", "-z"] };
    let _ = Command::new(command).args(how).arg(dir).status();
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A server with an identity and its administrator, on a Unix socket and on loopback.
pub(crate) struct Cluster {
    pub(crate) place: Place,
    pub(crate) server: Daemon,
    /// The address on loopback where the server listens.
    pub(crate) tcp: String,
    /// The server's public key.
    pub(crate) fingerprint: String,
}

impl Cluster {
    /// The administrator of the cluster connects over the network.
    pub(crate) fn start() -> Cluster {
        let place = Place::new();
        chmod(place.path(""), Mode::from_raw_mode(0o755)).expect("chmod");
        let fingerprint = done(&["key", "make", &place.text("alpha.id")]);
        let (server, tcp) = Cluster::serve(&place);
        let cluster = Cluster { place, server, tcp, fingerprint };
        let boss = cluster.make("boss");
        done(&["key", "add", "boss", &boss, "--role", "admin", "--cluster", &cluster.place.addr()]);
        cluster
    }

    fn serve(place: &Place) -> (Daemon, String) {
        let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
        let tcp = format!("tcp:127.0.0.1:{port}");
        let identity = place.text("alpha.id");
        let server = place.server(&["--targets", "2", "--listen", &tcp, "--identity", &identity]);
        (server, tcp)
    }

    /// Makes the identity `name`, which trusts the server, and returns its public key.
    pub(crate) fn make(&self, name: &str) -> String {
        done(&["key", "make", &self.id(name), "--server", &self.fingerprint])
    }

    pub(crate) fn id(&self, name: &str) -> String {
        self.place.text(&format!("{name}.id"))
    }

    /// `amphi` as the administrator.
    fn boss<'a>(&self, args: &[&'a str]) -> (Vec<String>, Vec<&'a str>) {
        (vec!["--cluster".into(), self.tcp.clone(), "--identity".into(), self.id("boss")], args.to_vec())
    }

    pub(crate) fn as_boss(&self, args: &[&str]) -> String {
        let (who, args) = self.boss(args);
        done(&args.into_iter().chain(who.iter().map(String::as_str)).collect::<Vec<_>>())
    }

    pub(crate) fn boss_is_refused(&self, args: &[&str], words: &str) {
        let (who, args) = self.boss(args);
        refused(&args.into_iter().chain(who.iter().map(String::as_str)).collect::<Vec<_>>(), words);
    }

    /// A new host with its key, added with these options, and its mount.
    pub(crate) fn host(&self, name: &str, options: &[&str]) -> Daemon {
        let key = self.make(name);
        self.as_boss(&[&["key", "add", name, &key, "--role", "client"], options].concat());
        self.mount(name, name)
    }

    /// Mounts with an identity at a place of that name.
    pub(crate) fn mount(&self, name: &str, identity: &str) -> Daemon {
        // The folder may exist already, and so may the mount of a killed process.
        let _ = fs::create_dir(self.place.path(name));
        Daemon::start(&["mount", "--cluster", &self.tcp, "--identity", &self.id(identity), &self.place.text(name)])
    }

    /// A mount of a user who is root of the cluster.
    pub(crate) fn trusted(&self) -> Daemon {
        self.place.mount_at("trusted", &[])
    }

    pub(crate) fn audit(&self) -> String {
        fs::read_to_string(self.place.path("data/audit/audit.log")).expect("an audit log")
    }
}

fn owner(path: &Path) -> (u32, u32) {
    let found = fs::metadata(path).expect("there");
    (found.uid(), found.gid())
}

/// Goal: a host mounts with only its own key. On the servers, root of the host counts as nobody in each operation, and
/// other users count as themselves. With root=keep, root of the host counts as root. Method: real mounts, as root and
/// as two users, compared with a trusted one.
#[test]
fn keys_root_of_a_client_is_nobody() {
    if !is_root() {
        return;
    }
    let cluster = Cluster::start();
    let trusted = cluster.trusted();
    let base = cluster.place.path("trusted");
    chmod(&base, Mode::from_raw_mode(0o1777)).expect("chmod");
    // In a sticky directory the kernel of the client prevents root from opening files of others (fs.protected_regular),
    // also the file that he has just made and that belongs to nobody.
    fs::create_dir(base.join("open")).expect("mkdir");
    chmod(base.join("open"), Mode::from_raw_mode(0o777)).expect("chmod");
    fs::write(base.join("secret"), b"for root").expect("write");
    chmod(base.join("secret"), Mode::from_raw_mode(0o600)).expect("chmod");
    fs::create_dir(base.join("closed")).expect("mkdir");
    chmod(base.join("closed"), Mode::from_raw_mode(0o700)).expect("chmod");
    let host = cluster.host("node", &[]);
    let here = cluster.place.path("node");
    fs::write(here.join("open/by-root"), b"hello").expect("anybody writes there");
    assert_eq!(owner(&base.join("open/by-root")), (65_534, 65_534));
    assert_eq!(owner(&here.join("open/by-root")), (65_534, 65_534));
    assert_eq!(fs::read(base.join("open/by-root")).expect("read"), b"hello");
    let denied = [libc::EACCES, libc::EPERM];
    assert!(denied.contains(&errno(fs::read(here.join("secret")))));
    assert!(denied.contains(&errno(fs::write(here.join("secret"), b"x"))));
    let listed = fs::read_dir(here.join("closed")).and_then(|names| names.collect::<std::io::Result<Vec<_>>>());
    assert!(denied.contains(&errno(listed)));
    assert!(denied.contains(&errno(fs::remove_file(here.join("secret")))), "the directory is sticky");
    assert!(denied.contains(&errno(fs::set_permissions(here.join("secret"), fs::Permissions::from_mode(0o777)))));
    assert!(denied.contains(&errno(std::os::unix::fs::chown(here.join("open/by-root"), Some(0), Some(0)))));
    assert!(denied.contains(&errno(std::os::unix::fs::chown(here.join("secret"), Some(65_534), None))));
    assert!(denied.contains(&errno(fs::rename(here.join("secret"), here.join("mine")))));
    // A hard link grants no more rights than the file itself.
    let _ = fs::hard_link(here.join("secret"), here.join("linked"));
    assert!(denied.contains(&errno(fs::read(here.join("linked")))) || !here.join("linked").exists());
    for uid in ["1000", "1001"] {
        let dir = here.display();
        let out =
            as_user(uid, &format!("cd {dir}; umask 077; echo {uid} > by-{uid}; mkdir dir-{uid}; chmod 600 by-{uid}"));
        assert!(out.status.success(), "{}", text(&out));
        assert_eq!(owner(&base.join(format!("by-{uid}"))).0.to_string(), uid);
    }
    let out = as_user("1001", &format!("cat {}/by-1000", here.display()));
    assert!(!out.status.success(), "users are kept apart as ever");
    let out = as_user("1000", &format!("cat {}/by-1000", here.display()));
    assert_eq!(String::from_utf8_lossy(&out.stdout), "1000\n");
    assert!(denied.contains(&errno(fs::read(here.join("by-1001")))), "root of the client neither");
    let kept = cluster.host("kept", &["--root", "keep"]);
    let there = cluster.place.path("kept");
    fs::write(there.join("by-kept-root"), b"x").expect("write");
    assert_eq!(owner(&base.join("by-kept-root")), (0, 0));
    assert_eq!(fs::read(there.join("secret")).expect("he is root"), b"for root");
    assert!(cluster.audit().contains("\"kind\":\"squashed\",\"key\":\"node\""), "{}", cluster.audit());
    for mount in [host, kept, trusted] {
        mount.stop();
    }
    cluster.server.stop();
    cluster.place.fsck();
}

/// Goal: keys in wrong roles and files are refused with advice. Administrators do not mount, and clients administer
/// nothing. Files that others can read, foreign and truncated files are not accepted. Servers that are not trusted
/// receive no secret. Names have only plain characters. Method: a table of commands.
#[test]
fn keys_in_wrong_hands_are_refused() {
    let cluster = Cluster::start();
    let (place, tcp) = (&cluster.place, cluster.tcp.as_str());
    let key = cluster.make("node");
    let (node, boss, dir) = (cluster.id("node"), cluster.id("boss"), place.text("mount"));
    let mount = |identity: &str| {
        vec!["mount", "--cluster", tcp, "--identity", identity, &dir].into_iter().map(String::from).collect::<Vec<_>>()
    };
    let strs = |args: &[String]| args.iter().map(String::as_str).map(str::to_owned).collect::<Vec<_>>();
    let is_refused =
        |args: Vec<String>, words: &str| refused(&strs(&args).iter().map(String::as_str).collect::<Vec<_>>(), words);
    is_refused(mount(&node), "is not one of this cluster's: an administrator adds it with amphi key add");
    is_refused(mount(&boss), "this is the key of an administrator, which does not mount");
    cluster.as_boss(&["key", "add", "node", &key, "--role", "client", "--mounts", "1", "--read-only"]);
    cluster.boss_is_refused(&["key", "add", "node", &key, "--role", "client"], "there is a key node already");
    cluster.boss_is_refused(&["key", "add", "b\n{\"x\":1}", &key, "--role", "client"], "is no name for a key");
    cluster.boss_is_refused(&["key", "add", "other", &key, "--role", "admin"], "belongs to node already");
    cluster.boss_is_refused(&["key", "remove", "nobody"], "there is no key nobody");
    refused(&["key", "list", "--cluster", tcp, "--identity", &node], "only administrators may do this");
    refused(&["key", "remove", "boss", "--cluster", tcp, "--identity", &node], "only administrators may do this");
    refused(&["evict", "boss", "--cluster", tcp, "--identity", &node], "only administrators may do this");
    refused(&["key", "make", &node], "is there already");
    let stranger = place.text("stranger.id");
    done(&["key", "make", &stranger]);
    is_refused(mount(&stranger), "amphi key trust");
    done(&["key", "trust", &stranger, &cluster.fingerprint]);
    is_refused(mount(&stranger), "is not one of this cluster's");
    let whole = fs::read(&node).expect("read");
    fs::write(&node, &whole[..100]).expect("write");
    is_refused(mount(&node), "damaged");
    fs::write(&node, b"the key of another program\n").expect("write");
    is_refused(mount(&node), "this is no identity");
    fs::write(&node, &whole).expect("write");
    fs::set_permissions(&node, fs::Permissions::from_mode(0o640)).expect("chmod");
    is_refused(mount(&node), "chmod 600");
    fs::set_permissions(&node, fs::Permissions::from_mode(0o600)).expect("chmod");
    let reader = cluster.mount("reader", "node");
    is_refused(mount(&node), "key node has 1 mounts, which is the most");
    let here = place.path("reader");
    assert_eq!(errno(fs::write(here.join("f"), b"x")), libc::EROFS);
    assert_eq!(errno(fs::create_dir(here.join("d"))), libc::EROFS);
    assert_eq!(fs::read_dir(&here).expect("it reads").count(), 0);
    let out = run(&["set", "-m", &here.display().to_string(), "server.token_ms=900"]);
    assert!(!out.status.success(), "{}", text(&out));
    let out = run(&["stats", "--servers", &here.display().to_string()]);
    assert!(!out.status.success(), "{}", text(&out));
    let seen = done(&["status", "--cluster", tcp, "--identity", &node]);
    assert!(seen.contains(" key node ") && seen.matches("client ").count() == 1, "{seen}");
    reader.stop();
    cluster.server.stop();
}

/// Goal: the mount of a removed key ends within two seconds and is not admitted again, and that of another key
/// continues. After the end of an evicted session, the host may mount again. If identities are required, the cluster
/// key admits no client over the network, but admits root over the Unix socket. All of this survives a restart and is
/// in the audit log. Method: real mounts.
#[test]
fn keys_that_are_removed_end_their_mounts() {
    let cluster = Cluster::start();
    let place = &cluster.place;
    let (gone, stays) = (cluster.host("gone", &["--root", "keep"]), cluster.host("stays", &["--root", "keep"]));
    let (there, here) = (place.path("gone"), place.path("stays"));
    fs::write(there.join("f"), b"before").expect("write");
    assert_eq!(fs::read(here.join("f")).expect("read"), b"before");
    let begun = Instant::now();
    cluster.as_boss(&["key", "remove", "gone"]);
    let fails = |dir: &Path| fs::write(dir.join("late"), b"x").is_err();
    let (asked, answered) = std::sync::mpsc::channel();
    let late = there.clone();
    let asks = std::thread::spawn(move || asked.send(fails(&late)).is_ok());
    assert!(!matches!(answered.recv_timeout(Duration::from_secs(2)), Ok(false)), "it is refused or has no answer");
    eventually("its session is gone", || !cluster.as_boss(&["status"]).contains(" key gone "));
    assert!(begun.elapsed() < Duration::from_secs(10));
    fs::write(here.join("g"), b"after").expect("the other one goes on");
    // Data that is not written back is lost with an eviction.
    fs::File::open(here.join("g")).and_then(|g| g.sync_all()).expect("fsync");
    assert!(!here.join("late").exists());
    fs::create_dir_all(place.path("again")).expect("mkdir");
    let again = ["mount", "--cluster", &cluster.tcp, "--identity", &cluster.id("gone"), &place.text("again")];
    refused(&again, "is not one of this cluster's");
    gone.kill();
    let _ = asks.join();
    detach(&there);
    let evicted = cluster.as_boss(&["evict", "stays"]);
    assert!(evicted.contains("1 session is ended"), "{evicted}");
    stays.kill();
    detach(&here);
    let stays = cluster.mount("stays", "stays");
    assert_eq!(fs::read(here.join("g")).expect("read"), b"after");
    stays.stop();
    let cluster_key = place.text("data/cluster.key");
    let by_key = ["status", "--cluster", &cluster.tcp, "--key", &cluster_key];
    done(&by_key);
    let require = ["key", "require", "on", "--cluster", &cluster.tcp, "--key", &cluster_key];
    refused(&require, "you came with the cluster key");
    cluster.as_boss(&["key", "require", "on"]);
    refused(&by_key, "asks for more than the cluster key");
    done(&["status", "--cluster", &place.addr()]);
    let log = cluster.audit();
    for words in
        ["\"change\":\"remove gone\",\"result\":\"done\"", "its key has been removed", "require identities: true"]
    {
        assert!(log.contains(words), "{words} in {log}");
    }
    assert!(log.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{log}");
    let Cluster { place, server, fingerprint, .. } = cluster;
    server.stop();
    let (server, tcp) = Cluster::serve(&place);
    let cluster = Cluster { place, server, tcp, fingerprint };
    refused(&["status", "--cluster", &cluster.tcp, "--key", &cluster_key], "asks for more than the cluster key");
    let list = cluster.as_boss(&["key", "list"]);
    assert!(list.contains("everybody needs a key of his own") && list.contains("stays client"), "{list}");
    assert!(!list.contains("gone"), "{list}");
    cluster.server.stop();
    cluster.place.fsck();
}

/// Goal: users of a group's hosts have other numbers on the servers, and see their own numbers on the mount. Method:
/// two users use a mount with mappings, and the results are compared with those of a trusted mount.
#[test]
fn keys_map_users() {
    if !is_root() {
        return;
    }
    let cluster = Cluster::start();
    let trusted = cluster.trusted();
    let base = cluster.place.path("trusted");
    chmod(&base, Mode::from_raw_mode(0o1777)).expect("chmod");
    let host = cluster.host("lab", &["--uids", "1000:50000:10", "--gids", "1000:60000:10"]);
    let here = cluster.place.path("lab");
    let out = as_user("1001", &format!("cd {}; echo x > f; stat -c %u:%g f; ls -ln | tail -1", here.display()));
    assert!(out.status.success() && text(&out).starts_with("1001:1001\n"), "{}", text(&out));
    assert_eq!(owner(&base.join("f")), (50_001, 60_001));
    fs::write(base.join("roots"), b"x").expect("write");
    assert_eq!(owner(&here.join("roots")), (65_534, 65_534), "who has no number is shown as nobody");
    let out = as_user("2000", &format!("cat {}/f", here.display()));
    assert!(!out.status.success(), "who is none of the users is refused");
    let out = as_user("1001", &format!("cd {}; chmod 640 f; echo y >> f; mv f g; cat g; rm g", here.display()));
    assert!(out.status.success(), "{}", text(&out));
    host.stop();
    trusted.stop();
    cluster.server.stop();
}

/// Goal: the options are those of the commands, and a help page describes them. Method: `--help`.
#[test]
fn keys_have_a_help_page() {
    for (args, words) in [
        (&["key", "add", "--help"][..], "--read-only"),
        (&["key", "rotate", "--help"], "--finish"),
        (&["evict", "--help"], "fingerprint of a key"),
        (&["server", "--help"], "--audit-full"),
    ] {
        let out = amphi().args(args).output().expect("runs");
        assert!(out.status.success() && text(&out).contains(words), "{}", text(&out));
    }
}
