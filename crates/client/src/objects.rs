//! Requests for bytes of objects, past the cache.
//!
//! Owns: cutting a range into requests, sending them, reading around bytes that cannot be served, what became of the
//! pieces of a write. Does not own: which way a request takes (`policy`), locks (`locks`), what the cache has
//! (`cache`).

pub(crate) mod damaged;
pub(crate) mod read;
pub(crate) mod write;
