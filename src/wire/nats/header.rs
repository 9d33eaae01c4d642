//! Header blocks: `NATS/1.0[ <status>[ <text>]]`, then `Name: value` lines, then an empty line.

/// The first line of every header block, without its end and a status.
pub const HEADER_VERSION: &[u8] = b"NATS/1.0";

/// The header that names the class of a publish.
pub const CLASS_HEADER: &[u8] = b"Glocal-Class";

/// The value of the first header of a name, as NATS reads them: the name compared byte for byte, at the begin of a line
/// that is not the first and directly before the colon; spaces before the value are not part of it, others are.
#[must_use]
pub fn header_value<'a>(block: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut rest = after_line(block)?.1;
    while !rest.is_empty() {
        let (line, after) = after_line(rest).unwrap_or((rest, &[]));
        if let Some(mut value) = line.strip_prefix(name).and_then(|line| line.strip_prefix(b":")) {
            while let Some(trimmed) = value.strip_prefix(b" ") {
                value = trimmed;
            }
            return Some(value);
        }
        rest = after;
    }
    None
}

/// The first line without its CR LF, and what follows it.
fn after_line(block: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut from = 0;
    loop {
        let end = from + block.get(from..)?.iter().position(|byte| *byte == b'\r')?;
        if let Some(after) = block.get(end..).and_then(|rest| rest.strip_prefix(b"\r\n")) {
            return block.get(..end).map(|line| (line, after));
        }
        from = end + 1;
    }
}
