//! copy_file_range: copies through buffers, with a hybrid decision for each read and write.

use crate::api::{Ctx, Hints};
use crate::inode::OpenFile;
use crate::mount::Mount;
use crate::ops::{read, write};
use crate::telemetry::stats::Count;
use amphi_types::{ByteRange, Errno, Result, limits};
use std::sync::Arc;

/// Bytes per step: large enough to go direct.
const STEP: u64 = 4 << 20;

pub(crate) async fn copy_range(
    mount: Arc<Mount>,
    ctx: Ctx,
    from: (Arc<OpenFile>, u64),
    to: (Arc<OpenFile>, u64),
    len: u64,
) -> Result<usize> {
    let (source, target) = (ByteRange::at(from.1, len), ByteRange::at(to.1, len));
    if from.0.ino() == to.0.ino() && source.overlaps(&target) {
        return Err(Errno::Inval);
    }
    if !from.0.flags.read || !to.0.flags.write || to.0.flags.append {
        return Err(Errno::BadFd);
    }
    if target.end > limits::FILE_MAX {
        return Err(Errno::FileTooBig);
    }
    let mut done = 0;
    while done < len {
        let step = (len - done).min(STEP) as usize;
        let outcome = async {
            let hints = Hints::default();
            let data = read::read(mount.clone(), ctx.clone(), from.0.clone(), from.1 + done, step, hints).await?;
            let read_bytes = data.len();
            if read_bytes == 0 {
                return Ok((0, 0));
            }
            let data = data.into_buf();
            let written = write::write(mount.clone(), ctx.clone(), to.0.clone(), to.1 + done, data, hints).await?;
            Ok((read_bytes, written))
        };
        match outcome.await {
            Ok((read_bytes, written)) => {
                done += written as u64;
                if written < read_bytes || read_bytes < step {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    mount.stats.bytes(Count::CopyRange, done);
    Ok(done as usize)
}
