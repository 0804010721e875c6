//! Attacks on connections and on keys between machines: network name spaces with a switch between them, real servers
//! and mounts in them, a relay on a machine in the middle. `channels` and `keys` try more of each over loopback.

use crate::channels::{ATTACKS, Attack, Orders, serve_relay};
use crate::harness::{Daemon, Place, errno, eventually, pattern};
use crate::keys::{as_user, done, text};
use crate::network::Network;
use rustix::fs::{Mode, chmod};
use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const PORT: u16 = 7100;

fn address(machine: usize) -> String {
    format!("tcp:10.77.0.{}:{PORT}", machine + 1)
}

/// A cluster whose servers have identities, on machines of a network.
struct Cluster {
    place: Place,
    network: Network,
    /// Public keys of the servers.
    fingerprints: [String; 2],
}

impl Cluster {
    fn new(machines: usize) -> Option<Cluster> {
        let place = Place::new();
        chmod(place.path(""), Mode::from_raw_mode(0o755)).expect("chmod");
        let Some(network) = Network::new(machines) else {
            eprintln!("skipped: network name spaces may not be made here; run as root");
            return None;
        };
        place.key("key", "a key that nobody guesses");
        let fingerprints = ["s0.id", "s1.id"].map(|file| done(&["key", "make", &place.text(file)]));
        Some(Cluster { place, network, fingerprints })
    }

    fn server(&self, machine: usize, more: &[&str]) -> Daemon {
        let (data, key) = (self.place.text(&format!("s{machine}")), self.place.text("key"));
        let (identity, listen) = (self.place.text(&format!("s{machine}.id")), address(machine));
        let mut args = vec!["server", "--data", &data, "--key", &key, "--listen", &listen, "--identity", &identity];
        args.extend(["--targets", "2", "--zone-size", "256M", "--log-size", "16M"]);
        let unix = self.unix();
        match machine {
            0 => args.extend(["--listen", &unix]),
            _ => args.extend(["--join", "tcp:10.77.0.1:7100"]),
        }
        args.extend_from_slice(more);
        self.network.start(machine, &args).ready()
    }

    fn unix(&self) -> String {
        format!("unix:{}", self.place.text("s0.sock"))
    }

    /// A command of a user who has the cluster key, on the first server's machine.
    fn administers(&self, args: &[&str]) {
        let (unix, key) = (self.unix(), self.place.text("key"));
        let out = self.network.run(0, &[args, &["--cluster", &unix, "--key", &key]].concat());
        assert!(out.status.success(), "{args:?}: {}", text(&out));
    }

    /// Makes a key, and adds it with these options.
    fn add(&self, name: &str, options: &[&str]) -> String {
        let file = self.place.text(&format!("{name}.id"));
        let [first, second] = &self.fingerprints;
        let public = done(&["key", "make", &file, "--server", first, "--server", second]);
        self.administers(&[&["key", "add", name, &public], options].concat());
        file
    }

    fn mount(&self, machine: usize, to: &str, identity: &str, dir: &str) -> Daemon {
        let _ = fs::create_dir(self.place.path(dir));
        let at = self.place.text(dir);
        self.network.start(machine, &["mount", "--cluster", to, "--identity", identity, &at]).ready()
    }

    /// A mount of all the file system, on the machine of the first server.
    fn whole(&self) -> Daemon {
        fs::create_dir(self.place.path("whole")).expect("mkdir");
        let (unix, key, at) = (self.unix(), self.place.text("key"), self.place.text("whole"));
        self.network.start(0, &["mount", "--cluster", &unix, "--key", &key, &at]).ready()
    }

    /// A command of a machine that has to be refused with one of these words.
    fn refused(&self, machine: usize, args: &[&str], words: &[&str]) {
        let out = self.network.run(machine, args);
        let said = text(&out);
        assert!(!out.status.success() && words.iter().any(|w| said.contains(w)), "{args:?}: {said}");
    }
}

/// Somebody in the middle, on a machine of his own.
struct Mallory {
    orders: Arc<Orders>,
    over: Arc<AtomicBool>,
    poke: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Mallory {
    /// Passes on from his machine to the first server.
    fn new(network: &Network, machine: usize, is_mac: bool) -> Mallory {
        let (orders, over) = (Arc::<Orders>::default(), Arc::new(AtomicBool::new(false)));
        let (ready, begun) = mpsc::channel();
        let (poke, end) = mpsc::channel::<()>();
        let (own_orders, own_over) = (orders.clone(), over.clone());
        // A thread that enters stays there, with those that it starts.
        let thread = std::thread::scope(|s| {
            let enter = s.spawn(|| {
                network.enter(machine);
                let listener = TcpListener::bind(("0.0.0.0", PORT)).expect("a port");
                std::thread::spawn(move || {
                    let wakes = std::thread::spawn(move || {
                        let _ = end.recv();
                        let _ = TcpStream::connect(("127.0.0.1", PORT));
                    });
                    ready.send(()).expect("somebody waits");
                    serve_relay(&listener, ("10.77.0.1", PORT), is_mac, &own_orders, &own_over);
                    wakes.join().expect("no panic");
                })
            });
            enter.join().expect("no panic")
        });
        begun.recv().expect("it listens");
        Mallory { orders, over, poke, thread }
    }

    fn end(self) {
        self.over.store(true, Ordering::SeqCst);
        self.poke.send(()).expect("it waits");
        self.thread.join().expect("no panic");
    }
}

/// Writes, syncs, renames and reads a file, by root or by a user.
fn work(dir: &Path, n: u64) {
    let bytes = pattern(n, 20_000 + 7919 * n as usize);
    let mut file = fs::File::create(dir.join("new")).expect("create");
    file.write_all(&bytes).expect("write");
    file.sync_all().expect("fsync");
    fs::rename(dir.join("new"), dir.join(format!("f{n}"))).expect("rename");
    assert!(fs::read(dir.join(format!("f{n}"))).expect("read") == bytes, "f{n}");
    let user = ["1000", "1001"][n as usize % 2];
    let script = format!("cd {}; echo {n} > by-{user}; test \"$(cat by-{user})\" = {n}", dir.display());
    let out = as_user(user, &script);
    assert!(out.status.success(), "{n} by {user}: {}", text(&out));
}

/// Goal: a machine between a mount and its server flips, drops, repeats, reorders and cuts data in both directions, or
/// reports another level than the server's. Such a change ends connections and has no other effect. The mount, which is
/// bound to a tree, continues as root and as two users. Method: a relay in a network namespace of its own. The written
/// files are compared on a mount of another machine.
#[test]
fn attacks_from_a_machine_between() {
    for level in ["mac", "tls"] {
        let Some(cluster) = Cluster::new(3) else { return };
        let through = address(1);
        let server = cluster.server(0, &["--secure", level, "--advertise", &through]);
        let mallory = Mallory::new(&cluster.network, 1, level == "mac");
        let whole = cluster.whole();
        let (tree, base) = (cluster.place.text("whole/tree"), cluster.place.path("whole"));
        fs::create_dir(&tree).expect("mkdir");
        chmod(&tree, Mode::from_raw_mode(0o777)).expect("chmod");
        done(&["quota", "track", &tree]);
        let identity = cluster.add("host", &["--role", "client", "--root", "keep", "--subtree", &tree]);
        let mount = cluster.mount(2, &through, &identity, "mount");
        let (dir, orders) = (cluster.place.path("mount"), mallory.orders.clone());
        let mut n = 0;
        for to_server in [true, false] {
            for attack in ATTACKS {
                let (done, connections) =
                    (orders.attacked.load(Ordering::SeqCst), orders.connections.load(Ordering::SeqCst));
                *orders.attack.lock().expect("no panic") = Some((attack, to_server, 2));
                let end = Instant::now() + Duration::from_secs(90);
                while orders.attacked.load(Ordering::SeqCst) == done
                    || orders.connections.load(Ordering::SeqCst) == connections
                {
                    assert!(Instant::now() < end, "{level} {attack:?} {to_server}: no new connection");
                    n += 1;
                    work(&dir, n);
                }
            }
        }
        for told in [0u8, if level == "mac" { 2 } else { 1 }] {
            *orders.told.lock().expect("no panic") = Some(told);
            let before = orders.connections.load(Ordering::SeqCst);
            *orders.attack.lock().expect("no panic") = Some((Attack::Cut, true, 0));
            let file = dir.join(format!("late{told}"));
            let writer = std::thread::spawn(move || fs::write(file, b"late"));
            eventually("the mount tries again", || orders.connections.load(Ordering::SeqCst) > before + 3);
            assert!(!writer.is_finished(), "{level} told {told}: nothing is said to whoever offers another level");
            *orders.told.lock().expect("no panic") = None;
            writer.join().expect("no panic").expect("it goes on");
        }
        for k in 1..=n {
            let bytes = fs::read(base.join(format!("tree/f{k}"))).expect("there");
            assert!(bytes == pattern(k, 20_000 + 7919 * k as usize), "{level} f{k}");
        }
        mount.stop();
        mallory.end();
        whole.stop();
        server.stop();
        cluster.place.fsck_of(&["s0"]);
    }
}

/// Goal: a key that is removed while a server is down stops working there when the server is back, for a connected
/// mount and for a new one. A client's key cannot act as a server or an administrator. Users, groups and capabilities
/// that a mount claims are limited to the ranges of its key. Method: two servers, of which one is cut off, and hosts on
/// machines of their own, as root and as users.
#[test]
fn attacks_with_keys_between_machines() {
    let Some(cluster) = Cluster::new(4) else { return };
    let (first, second) = (cluster.server(0, &[]), cluster.server(1, &[]));
    let whole = cluster.whole();
    let base = cluster.place.path("whole");
    chmod(&base, Mode::from_raw_mode(0o777)).expect("chmod");
    fs::write(base.join("secret"), b"root's").expect("write");
    chmod(base.join("secret"), Mode::from_raw_mode(0o600)).expect("chmod");
    let client = cluster.add("client", &["--role", "client", "--root", "keep"]);
    let mapped = cluster.add("mapped", &["--role", "client", "--uids", "1000:51000:10", "--gids", "1000:51000:10"]);
    // The keys are used for roles that they do not permit.
    let data = cluster.place.text("evil");
    let evil = ["server", "--data", &data, "--identity", &client, "--join", "tcp:10.77.0.1:7100", "--format"];
    let evil =
        [&evil[..], &["--targets", "1", "--zone-size", "256M", "--log-size", "16M", "--listen", "tcp:10.77.0.4:7100"]]
            .concat();
    cluster.refused(3, &evil, &["the key of a client", "is not one of"]);
    let to = ["--cluster", "tcp:10.77.0.1:7100", "--identity", &client];
    for args in [
        &["key", "list"][..],
        &["key", "remove", "mapped"],
        &["key", "set", "client", "--subtree", "none"],
        &["evict", "mapped"],
    ] {
        cluster.refused(3, &[args, &to[..]].concat(), &["only administrators may do this"]);
    }
    // Whom a mount names.
    let host = cluster.mount(2, &address(0), &mapped, "host");
    let at = cluster.place.path("host");
    for (uid, works) in [("0", false), ("999", false), ("1010", false), ("51000", false), ("1000", true)] {
        let out = as_user(uid, &format!("echo x > {}/by-{uid}", at.display()));
        assert_eq!(out.status.success(), works || uid == "0", "{uid}: {}", text(&out));
    }
    assert!(errno(fs::read(at.join("secret"))) != 2 && fs::write(at.join("secret"), b"x").is_err());
    assert_eq!(fs::read(base.join("secret")).expect("read"), b"root's");
    host.stop();
    // A server that was away.
    let host = cluster.mount(2, &address(0), &client, "host");
    for n in 0..12 {
        fs::create_dir(at.join(format!("d{n}"))).expect("mkdir");
        fs::write(at.join(format!("d{n}/f")), b"x").expect("write");
    }
    cluster.network.cut(1);
    cluster.administers(&["key", "remove", "client"]);
    cluster.refused(3, &["status", to[0], to[1], to[2], to[3]], &["is not one of this cluster's"]);
    cluster.network.heal(1);
    let gone = |n: u32| fs::write(at.join(format!("d{n}/g")), b"x").is_err();
    eventually("it is over on both servers", || (0..12).all(gone));
    let late = ["status", "--cluster", "tcp:10.77.0.2:7100", "--identity", &client];
    eventually("the server that was away knows", || {
        let out = cluster.network.run(3, &late);
        !out.status.success() && text(&out).contains("is not one of this cluster's")
    });
    // Until the server learnt of the removal it executed requests of this mount; from then on it executes none.
    for n in 0..12 {
        assert!(fs::write(at.join(format!("d{n}/h")), b"x").is_err() && !base.join(format!("d{n}/h")).exists(), "d{n}");
    }
    drop(host);
    let _ = std::process::Command::new("umount").arg("-l").arg(&at).status();
    whole.stop();
    second.stop();
    first.stop();
    cluster.place.fsck_of(&["s0", "s1"]);
}
