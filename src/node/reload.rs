//! Changing a running node: newer bundles, from the file, the operators or peers, and the node's own configuration.
//!
//! Everything is read, verified and put together before anything changes; what is refused leaves all as it was. A newer
//! bundle is stored, then applied to new and live connections alike: sessions and bridges are asked again, edges are
//! narrowed at once and widened as both ends agree. One change at a time.

use std::sync::Arc;

use glocal_core::bundle::{Holding, Piece, SignedHead, Standing};
use glocal_core::edge::EdgeKey;
use glocal_core::limits::EDGE_KEYS_MAX;
use glocal_core::name::Label;
use glocal_core::policy::Policy;
use glocal_engine::driver::{Change, Command, Renewal};
use glocal_engine::link::Link;
use glocal_engine::shared::Shared;
use tokio::sync::Mutex;

use crate::bridge;
use crate::config::{Config, EdgeConfig, EdgeMode};
use crate::context::Context;
use crate::start;
use crate::trust::{self, unix_now};

mod configuration;
mod refusal;
mod resign;
pub(crate) mod stored;
mod watch;

pub use configuration::Report;
pub use refusal::{BundleRefusal, BundleRefusals, Refused};
pub use resign::Resigner;
pub(crate) use watch::watch;

/// Keeps what the node holds of bundle and configuration, and changes it.
#[derive(Debug)]
pub struct Reloader {
    held: Mutex<Held>,
    /// The holding, for those who only look.
    holding: crate::live::Live<Holding>,
    overrides: Vec<(String, String)>,
    resigner: Option<Resigner>,
    /// What was refused.
    pub refusals: BundleRefusals,
}

#[derive(Debug)]
struct Held {
    /// The configuration as it was read, its edges not completed.
    raw: Arc<Config>,
    holding: Holding,
    links: Vec<Arc<Link>>,
    epoch: u64,
    /// Epoch and version of the newest bundle of this fabric that was verified, taken or not.
    newest_seen: (u64, u64),
}

impl Reloader {
    pub(crate) fn new(raw: Arc<Config>, holding: Holding, shared: &Shared) -> Self {
        let links = shared.links().iter().cloned().collect();
        let live = crate::live::Live::new(Arc::new(holding.clone()));
        let newest_seen = shared.bundle();
        let held = Mutex::new(Held { raw, holding, links, epoch: shared.policy().epoch(), newest_seen });
        Self { held, holding: live, overrides: Vec::new(), resigner: None, refusals: BundleRefusals::default() }
    }

    pub(crate) fn set_overrides(&mut self, overrides: Vec<(String, String)>) {
        self.overrides = overrides;
    }

    /// What the node holds of the bundle.
    #[must_use]
    pub fn holding(&self) -> Arc<Holding> {
        self.holding.now()
    }

    /// Offers a bundle whose signature was verified; `complete` when it came with all sections that this node should have.
    /// Whether anything has changed.
    ///
    /// # Errors
    /// Why it was not taken; counted and logged.
    pub async fn offer(
        &self,
        context: &Context,
        signed: SignedHead,
        pieces: Vec<Piece>,
        complete: bool,
        from: &str,
    ) -> Result<bool, Refused> {
        let mut held = self.held.lock().await;
        let result = held.offer(context, signed, pieces, complete).await;
        self.settle(&held, result, context, from)
    }

    /// Takes sections that the head lists. Whether anything has changed.
    ///
    /// # Errors
    /// Why they were not taken; counted and logged.
    pub async fn add(&self, context: &Context, pieces: Vec<Piece>, from: &str) -> Result<bool, Refused> {
        let mut held = self.held.lock().await;
        let wanted: Vec<_> = pieces.into_iter().filter(|piece| held.holding.wants(&piece.digest)).collect();
        let result = if wanted.is_empty() {
            Ok(false)
        } else {
            match held.holding.with(wanted) {
                Ok(next) => held.apply(context, next, None).await.map(|()| true),
                Err(error) => Err(Refused::new(BundleRefusal::Malformed, error)),
            }
        };
        self.settle(&held, result, context, from)
    }

    /// Ends what holds by outdated sections for too long.
    pub(crate) async fn expire(&self, context: &Context) {
        let mut held = self.held.lock().await;
        let Some(next) = held.holding.expired(context.clock.now()) else { return };
        let result = match next {
            Ok(next) => held.apply(context, next, None).await.map(|()| true),
            Err(error) => Err(Refused::new(BundleRefusal::Malformed, error)),
        };
        // What could not be taken was counted and logged.
        let _ = self.settle(&held, result, context, "outdated sections");
    }

    fn settle(
        &self,
        held: &Held,
        result: Result<bool, Refused>,
        context: &Context,
        from: &str,
    ) -> Result<bool, Refused> {
        match &result {
            Ok(true) => self.holding.replace(Arc::new(held.holding.clone())),
            Ok(false) => {}
            Err(refused) => self.refusals.record(refused, from, context.clock.now()),
        }
        if result.as_ref().is_ok_and(|changed| *changed) {
            context.changes.tell();
        }
        result
    }
}

impl Held {
    async fn offer(
        &mut self,
        context: &Context,
        signed: SignedHead,
        pieces: Vec<Piece>,
        complete: bool,
    ) -> Result<bool, Refused> {
        let standing = self.holding.standing(&signed.head, &signed.digest);
        if standing != Standing::Foreign {
            self.newest_seen = self.newest_seen.max((signed.head.epoch, signed.head.version));
        }
        if let Some(reason) = BundleRefusal::of_standing(standing) {
            let (epoch, version) = (signed.head.epoch, signed.head.version);
            let held = &self.holding.signed().head;
            let text = format!("bundle {epoch}.{version}, while {}.{} is in force", held.epoch, held.version);
            return Err(Refused::new(reason, text));
        }
        let next = if standing == Standing::Same {
            let wanted: Vec<_> = pieces.into_iter().filter(|piece| self.holding.wants(&piece.digest)).collect();
            if wanted.is_empty() {
                return Ok(false);
            }
            self.holding.with(wanted)
        } else {
            self.holding.renewed(signed, pieces, complete, context.clock.now())
        };
        let next = next.map_err(|error| Refused::new(BundleRefusal::Malformed, error))?;
        self.apply(context, next, None).await?;
        Ok(true)
    }

    /// Puts a bundle in force, and a configuration where one is given. Nothing has changed when it fails.
    async fn apply(&mut self, context: &Context, next: Holding, raw: Option<Arc<Config>>) -> Result<(), Refused> {
        let raw = raw.unwrap_or_else(|| Arc::clone(&self.raw));
        let bundle = Arc::clone(next.bundle());
        let trust = context.trust().renew_with(Arc::clone(&bundle), start::options(&raw), unix_now());
        let trust = trust.map_err(|error| Refused::new(BundleRefusal::of_trust(&error), error))?;
        let config = Config { edges: known_edges(&raw, &bundle), ..Config::clone(&raw) };
        let head = bundle.head();
        if head.max_payload_bytes != context.shared.max_payload_bytes {
            tracing::warn!(max_payload = head.max_payload_bytes, "the new max_payload takes effect at the next start");
        }
        let too_many = |what: &str| Refused::new(BundleRefusal::TooMany, format!("too many {what}: restart the node"));
        let new_edges = config.edges.iter().filter(|edge| find_link(&self.links, edge).is_none()).count();
        if self.links.len() + new_edges > EDGE_KEYS_MAX {
            return Err(too_many("edges have come and gone"));
        }
        let brokers = context.shared.brokers().renew(head.nodes.iter().map(|entry| entry.node.clone()));
        let brokers = Arc::new(brokers.ok_or_else(|| too_many("brokers have come and gone"))?);
        let changed = next.signed().digest != self.holding.signed().digest || next.pieces().count() > 0;
        if changed && let Err(error) = stored::store(&raw, &next) {
            return Err(Refused::new(BundleRefusal::File, format!("{}: {error}", raw.state_dir.display())));
        }
        let sections: Vec<_> = bundle.sections().cloned().collect();
        let tenants = context.shared.tenants().renew(sections);
        let tenants = tenants.map_err(|error| Refused::new(BundleRefusal::TooMany, error))?;
        let tenants = Arc::new(tenants.bounded(config.rates).holding(crate::memory::bounds(&config)));
        // From here on nothing fails.
        self.epoch += 1;
        let first_new = self.links.len();
        let dialled = self.arrange_links(context, &config, &tenants);
        let policy = Arc::new(Policy::new(self.epoch, tenants));
        context.trust.replace(Arc::new(trust));
        context.shared.set_log_allow(config.broker_security_log_allow);
        context.config.replace(Arc::new(config));
        context.edges.add(self.links.iter().skip(first_new).map(|link| Arc::clone(link.edge())));
        let (links, now) = (self.links.clone(), context.clock.now());
        let renewal = Renewal { bundle: Arc::clone(&bundle), policy, brokers, links, now };
        context.control.apply(vec![Command::Change(Change::Renewal(Box::new(renewal)))]).await;
        for link in dialled {
            context.bridge_threads.spawn(&context.tasks, bridge::keep_dialled(context.clone(), link.edge().key()));
        }
        self.raw = raw;
        self.holding = next;
        let (epoch, version) = (bundle.head().epoch, bundle.head().version);
        tracing::info!(epoch, version, tenants = bundle.sections().len(), "bundle {epoch}.{version} is in force");
        Ok(())
    }

    /// Gives every configured edge its link and takes away what is configured no more. Returns those that need a dialler.
    fn arrange_links(
        &mut self,
        context: &Context,
        config: &Config,
        tenants: &glocal_core::tenant::Tenants,
    ) -> Vec<Arc<Link>> {
        let before = context.config();
        let mut kept = Vec::new();
        let mut dialled = Vec::new();
        for edge in &config.edges {
            let shape = |e: &EdgeConfig| (e.rate_bits_per_second, e.lane_bytes_max, e.queue_bytes_max);
            let known = before.edges.iter().find(|e| e.name == edge.name).map(shape);
            if let Some(link) = find_link(&self.links, edge) {
                let was_retired = link.edge().is_retired();
                link.edge().retire(false);
                let is_dedicated = edge.mode == EdgeMode::Dedicated;
                if link.edge().is_dedicated() != is_dedicated {
                    // The next bridge is opened in the new mode.
                    link.edge().set_dedicated(is_dedicated);
                    end_bridge(context, link);
                }
                if known != Some(shape(edge)) {
                    start::shape(link, edge, context.clock);
                }
                kept.push(link.edge().key());
                if was_retired {
                    // Its dialler has ended with it.
                    dialled.push(Arc::clone(link));
                }
                continue;
            }
            let key = EdgeKey(u32::try_from(self.links.len()).unwrap_or(u32::MAX));
            let link = start::link(edge, key, tenants, context.clock);
            self.links.push(Arc::clone(&link));
            kept.push(key);
            dialled.push(link);
        }
        for link in self.links.iter().filter(|link| !kept.contains(&link.edge().key())) {
            link.edge().retire(true);
            end_bridge(context, link);
        }
        dialled
    }
}

/// Ends the bridge of an edge, if there is one.
fn end_bridge(context: &Context, link: &Link) {
    let status = context.edges.get(link.edge().key());
    if let Some(held) = status.and_then(|status| status.holder.lock().as_ref().map(|h| h.cancel.clone())) {
        held.cancel();
    }
}

fn find_link<'l>(links: &'l [Arc<Link>], edge: &EdgeConfig) -> Option<&'l Arc<Link>> {
    links.iter().find(|link| *link.edge().name() == edge.name && *link.edge().peer() == edge.peer)
}

/// The configured edges that the bundle has; others wait for a bundle that does.
fn known_edges(raw: &Config, bundle: &glocal_core::bundle::Bundle) -> Vec<EdgeConfig> {
    let is_known = |edge: &EdgeConfig| {
        let entry = bundle.edge(&edge.name);
        entry.is_some_and(|e| (e.a == raw.node && e.b == edge.peer) || (e.b == raw.node && e.a == edge.peer))
    };
    if raw.edges.iter().all(|edge| !is_known(edge)) && !raw.edges.is_empty() {
        return Vec::new();
    }
    let known = Config { edges: raw.edges.iter().filter(|edge| is_known(edge)).cloned().collect(), ..raw.clone() };
    start::edges(&known, bundle).unwrap_or_else(|error| {
        tracing::warn!("{error}");
        known.edges
    })
}

/// Why a file of a bundle was not taken.
fn unread(error: &trust::BundleLoadError) -> Refused {
    Refused::new(BundleRefusal::of_file(&error.source), format!("{error}: {}", error.source))
}

/// The names of an edge list, for reports.
fn names(edges: &[EdgeConfig]) -> Vec<&Label> {
    edges.iter().map(|edge| &edge.name).collect()
}
