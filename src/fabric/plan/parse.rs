//! From TOML to a [`Plan`]: each table read into a value, then the values checked against one another.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;

use glocal_core::limits::{
    CLASS_WEIGHT_MAX, EDGE_CAP_BYTES_MIN, EDGES_MAX, MAX_PAYLOAD_BYTES_CEILING, MAX_PAYLOAD_BYTES_DEFAULT,
    MEMORY_BYTES_MAX, NODES_MAX, PLAN_BYTES_MAX, RATE_BURST_MS_MAX, RATE_BYTES_MAX, RATE_MESSAGES_MAX,
    SERIAL_BYTES_MAX, TENANT_MEMORY_BYTES_MIN, TENANT_WEIGHT_MAX, TENANTS_MAX, VALIDITY_DAYS_MAX,
};
use glocal_core::name::{Class, Label, NodeId, RawFilter, TenantId};
use glocal_core::rate::RateLimits;
use glocal_core::sched::EdgeTerms;
use glocal_core::time::UnixTime;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use toml::de::DeTable;

use super::read::{At, PlanError, Problems, Reader};
use super::{
    BRIDGE_PORT_DEFAULT, BROKER_PORT_DEFAULT, BUNDLE_DAYS_DEFAULT, LEAF_DAYS_DEFAULT, NodeRole, OPS_LISTEN_DEFAULT,
    Plan, QUIC_PORT_DEFAULT, check,
};

/// Smallest `max_payload`, in bytes: below it ordinary messages would not fit.
const MAX_PAYLOAD_BYTES_MIN: u32 = 1024;

/// Everything read, each name with its place; [`check`] makes the plan of it.
pub(super) struct Draft {
    pub(super) fabric: Option<At<Label>>,
    pub(super) operator: Option<At<TenantId>>,
    pub(super) superusers: Vec<At<TenantId>>,
    pub(super) max_payload_bytes: u32,
    pub(super) leaf_days: u32,
    pub(super) bundle_days: u32,
    pub(super) resigner: Option<At<NodeId>>,
    pub(super) regions: Vec<At<Label>>,
    pub(super) nodes: Vec<NodeDraft>,
    pub(super) tenants: Vec<TenantDraft>,
    pub(super) agents: Vec<AgentDraft>,
    pub(super) edges: Vec<EdgeDraft>,
    pub(super) grants: Vec<GrantDraft>,
    pub(super) revocations: Vec<RevocationDraft>,
}

pub(super) struct NodeDraft {
    pub(super) id: Option<At<NodeId>>,
    pub(super) role: Option<NodeRole>,
    pub(super) hosts: Option<Vec<At<String>>>,
    /// Loopback when not written; unspecified, which collides with nothing, when it could not be read.
    pub(super) listen: IpAddr,
    pub(super) broker_port: u16,
    pub(super) quic_port: u16,
    pub(super) bridge_port: u16,
    pub(super) nats_port: Option<u16>,
    pub(super) nats_ws_port: Option<u16>,
    pub(super) ops_listen: String,
    pub(super) offset: usize,
    pub(super) key: String,
}

pub(super) struct TenantDraft {
    pub(super) id: Option<At<TenantId>>,
    pub(super) weight: u32,
    pub(super) regions: Vec<At<Label>>,
    pub(super) owner_only_replies: bool,
    pub(super) sessions_max: u32,
    pub(super) limits: RateLimits,
    pub(super) terms: EdgeTerms,
    pub(super) memory_bytes: Option<u64>,
}

pub(super) struct AgentDraft {
    pub(super) name: Option<At<Label>>,
    pub(super) region: Option<At<Label>>,
    pub(super) tenant: Option<At<TenantId>>,
}

pub(super) struct EdgeDraft {
    pub(super) name: Option<At<Label>>,
    pub(super) dial: Option<At<NodeId>>,
    pub(super) accept: Option<At<NodeId>>,
    pub(super) address: Option<At<String>>,
    pub(super) tenants: Vec<At<String>>,
    pub(super) offset: usize,
    pub(super) key: String,
}

pub(super) struct GrantDraft {
    pub(super) name: Option<At<Label>>,
    pub(super) from: Option<At<TenantId>>,
    pub(super) to: Option<At<TenantId>>,
    pub(super) write: Option<bool>,
    pub(super) filter: Option<At<RawFilter>>,
}

pub(super) struct RevocationDraft {
    pub(super) tenant: Option<At<TenantId>>,
    pub(super) region: Option<At<Label>>,
    pub(super) agent: Option<At<Label>>,
    pub(super) before: Option<At<UnixTime>>,
    pub(super) serial: Option<At<Vec<u8>>>,
    /// Which of `serial`, `before` and `agent` are written, well or not.
    pub(super) form: (bool, bool, bool),
    pub(super) offset: usize,
    pub(super) key: String,
}

pub(super) fn parse(text: &str, file: &str) -> Result<Plan, PlanError> {
    let mut problems = Problems::new(text);
    if text.len() > PLAN_BYTES_MAX {
        problems.add(0, "", format!("the file is larger than {PLAN_BYTES_MAX} bytes"));
        return Err(problems.into_error(file));
    }
    let (root, errors) = DeTable::parse_recoverable(text);
    let mut readable = true;
    for error in &errors {
        let span = error.span().unwrap_or(0..0);
        if error.message().contains("duplicate key") {
            let key = problems.quote(span.clone()).to_owned();
            problems.add(span.start, &key, "duplicate key");
        } else {
            readable = false;
            problems.add(span.start, "", error.message().replace('\n', "; "));
        }
    }
    if !readable {
        return Err(problems.into_error(file));
    }
    let draft = read_root(&Reader::new(root.get_ref(), String::new(), 0), &mut problems);
    match check::check(&draft, &mut problems) {
        Some(plan) if problems.is_empty() => Ok(plan),
        _ => Err(problems.into_error(file)),
    }
}

fn read_root(root: &Reader<'_, '_>, problems: &mut Problems<'_>) -> Draft {
    let draft = Draft {
        fabric: label(root, problems, "fabric", true),
        operator: tenant(root, problems, "operator", true),
        superusers: root
            .strings(problems, "superusers")
            .unwrap_or_default()
            .into_iter()
            .filter_map(|text| text.parse(problems, |t| TenantId::parse(t)))
            .collect(),
        max_payload_bytes: root
            .size(problems, "max_payload", u64::from(MAX_PAYLOAD_BYTES_MIN)..=u64::from(MAX_PAYLOAD_BYTES_CEILING))
            .and_then(|bytes| u32::try_from(bytes).ok())
            .unwrap_or(MAX_PAYLOAD_BYTES_DEFAULT),
        leaf_days: root.number(problems, "leaf_days", 1..=VALIDITY_DAYS_MAX).unwrap_or(LEAF_DAYS_DEFAULT),
        bundle_days: root.number(problems, "bundle_days", 1..=VALIDITY_DAYS_MAX).unwrap_or(BUNDLE_DAYS_DEFAULT),
        resigner: text(root, problems, "resigner", false).and_then(|t| t.parse(problems, |t| NodeId::parse(t))),
        regions: each(root, problems, "region", NODES_MAX, |t, p| label(t, p, "name", true))
            .into_iter()
            .flatten()
            .collect(),
        nodes: each(root, problems, "node", NODES_MAX, read_node),
        tenants: each(root, problems, "tenant", TENANTS_MAX, read_tenant),
        agents: each(root, problems, "agent", TENANTS_MAX, read_agent),
        edges: each(root, problems, "edge", EDGES_MAX, read_edge),
        grants: each(root, problems, "grant", TENANTS_MAX, read_grant),
        revocations: each(root, problems, "revocation", TENANTS_MAX, read_revocation),
    };
    root.finish(problems);
    draft
}

fn each<T>(
    root: &Reader<'_, '_>,
    problems: &mut Problems<'_>,
    key: &'static str,
    most: usize,
    read: impl Fn(&Reader<'_, '_>, &mut Problems<'_>) -> T,
) -> Vec<T> {
    let tables = root.tables(problems, key);
    if let Some(first) = tables.get(most) {
        problems.add(first.offset, key, format!("more than {most} of them"));
    }
    tables
        .iter()
        .take(most)
        .map(|table| {
            let value = read(table, problems);
            table.finish(problems);
            value
        })
        .collect()
}

fn text(table: &Reader<'_, '_>, problems: &mut Problems<'_>, key: &'static str, required: bool) -> Option<At<String>> {
    if required { table.required(problems, key) } else { table.string(problems, key) }
}

fn label(table: &Reader<'_, '_>, problems: &mut Problems<'_>, key: &'static str, required: bool) -> Option<At<Label>> {
    text(table, problems, key, required)?.parse(problems, |t| Label::parse(t))
}

fn tenant(
    table: &Reader<'_, '_>,
    problems: &mut Problems<'_>,
    key: &'static str,
    required: bool,
) -> Option<At<TenantId>> {
    text(table, problems, key, required)?.parse(problems, |t| TenantId::parse(t))
}

fn node(table: &Reader<'_, '_>, problems: &mut Problems<'_>, key: &'static str) -> Option<At<NodeId>> {
    table.required(problems, key)?.parse(problems, |t| {
        NodeId::parse(t).map_err(|_| {
            format!("'{}' is not <region>/<agent>, each of the form [A-Za-z0-9][A-Za-z0-9_-]{{0,62}}", t.escape_debug())
        })
    })
}

fn read_node(table: &Reader<'_, '_>, problems: &mut Problems<'_>) -> NodeDraft {
    NodeDraft {
        id: node(table, problems, "name"),
        role: table
            .required(problems, "role")
            .and_then(|role| {
                role.parse(problems, |t| match t.as_str() {
                    "global" => Ok(NodeRole::Global),
                    "region" => Ok(NodeRole::Region),
                    "agent" => Ok(NodeRole::Agent),
                    other => Err(format!("'{}' is none of global, region, agent", other.escape_debug())),
                })
            })
            .map(|role| role.value),
        hosts: table.strings(problems, "hosts"),
        listen: match table.string(problems, "listen") {
            Some(text) => text
                .parse(problems, |t| t.parse().map_err(|_| "is not an IP address"))
                .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |at| at.value),
            None => IpAddr::V4(Ipv4Addr::LOCALHOST),
        },
        broker_port: table.port(problems, "broker_port").unwrap_or(BROKER_PORT_DEFAULT),
        quic_port: table.port(problems, "quic_port").unwrap_or(QUIC_PORT_DEFAULT),
        bridge_port: table.port(problems, "bridge_port").unwrap_or(BRIDGE_PORT_DEFAULT),
        nats_port: table.port(problems, "nats_port"),
        nats_ws_port: table.port(problems, "nats_ws_port"),
        ops_listen: table
            .string(problems, "ops_listen")
            .and_then(|t| {
                t.parse(problems, |t| match t.parse::<std::net::SocketAddr>() {
                    Ok(_) => Ok(t.clone()),
                    Err(_) if t == "off" => Ok(t.clone()),
                    Err(_) => Err("is neither <address>:<port> nor \"off\""),
                })
            })
            .map_or_else(|| OPS_LISTEN_DEFAULT.to_owned(), |t| t.value),
        offset: table.offset,
        key: table.key(""),
    }
}

fn read_tenant(table: &Reader<'_, '_>, problems: &mut Problems<'_>) -> TenantDraft {
    let id = tenant(table, problems, "id", true);
    let regions = table.strings(problems, "regions");
    if regions.is_none() {
        problems.add(table.offset, &table.key("regions"), "missing; list the regions whose CAs may issue its agents");
    }
    TenantDraft {
        id,
        weight: table.number(problems, "weight", 1..=TENANT_WEIGHT_MAX).unwrap_or(1),
        regions: regions
            .unwrap_or_default()
            .into_iter()
            .filter_map(|t| t.parse(problems, |t| Label::parse(t)))
            .collect(),
        owner_only_replies: table.flag(problems, "owner_only_replies").unwrap_or(false),
        sessions_max: table.number(problems, "sessions_max", 0..=u32::MAX).unwrap_or(0),
        limits: read_limits(table, problems),
        terms: read_terms(table, problems),
        memory_bytes: table.size(problems, "memory_bytes", TENANT_MEMORY_BYTES_MIN as u64..=MEMORY_BYTES_MAX as u64),
    }
}

fn read_terms(table: &Reader<'_, '_>, problems: &mut Problems<'_>) -> EdgeTerms {
    let mut terms = EdgeTerms::DEFAULT;
    const CAPS: RangeInclusive<u64> = EDGE_CAP_BYTES_MIN..=RATE_BYTES_MAX;
    terms.bytes_per_s = table.size(problems, "edge_bytes_per_s", CAPS);
    if let Some(weights) = table.table(problems, "class_weights") {
        for (class, weight) in Class::ALL.iter().zip(&mut terms.class_weights) {
            *weight = weights.number(problems, class.as_str(), 1..=CLASS_WEIGHT_MAX).unwrap_or(*weight);
        }
        weights.finish(problems);
    }
    if let Some(caps) = table.table(problems, "edge_class_bytes_per_s") {
        for (class, cap) in Class::ALL.iter().zip(&mut terms.class_bytes_per_s) {
            *cap = caps.size(problems, class.as_str(), CAPS);
        }
        caps.finish(problems);
    }
    terms
}

fn read_limits(table: &Reader<'_, '_>, problems: &mut Problems<'_>) -> RateLimits {
    let none = RateLimits::NONE;
    let percent = |key, problems: &mut Problems<'_>| {
        table.number(problems, key, 1..=100).and_then(|percent| u8::try_from(percent).ok())
    };
    RateLimits {
        messages_per_s: table.large_number(problems, "messages_per_s", 1..=RATE_MESSAGES_MAX),
        bytes_per_s: table.size(problems, "bytes_per_s", 1..=RATE_BYTES_MAX),
        burst_ms: table.number(problems, "burst_ms", 1..=RATE_BURST_MS_MAX).unwrap_or(none.burst_ms),
        live_percent: percent("live_percent", problems).unwrap_or(none.live_percent),
        ctrl_percent: percent("ctrl_percent", problems).unwrap_or(none.ctrl_percent),
        session_messages_per_s: table.large_number(problems, "session_messages_per_s", 1..=RATE_MESSAGES_MAX),
        session_bytes_per_s: table.size(problems, "session_bytes_per_s", 1..=RATE_BYTES_MAX),
    }
}

fn read_agent(table: &Reader<'_, '_>, problems: &mut Problems<'_>) -> AgentDraft {
    AgentDraft {
        name: label(table, problems, "name", true),
        region: label(table, problems, "region", true),
        tenant: tenant(table, problems, "tenant", true),
    }
}

fn read_edge(table: &Reader<'_, '_>, problems: &mut Problems<'_>) -> EdgeDraft {
    EdgeDraft {
        name: label(table, problems, "name", true),
        dial: node(table, problems, "dial"),
        accept: node(table, problems, "accept"),
        address: table.string(problems, "address").and_then(|t| t.parse(problems, |t| check_address(t))),
        tenants: table.strings(problems, "tenants").unwrap_or_else(|| {
            problems.add(table.offset, &table.key("tenants"), "missing; list tenants, or [\"*\"] for all");
            Vec::new()
        }),
        offset: table.offset,
        key: table.key("accept"),
    }
}

fn check_address(text: &str) -> Result<String, &'static str> {
    const WRONG: &str = "is not <host>:<port> with a port from 1 to 65535";
    let (host, port) = text.rsplit_once(':').ok_or(WRONG)?;
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let host_fits = match bare {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => check::is_host(host),
    };
    let port_fits = port.parse::<u16>().is_ok_and(|p| p > 0);
    if host_fits && port_fits { Ok(text.to_owned()) } else { Err(WRONG) }
}

fn read_grant(table: &Reader<'_, '_>, problems: &mut Problems<'_>) -> GrantDraft {
    GrantDraft {
        name: label(table, problems, "name", true),
        from: tenant(table, problems, "from", true),
        to: tenant(table, problems, "to", true),
        write: table
            .required(problems, "access")
            .and_then(|t| {
                t.parse(problems, |t| match t.as_str() {
                    "read" => Ok(false),
                    "write" => Ok(true),
                    other => Err(format!("'{}' is neither read nor write", other.escape_debug())),
                })
            })
            .map(|t| t.value),
        filter: table.required(problems, "filter").and_then(|t| t.parse(problems, |t| RawFilter::parse(t.as_bytes()))),
    }
}

fn read_revocation(table: &Reader<'_, '_>, problems: &mut Problems<'_>) -> RevocationDraft {
    RevocationDraft {
        tenant: tenant(table, problems, "tenant", true),
        region: label(table, problems, "region", true),
        agent: label(table, problems, "agent", false),
        before: table.string(problems, "before").and_then(|t| {
            t.parse(problems, |t| {
                OffsetDateTime::parse(t, &Rfc3339)
                    .map(|date| UnixTime(date.unix_timestamp()))
                    .map_err(|_| "is not a date such as \"2026-05-01T00:00:00Z\"")
            })
        }),
        serial: table.string(problems, "serial").and_then(|t| t.parse(problems, |t| parse_serial(t))),
        form: (table.has("serial"), table.has("before"), table.has("agent")),
        offset: table.offset,
        key: table.key("serial"),
    }
}

/// A serial number in hex digits, with or without colons; without leading zeros afterwards.
fn parse_serial(text: &str) -> Result<Vec<u8>, &'static str> {
    const WRONG: &str = "is not a serial number in hex digits, as 'glocal pki show' prints it";
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| *c != ':')
        .map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok()))
        .collect::<Option<_>>()
        .ok_or(WRONG)?;
    if digits.len() % 2 == 1 {
        return Err(WRONG);
    }
    let bytes = digits.chunks_exact(2).map(|pair| pair.iter().fold(0u8, |byte, digit| (byte << 4) | digit));
    let serial: Vec<u8> = bytes.skip_while(|b| *b == 0).collect();
    if serial.is_empty() || serial.len() > SERIAL_BYTES_MAX { Err(WRONG) } else { Ok(serial) }
}
