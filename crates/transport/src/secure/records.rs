//! Records of TLS 1.3 (RFC 8446, section 5) under the keys that the key exchange agreed on.
//!
//! Owns: sealing and opening single records of application data, and their numbers. Does not own: the keys' agreement
//! (`agree`), reading and writing (`pipe`).
//!
//! The records are made here and not by rustls because its own interfaces allocate memory for each record and copy its
//! bytes once more (twice when sending); here they are encrypted from the payload into the buffer that is sent, and
//! decrypted from the received bytes into the payload. They are the same records: a test communicates with rustls
//! itself. A kernel that supports TLS could make them as well.
//!
//! Invariants: a record's number is its nonce, so a record that is repeated, left out or moved does not open. Keys are
//! not renewed within a connection (no KeyUpdate): at `RECORDS_MAX` the connection ends, and the next one has other
//! keys.

#[cfg(test)]
use super::plant;
use super::{ChannelError, IV_BYTES, key};
use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce};

/// Most bytes of a record's content (RFC 8446, 5.1).
pub(crate) const RECORD_MAX: usize = 16 << 10;
/// Bytes of a record's header: type, version, length.
pub(crate) const RECORD_HEAD: usize = 5;
const TAG: usize = 16;
/// The overhead of a record: header, type of the content, tag.
pub(crate) const RECORD_MORE: usize = RECORD_HEAD + 1 + TAG;
/// Most bytes behind a record's header (RFC 8446, 5.2).
pub(crate) const RECORD_BODY_MAX: usize = RECORD_MAX + 256;
/// Bytes of sealed records that are sent with one write.
pub(crate) const SEALED_BYTES: usize = 8 * (RECORD_MAX + RECORD_MORE);
/// Most records under one key. RFC 8446, 5.5 allows 2^24.5 full ones for AES-GCM.
const RECORDS_MAX: u64 = 1 << 24;

/// Types of records: of what they contain, and of all that are encrypted.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

/// Key, nonce base and number of one direction.
struct Direction {
    key: LessSafeKey,
    iv: [u8; IV_BYTES],
    number: u64,
}

impl Direction {
    /// The nonce of the next record.
    fn nonce(&mut self) -> Result<Nonce, ChannelError> {
        if self.number >= RECORDS_MAX {
            return Err(ChannelError::WornOut);
        }
        let mut nonce = self.iv;
        for (byte, number) in nonce[IV_BYTES - 8..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= number;
        }
        self.number += 1;
        #[cfg(test)]
        if plant::is(plant::Plant::CountersIgnored) {
            nonce = self.iv;
        }
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

/// Key and nonce base of a direction as the key exchange gives them.
pub(super) struct Secret<'a> {
    pub(super) key: &'a [u8],
    pub(super) iv: [u8; IV_BYTES],
    /// Number of the next record.
    pub(super) number: u64,
}

impl Secret<'_> {
    fn direction(&self) -> Direction {
        let direction = Direction { key: key(self.key), iv: self.iv, number: self.number };
        #[cfg(test)]
        if plant::is(plant::Plant::NearlyWornOut) {
            return Direction { number: RECORDS_MAX - 50, ..direction };
        }
        direction
    }
}

fn head(body: usize) -> [u8; RECORD_HEAD] {
    let len = (body as u16).to_be_bytes();
    [DATA, 3, 3, len[0], len[1]]
}

/// Bytes behind the header of an encrypted record.
pub(crate) fn body_bytes(head: &[u8]) -> Result<usize, ChannelError> {
    let len = usize::from(u16::from_be_bytes([head[3], head[4]]));
    if head[..3] != [DATA, 3, 3] || len > RECORD_BODY_MAX || len <= TAG {
        return Err(ChannelError::Foreign);
    }
    Ok(len)
}

/// The end that makes records.
pub(crate) struct Sealer(Direction);

impl Sealer {
    pub(super) fn new(secret: &Secret<'_>) -> Sealer {
        Sealer(secret.direction())
    }

    /// Encrypts `content` into records in `out`, as far as there is space; returns how many bytes of each were used.
    pub(crate) fn put(&mut self, content: &[u8], out: &mut [u8]) -> Result<(usize, usize), ChannelError> {
        let (mut taken, mut filled) = (0, 0);
        while taken < content.len() {
            let len = (content.len() - taken).min(RECORD_MAX);
            let Some(record) = out.get_mut(filled..filled + len + RECORD_MORE) else { break };
            let header = head(len + 1 + TAG);
            let (front, body) = record.split_at_mut(RECORD_HEAD);
            front.copy_from_slice(&header);
            let (body, end) = body.split_at_mut(len);
            let content = &content[taken..taken + len];
            let nonce = self.0.nonce()?;
            self.0
                .key
                .seal_out_of_place_scatter(nonce, Aad::from(header), content, body, &[DATA], end)
                .expect("the places have their lengths");
            taken += len;
            filled += len + RECORD_MORE;
        }
        Ok((taken, filled))
    }
}

/// The content of an opened record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// This many bytes at the front of `out`.
    Out(usize),
    /// This many bytes at the front of `body`.
    InPlace(usize),
}

/// The end that opens records.
pub(crate) struct Opener(Direction);

impl Opener {
    pub(super) fn new(secret: &Secret<'_>) -> Opener {
        Opener(secret.direction())
    }

    /// Decrypts a record into `out` if all of it fits there, otherwise in its place. Bytes of `out` beyond the returned
    /// length may be overwritten; after an error, any byte of `out` may be.
    pub(crate) fn open(&mut self, body: &mut [u8], out: &mut [u8]) -> Result<Opened, ChannelError> {
        let inner = body.len().checked_sub(TAG).ok_or(ChannelError::Foreign)?;
        let (nonce, aad) = (self.0.nonce()?, Aad::from(head(body.len())));
        let (content, in_place) = match out.get_mut(..inner) {
            Some(out) => {
                let (sealed, tag) = body.split_at(inner);
                let opened = self.0.key.open_separate_gather(nonce, aad, sealed, tag, out);
                opened.map_err(|_| ChannelError::Forged)?;
                (&*out, false)
            }
            None => (&*self.0.key.open_in_place(nonce, aad, body).map_err(|_| ChannelError::Forged)?, true),
        };
        // The content is followed by its type, and by zeros as padding.
        let end = content.iter().rposition(|byte| *byte != 0).ok_or(ChannelError::Foreign)?;
        match content[end] {
            DATA if end > RECORD_MAX => Err(ChannelError::Foreign),
            DATA if in_place => Ok(Opened::InPlace(end)),
            DATA => Ok(Opened::Out(end)),
            ALERT => Err(ChannelError::Ended),
            // A handshake record after the key exchange is an error: neither end sends any.
            HANDSHAKE => Err(ChannelError::Foreign),
            _ => Err(ChannelError::Foreign),
        }
    }
}
