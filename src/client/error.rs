//! What can go wrong, one enum per operation. The texts name the file, the address or the subject, and what the broker
//! said; sources are kept, not repeated.

use std::fmt;
use std::io;
use std::time::Duration;

use glocal_core::deny::{Access, Escaped};

use crate::options::Address;

/// Why [`crate::Client::connect`] failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The options name no address.
    #[error("no broker address is given")]
    NoAddress,
    /// The expected node's name is malformed.
    #[error("'{0}' is not a broker's name of the form <region>/<agent>")]
    NodeName(String),
    /// The program's name is too long for a hello.
    #[error("the client's name is longer than {0} bytes")]
    ClientName(usize),
    /// A file cannot be read.
    #[error("cannot read the {what} {file}")]
    ReadFile {
        /// What the file is for.
        what: &'static str,
        /// The file's name.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("the {what} {file} {reason}")]
    Pem {
        /// What the file is for.
        what: &'static str,
        /// The file's name.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The key belongs to another certificate.
    #[error("the key {key} does not belong to the certificate {certificate}")]
    KeyMismatch {
        /// The key's file.
        key: String,
        /// The certificate's file.
        certificate: String,
    },
    /// The TLS library refuses the configuration.
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
    /// The host name cannot be resolved.
    #[error("cannot resolve the host of {address}")]
    Resolve {
        /// The address.
        address: Address,
        /// Why.
        source: io::Error,
    },
    /// Nobody answers at the address.
    #[error("cannot reach {address}")]
    Unreachable {
        /// The address.
        address: Address,
        /// Why.
        source: io::Error,
    },
    /// Connection, handshake or welcome took too long.
    #[error("{address} did not answer within {} ms ({step})", timeout.as_millis())]
    Timeout {
        /// The address.
        address: Address,
        /// What was waited for.
        step: &'static str,
        /// How long.
        timeout: Duration,
    },
    /// What answers is not a broker of this fabric.
    #[error("{address} is not a broker to trust")]
    Server {
        /// The address.
        address: Address,
        /// Why.
        source: ServerError,
    },
    /// The broker refused this client's certificate, or its absence.
    #[error("the broker at {address} refused this certificate ({reason})")]
    RefusedCertificate {
        /// The address.
        address: Address,
        /// What its TLS alert means.
        reason: String,
    },
    /// What answers does not speak `glocal/1`.
    #[error("{address} does not speak glocal/1")]
    RefusedProtocol {
        /// The address.
        address: Address,
    },
    /// The handshake failed in another way.
    #[error("handshake with {address} failed: {reason}")]
    Handshake {
        /// The address.
        address: Address,
        /// What happened.
        reason: String,
    },
    /// The broker answered the hello with a refusal.
    #[error("the broker at {address} refused this client: {text} ({code})")]
    Refused {
        /// The address.
        address: Address,
        /// The catalogued code.
        code: String,
        /// The text.
        text: String,
    },
    /// The broker broke the protocol before its welcome.
    #[error("the broker at {address} broke the protocol: {reason}")]
    Protocol {
        /// The address.
        address: Address,
        /// How.
        reason: String,
    },
    /// Every address failed; in the order they were tried.
    #[error("no broker can be reached: {}", Joined(.0))]
    Exhausted(Vec<ConnectError>),
}

struct Joined<'a>(&'a [ConnectError]);

impl fmt::Display for Joined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{error}")?;
            let mut source = std::error::Error::source(error);
            while let Some(cause) = source {
                write!(f, ": {cause}")?;
                source = cause.source();
            }
        }
        Ok(())
    }
}

/// Why what answers at an address is not a broker to trust.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    /// The chain does not lead to the fabric's root.
    #[error("its certificate is not issued under the given root")]
    Untrusted,
    /// The certificate has expired.
    #[error("its certificate has expired")]
    Expired,
    /// The certificate is not valid yet.
    #[error("its certificate is not valid yet (check the local clock)")]
    NotYetValid,
    /// The certificate may not be used by a server.
    #[error("its certificate is not for a server (an agent's certificate?)")]
    Usage,
    /// The certificate names no broker.
    #[error("its certificate names no broker (no 'glocal://node/<region>/<agent>')")]
    NotABroker,
    /// Another broker than the expected one.
    #[error("it is the broker '{found}', not the expected '{expected}'")]
    OtherBroker {
        /// The one that was wanted.
        expected: String,
        /// The one that answers.
        found: String,
    },
    /// The certificate is not for the dialled host.
    #[error("its certificate is not for the host '{0}'")]
    Host(String),
    /// The chain has too many or too large certificates.
    #[error("its certificate chain is too large")]
    TooLarge,
    /// The certificate is wrong in another way.
    #[error("its certificate is refused ({0})")]
    Other(String),
}

/// A refusal by the broker's policy. The session goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Denied {
    /// Subscribing or publishing.
    pub access: Access,
    /// The subject or filter, as this client wrote it.
    pub subject: String,
    /// The catalogued code, a row of `docs/DENY-REASONS.md`.
    pub code: String,
    /// The reason.
    pub text: String,
    /// When to try again, for refusals by rate.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (access, subject) = (self.access.as_str(), Escaped(self.subject.as_bytes()));
        write!(f, "DENY {access} '{subject}' : {} ({})", self.text, self.code)?;
        match self.retry_after {
            Some(pause) => write!(f, "; try again in {} ms", pause.as_millis()),
            None => Ok(()),
        }
    }
}

/// Why a publish failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The payload is larger than the fabric allows.
    #[error("the payload of {bytes} bytes is larger than the fabric's {max} bytes")]
    TooLarge {
        /// The payload's size.
        bytes: usize,
        /// The fabric's limit.
        max: usize,
    },
    /// The message does not fit a frame.
    #[error("the message does not fit a frame: {0}")]
    Malformed(String),
    /// The broker refused it.
    #[error("{0}")]
    Denied(Denied),
    /// The connection was lost before the acknowledgement; the message may or may not have arrived.
    #[error("the connection was lost before the acknowledgement")]
    Disconnected,
    /// No space in the send buffer, no connection or no acknowledgement in time.
    #[error("timed out")]
    Timeout,
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
}

/// Why a subscription failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubscribeError {
    /// The filter or queue group does not fit a frame, or there are too many subscriptions.
    #[error("the subscription is malformed: {0}")]
    Malformed(String),
    /// The broker refused it.
    #[error("{0}")]
    Denied(Denied),
    /// The broker did not answer in time.
    #[error("the broker did not answer in time")]
    Timeout,
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
}

/// Why a request got no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Nobody in the mesh listens on the subject.
    #[error("nobody answers on '{0}'")]
    NoResponders(String),
    /// No reply in time.
    #[error("no reply in time")]
    Timeout,
    /// The broker refused the request.
    #[error("{0}")]
    Denied(Denied),
    /// The connection was lost while the reply was awaited.
    #[error("the connection was lost before the reply")]
    Disconnected,
    /// The request could not be sent.
    #[error("the request cannot be sent: {0}")]
    Publish(PublishError),
    /// The reply subject could not be subscribed.
    #[error("replies cannot be received: {0}")]
    Subscribe(SubscribeError),
    /// Too many requests are open.
    #[error("too many requests are open")]
    TooMany,
}

/// Why a flush or a drain failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlushError {
    /// The broker did not answer in time.
    #[error("the broker did not answer in time")]
    Timeout,
    /// The connection was lost.
    #[error("the connection was lost")]
    Disconnected,
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
}
