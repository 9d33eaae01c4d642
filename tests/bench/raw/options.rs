//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::victim::Trickle;
use crate::wire::Protocol;

/// Raw load for measuring brokers.
#[derive(Debug, Parser)]
#[command(name = "raw-load")]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) mode: Mode,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Mode {
    /// As much as goes through from one publisher to one subscriber.
    Pair(Pair),
    /// Requests one after the other, and how long each takes.
    Request(Request),
    /// New connections, each opened up to the protocol's welcome and closed.
    Connect(Connect),
    /// Connections that do nothing, and the memory they take.
    Idle(Idle),
    /// One publisher, many subscribers.
    Fanout(Fanout),
    /// No broker at all: takes a subscriber and then a publisher over mutual TLS, and copies what the one sends to the other.
    Relay(Relay),
    /// How late a steady trickle arrives, alone and while another tenant floods.
    FloodAndVictim(FloodAndVictim),
    /// The flood of the mode above, which runs it in a process of its own.
    #[command(hide = true)]
    Flood(Flood),
}

/// Where the broker is, and who connects.
#[derive(Clone, Debug, Args)]
pub(crate) struct Target {
    /// What to speak.
    #[arg(long, value_enum)]
    pub(crate) protocol: Protocol,
    /// Where the publisher connects, `<host>:<port>`.
    #[arg(long)]
    pub(crate) server: String,
    /// Where the subscriber connects, when that is another broker.
    #[arg(long)]
    pub(crate) subscribe_at: Option<String>,
    /// The client's certificate chain, PEM.
    #[arg(long)]
    pub(crate) cert: PathBuf,
    /// Its key, PEM.
    #[arg(long)]
    pub(crate) key: PathBuf,
    /// A broker whose CPU is read, `<name>=<pid>`; may be repeated.
    #[arg(long = "broker", value_parser = broker)]
    pub(crate) brokers: Vec<(String, u32)>,
}

#[derive(Debug, Args)]
pub(crate) struct Pair {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Payload of each message, in bytes.
    #[arg(long, default_value_t = 256)]
    pub(crate) size: usize,
    /// Messages.
    #[arg(long, default_value_t = 400_000)]
    pub(crate) count: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Request {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Payload of each request and answer, in bytes.
    #[arg(long, default_value_t = 256)]
    pub(crate) size: usize,
    /// Requests.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) count: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Connect {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Connections in all.
    #[arg(long, default_value_t = 2_000)]
    pub(crate) count: u64,
    /// How many are opened at once.
    #[arg(long, default_value_t = 4)]
    pub(crate) threads: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Idle {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Connections.
    #[arg(long, default_value_t = 5_000)]
    pub(crate) count: usize,
    /// Connections before the first reading of the broker's memory, so that what it sets up once is not counted.
    #[arg(long, default_value_t = 100)]
    pub(crate) before: usize,
}

#[derive(Debug, Args)]
pub(crate) struct Fanout {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Subscribers, each with a connection of its own.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) subscribers: usize,
    /// Payload of each message, in bytes.
    #[arg(long, default_value_t = 256)]
    pub(crate) size: usize,
    /// Messages.
    #[arg(long, default_value_t = 640)]
    pub(crate) count: u64,
    /// Messages that the publisher writes at once. Two such bursts are on their way at most.
    #[arg(long, default_value_t = 16)]
    pub(crate) burst: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Relay {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub(crate) listen: String,
    /// The server's certificate chain, PEM.
    #[arg(long)]
    pub(crate) cert: PathBuf,
    /// Its key, PEM.
    #[arg(long)]
    pub(crate) key: PathBuf,
    /// The root of the clients' certificates, PEM.
    #[arg(long)]
    pub(crate) root: PathBuf,
    /// The file into which the address is written once it listens.
    #[arg(long)]
    pub(crate) ready_file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct FloodAndVictim {
    #[command(flatten)]
    pub(crate) target: Target,
    /// The certificate chain of the tenant that floods, PEM.
    #[arg(long)]
    pub(crate) flood_cert: PathBuf,
    /// Its key, PEM.
    #[arg(long)]
    pub(crate) flood_key: PathBuf,
    #[command(flatten)]
    pub(crate) trickle: Trickle,
}

#[derive(Debug, Args)]
pub(crate) struct Flood {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Payload of each message, in bytes.
    #[arg(long)]
    pub(crate) size: usize,
}

fn broker(text: &str) -> Result<(String, u32), String> {
    let (name, pid) = text.split_once('=').ok_or("not <name>=<pid>")?;
    Ok((name.to_owned(), pid.parse().map_err(|_| format!("'{pid}' is no process"))?))
}
