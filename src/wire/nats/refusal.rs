//! What a client is told by `-ERR`.
//!
//! Clients act on the words: nats-py closes for good on any text without "permissions violation", but for "stale
//! connection", on which it reconnects. So every refusal of one operation reads as a permissions violation, with its
//! reason after a colon.

use bytes::BytesMut;
use glocal_core::limits::{QUALIFIED_BYTES_MAX, TEXT_BYTES_MAX};

/// A refusal, by the text that clients know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal<'a> {
    /// A publish is refused; the session stays open.
    Publish {
        /// The subject as the client wrote it.
        subject: &'a [u8],
        /// Why; empty when nothing more is told.
        reason: &'a str,
    },
    /// A subscription is refused; the session stays open.
    Subscription {
        /// The filter as the client wrote it.
        subject: &'a [u8],
        /// The queue group; empty for none.
        queue: &'a [u8],
        /// Why; empty when nothing more is told.
        reason: &'a str,
    },
    /// A filter is malformed; the session stays open.
    InvalidSubject,
    /// A subject is malformed; the session stays open.
    InvalidPublishSubject,
    /// The certificate gives no session.
    AuthorizationViolation,
    /// CONNECT did not come in time.
    AuthenticationTimeout,
    /// The certificate or its right has expired.
    AuthenticationExpired,
    /// The certificate or its right has been revoked.
    AuthenticationRevoked,
    /// The node has as many sessions as it takes.
    TooManyConnections,
    /// The tenant has as many sessions as it may.
    TooManyTenantConnections,
    /// The tenant has no memory left for a message.
    InsufficientResources,
    /// A message is too large.
    PayloadTooLarge,
    /// A line is too long.
    ControlLineTooLong,
    /// No operation of the protocol.
    UnknownOperation,
    /// An operation with bad arguments.
    ParserError,
    /// The client did not answer probes; clients reconnect on this one.
    StaleConnection,
    /// The client does not read what it subscribed to.
    SlowConsumer,
    /// CONNECT asks for a protocol that does not exist.
    InvalidClientProtocol,
    /// CONNECT asks for no-responders messages without headers.
    NoRespondersWithoutHeaders,
    /// HPUB from a client that did not say that it knows headers.
    HeadersNotSupported,
    /// Bytes in clear where TLS must begin.
    TlsRequired,
}

impl Refusal<'_> {
    /// Whether the session is closed after this.
    #[must_use]
    pub const fn closes(&self) -> bool {
        !matches!(
            self,
            Self::Publish { .. } | Self::Subscription { .. } | Self::InvalidSubject | Self::InvalidPublishSubject
        )
    }

    /// Appends the `-ERR` line. Names are escaped and cut, so that they stay within their quotes and their line.
    pub fn encode_into(&self, out: &mut BytesMut) {
        out.extend_from_slice(b"-ERR '");
        out.extend_from_slice(self.text().as_bytes());
        let (queue, reason) = match self {
            Self::Publish { subject, reason } => {
                quoted_into(out, subject);
                (&b""[..], *reason)
            }
            Self::Subscription { subject, queue, reason } => {
                quoted_into(out, subject);
                (*queue, *reason)
            }
            _ => (&b""[..], ""),
        };
        if !queue.is_empty() {
            out.extend_from_slice(b" using queue ");
            quoted_into(out, queue);
        }
        if !reason.is_empty() {
            out.extend_from_slice(b": ");
            escaped_into(out, reason.as_bytes(), TEXT_BYTES_MAX, b'\'');
        }
        out.extend_from_slice(b"'\r\n");
    }

    /// The text, up to the first name in it.
    #[must_use]
    pub const fn text(&self) -> &'static str {
        match self {
            Self::Publish { .. } => "Permissions Violation for Publish to ",
            Self::Subscription { .. } => "Permissions Violation for Subscription to ",
            Self::InvalidSubject => "Invalid Subject",
            Self::InvalidPublishSubject => "Invalid Publish Subject",
            Self::AuthorizationViolation => "Authorization Violation",
            Self::AuthenticationTimeout => "Authentication Timeout",
            Self::AuthenticationExpired => "User Authentication Expired",
            Self::AuthenticationRevoked => "User Authentication Revoked",
            Self::TooManyConnections => "maximum connections exceeded",
            Self::TooManyTenantConnections => "maximum account active connections exceeded",
            Self::InsufficientResources => "Insufficient Resources",
            Self::PayloadTooLarge => "Maximum Payload Violation",
            Self::ControlLineTooLong => "maximum control line exceeded",
            Self::UnknownOperation => "Unknown Protocol Operation",
            Self::ParserError => "Parser Error",
            Self::StaleConnection => "Stale Connection",
            Self::SlowConsumer => "Slow Consumer",
            Self::InvalidClientProtocol => "invalid client protocol",
            Self::NoRespondersWithoutHeaders => "no responders requires headers support",
            Self::HeadersNotSupported => "message headers not supported",
            Self::TlsRequired => "Secure Connection - TLS Required",
        }
    }
}

fn quoted_into(out: &mut BytesMut, name: &[u8]) {
    out.extend_from_slice(b"\"");
    escaped_into(out, name, QUALIFIED_BYTES_MAX, b'"');
    out.extend_from_slice(b"\"");
}

/// Appends at most `max` bytes of `text`: whole characters as they are, but for the quote and the backslash, which get
/// a backslash, and control characters and bytes that are no UTF-8, which are written as `\x` and two digits.
fn escaped_into(out: &mut BytesMut, text: &[u8], max: usize, quote: u8) {
    let cut = text.get(..max).unwrap_or(text);
    for chunk in cut.utf8_chunks() {
        for byte in chunk.valid().bytes() {
            match byte {
                _ if byte == quote || byte == b'\\' => out.extend_from_slice(&[b'\\', byte]),
                0..0x20 | 0x7f => hex_into(out, byte),
                _ => out.extend_from_slice(&[byte]),
            }
        }
        chunk.invalid().iter().for_each(|byte| hex_into(out, *byte));
    }
}

fn hex_into(out: &mut BytesMut, byte: u8) {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).map_or(b'?', |digit| digit as u8);
    out.extend_from_slice(&[b'\\', b'x', digit(byte >> 4), digit(byte & 0xf)]);
}
