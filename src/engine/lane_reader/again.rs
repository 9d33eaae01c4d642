//! One message more like the last one of its lane: of the same sender, of one name, for the same brokers. What was asked of
//! the last one is asked of it again only where the answer may be another.

use std::sync::Arc;

use glocal_core::count::Drop as DropReason;
use glocal_core::edge::Edge;
use glocal_core::port::Sub;
use glocal_core::routes::BrokerIndex;
use glocal_core::tally::{self, Counts};
use glocal_core::tenant::Tenant;
use glocal_core::time::Time;
use glocal_wire::data::{DataFrame, like};

use super::relay::{Addressed, Source};
use super::{Incoming, Lane};
use crate::batch::{Batch, Decided, Message, Only, SINGLE_FRAME_BROKERS};
use crate::sender::Delivered;

/// Where a message goes that goes to one place only.
#[derive(Debug)]
enum Place {
    /// To one subscription here.
    Here(Arc<Sub>, Arc<Delivered>, Counts),
    /// Over one edge.
    Onward(Arc<Edge>),
}

impl Place {
    fn only(&self) -> Only<'_> {
        match self {
            Self::Here(sub, ..) => Only::Sub(sub),
            Self::Onward(edge) => Only::Edge(edge),
        }
    }
}

/// What the last message shows of one more like it.
#[derive(Debug)]
pub(super) struct Like {
    of: Decided,
    /// The sender's handle in this lane.
    handle: u32,
    place: Place,
    /// What the decision was made in.
    epoch: u64,
    generation: u64,
    /// The sets of the edge it came over, and of the one it went over.
    versions: [u64; 2],
}

impl Lane {
    /// Takes the frame at the front of `bytes` as one more like the last one, and returns its bytes. `None` where it is not,
    /// or where what was decided need not hold: nothing was done then.
    pub(super) fn take_again(
        &mut self,
        incoming: &Incoming,
        tenant: &Arc<Tenant>,
        bytes: &[u8],
        turn: &mut u64,
        now: Time,
        batch: &mut Batch,
    ) -> Option<usize> {
        let last = self.like.as_ref()?;
        let (payload, seq) = like(bytes, &self.head)?;
        let shared = &incoming.shared;
        let holds = last.epoch == shared.policy_epoch()
            && last.generation == tenant.generation()
            && last.versions == [incoming.edge.version(), last.place.only().version()]
            && payload.len() <= shared.max_payload_bytes as usize;
        let known = self.senders.get_mut(&last.handle).filter(|known| holds && seq > known.last_seq)?;
        let again = batch.again(last.of, last.place.only(), payload, seq)?;
        let counters = tenant.counters().class(self.class);
        known.last_seq = seq;
        *turn = turn.wrapping_add(1);
        counters.relayed_in.add(1);
        let is_new = match &last.place {
            Place::Here(_, delivered, received) => {
                tally::arrived(received, self.class);
                delivered.note(self.class, seq)
            }
            Place::Onward(_) => true,
        };
        if is_new {
            again.write();
        } else {
            counters.dropped(DropReason::Late, 1);
        }
        batch.relieve(shared, now);
        Some(self.head.len() + payload.len())
    }

    /// Notes of a message that was routed what it shows of one more like it, where that is all that can be said of it: it
    /// has a name and a payload, is of a class that nobody acknowledges, and went to one place.
    pub(super) fn note_like(
        &mut self,
        incoming: &Incoming,
        frame: &DataFrame<'_>,
        message: &Message<'_>,
        targets: &[Addressed],
        source: &Source,
        batch: &mut Batch,
    ) {
        let fields = frame.ext.fields();
        let is_plain = frame.reply.is_empty() && frame.headers.is_empty() && frame.ttl_ms.is_none();
        let is_first = !message.redelivered && message.reply_token.is_none() && !self.class.is_reliable();
        let Some(handle) = fields.sender.filter(|_| is_plain && is_first) else { return };
        let Some(place) = self.place(incoming, message, targets, source) else { return };
        let versions = [incoming.edge.version(), place.only().version()];
        let tenant = message.tenant.key();
        if !incoming.may_receive(tenant) || !place.only().may_take(tenant) {
            return;
        }
        self.decisions += 1;
        let of = (message.sender.handle(), self.decisions);
        batch.keep_head(of, place.only(), message.payload.len());
        let (epoch, generation) = (incoming.shared.policy_epoch(), message.tenant.generation());
        self.like = Some(Like { of, handle, place, epoch, generation, versions });
    }

    fn place(
        &mut self,
        incoming: &Incoming,
        message: &Message<'_>,
        targets: &[Addressed],
        source: &Source,
    ) -> Option<Place> {
        let own = incoming.shared.own;
        if targets.iter().any(|(_, groups, _)| !groups.is_empty()) || targets.len() > SINGLE_FRAME_BROKERS {
            return None;
        }
        if matches!(targets, [(broker, ..)] if *broker == own) {
            let found = self.found(message)?;
            let [target] = &*found.ports else { return None };
            let [sub] = &*target.subs else { return None };
            return Some(Place::Here(Arc::clone(sub), Arc::clone(&source.delivered), Arc::clone(&source.received)));
        }
        let table = message.tenant.table();
        let routes = table.routes();
        let edge = &routes.hop(targets.first()?.0)?.edge;
        let is_there = |broker: &BrokerIndex| {
            *broker != own && routes.hop(*broker).is_some_and(|hop| hop.edge.key() == edge.key())
        };
        targets.iter().all(|(broker, ..)| is_there(broker)).then(|| Place::Onward(Arc::clone(edge)))
    }
}
