//! Frames and slices of the Glocal mesh: bytes in, bytes out.

pub mod bundle;
