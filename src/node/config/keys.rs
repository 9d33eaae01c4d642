//! The one table of configuration keys: names, kinds, defaults, what is not yet carried out, and their documentation.
//!
//! Checking, the list of known names, and `docs/CONFIG.md` all come from here, so they cannot disagree.

use glocal_core::limits::{
    BUSY_POLL_US_MAX, CONFIG_RATE_BITS_MAX, CONFIG_RATE_BITS_MIN, EDGE_BYTES_MAX, EDGE_LANE_BYTES_MAX,
    EDGE_LANE_BYTES_MIN, LAME_DUCK_MS_MAX, MEMORY_BYTES_MAX, MEMORY_BYTES_MIN, RATE_BYTES_MAX, RATE_MESSAGES_MAX,
    RUNTIME_THREADS_MAX,
};

/// The shape of a key's value.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number within a range, both ends included.
    Integer {
        /// Least value.
        min: u64,
        /// Greatest value.
        max: u64,
    },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A region, agent or edge label.
    Label,
    /// A node id, `<region>/<agent>`.
    Node,
    /// A tenant id.
    Tenant,
    /// A list of tenant ids.
    Tenants,
    /// A list of tenant ids, prefixes followed by `*`, or `*`.
    Globs,
    /// A list of raw names or filters.
    Filters,
    /// Cresco's list of cross-tenant sinks.
    Sinks,
    /// A list of web origins.
    Origins,
    /// An IP address to listen on.
    Ip,
    /// An IP address and port to listen on, or `off`.
    Listen,
    /// A host name or address.
    Host,
    /// A list of `host:port`.
    Addresses,
    /// A bit rate.
    Rate,
    /// A path, relative to the directory of the file.
    Path,
    /// PEM text that is a secret, or the path of a file that holds it. `<key>_file` names the file outright.
    SecretPem,
    /// A list of tables with these keys, under this header.
    Tables {
        /// The header, without brackets.
        header: &'static str,
        /// The keys.
        keys: &'static [Key],
    },
}

/// What holds when a key is not given.
#[derive(Clone, Copy, Debug)]
pub enum Presence {
    /// It is an error.
    Required,
    /// This value, written as it would be in an environment variable.
    Default(&'static str),
    /// Nothing is set; the text says what that means.
    Absent(&'static str),
}

/// Which values of a key are understood but not carried out by this release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// Every value is carried out.
    Never,
    /// Being given at all, or a list that is not empty.
    Given,
    /// This value, as written in an environment variable.
    Value(&'static str),
}

/// One configuration key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name in the file; upper-case after `GLOCAL_` or `CRESCO_` in the environment.
    pub name: &'static str,
    /// The shape of its value.
    pub kind: Kind,
    /// What holds when it is not given.
    pub presence: Presence,
    /// What is not yet carried out.
    pub unsupported: Unsupported,
    /// Whether Cresco has a key of this name.
    pub cresco: bool,
    /// What it does, in whole sentences.
    pub doc: &'static str,
}

impl Key {
    const fn new(name: &'static str, kind: Kind, presence: Presence, doc: &'static str) -> Self {
        Self { name, kind, presence, unsupported: Unsupported::Never, cresco: false, doc }
    }

    const fn cresco(mut self) -> Self {
        self.cresco = true;
        self
    }

    const fn unsupported(mut self, which: Unsupported) -> Self {
        self.unsupported = which;
        self
    }

    /// Whether its value is never shown, and `<name>_file` exists.
    #[must_use]
    pub const fn is_secret(&self) -> bool {
        matches!(self.kind, Kind::SecretPem)
    }
}

/// Suffix of the key that names a secret's file.
pub(super) const FILE_SUFFIX: &str = "_file";

/// Variables beginning with `GLOCAL_` that are not configuration keys, and what reads them.
pub const OTHER_VARIABLES: &[(&str, &str)] = &[
    ("GLOCAL_CERT", "the certificate of a client command"),
    ("GLOCAL_CONFIG_DIR", "where the command line keeps its saved contexts"),
    ("GLOCAL_CONTEXT", "the saved context the command line uses"),
    ("GLOCAL_KEY", "the key file of a client command"),
    ("GLOCAL_LOG", "log filter directives, which win over `log_level`"),
    ("GLOCAL_ROOT", "the root of a client command"),
    ("GLOCAL_SERVER", "the address of a client command"),
    ("GLOCAL_GUARDS_BUILD", "test builds only: compiles the switches for guards"),
    ("GLOCAL_GUARDS_OFF", "test builds only: guards to switch off"),
];

const PORT: Kind = Kind::Integer { min: 0, max: 65_535 };
const SET_PORT: Kind = Kind::Integer { min: 1, max: 65_535 };
const MESSAGES_PER_S: Kind = Kind::Integer { min: 1, max: RATE_MESSAGES_MAX };
const BYTES_PER_S: Kind = Kind::Integer { min: 1, max: RATE_BYTES_MAX };
const MEMORY_BYTES: Kind = Kind::Integer { min: MEMORY_BYTES_MIN as u64, max: MEMORY_BYTES_MAX as u64 };
const FALSE: Presence = Presence::Default("false");
const TRUE: Presence = Presence::Default("true");
const NOT_FALSE: Unsupported = Unsupported::Value("false");
const NOT_TRUE: Unsupported = Unsupported::Value("true");

/// Every top-level key, in the order of `docs/CONFIG.md`.
pub const KEYS: &[Key] = &[
    Key::new("regionname", Kind::Label, Presence::Required, "The node's region: the `OU=` of its certificate.")
        .cresco(),
    Key::new("agentname", Kind::Label, Presence::Required, "The node's name: the `CN=` of its certificate.").cresco(),
    Key::new(
        "is_global",
        Kind::Bool,
        FALSE,
        "The node joins regions. Exactly one of `is_global`, `is_region` and `is_agent` is true.",
    )
    .cresco(),
    Key::new("is_region", Kind::Bool, FALSE, "The node serves one region.").cresco(),
    Key::new(
        "is_agent",
        Kind::Bool,
        FALSE,
        "The node is a leaf broker, with a node certificate. An agent program is a client and needs no such \
         file.",
    )
    .cresco(),
    Key::new(
        "tenant_id",
        Kind::Tenant,
        Presence::Default("default"),
        "The tenant of the node's own parts, such as its advisories. Says nothing about clients: their \
         tenant is in their certificates.",
    )
    .cresco(),
    Key::new(
        "tenant_id_form",
        Kind::Choice(&["plain", "opaque"]),
        Presence::Default("plain"),
        "`plain`: a tenant id is the `O=` itself. `opaque`: a keyed hash of it.",
    )
    .unsupported(Unsupported::Value("opaque")),
    Key::new(
        "tenant_namespacing",
        Kind::Bool,
        TRUE,
        "Every destination lives under its tenant. `false` is Cresco's flat fabric.",
    )
    .cresco()
    .unsupported(NOT_FALSE),
    Key::new("transition", Kind::Bool, FALSE, "Accept flat and namespaced names together while a flat fabric moves.")
        .unsupported(NOT_TRUE),
    Key::new("broker_security_enabled", Kind::Bool, TRUE, "Check every operation against the caller's certificate.")
        .cresco()
        .unsupported(NOT_FALSE),
    Key::new(
        "broker_require_client_auth",
        Kind::Bool,
        TRUE,
        "Clients must present a certificate. `false` needs `anonymous_tenant`. A bad certificate is refused \
         either way.",
    )
    .cresco(),
    Key::new(
        "anonymous_tenant",
        Kind::Tenant,
        Presence::Absent("no client without a certificate"),
        "The tenant of clients without a certificate, when `broker_require_client_auth = false`. Never a \
         superuser; reported at start and by `glocal check`.",
    ),
    Key::new(
        "broker_superuser_tenants",
        Kind::Tenants,
        Presence::Absent("the bundle's superuser tenants"),
        "Narrows the bundle's superuser tenants to those in this list; adds none. An empty list means no \
         superuser on this node.",
    )
    .cresco(),
    Key::new(
        "broker_shared_destinations",
        Kind::Filters,
        Presence::Default(""),
        "Names that all tenants share, as in Cresco's flat fabric.",
    )
    .cresco()
    .unsupported(Unsupported::Given),
    Key::new(
        "broker_cross_tenant_sinks",
        Kind::Sinks,
        Presence::Default(""),
        "What one tenant may do in another: `src->dst[:write|read|any]`, separated by `;`. `write` when not \
         said.",
    )
    .cresco()
    .unsupported(Unsupported::Given),
    Key::new("broker_security_log_allow", Kind::Bool, FALSE, "Log every ALLOW as well as every DENY.").cresco(),
    Key::new("security_regional_ca", Kind::Bool, TRUE, "Leaves are issued by the CA of their region.")
        .cresco()
        .unsupported(NOT_FALSE),
    Key::new(
        "global_controller_host",
        Kind::Host,
        Presence::Absent("edges give their own addresses"),
        "With `global_controller_port`: where to dial the one edge to a global whose `[[edges]]` entry has \
         no addresses.",
    )
    .cresco(),
    Key::new(
        "global_controller_port",
        SET_PORT,
        Presence::Absent("edges give their own addresses"),
        "The global's `bridge_port` (UDP). Cresco's default port is another: this one is usually 32010.",
    )
    .cresco(),
    Key::new(
        "listen_address",
        Kind::Ip,
        Presence::Default("0.0.0.0"),
        "The address that all ports but `ops_listen` are bound to.",
    ),
    Key::new(
        "broker_port",
        PORT,
        Presence::Default("32010"),
        "TCP port of native sessions over TLS. 0 lets the system choose.",
    )
    .cresco(),
    Key::new(
        "quic_port",
        PORT,
        Presence::Default("32011"),
        "UDP port of native sessions over QUIC. 0 lets the system choose.",
    ),
    Key::new(
        "bridge_port",
        PORT,
        Presence::Default("32010"),
        "UDP port of bridges from other brokers. 0 lets the system choose.",
    ),
    Key::new(
        "nats_port",
        PORT,
        Presence::Absent("no NATS listener"),
        "TCP port of the NATS protocol over mutual TLS; its clients expect 4222. 0 lets the system choose.",
    ),
    Key::new(
        "nats_ws_port",
        PORT,
        Presence::Absent("no NATS listener over WebSocket"),
        "TCP port of the NATS protocol over WebSocket and mutual TLS. 0 lets the system choose.",
    ),
    Key::new(
        "nats_ws_allowed_origins",
        Kind::Origins,
        Presence::Default(""),
        "Web origins whose pages may open the WebSocket with the browser's certificate. A request without an origin comes \
         from no page and is let through.",
    ),
    Key::new(
        "ops_listen",
        Kind::Listen,
        Presence::Default("127.0.0.1:32080"),
        "Address and port of `/metrics`, `/healthz` and `/readyz`, without authentication: keep it on \
         loopback or a private network. `off` for none.",
    ),
    Key::new(
        "state_dir",
        Kind::Path,
        Presence::Default("state"),
        "Directory of the operators' socket and of what must survive a restart.",
    ),
    Key::new("fabric_root", Kind::Path, Presence::Default("root.pem"), "PEM file of the roots this node trusts."),
    Key::new(
        "bundle",
        Kind::Path,
        Presence::Default("bundle.glocal"),
        "The signed bundle. Without one the node does not start.",
    ),
    Key::new(
        "bundle_min_version",
        Kind::Integer { min: 0, max: u64::MAX },
        Presence::Default("0"),
        "Bundles of a lower version are refused.",
    ),
    Key::new(
        "node_certificate",
        Kind::Path,
        Presence::Default("node.pem"),
        "PEM chain of this node: its leaf, then the CA of its region.",
    ),
    Key::new(
        "node_key",
        Kind::SecretPem,
        Presence::Default("node.key"),
        "Private key of the leaf: the path of a PEM file, or the PEM text itself, as a secret store puts it \
         into a variable.",
    ),
    Key::new(
        "bundle_signing_key",
        Kind::SecretPem,
        Presence::Absent("this node signs no bundle"),
        "Private key with which this node signs the bundle's contents afresh when half of its life has passed, if \
         the bundle names it as the re-signer. Whoever has this key can sign any bundle. Its file must not be \
         readable by others.",
    ),
    Key::new(
        "bundle_signing_certificate",
        Kind::Path,
        Presence::Absent("this node signs no bundle"),
        "PEM certificate of `bundle_signing_key`, by the root and for the bundle's epoch.",
    ),
    Key::new(
        "log_format",
        Kind::Choice(&["text", "json"]),
        Presence::Default("text"),
        "`text` for people, `json` for one object per line.",
    ),
    Key::new(
        "log_level",
        Kind::Choice(&["error", "warn", "info", "debug", "trace"]),
        Presence::Default("info"),
        "The least severe level that is logged.",
    ),
    Key::new(
        "lame_duck_ms",
        Kind::Integer { min: 0, max: LAME_DUCK_MS_MAX },
        Presence::Default("2000"),
        "Time in milliseconds that clients and bridges are given to leave when the node shuts down.",
    ),
    Key::new(
        "tenant_messages_per_s",
        MESSAGES_PER_S,
        Presence::Absent("what the bundle allows"),
        "Most messages per second that any one tenant may publish through this node. Narrows the bundle's limits; widens none.",
    ),
    Key::new(
        "tenant_bytes_per_s",
        BYTES_PER_S,
        Presence::Absent("what the bundle allows"),
        "The same in bytes of names, reply subjects, headers and payloads.",
    ),
    Key::new(
        "session_messages_per_s",
        MESSAGES_PER_S,
        Presence::Absent("what the bundle allows"),
        "Most messages per second that any one session may publish here. Narrows the bundle's limits; widens none.",
    ),
    Key::new(
        "session_bytes_per_s",
        BYTES_PER_S,
        Presence::Absent("what the bundle allows"),
        "The same in bytes of names, reply subjects, headers and payloads.",
    ),
    Key::new(
        "memory_bytes",
        MEMORY_BYTES,
        Presence::Absent("a quarter of the machine's memory"),
        "Bytes that may wait on this node together: for sessions, for edges, and for acknowledgements of other brokers. When they \
         are nearly used up, tenants that hold more than their part of them give way.",
    ),
    Key::new(
        "tenant_memory_bytes",
        MEMORY_BYTES,
        Presence::Absent("half of `memory_bytes`"),
        "The same of any one tenant. Above that, those of its sessions and edges that hold more than their part find their \
         queues full.",
    ),
    Key::new(
        "ready_file",
        Kind::Path,
        Presence::Absent("none is written"),
        "A JSON file with the bound ports, written in one step when the node is up.",
    ),
    Key::new(
        "runtime_threads",
        Kind::Integer { min: 0, max: RUNTIME_THREADS_MAX },
        Presence::Default("0"),
        "Worker threads of sessions and of the node's own parts. 0 means one per core.",
    ),
    Key::new(
        "bridge_threads",
        Kind::Integer { min: 0, max: RUNTIME_THREADS_MAX },
        Presence::Default("0"),
        "Threads of bridges, apart from those of sessions, so that a flood of clients does not slow them. 0 means one for \
         every two cores.",
    ),
    Key::new(
        "busy_poll_us",
        Kind::Integer { min: 0, max: BUSY_POLL_US_MAX },
        Presence::Default("0"),
        "How long a worker thread polls for a client that was answered and mostly goes on at once, in microseconds, before \
         it sleeps. Halves what a request takes where the broker has cores for itself, and costs little where clients do not \
         go on in time; 100 suits clients nearby. 0 means never: right where clients share the broker's cores.",
    ),
    Key::new(
        "edges",
        Kind::Tables { header: "edges", keys: EDGE_KEYS },
        Presence::Default(""),
        "The node's edges to other brokers, one `[[edges]]` table each. Only in the file.",
    ),
];

/// The keys of one `[[edges]]` table.
pub(super) const EDGE_KEYS: &[Key] = &[
    Key::new("name", Kind::Label, Presence::Required, "The edge's name, as in the bundle. Unique in the file."),
    Key::new(
        "peer",
        Kind::Node,
        Presence::Required,
        "The broker at the other end, `<region>/<agent>`, as its certificate must say.",
    ),
    Key::new(
        "addresses",
        Kind::Addresses,
        Presence::Default(""),
        "Where to dial the peer's `bridge_port`, tried in turn. Empty on the side that only accepts.",
    ),
    Key::new(
        "tenants",
        Kind::Globs,
        Presence::Default("*"),
        "Tenants this node carries on the edge: ids, prefixes such as `acme-*`, or `*`. Narrows what the \
         bundle allows; an empty list carries nobody.",
    ),
    Key::new(
        "mode",
        Kind::Choice(&["shared", "dedicated"]),
        Presence::Default("shared"),
        "`shared`: one connection for all tenants. `dedicated`: one per tenant, beside one that carries no tenant's \
         messages. Both ends of an edge must have the same.",
    ),
    Key::new(
        "rate",
        Kind::Rate,
        Presence::Absent("not shaped"),
        "Shapes what this node sends on the edge, such as `100 Mbit/s`, or a number of bits per second. Two per cent below what the \
         link carries keep a queue out of it, in which everybody would wait.",
    ),
    Key::new(
        "metric",
        Kind::Integer { min: 0, max: u32::MAX as u64 },
        Presence::Default("0"),
        "Added to the measured cost of the edge: routes prefer less.",
    ),
    Key::new(
        "lane_bytes",
        Kind::Integer { min: EDGE_LANE_BYTES_MIN as u64, max: EDGE_LANE_BYTES_MAX as u64 },
        Presence::Default("8388608"),
        "Bytes that may wait for the edge in one lane, which is one class of one tenant; then the rule of the class applies.",
    ),
    Key::new(
        "queue_bytes",
        Kind::Integer { min: EDGE_LANE_BYTES_MIN as u64, max: EDGE_BYTES_MAX as u64 },
        Presence::Default("16777216"),
        "Bytes that may wait for the edge in all lanes together, at least `lane_bytes`; then the tenant furthest above its \
         share loses first.",
    ),
    Key::new(
        "certificates",
        Kind::Tables { header: "edges.certificates", keys: CERTIFICATE_KEYS },
        Presence::Default(""),
        "Certificates of this node for connections of single tenants, one `[[edges.certificates]]` table each, for \
         `mode = \"dedicated\"`. A tenant without one has its connection under `node_certificate`.",
    ),
];

/// The keys of one `[[edges.certificates]]` table.
const CERTIFICATE_KEYS: &[Key] = &[
    Key::new("tenant", Kind::Tenant, Presence::Required, "The tenant. Once for each edge."),
    Key::new(
        "certificate",
        Kind::Path,
        Presence::Required,
        "PEM chain, leaf first: a certificate as `node_certificate`, of this node and from its region's CA, but with the \
         tenant as its `O`. `glocal pki issue --dedicated` makes one. It is read again for every connection.",
    ),
    Key::new("key", Kind::Path, Presence::Required, "PEM of the certificate's private key."),
];

impl Kind {
    /// What a value must be, as errors and the document say it.
    #[must_use]
    pub fn expected(&self) -> String {
        match self {
            Self::Bool => "true or false".to_owned(),
            Self::Integer { min, max } => format!("an integer from {min} to {max}"),
            Self::Choice(words) => match words {
                [] => "nothing".to_owned(),
                [one] => format!("\"{one}\""),
                [init @ .., last] => {
                    format!("{} or \"{last}\"", init.iter().map(|w| format!("\"{w}\"")).collect::<Vec<_>>().join(", "))
                }
            },
            Self::Label => "a name".to_owned(),
            Self::Node => "a node id <region>/<agent>".to_owned(),
            Self::Tenant => "a tenant id".to_owned(),
            Self::Tenants => "a list of tenant ids".to_owned(),
            Self::Globs => "a list of tenant ids, prefixes such as \"acme-*\", or \"*\"".to_owned(),
            Self::Filters => "a list of names or filters".to_owned(),
            Self::Sinks => "a list of src->dst[:write|read|any]".to_owned(),
            Self::Origins => "a list of origins, such as https://dashboard.example".to_owned(),
            Self::Ip => "an IP address".to_owned(),
            Self::Listen => "an IP address and port, or \"off\"".to_owned(),
            Self::Host => "a host name or address".to_owned(),
            Self::Addresses => "a list of host:port".to_owned(),
            Self::Rate => format!(
                "a rate such as \"100 Mbit/s\", from {CONFIG_RATE_BITS_MIN} to {CONFIG_RATE_BITS_MAX} bits per second"
            ),
            Self::Path => "a path".to_owned(),
            Self::SecretPem => "a path or PEM text".to_owned(),
            Self::Tables { header, .. } => format!("tables, [[{header}]]"),
        }
    }

    /// Whether its value is a list.
    #[must_use]
    pub const fn is_list(&self) -> bool {
        matches!(
            self,
            Self::Tenants
                | Self::Globs
                | Self::Filters
                | Self::Sinks
                | Self::Origins
                | Self::Addresses
                | Self::Tables { .. }
        )
    }
}
