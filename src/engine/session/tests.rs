//! Tests of native sessions: every frame in every state, and what policy answers.

use glocal_core::count::Drop as DropReason;
use glocal_core::deny::Deny;
use glocal_core::identity::Role;
use glocal_wire::control::{
    AllowedApplied, AllowedSet, AllowedUpdate, AnnounceBroker, AnnounceSender, BridgeError, BridgeHello, BundleGet,
    BundleNews, BundlePart, Delivered, ForgetHandles, Interest, InterestNews, InterestPull, InterestSum, InterestSync,
    LinkAgree, LinkDigest, LinkDown, LinkKey, LinkObserver, LinkPropose, LinkUp, Memberless, NoMember, Overflowed,
    PathProbeAck, Ping, Pong, Presence, PresenceEnd, Probe, ProbeAck, Ready, Routed, SectionOffer, Subscribed,
    TenantAttach, TenantAttached, Unsubscribe,
};

use super::*;
use crate::testing::{
    Client, Got, NOW, Node, Relayed, denied, encode, hello, in_group, messages, parse, publish, subscribe,
};

mod again;
mod delivery;
mod rates;
mod states;

fn counted(node: &Node, tenant: &str) -> u64 {
    let tenant = node.tenant(tenant);
    Class::ALL
        .iter()
        .map(|class| {
            let c = tenant.counters().class(*class);
            let drops: u64 = DropReason::ALL.iter().map(|reason| c.drops(*reason)).sum();
            let all = [&c.published, &c.published_bytes, &c.delivered, &c.relayed_out, &c.relayed_in, &c.unmatched];
            drops + all.iter().map(|counter| counter.value()).sum::<u64>()
        })
        .sum()
}
