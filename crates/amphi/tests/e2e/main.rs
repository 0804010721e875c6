//! End-to-end tests: the real binary, a real mount, real disks. They need root or a usable /dev/fuse.
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "tests are outside programs")]

mod bad_input;
mod crash;
mod front_end;
mod fsx;
mod harness;
mod mapped;
mod posix;
mod space;
mod users;
