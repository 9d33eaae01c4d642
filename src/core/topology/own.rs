//! This broker's own edges: agreeing on an epoch with the peer, telling the cost, and saying when it is over.

use std::collections::VecDeque;

use super::{Consent, LinkError, LinkMessage, LinkRecord, LinkState, NeighbourWord, Topology, Word};
use crate::edge::EdgeKey;
use crate::limits::{
    LINK_COST_HOLD_MS, LINK_COST_MAX, LINK_COST_MICROS, LINK_DIGEST_MS, LINK_EPOCH_AHEAD_MAX, LINK_RTTS,
};
use crate::time::Time;

impl Topology {
    /// A bridge came up on an edge of this broker.
    pub fn edge_up(&mut self, key: EdgeKey) {
        let own_key = self.keys.get(&self.own).cloned();
        let digest = self.digest(true);
        let Some(proposed) = self.next_epoch(key) else { return };
        let Some(own) = self.own_edges.get_mut(&key) else { return };
        own.up = true;
        own.epoch = None;
        own.proposed = proposed;
        own.rtts.clear();
        own.dirty.clear();
        own.words = own_key.map(|key| LinkMessage::Record(LinkRecord::Key(key))).into_iter().collect();
        own.words.push(LinkMessage::Word(NeighbourWord::Propose { epoch: proposed, metric: own.metric }));
        own.words.push(LinkMessage::Word(NeighbourWord::Digest { digest, answer: false }));
        self.changed = true;
    }

    /// The bridge of an edge of this broker is gone.
    pub fn edge_down(&mut self, key: EdgeKey) {
        let Some(own) = self.own_edges.get_mut(&key).filter(|own| own.up) else { return };
        own.up = false;
        own.epoch = None;
        own.dirty.clear();
        own.words.clear();
        let place = own.place;
        self.changed = true;
        self.contradict(place);
    }

    /// The round-trip time of an edge of this broker.
    pub fn measured(&mut self, key: EdgeKey, rtt_micros: u64) {
        if let Some(own) = self.own_edges.get_mut(&key) {
            if own.rtts.len() >= LINK_RTTS {
                own.rtts.pop_front();
            }
            own.rtts.push_back(rtt_micros);
        }
    }

    /// What comes with time: costs that have changed for good, epochs that have to be agreed on again, and the comparison
    /// with neighbours. To be called about once a second.
    pub fn tick(&mut self, now: Time) {
        let keys: Vec<EdgeKey> = self.own_edges.iter().filter(|(_, own)| own.up).map(|(key, _)| *key).collect();
        for key in keys {
            self.tell_cost(key, now);
            self.agree_again(key);
        }
        if now >= self.compared.plus_millis(LINK_DIGEST_MS) {
            self.compared = now;
            let digest = self.digest(false);
            for own in self.own_edges.values_mut().filter(|own| own.up && own.dirty.is_empty()) {
                let word = NeighbourWord::Digest { digest: digest.clone(), answer: false };
                own.words.push(LinkMessage::Word(word));
            }
        }
    }

    /// Has something said to the neighbour of an edge that is up.
    pub fn say(&mut self, key: EdgeKey, word: NeighbourWord) {
        if let Some(own) = self.own_edges.get_mut(&key).filter(|own| own.up) {
            own.words.push(LinkMessage::Word(word));
        }
    }

    pub(super) fn on_word(&mut self, key: EdgeKey, word: NeighbourWord) -> Result<(), LinkError> {
        match word {
            NeighbourWord::Propose { epoch, metric } => self.on_propose(key, epoch, metric),
            NeighbourWord::Agree { epoch, end } => self.on_agree(key, epoch, end),
            // For whoever holds it.
            NeighbourWord::Presence { .. } => Ok(()),
            NeighbourWord::Digest { digest, answer } => {
                let own_digest = self.digest(true);
                if digest.root == own_digest.root {
                    return Ok(());
                }
                let differing = if digest.buckets.is_empty() { Vec::new() } else { self.differing(&digest) };
                let Some(own) = self.own_edges.get_mut(&key) else { return Ok(()) };
                own.dirty.extend(differing);
                let asks = own.words.iter().any(|w| matches!(w, LinkMessage::Word(NeighbourWord::Digest { .. })));
                if !answer && !asks {
                    let answer = !digest.buckets.is_empty();
                    own.words.push(LinkMessage::Word(NeighbourWord::Digest { digest: own_digest, answer }));
                }
                Ok(())
            }
        }
    }

    fn on_propose(&mut self, key: EdgeKey, epoch: u64, metric: u32) -> Result<(), LinkError> {
        let incarnation = self.incarnation;
        let Some(own) = self.own_edges.get_mut(&key) else { return Ok(()) };
        if epoch > own.proposed.max(incarnation).saturating_add(LINK_EPOCH_AHEAD_MAX) {
            return Err(LinkError::Range);
        }
        own.peer_metric = metric.min(LINK_COST_MAX);
        let agreed = own.proposed.max(epoch);
        own.epoch = Some(agreed);
        own.proposed = agreed;
        let (end, place) = (own.end, own.place);
        if end == 1
            && let Some(consent) = self.consent(place, agreed, Word::Up)
            && let Some(own) = self.own_edges.get_mut(&key)
        {
            own.words.push(LinkMessage::Word(NeighbourWord::Agree { epoch: agreed, end: consent }));
        }
        Ok(())
    }

    fn on_agree(&mut self, key: EdgeKey, epoch: u64, theirs: Consent) -> Result<(), LinkError> {
        let Some(own) = self.own_edges.get(&key).filter(|own| own.end == 0 && own.epoch == Some(epoch)) else {
            return Ok(());
        };
        let (place, cost) = (own.place, cost_of(distance(&own.rtts), own.metric.max(own.peer_metric)));
        let Some(ours) = self.consent(place, epoch, Word::Cost { revision: 0, cost }) else { return Ok(()) };
        let state = LinkState::Up { epoch, revision: 0, cost, ends: [ours, theirs] };
        let Some(edge) = self.edges.get(place) else { return Ok(()) };
        if edge.state.as_ref().is_some_and(|known| known.order() >= state.order()) {
            return Ok(());
        }
        self.verify(edge, &state)?;
        self.believe(place, state, None);
        Ok(())
    }

    /// Says that an edge of this broker is down, when others hold it to be up in an epoch that is over.
    pub(super) fn contradict(&mut self, place: usize) {
        let Some(edge) = self.edges.get(place) else { return };
        let Some(by) = edge.ends.iter().position(|broker| *broker == self.own) else { return };
        let Some(LinkState::Up { epoch, .. }) = &edge.state else { return };
        let epoch = *epoch;
        let current = self.own_edges.values().find(|own| own.place == place && own.up).and_then(|own| own.epoch);
        if current != Some(epoch)
            && let Some(end) = self.consent(place, epoch, Word::Down)
        {
            self.believe(place, LinkState::Down { epoch, by, end }, None);
        }
    }

    fn consent(&self, place: usize, epoch: u64, word: Word) -> Option<Consent> {
        let edge = self.edges.get(place)?;
        let bytes = word.signed_bytes(&self.fabric, &edge.name, epoch, self.incarnation);
        Some(Consent { incarnation: self.incarnation, signature: self.crypto.sign(&bytes) })
    }

    /// The epoch to propose: later than all that is known, and than all that earlier lives may have used.
    fn next_epoch(&self, key: EdgeKey) -> Option<u64> {
        let own = self.own_edges.get(&key)?;
        let known = self.edges.get(own.place)?.state.as_ref().map_or(0, |state| state.order().0);
        Some(self.incarnation.max(known.saturating_add(1)).max(own.proposed.saturating_add(1)))
    }

    /// The lesser end tells a cost that has changed by more than chance and has not been told for a while.
    fn tell_cost(&mut self, key: EdgeKey, now: Time) {
        let Some(own) = self.own_edges.get(&key).filter(|own| own.end == 0 && own.rtts.len() >= LINK_RTTS / 2) else {
            return;
        };
        let (place, told) = (own.place, own.cost_told);
        let cost = cost_of(distance(&own.rtts), own.metric.max(own.peer_metric));
        let state = self.edges.get(place).and_then(|edge| edge.state.clone());
        let Some(LinkState::Up { epoch, revision, cost: known, ends: [_, theirs] }) = state else { return };
        let differs = cost.abs_diff(known) > 1 && u64::from(cost.abs_diff(known)) * 4 > u64::from(known);
        let rests = told.is_some_and(|told| now < told.plus_millis(LINK_COST_HOLD_MS));
        if own.epoch != Some(epoch) || !differs || rests {
            return;
        }
        let revision = revision.saturating_add(1);
        if let Some(ours) = self.consent(place, epoch, Word::Cost { revision, cost }) {
            if let Some(own) = self.own_edges.get_mut(&key) {
                own.cost_told = Some(now);
            }
            self.believe(place, LinkState::Up { epoch, revision, cost, ends: [ours, theirs] }, None);
        }
    }

    /// The bridge is up, but its edge is told to be down: a later epoch heals that.
    fn agree_again(&mut self, key: EdgeKey) {
        let Some(own) = self.own_edges.get(&key) else { return };
        let Some(epoch) = own.epoch else { return };
        let over = matches!(self.edges.get(own.place).and_then(|edge| edge.state.as_ref()),
            Some(LinkState::Down { epoch: ended, .. }) if *ended >= epoch);
        if !over {
            return;
        }
        let Some(proposed) = self.next_epoch(key) else { return };
        if let Some(own) = self.own_edges.get_mut(&key) {
            own.proposed = proposed;
            let word = NeighbourWord::Propose { epoch: proposed, metric: own.metric };
            own.words.push(LinkMessage::Word(word));
        }
    }
}

/// The least of the round-trip times measured last, once there are some: what the way takes, not what a busy machine adds.
fn distance(rtts: &VecDeque<u64>) -> u64 {
    if rtts.len() < LINK_RTTS / 2 { 0 } else { rtts.iter().min().copied().unwrap_or(0) }
}

/// One for the hop, one for every [`LINK_COST_MICROS`] of the round trip, and the metric.
fn cost_of(rtt_micros: u64, metric: u32) -> u32 {
    let distance = u32::try_from(rtt_micros / LINK_COST_MICROS).unwrap_or(LINK_COST_MAX);
    1u32.saturating_add(distance).saturating_add(metric).min(LINK_COST_MAX)
}
