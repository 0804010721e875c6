//! Directories that other mounts have moved or removed.
//!
//! Owns: asking the front end to show them to its kernel, and answering the server. Does not own: how the front end
//! shows them.

use crate::mount::Mount;
use amphi_types::{Cred, Ino, Name, TargetId};
use amphi_wire::{Lane, Request};
use futures_channel::oneshot;
use std::sync::Arc;

/// `Push::DirectoryChanged`: answers when the kernel has the directory at its new place or has dropped it, or when that
/// is not possible at once.
pub(crate) fn moved(mount: &Arc<Mount>, target: TargetId, id: u64, ino: Ino, place: Option<(Ino, Name)>) {
    let answer = move |mount: &Arc<Mount>| {
        drop(mount.send(Lane::Answer, target, &Cred::root(), Request::DirectoryShown { id }, None, 0));
    };
    let (Some((dir, name)), Some(front)) = (place, mount.coherence.sharing.pages()) else {
        return answer(mount);
    };
    let (sender, shown) = oneshot::channel();
    let done = Box::new(move || {
        let _ = sender.send(());
    });
    front.show_directory(ino, dir, name.as_bytes(), done);
    let own = mount.clone();
    mount.spawn(async move {
        let _ = shown.await;
        answer(&own);
    });
}
