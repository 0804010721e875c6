//! Names and attributes cached under tokens of the server (docs/locking/tokens.md).
//!
//! Owns: the cache's use: asks, grants, own changes, revocations, look-ups served without a message. Does not own: the
//! rules (`dlm`), when tokens are used at all (`sharing`).
//!
//! One cache for all targets: the answer to a look-up may bring grants of two. Invariants: `FileSize::token_end_ns` is
//! not 0 only while the attributes token of the file is held and `Inode::size` is what it shows, changed under the
//! cache's lock; a value is stored only if no change of this mount's own came between question and answer. A hit takes
//! the lock shared and allocates nothing but the copy.

use crate::coherence::lease;
use crate::coherence::lent_names;
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
use amphi_wire::{InodeView, Lane, Reply, Request, TokenGrant, Tokens as Grants};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Keys that a change of a name in `dir` names to the directory's target.
pub(crate) fn name_keys(dir: Ino, name: &Name) -> [TokenKey; 3] {
    [TokenKey::Name(dir, name.token_hash()), TokenKey::Listing(dir), TokenKey::Attributes(dir)]
}

/// Calls with a message that may bring tokens or change what `keys` show.
pub(crate) async fn call(
    mount: &Arc<Mount>,
    target: TargetId,
    cred: &Cred,
    op: Request,
    keys: &[TokenKey],
) -> Result<Told> {
    // Without it none of the tokens that the answer brings could be used, nor those of the answers after it: a mount
    // that was alone for a while, or stopped, has not heard its servers.
    if let Err(e) = lease::touch_target(mount, target).await {
        tracing::debug!(%target, "the server does not say that it is there: {e}");
    }
    call_on(Lane::Normal, mount, target, cred, op, keys).await
}

/// Says that a file is about to have data on further targets; on the lane of write-back.
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
    Ok(told)
}

/// An answer, and what it lets the client cache.
pub(crate) struct Told {
    pub(crate) result: Result<Reply>,
    grants: Grants,
    payload: Option<Buf>,
    /// What it says of the object of the request, and of those of a batch.
    pub(crate) contended: bool,
    pub(crate) contended_places: Vec<usize>,
    /// When it was asked for.
    pub(crate) asked_at: AskedAt,
    /// The inode that it has changed and shows.
    changes: Option<Ino>,
    /// When it was asked for, for directories and for inodes without attributes; none in company.
    asked: Option<(crate::coherence::directories::Asked, crate::coherence::bare::Asked)>,
    question: Question,
    _begun: Option<crate::coherence::sharing::Begun>,
}

impl Told {
    /// The outcome, once.
    pub(crate) fn take(&mut self) -> Result<Reply> {
        std::mem::replace(&mut self.result, Ok(Reply::Done))
    }

    /// The bytes that came with it, once.
    pub(crate) fn take_payload(&mut self) -> Option<Buf> {
        self.payload.take()
    }

    /// The name is there, or is not.
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

    /// Takes the inode that the answer shows. Returns its attributes with what only this client knows laid over them.
    pub(crate) fn keep_view(&self, view: InodeView) -> Attr {
        self.keep_view_of(view, self.grants.attributes).0
    }

    /// Whether the reply gives the right to cache the attributes that it shows: then they are all that there is to
    /// know.
    pub(crate) fn grants_attributes(&self) -> bool {
        self.grants.attributes.is_some()
    }

    /// As `keep_view`, and whether the size is true: no change of this client's own came between question and answer.
    pub(crate) fn keep_size(&self, view: InodeView) -> (Attr, bool) {
        self.keep_view_of(view, self.grants.attributes)
    }

    /// The same for one of several entries.
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

    fn keep_view_of(&self, view: InodeView, grant: Option<TokenGrant>) -> (Attr, bool) {
        let mount = &self.question.mount;
        mount.coherence.unlinked.shown(&view.attr);
        if let Some((directory, bare)) = self.asked {
            if view.attr.kind == Kind::Dir {
                crate::coherence::directories::shown(mount, directory, view.attr);
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

/// Stores a view, if `fits`, and notes that the size of `sure` is certain.
fn store_view(mount: &Mount, ask: Ask, view: InodeView, grant: TokenGrant, fits: bool, sure: Option<&Arc<Inode>>) {
    let now = mount.clock.boot_ns();
    let key = TokenKey::Attributes(view.attr.ino);
    let mut cache = mount.coherence.tokens.cache.write();
    if !cache.store(now, ask, key, wire_grant(grant), Value::View(Box::new(view))) {
        return;
    }
    if let Some(file) = sure {
        let end = cache.lend(now, key).map_or(0, |(_, left)| now + left);
        file.size.token_end_ns.store(end, SeqCst);
    }
    if !fits {
        drop_value(&mut cache, key);
    }
}

/// Drops a value without giving the token back, and what older answers may bring.
fn drop_value(cache: &mut TokenCache<Value>, key: TokenKey) {
    let change = cache.changing(&[key]);
    cache.changed(change, None);
}

fn wire_grant(grant: TokenGrant) -> Grant {
    Grant { number: TokenNumber(grant.number), life_ns: u64::from(grant.life_ms) * 1_000_000 }
}

/// A message under way that asks for tokens or changes keys. Dropped without an answer, its change stays open for a
/// while.
struct Question {
    mount: Arc<Mount>,
    ask: Option<Ask>,
    change: Option<OwnChange>,
    /// Names that it changes, which a front end still has.
    names: Takes,
}

impl Question {
    /// Without tokens. What a front end still has of the time in company goes all the same.
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

    /// To be awaited before the question is sent: the front end would keep a name that it moves.
    async fn take_names_back(&mut self) {
        lent_names::take_back(&self.mount, std::mem::take(&mut self.names)).await;
    }

    /// The answer has come: changes up to this number are of before it.
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

/// Takes back what a front end keeps of attributes. What may be on its way there is left.
fn take_back(mount: &Mount, inodes: impl IntoIterator<Item = Ino>) -> Vec<Unknown> {
    let front = mount.coherence.sharing.pages();
    let forget = |ino| front.as_ref().is_none_or(|front| front.drop_attributes(ino));
    mount.coherence.tokens.lent.take_back(mount.clock.boot_ns(), inodes, forget)
}

/// As `take_back`, where nobody waits for what is on its way.
fn take_back_soon(mount: &Arc<Mount>, inodes: impl IntoIterator<Item = Ino>) {
    let unknown = take_back(mount, inodes);
    if !unknown.is_empty() {
        let mount2 = mount.clone();
        mount.spawn(async move { settle(&mount2, unknown).await });
    }
}

/// Waits until whatever was on its way to the front end is there, and taken back.
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

/// Takes the certainty of a size away; under the cache's lock.
fn unsure(mount: &Mount, key: TokenKey) {
    if let TokenKey::Attributes(ino) = key
        && let Some(file) = mount.files.get(ino)
    {
        file.size.token_end_ns.store(0, SeqCst);
    }
}

/// The file has been changed by this mount in a way that its cached attributes do not show; its size stays certain.
pub(crate) fn outdated(mount: &Arc<Mount>, ino: Ino) {
    if !mount.coherence.sharing.is_alone() {
        let key = TokenKey::Attributes(ino);
        drop_value(&mut mount.coherence.tokens.cache.write(), key);
        take_back_soon(mount, [ino]);
    }
}

/// `Push::Revoke`: takes it and answers, in one step.
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
        (inodes, lent_names::to_take(mount, &revoke.keys))
    };
    opened_ahead::revoked(mount, target, inodes.iter().copied());
    let unknown = take_back(mount, inodes);
    let answer = move |mount: &Arc<Mount>| {
        let op = Request::Revoked { ids: vec![id] };
        let sent = mount.send(Lane::Answer, target, &Cred::root(), op, None, 0);
        let mount2 = mount.clone();
        mount.spawn(async move {
            // Where it failed, the server asks again.
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

/// Nothing cached counts any more.
pub(crate) fn lose_all(mount: &Arc<Mount>) {
    let mut cache = mount.coherence.tokens.cache.write();
    cache.lose_all();
    mount.files.all().iter().for_each(|file| file.size.token_end_ns.store(0, SeqCst));
    drop(cache);
    take_back_soon(mount, mount.coherence.tokens.lent.inodes());
    lent_names::take_all_back_soon(mount);
    crate::coherence::directories::lose(mount);
    crate::coherence::bare::lose(mount);
    opened_ahead::lose(mount, None);
}

/// Nothing cached of these targets counts any more: their server has forgotten what it granted. Returns when a front
/// end has none of their names any more.
pub(crate) async fn lose(mount: &Arc<Mount>, targets: &[TargetId]) {
    mount.coherence.tokens.cache.write().lose(|key| targets.contains(&key.target()));
    let files = mount.files.all().into_iter().filter(|file| targets.contains(&file.ino.target()));
    files.for_each(|file| file.size.token_end_ns.store(0, SeqCst));
    let lent = mount.coherence.tokens.lent.inodes().into_iter().filter(|ino| targets.contains(&ino.target()));
    take_back_soon(mount, lent);
    crate::coherence::directories::lose(mount);
    crate::coherence::bare::lose(mount);
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

/// What is cached of a name.
pub(crate) enum Found {
    /// All that a look-up answers.
    Answer(Result<Attr>),
    /// The inode; its attributes have to be asked for.
    Inode(Ino),
}

/// The time, if tokens of a target may be used now.
pub(super) fn usable_now(mount: &Mount, target: TargetId) -> Option<u64> {
    if mount.coherence.sharing.is_alone() {
        return None;
    }
    let now = mount.clock.boot_ns();
    mount.coherence.sharing.leases.in_touch(now, target).then_some(now)
}

/// Looks a name up in the cache, with the caller's permission to search.
pub(crate) fn find(mount: &Mount, cred: &Cred, dir: Ino, name: &[u8]) -> Option<Found> {
    let now = usable_now(mount, dir.target())?;
    let name = Name::new(name.to_vec()).ok()?;
    let cache = mount.coherence.tokens.cache.read();
    // Who may search everything needs no look at the directory.
    if !cred.may(Caps::DAC_OVERRIDE) && !cred.may(Caps::DAC_READ_SEARCH) {
        let Value::View(view) = cache.get(now, TokenKey::Attributes(dir))? else { return None };
        if view.xattrs || !may_search(&view.attr, cred) {
            // An access list may say otherwise, or the refusal is the server's to give.
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

/// The attributes of an inode from the cache of tokens.
pub(super) fn cached_attr(mount: &Mount, cache: &TokenCache<Value>, now: u64, ino: Ino) -> Option<Attr> {
    match cache.get(now, TokenKey::Attributes(ino)) {
        Some(Value::View(view)) if mount.coherence.sharing.leases.in_touch(now, ino.target()) => shown(mount, view),
        _ => None,
    }
}

/// The attributes of an inode from the cache, or of a directory that this mount changed alone.
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

/// For how long a front end may keep attributes: as long as the token lasts that shows just these. It is noted, and the
/// front end is told when the token goes.
pub(crate) fn lend_attributes(mount: &Mount, attr: &Attr) -> Duration {
    let Some(now) = usable_now(mount, attr.ino.target()) else { return Duration::ZERO };
    // The lock is held until it is noted: whoever takes the token comes behind that.
    let cache = mount.coherence.tokens.cache.read();
    match cache.lend(now, TokenKey::Attributes(attr.ino)) {
        Some((Value::View(view), left_ns)) if shown(mount, view) == Some(*attr) => {
            mount.coherence.tokens.lent.lend(now, attr.ino, left_ns)
        }
        _ => Duration::ZERO,
    }
}

/// Whether the attributes token of an inode is held now.
pub(crate) fn holds_attributes(mount: &Mount, ino: Ino) -> bool {
    view(mount, ino).is_some()
}

/// What an inode is like, as long as its attributes token is held.
pub(crate) fn view(mount: &Mount, ino: Ino) -> Option<InodeView> {
    let now = usable_now(mount, ino.target())?;
    match mount.coherence.tokens.cache.read().get(now, TokenKey::Attributes(ino)) {
        Some(Value::View(view)) => Some(**view),
        _ => None,
    }
}

/// Whether an inode is known to have no extended attributes.
pub(crate) fn lacks_xattrs(mount: &Mount, ino: Ino) -> bool {
    let Some(now) = usable_now(mount, ino.target()) else { return false };
    matches!(mount.coherence.tokens.cache.read().get(now, TokenKey::Attributes(ino)), Some(Value::View(view)) if !view.xattrs)
}

/// The attributes with what only this client knows, unless its own size is of another token.
fn shown(mount: &Mount, view: &InodeView) -> Option<Attr> {
    if view.attr.kind != Kind::File {
        return Some(view.attr);
    }
    match mount.files.get(view.attr.ino) {
        Some(file) => is_sure(mount, &file).then(|| file.overlay(view.attr, mount.coherence.sharing.is_alone())),
        None => Some(view.attr),
    }
}

fn may_search(attr: &Attr, cred: &Cred) -> bool {
    cred.has_access(attr.kind, attr.perm, (attr.uid, attr.gid), 1)
}

/// Whether `Inode::size` is what the server would say with this mount's own changes: alone it is once it was asked for,
/// in company as long as the attributes token is held.
#[inline]
pub(crate) fn is_sure(mount: &Mount, file: &Inode) -> bool {
    let rule = mount.coherence.sharing.rule();
    if rule & 1 == 1 { file.size.sure_rule.load(SeqCst) == rule } else { sure_until(mount, file) > 0 }
}

/// In company: the end of the token under which the size is certain now, or 0. The same number later says that it was
/// certain all the time.
pub(crate) fn sure_until(mount: &Mount, file: &Inode) -> u64 {
    let end = file.size.token_end_ns.load(SeqCst);
    if end == 0 {
        return 0;
    }
    let now = mount.clock.boot_ns();
    if now < end && mount.coherence.sharing.leases.in_touch(now, file.ino.target()) { end } else { 0 }
}
