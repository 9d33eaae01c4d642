//! Tests of the schedulers.
