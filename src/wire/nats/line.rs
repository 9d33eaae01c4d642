//! Lines of the protocol: names, arguments, sizes, and the message after a line.

use glocal_core::limits::NATS_CONTROL_LINE_BYTES_MAX;

use super::NatsError;

/// Most arguments of any operation: those of HMSG with a reply subject.
const ARGUMENTS: usize = 5;

/// Space and tab separate arguments.
#[inline]
pub(super) const fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// Whether a control character is in an argument: one of those that could end it or its line for some reader.
#[inline]
pub(super) fn has_control(argument: &[u8]) -> bool {
    argument.iter().any(|byte| *byte < b' ')
}

/// The name in `names` that the buffer begins with, in any case, and its length; `None` while it is incomplete.
pub(super) fn name<T: Copy>(buffer: &[u8], names: &[(&[u8], T)]) -> Result<Option<(T, usize)>, NatsError> {
    let mut incomplete = false;
    for (name, value) in names {
        let arrived = buffer.get(..name.len()).unwrap_or(buffer);
        if name.get(..arrived.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(arrived)) {
            if arrived.len() == name.len() {
                return Ok(Some((*value, name.len())));
            }
            incomplete = true;
        }
    }
    if incomplete { Ok(None) } else { Err(NatsError::UnknownOperation) }
}

/// A line, or how many bytes the buffer must hold to go on looking for its end.
pub(super) enum Found<'a> {
    Need(usize),
    Line {
        /// What follows the name, without the line's end.
        arguments: &'a [u8],
        /// Bytes of the line, its end included.
        line_bytes: usize,
    },
}

/// Finds the end of the line that `buffer` begins with: LF, with or without CR before it.
pub(super) fn find(buffer: &[u8], name_bytes: usize, max: usize) -> Result<Found<'_>, NatsError> {
    let longest = name_bytes.saturating_add(max).saturating_add(2);
    let window = buffer.get(..longest).unwrap_or(buffer);
    let Some(end) = window.iter().position(|byte| *byte == b'\n') else {
        if window.len() >= longest {
            return Err(NatsError::ControlLineTooLong { max });
        }
        return Ok(Found::Need(buffer.len() + 1));
    };
    let arguments = window.get(name_bytes..end).unwrap_or_default();
    let arguments = arguments.strip_suffix(b"\r").unwrap_or(arguments);
    if arguments.len() > max {
        return Err(NatsError::ControlLineTooLong { max });
    }
    Ok(Found::Line { arguments, line_bytes: end + 1 })
}

/// The arguments of a line.
pub(super) struct Tokens<'a> {
    tokens: [&'a [u8]; ARGUMENTS],
    /// How many there are, even if they are more than any operation takes.
    count: usize,
    /// Whether a control character is among them.
    pub(super) has_control: bool,
}

impl<'a> Tokens<'a> {
    /// Splits arguments at runs of blanks.
    pub(super) fn split(arguments: &'a [u8]) -> Self {
        let mut all = Self { tokens: [&[]; ARGUMENTS], count: 0, has_control: false };
        for token in arguments.split(|byte| is_blank(*byte)).filter(|token| !token.is_empty()) {
            all.has_control |= has_control(token);
            all.push(token);
        }
        all
    }

    #[inline]
    fn push(&mut self, token: &'a [u8]) {
        if let Some(slot) = self.tokens.get_mut(self.count) {
            *slot = token;
        }
        self.count += 1;
    }

    /// The arguments; none when there are more than any operation takes, which no operation accepts either.
    #[inline]
    pub(super) fn as_slice(&self) -> &[&'a [u8]] {
        self.tokens.get(..self.count).unwrap_or_default()
    }
}

/// The arguments of a complete line, and the line's length, in one pass; `None` for any line that is not plain:
/// incomplete, too long, with control characters or too many arguments.
#[inline]
pub(super) fn plain(buffer: &[u8], name_bytes: usize, max: usize) -> Option<(Tokens<'_>, usize)> {
    let mut all = Tokens { tokens: [&[]; ARGUMENTS], count: 0, has_control: false };
    let mut rest = buffer.get(name_bytes..)?;
    let end = loop {
        match rest.split_first()? {
            (b' ' | b'\t', after) => rest = after,
            (b'\n', after) => break (after, 1),
            (b'\r', after) => break (after.strip_prefix(b"\n")?, 2),
            (0..=b' ', _) => return None,
            _ => {
                let (token, after) = rest.split_at_checked(token_bytes(rest))?;
                if all.count == ARGUMENTS {
                    return None;
                }
                all.push(token);
                rest = after;
            }
        }
    };
    let (after, end_bytes) = end;
    let line_bytes = buffer.len() - after.len();
    (line_bytes <= name_bytes + max + end_bytes).then_some((all, line_bytes))
}

/// How many bytes precede the first space or control character below it.
#[inline]
fn token_bytes(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let mut rest = bytes;
    // Eight at a time: subtracting 0x21 borrows into the top bit of every byte below it, the lowest one exactly.
    while let Some((chunk, after)) = rest.split_first_chunk::<8>() {
        let word = u64::from_le_bytes(*chunk);
        let low = word.wrapping_sub(ONES * 0x21) & !word & (ONES * 0x80);
        if low != 0 {
            return bytes.len() - rest.len() + (low.trailing_zeros() / 8) as usize;
        }
        rest = after;
    }
    let tail = rest.iter().position(|byte| *byte <= b' ').unwrap_or(rest.len());
    bytes.len() - rest.len() + tail
}

/// Arguments without the blanks around them.
pub(super) fn trim(mut arguments: &[u8]) -> &[u8] {
    while let [blank, rest @ ..] = arguments
        && is_blank(*blank)
    {
        arguments = rest;
    }
    while let [rest @ .., blank] = arguments
        && is_blank(*blank)
    {
        arguments = rest;
    }
    arguments
}

/// A size: digits and nothing else, so no sign; zeros may lead; one that no machine can hold is the largest there is,
/// which every limit refuses.
#[inline]
pub(super) fn size(digits: &[u8]) -> Option<usize> {
    let mut size = 0usize;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        size = size.saturating_mul(10).saturating_add(usize::from(digit - b'0'));
    }
    (!digits.is_empty()).then_some(size)
}

/// A message, or how many bytes the buffer must hold to have it.
pub(super) enum Body<'a> {
    Need(usize),
    Message {
        /// Headers and payload.
        message: &'a [u8],
        /// Bytes of line, message and its end.
        bytes: usize,
    },
}

/// The message of `size` bytes after a line, which CR and LF must follow.
#[inline]
pub(super) fn body(buffer: &[u8], line_bytes: usize, size: usize) -> Result<Body<'_>, NatsError> {
    let end = line_bytes.saturating_add(size);
    let bytes = end.saturating_add(2);
    match buffer.get(end..) {
        Some([b'\r', b'\n', ..]) => {}
        None | Some([] | [b'\r']) => return Ok(Body::Need(bytes)),
        Some(_) => return Err(NatsError::PayloadNotTerminated),
    }
    Ok(Body::Message { message: buffer.get(line_bytes..end).unwrap_or_default(), bytes })
}

/// Most digits of a size that a PUB is compared with another one by: what every limit on payloads has room for.
const LIKE_DIGITS: usize = 8;

/// What a PUB without a reply subject begins with, up to the digits of its size: what others like it begin with, too. `bytes`
/// is all of it, with a payload of so many bytes. `None` where its line is not as most clients write it.
#[must_use]
pub fn pub_head(bytes: &[u8], payload_bytes: usize) -> Option<&[u8]> {
    let line = bytes.get(..bytes.len().checked_sub(payload_bytes + 2)?)?.strip_suffix(b"\r\n")?;
    let digits = line.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let head = line.get(..line.len() - digits)?;
    let is_plain = digits > 0 && head.last().is_some_and(|byte| is_blank(*byte));
    (is_plain && head.len() + LIKE_DIGITS <= NATS_CONTROL_LINE_BYTES_MAX).then_some(head)
}

/// The payload of the PUB at the front of `bytes`, and the bytes of all of it, where nothing but its payload and their size is
/// other than in the one of which `head` is the [`pub_head`]. `None` where it is another operation, or not complete.
#[inline]
#[must_use]
pub fn like_pub<'b>(bytes: &'b [u8], head: &[u8]) -> Option<(&'b [u8], usize)> {
    let mut rest = bytes.strip_prefix(head)?;
    let mut size = 0;
    for place in 0.. {
        let (byte, after) = rest.split_first()?;
        rest = after;
        match byte {
            b'0'..=b'9' if place < LIKE_DIGITS => size = size * 10 + usize::from(byte - b'0'),
            b'\r' if place > 0 => break,
            _ => return None,
        }
    }
    let after = rest.strip_prefix(b"\n")?;
    let (payload, after) = after.split_at_checked(size)?;
    let after = after.strip_prefix(b"\r\n")?;
    Some((payload, bytes.len() - after.len()))
}
