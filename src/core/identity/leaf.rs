//! Reading a leaf certificate's names from DER.

use super::IdentityError;
use crate::name::{Label, NodeId, TenantId};
use crate::time::UnixTime;

/// The names and dates of one leaf certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafName {
    /// The tenant: the one `O=`.
    pub tenant: TenantId,
    /// The region: the one `OU=`, when it is a label.
    pub region: Option<Label>,
    /// The agent: the one `CN=`, when it is a label.
    pub agent: Option<Label>,
    /// The broker named by the URI SAN `glocal://node/<region>/<agent>`, equal to OU and CN.
    pub node: Option<NodeId>,
    /// The certificate's serial number, big-endian.
    pub serial: Vec<u8>,
    /// Start of validity.
    pub not_before: UnixTime,
    /// End of validity.
    pub not_after: UnixTime,
}

/// Reads the names of a leaf from its DER form.
///
/// # Errors
/// The catalogued reason why it names no principal.
pub fn leaf_name(_der: &[u8]) -> Result<LeafName, IdentityError> {
    Err(IdentityError::CertMalformed)
}
