//! The Glocal broker: everything that touches sockets, files, clocks and cryptography for one node.
//!
//! It moves bytes between the outside and the machines of `glocal-engine`, which decide. Sessions and bridges never
//! know each other; they meet in `glocal-core`. It never reads a tenant from a message.

pub mod config;
pub mod trust;
