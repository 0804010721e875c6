//! End-to-end tests: the real binary, a real mount, real disks. They need root or a usable /dev/fuse.
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "tests are outside programs")]

mod asynchronous;
mod bad_input;
mod bench;
mod cluster;
mod crash;
mod demo;
mod direct;
mod file_locks;
mod front_end;
mod fsx;
mod give_up;
mod handles;
mod harness;
mod ioctl;
mod mapped;
mod memory_group;
mod mounts_and_servers;
mod mpi_jobs;
mod network;
mod pipes;
mod posix;
mod program_pairs;
mod ranges;
mod reasons;
mod removed_directories;
mod set_id;
mod small_files;
mod soak;
mod space;
mod stopped;
mod surroundings;
mod together;
mod two_mounts;
mod units;
mod users;
