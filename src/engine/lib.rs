//! The machines of the Glocal mesh, without I/O: native sessions, bridges, and the owner of control state.
//!
//! This crate joins the decisions of `glocal-core` to the codecs of `glocal-wire`: bytes of a session or of a bridge's
//! stream go in, encoded frames appear in the lanes of other sessions and edges. The node moves the bytes, the simulator
//! moves them too, and both drive exactly this code. It never reads a tenant from a message: a session's comes from its
//! principal, a lane's from its opening, both checked.

pub mod advisory;
pub mod allowance;
pub mod batch;
pub mod client;
pub mod dedicated;
pub mod driver;
pub mod gossip;
pub mod handshake;
mod interest;
pub mod lane_reader;
pub mod lane_writer;
pub mod link;
pub mod link_state;
pub mod liveness;
pub mod machine;
pub mod nats;
pub mod redial;
pub mod reliable;
pub mod routed;
pub mod sender;
pub mod session;
pub mod shared;
pub mod tally;

#[cfg(test)]
mod testing;
