//! `glocal request`: sends a request and prints the replies, or measures many.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use glocal_client::{Client, RequestError};

use super::WithHint as _;
use super::connect::{ConnectArgs, block_on, seconds};
use super::message::{Form, MessageArgs, print};
use super::output::Out;

const EXAMPLES: &str = "\
Examples:
  glocal request time.now                       prints the first reply
  glocal request time.now '' --timeout 0.5      exit code 1 when none comes within 0.5 s
  glocal request jobs.status all --replies 5    prints up to five replies
  glocal request echo ping --repeat 1000        prints how long replies took";

/// Arguments of `glocal request`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The subject.
    subject: String,
    /// The payload.
    #[arg(default_value = "")]
    payload: String,
    /// Seconds to wait for replies.
    #[arg(short, long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    timeout: Duration,
    /// Prints up to this many replies; one is enough for success.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    replies: u64,
    /// Sends this many requests, one after the other, and prints how long replies took instead.
    #[arg(long, value_name = "N", conflicts_with = "replies", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    repeat: Option<u64>,
    /// Prints one JSON object per reply.
    #[arg(long)]
    json: bool,
    /// Prints the replies' bytes, each followed by a line end.
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    #[command(flatten)]
    message: MessageArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    block_on(async move {
        let client = args.connect.connect(false).await?;
        let result = match args.repeat {
            Some(count) => measure(&client, &args, count).await,
            None => ask(&client, &args).await,
        };
        client.close().await;
        result
    })
}

async fn ask(client: &Client, args: &Args) -> anyhow::Result<ExitCode> {
    let form = match (args.json, args.raw) {
        (true, _) => Form::Json,
        (_, true) => Form::Raw,
        _ => Form::Payload,
    };
    let publish = args.message.publish(&args.subject, args.payload.clone().into_bytes())?;
    let wanted = usize::try_from(args.replies).unwrap_or(usize::MAX);
    let mut replies = client.request_many(publish, wanted, args.timeout).await.map_err(advised)?;
    let mut out = Out::new();
    for seen in 0..wanted {
        match replies.next().await {
            Ok(message) => print(&mut out, &message, form)?,
            // Fewer than were wanted is what a time limit is for; none is a failure.
            Err(RequestError::Timeout) if seen > 0 => break,
            Err(error) => {
                out.flush()?;
                return Err(advised(error));
            }
        }
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn advised(error: RequestError) -> anyhow::Error {
    let hint = match &error {
        RequestError::NoResponders(_) => "start one with 'glocal reply'; only the own tenant's count",
        RequestError::Denied(_) => "'glocal whoami' says who the broker takes you for",
        RequestError::Timeout => "give it longer with --timeout",
        _ => return error.into(),
    };
    Err::<(), _>(error).hint(hint).err().unwrap_or_else(|| anyhow::anyhow!("request failed"))
}

async fn measure(client: &Client, args: &Args, count: u64) -> anyhow::Result<ExitCode> {
    let publish = args.message.publish(&args.subject, args.payload.clone().into_bytes())?;
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..count {
        let start = Instant::now();
        client.request_with(publish.clone(), args.timeout).await.map_err(advised)?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let at = |share: f64| -> u128 {
        let last = times.len().saturating_sub(1);
        // The index is at most `last`, which a f64 holds exactly.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let index = (last as f64 * share).round() as usize;
        times.get(index.min(last)).map_or(0, Duration::as_micros)
    };
    let (min, p50, p99, max) = (at(0.0), at(0.5), at(0.99), at(1.0));
    let mut out = Out::new();
    if args.json {
        out.line(&format!(
            "{{\"requests\":{count},\"min_us\":{min},\"p50_us\":{p50},\"p99_us\":{p99},\"max_us\":{max}}}"
        ))?;
    } else {
        out.line(&format!("{count} requests: min {min} µs, p50 {p50} µs, p99 {p99} µs, max {max} µs"))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
