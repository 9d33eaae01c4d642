//! Configuration that compiles: a TOML file, the environment and `-D` overrides become one checked [`Config`].
//!
//! Compilation is pure and reports every error at once, each as `file:line: key: message`. Unknown and duplicate keys
//! are refused at every depth. Precedence: `-D key=value`, then `GLOCAL_<KEY>`, then `CRESCO_<KEY>`, then the file, then
//! the default in [`KEYS`], the one table that also makes `docs/CONFIG.md`. A value that this release understands but
//! does not carry out is listed in [`Config::unsupported`], never ignored. No secret is ever shown in an error, a note or
//! a `Debug` text. Local configuration only narrows what the signed bundle allows (DESIGN section 3).

mod build;
mod convert;
mod docs;
mod glob;
mod keys;
mod problem;
mod raw;
mod value;
mod walk;

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use glocal_core::bundle::TenantIdForm;
use glocal_core::limits::CONFIG_BYTES_MAX;
use glocal_core::name::{Label, NodeId, RawFilter, TenantId};
use glocal_core::rate::RateBounds;

pub use docs::markdown;
pub use glob::{TenantGlob, TenantSet};
pub use keys::{KEYS, Key, Kind, OTHER_VARIABLES, Presence, Unsupported};
pub use problem::{ConfigErrors, Note, Place, Problem};
pub use value::{CrossTenantSink, HostPort, Secret, SecretSource, SinkAccess};

/// The checked configuration of one node. Paths are already relative to nothing: joined to the file's directory.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file it came from.
    pub file: PathBuf,
    /// `regionname` and `agentname`.
    pub node: NodeId,
    /// Which of `is_global`, `is_region` and `is_agent` is true.
    pub role: NodeRole,
    /// `tenant_id`: the tenant of the node's own parts, such as its advisories.
    pub tenant_id: TenantId,
    /// `tenant_id_form`: how tenant ids relate to `O=`.
    pub tenant_id_form: TenantIdForm,
    /// `tenant_namespacing`.
    pub tenant_namespacing: bool,
    /// `transition`: flat and namespaced names are accepted together.
    pub transition: bool,
    /// `broker_security_enabled`.
    pub broker_security_enabled: bool,
    /// `broker_require_client_auth` and `anonymous_tenant`.
    pub clients: ClientAuth,
    /// `broker_superuser_tenants`: when set, only these of the bundle's superuser tenants are superusers here.
    pub broker_superuser_tenants: Option<Vec<TenantId>>,
    /// `broker_shared_destinations`.
    pub broker_shared_destinations: Vec<RawFilter>,
    /// `broker_cross_tenant_sinks`.
    pub broker_cross_tenant_sinks: Vec<CrossTenantSink>,
    /// `broker_security_log_allow`: log every ALLOW, too.
    pub broker_security_log_allow: bool,
    /// `security_regional_ca`.
    pub security_regional_ca: bool,
    /// `global_controller_host` and `global_controller_port`: see [`Config::addresses_of`].
    pub uplink: Option<HostPort>,
    /// `listen_address` with `broker_port`: native sessions over TLS/TCP. Port 0 lets the system choose.
    pub native_tcp: SocketAddr,
    /// `listen_address` with `quic_port`: native sessions over QUIC.
    pub native_quic: SocketAddr,
    /// `listen_address` with `bridge_port`: bridges over QUIC.
    pub bridge: SocketAddr,
    /// `nats_port` with `listen_address`.
    pub nats_tcp: Option<SocketAddr>,
    /// `nats_ws_port` with `listen_address`.
    pub nats_ws: Option<SocketAddr>,
    /// `nats_ws_allowed_origins`: pages that may open the WebSocket.
    pub nats_ws_allowed_origins: Vec<String>,
    /// `ops_listen`: metrics and health over HTTP; `None` when `off`.
    pub ops_listen: Option<SocketAddr>,
    /// `state_dir`: the operators' socket and the incarnation.
    pub state_dir: PathBuf,
    /// `fabric_root`: PEM of the trusted roots.
    pub fabric_root: PathBuf,
    /// `bundle`: the signed bundle.
    pub bundle: PathBuf,
    /// `bundle_min_version`: older bundles are refused.
    pub bundle_min_version: u64,
    /// `node_certificate`: PEM chain of this node, leaf first.
    pub node_certificate: PathBuf,
    /// `node_key` or `node_key_file`: PEM of the leaf's private key.
    pub node_key: SecretSource,
    /// `bundle_signing_key` or `bundle_signing_key_file`, with `bundle_signing_certificate`.
    pub bundle_signing: Option<BundleSigning>,
    /// `log_format`.
    pub log_format: LogFormat,
    /// `log_level`.
    pub log_level: tracing::Level,
    /// `lame_duck_ms`: how long clients are given to leave at shutdown.
    pub lame_duck_ms: u64,
    /// `tenant_messages_per_s`, `tenant_bytes_per_s`, `session_messages_per_s` and `session_bytes_per_s`: what any tenant and
    /// any session may publish here at most.
    pub rates: RateBounds,
    /// `memory_bytes` and `tenant_memory_bytes`: what may wait for all sessions and for those of any one tenant; not set for
    /// what the machine and `memory_bytes` suggest.
    pub memory_bytes: Option<usize>,
    /// See `memory_bytes`.
    pub tenant_memory_bytes: Option<usize>,
    /// `ready_file`: written when all listeners are bound.
    pub ready_file: Option<PathBuf>,
    /// `runtime_threads`: worker threads; 0 means one per core.
    pub runtime_threads: usize,
    /// `bridge_threads`: threads of bridges; 0 means one for every two cores.
    pub bridge_threads: usize,
    /// `busy_poll_us`: how long to poll for a client that is about to go on; 0 for not at all.
    pub busy_poll_us: u64,
    /// `[[edges]]`, in file order.
    pub edges: Vec<EdgeConfig>,
    /// Values that this release understands but does not carry out: `glocal run` refuses them, by key.
    pub unsupported: Vec<Problem>,
}

/// What a node signs bundles with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleSigning {
    /// `bundle_signing_key`: PEM of the private key.
    pub key: SecretSource,
    /// `bundle_signing_certificate`: PEM of its certificate.
    pub certificate: PathBuf,
}

/// What a node is in the tree of agents, regions and globals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeRole {
    /// `is_global = true`.
    Global,
    /// `is_region = true`.
    Region,
    /// `is_agent = true`: a leaf broker with a node certificate.
    Agent,
}

impl NodeRole {
    /// The role as text, also for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Region => "region",
            Self::Agent => "agent",
        }
    }
}

/// Who may connect as a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// Only holders of a certificate.
    Required,
    /// A connection without a certificate is this tenant, which is never a superuser. A bad certificate is still refused.
    AnonymousAs(TenantId),
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// How the tenants of an edge share connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeMode {
    /// One connection for all tenants.
    Shared,
    /// One connection per tenant.
    Dedicated,
}

/// One `[[edges]]` entry: this node's side of an adjacency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgeConfig {
    /// `name`: the edge's name in the bundle; unique here.
    pub name: Label,
    /// `peer`: the broker at the other end, never this node.
    pub peer: NodeId,
    /// `addresses`: where to dial the peer; empty on the side that only accepts.
    pub addresses: Vec<HostPort>,
    /// `tenants`: narrows what the bundle allows on this edge.
    pub tenants: TenantSet,
    /// `mode`.
    pub mode: EdgeMode,
    /// `rate`: shaping of this side's egress, in bits per second.
    pub rate_bits_per_second: Option<u64>,
    /// `metric`: added to the measured cost of the edge.
    pub metric: u32,
    /// `lane_bytes` and `queue_bytes`: what may wait in one lane, and in all.
    pub lane_bytes_max: usize,
    /// See `lane_bytes_max`.
    pub queue_bytes_max: usize,
    /// `certificates`: this node's certificates for connections of single tenants, at most one for each.
    pub certificates: Vec<TenantCertificate>,
    /// Line of the entry in the file.
    pub line: usize,
}

/// One `[[edges.certificates]]` entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantCertificate {
    /// `tenant`.
    pub tenant: TenantId,
    /// `certificate`: PEM chain, leaf first.
    pub certificate: PathBuf,
    /// `key`: PEM of the leaf's private key.
    pub key: PathBuf,
}

impl EdgeConfig {
    /// The certificate configured for a tenant's connection.
    #[must_use]
    pub fn certificate_of(&self, tenant: &TenantId) -> Option<&TenantCertificate> {
        self.certificates.iter().find(|certificate| certificate.tenant == *tenant)
    }
}

/// What a successful compilation gives: the value, and what an operator should know about it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The checked configuration.
    pub config: Config,
    /// Remarks, such as that anonymous clients are allowed.
    pub notes: Vec<Note>,
}

impl Config {
    /// Reads and compiles one file.
    ///
    /// # Errors
    /// [`ConfigErrors`] when the file cannot be read, is too large or is not UTF-8, and as [`compile`].
    pub fn load(
        file: &Path,
        overrides: &[(String, String)],
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Loaded, ConfigErrors> {
        let whole = |message: String| ConfigErrors::one(Problem::new(Place::file(file), "", message));
        let bytes = read_bounded(file).map_err(|error| whole(format!("cannot be read: {error}")))?;
        let text = String::from_utf8(bytes).map_err(|_| whole("is not UTF-8 text".to_owned()))?;
        compile(&text, file, overrides, env)
    }

    /// Whether this release carries out every value of it.
    ///
    /// # Errors
    /// The values that it does not, each with its key: [`Config::unsupported`].
    pub fn check_supported(&self) -> Result<(), ConfigErrors> {
        if self.unsupported.is_empty() { Ok(()) } else { Err(ConfigErrors::sorted(self.unsupported.clone())) }
    }

    /// Where to dial an edge: its own addresses or, for the one edge without any, the global controller's address.
    #[must_use]
    pub fn addresses_of(&self, edge: &EdgeConfig) -> Vec<HostPort> {
        if edge.addresses.is_empty() { self.uplink.iter().cloned().collect() } else { edge.addresses.clone() }
    }

    /// The files it names that must exist before a start, each with its key.
    #[must_use]
    pub fn files(&self) -> Vec<(&'static str, &Path)> {
        let mut files = vec![
            ("fabric_root", self.fabric_root.as_path()),
            ("bundle", self.bundle.as_path()),
            ("node_certificate", self.node_certificate.as_path()),
        ];
        if let SecretSource::File(path) = &self.node_key {
            files.push(("node_key", path));
        }
        for certificate in self.edges.iter().flat_map(|edge| &edge.certificates) {
            files.push(("edges.certificates.certificate", certificate.certificate.as_path()));
            files.push(("edges.certificates.key", certificate.key.as_path()));
        }
        if let Some(signing) = &self.bundle_signing {
            files.extend(signing.key.path().map(|path| ("bundle_signing_key", path)));
            files.push(("bundle_signing_certificate", signing.certificate.as_path()));
        }
        files
    }
}

/// Compiles a configuration from a file's text: pure, without a look at files, ports or the clock.
///
/// `file` gives the name in errors and the directory that relative paths belong to.
///
/// # Errors
/// Every error of every source at once. A text that is not TOML gives its syntax errors only, since the rest would
/// follow from them.
pub fn compile(
    text: &str,
    file: &Path,
    overrides: &[(String, String)],
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<Loaded, ConfigErrors> {
    let parsed = raw::parse(text, file)?;
    let walked = walk::walk(file, parsed, overrides, env);
    build::build(file, walked)
}

/// The variables of this process that configuration reads, with prefix `GLOCAL_` or `CRESCO_`.
#[must_use]
pub fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .filter(|(name, _)| name.starts_with(walk::GLOCAL_PREFIX) || name.starts_with(walk::CRESCO_PREFIX))
        .collect()
}

/// Reads a file of at most [`CONFIG_BYTES_MAX`] bytes, whatever its length is said to be.
fn read_bounded(file: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(file)?.take(CONFIG_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > CONFIG_BYTES_MAX {
        return Err(std::io::Error::new(
            std::io::ErrorKind::FileTooLarge,
            format!("larger than {CONFIG_BYTES_MAX} bytes"),
        ));
    }
    Ok(bytes)
}

/// Joins a socket address.
const fn at(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address, port)
}

#[cfg(test)]
mod tests;
