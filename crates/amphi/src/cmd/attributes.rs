//! Control attributes of a mount, read through the kernel or in the process that has the mount.

use super::status;
use amphi_client::status::STATUS_PART_BYTES;
use amphi_client::{Client, Ctx};
use amphi_host::control;
use amphi_host::failure::{Failure, Outcome};
use amphi_types::Ino;
use std::path::Path;
use std::time::Duration;

/// How long a mount may take to answer in its own process: a server that is away is waited for 2 s.
const PATIENCE: Duration = Duration::from_secs(8);

/// The source of a mount's attributes: the kernel, or the mount in this process.
pub trait Attributes {
    /// A control attribute.
    ///
    /// Errors: it cannot be read, or the mount has none of this name.
    fn attribute(&self, name: &str) -> Outcome<String>;

    /// The status of the mount's cluster.
    fn status(&self) -> Outcome<String>;
}

/// The mount of a path, through the kernel.
impl Attributes for &Path {
    fn attribute(&self, name: &str) -> Outcome<String> {
        control::read(self, name)
    }

    fn status(&self) -> Outcome<String> {
        status::of_mount(self.to_path_buf())
    }
}

/// The mount of this process.
impl Attributes for Client {
    fn attribute(&self, name: &str) -> Outcome<String> {
        // The mount keeps a long status for the thread that requests it, and each thread here requests its own.
        let pid = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let ctx = Ctx { pid, ..Ctx::root() };
        let failed = |why: String| Failure::broken(format!("{name} of this mount: {why}"));
        match self.getxattr(&ctx, Ino::ROOT, name.as_bytes()).wait_for(None, Some(PATIENCE)) {
            Ok(Ok(bytes)) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Ok(Err(e)) => Err(failed(e.to_string())),
            Err(_) => Err(failed(format!("no answer within {} s", PATIENCE.as_secs()))),
        }
    }

    fn status(&self) -> Outcome<String> {
        let mut text = self.attribute("user.amphi.status")?;
        let mut last = text.len();
        while last >= STATUS_PART_BYTES {
            let more = self.attribute(&format!("user.amphi.status.from.{}", text.len()))?;
            last = more.len();
            text.push_str(&more);
        }
        Ok(text)
    }
}
