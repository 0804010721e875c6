//! The machine's clocks as a client uses them.

use amphi_client::Clock;
use amphi_env::Time;
use amphi_types::Timespec;

/// The machine's clocks.
#[derive(Clone, Copy, Debug)]
pub struct Machine;

impl Clock for Machine {
    fn now_ns(&self) -> u64 {
        let Time(ns) = amphi_env::real::monotonic();
        ns
    }

    fn boot_ns(&self) -> u64 {
        let Time(ns) = amphi_env::real::since_boot();
        ns
    }

    #[expect(clippy::disallowed_methods, reason = "the production clock")]
    fn wall(&self) -> Timespec {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timespec::from_ns(since.as_nanos() as u64)
    }
}
