//! Rules across keys, and the assembly of the checked value.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use glocal_core::bundle::TenantIdForm;
use glocal_core::name::{Label, NodeId, RawFilter, TenantId};
use glocal_core::rate::RateBounds;

use super::convert::Value;
use super::glob::TenantSet;
use super::problem::{ConfigErrors, Note, Place, Problem};
use super::raw::join;
use super::value::{CrossTenantSink, HostPort, SecretSource};
use super::walk::{Table, Walked};
use super::{
    BundleSigning, ClientAuth, Config, EdgeConfig, EdgeMode, Loaded, LogFormat, NodeRole, TenantCertificate, at,
};

/// Checks the rules across keys and assembles the configuration.
///
/// # Errors
/// Every problem of the walk and of the rules.
pub(super) fn build(file: &Path, walked: Walked) -> Result<Loaded, ConfigErrors> {
    let Walked { table, problems, unsupported, notes } = walked;
    let mut rules = Rules { file, table: &table, problems, notes };
    let role = rules.role();
    let clients = rules.clients();
    let edges = rules.edges();
    let uplink = rules.uplink();
    rules.ports();
    rules.signing();
    let Rules { problems, notes, .. } = rules;
    if !problems.is_empty() {
        return Err(ConfigErrors::sorted(problems));
    }
    match assemble(file, &table, role, clients, uplink, edges) {
        Some(config) => Ok(Loaded { config: Config { unsupported, ..config }, notes }),
        // Not reached: every missing or bad value has been reported. Refusing is the safe answer to a bug here.
        None => Err(ConfigErrors::one(Problem::new(Place::file(file), "", "cannot be assembled"))),
    }
}

struct Rules<'a> {
    file: &'a Path,
    table: &'a Table,
    problems: Vec<Problem>,
    notes: Vec<Note>,
}

impl Rules<'_> {
    /// Where a key was given, or the file's first line.
    fn place(&self, key: &str) -> Place {
        self.table.given(key).cloned().unwrap_or_else(|| Place::line(self.file, 1))
    }

    fn report(&mut self, key: &str, message: impl Into<String>) {
        let place = self.place(key);
        self.problems.push(Problem::new(place, key, message));
    }

    fn note(&mut self, warning: bool, key: &str, message: impl Into<String>) {
        let what = Problem::new(self.place(key), key, message);
        self.notes.push(Note { warning, what });
    }

    fn role(&mut self) -> Option<NodeRole> {
        const ROLES: [(&str, NodeRole); 3] =
            [("is_global", NodeRole::Global), ("is_region", NodeRole::Region), ("is_agent", NodeRole::Agent)];
        let mut chosen = Vec::new();
        for (key, role) in ROLES {
            // A value that is no boolean has been reported; a guess about the others would only add noise.
            if boolean(self.table, key)? {
                chosen.push((key, role));
            }
        }
        match chosen.as_slice() {
            [] => {
                self.report("is_region", "one of is_global, is_region and is_agent must be true; none is");
                None
            }
            [(_, role)] => Some(*role),
            [(first, _), .., (last, _)] => {
                let message =
                    format!("only one of is_global, is_region and is_agent may be true; {first} and {last} are");
                self.report(last, message);
                None
            }
        }
    }

    fn clients(&mut self) -> Option<ClientAuth> {
        let required = boolean(self.table, "broker_require_client_auth")?;
        let tenant = tenant(self.table, "anonymous_tenant");
        let given = self.table.given("anonymous_tenant").is_some();
        match (required, tenant) {
            (true, _) if given => {
                let message = "has no effect while broker_require_client_auth is true; remove it, or set \
                               broker_require_client_auth = false";
                self.report("anonymous_tenant", message);
                None
            }
            (true, _) => Some(ClientAuth::Required),
            (false, None) => {
                if !given {
                    let message = "false needs anonymous_tenant, the tenant of clients without a certificate";
                    self.report("broker_require_client_auth", message);
                }
                None
            }
            (false, Some(tenant)) => {
                if tenants(self.table, "broker_superuser_tenants").is_some_and(|list| list.contains(&tenant)) {
                    let message = format!(
                        "\"{tenant}\" is in broker_superuser_tenants; an anonymous client is never a superuser"
                    );
                    self.report("anonymous_tenant", message);
                }
                let message = format!("clients without a certificate are admitted as tenant \"{tenant}\"");
                self.note(true, "anonymous_tenant", message);
                Some(ClientAuth::AnonymousAs(tenant))
            }
        }
    }

    fn edges(&mut self) -> Option<Vec<EdgeConfig>> {
        let Some(Value::Tables(tables)) = self.table.value("edges") else { return None };
        let own = own_id(self.table);
        let mut names: Vec<(Label, usize)> = Vec::new();
        let mut edges = Vec::new();
        for (index, table) in tables.iter().enumerate() {
            let path = format!("edges[{index}]");
            if let Some(name) = label(table, "name") {
                if let Some((_, line)) = names.iter().find(|(earlier, _)| *earlier == name) {
                    let message = format!("\"{name}\" is the name of the edge on line {line}, too");
                    self.report_in(table, &path, "name", message);
                }
                names.push((name, table.line));
            }
            if own.is_some() && node(table, "peer") == own {
                self.report_in(table, &path, "peer", "is this node itself");
            }
            if let Some((lane, queue)) = integer(table, "lane_bytes").zip(integer(table, "queue_bytes"))
                && queue < lane
            {
                self.report_in(table, &path, "queue_bytes", format!("must be at least lane_bytes, which is {lane}"));
            }
            self.certificates(table, &path);
            edges.extend(edge(table));
        }
        Some(edges)
    }

    /// Certificates are for a dedicated edge, one for each tenant that it may carry.
    fn certificates(&mut self, table: &Table, path: &str) {
        let Some(Value::Tables(certificates)) = table.value("certificates") else { return };
        if !certificates.is_empty() && word(table, "mode") == Some("shared") {
            let message = "has no use while mode is \"shared\": one connection carries all tenants";
            self.report_in(table, path, "certificates", message);
        }
        let mut seen: Vec<TenantId> = Vec::new();
        for (index, certificate) in certificates.iter().enumerate() {
            let path = format!("{}[{index}]", join(path, "certificates"));
            let Some(tenant) = tenant(certificate, "tenant") else { continue };
            if seen.contains(&tenant) {
                self.report_in(certificate, &path, "tenant", format!("\"{tenant}\" has a certificate already"));
            }
            if let Some(Value::Globs(globs)) = table.value("tenants")
                && !TenantSet::new(globs.clone()).matches(&tenant)
            {
                self.report_in(certificate, &path, "tenant", format!("\"{tenant}\" is not among the edge's tenants"));
            }
            seen.push(tenant);
        }
    }

    fn report_in(&mut self, table: &Table, path: &str, key: &str, message: impl Into<String>) {
        let place = table.given(key).cloned().unwrap_or_else(|| Place::line(self.file, table.line));
        self.problems.push(Problem::new(place, join(path, key), message));
    }

    fn uplink(&mut self) -> Option<HostPort> {
        let (host_key, port_key) = ("global_controller_host", "global_controller_port");
        let host = self.table.given(host_key).is_some();
        let port = self.table.given(port_key).is_some();
        match (host, port) {
            (false, false) => return None,
            (true, false) => self.report(host_key, "needs global_controller_port, the global's bridge_port"),
            (false, true) => self.report(port_key, "needs global_controller_host"),
            (true, true) => {}
        }
        if boolean(self.table, "is_global") == Some(true) {
            self.report(host_key, "has no use on a global; give the edge to another global its addresses");
        }
        if let Some(Value::Tables(tables)) = self.table.value("edges") {
            let bare = tables.iter().filter(|t| t.value("addresses").is_some_and(Value::is_empty_list)).count();
            if bare > 1 || (bare == 0 && !tables.is_empty()) {
                let message = format!(
                    "is for the one [[edges]] entry without addresses; there are {bare} of them, so give each its own"
                );
                self.report(host_key, message);
            }
        }
        match (self.table.value(host_key), self.table.value(port_key)) {
            (Some(Value::Host(host)), Some(Value::Integer(port))) => {
                Some(HostPort { host: host.clone(), port: u16::try_from(*port).ok()? })
            }
            _ => None,
        }
    }

    /// A signing key and its certificate are of no use without one another.
    fn signing(&mut self) {
        let (key, certificate) = ("bundle_signing_key", "bundle_signing_certificate");
        match (self.table.given(key).is_some(), self.table.given(certificate).is_some()) {
            (true, false) => self.report(key, format!("needs {certificate}, too")),
            (false, true) => self.report(certificate, format!("needs {key}, too")),
            _ => {}
        }
    }

    /// Two listeners of one transport cannot share a port, and operations belong on loopback.
    fn ports(&mut self) {
        let port = |key| port(self.table, key).filter(|port| *port != 0);
        if let (Some(quic), Some(bridge)) = (port("quic_port"), port("bridge_port"))
            && quic == bridge
        {
            let (key, other) = if self.table.given("quic_port").is_some() {
                ("quic_port", "bridge_port")
            } else {
                ("bridge_port", "quic_port")
            };
            self.report(key, format!("{quic} is {other}, too; both are UDP"));
        }
        let Some(Value::Listen(Some(ops))) = self.table.value("ops_listen") else { return };
        let ops = *ops;
        if let (Some(native), Some(Value::Ip(ip))) = (port("broker_port"), self.table.value("listen_address")) {
            let overlap = ip.is_unspecified() || ops.ip().is_unspecified() || *ip == ops.ip();
            if overlap && native == ops.port() {
                let key = if self.table.given("ops_listen").is_some() { "ops_listen" } else { "broker_port" };
                self.report(key, format!("port {native} is of both ops_listen and broker_port; both are TCP"));
            }
        }
        if !ops.ip().is_loopback() {
            let message = format!("{ops} is not loopback: metrics and health are served there without authentication");
            self.note(true, "ops_listen", message);
        }
    }
}

fn assemble(
    file: &Path,
    table: &Table,
    role: Option<NodeRole>,
    clients: Option<ClientAuth>,
    uplink: Option<HostPort>,
    edges: Option<Vec<EdgeConfig>>,
) -> Option<Config> {
    let Some(Value::Ip(address)) = table.value("listen_address") else { return None };
    let listen = |key| listen(table, key, *address);
    let Some(Value::Listen(ops_listen)) = table.value("ops_listen") else { return None };
    Some(Config {
        file: file.to_owned(),
        node: own_id(table)?,
        role: role?,
        tenant_id: tenant(table, "tenant_id")?,
        tenant_id_form: if word(table, "tenant_id_form")? == "opaque" {
            TenantIdForm::Opaque
        } else {
            TenantIdForm::Plain
        },
        tenant_namespacing: boolean(table, "tenant_namespacing")?,
        transition: boolean(table, "transition")?,
        broker_security_enabled: boolean(table, "broker_security_enabled")?,
        clients: clients?,
        broker_superuser_tenants: tenants(table, "broker_superuser_tenants"),
        broker_shared_destinations: filters(table, "broker_shared_destinations")?,
        broker_cross_tenant_sinks: sinks(table, "broker_cross_tenant_sinks")?,
        broker_security_log_allow: boolean(table, "broker_security_log_allow")?,
        security_regional_ca: boolean(table, "security_regional_ca")?,
        uplink,
        native_tcp: listen("broker_port")?,
        native_quic: listen("quic_port")?,
        bridge: listen("bridge_port")?,
        nats_tcp: listen("nats_port"),
        nats_ws: listen("nats_ws_port"),
        nats_ws_allowed_origins: origins(table, "nats_ws_allowed_origins")?,
        ops_listen: *ops_listen,
        state_dir: path(table, "state_dir")?,
        fabric_root: path(table, "fabric_root")?,
        bundle: path(table, "bundle")?,
        bundle_min_version: integer(table, "bundle_min_version")?,
        node_certificate: path(table, "node_certificate")?,
        node_key: secret(table, "node_key")?,
        bundle_signing: secret(table, "bundle_signing_key")
            .zip(path(table, "bundle_signing_certificate"))
            .map(|(key, certificate)| BundleSigning { key, certificate }),
        log_format: if word(table, "log_format")? == "json" { LogFormat::Json } else { LogFormat::Text },
        log_level: word(table, "log_level")?.parse().ok()?,
        lame_duck_ms: integer(table, "lame_duck_ms")?,
        rates: RateBounds {
            tenant_messages_per_s: integer(table, "tenant_messages_per_s"),
            tenant_bytes_per_s: integer(table, "tenant_bytes_per_s"),
            session_messages_per_s: integer(table, "session_messages_per_s"),
            session_bytes_per_s: integer(table, "session_bytes_per_s"),
        },
        memory_bytes: optional_size(table, "memory_bytes"),
        tenant_memory_bytes: optional_size(table, "tenant_memory_bytes"),
        ready_file: path(table, "ready_file"),
        runtime_threads: usize::try_from(integer(table, "runtime_threads")?).ok()?,
        bridge_threads: usize::try_from(integer(table, "bridge_threads")?).ok()?,
        busy_poll_us: integer(table, "busy_poll_us")?,
        edges: edges?,
        unsupported: Vec::new(),
    })
}

fn optional_size(table: &Table, key: &str) -> Option<usize> {
    usize::try_from(integer(table, key)?).ok()
}

fn edge(table: &Table) -> Option<EdgeConfig> {
    let Some(Value::Addresses(addresses)) = table.value("addresses") else { return None };
    let Some(Value::Globs(globs)) = table.value("tenants") else { return None };
    Some(EdgeConfig {
        name: label(table, "name")?,
        peer: node(table, "peer")?,
        addresses: addresses.clone(),
        tenants: TenantSet::new(globs.clone()),
        mode: if word(table, "mode")? == "dedicated" { EdgeMode::Dedicated } else { EdgeMode::Shared },
        rate_bits_per_second: integer(table, "rate"),
        metric: u32::try_from(integer(table, "metric")?).ok()?,
        lane_bytes_max: usize::try_from(integer(table, "lane_bytes")?).ok()?,
        queue_bytes_max: usize::try_from(integer(table, "queue_bytes")?).ok()?,
        certificates: certificates(table)?,
        line: table.line,
    })
}

fn certificates(table: &Table) -> Option<Vec<TenantCertificate>> {
    let Some(Value::Tables(tables)) = table.value("certificates") else { return None };
    let one = |table: &Table| {
        let (certificate, key) = (path(table, "certificate")?, path(table, "key")?);
        Some(TenantCertificate { tenant: tenant(table, "tenant")?, certificate, key })
    };
    tables.iter().map(one).collect()
}

fn own_id(table: &Table) -> Option<NodeId> {
    Some(NodeId::new(label(table, "regionname")?, label(table, "agentname")?))
}

fn port(table: &Table, key: &str) -> Option<u16> {
    integer(table, key).and_then(|port| u16::try_from(port).ok())
}

fn listen(table: &Table, key: &str, address: IpAddr) -> Option<SocketAddr> {
    port(table, key).map(|port| at(address, port))
}

/// Readers of one kind of value each: `None` when the key is absent, bad, or of another kind.
macro_rules! readers {
    ($($name:ident: $variant:ident -> $type:ty;)*) => {$(
        fn $name(table: &Table, key: &str) -> Option<$type> {
            match table.value(key) {
                Some(Value::$variant(value)) => Some(value.clone()),
                _ => None,
            }
        }
    )*};
}
readers! {
    boolean: Bool -> bool;
    integer: Integer -> u64;
    word: Word -> &'static str;
    label: Label -> Label;
    node: Node -> NodeId;
    tenant: Tenant -> TenantId;
    tenants: Tenants -> Vec<TenantId>;
    filters: Filters -> Vec<RawFilter>;
    sinks: Sinks -> Vec<CrossTenantSink>;
    origins: Origins -> Vec<String>;
    path: Path -> PathBuf;
    secret: Secret -> SecretSource;
}
