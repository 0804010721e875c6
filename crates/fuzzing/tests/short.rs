//! Tests each property over random bytes for a short time; `scripts/fuzz` searches longer and better.

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
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    /// Goal: no bytes of a trace panic a summary, a search for conflicts or a plan. Method: calls with random numbers,
    /// and random bytes behind them.
    #[test]
    fn traces(
        calls in proptest::collection::vec((1u8..32, 0u8..4, 0u8..3, any::<[u8; 3]>()), 0..40),
        rest in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut bytes = Vec::new();
        for (op, thread, ino, [offset, len, name]) in calls {
            // A call with a thread, an inode, a handle, a place, a length, a result, another inode and a name.
            let (low, high) = (0x3f | 0x80, (1 << 4) | (1 << 6));
            bytes.extend([1, op, 2, 1, low, high, thread + 1, ino + 1, ino + 1, offset & 0x7f | 1, len & 0x7f | 1]);
            bytes.extend([len & 0x7e | 2, ino + 2, 1, name]);
        }
        bytes.extend(rest);
        amphi_fuzzing::traces(&bytes);
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
