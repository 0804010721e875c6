//! Stages of real trees in the temporary folder: the copy is the source in every respect, or there is none.
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "tests are outside programs")]

mod changing;
mod kill;
mod model;
mod refused;
mod update;
mod whole;
