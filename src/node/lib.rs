//! The Glocal broker: everything that touches sockets, files, clocks and cryptography for one node.
//!
//! It moves bytes between the outside and the machines of `glocal-engine`, which decide. Sessions and bridges never
//! know each other; they meet in `glocal-core`. It never reads a tenant from a message.

#[cfg(glocal_bare)]
compile_error!("--cfg glocal_bare keeps no tenant from any edge: no node is made of it");

pub mod admin;
mod bridge;
pub mod bridge_runtime;
pub mod clock;
pub mod config;
mod congestion;
pub mod context;
mod control_task;
pub mod edge_status;
mod listener;
pub mod live;
mod memory;
mod metrics;
pub mod node;
mod ops;
mod random;
mod read_ahead;
mod rebirth;
mod reliable_task;
pub mod reload;
mod session;
pub mod sight;
pub mod start;
pub mod state;
pub mod status;
pub mod telemetry;
pub mod trust;

pub use node::Node;
pub use start::{Listening, StartError, prepare};
