//! Names and attributes that are cached under tokens of the servers (docs/locking/tokens.md).
//!
//! Owns: the use of the cache: requests, grants, this mount's own changes, revocations, and lookups that need no
//! message. Does not own: the rules (`dlm`), when tokens are used at all (`sharing`).
//!
//! There is one cache for all targets, because the answer to a lookup may contain grants of two targets. A hit takes
//! the cache's lock shared and allocates nothing but the copy.
//!
//! Invariants: `FileSize::token_end_ns` is not 0 only while the attributes token of the file is held and `Inode::size`
//! is the size under this token. The value changes only under the cache's lock. A value is stored only if this mount
//! made no change between request and answer.

use crate::coherence::lease;
use crate::coherence::lent_names;
use crate::coherence::new_directories;
use crate::coherence::opened_ahead;
use crate::inode::{AskedAt, Inode};
use crate::mount::Mount;
use crate::tables::coherence::lent::{LOOK_NS, Unknown};
use crate::tables::coherence::lent_names::Takes;
use crate::tables::coherence::tokens::{OPEN_END_NS, Value};
use crate::telemetry::stats::Count;
use amphi_dlm::{Ask, Grant, OwnChange, Revoke, RevokeId, TokenCache, TokenKey, TokenNumber};
use amphi_env::Buf;
use amphi_types::{Attr, Caps, Cred, Errno, Ino, Kind, Name, Result, SessionId, TargetId};
use amphi_wire::{InodeView, Lane, ListingGrant, Reply, Request, TokenGrant, Tokens as Grants};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Keys whose values are dropped before a request changes a name in `dir`. The record of the directory's names stays:
/// it contains the names of this mount's own requests.
pub(crate) fn name_keys(dir: Ino, name: &Name) -> [TokenKey; 2] {
    [TokenKey::Name(dir, name.token_hash()), TokenKey::Attributes(dir)]
}

/// Sends a request that may bring tokens or change what `keys` show, and waits for the answer.
pub(crate) async fn call(
    mount: &Arc<Mount>,
    target: TargetId,
    cred: &Cred,
    op: Request,
    keys: &[TokenKey],
) -> Result<Told> {
    // Without this check none of the tokens in the answer could be used, nor those in later answers: a mount that was
    // in sole mode for a while, or was stopped, has received nothing from its servers.
    if let Err(e) = lease::touch_target(mount, target).await {
        tracing::debug!(%target, "the server does not say that it is there: {e}");
    }
    call_on(Lane::Normal, mount, target, cred, op, keys).await
}

/// Reports that a file is about to have data on further targets. The request uses the lane of write-back.
pub(crate) async fn spread(mount: &Arc<Mount>, ino: Ino) -> Result<Reply> {
    let keys = [TokenKey::Attributes(ino)];
    call_on(Lane::Urgent, mount, ino.target(), &Cred::root(), Request::Spread { ino }, &keys).await?.take()
}

async fn call_on(
    lane: Lane,
    mount: &Arc<Mount>,
    target: TargetId,
    cred: &Cred,
    op: Request,
    keys: &[TokenKey],
) -> Result<Told> {
    let begun = crate::coherence::sharing::begin(mount);
    let mut changing = opened_ahead::changing(mount, &op);
    let mut directory = crate::coherence::directories::changing(mount, &op, keys);
    let mut setting = crate::coherence::bare::setting(mount, &op);
    // In this order: a directory that is recorded in between then gets the name in one of the two ways.
    let mut naming = new_directories::naming(mount, &op, begun.is_some());
    let mut making = new_directories::sending(mount, &op, begun.is_some());
    let mut question = match &begun {
        Some(_) => Question::alone(mount, keys),
        None => Question::new(mount, keys),
    };
    let asked =
        begun.is_some().then(|| (crate::coherence::directories::asking(mount), crate::coherence::bare::asking(mount)));
    let changes = match &op {
        Request::SetAttr { ino, .. } | Request::SetLayout { ino, .. } => Some(*ino),
        _ => None,
    };
    question.take_names_back().await;
    let asked_at = mount.asked_at();
    let (answer, payload) = mount.send(lane, target, cred, op, None, 0).await?;
    changing.iter_mut().for_each(opened_ahead::Changing::ends);
    setting.iter_mut().for_each(crate::coherence::bare::Setting::ends);
    drop(setting);
    making.iter_mut().for_each(|making| making.ends(&answer.result));
    drop(making);
    new_directories::answered(mount, &answer.result);
    let contended_places = answer.contended_places().collect();
    let grants = answer.tokens.map_or_else(Grants::default, |tokens| *tokens);
    question.ends(grants.changed);
    let after = answer.directory.as_deref();
    if let Some(directory) = &mut directory {
        let removed = if let Ok(Reply::Removed { last_name_of }) = &answer.result { *last_name_of } else { None };
        directory.ends(after, removed);
    }
    let told = Told {
        result: answer.result,
        grants,
        payload,
        contended: answer.contended,
        contended_places,
        asked_at,
        changes,
        asked,
        question,
        _begun: begun,
    };
    if let Some(after) = after.filter(|after| after.token.is_some()) {
        told.keep_view_of(after.inode, after.token);
    }
    if let Some((listing, dir)) = after.and_then(|after| Some((after.listing?, after.inode.attr.ino))) {
        told.keep_listing(dir, listing);
    }
    naming.iter_mut().for_each(new_directories::Naming::ends);
    drop(naming);
    Ok(told)
}

/// An answer, with the tokens that it grants.
pub(crate) struct Told {
    pub(crate) result: Result<Reply>,
    grants: Grants,
    payload: Option<Buf>,
    /// Whether the object of the request is contended; `contended_places` is the same for the parts of a batch.
    pub(crate) contended: bool,
    pub(crate) contended_places: Vec<usize>,
    /// The time at which the request was sent.
    pub(crate) asked_at: AskedAt,
    /// The inode that the request has changed and that the answer shows.
    changes: Option<Ino>,
    /// When the request was sent, for directories and for inodes without extended attributes. `None` in shared mode.
    asked: Option<(crate::coherence::directories::Asked, crate::coherence::bare::Asked)>,
    question: Question,
    _begun: Option<crate::coherence::sharing::Begun>,
}

impl Told {
    /// The outcome. This may be called only once.
    pub(crate) fn take(&mut self) -> Result<Reply> {
        std::mem::replace(&mut self.result, Ok(Reply::Done))
    }

    /// The bytes that came with the answer. This may be called only once.
    pub(crate) fn take_payload(&mut self) -> Option<Buf> {
        self.payload.take()
    }

    /// Caches that the name shows this inode, or does not exist.
    pub(crate) fn keep_name(&self, dir: Ino, name: &Name, ino: Option<Ino>) {
        self.keep_name_of(dir, name, ino, self.grants.name);
    }

    fn keep_name_of(&self, dir: Ino, name: &Name, ino: Option<Ino>, grant: Option<TokenGrant>) {
        let (Some(ask), Some(grant)) = (self.question.ask, grant) else { return };
        let value = match ino {
            Some(ino) => Value::Present(name.clone(), ino),
            None => Value::Absent(name.clone()),
        };
        let mount = &self.question.mount;
        let key = TokenKey::Name(dir, name.token_hash());
        mount.coherence.tokens.cache.write().store(mount.clock.boot_ns(), ask, key, wire_grant(grant), value);
    }

    /// Caches the inode that the answer shows. Returns its attributes joined with the changes of this mount that the
    /// server does not have.
    pub(crate) fn keep_view(&self, view: InodeView) -> Attr {
        self.keep_view_of(view, self.grants.attributes).0
    }

    /// Returns whether the answer grants the token of the attributes that it shows, so that the server need not be
    /// asked for them.
    pub(crate) fn grants_attributes(&self) -> bool {
        self.grants.attributes.is_some()
    }

    /// Works as `keep_view`. Also returns whether the size is right, which it is if this mount made no change between
    /// request and answer.
    pub(crate) fn keep_size(&self, view: InodeView) -> (Attr, bool) {
        self.keep_view_of(view, self.grants.attributes)
    }

    /// Works as `keep_view`, for one of several entries.
    pub(crate) fn keep_entry(
        &self,
        dir: Ino,
        name: &Name,
        ino: Ino,
        view: Option<InodeView>,
        grants: &Grants,
    ) -> Option<Attr> {
        self.keep_name_of(dir, name, Some(ino), grants.name);
        view.map(|view| self.keep_view_of(view, grants.attributes).0)
    }

    /// Believes the record of the names in `dir` from now on.
    fn keep_listing(&self, dir: Ino, listing: ListingGrant) {
        let Some(ask) = self.question.ask else { return };
        let mount = &self.question.mount;
        let (records, rule) = (&mount.coherence.new_directories, self.asked_at.rule());
        // The record comes first: it is believed as soon as the token is there.
        let is_recorded = match listing.is_first {
            true => !crate::coherence::directories::is_unsure(mount) && records.first(dir, rule, mount.clock.boot_ns()),
            false => records.has(dir, rule),
        };
        let key = TokenKey::Listing(dir);
        let store = |cache: &mut TokenCache<Value>| {
            cache.store(mount.clock.boot_ns(), ask, key, wire_grant(listing.grant), Value::Listing)
        };
        let is_stored = is_recorded && store(&mut mount.coherence.tokens.cache.write());
        if listing.is_first && !is_stored {
            records.removed(dir);
        }
    }

    fn keep_view_of(&self, view: InodeView, grant: Option<TokenGrant>) -> (Attr, bool) {
        let mount = &self.question.mount;
        mount.coherence.unlinked.shown(&view.attr);
        if view.sharded {
            mount.coherence.shards.note(view.attr.ino);
            mount.coherence.new_directories.removed(view.attr.ino);
        }
        if let Some((directory, bare)) = self.asked {
            if view.attr.kind == Kind::Dir {
                crate::coherence::directories::shown(mount, directory, view.attr, view.sharded);
            }
            crate::coherence::bare::shown(mount, bare, &view);
        }
        let file = mount.files.get(view.attr.ino);
        let adopted = file.as_ref().map(|file| match self.changes == Some(view.attr.ino) {
            true => file.adopt_change(view, self.asked_at, self.asked_at),
            false => file.adopt(view, self.asked_at),
        });
        if let (Some(ask), Some(grant)) = (self.question.ask, grant) {
            let fits = adopted.as_ref().is_none_or(|a| a.current);
            let sure = file.as_ref().filter(|_| adopted.as_ref().is_some_and(|a| a.taken));
            if fits || sure.is_some() {
                store_view(mount, ask, view, grant, fits, sure);
            }
        }
        adopted.map_or((view.attr, true), |a| (a.attr, a.taken))
    }
}

/// Stores a view if `fits`, and notes that the size of `sure` is certain.
fn store_view(mount: &Mount, ask: Ask, view: InodeView, grant: TokenGrant, fits: bool, sure: Option<&Arc<Inode>>) {
    let now = mount.clock.boot_ns();
    let key = TokenKey::Attributes(view.attr.ino);
    let mut cache = mount.coherence.tokens.cache.write();
    if !cache.store(now, ask, key, wire_grant(grant), Value::View(Box::new(view))) {
        return;
    }
    if let Some(file) = sure {
        let end = cache.lend(now, key).map_or(0, |(_, left)| now + left);
        file.size.set_token_end(end);
    }
    if !fits {
        drop_value(&mut cache, key);
    }
}

/// Drops a value without returning the token, and makes grants in answers under way void.
fn drop_value(cache: &mut TokenCache<Value>, key: TokenKey) {
    let change = cache.changing(&[key]);
    cache.changed(change, None);
}

fn wire_grant(grant: TokenGrant) -> Grant {
    Grant { number: TokenNumber(grant.number), life_ns: u64::from(grant.life_ms) * 1_000_000 }
}

/// A message under way that requests tokens or changes keys. If this value is dropped without an answer, its change
/// counts as unfinished for a while.
struct Question {
    mount: Arc<Mount>,
    ask: Option<Ask>,
    change: Option<OwnChange>,
    /// Names that the request changes and that a front end still caches.
    names: Takes,
}

impl Question {
    /// A message without tokens, in sole mode. Names that a front end still caches from an earlier time of shared mode
    /// are invalidated all the same.
    fn alone(mount: &Arc<Mount>, keys: &[TokenKey]) -> Question {
        Question { mount: mount.clone(), ask: None, change: None, names: lent_names::to_take(mount, keys) }
    }

    fn new(mount: &Arc<Mount>, keys: &[TokenKey]) -> Question {
        let uses = mount.coherence.sharing.uses_tokens();
        let mut cache = mount.coherence.tokens.cache.write();
        let change = (!keys.is_empty()).then(|| {
            keys.iter().for_each(|key| unsure(mount, *key));
            cache.changing(keys)
        });
        let ask = uses.then(|| cache.ask(mount.clock.boot_ns()));
        drop(cache);
        take_back_soon(mount, inodes_of(keys));
        let names = lent_names::to_take(mount, keys);
        Question { mount: mount.clone(), ask, change, names }
    }

    /// The future has to be awaited before the message is sent, because a renamed entry would keep its timeout in the
    /// front end.
    async fn take_names_back(&mut self) {
        lent_names::take_back(&self.mount, std::mem::take(&mut self.names)).await;
    }

    /// Called when the answer has arrived. Changes with numbers up to this one were made before the answer.
    fn ends(&mut self, number: Option<u64>) {
        if let Some(change) = self.change.take() {
            self.mount.coherence.tokens.cache.write().changed(change, number.map(TokenNumber));
        }
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        if let Some(change) = self.change.take() {
            let due = self.mount.clock.boot_ns().saturating_add(OPEN_END_NS);
            self.mount.coherence.tokens.open_ended.lock().push((due, change));
        }
        if let Some(ask) = self.ask.take() {
            self.mount.coherence.tokens.cache.write().answered(ask);
        }
    }
}

/// Invalidates attributes in a front end. Returns the inodes that an answer on its way may make known to the front end.
fn take_back(mount: &Mount, inodes: impl IntoIterator<Item = Ino>) -> Vec<Unknown> {
    let front = mount.coherence.sharing.pages();
    let forget = |ino| front.as_ref().is_none_or(|front| front.drop_attributes(ino));
    mount.coherence.tokens.lent.take_back(mount.clock.boot_ns(), inodes, forget)
}

/// Works as `take_back`, but handles answers on their way in the background.
fn take_back_soon(mount: &Arc<Mount>, inodes: impl IntoIterator<Item = Ino>) {
    let unknown = take_back(mount, inodes);
    if !unknown.is_empty() {
        let mount2 = mount.clone();
        mount.spawn(async move { settle(&mount2, unknown).await });
    }
}

/// Waits until every answer that was on its way has reached the front end, and invalidates it.
async fn settle(mount: &Arc<Mount>, mut unknown: Vec<Unknown>) {
    while let Some(front) = mount.coherence.sharing.pages() {
        unknown.retain(|one| one.is_awaited(mount.clock.boot_ns(), |ino| front.drop_attributes(ino)));
        if unknown.is_empty() {
            return;
        }
        mount.life.pauses.pause(LOOK_NS).await;
    }
}

fn inodes_of(keys: &[TokenKey]) -> impl Iterator<Item = Ino> {
    keys.iter().filter_map(|key| if let TokenKey::Attributes(ino) = key { Some(*ino) } else { None })
}

/// Makes the size of a file uncertain. This has to be called under the cache's lock.
fn unsure(mount: &Mount, key: TokenKey) {
    if let TokenKey::Attributes(ino) = key
        && let Some(file) = mount.files.get(ino)
    {
        file.size.set_token_end(0);
    }
}

/// This mount has changed the file in a way that its cached attributes do not show. The size in these attributes stays
/// certain.
pub(crate) fn outdated(mount: &Arc<Mount>, ino: Ino) {
    if !mount.coherence.sharing.is_alone() {
        let key = TokenKey::Attributes(ino);
        drop_value(&mut mount.coherence.tokens.cache.write(), key);
        take_back_soon(mount, [ino]);
    }
}

/// `Push::Revoke`: drops the values whose tokens are revoked, and answers, in one step.
pub(crate) fn revoke(mount: &Arc<Mount>, target: TargetId, id: u64, upto: u64, keys: Vec<TokenKey>) {
    mount.stats.count(Count::TokenRevoke);
    if !mount.coherence.tokens.answering.lock().insert((target, id)) {
        return;
    }
    let (inodes, names) = {
        let mut cache = mount.coherence.tokens.cache.write();
        keys.iter().for_each(|key| unsure(mount, *key));
        let (session, id, upto) = (SessionId(0), RevokeId(id), TokenNumber(upto));
        let inodes: Vec<Ino> = inodes_of(&keys).collect();
        let revoke = Revoke { session, id, upto, keys };
        cache.revoke(&revoke);
        new_directories::revoked(mount, &revoke.keys);
        (inodes, lent_names::to_take(mount, &revoke.keys))
    };
    opened_ahead::revoked(mount, target, inodes.iter().copied());
    let unknown = take_back(mount, inodes);
    let answer = move |mount: &Arc<Mount>| {
        let op = Request::Revoked { ids: vec![id] };
        let sent = mount.send(Lane::Answer, target, &Cred::root(), op, None, 0);
        let mount2 = mount.clone();
        mount.spawn(async move {
            // If sending the answer failed, the server sends the revocation again.
            let _ = sent.await;
            mount2.coherence.tokens.answering.lock().remove(&(target, id));
        });
    };
    if unknown.is_empty() && names.is_empty() {
        return answer(mount);
    }
    let mount2 = mount.clone();
    mount.spawn(async move {
        lent_names::take_back(&mount2, names).await;
        settle(&mount2, unknown).await;
        answer(&mount2);
    });
}

/// Drops everything that is cached.
pub(crate) fn lose_all(mount: &Arc<Mount>) {
    let mut cache = mount.coherence.tokens.cache.write();
    cache.lose_all();
    mount.files.all().iter().for_each(|file| file.size.set_token_end(0));
    drop(cache);
    take_back_soon(mount, mount.coherence.tokens.lent.inodes());
    lent_names::take_all_back_soon(mount);
    crate::coherence::directories::lose(mount);
    crate::coherence::bare::lose(mount);
    new_directories::lose(mount);
    opened_ahead::lose(mount, None);
}

/// Drops the cached values of these targets, because their server has lost its record of the tokens. Returns when a
/// front end caches none of their names any more.
pub(crate) async fn lose(mount: &Arc<Mount>, targets: &[TargetId]) {
    mount.coherence.tokens.cache.write().lose(|key| targets.contains(&key.target()));
    let files = mount.files.all().into_iter().filter(|file| targets.contains(&file.ino.target()));
    files.for_each(|file| file.size.set_token_end(0));
    let lent = mount.coherence.tokens.lent.inodes().into_iter().filter(|ino| targets.contains(&ino.target()));
    take_back_soon(mount, lent);
    crate::coherence::directories::lose(mount);
    crate::coherence::bare::lose(mount);
    new_directories::lose(mount);
    opened_ahead::lose(mount, Some(targets));
    let names = lent_names::all_to_take(mount, |key| targets.contains(&key.target()));
    lent_names::take_back(mount, names).await;
}

/// Ends changes whose answers were lost long ago.
pub(crate) fn tick(mount: &Mount) {
    mount.coherence.tokens.lent.tick(mount.clock.boot_ns());
    mount.coherence.tokens.names.tick(mount.clock.boot_ns());
    let mut open_ended = mount.coherence.tokens.open_ended.lock();
    if open_ended.is_empty() {
        return;
    }
    let now = mount.clock.boot_ns();
    let mut cache = mount.coherence.tokens.cache.write();
    open_ended.retain(|(due, change)| {
        if *due <= now {
            cache.changed(*change, None);
        }
        *due > now
    });
}

/// The cached knowledge of a name.
pub(crate) enum Found {
    /// The complete answer to a lookup.
    Answer(Result<Attr>),
    /// The inode only: its attributes have to be requested.
    Inode(Ino),
}

/// Whether the record of the names in `dir` is complete, and the caller certainly may search the directory.
pub(super) fn knows_names(mount: &Mount, cred: &Cred, dir: Ino) -> bool {
    let Some(now) = usable_now(mount, dir.target()) else { return false };
    let cache = mount.coherence.tokens.cache.read();
    let may_search = || match cache.get(now, TokenKey::Attributes(dir)) {
        Some(Value::View(view)) => view.surely_allows(cred, 1),
        _ => false,
    };
    cache.get(now, TokenKey::Listing(dir)).is_some()
        && (cred.may(Caps::DAC_OVERRIDE) || cred.may(Caps::DAC_READ_SEARCH) || may_search())
}

/// The present time, if tokens of a target may be used now.
pub(super) fn usable_now(mount: &Mount, target: TargetId) -> Option<u64> {
    if mount.coherence.sharing.is_alone() {
        return None;
    }
    let now = mount.clock.boot_ns();
    mount.coherence.sharing.leases.in_touch(now, target).then_some(now)
}

/// Looks a name up in the cache, and checks the caller's permission to search.
pub(crate) fn find(mount: &Mount, cred: &Cred, dir: Ino, name: &[u8]) -> Option<Found> {
    let now = usable_now(mount, dir.target())?;
    let name = Name::new(name.to_vec()).ok()?;
    let cache = mount.coherence.tokens.cache.read();
    // A caller that may search everything needs no check of the directory.
    if !cred.may(Caps::DAC_OVERRIDE) && !cred.may(Caps::DAC_READ_SEARCH) {
        let Value::View(view) = cache.get(now, TokenKey::Attributes(dir))? else { return None };
        if !view.surely_allows(cred, 1) {
            // An access control list decides, or it is up to the server to refuse.
            return None;
        }
    }
    let ino = match cache.get(now, TokenKey::Name(dir, name.token_hash()))? {
        Value::Absent(cached) if *cached == name => {
            drop(cache);
            mount.stats.count(Count::LookupCached);
            return Some(Found::Answer(Err(Errno::NoEnt)));
        }
        Value::Present(cached, ino) if *cached == name => *ino,
        _ => return None,
    };
    let attr = cached_attr(mount, &cache, now, ino);
    drop(cache);
    mount.stats.count(Count::LookupCached);
    Some(attr.map_or(Found::Inode(ino), |attr| Found::Answer(Ok(attr))))
}

/// The attributes of an inode, from the cache of tokens.
pub(super) fn cached_attr(mount: &Mount, cache: &TokenCache<Value>, now: u64, ino: Ino) -> Option<Attr> {
    match cache.get(now, TokenKey::Attributes(ino)) {
        Some(Value::View(view)) if mount.coherence.sharing.leases.in_touch(now, ino.target()) => shown(mount, view),
        _ => None,
    }
}

/// The attributes of an inode: from the cache, or of a directory in sole mode.
pub(crate) fn attr(mount: &Mount, ino: Ino) -> Option<Attr> {
    if let Some(attr) = crate::coherence::directories::attr(mount, ino) {
        mount.stats.count(Count::GetAttrOwn);
        return Some(attr);
    }
    let now = usable_now(mount, ino.target())?;
    let attr = match mount.coherence.tokens.cache.read().get(now, TokenKey::Attributes(ino))? {
        Value::View(view) => shown(mount, view)?,
        _ => return None,
    };
    mount.stats.count(Count::GetAttrCached);
    Some(attr)
}

/// The timeout that attributes may get in a front end: the remaining life of the token, if the token shows exactly
/// these attributes. The timeout is recorded, and the front end is called to invalidate the attributes when the token
/// goes.
pub(crate) fn lend_attributes(mount: &Mount, attr: &Attr) -> Duration {
    let Some(now) = usable_now(mount, attr.ino.target()) else { return Duration::ZERO };
    // The lock is held until that is recorded, so a revocation of the token finds the record.
    let cache = mount.coherence.tokens.cache.read();
    match cache.lend(now, TokenKey::Attributes(attr.ino)) {
        Some((Value::View(view), left_ns)) if shown(mount, view) == Some(*attr) => {
            mount.coherence.tokens.lent.lend(now, attr.ino, left_ns)
        }
        _ => Duration::ZERO,
    }
}

/// Returns whether the attributes token of an inode is held now.
pub(crate) fn holds_attributes(mount: &Mount, ino: Ino) -> bool {
    view(mount, ino).is_some()
}

/// The inode as it was answered, while its attributes token is held.
pub(crate) fn view(mount: &Mount, ino: Ino) -> Option<InodeView> {
    let now = usable_now(mount, ino.target())?;
    match mount.coherence.tokens.cache.read().get(now, TokenKey::Attributes(ino)) {
        Some(Value::View(view)) => Some(**view),
        _ => None,
    }
}

/// Returns whether an inode is known to have no extended attributes.
pub(crate) fn lacks_xattrs(mount: &Mount, ino: Ino) -> bool {
    let Some(now) = usable_now(mount, ino.target()) else { return false };
    matches!(mount.coherence.tokens.cache.read().get(now, TokenKey::Attributes(ino)), Some(Value::View(view)) if !view.xattrs)
}

/// The attributes joined with this mount's own changes, unless its size belongs to another token, or the shards of a
/// directory have later values.
fn shown(mount: &Mount, view: &InodeView) -> Option<Attr> {
    if view.sharded {
        return None;
    }
    if view.attr.kind != Kind::File {
        return Some(view.attr);
    }
    match mount.files.get(view.attr.ino) {
        Some(file) => is_sure(mount, &file).then(|| file.overlay(view.attr, mount.coherence.sharing.is_alone())),
        None => Some(view.attr),
    }
}

/// Returns whether `Inode::size` is what the server would answer, joined with this mount's own changes. In sole mode
/// this is so once the size was requested, in shared mode as long as the attributes token is held.
#[inline]
pub(crate) fn is_sure(mount: &Mount, file: &Inode) -> bool {
    let rule = mount.coherence.sharing.rule();
    if rule & 1 == 1 { file.size.sure_rule.load(SeqCst) == rule } else { sure_until(mount, file) > 0 }
}

/// In shared mode: the end of the token under which the size is certain now, or 0. If a later call returns the same
/// number, the size was certain all the time.
pub(crate) fn sure_until(mount: &Mount, file: &Inode) -> u64 {
    let end = file.size.token_end_ns.load(SeqCst);
    if end == 0 {
        return 0;
    }
    let now = mount.clock.boot_ns();
    if now < end && mount.coherence.sharing.leases.in_touch(now, file.ino.target()) { end } else { 0 }
}
