//! A receiver of frames.

use amphi_types::limits::BODY_MAX;
use amphi_wire::frame::{FrameKind, HEAD_BYTES, Head};
use amphi_wire::handshake::{Challenge, Refuse, SignedHello, SignedWelcome};
use amphi_wire::{Answer, Call, Push};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;

/// Reads `bytes` as a received frame, and the bytes after its header as the body of every kind of frame, as if the
/// checksum had been right.
///
/// Panics if a message that decodes is not the same after it was encoded and decoded again.
pub fn frames(bytes: &[u8]) {
    let Some((head_bytes, body)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return };
    if let Ok(head) = Head::parse(head_bytes) {
        let body = &body[..body.len().min(head.body_len as usize)];
        let _ = Head::check(head_bytes, body);
    }
    each::<Call>(FrameKind::Request, body);
    each::<Answer>(FrameKind::Reply, body);
    each::<Push>(FrameKind::Push, body);
    each::<Challenge>(FrameKind::Challenge, body);
    each::<SignedHello>(FrameKind::Hello, body);
    each::<SignedWelcome>(FrameKind::Welcome, body);
    each::<Refuse>(FrameKind::Refuse, body);
}

fn each<T: Serialize + DeserializeOwned + PartialEq + Debug>(kind: FrameKind, body: &[u8]) {
    let head = Head::new(kind);
    let Ok(message) = head.decode::<T>(body) else { return };
    let mut frame = vec![0; HEAD_BYTES + BODY_MAX];
    let Ok(len) = head.encode(&message, &mut frame) else {
        // A number may be written with more bytes than it needs, but never with fewer.
        assert!(body.len() > kind.body_max(), "a body of {} bytes cannot be sent on", body.len());
        return;
    };
    let again: T = head.decode(&frame[HEAD_BYTES..len]).expect("what was encoded decodes");
    assert_eq!(again, message);
}
