//! The key that a first server makes for itself.
//!
//! A server that listens on TCP and is given no key makes one, since every user of a machine reaches its loopback
//! addresses. It lies in the data folder, only its user can read it, and it is written when the server is up, so a
//! start that fails leaves nothing behind.

use amphi_env::addr::Addr;
use amphi_host::cluster_key::read_file;
use amphi_host::failure::{During, Failure, Outcome};
use amphi_host::say::say;
use amphi_server::ServerConfig;
use rustix::fs::{Mode, OFlags};
use std::path::{Path, PathBuf};

/// Name of the key in a data folder that its server made.
pub const OWN_KEY: &str = amphi_server::OWN_KEY;
/// Random bytes of a key that is made; the file has them as twice as many hexadecimal digits.
const MADE_BYTES: usize = 32;

/// The key of a server that was given no key.
#[derive(Clone, Debug)]
pub struct OwnKey {
    /// The present or future contents of the file.
    pub bytes: Vec<u8>,
    /// The file.
    pub path: PathBuf,
    is_new: bool,
}

impl OwnKey {
    /// The key in a data folder, or a new one that is not written yet.
    pub fn of(data: &Path) -> Outcome<OwnKey> {
        let data = std::path::absolute(data).during(|| format!("find {}", data.display()))?;
        let path = data.join(OWN_KEY);
        if path.exists() {
            let (bytes, _) = read_file(&path)?;
            return Ok(OwnKey { bytes, path, is_new: false });
        }
        let mut random = [0; MADE_BYTES];
        let mut filled = 0;
        while filled < MADE_BYTES {
            let flags = rustix::rand::GetRandomFlags::empty();
            filled += rustix::rand::getrandom(&mut random[filled..], flags).during(|| "get random bytes".into())?;
        }
        let mut bytes: Vec<u8> = random.iter().flat_map(|b| format!("{b:02x}").into_bytes()).collect();
        bytes.push(b'\n');
        Ok(OwnKey { bytes, path, is_new: true })
    }

    /// Writes the key if it is new, and prints where it is.
    pub fn keep(&self) -> Outcome {
        if self.is_new {
            self.write().during(|| format!("write {}", self.path.display()))?;
        }
        let path = self.path.display();
        say(&format!("over TCP this cluster asks for its key: give --key {path} to mounts and servers"));
        Ok(())
    }

    fn write(&self) -> std::io::Result<()> {
        let (flags, mode) = (OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
        let file = rustix::fs::open(&self.path, flags, mode)?;
        let written = match rustix::io::write(&file, &self.bytes) {
            Ok(n) if n == self.bytes.len() => rustix::fs::fsync(&file).map_err(std::io::Error::from),
            Ok(_) => Err(std::io::ErrorKind::WriteZero.into()),
            Err(e) => Err(e.into()),
        };
        if written.is_err() {
            // A part of a key is not a valid key.
            let _ = std::fs::remove_file(&self.path);
        }
        written
    }
}

/// Returns whether a server with these settings is reached over TCP.
fn is_on_tcp(config: &ServerConfig) -> bool {
    config.listen.iter().any(|addr| matches!(Addr::parse(addr), Ok(Addr::Tcp(..))))
}

/// Gives a first server that listens on TCP a key of its own in the folder `data`, unless it has one. A server which
/// joins others uses theirs.
pub fn of_server(config: &mut ServerConfig, data: &Path) -> Outcome<Option<OwnKey>> {
    if config.key.is_some() || !is_on_tcp(config) {
        return Ok(None);
    }
    if !config.join.is_empty() && config.identity.is_some() {
        // The server joins by its identity. If that does not suffice, the start is refused with a message that names
        // the missing key.
        return Ok(None);
    }
    if !config.join.is_empty() && !data.join(OWN_KEY).exists() {
        return Err(Failure::refused(format!(
            "a server on TCP needs the key of its cluster: give --key FILE; the first server has made one in its data \
             folder ({}) if it was given none",
            OWN_KEY
        )));
    }
    let own = OwnKey::of(data)?;
    config.key = Some(own.bytes.clone());
    // A user for whom the kernel vouches on a Unix socket needs no key.
    config.unix_without_key = true;
    Ok(Some(own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_host::cluster_key::read;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    /// Goal: a key that is made is valid, accessible to its user alone, and kept. Method: the test makes the file,
    /// keeps it, checks it and reads it again, gives others access to it, and truncates it.
    #[test]
    fn a_key_of_its_own() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let own = OwnKey::of(dir.path()).expect("made");
        assert!(!own.path.exists(), "a start that fails leaves nothing behind");
        own.keep().expect("kept");
        let mode = || std::fs::metadata(&own.path).expect("there").mode() & 0o777;
        assert_eq!((mode(), own.bytes.len()), (0o600, 2 * MADE_BYTES + 1));
        let again = OwnKey::of(dir.path()).expect("read");
        assert_eq!((&again.bytes, again.is_new), (&own.bytes, false));
        again.keep().expect("it is there");
        assert!(read(Some(&own.path)).is_ok_and(|k| k.is_some()));
        for mode in [0o640, 0o604, 0o620, 0o666] {
            std::fs::set_permissions(&own.path, PermissionsExt::from_mode(mode)).expect("chmod");
            let text = OwnKey::of(dir.path()).expect_err("others can read it").text;
            assert!(text.contains("chmod 600"), "{text}");
        }
        std::fs::set_permissions(&own.path, PermissionsExt::from_mode(0o400)).expect("chmod");
        assert!(OwnKey::of(dir.path()).is_ok());
        std::fs::set_permissions(&own.path, PermissionsExt::from_mode(0o600)).expect("chmod");
        for (weak, words) in [("1234567890123456", "guessed"), ("short", "at least 16")] {
            std::fs::write(&own.path, weak).expect("write");
            let text = read(Some(&own.path)).expect_err("weak").text;
            assert!(text.contains(words), "{text}");
        }
    }
}
