//! Mistakes that tests plant, here and in the server, to see that they can fail. Outside of tests there are none.

/// One mistake.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mistake {
    /// What is kept of blocks stays when they are written.
    KeptOverWrite,
    /// What was read ahead is kept although its blocks were written meanwhile.
    LateKeep,
}

/// Whether `mistake` is planted.
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

    /// Plants a mistake on this thread, or takes it away.
    pub fn plant(mistake: Option<Mistake>) {
        PLANTED.set(mistake);
    }

    pub(crate) fn is(mistake: Mistake) -> bool {
        PLANTED.get() == Some(mistake)
    }
}
