//! Clients with keys, one file for each subject. This file has what these tests share.

mod audit;
mod faults;
mod registry;
mod requests;
mod roles;
mod sessions;
mod squash;
mod subtree;

use super::*;
use amphi_transport::Identity;
use amphi_types::{ByteRange, SetAttr};
use amphi_wire::keys::{
    AddressRange, Fingerprint, IdRange, KeyChange, KeyEntry, KeyRegistry, KeyRole, KeySettings, NOBODY, Squash,
    SquashTo,
};
use amphi_wire::{LockExtent, LockMode, XattrMode};

/// The identity whose number all these tests use.
pub(super) fn identity(n: u8) -> Identity {
    Identity::new([n; 32])
}

/// An entry for the key of `identity(n)`.
pub(super) fn entry(name: &str, n: u8, role: KeyRole) -> KeyEntry {
    KeyEntry {
        name: name.into(),
        fingerprint: identity(n).fingerprint(),
        next: None,
        role,
        read_only: false,
        squash: Squash::default(),
        addresses: Vec::new(),
        sessions_max: 0,
        id: 0,
        subtree: None,
    }
}

impl Place {
    /// A client that proves the key of `identity(n)`.
    pub(super) async fn keyed(&self, session: u64, role: Role, n: u8) -> std::io::Result<Client> {
        let config = LinkConfig {
            addrs: vec![ADDR.into()],
            session: SessionId(session),
            role,
            name: format!("keyed:{session}"),
            key: None,
            identity: Some(identity(n)),
            secure: amphi_transport::Secure::Off,
            timeouts: Timeouts::default(),
        };
        let held = Rc::<Held>::default();
        held.mortal.set(true);
        let env = self.sim.node("client");
        *held.env.borrow_mut() = Some(env.clone());
        let link = Link::connect(env, config, held.clone()).await?;
        *held.link.borrow_mut() = Rc::downgrade(&link);
        Ok(Client { link, held, cred: RefCell::new(Cred::root()), opens: Cell::new(false) })
    }
}

impl Client {
    /// Changes the registry.
    pub(super) async fn keys(&self, change: KeyChange) -> std::result::Result<KeyRegistry, String> {
        match self.call(Request::Keys { change: Some(change) }).await.expect("an administrator") {
            Reply::Keys(registry) => Ok(*registry),
            Reply::Refused(why) => Err(why),
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn add(&self, entry: KeyEntry) {
        self.keys(KeyChange::Add(entry)).await.expect("added");
    }

    pub(super) async fn chmod(&self, ino: Ino, perm: u16) {
        let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
        self.inode(Request::SetAttr { ino, set }).await.expect("the owner changes it");
    }
}

pub(super) fn why<T>(result: std::io::Result<T>) -> String {
    result.err().expect("refused").to_string()
}
