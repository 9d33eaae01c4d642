//! A fabric of its own for each test.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use glocal_client::{Address, Client, ConnectError, ConnectOptions, PemSource, Scheme};
use glocal_core::bundle::Head;
use glocal_core::name::{Label, TenantId};
use glocal_fabric::pki::{self, Ca, LeafKind, LeafRequest};
use glocal_fabric::testing::{Forge, Forged};
use glocal_fabric::{Plan, apply};
use glocal_node::Listening;
use glocal_wire::bundle::{Envelope, decode_head, encode_head};
use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, SigningKey as _};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::TempDir;

/// Where edges point until the accepting broker has a port.
pub(crate) const NO_PORT: &str = "127.0.0.1:1";

/// The agents of every fabric: name, region, tenant.
const AGENTS: &[(&str, &str, &str)] = &[
    ("alice", "region-a", "tenantA"),
    ("andy", "region-a", "tenantA"),
    ("anna", "region-b", "tenantA"),
    ("bob", "region-a", "tenantB"),
    ("berta", "region-b", "tenantB"),
    ("admin", "global", "cresco-system"),
    ("chief", "region-a", "cresco-system"),
];

/// Changes to the ordinary plan.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Tenants of the edges between the global and the regions.
    pub(crate) edge_tenants: [&'static str; 2],
    /// Whether tenantA has owner-only replies.
    pub(crate) owner_only: bool,
    /// Most sessions of tenantA on one broker; zero for no limit.
    pub(crate) sessions_max: u32,
    /// Lines after everything.
    pub(crate) more: &'static str,
}

impl Default for Shape {
    fn default() -> Self {
        Self { edge_tenants: ["\"*\"", "\"*\""], owner_only: false, sessions_max: 0, more: "" }
    }
}

/// A fabric with a global and two regions, applied to a temporary directory.
pub(crate) struct Fabric {
    dir: TempDir,
    /// The text of the plan that was applied last.
    plan: std::sync::Mutex<String>,
}

impl Fabric {
    pub(crate) fn new() -> Self {
        Self::shaped(&Shape::default())
    }

    pub(crate) fn shaped(shape: &Shape) -> Self {
        let fabric = Self { dir: tempfile::tempdir().unwrap(), plan: std::sync::Mutex::default() };
        fabric.reshape(shape);
        fabric
    }

    /// Applies another plan to the same directory: the next version of the bundle is signed.
    pub(crate) fn reshape(&self, shape: &Shape) {
        self.apply(plan(shape));
    }

    /// Applies the plan with a change of its text.
    pub(crate) fn edit_plan(&self, change: impl FnOnce(String) -> String) {
        let text = change(self.plan.lock().unwrap().clone());
        self.apply(text);
    }

    fn apply(&self, text: String) {
        let plan = Plan::parse(&text, "fabric.toml").unwrap_or_else(|error| panic!("{error}"));
        apply(&plan, self.path(), &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
        *self.plan.lock().unwrap() = text;
    }

    /// A copy of the whole directory, keys included: what it signs next has the version that this one signs next.
    pub(crate) fn fork(&self) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let copied = Command::new("cp").arg("-a").arg(self.path().join(".")).arg(dir.path()).status().unwrap();
        assert!(copied.success());
        Self { dir, plan: std::sync::Mutex::new(self.plan.lock().unwrap().clone()) }
    }

    /// Signs the bundle of every broker again, with a changed head, as whoever holds the fabric's bundle key can.
    pub(crate) fn sign_heads(&self, change: impl Fn(&mut Head)) {
        let key = std::fs::read_to_string(self.path().join("bundle/bundle.key")).unwrap();
        let certificate = std::fs::read(self.path().join("bundle/bundle-key.pem")).unwrap();
        let certificate = CertificateDer::from_pem_slice(&certificate).unwrap();
        self.sign_heads_with(&rcgen::KeyPair::from_pem(&key).unwrap(), &certificate, change);
    }

    /// As [`Fabric::sign_heads`], with another key.
    pub(crate) fn sign_heads_with(&self, key: &rcgen::KeyPair, certificate: &[u8], change: impl Fn(&mut Head)) {
        for node in std::fs::read_dir(self.path().join("nodes")).unwrap() {
            let file = node.unwrap().path().join("bundle.glocal");
            let mut envelope = Envelope::decode(&std::fs::read(&file).unwrap()).unwrap();
            let mut head = decode_head(&envelope.head).unwrap();
            change(&mut head);
            envelope.sections.retain(|bytes| head.sections.contains(&pki::sha256(bytes)));
            envelope.head = encode_head(&head).unwrap();
            envelope.signature = key.sign(&envelope.head).unwrap();
            envelope.bundle_key_cert = certificate.to_vec();
            std::fs::write(&file, envelope.encode().unwrap()).unwrap();
        }
    }

    /// A fork in which a broker has the same name from the same authority, and another key.
    pub(crate) fn twin(&self, node: &str) -> Self {
        let twin = self.fork();
        for file in ["node.pem", "node.key"] {
            std::fs::remove_file(twin.node_dir(node).join(file)).unwrap();
        }
        twin.edit_plan(|plan| plan);
        twin
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The directory of a broker, `<region>/<agent>`.
    pub(crate) fn node_dir(&self, node: &str) -> PathBuf {
        self.path().join("nodes").join(node.replace('/', "-"))
    }

    pub(crate) fn config(&self, node: &str) -> PathBuf {
        self.node_dir(node).join("node.toml")
    }

    /// Lets the edges of `node` dial `address`.
    pub(crate) fn point(&self, node: &str, address: std::net::SocketAddr) {
        let file = self.config(node);
        let text = std::fs::read_to_string(&file).unwrap();
        let lines = text.lines().map(|line| {
            if line.starts_with("addresses") { format!("addresses = [\"{address}\"]") } else { line.to_owned() }
        });
        let text: Vec<_> = lines.collect();
        std::fs::write(&file, text.join("\n") + "\n").unwrap();
    }

    /// Gives each tenant of an edge of `node` a connection of its own; `more` are lines after all others of the edge.
    pub(crate) fn dedicate(&self, node: &str, edge: &str, more: &str) {
        let file = self.config(node);
        let text = std::fs::read_to_string(&file).unwrap();
        let name = format!("name = \"{edge}\"\n");
        assert!(text.contains(&name), "{node} has no edge {edge}");
        let (before, after) = text.split_once(&name).unwrap();
        let (rest, others) =
            after.split_once("\n[[edges]]").map_or((after, None), |(rest, others)| (rest, Some(others)));
        let others = others.map_or_else(String::new, |others| format!("\n[[edges]]{others}"));
        let rest = rest.trim_end().replace("mode = \"dedicated\"", "");
        let text = format!("{before}{name}mode = \"dedicated\"\n{rest}\n{more}\n{others}");
        std::fs::write(&file, text).unwrap();
    }

    pub(crate) fn root_pem(&self) -> String {
        std::fs::read_to_string(self.path().join("root").join("root.pem"))
            .or_else(|_| std::fs::read_to_string(self.node_dir("global/broker-g").join("root.pem")))
            .unwrap()
    }

    pub(crate) fn root(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.root_pem().as_bytes()).unwrap()
    }

    /// The files of an agent: chain and key.
    pub(crate) fn agent_files(&self, agent: &str) -> (PathBuf, PathBuf) {
        let (name, region, tenant) = AGENTS.iter().find(|(name, ..)| *name == agent).unwrap();
        let dir = self.path().join("agents").join(tenant);
        (dir.join(format!("{name}@{region}.pem")), dir.join(format!("{name}@{region}.key")))
    }

    pub(crate) fn agent(&self, agent: &str) -> Credential {
        let (certificate, key) = self.agent_files(agent);
        Credential::read(&certificate, &key)
    }

    pub(crate) fn node_credential(&self, node: &str) -> Credential {
        let dir = self.node_dir(node);
        Credential::read(&dir.join("node.pem"), &dir.join("node.key"))
    }

    pub(crate) fn forge(&self, region: &str) -> Forge {
        Forge::open(self.path(), &Label::parse(region).unwrap()).unwrap()
    }

    /// A leaf that is over `seconds` from now.
    pub(crate) fn short_lived(
        &self,
        region: &str,
        tenant: &str,
        agent: &str,
        kind: LeafKind,
        seconds: i64,
    ) -> Credential {
        let request = LeafRequest {
            tenant: TenantId::parse(tenant).unwrap(),
            region: Label::parse(region).unwrap(),
            agent: Label::parse(agent).unwrap(),
            kind,
            days: 1,
        };
        let ca = self.region_ca(region);
        let key = pki::new_key().unwrap();
        let start = glocal_core::time::UnixTime(apply::now().0 - 86_400 + seconds);
        let leaf = pki::issue(&ca, &request, &key, start).unwrap();
        Credential {
            pem: pki::to_pem(&leaf) + &pki::to_pem(ca.der()),
            chain: vec![leaf, ca.der().clone()],
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            key_pem: key.serialize_pem(),
        }
    }

    /// A leaf with exactly this subject, in this order, issued by a region's CA.
    pub(crate) fn named_leaf(&self, region: &str, name: Vec<(DnType, DnValue)>) -> Credential {
        self.leaf_with(region, "tenantA", |params| {
            params.distinguished_name = DistinguishedName::new();
            for (kind, value) in name {
                params.distinguished_name.push(kind, value);
            }
        })
    }

    /// A leaf of `eve`, changed before it is signed.
    pub(crate) fn leaf_with(
        &self,
        region: &str,
        tenant: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Credential {
        let dir = self.path().join("regions").join(region);
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        let (ca_pem, ca_key) = (read("ca.pem"), rcgen::KeyPair::from_pem(&read("ca.key")).unwrap());
        let issuer = rcgen::Issuer::from_ca_cert_pem(&ca_pem, ca_key).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in
            [(DnType::CommonName, "eve"), (DnType::OrganizationalUnitName, region), (DnType::OrganizationName, tenant)]
        {
            params.distinguished_name.push(kind, value);
        }
        params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2099, 1, 1);
        change(&mut params);
        let key = rcgen::KeyPair::generate().unwrap();
        let leaf = params.signed_by(&key, &issuer).unwrap();
        Credential {
            pem: leaf.pem() + &ca_pem,
            chain: vec![leaf.into(), CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap()],
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            key_pem: key.serialize_pem(),
        }
    }

    fn region_ca(&self, region: &str) -> Ca {
        let dir = self.path().join("regions").join(region);
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        Ca::from_pem(read("ca.pem").as_bytes(), &read("ca.key")).unwrap()
    }

    /// Options of a client with this credential.
    pub(crate) fn options(&self, node: &Listening, scheme: Scheme, credential: Option<&Credential>) -> ConnectOptions {
        let port = match scheme {
            Scheme::Tls => node.native_tcp.port(),
            Scheme::Quic => node.native_quic.port(),
        };
        let options =
            ConnectOptions::new(vec![Address::new(scheme, "127.0.0.1", port)], PemSource::Text(self.root_pem()));
        match credential {
            Some(c) => options.identity(PemSource::Text(c.pem.clone()), PemSource::Text(c.key_pem.clone())),
            None => options,
        }
    }

    /// A client of an agent of the plan, over TLS.
    pub(crate) async fn client(&self, node: &Listening, agent: &str) -> Client {
        Client::connect(self.options(node, Scheme::Tls, Some(&self.agent(agent)))).await.unwrap()
    }

    pub(crate) async fn try_client(
        &self,
        node: &Listening,
        scheme: Scheme,
        credential: Option<&Credential>,
    ) -> Result<Client, ConnectError> {
        Client::connect(self.options(node, scheme, credential)).await
    }
}

/// A chain to present with its key.
pub(crate) struct Credential {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) pem: String,
    pub(crate) key_pem: String,
}

impl Credential {
    fn read(certificate: &Path, key: &Path) -> Self {
        let pem = std::fs::read_to_string(certificate).unwrap();
        let key_pem = std::fs::read_to_string(key).unwrap();
        Self {
            chain: CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect(),
            key: PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).unwrap(),
            pem,
            key_pem,
        }
    }

    /// Puts it where a broker looks for its own.
    pub(crate) fn install(&self, fabric: &Fabric, node: &str) {
        let dir = fabric.node_dir(node);
        std::fs::write(dir.join("node.pem"), &self.pem).unwrap();
        std::fs::write(dir.join("node.key"), &self.key_pem).unwrap();
    }
}

impl From<Forged> for Credential {
    fn from(forged: Forged) -> Self {
        let (pem, key_pem) = (forged.chain_pem(), forged.key_pem().to_owned());
        Self { chain: forged.chain, key: forged.key, pem, key_pem }
    }
}

fn plan(shape: &Shape) -> String {
    let mut text = String::from(
        "fabric = \"trial\"\noperator = \"operator\"\nsuperusers = [\"cresco-system\"]\nmax_payload = \"1 MiB\"\n\
         leaf_days = 30\nbundle_days = 30\n",
    );
    for region in ["global", "region-a", "region-b"] {
        let _ = write!(text, "\n[[region]]\nname = \"{region}\"\n");
    }
    for (name, role) in
        [("global/broker-g", "global"), ("region-a/broker-a", "region"), ("region-b/broker-b", "region")]
    {
        let _ = write!(
            text,
            "\n[[node]]\nname = \"{name}\"\nrole = \"{role}\"\nhosts = [\"localhost\", \"127.0.0.1\"]\n\
             listen = \"127.0.0.1\"\nbroker_port = 0\nquic_port = 0\nbridge_port = 0\nops_listen = \"127.0.0.1:0\"\n"
        );
    }
    let regions = "regions = [\"region-a\", \"region-b\"]";
    let _ = write!(text, "\n[[tenant]]\nid = \"tenantA\"\n{regions}\nowner_only_replies = {}\n", shape.owner_only);
    let _ = writeln!(text, "sessions_max = {}", shape.sessions_max);
    let _ = write!(text, "\n[[tenant]]\nid = \"tenantB\"\n{regions}\n");
    text.push_str("\n[[tenant]]\nid = \"cresco-system\"\nregions = [\"global\", \"region-a\"]\n");
    text.push_str("\n[[tenant]]\nid = \"guests\"\nregions = []\n");
    for ((name, dial), tenants) in [("global-region-a", "region-a/broker-a"), ("global-region-b", "region-b/broker-b")]
        .iter()
        .zip(shape.edge_tenants)
    {
        let _ = write!(
            text,
            "\n[[edge]]\nname = \"{name}\"\ndial = \"{dial}\"\naccept = \"global/broker-g\"\ntenants = [{tenants}]\n\
             address = \"{NO_PORT}\"\n"
        );
    }
    for (name, region, tenant) in AGENTS {
        let _ = write!(text, "\n[[agent]]\nname = \"{name}\"\nregion = \"{region}\"\ntenant = \"{tenant}\"\n");
    }
    text + shape.more
}
