//! The cache under a scheduler that chooses by a seed which rank goes on, against an array of bytes: ranks of one node
//! (`one_node`), and of several with what they send to each other (`nodes`).

mod nodes;
mod one_node;
mod scheduler;
