//! Faults that tests plant in channels, to verify that the tests detect them. One thread at a time has a planted fault.

use std::cell::Cell;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    /// Frames and records are signed and checked as if all were the first one.
    CountersIgnored,
    /// A message whose tag does not match is accepted.
    TagsIgnored,
    /// This is no fault: keys begin shortly before the limit of their use.
    NearlyWornOut,
}

thread_local! {
    static PLANTED: Cell<Option<Plant>> = const { Cell::new(None) };
}

/// Takes the mistake out when dropped.
pub(crate) struct Planted(());

impl Drop for Planted {
    fn drop(&mut self) {
        PLANTED.set(None);
    }
}

/// Plants a mistake on this thread.
pub(crate) fn set(plant: Plant) -> Planted {
    PLANTED.set(Some(plant));
    Planted(())
}

pub(crate) fn is(plant: Plant) -> bool {
    PLANTED.get() == Some(plant)
}
