//! Values by ranges of bytes.

use std::collections::BTreeMap;

/// A value for each range of a file that was touched.
#[derive(Debug)]
pub struct Spans<T>(BTreeMap<u64, (u64, T)>);

impl<T> Default for Spans<T> {
    fn default() -> Spans<T> {
        Spans(BTreeMap::new())
    }
}

impl<T: Clone + Default> Spans<T> {
    /// Passes to `show` the values of `start..end`, divided so that each lies inside it: ranges are cut at its ends,
    /// and ranges that were not touched before begin with the default.
    pub fn visit(&mut self, start: u64, end: u64, mut show: impl FnMut((u64, u64), &mut T)) {
        if start >= end {
            return;
        }
        self.cut(start);
        self.cut(end);
        let mut at = start;
        let mut gaps = Vec::new();
        for (&from, &(to, _)) in self.0.range(start..end) {
            if at < from {
                gaps.push((at, from));
            }
            at = to;
        }
        if at < end {
            gaps.push((at, end));
        }
        for (from, to) in gaps {
            self.0.insert(from, (to, T::default()));
        }
        for (&from, (to, value)) in self.0.range_mut(start..end) {
            show((from, *to), value);
        }
    }

    /// Gives all of `start..end` one value, as one range.
    pub fn set(&mut self, start: u64, end: u64, value: T) {
        if start >= end {
            return;
        }
        self.cut(start);
        self.cut(end);
        let inside: Vec<u64> = self.0.range(start..end).map(|(from, _)| *from).collect();
        inside.iter().for_each(|from| drop(self.0.remove(from)));
        self.0.insert(start, (end, value));
    }

    fn cut(&mut self, at: u64) {
        let Some((&from, (to, value))) = self.0.range_mut(..at).next_back() else { return };
        if *to > at {
            let rest = (*to, value.clone());
            *to = at;
            self.0.insert(at, rest);
        }
        debug_assert!(from < at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Goal: ranges have the values that each of their bytes has. Method: an array is changed in the same way and
        /// compared.
        #[test]
        fn as_an_array(steps in proptest::collection::vec((0u64..60, 0u64..60, any::<bool>()), 1..40)) {
            let (mut spans, mut bytes) = (Spans::<u32>::default(), [0u32; 60]);
            for (n, (a, b, sets)) in (1..).zip(steps) {
                let (start, end) = (a.min(b), a.max(b));
                if sets {
                    spans.set(start, end, n);
                    bytes[start as usize..end as usize].fill(n);
                } else {
                    let mut seen = start;
                    spans.visit(start, end, |(from, to), value| {
                        assert_eq!(from, seen);
                        assert!(bytes[from as usize..to as usize].iter().all(|b| b == value));
                        *value += 100;
                        seen = to;
                    });
                    assert_eq!(seen, end);
                    bytes[start as usize..end as usize].iter_mut().for_each(|b| *b += 100);
                }
            }
        }
    }
}
