//! Pages that move to another node or are copied there, as a part of a reply.
//!
//! Owns the format. For each page it has a range with the page's number and place (0: a copy), a range with the numbers
//! of its valid and of its dirty ranges, and then these ranges. Behind the data of the reply come the valid bytes.

use super::message::MAX_EXTENTS;
use crate::error::{Error, Outcome};
use crate::file::Extent;
use crate::file::migrate::Handover;
use crate::intervals::Span;
use crate::placement::Place;

/// Most ranges of the pages of one reply; each page takes two more, and why a step ended early two.
pub const SPANS_MAX: usize = MAX_EXTENTS / 4;

/// Most pages of one reply.
const PAGES_MAX: usize = MAX_EXTENTS / 4;

/// Appends pages to the content of a reply.
pub fn encode(pages: &[Handover], extents: &mut Vec<Extent>, data: &mut Vec<u8>) {
    debug_assert!(pages.len() <= PAGES_MAX);
    for page in pages {
        extents.push(Extent { offset: page.page, length: page.place.unwrap_or_default().0 });
        extents.push(Extent { offset: page.valid.len() as u64, length: page.dirty.len() as u64 });
        let spans = page.valid.iter().chain(&page.dirty);
        extents.extend(spans.map(|s| Extent { offset: s.start.into(), length: s.end.into() }));
        data.extend_from_slice(&page.bytes);
    }
}

/// Reads the pages of a reply; bytes that are no page are an error.
pub fn decode(mut extents: &[Extent], mut data: &[u8]) -> Outcome<Vec<Handover>> {
    let strange = Error::Os { doing: "understand another node", errno: libc::EPROTO };
    let mut pages = Vec::new();
    while let [page, lists, rest @ ..] = extents {
        let counts = usize::try_from(lists.offset).ok().zip(usize::try_from(lists.length).ok());
        let (valid, dirty) = counts.ok_or(strange)?;
        let spans = |from: usize, count: usize| -> Outcome<Vec<Span>> {
            let part = rest.get(from..).and_then(|rest| rest.get(..count)).ok_or(strange)?;
            let span = |e: &Extent| Some(Span { start: e.offset.try_into().ok()?, end: e.length.try_into().ok()? });
            part.iter().map(|e| span(e).filter(|s| s.start < s.end).ok_or(strange)).collect()
        };
        let (valid, dirty) = (spans(0, valid)?, spans(valid, dirty)?);
        extents = &rest[valid.len() + dirty.len()..];
        let length = valid.iter().map(|s| (s.end - s.start) as usize).sum();
        let (bytes, others) = data.split_at_checked(length).ok_or(strange)?;
        data = others;
        let place = Some(Place(page.length)).filter(|place| *place != Place::default());
        pages.push(Handover { page: page.offset, place, valid, dirty, bytes: bytes.to_vec() });
    }
    if extents.is_empty() && data.is_empty() { Ok(pages) } else { Err(strange) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: pages arrive as they were sent, and numbers that cannot be are refused without a panic.
    /// Method: two pages there and back, then with each number changed and each part cut off.
    #[test]
    fn pages_survive_and_others_are_refused() {
        let span = |start, end| Span { start, end };
        let first = Handover {
            page: 7,
            place: Some(Place::default().moved_to(2)),
            valid: vec![span(0, 3), span(5, 6)],
            dirty: vec![span(5, 6)],
            bytes: b"abcd".to_vec(),
        };
        let second = Handover { page: 9, valid: vec![span(1, 2)], dirty: Vec::new(), bytes: vec![1], ..first.clone() };
        let second = Handover { place: None, ..second };
        let (mut extents, mut data) = (Vec::new(), Vec::new());
        encode(&[first.clone(), second.clone()], &mut extents, &mut data);
        assert_eq!(decode(&extents, &data).unwrap(), [first, second]);
        assert_eq!(decode(&[], &[]).unwrap(), []);
        for at in 0..extents.len() {
            for number in [0, 1, 2, 8, u64::MAX] {
                let mut other = extents.clone();
                other[at].offset = number;
                let _ = decode(&other, &data);
                other[at] = Extent { length: number, ..extents[at] };
                let _ = decode(&other, &data);
            }
            assert!(decode(&extents[..at], &data).is_err());
        }
        assert!(decode(&extents, &data[1..]).is_err());
    }
}
