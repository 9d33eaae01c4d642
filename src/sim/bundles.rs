//! Bundles that change in a world of their own: brokers joined by control streams with delay, a fabric that signs newer
//! versions at random times, peers that lie about them.
//!
//! Each bridge runs the engine's own [`Gossip`] and [`Allowance`]; messages are tokens of a tenant. The oracle knows every
//! section that was ever signed. It holds that no section crosses an edge that neither its own nor an earlier version
//! names, or that one end's configuration forbids; that no end takes a token its own bundle and configuration forbid, and
//! refuses one only where it has narrowed since the sender was told; and that after a rest everybody goes by the newest
//! bundle and both ends of every edge carry exactly what it and they allow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use glocal_core::bundle::{Holding, Piece, SignedHead, Standing};
use glocal_core::edge::TenantSet;
use glocal_core::name::{Label, NodeId, TenantId};
use glocal_core::tenant::TenantKey;
use glocal_core::time::Time;
use glocal_engine::allowance::Allowance;
use glocal_engine::gossip::Gossip;
use glocal_engine::handshake::{Mac, PeerSet};
use glocal_wire::bundle::{Envelope, decode_head, decode_section};
use glocal_wire::control::{AllowedApplied, AllowedSet, BundleNews, BundlePart, Control, SectionOffer};

use crate::oracle::{Violation, ensure};
use crate::random::{Random, Trace};

mod check;
mod signing;

/// Longest way of a frame, in milliseconds.
const LONGEST_WAY_MS: usize = 120;
/// Actions of one seed.
const STEPS: usize = 400;

/// What a seed did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tale {
    /// Bundles that were signed.
    pub signed: u64,
    /// Sections that crossed an edge.
    pub sections: u64,
    /// Tokens that were taken.
    pub tokens: u64,
    /// Lies that were told.
    pub lies: u64,
}

/// One end of a bridge.
#[derive(Debug)]
struct End {
    gossip: Gossip,
    allowance: Allowance,
    /// What is in force: it changes when the control half has taken note, which here is at once.
    sends: TenantSet,
    accepts: TenantSet,
    /// When a tenant was last taken from `accepts`.
    narrowed: BTreeMap<TenantKey, Time>,
    words: VecDeque<(Time, Control)>,
    tokens: VecDeque<(Time, Time, TenantKey)>,
}

#[derive(Debug)]
struct Edge {
    name: Label,
    ends: [usize; 2],
    configured: [BTreeSet<usize>; 2],
    bridge: [End; 2],
}

impl Edge {
    /// The broker at one end.
    const fn node(&self, side: usize) -> usize {
        let [a, b] = self.ends;
        if side == 0 { a } else { b }
    }
}

/// A world of bundles.
#[derive(Debug)]
struct World {
    random: Random,
    now: Time,
    tenants: Vec<TenantId>,
    nodes: Vec<NodeId>,
    holdings: Vec<Holding>,
    revisions: Vec<u64>,
    edges: Vec<Edge>,
    /// Everything that was ever signed, by digest.
    heads: BTreeMap<[u8; 32], SignedHead>,
    pieces: BTreeMap<[u8; 32], Piece>,
    /// Every edge that an earlier or the present section of a tenant names.
    named: BTreeMap<usize, BTreeSet<Label>>,
    newest: SignedHead,
    tale: Tale,
}

/// Runs one seed.
///
/// # Errors
/// The first broken promise.
pub fn run(seed: u64) -> Result<Tale, Violation> {
    let mut world = World::draw(seed).ok_or_else(|| Violation("the world of bundles cannot be drawn".to_owned()))?;
    for _ in 0..STEPS {
        world.act()?;
        world.pump()?;
    }
    // Whatever liars and twins have left behind, one more version settles it.
    world.sign(false);
    world.hand();
    for _ in 0..400 {
        world.now = world.now.plus_millis(100);
        world.pump()?;
    }
    world.check()?;
    Ok(world.tale)
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    for (part, salt) in out.chunks_mut(8).zip(0u64..) {
        let mut trace = Trace::default();
        trace.number(salt);
        trace.bytes(bytes);
        part.copy_from_slice(&trace.hash().to_le_bytes());
    }
    out
}

/// The fabric's signature; liars do not know how it is made.
fn signature(bytes: &[u8]) -> Bytes {
    let mut out = digest(b"the bundle key").to_vec();
    out.extend(digest(bytes));
    Bytes::from(out)
}

fn mac(edge: &Label, tenant: &TenantId) -> Mac {
    let hash = digest(format!("{edge} {tenant}").as_bytes());
    hash.first_chunk::<16>().copied().unwrap_or_default()
}

fn key(tenant: usize) -> TenantKey {
    TenantKey(u32::try_from(tenant).unwrap_or(u32::MAX))
}

impl World {
    fn draw(seed: u64) -> Option<Self> {
        let mut random = Random::new(seed ^ 0x62_756e_646c_6573);
        let count = random.between(2, 5);
        let nodes: Vec<NodeId> = (0..count).filter_map(|n| NodeId::parse(&format!("r{n}/n{n}")).ok()).collect();
        let tenants: Vec<TenantId> =
            (0..random.between(1, 4)).filter_map(|n| TenantId::parse(&format!("tenant{n}")).ok()).collect();
        // A tree, and now and then an edge more.
        let mut ends: Vec<[usize; 2]> = (1..count).map(|node| [random.below(node), node]).collect();
        if count > 2 && random.chance(50) {
            ends.push([0, count - 1]);
        }
        let mut world = Self {
            now: Time::from_millis(1),
            holdings: Vec::new(),
            revisions: vec![1; count],
            edges: Vec::new(),
            heads: BTreeMap::new(),
            pieces: BTreeMap::new(),
            named: BTreeMap::new(),
            newest: Self::head(&nodes, &ends, 0, &[])?,
            tale: Tale::default(),
            random,
            tenants,
            nodes,
        };
        world.sign_for(&ends)?;
        let all: Vec<Piece> = world.listed();
        for node in 0..count {
            // Each starts with what its edges may carry.
            let mine = |piece: &&Piece| {
                let touches = |n: &usize, ends: &[usize; 2]| ends.contains(n);
                ends.iter().enumerate().any(|(n, ends)| touches(&node, ends) && piece.section.edges.contains(&name(n)))
            };
            world.holdings.push(Holding::new(world.newest.clone(), all.iter().filter(mine).cloned().collect()).ok()?);
        }
        for (number, ends) in ends.into_iter().enumerate() {
            let every = 0..world.tenants.len();
            let configured = [0, 1].map(|_| every.clone().filter(|_| world.random.chance(85)).collect());
            let bridge = [0, 1].map(|_| End::new(name(number), world.now));
            world.edges.push(Edge { name: name(number), ends, configured, bridge });
            world.connect(number);
        }
        Some(world)
    }

    /// Gives one broker the newest bundle, with the sections of its edges.
    fn hand(&mut self) {
        let node = self.random.below(self.nodes.len());
        let mine: BTreeSet<Label> =
            self.edges.iter().filter(|edge| edge.ends.contains(&node)).map(|edge| edge.name.clone()).collect();
        let fits = |piece: &Piece| piece.section.edges.iter().any(|edge| mine.contains(edge));
        let pieces = self.listed().into_iter().filter(fits).collect();
        self.offer(node, self.newest.clone(), pieces, true);
    }

    /// Offers a verified head, as a node does. Whether it was taken.
    fn offer(&mut self, node: usize, signed: SignedHead, pieces: Vec<Piece>, complete: bool) -> bool {
        let Some(holding) = self.holdings.get(node) else { return false };
        if holding.standing(&signed.head, &signed.digest) != Standing::Newer {
            return false;
        }
        match holding.renewed(signed, pieces, complete, self.now) {
            Ok(next) => self.hold(node, next),
            Err(_) => false,
        }
    }

    fn hold(&mut self, node: usize, next: Holding) -> bool {
        if let (Some(holding), Some(revision)) = (self.holdings.get_mut(node), self.revisions.get_mut(node)) {
            *holding = next;
            *revision += 1;
        }
        for edge in 0..self.edges.len() {
            self.look(edge, node);
        }
        true
    }

    /// What a broker's bundle and configuration allow on an edge.
    fn own(&self, edge: &Edge, side: usize) -> Vec<(TenantKey, Mac)> {
        let holding = edge.ends.get(side).and_then(|node| self.holdings.get(*node));
        let configured = edge.configured.get(side);
        let allowed = self.tenants.iter().enumerate().filter(|(number, tenant)| {
            configured.is_some_and(|set| set.contains(number))
                && holding.is_some_and(|holding| holding.bundle().edge_allows(&edge.name, tenant.as_str()))
        });
        allowed.map(|(number, tenant)| (key(number), mac(&edge.name, tenant))).collect()
    }

    /// A bridge comes up anew: both sets are exchanged.
    fn connect(&mut self, number: usize) {
        let Some(edge) = self.edges.get(number) else { return };
        let own = [0, 1].map(|side| self.own(edge, side));
        let revisions = edge.ends.map(|node| self.revisions.get(node).copied().unwrap_or(0));
        let (name, now) = (edge.name.clone(), self.now);
        let Some(edge) = self.edges.get_mut(number) else { return };
        let [first, second] = own;
        let macs = |set: &[(TenantKey, Mac)]| {
            let mut peer = PeerSet::default();
            let frame = AllowedSet { macs: set.iter().map(|(_, mac)| *mac).collect(), last: true };
            // The set of a few tenants is no larger than a fabric's.
            let _ = peer.add(frame);
            peer
        };
        let (of_first, of_second) = (macs(&first), macs(&second));
        let [a, b] = &mut edge.bridge;
        *a = End::new(name.clone(), now);
        *b = End::new(name, now);
        a.allowance = Allowance::settled(first, of_second, revisions[0], now);
        b.allowance = Allowance::settled(second, of_first, revisions[1], now);
        for end in [a, b] {
            end.apply(now);
        }
        for side in edge.ends {
            self.look(number, side);
        }
    }

    /// One broker looks at one of its edges, as a bridge does after a change.
    fn look(&mut self, number: usize, node: usize) {
        let Some(edge) = self.edges.get(number) else { return };
        let Some(side) = edge.ends.iter().position(|end| *end == node) else { return };
        let own = self.own(edge, side);
        let (Some(holding), revision) = (self.holdings.get(node), self.revisions.get(node).copied().unwrap_or(0))
        else {
            return;
        };
        let bundle = (holding.signed().head.epoch, holding.signed().head.version);
        let (tenants, now, random) = (&self.tenants, self.now, &mut self.random);
        let Some(edge) = self.edges.get_mut(number) else { return };
        let configured = edge.configured.get(side).cloned().unwrap_or_default();
        let [a, b] = &mut edge.bridge;
        let (end, other) = if side == 0 { (a, b) } else { (b, a) };
        let frames = end.allowance.change(own, bundle, revision);
        if !frames.is_empty() {
            end.apply(now);
        }
        other.hear(frames.into_iter().map(Control::from), now, random);
        end.gossip.look(holding, |tenant| allows(tenants, &configured, tenant), now);
    }

    fn act(&mut self) -> Result<(), Violation> {
        self.now = self.now.plus_micros(self.random.between(1, 60_000) as u64);
        match self.random.below(20) {
            0 => {
                self.sign(false);
                self.hand();
            }
            1 => self.hand(),
            2 => {
                self.sign(true);
                let twins: Vec<_> = self.heads.values().cloned().collect();
                if let Some(head) = self.random.pick(&twins).cloned() {
                    // An old one, the newest, or one of two of the same version.
                    let node = self.random.below(self.nodes.len());
                    self.offer(node, head, Vec::new(), false);
                }
            }
            3 => {
                let edge = self.random.below(self.edges.len());
                self.connect(edge);
            }
            4 | 5 => self.lie()?,
            6 => self.reconfigure(),
            _ => self.send(),
        }
        Ok(())
    }

    /// One end's own configuration changes.
    fn reconfigure(&mut self) {
        let (number, side) = (self.random.below(self.edges.len()), self.random.below(2));
        let tenant = self.random.below(self.tenants.len());
        let Some(edge) = self.edges.get_mut(number) else { return };
        let node = edge.node(side);
        let Some(set) = edge.configured.get_mut(side) else { return };
        if !set.remove(&tenant) {
            set.insert(tenant);
        }
        if let Some(revision) = self.revisions.get_mut(node) {
            *revision += 1;
        }
        for edge in 0..self.edges.len() {
            self.look(edge, node);
        }
    }

    /// A message of any tenant that one end may send.
    fn send(&mut self) {
        let (number, side) = (self.random.below(self.edges.len()), self.random.below(2));
        let (now, delay) = (self.now, self.random.between(1, LONGEST_WAY_MS));
        let Some(edge) = self.edges.get_mut(number) else { return };
        let [a, b] = &mut edge.bridge;
        let (end, other) = if side == 0 { (a, b) } else { (b, a) };
        let may: Vec<_> = end.sends.iter().collect();
        if let Some(tenant) = self.random.pick(&may) {
            other.tokens.push_back((now.plus_millis(delay as u64), now, *tenant));
        }
    }

    /// A peer says what no honest one would.
    fn lie(&mut self) -> Result<(), Violation> {
        self.tale.lies += 1;
        let (number, side) = (self.random.below(self.edges.len()), self.random.below(2));
        let all: Vec<_> = self.pieces.values().cloned().collect();
        let Some(piece) = self.random.pick(&all).cloned() else { return Ok(()) };
        let digests = vec![piece.digest, [self.random.byte(); 32]];
        let made_up = [self.random.byte(); 32];
        let control: Control = match self.random.below(4) {
            // A version that does not exist, at the end of all versions.
            0 => BundleNews { epoch: 1, version: u64::MAX, digest: made_up }.into(),
            // The same version with other bytes.
            1 => BundleNews { epoch: 1, version: self.newest.head.version, digest: made_up }.into(),
            // A section that the edge may not carry.
            2 => SectionOffer { digests }.into(),
            // What nobody has asked for.
            _ => {
                let total = u32::try_from(piece.bytes.len()).unwrap_or(0);
                BundlePart { digest: piece.digest, total, offset: 0, bytes: piece.bytes.to_vec() }.into()
            }
        };
        let Some(edge) = self.edges.get_mut(number) else { return Ok(()) };
        let node = edge.node(side);
        let before = self.holdings.get(node).map(|holding| holding.signed().digest);
        let forged = matches!(&control, Control::BundleNews(_));
        self.take(number, side, control)?;
        if forged {
            // It answers what it is asked with a head that nobody has signed.
            let bytes = vec![self.random.byte(); 200];
            let answer = BundlePart { digest: made_up, total: 200, offset: 0, bytes };
            self.take(number, side, answer.into())?;
        }
        let after = self.holdings.get(node).map(|holding| holding.signed().digest);
        ensure!(before == after, "a liar has changed the head of {node}");
        Ok(())
    }

    /// Delivers what has arrived and lets everybody say what they have to say.
    fn pump(&mut self) -> Result<(), Violation> {
        for node in 0..self.holdings.len() {
            let expired = self.holdings.get(node).and_then(|holding| holding.expired(self.now));
            if let Some(Ok(next)) = expired {
                self.hold(node, next);
            }
        }
        for number in 0..self.edges.len() {
            for side in 0..2 {
                while let Some(control) = self.due(number, side) {
                    self.take(number, side, control)?;
                }
                self.take_tokens(number, side)?;
                self.say(number, side)?;
            }
        }
        Ok(())
    }

    fn due(&mut self, number: usize, side: usize) -> Option<Control> {
        let now = self.now;
        let end = self.edges.get_mut(number)?.bridge.get_mut(side)?;
        end.words.front().filter(|(time, _)| *time <= now)?;
        end.words.pop_front().map(|(_, control)| control)
    }

    /// What one end has to say about bundles goes on its way.
    fn say(&mut self, number: usize, side: usize) -> Result<(), Violation> {
        loop {
            let Some(edge) = self.edges.get_mut(number) else { return Ok(()) };
            let Some(holding) = self.holdings.get(edge.node(side)) else { return Ok(()) };
            let configured = edge.configured.get(side).cloned().unwrap_or_default();
            let tenants = &self.tenants;
            let [a, b] = &mut edge.bridge;
            let (end, other) = if side == 0 { (a, b) } else { (b, a) };
            let Some(control) = end.gossip.next(holding, |tenant| allows(tenants, &configured, tenant)) else {
                return Ok(());
            };
            if let Control::BundlePart(part) = &control
                && let Some(piece) = self.pieces.get(&part.digest).filter(|_| part.total > 0)
            {
                self.tale.sections += u64::from(part.offset == 0);
                let number = self.tenants.iter().position(|tenant| *tenant == piece.section.tenant).unwrap_or(0);
                let named = self.named.get(&number).is_some_and(|edges| edges.contains(&edge.name));
                ensure!(named, "a section of {} crosses {}, which no version names", piece.section.tenant, edge.name);
                ensure!(configured.contains(&number), "{} crosses {} against configuration", number, edge.name);
            }
            other.hear(std::iter::once(control), self.now, &mut self.random);
        }
    }

    /// One end takes a frame of the other, as a node does.
    fn take(&mut self, number: usize, side: usize, control: Control) -> Result<(), Violation> {
        let (now, node) = (self.now, self.edges.get(number).map_or(0, |edge| edge.node(side)));
        let Some(holding) = self.holdings.get(node).cloned() else { return Ok(()) };
        let Some(edge) = self.edges.get_mut(number) else { return Ok(()) };
        let [a, b] = &mut edge.bridge;
        let (end, other) = if side == 0 { (a, b) } else { (b, a) };
        let mut arrival = None;
        match control {
            Control::AllowedUpdate(frame) => match end.allowance.on_update(frame, now) {
                Ok(Some(arrived)) => {
                    end.apply(now);
                    let answer = AllowedApplied { generation: arrived.generation }.into();
                    other.hear(std::iter::once(answer), now, &mut self.random);
                }
                Ok(None) => {}
                Err(_) => self.connect(number),
            },
            Control::AllowedApplied(frame) => {
                if end.allowance.on_applied(&frame) {
                    end.apply(now);
                }
            }
            Control::BundleNews(news) => end.gossip.on_news(news, &holding, now),
            Control::SectionOffer(offer) => end.gossip.on_offer(&offer, &holding, now),
            Control::BundleGet(get) => {
                if end.gossip.on_get(get).is_err() {
                    self.connect(number);
                }
            }
            Control::BundlePart(part) => match end.gossip.on_part(part, now) {
                Ok(whole) => arrival = whole,
                Err(_) => self.connect(number),
            },
            other => return Err(Violation(format!("unexpected {}", other.name()))),
        }
        if let Some(arrival) = arrival {
            self.arrive(number, side, arrival.digest, arrival.is_head, arrival.bytes);
        }
        self.look(number, node);
        Ok(())
    }

    /// A head or a section has come; it is verified before anything of it is believed.
    fn arrive(&mut self, number: usize, side: usize, asked: [u8; 32], is_head: bool, bytes: Bytes) {
        let Some(edge) = self.edges.get_mut(number) else { return };
        let node = edge.node(side);
        if is_head {
            let verified = Envelope::decode(&bytes)
                .ok()
                .filter(|envelope| digest(&envelope.head) == asked && signature(&envelope.head) == envelope.signature);
            let signed = verified.and_then(|envelope| {
                let head = decode_head(&envelope.head).ok()?;
                let (bytes, signature) = (Bytes::from(envelope.head), Bytes::from(envelope.signature));
                let certificate = Bytes::from(envelope.bundle_key_cert);
                Some(SignedHead { head, digest: asked, bytes, signature, certificate })
            });
            if !signed.is_some_and(|signed| self.offer(node, signed, Vec::new(), false))
                && let Some(end) = self.edges.get_mut(number).and_then(|edge| edge.bridge.get_mut(side))
            {
                end.gossip.reject(asked);
            }
            return;
        }
        let Ok(section) = decode_section(&bytes) else { return };
        let piece = Piece { section: Arc::new(section), digest: digest(&bytes), bytes };
        let configured = edge.configured.get(side).cloned().unwrap_or_default();
        let may = allows(&self.tenants, &configured, &piece.section.tenant);
        let Some(holding) = self.holdings.get(node) else { return };
        if piece.digest == asked
            && holding.admits(&piece, &edge.name, may)
            && let Ok(next) = holding.with([piece])
        {
            self.hold(node, next);
        }
    }

    fn take_tokens(&mut self, number: usize, side: usize) -> Result<(), Violation> {
        let Some(edge) = self.edges.get(number) else { return Ok(()) };
        let own: BTreeSet<TenantKey> = self.own(edge, side).into_iter().map(|(key, _)| key).collect();
        let now = self.now;
        let Some(end) = self.edges.get_mut(number).and_then(|edge| edge.bridge.get_mut(side)) else { return Ok(()) };
        let (due, later): (VecDeque<_>, VecDeque<_>) = end.tokens.drain(..).partition(|(at, ..)| *at <= now);
        end.tokens = later;
        for (_, sent, tenant) in due {
            if end.accepts.contains(tenant) {
                ensure!(own.contains(&tenant), "edge {number} takes {tenant:?} against its own bundle");
                self.tale.tokens += 1;
                continue;
            }
            // Only a narrowing that the sender could not know of yet explains it.
            let narrowed = end.narrowed.get(&tenant).copied();
            let known_by = narrowed.map(|at| at.plus_millis(2 * LONGEST_WAY_MS as u64 + 200));
            ensure!(
                known_by.is_some_and(|at| sent <= at),
                "edge {number} refuses {tenant:?}, sent at {sent:?}, narrowed at {narrowed:?}"
            );
        }
        Ok(())
    }
}

impl End {
    fn new(edge: Label, now: Time) -> Self {
        Self {
            gossip: Gossip::new(edge, now),
            allowance: Allowance::settled(Vec::new(), PeerSet::default(), 0, now),
            sends: TenantSet::default(),
            accepts: TenantSet::default(),
            narrowed: BTreeMap::new(),
            words: VecDeque::new(),
            tokens: VecDeque::new(),
        }
    }

    /// Puts both sets in force.
    fn apply(&mut self, now: Time) {
        let accepts = self.allowance.accepts();
        for tenant in self.accepts.minus(&accepts).iter() {
            self.narrowed.insert(tenant, now);
        }
        (self.sends, self.accepts) = (self.allowance.sends(), accepts);
    }

    /// Frames for this end go on their way, in order.
    fn hear(&mut self, frames: impl Iterator<Item = Control>, now: Time, random: &mut Random) {
        for frame in frames {
            let earliest = self.words.back().map_or(now, |(time, _)| *time);
            let at = now.plus_millis(random.between(1, LONGEST_WAY_MS) as u64);
            self.words.push_back((earliest.max(at), frame));
        }
    }
}

/// The name of an edge by its number.
fn name(number: usize) -> Label {
    // Letters and digits make a label.
    Label::parse(&format!("e{number}")).unwrap_or_else(|_| unreachable!("'e' and a number are a label"))
}

fn allows(tenants: &[TenantId], configured: &BTreeSet<usize>, tenant: &TenantId) -> bool {
    tenants.iter().position(|known| known == tenant).is_some_and(|number| configured.contains(&number))
}
