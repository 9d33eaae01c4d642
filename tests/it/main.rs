//! The integration tests, in one binary: what no single crate can test.
//!
//! `tidy` holds the house's rules over the sources, `docs` runs the commands that the documents show.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "helpers of tests are tests"
)]

mod bench_cli;
mod docs;
mod mesh_attacks;
mod mesh_bad_input;
mod mesh_busy_poll;
mod mesh_cases;
mod mesh_certificates;
mod mesh_cut;
mod mesh_dedicated;
mod mesh_dedicated_hostile;
mod mesh_delivery;
mod mesh_demo;
mod mesh_edges;
mod mesh_entries;
mod mesh_floods;
#[cfg(glocal_guards)]
mod mesh_guards;
mod mesh_half_dead;
mod mesh_hostile_broker;
mod mesh_hostile_bundle;
mod mesh_hostile_interest;
mod mesh_life;
mod mesh_memory;
mod mesh_quic;
mod mesh_rates;
mod mesh_reload;
mod mesh_resign;
mod mesh_sight;
mod mesh_slow;
mod mesh_strangers;
mod mesh_terms;
mod support;
mod tidy;
