//! The decisions of the Glocal mesh, without I/O.
//!
//! This crate is for everything that decides: what a name means, who a certificate speaks for, what that principal
//! may do, which subscribers and brokers a message goes to, and in which order bytes leave. It guarantees that nothing
//! is routed without a [`policy::Permit`], and that all of it is deterministic: time comes in as a value.
//! It never touches sockets, files, clocks, threads or randomness.

pub mod bundle;
pub mod busy_poll;
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

/// Whether edges have neither a filter of tenants nor a scheduler: only in a build that measures what these cost, and of
/// which no node can be made.
pub(crate) const IS_BARE: bool = cfg!(glocal_bare);

#[cfg(all(glocal_bare, not(glocal_bare_meant)))]
compile_error!("--cfg glocal_bare keeps no tenant from any edge: set GLOCAL_BARE_BUILD=1 as well to measure with it");

#[cfg(all(glocal_bare, glocal_guards))]
compile_error!("tests of guards have no use for a build without them");
