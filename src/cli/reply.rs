//! `glocal reply`: answers requests with a fixed payload, their own payload, or a command's output.

use std::path::PathBuf;
use std::process::{ExitCode, Stdio};

use anyhow::Context as _;
use glocal_client::{Client, Message};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::WithHint as _;
use super::connect::{ConnectArgs, block_on, interrupted, narrate};
use super::message::{Form, print, tell_ready};
use super::output::{Out, complain};

const EXAMPLES: &str = "\
Examples:
  glocal reply health ok                        always the same answer
  glocal reply echo --echo                      the request itself
  glocal reply time.now --command date          a command's output; the request is its input
  glocal reply jobs done --queue workers        one of the group answers
  glocal reply once hi --count 1                exits after one answer

Commands run by 'sh -c' with GLOCAL_SUBJECT and GLOCAL_SENDER set. Requests are printed as they
are answered. A line 'subscribed' on standard error says that the broker has confirmed.";

/// Arguments of `glocal reply`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group(clap::ArgGroup::new("answer").required(true).args(["payload", "echo", "command"])))]
pub(crate) struct Args {
    /// The subject or filter to answer on.
    subject: String,
    /// The answer.
    payload: Option<String>,
    /// Answers with the request's payload.
    #[arg(long)]
    echo: bool,
    /// Answers with what this shell command prints.
    #[arg(long, value_name = "COMMAND")]
    command: Option<String>,
    /// The queue group to join.
    #[arg(short, long, value_name = "GROUP")]
    queue: Option<String>,
    /// Exits after this many answers.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Prints nothing for answered requests.
    #[arg(long)]
    quiet: bool,
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
        let result = tokio::select! {
            result = answer_all(&client, &args) => result,
            () = interrupted() => Ok(ExitCode::SUCCESS),
        };
        client.close().await;
        result
    })
}

async fn answer_all(client: &Client, args: &Args) -> anyhow::Result<ExitCode> {
    let subscription = client.subscribe(&args.subject, args.queue.as_deref()).await;
    let mut requests = subscription.hint("'glocal whoami' says who the broker takes you for")?;
    tell_ready(args.ready_file.as_deref())?;
    tokio::spawn(narrate(client.clone()));
    let mut out = Out::new();
    let mut answered = 0;
    while args.count.is_none_or(|count| answered < count) {
        let Some(request) = requests.next().await else {
            return Err(match requests.denied() {
                Some(denied) => denied.into(),
                None => anyhow::anyhow!("the connection is closed"),
            });
        };
        if !args.quiet {
            print(&mut out, &request, Form::Line)?;
            out.flush()?;
        }
        if request.reply().is_none() {
            continue;
        }
        let max = client.whoami().max_payload as usize;
        match answer(args, &request, max).await {
            Ok(payload) => request.respond(payload).await.context("cannot answer")?,
            // One bad request must not end the service.
            Err(error) => {
                complain("warning", &format!("{error:#}"));
                continue;
            }
        }
        answered += 1;
    }
    client.flush().await.context("cannot send the last answer")?;
    Ok(ExitCode::SUCCESS)
}

async fn answer(args: &Args, request: &Message, max: usize) -> anyhow::Result<Vec<u8>> {
    match (&args.payload, &args.command) {
        (Some(payload), _) => Ok(payload.clone().into_bytes()),
        (None, Some(command)) => run_command(command, request, max).await,
        (None, None) => Ok(request.payload().to_vec()),
    }
}

async fn run_command(command: &str, request: &Message, max: usize) -> anyhow::Result<Vec<u8>> {
    let mut child = tokio::process::Command::new("sh")
        .args(["-c", command])
        .env("GLOCAL_SUBJECT", request.subject())
        .env("GLOCAL_SENDER", request.sender().unwrap_or_default())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot run '{command}'"))?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A command need not read its input.
            let _ = stdin.write_all(request.payload()).await;
        }
    };
    let collect = async {
        let mut output = Vec::new();
        if let Some(stdout) = stdout {
            stdout.take(max as u64 + 1).read_to_end(&mut output).await?;
        }
        std::io::Result::Ok(output)
    };
    let ((), output) = tokio::join!(feed, collect);
    let output = output.with_context(|| format!("cannot read from '{command}'"))?;
    anyhow::ensure!(output.len() <= max, "'{command}' printed more than {max} bytes; no answer was sent");
    let status = child.wait().await.with_context(|| format!("cannot wait for '{command}'"))?;
    anyhow::ensure!(status.success(), "'{command}' failed ({status}); no answer was sent");
    Ok(output)
}
