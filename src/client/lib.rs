//! The agent library of the Glocal mesh.
