//! The node on which a page of a job on several nodes is cached.
//!
//! Owns only the form of this information. A page has a node by its number, its home, and moves from there to a node
//! that continues to use it (`file/migrate.rs`). Each node keeps one such word for each page. A node has the page if
//! its own word names it; the words of other nodes only say which node to ask next.
//!
//! Invariant: only the node that has a page gives it a new place, and counts its moves. So of two words the greater one
//! is newer, and a node that follows the answers sees newer and newer places until it finds the page.

/// Most nodes of a job whose pages move.
pub const NODES_MAX: usize = (1 << NODE_BITS) - 2;

const NODE_BITS: u32 = 16;

/// The node that has a page, and how often the page has moved. 0 means that it never moved and is where its number
/// says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(pub u64);

impl Place {
    /// The node, unless the page never moved.
    pub fn node(self) -> Option<usize> {
        (self.0 & ((1 << NODE_BITS) - 1)).checked_sub(1).map(|node| node as usize)
    }

    /// The place after one more move.
    pub fn moved_to(self, node: usize) -> Place {
        debug_assert!(node < NODES_MAX);
        Place((((self.0 >> NODE_BITS) + 1) << NODE_BITS) | (node as u64 + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a later place is greater than an earlier one, whatever nodes they name.
    /// Method: a page that goes to and fro.
    #[test]
    fn later_places_are_greater() {
        let mut place = Place::default();
        assert_eq!(place.node(), None);
        for node in [NODES_MAX - 1, 0, 5, 0, NODES_MAX - 1] {
            let next = place.moved_to(node);
            assert!(next > place && next.node() == Some(node));
            place = next;
        }
    }
}
