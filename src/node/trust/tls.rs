//! TLS and QUIC configurations. They outlive a trust epoch: their verifiers ask the one in force.
//!
//! TLS 1.3 only, one provider with post-quantum key exchange first. Resumption and early data are off everywhere: a
//! ticket would outlive a revocation. QUIC's windows, streams and migration are set on purpose, never by default: clients
//! live behind address translation and keep their session when it forgets them, bridges are dialled again.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use glocal_core::deny::Deny;
use glocal_core::limits::{
    BRIDGE_DATAGRAM_BYTES_MAX, BRIDGE_IDLE_MS_MAX, BRIDGE_STREAM_WINDOW_BYTES, BRIDGE_STREAMS, BRIDGE_WINDOW_BYTES,
    HANDSHAKES_MAX, INCOMING_BYTES_MAX, NATIVE_SEND_WINDOW_BYTES, NATIVE_STREAM_WINDOW_BYTES,
    SEND_WINDOW_BYTES_INITIAL, SESSION_PING_MS, SESSION_PINGS_MAX,
};
use glocal_core::name::{NodeId, TenantId};
use quinn::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use quinn::{MtuDiscoveryConfig, TransportConfig, VarInt};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::SingleCertAndKey;
use rustls::version::TLS13;

use super::verifier::{BridgePeerVerifier, BridgeVerifier, NativeVerifier};
use super::{BridgeCertificates, NodeIdentity, Trust};
use crate::congestion::Controllers;
use crate::live::Live;

/// ALPN of native sessions, over TLS/TCP and QUIC.
pub const ALPN_NATIVE: &[u8] = b"glocal/1";
/// ALPN of bridges.
pub const ALPN_BRIDGE: &[u8] = b"glocal-bridge/1";
/// The server name QUIC asks for when a bridge is dialled. It is neither sent nor compared.
pub const BRIDGE_SERVER_NAME: &str = "bridge.glocal";

/// Why a configuration cannot be made: only if the provider lacks what TLS 1.3 demands.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// rustls refuses the combination.
    #[error("TLS configuration")]
    Tls(#[from] rustls::Error),
    /// The provider lacks the cipher suite of QUIC's first packets.
    #[error("QUIC configuration")]
    Quic(#[from] NoInitialCipherSuite),
    /// A duration is too long for QUIC.
    #[error("QUIC idle timeout")]
    Idle(#[from] quinn::VarIntBoundsExceeded),
}

static PROVIDER: LazyLock<Arc<CryptoProvider>> =
    LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));

/// The one crypto provider, never taken from process-wide state.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    PROVIDER.clone()
}

pub(super) fn signature_algorithms() -> WebPkiSupportedAlgorithms {
    PROVIDER.signature_verification_algorithms
}

/// Refuses a connection that settled on no protocol, or on another one. QUIC does so by itself, TLS/TCP does not.
///
/// # Errors
/// [`Deny::Protocol`].
pub fn require_alpn(settled: Option<&[u8]>, expected: &[u8]) -> Result<(), Deny> {
    if settled == Some(expected) { Ok(()) } else { Err(Deny::Protocol) }
}

/// For native sessions over TLS/TCP.
///
/// # Errors
/// The provider lacks TLS 1.3.
pub fn native_tcp_server_config(trust: impl Into<Live<Trust>>) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    let trust: Live<Trust> = trust.into();
    let verifier = Arc::new(NativeVerifier::new(trust.clone()));
    Ok(Arc::new(server_config(trust.now().identity(), verifier, ALPN_NATIVE)?))
}

/// For NATS sessions: the same, without ALPN, which NATS clients do not know.
///
/// # Errors
/// The provider lacks TLS 1.3.
pub fn nats_server_config(trust: impl Into<Live<Trust>>) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    let trust: Live<Trust> = trust.into();
    let verifier = Arc::new(NativeVerifier::new(trust.clone()));
    let mut config = server_config(trust.now().identity(), verifier, ALPN_NATIVE)?;
    config.alpn_protocols.clear();
    Ok(Arc::new(config))
}

/// For native sessions over QUIC: one bidirectional stream, opened by the client.
///
/// # Errors
/// The provider lacks what QUIC needs.
pub fn native_quic_server_config(trust: impl Into<Live<Trust>>) -> Result<quinn::ServerConfig, TlsError> {
    let trust: Live<Trust> = trust.into();
    let verifier = Arc::new(NativeVerifier::new(trust.clone()));
    let tls = server_config(trust.now().identity(), verifier, ALPN_NATIVE)?;
    let idle_ms = SESSION_PING_MS * u64::from(SESSION_PINGS_MAX + 2);
    let mut transport = transport(idle_ms)?;
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(NATIVE_STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(NATIVE_STREAM_WINDOW_BYTES))
        .send_window(NATIVE_SEND_WINDOW_BYTES);
    quic_server_config(tls, transport, true)
}

/// For bridges that others dial.
///
/// # Errors
/// The provider lacks what QUIC needs.
pub fn bridge_server_config(trust: impl Into<Live<Trust>>) -> Result<quinn::ServerConfig, TlsError> {
    let trust: Live<Trust> = trust.into();
    let certificates = BridgeCertificates::new(trust.now().identity());
    bridge_server_config_with(trust, certificates)
}

/// As [`bridge_server_config`], presenting these certificates.
///
/// # Errors
/// The provider lacks what QUIC needs.
pub fn bridge_server_config_with(
    trust: impl Into<Live<Trust>>,
    certificates: Arc<BridgeCertificates>,
) -> Result<quinn::ServerConfig, TlsError> {
    let verifier = Arc::new(BridgeVerifier::new(trust.into()));
    let tls = server_config_of(certificates, verifier, ALPN_BRIDGE)?;
    quic_server_config(tls, bridge_transport()?, false)
}

/// For the endpoint of bridges: which datagrams it takes.
#[must_use]
pub fn bridge_endpoint_config() -> quinn::EndpointConfig {
    let mut config = quinn::EndpointConfig::default();
    let set = config.max_udp_payload_size(BRIDGE_DATAGRAM_BYTES_MAX).map(|_| ());
    debug_assert!(set.is_ok(), "the limit lies within QUIC's: {set:?}");
    config
}

/// For a bridge that this side dials to `expected`. Use it with [`BRIDGE_SERVER_NAME`].
///
/// # Errors
/// The provider lacks what QUIC needs.
pub fn bridge_client_config(trust: impl Into<Live<Trust>>, expected: NodeId) -> Result<quinn::ClientConfig, TlsError> {
    let tls = bridge_client_tls(trust, expected)?;
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config.transport_config(Arc::new(bridge_transport()?));
    Ok(config)
}

/// For a connection of one tenant that this side dials to `expected`, under the leaf of `identity`. The name it is dialled
/// by is sent, so that the peer can answer under a certificate of the tenant.
///
/// # Errors
/// The provider lacks what QUIC needs.
pub fn tenant_client_config(
    trust: impl Into<Live<Trust>>,
    expected: NodeId,
    tenant: TenantId,
    identity: &NodeIdentity,
) -> Result<quinn::ClientConfig, TlsError> {
    let verifier = BridgePeerVerifier::for_tenant(trust.into(), expected, tenant);
    let mut tls = client_config(verifier, identity)?;
    tls.enable_sni = true;
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config.transport_config(Arc::new(bridge_transport()?));
    Ok(config)
}

/// The TLS half of [`bridge_client_config`], for carriers other than QUIC.
///
/// # Errors
/// The provider lacks TLS 1.3.
pub fn bridge_client_tls(trust: impl Into<Live<Trust>>, expected: NodeId) -> Result<rustls::ClientConfig, TlsError> {
    let trust: Live<Trust> = trust.into();
    let in_force = trust.now();
    client_config(BridgePeerVerifier::new(trust, expected), in_force.identity())
}

fn client_config(verifier: BridgePeerVerifier, identity: &NodeIdentity) -> Result<rustls::ClientConfig, TlsError> {
    let own = Arc::new(SingleCertAndKey::from(identity.certified_key()));
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(own);
    config.alpn_protocols = vec![ALPN_BRIDGE.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    config.enable_sni = false;
    Ok(config)
}

fn server_config(
    identity: &NodeIdentity,
    verifier: Arc<dyn ClientCertVerifier>,
    alpn: &[u8],
) -> Result<rustls::ServerConfig, TlsError> {
    server_config_of(Arc::new(SingleCertAndKey::from(identity.certified_key())), verifier, alpn)
}

fn server_config_of(
    certificates: Arc<dyn ResolvesServerCert>,
    verifier: Arc<dyn ClientCertVerifier>,
    alpn: &[u8],
) -> Result<rustls::ServerConfig, TlsError> {
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(certificates);
    config.alpn_protocols = vec![alpn.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(config)
}

fn quic_server_config(
    tls: rustls::ServerConfig,
    transport: TransportConfig,
    migration: bool,
) -> Result<quinn::ServerConfig, TlsError> {
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    config
        .transport_config(Arc::new(transport))
        .migration(migration)
        .max_incoming(HANDSHAKES_MAX)
        .incoming_buffer_size(INCOMING_BYTES_MAX)
        .incoming_buffer_size_total(INCOMING_BYTES_MAX * HANDSHAKES_MAX as u64);
    Ok(config)
}

/// What all QUIC connections share: no datagrams, no keep-alive (our own probes do that), a bounded silence.
fn transport(idle_ms: u64) -> Result<TransportConfig, TlsError> {
    let mut transport = TransportConfig::default();
    transport
        .datagram_receive_buffer_size(None)
        .datagram_send_buffer_size(0)
        .keep_alive_interval(None)
        .max_idle_timeout(Some(Duration::from_millis(idle_ms).try_into()?));
    Ok(transport)
}

/// One bidirectional control stream and the data streams (DESIGN section 6).
fn bridge_transport() -> Result<TransportConfig, TlsError> {
    let mut transport = transport(BRIDGE_IDLE_MS_MAX)?;
    // Larger datagrams cost half as much CPU a byte; paths that do not carry them keep what they have.
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(BRIDGE_DATAGRAM_BYTES_MAX);
    transport
        .mtu_discovery_config(Some(discovery))
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(u32::try_from(BRIDGE_STREAMS).unwrap_or(u32::MAX)))
        .stream_receive_window(VarInt::from_u32(BRIDGE_STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(BRIDGE_WINDOW_BYTES))
        .send_window(SEND_WINDOW_BYTES_INITIAL)
        .congestion_controller_factory(Arc::new(Controllers));
    Ok(transport)
}
