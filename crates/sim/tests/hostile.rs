//! A slice of the hostile inputs that `cargo xtask hostile` sends by the hundred thousand.

use amphi_sim::hostile::{Guise, Tally, run};

/// Inputs of each run.
const INPUTS: u64 = 1_500;

/// Goal: Promise S23: whatever an unauthenticated client, another user's mount, a mount, a mount that is bound to a
/// tree, a server or an administrator sends, the server and an honest mount continue to work, and the zones stay sound.
/// Method: seeds of each guise; most inputs reach an operation.
#[test]
fn a_server_goes_on() {
    for guise in Guise::ALL {
        let mut sum = Tally::default();
        for seed in 0..2 {
            let tally = run(seed, guise, INPUTS).unwrap_or_else(|why| {
                panic!("{guise:?}, seed {seed}: {why}; replay: cargo xtask hostile {INPUTS} {seed}")
            });
            sum.add(&tally);
        }
        println!("{guise:?}: {sum:?}");
        assert!(sum.inputs > INPUTS, "{guise:?}: {sum:?}");
        if guise == Guise::Stranger {
            assert_eq!(sum.answered, 0, "nobody is answered who is not let in: {sum:?}");
        } else {
            assert!(sum.sound > sum.inputs / 2 && sum.answered > sum.sound / 3, "{guise:?}: {sum:?}");
        }
    }
}
