//! Requests for bytes of objects, past the cache.
//!
//! Owns: cutting a range into requests, sending them, reading around damaged bytes, the results of the pieces of a
//! write. Does not own: whether a request is buffered or direct (`policy`), locks (`locks`), cached bytes (`cache`).

pub(crate) mod damaged;
pub(crate) mod read;
pub(crate) mod write;
