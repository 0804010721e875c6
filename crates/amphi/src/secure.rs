//! The protection of connections, as options specify it.
//!
//! Owns: the options, and the parsing of addresses that are followed by a level. Does not own: what the levels do
//! (`amphi_transport`).

use amphi_host::failure::{Failure, Outcome};
use amphi_host::link::Credentials;
use amphi_server::ServerConfig;
use amphi_transport::{Secure, is_unix};
use clap::Args;

/// The separator between an address and its level.
const SECURE: &str = ",secure=";

/// A level as it is typed.
pub fn level(text: &str) -> Result<Secure, String> {
    Secure::parse(text).ok_or_else(|| format!("'{text}' is no level; there are off, mac and tls"))
}

/// The least level that a client accepts.
#[derive(Args, Clone, Copy, Debug)]
pub struct LeastSecure {
    /// The lowest protection of connections over TCP that is accepted: off, mac (signed) or tls (encrypted) [default:
    /// what the server offers]
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    secure: Option<Secure>,
}

impl LeastSecure {
    /// Limits these credentials to connections of this level or a higher one.
    pub fn of(self, proves: Credentials) -> Credentials {
        Credentials { secure: self.secure.unwrap_or_default(), ..proves }
    }
}

/// Splits the levels from the addresses that a server listens on.
///
/// Errors: an unknown level, or a Unix socket with a level.
pub fn split_listen(config: &mut ServerConfig) -> Outcome {
    for addr in &mut config.listen {
        let Some((bare, text)) = addr.rsplit_once(SECURE) else { continue };
        let level = level(text).map_err(|e| Failure::refused(format!("{addr}: {e}")))?;
        if is_unix(bare) && level != Secure::Off {
            return Err(Failure::refused(format!("{addr}: what passes a Unix socket does not leave the machine: off")));
        }
        config.secure_exceptions.insert(bare.to_string(), level);
        *addr = bare.to_string();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each address has the level that is given for it, or else the level that is given for all. Method: a table.
    #[test]
    fn levels_of_addresses() {
        let mut config = ServerConfig::new("/data");
        config.secure = Secure::Tls;
        config.listen = ["tcp:a:1", "tcp:b:2,secure=mac", "tcp:c:3,secure=off", "unix:/s", "unix:/t,secure=off"]
            .map(String::from)
            .to_vec();
        split_listen(&mut config).expect("good");
        let levels: Vec<String> = config.listen.iter().map(|a| format!("{a} {}", config.secure_of(a))).collect();
        assert_eq!(levels, ["tcp:a:1 tls", "tcp:b:2 mac", "tcp:c:3 off", "unix:/s off", "unix:/t off"]);
        for (bad, words) in
            [("tcp:a:1,secure=ssl", "no level"), ("unix:/s,secure=mac", "off"), ("tcp:a:1,secure=", "no level")]
        {
            config.listen = vec![bad.into()];
            assert!(split_listen(&mut config).expect_err(bad).text.contains(words));
        }
    }
}
