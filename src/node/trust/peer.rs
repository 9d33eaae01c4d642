//! What a peer presented, kept as long as its connection, so that it can be asked for again.

use glocal_core::identity::KeyId;
use rustls_pki_types::CertificateDer;

/// The chain a peer presented in its handshake, leaf first; empty when it presented none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerChain(Vec<CertificateDer<'static>>);

impl PeerChain {
    /// The chain that rustls kept.
    #[must_use]
    pub fn new(chain: &[CertificateDer<'_>]) -> Self {
        Self(chain.iter().cloned().map(CertificateDer::into_owned).collect())
    }

    /// The chain that quinn kept.
    #[must_use]
    pub fn of_quic(connection: &quinn::Connection) -> Self {
        let Some(identity) = connection.peer_identity() else { return Self(Vec::new()) };
        match identity.downcast::<Vec<CertificateDer<'static>>>() {
            Ok(chain) => Self(*chain),
            // An identity of another kind must not pass for none: this certificate is refused as malformed.
            Err(_) => Self(vec![CertificateDer::from(Vec::new())]),
        }
    }

    /// The key of the leaf.
    #[must_use]
    pub fn leaf_key(&self) -> Option<KeyId> {
        let leaf = webpki::EndEntityCert::try_from(self.0.first()?).ok()?;
        Some(super::chain::key_id(&leaf.subject_public_key_info()))
    }

    /// The certificates.
    #[must_use]
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.0
    }
}
