//! What the load program is told.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use glocal_client::{Client, ConnectOptions, PemSource};

/// The command line.
#[derive(Clone, Debug, Parser)]
#[command(name = "hop", about = "Load for measuring a mesh")]
pub(crate) struct Options {
    /// Folder of agents' certificates, as `glocal fabric apply` writes it.
    #[arg(long)]
    pub(crate) agents: PathBuf,
    /// A broker whose CPU is reported, `<name>=<pid>`; may be repeated.
    #[arg(long = "broker", value_parser = broker)]
    pub(crate) brokers: Vec<(String, u32)>,
    /// Worker threads of the load.
    #[arg(long, default_value_t = 2)]
    pub(crate) threads: usize,
    #[command(subcommand)]
    pub(crate) mode: Mode,
}

/// What to measure.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Mode {
    /// Request/reply on one node and over a bridge, in turns.
    Latency(Latency),
    /// A stream at a fixed rate, open loop, checked message by message.
    Stream(Stream),
    /// Many idle sessions at one broker; see its module.
    Crowd(Crowd),
    /// Every class at a steady rate while somebody breaks the mesh; see its module.
    Witness(Witness),
    /// As much as goes through from one publisher to one subscriber, with a bounded number of messages on their way.
    Pair(Pair),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Latency {
    /// Who asks, and where: `<tenant>/<agent>@<region>=<address>`.
    #[arg(long)]
    pub(crate) requester: Who,
    /// Who answers on the same node.
    #[arg(long)]
    pub(crate) near: Who,
    /// Who answers behind a bridge.
    #[arg(long)]
    pub(crate) far: Who,
    /// Rounds, each with both kinds.
    #[arg(long, default_value_t = 10)]
    pub(crate) rounds: usize,
    /// Requests of one kind in one round.
    #[arg(long, default_value_t = 400)]
    pub(crate) requests: usize,
    /// Requests of one kind before counting begins.
    #[arg(long, default_value_t = 500)]
    pub(crate) warm_up: usize,
    /// Payload of requests and replies, in bytes.
    #[arg(long, default_value_t = 256)]
    pub(crate) size: usize,
    /// Most microseconds that the median over the bridge may be above the median on one node.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) bound_us: i64,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Stream {
    /// Who publishes, and where.
    #[arg(long)]
    pub(crate) publisher: Who,
    /// Who subscribes, and where.
    #[arg(long)]
    pub(crate) subscriber: Who,
    /// Publishers, each with a connection of its own.
    #[arg(long, default_value_t = 4)]
    pub(crate) publishers: u32,
    /// Messages of all publishers together.
    #[arg(long, default_value_t = 100_000)]
    pub(crate) messages: u64,
    /// Messages a second of all publishers together.
    #[arg(long, default_value_t = 20_000)]
    pub(crate) rate: u64,
    /// Payload, in bytes; at least 20.
    #[arg(long, default_value_t = 256)]
    pub(crate) size: usize,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Pair {
    /// Who publishes, and where.
    #[arg(long)]
    pub(crate) publisher: Who,
    /// Who subscribes, and where.
    #[arg(long)]
    pub(crate) subscriber: Who,
    /// Messages in one round.
    #[arg(long, default_value_t = 200_000)]
    pub(crate) messages: u64,
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Payload, in bytes; may be repeated, sizes take turns.
    #[arg(long = "size", default_values_t = [256])]
    pub(crate) sizes: Vec<usize>,
    /// Most messages on their way.
    #[arg(long, default_value_t = 4_096)]
    pub(crate) window: u64,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Crowd {
    /// Who they are, and where.
    #[arg(long)]
    pub(crate) who: Who,
    /// How many.
    #[arg(long, default_value_t = 2_000)]
    pub(crate) sessions: usize,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Witness {
    /// Who publishes, and where.
    #[arg(long)]
    pub(crate) publisher: Who,
    /// Who subscribes, and where; may be repeated.
    #[arg(long = "subscriber", required = true)]
    pub(crate) subscribers: Vec<Who>,
    /// Messages a second of each class.
    #[arg(long, default_value_t = 200)]
    pub(crate) rate: u32,
    /// Only these classes; may be repeated.
    #[arg(long = "class")]
    pub(crate) classes: Vec<String>,
}

/// An agent at a broker.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    /// `<tenant>/<agent>@<region>`.
    agent: String,
    address: String,
}

impl std::str::FromStr for Who {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (agent, address) = text.split_once('=').ok_or("<tenant>/<agent>@<region>=<address> is needed")?;
        if !agent.contains('/') {
            return Err(format!("'{agent}' has no tenant"));
        }
        Ok(Self { agent: agent.to_owned(), address: address.to_owned() })
    }
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.agent, self.address)
    }
}

impl Who {
    /// Connects as this agent.
    pub(crate) async fn connect(&self, options: &Options) -> anyhow::Result<Client> {
        let file = |name: String| PemSource::File(options.agents.join(name));
        let tenant = self.agent.split_once('/').map_or("", |(tenant, _)| tenant);
        let mut connect = ConnectOptions::new(vec![self.address.parse()?], file(format!("{tenant}/root.pem")))
            .identity(file(format!("{}.pem", self.agent)), file(format!("{}.key", self.agent)));
        connect.client_name = "bench".to_owned();
        // What a load drops itself would be taken for the broker's loss.
        connect.buffering.messages_max = 1_000_000;
        connect.buffering.bytes_max = 1 << 30;
        connect.timeouts.publish = Duration::from_secs(30);
        Ok(Client::connect(connect).await?)
    }
}

fn broker(text: &str) -> Result<(String, u32), String> {
    let (name, pid) = text.split_once('=').ok_or("<name>=<pid> is needed")?;
    Ok((name.to_owned(), pid.parse().map_err(|_| format!("'{pid}' is no process number"))?))
}
