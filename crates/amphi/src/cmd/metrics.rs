//! `amphi metrics`: the numbers of a mount and its cluster, or of a server, for Prometheus.

use super::look::{look, look_at_server};
use crate::own_socket::{self, Found, OwnSocket, Owner};
use crate::web::{Page, Served, Site, check_open, read_token, serve_tcp};
use amphi_client::Client;
use amphi_host::control;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_server::Observed;
use amphi_view::metrics;
use clap::Args;
use futures_channel::mpsc;
use futures_util::StreamExt;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Weak;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// The content type that Prometheus requests.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The path of the page.
const PATH: &str = "/metrics";
/// How long a server may take to answer its own process.
const PATIENCE: Duration = Duration::from_secs(8);

/// Print the numbers of a mount, its servers and its jobs, or of a server of this machine, in the OpenMetrics format,
/// or serve them to Prometheus.
///
/// Every mount and every server also serves its metrics at a socket: --list shows where.
#[derive(Args, Debug)]
pub struct Metrics {
    /// Mount point, or any file or directory there; default: the only mount here
    mount: Option<PathBuf>,
    /// Metrics of a server or mount of this machine, by its socket: the path, the name in --list, such as server-4711,
    /// or a folder with only one socket
    #[arg(long, value_name = "SOCKET", conflicts_with = "mount")]
    socket: Option<PathBuf>,
    /// List the sockets of the mounts and servers of this machine: kind, process, path
    #[arg(long, conflicts_with_all = ["mount", "socket", "listen"])]
    list: bool,
    /// Serve the metrics at http://ADDR/metrics until the command is ended; with port 0 at any free port
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// File with a token that scrapers have to send (`Authorization: Bearer`); only its user may read it
    #[arg(long, value_name = "FILE", requires = "listen")]
    token: Option<PathBuf>,
    /// Serve an address that is not of this machine without a token
    #[arg(long, requires = "listen", conflicts_with = "token")]
    open: bool,
}

impl Metrics {
    /// Prints once, or serves.
    pub fn run(self) -> Outcome {
        if self.list {
            let lines: String = own_socket::all().iter().map(line).collect();
            return print(&lines);
        }
        let source = match self.socket {
            Some(socket) => Source::Socket(socket),
            None => Source::Mount(control::find_mount(self.mount, "")?),
        };
        let Some(addr) = self.listen else { return print(&source.text()?) };
        let token = self.token.as_deref().map(read_token).transpose()?;
        check_open(addr, token.is_some(), self.open)?;
        // A first read reports an error at the start and not to the first scraper.
        source.text()?;
        serve_tcp(addr, Served { site: source, token }, |at| println!("ready http://{at}{PATH}"))
    }
}

fn line(found: &Found) -> String {
    format!("{} {} {}\n", found.owner.word(), found.pid, found.path.display())
}

fn print(text: &str) -> Outcome {
    std::io::stdout().write_all(text.as_bytes()).during(|| "write to standard output".into())
}

/// The socket that is meant: its path, a folder with one, or the name of one that is listed.
fn find(socket: &Path) -> Outcome<PathBuf> {
    let shown = socket.display();
    let all = if socket.is_dir() { own_socket::in_folder(socket) } else { own_socket::all() };
    let paths = || all.iter().map(|found| found.path.display().to_string()).collect::<Vec<_>>().join(" ");
    if socket.is_dir() {
        return match &all[..] {
            [only] => Ok(only.path.clone()),
            [] => Err(Failure::refused(format!("{shown}: no mount or server has a socket in this folder"))),
            _ => Err(Failure::refused(format!("{shown}: has several sockets, name one of them: {}", paths()))),
        };
    }
    if socket.components().count() > 1 || socket.exists() {
        return Ok(socket.to_path_buf());
    }
    let found = all.iter().find(|found| found.path.file_stem() == Some(socket.as_os_str()));
    found.map(|found| found.path.clone()).ok_or_else(|| {
        Failure::refused(format!("no mount or server of this machine has a socket {shown}; there are: {}", paths()))
    })
}

/// The source of the numbers.
enum Source {
    /// The mount of a path.
    Mount(PathBuf),
    /// The socket of a mount or a server, looked for each time: processes start again under other numbers.
    Socket(PathBuf),
}

impl Source {
    fn text(&self) -> Outcome<String> {
        match self {
            Source::Mount(path) => of_mount(&path.as_path()),
            Source::Socket(socket) => own_socket::read(&find(socket)?, PATH),
        }
    }
}

fn page(text: Outcome<String>) -> Option<Outcome<Page>> {
    Some(text.map(|body| Page { kind: FORMAT, body }))
}

impl Site for Source {
    fn page(&self, path: &str, _query: &str) -> Option<Outcome<Page>> {
        if path == PATH { page(self.text()) } else { None }
    }

    fn paths(&self) -> &'static str {
        PATH
    }
}

fn of_mount(mount: &impl super::attributes::Attributes) -> Outcome<String> {
    // Scrapers add the time themselves.
    Ok(metrics::text(&look(mount, Duration::ZERO)?, env!("CARGO_PKG_VERSION")))
}

/// The numbers of the mount of this process.
struct OfMount(Client);

impl Site for OfMount {
    fn page(&self, path: &str, _query: &str) -> Option<Outcome<Page>> {
        if path == PATH { page(of_mount(&self.0)) } else { None }
    }

    fn paths(&self) -> &'static str {
        PATH
    }
}

/// Serves the numbers of the mount of this process at its socket, until the result is dropped.
pub fn serve_mount(client: Client) -> Option<OwnSocket> {
    OwnSocket::serve(Owner::Mount, OfMount(client))
}

/// The receiver of a server's answer; it is dropped without an answer if the request fails.
type Asker = SyncSender<Observed>;

/// Questions to the thread that has the server.
pub type Questions = mpsc::Receiver<Asker>;

/// The numbers of the server of this process.
struct OfServer(mpsc::Sender<Asker>);

impl OfServer {
    fn text(&self) -> Outcome<String> {
        let failed = || Failure::broken("the server does not answer");
        let (answer, answered) = sync_channel(1);
        self.0.clone().try_send(answer).map_err(|_| failed())?;
        let observed = answered.recv_timeout(PATIENCE).map_err(|_| failed())?;
        Ok(metrics::text(&look_at_server(observed)?, env!("CARGO_PKG_VERSION")))
    }
}

impl Site for OfServer {
    fn page(&self, path: &str, _query: &str) -> Option<Outcome<Page>> {
        if path == PATH { page(self.text()) } else { None }
    }

    fn paths(&self) -> &'static str {
        PATH
    }
}

/// Serves the numbers of the server of this process at its socket, until the result is dropped. The thread that has
/// the server answers the questions.
pub fn serve_server() -> (Option<OwnSocket>, Questions) {
    let (ask, asked) = mpsc::channel(0);
    (OwnSocket::serve(Owner::Server, OfServer(ask)), asked)
}

/// Answers the questions of the socket, on the thread that has the server.
pub async fn answer(server: Weak<amphi_server::Server<amphi_env::RealEnv>>, mut questions: Questions) {
    while let Some(asker) = questions.next().await {
        let Some(server) = server.upgrade() else { return };
        if let Ok(observed) = server.observe().await {
            let _ = asker.try_send(observed);
        }
    }
}
