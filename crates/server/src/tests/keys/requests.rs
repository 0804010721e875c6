//! All existing requests, for tests that try each of them.

use super::*;
use amphi_types::{Account, AccountKind, Layout, Limits};
use amphi_wire::{BatchPart, Cover, FileLockFamily, FileLockOwner, ReadPart, ServerInfo};

/// One request of each kind about these inodes, with all of its fields set.
pub(super) fn every_request(dir: Ino, ino: Ino) -> Vec<Request> {
    let object = ObjectId { ino, stripe: 0 };
    let (range, mtime) = (ByteRange::new(0, 4096), Timespec::default());
    let owner = FileLockOwner { family: FileLockFamily::Posix, id: 1 };
    let lock = FileLockSpec { ino, owner, pid: 1, mode: LockMode::Read, range };
    let (name, access) = (name("n"), RW);
    let write = |server_lock| Request::Write {
        object,
        offset: 0,
        generation: 0,
        mtime,
        server_lock,
        kill_suidgid: false,
        checksums: Default::default(),
        cover: Cover::None,
    };
    let server = ServerInfo { id: 9, name: "evil".into(), addrs: vec!["tcp:evil:1".into()], targets: Vec::new() };
    vec![
        Request::Lookup { dir, name: name.clone() },
        Request::Parent { dir },
        Request::Shards { dir },
        Request::GetAttr { ino },
        Request::GetAttrNow { ino },
        Request::SetAttr { ino, set: SetAttr { perm: Some(0o777), ..SetAttr::default() } },
        Request::Make { dir, name: name.clone(), make: Make::Dir, perm: 0o777, umask: 0 },
        Request::MakeTmp { dir, perm: 0o600, umask: 0, open: access },
        Request::Link { ino, dir, name: name.clone() },
        Request::Unlink { dir, name: name.clone() },
        Request::RmDir { dir, name: name.clone() },
        Request::Rename {
            from: dir,
            from_name: name.clone(),
            to: dir,
            to_name: name.clone(),
            mode: RenameMode::Replace,
        },
        Request::ReadLink { ino },
        Request::ReadDir { dir, cookie: 0, max: 10, plus: true },
        Request::Open { ino, access, exec: false },
        Request::Close { ino, access, atime: Some(mtime) },
        Request::Discard { ino, opens: 1 },
        Request::GetXattr { ino, name: b"user.a".to_vec() },
        Request::ListXattr { ino },
        Request::SetXattr { ino, name: b"user.a".to_vec(), value: b"b".to_vec(), mode: XattrMode::Set },
        Request::RemoveXattr { ino, name: b"user.a".to_vec() },
        Request::SetLayout { ino, layout: Some(Layout::growing(1)), advice: None },
        Request::SetShards { ino, count: 0 },
        Request::StatFs,
        Request::Read { object, range, server_lock: true, advice: Default::default() },
        write(true),
        Request::Punch { object, range, generation: 0, mtime, server_lock: true },
        Request::Allocate { object, range, generation: 0, mtime, server_lock: true },
        Request::DataMap { object, offset: 0, runs_max: 9 },
        Request::Extents { object, offset: 0, extents_max: 9 },
        Request::Sync { file: Some(ino) },
        Request::Spread { ino },
        Request::LockEnqueue { object, mode: LockMode::Write, range, extent: LockExtent::Exact },
        Request::GroupLock { object, group: 1, wait: false, asked: None },
        Request::LockCancel { locks: vec![1] },
        Request::LockKept { locks: vec![1] },
        Request::GlimpseReply { id: 1, size: 1, mtime },
        Request::Represent { opens: vec![(ino, access)], locks: Vec::new() },
        Request::RepresentFor { opens: vec![(ino, access)], locks: Vec::new(), users: Box::default() },
        Request::Goodbye,
        Request::Status,
        Request::Tunables { pattern: "server.token_ms".into(), value: None },
        Request::Tunables { pattern: "server.token_ms".into(), value: Some("7".into()) },
        Request::Counters { reset: false },
        Request::Counters { reset: true },
        Request::Revoked { ids: vec![1] },
        Request::CompanyKnown { change: 0 },
        Request::Map,
        Request::Join { server, cluster: 0, new_targets: 1, epoch: 0 },
        Request::Ask { question: vec![1, 2, 3] },
        Request::FileLockSet { lock, number: 1, wait: false },
        Request::FileLockCancel { lock, number: 1 },
        Request::FileLockUnlock { ino, owner, range },
        Request::FileLockTest { lock, number: 1 },
        Request::RepresentFileLocks { locks: Vec::new(), converted: Vec::new() },
        Request::WriteBatch {
            parts: vec![BatchPart {
                object,
                offset: 0,
                len: 1,
                generation: 0,
                mtime,
                checksums: Default::default(),
                cover: Cover::None,
            }],
        },
        Request::CloseBatch { closes: vec![(ino, access, Some(mtime))] },
        Request::ReadBatch {
            dir,
            parts: vec![ReadPart { name, ino, data: false }],
            bytes_max: 10,
            ask_back: false,
            tokens: false,
        },
        Request::PagesLeft { ino },
        Request::PagesTaken { ino, left: 1 },
        Request::PagesRead { object, range, left: 1 },
        Request::PagesWrite { object, offset: 0, generation: 0, mtime, left: 1, checksums: Default::default() },
        Request::CompanyKept { change: 0 },
        Request::FileLockClosed { ino, id: 1 },
        Request::WriteFailedKnown { id: 1 },
        Request::Grant { give_back: None },
        Request::GroupWanted { object },
        Request::Keys { change: None },
        Request::Keys { change: Some(KeyChange::RequireIdentity(false)) },
        Request::Evict { who: "0000000000000001".into() },
        Request::DirectoryShown { id: 1 },
        Request::Charged { ino },
        Request::Account { account: TREE },
        Request::Accounts { after: None },
        Request::SetLimits { account: TREE, limits: Limits::default() },
        Request::NewProject,
    ]
}

/// The number of a tree that does not exist.
pub(super) const TREE: Account = Account { kind: AccountKind::Project, id: 4_000_000 };

/// Place of a request in the list of all.
fn variant(op: &Request) -> u8 {
    amphi_wire::handshake::proven_bytes(op)[0]
}

/// The name of `op`, for messages and lists.
pub(super) fn called(op: &Request) -> String {
    format!("{op:?}").chars().take_while(|c| c.is_alphanumeric()).collect()
}

/// Goal: the list above has every request. Method: the list has a request at each place, and none after the last.
#[test]
fn the_list_is_whole() {
    let all = every_request(Ino::ROOT, Ino::ROOT);
    let mut places: Vec<u8> = all.iter().map(variant).collect();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places, (0..places.len() as u8).collect::<Vec<u8>>());
    // The bytes behind it look like the beginning of the next request, followed by enough zeros.
    let mut behind = vec![0; 64];
    behind[0] = places.len() as u8;
    assert!(postcard::take_from_bytes::<Request>(&behind).is_err(), "a request is missing in the list");
}
