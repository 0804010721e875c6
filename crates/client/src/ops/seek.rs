//! lseek for data and holes: dirty bytes are written first, then the objects are asked.
//!
//! An object is sparse outside its stripes, so the next data of a file is the nearest next data of its objects, and a
//! hole counts only where the object is the one that holds the bytes.

use crate::api::{Ctx, Whence};
use crate::company;
use crate::core::{Core, unexpected};
use crate::files::OpenFile;
use crate::group;
use crate::locks;
use crate::ops::attr;
use crate::rangelock::Hold;
use crate::stats::Count;
use crate::writeback;
use amphi_dlm::Mode;
use amphi_types::{ByteRange, Cred, Errno, ObjectId, Result};
use amphi_wire::{Reply, Request};
use futures_util::future::join_all;
use std::sync::Arc;

pub(crate) async fn lseek(core: Arc<Core>, _ctx: Ctx, open: Arc<OpenFile>, offset: u64, whence: Whence) -> Result<u64> {
    core.stats.count(Count::Seek);
    let file = &open.file;
    let _guard = group::enter(file, open.member(), ByteRange::new(offset, u64::MAX), Hold::Shared).await?;
    // In company nobody changes what lies ahead until the answer.
    let begun = company::begin(&core);
    let _pins = match &begun {
        Some(_) => Vec::new(),
        None => locks::pin_objects(&core, file, Mode::Read, ByteRange::new(offset, u64::MAX)).await?,
    };
    let size = attr::size_now(&core, file).await?;
    if offset >= size {
        return Err(Errno::NxIo);
    }
    writeback::flush(&core, file, ByteRange::new(offset, size)).await;
    let layout = file.layout();
    let ask = |stripe: u32, offset: u64, hole: bool| {
        let object = ObjectId { ino: file.ino, stripe };
        let op = Request::Seek { object, offset, hole };
        let answer = core.call(layout.target(file.ino, stripe), &Cred::root(), op);
        async move {
            match answer.await? {
                Reply::Offset(at) => Ok(at),
                other => Err(unexpected(&other)),
            }
        }
    };
    match whence {
        Whence::Data => {
            let asked = (0..layout.stripes_below(size)).map(|s| ask(s, offset, false));
            let mut nearest: Option<u64> = None;
            for at in join_all(asked.collect::<Vec<_>>()).await {
                nearest = nearest.into_iter().chain(at?).min();
            }
            nearest.filter(|at| *at < size).ok_or(Errno::NxIo)
        }
        Whence::Hole => {
            let mut at = offset;
            while at < size {
                let (stripe, end) = layout.stripe_at(at);
                match ask(stripe, at, true).await? {
                    Some(hole) if hole < end.min(size) => return Ok(hole),
                    _ => at = end,
                }
            }
            Ok(size)
        }
    }
}
