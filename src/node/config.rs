//! Configuration that compiles: raw TOML, environment and `-D` overrides to one checked value, all errors at once.
