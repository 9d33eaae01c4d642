//! rustls verifiers that ask [`Trust`].
//!
//! What a connection may be follows from the port it came to: clients on native ports, brokers on the bridge port, one
//! named broker when this side dials. Host names are never compared; a broker is its URI SAN.

use glocal_core::deny::Deny;
use glocal_core::identity::{Fingerprint, Principal};
use glocal_core::name::{NodeId, TenantId};
use glocal_core::time::UnixTime;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName};

use super::chain::{Usage, sha256};
use super::refusal::refuse;
use super::{Trust, tls};
use crate::live::Live;

/// Verifies clients of native ports. Without a certificate they are refused, unless an anonymous tenant is configured.
#[derive(Debug)]
pub struct NativeVerifier {
    trust: Live<Trust>,
}

/// Verifies brokers that dial the bridge port; a certificate is always required.
#[derive(Debug)]
pub struct BridgeVerifier {
    trust: Live<Trust>,
}

/// Verifies the broker that this side dials: exactly the one that was meant.
#[derive(Debug)]
pub struct BridgePeerVerifier {
    trust: Live<Trust>,
    expected: NodeId,
    /// On a connection of one tenant, that tenant: the peer may answer with its certificate.
    tenant: Option<TenantId>,
}

impl NativeVerifier {
    /// A verifier by the trust epoch in force.
    #[must_use]
    pub const fn new(trust: Live<Trust>) -> Self {
        Self { trust }
    }
}

impl BridgeVerifier {
    /// A verifier by the trust epoch in force.
    #[must_use]
    pub const fn new(trust: Live<Trust>) -> Self {
        Self { trust }
    }
}

impl BridgePeerVerifier {
    /// A verifier by the trust epoch in force and one peer.
    #[must_use]
    pub const fn new(trust: Live<Trust>, expected: NodeId) -> Self {
        Self { trust, expected, tenant: None }
    }

    /// As [`Self::new`], for a connection of one tenant.
    #[must_use]
    pub const fn for_tenant(trust: Live<Trust>, expected: NodeId, tenant: TenantId) -> Self {
        Self { trust, expected, tenant: Some(tenant) }
    }

    fn identify(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<Principal, Deny> {
        let trust = self.trust.now();
        let principal = trust.identify_node(chain, Usage::Server, now).or_else(|reason| match &self.tenant {
            Some(tenant) if reason == Deny::IssuerBinding => {
                let principal = trust.identify_tenant_leaf(chain, Usage::Server, now)?;
                if principal.tenant() == tenant { Ok(principal) } else { Err(reason) }
            }
            _ => Err(reason),
        })?;
        if principal.node() == Some(&self.expected) { Ok(principal) } else { Err(Deny::UnknownNode) }
    }
}

fn chain_of<'c>(leaf: &CertificateDer<'c>, intermediates: &[CertificateDer<'c>]) -> Vec<CertificateDer<'c>> {
    std::iter::once(leaf).chain(intermediates).cloned().collect()
}

fn core_time(now: rustls_pki_types::UnixTime) -> UnixTime {
    UnixTime(i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
}

/// Counts a refusal and turns it into rustls' error.
fn settle<T>(
    trust: &Trust,
    port: &'static str,
    leaf: &CertificateDer<'_>,
    now: UnixTime,
    result: Result<T, Deny>,
) -> Result<T, Error> {
    result.map_err(|reason| {
        trust.refusals().record(reason, port, &Fingerprint(sha256(leaf)).uid(), now);
        refuse(reason)
    })
}

/// The part of both verifier traits that is the same everywhere: signatures are rustls' own business.
macro_rules! handshake_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, cert, dss, &tls::signature_algorithms())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, cert, dss, &tls::signature_algorithms())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            tls::signature_algorithms().supported_schemes()
        }
    };
}

impl ClientCertVerifier for NativeVerifier {
    fn client_auth_mandatory(&self) -> bool {
        !self.trust.now().admits_anonymous()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: rustls_pki_types::UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let now = core_time(now);
        let result = self.trust.now().identify_client(&chain_of(end_entity, intermediates), now);
        settle(&self.trust.now(), "native", end_entity, now, result).map(|_| ClientCertVerified::assertion())
    }

    handshake_signatures!();
}

impl ClientCertVerifier for BridgeVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: rustls_pki_types::UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let now = core_time(now);
        let result = self.trust.now().identify_dialler(&chain_of(end_entity, intermediates), now);
        settle(&self.trust.now(), "bridge", end_entity, now, result).map(|_| ClientCertVerified::assertion())
    }

    handshake_signatures!();
}

impl ServerCertVerifier for BridgePeerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: rustls_pki_types::UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let now = core_time(now);
        let result = self.identify(&chain_of(end_entity, intermediates), now);
        settle(&self.trust.now(), "dial", end_entity, now, result).map(|_| ServerCertVerified::assertion())
    }

    handshake_signatures!();
}
