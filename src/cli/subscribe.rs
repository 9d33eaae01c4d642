//! `glocal sub`: prints messages until it has enough.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use glocal_client::{Client, Message, Subscription};
use glocal_core::limits::COMMAND_MERGE_MAX;
use tokio::sync::mpsc;

use super::WithHint as _;
use super::connect::{ConnectArgs, block_on, interrupted, narrate, seconds};
use super::message::{Form, print, tell_ready};
use super::output::Out;

const EXAMPLES: &str = "\
Examples:
  glocal sub 'orders.>'                         prints 'subject payload' lines
  glocal sub 'orders.*' 'stock.>' --count 10    exits after ten messages
  glocal sub jobs --queue workers               each message goes to one of the group
  glocal sub 'orders.>' --json | jq -r .payload
  glocal sub alarms --count 1 --timeout 5       exit code 1 when none comes within 5 s

A line 'subscribed' on standard error says that the broker has confirmed: a message published
from then on is printed.";

/// Arguments of `glocal sub`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Filters: '*' is one token, a final '>' is one or more; 'T.<tenant>.<class>.…' names a tenant and class.
    #[arg(required = true, value_name = "FILTER")]
    filters: Vec<String>,
    /// The queue group to join.
    #[arg(short, long, value_name = "GROUP")]
    queue: Option<String>,
    /// Exits after this many messages.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Exits after this many seconds; with --count it is a failure.
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Prints one JSON object per message.
    #[arg(long)]
    json: bool,
    /// Prints the payloads' bytes, each followed by a line end.
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    /// Writes this file when the broker has confirmed.
    #[arg(long, value_name = "PATH")]
    ready_file: Option<PathBuf>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    block_on(async move {
        let client = args.connect.connect(true).await?;
        let result = receive(&client, &args).await;
        client.close().await;
        result
    })
}

async fn receive(client: &Client, args: &Args) -> anyhow::Result<ExitCode> {
    let (sender, mut messages) = mpsc::channel(COMMAND_MERGE_MAX);
    for filter in &args.filters {
        let subscription = client.subscribe(filter, args.queue.as_deref()).await;
        let subscription = subscription.hint("'glocal whoami' says who the broker takes you for")?;
        tokio::spawn(forward(subscription, sender.clone()));
    }
    drop(sender);
    tell_ready(args.ready_file.as_deref())?;
    tokio::spawn(narrate(client.clone()));

    let form = match (args.json, args.raw) {
        (true, _) => Form::Json,
        (_, true) => Form::Raw,
        _ => Form::Line,
    };
    let mut seen = 0;
    let printed = print_until(&mut messages, args.count, form, &mut seen);
    let what = tokio::select! {
        result = printed => return result,
        () = interrupted() => "interrupted",
        () = sleep_or_never(args.timeout) => "timed out",
    };
    match args.count {
        Some(count) => anyhow::bail!("{what} after {seen} of {count} messages"),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Passes messages on; the end of a subscription that was not asked for is an error.
async fn forward(mut subscription: Subscription, sender: mpsc::Sender<anyhow::Result<Message>>) {
    while let Some(message) = subscription.next().await {
        if sender.send(Ok(message)).await.is_err() {
            return;
        }
    }
    let error = match subscription.denied() {
        Some(denied) => anyhow::Error::new(denied),
        None => anyhow::anyhow!("the connection is closed"),
    };
    let _ = sender.send(Err(error)).await;
}

async fn print_until(
    messages: &mut mpsc::Receiver<anyhow::Result<Message>>,
    count: Option<u64>,
    form: Form,
    seen: &mut u64,
) -> anyhow::Result<ExitCode> {
    let mut out = Out::new();
    while count.is_none_or(|count| *seen < count) {
        let message = match messages.try_recv() {
            Ok(message) => message,
            Err(_) => {
                // Nothing waits: what is printed is shown now.
                out.flush()?;
                match messages.recv().await {
                    Some(message) => message,
                    None => anyhow::bail!("the connection is closed"),
                }
            }
        };
        print(&mut out, &message?, form)?;
        *seen += 1;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Waits `timeout`, or for ever.
async fn sleep_or_never(timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => tokio::time::sleep(timeout).await,
        None => std::future::pending().await,
    }
}
