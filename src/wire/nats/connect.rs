//! What a client says of itself in CONNECT.

use std::fmt;

use glocal_core::limits::CLIENT_NAME_BYTES_MAX;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::NatsError;

/// The newest protocol of clients: 1, which takes further INFO lines.
const PROTOCOL: i64 = 1;

/// The options of CONNECT that mean something here.
///
/// User names, passwords, tokens, keys and signatures are read over and never stored: the certificate is the login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Answer every operation with `+OK`.
    pub verbose: bool,
    /// Check the subjects of publishes.
    pub pedantic: bool,
    /// Deliver the client's own messages to it.
    pub echo: bool,
    /// The client knows headers.
    pub headers: bool,
    /// The client wants to be told when nobody answers a request.
    pub no_responders: bool,
    /// The client wants TLS; it has it.
    pub tls_required: bool,
    /// The protocol: 0, or 1 for a client that takes further INFO lines.
    pub protocol: u8,
    /// The client's name, cut to a limit; it only labels logs, as do the next two.
    pub name: String,
    /// The client's language.
    pub lang: String,
    /// The client's version.
    pub version: String,
}

/// What holds for keys that are absent or null.
impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            verbose: true,
            pedantic: true,
            echo: true,
            headers: false,
            no_responders: false,
            tls_required: false,
            protocol: 0,
            name: String::new(),
            lang: String::new(),
            version: String::new(),
        }
    }
}

impl ConnectOptions {
    /// Reads the JSON of CONNECT. Unknown keys and nulls are passed over, the last of equal keys counts.
    ///
    /// # Errors
    /// [`NatsError::BadConnect`], [`NatsError::ClientProtocol`] or [`NatsError::NoRespondersWithoutHeaders`].
    pub fn parse(json: &[u8]) -> Result<Self, NatsError> {
        let Read { mut options, protocol } = serde_json::from_slice(json).map_err(|_| NatsError::BadConnect)?;
        options.protocol = match u8::try_from(protocol) {
            Ok(known) if protocol <= PROTOCOL => known,
            _ => return Err(NatsError::ClientProtocol(protocol)),
        };
        if options.no_responders && !options.headers {
            return Err(NatsError::NoRespondersWithoutHeaders);
        }
        Ok(options)
    }

    /// The JSON that a client sends.
    pub(super) fn to_json(&self) -> Vec<u8> {
        let flags = [
            ("verbose", self.verbose),
            ("pedantic", self.pedantic),
            ("echo", self.echo),
            ("headers", self.headers),
            ("no_responders", self.no_responders),
            ("tls_required", self.tls_required),
        ];
        let texts = [("name", &self.name), ("lang", &self.lang), ("version", &self.version)];
        let mut object: Map<String, Value> = flags.into_iter().map(|(key, on)| (key.to_owned(), on.into())).collect();
        object.extend(texts.into_iter().map(|(key, text)| (key.to_owned(), text.as_str().into())));
        object.insert("protocol".to_owned(), self.protocol.into());
        Value::Object(object).to_string().into_bytes()
    }
}

/// The options as they are read, the protocol not yet checked.
struct Read {
    options: ConnectOptions,
    protocol: i64,
}

impl<'de> Deserialize<'de> for Read {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Read;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Read, A::Error> {
        let mut options = ConnectOptions::default();
        let mut protocol = 0;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "verbose" => set(&mut options.verbose, map.next_value()?),
                "pedantic" => set(&mut options.pedantic, map.next_value()?),
                "echo" => set(&mut options.echo, map.next_value()?),
                "headers" => set(&mut options.headers, map.next_value()?),
                "no_responders" => set(&mut options.no_responders, map.next_value()?),
                "tls_required" => set(&mut options.tls_required, map.next_value()?),
                "protocol" => set(&mut protocol, map.next_value()?),
                "name" => set(&mut options.name, map.next_value::<Option<String>>()?.map(label)),
                "lang" => set(&mut options.lang, map.next_value::<Option<String>>()?.map(label)),
                "version" => set(&mut options.version, map.next_value::<Option<String>>()?.map(label)),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Read { options, protocol })
    }
}

fn set<T>(option: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *option = value;
    }
}

/// A text cut to the longest label, at a whole character.
fn label(mut text: String) -> String {
    let mut end = CLIENT_NAME_BYTES_MAX.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}
