//! `RequestCx`: one request while it is executed, with its session, its content and its target.
//!
//! Owns: putting the answer's slot record into the transaction of the operation. Does not own: the operation.

use crate::coherence::tokens::Changing;
use crate::counters::add;
use crate::records;
use crate::session::in_flight::InFlight;
use crate::session::reach::Tree;
use crate::session::slots::SlotRecord;
use crate::worker::Worker;
use crate::zone_target::Target;
use amphi_dlm::Changed;
use amphi_env::Env;
use amphi_types::item::Txn;
use amphi_types::{Cred, Errno, Ino, Name, ObjectId, Result, SessionId, Timespec, TokenKey};
use amphi_wire::{Access, Answer, DirectoryAfter, InodeView, ListingGrant, Reply, RequestId, Tokens};
use amphi_zone::{Lsn, Order};
use std::cell::Cell;
use std::rc::Rc;

/// Bytes that a slot record adds to a transaction, at most: the answer of a mutation is an inode at most.
pub const SLOT_BYTES: u64 = 512;

/// A request while it is executed.
pub struct RequestCx<E: Env> {
    /// The worker that executes the request.
    pub worker: Rc<Worker<E>>,
    /// The target that executes the request.
    pub target: Rc<Target<E>>,
    /// The session that made the request.
    pub session: SessionId,
    /// Identity of the request.
    pub id: RequestId,
    /// The user on whose behalf the request is executed.
    pub cred: Cred,
    /// The tree that the request may access. `None` means that it may access everything.
    pub tree: Option<Tree>,
    /// Inodes that the request names among others and that could not be read. It goes on without them.
    pub unread: Vec<Ino>,
    /// Wall-clock time at which the request started, used as the time stamp of its changes.
    pub now: Timespec,
    /// The part of the answer about tokens.
    pub tokens: Cell<Tokens>,
    /// The part of the answer about the directory of a changed name.
    pub directory: Cell<Option<DirectoryAfter>>,
}

impl<E: Env> RequestCx<E> {
    /// A request whose execution begins now.
    pub fn new(
        (worker, target): (&Rc<Worker<E>>, &Rc<Target<E>>),
        session: SessionId,
        id: RequestId,
        cred: Cred,
        tree: Option<Tree>,
    ) -> RequestCx<E> {
        let (worker, target, now) = (worker.clone(), target.clone(), worker.env.wall());
        let (tokens, directory) = (Cell::default(), Cell::default());
        RequestCx { worker, target, session, id, cred, tree, unread: Vec::new(), now, tokens, directory }
    }

    /// Adds to `txn` the record that the request was answered with `reply`, having opened `open`. Nothing is added if
    /// the session has ended meanwhile, or has given the request up and uses its slot for a later one, because the
    /// request will not be sent again.
    pub fn seal(&self, txn: &mut Txn, reply: &Reply, open: Option<(Ino, Access)>) {
        self.seal_answer(txn, Answer::of(Ok(reply.clone())), open);
    }

    /// Works as `seal`, if the request fails after it was sealed.
    pub fn seal_error(&self, txn: &mut Txn, e: Errno) {
        self.seal_answer(txn, Answer::of(Err(e)), None);
    }

    fn seal_answer(&self, txn: &mut Txn, answer: Answer, open: Option<(Ino, Access)>) {
        if !self.target.has_session(self.session) || !self.target.sessions.slots.borrow_mut().log(self.session, self.id)
        {
            return;
        }
        let record = SlotRecord { seq: self.id.seq, answer, open };
        txn.put_with(records::slot_key(self.session, self.id.slot), |out| records::encode_to(&record, out));
    }

    /// Seals and appends `txn`. Called in the same step in which the stores were changed, so that the order of the
    /// log is the order of the changes.
    pub fn append(&self, mut txn: Txn, order: Order, reply: &Reply, open: Option<(Ino, Access)>) -> Lsn {
        self.seal(&mut txn, reply, open);
        self.target.append(txn, order)
    }

    /// Waits until no mount caches `keys` of this target. Until the end of the change, no mount will cache them.
    pub async fn change(&self, keys: impl FnOnce() -> Vec<Changed>) -> Changing {
        let sent = || self.worker.send_revocations(&self.target);
        self.target.coherence.tokens.change(|| self.worker.now_ns(), self.session, keys, sent).await
    }

    /// A change of an inode's attributes that the client named.
    pub async fn change_attributes(&self, ino: Ino) -> Changing {
        self.change(|| vec![Changed::alone(TokenKey::Attributes(ino))]).await
    }

    /// Returns whether the session changes data of a file that it has not opened for writing, or has no longer open. In
    /// that case others may cache the file's attributes.
    pub fn is_unopened(&self, object: ObjectId) -> bool {
        self.target.coherence.tokens.on()
            && object.stripe == 0
            && !self.target.files.open.borrow().is_writer(self.session, object.ino)
    }

    /// A change of data that may concern an unopened file: no mount caches its attributes until the change ends.
    pub async fn change_unopened(&self, object: ObjectId) -> Option<Changing> {
        if !self.is_unopened(object) {
            return None;
        }
        Some(self.change(|| vec![Changed::alone(TokenKey::Attributes(object.ino)).unknown()]).await)
    }

    /// The change has just been applied, and the answer will report it.
    pub fn changed(&self, changing: &mut Changing) {
        let changed = changing.end();
        self.tokens.set(Tokens { changed, ..self.tokens.get() });
    }

    /// Grants the name that the answer contains, in the step that reads it.
    pub fn grant_name(&self, dir: Ino, name: &Name) {
        if !self.target.coherence.tokens.on() {
            return;
        }
        let name = self.target.grant_name(self.worker.now_ns(), self.session, dir, name);
        self.tokens.set(Tokens { name, ..self.tokens.get() });
        self.worker.send_revocations(&self.target);
    }

    /// Grants the attributes that the answer shows, if they are this target's, in the step that reads them.
    pub fn grant_attributes(&self, view: &InodeView) {
        if !self.target.coherence.tokens.on() {
            return;
        }
        let here = view.attr.ino.target() == self.target.id;
        let grant = || self.target.grant_attributes(self.worker.now_ns(), self.session, view);
        self.granted_attributes(if here { grant() } else { None });
        self.worker.send_revocations(&self.target);
    }

    /// Adds the attributes of a directory of this target to the answer, in the step that changes it by the record at
    /// `place`. In shared mode this is done only with a token, without which the client could not use them. It is not
    /// done for a directory that others change too, because each change would revoke the token from the others.
    /// `made`: the change has made a name.
    pub fn show_directory(&self, dir: Ino, place: Lsn, made: bool) {
        let shared =
            self.target.coherence.tokens.on() && self.target.coherence.tokens.is_shared(self.worker.now_ns(), dir);
        if shared {
            return;
        }
        let (inode, is_first) = {
            let meta = self.target.meta.borrow();
            let Ok(inode) = meta.inode(dir) else { return };
            (self.target.view_of(&meta, dir, &inode), made && inode.dir.entries == 1)
        };
        let now_ns = self.worker.now_ns();
        let token = self.target.grant_attributes(now_ns, self.session, &inode);
        let grant = self.target.grant_listing(now_ns, self.session, dir, is_first);
        let listing = grant.map(|grant| ListingGrant { grant, is_first });
        self.worker.send_revocations(&self.target);
        if token.is_some() || !self.target.coherence.tokens.on() {
            add(&self.worker.counters.directories_shown, 1);
            self.directory.set(Some(DirectoryAfter { inode, place: place.0, token, listing }));
        }
    }

    /// Another target has granted tokens for attributes that the answer shows.
    pub fn granted_attributes(&self, attributes: Option<amphi_wire::TokenGrant>) {
        self.tokens.set(Tokens { attributes, ..self.tokens.get() });
    }

    /// The last check before a change of file data: a session that has ended changes nothing. Until the returned value
    /// is dropped, the session's locks stay even if it ends.
    pub fn land(&self) -> Result<InFlight> {
        self.alive()?;
        Ok(self.target.queues.in_flight.start(self.session))
    }

    /// Fails once the session has ended: to be called after the last wait before anything is stored for it.
    pub fn alive(&self) -> Result<()> {
        if self.target.has_session(self.session) { Ok(()) } else { Err(Errno::Io) }
    }

    /// Whether an inode is needed that cannot be read.
    ///
    /// Errors: `Io`.
    pub fn check_read(&self, ino: Ino) -> Result<()> {
        if self.unread.contains(&ino) { Err(Errno::Io) } else { Ok(()) }
    }

    /// Appends the change and ends it, then waits until the record is written.
    pub async fn commit_change(&self, txn: Txn, reply: Reply, changing: &mut Changing) -> Result<Reply> {
        let lsn = self.append(txn, Order::Plain, &reply, None);
        self.changed(changing);
        self.target.zone.kept(lsn).await?;
        Ok(reply)
    }

    /// Waits for space in the log for an operation that adds about `growth` bytes of items. An operation that adds no
    /// items is not refused on a full target (Promise S15), because only one slot record of it exists at a time.
    pub async fn reserve(&self, growth: u64) -> Result<()> {
        self.target.zone.reserve(if growth == 0 { 0 } else { growth + SLOT_BYTES }).await
    }
}
