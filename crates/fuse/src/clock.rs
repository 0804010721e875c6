//! The monotonic clock of a mount, for measuring how long ago something was.

/// Nanoseconds since a fixed moment of this process.
#[expect(clippy::disallowed_methods, reason = "the device loop runs outside any simulated environment")]
pub(crate) fn monotonic_ns() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(Instant::now);
    Instant::now().duration_since(start).as_nanos() as u64
}
