//! Tests of the cache: a seed decides which rank continues, and the result is compared with an array of bytes.
//! `one_node` has the ranks of one node, and `nodes` has several nodes with the messages between them.

mod nodes;
mod one_node;
mod scheduler;
