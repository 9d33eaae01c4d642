//! The connection flags shared by the commands that talk to a broker, and how they, the environment and a saved context
//! combine: a flag beats its environment variable, which beats the context.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use glocal_client::{Address, Client, ConnectError, ConnectOptions, Event, PemSource};
use tokio::sync::broadcast::error::RecvError;

use super::context::{self, Saved, Store};
use super::output::{complain, escape};
use super::{WithHint as _, usage};

/// The shared connection flags.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectArgs {
    /// The brokers' addresses: host:port, tls://host:port or quic://host:port; several by comma or repetition.
    #[arg(short, long, env = "GLOCAL_SERVER", value_delimiter = ',', value_name = "ADDRESS")]
    server: Vec<Address>,
    /// The fabric's root certificate (PEM).
    #[arg(long, env = "GLOCAL_ROOT", value_name = "FILE")]
    root: Option<PathBuf>,
    /// The agent's certificate chain (PEM).
    #[arg(long, env = "GLOCAL_CERT", value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The agent's private key (PEM).
    #[arg(long, env = "GLOCAL_KEY", value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// A context saved by 'glocal context add'; the current one by default.
    #[arg(long, env = "GLOCAL_CONTEXT", value_name = "NAME", value_parser = context::name)]
    context: Option<String>,
    /// The broker's name, `<region>/<agent>`, when only that one will do.
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Seconds to wait for a connection.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    connect_timeout: Duration,
}

impl ConnectArgs {
    /// Combines flags, environment and context.
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        let store = Store::open();
        // The current context is only a default: flags that name everything do not need it to be readable.
        let complete = !self.server.is_empty() && self.root.is_some();
        let name = match (&self.context, complete) {
            (Some(name), _) => Some(name.clone()),
            (None, true) => None,
            (None, false) => store.as_ref().ok().map(Store::current).transpose()?.flatten(),
        };
        let base = match name {
            Some(name) => {
                let saved = store?.load(&name)?;
                Some(Settings::from_saved(&name, saved)?)
            }
            None => None,
        };
        self.over(base)
    }

    fn over(&self, base: Option<Settings>) -> anyhow::Result<Settings> {
        let servers = match (&base, self.server.as_slice()) {
            (Some(base), []) => base.servers.clone(),
            (_, flags) => flags.to_vec(),
        };
        if servers.is_empty() {
            return Err(usage(
                "no broker is named",
                "pass --server, set GLOCAL_SERVER, or save one with 'glocal context add NAME … --use'",
            ));
        }
        let root =
            self.root.clone().or_else(|| base.as_ref().map(|b| b.root.clone())).ok_or_else(|| {
                usage("no root certificate is named", "pass --root, set GLOCAL_ROOT, or use a context")
            })?;
        let from_flags = self.cert.clone().zip(self.key.clone());
        Ok(Settings {
            servers,
            root,
            identity: from_flags.or_else(|| base.as_ref().and_then(|b| b.identity.clone())),
            node: self.node.clone().or_else(|| base.and_then(|b| b.node)),
            connect_timeout: self.connect_timeout,
        })
    }

    /// Connects once; a command that should outlive a broker's restart asks for it by `reconnect`.
    pub(crate) async fn connect(&self, reconnect: bool) -> anyhow::Result<Client> {
        let mut options = self.settings()?.options();
        options.reconnect.enabled = reconnect;
        connect(options).await
    }
}

/// Where and how to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    servers: Vec<Address>,
    root: PathBuf,
    identity: Option<(PathBuf, PathBuf)>,
    node: Option<String>,
    connect_timeout: Duration,
}

impl Settings {
    /// The settings a context holds.
    pub(crate) fn from_saved(name: &str, saved: Saved) -> anyhow::Result<Self> {
        let servers = saved
            .server
            .iter()
            .map(|text| text.parse().with_context(|| format!("context '{name}': server '{text}'")))
            .collect::<anyhow::Result<Vec<Address>>>()?;
        let identity = match (saved.cert, saved.key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => anyhow::bail!("context '{name}': cert and key belong together"),
        };
        Ok(Self { servers, root: saved.root, identity, node: saved.node, connect_timeout: Duration::from_secs(10) })
    }

    /// The library's options.
    pub(crate) fn options(self) -> ConnectOptions {
        let mut options = ConnectOptions::new(self.servers, PemSource::File(self.root));
        if let Some((cert, key)) = self.identity {
            options = options.identity(PemSource::File(cert), PemSource::File(key));
        }
        options.expected_node = self.node;
        options.client_name = concat!("glocal-cli/", env!("CARGO_PKG_VERSION")).to_owned();
        options.timeouts.connect = self.connect_timeout;
        options
    }
}

/// Connects; the error carries what to do about it.
pub(crate) async fn connect(options: ConnectOptions) -> anyhow::Result<Client> {
    match Client::connect(options).await {
        Ok(client) => Ok(client),
        Err(error) => match advice(&error) {
            Some(text) => Err(error).hint(text),
            None => Err(error.into()),
        },
    }
}

fn advice(error: &ConnectError) -> Option<&'static str> {
    Some(match error {
        ConnectError::Unreachable { .. } | ConnectError::Timeout { .. } => {
            "is the broker running, and is the port right? 'glocal status' asks it on its own machine"
        }
        ConnectError::Resolve { .. } => "check the host name",
        ConnectError::ReadFile { .. } | ConnectError::Pem { .. } => {
            "check the path in the flag, the environment or 'glocal context show'"
        }
        ConnectError::KeyMismatch { .. } => "the key must be the one the certificate was issued for",
        ConnectError::Server { .. } => "check --server and --root: this may be another fabric, or not a broker at all",
        ConnectError::RefusedCertificate { .. } => {
            "'glocal pki verify --explain' says what is wrong with a certificate"
        }
        ConnectError::RefusedProtocol { .. } => {
            "this port does not speak glocal/1; clients dial broker_port or quic_port"
        }
        ConnectError::Exhausted(errors) => return errors.first().and_then(advice),
        _ => return None,
    })
}

/// Runs one command's future on a runtime of its own. A thread that still reads standard input does not hold up the end.
pub(crate) fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")?;
    let result = runtime.block_on(command);
    runtime.shutdown_background();
    result
}

/// Waits until the user or the system wants the command to end.
pub(crate) async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        }
        Err(_) => {
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}

/// Warns when others on this machine can read a key.
pub(crate) fn warn_about_open_key(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let Ok(metadata) = std::fs::metadata(path) else { return };
    if metadata.permissions().mode() & 0o077 != 0 {
        complain("warning", &format!("key '{}' can be read by others (chmod 600 it)", path.display()));
    }
}

/// Reports on standard error what happens to a long-lived connection, until the client is closed.
pub(crate) async fn narrate(client: Client) {
    let mut events = client.events();
    drop(client);
    loop {
        match events.recv().await {
            Ok(Event::Disconnected { reason }) => complain("warning", &format!("disconnected: {reason}")),
            Ok(Event::Connected { node }) => complain("note", &format!("connected to {node}")),
            Ok(Event::Goodbye { text, .. }) => complain("warning", &format!("the broker is leaving: {text}")),
            Ok(Event::SlowConsumer { filter, dropped }) => {
                let filter = escape(filter.as_bytes());
                complain("warning", &format!("too slow for '{filter}': {dropped} messages dropped"));
            }
            Ok(Event::Unacknowledged { count }) => {
                complain("warning", &format!("{count} messages were sent and never acknowledged"));
            }
            Ok(Event::Denied(denied)) => complain("warning", &denied.to_string()),
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// Parses a number of seconds, fractions allowed.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .and_then(|s| Duration::try_from_secs_f64(s).ok())
        .filter(|d| *d <= Duration::from_secs(365 * 86_400))
        .ok_or_else(|| "a number of seconds, such as 2.5, is needed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Settings {
        Settings {
            servers: vec!["tls://saved:1".parse().unwrap()],
            root: "/saved/root".into(),
            identity: Some(("/saved/cert".into(), "/saved/key".into())),
            node: None,
            connect_timeout: Duration::ZERO,
        }
    }

    #[test]
    fn flags_beat_the_context_one_by_one() {
        let flags = ConnectArgs { root: Some("/flag/root".into()), ..ConnectArgs::default() };
        let settings = flags.over(Some(base())).unwrap();
        assert_eq!(settings, Settings { root: "/flag/root".into(), ..base() });
    }

    #[test]
    fn what_is_missing_is_named() {
        let flags = ConnectArgs::default();
        assert!(flags.over(None).unwrap_err().to_string().contains("broker"));
        let flags = ConnectArgs { server: vec!["h:1".parse().unwrap()], ..flags };
        assert!(flags.over(None).unwrap_err().to_string().contains("root"));
    }

    #[test]
    fn a_context_with_half_an_identity_is_refused() {
        let saved =
            Saved { server: vec!["h:1".into()], root: "/r".into(), cert: Some("/c".into()), key: None, node: None };
        assert!(Settings::from_saved("dev", saved).unwrap_err().to_string().contains("belong together"));
    }

    #[test]
    fn seconds_are_finite_and_not_negative() {
        assert_eq!(seconds("2.5"), Ok(Duration::from_millis(2500)));
        for bad in ["", "-1", "nan", "inf", "1e30", "1s"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
