//! Tests of the compilation of configurations.
