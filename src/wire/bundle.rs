//! The bytes of heads, sections and the bundle file.
//!
//! Decoding yields checked names or an error, consumes every byte, and is bounded before anything is allocated. What is
//! signed or hashed are the bytes as they were stored: nothing here is ever encoded again to be compared. This module
//! verifies no signature and no digest; the node does, before it decodes.

use bincode::config::{Config, Configuration, Limit, LittleEndian, Varint};
use bincode::{Decode, Encode};
use glocal_core::bundle::{Head, Section};
use glocal_core::limits::{BUNDLE_BYTES_MAX, CERTIFICATE_BYTES_MAX, HEAD_BYTES_MAX, SECTION_BYTES_MAX, TENANTS_MAX};
use glocal_core::name::NameError;
use glocal_core::rate::RateLimits;
use glocal_core::sched::EdgeTerms;

mod form;

use form::{FORM_LIMITED, FORM_TERMS, WireHead, WireLimited, WireSection, WireTerms};

/// First bytes of a bundle file.
pub const BUNDLE_MAGIC: &[u8; 8] = b"GLOCALB1";

/// Length of an Ed25519 signature, in bytes.
pub const SIGNATURE_BYTES: usize = 64;

/// A decoded list of structs takes more memory than its bytes; this is the most it may take more.
const MEMORY_FACTOR: usize = 4;

/// A bundle file: contents still encoded, as they were signed.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Envelope {
    /// DER of the certificate by which a root names the bundle key.
    pub bundle_key_cert: Vec<u8>,
    /// Bytes of the head, see [`decode_head`].
    pub head: Vec<u8>,
    /// Ed25519 signature of the bundle key over the bytes of the head, [`SIGNATURE_BYTES`] long.
    pub signature: Vec<u8>,
    /// Bytes of the sections, see [`decode_section`]; the head lists the SHA-256 of each.
    pub sections: Vec<Vec<u8>>,
}

/// Why bytes are no head, section or bundle file, or why one cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum BundleCodecError {
    /// The file does not begin with [`BUNDLE_MAGIC`].
    #[error("not a bundle file")]
    Magic,
    /// A part is larger than its limit.
    #[error("{part} of {bytes} bytes is too large")]
    TooLarge {
        /// Which part.
        part: &'static str,
        /// Its size, in bytes.
        bytes: usize,
    },
    /// There are more sections than tenants allowed.
    #[error("too many sections: {0}")]
    TooManySections(usize),
    /// The signature has another length.
    #[error("the signature has {0} bytes instead of 64")]
    SignatureLength(usize),
    /// The bytes end too early, exceed the limit, or hold an impossible value.
    #[error("malformed {part}")]
    Malformed {
        /// Which part.
        part: &'static str,
        /// What bincode says.
        source: bincode::error::DecodeError,
    },
    /// A value could not be written.
    #[error("cannot encode {part}")]
    Encode {
        /// Which part.
        part: &'static str,
        /// What bincode says.
        source: bincode::error::EncodeError,
    },
    /// Bytes are left over.
    #[error("{bytes} bytes after the end of the {part}")]
    Trailing {
        /// Which part.
        part: &'static str,
        /// How many.
        bytes: usize,
    },
    /// The head or section was written in a form this release does not know.
    #[error("unknown form {form} of the {part}")]
    UnknownForm {
        /// Which part.
        part: &'static str,
        /// The form's number.
        form: u16,
    },
    /// A name is not in the grammar.
    #[error("bad name in the {part}")]
    Name {
        /// Which part.
        part: &'static str,
        /// What is wrong with it.
        source: NameError,
    },
}

/// Encodes a head.
///
/// # Errors
/// [`BundleCodecError::TooLarge`] above [`HEAD_BYTES_MAX`].
pub fn encode_head(head: &Head) -> Result<Vec<u8>, BundleCodecError> {
    encode(&WireHead::from(head), "head", HEAD_BYTES_MAX)
}

/// Decodes a head. The bytes' signature must have been verified.
///
/// # Errors
/// What is wrong with the bytes.
pub fn decode_head(bytes: &[u8]) -> Result<Head, BundleCodecError> {
    let wire: WireHead = decode(bytes, "head", HEAD_BYTES_MAX, limit::<{ HEAD_BYTES_MAX * MEMORY_FACTOR }>())?;
    wire.check()
}

/// Encodes a section.
///
/// # Errors
/// [`BundleCodecError::TooLarge`] above [`SECTION_BYTES_MAX`].
pub fn encode_section(section: &Section) -> Result<Vec<u8>, BundleCodecError> {
    // As the earliest release knows it that can.
    if section.terms != EdgeTerms::DEFAULT || section.memory_bytes.is_some() {
        return encode(&WireTerms::from(section), "section", SECTION_BYTES_MAX);
    }
    if section.limits != RateLimits::NONE {
        return encode(&WireLimited::from(section), "section", SECTION_BYTES_MAX);
    }
    encode(&WireSection::from(section), "section", SECTION_BYTES_MAX)
}

/// Decodes a section. The bytes' digest must have been compared with the head's.
///
/// # Errors
/// What is wrong with the bytes.
pub fn decode_section(bytes: &[u8]) -> Result<Section, BundleCodecError> {
    let config = limit::<{ SECTION_BYTES_MAX * MEMORY_FACTOR }>();
    // The form comes first, and is below the numbers that take more than one byte.
    match bytes.first().copied().map(u16::from) {
        Some(FORM_LIMITED) => decode::<WireLimited>(bytes, "section", SECTION_BYTES_MAX, config)?.check(),
        Some(FORM_TERMS) => decode::<WireTerms>(bytes, "section", SECTION_BYTES_MAX, config)?.check(),
        _ => decode::<WireSection>(bytes, "section", SECTION_BYTES_MAX, config)?.check(),
    }
}

impl Envelope {
    /// Encodes the file, magic included.
    ///
    /// # Errors
    /// What is wrong with the envelope.
    pub fn encode(&self) -> Result<Vec<u8>, BundleCodecError> {
        self.check()?;
        let mut file = BUNDLE_MAGIC.to_vec();
        file.extend(encode(self, "bundle file", BUNDLE_BYTES_MAX - BUNDLE_MAGIC.len())?);
        Ok(file)
    }

    /// Decodes a file, magic included. Nothing in it has been verified.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(file: &[u8]) -> Result<Self, BundleCodecError> {
        let body = file.strip_prefix(BUNDLE_MAGIC).ok_or(BundleCodecError::Magic)?;
        let envelope: Self = decode(body, "bundle file", BUNDLE_BYTES_MAX, limit::<{ BUNDLE_BYTES_MAX * 2 }>())?;
        envelope.check()?;
        Ok(envelope)
    }

    fn check(&self) -> Result<(), BundleCodecError> {
        check_size("bundle key certificate", self.bundle_key_cert.len(), CERTIFICATE_BYTES_MAX)?;
        check_size("head", self.head.len(), HEAD_BYTES_MAX)?;
        if self.signature.len() != SIGNATURE_BYTES {
            return Err(BundleCodecError::SignatureLength(self.signature.len()));
        }
        if self.sections.len() > TENANTS_MAX {
            return Err(BundleCodecError::TooManySections(self.sections.len()));
        }
        self.sections.iter().try_for_each(|section| check_size("section", section.len(), SECTION_BYTES_MAX))
    }
}

type Limited<const N: usize> = Configuration<LittleEndian, Varint, Limit<N>>;

/// Every decoding has a limit: a hostile length would otherwise abort the process.
const fn limit<const N: usize>() -> Limited<N> {
    bincode::config::standard().with_limit::<N>()
}

const fn check_size(part: &'static str, bytes: usize, max: usize) -> Result<(), BundleCodecError> {
    if bytes > max { Err(BundleCodecError::TooLarge { part, bytes }) } else { Ok(()) }
}

fn encode<T: Encode>(value: &T, part: &'static str, bytes_max: usize) -> Result<Vec<u8>, BundleCodecError> {
    let bytes = bincode::encode_to_vec(value, bincode::config::standard())
        .map_err(|source| BundleCodecError::Encode { part, source })?;
    check_size(part, bytes.len(), bytes_max)?;
    Ok(bytes)
}

fn decode<T: Decode<()>>(
    bytes: &[u8],
    part: &'static str,
    bytes_max: usize,
    config: impl Config,
) -> Result<T, BundleCodecError> {
    check_size(part, bytes.len(), bytes_max)?;
    let (value, read) =
        bincode::decode_from_slice(bytes, config).map_err(|source| BundleCodecError::Malformed { part, source })?;
    match bytes.len() - read {
        0 => Ok(value),
        bytes => Err(BundleCodecError::Trailing { part, bytes }),
    }
}

#[cfg(test)]
mod tests;
