//! HTTP for readers of numbers: over TCP, or at a Unix socket of this user.
//!
//! Owns: connections, their bounds, tokens, what is refused. Does not own: the pages (`Site`).
//!
//! Bounds: `CONNECTIONS_MAX` connections at a time, `HEADER_MAX` bytes of header within `HEADER_WITHIN`, one request a
//! connection. No request can change anything.

use amphi_host::failure::{During, Failure, Outcome};
use futures_util::future::select;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Number of readers at a time; others wait for their turn.
const CONNECTIONS_MAX: usize = 8;
/// Longest request line and headers, bytes.
const HEADER_MAX: usize = 8192;
/// How long a reader may take to send its request, and how long a connection may last in all.
const HEADER_WITHIN: Duration = Duration::from_secs(2);
const CONNECTION_WITHIN: Duration = Duration::from_secs(30);
/// Longest token, bytes.
const TOKEN_MAX: usize = 4096;
/// The sources from which a page may load: itself and the numbers of the same address.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A page.
pub struct Page {
    /// The content type of the page.
    pub kind: &'static str,
    /// The text of the page.
    pub body: String,
}

/// The pages at an address.
pub trait Site: Send + Sync + 'static {
    /// The page of a path; `query` is what follows the question mark. Nothing: there is no such page. The function may
    /// wait.
    fn page(&self, path: &str, query: &str) -> Option<Outcome<Page>>;

    /// The existing paths, for the answer to a request for another path.
    fn paths(&self) -> &'static str;

    /// Returns whether a page has no numbers in it, so that it needs no token.
    fn is_open(&self, _path: &str) -> bool {
        false
    }
}

/// Returns whether two texts are equal, in a time that does not say where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// Returns whether the holder of `token` has sent this header.
fn admits(token: Option<&str>, authorization: Option<&HeaderValue>) -> bool {
    let Some(token) = token else { return true };
    let given = authorization.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    given.is_some_and(|given| same(given, token.as_bytes()))
}

/// The token in a file that its user alone can read.
pub fn read_token(file: &Path) -> Outcome<String> {
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

/// Refuses an address that others reach without a token, unless that is wanted.
pub fn check_open(addr: SocketAddr, has_token: bool, open: bool) -> Outcome {
    if has_token || open || addr.ip().is_loopback() {
        return Ok(());
    }
    Err(Failure::refused(format!(
        "{addr} can be reached from other machines: give a token with --token FILE, or say --open"
    )))
}

/// The pages, and the clients that may read them.
pub struct Served<S> {
    /// The pages.
    pub site: S,
    /// The token that readers have to send.
    pub token: Option<String>,
}

impl<S: Site> Served<S> {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let plain = |status: StatusCode, text: String| {
            let mut response = Response::new(Full::new(Bytes::from(text)));
            *response.status_mut() = status;
            response
        };
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        let may_see = self.site.is_open(path) || admits(self.token.as_deref(), request.headers().get(AUTHORIZATION));
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "GET alone\n".into());
        }
        if !may_see {
            let mut response = plain(StatusCode::UNAUTHORIZED, "a token is needed\n".into());
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return response;
        }
        match self.site.page(path, query) {
            None => plain(StatusCode::NOT_FOUND, format!("there is {}\n", self.site.paths())),
            Some(Ok(page)) => {
                let mut response = plain(StatusCode::OK, page.body);
                for (name, value) in [
                    (CONTENT_TYPE, page.kind),
                    (CACHE_CONTROL, "no-store"),
                    (CONTENT_SECURITY_POLICY, POLICY),
                    (REFERRER_POLICY, "no-referrer"),
                    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
                ] {
                    response.headers_mut().insert(name, HeaderValue::from_static(value));
                }
                response
            }
            // The reader receives the failure, but not the place of the mount.
            Some(Err(e)) => {
                tracing::warn!("a request for {path} failed: {}", e.text);
                plain(StatusCode::SERVICE_UNAVAILABLE, "the numbers cannot be read; the log says why\n".into())
            }
        }
    }
}

/// Answers one request on a connection.
async fn converse<S: Site>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    served: Arc<Served<S>>,
    turn: OwnedSemaphorePermit,
) {
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
    // If a reader disconnects or sends an invalid request, no other reader is affected.
    let _ = tokio::time::timeout(CONNECTION_WITHIN, connection).await;
    drop(turn);
}

fn runtime() -> Outcome<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.during(|| "start the server of numbers".into())
}

/// Serves at an address until a signal ends the process; `ready` gets that address.
pub fn serve_tcp<S: Site>(addr: SocketAddr, served: Served<S>, ready: impl FnOnce(SocketAddr)) -> Outcome {
    runtime()?.block_on(async {
        let listener = TcpListener::bind(addr).await.map_err(|e| Failure::refused(format!("{addr}: {e}")))?;
        ready(listener.local_addr().during(|| "look at the address".into())?);
        let (served, free) = (Arc::new(served), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
        loop {
            let Ok(turn) = free.clone().acquire_owned().await else { return Ok(()) };
            let Ok((stream, _)) = listener.accept().await else { continue };
            tokio::spawn(converse(stream, served.clone(), turn));
        }
    })
}

/// Serves at a socket, to root and this user, until `stop` is sent or dropped.
pub fn serve_unix<S: Site>(
    listener: std::os::unix::net::UnixListener,
    served: Served<S>,
    stop: tokio::sync::oneshot::Receiver<()>,
) -> Outcome {
    let own = rustix::process::geteuid().as_raw();
    listener.set_nonblocking(true).during(|| "listen at the socket of numbers".into())?;
    let runtime = runtime()?;
    let done = runtime.block_on(async {
        let listener = UnixListener::from_std(listener).during(|| "listen at the socket of numbers".into())?;
        let (served, free) = (Arc::new(served), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
        let serving = async {
            loop {
                let Ok(turn) = free.clone().acquire_owned().await else { return };
                let Ok((stream, _)) = listener.accept().await else { continue };
                // The permissions of the socket ensure this already.
                if stream.peer_cred().is_ok_and(|peer| [0, own].contains(&peer.uid())) {
                    tokio::spawn(converse(stream, served.clone(), turn));
                }
            }
        };
        select(pin!(serving), stop).await;
        Ok(())
    });
    // A look may wait for servers that do not answer, although no client needs its result any more.
    runtime.shutdown_background();
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a request is admitted only with exactly the right token. Method: a table of headers.
    #[test]
    fn tokens_admit() {
        let header = |text: &'static str| HeaderValue::from_static(text);
        assert!(admits(None, None));
        let with = |text: &'static str| admits(Some("secret"), Some(&header(text)));
        assert!(with("Bearer secret"));
        for wrong in ["Bearer secre", "Bearer secret ", "bearer secret", "secret", "Bearer ", "Basic secret"] {
            assert!(!with(wrong), "{wrong}");
        }
        assert!(!admits(Some("secret"), None));
    }

    /// Goal: an address that other machines reach needs a token or the option that allows it without one. Method: a
    /// table.
    #[test]
    fn others_need_a_token() {
        let ok = |addr: &str, token, open| check_open(addr.parse().expect("an address"), token, open).is_ok();
        assert!(ok("127.0.0.1:0", false, false) && ok("[::1]:9814", false, false));
        assert!(!ok("0.0.0.0:9814", false, false) && !ok("10.0.0.5:9814", false, false) && !ok("[::]:1", false, false));
        assert!(ok("0.0.0.0:9814", true, false) && ok("0.0.0.0:9814", false, true));
    }
}
