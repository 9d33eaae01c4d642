//! Metrics in the OpenMetrics text format, rendered from the counters when they are asked for: nothing is looked up per
//! message. Tenant labels are shown on the operators' listener only.

use std::fmt;
use std::sync::Arc;

use glocal_core::count::{ClassCounters, Counter, Drop as DropReason};
use glocal_core::deny::{Access, Deny};
use glocal_core::name::Class;
use glocal_core::tenant::Tenant;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::bridge::AttachRefusal;
use crate::context::Context;
use crate::edge_status::{EdgeStatus, Failure};
use crate::reload::BundleRefusal;

/// Renders all metrics of the node.
///
/// # Errors
/// The formatter's, which a string never has.
pub(crate) fn render(context: &Context) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("glocal");
    registry.register_collector(Box::new(NodeCollector(context.clone())));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

#[derive(Debug)]
struct NodeCollector(Context);

type Labels = Vec<(&'static str, String)>;
type Samples = Vec<(Labels, u64)>;

fn counters(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, samples: Samples) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in samples {
        metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
    }
    Ok(())
}

fn gauges(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, samples: Samples) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in samples {
        metric.encode_family(&labels)?.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?;
    }
    Ok(())
}

fn one(value: u64) -> Samples {
    vec![(Vec::new(), value)]
}

impl Collector for NodeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.node(&mut encoder)?;
        self.edges(&mut encoder)?;
        self.tenants(&mut encoder)
    }
}

impl NodeCollector {
    fn node(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (context, node) = (&self.0, &self.0.counters);
        gauges(e, "sessions", "Sessions now", one(node.sessions.value() as u64))?;
        counters(e, "sessions_opened", "Sessions accepted", one(node.sessions_opened.value()))?;
        counters(e, "handshakes_failed", "Handshakes failed or late", one(node.handshakes_failed.value()))?;
        counters(e, "connections_refused", "Turned away at a limit", one(node.connections_refused.value()))?;
        counters(e, "protocol_errors", "Sessions closed for protocol errors", one(node.protocol_errors.value()))?;
        counters(e, "bridge_faults", "Bridges closed for faults", one(node.bridge_faults.value()))?;
        let polls = [("hit", &context.busy_polls.hits), ("miss", &context.busy_polls.misses)];
        let polls = polls.map(|(outcome, count)| (vec![("outcome", outcome.to_owned())], count.value())).to_vec();
        counters(e, "busy_polls", "Times a session was polled for", polls)?;
        let duplicates = one(node.duplicate_nodes.value());
        let lives = one(node.lives_exceeded.value());
        counters(e, "lives_exceeded", "Later lives of this broker that it was told of and exceeded", lives)?;
        counters(e, "duplicate_nodes", "Bridges refused since another broker bears the same name", duplicates)?;
        let trust = context.trust();
        let head = trust.bundle().head();
        gauges(e, "bundle_version", "Version of the bundle in force", one(head.version))?;
        let expires = u64::try_from(head.expires.0).unwrap_or(0);
        gauges(e, "bundle_expires_seconds", "When the bundle expires, seconds since 1970", one(expires))?;
        let reload = &context.reloader.refusals;
        counters(e, "bundle_alarms", "Two bundles of one version were seen", one(reload.alarms.value()))?;
        let refused = BundleRefusal::ALL.map(|r| (vec![("reason", r.code().to_owned())], reload.count(r)));
        counters(e, "bundle_refused", "Bundles and sections that were not taken", happened(refused.into_iter()))?;
        let stale = context.reloader.holding().stale() as u64;
        gauges(e, "bundle_stale_sections", "Tenants that hold by an outdated section", one(stale))?;
        self.resigner(e)?;
        let refusals = trust.refusals();
        let refused = Deny::ALL.iter().map(|r| (vec![("reason", r.code().to_owned())], refusals.count(*r)));
        counters(e, "handshakes_refused", "Certificates refused by reason", happened(refused))
    }

    fn resigner(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(resigner) = self.0.reloader.resigner() else { return Ok(()) };
        counters(e, "bundle_resigned", "Bundles this node has signed afresh", one(resigner.signed.value()))?;
        let failures = resigner.failures().map(|(code, count)| (vec![("reason", code.to_owned())], count));
        counters(e, "bundle_resign_failures", "Bundles that were due and not signed", happened(failures))?;
        let next = resigner.next().and_then(|next| u64::try_from(next.0).ok()).unwrap_or(0);
        gauges(e, "bundle_resign_seconds", "When it signs next, seconds since 1970; 0 when it cannot", one(next))
    }

    fn edges(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let context = &self.0;
        let edges = context.edges.list();
        let each = |value: &dyn Fn(&EdgeStatus) -> u64| -> Samples {
            let label = |s: &EdgeStatus| vec![("edge", s.edge().name().to_string())];
            edges.iter().map(|s| (label(s), value(s))).collect()
        };
        gauges(e, "edge_up", "Whether a bridge is up", each(&|s| u64::from(s.edge().is_up())))?;
        gauges(e, "edge_tenants", "Tenants the edge carries now", each(&|s| s.edge().effective().len() as u64))?;
        gauges(e, "edge_rtt_microseconds", "Smoothed round-trip time", each(&|s| s.state().rtt_micros))?;
        counters(e, "edge_refused", "Sent by the peer although not allowed", each(&|s| s.edge().refused.value()))?;
        counters(e, "edge_dials", "Attempts to dial", each(&|s| s.dials.value()))?;
        counters(e, "edge_ups", "Bridges that came up", each(&|s| s.ups.value()))?;
        let failures = edges.iter().flat_map(|status| {
            Failure::ALL.iter().map(|failure| {
                let labels = vec![("edge", status.edge().name().to_string()), ("state", failure.code().to_owned())];
                (labels, status.failures(*failure))
            })
        });
        counters(e, "edge_failures", "Bridges that ended or did not come up", happened(failures))?;
        self.tenant_connections(e, &edges)?;
        let links = context.shared.links();
        let queued = links.iter().filter(|link| !link.edge().is_retired()).map(|link| {
            let labels = vec![("edge", link.edge().name().to_string())];
            (labels, link.inbox().with(|lanes| lanes.sched().backlog_bytes()) as u64)
        });
        gauges(e, "edge_queued_bytes", "Bytes waiting for an edge", queued.collect())?;
        let resting = links.iter().filter(|link| !link.edge().is_retired()).map(|link| {
            let labels = vec![("edge", link.edge().name().to_string())];
            (labels, link.inbox().with(|lanes| lanes.sched().resting()) as u64)
        });
        gauges(
            e,
            "edge_capped_tenants",
            "Tenants that wait for an edge since they are above a cap",
            resting.collect(),
        )?;
        let tenants = context.shared.tenants();
        let lost = links.iter().filter(|link| !link.edge().is_retired()).flat_map(|link| {
            let lost: Vec<_> = link.inbox().with(|lanes| lanes.lost().collect());
            let tenants = &tenants;
            lost.into_iter().filter_map(move |(tenant, class, reason, frames)| {
                let mut labels = class_labels(tenants.by_key(tenant)?, class);
                labels.extend([("edge", link.edge().name().to_string()), ("reason", reason.to_owned())]);
                Some((labels, frames))
            })
        });
        let lost = lost.collect();
        counters(e, "edge_dropped", "Frames lost on their way into an edge", lost)
    }

    /// The tenants' connections of dedicated edges.
    fn tenant_connections(&self, e: &mut DescriptorEncoder<'_>, edges: &[Arc<EdgeStatus>]) -> fmt::Result {
        let tenants = self.0.shared.tenants();
        let up = edges.iter().flat_map(|status| {
            status.tenants().into_iter().filter_map(|(key, state)| {
                let tenant = tenants.by_key(key)?.id().to_string();
                Some((vec![("edge", status.edge().name().to_string()), ("tenant", tenant)], u64::from(state.up)))
            })
        });
        gauges(e, "edge_tenant_up", "Whether a tenant's own connection is up", up.collect())?;
        let of = |value: fn(&EdgeStatus) -> u64| -> Samples {
            let dedicated = edges.iter().filter(|status| status.edge().is_dedicated());
            dedicated.map(|s| (vec![("edge", s.edge().name().to_string())], value(s))).collect()
        };
        let (ups, failures) = (of(|s| s.tenant_ups.value()), of(|s| s.tenant_failures.value()));
        counters(e, "edge_tenant_ups", "Tenants' own connections that came up", ups)?;
        counters(e, "edge_tenant_failures", "Tenants' own connections that ended or did not come up", failures)?;
        let refused = AttachRefusal::ALL.iter().zip(&self.0.counters.attaches_refused);
        let refused = refused.map(|(reason, count)| (vec![("reason", reason.code().to_owned())], count.value()));
        counters(e, "attaches_refused", "Tenants' own connections that were not taken in", happened(refused))
    }

    fn tenants(&self, e: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type Read = fn(&ClassCounters) -> &Counter;
        let families: [(&str, &str, Read); 7] = [
            ("published", "Messages accepted from clients", |c| &c.published),
            ("published_bytes", "Payload bytes accepted from clients", |c| &c.published_bytes),
            ("delivered", "Copies made for sessions, before drops", |c| &c.delivered),
            ("relayed_out", "Copies made for other brokers, before drops", |c| &c.relayed_out),
            ("relayed_in", "Copies received from other brokers", |c| &c.relayed_in),
            ("unmatched", "Messages nobody in the mesh wanted", |c| &c.unmatched),
            ("lost", "Copies for other brokers that did not arrive there, wherever they were lost", |c| &c.lost),
        ];
        let tenants = self.0.shared.tenants();
        let bounds = tenants.memory().bounds();
        let used = one(tenants.memory().used() as u64);
        gauges(e, "memory_used_bytes", "Bytes that wait for sessions, edges and acknowledgements", used)?;
        gauges(e, "memory_max_bytes", "Bytes that may wait for them", one(bounds.node_bytes as u64))?;
        let of_tenant = one(bounds.tenant_bytes as u64);
        gauges(e, "tenant_memory_max_bytes", "Bytes of any one tenant that may wait", of_tenant)?;
        let tenants: Vec<_> = tenants.iter().collect();
        let used = tenants.iter().map(|t| (vec![("tenant", t.id().to_string())], t.memory().used() as u64));
        gauges(e, "tenant_memory_used_bytes", "Bytes of a tenant that wait", happened(used))?;
        let own = tenants.iter().filter(|t| t.section().memory_bytes.is_some());
        let own = own.map(|t| (vec![("tenant", t.id().to_string())], t.memory().max() as u64));
        gauges(e, "tenant_memory_bound_bytes", "The same of tenants with a bound of their own", own.collect())?;
        for (name, help, read) in families {
            let samples = tenants.iter().flat_map(|t| {
                Class::ALL.map(|class| (class_labels(t, class), read(t.counters().class(class)).value()))
            });
            counters(e, name, help, happened(samples))?;
        }
        let dropped = tenants.iter().flat_map(|t| {
            Class::ALL.into_iter().flat_map(move |class| {
                DropReason::ALL.iter().map(move |reason| {
                    let mut labels = class_labels(t, class);
                    labels.push(("reason", reason.code().to_owned()));
                    (labels, t.counters().class(class).drops(*reason))
                })
            })
        });
        counters(e, "dropped", "Accepted messages that went no further", happened(dropped))?;
        let denied = tenants.iter().flat_map(|t| {
            [Access::Read, Access::Write].into_iter().flat_map(move |access| {
                Deny::ALL.iter().map(move |reason| {
                    let labels = vec![
                        ("tenant", t.id().to_string()),
                        ("access", access.as_str().to_lowercase()),
                        ("reason", reason.code().to_owned()),
                    ];
                    (labels, t.counters().denials(access, *reason))
                })
            })
        });
        counters(e, "denied", "Operations refused by policy", happened(denied))
    }
}

fn class_labels(tenant: &Tenant, class: Class) -> Labels {
    vec![("tenant", tenant.id().to_string()), ("class", class.as_str().to_owned())]
}

/// Leaves out what never happened: most reasons never do, and a hundred thousand tenants are idle.
fn happened(samples: impl Iterator<Item = (Labels, u64)>) -> Samples {
    samples.filter(|(_, value)| *value > 0).collect()
}
