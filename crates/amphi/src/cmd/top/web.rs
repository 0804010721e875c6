//! `amphi top --web`: the samples of the last minutes for the page of `amphi_view::page`.
//!
//! Owns: taking samples while a page is open, keeping them, their address and token. Does not own: HTTP (`crate::web`),
//! the page.
//!
//! Bounds: `KEPT` samples, less than 10 MB; if no page has requested samples for `UNWATCHED`, the mount is not queried
//! any more.

use super::looks::{Looks, name_of};
use crate::web::{Page, Served, Site, check_open, serve_tcp};
use amphi_env::{Env, RealEnv};
use amphi_host::failure::{During, Outcome};
use amphi_view::page::page;
use amphi_view::{Change, report};
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Samples that a page can still get: 5 minutes at one a second.
const KEPT: usize = 300;
/// If no page has requested samples for this time, the mount is not queried any more.
const UNWATCHED: Duration = Duration::from_secs(30);
/// Random bytes of a token.
const TOKEN_BYTES: usize = 16;

/// A sample, with its number and its time on a clock that does not go back.
struct Sample {
    number: u64,
    at: Duration,
    sample: Value,
}

#[derive(Default)]
struct State {
    kept: VecDeque<Sample>,
    last: u64,
    now: Duration,
    /// The reason why there is no newer sample.
    failed: Option<String>,
}

/// The samples that pages request.
#[derive(Default)]
struct Samples {
    state: Mutex<State>,
    /// Whether a page has requested samples since the last check.
    asked: AtomicBool,
}

impl Samples {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, at: Duration, sample: Value) {
        let mut state = self.lock();
        state.last += 1;
        let number = state.last;
        (state.now, state.failed) = (at, None);
        state.kept.push_back(Sample { number, at, sample });
        let more = state.kept.len().saturating_sub(KEPT);
        state.kept.drain(..more);
    }

    /// The samples behind number `after`.
    fn json(&self, after: u64) -> Value {
        self.asked.store(true, Ordering::Relaxed);
        let state = self.lock();
        // A sample number that this process has not given out is from an earlier process.
        let after = if after > state.last { 0 } else { after };
        let new = state.kept.iter().filter(|sample| sample.number > after);
        let samples: Vec<Value> =
            new.map(|sample| json!({ "at": sample.at.as_secs_f64(), "sample": sample.sample })).collect();
        json!({ "last": state.last, "now": state.now.as_secs_f64(), "failed": state.failed, "samples": samples })
    }
}

impl Site for Arc<Samples> {
    fn page(&self, path: &str, query: &str) -> Option<Outcome<Page>> {
        match path {
            "/" => Some(Ok(Page { kind: "text/html; charset=utf-8", body: page() })),
            "/v1/top" => {
                let after = query.split('&').find_map(|word| word.strip_prefix("after=")?.parse().ok()).unwrap_or(0);
                Some(Ok(Page { kind: "application/json", body: self.json(after).to_string() }))
            }
            _ => None,
        }
    }

    fn paths(&self) -> &'static str {
        "/ and /v1/top"
    }

    fn is_open(&self, path: &str) -> bool {
        path == "/"
    }
}

fn random_token() -> Outcome<String> {
    let mut bytes = [0; TOKEN_BYTES];
    getrandom(&mut bytes, GetRandomFlags::empty()).during(|| "make a token".into())?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

/// Serves the page of the mount of `path` until a signal ends the process. Without `token`, and unless `open` is set,
/// readers on this machine need a random token, because not all of its users should see the names of files.
pub(super) fn serve(addr: SocketAddr, path: &Path, interval: Duration, token: Option<String>, open: bool) -> Outcome {
    check_open(addr, token.is_some(), open)?;
    let (is_random, token) = match (token, open) {
        (None, false) => (true, Some(random_token()?)),
        (token, _) => (false, token),
    };
    // If the mount cannot be read, this is reported now, not to the first reader.
    crate::cmd::look::look(&path, Duration::ZERO)?;
    let samples = Arc::<Samples>::default();
    let (taken, watched) = (samples.clone(), path.to_path_buf());
    let take = move || take(&watched, interval, &taken);
    std::thread::Builder::new().name("samples".into()).spawn(take).during(|| "start a thread".into())?;
    // A token that the user has chosen is not printed.
    let hash = token.as_ref().filter(|_| is_random).map(|token| format!("#{token}")).unwrap_or_default();
    serve_tcp(addr, Served { site: samples, token }, |at| println!("ready http://{at}/{hash}"))
}

/// Takes samples while pages request them.
fn take(path: &Path, interval: Duration, samples: &Samples) {
    let ended = RealEnv::run(Duration::ZERO, |env| async move {
        let name = name_of(path);
        loop {
            while !samples.asked.load(Ordering::Relaxed) {
                env.sleep(interval.min(Duration::from_millis(200))).await;
            }
            if let Err(e) = watch(&env, path, &name, interval, samples).await {
                samples.lock().failed = Some(e.text);
                env.sleep(Duration::from_secs(1)).await;
            }
        }
    });
    let Err(e): std::io::Result<()> = ended else { return };
    tracing::error!("no samples any more: {e}");
}

/// Takes samples until no page has requested them for some time, or the mount does not answer.
async fn watch(env: &RealEnv, path: &Path, name: &str, interval: Duration, samples: &Samples) -> Outcome {
    let now = || Duration::from_nanos(env.now().0);
    let mut looks = Looks::begin(path, env.clone())?;
    let mut asked = now();
    while now().saturating_sub(asked) < UNWATCHED {
        env.sleep(interval).await;
        let (before, after) = looks.next()?;
        samples.note(now(), report::json(name, &Change { before: &before, after: &after }));
        if samples.asked.swap(false, Ordering::Relaxed) {
            asked = now();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a page gets each sample once, at first the latest ones, and after a restart of `amphi top` all that are
    /// kept; two programs have different tokens. Method: more samples than are kept.
    #[test]
    fn samples_are_given_once() {
        let samples = Samples::default();
        let count = |after| samples.json(after)["samples"].as_array().map(Vec::len);
        assert_eq!(count(0), Some(0));
        for n in 0..(KEPT as u64 + 10) {
            samples.note(Duration::from_secs(n), json!({ "n": n }));
        }
        let last = samples.json(0)["last"].as_u64().expect("a number");
        assert_eq!((last, count(0), count(last - 2), count(last)), (KEPT as u64 + 10, Some(KEPT), Some(2), Some(0)));
        assert_eq!(count(last + 5), Some(KEPT), "numbers of an earlier process");
        assert_eq!(samples.json(last - 1)["samples"][0]["sample"]["n"], last - 1);
        assert!(samples.asked.load(Ordering::Relaxed));
        let tokens: Vec<String> = (0..2).map(|_| random_token().map_err(|e| e.text).expect("a token")).collect();
        assert!(tokens[0] != tokens[1] && tokens[0].len() == 2 * TOKEN_BYTES);
    }
}
