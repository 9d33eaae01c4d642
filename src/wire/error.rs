//! Errors of this crate: a peer's fault and our own are different types.

use glocal_core::limits::TARGETS_MAX;

/// A peer sent bytes that are not a frame or slice of this protocol. The connection cannot go on, since what follows
/// cannot be trusted either; only [`FrameError::PayloadTooLarge`] leaves the stream in a known place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// A kind that is neither known nor skippable.
    #[error("unknown frame kind {0:#04x}")]
    UnknownKind(u8),
    /// A data frame before the hello, or on a control stream.
    #[error("data frame where none is allowed")]
    UnexpectedData,
    /// A reserved byte is not zero.
    #[error("reserved byte is not zero")]
    Reserved,
    /// The length fields of the frame contradict each other, or the frame ends too early.
    #[error("frame is shorter than its fields")]
    Truncated,
    /// Bytes follow where the frame or body must end.
    #[error("frame is longer than its fields")]
    Trailing,
    /// The body of a control frame is larger than allowed now.
    #[error("control frame of {bytes} bytes, at most {max} allowed")]
    ControlTooLarge {
        /// The announced size of the body.
        bytes: usize,
        /// What is allowed.
        max: usize,
    },
    /// The payload of a data frame is larger than the fabric allows. Nothing else was wrong so far with the frame's
    /// sizes, so the receiver may answer before it closes, or skip `frame_bytes` bytes.
    #[error("payload of {bytes} bytes, at most {max} allowed")]
    PayloadTooLarge {
        /// The announced size of the payload.
        bytes: usize,
        /// What is allowed.
        max: usize,
        /// The sequence number of the publish, where it has one.
        seq: Option<u64>,
        /// The announced size of the whole frame, length field included.
        frame_bytes: usize,
    },
    /// A flag that this version does not know.
    #[error("unknown data frame flags {0:#04x}")]
    UnknownFlags(u8),
    /// A class byte that is none.
    #[error("unknown class {0:#04x}")]
    BadClass(u8),
    /// A hop count in a frame that no broker has relayed.
    #[error("hop count in a client's frame")]
    BadHops,
    /// A part of a data frame is longer than its limit.
    #[error("{part} of {bytes} bytes, at most {max} allowed")]
    PartTooLong {
        /// `name`, `reply`, `headers` or `ext`.
        part: &'static str,
        /// Its announced length.
        bytes: usize,
        /// What is allowed.
        max: usize,
    },
    /// An extension that this version does not know and may not skip.
    #[error("unknown extension {0}")]
    UnknownExt(u8),
    /// An extension that may not appear in a frame of this kind.
    #[error("extension {0} in a frame of the wrong kind")]
    MisplacedExt(u8),
    /// The same extension twice.
    #[error("extension {0} is repeated")]
    DuplicateExt(u8),
    /// The value of an extension is not of its form.
    #[error("extension {0} is malformed")]
    BadExt(u8),
    /// More target brokers than one frame may list.
    #[error("more than {TARGETS_MAX} targets")]
    TooManyTargets,
    /// The body of a control frame is not an encoding of its kind.
    #[error("body of control frame {kind:#04x} is malformed")]
    BadBody {
        /// The frame's kind.
        kind: u8,
    },
    /// A field of a control body is out of its range.
    #[error("field '{field}' of control frame {kind:#04x} is out of range")]
    BadField {
        /// The frame's kind.
        kind: u8,
        /// The field's name.
        field: &'static str,
    },
    /// A slice is longer than allowed, or has a length that its flags do not admit.
    #[error("slice of {0} bytes is out of range")]
    BadSliceLength(u32),
    /// Slice flags that this version does not know, or that exclude each other.
    #[error("unknown slice flags {0:#04x}")]
    BadSliceFlags(u8),
    /// Lane 0, which does not exist.
    #[error("slice of lane 0")]
    LaneZero,
    /// The open header of a lane does not name a tenant.
    #[error("lane opened for no tenant id")]
    BadLaneTenant,
}

impl FrameError {
    /// The stable code: log field, metric label and `code` of the error frame.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::UnknownKind(_) => "unknown-kind",
            Self::UnexpectedData => "unexpected-data",
            Self::Reserved => "reserved-not-zero",
            Self::Truncated => "frame-truncated",
            Self::Trailing => "frame-trailing",
            Self::ControlTooLarge { .. } => "control-too-large",
            Self::PayloadTooLarge { .. } => "payload-too-large",
            Self::UnknownFlags(_) => "unknown-flags",
            Self::BadClass(_) => "bad-class",
            Self::BadHops => "bad-hops",
            Self::PartTooLong { .. } => "part-too-long",
            Self::UnknownExt(_) => "unknown-ext",
            Self::MisplacedExt(_) => "misplaced-ext",
            Self::DuplicateExt(_) => "duplicate-ext",
            Self::BadExt(_) => "bad-ext",
            Self::TooManyTargets => "too-many-targets",
            Self::BadBody { .. } => "bad-body",
            Self::BadField { .. } => "bad-field",
            Self::BadSliceLength(_) => "bad-slice-length",
            Self::BadSliceFlags(_) => "bad-slice-flags",
            Self::LaneZero => "lane-zero",
            Self::BadLaneTenant => "bad-lane-tenant",
        }
    }
}

/// We were about to send what the peer would refuse. Always our own fault; nothing is left in the output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The body is larger than a control frame may be.
    #[error("control body of {0} bytes is too large")]
    ControlTooLarge(usize),
    /// A field of a control body is out of its range.
    #[error("field '{field}' of control frame {kind:#04x} is out of range")]
    BadField {
        /// The frame's kind.
        kind: u8,
        /// The field's name.
        field: &'static str,
    },
    /// The encoder of control bodies refused; it never does for our types.
    #[error("control body cannot be encoded")]
    Body,
    /// A part of a data frame is longer than its limit.
    #[error("{part} of {bytes} bytes is too long")]
    PartTooLong {
        /// `name`, `reply`, `headers`, `ext` or `payload`.
        part: &'static str,
        /// Its length.
        bytes: usize,
    },
    /// Only a publish may leave the class to the session's default, and only a relay has passed brokers.
    #[error("class or hop count does not fit the kind of frame")]
    BadHead,
    /// An extension that may not appear in a frame of this kind, or is malformed or repeated.
    #[error("extensions do not fit the kind of frame")]
    BadExt,
    /// More target brokers than one frame may list.
    #[error("more than {TARGETS_MAX} targets")]
    TooManyTargets,
    /// A slice without a lane, or of a length that does not fit.
    #[error("slice cannot be encoded")]
    BadSlice,
}
