//! Tests of frames on the wire: round trips of every message, and bytes that are no valid frame.

use amphi_types::{
    ByteRange, Cred, Errno, FileFlags, Ino, Kind, Name, ObjectId, SessionId, SetAttr, TargetId, TimeSet, Timespec,
    limits,
};
use amphi_wire::frame::{EncodeError, FrameError, FrameKind, HEAD_BYTES, Head, Place};
use amphi_wire::handshake::*;
use amphi_wire::handshake::{IdentityProof, Signature};
use amphi_wire::keys::Fingerprint;
use amphi_wire::*;
use proptest::prelude::*;
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;

/// The decoding of received bytes.
fn receive<T: DeserializeOwned>(bytes: &[u8]) -> Result<(Head, T), Option<FrameError>> {
    let head_bytes: &[u8; HEAD_BYTES] = bytes.get(..HEAD_BYTES).and_then(|b| b.try_into().ok()).ok_or(None)?;
    let head = Head::parse(head_bytes)?;
    let body = bytes.get(HEAD_BYTES..HEAD_BYTES + head.body_len as usize).ok_or(None)?;
    Head::check(head_bytes, body)?;
    Ok((head, head.decode(body)?))
}

fn round_trip<T: Serialize + DeserializeOwned + PartialEq + Debug>(head: Head, body: &T) {
    let mut bytes = vec![0xee; 64 << 10];
    let len = head.encode(body, &mut bytes).expect("it fits");
    assert!(bytes[len..].iter().all(|&b| b == 0xee), "bytes beyond the frame were touched");
    let (came, again): (Head, T) = receive(&bytes[..len]).expect("a frame");
    assert_eq!(&again, body);
    assert_eq!(came, Head { body_len: (len - HEAD_BYTES) as u32, ..head });
}

fn name() -> Name {
    Name::new(vec![0xff, b'a', 0xc3]).unwrap()
}

fn time(sec: i64) -> Timespec {
    Timespec { sec, nsec: 999_999_999 }
}

fn object() -> ObjectId {
    ObjectId { ino: Ino(u64::MAX), stripe: u32::MAX }
}

fn requests() -> Vec<Request> {
    let (ino, dir, range) = (Ino(u64::MAX), Ino(1), ByteRange { start: 1, end: u64::MAX });
    let access = Access { read: true, write: false };
    let make = |make| Request::Make { dir, name: name(), make, perm: 0o7777, umask: 0 };
    let set = SetAttr {
        perm: Some(0o644),
        uid: Some(0),
        gid: None,
        size: Some(u64::MAX),
        atime: Some(TimeSet::Now),
        mtime: Some(TimeSet::At(time(-1))),
        ctime: Some(time(i64::MIN)),
        flags: Some(FileFlags::IMMUTABLE),
        project: Some(7),
        kill_suidgid: true,
        open_for_write: true,
    };
    let (object, mtime) = (object(), time(i64::MAX));
    vec![
        Request::Lookup { dir, name: name() },
        Request::Parent { dir },
        Request::Shards { dir },
        Request::SetShards { ino, count: u16::MAX },
        Request::GetAttr { ino },
        Request::GetAttrNow { ino },
        Request::SetAttr { ino, set },
        make(Make::File { open: Some(access), exclusive: true }),
        make(Make::Dir),
        make(Make::Symlink(b"a/\xff".to_vec())),
        make(Make::Node { kind: Kind::CharDev, rdev: u32::MAX }),
        Request::MakeTmp { dir, perm: 1, umask: 0, open: access },
        Request::Link { ino, dir, name: name() },
        Request::Unlink { dir, name: name() },
        Request::RmDir { dir, name: name() },
        Request::Rename { from: dir, from_name: name(), to: ino, to_name: name(), mode: RenameMode::Exchange },
        Request::ReadLink { ino },
        Request::ReadDir { dir, cookie: u64::MAX, max: 1, plus: true },
        Request::Open { ino, access, exec: true },
        Request::Close { ino, access, atime: Some(Timespec { sec: -1, nsec: 5 }) },
        Request::GetXattr { ino, name: b"user.a".to_vec() },
        Request::ListXattr { ino },
        Request::SetXattr { ino, name: vec![], value: vec![0; 3000], mode: XattrMode::Replace },
        Request::RemoveXattr { ino, name: vec![1] },
        Request::FileLockSet { lock: file_lock(FileLockFamily::Posix), number: u64::MAX, wait: true },
        Request::FileLockCancel { lock: file_lock(FileLockFamily::Flock), number: 1 },
        Request::FileLockUnlock { ino, owner: file_lock(FileLockFamily::OpenFile).owner, range },
        Request::FileLockTest { lock: file_lock(FileLockFamily::Posix), number: 0 },
        Request::RepresentFileLocks {
            locks: vec![file_lock(FileLockFamily::Flock); 300],
            converted: vec![file_lock(FileLockFamily::Posix)],
        },
        Request::SetLayout { ino, layout: None, advice: None },
        Request::Grant { give_back: None },
        Request::Grant { give_back: Some(u64::MAX) },
        Request::StatFs,
        Request::Read { object, range, server_lock: true, advice: ReadAdvice::Once },
        Request::Write {
            object,
            offset: 1,
            generation: u64::MAX,
            mtime,
            server_lock: false,
            kill_suidgid: true,
            checksums: Default::default(),
            cover: Default::default(),
        },
        Request::WriteBatch {
            parts: vec![
                BatchPart {
                    object,
                    offset: u64::MAX,
                    len: u32::MAX,
                    generation: 1,
                    mtime,
                    checksums: Default::default(),
                    cover: Default::default()
                };
                BATCH_PARTS_MAX
            ],
        },
        Request::ReadBatch {
            dir: ino,
            parts: vec![ReadPart { name: name(), ino, data: true }; BATCH_PARTS_MAX],
            bytes_max: u32::MAX,
            ask_back: true,
            tokens: false,
        },
        Request::CloseBatch { closes: vec![(ino, access, Some(mtime)), (ino, access, None)] },
        Request::Punch { object, range, generation: 1, mtime, server_lock: true },
        Request::Allocate { object, range, generation: 1, mtime, server_lock: true },
        Request::DataMap { object, offset: u64::MAX, runs_max: u32::MAX },
        Request::Extents { object, offset: u64::MAX, extents_max: u32::MAX },
        Request::PagesLeft { ino },
        Request::PagesTaken { ino, left: u64::MAX },
        Request::PagesRead { object, range, left: u64::MAX },
        Request::PagesWrite {
            object,
            offset: u64::MAX,
            generation: 1,
            mtime,
            left: u64::MAX,
            checksums: Default::default(),
        },
        Request::Sync { file: None },
        Request::Sync { file: Some(ino) },
        Request::Spread { ino },
        Request::LockEnqueue { object, mode: LockMode::Write, range, extent: LockExtent::Grown },
        Request::LockCancel { locks: vec![0, u64::MAX] },
        Request::GlimpseReply { id: 1, size: 2, mtime },
        Request::Represent {
            opens: vec![(ino, access)],
            locks: vec![HeldLock { object, mode: LockMode::Read, range, group: None }],
        },
        Request::Goodbye,
        Request::Status,
        Request::Tunables { pattern: "a*".into(), value: Some("1".into()) },
        Request::Counters { reset: true },
        Request::FileLockClosed { ino: Ino(u64::MAX), id: u64::MAX },
        Request::WriteFailedKnown { id: u64::MAX },
    ]
}

fn file_lock(family: FileLockFamily) -> FileLockSpec {
    let (owner, range) = (FileLockOwner { family, id: u64::MAX }, ByteRange { start: 1, end: u64::MAX });
    FileLockSpec { ino: Ino(u64::MAX), owner, pid: u32::MAX, mode: LockMode::Write, range }
}

fn replies() -> Vec<Reply> {
    vec![
        Reply::Done,
        Reply::FileLock(true),
        Reply::FileLockFound(None),
        Reply::FileLockFound(Some(file_lock(FileLockFamily::OpenFile))),
        Reply::FileLocksLost(vec![0, u32::MAX]),
        Reply::Ino(Ino(7)),
        Reply::Shards(vec![Ino(7), Ino(u64::MAX)]),
        Reply::Bytes(vec![0xff; 5000]),
        Reply::Entries {
            parent: Some(Ino(1)),
            entries: vec![DirEntry {
                name: name(),
                cookie: u64::MAX,
                ino: Ino(2),
                kind: Kind::Fifo,
                inode: None,
                tokens: Default::default(),
            }],
            end: true,
        },
        Reply::StatFs(TargetSpace { blocks: u64::MAX, free: 1, inodes: 2, inodes_free: 3 }),
        Reply::Data,
        Reply::Written { roomy: true },
        Reply::WrittenBatch(vec![Ok(()), Err(Errno::NoSpace)]),
        Reply::FilesAhead(vec![Err(Errno::Again)]),
        Reply::DataMap { runs: vec![ByteRange::ALL; DATA_RUNS_MAX as usize], known_to: Some(u64::MAX) },
        Reply::DataMap { runs: Vec::new(), known_to: None },
        Reply::Extents {
            total: u64::MAX,
            bytes: u64::MAX,
            extents: vec![
                ExtentView { offset: u64::MAX, len: u64::MAX, address: u64::MAX, written: true };
                EXTENTS_MAX as usize
            ],
            more: true,
            accepted: u64::MAX,
            unsynced: u64::MAX,
        },
        Reply::PagesLeft(u64::MAX),
        Reply::Locked { lock: 1, range: ByteRange::ALL },
        Reply::Locks(vec![1, 2, 3]),
        Reply::Status { uptime_s: 1, cluster: 2, targets: vec![], sessions: vec![], map_epoch: 3, servers: vec![] },
        Reply::Tunables(vec![("a".into(), "b".into(), "ä".into())]),
        Reply::Counters(vec![("a".into(), u64::MAX)]),
    ]
}

/// Goal: every kind of message survives the wire with its header. Method: one of each with extreme values.
#[test]
fn every_message_round_trips() {
    let cred = Cred::new(u32::MAX, 1, (0..1024).collect());
    let id = RequestId { slot: u16::MAX, seq: u64::MAX };
    for op in requests() {
        let call = Call { target: TargetId(u16::MAX), cred: cred.clone(), op };
        let new = Head::new(FrameKind::Request);
        let (lane, target) = (Lane::Urgent, call.target);
        round_trip(Head { lane, id, target, pad: 4095, deadline_ms: u32::MAX, payload_len: 64 << 20, ..new }, &call);
    }
    for reply in replies() {
        let answer = Answer {
            contended: true,
            contended_parts: Some(Box::new(ContendedParts { places: vec![0, u16::MAX] })),
            ..Answer::of(Ok(reply))
        };
        round_trip(Head { id, payload_len: 1, ..Head::new(FrameKind::Reply) }, &answer);
    }
    for &e in Errno::ALL {
        round_trip(Head { id, ..Head::new(FrameKind::Reply) }, &Answer::of(Err(e)));
    }
    round_trip(Head::new(FrameKind::Push), &Push::Callback { target: TargetId(7), object: object(), lock: u64::MAX });
    round_trip(Head::new(FrameKind::Push), &Push::FileLockNews { number: u64::MAX });
    let place = Name::new(b"k3".to_vec()).ok().map(|name| (Ino(u64::MAX), name));
    for place in [place, None] {
        let (target, id, ino) = (TargetId(3), u64::MAX, Ino(7));
        round_trip(Head::new(FrameKind::Push), &Push::DirectoryChanged { target, id, ino, place });
    }
    round_trip(Head::new(FrameKind::Push), &Push::FileLockClosing { id: u64::MAX, ino: Ino(u64::MAX) });
    round_trip(Head::new(FrameKind::Push), &Push::GrantWanted { target: TargetId(u16::MAX) });
    let news = Push::WriteFailed { target: TargetId(u16::MAX), id: u64::MAX, ino: Ino(u64::MAX) };
    round_trip(Head::new(FrameKind::Push), &news);
    round_trip(Head::new(FrameKind::Push), &Push::Glimpse { id: 1, object: object() });
    let signature = Signature { first: [255; 32], second: [254; 32] };
    let identity = Some(IdentityProof { key: Fingerprint([7; 32]), signature });
    round_trip(
        Head::new(FrameKind::Challenge),
        &Challenge { nonce: [9; 32], keyed: true, identity: Some(Fingerprint([8; 32])), secure: Secure::Tls },
    );
    let (session, role, clock) = (SessionId(3), Role::Admin, Timespec { sec: 5, nsec: 6 });
    let hello = Hello { version: 1, session, role, name: "h:1".into(), last_boot: 4, clock, link: 3, links: 5 };
    round_trip(Head::new(FrameKind::Hello), &SignedHello { hello, nonce: [1; 32], proof: Some([2; 32]), identity });
    let welcome = Welcome {
        version: 1,
        boot: u64::MAX,
        cluster: 1,
        resumed: true,
        begun: u64::MAX,
        normal_credits: 64,
        urgent_credits: 32,
        pool: 4,
        token_ms: 0,
        alone: true,
        map_epoch: 0,
        mounts: 1,
        links: 1,
        rotating: Vec::new(),
        root: Ino::ROOT,
    };
    // The longest one fits a handshake.
    let longest = Welcome {
        links: amphi_wire::slots::LINKS_MAX,
        rotating: vec![TargetId(u16::MAX); ROTATING_MAX],
        pool: u16::MAX,
        token_ms: u32::MAX,
        map_epoch: u64::MAX,
        mounts: u64::MAX,
        cluster: u64::MAX,
        ..welcome.clone()
    };
    let longest = SignedWelcome { welcome: longest, proof: Some([255; 32]), signature: Some(signature), memory: true };
    assert!(proven_bytes(&longest).len() <= HANDSHAKE_BODY_MAX, "{}", proven_bytes(&longest).len());
    round_trip(Head::new(FrameKind::Welcome), &SignedWelcome { welcome, proof: None, signature: None, memory: false });
    round_trip(Head::new(FrameKind::Refuse), &Refuse { reason: "no".into() });
}

/// Goal: a sealed frame has no checksums and is marked so, and a receiver that requires checksums refuses it. Method:
/// one is made, read, and given checksums.
#[test]
fn sealed_frames_have_no_checksums() {
    let call = Call { target: TargetId(2), cred: Cred::root(), op: Request::Parent { dir: Ino(300) } };
    let head = Head { sealed: true, target: TargetId(2), payload_len: 9, ..Head::new(FrameKind::Request) };
    let mut bytes = [0; 128];
    let len = head.encode(&call, &mut bytes).expect("it fits");
    let parse = |bytes: &[u8]| Head::parse(bytes[..HEAD_BYTES].try_into().expect("a header"));
    assert_eq!((bytes[40], &bytes[36..40], &bytes[44..48]), (2, &[0; 4][..], &[0; 4][..]));
    let came = parse(&bytes).expect("a header");
    assert_eq!(came, Head { body_len: (len - HEAD_BYTES) as u32, ..head });
    assert_eq!(came.decode::<Call>(&bytes[HEAD_BYTES..len]), Ok(call));
    let head_bytes: &[u8; HEAD_BYTES] = bytes[..HEAD_BYTES].try_into().expect("a header");
    assert_eq!(Head::check(head_bytes, &bytes[HEAD_BYTES..len]), Err(FrameError::Reserved));
    for at in [36, 44] {
        let mut other = bytes;
        other[at] = 1;
        assert_eq!(parse(&other), Err(FrameError::Reserved), "a checksum at {at}");
    }
}

/// Goal: a frame names the place of its payload in the bytes that the document describes, and only requests and replies
/// may do so; only a request names a place for a reply. Method: both places for every kind that has a body.
#[test]
fn payloads_lie_in_memory() {
    let parse = |bytes: &[u8]| Head::parse(bytes[..HEAD_BYTES].try_into().expect("a header"));
    for (place, code) in [(Place::At(0x0102_0304), 3), (Place::ForReply(u32::MAX), 4)] {
        for kind in [FrameKind::Request, FrameKind::Reply, FrameKind::Push, FrameKind::Hello] {
            let head = Head { place: Some(place), pad: 513, ..Head::new(kind) };
            let head = Head { payload_len: if kind.payload_max() > 0 { 70_000 } else { 0 }, ..head };
            let mut bytes = [0; 128];
            let len = head.encode(&5u8, &mut bytes).expect("it fits");
            let (Place::At(page) | Place::ForReply(page)) = place;
            assert_eq!((bytes[40], &bytes[36..40]), (code, &page.to_le_bytes()[..]));
            let allowed = kind == FrameKind::Request || (kind == FrameKind::Reply && code == 3);
            match parse(&bytes) {
                Ok(came) => {
                    assert!(allowed, "{kind:?} {place:?}");
                    assert_eq!(came, Head { body_len: 1, ..head });
                    assert_eq!(came.inline_len(), 0);
                    let first = bytes[..HEAD_BYTES].try_into().expect("a header");
                    assert_eq!(Head::check(first, &bytes[HEAD_BYTES..len]), Ok(()));
                }
                Err(e) => assert!(!allowed && e == FrameError::Reserved, "{kind:?} {place:?}: {e}"),
            }
        }
    }
}

/// Goal: the first bytes of the format stay as the document describes them. Method: a frame as written in docs/WIRE.md.
#[test]
fn bytes_of_a_request() {
    let call = Call { target: TargetId(2), cred: Cred::new(5, 6, vec![7]), op: Request::Parent { dir: Ino(300) } };
    let id = RequestId { slot: 3, seq: 0x0102 };
    let new = Head::new(FrameKind::Request);
    let head = Head { lane: Lane::Urgent, id, target: TargetId(2), pad: 513, deadline_ms: 1000, payload_len: 9, ..new };
    let mut bytes = [0; 128];
    let len = head.encode(&call, &mut bytes).unwrap();
    let body = [2, 5, 6, 1, 7, 0, 1, 0xac, 0x02];
    assert_eq!(bytes[HEAD_BYTES..len], body);
    let mut expected = Vec::new();
    expected.extend(b"AMPH");
    expected.extend((VERSION as u16).to_le_bytes());
    expected.extend(b"\x05\x01\x03\x00\x02\x00\x01\x02\x00\x00");
    expected.extend(b"\x02\x01\x00\x00\x00\x00\x00\x00\xe8\x03\x00\x00\x09\x00\x00\x00");
    expected.extend(b"\x09\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00");
    let crc = crc32c::crc32c(&[&expected[..], &body].concat());
    expected.extend(crc.to_le_bytes());
    assert_eq!(bytes[..HEAD_BYTES], expected[..]);
}

/// Goal: a frame is refused with the first thing that is wrong. Method: damage one field at a time.
#[test]
fn damage_is_named() {
    let mut bytes = vec![0; 256];
    let answer = Answer::of(Ok(Reply::Done));
    let len = Head::new(FrameKind::Reply).encode(&answer, &mut bytes).unwrap();
    bytes.truncate(len);
    let damaged = |at: usize, with: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        receive::<Answer>(&bytes).unwrap_err().expect("whole frames")
    };
    assert_eq!(damaged(0, b"HTTP"), FrameError::Magic { found: *b"HTTP" });
    assert_eq!(damaged(4, &[1]), FrameError::Version { found: 1 });
    assert_eq!(damaged(6, &[0]), FrameError::Kind { found: 0 });
    assert_eq!(damaged(7, &[2]), FrameError::Lane { found: 2 });
    assert_eq!(damaged(12, &[0, 16]), FrameError::Pad { found: 4096 });
    assert_eq!(damaged(14, &[1]), FrameError::Reserved);
    assert_eq!(damaged(36, &[1]), FrameError::Reserved, "a checksum where none is said to be");
    assert_eq!(damaged(40, &[2]), FrameError::Reserved);
    assert_eq!(damaged(43, &[1]), FrameError::Reserved);
    let kind = FrameKind::Reply;
    assert_eq!(damaged(28, &(1u32 << 21).to_le_bytes()), FrameError::BodyTooLong { kind, len: 1 << 21 });
    assert_eq!(damaged(32, &u32::MAX.to_le_bytes()), FrameError::PayloadTooLong { kind, len: u32::MAX });
    assert!(matches!(damaged(16, &[1]), FrameError::Checksum { .. }));
    assert!(matches!(damaged(len - 1, &[9]), FrameError::Checksum { .. }));
    for error in [damaged(0, b"HTTP"), damaged(4, &[1]), damaged(len - 1, &[9])] {
        assert!(!error.to_string().is_empty());
    }
}

/// Goal: encoding tells "give me more memory" from "no message may be so large". Method: bodies around both.
#[test]
fn encoding_has_bounds() {
    let answer = |len| Answer::of(Ok(Reply::Bytes(vec![0; len])));
    let head = Head::new(FrameKind::Reply);
    assert_eq!(head.encode(&answer(100), &mut [0; 140]), Err(EncodeError::Full));
    assert_eq!(head.encode(&answer(100), &mut [0; 40]), Err(EncodeError::Full));
    let mut large = vec![0; HEAD_BYTES + limits::BODY_MAX];
    assert_eq!(head.encode(&answer(limits::BODY_MAX), &mut large), Err(EncodeError::TooLarge));
    assert!(head.encode(&answer(limits::BODY_MAX - 16), &mut large).is_ok());
    let payload_len = limits::PAYLOAD_MAX as u32 + 1;
    assert_eq!(Head { payload_len, ..head }.encode(&answer(1), &mut large), Err(EncodeError::TooLarge));
    assert_eq!(Head::new(FrameKind::Ping).encode_bare(&mut [0; 47]), Err(EncodeError::Full));
}

/// Goal: times that the disk format cannot represent are refused when they are received. Method: every kind of request
/// that contains a time, with as many nanoseconds as a second has.
#[test]
fn impossible_times_are_refused() {
    let mtime = Timespec { sec: 1, nsec: 1_000_000_000 };
    let (ino, object, range) = (Ino(1), object(), ByteRange { start: 0, end: 1 });
    let access = Access { read: true, write: false };
    let set = SetAttr { ctime: Some(mtime), ..SetAttr::default() };
    let bad = [
        Request::Write {
            object,
            offset: 0,
            generation: 0,
            mtime,
            server_lock: false,
            kill_suidgid: false,
            checksums: Default::default(),
            cover: Default::default(),
        },
        Request::Punch { object, range, generation: 0, mtime, server_lock: false },
        Request::SetAttr { ino, set },
        Request::SetAttr { ino, set: SetAttr { mtime: Some(TimeSet::At(mtime)), ..SetAttr::default() } },
        Request::Close { ino, access, atime: Some(mtime) },
        Request::GlimpseReply { id: 1, size: 1, mtime },
    ];
    for op in bad {
        let call = Call { target: TargetId(0), cred: Cred::root(), op };
        let mut bytes = vec![0; 4096];
        let len = Head::new(FrameKind::Request).encode(&call, &mut bytes).expect("it fits");
        let came = receive::<Call>(&bytes[..len]);
        assert!(matches!(came, Err(Some(FrameError::Undecodable { .. }))), "{call:?}: {came:?}");
    }
}

fn decode_everything(bytes: &[u8]) {
    let _ = receive::<Call>(bytes);
    let _ = receive::<Answer>(bytes);
    let _ = receive::<Push>(bytes);
    let _ = receive::<SignedHello>(bytes);
    let _ = receive::<SignedWelcome>(bytes);
    let _ = receive::<Challenge>(bytes);
    let _ = receive::<Refuse>(bytes);
}

/// A message that decodes must encode and decode to itself.
fn stable<T: Serialize + DeserializeOwned + PartialEq + Debug>(kind: FrameKind, body: &[u8]) {
    if let Ok(message) = Head::new(kind).decode::<T>(body) {
        // Frames of some kinds have no body.
        round_trip(Head::new(FrameKind::Reply), &message);
    }
}

proptest! {
    /// Goal: arbitrary bytes never panic. Method: the bytes are given as a whole frame, and behind a valid header with
    /// a valid checksum, so that the decoders receive them.
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), kind in 0usize..10) {
        decode_everything(&bytes);
        let kind = FrameKind::ALL[kind];
        stable::<Call>(kind, &bytes);
        stable::<Answer>(kind, &bytes);
        stable::<Push>(kind, &bytes);
        stable::<SignedHello>(kind, &bytes);
        stable::<SignedWelcome>(kind, &bytes);
        stable::<Refuse>(kind, &bytes);
    }

    /// Goal: arbitrary fields of every request and reply survive. Method: arbitrary bytes behind each tag.
    #[test]
    fn arbitrary_fields_round_trip(mut bytes in proptest::collection::vec(any::<u8>(), 60..200)) {
        for tag in 0..40 {
            bytes[..5].copy_from_slice(&[3, 4, 5, 0, tag]);
            let mut rest = &bytes[..];
            if let Ok((call, after)) = postcard_call(rest) {
                round_trip(Head::new(FrameKind::Request), &call);
                rest = after;
                prop_assert!(rest.len() < bytes.len());
            }
        }
    }

    /// Goal: damage to any byte of a frame is noticed. Method: change one byte of a valid frame.
    #[test]
    fn damage_never_passes(at in 0usize..80, xor in 1u8..=255) {
        let call = Call { target: TargetId(0), cred: Cred::root(), op: Request::Lookup { dir: Ino(1), name: name() } };
        let mut bytes = [0; 256];
        let len = Head::new(FrameKind::Request).encode(&call, &mut bytes).unwrap();
        let at = at % len;
        bytes[at] ^= xor;
        prop_assert!(receive::<Call>(&bytes[..len]).is_err());
    }
}

fn postcard_call(bytes: &[u8]) -> Result<(Call, &[u8]), ()> {
    for end in 5..bytes.len() {
        if let Ok(call) = Head::new(FrameKind::Request).decode::<Call>(&bytes[..end]) {
            return Ok((call, &bytes[end..]));
        }
    }
    Err(())
}
