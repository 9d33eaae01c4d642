//! `glocal pub`: publishes an argument, a file, standard input or its lines.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use glocal_client::{Client, Event, Publish, PublishError, Published};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Stdin};
use tokio::sync::broadcast;

use super::WithHint as _;
use super::connect::{ConnectArgs, block_on};
use super::message::MessageArgs;
use super::output::{Out, escape, note, stderr_is_terminal};

// clap reads `{n}` as a line break; an empty style inside hides it.
const EXAMPLES: &str = "\
Examples:
  glocal pub orders.new 'one coffee'
  echo 'from a pipe' | glocal pub orders.new         all of standard input is the payload
  tail -f log | glocal pub logs.web --lines          one message per line
  glocal pub images.new --file cat.png --class bulk --ack
  glocal pub load.test 'message {{\x1b[0mn}}' --count 100000 --rate 20000/s
  glocal pub orders.new hi -H trace=42 --reply orders.answers

'{{\x1b[0mn}}' in subject and payload is the message's number when --count is given. The command waits
until the broker has taken everything; a refusal is exit code 1.";

/// Messages between two looks at what the broker refused.
const LOOK_EVERY: u64 = 256;

/// Arguments of `glocal pub`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The subject.
    subject: String,
    /// The payload; standard input without one.
    payload: Option<String>,
    /// Publishes a file's contents.
    #[arg(short, long, value_name = "PATH", conflicts_with_all = ["payload", "lines"])]
    file: Option<PathBuf>,
    /// Publishes each line of standard input.
    #[arg(short, long, conflicts_with_all = ["payload", "count"])]
    lines: bool,
    /// Publishes this many messages.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// At most this many messages per second, such as 100 or 100/s.
    #[arg(long, value_name = "N/s", value_parser = rate)]
    rate: Option<f64>,
    /// Where replies go.
    #[arg(long, value_name = "SUBJECT")]
    reply: Option<String>,
    /// Waits for each message's acknowledgement and prints it.
    #[arg(long)]
    ack: bool,
    /// Prints a JSON object with totals.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    message: MessageArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    block_on(async move {
        let client = args.connect.connect(false).await?;
        let mut events = client.events();
        let result = publish_all(&client, &args, &mut events).await;
        let lost = lost_reason(&mut events);
        client.close().await;
        match (result, lost) {
            (Err(error), Some(reason)) if !error.is::<super::Failure>() => {
                Err(error.context(format!("the connection was lost: {reason}")))
            }
            (result, _) => result,
        }
    })
}

async fn publish_all(
    client: &Client,
    args: &Args,
    events: &mut broadcast::Receiver<Event>,
) -> anyhow::Result<ExitCode> {
    let mut source = Source::open(args, client.whoami().max_payload as usize).await?;
    let progress = progress(args);
    let mut out = Out::new();
    let start = Instant::now();
    let mut sent = 0u64;
    while let Some(publish) = source.next(args).await? {
        pace(start, sent, args.rate).await;
        let subject = publish.subject.clone();
        match client.publish_with(publish).await {
            Ok(published) if args.ack && !args.json => out.line(&acknowledgement(&subject, published))?,
            Ok(_) => {}
            Err(PublishError::Denied(denied)) => return Err(refused(denied)),
            Err(error) => {
                refusal(events)?;
                return Err(error).with_context(|| format!("message {} was not published", sent + 1));
            }
        }
        sent += 1;
        if sent.is_multiple_of(LOOK_EVERY) || args.rate.is_some_and(|rate| rate < 1000.0) {
            refusal(events)?;
            progress.set_position(sent);
            out.flush()?;
        }
    }
    client.flush().await.context("the broker did not confirm the messages")?;
    client.acknowledged(Duration::from_secs(30)).await.context("messages are without an acknowledgement")?;
    refusal(events)?;
    progress.finish_and_clear();
    report(client, args, &mut out, sent, start.elapsed())
}

fn report(client: &Client, args: &Args, out: &mut Out, sent: u64, elapsed: Duration) -> anyhow::Result<ExitCode> {
    let statistics = client.statistics();
    anyhow::ensure!(statistics.unacknowledged == 0, "{} messages were not acknowledged", statistics.unacknowledged);
    if args.json {
        out.json(&serde_json::json!({
            "published": sent,
            "acknowledged": statistics.acknowledged,
            "seconds": elapsed.as_secs_f64(),
        }))?;
    } else if stderr_is_terminal() {
        let rate = sent as f64 / elapsed.as_secs_f64().max(1e-6);
        let what = if sent == 1 { "message" } else { "messages" };
        note(&format!("published {sent} {what} in {:.3} s ({rate:.0}/s)", elapsed.as_secs_f64()));
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn acknowledgement(subject: &str, published: Published) -> String {
    let subject = escape(subject.as_bytes());
    match published {
        Published::Acknowledged { targets } => format!("{subject} acknowledged targets={targets}"),
        Published::Accepted | Published::Buffered => format!("{subject} accepted"),
    }
}

/// Fails with the first refusal the broker sent.
fn refusal(events: &mut broadcast::Receiver<Event>) -> anyhow::Result<()> {
    loop {
        match events.try_recv() {
            Ok(Event::Denied(denied)) => return Err(refused(denied)),
            Ok(Event::Disconnected { reason }) => anyhow::bail!("the connection was lost: {reason}"),
            Ok(_) | Err(broadcast::error::TryRecvError::Lagged(_)) => {}
            Err(_) => return Ok(()),
        }
    }
}

fn refused(denied: glocal_client::Denied) -> anyhow::Error {
    let hint = "'glocal whoami' says who the broker takes you for";
    Err::<(), _>(denied).hint(hint).err().unwrap_or_else(|| anyhow::anyhow!("refused"))
}

fn lost_reason(events: &mut broadcast::Receiver<Event>) -> Option<String> {
    loop {
        match events.try_recv() {
            Ok(Event::Disconnected { reason }) => return Some(reason),
            Ok(_) | Err(broadcast::error::TryRecvError::Lagged(_)) => {}
            Err(_) => return None,
        }
    }
}

/// Waits until message number `sent` is due.
async fn pace(start: Instant, sent: u64, rate: Option<f64>) {
    let Some(rate) = rate else { return };
    let Ok(due) = Duration::try_from_secs_f64(sent as f64 / rate) else { return };
    // The timer's tick is a millisecond: what is due within it goes at once.
    if due > start.elapsed() + Duration::from_millis(1) {
        tokio::time::sleep_until((start + due).into()).await;
    }
}

fn progress(args: &Args) -> ProgressBar {
    let bulk = args.lines || args.count.is_some_and(|count| count > 1);
    if !bulk || args.ack || args.json || !stderr_is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match args.count {
        Some(count) => (ProgressBar::new(count), "{bar:40.cyan} {human_pos}/{human_len}  {per_sec}  {eta} left"),
        None => (ProgressBar::new_spinner(), "{spinner} {human_pos} messages  {per_sec}"),
    };
    bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Where messages come from.
enum Source {
    Repeated { subject: Template, payload: Template, done: u64, count: u64 },
    Lines { stdin: BufReader<Stdin>, payload_max: usize },
}

impl Source {
    async fn open(args: &Args, payload_max: usize) -> anyhow::Result<Self> {
        if args.lines {
            return Ok(Self::Lines { stdin: BufReader::new(tokio::io::stdin()), payload_max });
        }
        let numbered = args.count.is_some();
        let payload = match (&args.payload, &args.file) {
            (Some(text), _) => Template::new(text.as_bytes(), numbered),
            (None, Some(path)) => {
                let shown = path.display();
                let file = tokio::fs::File::open(path).await.with_context(|| format!("cannot read '{shown}'"))?;
                let bytes = read_all(file, payload_max).await.with_context(|| format!("file '{shown}'"))?;
                Template::new(&bytes, false)
            }
            (None, None) => {
                if std::io::IsTerminal::is_terminal(&std::io::stdin()) {
                    note("type the payload and end it with Ctrl-D");
                }
                let bytes = read_all(tokio::io::stdin(), payload_max).await.context("standard input")?;
                Template::new(&bytes, numbered)
            }
        };
        let subject = Template::new(args.subject.as_bytes(), numbered);
        Ok(Self::Repeated { subject, payload, done: 0, count: args.count.unwrap_or(1) })
    }

    async fn next(&mut self, args: &Args) -> anyhow::Result<Option<Publish>> {
        let (subject, payload) = match self {
            Self::Repeated { done, count, .. } if *done >= *count => return Ok(None),
            Self::Repeated { subject, payload, done, .. } => {
                *done += 1;
                (String::from_utf8_lossy(&subject.fill(*done)).into_owned(), payload.fill(*done))
            }
            Self::Lines { stdin, payload_max } => match next_line(stdin, *payload_max).await? {
                Some(line) => (args.subject.clone(), line),
                None => return Ok(None),
            },
        };
        let mut publish = args.message.publish(&subject, payload)?;
        publish.reply.clone_from(&args.reply);
        publish.ack = args.ack;
        Ok(Some(publish))
    }
}

/// Reads everything, at most what one message may hold.
async fn read_all(reader: impl tokio::io::AsyncRead + Unpin, payload_max: usize) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(payload_max as u64 + 1).read_to_end(&mut bytes).await.context("cannot be read")?;
    anyhow::ensure!(bytes.len() <= payload_max, "larger than the fabric's {payload_max} bytes per message");
    Ok(bytes)
}

async fn next_line(stdin: &mut BufReader<Stdin>, payload_max: usize) -> anyhow::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let read = stdin.take(payload_max as u64 + 2).read_until(b'\n', &mut line).await.context("standard input")?;
    if read == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    anyhow::ensure!(line.len() <= payload_max, "a line is larger than the fabric's {payload_max} bytes per message");
    Ok(Some(line))
}

/// A text with places for a number.
struct Template(Vec<Vec<u8>>);

impl Template {
    const PLACE: &'static [u8] = b"{{n}}";

    fn new(text: &[u8], numbered: bool) -> Self {
        let mut parts = Vec::new();
        let mut rest = text;
        while numbered
            && let Some(at) = rest.windows(Self::PLACE.len()).position(|window| window == Self::PLACE)
            && let Some((before, after)) = rest.split_at_checked(at)
        {
            parts.push(before.to_vec());
            rest = after.get(Self::PLACE.len()..).unwrap_or_default();
        }
        parts.push(rest.to_vec());
        Self(parts)
    }

    fn fill(&self, number: u64) -> Vec<u8> {
        self.0.join(number.to_string().as_bytes())
    }
}

/// Parses a number of messages per second.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    number
        .parse::<f64>()
        .ok()
        .filter(|rate| rate.is_finite() && *rate > 0.0)
        .ok_or_else(|| "messages per second, such as 100 or 100/s, are needed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fill_their_places_when_messages_are_counted() {
        assert_eq!(Template::new(b"a{{n}}b{{n}}", true).fill(7), b"a7b7");
        assert_eq!(Template::new(b"a{{n}}b", false).fill(7), b"a{{n}}b");
        assert_eq!(Template::new(b"", true).fill(1), b"");
        assert_eq!(Template::new(b"{{n}}", true).fill(10), b"10");
    }

    #[test]
    fn rates_are_positive() {
        assert_eq!(rate("20000/s"), Ok(20_000.0));
        assert_eq!(rate("0.5"), Ok(0.5));
        for bad in ["", "0", "-1", "inf", "nan", "5/m"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn what_does_not_fit_a_message_is_refused_before_it_is_read_whole() {
        assert_eq!(read_all(&b"abc"[..], 3).await.unwrap(), b"abc");
        assert!(read_all(tokio::io::repeat(0), 3).await.is_err());
    }
}
