//! Protected connections: a mount over loopback with an attacker in between who changes, drops, repeats and truncates
//! the data, or changes the server's offer. Also which levels commands accept, and the output of `amphi status` and
//! `amphi key set`.

use crate::harness::{Daemon, Place, eventually, pattern, run};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attack {
    Flip,
    Drop,
    Repeat,
    /// The unit is sent after its successor.
    Reorder,
    Cut,
}

pub(crate) const ATTACKS: [Attack; 5] = [Attack::Flip, Attack::Drop, Attack::Repeat, Attack::Reorder, Attack::Cut];

/// The next actions of the relay; shared by its threads.
#[derive(Default)]
pub(crate) struct Orders {
    /// The change to a unit on its way to the server (or to the mount), and how many units pass before it.
    pub(crate) attack: Mutex<Option<(Attack, bool, usize)>>,
    /// The level that the attacker announces to new connections in place of the server's.
    pub(crate) told: Mutex<Option<u8>>,
    pub(crate) connections: AtomicUsize,
    pub(crate) attacked: AtomicUsize,
}

fn exactly(from: &mut TcpStream, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes).ok().map(|()| bytes)
}

fn number(bytes: &[u8]) -> usize {
    u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize
}

/// A frame with its tags and payload, or a record of TLS.
fn unit(from: &mut TcpStream, is_mac: bool) -> Option<Vec<u8>> {
    let mut bytes = exactly(from, 5)?;
    let rest = if bytes.starts_with(b"AMPH") {
        bytes.extend(exactly(from, 43)?);
        let payload = number(&bytes[32..36]);
        // Signed frames say that they have no checksum.
        let tags = if is_mac && bytes[40] == 2 { 16 + if payload > 0 { 16 } else { 0 } } else { 0 };
        number(&bytes[28..32]) + tags + payload
    } else {
        usize::from(u16::from_be_bytes([bytes[3], bytes[4]]))
    };
    bytes.extend(exactly(from, rest)?);
    Some(bytes)
}

fn crc32c(bytes: impl Iterator<Item = u8>) -> u32 {
    !bytes.fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 })
    })
}

/// The challenge of a server with another level, which is the last byte of its body, and a checksum that fits.
fn with_level(mut challenge: Vec<u8>, level: u8) -> Vec<u8> {
    *challenge.last_mut().expect("a body") = level;
    let crc = crc32c(challenge[..44].iter().chain(&challenge[48..]).copied());
    challenge[44..48].copy_from_slice(&crc.to_le_bytes());
    challenge
}

fn pass(mut from: TcpStream, mut to: TcpStream, to_server: bool, is_mac: bool, orders: Arc<Orders>) {
    let mut first = !to_server;
    let mut kept: Option<Vec<u8>> = None;
    while let Some(bytes) = unit(&mut from, is_mac) {
        let told = orders.told.lock().expect("no panic").filter(|_| std::mem::take(&mut first));
        let bytes = match told {
            Some(level) => with_level(bytes, level),
            None => bytes,
        };
        let due = {
            let mut attack = orders.attack.lock().expect("no panic");
            match &mut *attack {
                Some((_, way, left)) if *way == to_server && *left > 0 => {
                    *left -= 1;
                    None
                }
                Some((_, way, _)) if *way == to_server => attack.take().map(|(what, ..)| what),
                _ => None,
            }
        };
        if due.is_some() {
            orders.attacked.fetch_add(1, Ordering::SeqCst);
        }
        let pieces = match due {
            None => std::iter::once(bytes).chain(kept.take()).collect(),
            Some(Attack::Reorder) => {
                kept = Some(bytes);
                Vec::new()
            }
            Some(Attack::Flip) => {
                let (mut flipped, at) = (bytes.clone(), bytes.len() * 2 / 3);
                flipped[at] ^= 0x10;
                vec![flipped]
            }
            Some(Attack::Drop) => Vec::new(),
            Some(Attack::Repeat) => vec![bytes.clone(), bytes],
            Some(Attack::Cut) => {
                let _ = to.write_all(&bytes[..bytes.len() / 2]);
                break;
            }
        };
        if pieces.iter().any(|piece| to.write_all(piece).is_err()) {
            break;
        }
    }
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Relays what connects to `listener`. `enter` sets the namespace of the calling thread and of each thread that it
/// starts.
pub(crate) fn serve_relay(
    listener: &TcpListener,
    server: (&str, u16),
    is_mac: bool,
    orders: &Arc<Orders>,
    until: &AtomicBool,
) {
    for mount in listener.incoming().flatten() {
        if until.load(Ordering::SeqCst) {
            return;
        }
        let Ok(server) = TcpStream::connect(server) else { continue };
        orders.connections.fetch_add(1, Ordering::SeqCst);
        let both = |s: &TcpStream| s.try_clone().expect("a descriptor");
        let (m, s, o) = (both(&mount), both(&server), orders.clone());
        std::thread::spawn(move || pass(m, s, true, is_mac, o));
        let o = orders.clone();
        std::thread::spawn(move || pass(server, mount, false, is_mac, o));
    }
}

/// Starts a relay before the server's port; its own port.
fn relay(server: u16, is_mac: bool) -> (u16, Arc<Orders>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (port, orders) = (listener.local_addr().expect("bound").port(), Arc::<Orders>::default());
    let shared = orders.clone();
    std::thread::spawn(move || {
        serve_relay(&listener, ("127.0.0.1", server), is_mac, &shared, &AtomicBool::new(false));
    });
    (port, orders)
}

/// Goal: an attacker between a mount and its server flips, drops, repeats, reorders or cuts data in both directions.
/// Such a change ends a connection and has no other effect: the mount connects again, and no byte is lost or changed.
/// An attacker who reports another level than the server offers keeps the mount away, and when he has gone the mount
/// continues. Method: a relay on loopback, with the levels mac and tls. Files are written, synced, read and renamed all
/// the time, and compared at the end on another mount.
#[test]
fn channels_attacks_end_connections_and_lose_nothing() {
    for level in ["mac", "tls"] {
        let place = Place::new();
        let (key, port) = (place.key("key", "a key that nobody guesses"), free_port());
        let (between, orders) = relay(port, level == "mac");
        let (tcp, through) = (format!("tcp:127.0.0.1:{port}"), format!("tcp:127.0.0.1:{between}"));
        // Mounts can find the server only behind the relay.
        let server = place.server(&["--listen", &tcp, "--secure", level, "--advertise", &through, "--key", &key]);
        let dir = place.mount();
        let mount = place.text("mount");
        let mounted = Daemon::start(&["mount", "--cluster", &through, "--key", &key, "--secure", level, &mount]);
        let mut made: Vec<(String, Vec<u8>)> = Vec::new();
        let mut work = |n: u64| {
            let (name, bytes) = (format!("f{n}"), pattern(n, 30_000 + 7919 * n as usize));
            let mut file = fs::File::create(dir.join("new")).expect("create");
            file.write_all(&bytes).expect("write");
            file.sync_all().expect("fsync");
            fs::rename(dir.join("new"), dir.join(&name)).expect("rename");
            assert!(fs::read(dir.join(&name)).expect("read") == bytes, "{level} {name}");
            made.push((name, bytes));
        };
        let mut n = 0;
        let mut next = || {
            n += 1;
            n
        };
        for to_server in [true, false] {
            for attack in ATTACKS {
                for before in [0, 5] {
                    let (done, connections) =
                        (orders.attacked.load(Ordering::SeqCst), orders.connections.load(Ordering::SeqCst));
                    *orders.attack.lock().expect("no panic") = Some((attack, to_server, before));
                    let end = Instant::now() + Duration::from_secs(60);
                    while orders.attacked.load(Ordering::SeqCst) == done
                        || orders.connections.load(Ordering::SeqCst) == connections
                    {
                        assert!(Instant::now() < end, "{level} {attack:?} {to_server} {before}: no new connection");
                        work(next());
                    }
                }
            }
        }
        // A level that the server does not offer. The connection is broken first, so that the mount connects again.
        for told in [0u8, if level == "mac" { 2 } else { 1 }] {
            *orders.told.lock().expect("no panic") = Some(told);
            let before = orders.connections.load(Ordering::SeqCst);
            *orders.attack.lock().expect("no panic") = Some((Attack::Cut, true, 0));
            let file = dir.join(format!("late{told}"));
            let bytes = pattern(told.into(), 100_000);
            let (path, own) = (file.clone(), bytes.clone());
            let writer = std::thread::spawn(move || fs::write(path, own));
            eventually("the mount tries again and again", || orders.connections.load(Ordering::SeqCst) > before + 3);
            assert!(!writer.is_finished(), "{level} told {told}: nothing is said to whoever offers another level");
            *orders.told.lock().expect("no panic") = None;
            writer.join().expect("no panic").expect("it goes on");
            assert!(fs::read(&file).expect("read") == bytes);
        }
        let status = text(&run(&["status", "--cluster", &place.addr(), "--key", &key]));
        assert!(status.contains(&format!("connected secure {level}")), "{status}");
        mounted.stop();
        let again = place.mount_at("again", &["--key", &key]);
        for (name, bytes) in &made {
            assert!(fs::read(place.path("again").join(name)).expect("read") == *bytes, "{level} {name}");
        }
        assert_eq!(fs::read_dir(place.path("again")).expect("list").count(), made.len() + 2);
        again.stop();
        server.stop();
        place.fsck();
    }
}

/// Goal: each address has the level that options and the file set for it. Commands and mounts accept the offered level.
/// If the offered level is lower than they require, they print what to do. Servers that join apply their requirement in
/// the same way. Method: one server with three addresses, and another one that first requires a higher level than the
/// first offers, and then the same level.
#[test]
fn channels_levels_are_what_was_said() {
    let place = Place::new();
    let key = place.key("key", "a key that nobody guesses");
    let ports = [free_port(), free_port(), free_port()];
    let tcp = |k: usize| format!("tcp:127.0.0.1:{}", ports[k]);
    let file = place.text("server.toml");
    let listen = format!("listen = ['{}', '{},secure=off', '{},secure=tls']", tcp(0), tcp(1), tcp(2));
    let data = place.text("data");
    fs::write(&file, format!("{listen}\ndata = '{data}'\ntargets = 1\nzone_size = '256M'\nkey = 'key'\n"))
        .expect("write");
    let server = Daemon::start(&["server", "--config", &file, "--data", &data]);
    let ask = |addr: &str, least: &str| run(&["status", "--cluster", addr, "--key", &key, "--secure", least]);
    for (addr, level) in [(tcp(0), "mac"), (tcp(1), "off"), (tcp(2), "tls")] {
        fs::create_dir_all(place.path("m")).expect("mkdir");
        let mount = Daemon::start(&["mount", "--cluster", &addr, "--key", &key, &place.text("m")]);
        let status = run(&["status", "--cluster", &addr, "--key", &key, "--json"]);
        assert!(text(&status).contains(&format!("\"secure\":\"{level}\"")), "{level}: {}", text(&status));
        mount.stop();
        let rank = |l: &str| ["off", "mac", "tls"].iter().position(|x| *x == l);
        for least in ["off", "mac", "tls"] {
            let out = ask(&addr, least);
            assert_eq!(out.status.success(), rank(level) >= rank(least), "{level} {least}: {}", text(&out));
            if !out.status.success() {
                assert!(text(&out).contains(&format!("--secure {level}")), "{}", text(&out));
            }
        }
    }
    let out = run(&["status", "--cluster", &tcp(2), "--secure", "tls"]);
    assert!(text(&out).contains("--identity FILE"), "{}", text(&out));
    let bad = run(&["server", "--data", &data, "--listen", &tcp(0), "--secure", "ssl"]);
    assert!(text(&bad).contains("there are off, mac and tls"), "{}", text(&bad));
    let second = format!("tcp:127.0.0.1:{}", free_port());
    let join = |more: &[&str]| {
        let data = place.text("data-1");
        let args = ["server", "--data", &data, "--listen", &second, "--key", &key, "--join", &tcp(0)];
        let size = ["--format", "--targets", "1", "--zone-size", "256M"];
        [&args[..], &size[..], more].concat().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let strict = join(&["--peers-secure", "tls"]);
    let refused = run(&strict.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(text(&refused).contains("at least \"tls\" was asked for"), "{}", text(&refused));
    let enough = join(&["--peers-secure", "mac", "--secure", "tls"]);
    let other = Daemon::start(&enough.iter().map(String::as_str).collect::<Vec<_>>());
    let status = text(&ask(&second, "tls"));
    assert!(status.contains(&second) && !status.contains("DOWN"), "{status}");
    other.stop();
    server.stop();
}

/// Goal: `amphi key set` changes the rights of a mount while it is connected. Method: a mount with a key over TLS. Its
/// root is squashed to another user, then the key is made read-only and writable again, and `amphi key list` shows it.
#[test]
fn channels_key_set_changes_a_mount_that_is_there() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    let done = |args: &[&str]| {
        let out = run(args);
        assert!(out.status.success(), "{args:?}: {}", text(&out));
        String::from_utf8_lossy(&out.stdout).trim().to_string()
    };
    let tcp = format!("tcp:127.0.0.1:{}", free_port());
    let own = done(&["key", "make", &place.text("server.id")]);
    let server = place.server(&["--listen", &tcp, "--secure", "tls", "--identity", &place.text("server.id")]);
    let host = done(&["key", "make", &place.text("host.id"), "--server", &own]);
    let addr = place.addr();
    done(&["key", "add", "host", &host, "--role", "client", "--root", "keep", "--cluster", &addr]);
    let dir = place.mount();
    let mount =
        Daemon::start(&["mount", "--cluster", &tcp, "--identity", &place.text("host.id"), &place.text("mount")]);
    let owner = |name: &str| {
        fs::write(dir.join(name), name).expect("write");
        fs::metadata(dir.join(name)).expect("stat").uid()
    };
    std::os::unix::fs::chown(&dir, Some(0), Some(0)).expect("chown");
    fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("chmod");
    assert_eq!(owner("a"), 0);
    let line = done(&["key", "set", "host", "--root", "1234:1234", "--mounts", "3", "--cluster", &addr]);
    assert!(line.contains("root=1234:1234") && line.contains("mounts=3"), "{line}");
    assert_eq!(owner("b"), 1234);
    done(&["key", "set", "host", "--read-only", "on", "--cluster", &addr]);
    let refused = fs::write(dir.join("c"), "c").expect_err("read-only");
    assert_eq!(refused.raw_os_error(), Some(30), "{refused}");
    assert_eq!(fs::read_to_string(dir.join("b")).expect("it reads"), "b");
    done(&["key", "set", "host", "--read-only", "off", "--from", "127.0.0.0/8", "--cluster", &addr]);
    assert_eq!(owner("d"), 1234);
    let line = done(&["key", "set", "host", "--from", "anywhere", "--cluster", &addr]);
    assert!(!line.contains("from="), "{line}");
    for (args, words) in [
        (vec!["key", "set", "host", "--cluster", &addr], "what shall be changed?"),
        (vec!["key", "set", "nobody", "--mounts", "1", "--cluster", &addr], "there is no key nobody"),
        (vec!["key", "set", "host", "--root", "0", "--cluster", &addr], "squashed to root"),
        (vec!["key", "set", "host", "--from", "anywhere", "--from", "unix", "--cluster", &addr], "either members"),
    ] {
        let out = run(&args);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {}", text(&out));
        assert!(text(&out).contains(words), "{args:?}: {}", text(&out));
    }
    assert!(done(&["key", "list", "--cluster", &addr]).contains("host client"));
    mount.stop();
    server.stop();
    place.fsck();
}
