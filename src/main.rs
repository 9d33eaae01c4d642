//! The `glocal` command.
fn main() {}
