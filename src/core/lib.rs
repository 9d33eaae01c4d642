//! The decisions of the Glocal mesh, without I/O.
//!
//! This crate is for everything that decides: what a name means, who a certificate speaks for, what that principal
//! may do, which subscribers and brokers a message goes to, and in which order bytes leave. It guarantees that nothing
//! is routed without a [`policy::Permit`], and that all of it is deterministic: time comes in as a value.
//! It never touches sockets, files, clocks, threads or randomness.

pub mod bundle;
pub mod control;
pub mod count;
pub mod data;
pub mod deny;
pub mod edge;
pub mod guard;
pub mod identity;
pub mod inbox;
pub mod interest;
pub mod limits;
pub mod memory;
pub mod name;
pub mod policy;
pub mod port;
pub mod rate;
pub mod reliable;
pub mod routes;
pub mod sched;
pub mod table;
pub mod tally;
pub mod tenant;
pub mod time;
pub mod topology;
