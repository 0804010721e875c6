//! Tests with names that are chosen to be difficult.

use crate::{Cart, NAME_MAX};

/// Goal: the deepest tree that names can make works, in both orders of removal. Method: names of which each is the
/// beginning of the next, so that every node takes one byte, inserted and removed from both ends.
#[test]
fn every_name_begins_the_next() {
    let name = [b'n'; NAME_MAX];
    let longest = if cfg!(miri) { 30 } else { NAME_MAX };
    for from_the_end in [false, true] {
        let mut cart = Cart::new();
        let order = |n: usize| if from_the_end { longest - n } else { n + 1 };
        for n in 0..longest {
            assert_eq!(cart.insert(7, &name[..order(n)], n as u64), None);
        }
        cart.check();
        let mut walk = cart.walk(7);
        for len in 1..=longest {
            assert_eq!(walk.next().map(|(name, _)| name.len()), Some(len));
        }
        assert_eq!(walk.next(), None);
        for n in (0..longest).rev() {
            assert_eq!(cart.remove(7, &name[..order(n)]), Some(n as u64));
            cart.check();
        }
        assert_eq!(cart.bytes(), 0);
    }
}

/// Goal: many names behind a long common prefix. Method: names of 255 bytes that differ in their last bytes, with fewer
/// names under Miri.
#[test]
fn many_names_behind_one_prefix() {
    let count: u32 = if cfg!(miri) { 200 } else { 1_000_000 };
    let name = |n: u32| {
        let mut name = [b'p'; NAME_MAX];
        // Five bytes of a number in base 254, all of them allowed in names.
        let mut n = u64::from(n) * 0x9e37 % (1 << 32);
        for byte in name[NAME_MAX - 5..].iter_mut() {
            *byte = (n % 254 + 1) as u8;
            n /= 254;
        }
        name
    };
    let mut cart = Cart::new();
    for n in 0..count {
        assert_eq!(cart.insert(1, &name(n), n.into()), None);
    }
    cart.check();
    assert_eq!(cart.len(1), count as usize);
    assert!((0..count).all(|n| cart.get(1, &name(n)) == Some(n.into())));
    assert!((0..count).all(|n| cart.remove(1, &name(n)) == Some(n.into())));
    assert_eq!(cart.bytes(), 0);
}

/// Goal: a node has an entry for every byte that names can have, and for the name that ends there. Method: one name for
/// each such byte; every other name is followed by one more byte.
#[test]
fn the_largest_node() {
    let mut cart = Cart::new();
    let prefix = [b'q'; NAME_MAX - 2];
    let name = |byte: u8| {
        let mut name = prefix.to_vec();
        name.extend((byte != 0).then_some(byte));
        name.extend((byte % 2 == 1).then_some(b'.'));
        name
    };
    for byte in 0..=255 {
        cart.insert(1, &name(byte), u64::MAX - u64::from(byte));
    }
    cart.check();
    for byte in 0..=255 {
        assert_eq!(cart.get(1, &name(byte)), Some(u64::MAX - u64::from(byte)));
        assert_eq!(cart.get(1, &[&name(byte)[..], b"-"].concat()), None);
    }
    for byte in 0..=255 {
        assert_eq!(cart.remove(1, &name(byte)), Some(u64::MAX - u64::from(byte)));
        if !cfg!(miri) || byte % 32 == 0 {
            cart.check();
        }
    }
    assert_eq!(cart.bytes(), 0);
}

/// Goal: bytes that are not a valid name are refused at an insertion, and are not found. Method: an empty name, a name
/// that is too long, and one with NUL.
#[test]
fn what_is_no_name() {
    let long = [b'a'; NAME_MAX + 1];
    for bad in [&b""[..], &long, b"a\0", b"\0"] {
        let mut cart = Cart::new();
        cart.insert(1, b"a", 5);
        cart.insert(1, b"ab", 6);
        assert_eq!((cart.get(1, bad), cart.remove(1, bad)), (None, None), "{bad:?}");
        let inserted = std::panic::catch_unwind(move || cart.insert(1, bad, 7));
        assert!(inserted.is_err(), "{bad:?}");
    }
}
