//! The form of trees, checked node by node.

use crate::Cart;
use crate::node::{Entry, Shape};
use crate::slab::block_size;

impl Cart {
    /// Checks the form of every tree, and that no block is in use that no tree reaches. Panics if one is.
    pub(super) fn check(&self) {
        let (mut names, mut blocks) = (0, 0);
        for root in self.roots.iter() {
            let mut todo = vec![(root.node, true)];
            let mut found = 0;
            while let Some((address, is_root)) = todo.pop() {
                let node = self.node(address);
                let Shape { leaves, links, prefix, width } = node.shape;
                let size = self.slabs.size(address);
                assert!(node.shape.bytes() <= size && (1..=8).contains(&width));
                assert!(block_size(node.shape.bytes()) + size / 8 + 8 >= size, "{:?} has {size} bytes", node.shape);
                let is_tail = leaves == 1 && links == 0 && node.keys()[0] != 0;
                assert!(leaves + links >= 2 || is_tail, "{:?}", node.shape);
                assert!(is_root || leaves + links >= 2 || prefix + leaves > 0);
                let mut keys = node.keys().to_vec();
                keys.sort_unstable();
                keys.dedup();
                assert_eq!(keys.len(), leaves + links);
                for (place, key) in node.keys().iter().enumerate() {
                    if let Entry::Link(link) = node.entry(place) {
                        assert!(*key != 0);
                        todo.push((node.link(link), false));
                    }
                }
                found += leaves;
                blocks += 1;
            }
            assert_eq!(found, root.len as usize);
            assert!(found > 0, "a directory without names has no root");
            names += found as u64;
        }
        assert_eq!(names, self.len);
        assert_eq!(blocks, self.slabs.blocks_in_use());
    }
}
