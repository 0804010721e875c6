//! `watch_memory`: drops blocks that a target keeps in memory when the machine is short of memory.
//!
//! Owns: when memory is checked, and when it counts as short. Does not own: what is dropped first (`read_cache`).

use crate::config::ReadFile;
use crate::zone_target::Target;
use amphi_env::{Env, memory_groups};
use std::rc::Weak;
use std::time::Duration;

/// How often memory is checked while anything is kept.
const LOOK: Duration = Duration::from_secs(1);
/// A memory group that has used this much of its limit is short of memory, percent.
const GROUP_PERCENT: u64 = 95;

/// Checks the memory until the target is dropped.
pub async fn watch_memory<E: Env>(env: E, target: Weak<Target<E>>, read: ReadFile) {
    let trees = memory_groups::Trees::find(&*read);
    loop {
        env.sleep(LOOK).await;
        let Some(target) = target.upgrade().filter(|t| !t.is_closed()) else { return };
        let mut cache = target.storage.disk.cache.borrow_mut();
        let is_group_short =
            || memory_groups::own_groups(&*read).is_some_and(|text| trees.is_short(&*read, &text, GROUP_PERCENT));
        let is_short = cache.held_bytes() > 0 && (memory_groups::is_machine_short(&*read) || is_group_short());
        cache.press(is_short);
    }
}
