//! Topology: which edges of the fabric are up, and what crossing them costs (DESIGN section 5).
//!
//! The bundle says which edges exist; their ends say how they are, in signed records that flood over the control streams
//! of bridges and name no tenant. A state is believed when both its signatures are good, and passed on once. A broker
//! that hears something untrue of an edge of its own says so. Routes are computed from what is believed here.
//!
//! Cost of a change: the state of an edge is one record with one order, wherever it was told first, so that every edge
//! carries it at most once in each direction: 2·E records for an edge, degree·2·E for the death of a broker.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::bundle::Head;
use crate::edge::EdgeKey;
use crate::limits::{LINK_COST_MAX, LINK_EPOCH_AHEAD_MAX};
use crate::name::Label;
use crate::routes::{BrokerIndex, Brokers};
use crate::time::Time;

pub(crate) mod digest;
mod life;
mod observer;
mod own;
mod record;

pub use digest::{BUCKETS, Digest};
pub use life::{Exceed, Lives};
pub use observer::Observer;
pub use record::{Consent, LinkCrypto, LinkKey, LinkRecord, LinkState, PublicKey, Signature, Word};

/// Something that is told to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    /// A broker's key; before the states it signs.
    Key(BrokerIndex),
    /// An edge of the fabric, by its place in [`Topology::edges`].
    State(usize),
    /// A broker's word of its observers.
    Observer(BrokerIndex),
}

/// Why a record of a peer was not taken. Only a bad signature is the peer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The bundle here has no such broker or edge.
    #[error("the bundle has no such broker or edge")]
    Unknown,
    /// The key that would verify it has not come.
    #[error("its signer's key is not known")]
    NoKey,
    /// A signature is wrong.
    #[error("a signature is wrong")]
    Signature,
    /// A number is beyond what an honest broker sends.
    #[error("a number is out of range")]
    Range,
    /// Another broker under this broker's name.
    #[error("another broker bears this one's name")]
    OwnName,
    /// This broker itself is known in a later life than this one, by its own key: its clock or its disk has gone back.
    #[error("this broker is known in a later life of its own, {0}")]
    LaterLife(u64),
}

#[derive(Debug)]
struct FabricEdge {
    name: Label,
    ends: [BrokerIndex; 2],
    state: Option<LinkState>,
}

impl FabricEdge {
    /// Whether `broker` has signed the state that is known, in a life that fits.
    fn is_by(&self, broker: BrokerIndex, fits: impl Fn(u64) -> bool) -> bool {
        let signed = |end: usize, consent: &Consent| self.ends.get(end) == Some(&broker) && fits(consent.incarnation);
        match &self.state {
            Some(LinkState::Up { ends, .. }) => ends.iter().enumerate().any(|(end, consent)| signed(end, consent)),
            Some(LinkState::Down { by, end, .. }) => signed(*by, end),
            None => false,
        }
    }
}

/// One edge of this broker, from its own side.
#[derive(Debug)]
struct OwnEdge {
    name: Label,
    place: usize,
    /// This broker's end: 0 for the lesser one.
    end: usize,
    metric: u32,
    peer_metric: u32,
    /// The epoch that both sides agreed on, while the bridge is up.
    epoch: Option<u64>,
    proposed: u64,
    /// The round-trip times measured last, in microseconds.
    rtts: VecDeque<u64>,
    /// Whether the bridge is up.
    up: bool,
    /// What the neighbour has still to be told.
    dirty: BTreeSet<Item>,
    /// What goes ahead of it.
    words: Vec<LinkMessage>,
    /// When the cost was told last.
    cost_told: Option<Time>,
}

/// What one neighbour says to the other about their own edge; it goes no further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NeighbourWord {
    /// The epoch that this side proposes for the new bridge, and its metric.
    Propose {
        /// The epoch.
        epoch: u64,
        /// The metric.
        metric: u32,
    },
    /// The greater end agrees to the epoch.
    Agree {
        /// The epoch.
        epoch: u64,
        /// Its word.
        end: Consent,
    },
    /// What this side knows, in short.
    Digest {
        /// The digest.
        digest: Digest,
        /// Whether it answers one.
        answer: bool,
    },
    /// What this side knows of who is present, over all tenants that the edge carries, in one number.
    Presence {
        /// The digest.
        root: u64,
    },
}

/// What goes over a control stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkMessage {
    /// For this neighbour.
    Word(NeighbourWord),
    /// For everybody.
    Record(LinkRecord),
}

/// The state of every edge of the fabric, as this broker believes it.
#[derive(Debug)]
pub struct Topology {
    fabric: Label,
    own: BrokerIndex,
    incarnation: u64,
    names: BTreeMap<Label, usize>,
    edges: Vec<FabricEdge>,
    own_edges: BTreeMap<EdgeKey, OwnEdge>,
    keys: BTreeMap<BrokerIndex, LinkKey>,
    observers: BTreeMap<BrokerIndex, Observer>,
    observers_changed: bool,
    crypto: Box<dyn LinkCrypto>,
    brokers: Arc<Brokers>,
    changed: bool,
    sent: u64,
    /// When neighbours were last told the digest.
    compared: Time,
}

impl Topology {
    /// The fabric of `head`, of which nothing is known but this broker's own key.
    #[must_use]
    pub fn new(
        head: &Head,
        own: BrokerIndex,
        incarnation: u64,
        brokers: Arc<Brokers>,
        crypto: Box<dyn LinkCrypto>,
    ) -> Self {
        let edges = edges_of(head, &brokers);
        let names = edges.iter().enumerate().map(|(place, edge)| (edge.name.clone(), place)).collect();
        let keys = BTreeMap::from([(own, crypto.own_key())]);
        let own_edges = BTreeMap::new();
        let fabric = head.fabric.clone();
        Self {
            fabric,
            own,
            incarnation,
            names,
            edges,
            own_edges,
            keys,
            observers: BTreeMap::new(),
            observers_changed: false,
            crypto,
            brokers,
            changed: true,
            sent: 0,
            compared: Time(0),
        }
    }

    /// Begins another life of this broker, for which `crypto` signs. Its edges must be down; what it said in the life before
    /// is void, as for a restart.
    pub fn begin_life(&mut self, incarnation: u64, crypto: Box<dyn LinkCrypto>) {
        self.incarnation = incarnation;
        self.crypto = crypto;
        let own = self.own;
        self.keys.insert(own, self.crypto.own_key());
        let of_earlier_life = |edge: &&mut FabricEdge| edge.is_by(own, |life| life < incarnation);
        self.edges.iter_mut().filter(of_earlier_life).for_each(|edge| edge.state = None);
        if let Some(present) = self.observers.get(&own).map(|word| word.present) {
            self.observe(present);
        }
        self.changed = true;
        self.flood(Item::Key(own), None);
    }

    /// Adds an edge of this broker, down; `false` when the bundle has no such edge with this broker as an end.
    pub fn add_own(&mut self, key: EdgeKey, name: &Label, metric: u32) -> bool {
        let place = self.names.get(name).copied();
        let end = place.and_then(|p| self.edges.get(p)).and_then(|e| e.ends.iter().position(|b| *b == self.own));
        let Some((place, end)) = place.zip(end) else { return false };
        if let Some(own) = self.own_edges.get_mut(&key) {
            own.metric = metric;
            return true;
        }
        let edge = OwnEdge {
            name: name.clone(),
            place,
            end,
            metric,
            peer_metric: 0,
            epoch: None,
            proposed: 0,
            rtts: VecDeque::new(),
            up: false,
            dirty: BTreeSet::new(),
            words: Vec::new(),
            cost_told: None,
        };
        self.own_edges.insert(key, edge);
        true
    }

    /// Takes the edges and brokers of a newer bundle; what was told of those that stay is kept.
    pub fn renew(&mut self, head: &Head, brokers: Arc<Brokers>) {
        let before = std::mem::take(&mut self.edges);
        let mut known: BTreeMap<Label, FabricEdge> = before.into_iter().map(|edge| (edge.name.clone(), edge)).collect();
        self.edges = edges_of(head, &brokers);
        for edge in &mut self.edges {
            // The same name between other brokers is another edge.
            if let Some(same) = known.remove(&edge.name).filter(|known| known.ends == edge.ends) {
                edge.state = same.state;
            }
        }
        self.names = self.edges.iter().enumerate().map(|(place, edge)| (edge.name.clone(), place)).collect();
        self.keys.retain(|broker, _| brokers.name(*broker).is_some_and(|name| brokers.index(name).is_some()));
        self.observers.retain(|_, word| brokers.index(&word.node).is_some());
        self.observers_changed = true;
        self.brokers = brokers;
        let places = self.edges.len();
        for own in self.own_edges.values_mut() {
            let place = self.names.get(&own.name).copied();
            own.place = place.unwrap_or(places);
            // Places mean other edges now. The comparison of digests tells what was left.
            own.dirty.clear();
        }
        self.compared = Time(0);
        self.changed = true;
    }

    /// Forgets an edge of this broker.
    pub fn remove_own(&mut self, key: EdgeKey) {
        self.edge_down(key);
        self.own_edges.remove(&key);
    }

    /// The edges of the fabric with their ends, and the cost of those that are told to be up by both ends.
    pub fn edges(&self) -> impl Iterator<Item = (&Label, [BrokerIndex; 2], Option<u32>)> {
        self.edges.iter().map(|edge| {
            let cost = match &edge.state {
                Some(LinkState::Up { cost, .. }) => Some(*cost),
                _ => None,
            };
            (&edge.name, edge.ends, cost)
        })
    }

    /// The ends of an edge of the bundle.
    #[must_use]
    pub fn ends(&self, edge: &Label) -> Option<[BrokerIndex; 2]> {
        self.edges.get(*self.names.get(edge)?).map(|edge| edge.ends)
    }

    /// The life of a broker that is known by its key; zero when it is not.
    #[must_use]
    pub fn incarnation_of(&self, broker: BrokerIndex) -> u64 {
        self.keys.get(&broker).map_or(0, |key| key.incarnation)
    }

    /// The order of the state of an edge that is known; `None` where none is.
    #[must_use]
    pub fn order_of(&self, edge: &Label) -> Option<(u64, bool, u32)> {
        let place = *self.names.get(edge)?;
        self.edges.get(place)?.state.as_ref().map(LinkState::order)
    }

    /// The lives of all brokers that are known by their keys.
    pub fn incarnations(&self) -> impl Iterator<Item = (BrokerIndex, u64)> {
        self.keys.iter().map(|(broker, key)| (*broker, key.incarnation))
    }

    /// Whether the state of any edge has changed since the last call.
    pub const fn take_changed(&mut self) -> bool {
        std::mem::replace(&mut self.changed, false)
    }

    /// Records given out for neighbours so far.
    #[must_use]
    pub const fn records_sent(&self) -> u64 {
        self.sent
    }

    /// Whether a neighbour has still to be told something.
    #[must_use]
    pub fn is_waiting(&self, key: EdgeKey) -> bool {
        self.own_edges.get(&key).is_some_and(|own| own.up && !(own.dirty.is_empty() && own.words.is_empty()))
    }

    /// What to send over an edge next, at most `max` messages.
    pub fn take(&mut self, key: EdgeKey, max: usize) -> Vec<LinkMessage> {
        let Some(own) = self.own_edges.get_mut(&key).filter(|own| own.up) else { return Vec::new() };
        let mut out = std::mem::take(&mut own.words);
        while out.len() < max {
            let Some(item) = own.dirty.pop_first() else { break };
            let record = match item {
                Item::Key(broker) => self.keys.get(&broker).cloned().map(LinkRecord::Key),
                Item::State(place) => self
                    .edges
                    .get(place)
                    .and_then(|edge| Some(LinkRecord::State { edge: edge.name.clone(), state: edge.state.clone()? })),
                Item::Observer(broker) => self.observers.get(&broker).cloned().map(LinkRecord::Observer),
            };
            self.sent += u64::from(record.is_some());
            out.extend(record.map(LinkMessage::Record));
        }
        out
    }

    /// Takes what came over an edge.
    ///
    /// # Errors
    /// Why it was not taken; nothing has changed then.
    pub fn on_message(&mut self, key: EdgeKey, message: LinkMessage) -> Result<(), LinkError> {
        if !self.own_edges.get(&key).is_some_and(|own| own.up) {
            return Ok(());
        }
        match message {
            LinkMessage::Word(word) => self.on_word(key, word),
            LinkMessage::Record(LinkRecord::Key(link_key)) => self.on_key(key, link_key),
            LinkMessage::Record(LinkRecord::State { edge, state }) => self.on_state(key, &edge, state),
            LinkMessage::Record(LinkRecord::Observer(word)) => self.on_observer(key, word),
        }
    }

    fn on_key(&mut self, from: EdgeKey, link_key: LinkKey) -> Result<(), LinkError> {
        let broker = self.brokers.index(&link_key.node).ok_or(LinkError::Unknown)?;
        let known = self.incarnation_of(broker);
        if link_key.incarnation <= known {
            self.told(from, Item::Key(broker), link_key.incarnation == known);
            return Ok(());
        }
        if link_key.incarnation > self.incarnation.saturating_add(LINK_EPOCH_AHEAD_MAX) {
            return Err(LinkError::Range);
        }
        let bytes = LinkKey::signed_bytes(&self.fabric, &link_key.node, link_key.incarnation, &link_key.key);
        if !self.crypto.verify_key(&link_key, &bytes) {
            return Err(LinkError::Signature);
        }
        if broker == self.own {
            let life = link_key.incarnation;
            return Err(if self.crypto.is_own(&link_key) { LinkError::LaterLife(life) } else { LinkError::OwnName });
        }
        // The word of an earlier life ended with it.
        let of_earlier_life = |edge: &&mut FabricEdge| edge.is_by(broker, |life| life < link_key.incarnation);
        self.edges.iter_mut().filter(of_earlier_life).for_each(|edge| edge.state = None);
        self.keys.insert(broker, link_key);
        self.forget_observer(broker);
        self.changed = true;
        self.flood(Item::Key(broker), Some(from));
        Ok(())
    }

    fn on_state(&mut self, from: EdgeKey, name: &Label, state: LinkState) -> Result<(), LinkError> {
        let place = *self.names.get(name).ok_or(LinkError::Unknown)?;
        let edge = self.edges.get(place).ok_or(LinkError::Unknown)?;
        // After the last epoch there would be no other: the edge could never be told to be up again.
        if state.order().0 > self.incarnation.saturating_add(LINK_EPOCH_AHEAD_MAX) {
            return Err(LinkError::Range);
        }
        if let Some(known) = &edge.state
            && state.order() <= known.order()
        {
            let is_repeat = state.order() == known.order();
            self.told(from, Item::State(place), is_repeat);
            return Ok(());
        }
        self.verify(edge, &state)?;
        self.believe(place, state, Some(from));
        self.contradict(place);
        Ok(())
    }

    /// The peer has told what is known (`same`), or something older: then it is told what is known.
    fn told(&mut self, from: EdgeKey, item: Item, same: bool) {
        if let Some(own) = self.own_edges.get_mut(&from) {
            if same {
                own.dirty.remove(&item)
            } else {
                own.dirty.insert(item)
            };
        }
    }

    fn verify(&self, edge: &FabricEdge, state: &LinkState) -> Result<(), LinkError> {
        let check = |end: usize, consent: &Consent, epoch: u64, word: Word| {
            let broker = *edge.ends.get(end).ok_or(LinkError::Range)?;
            let key = self.keys.get(&broker).ok_or(LinkError::NoKey)?;
            if key.incarnation != consent.incarnation {
                return Err(LinkError::NoKey);
            }
            let bytes = word.signed_bytes(&self.fabric, &edge.name, epoch, consent.incarnation);
            if self.crypto.verify(&key.key, &bytes, &consent.signature) { Ok(()) } else { Err(LinkError::Signature) }
        };
        match state {
            LinkState::Up { cost, .. } if *cost == 0 || *cost > LINK_COST_MAX => Err(LinkError::Range),
            LinkState::Up { epoch, revision, cost, ends: [a, b] } => {
                check(0, a, *epoch, Word::Cost { revision: *revision, cost: *cost })?;
                check(1, b, *epoch, Word::Up)
            }
            LinkState::Down { epoch, by, end } => check(*by, end, *epoch, Word::Down),
        }
    }

    /// Takes a verified or own state, and passes it on.
    fn believe(&mut self, place: usize, state: LinkState, from: Option<EdgeKey>) {
        if let Some(edge) = self.edges.get_mut(place) {
            edge.state = Some(state);
            self.changed = true;
            self.flood(Item::State(place), from);
        }
    }

    fn flood(&mut self, item: Item, from: Option<EdgeKey>) {
        for (key, own) in &mut self.own_edges {
            if own.up && Some(*key) != from {
                own.dirty.insert(item);
            }
        }
    }
}

fn edges_of(head: &Head, brokers: &Brokers) -> Vec<FabricEdge> {
    let numbered = head.edges.iter().filter_map(|edge| {
        let ends = [brokers.index(&edge.a)?, brokers.index(&edge.b)?];
        Some(FabricEdge { name: edge.name.clone(), ends, state: None })
    });
    numbered.collect()
}

#[cfg(test)]
pub(crate) mod tests;
