//! A peer that lies on the control stream of an edge of its own: link state that nobody signed, that another end should
//! have signed, that is old or far ahead, and keys of others (attacks 29 and 30). It holds its own key and no other.

use glocal_core::name::{Label, NodeId};
use glocal_core::topology::{Consent, LinkKey, LinkMessage, LinkRecord, LinkState, NeighbourWord, Signature, Word};
use glocal_engine::driver::{Command, Outcome};

use crate::bridge::Stage;
use crate::broker::Broker;
use crate::oracle::{Violation, ensure};
use crate::toy::Toy;
use crate::world::World;

/// Frames of link state that were seen and may be told again.
const HEARD: usize = 256;

/// What one broker believes of all edges and brokers, in words.
fn beliefs(broker: &Broker) -> String {
    let topology = broker.driver.control().topology();
    let edges: Vec<_> = topology.edges().map(|(name, _, cost)| (name, cost)).collect();
    format!("{edges:?} {:?}", topology.incarnations().collect::<Vec<_>>())
}

/// Who lies to whom.
#[derive(Clone, Copy, Debug)]
struct Liar {
    node: usize,
    victim: usize,
}

impl World {
    /// Keeps what was told, for liars to tell it again.
    pub(crate) fn overhear(&mut self, message: &LinkMessage) {
        if self.plan.liars && matches!(message, LinkMessage::Record(_)) {
            if self.heard.len() >= HEARD {
                let oldest = self.random.below(HEARD);
                self.heard.swap_remove(oldest);
            }
            self.heard.push(message.clone());
        }
    }

    /// One lie about the fabric's edges, by a peer whose bridge is up.
    ///
    /// # Errors
    /// When it is believed.
    pub(crate) fn forge(&mut self) -> Result<(), Violation> {
        let (edge, side) = (self.random.below(self.bridges.len()), self.random.below(2));
        let Some([a, b]) = self.plan.edges.get(edge).map(|planned| planned.ends) else { return Ok(()) };
        let [victim, node] = if side == 0 { [a, b] } else { [b, a] };
        let up = self.bridges.get_mut(edge).and_then(Option::as_mut).map(|b| b.pair(side).0.stage) == Some(Stage::Up);
        let liar = Liar { node, victim };
        let lie = if self.random.chance(20) { self.old(liar) } else { self.fresh(liar) };
        let Some(lie) = lie.filter(|_| up) else { return Ok(()) };
        self.stats.lies += 1;
        let Some(broker) = self.brokers.get_mut(victim).and_then(Option::as_mut) else { return Ok(()) };
        let Some(key) = broker.key(edge) else { return Ok(()) };
        let before = beliefs(broker);
        let text = format!("{lie:?}");
        let outcome = broker.driver.apply(Command::LinkState { edge: key, message: lie });
        ensure!(
            matches!(outcome, Outcome::LinkRefused(_) | Outcome::Done),
            "node {victim} answers {outcome:?}: {text}"
        );
        let after = beliefs(broker);
        broker.driver.commit(self.now);
        ensure!(before == after, "node {victim} believed a liar: {text}\nbefore: {before}\nafter: {after}");
        self.tell_story(|| format!("node {} lies to node {victim}, {outcome:?}: {text}", liar.node));
        Ok(())
    }

    /// Something true once, which the victim knows, or knows better.
    fn old(&mut self, liar: Liar) -> Option<LinkMessage> {
        let message = self.random.pick(&self.heard).cloned()?;
        let broker = self.brokers.get(liar.victim)?.as_ref()?;
        let topology = broker.driver.control().topology();
        let is_old = match &message {
            LinkMessage::Record(LinkRecord::Key(key)) => {
                let number = broker.shared.brokers().index(&key.node)?;
                key.incarnation <= topology.incarnation_of(number)
            }
            LinkMessage::Record(LinkRecord::State { edge, state }) => {
                topology.order_of(edge).is_some_and(|known| state.order() <= known)
            }
            LinkMessage::Record(LinkRecord::Observer(_)) | LinkMessage::Word(_) => false,
        };
        is_old.then_some(message)
    }

    /// Something that was never true.
    fn fresh(&mut self, liar: Liar) -> Option<LinkMessage> {
        let epoch = *self.random.pick(&[1, self.now.0 + 1_000_000, u64::MAX - 1, u64::MAX])?;
        let other = self.random.below(self.plan.edges.len());
        let planned = self.plan.edges.get(other)?.clone();
        let name = Label::parse(&planned.name).ok()?;
        let own_end = planned.ends.iter().position(|end| *end == liar.node);
        let record = |state| Some(LinkMessage::Record(LinkRecord::State { edge: name.clone(), state }));
        match self.random.below(7) {
            0 => self.stranger(liar).map(|key| LinkMessage::Record(LinkRecord::Key(key))),
            1 => Some(LinkMessage::Word(NeighbourWord::Propose { epoch: u64::MAX, metric: u32::MAX })),
            // The end that the liar is not, or one that no edge has.
            2 => {
                let by = own_end.map_or_else(|| self.random.below(4), |end| 1 - end);
                record(LinkState::Down { epoch, by, end: self.word(liar, &name, epoch, Word::Down)? })
            }
            // Its own edge, in an epoch after which there could be no other.
            3 => {
                let by = own_end?;
                let end = self.word(liar, &name, u64::MAX, Word::Down)?;
                record(LinkState::Down { epoch: u64::MAX, by, end })
            }
            // Both words by itself, or by nobody.
            4 | 5 => {
                let cost = u32::try_from(self.random.below(3)).unwrap_or(0);
                let cost_word = Word::Cost { revision: 0, cost };
                let ends = [self.word(liar, &name, epoch, cost_word)?, self.word(liar, &name, epoch, Word::Up)?];
                record(LinkState::Up { epoch, revision: 0, cost, ends })
            }
            _ => {
                let end = Consent { incarnation: self.random.bits(), signature: self.noise() };
                record(LinkState::Down { epoch, by: self.random.below(2), end })
            }
        }
    }

    /// What the liar signs with its own key, in the name of whoever should have.
    fn word(&self, liar: Liar, edge: &Label, epoch: u64, word: Word) -> Option<Consent> {
        let (life, node) = self.lives.get(liar.node).zip(self.plan.nodes.get(liar.node))?;
        let bytes = word.signed_bytes(&Label::parse("sim").ok()?, edge, epoch, *life);
        Some(Consent { incarnation: *life, signature: Toy::boxed(node, *life).sign(&bytes) })
    }

    /// A key of a broker that is none, of one that did not certify it, of one in a life far ahead, or of the victim.
    fn stranger(&mut self, liar: Liar) -> Option<LinkKey> {
        let other = self.random.below(self.plan.nodes.len());
        let (node, victim) = (self.plan.nodes.get(other)?.clone(), self.plan.nodes.get(liar.victim)?.clone());
        let life = self.lives.get(other)? + 1;
        if other == liar.node {
            return None;
        }
        let key = |node: &NodeId, life| Toy::boxed(node, life).own_key();
        Some(match self.random.below(4) {
            0 => key(&NodeId::parse("r99/n99").ok()?, 1),
            1 => LinkKey { node, ..key(&self.plan.nodes.get(liar.node)?.clone(), life) },
            2 => LinkKey { incarnation: u64::MAX, ..key(&node, life) },
            _ => key(&victim, self.lives.get(liar.victim)? + 1),
        })
    }

    fn noise(&mut self) -> Signature {
        std::array::from_fn(|_| self.random.byte())
    }
}
