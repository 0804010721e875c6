//! Control attributes of recordings (`telemetry::record`), which anybody may use for processes of their own.
//!
//! Write `user.amphi.record` = `start ID [hash=KEY]`, `end ID` or `forget ID`, numbers in hexadecimal; read
//! `user.amphi.record.ID.N` for block N (decimal, from 1 on), which is empty as long as there is nothing to say.

use super::control::allowed;
use crate::api::Ctx;
use crate::mount::Mount;
use crate::telemetry::record::Wanted;
use amphi_types::{Errno, Result};

/// The name of a block of a recording continues with the number of the recording and that of the block.
const BLOCK: &str = "record.";

/// Returns whether this is the name of a block.
pub(super) fn is_block(name: &[u8]) -> bool {
    name.starts_with(BLOCK.as_bytes())
}

fn hex(text: &str) -> Result<u64> {
    u64::from_str_radix(text, 16).map_err(|_| Errno::Inval)
}

pub(super) fn get(mount: &Mount, ctx: &Ctx, name: &[u8]) -> Result<Vec<u8>> {
    let name = std::str::from_utf8(name).map_err(|_| Errno::NoData)?;
    let (id, number) = name.strip_prefix(BLOCK).and_then(|rest| rest.split_once('.')).ok_or(Errno::NoData)?;
    let (id, number) = (hex(id).map_err(|_| Errno::NoData)?, number.parse().map_err(|_| Errno::NoData)?);
    mount.panel.recorder.of(id, ctx.cred.uid, allowed(mount, ctx))?.block(number, mount.clock.now_ns())
}

pub(super) fn set(mount: &Mount, ctx: &Ctx, text: &str) -> Result<()> {
    let refuse = |text: String| mount.complain(text);
    let mut words = text.split(' ');
    let (what, id) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let id = hex(id).map_err(|_| refuse(format!("{text:?} names no recording")))?;
    let (all, now_ns) = (allowed(mount, ctx), mount.clock.now_ns());
    // Recordings whose owners were killed make room.
    mount.panel.recorder.tick(now_ns);
    match what {
        "start" => {
            let mut hash = None;
            for word in words {
                let key = word.strip_prefix("hash=").map(hex);
                hash = Some(key.and_then(Result::ok).ok_or_else(|| refuse(format!("{word:?} is not known here")))?);
            }
            let owner = ctx.cred.uid;
            let wanted = Wanted { id, uid: (!all).then_some(owner), owner, hash };
            mount.panel.recorder.start(wanted, now_ns)
        }
        "end" => mount.panel.recorder.of(id, ctx.cred.uid, all).map(|_| mount.panel.recorder.end(id)),
        "forget" => mount.panel.recorder.of(id, ctx.cred.uid, all).map(|_| mount.panel.recorder.forget(id)),
        _ => Err(refuse(format!("{text:?} is none of start, end, forget"))),
    }
}
