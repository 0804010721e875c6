//! Who may do what at a server.
//!
//! Owns: which clients are let in as what, whose session a session is, and on whose behalf a client may ask. Does not
//! own: how it is known who a client is (`amphi_transport`: this process, the cluster key, the kernel's word on a Unix
//! socket), permissions of files.
//!
//! A client is *bound* or it is not. One that is not speaks for everybody: it runs as root or as the user who serves,
//! or it knows the cluster key, and so do mounts of root. One that is bound is another user of this machine, who was
//! let connect to a Unix socket. It is a mount, or it looks around, sees no sessions but its own, and changes nothing
//! of the server; what it asks, it asks as itself: with its user, and of the groups that a request names with those
//! that it has. Requests of a mount's own, that name the super-user (locks, write-back, what it has open), go as that
//! user as well.

use super::entry::Entry;
use super::gate::changes_servers;
use amphi_transport::{Incoming, Peer};
use amphi_types::{Caps, Cred, Errno, Result};
use amphi_wire::keys::KeyEntry;
use amphi_wire::{Call, Hello, Push, Role};

/// Why a bound client is no server.
const NOT_TRUSTED: &str = "a server has to be root's, or that of the user whom this server runs as";

/// Whose a session is: nobody else takes it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// Not known since this server was started: whoever knows its number, which is random and told to nobody.
    Unknown,
    /// A client that speaks for everybody.
    Anybody,
    /// A bound one of this user.
    User(u32),
    /// One that came with the key that has this number (`KeyEntry::id`), or its successor.
    Key(u64),
}

impl Owner {
    /// Of a client, by its key if it came with one, else by what the kernel says.
    pub(super) fn of(peer: &Peer, key: Option<&KeyEntry>) -> Owner {
        match (key, &peer.bound) {
            (Some(key), _) => Owner::Key(key.id),
            (None, Some(cred)) => Owner::User(cred.uid),
            (None, None) => Owner::Anybody,
        }
    }

    fn may_be(self, comes: Owner) -> bool {
        match (self, comes) {
            (Owner::Unknown, _) => true,
            (Owner::Key(_), _) | (_, Owner::Key(_) | Owner::User(_)) => self == comes,
            (_, Owner::Anybody | Owner::Unknown) => true,
        }
    }
}

/// Whether a client may come in as what it says, and under this session.
///
/// Errors: why not.
pub(super) fn may_come(
    hello: &Hello,
    peer: &Peer,
    comes: Owner,
    session: Option<&Entry>,
) -> std::result::Result<(), String> {
    // A user of this machine who holds a server's key is a server.
    if hello.role == Role::Server && peer.bound.is_some() && !matches!(comes, Owner::Key(_)) {
        return Err(NOT_TRUSTED.into());
    }
    match session {
        Some(entry) if !entry.owner.may_be(comes) => Err("this session is another user's".into()),
        Some(_) if hello.role == Role::Server => Err("this session is a client's".into()),
        _ => Ok(()),
    }
}

/// For whom the state of a server is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Viewer {
    /// Somebody who may see all sessions.
    Anybody,
    /// Whose sessions these are alone.
    Only(Owner),
}

impl Viewer {
    /// Whether it may be told of a session.
    pub(super) fn may_see(self, session: &Entry) -> bool {
        match self {
            Viewer::Anybody => true,
            Viewer::Only(owner) => session.owner == owner,
        }
    }
}

/// What is said to a client: a bound one does not learn names that it may not be allowed to see.
pub(super) fn as_told(owner: Owner, push: Push) -> Push {
    match push {
        Push::DirectoryChanged { target, id, ino, .. } if owner != Owner::Anybody => {
            Push::DirectoryChanged { target, id, ino, place: None }
        }
        push => push,
    }
}

/// Whether a client may ask this; then `call` says on whose behalf it counts.
///
/// Errors: `Perm`.
pub(super) fn may_ask(incoming: &mut Incoming) -> Result<()> {
    let call = &mut incoming.call;
    match &incoming.bound {
        // A mount says who asks it.
        None if incoming.role == Role::Mount && changes_servers(&call.op) && call.cred.uid != 0 => Err(Errno::Perm),
        None => Ok(()),
        Some(_) if changes_servers(&call.op) => Err(Errno::Perm),
        Some(bound) => act_as(bound, call),
    }
}

/// Of a client with a key: on a Unix socket it asks as its user as well, before its key counts.
///
/// Errors: `Perm`.
pub(super) fn act_as_bound(incoming: &mut Incoming) -> Result<()> {
    match &incoming.bound {
        Some(bound) if incoming.role == Role::Mount => act_as(bound, &mut incoming.call),
        _ => Ok(()),
    }
}

fn act_as(bound: &Cred, call: &mut Call) -> Result<()> {
    let said = &mut call.cred;
    if said.uid == 0 {
        *said = bound.clone();
        return Ok(());
    }
    if said.uid != bound.uid {
        return Err(Errno::Perm);
    }
    // Whose word nobody else has to take has no rights beyond those of the user.
    said.caps = Caps::NONE;
    if !bound.in_group(said.gid) {
        said.gid = bound.gid;
    }
    said.groups.retain(|group| bound.in_group(*group));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use amphi_types::TargetId;
    use amphi_wire::Request;

    fn cred(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        Cred::new(uid, gid, groups.to_vec())
    }

    /// Goal: a bound client acts as its user, with groups that it has, whatever it says. Method: a table of what it
    /// says and what counts.
    #[test]
    fn bound_clients_act_as_themselves() {
        let bound = cred(5, 50, &[51, 52]);
        for (said, counts) in [
            (cred(5, 50, &[]), Ok(cred(5, 50, &[]))),
            (cred(5, 51, &[50, 52]), Ok(cred(5, 51, &[50, 52]))),
            (cred(5, 0, &[0, 51, 99]), Ok(cred(5, 50, &[51]))),
            (Cred::root(), Ok(bound.clone())),
            (Cred { caps: Caps::ALL, ..bound.clone() }, Ok(bound.clone())),
            (cred(6, 50, &[]), Err(Errno::Perm)),
        ] {
            let mut call = Call { target: TargetId(0), cred: said, op: Request::Sync { file: None } };
            assert_eq!(act_as(&bound, &mut call).map(|()| call.cred), counts);
        }
    }
}
