//! Random changes of the index and of a map of the standard library, compared.

use crate::Cart;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Step {
    Insert(u64, Vec<u8>, u64),
    Remove(u64, Vec<u8>),
    /// Removes the entry at this place of the order, if there are this many.
    RemoveAt(usize),
    Get(u64, Vec<u8>),
}

/// Names as programs make them, names that differ in their last bytes, and names made to be difficult.
pub(super) fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (0u32..400).prop_map(|n| format!("file.mdtest.0.{n}").into_bytes()),
        2 => (0u32..30, 0u32..30).prop_map(|(a, b)| format!("out-{a:04}.{b:03}.h5").into_bytes()),
        2 => "[a-c]{1,6}".prop_map(String::into_bytes),
        2 => prop::collection::vec(1u8..=255, 1..4),
        1 => (250usize..=255, 0u8..4).prop_map(|(len, last)| {
            let mut name = vec![b'x'; len];
            name[len - 1] = b'x' + last;
            name
        }),
        1 => (1usize..=255).prop_map(|len| vec![0xff; len]),
        1 => any::<u8>().prop_map(|b| vec![b.max(1)]),
    ]
}

/// Values of all lengths.
fn value() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0u32..64).prop_map(|(bits, shift)| bits >> shift)
}

fn step() -> impl Strategy<Value = Step> {
    let dir = || prop_oneof![Just(1u64), 0u64..20, any::<u64>()];
    prop_oneof![
        5 => (dir(), name(), value()).prop_map(|(dir, name, value)| Step::Insert(dir, name, value)),
        2 => (dir(), name()).prop_map(|(dir, name)| Step::Remove(dir, name)),
        3 => any::<prop::sample::Index>().prop_map(|at| Step::RemoveAt(at.index(1000))),
        1 => (dir(), name()).prop_map(|(dir, name)| Step::Get(dir, name)),
    ]
}

type Model = BTreeMap<(u64, Vec<u8>), u64>;

fn compare(cart: &Cart, model: &Model) {
    cart.check();
    let mut wanted = model.iter();
    for dir in cart.dirs() {
        let mut walk = cart.walk(dir);
        let mut count = 0;
        while let Some((name, value)) = walk.next() {
            let ((wanted_dir, wanted_name), wanted_value) = wanted.next().expect("no name too many");
            assert_eq!((dir, name, value), (*wanted_dir, wanted_name.as_slice(), *wanted_value));
            count += 1;
        }
        assert_eq!(cart.len(dir), count);
        let mut all = BTreeMap::new();
        cart.for_each(dir, |name, value| assert_eq!(all.insert(name.to_vec(), value), None));
        assert!(all.iter().eq(model.range((dir, vec![])..).take(count).map(|((_, name), value)| (name, value))));
    }
    assert_eq!(wanted.next(), None);
    assert_eq!(cart.total(), model.len() as u64);
    assert_eq!(cart.is_empty(), model.is_empty());
    for ((dir, name), value) in model {
        assert_eq!(cart.get(*dir, name), Some(*value));
    }
}

fn apply(cart: &mut Cart, model: &mut Model, step: Step) {
    match step {
        Step::Insert(dir, name, value) => {
            let old = cart.insert(dir, &name, value);
            assert_eq!(old, model.insert((dir, name), value));
        }
        Step::Remove(dir, name) => assert_eq!(cart.remove(dir, &name), model.remove(&(dir, name))),
        Step::RemoveAt(at) => {
            let Some((key, value)) = model.iter().nth(at % model.len().max(1)).map(|(k, v)| (k.clone(), *v)) else {
                return;
            };
            assert_eq!(cart.remove(key.0, &key.1), Some(value));
            model.remove(&key);
        }
        Step::Get(dir, name) => assert_eq!(cart.get(dir, &name), model.get(&(dir, name)).copied()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Goal: the index answers as a map of the standard library does, keeps its form, and gives all memory back.
    /// Method: random steps, compared on the way and at the end. Then everything is removed.
    #[test]
    fn agrees_with_a_map(steps in prop::collection::vec(step(), 1..if cfg!(miri) { 60 } else { 600 })) {
        let (mut cart, mut model) = (Cart::new(), Model::new());
        for (n, step) in steps.into_iter().enumerate() {
            apply(&mut cart, &mut model, step);
            if n % 50 == 0 {
                compare(&cart, &model);
            }
        }
        compare(&cart, &model);
        while let Some(((dir, name), value)) = model.pop_first() {
            prop_assert_eq!(cart.remove(dir, &name), Some(value));
        }
        compare(&cart, &model);
        prop_assert_eq!(cart.bytes(), 0);
    }
}
