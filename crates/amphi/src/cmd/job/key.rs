//! The key of a job that the nodes make for themselves: all nodes of a job make the same one from a secret that they
//! share, so that it need not be sent.
//!
//! Owns: `amphi job key`, and what follows from the key: the name of the job's folders and the port of its first
//! server, which nobody else can foretell. Does not own: the file of the secret (`amphi_host::cluster_key`).
//!
//! Invariants: the key passes through pipes alone, never through arguments or the environment. Different jobs have
//! different keys, and from one of them nothing follows about another (HMAC-SHA256).

use amphi_host::cluster_key;
use amphi_host::failure::{During, Failure, Outcome};
use clap::Args;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::io::BufRead;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// What the words of a job are signed for.
const LABEL: &[u8] = b"amphi job 1";
/// Bytes of a key.
const BYTES: usize = 32;

/// Print the key of a job, made of a secret of the nodes and of words that name the job
#[derive(Args, Debug)]
pub struct MakeKey {
    /// File with the secret, the same on all nodes, that root alone can read
    #[arg(long, value_name = "FILE")]
    secret: PathBuf,
    /// Words that name the job, the same on all of its nodes
    #[arg(required = true, value_name = "WORD")]
    words: Vec<String>,
}

impl MakeKey {
    /// Prints it.
    pub fn run(self) -> Outcome {
        let (secret, _) = cluster_key::read_file(&self.secret)?;
        println!("{}", JobKey::of(&secret, &self.words)?.digits());
        Ok(())
    }
}

/// The key of a job.
pub struct JobKey([u8; BYTES]);

impl JobKey {
    fn of(secret: &[u8], words: &[String]) -> Outcome<JobKey> {
        Ok(JobKey(mac(secret, words.iter().map(String::as_bytes))?))
    }

    /// Reads the digits that `amphi job key` prints.
    ///
    /// Errors: the line is something else.
    pub fn read(from: impl BufRead) -> Outcome<JobKey> {
        let line = from.lines().next().and_then(Result::ok).unwrap_or_default();
        let digits =
            Some(line.trim()).filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()) && text.len() % 2 == 0);
        let pairs = digits.unwrap_or_default().as_bytes().chunks(2);
        let bytes = pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
        let bytes = bytes.collect::<Option<Vec<u8>>>().and_then(|bytes| bytes.try_into().ok());
        bytes.map(JobKey).ok_or_else(|| Failure::refused("standard input has to begin with the line of amphi job key"))
    }

    /// The key in hexadecimal digits.
    pub fn digits(&self) -> String {
        hex(&self.0)
    }

    /// Digits that only those can foretell who have the key.
    pub fn word(&self, purpose: &str) -> Outcome<String> {
        Ok(hex(&mac(&self.0, [purpose.as_bytes()].into_iter())?[..4]))
    }

    /// One of these ports.
    pub fn port(&self, ports: &RangeInclusive<u16>) -> Outcome<u16> {
        let number = mac(&self.0, [&b"port"[..]].into_iter())?[..8].iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
        let count = u64::from(ports.end().saturating_sub(*ports.start())) + 1;
        Ok(ports.start() + (number % count) as u16)
    }
}

fn mac<'a>(key: &[u8], words: impl Iterator<Item = &'a [u8]>) -> Outcome<[u8; BYTES]> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).during(|| "sign the words of a job".into())?;
    for word in std::iter::once(LABEL).chain(words) {
        mac.update(&(word.len() as u64).to_le_bytes());
        mac.update(word);
    }
    Ok(mac.finalize().into_bytes().into())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(words: &[&str]) -> JobKey {
        let words: Vec<String> = words.iter().map(|word| (*word).to_string()).collect();
        JobKey::of(b"a secret of all nodes", &words).expect("a key")
    }

    /// Goal: nodes agree on the key, the folder and the port of a job, and no two jobs share a key, however their words
    /// are divided. Method: equal and different words, and the way through a pipe.
    #[test]
    fn keys_of_jobs() {
        let one = key(&["cluster", "77", "n1,n2"]);
        assert_eq!(one.digits(), key(&["cluster", "77", "n1,n2"]).digits());
        for other in [&["cluster", "78", "n1,n2"][..], &["cluster7", "7", "n1,n2"], &["cluster", "77n1,n2"]] {
            assert_ne!(one.digits(), key(other).digits(), "{other:?}");
        }
        let read = JobKey::read(format!("{}\n", one.digits()).as_bytes()).expect("a key");
        assert_eq!((read.word("folder").ok(), one.digits()), (one.word("folder").ok(), read.digits()));
        assert_ne!(one.word("folder").ok(), one.word("program").ok());
        assert_eq!(one.port(&(7..=7)).ok(), Some(7));
        assert!((61000..=61003).contains(&one.port(&(61000..=61003)).expect("a port")));
        for bad in ["", "zz", "00", &one.digits()[1..]] {
            assert!(JobKey::read(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
