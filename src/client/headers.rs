//! Message headers: a NATS header block, `NATS/1.0`, then `Name: value` lines, ended by an empty line.
//!
//! Brokers carry the block verbatim and read nothing from it.

use std::fmt::Write as _;

use glocal_core::limits::HEADERS_BYTES_MAX;

const FIRST_LINE: &str = "NATS/1.0";

/// Headers in the order they were added; a name may occur more than once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

/// Why a header cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The name is empty or has a colon, a space or a control character.
    #[error("a header's name is printable ASCII without colon and space")]
    Name,
    /// The value has a line break or another control character.
    #[error("a header's value has no line breaks or control characters")]
    Value,
    /// All headers together exceed [`HEADERS_BYTES_MAX`].
    #[error("headers are larger than {HEADERS_BYTES_MAX} bytes")]
    TooLarge,
}

impl Headers {
    /// No headers.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds one header. White space around the value is not kept by the encoding.
    ///
    /// # Errors
    /// [`HeaderError`]; nothing is added then.
    pub fn add(&mut self, name: &str, value: &str) -> Result<(), HeaderError> {
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_graphic() && b != b':') {
            return Err(HeaderError::Name);
        }
        if value.chars().any(|c| c.is_control() && c != '\t') {
            return Err(HeaderError::Value);
        }
        // The block ends with an empty line.
        let bytes = FIRST_LINE.len() + 4 + self.iter().map(|(n, v)| n.len() + v.len() + 4).sum::<usize>();
        if bytes + name.len() + value.len() + 4 > HEADERS_BYTES_MAX {
            return Err(HeaderError::TooLarge);
        }
        self.0.push((name.to_owned(), value.trim().to_owned()));
        Ok(())
    }

    /// The first value of `name`, which is compared byte for byte.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        self.iter().find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    /// Names and values in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The block as it is sent; empty for no headers.
    #[must_use]
    pub fn encode(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let mut block = format!("{FIRST_LINE}\r\n");
        for (name, value) in self.iter() {
            let _ = write!(block, "{name}: {value}\r\n");
        }
        block.push_str("\r\n");
        block
    }

    /// Reads a block another client made. Lines that are not headers are passed over: a message is not lost for them.
    #[must_use]
    pub fn decode(block: &[u8]) -> Self {
        let text = String::from_utf8_lossy(block);
        let lines = text.lines().skip(1).filter_map(|line| line.split_once(':'));
        Self(lines.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_wire() {
        let mut headers = Headers::new();
        assert_eq!(headers.encode(), "");
        headers.add("A", "1").unwrap();
        headers.add("A", " zwei: ü ").unwrap();
        assert_eq!(headers.encode(), "NATS/1.0\r\nA: 1\r\nA: zwei: ü\r\n\r\n");
        assert_eq!(Headers::decode(headers.encode().as_bytes()), headers);
        assert_eq!(headers.value("A"), Some("1"));
        assert_eq!(headers.value("a"), None);
    }

    #[test]
    fn a_header_cannot_forge_another() {
        let mut headers = Headers::new();
        assert_eq!(headers.add("A", "x\r\nB: y"), Err(HeaderError::Value));
        for name in ["", "a b", "a:b", "a\n", "ä"] {
            assert_eq!(headers.add(name, "x"), Err(HeaderError::Name));
        }
        assert_eq!(headers.add("A", &"x".repeat(HEADERS_BYTES_MAX)), Err(HeaderError::TooLarge));
        assert!(headers.is_empty());
    }

    #[test]
    fn foreign_blocks_are_read_as_far_as_they_go() {
        assert!(Headers::decode(b"").is_empty());
        assert_eq!(Headers::decode(b"NATS/1.0 503\r\nX:y\nrubbish\r\n\xff: \xfe\r\n\r\n").value("X"), Some("y"));
    }
}
