//! Link state on the control stream of a bridge: the topology's messages as frames, and back.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use glocal_core::limits::LINK_RECORDS_AT_ONCE;
use glocal_core::name::{Label, NodeId};
use glocal_core::sched::Lanes;
use glocal_core::topology::{Consent, Digest, LinkKey, LinkMessage, LinkRecord, LinkState, NeighbourWord, Observer};
use glocal_wire::control as wire;
use glocal_wire::control::Control;

use crate::link::append;

/// Frames that wait for the control stream of a bridge, few at a time: what has not been taken yet waits in the topology,
/// where newer states replace older ones.
#[derive(Debug, Default)]
pub struct Outbox(VecDeque<Bytes>);

impl Lanes for Outbox {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Outbox {
    /// How many more frames it takes now.
    #[must_use]
    pub fn room(&self) -> usize {
        LINK_RECORDS_AT_ONCE.saturating_sub(self.0.len())
    }

    /// Appends one message.
    pub fn push(&mut self, message: LinkMessage) {
        let mut frame = BytesMut::new();
        append(&mut frame, &to_wire(message));
        self.0.push_back(frame.freeze());
    }

    /// Takes all frames.
    pub fn take(&mut self) -> Vec<Bytes> {
        self.0.drain(..).collect()
    }

    /// Forgets what was meant for a bridge that is gone.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// The frame of a message.
#[must_use]
pub fn to_wire(message: LinkMessage) -> Control {
    match message {
        LinkMessage::Word(NeighbourWord::Propose { epoch, metric }) => wire::LinkPropose { epoch, metric }.into(),
        LinkMessage::Word(NeighbourWord::Agree { epoch, end }) => {
            wire::LinkAgree { epoch, incarnation: end.incarnation, signature: end.signature }.into()
        }
        LinkMessage::Word(NeighbourWord::Digest { digest, answer }) => {
            wire::LinkDigest { root: digest.root, buckets: digest.buckets, answer }.into()
        }
        LinkMessage::Word(NeighbourWord::Presence { root }) => wire::PresenceRoot { root }.into(),
        LinkMessage::Record(LinkRecord::Key(LinkKey { node, incarnation, key, chain, signature })) => {
            wire::LinkKey { node: node.to_string(), incarnation, key, chain, signature }.into()
        }
        LinkMessage::Record(LinkRecord::State { edge, state }) => state_to_wire(edge.to_string(), state),
        LinkMessage::Record(LinkRecord::Observer(Observer { node, seq, present, end })) => {
            let Consent { incarnation, signature } = end;
            wire::LinkObserver { node: node.to_string(), incarnation, seq, present, signature }.into()
        }
    }
}

fn state_to_wire(edge: String, state: LinkState) -> Control {
    match state {
        LinkState::Up { epoch, revision, cost, ends: [a, b] } => wire::LinkUp {
            edge,
            epoch,
            revision,
            cost,
            incarnations: [a.incarnation, b.incarnation],
            signatures: [a.signature, b.signature],
        }
        .into(),
        LinkState::Down { epoch, by, end } => {
            let by = u8::try_from(by).unwrap_or(u8::MAX);
            wire::LinkDown { edge, epoch, by, incarnation: end.incarnation, signature: end.signature }.into()
        }
    }
}

/// The message of a frame; gives the frame back when it is about something else.
///
/// # Errors
/// The name in the frame that has no form of one.
pub fn from_wire(control: Control) -> Result<Result<LinkMessage, &'static str>, Box<Control>> {
    let word = |word| Ok(Ok(LinkMessage::Word(word)));
    match control {
        Control::LinkPropose(wire::LinkPropose { epoch, metric }) => word(NeighbourWord::Propose { epoch, metric }),
        Control::LinkAgree(wire::LinkAgree { epoch, incarnation, signature }) => {
            word(NeighbourWord::Agree { epoch, end: Consent { incarnation, signature } })
        }
        Control::LinkDigest(wire::LinkDigest { root, buckets, answer }) => {
            word(NeighbourWord::Digest { digest: Digest { root, buckets }, answer })
        }
        Control::PresenceRoot(wire::PresenceRoot { root }) => word(NeighbourWord::Presence { root }),
        Control::LinkKey(body) => Ok(link_key(body)),
        Control::LinkUp(body) => Ok(up(body)),
        Control::LinkDown(body) => Ok(down(body)),
        Control::LinkObserver(body) => Ok(observer(body)),
        other => Err(Box::new(other)),
    }
}

fn link_key(body: wire::LinkKey) -> Result<LinkMessage, &'static str> {
    let wire::LinkKey { node, incarnation, key, chain, signature } = body;
    let node = NodeId::parse(&node).map_err(|_| "node")?;
    Ok(LinkMessage::Record(LinkRecord::Key(LinkKey { node, incarnation, key, chain, signature })))
}

fn observer(body: wire::LinkObserver) -> Result<LinkMessage, &'static str> {
    let wire::LinkObserver { node, incarnation, seq, present, signature } = body;
    let node = NodeId::parse(&node).map_err(|_| "node")?;
    let end = Consent { incarnation, signature };
    Ok(LinkMessage::Record(LinkRecord::Observer(Observer { node, seq, present, end })))
}

fn up(body: wire::LinkUp) -> Result<LinkMessage, &'static str> {
    let [a, b] = body.incarnations;
    let [a_signature, b_signature] = body.signatures;
    let ends = [Consent { incarnation: a, signature: a_signature }, Consent { incarnation: b, signature: b_signature }];
    let state = LinkState::Up { epoch: body.epoch, revision: body.revision, cost: body.cost, ends };
    of_edge(&body.edge, state)
}

fn down(body: wire::LinkDown) -> Result<LinkMessage, &'static str> {
    let end = Consent { incarnation: body.incarnation, signature: body.signature };
    of_edge(&body.edge, LinkState::Down { epoch: body.epoch, by: usize::from(body.by), end })
}

fn of_edge(edge: &str, state: LinkState) -> Result<LinkMessage, &'static str> {
    let edge = Label::parse(edge).map_err(|_| "edge")?;
    Ok(LinkMessage::Record(LinkRecord::State { edge, state }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_were() {
        let consent = |n: u8| Consent { incarnation: u64::from(n), signature: [n; 64] };
        let key = LinkKey {
            node: NodeId::parse("r/n").unwrap(),
            incarnation: 4,
            key: [1; 32],
            chain: vec![vec![1], vec![2]],
            signature: vec![3],
        };
        let edge = Label::parse("e").unwrap();
        let up = LinkState::Up { epoch: 1, revision: 2, cost: 3, ends: [consent(1), consent(2)] };
        let observer = Observer { node: NodeId::parse("r/n").unwrap(), seq: 2, present: true, end: consent(5) };
        let messages = [
            LinkMessage::Record(LinkRecord::Observer(observer)),
            LinkMessage::Word(NeighbourWord::Propose { epoch: 1, metric: 2 }),
            LinkMessage::Word(NeighbourWord::Agree { epoch: 1, end: consent(7) }),
            LinkMessage::Word(NeighbourWord::Presence { root: 9 }),
            LinkMessage::Word(NeighbourWord::Digest { digest: Digest { root: 1, buckets: vec![2; 64] }, answer: true }),
            LinkMessage::Record(LinkRecord::Key(key)),
            LinkMessage::Record(LinkRecord::State { edge: edge.clone(), state: up }),
            LinkMessage::Record(LinkRecord::State {
                edge,
                state: LinkState::Down { epoch: 1, by: 1, end: consent(3) },
            }),
        ];
        for message in messages {
            assert_eq!(from_wire(to_wire(message.clone())), Ok(Ok(message)));
        }
        assert!(from_wire(wire::Probe { id: 1 }.into()).is_err());
    }
}
