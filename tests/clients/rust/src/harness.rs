//! What every scenario needs: arguments, connections, facts, time limits and the talk with whoever started the program.
//!
//! One line of JSON goes to standard output for each scenario. A scenario records facts, which are compared between servers,
//! and notes, which are only shown. Nothing waits without a deadline, and a watchdog ends the program when all else fails.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use async_nats::{Client, ConnectOptions, Event, Message, ServerError, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines, Stdin};

use crate::{Body, Outcome};

/// How long one scenario may take, and one that waits for the harness.
pub(crate) const SCENARIO: Duration = Duration::from_secs(12);
pub(crate) const HARNESS: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_secs(5);

/// The command line.
#[derive(Clone, Default)]
pub(crate) struct Options {
    pub(crate) url: String,
    pub(crate) ca: PathBuf,
    pub(crate) cert: Option<(PathBuf, PathBuf)>,
    pub(crate) tls_first: bool,
    pub(crate) scenario: String,
    pub(crate) denied: String,
    pub(crate) refused: Vec<(String, PathBuf, PathBuf)>,
    pub(crate) watchdog: Duration,
    pub(crate) role: Option<String>,
    pub(crate) subject: String,
    pub(crate) queue: String,
    pub(crate) id: String,
    pub(crate) count: usize,
    pub(crate) expect: usize,
    pub(crate) settle: Duration,
    pub(crate) timeout: Duration,
}

pub(crate) fn usage(text: &str) -> ! {
    eprintln!("error: {text}");
    std::process::exit(2);
}

impl Options {
    pub(crate) fn parse() -> Self {
        let mut options = Self {
            scenario: "all".to_owned(),
            denied: "denied.subject".to_owned(),
            watchdog: Duration::from_secs(120),
            id: "rs".to_owned(),
            count: 1,
            expect: 1,
            settle: Duration::from_millis(200),
            timeout: Duration::from_secs(10),
            ..Self::default()
        };
        let (mut cert, mut key) = (None, None);
        let mut arguments = std::env::args().skip(1);
        while let Some(name) = arguments.next() {
            match name.as_str() {
                "--tls-first" => options.tls_first = true,
                "--json" => {}
                _ => {
                    let Some(value) = arguments.next() else { usage(&format!("{name} needs a value")) };
                    match name.as_str() {
                        "--cert" => cert = Some(PathBuf::from(value)),
                        "--key" => key = Some(PathBuf::from(value)),
                        _ => options.set(&name, value),
                    }
                }
            }
        }
        options.cert = cert.zip(key);
        if options.url.is_empty() || options.ca.as_os_str().is_empty() {
            usage("--url and --ca are needed");
        }
        options
    }

    fn set(&mut self, name: &str, value: String) {
        let number = || value.parse::<u64>().unwrap_or_else(|_| usage(&format!("{name}: '{value}' is not a number")));
        match name {
            "--url" => self.url = value,
            "--ca" => self.ca = value.into(),
            "--scenario" => self.scenario = value,
            "--denied" => self.denied = value,
            "--refused" => match value.split_once('=').and_then(|(n, files)| Some((n, files.split_once(':')?))) {
                Some((name, (cert, key))) => self.refused.push((name.to_owned(), cert.into(), key.into())),
                None => usage("--refused is NAME=CERT:KEY"),
            },
            "--watchdog" => self.watchdog = Duration::from_secs(number()),
            "--role" => self.role = Some(value),
            "--subject" => self.subject = value,
            "--queue" => self.queue = value,
            "--id" => self.id = value,
            "--count" => self.count = number() as usize,
            "--expect" => self.expect = number() as usize,
            "--settle-ms" => self.settle = Duration::from_millis(number()),
            "--timeout-ms" => self.timeout = Duration::from_millis(number()),
            _ => usage(&format!("unknown argument {name}")),
        }
    }
}

/// Prints one line at once: the program may be ended right after.
pub(crate) fn emit(value: &Value) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{value}").and_then(|()| out.flush());
}

pub(crate) fn watchdog(limit: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        let error = format!("not finished after {limit:?}");
        emit(&json!({"scenario": "watchdog", "outcome": {}, "ok": false, "error": error}));
        std::process::exit(3);
    });
}

/// Seeds the cryptography before the first connection.
///
/// This client opens its socket first and only then prepares TLS. With the handshake first, a server that serves both
/// orders waits only for so long before it says INFO in clear, and the first seed alone can take longer than that.
pub(crate) fn warm_up() {
    let provider = async_nats::rustls::crypto::aws_lc_rs::default_provider();
    let _ = provider.secure_random.fill(&mut [0; 32]);
    for group in &provider.kx_groups {
        let _ = group.start();
    }
}

static INPUT: OnceLock<tokio::sync::Mutex<Lines<BufReader<Stdin>>>> = OnceLock::new();

/// The next line of standard input, or `None` at its end.
pub(crate) async fn stdin_line() -> Option<String> {
    let input = INPUT.get_or_init(|| tokio::sync::Mutex::new(BufReader::new(tokio::io::stdin()).lines()));
    input.lock().await.next_line().await.ok().flatten()
}

/// A client and the events that it reported.
pub(crate) struct Link {
    client: Client,
    pub(crate) events: Arc<Mutex<Vec<Event>>>,
}

impl Deref for Link {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Link {
    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.lock().map(|events| events.clone()).unwrap_or_default()
    }

    /// The texts of the errors that the server told.
    pub(crate) fn errors(&self) -> Vec<String> {
        let text = |event| match event {
            Event::ServerError(ServerError::Other(text)) => Some(text),
            Event::ServerError(error) => Some(error.to_string()),
            _ => None,
        };
        self.events().into_iter().filter_map(text).collect()
    }

    pub(crate) async fn event(&self, what: &str, limit: Duration, wanted: impl Fn(&Event) -> bool) -> Outcome {
        until(limit, what, || self.events().iter().any(&wanted)).await
    }

    /// Returns when the server has done all that the client asked for before.
    ///
    /// This client's `flush` only empties its buffer. A message to itself comes back behind everything else.
    pub(crate) async fn sync(&self) -> Outcome {
        let inbox = self.new_inbox();
        let mut echo = self.subscribe(inbox.clone()).await?;
        self.publish(inbox, Bytes::new()).await?;
        tokio::time::timeout(STEP, echo.next()).await?.ok_or("the connection ended")?;
        Ok(())
    }
}

/// Waits for a condition, until a deadline.
pub(crate) async fn until(limit: Duration, what: &str, condition: impl Fn() -> bool) -> Outcome {
    let deadline = Instant::now() + limit;
    while !condition() {
        if Instant::now() > deadline {
            return Err(format!("timeout: no {what} within {limit:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    Ok(())
}

/// The next messages of a subscription, at most `count`; fewer when nothing more comes in time.
pub(crate) async fn take(subscriber: &mut Subscriber, count: usize, limit: Duration) -> Vec<Message> {
    let mut messages = Vec::new();
    while messages.len() < count {
        match tokio::time::timeout(limit, subscriber.next()).await {
            Ok(Some(message)) => messages.push(message),
            Ok(None) | Err(_) => break,
        }
    }
    messages
}

/// What has arrived up to now.
pub(crate) async fn rest(link: &Link, subscriber: &mut Subscriber) -> Result<Vec<Message>, Box<dyn std::error::Error>> {
    link.sync().await?;
    let mut messages = Vec::new();
    while let Some(Some(message)) = now(subscriber.next()).await {
        messages.push(message);
    }
    Ok(messages)
}

/// The result of a future that is ready already.
async fn now<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match future.as_mut().poll(context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

pub(crate) fn texts(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|m| String::from_utf8_lossy(&m.payload).into_owned()).collect()
}

/// The facts of one scenario.
pub(crate) struct Scenario {
    pub(crate) options: Options,
    pub(crate) name: &'static str,
    pub(crate) prefix: String,
    pub(crate) facts: Map<String, Value>,
    pub(crate) notes: Map<String, Value>,
    pub(crate) failures: Vec<String>,
}

impl Scenario {
    pub(crate) fn new(options: &Options, name: &'static str) -> Self {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let nanos = SystemTime::UNIX_EPOCH.elapsed().map(|d| d.as_nanos()).unwrap_or_default();
        Self {
            options: options.clone(),
            name,
            prefix: format!("s{nanos:x}{:x}", COUNTER.fetch_add(1, Ordering::Relaxed)),
            facts: Map::new(),
            notes: Map::new(),
            failures: Vec::new(),
        }
    }

    pub(crate) fn subject(&self, rest: &str) -> String {
        format!("{}.{rest}", self.prefix)
    }

    pub(crate) fn relative(&self, subject: &str) -> String {
        subject.strip_prefix(&format!("{}.", self.prefix)).unwrap_or(subject).to_owned()
    }

    pub(crate) fn fact(&mut self, name: &str, value: impl Into<Value>) {
        self.facts.insert(name.to_owned(), value.into());
    }

    pub(crate) fn expect(&mut self, name: &str, value: impl Into<Value>, wanted: impl Into<Value>) {
        let (value, wanted) = (value.into(), wanted.into());
        if value != wanted {
            self.failures.push(format!("{name}: {value} instead of {wanted}"));
        }
        self.facts.insert(name.to_owned(), value);
    }

    pub(crate) fn note(&mut self, name: &str, value: impl Into<Value>) {
        self.notes.insert(name.to_owned(), value.into());
    }

    pub(crate) async fn connect(&self) -> Result<Link, Box<dyn std::error::Error>> {
        self.connect_with(self.options.cert.as_ref(), |options| options).await
    }

    pub(crate) async fn connect_with(
        &self,
        certificate: Option<&(PathBuf, PathBuf)>,
        change: impl FnOnce(ConnectOptions) -> ConnectOptions,
    ) -> Result<Link, Box<dyn std::error::Error>> {
        let events = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&events);
        let mut options = ConnectOptions::new()
            .add_root_certificates(self.options.ca.clone())
            .require_tls(true)
            .connection_timeout(Duration::from_secs(3))
            .reconnect_delay_callback(|_| Duration::from_millis(50))
            .event_callback(move |event| {
                if let Ok(mut seen) = seen.lock() {
                    seen.push(event);
                }
                std::future::ready(())
            });
        if let Some((cert, key)) = certificate {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
        if self.options.tls_first {
            options = options.tls_first();
        }
        let client = change(options).connect(&self.options.url).await?;
        Ok(Link { client, events })
    }

    /// Asks whoever started the program to do something to the server, and waits until it says that it is done.
    pub(crate) async fn harness(&self, action: &str) -> Outcome {
        emit(&json!({"ready": self.name, "action": action}));
        match stdin_line().await.as_deref() {
            Some("done") => Ok(()),
            _ => Err(format!("no harness did '{action}'").into()),
        }
    }
}

pub(crate) async fn run_scenario(options: &Options, name: &'static str, body: Body, limit: Duration) -> bool {
    let mut scenario = Scenario::new(options, name);
    let began = Instant::now();
    let error = match tokio::time::timeout(limit, body(&mut scenario)).await {
        Ok(Ok(())) if scenario.failures.is_empty() => None,
        Ok(Ok(())) => Some(scenario.failures.join("; ")),
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("timeout after {limit:?}")),
    };
    scenario.note("ms", began.elapsed().as_millis() as u64);
    emit(&json!({
        "scenario": name,
        "outcome": scenario.facts,
        "notes": scenario.notes,
        "ok": error.is_none(),
        "error": error,
    }));
    error.is_none()
}
