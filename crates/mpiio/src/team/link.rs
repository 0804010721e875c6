//! A connection between a rank and the leader of another node: the seam between the exchange and the network.
//!
//! Owns the trait and its production form, a TCP connection. The tests' form (`tests/model/nodes.rs`) delivers a
//! message when a scheduler says so. Messages of one connection arrive in the order in which they were sent.

use super::message::{Kind, Message, receive, send};
use crate::error::Outcome;
use crate::file::Extent;
use std::net::TcpStream;

/// One end of a connection.
pub trait Link: Send {
    /// Sends a message. An error ends the connection.
    fn send(&mut self, kind: Kind, numbers: (u64, u64), extents: &[Extent], data: &[u8]) -> Outcome;
    /// Waits for the next message. An error, the end of the connection too, is the last that comes.
    fn receive(&mut self) -> Outcome<Message>;
}

impl Link for TcpStream {
    fn send(&mut self, kind: Kind, numbers: (u64, u64), extents: &[Extent], data: &[u8]) -> Outcome {
        send(self, kind, numbers, extents, data)
    }

    fn receive(&mut self) -> Outcome<Message> {
        receive(self)
    }
}
