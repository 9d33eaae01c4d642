//! Helpers of the tests: three brokers in a line as values, clients that speak frames, and a peer that forges lanes.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use glocal_core::bundle::{AgentRule, EdgeEntry, Grant, Head, NodeEntry, Section};
use glocal_core::control::Control as ControlHalf;
use glocal_core::count::Drop as DropReason;
use glocal_core::edge::{Edge, EdgeKey, TenantSet};
use glocal_core::identity::{Fingerprint, KeyId, LeafName, Principal, Role};
use glocal_core::name::{Class, Label, NodeId, RawFilter, TenantId};
use glocal_core::policy::Policy;
use glocal_core::rate::RateLimits;
use glocal_core::sched::{Drops, HdwrrConfig};
use glocal_core::tenant::{Tenant, Tenants};
use glocal_core::time::{Time, UnixTime};
use glocal_core::topology::{Consent, LinkCrypto, LinkKey, LinkMessage, LinkRecord, LinkState, PublicKey, Signature};
use glocal_wire::control::{Control, Hello, PROTOCOL_VERSION, Subscribe};
use glocal_wire::data::{DataFrame, DataHead, DataKind};
use glocal_wire::ext::ExtBuilder;
use glocal_wire::frame::{FrameLimits, Next, next_frame};
use glocal_wire::slice::{OpenHeader, SliceHeader, SliceKind};

use crate::driver::{Command, Driver, Outcome};
use crate::lane_reader::{Arrivals, BridgeFault, Carries, Incoming, LaneReader};
use crate::link::Link;
use crate::machine::Machine;
use crate::session::{Effects, NativeSession, SessionEnd};
use crate::shared::Shared;

pub(crate) const NOW: Time = Time(1_000_000);
pub(crate) const NODES: [&str; 3] = ["global/g", "region-a/a", "region-b/b"];
pub(crate) const EDGES: [(&str, usize, usize); 2] = [("a-global", 0, 1), ("b-global", 0, 2)];

pub(crate) fn label(text: &str) -> Label {
    Label::parse(text).unwrap()
}

pub(crate) fn head() -> Head {
    let mut head = Head::empty(label("demo"), UnixTime(0), UnixTime(1));
    head.max_payload_bytes = 64 * 1024;
    let node = |n: &str| NodeId::parse(n).unwrap();
    head.nodes = NODES
        .iter()
        .map(|n| NodeEntry { node: node(n), tenant: TenantId::parse("ops").unwrap(), issuers: Vec::new() })
        .collect();
    head.edges = EDGES
        .iter()
        .map(|(name, a, b)| EdgeEntry { name: label(name), a: node(NODES[*a]), b: node(NODES[*b]) })
        .collect();
    head
}

fn sections() -> Vec<Arc<Section>> {
    let section = |tenant: &str, edges: &[&str]| {
        let mut section = Section::new(TenantId::parse(tenant).unwrap(), [0; 16]);
        section.edges = edges.iter().map(|e| label(e)).collect();
        section
    };
    let mut private = section("private", &["a-global", "b-global"]);
    private.owner_only_replies = true;
    private.rules.push(AgentRule {
        region: None,
        agent: None,
        deny: true,
        write: true,
        filter: RawFilter::parse(b"forbidden.>").unwrap(),
    });
    private.grants.push(Grant {
        name: label("intake"),
        tenant: TenantId::parse("tenantB").unwrap(),
        write: true,
        filter: RawFilter::parse(b"intake.>").unwrap(),
    });
    [
        section("tenantA", &["a-global", "b-global"]),
        section("tenantB", &["b-global"]),
        section("cresco-system", &["a-global", "b-global"]),
        private,
    ]
    .map(Arc::new)
    .to_vec()
}

pub(crate) fn principal(tenant: &str, agent: &str, role: Role) -> Arc<Principal> {
    let leaf = LeafName {
        tenant: TenantId::parse(tenant).unwrap(),
        region: Some(label("region-a")),
        agent: Some(label(agent)),
        node: None,
        serial: vec![1],
        not_before: UnixTime(0),
        not_after: UnixTime(1),
    };
    Arc::new(Principal::from_leaf(leaf, role, KeyId([0; 32]), Fingerprint([7; 32])))
}

pub(crate) fn node_principal(name: &str) -> Arc<Principal> {
    let node = NodeId::parse(name).unwrap();
    let leaf = LeafName {
        tenant: TenantId::parse("ops").unwrap(),
        region: Some(node.region().clone()),
        agent: Some(node.agent().clone()),
        node: Some(node),
        serial: vec![1],
        not_before: UnixTime(0),
        not_after: UnixTime(1),
    };
    Arc::new(Principal::from_leaf(leaf, Role::Node, KeyId([0; 32]), Fingerprint([9; 32])))
}

/// Signatures that say which broker and life they are of, and no more.
#[derive(Debug)]
pub(crate) struct Seal(pub(crate) NodeId);

impl Seal {
    fn key(node: &NodeId) -> PublicKey {
        let mut key = [0; 32];
        key.iter_mut().zip(node.to_string().bytes()).for_each(|(slot, byte)| *slot = byte);
        key
    }
}

impl LinkCrypto for Seal {
    fn own_key(&self) -> LinkKey {
        LinkKey {
            node: self.0.clone(),
            incarnation: 7,
            key: Self::key(&self.0),
            chain: vec![vec![1]],
            signature: vec![1],
        }
    }

    fn sign(&self, _: &[u8]) -> Signature {
        let mut out = [0; 64];
        out[..32].copy_from_slice(&Self::key(&self.0));
        out
    }

    fn verify_key(&self, key: &LinkKey, _: &[u8]) -> bool {
        key.key == Self::key(&key.node)
    }

    fn verify(&self, key: &PublicKey, _: &[u8], signature: &Signature) -> bool {
        signature[..32] == key[..]
    }
}

/// The state of an edge of [`EDGES`], as both its ends say.
pub(crate) fn link_up(number: usize) -> LinkMessage {
    let (name, a, b) = EDGES[number];
    let word = |n: usize| Consent { incarnation: 7, signature: Seal(NodeId::parse(NODES[n]).unwrap()).sign(&[]) };
    let state = LinkState::Up { epoch: 1, revision: 0, cost: 1, ends: [word(a), word(b)] };
    LinkMessage::Record(LinkRecord::State { edge: label(name), state })
}

/// The key of a broker.
pub(crate) fn link_key(number: usize) -> LinkMessage {
    LinkMessage::Record(LinkRecord::Key(Seal(NodeId::parse(NODES[number]).unwrap()).own_key()))
}

/// One broker.
pub(crate) struct Node {
    pub(crate) shared: Arc<Shared>,
    pub(crate) driver: Driver,
    /// Numbers of this node's edges, in the order of their keys.
    pub(crate) edges: Vec<usize>,
}

impl Node {
    /// Broker `index` of the line, its edges down.
    pub(crate) fn new(index: usize) -> Self {
        let name = NodeId::parse(NODES[index]).unwrap();
        let tenants = Arc::new(Tenants::new(sections()));
        let mut links = Vec::new();
        let mut numbers = Vec::new();
        for (number, (edge, a, b)) in EDGES.iter().enumerate().filter(|(_, (_, a, b))| *a == index || *b == index) {
            let peer = NodeId::parse(NODES[if *a == index { *b } else { *a }]).unwrap();
            let key = EdgeKey(u32::try_from(links.len()).unwrap());
            links.push(Arc::new(Link::new(Arc::new(Edge::new(key, label(edge), peer)), HdwrrConfig::default())));
            numbers.push(number);
        }
        let edges = links.iter().map(|link| Arc::clone(link.edge())).collect();
        let control =
            ControlHalf::new(&name, 7, &head(), Arc::clone(&tenants), edges, Box::new(Seal(name.clone()))).unwrap();
        let brokers = Arc::clone(control.brokers());
        let own = brokers.own().unwrap();
        let policy = Arc::new(Policy::new(1, tenants));
        let shared = Arc::new(Shared::new(name, own, 7, &head(), policy, brokers, links, false));
        Self { driver: Driver::new(control, Arc::clone(&shared)), shared, edges: numbers }
    }

    pub(crate) fn tenant(&self, id: &str) -> Arc<Tenant> {
        Arc::clone(self.shared.tenants().by_id(id).unwrap())
    }

    /// What has been counted of a tenant's messages, class by class: in the order published, its bytes, delivered, unmatched,
    /// and dropped by reason.
    pub(crate) fn counted(&self, id: &str) -> Vec<u64> {
        let tenant = self.tenant(id);
        let of = |class: &Class| {
            let c = tenant.counters().class(*class);
            let counted = [&c.published, &c.published_bytes, &c.delivered, &c.unmatched].map(|counter| counter.value());
            counted.into_iter().chain(DropReason::ALL.iter().map(|reason| c.drops(*reason))).collect::<Vec<_>>()
        };
        Class::ALL.iter().flat_map(of).collect()
    }

    /// Limits what a tenant may publish here.
    pub(crate) fn limit(&self, id: &str, limits: RateLimits) {
        self.tenant(id).ingress().set(limits);
    }

    /// What the bundle lets edge `number` carry.
    pub(crate) fn allowed(&self, number: usize) -> TenantSet {
        let carries = |t: &&Arc<Tenant>| t.section().edges.iter().any(|e| e.as_str() == EDGES[number].0);
        self.shared.tenants().iter().filter(carries).map(|t| t.key()).collect()
    }

    /// Brings the bridge of one edge up, as far as this side is concerned; the peer sends `lists` full lists.
    pub(crate) fn up(&mut self, number: usize, lists: u32) {
        let edge = self.key(number);
        let effective = self.allowed(number);
        self.driver.apply(Command::EdgeUp { edge, effective, peer_incarnation: 7 });
        self.driver.apply(Command::EdgeReady { edge, lists });
        // The peer tells of the rest of the fabric.
        let told = (0..NODES.len()).map(link_key).chain((0..EDGES.len()).map(link_up)).collect::<Vec<_>>();
        for message in told {
            let _ = self.driver.apply(Command::LinkState { edge, message });
        }
        self.driver.commit(NOW);
    }

    pub(crate) fn key(&self, number: usize) -> EdgeKey {
        EdgeKey(u32::try_from(self.edges.iter().position(|n| *n == number).unwrap()).unwrap())
    }

    pub(crate) fn link(&self, number: usize) -> Arc<Link> {
        self.shared.link(self.key(number)).unwrap()
    }

    /// The receiving half of the bridge of one edge.
    pub(crate) fn reader(&self, number: usize) -> LaneReader {
        LaneReader::new(self.incoming(number))
    }

    pub(crate) fn incoming(&self, number: usize) -> Arc<Incoming> {
        let edge = Arc::clone(self.link(number).edge());
        let peer = node_principal(&edge.peer().to_string());
        Arc::new(Incoming::new(Arc::clone(&self.shared), edge, peer, Carries::Everybody))
    }

    /// Applies what arrived; the outcomes of the commands come back.
    pub(crate) fn carry_out(&mut self, arrivals: &mut Arrivals) -> Vec<Outcome> {
        let outcomes = arrivals.commands.drain(..).map(|command| self.driver.apply(command)).collect();
        self.driver.commit(NOW);
        arrivals.batch.flush(&self.shared, NOW);
        outcomes
    }

    pub(crate) fn connect(&self, tenant: &str, agent: &str, role: Role) -> Client {
        let principal = principal(tenant, agent, role);
        let session = NativeSession::new(Arc::clone(&self.shared), principal, 0xabcd, NOW);
        Client { session, effects: Effects::default(), buffer: BytesMut::new() }
    }

    /// A client of `tenant` that has said hello.
    pub(crate) fn client(&mut self, tenant: &str, agent: &str) -> Client {
        let role = if tenant == "cresco-system" { Role::Superuser } else { Role::Tenant };
        let mut client = self.connect(tenant, agent, role);
        assert!(matches!(&client.say(self, hello(true))[..], [Got::Control(Control::Welcome(_))]));
        client
    }
}

pub(crate) fn hello(echo: bool) -> Control {
    Hello { versions: vec![PROTOCOL_VERSION], features: 0, client: "t".into(), default_class: 0, echo }.into()
}

pub(crate) fn subscribe(sid: u32, filter: &str) -> Control {
    Subscribe { sid, filter: filter.into(), queue: None, local_only: false }.into()
}

pub(crate) fn in_group(sid: u32, filter: &str, queue: &str) -> Control {
    Subscribe { sid, filter: filter.into(), queue: Some(queue.into()), local_only: false }.into()
}

pub(crate) fn encode(control: &Control) -> BytesMut {
    let mut out = BytesMut::new();
    control.encode_into(&mut out).unwrap();
    out
}

/// A publish frame.
pub(crate) fn publish(class: Option<Class>, seq: Option<u64>, name: &str, reply: &str, payload: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    let head = DataHead { seq, ..DataHead::new(DataKind::Publish, class) };
    head.encode_into(&mut out, &[], name.as_bytes(), reply.as_bytes(), &[], payload).unwrap();
    out
}

/// One frame a client was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    Control(Control),
    Message {
        name: String,
        sids: Vec<u32>,
        sender: String,
        reply: String,
        payload: Vec<u8>,
        class: Class,
        redelivered: bool,
    },
}

/// The frames in `bytes`, all complete.
pub(crate) fn parse(bytes: &[u8]) -> Vec<Got> {
    let mut out = Vec::new();
    let mut rest = bytes;
    let limits = FrameLimits::open(8 << 20);
    while !rest.is_empty() {
        let used = match next_frame(rest, &limits).unwrap() {
            Next::Need(_) => panic!("an incomplete frame"),
            Next::Control { kind, body, frame_bytes } => {
                out.push(Got::Control(Control::decode(kind, body, 1 << 16).unwrap().unwrap()));
                frame_bytes
            }
            Next::Data { frame, frame_bytes } => {
                out.push(message(&frame));
                frame_bytes
            }
        };
        rest = &rest[used..];
    }
    out
}

fn message(frame: &DataFrame<'_>) -> Got {
    assert_eq!(frame.kind, DataKind::Deliver);
    let fields = frame.ext.fields();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    Got::Message {
        name: text(frame.name),
        sids: fields.subs.unwrap().iter().collect(),
        sender: fields.sender_text.unwrap().to_owned(),
        reply: text(frame.reply),
        payload: frame.payload.to_vec(),
        class: frame.class.unwrap(),
        redelivered: fields.redelivered,
    }
}

/// One client with its session.
pub(crate) struct Client {
    pub(crate) session: NativeSession,
    pub(crate) effects: Effects,
    buffer: BytesMut,
}

impl Client {
    /// Feeds bytes and carries out everything, as the node does.
    pub(crate) fn feed(&mut self, node: &mut Node, bytes: &[u8]) -> Result<(), SessionEnd> {
        self.feed_at(node, bytes, NOW)
    }

    /// The same at another moment.
    pub(crate) fn feed_at(&mut self, node: &mut Node, bytes: &[u8], now: Time) -> Result<(), SessionEnd> {
        self.buffer.extend_from_slice(bytes);
        loop {
            let used = self.session.on_bytes(&self.buffer, now, &mut self.effects)?;
            let waiting = !self.effects.commands.is_empty();
            let _ = self.buffer.split_to(used);
            for command in self.effects.commands.drain(..) {
                node.driver.apply(command);
            }
            node.driver.commit(now);
            self.effects.batch.flush(&node.shared, now);
            if !waiting || self.buffer.is_empty() {
                return Ok(());
            }
        }
    }

    /// Sends a control frame and reads all that comes.
    pub(crate) fn say(&mut self, node: &mut Node, control: Control) -> Vec<Got> {
        self.send(node, &encode(&control))
    }

    /// Sends bytes and reads all that comes.
    pub(crate) fn send(&mut self, node: &mut Node, bytes: &[u8]) -> Vec<Got> {
        self.feed(node, bytes).unwrap();
        self.read()
    }

    /// Publishes and reads all that comes.
    pub(crate) fn publish(&mut self, node: &mut Node, name: &str, payload: &[u8]) -> Vec<Got> {
        self.send(node, &publish(None, None, name, "", payload))
    }

    /// Reads all that comes.
    pub(crate) fn read(&mut self) -> Vec<Got> {
        let mut bytes = self.effects.replies.split().to_vec();
        if let Some(port) = self.session.port() {
            let mut parts = Vec::new();
            port.inbox().with(|lanes| lanes.fill(usize::MAX, NOW, &mut parts, &mut Drops::new()));
            parts.iter().for_each(|part| bytes.extend_from_slice(part));
        }
        parse(&bytes)
    }
}

pub(crate) fn denied(got: &[Got]) -> Vec<(u8, u64, String)> {
    got.iter()
        .filter_map(|g| match g {
            Got::Control(Control::Denied(d)) => Some((d.access, d.id, d.code.clone())),
            _ => None,
        })
        .collect()
}

pub(crate) fn messages(got: &[Got]) -> Vec<String> {
    got.iter()
        .filter_map(|g| match g {
            Got::Message { name, payload, .. } => Some(format!("{name}={}", String::from_utf8_lossy(payload))),
            Got::Control(_) => None,
        })
        .collect()
}

/// A slice of a lane; an opening one where tenant and class are given.
pub(crate) fn slice(lane: u32, open: Option<(Class, &str)>, data: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    let open = open.map(|(class, tenant)| OpenHeader { class, tenant });
    let len = u32::try_from(data.len() + open.map_or(0, |o| o.encoded_bytes())).unwrap();
    let kind = if open.is_some() { SliceKind::Open } else { SliceKind::Data };
    SliceHeader { lane, len, kind }.encode_into(&mut out).unwrap();
    if let Some(open) = open {
        open.encode_into(&mut out).unwrap();
    }
    out.extend_from_slice(data);
    out
}

pub(crate) fn reset(lane: u32) -> BytesMut {
    let mut out = BytesMut::new();
    SliceHeader { lane, len: 0, kind: SliceKind::Reset }.encode_into(&mut out).unwrap();
    out
}

/// A relayed message as a peer makes it.
#[derive(Clone)]
pub(crate) struct Relayed<'r> {
    pub(crate) class: Class,
    pub(crate) hops: u8,
    pub(crate) seq: u64,
    pub(crate) origin: u32,
    pub(crate) sender: u32,
    pub(crate) targets: &'r [(u32, &'r [&'r str])],
    pub(crate) name: &'r str,
    pub(crate) reply: &'r str,
    pub(crate) payload: &'r [u8],
    /// Step and life of every target; none where each is the first message for this life.
    pub(crate) steps: &'r [(u32, u64)],
}

impl Relayed<'_> {
    pub(crate) fn encode(&self) -> BytesMut {
        let mut ext = ExtBuilder::new();
        ext.origin(self.origin).incarnation(7).sender(self.sender).reply_token(1);
        let mut targets = ext.targets();
        for (target, groups) in self.targets {
            targets.target(*target);
            groups.iter().for_each(|g| {
                targets.group(g);
            });
        }
        drop(targets);
        if self.class.is_reliable() {
            let step = |(at, _)| self.steps.get(at).copied().unwrap_or((0, 7));
            let steps = || self.targets.iter().enumerate().map(step);
            ext.steps(steps().map(|(back, _)| back)).lives(steps().map(|(_, life)| life));
        }
        let head =
            DataHead { hops: self.hops, seq: Some(self.seq), ..DataHead::new(DataKind::Relay, Some(self.class)) };
        let mut out = BytesMut::new();
        head.encode_into(
            &mut out,
            ext.bytes().unwrap(),
            self.name.as_bytes(),
            self.reply.as_bytes(),
            &[],
            self.payload,
        )
        .unwrap();
        out
    }
}

/// Feeds one chunk to a reader and carries out what came of it.
pub(crate) fn arrive(node: &mut Node, reader: &mut LaneReader, bytes: &[u8]) -> Result<Vec<Outcome>, BridgeFault> {
    let mut arrivals = Arrivals::default();
    let result = reader.on_chunk(Bytes::copy_from_slice(bytes), NOW, &mut arrivals);
    let outcomes = node.carry_out(&mut arrivals);
    result.map(|()| outcomes)
}
