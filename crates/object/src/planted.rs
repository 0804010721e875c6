//! Planted mistakes: tests put them in, here and in the server, to see that the tests can fail. Outside of tests there
//! are none.

/// A planted mistake.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mistake {
    /// A write does not drop the cached blocks.
    KeptOverWrite,
    /// Blocks that were read ahead are cached although they were written meanwhile.
    LateKeep,
}

/// Returns whether `mistake` is planted.
#[cfg(not(any(test, feature = "planted")))]
pub(crate) const fn is(_mistake: Mistake) -> bool {
    false
}

#[cfg(any(test, feature = "planted"))]
pub(crate) use switch::is;
#[cfg(any(test, feature = "planted"))]
pub use switch::plant;

#[cfg(any(test, feature = "planted"))]
mod switch {
    use super::Mistake;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Mistake>> = const { Cell::new(None) };
    }

    /// Plants a mistake on this thread; `None` removes it.
    pub fn plant(mistake: Option<Mistake>) {
        PLANTED.set(mistake);
    }

    pub(crate) fn is(mistake: Mistake) -> bool {
        PLANTED.get() == Some(mistake)
    }
}
