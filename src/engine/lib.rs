//! Session and bridge machines of the Glocal mesh, without I/O.
