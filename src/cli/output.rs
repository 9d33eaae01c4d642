//! Printing: standard output that survives a closed pipe, tables for people, escaped text for lines.
//!
//! It guarantees that one message is one line unless raw output was asked for, and that nothing a peer sent can move
//! the cursor of a terminal. It never panics on a closed pipe.

use std::fmt::Write as _;
use std::io::{self, BufWriter, IsTerminal, Write};

/// The reader of standard output has gone away.
#[derive(Debug)]
pub(crate) struct PipeClosed;

impl std::fmt::Display for PipeClosed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("standard output is closed")
    }
}

impl std::error::Error for PipeClosed {}

/// Buffered standard output.
pub(crate) struct Out(BufWriter<io::Stdout>);

impl Out {
    /// Standard output, with a buffer that [`Out::flush`] empties.
    pub(crate) fn new() -> Self {
        Self(BufWriter::with_capacity(64 * 1024, io::stdout()))
    }

    /// Writes `text` and a line end.
    pub(crate) fn line(&mut self, text: &str) -> anyhow::Result<()> {
        self.bytes(text.as_bytes())?;
        self.bytes(b"\n")
    }

    /// Writes bytes as they are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.0.write_all(bytes).map_err(stdout_error)
    }

    /// Hands everything to the reader.
    pub(crate) fn flush(&mut self) -> anyhow::Result<()> {
        self.0.flush().map_err(stdout_error)
    }

    /// Writes one JSON value on one line.
    pub(crate) fn json(&mut self, value: &serde_json::Value) -> anyhow::Result<()> {
        self.line(&value.to_string())
    }

    /// Writes rows: aligned columns with a header on a terminal, tab-separated without a header in a pipe.
    pub(crate) fn table(&mut self, header: &[&str], rows: &[Vec<String>]) -> anyhow::Result<()> {
        let text = if stdout_is_terminal() { aligned(header, rows) } else { tabbed(rows) };
        self.bytes(text.as_bytes())
    }
}

fn stdout_error(error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => PipeClosed.into(),
        _ => anyhow::Error::new(error).context("cannot write to standard output"),
    }
}

/// Whether a person reads standard output.
pub(crate) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether a person reads standard error.
pub(crate) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Writes one `kind: text` line to standard error, in colour on a terminal, whatever control characters `text` has.
pub(crate) fn complain(kind: &str, text: &str) {
    let text = escape(text.as_bytes());
    let colour = match kind {
        "error" => "\x1b[1;31m",
        "warning" => "\x1b[1;33m",
        _ => "\x1b[1;36m",
    };
    // With standard error gone there is nobody left to tell.
    let _ = if stderr_is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        writeln!(io::stderr(), "{colour}{kind}:\x1b[0m {text}")
    } else {
        writeln!(io::stderr(), "{kind}: {text}")
    };
}

/// Writes one plain line to standard error.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Bytes as one line of text: valid UTF-8 stays, control characters and other bytes are escaped.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                c if c.is_control() => {
                    let _ = write!(text, "\\u{{{:x}}}", u32::from(c));
                }
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Standard base64 with padding (RFC 4648), for payloads that are not text in JSON output.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4usize {
            let index = usize::try_from(group >> (18 - 6 * i) & 63).unwrap_or(0);
            let digit = ALPHABET.get(index).copied().unwrap_or(b'=');
            text.push(char::from(if i <= chunk.len() { digit } else { b'=' }));
        }
    }
    text
}

fn aligned(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut push = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (cell, width) in cells.zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    if header.iter().any(|h| !h.is_empty()) {
        push(&mut header.iter().copied());
    }
    for row in rows {
        push(&mut row.iter().map(String::as_str));
    }
    text
}

fn tabbed(rows: &[Vec<String>]) -> String {
    rows.iter().map(|row| row.join("\t") + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_is_one_line() {
        assert_eq!(escape("grüße".as_bytes()), "grüße");
        assert_eq!(escape(b"a\nb\x1b[2J\xff"), "a\\nb\\u{1b}[2J\\xff");
    }

    #[test]
    fn base64_follows_the_rfc() {
        let vectors = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        for (plain, coded) in vectors {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
        assert_eq!(base64(&[0xfb, 0xff]), "+/8=");
    }

    #[test]
    fn tables_align_for_people_and_tab_for_pipes() {
        let rows = vec![vec!["a".to_owned(), "x".to_owned()], vec!["long".to_owned(), "y".to_owned()]];
        assert_eq!(aligned(&["NAME", "V"], &rows), "NAME  V\na     x\nlong  y\n");
        assert_eq!(aligned(&["", ""], &rows), "a     x\nlong  y\n");
        assert_eq!(tabbed(&rows), "a\tx\nlong\ty\n");
    }
}
