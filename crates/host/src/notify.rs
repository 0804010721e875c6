//! Messages to the service manager (systemd), by the protocol of sd_notify(3): a datagram of lines to the socket that
//! `NOTIFY_SOCKET` names.
//!
//! Owns: the protocol, the interval of the watchdog. Does not own: the moments of messages. Without a service manager
//! no message is sent. The messages that a process is ready or stops wait for a place in the queue of the socket, a few
//! seconds at most. The message that the process is alive does not wait, because the thread of a worker sends it.

use std::ffi::{OsStr, OsString};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Variables by which a service manager passes settings to one process. These variables are not for the children of the
/// process.
pub const VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// How long a state waits for a place in the queue of the service manager, which holds ten datagrams by default.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest text of a state that is shown, bytes.
const STATUS_MAX: usize = 512;

/// Reports that everything is up, and its address or mount point.
pub fn ready(what: &str) {
    tell(&format!("READY=1\nSTATUS=Serving {}", line(what)), PATIENCE);
}

/// Reports that the process ends in order, and the work that it still does before.
pub fn stopping(what: &str) {
    tell(&format!("STOPPING=1\nSTATUS={}", line(what)), PATIENCE);
}

/// Tells the service manager that the process works.
pub fn alive() {
    tell("WATCHDOG=1", Duration::ZERO);
}

/// Returns how often the service manager expects a message that the process works: a third of the time after which it
/// considers the process hung. `None`: the service manager expects no such messages.
pub fn watchdog() -> Option<Duration> {
    let of = |name: &str| std::env::var(name).ok();
    interval(of("WATCHDOG_USEC"), of("WATCHDOG_PID"), std::process::id())
}

fn interval(usec: Option<String>, pid: Option<String>, own: u32) -> Option<Duration> {
    let for_others = pid.is_some_and(|pid| pid.parse() != Ok(own));
    let usec = usec?.parse::<u64>().ok().filter(|usec| *usec > 0 && !for_others)?;
    Some(Duration::from_micros((usec / 3).max(1)))
}

/// A state is one line.
fn line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).scan(0, within).collect()
}

fn within(len: &mut usize, c: char) -> Option<char> {
    *len += c.len_utf8();
    (*len <= STATUS_MAX).then_some(c)
}

fn tell(state: &str, patience: Duration) {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(e) = send(&socket, state, patience)
    {
        tracing::debug!("the service manager is not told {state:?}: {e}");
    }
}

fn send(socket: &OsString, state: &str, patience: Duration) -> std::io::Result<()> {
    let bytes = socket.as_bytes();
    let addr = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(OsStr::from_bytes(bytes))?,
    };
    let from = UnixDatagram::unbound()?;
    if patience.is_zero() {
        from.set_nonblocking(true)?;
    } else {
        from.set_write_timeout(Some(patience))?;
    }
    from.send_to_addr(state.as_bytes(), &addr).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the lines arrive at sockets with a path and at abstract ones. A socket without a reader is an error and
    /// causes no wait. Method: sockets of this test.
    #[test]
    fn states_arrive() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("notify");
        let name = format!("amphi-notify-test-{}", std::process::id());
        let of_name = SocketAddr::from_abstract_name(&name).expect("a name");
        let sockets = [
            (path.clone().into_os_string(), UnixDatagram::bind(&path).expect("bind")),
            (OsString::from(format!("@{name}")), UnixDatagram::bind_addr(&of_name).expect("bind")),
        ];
        for (to, socket) in sockets {
            send(&to, "READY=1\nSTATUS=x", PATIENCE).expect("sent");
            let mut got = [0; 64];
            let len = socket.recv(&mut got).expect("received");
            assert_eq!(&got[..len], b"READY=1\nSTATUS=x");
            // Far more than the queue of a socket takes.
            let dropped = (0..100_000).any(|_| send(&to, "WATCHDOG=1", Duration::ZERO).is_err());
            assert!(dropped, "what nobody reads is dropped");
            assert!(send(&to, "READY=1", Duration::from_millis(1)).is_err(), "nor does a state wait for ever");
        }
        assert!(send(&folder.path().join("none").into_os_string(), "READY=1", PATIENCE).is_err());
    }

    /// Goal: the watchdog counts for this process alone, three times in its time. Method: a table.
    #[test]
    fn intervals_of_the_watchdog() {
        let of = |usec: Option<&str>, pid: Option<&str>| interval(usec.map(Into::into), pid.map(Into::into), 7);
        assert_eq!(of(Some("3000000"), None), Some(Duration::from_secs(1)));
        assert_eq!(of(Some("3000000"), Some("7")), Some(Duration::from_secs(1)));
        for (usec, pid) in [(None, None), (Some("3000000"), Some("8")), (Some("0"), None), (Some("x"), Some("7"))] {
            assert_eq!(of(usec, pid), None, "{usec:?} {pid:?}");
        }
        assert_eq!(line("two\nlines"), "two lines");
        assert_eq!(line(&"ä".repeat(1000)).len(), STATUS_MAX);
    }
}
