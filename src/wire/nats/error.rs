//! Errors of the NATS codec: a client's fault and our own are different types.

use super::Refusal;

/// A client sent what the protocol does not allow. The session ends, but for [`NatsError::BadSubject`], which leaves
/// the stream in a known place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NatsError {
    /// No operation that a client may send.
    #[error("unknown protocol operation")]
    UnknownOperation,
    /// An operation that must not come before CONNECT.
    #[error("operation before CONNECT")]
    BeforeConnect,
    /// The arguments of one line are longer than allowed.
    #[error("control line of more than {max} bytes")]
    ControlLineTooLong {
        /// What is allowed.
        max: usize,
    },
    /// An operation, which is named, with too few, too many or impossible arguments.
    #[error("bad arguments of {0}")]
    BadArguments(&'static str),
    /// A size that is no number, in the operation that is named.
    #[error("bad size in {0}")]
    BadSize(&'static str),
    /// The header block is longer than the whole message.
    #[error("headers of {bytes} bytes in a message of {total}")]
    HeadersTooLong {
        /// The announced size of the header block.
        bytes: usize,
        /// The announced size of the message.
        total: usize,
    },
    /// HPUB from a client that did not say that it knows headers.
    #[error("headers from a client without headers")]
    HeadersNotSupported,
    /// A message larger than this client may send; known before it arrives.
    #[error("message of {bytes} bytes, at most {max} allowed")]
    PayloadTooLarge {
        /// The announced size.
        bytes: usize,
        /// What is allowed.
        max: usize,
    },
    /// A message that CR and LF do not follow.
    #[error("message is not terminated")]
    PayloadNotTerminated,
    /// A control character in a subject or queue group. The operation is complete: it can be refused and skipped.
    #[error("control character in {part}")]
    BadSubject {
        /// `subject`, `reply subject` or `queue group`.
        part: &'static str,
        /// Whether the operation is a publish, else it is a subscription.
        publish: bool,
        /// The bytes of the operation, by which the buffer is to be advanced.
        skip_bytes: usize,
    },
    /// CONNECT does not carry a JSON object whose known keys have their types.
    #[error("CONNECT options are malformed")]
    BadConnect,
    /// CONNECT asks for a protocol that does not exist.
    #[error("client protocol {0}")]
    ClientProtocol(i64),
    /// CONNECT asks for no-responders messages, which have headers, but not for headers.
    #[error("no responders without headers")]
    NoRespondersWithoutHeaders,
}

impl NatsError {
    /// What to tell the client; whether the session ends after it is [`Refusal::closes`].
    #[must_use]
    pub const fn refusal(&self) -> Refusal<'static> {
        match self {
            Self::UnknownOperation | Self::PayloadNotTerminated => Refusal::UnknownOperation,
            Self::BeforeConnect => Refusal::AuthorizationViolation,
            Self::ControlLineTooLong { .. } => Refusal::ControlLineTooLong,
            Self::BadArguments(_) | Self::BadSize(_) | Self::HeadersTooLong { .. } | Self::BadConnect => {
                Refusal::ParserError
            }
            Self::HeadersNotSupported => Refusal::HeadersNotSupported,
            Self::PayloadTooLarge { .. } => Refusal::PayloadTooLarge,
            Self::BadSubject { publish: true, .. } => Refusal::InvalidPublishSubject,
            Self::BadSubject { publish: false, .. } => Refusal::InvalidSubject,
            Self::ClientProtocol(_) => Refusal::InvalidClientProtocol,
            Self::NoRespondersWithoutHeaders => Refusal::NoRespondersWithoutHeaders,
        }
    }

    /// By how many bytes the buffer is to be advanced to go on; `None` when the session ends.
    #[must_use]
    pub const fn skip_bytes(&self) -> Option<usize> {
        match self {
            Self::BadSubject { skip_bytes, .. } => Some(*skip_bytes),
            _ => None,
        }
    }

    /// The stable code: log field and metric label.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::UnknownOperation => "unknown-operation",
            Self::BeforeConnect => "before-connect",
            Self::ControlLineTooLong { .. } => "control-line-too-long",
            Self::BadArguments(_) => "bad-arguments",
            Self::BadSize(_) => "bad-size",
            Self::HeadersTooLong { .. } => "headers-too-long",
            Self::HeadersNotSupported => "headers-not-supported",
            Self::PayloadTooLarge { .. } => "payload-too-large",
            Self::PayloadNotTerminated => "payload-not-terminated",
            Self::BadSubject { .. } => "bad-subject",
            Self::BadConnect => "bad-connect",
            Self::ClientProtocol(_) => "client-protocol",
            Self::NoRespondersWithoutHeaders => "no-responders-without-headers",
        }
    }
}

/// We were about to write what would break out of its line. Nothing is left in the output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NatsEncodeError {
    /// An argument is empty, or holds a space or control character.
    #[error("{part} cannot be written as an argument")]
    BadArgument {
        /// `subject`, `sid`, `reply subject` or `queue group`.
        part: &'static str,
    },
    /// The options or the information cannot be written as JSON; never for our types.
    #[error("JSON cannot be encoded")]
    Json,
}
