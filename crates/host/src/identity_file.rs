//! Files with identities: key pairs of servers, hosts and administrators.
//!
//! Owns: making, reading and changing such a file. Does not own: the contents of the file
//! (`amphi_transport::identity`).
//!
//! Invariant: a file with a secret is made with mode 0600 and under its name only when it is whole.

use crate::cluster_key::read_secret;
use crate::failure::{During, Failure, Outcome};
use amphi_transport::Identity;
use amphi_wire::keys::Fingerprint;
use rustix::fs::{Mode, OFlags};
use std::path::Path;

/// Reads an identity.
///
/// Errors: the file cannot be read, others than its user can, or it holds no whole identity.
pub fn read(path: &Path) -> Outcome<Identity> {
    let refused = |e: String| Failure::refused(format!("identity {}: {e}", path.display()));
    let bytes = read_secret(path, "identity")?;
    let text = String::from_utf8(bytes).map_err(|_| refused("this is no text: make one with amphi key make".into()))?;
    Identity::parse(&text).map_err(refused)
}

/// Makes an identity with a new key pair, which trusts these servers, in a file that is not there yet.
pub fn make(path: &Path, servers: impl IntoIterator<Item = Fingerprint>) -> Outcome<Identity> {
    let mut secret = [0; amphi_transport::identity::SECRET_BYTES];
    let mut filled = 0;
    while filled < secret.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut secret[filled..], flags).during(|| "get random bytes".into())?;
    }
    let identity = Identity::new(secret).trusting(servers);
    if path.exists() {
        return Err(Failure::refused(format!(
            "{} is there already; choose another name, or remove it if no server knows its key",
            path.display()
        )));
    }
    write(path, &identity, OFlags::EXCL).during(|| format!("write {}", path.display()))?;
    Ok(identity)
}

/// Adds servers to those that an identity trusts.
pub fn trust(path: &Path, servers: impl IntoIterator<Item = Fingerprint>) -> Outcome<Identity> {
    let identity = read(path)?.trusting(servers);
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = Path::new(&beside);
    let replaced = write(beside, &identity, OFlags::TRUNC).and_then(|()| std::fs::rename(beside, path));
    replaced.during(|| format!("write {}", path.display()))?;
    Ok(identity)
}

fn write(path: &Path, identity: &Identity, how: OFlags) -> std::io::Result<()> {
    let (flags, mode) = (OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | how, Mode::RUSR | Mode::WUSR);
    let file = rustix::fs::open(path, flags, mode)?;
    let text = identity.to_text();
    let written = match rustix::io::write(&file, text.as_bytes()) {
        Ok(n) if n == text.len() => rustix::fs::fsync(&file).map_err(std::io::Error::from),
        Ok(_) => Err(std::io::ErrorKind::WriteZero.into()),
        Err(e) => Err(e.into()),
    };
    if written.is_err() {
        // A part of a key is not a valid key.
        let _ = std::fs::remove_file(path);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    /// Goal: an identity file is made once, is accessible to its user alone, is read unchanged, and accepts further
    /// servers. It is refused if other users can read it or if it is truncated. Method: the file is made, read,
    /// extended, made readable to others, and truncated.
    #[test]
    fn an_identity_in_its_file() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("node1.id");
        let made = make(&path, [Fingerprint([1; 32])]).expect("made");
        let mode = || std::fs::metadata(&path).expect("there").mode() & 0o777;
        assert_eq!(mode(), 0o600);
        assert_eq!(read(&path).expect("read").fingerprint(), made.fingerprint());
        let refused = make(&path, []).expect_err("it is there").text;
        assert!(refused.contains("is there already"), "{refused}");
        let trusting = trust(&path, [Fingerprint([2; 32]), Fingerprint([1; 32])]).expect("changed");
        assert_eq!((trusting.servers().len(), mode()), (2, 0o600));
        assert_eq!(read(&path).expect("read").servers(), trusting.servers());
        assert_ne!(make(&dir.path().join("other"), []).expect("made").fingerprint(), made.fingerprint());
        for mode in [0o640, 0o604, 0o620] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("chmod");
            let refused = read(&path).expect_err("others can read it").text;
            assert!(refused.contains("chmod 600") && refused.contains("node1.id"), "{refused}");
        }
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("chmod");
        let text = std::fs::read(&path).expect("read");
        for (content, words) in [
            (&text[..text.len() / 2], "cut short"),
            (b"a cluster key of some bytes\n", "no identity"),
            (b"\xff\xfe", "no text"),
            (b"", "no identity"),
        ] {
            std::fs::write(&path, content).expect("write");
            let refused = read(&path).expect_err("not whole").text;
            assert!(refused.contains(words), "{refused}");
        }
        symlink(dir.path().join("nowhere"), dir.path().join("link")).expect("symlink");
        assert!(make(&dir.path().join("link"), []).is_err(), "nothing is made behind a link");
    }
}
