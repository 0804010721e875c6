//! The socket at which every mount and every server of this machine serves its metrics: its place, making it, and
//! finding the sockets of others.
//!
//! Owns: the folder, the names of sockets, and their owners. Does not own: what is served there (`web`,
//! `cmd::metrics`).
//!
//! A socket is `mount-PID.sock` or `server-PID.sock` in `$AMPHI_RUNTIME`, `$RUNTIME_DIRECTORY` (which systemd gives to
//! services), `/run/amphi` for root, `$XDG_RUNTIME_DIR/amphi` for others, whichever is there first; without any of them
//! there is no socket. The mode of the socket is 0600. A process creates the socket under another name and renames it
//! when it listens, so that every program that finds it can connect. The process removes its socket at its end, and
//! also the sockets of processes that were killed.

use crate::web::{Served, Site, serve_unix};
use amphi_host::failure::{Failure, Outcome};
use rustix::process::{Pid, test_kill_process};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// The kind of process that has a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// A mount.
    Mount,
    /// A server.
    Server,
}

impl Owner {
    /// The word for this owner in names of sockets.
    pub fn word(self) -> &'static str {
        match self {
            Owner::Mount => "mount",
            Owner::Server => "server",
        }
    }
}

/// The folder in which this process has its sockets.
fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let service = || {
        // If there are several folders, separated by colons, the first counts.
        let first = set("RUNTIME_DIRECTORY")?;
        Some(PathBuf::from(first.to_str()?.split(':').next()?))
    };
    let system = || rustix::process::geteuid().is_root().then(|| PathBuf::from("/run/amphi"));
    let user = || set("XDG_RUNTIME_DIR").map(|dir| dir.join("amphi"));
    set("AMPHI_RUNTIME").or_else(service).or_else(system).or_else(user)
}

/// A socket that was found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    /// The process to which the socket belongs.
    pub owner: Owner,
    /// The process that made the socket.
    pub pid: i32,
    /// The path of the socket.
    pub path: PathBuf,
}

impl Found {
    fn of(path: PathBuf) -> Option<Found> {
        let name = path.file_name()?.to_str()?.strip_suffix(".sock")?;
        let owner = [Owner::Mount, Owner::Server].into_iter().find(|owner| name.starts_with(owner.word()))?;
        let pid = name.strip_prefix(owner.word())?.strip_prefix('-')?.parse().ok().filter(|pid| *pid > 0)?;
        Some(Found { owner, pid, path })
    }

    /// Returns whether the process that made the socket has ended without removing it.
    fn is_left(&self) -> bool {
        let gone = Pid::from_raw(self.pid).is_some_and(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH));
        gone && UnixStream::connect(&self.path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
    }
}

fn names_in(dir: &Path) -> Vec<Found> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| Found::of(entry.path())).collect()
}

/// The sockets of a folder, without what killed processes left.
pub fn in_folder(dir: &Path) -> Vec<Found> {
    let mut found = names_in(dir);
    found.retain(|socket| !socket.is_left());
    found.sort();
    found
}

/// All sockets of this machine that this user can find.
pub fn all() -> Vec<Found> {
    let inside = |dir: &Path, below: &str| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().join(below)).filter(|path| path.is_dir()).collect()
    };
    let mut folders: Vec<PathBuf> = folder().into_iter().collect();
    // If `AMPHI_RUNTIME` names a folder, sockets elsewhere are ignored.
    if std::env::var_os("AMPHI_RUNTIME").is_none() {
        folders.push("/run/amphi".into());
        folders.extend(inside(Path::new("/run/amphi"), ""));
        folders.extend(inside(Path::new("/run/user"), "amphi"));
    }
    // Two of these folders may be the same.
    folders.sort();
    folders.dedup();
    let mut found: Vec<Found> = folders.iter().flat_map(|dir| in_folder(dir)).collect();
    found.sort();
    found
}

/// A socket while it is served.
pub struct OwnSocket {
    path: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl OwnSocket {
    /// Serves the numbers of this process, until the result is dropped. A process that cannot have a socket continues
    /// without one, and logs the reason.
    pub fn serve(owner: Owner, site: impl Site) -> Option<OwnSocket> {
        let dir = folder()?;
        match OwnSocket::at(&dir, owner, site) {
            Ok(own) => Some(own),
            Err(e) => {
                tracing::warn!("no socket for the numbers of this {} in {}: {e}", owner.word(), dir.display());
                None
            }
        }
    }

    fn at(dir: &Path, owner: Owner, site: impl Site) -> io::Result<OwnSocket> {
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
        for left in names_in(dir).into_iter().filter(Found::is_left) {
            let _ = std::fs::remove_file(left.path);
        }
        let path = dir.join(format!("{}-{}.sock", owner.word(), std::process::id()));
        let making = dir.join(format!(".{}-{}.making", owner.word(), std::process::id()));
        let _ = std::fs::remove_file(&making);
        let listener = UnixListener::bind(&making)?;
        let private = std::fs::Permissions::from_mode(0o600);
        let made = std::fs::set_permissions(&making, private).and_then(|()| std::fs::rename(&making, &path));
        made.inspect_err(|_| drop(std::fs::remove_file(&making)))?;
        let (stop, stopped) = oneshot::channel();
        let mut own = OwnSocket { path, stop: Some(stop), thread: None };
        let run = move || {
            if let Err(e) = serve_unix(listener, Served { site, token: None }, stopped) {
                tracing::warn!("the socket of numbers: {e}");
            }
        };
        own.thread = Some(std::thread::Builder::new().name("numbers".into()).spawn(run)?);
        Ok(own)
    }
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads a page from a socket by HTTP.
pub fn read(socket: &Path, page: &str) -> Outcome<String> {
    use io::{Read, Write};
    let failed = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => Failure::refused(format!("{}: there is no such socket", socket.display())),
        io::ErrorKind::PermissionDenied => {
            Failure::refused(format!("{}: its numbers are for root and the user who started it", socket.display()))
        }
        _ => Failure::broken(format!("{}: {e}", socket.display())),
    };
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    let request = format!("GET {page} HTTP/1.1\r\nHost: amphi\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(failed)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let status = head.split(' ').nth(1).unwrap_or_default();
    if status == "200" {
        return Ok(body.to_string());
    }
    Err(Failure::broken(format!("{}: answers {status}: {}", socket.display(), body.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::Page;

    struct Fixed;

    impl Site for Fixed {
        fn page(&self, path: &str, query: &str) -> Option<Outcome<Page>> {
            let page = Page { kind: "text/plain", body: format!("numbers {query}") };
            (path == "/metrics").then_some(Ok(page))
        }

        fn paths(&self) -> &'static str {
            "/metrics"
        }
    }

    /// Goal: a socket is private, is found under its name, serves its page, and disappears with its process; the socket
    /// that a killed process left is removed. Method: a folder with other names, and one socket of a process that does
    /// not exist.
    #[test]
    fn sockets_are_private_and_found() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let place = dir.path().join("amphi");
        std::fs::create_dir(&place).expect("mkdir");
        // Larger than any process number.
        let left = place.join("server-2147483647.sock");
        drop(UnixListener::bind(&left).expect("bind"));
        for other in ["mount-x.sock", "mount-5", "notes", "mount-0.sock"] {
            std::fs::write(place.join(other), "").expect("write");
        }
        let own = OwnSocket::at(&place, Owner::Mount, Fixed).expect("a socket");
        assert!(!left.exists(), "what was left is cleared");
        let found = in_folder(&place);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].owner, found[0].pid), (Owner::Mount, std::process::id() as i32));
        assert_eq!(std::fs::metadata(&found[0].path).expect("stat").permissions().mode() & 0o777, 0o600);
        assert_eq!(read(&found[0].path, "/metrics?x").map_err(|e| e.text), Ok("numbers x".into()));
        let absent = read(&found[0].path, "/other").expect_err("absent");
        assert!(absent.text.contains("404: there is /metrics"), "{}", absent.text);
        let path = found[0].path.clone();
        drop(own);
        assert!(in_folder(&place).is_empty());
        assert_eq!(read(&path, "/metrics").expect_err("gone").code, 2);
    }
}
