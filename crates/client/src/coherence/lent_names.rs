//! Names that a front end caches under this mount's tokens (docs/design/kernel_names.md).
//!
//! Owns: which timeout a name may get, and that the name is invalidated before a revocation is answered, before this
//! mount's own change is sent, and when tokens are lost. Does not own: the record of cached names
//! (`tables::coherence::lent_names`), the tokens (`tokens`), how the front end caches and invalidates names.

use crate::api::{LentName, NameShows};
use crate::coherence::tokens::{self, usable_now};
use crate::mount::Mount;
use crate::tables::coherence::lent_names::{NotLent, Takes};
use crate::tables::coherence::tokens::Value;
use crate::telemetry::stats::Count;
use crate::telemetry::tunables::Tunable;
use amphi_dlm::TokenKey;
use amphi_types::{Attr, Errno, Ino, Name, Result};
use futures_channel::oneshot;
use futures_util::future::{Either, select};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// Names of `keys` that a front end caches and that have to be invalidated.
pub(super) fn to_take(mount: &Mount, keys: &[TokenKey]) -> Takes {
    let rest_ns = mount.tunables.get(Tunable::NamesRestMs) * 1_000_000;
    mount.coherence.tokens.names.take(mount.clock.boot_ns(), keys, rest_ns)
}

/// Invalidates names in the front end. Returns when the front end reports it, or when the timeouts of the names are
/// over. So a front end that cannot invalidate a name delays a change no longer than one that hangs.
pub(super) async fn take_back(mount: &Mount, takes: Takes) {
    let Takes { names, others } = takes;
    if let Some(until_ns) = names.iter().map(|one| one.until_ns).max() {
        mount.stats.bytes(Count::NamesTaken, names.len() as u64);
        if let Some(front) = mount.coherence.sharing.pages() {
            let (sender, done) = oneshot::channel();
            let lent = names.iter().map(|one| one.lent.clone()).collect();
            let told = Box::new(move || {
                let _ = sender.send(());
            });
            front.take_names(lent, told);
            let over = mount.life.pauses.pause(until_ns.saturating_sub(mount.clock.boot_ns()));
            if let Either::Right(((), _)) = select(done, pin!(over)).await {
                tracing::warn!(
                    names = names.len(),
                    "names were not given back by the kernel before their time was over"
                );
            }
        }
        mount.coherence.tokens.names.taken(&names);
    }
    for told in others {
        let _ = told.await;
    }
}

/// Names that a front end caches and whose keys satisfy `of`, to be passed to `take_back` at once.
pub(super) fn all_to_take(mount: &Mount, of: impl Fn(TokenKey) -> bool) -> Takes {
    mount.coherence.tokens.names.take_all(mount.clock.boot_ns(), of)
}

/// As `take_back` for all names, in the background.
pub(super) fn take_all_back_soon(mount: &Arc<Mount>) {
    let takes = all_to_take(mount, |_| true);
    if !takes.is_empty() {
        let mount2 = mount.clone();
        mount.spawn(async move { take_back(&mount2, takes).await });
    }
}

/// The key of a name, as the directory or the shard has it in which the name lies.
fn key_of(mount: &Mount, dir: Ino, name: &Name) -> TokenKey {
    TokenKey::Name(mount.coherence.shards.place(dir, name), name.token_hash())
}

/// The number of the loan under which a front end may cache that a name does not exist.
pub(crate) fn absent(mount: &Mount, dir: Ino, name: &Name) -> Option<u64> {
    let key = key_of(mount, dir, name);
    mount.coherence.tokens.names.absent(mount.clock.boot_ns(), key, name.as_bytes())
}

/// Called when the front end has shown that its kernel no longer caches a name under this timeout.
pub(crate) fn is_over(mount: &Mount, dir: Ino, name: &Name, loan: u64) {
    mount.coherence.tokens.names.is_over(key_of(mount, dir, name), loan);
}

/// The answer to a front end's own lookup thread about a name: the attributes of its inode, if the tokens of both are
/// held, or `NoEnt`. Sends nothing.
pub(crate) fn known(mount: &Mount, dir: Ino, name: &Name) -> Option<Result<Attr>> {
    let key = key_of(mount, dir, name);
    let now = usable_now(mount, key.target())?;
    let cache = mount.coherence.tokens.cache.read();
    match cache.get(now, key)? {
        Value::Present(cached, ino) if cached == name => tokens::cached_attr(mount, &cache, now, *ino).map(Ok),
        Value::Absent(cached) if cached == name => Some(Err(Errno::NoEnt)),
        _ => None,
    }
}

/// The timeout with which a front end may cache a name: the remaining life of the name's token. The timeout is
/// recorded, and the front end gets a request to invalidate the name when the token is revoked or lost.
pub(crate) fn lend(mount: &Mount, lent: &LentName) -> Duration {
    let Ok(name) = Name::new(lent.name.to_vec()) else { return Duration::ZERO };
    let (key, names) = (key_of(mount, lent.dir, &name), &mount.coherence.tokens.names);
    let life = usable_now(mount, key.target()).ok_or(NotLent::NoToken).and_then(|now| {
        // The lock is held until the name is recorded, so a revocation of the token finds the record.
        let cache = mount.coherence.tokens.cache.read();
        match (cache.lend(now, key), lent.shows) {
            (Some((Value::Present(cached, held), left_ns)), NameShows::Directory(ino) | NameShows::Other(ino, _))
                if *cached == name && *held == ino =>
            {
                names.lend(now, key, lent, left_ns)
            }
            (Some((Value::Absent(cached), left_ns)), NameShows::Nothing) if *cached == name => {
                names.lend(now, key, lent, left_ns)
            }
            _ => Err(NotLent::NoToken),
        }
    });
    mount.stats.count(match life {
        Ok(_) => Count::NamesLent,
        Err(NotLent::NoToken) => Count::NamesNoToken,
        Err(NotLent::ShortLife) => Count::NamesShortLife,
        Err(NotLent::Contended) => Count::NamesContended,
        Err(NotLent::Full) => Count::NamesFull,
    });
    life.unwrap_or_default()
}

/// Returns whether a front end caches this name.
pub(crate) fn is_lent(mount: &Mount, dir: Ino, name: &Name, shows: NameShows) -> bool {
    let key = key_of(mount, dir, name);
    mount.coherence.tokens.names.is_lent(mount.clock.boot_ns(), key, name.as_bytes(), shows)
}

/// Names that a front end caches.
pub(crate) fn all(mount: &Mount) -> Vec<LentName> {
    let (names, now_ns) = (&mount.coherence.tokens.names, mount.clock.boot_ns());
    names.all(now_ns)
}
