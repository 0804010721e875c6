//! Addresses: the two forms that `Env::listen` and `Env::dial` take.
//!
//! Owns: parsing and the error text of a bad address. Does not own: name resolution.
//!
//! Invariant: what `Display` prints, `parse` accepts.

use std::fmt;
use std::io;

/// Longest Unix socket path in bytes: `sockaddr_un` holds 108 with the final NUL.
const UNIX_PATH_MAX: usize = 107;

/// A parsed address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addr {
    /// Path of a Unix stream socket.
    Unix(String),
    /// Host name or IP (without brackets) and port.
    Tcp(String, u16),
}

impl Addr {
    /// Parses `unix:PATH` or `tcp:HOST:PORT` (`HOST` may be `[::1]`); anything else is `InvalidInput`.
    pub fn parse(text: &str) -> io::Result<Addr> {
        let bad = |why: &str| {
            let message = format!("address {text:?}: {why}; expected unix:PATH or tcp:HOST:PORT");
            Err(io::Error::new(io::ErrorKind::InvalidInput, message))
        };
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.len() {
                0 => bad("the path is empty"),
                n if n > UNIX_PATH_MAX => bad("the path of a Unix socket has at most 107 bytes"),
                _ if path.contains('\0') => bad("the path contains a NUL"),
                _ => Ok(Addr::Unix(path.to_string())),
            };
        }
        let Some(rest) = text.strip_prefix("tcp:") else { return bad("unknown form") };
        let Some((host, port)) = rest.rsplit_once(':') else { return bad("no port") };
        let Ok(port) = port.parse::<u16>() else { return bad("the port is not a number below 65536") };
        let host = match host.strip_prefix('[') {
            Some(inner) => match inner.strip_suffix(']') {
                Some(inner) => inner,
                None => return bad("unbalanced bracket"),
            },
            None if host.contains(':') => return bad("an IPv6 host needs brackets"),
            None => host,
        };
        if host.is_empty() {
            return bad("the host is empty");
        }
        Ok(Addr::Tcp(host.to_string(), port))
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addr::Unix(path) => write!(f, "unix:{path}"),
            Addr::Tcp(host, port) if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Addr::Tcp(host, port) => write!(f, "tcp:{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every form is accepted and printed back, every malformed one refused. Method: table.
    #[test]
    fn forms() {
        for good in ["unix:/run/a.sock", "unix:rel", "tcp:host:1", "tcp:127.0.0.1:0", "tcp:[::1]:65535"] {
            assert_eq!(Addr::parse(good).expect(good).to_string(), good);
        }
        let long = format!("unix:{}", "x".repeat(108));
        for bad in [
            "",
            "unix:",
            "tcp:",
            "tcp:host",
            "tcp:host:x",
            "tcp:host:65536",
            "tcp::1",
            "tcp:::1:5",
            "tcp:[::1:5",
            "udp:a:1",
            &long,
        ] {
            assert_eq!(Addr::parse(bad).expect_err(bad).kind(), io::ErrorKind::InvalidInput);
        }
    }
}
