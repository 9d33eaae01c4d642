//! The bodies of control frames and the range of each field.

use bincode::{Decode, Encode};
use glocal_core::limits::{
    ALLOWED_SET_MACS_MAX, CLIENT_NAME_BYTES_MAX, CODE_BYTES_MAX, HELLO_VERSIONS_MAX, INBOX_PREFIX_BYTES_MAX,
    LABEL_BYTES_MAX, MAX_PAYLOAD_BYTES_CEILING, NODE_ID_BYTES_MAX, QUALIFIED_BYTES_MAX, QUEUE_GROUP_BYTES_MAX,
    RAW_BYTES_MAX, ROLE_BYTES_MAX, ROUTED_BYTES_MAX, TEXT_BYTES_MAX, UID_BYTES_MAX,
};
use glocal_core::name::{Class, ClassSet};

/// Makes text for a control field out of bytes that may be of any length and encoding: bad UTF-8 is replaced, and what
/// exceeds `bytes_max` is cut at a character's start.
#[must_use]
pub fn clip(bytes: &[u8], bytes_max: usize) -> String {
    // Three bytes more, so that a character across the limit is seen whole and cut whole.
    let head = bytes.get(..bytes_max.saturating_add(3)).unwrap_or(bytes);
    let mut text = String::from_utf8_lossy(head).into_owned();
    while text.len() > bytes_max {
        text.pop();
    }
    text
}

pub(super) fn ensure(field: &'static str, good: bool) -> Result<(), &'static str> {
    if good { Ok(()) } else { Err(field) }
}

pub(super) fn at_most(field: &'static str, text: &str, bytes_max: usize) -> Result<(), &'static str> {
    ensure(field, text.len() <= bytes_max)
}

pub(super) fn option_at_most(field: &'static str, text: Option<&str>, bytes_max: usize) -> Result<(), &'static str> {
    ensure(field, text.is_none_or(|text| text.len() <= bytes_max))
}

fn versions(versions: &[u16]) -> Result<(), &'static str> {
    ensure("versions", (1..=HELLO_VERSIONS_MAX).contains(&versions.len()))
}

fn max_payload(bytes: u32) -> Result<(), &'static str> {
    ensure("max_payload", bytes <= MAX_PAYLOAD_BYTES_CEILING)
}

/// Declares bodies whose fields are all of fixed size and any value.
macro_rules! plain {
    ($($name:ident),*) => {$(
        impl $name {
            pub(super) const fn check(&self) -> Result<(), &'static str> {
                Ok(())
            }
        }
    )*};
}
plain!(Subscribed, Unsubscribe, Ack, Ping, Pong, Ready, Probe, ProbeAck, InterestSync, ForgetHandles, TenantAttached);

/// A client's first frame.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Hello {
    /// The protocol versions that the client speaks; at least one.
    pub versions: Vec<u16>,
    /// Optional features, one bit each; unknown bits are ignored.
    pub features: u64,
    /// What the client calls itself; only for logs.
    pub client: String,
    /// The class of publishes that name none.
    pub default_class: u8,
    /// Whether the session's own publishes are delivered to its own subscriptions.
    pub echo: bool,
}

impl Hello {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        versions(&self.versions)?;
        at_most("client", &self.client, CLIENT_NAME_BYTES_MAX)?;
        ensure("default_class", Class::from_code(self.default_class).is_some())
    }
}

/// The broker's answer to a hello: who the client is here, and what it may send.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Welcome {
    /// The protocol version that is spoken from now on.
    pub version: u16,
    /// The features that both sides have.
    pub features: u64,
    /// The broker's node id.
    pub node: String,
    /// The session's number on that broker.
    pub session: u64,
    /// The client's tenant, from its certificate.
    pub tenant: String,
    /// The client's role.
    pub role: String,
    /// The client's region, from its certificate.
    pub region: Option<String>,
    /// The client's agent name, from its certificate.
    pub agent: Option<String>,
    /// The first digits of the certificate's fingerprint.
    pub uid: String,
    /// The largest payload, in bytes.
    pub max_payload: u32,
    /// The prefix of the session's reply subjects; ends with a dot.
    pub inbox: String,
}

impl Welcome {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        at_most("node", &self.node, NODE_ID_BYTES_MAX)?;
        at_most("tenant", &self.tenant, LABEL_BYTES_MAX)?;
        at_most("role", &self.role, ROLE_BYTES_MAX)?;
        option_at_most("region", self.region.as_deref(), LABEL_BYTES_MAX)?;
        option_at_most("agent", self.agent.as_deref(), LABEL_BYTES_MAX)?;
        at_most("uid", &self.uid, UID_BYTES_MAX)?;
        max_payload(self.max_payload)?;
        ensure("inbox", self.inbox.len() <= INBOX_PREFIX_BYTES_MAX && self.inbox.ends_with('.'))
    }
}

/// A client subscribes.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Subscribe {
    /// The client's number for the subscription.
    pub sid: u32,
    /// The filter, raw or qualified.
    pub filter: String,
    /// The queue group that it joins.
    pub queue: Option<String>,
    /// Not advertised to other brokers: for reply inboxes.
    pub local_only: bool,
}

impl Subscribe {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        at_most("filter", &self.filter, QUALIFIED_BYTES_MAX)?;
        option_at_most("queue", self.queue.as_deref(), QUEUE_GROUP_BYTES_MAX)
    }
}

/// The subscription took effect.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Subscribed {
    /// The client's number for the subscription.
    pub sid: u32,
}

/// A client unsubscribes.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Unsubscribe {
    /// The client's number for the subscription.
    pub sid: u32,
    /// After this many deliveries in all; at once without.
    pub max: Option<u64>,
}

/// An operation was refused; the session stays open.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Denied {
    /// 0 for reading, 1 for writing.
    pub access: u8,
    /// The subscription's number or the publish's sequence number; 0 without.
    pub id: u64,
    /// The subject or filter as the client wrote it, possibly cut.
    pub subject: String,
    /// The code in the catalogue of deny reasons.
    pub code: String,
    /// The reason in words.
    pub text: String,
    /// When trying again makes sense, in milliseconds.
    pub retry_after_ms: Option<u32>,
}

impl Denied {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        ensure("access", self.access <= 1)?;
        at_most("subject", &self.subject, QUALIFIED_BYTES_MAX)?;
        at_most("code", &self.code, CODE_BYTES_MAX)?;
        at_most("text", &self.text, TEXT_BYTES_MAX)
    }
}

/// A publish on a reliable class was accepted here, and copies are on their way to its targets.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Ack {
    /// The publish's sequence number.
    pub seq: u64,
    /// How many sessions here and brokers elsewhere were chosen; observers are not counted.
    pub targets: u32,
}

/// A request matched nobody in the mesh.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NoResponders {
    /// The publish's sequence number; 0 without.
    pub seq: u64,
    /// The request's subject.
    pub subject: String,
    /// The request's reply subject.
    pub reply: String,
}

impl NoResponders {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        at_most("subject", &self.subject, QUALIFIED_BYTES_MAX)?;
        at_most("reply", &self.reply, QUALIFIED_BYTES_MAX)
    }
}

/// Asks for a pong after all earlier commands took effect.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Ping {
    /// Comes back in the pong.
    pub token: u64,
}

/// Answers a ping.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Pong {
    /// From the ping.
    pub token: u64,
}

/// The sender is about to close.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Goodbye {
    /// Why, as a code.
    pub code: String,
    /// Why, in words.
    pub text: String,
    /// How long the connection stays, in milliseconds.
    pub grace_ms: u32,
}

impl Goodbye {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        at_most("code", &self.code, CODE_BYTES_MAX)?;
        at_most("text", &self.text, TEXT_BYTES_MAX)
    }
}

/// The peer broke the protocol; the sender closes.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Error {
    /// What was wrong, as a code.
    pub code: String,
    /// What was wrong, in words.
    pub text: String,
}

impl Error {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        at_most("code", &self.code, CODE_BYTES_MAX)?;
        at_most("text", &self.text, TEXT_BYTES_MAX)
    }
}

/// A broker's first frame on a bridge's control stream.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct BridgeHello {
    /// The protocol versions that the broker speaks; at least one.
    pub versions: Vec<u16>,
    /// Optional features, one bit each; unknown bits are ignored.
    pub features: u64,
    /// The fabric's id.
    pub fabric: String,
    /// The broker's node id; must equal its certificate's.
    pub node: String,
    /// The broker's incarnation.
    pub incarnation: u64,
    /// The edge that this bridge is of.
    pub edge: String,
    /// The number of the dial within the incarnation; higher is newer.
    pub dial: u64,
    /// The largest payload, in bytes.
    pub max_payload: u32,
    /// 0 for plain tenant ids, 1 for opaque ones.
    pub tenant_id_form: u8,
    /// The epoch of the broker's bundle.
    pub bundle_epoch: u64,
    /// The version of the broker's bundle.
    pub bundle_version: u64,
}

impl BridgeHello {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        versions(&self.versions)?;
        at_most("fabric", &self.fabric, LABEL_BYTES_MAX)?;
        at_most("node", &self.node, NODE_ID_BYTES_MAX)?;
        at_most("edge", &self.edge, LABEL_BYTES_MAX)?;
        max_payload(self.max_payload)?;
        ensure("tenant_id_form", self.tenant_id_form <= 1)
    }
}

/// A part of the sender's allowed tenants for this edge, each as an HMAC under a TLS exporter.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AllowedSet {
    /// The codes.
    pub macs: Vec<[u8; 16]>,
    /// Whether the set is complete.
    pub last: bool,
}

impl AllowedSet {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        ensure("macs", self.macs.len() <= ALLOWED_SET_MACS_MAX)
    }
}

/// The sender knows the effective set, opens lanes, and says what to expect in them.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Ready {
    /// For how many tenants full lists of interest follow, in their lanes.
    pub tenants: u32,
}

/// Liveness probe.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Probe {
    /// Comes back in the answer.
    pub id: u64,
}

/// Answers a probe.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ProbeAck {
    /// From the probe.
    pub id: u64,
}

/// The peer broke the protocol; the sender closes the bridge.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct BridgeError {
    /// What was wrong, as a code.
    pub code: String,
    /// What was wrong, in words.
    pub text: String,
}

impl BridgeError {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        at_most("code", &self.code, CODE_BYTES_MAX)?;
        at_most("text", &self.text, TEXT_BYTES_MAX)
    }
}

/// A broker's first frame on a connection of one tenant: which bridge it belongs to, and which tenant.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TenantAttach {
    /// The edge.
    pub edge: String,
    /// The dialler's incarnation, as in the bridge's hello.
    pub incarnation: u64,
    /// The number of the bridge's dial, as in its hello.
    pub dial: u64,
    /// The number of this connection's own dial within the incarnation; higher is newer.
    pub number: u64,
    /// The tenant's code under the exporter of this connection.
    pub tenant: [u8; 16],
    /// That whoever opened this connection holds the bridge: a code under the bridge's exporter over this connection's.
    pub proof: [u8; 32],
}

impl TenantAttach {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        at_most("edge", &self.edge, LABEL_BYTES_MAX)
    }
}

/// The sender has taken the connection for the tenant's, and accepts its lanes from now on.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TenantAttached {
    /// From the attach.
    pub number: u64,
}

/// Gives a broker a handle, within one lane.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AnnounceBroker {
    /// The handle.
    pub handle: u32,
    /// The broker's node id.
    pub node: String,
    /// The broker's incarnation.
    pub incarnation: u64,
}

impl AnnounceBroker {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        at_most("node", &self.node, NODE_ID_BYTES_MAX)
    }
}

/// Gives a sender a handle, within one lane.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AnnounceSender {
    /// The handle.
    pub handle: u32,
    /// The session's number on its broker.
    pub session: u64,
    /// The sender's tenant.
    pub tenant: String,
    /// The sender's region.
    pub region: Option<String>,
    /// The sender's agent name.
    pub agent: Option<String>,
    /// The first digits of the certificate's fingerprint.
    pub uid: String,
}

impl AnnounceSender {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        at_most("tenant", &self.tenant, LABEL_BYTES_MAX)?;
        option_at_most("region", self.region.as_deref(), LABEL_BYTES_MAX)?;
        option_at_most("agent", self.agent.as_deref(), LABEL_BYTES_MAX)?;
        at_most("uid", &self.uid, UID_BYTES_MAX)
    }
}

/// A change of what subscribers behind a broker want, in the lane of their tenant.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Interest {
    /// The broker's handle.
    pub origin: u32,
    /// The number of the change at its origin.
    pub seq: u64,
    /// Whether the interest is added, or removed.
    pub add: bool,
    /// The raw filter.
    pub filter: String,
    /// The classes, one bit each; at least one.
    pub classes: u8,
    /// The queue group.
    pub queue: Option<String>,
    /// Whether it is an observer's, who never counts as a responder.
    pub observer: bool,
}

impl Interest {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        at_most("filter", &self.filter, RAW_BYTES_MAX)?;
        ensure("classes", self.classes != 0 && ClassSet::from_bits(self.classes).is_some())?;
        option_at_most("queue", self.queue.as_deref(), QUEUE_GROUP_BYTES_MAX)
    }
}

/// Frames a full list of one broker's interest.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct InterestSync {
    /// The broker's handle.
    pub origin: u32,
    /// The number of the last change that the list includes.
    pub seq: u64,
    /// Whether to forget what was known: a full list follows, unless this is also the last of it, which says that
    /// nothing is known of the broker any more.
    pub reset: bool,
    /// Whether the list is complete.
    pub last: bool,
}

/// A target had no member for a message; the ingress picks again.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NoMember {
    /// The handle of the broker that says so.
    pub target: u32,
    /// The handle of the message's origin.
    pub origin: u32,
    /// The message's sequence number.
    pub seq: u64,
    /// The queue group without a member; none when nobody at all was there.
    pub group: Option<String>,
}

impl NoMember {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        option_at_most("group", self.group.as_deref(), QUEUE_GROUP_BYTES_MAX)
    }
}

/// A control frame for a broker that need not be the neighbour, in the lane of its tenant. Brokers on the way pass it on
/// towards the target and do not look into it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Routed {
    /// The handle of the broker it is for.
    pub target: u32,
    /// The handle of the broker it is from.
    pub origin: u32,
    /// Brokers passed before this one.
    pub hops: u8,
    /// The kind of the frame inside.
    pub kind: u8,
    /// The body of the frame inside.
    pub body: Vec<u8>,
}

impl Routed {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        ensure("body", self.body.len() <= ROUTED_BYTES_MAX)
    }
}

/// Ends the meaning of all handles announced in this lane so far: the sender has used up what a lane may hold.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ForgetHandles {
    /// How many handles lose their meaning.
    pub count: u32,
}
