//! Advisories: what the node tells a tenant of the tenant's own sessions, as messages of the tenant
//! (`T.<tenant>.ctrl.advisory.<event>[.<region>.<agent>]`, DESIGN section 4).
//!
//! The node speaks as INTERNAL, for one named tenant per advisory, through the same policy and routing as everybody. An
//! advisory speaks of its own tenant only. They are limited per tenant; what is left out is counted in the next.

use std::sync::Arc;

use glocal_core::count::Drop as DropReason;
use glocal_core::deny::Deny;
use glocal_core::identity::Principal;
use glocal_core::limits::ADVISORIES_PER_SECOND;
use glocal_core::name::Class;
use glocal_core::port::Dialect;
use glocal_core::rate::LogLimiter;
use glocal_core::tenant::{Tenant, TenantKey};
use glocal_core::time::Time;
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::client::{Client, Effects, Identity, Outgoing, Unpublished};
use crate::driver::Command;
use crate::shared::Shared;

/// What happened to a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It was opened.
    Connect,
    /// It has ended.
    Disconnect {
        /// Why.
        reason: String,
    },
    /// An operation of it was refused.
    Denied {
        /// `read` or `write`.
        access: &'static str,
        /// What it wanted, as its client wrote it, possibly cut.
        subject: String,
        /// The catalogued reason.
        code: &'static str,
    },
    /// It does not read as fast as it is sent to.
    SlowConsumer {
        /// Messages it has lost by that so far.
        dropped: u64,
    },
}

impl Event {
    const fn token(&self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Disconnect { .. } => "disconnect",
            Self::Denied { .. } => "denied",
            Self::SlowConsumer { .. } => "slow-consumer",
        }
    }
}

/// The node's voice towards its tenants.
#[derive(Debug)]
pub struct Advisor {
    shared: Arc<Shared>,
    /// A lock of its own for each: no tenant waits while another one's subscribers are told.
    voices: Mutex<HashMap<TenantKey, Arc<Mutex<Voice>>>>,
}

#[derive(Debug)]
struct Voice {
    identity: Identity,
    client: Client,
    limiter: LogLimiter,
}

impl Advisor {
    /// A node that has told nobody anything.
    #[must_use]
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, voices: Mutex::default() }
    }

    /// Tells the tenant of `principal` what happened to one of its sessions. Nothing is made where nobody listens. What
    /// comes back is for the control half: subscriptions that have had their last delivery.
    #[must_use]
    pub fn tell(&self, principal: &Principal, session: u64, event: &Event, now: Time) -> Vec<Command> {
        let id = principal.tenant();
        let Some(tenant) = self.shared.tenant(id.as_str()) else { return Vec::new() };
        let table = tenant.table();
        if table.filters() == 0 && table.unsynced().is_empty() {
            return Vec::new();
        }
        drop(table);
        let voice = self.voice(&tenant, now);
        let mut voice = voice.lock();
        let voice = &mut *voice;
        let Some(left_out) = voice.limiter.allow(now) else { return Vec::new() };
        let name = name(principal, event);
        let payload = payload(&self.shared, principal, session, event, left_out).to_string();
        let outgoing = Outgoing { name: name.as_bytes(), payload: payload.as_bytes(), ..Outgoing::default() };
        let mut effects = Effects::default();
        let published = voice.client.publish(&voice.identity, &outgoing, now, &mut effects);
        if matches!(published, Err(Unpublished::Wait(_) | Unpublished::Denied(_, Deny::Congested))) {
            // The node waits for nobody: what finds no room is lost, and counted.
            tenant.counters().class(Class::Ctrl).dropped(DropReason::Congested, 1);
        } else {
            debug_assert!(published.is_ok(), "the node may always advise its tenants: {published:?}");
        }
        effects.batch.flush(&self.shared, now);
        effects.commands
    }

    fn voice(&self, tenant: &Tenant, now: Time) -> Arc<Mutex<Voice>> {
        let make = || {
            let speaker = Arc::new(Principal::internal(tenant.id().clone()));
            let identity = Identity::new(Arc::clone(&self.shared), speaker, now);
            let client = Client::open(&identity, Dialect::Native, Class::Ctrl, true, now);
            let limiter = LogLimiter::new(ADVISORIES_PER_SECOND, now);
            Arc::new(Mutex::new(Voice { identity, client, limiter }))
        };
        Arc::clone(self.voices.lock().entry(tenant.key()).or_insert_with(make))
    }
}

fn name(principal: &Principal, event: &Event) -> String {
    let head = format!("T.{}.ctrl.advisory.{}", principal.tenant(), event.token());
    match principal.named() {
        Some((region, agent)) => format!("{head}.{region}.{agent}"),
        None => head,
    }
}

fn payload(shared: &Shared, principal: &Principal, session: u64, event: &Event, left_out: u64) -> serde_json::Value {
    let label = |label: Option<&glocal_core::name::Label>| label.map(ToString::to_string);
    let mut body = serde_json::json!({
        "event": event.token(),
        "node": shared.node.to_string(),
        "session": session,
        "region": label(principal.region()),
        "agent": label(principal.agent()),
        "uid": principal.uid(),
    });
    let more = match event {
        Event::Connect => serde_json::json!({}),
        Event::Disconnect { reason } => serde_json::json!({ "reason": reason }),
        Event::Denied { access, subject, code } => {
            serde_json::json!({ "access": access, "subject": subject, "code": code })
        }
        Event::SlowConsumer { dropped } => serde_json::json!({ "dropped": dropped }),
    };
    if let (Some(body), serde_json::Value::Object(more)) = (body.as_object_mut(), more) {
        body.extend(more);
        if left_out > 0 {
            body.insert("left_out".to_owned(), left_out.into());
        }
    }
    body
}

#[cfg(test)]
mod tests;
