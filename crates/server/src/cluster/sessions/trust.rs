//! The clients that may connect to a server, and the requests that each of them may send.
//!
//! Owns: the clients that are admitted in each role, the user to whom a session belongs, and the users on whose behalf
//! a client may send requests. Does not own: how a client is identified (`amphi_transport`: this process, the cluster
//! key, the kernel's credentials on a Unix socket), permissions of files.
//!
//! A client is either *bound* or not. A client that is not bound to a user can act for every user: it runs as root or
//! as the user who runs the server, or it knows the cluster key. Mounts of root are such clients. A bound client is
//! another user of this machine, who was permitted to connect to a Unix socket. Such a client is a mount, or it reads
//! the server's status. It sees no sessions except its own, and changes nothing of the server. Its requests are
//! executed as this user, with those groups named in a request to which the user really belongs. Requests for the
//! mount's own purposes, which name root (locks, write-back, its open files), are executed as that user as well.

use super::entry::Entry;
use super::gate::changes_servers;
use amphi_transport::{Incoming, Peer};
use amphi_types::{Caps, Cred, Errno, Result};
use amphi_wire::keys::KeyEntry;
use amphi_wire::{Call, Hello, Push, Role};

/// The reason why a bound client is no server.
const NOT_TRUSTED: &str = "a server has to be root's, or that of the user whom this server runs as";

/// The owner of a session: no other client can take the session over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The owner is not known since this server was started. A client that knows the session's number, which is random
    /// and secret, may use the session.
    Unknown,
    /// A client that acts for all users.
    Anybody,
    /// A client that acts for this user only.
    User(u32),
    /// A session of a client with the key of this number (`KeyEntry::id`), or with its successor.
    Key(u64),
}

impl Owner {
    /// The owner of a client's sessions: its key if it has one, otherwise the user in the kernel's credentials.
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

/// Returns whether a client may connect in the role that it claims, and for this session.
///
/// Errors: the reason why the client may not connect.
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

/// The client that asks for the state of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Viewer {
    /// A client that may see all sessions.
    Anybody,
    /// The only owner of these sessions.
    Only(Owner),
}

impl Viewer {
    /// Returns whether the viewer may see a session.
    pub(super) fn may_see(self, session: &Entry) -> bool {
        match self {
            Viewer::Anybody => true,
            Viewer::Only(owner) => session.owner == owner,
        }
    }
}

/// The message as a client may see it: a bound client does not learn names that it may not be allowed to see.
pub(super) fn as_told(owner: Owner, push: Push) -> Push {
    match push {
        Push::DirectoryChanged { target, id, ino, .. } if owner != Owner::Anybody => {
            Push::DirectoryChanged { target, id, ino, place: None }
        }
        push => push,
    }
}

/// Returns whether a client may send this request. If so, `call` gets the credentials with which it is executed.
///
/// Errors: `Perm`.
pub(super) fn may_ask(incoming: &mut Incoming) -> Result<()> {
    let call = &mut incoming.call;
    match &incoming.bound {
        // A mount names the calling user in the request.
        None if incoming.role == Role::Mount && changes_servers(&call.op) && call.cred.uid != 0 => Err(Errno::Perm),
        None => Ok(()),
        Some(_) if changes_servers(&call.op) => Err(Errno::Perm),
        Some(bound) => act_as(bound, call),
    }
}

/// For a client with a key: on a Unix socket its requests are also executed as its user, before the rules of its key
/// are applied.
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
    // A client whose claims other clients need not trust has no rights beyond those of its user.
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

    /// Goal: a bound client acts as its user, with groups that the user has, whatever it claims. Method: a table of
    /// claims and results.
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
