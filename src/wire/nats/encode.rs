//! What a server sends to a client, but for INFO and `-ERR`.

use bytes::BytesMut;

use super::NatsEncodeError;

/// The answer to an operation of a verbose client.
pub const OK: &[u8] = b"+OK\r\n";
/// The probe, in both directions.
pub const PING: &[u8] = b"PING\r\n";
/// The answer to a probe, in both directions.
pub const PONG: &[u8] = b"PONG\r\n";

/// Bytes of the longest decimal number.
const DIGITS: usize = 20;

/// Appends a whole message: MSG, or HMSG when there are headers. An empty `reply` is none. `headers` is a header block,
/// verbatim.
///
/// # Errors
/// [`NatsEncodeError::BadArgument`]; `out` is unchanged then.
#[inline]
pub fn encode_msg_into(
    out: &mut BytesMut,
    subject: &[u8],
    sid: &[u8],
    reply: &[u8],
    headers: &[u8],
    payload: &[u8],
) -> Result<(), NatsEncodeError> {
    let body = headers.len() + payload.len();
    prefix_into(out, subject, sid, reply, headers.len(), payload.len(), body + 2)?;
    body_into(out, headers, payload);
    Ok(())
}

#[inline]
fn body_into(out: &mut BytesMut, headers: &[u8], payload: &[u8]) {
    if !headers.is_empty() {
        out.extend_from_slice(headers);
    }
    out.extend_from_slice(payload);
    out.extend_from_slice(b"\r\n");
}

/// The line of the message that was written last: messages in a row of one subject for one subscription, with bodies of
/// one length, begin with the same line, which is then neither checked nor made again.
#[derive(Clone, Debug, Default)]
pub struct LastLine {
    line: BytesMut,
    subject: usize,
    sid: usize,
    headers_bytes: usize,
    payload_bytes: usize,
}

impl LastLine {
    /// Appends what [`encode_msg_into`] does.
    ///
    /// # Errors
    /// [`NatsEncodeError::BadArgument`]; `out` is unchanged then.
    pub fn encode_msg_into(
        &mut self,
        out: &mut BytesMut,
        subject: &[u8],
        sid: &[u8],
        reply: &[u8],
        headers: &[u8],
        payload: &[u8],
    ) -> Result<(), NatsEncodeError> {
        if !reply.is_empty() {
            return encode_msg_into(out, subject, sid, reply, headers, payload);
        }
        let lengths = (self.headers_bytes, self.payload_bytes) == (headers.len(), payload.len());
        if !lengths || !self.is_of(subject, sid) {
            self.line.clear();
            self.subject = 0;
            prefix_into(&mut self.line, subject, sid, b"", headers.len(), payload.len(), 0)?;
            (self.subject, self.sid) = (subject.len(), sid.len());
            (self.headers_bytes, self.payload_bytes) = (headers.len(), payload.len());
        }
        out.reserve(self.line.len() + headers.len() + payload.len() + 2);
        out.extend_from_slice(&self.line);
        body_into(out, headers, payload);
        Ok(())
    }

    /// Whether the line is one of this subject and subscription.
    fn is_of(&self, subject: &[u8], sid: &[u8]) -> bool {
        let name = if self.headers_bytes == 0 { 4 } else { 5 };
        let rest = self.line.get(name..).unwrap_or_default();
        let sid_at = self.subject + 1;
        !subject.is_empty()
            && self.subject == subject.len()
            && self.sid == sid.len()
            && rest.get(..self.subject) == Some(subject)
            && rest.get(sid_at..sid_at + self.sid) == Some(sid)
    }
}

/// Appends the line of a message only; header block, payload and CR LF are to follow, sent from where they lie.
///
/// # Errors
/// [`NatsEncodeError::BadArgument`]; `out` is unchanged then.
pub fn encode_msg_prefix_into(
    out: &mut BytesMut,
    subject: &[u8],
    sid: &[u8],
    reply: &[u8],
    headers_bytes: usize,
    payload_bytes: usize,
) -> Result<(), NatsEncodeError> {
    prefix_into(out, subject, sid, reply, headers_bytes, payload_bytes, 0)
}

/// Appends what a requester is told when nobody answers: a message of its reply subject with status 503.
///
/// # Errors
/// [`NatsEncodeError::BadArgument`]; `out` is unchanged then.
pub fn encode_no_responders_into(
    out: &mut BytesMut,
    reply: &[u8],
    sid: &[u8],
    subject: &[u8],
) -> Result<(), NatsEncodeError> {
    argument("subject", subject)?;
    let mut headers = BytesMut::new();
    no_responders_headers_into(&mut headers, subject);
    encode_msg_into(out, reply, sid, b"", &headers, b"")
}

/// Appends the header block of [`encode_no_responders_into`], for a subject that has been checked.
pub fn no_responders_headers_into(out: &mut BytesMut, subject: &[u8]) {
    const STATUS: &[u8] = b"NATS/1.0 503\r\nNats-Subject: ";
    out.reserve(STATUS.len() + subject.len() + 4);
    out.extend_from_slice(STATUS);
    out.extend_from_slice(subject);
    out.extend_from_slice(b"\r\n\r\n");
}

/// Appends the line of a message, after one reservation for it and `reserve` bytes more.
#[inline]
fn prefix_into(
    out: &mut BytesMut,
    subject: &[u8],
    sid: &[u8],
    reply: &[u8],
    headers_bytes: usize,
    payload_bytes: usize,
    reserve: usize,
) -> Result<(), NatsEncodeError> {
    argument("subject", subject)?;
    argument("sid", sid)?;
    if !reply.is_empty() {
        argument("reply subject", reply)?;
    }
    // Name, separators, two numbers and the line's end.
    out.reserve(5 + 4 + 2 * DIGITS + 2 + subject.len() + sid.len() + reply.len() + reserve);
    out.extend_from_slice(if headers_bytes == 0 { b"MSG " } else { b"HMSG " });
    out.extend_from_slice(subject);
    out.extend_from_slice(b" ");
    out.extend_from_slice(sid);
    out.extend_from_slice(b" ");
    if !reply.is_empty() {
        out.extend_from_slice(reply);
        out.extend_from_slice(b" ");
    }
    if headers_bytes != 0 {
        decimal_into(out, headers_bytes);
        out.extend_from_slice(b" ");
    }
    decimal_into(out, headers_bytes + payload_bytes);
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Refuses what would end its argument or its line, so that no name of one client is an operation for another.
#[inline]
pub(super) fn argument(part: &'static str, text: &[u8]) -> Result<(), NatsEncodeError> {
    // No early exit: the loop is one comparison of many bytes at a time.
    if text.is_empty() || text.iter().fold(false, |bad, byte| bad | (*byte <= b' ')) {
        return Err(NatsEncodeError::BadArgument { part });
    }
    Ok(())
}

/// Appends a number without the formatting machinery.
#[inline]
pub(super) fn decimal_into(out: &mut BytesMut, mut number: usize) {
    const DECIMALS: &[u8; 10] = b"0123456789";
    let mut digits = [b'0'; DIGITS];
    let mut begin = DIGITS;
    for slot in digits.iter_mut().rev() {
        *slot = DECIMALS.get(number % 10).copied().unwrap_or_default();
        begin -= 1;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(begin..).unwrap_or_default());
}
