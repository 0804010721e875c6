//! The cache under a scheduler that chooses by a seed which rank continues, against an array of bytes: ranks of one
//! node (`one_node`), and of several with the messages between them (`nodes`).

mod nodes;
mod one_node;
mod scheduler;
