//! Checking a read plan against itself: every name declared once, every reference known, every edge dialable.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::IpAddr;

use glocal_core::name::{Label, NodeId, TenantId};
use rustls_pki_types::DnsName;

use super::parse::{AgentDraft, Draft, EdgeDraft, GrantDraft, NodeDraft, RevocationDraft, TenantDraft};
use super::read::{At, Problems};
use super::{AgentPlan, EdgePlan, GrantPlan, NodePlan, NodeRole, Plan, RevocationPlan, Revoked, TenantPlan};

/// Whether a text can stand as a host name or address in a certificate.
pub(super) fn is_host(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok() || DnsName::try_from(text).is_ok()
}

/// Makes the plan; `None` or noted problems when anything is wrong.
pub(super) fn check(draft: &Draft, problems: &mut Problems<'_>) -> Option<Plan> {
    let regions = distinct(draft.regions.iter(), problems, "region");
    let nodes = check_nodes(draft, &regions, problems);
    let tenants = check_tenants(draft, &regions, problems);
    let known: BTreeMap<&TenantId, &TenantPlan> = tenants.iter().map(|t| (&t.id, t)).collect();
    for id in &draft.superusers {
        known_tenant(id, &known, problems);
    }
    let superusers = distinct(draft.superusers.iter(), problems, "superuser");
    let agents = check_agents(draft, &regions, &known, problems);
    let edges = check_edges(draft, &nodes, &tenants, problems);
    let grants = check_grants(draft, &known, problems);
    let resigner = draft.resigner.as_ref().and_then(|at| known_node(at, &nodes, problems).map(|node| node.id.clone()));
    let revocations =
        draft.revocations.iter().filter_map(|r| check_revocation(r, draft, &regions, &known, problems)).collect();
    Some(Plan {
        fabric: draft.fabric.as_ref()?.value.clone(),
        operator: draft.operator.as_ref()?.value.clone(),
        superusers,
        max_payload_bytes: draft.max_payload_bytes,
        leaf_days: draft.leaf_days,
        bundle_days: draft.bundle_days,
        resigner,
        regions,
        nodes,
        tenants,
        agents,
        edges,
        grants,
        revocations,
    })
}

/// The values in order; a second one of the same name is a mistake.
fn distinct<'a, T: Clone + Ord + Display + 'a>(
    values: impl Iterator<Item = &'a At<T>>,
    problems: &mut Problems<'_>,
    what: &str,
) -> Vec<T> {
    let mut seen = BTreeSet::new();
    let mut list = Vec::new();
    for at in values {
        if seen.insert(at.value.clone()) {
            list.push(at.value.clone());
        } else {
            problems.add(at.offset, &at.key, format!("{what} '{}' is declared twice", at.value));
        }
    }
    list
}

fn listed<T: Display>(items: impl Iterator<Item = T>) -> String {
    let names: Vec<String> = items.take(8).map(|i| i.to_string()).collect();
    if names.is_empty() { "none is declared".to_owned() } else { format!("declared: {}", names.join(", ")) }
}

fn known_region(at: &At<Label>, regions: &[Label], problems: &mut Problems<'_>) -> Option<Label> {
    if regions.contains(&at.value) {
        return Some(at.value.clone());
    }
    problems.add(at.offset, &at.key, format!("unknown region '{}'; {}", at.value, listed(regions.iter())));
    None
}

fn known_tenant<'a>(
    at: &At<TenantId>,
    known: &BTreeMap<&TenantId, &'a TenantPlan>,
    problems: &mut Problems<'_>,
) -> Option<&'a TenantPlan> {
    let found = known.get(&at.value).copied();
    if found.is_none() {
        problems.add(at.offset, &at.key, format!("unknown tenant '{}'; {}", at.value, listed(known.keys())));
    }
    found
}

fn known_node<'a>(at: &At<NodeId>, nodes: &'a [NodePlan], problems: &mut Problems<'_>) -> Option<&'a NodePlan> {
    let found = nodes.iter().find(|n| n.id == at.value);
    if found.is_none() {
        let list = listed(nodes.iter().map(|n| &n.id));
        problems.add(at.offset, &at.key, format!("unknown node '{}'; {list}", at.value));
    }
    found
}

fn check_nodes(draft: &Draft, regions: &[Label], problems: &mut Problems<'_>) -> Vec<NodePlan> {
    distinct(draft.nodes.iter().filter_map(|n| n.id.as_ref()), problems, "node");
    let mut nodes: Vec<NodePlan> = Vec::new();
    let mut directories: BTreeMap<String, NodeId> = BTreeMap::new();
    let mut ports = Ports::default();
    for draft in &draft.nodes {
        let Some(node) = check_node(draft, regions, problems) else { continue };
        if nodes.iter().any(|n| n.id == node.id) {
            continue;
        }
        if let Some(other) = directories.insert(node.directory(), node.id.clone()) {
            let text = format!("its directory 'nodes/{}' is also that of node '{other}'; rename one", node.directory());
            problems.add(draft.offset, &format!("{}name", draft.key), text);
        }
        ports.check(&node, draft, problems);
        nodes.push(node);
    }
    nodes
}

fn check_node(draft: &NodeDraft, regions: &[Label], problems: &mut Problems<'_>) -> Option<NodePlan> {
    let id = draft.id.as_ref()?;
    if !regions.contains(id.value.region()) {
        let text = format!("unknown region '{}'; {}", id.value.region(), listed(regions.iter()));
        problems.add(id.offset, &id.key, text);
    }
    let listen = draft.listen;
    let hosts = match &draft.hosts {
        Some(list) => {
            for host in list.iter().filter(|h| !is_host(&h.value)) {
                let text = format!("'{}' is neither a host name nor an IP address", host.value.escape_debug());
                problems.add(host.offset, &host.key, text);
            }
            distinct(list.iter(), problems, "host")
        }
        None if listen.is_loopback() => vec!["localhost".to_owned(), listen.to_string()],
        None => Vec::new(),
    };
    if hosts.is_empty() {
        let text = "missing; list the host names and addresses that clients dial";
        problems.add(draft.offset, &format!("{}hosts", draft.key), text);
    }
    Some(NodePlan {
        id: id.value.clone(),
        // One that could not be read is a mistake already; no second one for the edges of this node.
        role: draft.role.unwrap_or(NodeRole::Region),
        hosts,
        listen,
        broker_port: draft.broker_port,
        quic_port: draft.quic_port,
        bridge_port: draft.bridge_port,
        nats_port: draft.nats_port,
        nats_ws_port: draft.nats_ws_port,
        ops_listen: draft.ops_listen.clone(),
    })
}

/// Ports taken on loopback addresses, where two brokers are surely on one machine, and within each broker.
#[derive(Default)]
struct Ports {
    taken: BTreeMap<(bool, IpAddr, u16), (NodeId, &'static str)>,
}

impl Ports {
    fn check(&mut self, node: &NodePlan, draft: &NodeDraft, problems: &mut Problems<'_>) {
        let mut own = BTreeMap::new();
        for (name, udp, port) in [
            ("broker_port", false, node.broker_port),
            ("quic_port", true, node.quic_port),
            ("bridge_port", true, node.bridge_port),
            ("nats_port", false, node.nats_port.unwrap_or(0)),
            ("nats_ws_port", false, node.nats_ws_port.unwrap_or(0)),
        ] {
            if port == 0 {
                continue;
            }
            let key = format!("{}{name}", draft.key);
            if let Some(other) = own.insert((udp, port), name) {
                let transport = if udp { "UDP" } else { "TCP" };
                problems.add(draft.offset, &key, format!("{transport} port {port} is also this node's {other}"));
                continue;
            }
            if !node.listen.is_loopback() {
                continue;
            }
            if let Some((other, theirs)) = self.taken.get(&(udp, node.listen, port)) {
                let text = format!("port {port} on {} is also {theirs} of node '{other}'", node.listen);
                problems.add(draft.offset, &key, text);
            } else {
                self.taken.insert((udp, node.listen, port), (node.id.clone(), name));
            }
        }
    }
}

fn check_tenants(draft: &Draft, regions: &[Label], problems: &mut Problems<'_>) -> Vec<TenantPlan> {
    distinct(draft.tenants.iter().filter_map(|t| t.id.as_ref()), problems, "tenant");
    let mut tenants: Vec<TenantPlan> = Vec::new();
    let mut seen = BTreeSet::new();
    for TenantDraft { id, weight, regions: named, owner_only_replies, sessions_max, limits, terms, memory_bytes } in
        &draft.tenants
    {
        for region in named {
            known_region(region, regions, problems);
        }
        let named = distinct(named.iter(), problems, "region");
        let Some(id) = id.as_ref().map(|id| &id.value) else { continue };
        if seen.insert(id) {
            tenants.push(TenantPlan {
                id: id.clone(),
                weight: *weight,
                regions: named,
                owner_only_replies: *owner_only_replies,
                sessions_max: *sessions_max,
                limits: *limits,
                terms: *terms,
                memory_bytes: *memory_bytes,
            });
        }
    }
    tenants
}

fn check_agents(
    draft: &Draft,
    regions: &[Label],
    known: &BTreeMap<&TenantId, &TenantPlan>,
    problems: &mut Problems<'_>,
) -> Vec<AgentPlan> {
    let mut agents = Vec::new();
    let mut seen = BTreeSet::new();
    for AgentDraft { name, region, tenant } in &draft.agents {
        let place = region.as_ref().and_then(|r| known_region(r, regions, problems));
        let owner = tenant.as_ref().and_then(|t| known_tenant(t, known, problems));
        let (Some(name), Some(region), Some(place), Some(owner)) = (name, region, place, owner) else { continue };
        if !owner.regions.contains(&place) {
            let text = format!("region '{place}' is not among the regions of tenant '{}'", owner.id);
            problems.add(region.offset, &region.key, text);
        }
        if !seen.insert((owner.id.clone(), place.clone(), name.value.clone())) {
            let text = format!("agent '{}' of tenant '{}' in region '{place}' is declared twice", name.value, owner.id);
            problems.add(name.offset, &name.key, text);
            continue;
        }
        agents.push(AgentPlan { name: name.value.clone(), region: place, tenant: owner.id.clone() });
    }
    agents
}

fn check_edges(
    draft: &Draft,
    nodes: &[NodePlan],
    tenants: &[TenantPlan],
    problems: &mut Problems<'_>,
) -> Vec<EdgePlan> {
    distinct(draft.edges.iter().filter_map(|e| e.name.as_ref()), problems, "edge");
    draft.edges.iter().filter_map(|edge| check_edge(edge, nodes, tenants, problems)).collect()
}

fn check_edge(
    draft: &EdgeDraft,
    nodes: &[NodePlan],
    tenants: &[TenantPlan],
    problems: &mut Problems<'_>,
) -> Option<EdgePlan> {
    let carried = check_edge_tenants(&draft.tenants, tenants, problems);
    let dial = draft.dial.as_ref().and_then(|d| known_node(d, nodes, problems));
    let accept = draft.accept.as_ref().and_then(|a| known_node(a, nodes, problems));
    let (dial, accept) = (dial?, accept?);
    if dial.id == accept.id {
        problems.add(draft.offset, &draft.key, "an edge joins two different nodes");
        return None;
    }
    let address = match &draft.address {
        Some(address) => address.value.clone(),
        None if accept.bridge_port == 0 => {
            let text = format!(
                "node '{}' has bridge_port = 0, so its port is not known in advance; give it a port, or the edge an \
                 address = \"<host>:<port>\"",
                accept.id
            );
            problems.add(draft.offset, &draft.key, text);
            return None;
        }
        None => default_address(accept)?,
    };
    Some(EdgePlan {
        name: draft.name.as_ref()?.value.clone(),
        dial: dial.id.clone(),
        accept: accept.id.clone(),
        address,
        patterns: draft.tenants.iter().map(|t| t.value.clone()).collect(),
        tenants: carried,
    })
}

/// Where a node is dialled unless the edge says otherwise: the address it listens on, or its first host.
fn default_address(node: &NodePlan) -> Option<String> {
    let host = if node.listen.is_unspecified() { node.hosts.first()?.clone() } else { node.listen.to_string() };
    let host = if host.parse::<std::net::Ipv6Addr>().is_ok() { format!("[{host}]") } else { host };
    Some(format!("{host}:{}", node.bridge_port))
}

/// The tenants that the patterns name, in the order of the plan. The grammar is that of node configurations: an id, a
/// prefix followed by `*`, or `*`.
fn check_edge_tenants(patterns: &[At<String>], tenants: &[TenantPlan], problems: &mut Problems<'_>) -> Vec<TenantId> {
    let mut chosen = BTreeSet::new();
    for pattern in patterns {
        let text = pattern.value.as_str();
        let matched: Vec<&TenantId> = match text.strip_suffix('*') {
            Some(prefix) => tenants.iter().map(|t| &t.id).filter(|id| id.as_str().starts_with(prefix)).collect(),
            None => tenants.iter().map(|t| &t.id).filter(|id| id.as_str() == text).collect(),
        };
        if matched.is_empty() {
            let list = listed(tenants.iter().map(|t| &t.id));
            let text = match (text.find('*'), text.len()) {
                (None, _) => format!("unknown tenant '{}'; {list}", text.escape_debug()),
                (Some(at), length) if at + 1 < length => {
                    format!("'{}' has '*' elsewhere than at its end", text.escape_debug())
                }
                _ => format!("no tenant matches '{}'; {list}", text.escape_debug()),
            };
            problems.add(pattern.offset, &pattern.key, text);
        }
        chosen.extend(matched);
    }
    tenants.iter().map(|t| &t.id).filter(|id| chosen.contains(id)).cloned().collect()
}

fn check_grants(
    draft: &Draft,
    known: &BTreeMap<&TenantId, &TenantPlan>,
    problems: &mut Problems<'_>,
) -> Vec<GrantPlan> {
    distinct(draft.grants.iter().filter_map(|g| g.name.as_ref()), problems, "grant");
    let mut grants = Vec::new();
    for GrantDraft { name, from, to, write, filter } in &draft.grants {
        let giver = from.as_ref().and_then(|t| known_tenant(t, known, problems));
        let receiver = to.as_ref().and_then(|t| known_tenant(t, known, problems));
        if let (Some(giver), Some(receiver), Some(to)) = (giver, receiver, to)
            && giver.id == receiver.id
        {
            problems.add(to.offset, &to.key, "a tenant needs no grant for its own names");
        }
        if let (Some(name), Some(giver), Some(receiver), Some(write), Some(filter)) =
            (name, giver, receiver, write, filter)
        {
            grants.push(GrantPlan {
                name: name.value.clone(),
                from: giver.id.clone(),
                to: receiver.id.clone(),
                write: *write,
                filter: filter.value.clone(),
            });
        }
    }
    grants
}

fn check_revocation(
    draft: &RevocationDraft,
    whole: &Draft,
    regions: &[Label],
    known: &BTreeMap<&TenantId, &TenantPlan>,
    problems: &mut Problems<'_>,
) -> Option<RevocationPlan> {
    // An operator that could not be read is a mistake already; it may have been this one.
    let is_operator = |t: &At<TenantId>| whole.operator.as_ref().is_none_or(|o| o.value == t.value);
    let tenant = match draft.tenant.as_ref() {
        Some(tenant) if is_operator(tenant) => Some(&tenant.value),
        Some(tenant) => known_tenant(tenant, known, problems).map(|t| &t.id),
        None => None,
    };
    let region = draft.region.as_ref().and_then(|r| known_region(r, regions, problems));
    let what = match draft.form {
        (true, false, false) => Revoked::Serial(draft.serial.as_ref()?.value.clone()),
        (false, true, _) => Revoked::IssuedBefore {
            agent: draft.agent.as_ref().map(|a| a.value.clone()),
            before: draft.before.as_ref()?.value,
        },
        _ => {
            let text = "give either serial, or before with or without agent";
            problems.add(draft.offset, &draft.key, text);
            return None;
        }
    };
    Some(RevocationPlan { tenant: tenant?.clone(), region: region?, what })
}
