//! A raw load program for the NATS protocol over mutual TLS: one publisher, one subscriber, plain blocking sockets, so
//! that it costs less than what it measures. It prints one JSON line; `run/bench/nats-edge.sh` compares brokers with it.
//!
//! The publisher stays at most a window ahead of the subscriber: no broker has to drop, and all are asked the same.

#![allow(clippy::cast_precision_loss, clippy::print_stdout, reason = "a load program prints figures")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use bytes::BytesMut;
use clap::Parser;
use glocal_wire::nats::client::{encode_pub_into, encode_sub_into};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

#[path = "../../src/cli/bench/cpu.rs"]
mod cpu;

use cpu::Cpu;

const SUBJECT: &[u8] = b"bench.subject.one";
const CONNECT: &[u8] =
    b"CONNECT {\"verbose\":false,\"pedantic\":false,\"echo\":true,\"headers\":true,\"protocol\":1}\r\n";
/// Bytes the publisher may be ahead of the subscriber.
const WINDOW_BYTES: u64 = 4 * 1024 * 1024;
/// Messages the publisher may be ahead of the subscriber.
const WINDOW_MESSAGES: u64 = 20_000;
/// Bytes of one write and of one read.
const BUFFER_BYTES: usize = 64 * 1024;
/// Silence after which the run is given up.
const SILENCE: Duration = Duration::from_secs(10);

/// Measures one broker.
#[derive(Debug, Parser)]
struct Options {
    /// `host:port`.
    #[arg(long)]
    server: String,
    /// Certificate chain of the agent, PEM.
    #[arg(long)]
    cert: PathBuf,
    /// Its key, PEM.
    #[arg(long)]
    key: PathBuf,
    /// Payload of each message, in bytes.
    #[arg(long, default_value_t = 256)]
    size: usize,
    /// Messages.
    #[arg(long, default_value_t = 500_000)]
    count: u64,
    /// The broker's process, whose CPU time is read.
    #[arg(long)]
    pid: u32,
}

type Stream = StreamOwned<ClientConnection, TcpStream>;

fn main() -> Result<()> {
    let options = Options::parse();
    let tls = Arc::new(tls(&options.cert, &options.key)?);
    let mut subscriber = connect(&options.server, &tls)?;
    let mut publisher = connect(&options.server, &tls)?;
    let mut line = BytesMut::new();
    encode_sub_into(&mut line, SUBJECT, b"", b"1").map_err(|e| anyhow!("{e}"))?;
    line.extend_from_slice(b"PING\r\n");
    subscriber.write_all(&line)?;
    subscriber.flush()?;
    read_until_pong(&mut subscriber)?;
    publisher.write_all(b"PING\r\n")?;
    publisher.flush()?;
    read_until_pong(&mut publisher)?;
    let (received, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let message = message_bytes(options.size);
    let (cpu, began) = (Cpu::read(&[("broker".to_owned(), options.pid)]), Instant::now());
    let reader = {
        let (received, failed, count) = (Arc::clone(&received), Arc::clone(&failed), options.count);
        std::thread::spawn(move || {
            let read = count_messages(&mut subscriber, message, count, &received);
            failed.store(read.is_err(), Ordering::Release);
            read
        })
    };
    publish(&mut publisher, &options, &received, &failed)?;
    reader.join().map_err(|_| anyhow!("the subscriber has failed"))??;
    let seconds = began.elapsed().as_secs_f64();
    let used = cpu.since();
    let [(_, own), (_, broker)] = used.as_slice() else { return Err(anyhow!("no account of CPU time")) };
    let millions = options.count as f64 / 1e6;
    let line = serde_json::json!({
        "size": options.size,
        "count": options.count,
        "messages_per_s": (options.count as f64 / seconds).round(),
        "broker_cpu_s_per_million": broker / millions,
        "load_cpu_s_per_million": own / millions,
        "broker_busy": broker / seconds,
    });
    println!("{line}");
    Ok(())
}

/// Bytes of one delivered message: `MSG <subject> 1 <n>` and the payload, each with its line's end.
fn message_bytes(size: usize) -> usize {
    b"MSG  1 \r\n".len() + SUBJECT.len() + size.to_string().len() + size + 2
}

fn publish(publisher: &mut Stream, options: &Options, received: &AtomicU64, failed: &AtomicBool) -> Result<()> {
    let payload = vec![b'x'; options.size];
    let mut one = BytesMut::new();
    encode_pub_into(&mut one, SUBJECT, b"", &payload).map_err(|e| anyhow!("{e}"))?;
    let per_write = (BUFFER_BYTES / one.len()).max(1) as u64;
    let window = (WINDOW_BYTES / one.len() as u64).clamp(per_write, WINDOW_MESSAGES.max(per_write));
    let batch: Vec<u8> = one.repeat(usize::try_from(per_write)?);
    let mut sent = 0;
    let mut moved = Instant::now();
    let mut seen = 0;
    while sent < options.count {
        let now = received.load(Ordering::Acquire);
        if now != seen {
            (seen, moved) = (now, Instant::now());
        }
        ensure!(!failed.load(Ordering::Acquire), "the subscriber has failed");
        ensure!(moved.elapsed() < SILENCE, "nothing has arrived for {SILENCE:?}: {now} of {sent}");
        if sent - now + per_write > window {
            std::thread::sleep(Duration::from_micros(50));
            continue;
        }
        let messages = per_write.min(options.count - sent);
        let bytes = usize::try_from(messages)? * one.len();
        publisher.write_all(batch.get(..bytes).unwrap_or_default())?;
        sent += messages;
    }
    publisher.flush()?;
    Ok(())
}

fn count_messages(subscriber: &mut Stream, message: usize, count: u64, received: &AtomicU64) -> Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut bytes = 0u64;
    while bytes < count * message as u64 {
        let read = subscriber.read(&mut buffer).context("the broker closed the subscriber")?;
        ensure!(read > 0, "the broker closed the subscriber");
        bytes += read as u64;
        received.store(bytes / message as u64, Ordering::Release);
    }
    ensure!(bytes == count * message as u64, "{bytes} bytes arrived, which are not {count} messages of {message}");
    Ok(())
}

fn connect(server: &str, tls: &Arc<ClientConfig>) -> Result<Stream> {
    let mut tcp = TcpStream::connect(server).with_context(|| server.to_owned())?;
    tcp.set_nodelay(true)?;
    tcp.set_read_timeout(Some(SILENCE))?;
    let mut byte = [0; 1];
    // INFO in clear, up to its line's end; nothing after it is read in clear.
    while byte != *b"\n" {
        tcp.read_exact(&mut byte)?;
    }
    let connection = ClientConnection::new(Arc::clone(tls), ServerName::try_from("localhost")?)?;
    let mut stream = StreamOwned::new(connection, tcp);
    stream.conn.set_buffer_limit(Some(2 * BUFFER_BYTES));
    stream.write_all(CONNECT)?;
    stream.write_all(b"PING\r\n")?;
    stream.flush()?;
    read_until_pong(&mut stream)?;
    Ok(stream)
}

fn read_until_pong(stream: &mut Stream) -> Result<()> {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    while !text.ends_with(b"PONG\r\n") {
        let read = stream.read(&mut buffer)?;
        ensure!(read > 0, "closed: {}", String::from_utf8_lossy(&text));
        text.extend_from_slice(buffer.get(..read).unwrap_or_default());
        ensure!(!text.starts_with(b"-ERR"), "refused: {}", String::from_utf8_lossy(&text));
    }
    Ok(())
}

fn tls(cert: &Path, key: &Path) -> Result<ClientConfig> {
    let chain = CertificateDer::pem_file_iter(cert)?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trusting(provider)))
        .with_client_auth_cert(chain, key)?;
    Ok(config)
}

/// A load program measures; whom it talks to was decided by whoever started the broker.
#[derive(Debug)]
struct Trusting(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
