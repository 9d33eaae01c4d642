//! A link of a known rate on one machine, for where the kernel's own (`tc tbf`) cannot be had: takes datagrams and
//! streams at one port, and hands them on to another as fast as a token bucket lets them, in both directions.
//!
//! Datagrams wait in a queue of a bounded size, whose end is dropped, as before a router's. A stream is not dropped but
//! held back: beyond a bounded buffer it is no longer read. What is charged are bytes on the wire, with the heads of
//! packets. Ends at SIGTERM or SIGINT, with one line of JSON: what passed, what was dropped, in each direction.

#![allow(clippy::cast_precision_loss, clippy::print_stdout, clippy::print_stderr, reason = "a tool of benches")]

mod bucket;
mod datagrams;
mod line;
mod streams;
#[cfg(test)]
mod tests;

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bucket::{Shape, whole};
use clap::Parser;
use line::Line;
use serde_json::json;

/// Most bytes that a direction may be configured to hold.
const BUFFER_BYTES_MAX: u64 = 1 << 30;

/// A token-bucket link over loopback.
#[derive(Debug, Parser)]
#[command(name = "tbf-proxy")]
struct Options {
    /// Where to take datagrams and streams.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where they go.
    #[arg(long)]
    to: SocketAddr,
    /// What each direction carries, in Mbit/s.
    #[arg(long, default_value_t = 100.0)]
    rate: f64,
    /// Bytes that may pass at once after a pause.
    #[arg(long, default_value_t = 16 * 1024)]
    burst: u64,
    /// Bytes of datagrams that wait in each direction; what would be more is dropped. By default a third of a second's.
    #[arg(long)]
    buffer: Option<u64>,
    /// Bytes of streams that wait in each direction beside what the system's sockets hold; beyond, they are not read.
    #[arg(long, default_value_t = 64 * 1024)]
    stream_buffer: u64,
    /// Largest packet of the link, without Ethernet's head; larger datagrams are dropped.
    #[arg(long, default_value_t = 1_500)]
    mtu: u64,
    /// The file into which the address is written once it listens.
    #[arg(long)]
    ready_file: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let proxy = Proxy::start(options)?;
    // Told of the signals before anybody is told that it listens.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut end, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        if let Some(file) = &options.ready_file {
            let fresh = file.with_extension("new");
            std::fs::write(&fresh, proxy.at.to_string())?;
            std::fs::rename(&fresh, file)?;
        }
        tokio::select! {
            _ = end.recv() => {}
            _ = interrupt.recv() => {}
        }
        std::io::Result::Ok(())
    });
    println!("{}", proxy.report());
    Ok(ended?)
}

/// A running link. Its threads end with the process.
struct Proxy {
    at: SocketAddr,
    forward: [Arc<Line>; 2],
    back: [Arc<Line>; 2],
}

impl Proxy {
    fn start(options: &Options) -> Result<Self> {
        ensure!(options.rate > 0.0 && options.rate.is_finite(), "--rate {} carries nothing", options.rate);
        let bytes_per_s = options.rate * 125_000.0;
        let buffer_bytes = options.buffer.unwrap_or_else(|| whole(bytes_per_s / 3.0));
        ensure!(
            buffer_bytes.max(options.stream_buffer) <= BUFFER_BYTES_MAX,
            "at most {BUFFER_BYTES_MAX} bytes may wait"
        );
        let shape = Shape { bytes_per_s, burst_bytes: options.burst, buffer_bytes };
        let stream_shape = Shape { buffer_bytes: options.stream_buffer, ..shape };
        let (streams, datagrams) = bind(options.listen)?;
        let at = streams.local_addr()?;
        let lines = |shape| [Arc::new(Line::new(shape)), Arc::new(Line::new(shape))];
        let [datagrams_forward, datagrams_back] = lines(shape);
        let [streams_forward, streams_back] = lines(stream_shape);
        let ways = datagrams::Ways { forward: Arc::clone(&datagrams_forward), back: Arc::clone(&datagrams_back) };
        datagrams::start(datagrams, options.to, ways, options.mtu)?;
        let ways = streams::Ways { forward: Arc::clone(&streams_forward), back: Arc::clone(&streams_back) };
        streams::start(streams, options.to, ways);
        Ok(Self { at, forward: [datagrams_forward, streams_forward], back: [datagrams_back, streams_back] })
    }

    fn report(&self) -> serde_json::Value {
        let way =
            |[datagrams, streams]: &[Arc<Line>; 2]| json!({ "datagrams": datagrams.json(), "streams": streams.json() });
        json!({ "forward": way(&self.forward), "back": way(&self.back) })
    }
}

/// One port for streams and for datagrams.
fn bind(at: SocketAddr) -> Result<(TcpListener, UdpSocket)> {
    for _ in 0..100 {
        let streams = streams::listen(at)?;
        match UdpSocket::bind(streams.local_addr()?) {
            Ok(datagrams) => return Ok((streams, datagrams)),
            // The system gave a port that is free for one of them only.
            Err(_) if at.port() == 0 => {}
            Err(error) => return Err(error).with_context(|| format!("datagrams at {at}")),
        }
    }
    anyhow::bail!("no port is free for both streams and datagrams")
}
