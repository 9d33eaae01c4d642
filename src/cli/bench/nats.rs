//! A connection in the NATS text protocol over mutual TLS, as lean as the native one: what it costs is not taken for the
//! broker's cost.
//!
//! It guarantees that the broker is one of the fabric, as the native client does, that its send buffer is bounded, and that
//! it drops nothing: a subscription that is full stops reading.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use bytes::{Bytes, BytesMut};
use glocal_client::{Address, ConnectOptions};
use glocal_core::limits::{BENCH_NATS_BATCHES, CLIENT_OUTBOX_BYTES_MAX, CLIENT_REQUESTS_MAX, CLIENT_WRITE_BYTES};
use glocal_core::name::Class;
use glocal_wire::nats::client::{encode_hpub_into, encode_pub_into, encode_sub_into};
use glocal_wire::nats::{CLASS_HEADER, HEADER_VERSION};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc, oneshot};

use super::link::{Counts, Wants};
use super::nats_dial::{Greeted, Stream, dial};
use super::nats_read::{Item, Read, take};
use super::report::run_number;

/// Before a lost connection is dialled again.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes asked of a socket at once.
const READ_BYTES: usize = 64 * 1024;
/// How long a closing connection waits for what is buffered.
const CLOSE_WAIT: Duration = Duration::from_secs(2);
/// The subscription of reply inboxes; others begin at 1.
const INBOX_SID: usize = 0;

/// One connection; clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct NatsLink(Arc<Shared>);

/// What its tasks and handles share.
#[derive(Debug)]
struct Shared {
    address: Address,
    options: ConnectOptions,
    reconnect: bool,
    /// The header block of publishes; empty for class `live`, which needs none.
    headers: Vec<u8>,
    inbox: String,
    out: Mutex<Out>,
    filled: Notify,
    changed: Notify,
    feeds: Mutex<Vec<(String, mpsc::Sender<Vec<Item>>)>>,
    pongs: Mutex<VecDeque<oneshot::Sender<()>>>,
    requests: Mutex<HashMap<u64, oneshot::Sender<Bytes>>>,
    info: Mutex<Greeted>,
    reason: Mutex<String>,
    numbers: AtomicU64,
    published: AtomicU64,
    refused: AtomicU64,
    reconnects: AtomicU64,
}

#[derive(Debug)]
struct Out {
    bytes: BytesMut,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Offline,
    Open,
    Closing,
    Closed,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NatsLink {
    /// Connects to the first of the addresses.
    pub(crate) async fn connect(options: ConnectOptions, wants: Wants) -> anyhow::Result<Self> {
        let address = options.addresses.first().cloned().context("no broker address is given")?;
        let (stream, info) = dial(&address, &options).await?;
        let shared = Arc::new(Shared {
            address,
            options,
            reconnect: wants.reconnect,
            headers: class_header(wants.class),
            inbox: format!("_INBOX.{:016x}", run_number()),
            out: Mutex::new(Out { bytes: BytesMut::new(), state: State::Open }),
            filled: Notify::new(),
            changed: Notify::new(),
            feeds: Mutex::default(),
            pongs: Mutex::default(),
            requests: Mutex::default(),
            info: Mutex::new(info),
            reason: Mutex::default(),
            numbers: AtomicU64::new(1),
            published: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            reconnects: AtomicU64::new(0),
        });
        tokio::spawn(supervise(Arc::clone(&shared), stream));
        Ok(Self(shared))
    }

    /// What the server calls itself.
    pub(crate) fn node(&self) -> String {
        lock(&self.0.info).name.clone()
    }

    /// The largest payload, in bytes, beside a header of ours.
    pub(crate) fn payload_max(&self) -> usize {
        lock(&self.0.info).payload_max.saturating_sub(self.0.headers.len())
    }

    /// What it counted; it drops nothing.
    pub(crate) fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            published: read(&self.0.published),
            refused: read(&self.0.refused),
            reconnects: read(&self.0.reconnects),
            ..Counts::default()
        }
    }

    /// Publishes, and waits while the send buffer is full.
    pub(crate) async fn publish(&self, subject: &str, reply: &str, payload: &[u8]) -> anyhow::Result<()> {
        let headers = &self.0.headers;
        self.0
            .push(|out| {
                let (subject, reply) = (subject.as_bytes(), reply.as_bytes());
                let written = match headers.as_slice() {
                    [] => encode_pub_into(out, subject, reply, payload),
                    headers => encode_hpub_into(out, subject, reply, headers, payload),
                };
                written.map_err(|error| anyhow::anyhow!("{error}"))
            })
            .await?;
        self.0.published.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Subscribes; returns when the server has taken it.
    pub(crate) async fn subscribe(&self, filter: &str) -> anyhow::Result<NatsFeed> {
        let (sender, receiver) = mpsc::channel(BENCH_NATS_BATCHES);
        let sid = {
            let mut feeds = lock(&self.0.feeds);
            feeds.push((filter.to_owned(), sender));
            feeds.len()
        };
        let refused = self.0.refused.load(Ordering::Relaxed);
        self.0.push(|out| subscribe_into(out, filter, sid)).await?;
        self.flush().await?;
        if self.0.refused.load(Ordering::Relaxed) > refused {
            anyhow::bail!("'{filter}' is refused: {}", lock(&self.0.reason));
        }
        Ok(NatsFeed { receiver, batch: Vec::new().into_iter() })
    }

    /// Waits until the server has taken everything before.
    pub(crate) async fn flush(&self) -> anyhow::Result<()> {
        let (sender, answer) = oneshot::channel();
        let mut sender = Some(sender);
        self.0
            .push(|out| {
                out.extend_from_slice(b"PING\r\n");
                lock(&self.0.pongs).extend(sender.take());
                Ok(())
            })
            .await?;
        match tokio::time::timeout(self.0.options.timeouts.answer, answer).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => anyhow::bail!("the connection was lost: {}", lock(&self.0.reason)),
            Err(_) => anyhow::bail!("the server does not answer"),
        }
    }

    /// Prepares for requests: subscribes to the inbox of their replies.
    pub(crate) async fn open_inbox(&self) -> anyhow::Result<()> {
        let filter = format!("{}.*", self.0.inbox);
        self.0.push(|out| subscribe_into(out, &filter, INBOX_SID)).await?;
        self.flush().await
    }

    /// Sends a request and waits for its reply.
    pub(crate) async fn request(&self, subject: &str, payload: &[u8], timeout: Duration) -> anyhow::Result<Bytes> {
        let number = self.0.numbers.fetch_add(1, Ordering::Relaxed);
        let (sender, reply) = oneshot::channel();
        {
            let mut requests = lock(&self.0.requests);
            anyhow::ensure!(requests.len() < CLIENT_REQUESTS_MAX, "too many requests are open");
            requests.insert(number, sender);
        }
        let asked = async {
            self.publish(subject, &format!("{}.{number}", self.0.inbox), payload).await?;
            reply.await.context("nobody answers")
        };
        let answer = tokio::time::timeout(timeout, asked).await;
        lock(&self.0.requests).remove(&number);
        answer.context("no reply in time")?
    }

    /// Whether it is gone for good.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.0.out).state == State::Closed
    }

    /// Sends what is buffered and closes.
    pub(crate) async fn close(&self) {
        {
            let mut out = lock(&self.0.out);
            out.state = if out.state == State::Open { State::Closing } else { State::Closed };
        }
        self.0.filled.notify_one();
        self.0.changed.notify_waiters();
        let closed = async {
            while !self.is_closed() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let _ = tokio::time::timeout(CLOSE_WAIT, closed).await;
    }
}

fn class_header(class: Class) -> Vec<u8> {
    match class {
        Class::Live => Vec::new(),
        other => {
            let mut block = HEADER_VERSION.to_vec();
            for part in [&b"\r\n"[..], CLASS_HEADER, b": ", other.as_str().as_bytes(), b"\r\n\r\n"] {
                block.extend_from_slice(part);
            }
            block
        }
    }
}

fn subscribe_into(out: &mut BytesMut, filter: &str, sid: usize) -> anyhow::Result<()> {
    let sid = sid.to_string();
    encode_sub_into(out, filter.as_bytes(), b"", sid.as_bytes()).map_err(|error| anyhow::anyhow!("{error}"))
}

impl Shared {
    /// Appends to the send buffer, waiting for space and for a connection.
    async fn push(&self, mut write: impl FnMut(&mut BytesMut) -> anyhow::Result<()>) -> anyhow::Result<()> {
        loop {
            if let Some(done) = self.try_push(&mut write) {
                return done;
            }
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(done) = self.try_push(&mut write) {
                return done;
            }
            changed.await;
        }
    }

    fn try_push(&self, write: &mut impl FnMut(&mut BytesMut) -> anyhow::Result<()>) -> Option<anyhow::Result<()>> {
        let mut out = lock(&self.out);
        match out.state {
            State::Open if out.bytes.len() < CLIENT_OUTBOX_BYTES_MAX => {}
            State::Open | State::Offline => return None,
            State::Closing | State::Closed => {
                return Some(Err(anyhow::anyhow!("the connection is closed: {}", lock(&self.reason))));
            }
        }
        let was_empty = out.bytes.is_empty();
        let written = write(&mut out.bytes);
        drop(out);
        if was_empty {
            self.filled.notify_one();
        }
        Some(written)
    }

    /// Lets publishers in again, with every subscription standing anew.
    fn reopen(&self, info: Greeted) {
        let mut out = lock(&self.out);
        *lock(&self.info) = info;
        if out.state == State::Offline {
            out.state = State::Open;
            out.bytes.clear();
            for (index, (filter, _)) in lock(&self.feeds).iter().enumerate() {
                // It could be written once.
                let _ = subscribe_into(&mut out.bytes, filter, index + 1);
            }
        }
        drop(out);
        self.reconnects.fetch_add(1, Ordering::Relaxed);
        self.filled.notify_one();
        self.changed.notify_waiters();
    }

    fn lose(&self, reason: String) -> bool {
        *lock(&self.reason) = reason;
        lock(&self.pongs).clear();
        lock(&self.requests).clear();
        let mut out = lock(&self.out);
        let goes_on = self.reconnect && out.state == State::Open;
        out.state = if goes_on { State::Offline } else { State::Closed };
        out.bytes.clear();
        drop(out);
        self.changed.notify_waiters();
        goes_on
    }
}

async fn supervise(shared: Arc<Shared>, mut stream: Stream) {
    loop {
        let (reader, writer) = tokio::io::split(stream);
        let reason = tokio::select! {
            reason = read_all(&shared, reader) => reason,
            reason = write_all(&shared, writer) => reason,
        };
        if !shared.lose(format!("{reason:#}")) {
            // Whoever listens hears that no more comes.
            lock(&shared.feeds).clear();
            return;
        }
        stream = loop {
            tokio::time::sleep(PAUSE).await;
            if lock(&shared.out).state != State::Offline {
                lock(&shared.feeds).clear();
                return;
            }
            if let Ok((stream, info)) = dial(&shared.address, &shared.options).await {
                shared.reopen(info);
                break stream;
            }
        };
    }
}

async fn write_all(shared: &Shared, mut writer: WriteHalf<Stream>) -> anyhow::Error {
    let mut chunk = BytesMut::new();
    loop {
        let is_closing = {
            let mut out = lock(&shared.out);
            std::mem::swap(&mut out.bytes, &mut chunk);
            out.state == State::Closing
        };
        if chunk.is_empty() && is_closing {
            let _ = writer.shutdown().await;
            return anyhow::anyhow!("closed");
        }
        if chunk.is_empty() {
            shared.filled.notified().await;
            continue;
        }
        shared.changed.notify_waiters();
        for part in chunk.chunks(CLIENT_WRITE_BYTES) {
            if let Err(error) = writer.write_all(part).await {
                return error.into();
            }
        }
        if let Err(error) = writer.flush().await {
            return error.into();
        }
        chunk.clear();
    }
}

async fn read_all(shared: &Shared, mut reader: ReadHalf<Stream>) -> anyhow::Error {
    let mut buffer = BytesMut::with_capacity(READ_BYTES);
    let mut error_text = None;
    loop {
        match reader.read_buf(&mut buffer).await {
            Ok(0) => return anyhow::anyhow!(error_text.unwrap_or_else(|| "the server closed it".to_owned())),
            Ok(_) => {}
            Err(error) => return error.into(),
        }
        let read = match take(&mut buffer) {
            Ok(read) => read,
            Err(error) => return error,
        };
        error_text = error_text.or_else(|| read.errors.last().cloned());
        buffer.reserve(read.missing.max(READ_BYTES / 4));
        dispatch(shared, read).await;
    }
}

/// Hands on what one read brought; waits where a subscription is full.
async fn dispatch(shared: &Shared, read: Read) {
    for text in read.refusals {
        shared.refused.fetch_add(1, Ordering::Relaxed);
        *lock(&shared.reason) = text;
    }
    for _ in 0..read.pings {
        // Answers do not wait for space; a server asks every few minutes.
        lock(&shared.out).bytes.extend_from_slice(b"PONG\r\n");
        shared.filled.notify_one();
    }
    for (sid, items) in read.batches {
        if sid == INBOX_SID {
            for item in items {
                let waiting = item.number.and_then(|number| lock(&shared.requests).remove(&number));
                if let Some(waiting) = waiting.filter(|_| !item.is_no_responders) {
                    let _ = waiting.send(item.payload);
                }
            }
            continue;
        }
        let sender = lock(&shared.feeds).get(sid - 1).map(|(_, sender)| sender.clone());
        if let Some(sender) = sender {
            let _ = sender.send(items).await;
        }
    }
    // A pong comes after what was delivered before it.
    for _ in 0..read.pongs {
        if let Some(waiter) = lock(&shared.pongs).pop_front() {
            let _ = waiter.send(());
        }
    }
}

/// What arrives for one subscription.
#[derive(Debug)]
pub(crate) struct NatsFeed {
    receiver: mpsc::Receiver<Vec<Item>>,
    batch: std::vec::IntoIter<Item>,
}

impl NatsFeed {
    /// The next message; `None` when no more come.
    pub(crate) async fn next(&mut self) -> Option<Item> {
        loop {
            if let Some(item) = self.batch.next() {
                return Some(item);
            }
            self.batch = self.receiver.recv().await?.into_iter();
        }
    }

    /// The next message if one is here already.
    pub(crate) fn try_next(&mut self) -> Option<Item> {
        loop {
            if let Some(item) = self.batch.next() {
                return Some(item);
            }
            self.batch = self.receiver.try_recv().ok()?.into_iter();
        }
    }
}
