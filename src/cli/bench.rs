//! `glocal bench`: load on a mesh, and figures of how it carries it.
//!
//! It guarantees that rates are open loop (a latency counts from the moment a message was due, whenever it could be
//! sent), that everything published is accounted for as arrived, lost, doubled or out of order, that what this side drops
//! is told apart from what the mesh loses, and that it says when it was itself too slow for its figures to mean much.

use std::process::ExitCode;

use clap::Subcommand;

mod connect;
mod cpu;
mod ends;
mod flood;
mod head;
mod idle;
mod latency;
mod link;
mod nats;
mod nats_dial;
mod nats_read;
mod pace;
mod pair;
mod progress;
mod publish;
mod report;
mod request;
mod spread;
mod subscribe;
mod victim;
mod watch;

const EXAMPLES: &str = "\
Examples:
  glocal bench pair --context here --to there           messages a second, and CPU
  glocal bench request --rate 1000/s                    how long replies take
  glocal bench sub --duration 10                        in one terminal
  glocal bench pub --rate 20000/s                       in another
  glocal bench flood-and-victim --context a-here --to a-there --flood b-here:b-there
  glocal bench pair --protocol nats --server localhost:4222

Connection flags, environment and contexts are those of 'glocal pub'; a saved context names each further connection.
Subjects are below 'bench.'. All figures are of this machine and this moment: compare what was measured in turns.";

/// Arguments of `glocal bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Publishes at a rate, or as fast as the broker takes it.
    Pub(publish::Args),
    /// Counts what arrives, with gaps and ages.
    Sub(subscribe::Args),
    /// Messages a second from one publisher to one subscriber, and the CPU they cost.
    Pair(pair::Args),
    /// How long replies take, at a rate or with some under way.
    Request(request::Args),
    /// What one tenant feels while others flood.
    FloodAndVictim(Box<victim::Args>),
    /// New connections a second, and how long a handshake takes.
    Connect(connect::Args),
    /// What sessions cost that do nothing.
    Idle(idle::Args),
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.mode {
        Mode::Pub(args) => publish::run(&args),
        Mode::Sub(args) => subscribe::run(&args),
        Mode::Pair(args) => pair::run(&args),
        Mode::Request(args) => request::run(&args),
        Mode::FloodAndVictim(args) => victim::run(&args),
        Mode::Connect(args) => connect::run(&args),
        Mode::Idle(args) => idle::run(&args),
    }
}
