//! How the bytes of reads get from the client to the kernel, at once or after a wait.
//!
//! Owns: which reads the kernel takes directly from the cache and which are copied, and what the mount records of a
//! read that ends early. Does not own: reading the bytes (the client), the wait (`deferred`).

use super::ClientFs;
use crate::calls::ReadHow;
use crate::data::ReadSink;
use crate::later::Later;
use crate::request::Caller;
use amphi_client::{Hints, Segment, Segments};
use amphi_types::Result;

/// Reads of at least this many bytes go to the kernel straight from the cache. For fewer bytes a copy costs less than
/// the bookkeeping.
pub(super) const LEND_MIN_BYTES: usize = 16 << 10;

impl ClientFs {
    pub(super) fn read_file(&self, caller: &Caller<'_>, how: &ReadHow, sink: &mut ReadSink<'_>) -> Result<()> {
        let file = self.handles.get(how.handle)?;
        let ctx = Self::stream(caller);
        if self.handles.exports.is_on() {
            self.client.passed(&file, how.offset);
        }
        let hints = Hints { for_pages: how.into_page_cache, ..self.hints(how.size, how.flags) };
        if sink.size() >= LEND_MIN_BYTES {
            if let Some(loans) = self.client.try_lend(&ctx, &file, how.offset, sink.size(), hints) {
                loans.into_iter().for_each(|loan| sink.lend(loan));
                self.sizes().has_read(file.ino(), how, sink.len());
                return Ok(());
            }
        } else if let Some(len) = self.client.try_read(&ctx, &file, how.offset, sink.space(), hints) {
            sink.set_filled(len);
            self.sizes().has_read(file.ino(), how, len);
            return Ok(());
        }
        let size = sink.size();
        let pending = self.client.read(&ctx, &file, how.offset, size, hints);
        let (names, ino, what) = (self.names.lender.clone(), file.ino(), *how);
        let shows = self.handles.exports.is_on().then(|| (self.client.clone(), file.clone()));
        let answer = move |later: Later, result: Result<Segments>| match result {
            Ok(segments) => {
                let parts: Vec<Segment> = segments.into_parts().collect();
                let bytes: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
                names.sizes.has_read(ino, &what, bytes.iter().map(|part| part.len()).sum());
                later.answer_data(&bytes);
                if let Some((client, file)) = shows.filter(|_| !what.into_page_cache) {
                    client.show(&file, what.offset, what.size);
                }
            }
            Err(e) => later.answer(Err(e)),
        };
        // No `read_answered` follows these reads, so they may be answered without their thread.
        let segments = if size < LEND_MIN_BYTES && !how.into_page_cache {
            self.wait_briefly(caller, pending, answer)?
        } else {
            self.wait_long(caller, pending, answer)?
        };
        for part in segments.into_parts() {
            match part {
                Segment::Own(buf) => sink.give(buf),
                Segment::Lent(loan) => sink.lend(loan),
            }
        }
        self.sizes().has_read(file.ino(), how, sink.len());
        Ok(())
    }
}
