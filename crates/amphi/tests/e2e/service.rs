//! The messages that a service manager receives from servers and mounts. `scripts/systemd` runs the units under a real
//! systemd.

use crate::harness::{Place, amphi, as_first_start, eventually};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A service manager that hears one process.
struct Manager(UnixDatagram);

impl Manager {
    fn at(path: &Path) -> Manager {
        let socket = UnixDatagram::bind(path).expect("bind");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("timeout");
        Manager(socket)
    }

    /// The next message of the process.
    fn hears(&self) -> String {
        let mut text = [0; 1024];
        let len = self.0.recv(&mut text).expect("it is told something");
        String::from_utf8_lossy(&text[..len]).into_owned()
    }
}

fn begin(args: &[&str], manager: &Path, watchdog_us: u64) -> crate::harness::Daemon {
    let mut command = amphi();
    command.args(as_first_start(args)).env("NOTIFY_SOCKET", manager);
    if watchdog_us > 0 {
        command.env("WATCHDOG_USEC", watchdog_us.to_string());
    }
    crate::harness::Starting::spawn(command).ready()
}

/// Goal: a server, a mount and `amphi up` with further servers report once when they serve, and once when they end. A
/// mount sends nothing to the watchdog, even if one is configured. Method: sockets that play the service manager.
#[test]
fn the_service_manager_is_told() {
    let place = Place::new();
    let (path, data, addr, mount) = (place.path("notify"), place.text("data"), place.addr(), place.text("mount"));
    let manager = Manager::at(&path);
    let args = ["server", "--data", &data, "--listen", &addr, "--zone-size", "512M"];
    let server = begin(&args, &path, 0);
    assert_eq!(manager.hears(), format!("READY=1\nSTATUS=Serving {addr}"));
    let path_of_mount = place.path("notify-mount");
    let of_mount = Manager::at(&path_of_mount);
    let mounted = begin(&["mount", "--cluster", &addr, &mount], &path_of_mount, 30_000);
    assert_eq!(of_mount.hears(), format!("READY=1\nSTATUS=Serving {mount}"));
    std::fs::write(place.mount().join("f"), b"1").expect("write");
    mounted.stop();
    assert_eq!(of_mount.hears(), "STOPPING=1\nSTATUS=Writing back what the mount has");
    server.stop();
    assert_eq!(manager.hears(), "STOPPING=1\nSTATUS=Writing checkpoints");

    let (data, path) = (place.text("cluster"), place.path("notify-up"));
    let of_up = Manager::at(&path);
    let args = ["up", "--data", &data, "--mount", &mount, "--servers", "2", "--zone-size", "128M", "--targets", "1"];
    let up = begin(&args, &path, 0);
    assert_eq!(of_up.hears(), format!("READY=1\nSTATUS=Serving {mount}"));
    up.stop();
    assert_eq!(of_up.hears(), "STOPPING=1\nSTATUS=Writing back what the mount has");
    of_up.0.set_nonblocking(true).expect("set");
    assert!(of_up.0.recv(&mut [0; 64]).is_err(), "its further servers tell nothing");
}

/// Goal: a server that works feeds its watchdog, and one that hangs is silent. Method: it is stopped by a signal while
/// a socket listens.
#[test]
fn a_server_that_hangs_does_not_feed_its_watchdog() {
    let place = Place::new();
    let (path, data, addr) = (place.path("notify"), place.text("data"), place.addr());
    let manager = Manager::at(&path);
    let args = ["server", "--data", &data, "--listen", &addr, "--zone-size", "512M"];
    let mut server = begin(&args, &path, 30_000);
    while !manager.hears().starts_with("READY=1") {}
    for _ in 0..3 {
        assert_eq!(manager.hears(), "WATCHDOG=1");
    }
    let stopped = server.pause();
    // Earlier messages are read to their end.
    manager.0.set_nonblocking(true).expect("set");
    while manager.0.recv(&mut [0; 64]).is_ok() {}
    manager.0.set_nonblocking(false).expect("set");
    manager.0.set_read_timeout(Some(Duration::from_millis(300))).expect("timeout");
    assert!(manager.0.recv(&mut [0; 64]).is_err(), "a server that stands still says that it works");
    drop(stopped);
    eventually("it goes on", || manager.0.recv(&mut [0; 64]).is_ok());
    drop(manager);
    server.stop();
}

/// Goal: the units are without faults, and run this program's commands. Method: systemd-analyze on them, with this
/// binary in place of the installed one.
#[test]
fn the_units_are_sound() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/systemd");
    let mut named = Vec::new();
    for unit in ["amphi-server@.service", "amphi-mount@.service", "amphi-metrics@.service", "amphi.service"] {
        let text = std::fs::read_to_string(units.join(unit)).expect("read");
        let binary = Path::new(amphi().get_program()).parent().expect("a folder").display().to_string();
        let name = unit.replace("@.", "@mnt-x.");
        std::fs::write(folder.path().join(&name), text.replace("@BIN@", &binary)).expect("write");
        let runs = text.lines().find_map(|l| l.strip_prefix("ExecStart=@BIN@/amphi ")).expect("it runs amphi");
        let command = runs.split(' ').next().unwrap_or_default();
        let help = amphi().args([command, "--help"]).output().expect("amphi runs");
        assert!(help.status.success(), "{unit} runs amphi {command}");
        let known = String::from_utf8_lossy(&help.stdout).into_owned();
        for option in runs.split(' ').filter(|word| word.starts_with("--")) {
            assert!(known.contains(option), "{unit}: amphi {command} has no {option}");
        }
        named.push(folder.path().join(name));
    }
    for name in ["amphi-server.target", "mnt-amphi.mount.example"] {
        let to = folder.path().join(name.trim_end_matches(".example"));
        std::fs::copy(units.join(name), &to).expect("copy");
        named.push(to);
    }
    let said = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .args(&named)
        .stdin(Stdio::null())
        .output()
        .expect("systemd-analyze runs");
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success() && text.trim().is_empty(), "{text}");
}
