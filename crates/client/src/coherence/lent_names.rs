//! Names of directories that a front end keeps under this mount's tokens (docs/design/kernel_names.md).
//!
//! Owns: for how long a name may be lent, and that it is taken back before a revocation is answered, before a change of
//! this mount's own is sent, and when tokens are lost. Does not own: the notes (`tables::coherence::lent_names`), the
//! tokens (`tokens`), how the front end does either.

use crate::coherence::tokens::usable_now;
use crate::mount::Mount;
use crate::tables::coherence::lent_names::{Going, NotLent};
use crate::tables::coherence::tokens::Value;
use crate::telemetry::stats::Count;
use crate::telemetry::tunables::Tunable;
use amphi_dlm::TokenKey;
use amphi_types::{Attr, Ino, Kind, Name};
use futures_channel::oneshot;
use std::sync::Arc;
use std::time::Duration;

/// Names of `keys` that a front end has and that have to be taken back.
pub(super) fn to_take(mount: &Mount, keys: &[TokenKey]) -> Vec<Going> {
    let rest_ns = mount.tunables.get(Tunable::NamesRestMs) * 1_000_000;
    mount.coherence.tokens.names.take(mount.clock.boot_ns(), keys, rest_ns)
}

/// Takes names back from the front end, and returns when it has none of them any more.
pub(super) async fn take_back(mount: &Mount, names: Vec<Going>) {
    if names.is_empty() {
        return;
    }
    mount.stats.bytes(Count::NamesTaken, names.len() as u64);
    if let Some(front) = mount.coherence.sharing.pages() {
        let (sender, done) = oneshot::channel();
        let nodes = names.iter().map(|one| one.node).collect();
        let told = Box::new(move || {
            let _ = sender.send(());
        });
        front.take_names(nodes, told);
        let _ = done.await;
    }
    mount.coherence.tokens.names.taken(&names);
}

/// As `take_back`, for all names whose keys `of` names, where nobody waits for it.
pub(super) fn take_back_soon(mount: &Arc<Mount>, of: impl Fn(TokenKey) -> bool) {
    let names = mount.coherence.tokens.names.take_all(mount.clock.boot_ns(), of);
    if !names.is_empty() {
        let mount2 = mount.clone();
        mount.spawn(async move { take_back(&mount2, names).await });
    }
}

/// What a front end that walks by itself is told of a name: a directory and its attributes, as long as the tokens of
/// both are held. Sends nothing.
pub(crate) fn known_directory(mount: &Mount, dir: Ino, name: &Name) -> Option<Attr> {
    let now = usable_now(mount, dir.target())?;
    let cache = mount.coherence.tokens.cache.read();
    let ino = match cache.get(now, TokenKey::Name(dir, name.token_hash()))? {
        Value::Present(cached, ino) if cached == name => *ino,
        _ => return None,
    };
    match cache.get(now, TokenKey::Attributes(ino)) {
        Some(Value::View(view)) if view.attr.kind == Kind::Dir => {
            mount.coherence.sharing.leases.in_touch(now, ino.target()).then_some(view.attr)
        }
        _ => None,
    }
}

/// For how long a front end may keep the name of a directory, which it is about to give as an answer to itself: as long
/// as the token of the name lasts. It is noted, and the front end is told when the token goes.
pub(crate) fn lend(mount: &Mount, dir: Ino, name: &Name, ino: Ino) -> Duration {
    let (key, names) = (TokenKey::Name(dir, name.token_hash()), &mount.coherence.tokens.names);
    let lent = usable_now(mount, dir.target()).ok_or(NotLent::NoToken).and_then(|now| {
        // The lock is held until it is noted: whoever takes the token comes behind that.
        let cache = mount.coherence.tokens.cache.read();
        match cache.lend(now, key) {
            Some((Value::Present(cached, held), left_ns)) if cached == name && *held == ino => {
                names.lend(now, key, ino, left_ns)
            }
            _ => Err(NotLent::NoToken),
        }
    });
    mount.stats.count(match lent {
        Ok(_) => Count::NamesLent,
        Err(NotLent::NoToken) => Count::NamesNoToken,
        Err(NotLent::ShortLife) => Count::NamesShortLife,
        Err(NotLent::Contended) => Count::NamesContended,
        Err(NotLent::Full) => Count::NamesFull,
    });
    lent.unwrap_or_default()
}

/// Whether a front end has this name of a directory.
pub(crate) fn is_lent(mount: &Mount, dir: Ino, name: &Name, ino: Ino) -> bool {
    let key = TokenKey::Name(dir, name.token_hash());
    mount.coherence.tokens.names.is_lent(mount.clock.boot_ns(), key, ino)
}

/// Directories whose names a front end has.
pub(crate) fn nodes(mount: &Mount) -> Vec<Ino> {
    let (names, now_ns) = (&mount.coherence.tokens.names, mount.clock.boot_ns());
    names.nodes(now_ns)
}
