//! The delivery contract of `ctrl` and `bulk`: broker to broker, end to end (DESIGN section 5).
//!
//! The origin numbers the messages of a (tenant, class) with one sequence and keeps each until every target broker has
//! acknowledged it ([`outgoing`]). With every copy goes, per target, the step back to that target's previous message which
//! may still be missing there; so a target delivers in sequence whatever the ways were, and drops repeats ([`incoming`]).
//! A window per target, in bytes, slows the publishers of that tenant on that class and nobody else ([`window`]).
//!
//! Guarantees, while origin and target live: none lost, none doubled, in order. Everything kept has a bound; time comes in
//! as a value. Never reads a clock, never knows a frame: messages are whatever the caller makes of them.

mod budget;
pub mod incoming;
pub mod outgoing;
pub mod window;

pub use budget::Budget;

#[cfg(test)]
mod tests;
