//! Which brokers have an observer of all tenants: one flag per broker, which names no tenant.
//!
//! A broker signs its own. Whoever publishes for a tenant asks the brokers that observe and that it reaches for this
//! tenant; what is observed is told in that tenant's lanes alone.

use super::record::{begin, field};
use super::{Consent, Item, LinkError, Topology};
use crate::edge::EdgeKey;
use crate::name::{Label, NodeId};
use crate::routes::BrokerIndex;

/// What a broker says of its observers of all tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observer {
    /// The broker.
    pub node: NodeId,
    /// Grows with every change, within one life.
    pub seq: u64,
    /// Whether it has any.
    pub present: bool,
    /// Its word.
    pub end: Consent,
}

impl Observer {
    /// The bytes that the broker signs.
    #[must_use]
    pub fn signed_bytes(fabric: &Label, node: &NodeId, incarnation: u64, seq: u64, present: bool) -> Vec<u8> {
        let mut bytes = begin(b"glocal observer 1", fabric);
        field(&mut bytes, node.to_string().as_bytes());
        bytes.extend_from_slice(&incarnation.to_le_bytes());
        bytes.extend_from_slice(&seq.to_le_bytes());
        bytes.push(u8::from(present));
        bytes
    }

    /// What orders the words of one broker.
    pub(super) const fn order(&self) -> (u64, u64) {
        (self.end.incarnation, self.seq)
    }
}

impl Topology {
    /// Tells everybody whether this broker has an observer of all tenants.
    pub fn observe(&mut self, present: bool) {
        let Some(node) = self.brokers.name(self.own).cloned() else { return };
        let seq = self.observers.get(&self.own).map_or(1, |known| known.seq + 1);
        let bytes = Observer::signed_bytes(&self.fabric, &node, self.incarnation, seq, present);
        let end = Consent { incarnation: self.incarnation, signature: self.crypto.sign(&bytes) };
        self.observers.insert(self.own, Observer { node, seq, present, end });
        self.flood(Item::Observer(self.own), None);
    }

    /// The other brokers that have an observer of all tenants, in order.
    pub fn observing(&self) -> impl Iterator<Item = BrokerIndex> {
        self.observers.iter().filter(|(broker, word)| word.present && **broker != self.own).map(|(broker, _)| *broker)
    }

    /// Whether another broker has said anything of observers since the last call.
    pub const fn take_observers_changed(&mut self) -> bool {
        std::mem::replace(&mut self.observers_changed, false)
    }

    pub(super) fn on_observer(&mut self, from: EdgeKey, word: Observer) -> Result<(), LinkError> {
        let broker = self.brokers.index(&word.node).ok_or(LinkError::Unknown)?;
        if broker == self.own {
            // Of an earlier life, or a repeat.
            return Ok(());
        }
        let known = self.observers.get(&broker).map(Observer::order);
        if known.is_some_and(|known| word.order() <= known) {
            self.told(from, Item::Observer(broker), known == Some(word.order()));
            return Ok(());
        }
        let key = self.keys.get(&broker).ok_or(LinkError::NoKey)?;
        if key.incarnation != word.end.incarnation {
            return Err(LinkError::NoKey);
        }
        let bytes = Observer::signed_bytes(&self.fabric, &word.node, word.end.incarnation, word.seq, word.present);
        if !self.crypto.verify(&key.key, &bytes, &word.end.signature) {
            return Err(LinkError::Signature);
        }
        self.observers.insert(broker, word);
        self.observers_changed = true;
        self.flood(Item::Observer(broker), Some(from));
        Ok(())
    }

    /// A broker lives anew: what it said of observers before is void.
    pub(super) fn forget_observer(&mut self, broker: BrokerIndex) {
        self.observers_changed |= self.observers.remove(&broker).is_some();
    }
}
