//! `amphi metrics`: the numbers of a mount and its cluster for Prometheus.

use super::look::look;
use amphi_host::control;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_view::metrics;
use clap::Args;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// The format, as Prometheus asks for it.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Scrapers at a time; others wait for their turn.
const CONNECTIONS_MAX: usize = 8;
/// Longest request line and headers, bytes.
const HEADER_MAX: usize = 8192;
/// How long a scraper may take for its request, and a connection in all.
const HEADER_WITHIN: Duration = Duration::from_secs(2);
const CONNECTION_WITHIN: Duration = Duration::from_secs(30);
/// Longest token, bytes.
const TOKEN_MAX: usize = 4096;

/// Print the numbers of a mount, its servers and its jobs in the OpenMetrics format, or serve them to Prometheus.
#[derive(Args, Debug)]
pub struct Metrics {
    /// Mount point, or any file or directory there; default: the only mount here
    mount: Option<PathBuf>,
    /// Serve them at http://ADDR/metrics until it is ended; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// File with a token that scrapers have to send (`Authorization: Bearer`); readable by its user alone
    #[arg(long, value_name = "FILE", requires = "listen")]
    token: Option<PathBuf>,
    /// Serve an address that is not of this machine without a token
    #[arg(long, requires = "listen", conflicts_with = "token")]
    open: bool,
}

impl Metrics {
    /// Prints once, or serves.
    pub fn run(self) -> Outcome {
        let path = control::find_mount(self.mount, "")?;
        let Some(addr) = self.listen else {
            let text = text(&path)?;
            return std::io::stdout().write_all(text.as_bytes()).during(|| "write to standard output".into());
        };
        let token = self.token.as_deref().map(read_token).transpose()?;
        if token.is_none() && !self.open && !addr.ip().is_loopback() {
            return Err(Failure::refused(format!(
                "{addr} can be reached from other machines: give a token with --token FILE, or say --open"
            )));
        }
        // An unreadable file is reported now, not to the first scraper.
        text(&path)?;
        serve(addr, Served { path, token })
    }
}

fn text(path: &Path) -> Outcome<String> {
    // Scrapers know the time themselves.
    Ok(metrics::text(&look(path, Duration::ZERO)?, env!("CARGO_PKG_VERSION")))
}

fn read_token(file: &Path) -> Outcome<String> {
    let refused = |why: &str| Failure::refused(format!("{}: {why}", file.display()));
    let found = std::fs::metadata(file).map_err(|e| refused(&e.to_string()))?;
    if found.permissions().mode() & 0o077 != 0 {
        return Err(refused("others may read the token: chmod 600"));
    }
    let text = std::fs::read_to_string(file).map_err(|e| refused(&e.to_string()))?;
    let token = text.trim();
    let sound = !token.is_empty() && token.len() <= TOKEN_MAX && token.bytes().all(|b| b.is_ascii_graphic());
    if sound { Ok(token.to_string()) } else { Err(refused("a token is one word of printable characters")) }
}

/// The page that is served, and to whom.
struct Served {
    path: PathBuf,
    token: Option<String>,
}

/// Whether two texts are equal, in a time that does not say where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

impl Served {
    /// Whether the request may see the numbers.
    fn admits(&self, authorization: Option<&HeaderValue>) -> bool {
        let Some(token) = &self.token else { return true };
        let given = authorization.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        given.is_some_and(|given| same(given, token.as_bytes()))
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let plain = |status: StatusCode, text: String| {
            let mut response = Response::new(Full::new(Bytes::from(text)));
            *response.status_mut() = status;
            response
        };
        if request.uri().path() != "/metrics" {
            return plain(StatusCode::NOT_FOUND, "there is /metrics\n".into());
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "GET alone\n".into());
        }
        if !self.admits(request.headers().get(AUTHORIZATION)) {
            let mut response = plain(StatusCode::UNAUTHORIZED, "a token is needed\n".into());
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return response;
        }
        match text(&self.path) {
            Ok(text) => {
                let mut response = plain(StatusCode::OK, text);
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(FORMAT));
                response
            }
            // The scraper receives the failure, but not the place of the mount.
            Err(e) => {
                tracing::warn!("a scrape failed: {}", e.text);
                plain(StatusCode::SERVICE_UNAVAILABLE, "the mount does not answer\n".into())
            }
        }
    }
}

/// Serves until a signal ends the process.
fn serve(addr: SocketAddr, served: Served) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.during(|| "start the server of metrics".into())?;
    runtime.block_on(async {
        let listener = TcpListener::bind(addr).await.map_err(|e| Failure::refused(format!("{addr}: {e}")))?;
        let at = listener.local_addr().during(|| "look at the address".into())?;
        println!("ready http://{at}/metrics");
        let (served, free) = (Arc::new(served), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
        loop {
            let Ok(turn) = free.clone().acquire_owned().await else { return Ok(()) };
            let Ok((stream, _)) = listener.accept().await else { continue };
            let served = served.clone();
            tokio::spawn(async move {
                let handle = service_fn(move |request: Request<Incoming>| {
                    let served = served.clone();
                    async move {
                        // Looking waits for the mount.
                        let answer = tokio::task::spawn_blocking(move || served.answer(&request)).await;
                        Ok::<_, Infallible>(answer.unwrap_or_else(|_| Response::new(Full::default())))
                    }
                });
                let mut builder = http1::Builder::new();
                builder.timer(TokioTimer::new()).header_read_timeout(HEADER_WITHIN).max_buf_size(HEADER_MAX);
                let connection = builder.keep_alive(false).serve_connection(TokioIo::new(stream), handle);
                // A scraper that disconnects or sends an invalid request concerns no other one.
                let _ = tokio::time::timeout(CONNECTION_WITHIN, connection).await;
                drop(turn);
            });
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a token admits who sends it, exactly. Method: a table of headers.
    #[test]
    fn tokens_admit() {
        let served = |token: Option<&str>| Served { path: PathBuf::new(), token: token.map(String::from) };
        let header = |text: &'static str| HeaderValue::from_static(text);
        assert!(served(None).admits(None));
        let with = served(Some("secret"));
        assert!(with.admits(Some(&header("Bearer secret"))));
        for wrong in ["Bearer secre", "Bearer secret ", "bearer secret", "secret", "Bearer ", "Basic secret"] {
            assert!(!with.admits(Some(&header(wrong))), "{wrong}");
        }
        assert!(!with.admits(None));
    }
}
