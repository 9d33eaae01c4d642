//! A flood in a process of its own, and what it and its parent say to each other: the child says `ready` once its messages
//! cross; told `go`, it floods; told `read`, it answers with a line of totals; it ends when its input does.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// The parent's end. The child ends with it.
#[derive(Debug)]
pub(crate) struct FloodProcess {
    child: Child,
    asks: Option<ChildStdin>,
    says: BufReader<ChildStdout>,
}

/// Totals of a flood at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    at: Instant,
    published: u64,
    delivered: u64,
}

impl FloodProcess {
    /// Starts this program again with other arguments, and waits until its messages cross.
    pub(crate) fn start(arguments: &[String]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the flood's process")?;
        let (asks, says) = (child.stdin.take(), child.stdout.take().context("its output")?);
        let mut process = Self { child, asks, says: BufReader::new(says) };
        let said = process.line()?;
        ensure!(said == "ready", "the flood says '{said}'");
        Ok(process)
    }

    /// Floods from now on.
    pub(crate) fn begin(&mut self) -> Result<()> {
        self.ask("go")
    }

    /// Totals now.
    pub(crate) fn read(&mut self) -> Result<Reading> {
        self.ask("read")?;
        let line: Value = serde_json::from_str(&self.line()?)?;
        let of = |name: &str| line.get(name).and_then(Value::as_u64).with_context(|| format!("{name} of {line}"));
        Ok(Reading { at: Instant::now(), published: of("published")?, delivered: of("delivered")? })
    }

    fn ask(&mut self, what: &str) -> Result<()> {
        let asks = self.asks.as_mut().context("the flood has ended")?;
        writeln!(asks, "{what}").and_then(|()| asks.flush()).context("the flood has ended")
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.says.read_line(&mut line)? > 0, "the flood has ended");
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for FloodProcess {
    fn drop(&mut self) {
        drop(self.asks.take());
        // It may hang in a write to a broker that takes nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Reading {
    /// What happened up to a later one, with payloads of so many bytes.
    pub(crate) fn until(&self, later: &Self, size: usize) -> Value {
        let seconds = later.at.saturating_duration_since(self.at).as_secs_f64().max(1e-6);
        let bytes_per_s = |before: u64, after: u64| after.saturating_sub(before) as f64 * size as f64 / seconds;
        json!({
            "size_bytes": size, "seconds": seconds,
            "published_bytes_per_s": bytes_per_s(self.published, later.published),
            "delivered_bytes_per_s": bytes_per_s(self.delivered, later.delivered),
        })
    }
}

/// Totals that a flood's threads count.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Messages that the broker's connection took.
    pub(crate) published: AtomicU64,
    /// Messages that arrived.
    pub(crate) delivered: AtomicU64,
}

/// The child's end, once its messages cross: `begin` is called when it is to flood. Returns when the parent is gone.
pub(crate) fn serve(totals: &Totals, begin: impl FnOnce()) -> Result<()> {
    say("ready")?;
    let mut begin = Some(begin);
    for line in std::io::stdin().lock().lines() {
        match line?.as_str() {
            "go" => begin.take().context("told twice to flood")?(),
            "read" => {
                let of = |total: &AtomicU64| total.load(Ordering::Relaxed);
                say(&json!({ "published": of(&totals.published), "delivered": of(&totals.delivered) }).to_string())?;
            }
            other => bail!("'{other}' is not known"),
        }
    }
    Ok(())
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
