//! Tags of frames: GMAC (AES-128-GCM of nothing) over counter, header, body and payload.
//!
//! Owns: what a tag covers, and the counters. Does not own: where tags lie (`pipe`).
//!
//! A frame with a payload has two tags. The payload's own tag covers its bytes; the frame's tag covers header, body and
//! the payload's tag. So header and body are known to be the peer's before memory is taken for the payload, and the
//! payload stays where it is. The direction has a key of its own; counter and part are the nonce.
//!
//! Invariants: counters begin at 0 and increase by one with each frame, on both sides, so the tag of a frame that is
//! repeated, left out or moved does not match. The expected tag is never revealed, and tags are compared in constant
//! time (by the library).

#[cfg(test)]
use super::plant;
use super::{ChannelError, IV_BYTES, key};
use amphi_wire::frame::HEAD_BYTES;
use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce};

/// Bytes of a tag.
const TAG_BYTES: usize = 16;

/// Most bytes of tags of a frame.
pub(crate) const TAGS_BYTES_MAX: usize = 2 * TAG_BYTES;

/// Which tag of a frame.
#[derive(Clone, Copy)]
enum Part {
    Frame = 0,
    Payload = 1,
}

fn nonce(counter: u64, part: Part) -> Nonce {
    #[cfg(test)]
    let counter = if plant::is(plant::Plant::CountersIgnored) { 0 } else { counter };
    let mut bytes = [0; IV_BYTES];
    bytes[..8].copy_from_slice(&counter.to_be_bytes());
    bytes[11] = part as u8;
    Nonce::assume_unique_for_key(bytes)
}

fn tag(key: &LessSafeKey, counter: u64, part: Part, bytes: &[u8]) -> [u8; TAG_BYTES] {
    let tag = key.seal_in_place_separate_tag(nonce(counter, part), Aad::from(bytes), &mut []);
    tag.expect("no frame is too long for it").as_ref().try_into().expect("a tag has its length")
}

fn fits(key: &LessSafeKey, counter: u64, part: Part, bytes: &[u8], tag: &[u8]) -> Result<(), ChannelError> {
    let mut tag: [u8; TAG_BYTES] = tag.try_into().map_err(|_| ChannelError::Forged)?;
    let opened = key.open_in_place(nonce(counter, part), Aad::from(bytes), &mut tag);
    #[cfg(test)]
    if plant::is(plant::Plant::TagsIgnored) {
        return Ok(());
    }
    opened.map(|_| ()).map_err(|_| ChannelError::Forged)
}

/// Bytes of tags between the body and the payload of a frame.
pub(crate) fn tags_bytes(with_payload: bool) -> usize {
    if with_payload { 2 * TAG_BYTES } else { TAG_BYTES }
}

/// The end that makes tags.
pub(crate) struct Tagger {
    key: LessSafeKey,
    counter: u64,
}

impl Tagger {
    pub(super) fn new(bytes: &[u8]) -> Tagger {
        Tagger { key: key(bytes), counter: 0 }
    }

    /// Puts the tags of the next frame behind its header and body, `out[..len]`, and returns the length with them.
    /// `out` has room for `tags_bytes`.
    pub(crate) fn put(&mut self, out: &mut [u8], mut len: usize, payload: Option<&[u8]>) -> usize {
        if let Some(payload) = payload {
            let own = tag(&self.key, self.counter, Part::Payload, payload);
            out[len..len + TAG_BYTES].copy_from_slice(&own);
            len += TAG_BYTES;
        }
        let whole = tag(&self.key, self.counter, Part::Frame, &out[..len]);
        out[len..len + TAG_BYTES].copy_from_slice(&whole);
        self.counter += 1;
        len + TAG_BYTES
    }
}

/// The end that checks tags.
pub(crate) struct Verifier {
    key: LessSafeKey,
    counter: u64,
    /// The tag that the payload of the frame must have.
    payload: [u8; TAG_BYTES],
}

impl Verifier {
    pub(super) fn new(bytes: &[u8]) -> Verifier {
        Verifier { key: key(bytes), counter: 0, payload: [0; TAG_BYTES] }
    }

    /// Checks the next frame, its header, body and tags, without its payload.
    pub(crate) fn check(&mut self, frame: &[u8], with_payload: bool) -> Result<(), ChannelError> {
        if frame.len() < HEAD_BYTES + tags_bytes(with_payload) {
            return Err(ChannelError::Forged);
        }
        let (covered, tag) = frame.split_at(frame.len() - TAG_BYTES);
        fits(&self.key, self.counter, Part::Frame, covered, tag)?;
        if with_payload {
            self.payload.copy_from_slice(&covered[covered.len() - TAG_BYTES..]);
        }
        self.counter += 1;
        Ok(())
    }

    /// Checks the payload of the frame that was checked last.
    pub(crate) fn check_payload(&self, payload: &[u8]) -> Result<(), ChannelError> {
        fits(&self.key, self.counter - 1, Part::Payload, payload, &self.payload)
    }
}
