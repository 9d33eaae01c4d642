//! Starting a node: everything is read and checked before the first port is opened; every failure names its file or key.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use glocal_core::bundle::Head;
use glocal_core::control::Control;
use glocal_core::edge::{Edge, EdgeKey};
use glocal_core::limits::{EDGE_BURST_MS, PACKET_BYTES_DEFAULT};
use glocal_core::name::NodeId;
use glocal_core::policy::Policy;
use glocal_core::rate::TokenBucket;
use glocal_core::sched::HdwrrConfig;
use glocal_core::tenant::Tenants;
use glocal_engine::driver::Driver;
use glocal_engine::link::Link;
use glocal_engine::shared::Shared;

use crate::clock::Clock;
use crate::config::{ClientAuth, Config, ConfigErrors, EdgeConfig, EdgeMode, HostPort, TenantSet};
use crate::live::Live;
use crate::reload::Reloader;
use crate::reload::stored::newest;
use crate::state::{self, StateError, StateLock};
use crate::trust::{self, BundleSigner, NodeIdentity, NodeLinkCrypto, Roots, Trust, TrustOptions, unix_now};

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration asks for what this release does not do.
    #[error(transparent)]
    Unsupported(#[from] ConfigErrors),
    /// The system gives no thread for bridges.
    #[error("bridge_threads: no thread can be started")]
    Threads(#[source] std::io::Error),
    /// A certificate or key file.
    #[error("{key}")]
    Credential {
        /// The configuration key.
        key: &'static str,
        /// What is wrong.
        source: trust::CredentialError,
    },
    /// The key file cannot be read.
    #[error("node_key: {}: cannot be read", file.display())]
    KeyFile {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The key that signs bundles, or its certificate.
    #[error("{key}")]
    Signing {
        /// The configuration key.
        key: &'static str,
        /// What is wrong.
        source: trust::SignerError,
    },
    /// The bundle.
    #[error("bundle: {file}")]
    Bundle {
        /// The file.
        file: String,
        /// What is wrong.
        source: trust::BundleFileError,
    },
    /// The trust epoch cannot begin.
    #[error("{place}")]
    Trust {
        /// The configuration key, with its file.
        place: String,
        /// Why not.
        source: trust::TrustError,
    },
    /// The configuration and the certificate name different nodes.
    #[error("node_certificate: {}: the configuration is of {configured}, but the certificate is of {certified}", file.display())]
    OtherNode {
        /// The certificate's file.
        file: PathBuf,
        /// By configuration.
        configured: NodeId,
        /// By certificate.
        certified: NodeId,
    },
    /// An edge that the bundle does not have.
    #[error("{}:{line}: edges: '{name}' with peer {peer} is not an edge of this node in the bundle", file.display())]
    UnknownEdge {
        /// The configuration file.
        file: PathBuf,
        /// Its line.
        line: usize,
        /// The edge.
        name: String,
        /// The peer.
        peer: NodeId,
    },
    /// `global_controller_host` does not say which edge.
    #[error("global_controller_host: this node has {0} edges in the bundle; name them in [[edges]]")]
    AmbiguousUplink(usize),
    /// The state directory.
    #[error(transparent)]
    State(#[from] StateError),
    /// TLS.
    #[error(transparent)]
    Tls(#[from] trust::tls::TlsError),
    /// A port or socket.
    #[error("{key}: cannot listen on {address}")]
    Listen {
        /// The configuration key.
        key: &'static str,
        /// The address or path.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// A certificate of a tenant's connection.
    #[error("{}:{line}: edges: '{edge}': certificates", file.display())]
    TenantLeaf {
        /// The configuration file.
        file: PathBuf,
        /// The line of its edge.
        line: usize,
        /// The edge.
        edge: String,
        /// What is wrong.
        source: Box<trust::TenantLeafError>,
    },
    /// This node cannot sign for its edges.
    #[error("node_key: {}", file.display())]
    LinkKey {
        /// The file of the node's key.
        file: PathBuf,
        /// Why not.
        source: trust::LinkKeyError,
    },
    /// The ready file.
    #[error("ready_file: {}: cannot be written", file.display())]
    ReadyFile {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// A node that has read everything and opened nothing.
#[derive(Debug)]
pub struct Prepared {
    /// The configuration, with edges completed from the bundle.
    pub config: Arc<Config>,
    /// The trust epoch in force.
    pub trust: Live<Trust>,
    /// What machines share.
    pub shared: Arc<Shared>,
    /// The control half.
    pub driver: Driver,
    /// The clock.
    pub clock: Clock,
    /// What changes bundle and configuration later.
    pub reloader: Reloader,
    /// Keeps other brokers off the state directory.
    pub lock: StateLock,
}

/// Reads and checks everything a node needs.
///
/// # Errors
/// The first thing that is wrong, with its file and key.
pub fn prepare(mut config: Config) -> Result<Prepared, StartError> {
    config.check_supported()?;
    let now = unix_now();
    let credential = |key| move |source| StartError::Credential { key, source };
    let roots = Roots::load(&config.fabric_root, now).map_err(credential("fabric_root"))?;
    let identity = identity(&config)?;
    let holding =
        newest(&config, &roots, now).map_err(|error| StartError::Bundle { file: error.file, source: error.source })?;
    if *identity.node() != config.node {
        let certified = identity.node().clone();
        return Err(StartError::OtherNode { file: config.node_certificate, configured: config.node, certified });
    }
    let options = options(&config);
    if let Some(tenant) = &options.anonymous {
        tracing::warn!(%tenant, "clients without a certificate are let in as tenant '{tenant}' (anonymous_tenant)");
    }
    let bundle = Arc::clone(holding.bundle());
    let signer = signer(&config, &roots, bundle.head())?;
    let trust = Trust::new(roots, Arc::clone(&bundle), identity, options, now);
    let trust = trust.map_err(|source| StartError::Trust { place: place(&config, &source), source })?;
    let trust = Live::new(Arc::new(trust));
    let raw = Arc::new(config.clone());
    config.edges = edges(&config, &bundle)?;
    check_tenant_leaves(&config, now)?;
    let lock = state::prepare(&config.state_dir)?;
    let incarnation = state::next_incarnation(&config.state_dir)?;
    let clock = Clock::start();
    let (shared, driver) = assemble(&config, &trust, incarnation, clock)?;
    let mut reloader = Reloader::new(raw, holding, &shared);
    if let Some(signer) = signer {
        reloader.set_resigner(signer);
    }
    Ok(Prepared { config: Arc::new(config), trust, shared, driver, clock, reloader, lock })
}

impl Prepared {
    /// The same node, started with these overrides of its configuration: a reload applies them again.
    #[must_use]
    pub fn with_overrides(mut self, overrides: Vec<(String, String)>) -> Self {
        self.reloader.set_overrides(overrides);
        self
    }
}

/// What local configuration adds to the bundle.
pub(crate) fn options(config: &Config) -> TrustOptions {
    let anonymous = match &config.clients {
        ClientAuth::Required => None,
        ClientAuth::AnonymousAs(tenant) => Some(tenant.clone()),
    };
    TrustOptions { superusers: config.broker_superuser_tenants.clone(), anonymous }
}

fn identity(config: &Config) -> Result<NodeIdentity, StartError> {
    let file = config.node_key.path().map_or_else(|| PathBuf::from("node_key"), std::path::Path::to_path_buf);
    let secret = config.node_key.read().map_err(|source| StartError::KeyFile { file: file.clone(), source })?;
    let name = file.display().to_string();
    let key = (name.as_str(), secret.reveal().as_bytes());
    NodeIdentity::load_with_key(&config.node_certificate, key, unix_now()).map_err(|source| {
        let key = if source.is_of_key() { "node_key" } else { "node_certificate" };
        StartError::Credential { key, source }
    })
}

/// The key that signs bundles, where one is configured.
fn signer(config: &Config, roots: &Roots, head: &Head) -> Result<Option<BundleSigner>, StartError> {
    let Some(signing) = &config.bundle_signing else { return Ok(None) };
    let failed = |source: trust::SignerError| {
        let key = if source.is_of_key() { "bundle_signing_key" } else { "bundle_signing_certificate" };
        StartError::Signing { key, source }
    };
    let name = signing.key.path().map_or_else(|| "the text given".to_owned(), |file| file.display().to_string());
    if let Some(file) = signing.key.path() {
        trust::check_private(file).map_err(failed)?;
    }
    let unread = |source| failed(trust::SignerError::Unreadable { file: name.clone(), source });
    let secret = signing.key.read().map_err(unread)?;
    BundleSigner::load(&signing.certificate, (&name, secret.reveal()), roots, head, unix_now())
        .map(Some)
        .map_err(failed)
}

/// The key and the file that a refused trust epoch is about.
fn place(config: &Config, error: &trust::TrustError) -> String {
    match error {
        trust::TrustError::NoCommonRoot => format!("fabric_root: {}", config.fabric_root.display()),
        trust::TrustError::OwnCertificate { .. } => format!("node_certificate: {}", config.node_certificate.display()),
        trust::TrustError::Anonymous { .. } => "anonymous_tenant".to_owned(),
        _ => format!("bundle: {}", config.bundle.display()),
    }
}

/// The edges as configured, each known to the bundle; or the one edge that `global_controller_host` means.
pub(crate) fn edges(config: &Config, bundle: &glocal_core::bundle::Bundle) -> Result<Vec<EdgeConfig>, StartError> {
    let own = &config.node;
    let peer = |edge: &glocal_core::bundle::EdgeEntry| if edge.a == *own { edge.b.clone() } else { edge.a.clone() };
    if let (Some(uplink), true) = (&config.uplink, config.edges.is_empty()) {
        let known: Vec<_> = bundle.edges_of(own).collect();
        let [edge] = known.as_slice() else { return Err(StartError::AmbiguousUplink(known.len())) };
        return Ok(vec![uplink_edge(edge.name.clone(), peer(edge), uplink.clone())]);
    }
    for edge in &config.edges {
        let known = bundle.edge(&edge.name).filter(|e| (e.a == *own || e.b == *own) && peer(e) == edge.peer);
        if known.is_none() {
            return Err(StartError::UnknownEdge {
                file: config.file.clone(),
                line: edge.line,
                name: edge.name.to_string(),
                peer: edge.peer.clone(),
            });
        }
    }
    Ok(config.edges.iter().map(|e| EdgeConfig { addresses: config.addresses_of(e), ..e.clone() }).collect())
}

/// Every configured certificate of a tenant's connection is of this node and that tenant. What the bundle says of it shows
/// when the connection is made: a tenant may come and go there.
pub(crate) fn check_tenant_leaves(config: &Config, now: glocal_core::time::UnixTime) -> Result<(), StartError> {
    for edge in &config.edges {
        for certificate in &edge.certificates {
            let failed = |source| StartError::TenantLeaf {
                file: config.file.clone(),
                line: edge.line,
                edge: edge.name.to_string(),
                source: Box::new(source),
            };
            trust::load_tenant_leaf(certificate, &config.node, now).map_err(failed)?;
        }
    }
    Ok(())
}

fn uplink_edge(name: glocal_core::name::Label, peer: NodeId, address: HostPort) -> EdgeConfig {
    EdgeConfig {
        name,
        peer,
        addresses: vec![address],
        tenants: TenantSet::all(),
        mode: EdgeMode::Shared,
        rate_bits_per_second: None,
        metric: 0,
        lane_bytes_max: glocal_core::limits::EDGE_LANE_BYTES_MAX,
        queue_bytes_max: glocal_core::limits::EDGE_BYTES_DEFAULT,
        certificates: Vec::new(),
        line: 0,
    }
}

/// Builds the node's machines.
fn assemble(
    config: &Config,
    live: &Live<Trust>,
    incarnation: u64,
    clock: Clock,
) -> Result<(Arc<Shared>, Driver), StartError> {
    let trust = live.now();
    let bundle = trust.bundle();
    let tenants = Tenants::new(bundle.sections().cloned());
    let tenants = Arc::new(tenants.bounded(config.rates).holding(crate::memory::bounds(config)));
    let policy = Arc::new(Policy::new(1, Arc::clone(&tenants)));
    let links: Vec<_> = config.edges.iter().zip(0..).map(|(e, key)| link(e, EdgeKey(key), &tenants, clock)).collect();
    let edges = links.iter().map(|link| Arc::clone(link.edge())).collect();
    let unknown = || {
        let reason = glocal_core::deny::Deny::UnknownNode;
        let source = trust::TrustError::OwnCertificate { node: config.node.clone(), reason };
        StartError::Trust { place: place(config, &source), source }
    };
    let in_force = live.clone();
    let admit = trust::admit_by(move || in_force.now());
    let crypto =
        NodeLinkCrypto::make(&bundle.head().fabric, trust.identity(), incarnation, admit).map_err(|source| {
            let file = config.node_key.path().map_or_else(|| PathBuf::from("node_key"), std::path::Path::to_path_buf);
            StartError::LinkKey { file, source }
        })?;
    let control = Control::new(&config.node, incarnation, bundle.head(), tenants, edges, Box::new(crypto));
    let control = control.ok_or_else(unknown)?;
    let own = control.brokers().own().ok_or_else(unknown)?;
    let shared = Arc::new(Shared::new(
        config.node.clone(),
        own,
        incarnation,
        bundle.head(),
        policy,
        Arc::clone(control.brokers()),
        links,
        config.broker_security_log_allow,
    ));
    Ok((Arc::clone(&shared), Driver::new(control, shared)))
}

pub(crate) fn link(edge: &EdgeConfig, key: EdgeKey, tenants: &Tenants, clock: Clock) -> Arc<Link> {
    let handle = Arc::new(Edge::new(key, edge.name.clone(), edge.peer.clone()));
    handle.set_metric(edge.metric);
    handle.set_dedicated(edge.mode == EdgeMode::Dedicated);
    let link = Link::new(handle, HdwrrConfig::default());
    link.inbox().with(|lanes| {
        lanes.sched_mut().charge_to(Arc::clone(tenants.memory()));
        lanes.agree(tenants, clock.now());
    });
    shape(&link, edge, clock);
    Arc::new(link)
}

/// Gives an edge its limits, and shapes it to its rate, or not at all.
pub(crate) fn shape(link: &Link, edge: &EdgeConfig, clock: Clock) {
    link.inbox().with(|lanes| lanes.sched_mut().set_limits(edge.lane_bytes_max, edge.queue_bytes_max));
    link.inbox().with(|lanes| match edge.rate_bits_per_second {
        Some(bits) => {
            let bytes = (bits / 8).max(1);
            // Timers may be late by a millisecond or two, which is made up for; what lies below the scheduler at once is for
            // the send window to bound.
            let burst = (bytes * EDGE_BURST_MS / 1000).max(2 * PACKET_BYTES_DEFAULT as u64);
            lanes.sched_mut().set_shaper(Some(TokenBucket::new(bytes, burst, clock.now())));
            lanes.sched_mut().set_rate(bytes);
        }
        None => {
            lanes.sched_mut().set_shaper(None);
            lanes.sched_mut().set_rate(u64::MAX);
        }
    });
    link.inbox().wake();
}

/// What a running node listens on.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Listening {
    /// The node.
    pub node: String,
    /// Its process.
    pub pid: u32,
    /// Clients over TLS/TCP.
    pub native_tcp: SocketAddr,
    /// Clients over QUIC.
    pub native_quic: SocketAddr,
    /// NATS clients.
    pub nats: Option<SocketAddr>,
    /// NATS clients over WebSocket.
    pub nats_ws: Option<SocketAddr>,
    /// Brokers.
    pub bridge: SocketAddr,
    /// Operators over HTTP.
    pub ops: Option<SocketAddr>,
    /// Operators on this machine.
    pub socket: PathBuf,
}
