//! Frames and slices of the Glocal mesh: bytes in, bytes out.
//!
//! This crate is for the two encodings of DESIGN section 10: control frames (a bincode body under a size limit) and
//! data frames (a fixed prefix, so that a relay decodes without allocating and rewrites without copying twice), and for
//! the slices of a bridge's data streams (DESIGN section 6). It guarantees that sizes are checked before anything else,
//! that nothing a peer sends makes it panic or allocate beyond a named limit, and that what it encodes it also decodes.
//! It never touches sockets, clocks or randomness, and it decides nothing: whether a frame is welcome now, and whether
//! its names may be used, is for its callers.
//!
//! - [`frame::next_frame`] finds the next frame in a receive buffer;
//! - [`control::Control`] is every control body;
//! - [`data::DataFrame`] is the borrowed view of a data frame, [`data::DataHead`] its encoder, [`ext`] its extensions;
//! - [`slice::SliceReader`] takes a bridge stream apart, [`slice::LaneBuffer`] puts a lane's frames together.
//! - [`bundle`] is the envelope of the signed bundle on disk;
//! - [`nats`] is the text protocol of NATS clients.

pub mod bundle;
pub mod control;
pub mod data;
mod error;
pub mod ext;
pub mod frame;
pub mod nats;
pub mod slice;

pub use error::{EncodeError, FrameError};

#[cfg(test)]
mod golden;

// The checks of the fuzz targets name this crate from outside, and are run by its tests, too.
#[cfg(test)]
extern crate self as glocal_wire;
