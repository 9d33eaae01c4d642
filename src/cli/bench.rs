//! `glocal bench`: load on a mesh, and figures of how it carries it.
//!
//! It guarantees that rates are open loop (a latency counts from the moment a message was due, whenever it could be
//! sent), that everything published is accounted for as arrived, lost, doubled or out of order, that what this side drops
//! is told apart from what the mesh loses, and that it says when it was itself too slow for its figures to mean much.

use std::process::ExitCode;

use clap::Subcommand;

mod flood;
mod head;
mod latency;
mod link;
mod pace;
mod progress;
mod report;
mod victim;
mod watch;

const EXAMPLES: &str = "\
Examples:
  glocal bench flood-and-victim --context a-here --to a-there --flood b-here:b-there

Subjects are below 'bench.'; a saved context ('glocal context add') names each further connection.
All figures are those of this machine and this moment: compare only what was measured in turns.";

/// Arguments of `glocal bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// What one tenant feels while others flood.
    FloodAndVictim(victim::Args),
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.mode {
        Mode::FloodAndVictim(args) => victim::run(&args),
    }
}
