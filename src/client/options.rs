//! Where and how to connect.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use glocal_core::limits;
use glocal_core::name::Class;

use crate::error::ConnectError;

/// Native TLS/TCP port of a broker when an address has none.
pub const DEFAULT_TLS_PORT: u16 = 32010;
/// Native QUIC port of a broker when an address has none.
pub const DEFAULT_QUIC_PORT: u16 = 32011;

/// How bytes travel to a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// TLS 1.3 over TCP.
    Tls,
    /// QUIC: one bidirectional stream.
    Quic,
}

/// A broker's address: `host:port`, `tls://host:port` or `quic://host:port`. IPv6 hosts stand in brackets; without a
/// port the scheme's default is taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    scheme: Scheme,
    host: String,
    port: u16,
}

impl Address {
    /// The address of `host` and `port` by `scheme`. The host is a DNS name or an IP address without brackets.
    pub fn new(scheme: Scheme, host: impl Into<String>, port: u16) -> Self {
        Self { scheme, host: host.into(), port }
    }

    /// How bytes travel.
    #[must_use]
    pub const fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The host, without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }
}

/// Why a text is no [`Address`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The scheme is neither `tls` nor `quic`.
    #[error("unknown scheme '{0}' (tls:// and quic:// are known)")]
    Scheme(String),
    /// There is no host, or it is malformed.
    #[error("the host is missing or malformed (host:port is needed)")]
    Host,
    /// The port is not a number from 1 to 65535.
    #[error("the port is not a number from 1 to 65535")]
    Port,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = match text.split_once("://") {
            None => (Scheme::Tls, text),
            Some(("tls", rest)) => (Scheme::Tls, rest),
            Some(("quic", rest)) => (Scheme::Quic, rest),
            Some((other, _)) => return Err(AddressError::Scheme(other.to_owned())),
        };
        let (host, port) = split_host(rest)?;
        let port = match port {
            Some(port) => port.parse().ok().filter(|p| *p != 0).ok_or(AddressError::Port)?,
            None if scheme == Scheme::Quic => DEFAULT_QUIC_PORT,
            None => DEFAULT_TLS_PORT,
        };
        // The name is checked by the type that TLS will use.
        if rustls_pki_types::ServerName::try_from(host).is_err() {
            return Err(AddressError::Host);
        }
        Ok(Self { scheme, host: host.to_owned(), port })
    }
}

fn split_host(text: &str) -> Result<(&str, Option<&str>), AddressError> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or(AddressError::Host)?;
        return match after.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if after.is_empty() => Ok((host, None)),
            None => Err(AddressError::Host),
        };
    }
    match text.split_once(':') {
        Some((_, port)) if port.contains(':') => Err(AddressError::Host),
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((text, None)),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Tls => "tls",
            Scheme::Quic => "quic",
        };
        if self.host.contains(':') {
            write!(f, "{scheme}://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{scheme}://{}:{}", self.host, self.port)
        }
    }
}

/// Where a PEM text comes from. Files are read anew for every connection, so a renewed certificate is picked up by the
/// next reconnect.
#[derive(Clone)]
pub enum PemSource {
    /// A file.
    File(PathBuf),
    /// The text itself.
    Text(String),
}

impl fmt::Display for PemSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "'{}'", path.display()),
            Self::Text(_) => f.write_str("the given text"),
        }
    }
}

impl fmt::Debug for PemSource {
    /// Never shows the text: it may be a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PemSource({self})")
    }
}

/// A client's certificate chain and key.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The chain: the leaf first, then the region CA.
    pub certificate: PemSource,
    /// The private key of the leaf.
    pub key: PemSource,
}

/// What happens after a connection is lost.
#[derive(Clone, Debug)]
pub struct Reconnect {
    /// Whether to dial again at all.
    pub enabled: bool,
    /// The first pause; it doubles with every failure, and each pause is shortened by up to half at random.
    pub pause_min: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// Failures in a row after which the client closes; `None` never gives up.
    pub attempts_max: Option<u32>,
}

/// How long the client waits for what.
#[derive(Clone, Debug)]
pub struct Timeouts {
    /// For one address: name lookup, TCP, TLS and the broker's welcome.
    pub connect: Duration,
    /// For space in the send buffer, or for the connection to come back, when publishing.
    pub publish: Duration,
    /// For the broker's answer to a subscription, a flush or an acknowledged publish.
    pub answer: Duration,
    /// Silence after which the broker is probed; after a second silence of the same length the connection is lost.
    pub silence: Duration,
}

/// What a full subscription buffer does with the next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// As the message's class: `live` drops the oldest, `tele` the newest, `ctrl` and `bulk` stop reading for up to
    /// [`limits::CLIENT_DELIVER_WAIT_MS`] and then drop the newest.
    ByClass,
    /// The oldest message in the buffer is dropped.
    DropOldest,
    /// The message that does not fit is dropped.
    DropNewest,
    /// The client stops reading its connection, for up to [`limits::CLIENT_DELIVER_WAIT_MS`], then drops the newest.
    Wait,
}

/// Bounds of one subscription's buffer.
#[derive(Clone, Debug)]
pub struct Buffering {
    /// Most messages.
    pub messages_max: usize,
    /// Most bytes.
    pub bytes_max: usize,
    /// What happens when either is reached.
    pub overflow: Overflow,
}

/// Everything [`crate::Client::connect`] needs.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The brokers to try, beginning with one at random.
    pub addresses: Vec<Address>,
    /// The fabric's root certificate; several in a row are all trusted.
    pub root: PemSource,
    /// The client's certificate and key; without them only a broker with an anonymous tenant answers.
    pub identity: Option<Identity>,
    /// The one broker that will do, `<region>/<agent>`.
    pub expected_node: Option<String>,
    /// The program's name, for the broker's log.
    pub client_name: String,
    /// The class of publishes that name none.
    pub default_class: Class,
    /// Whether the client's own subscriptions see its own messages.
    pub echo: bool,
    /// What happens after a connection is lost.
    pub reconnect: Reconnect,
    /// How long the client waits for what.
    pub timeouts: Timeouts,
    /// Most `ctrl` and `bulk` publishes without an acknowledgement; then publishers wait.
    pub in_flight_max: usize,
    /// Bounds of each subscription's buffer.
    pub buffering: Buffering,
}

impl ConnectOptions {
    /// The defaults for these brokers and this root: no certificate, class `live`, own messages seen, reconnecting.
    #[must_use]
    pub fn new(addresses: Vec<Address>, root: PemSource) -> Self {
        Self {
            addresses,
            root,
            identity: None,
            expected_node: None,
            client_name: concat!("glocal-client/", env!("CARGO_PKG_VERSION")).to_owned(),
            default_class: Class::Live,
            echo: true,
            reconnect: Reconnect {
                enabled: true,
                pause_min: Duration::from_millis(limits::CLIENT_REDIAL_MS_MIN),
                pause_max: Duration::from_millis(limits::CLIENT_REDIAL_MS_MAX),
                attempts_max: None,
            },
            timeouts: Timeouts {
                connect: Duration::from_millis(limits::HANDSHAKE_MS_MAX),
                publish: Duration::from_secs(10),
                answer: Duration::from_secs(10),
                silence: Duration::from_millis(limits::SESSION_PING_MS),
            },
            in_flight_max: limits::CLIENT_IN_FLIGHT_DEFAULT,
            buffering: Buffering {
                messages_max: limits::CLIENT_SUBSCRIPTION_MESSAGES,
                bytes_max: limits::CLIENT_SUBSCRIPTION_BYTES,
                overflow: Overflow::ByClass,
            },
        }
    }

    /// The same options with this certificate chain and key.
    #[must_use]
    pub fn identity(mut self, certificate: PemSource, key: PemSource) -> Self {
        self.identity = Some(Identity { certificate, key });
        self
    }

    /// The TLS configuration that [`crate::Client::connect`] dials with, but without a protocol's name: for what speaks
    /// another protocol with a broker. It trusts brokers of the fabric only, and never resumes.
    ///
    /// # Errors
    /// As [`ConnectOptions::check`].
    pub fn tls(&self) -> Result<rustls::ClientConfig, ConnectError> {
        let mut tls = rustls::ClientConfig::clone(&crate::tls::config(self)?.rustls);
        tls.alpn_protocols.clear();
        Ok(tls)
    }

    /// Reads the files and checks that they fit together, without connecting.
    ///
    /// # Errors
    /// What is wrong, with the file's name.
    pub fn check(&self) -> Result<(), ConnectError> {
        crate::tls::config(self).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for (text, shown) in [
            ("localhost:1", "tls://localhost:1"),
            ("tls://a.example:32010", "tls://a.example:32010"),
            ("quic://127.0.0.1:5", "quic://127.0.0.1:5"),
            ("[::1]:9", "tls://[::1]:9"),
            ("quic://[::1]", "quic://[::1]:32011"),
            ("host", "tls://host:32010"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(shown.parse::<Address>().unwrap(), address);
        }
        for bad in ["", ":1", "a:0", "a:x", "a:70000", "http://a:1", "::1", "[::1", "[::1]x", "a b:1"] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_key_is_never_shown() {
        let options = ConnectOptions::new(Vec::new(), PemSource::Text("R".into()))
            .identity(PemSource::Text("C".into()), PemSource::Text("very secret".into()));
        assert!(!format!("{options:?}").contains("secret"));
    }
}
