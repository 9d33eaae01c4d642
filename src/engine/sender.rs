//! Senders: who published a message, as stamped by the broker at which it entered.

use std::sync::Arc;

use glocal_core::identity::Principal;
use glocal_core::routes::BrokerIndex;
use glocal_wire::control::AnnounceSender;

/// One publishing session, here or on another broker.
#[derive(Debug)]
pub struct Sender {
    handle: u32,
    origin: BrokerIndex,
    info: AnnounceSender,
    text: String,
}

impl Sender {
    /// A session of this broker; `handle` is unique on this node.
    #[must_use]
    pub fn local(handle: u32, own: BrokerIndex, session: u64, principal: &Principal) -> Arc<Self> {
        let info = AnnounceSender {
            handle,
            session,
            tenant: principal.tenant().to_string(),
            region: principal.region().map(ToString::to_string),
            agent: principal.agent().map(ToString::to_string),
            uid: principal.uid(),
        };
        Arc::new(Self { handle, origin: own, text: text(&info), info })
    }

    /// A session of another broker, as that broker announced it, under a handle of this node.
    #[must_use]
    pub fn remote(handle: u32, origin: BrokerIndex, info: AnnounceSender) -> Arc<Self> {
        let info = AnnounceSender { handle, ..info };
        Arc::new(Self { handle, origin, text: text(&info), info })
    }

    /// The handle on this node, used in every lane it sends on.
    #[must_use]
    pub const fn handle(&self) -> u32 {
        self.handle
    }

    /// The broker at which the sender's messages enter.
    #[must_use]
    pub const fn origin(&self) -> BrokerIndex {
        self.origin
    }

    /// The announcement of this sender under its handle.
    #[must_use]
    pub const fn info(&self) -> &AnnounceSender {
        &self.info
    }

    /// How subscribers of `tenant` are told of it: region and agent within the tenant, the tenant's name otherwise.
    #[must_use]
    pub fn text(&self, tenant: &str) -> &str {
        if self.info.tenant == tenant { &self.text } else { &self.info.tenant }
    }
}

fn text(info: &AnnounceSender) -> String {
    match (&info.region, &info.agent) {
        (Some(region), Some(agent)) => format!("{region}/{agent}"),
        _ => info.tenant.clone(),
    }
}
