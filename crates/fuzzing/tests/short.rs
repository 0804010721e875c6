//! Each property over random bytes for a moment; `scripts/fuzz` searches longer and better.

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// Goal: no bytes of the network panic a receiver. Method: random bytes behind a header, as every message.
    #[test]
    fn frames(bytes in proptest::collection::vec(any::<u8>(), 48..300)) {
        amphi_fuzzing::frames(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Goal: the index of names answers as an ordered map. Method: random changes of names that share beginnings.
    #[test]
    fn names(bytes in proptest::collection::vec(any::<u8>(), 8..1_000)) {
        amphi_fuzzing::names(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Goal: no items of a log panic a start, a check or an answer. Method: random changes of the items of a small file
    /// system, replayed in the simulator.
    #[test]
    fn log_replay(bytes in proptest::collection::vec(any::<u8>(), 8..120)) {
        amphi_fuzzing::log_replay(&bytes);
    }
}
