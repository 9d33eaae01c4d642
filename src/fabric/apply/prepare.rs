//! Looking at what is there and making, in memory, what is missing.

use std::path::{Path, PathBuf};

use glocal_core::identity::leaf_name;
use glocal_core::limits::{CONFIG_BYTES_MAX, PEM_BYTES_MAX};
use glocal_core::name::{Label, NodeId};
use glocal_core::time::UnixTime;
use glocal_wire::bundle::Envelope;
use rcgen::KeyPair;
use rustls_pki_types::CertificateDer;

use super::{Action, Applied, ApplyError, Conflict, Item, Write};
use crate::bundle::{self, EPOCH, Keys};
use crate::chain;
use crate::files::{self, PUBLIC, SECRET};
use crate::node_config;
use crate::pki::{self, Ca, LeafKind, LeafRequest, PkiError};
use crate::plan::{NodePlan, Plan};

mod signing;

pub(super) struct Prepared {
    pub(super) items: Vec<Item>,
    version: u64,
    expires: UnixTime,
}

impl Prepared {
    pub(super) fn applied(&self) -> Applied {
        let count = |action| self.items.iter().filter(|i| i.action() == action).count();
        Applied {
            made: count(Action::Made),
            kept: count(Action::Kept),
            updated: count(Action::Updated),
            bundle_epoch: EPOCH,
            bundle_version: self.version,
            bundle_expires: self.expires,
        }
    }
}

/// Either the files of the plan with nothing in their way, or every conflict.
///
/// Without a directory there is nothing to be found. The bundle's version is greater than `above`.
pub(super) fn prepare(plan: &Plan, out: Option<&Path>, above: u64, now: UnixTime) -> Result<Prepared, ApplyError> {
    let (out, found) = (out.unwrap_or(Path::new("")), out.is_some());
    let mut work = Work { plan, out, found, above, now, items: Vec::new(), conflicts: Vec::new() };
    let done = work.all()?;
    match done {
        Some((version, expires)) if work.conflicts.is_empty() => Ok(Prepared { items: work.items, version, expires }),
        _ => Err(ApplyError::Conflicts(work.conflicts)),
    }
}

struct Work<'a> {
    plan: &'a Plan,
    out: &'a Path,
    /// Whether what is in `out` counts.
    found: bool,
    /// The version that is in force elsewhere, or 0: the bundle's is greater.
    above: u64,
    now: UnixTime,
    items: Vec<Item>,
    conflicts: Vec<Conflict>,
}

/// A CA whose private key may be kept elsewhere: then it is known, but cannot sign.
struct Authority {
    der: CertificateDer<'static>,
    ca: Option<Ca>,
    name: String,
    key_path: PathBuf,
}

impl Work<'_> {
    fn all(&mut self) -> Result<Option<(u64, UnixTime)>, ApplyError> {
        let plan = self.plan;
        let Some(root) = self.root()? else { return Ok(None) };
        let mut regions = Vec::new();
        for region in &plan.regions {
            if let Some(authority) = self.region(&root, region)? {
                regions.push((region.clone(), authority));
            }
        }
        if !self.conflicts.is_empty() {
            return Ok(None);
        }
        let mut keys = Keys { root: pki::key_id(&root.der)?, regions: Vec::new() };
        for (region, authority) in &regions {
            keys.regions.push((region.clone(), pki::key_id(&authority.der)?));
        }
        let Some(envelope) = self.bundle(&root, &keys)? else { return Ok(None) };
        let head = bundle::verify(&envelope, std::slice::from_ref(&root.der), self.now)
            .map(|checked| checked.head().clone())
            .map_err(|error| self.own_bundle(&error.to_string()))?;
        for node in &plan.nodes {
            if let Some((_, authority)) = regions.iter().find(|(region, _)| region == node.id.region()) {
                self.node(node, authority, &root, &envelope)?;
            }
        }
        self.agents(&regions, &root)?;
        Ok(Some((head.version, head.expires)))
    }

    fn own_bundle(&self, text: &str) -> ApplyError {
        ApplyError::Conflicts(vec![Conflict { path: self.out.join("bundle/bundle.glocal"), text: text.to_owned() }])
    }

    fn root(&mut self) -> Result<Option<Authority>, ApplyError> {
        let fabric = self.plan.fabric.clone();
        let name = format!("root of fabric '{fabric}'");
        let subject = format!("{fabric} root");
        self.authority("root", "root", &name, &subject, None, |key, now| pki::make_root(&fabric, key, now))
    }

    fn region(&mut self, root: &Authority, region: &Label) -> Result<Option<Authority>, ApplyError> {
        let directory = format!("regions/{region}");
        let (name, subject) = (format!("CA of region '{region}'"), format!("{region} CA"));
        let signer = match &root.ca {
            Some(ca) => Ok(ca),
            None => Err((&root.name, &root.key_path)),
        };
        self.authority(&directory, "ca", &name, &subject, Some((root, signer)), |key, now| match signer {
            Ok(ca) => pki::make_region_ca(ca, region, key, now),
            Err(_) => Err(PkiError::NotCa),
        })
    }

    /// Finds or makes a CA in `<directory>/<stem>.pem` and `.key`.
    #[expect(clippy::type_complexity, reason = "the signer, or where its key would be")]
    fn authority(
        &mut self,
        directory: &str,
        stem: &str,
        name: &str,
        subject: &str,
        parent: Option<(&Authority, Result<&Ca, (&String, &PathBuf)>)>,
        make: impl FnOnce(KeyPair, UnixTime) -> Result<Ca, PkiError>,
    ) -> Result<Option<Authority>, ApplyError> {
        let pem_path = PathBuf::from(format!("{directory}/{stem}.pem"));
        let key_path = PathBuf::from(format!("{directory}/{stem}.key"));
        let before = self.conflicts.len();
        let found = self.certificate(&pem_path)?;
        let key = self.key(&key_path)?;
        if self.conflicts.len() > before {
            return Ok(None);
        }
        let key_was_there = key.is_some();
        let authority = |der: CertificateDer<'static>, ca| Authority {
            der,
            ca,
            name: name.to_owned(),
            key_path: self.out.join(&key_path),
        };
        if let Some(chain) = found {
            let Some(der) = chain.into_iter().next() else { return Ok(None) };
            if let Err(text) = check_authority(&der, subject, parent.map(|(p, _)| &p.der), self.now) {
                self.conflict(&pem_path, text);
                return Ok(None);
            }
            let ca = match key.map(|key| Ca::new(der.clone(), key)).transpose() {
                Ok(ca) => ca,
                Err(error) => {
                    self.conflict(&key_path, error.to_string());
                    return Ok(None);
                }
            };
            let authority = authority(der, ca);
            if key_was_there {
                self.keep(key_path, format!("private key of the {name}"));
            }
            self.keep(pem_path, name.to_owned());
            return Ok(Some(authority));
        }
        if let Some((_, Err((signer, path)))) = parent {
            let text = format!("cannot be made: the private key of the {signer} is needed ({})", path.display());
            self.conflict(&pem_path, text);
            return Ok(None);
        }
        let key = if let Some(key) = key { key } else { pki::new_key()? };
        let key_pem = key.serialize_pem();
        let ca = make(key, self.now)?;
        let certificate = pki::to_pem(ca.der());
        let authority = authority(ca.der().clone(), Some(ca));
        if key_was_there {
            self.keep(key_path, format!("private key of the {name}"));
        } else {
            self.make(key_path, format!("private key of the {name}"), key_pem.into_bytes(), SECRET);
        }
        self.make(pem_path, name.to_owned(), certificate.into_bytes(), PUBLIC);
        Ok(Some(authority))
    }

    fn node(
        &mut self,
        node: &NodePlan,
        ca: &Authority,
        root: &Authority,
        envelope: &Envelope,
    ) -> Result<(), ApplyError> {
        let directory = PathBuf::from("nodes").join(node.directory());
        let request = LeafRequest {
            tenant: self.plan.operator.clone(),
            region: node.id.region().clone(),
            agent: node.id.agent().clone(),
            kind: LeafKind::Node { hosts: node.hosts.clone() },
            days: self.plan.leaf_days,
        };
        let what = format!("node {}", node.id);
        self.leaf(&directory.join("node.pem"), &directory.join("node.key"), &what, &request, ca)?;
        self.copy(directory.join("root.pem"), "root certificate".to_owned(), pki::to_pem(&root.der))?;
        self.narrowed(&directory.join("bundle.glocal"), &node.id, envelope, root)?;
        if self.plan.resigner.as_ref() == Some(&node.id) {
            let files = [node_config::SIGNING_CERTIFICATE, node_config::SIGNING_KEY].map(|name| directory.join(name));
            self.bundle_key(root, files, &format!("{node}'s own key to sign bundles afresh", node = node.id))?;
        }
        let text = node_config::render(self.plan, node);
        self.configuration(directory.join("node.toml"), format!("configuration of {what}"), text)
    }

    /// A configuration is written anew while nobody has changed it, and kept as it is otherwise.
    fn configuration(&mut self, path: PathBuf, what: String, text: String) -> Result<(), ApplyError> {
        match self.read(&path, CONFIG_BYTES_MAX)? {
            None => self.make(path, what, text.into_bytes(), PUBLIC),
            Some(bytes) if bytes == text.as_bytes() => self.keep(path, what),
            Some(bytes) if std::str::from_utf8(&bytes).is_ok_and(node_config::is_as_written) => {
                let write = Write { bytes: text.into_bytes(), mode: PUBLIC, replace: true };
                self.items.push(Item { path, what, write: Some(write) });
            }
            Some(_) => self.keep(path, format!("{what}, changed by hand")),
        }
        Ok(())
    }

    fn agents(&mut self, regions: &[(Label, Authority)], root: &Authority) -> Result<(), ApplyError> {
        let plan = self.plan;
        let mut tenants = std::collections::BTreeSet::new();
        for agent in &plan.agents {
            let Some((_, ca)) = regions.iter().find(|(region, _)| *region == agent.region) else { continue };
            let directory = PathBuf::from("agents").join(agent.tenant.as_str());
            if tenants.insert(agent.tenant.clone()) {
                self.copy(directory.join("root.pem"), "root certificate".to_owned(), pki::to_pem(&root.der))?;
            }
            let stem = format!("{}@{}", agent.name, agent.region);
            let request = LeafRequest {
                tenant: agent.tenant.clone(),
                region: agent.region.clone(),
                agent: agent.name.clone(),
                kind: LeafKind::Agent,
                days: plan.leaf_days,
            };
            let what = format!("agent {stem} of tenant '{}'", agent.tenant);
            let (pem, key) = (directory.join(format!("{stem}.pem")), directory.join(format!("{stem}.key")));
            self.leaf(&pem, &key, &what, &request, ca)?;
        }
        Ok(())
    }

    /// Finds or issues a leaf; its file holds the leaf and the region CA, as they are presented.
    fn leaf(
        &mut self,
        pem_path: &Path,
        key_path: &Path,
        what: &str,
        request: &LeafRequest,
        ca: &Authority,
    ) -> Result<(), ApplyError> {
        let before = self.conflicts.len();
        let found = self.certificate(pem_path)?;
        let key = self.key(key_path)?;
        if self.conflicts.len() > before {
            return Ok(());
        }
        let key_what = format!("private key of {what}");
        if let Some(chain) = found {
            let fits = check_leaf(&chain, request, &ca.der, self.now);
            if let Err(text) = fits {
                self.conflict(pem_path, text);
                return Ok(());
            }
            if key.as_ref().is_some_and(|key| chain.first().is_some_and(|der| !pki::key_fits(key, der))) {
                self.conflict(key_path, PkiError::Mismatch.to_string());
                return Ok(());
            }
            // The key may have gone to its owner's machine, where it belongs.
            if key.is_some() {
                self.keep(key_path.to_owned(), key_what);
            }
            self.keep(pem_path.to_owned(), format!("certificate of {what}"));
            return Ok(());
        }
        let Some(signer) = &ca.ca else {
            let path = ca.key_path.display();
            self.conflict(pem_path, format!("cannot be issued: the private key of the {} is needed ({path})", ca.name));
            return Ok(());
        };
        let was_there = key.is_some();
        let key = if let Some(key) = key { key } else { pki::new_key()? };
        let der = pki::issue(signer, request, &key, self.now)?;
        if was_there {
            self.keep(key_path.to_owned(), key_what);
        } else {
            self.make(key_path.to_owned(), key_what, key.serialize_pem().into_bytes(), SECRET);
        }
        let chain = pki::to_pem(&der) + &pki::to_pem(&ca.der);
        self.make(pem_path.to_owned(), format!("certificate of {what}"), chain.into_bytes(), PUBLIC);
        Ok(())
    }

    /// A file whose contents follow from the plan alone.
    fn copy(&mut self, path: PathBuf, what: String, text: String) -> Result<(), ApplyError> {
        match self.read(&path, PEM_BYTES_MAX.max(text.len()))? {
            None => self.make(path, what, text.into_bytes(), PUBLIC),
            Some(bytes) if bytes == text.as_bytes() => self.keep(path, what),
            Some(_) => self
                .conflict(&path, "differs from what the plan gives; move it away to have it written anew".to_owned()),
        }
        Ok(())
    }

    fn certificate(&mut self, path: &Path) -> Result<Option<Vec<CertificateDer<'static>>>, ApplyError> {
        let Some(pem) = self.read(path, PEM_BYTES_MAX)? else { return Ok(None) };
        match pki::certificates(&pem) {
            Ok(chain) => Ok(Some(chain)),
            Err(error) => {
                self.conflict(path, error.to_string());
                Ok(None)
            }
        }
    }

    fn key(&mut self, path: &Path) -> Result<Option<KeyPair>, ApplyError> {
        let Some(pem) = self.read(path, PEM_BYTES_MAX)? else { return Ok(None) };
        let mode =
            files::mode(&self.out.join(path)).map_err(|source| ApplyError::Io { path: self.out.join(path), source })?;
        if mode & 0o077 != 0 {
            self.conflict(path, format!("is a private key that others can read (mode {mode:04o}); chmod 600 it"));
            return Ok(None);
        }
        match pki::key_from_pem(&String::from_utf8_lossy(&pem)) {
            Ok(key) => Ok(Some(key)),
            Err(error) => {
                self.conflict(path, error.to_string());
                Ok(None)
            }
        }
    }

    fn read(&self, path: &Path, limit: usize) -> Result<Option<Vec<u8>>, ApplyError> {
        if !self.found {
            return Ok(None);
        }
        let path = self.out.join(path);
        files::read(&path, limit).map_err(|source| ApplyError::Io { path, source })
    }

    fn conflict(&mut self, path: &Path, text: String) {
        self.conflicts.push(Conflict { path: self.out.join(path), text });
    }

    fn keep(&mut self, path: PathBuf, what: String) {
        self.items.push(Item { path, what, write: None });
    }

    fn make(&mut self, path: PathBuf, what: String, bytes: Vec<u8>, mode: u32) {
        self.items.push(Item { path, what, write: Some(Write { bytes, mode, replace: false }) });
    }
}

fn check_authority(
    der: &CertificateDer<'_>,
    subject: &str,
    parent: Option<&CertificateDer<'static>>,
    now: UnixTime,
) -> Result<(), String> {
    let certificate = pki::parse(der).map_err(|error| error.to_string())?;
    if !certificate.is_ca() {
        return Err(PkiError::NotCa.to_string());
    }
    let name = certificate.subject().iter_common_name().next().and_then(|cn| cn.as_str().ok());
    if name != Some(subject) {
        let found = name.unwrap_or("nothing").escape_debug().to_string();
        return Err(format!("is of '{found}', the plan needs '{subject}'"));
    }
    if !pki::is_signed_by(der, parent.unwrap_or(&der.clone().into_owned())) {
        return Err("is not signed by root/root.pem".to_owned());
    }
    if certificate.validity().not_after.timestamp() < now.0 {
        return Err("has expired".to_owned());
    }
    Ok(())
}

fn check_leaf(
    chain: &[CertificateDer<'static>],
    request: &LeafRequest,
    ca: &CertificateDer<'static>,
    now: UnixTime,
) -> Result<(), String> {
    const AGAIN: &str = "move it away to have it issued anew";
    let Some(der) = chain.first() else { return Err(PkiError::NoCertificate.to_string()) };
    let name = leaf_name(der).map_err(|deny| deny.text(""))?;
    let node = match &request.kind {
        LeafKind::Agent => None,
        LeafKind::Node { .. } => Some(NodeId::new(request.region.clone(), request.agent.clone())),
    };
    if name.tenant != request.tenant
        || name.region.as_ref() != Some(&request.region)
        || name.agent.as_ref() != Some(&request.agent)
        || name.node != node
    {
        let kind = if node.is_some() { "node" } else { "agent" };
        let LeafRequest { tenant, region, agent, .. } = request;
        return Err(format!("is not of {kind} CN={agent}, OU={region}, O={tenant}; {AGAIN}"));
    }
    if !pki::is_signed_by(der, ca) {
        return Err(format!("is not issued by the present CA of region '{}'; {AGAIN}", request.region));
    }
    if name.not_after < now {
        return Err(format!("has expired; {AGAIN}"));
    }
    let LeafKind::Node { hosts } = &request.kind else { return Ok(()) };
    if let Some(host) = hosts.iter().find(|host| !chain::names_host(der, host)) {
        return Err(format!("does not name host '{host}'; {AGAIN}"));
    }
    let names = pki::parse(der).map_err(|error| error.to_string())?;
    let names = names.subject_alternative_name().ok().flatten().map_or(0, |ext| ext.value.general_names.len());
    // One name is the node's own.
    if names != hosts.len() + 1 {
        return Err(format!("names other hosts than {}; {AGAIN}", hosts.join(", ")));
    }
    Ok(())
}
