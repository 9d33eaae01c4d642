//! A seeded world of many Glocal brokers, with an oracle.
//!
//! Brokers are the engine's own machines: control halves, sessions, lanes, readers and writers. Sockets, clocks and
//! threads are replaced by values: bytes wait in queues, time is a number, and one generator seeded with one number
//! decides everything, so that the same seed gives the same world, to the last byte. The oracle knows the plan and what
//! clients asked for, never what the engine thinks: it says who may get a message, and after a rest who must have. It
//! taps the wire with a parser of its own. What it cannot show: anything of TLS, QUIC, certificates, or real threads.

pub mod act;
pub mod bridge;
pub mod broker;
pub mod bundles;
pub mod check;
pub mod client;
pub mod converge;
pub mod failover;
pub mod fairness;
pub mod fault;
pub mod filters;
pub mod forge;
pub mod graph;
pub mod greet;
pub mod liar;
pub mod load;
pub mod oracle;
pub mod plan;
pub mod random;
pub mod run;
pub mod tap;
pub mod toy;
pub mod truth;
pub mod words;
pub mod world;

#[cfg(test)]
mod tests;
