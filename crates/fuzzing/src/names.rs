//! The index of names under changes that a fuzzer chooses.

use amphi_cart::{Cart, NAME_MAX};
use arbitrary::{Result, Unstructured};
use std::collections::BTreeMap;

/// Names from which others are made by another end, so that they share beginnings of all lengths.
const NAMES_KEPT: usize = 8;

/// Makes, changes, finds and removes names in an index and in an ordered map.
///
/// Panics if they answer differently, if a walk shows other names, or if the index keeps memory without names.
pub fn names(bytes: &[u8]) {
    let mut input = Unstructured::new(bytes);
    let (mut cart, mut map) = (Cart::new(), BTreeMap::new());
    let mut kept: Vec<Vec<u8>> = Vec::new();
    while !input.is_empty() && step(&mut input, &mut cart, &mut map, &mut kept).is_ok() {}
    let mut wanted = map.iter();
    for dir in cart.dirs() {
        let mut walk = cart.walk(dir);
        while let Some((name, value)) = walk.next() {
            let ((wanted_dir, wanted_name), wanted_value) = wanted.next().expect("no name too many");
            assert_eq!((dir, name, value), (*wanted_dir, &wanted_name[..], *wanted_value));
        }
    }
    assert!(wanted.next().is_none(), "no name is missing");
    for ((dir, name), value) in map {
        assert_eq!(cart.get(dir, &name), Some(value));
        assert_eq!(cart.remove(dir, &name), Some(value));
    }
    assert_eq!(cart.bytes(), 0);
}

fn step(
    input: &mut Unstructured<'_>,
    cart: &mut Cart,
    map: &mut BTreeMap<(u64, Vec<u8>), u64>,
    kept: &mut Vec<Vec<u8>>,
) -> Result<()> {
    let dir = input.int_in_range(0..=3)?;
    let name = name(input, kept)?;
    match input.int_in_range(0..=3)? {
        0 | 1 => {
            let value = input.arbitrary::<u64>()? >> input.int_in_range(0..=63)?;
            assert_eq!(cart.insert(dir, &name, value), map.insert((dir, name), value));
        }
        2 => assert_eq!(cart.remove(dir, &name), map.remove(&(dir, name))),
        _ => assert_eq!(cart.get(dir, &name), map.get(&(dir, name)).copied()),
    }
    Ok(())
}

/// A part of a kept name, a run of one byte, and a few bytes.
fn name(input: &mut Unstructured<'_>, kept: &mut Vec<Vec<u8>>) -> Result<Vec<u8>> {
    let mut name = match kept.get(input.choose_index(NAMES_KEPT)?) {
        Some(other) => other[..input.int_in_range(0..=other.len())?].to_vec(),
        None => Vec::new(),
    };
    let run = if input.ratio(1, 8)? { input.int_in_range(0..=NAME_MAX)? } else { 0 };
    name.resize(name.len() + run, b'r');
    for _ in 0..input.int_in_range(0..=4)? {
        name.push(input.int_in_range(1..=255)?);
    }
    name.truncate(NAME_MAX);
    if name.is_empty() {
        name.push(b'n');
    }
    kept.insert(0, name.clone());
    kept.truncate(NAMES_KEPT);
    Ok(name)
}
