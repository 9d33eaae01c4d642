//! A peer that lies: on an edge of its own it sends what must have no effect (attacks 12 and 28).

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use glocal_core::name::Class;
use glocal_engine::driver::Outcome;
use glocal_engine::lane_reader::{Arrivals, Carries, Incoming, LaneReader};
use glocal_wire::control::{AnnounceBroker, AnnounceSender, Presence};
use glocal_wire::data::{DataHead, DataKind};
use glocal_wire::ext::ExtBuilder;
use glocal_wire::slice::{OpenHeader, SliceHeader, SliceKind};

use crate::bridge::Stage;
use crate::broker::node_principal;
use crate::oracle::{Violation, ensure};
use crate::world::World;

/// What every lie carries, so that it is known where it arrives.
const LIE: &[u8] = b"LIE!LIE!LIE!LIE!";

impl World {
    /// One lie, by a peer whose bridge is up.
    ///
    /// # Errors
    /// When it has an effect.
    pub fn lie(&mut self) -> Result<(), Violation> {
        let edge = self.random.below(self.bridges.len());
        let side = self.random.below(2);
        let Some(planned) = self.plan.edges.get(edge).cloned() else { return Ok(()) };
        let up = self.bridges.get_mut(edge).and_then(Option::as_mut).map(|b| b.pair(side).0.stage) == Some(Stage::Up);
        let Some(victim) = planned.ends.get(side).copied().filter(|_| up) else { return Ok(()) };
        let [a, b] = planned.ends;
        let peer = if side == 0 { b } else { a };
        let tenants: Vec<usize> = (0..self.plan.tenants.len()).collect();
        let forbidden: Vec<usize> = tenants.into_iter().filter(|t| !planned.effective().contains(t)).collect();
        let allowed: Vec<usize> = planned.effective().into_iter().collect();
        let bytes = match (self.random.below(4), self.random.pick(&forbidden), self.random.pick(&allowed)) {
            (0, Some(tenant), _) => self.forged(*tenant, victim, peer, true),
            // The victim's own name as the origin, or a broker that is not behind this edge.
            (1, _, Some(tenant)) => self.forged(*tenant, victim, victim, true),
            (2, _, Some(tenant)) => self.forged(*tenant, victim, peer, false),
            _ => {
                let noise: Vec<u8> = (0..self.random.between(1, 200)).map(|_| self.random.byte()).collect();
                Some(BytesMut::from(&noise[..]))
            }
        };
        self.stats.lies += 1;
        let Some((bytes, broker)) = bytes.zip(self.brokers.get_mut(victim).and_then(Option::as_mut)) else {
            return Ok(());
        };
        let Some((link, peer)) = broker.link(edge).and_then(|l| {
            let peer = node_principal(l.edge().peer())?;
            Some((l, peer))
        }) else {
            return Ok(());
        };
        let incoming = Incoming::new(Arc::clone(&broker.shared), Arc::clone(link.edge()), peer, Carries::Everybody);
        let mut reader = LaneReader::new(Arc::new(incoming));
        let mut arrivals = Arrivals::default();
        let _ = reader.on_chunk(Bytes::from(bytes), self.now, &mut arrivals);
        arrivals.batch.flush(&broker.shared, self.now);
        for command in arrivals.commands.drain(..) {
            let text = format!("{command:?}");
            let outcome = broker.driver.apply(command);
            ensure!(matches!(outcome, Outcome::RecordRefused(_)), "node {victim} believed a liar: {text}");
        }
        broker.driver.commit(self.now);
        Ok(())
    }

    /// A lane of `tenant` with an interest record and a message of `origin` for `victim`; without `targets` for brokers
    /// that nobody announced.
    fn forged(&mut self, tenant: usize, victim: usize, origin: usize, targets: bool) -> Option<BytesMut> {
        let id = self.plan.tenants.get(tenant)?.to_string();
        let class = Class::Ctrl;
        let mut data = BytesMut::new();
        for (handle, node) in (0u32..).zip(&self.plan.nodes) {
            AnnounceBrokerFrame(handle, node.to_string()).write(&mut data)?;
        }
        let sender =
            AnnounceSender { handle: 9, session: 1, tenant: id.clone(), region: None, agent: None, uid: "-".into() };
        glocal_wire::control::Control::from(sender).encode_into(&mut data).ok()?;
        let origin = u32::try_from(origin).ok()?;
        if targets {
            let presence = Presence { origin, incarnation: 1_000_000, seq: 1_000_000, present: true };
            glocal_wire::control::Control::from(presence).encode_into(&mut data).ok()?;
        }
        let mut ext = ExtBuilder::new();
        ext.origin(origin).incarnation(1).sender(9);
        let mut list = ext.targets();
        if targets {
            list.target(u32::try_from(victim).ok()?);
        } else {
            (0..self.random.between(1, 1_000)).for_each(|n| {
                list.target(1_000_000 + u32::try_from(n).unwrap_or(0));
            });
        }
        drop(list);
        let head = DataHead { seq: Some(1), hops: 1, ..DataHead::new(DataKind::Relay, Some(class)) };
        head.encode_into(&mut data, ext.bytes().ok()?, b"a", b"", b"", LIE).ok()?;
        let open = OpenHeader { class, tenant: &id };
        let mut out = BytesMut::new();
        let len = u32::try_from(data.len() + open.encoded_bytes()).ok()?;
        SliceHeader { lane: 1, len, kind: SliceKind::Open }.encode_into(&mut out).ok()?;
        open.encode_into(&mut out).ok()?;
        out.unsplit(data);
        Some(out)
    }
}

struct AnnounceBrokerFrame(u32, String);

impl AnnounceBrokerFrame {
    fn write(self, out: &mut BytesMut) -> Option<()> {
        let body = AnnounceBroker { handle: self.0, node: self.1, incarnation: 1 };
        glocal_wire::control::Control::from(body).encode_into(out).ok()
    }
}
