//! Changes of a running node: a newer bundle or another configuration, and edges that carry other tenants than before.
//!
//! What nothing changed for keeps its lanes, its queue and its place in the order. What was taken away is refused, purged
//! and counted in the same step.

use std::sync::Arc;

use glocal_core::bundle::Bundle;
use glocal_core::control::{Narrowed, Refused};
use glocal_core::deny::{Access, DenyLine};
use glocal_core::edge::{EdgeKey, TenantSet};
use glocal_core::policy::Policy;
use glocal_core::routes::Brokers;
use glocal_core::time::Time;
use glocal_core::topology::LinkCrypto;

use super::{Command, Driver, not_subscribed};
use crate::link::Link;
use crate::{reliable, tally};

/// What has changed.
#[derive(Debug)]
pub enum Change {
    /// The bundle, or this node's edges.
    Renewal(Box<Renewal>),
    /// The two ends of a live bridge have agreed on what it carries.
    Edge {
        /// The edge.
        edge: EdgeKey,
        /// What the peer is known to accept.
        sends: TenantSet,
        /// What both ends allow.
        accepts: TenantSet,
        /// Now.
        now: Time,
    },
    /// This node begins another life: it was heard of in a later one.
    Life(Box<Life>),
    /// The peer of an edge has taken the bundle that is in force here.
    PeerHasBundle {
        /// The edge.
        edge: EdgeKey,
    },
}

/// Another life of this node, stored already.
#[derive(Debug)]
pub struct Life {
    /// Its number.
    pub incarnation: u64,
    /// What signs for the node's edges in it.
    pub crypto: Box<dyn LinkCrypto>,
    /// Now.
    pub now: Time,
}

/// A newer bundle as this node holds it, or the same one with other edges.
#[derive(Debug)]
pub struct Renewal {
    /// The bundle.
    pub bundle: Arc<Bundle>,
    /// The policy over its tenants, of a later epoch.
    pub policy: Arc<Policy>,
    /// Its brokers.
    pub brokers: Arc<Brokers>,
    /// Every link since the node's start, indexed by edge key; edges that have gone are retired.
    pub links: Vec<Arc<Link>>,
    /// Now.
    pub now: Time,
}

impl Driver {
    /// Log lines of standing subscriptions that were ended, escaped.
    pub fn take_denials(&mut self) -> Vec<String> {
        std::mem::take(&mut self.denials)
    }

    pub(super) fn change(&mut self, change: Change) {
        match change {
            Change::Renewal(renewal) => self.renew(*renewal),
            Change::Edge { edge, sends, accepts, now } => {
                let narrowed = self.control.edge_change(edge, sends, accepts, now);
                self.purge(&narrowed);
            }
            Change::PeerHasBundle { edge } => self.control.peer_has_bundle(edge),
            Change::Life(life) => self.begin_life(*life),
        }
    }

    fn begin_life(&mut self, life: Life) {
        let links = Arc::clone(&self.shared.links());
        for link in links.iter().filter(|link| link.edge().is_up()) {
            self.apply(Command::EdgeDown { edge: link.edge().key() });
        }
        self.shared.set_incarnation(life.incarnation);
        self.control.begin_life(life.incarnation, life.crypto);
        reliable::begin_life(&self.shared, life.incarnation, life.now);
        tally::begin_life(&self.shared);
    }

    fn renew(&mut self, renewal: Renewal) {
        let Renewal { bundle, policy, brokers, links, now } = renewal;
        let head = bundle.head();
        let edges = links.iter().map(|link| link.edge()).filter(|edge| !edge.is_retired()).cloned().collect();
        self.shared.renew((head.epoch, head.version), Arc::clone(&policy), Arc::clone(&brokers), links);
        let (refused, narrowed) = self.control.renew(head, brokers, edges, &policy, now);
        self.purge(&narrowed);
        for link in self.shared.links().iter() {
            link.inbox().with(|lanes| lanes.agree(policy.tenants(), now));
            // Who was above a cap may have something to send now.
            link.inbox().wake();
        }
        refused.into_iter().for_each(|refused| self.end_subscription(refused));
    }

    /// What is queued for tenants that an edge does not carry any more goes, counted.
    fn purge(&mut self, narrowed: &[Narrowed]) {
        let tenants = self.shared.tenants();
        for Narrowed { edge, tenant } in narrowed {
            self.pending.remove(&(*edge, *tenant));
            if let Some(link) = self.shared.link(*edge) {
                link.inbox().with(|lanes| lanes.purge(*tenant, &tenants));
            }
        }
    }

    fn end_subscription(&mut self, refused: Refused) {
        let Refused { port, sid, filter, reason } = refused;
        self.count_refusal(&port, reason);
        let line =
            DenyLine { access: Access::Read, destination: filter.as_bytes(), principal: port.principal(), reason };
        self.denials.push(line.to_string());
        let denied = not_subscribed(&port, sid, filter, reason);
        self.answers.push((port, denied.into()));
    }
}

#[cfg(test)]
mod tests;
