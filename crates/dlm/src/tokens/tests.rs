//! Model tests of tokens.
//!
//! `world` joins a target, clients, values and a network that reorders everything. `explore` tries all orders for small
//! programs, and `random` random orders for larger ones. `stories` tests each race and each bound by itself.

mod explore;
mod random;
mod stories;
mod world;

use super::TokenKey;
use amphi_types::Ino;

pub(crate) fn attributes(ino: u64) -> TokenKey {
    TokenKey::Attributes(Ino(ino))
}

pub(crate) fn name(hash: u64) -> TokenKey {
    TokenKey::Name(Ino(1), hash)
}

pub(crate) fn listing() -> TokenKey {
    TokenKey::Listing(Ino(1))
}
