//! What a server says of itself in INFO.

use bytes::{BufMut, BytesMut};
use serde::{Serialize, Serializer};

use super::NatsEncodeError;

/// Numbers above this do not survive a client that keeps them as floating point: 2^53 - 1.
const SAFE_INTEGER: u64 = (1 << 53) - 1;

/// The fields of INFO.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerInfo {
    /// The server's id.
    pub server_id: String,
    /// The server's name.
    pub server_name: String,
    /// A semantic version; clients choose features by it, and nats.js hangs when it is none.
    pub version: String,
    /// The language of the server; clients only report it.
    pub go: String,
    /// The host that the server listens on.
    pub host: String,
    /// The port that the server listens on.
    pub port: u16,
    /// Whether the server knows headers.
    pub headers: bool,
    /// Largest message, headers and payload together, in bytes.
    pub max_payload: u32,
    /// The server's protocol: 1, which sends further INFO lines.
    pub proto: u8,
    /// Whether the client must use TLS: nats-py sends CONNECT in clear without it.
    pub tls_required: bool,
    /// Whether the client must show a certificate.
    pub tls_verify: bool,
    /// The connection's id, cut to 53 bits, which every client can hold.
    #[serde(serialize_with = "safe_integer")]
    pub client_id: u64,
    /// The client's address as the server sees it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client_ip: String,
    /// Whether JetStream is served.
    #[serde(skip_serializing_if = "is_false")]
    pub jetstream: bool,
    /// Other servers, each `host:port`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connect_urls: Vec<String>,
    /// Whether the server is leaving: lame duck mode.
    #[serde(skip_serializing_if = "is_false")]
    pub ldm: bool,
}

impl ServerInfo {
    /// Appends the INFO line.
    ///
    /// # Errors
    /// [`NatsEncodeError::Json`], never for these types; `out` is unchanged then.
    pub fn encode_into(&self, out: &mut BytesMut) -> Result<(), NatsEncodeError> {
        let before = out.len();
        out.extend_from_slice(b"INFO ");
        if serde_json::to_writer((&mut *out).writer(), self).is_err() {
            out.truncate(before);
            return Err(NatsEncodeError::Json);
        }
        out.extend_from_slice(b"\r\n");
        Ok(())
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn safe_integer<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(*number & SAFE_INTEGER)
}
