//! Failover in the time of the world: a publisher and a subscriber that more than one way joins, a fault on the way between
//! them, and how long until a message comes over another (DESIGN section 5: under two seconds).

use glocal_core::name::Class;
use glocal_core::routes::BrokerIndex;

use crate::act::subscription;
use crate::client::Publish;
use crate::graph;
use crate::oracle::{MessageId, Violation, ensure};
use crate::world::World;

/// Within this time messages come again, where both ways have a round-trip time of at most [`ROUND_TRIP_MICROS`].
pub const FAILOVER_MS: u64 = 2_000;
/// The round-trip time up to which that is promised.
const ROUND_TRIP_MICROS: u64 = 250_000;
/// Over longer ways messages come within this time.
const FAR_FAILOVER_MS: u64 = 5_000;
/// At most so much time passes between two messages.
const EVERY_MICROS: usize = 10_000;
/// Draws of a case before there is none.
const DRAWS: usize = 8;
/// Where the messages go.
const NAME: &str = "failover";

/// What goes wrong on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A bridge breaks, and both ends are told.
    Cut(usize),
    /// Nothing arrives any more at these ends of an edge.
    Silence(usize, [bool; 2]),
    /// A broker dies.
    Death(usize),
    /// A broker stands still.
    Standstill(usize),
}

/// What is tried.
#[derive(Clone, Copy, Debug)]
struct Case {
    tenant: usize,
    from: usize,
    to: usize,
    fault: Fault,
    /// What a message takes there and back, before.
    round_trip_micros: u64,
}

impl World {
    /// Lets the way between two brokers fail where another exists; how long it took until a message came again, in
    /// microseconds, where a promise is made.
    ///
    /// # Errors
    /// When none came in time.
    pub(crate) fn fail_over(&mut self) -> Result<Option<u64>, Violation> {
        let Some(case) = (0..DRAWS).find_map(|_| self.draw_case()) else { return Ok(None) };
        let Some((publisher, subscriber)) = self.introduce(case)? else { return Ok(None) };
        self.weather.pace_micros = EVERY_MICROS;
        let begun = self.now;
        self.strike(case.fault);
        self.tell_story(|| format!("failover: {case:?}"));
        let mut sent: Vec<(u64, MessageId)> = Vec::new();
        let passed = loop {
            let passed = self.now.micros_since(begun);
            let came = |id: &MessageId| self.oracle.messages.get(id).is_some_and(|message| !message.got.is_empty());
            // The fault lets nothing pass that was sent after it, so that this one went another way.
            if let Some((at, _)) = sent.iter().find(|(_, id)| came(id)) {
                let promised = case.round_trip_micros.max(2 * (passed - at)) <= ROUND_TRIP_MICROS;
                break Some(passed).filter(|_| promised);
            }
            ensure!(passed < FAR_FAILOVER_MS * 1000, "failover: nothing came for {passed} us: {case:?}");
            sent.extend(self.talk(publisher, case.tenant).map(|id| (passed, id)));
            self.pump(true)?;
        };
        let late = passed.filter(|passed| *passed > FAILOVER_MS * 1000);
        ensure!(late.is_none(), "failover: it took {late:?} us: {case:?}");
        self.disconnect(publisher);
        self.disconnect(subscriber);
        Ok(passed)
    }

    /// A tenant, two brokers, and a fault on the way between them that leaves another one.
    fn draw_case(&mut self) -> Option<Case> {
        let nodes = self.brokers.len();
        let tenant = self.random.below(self.plan.root());
        let (from, to) = (self.random.below(nodes), self.random.below(nodes));
        let way = self.way(tenant, from, to)?;
        let (edge, near) = *self.random.pick(&way)?;
        // Nothing may arrive at its far end.
        let far = usize::from(self.plan.edges.get(edge)?.ends.first() == Some(&near));
        let silence = [self.random.chance(50) || far == 0, self.random.chance(50) || far == 1];
        let fault = match self.random.below(4) {
            _ if near == from => Fault::Silence(edge, silence),
            0 => Fault::Death(near),
            1 => Fault::Standstill(near),
            2 => Fault::Silence(edge, silence),
            _ => Fault::Cut(edge),
        };
        let fault = if self.random.chance(30) { Fault::Cut(edge) } else { fault };
        let left = self.plan.edges.iter().enumerate().filter(|(number, planned)| {
            let gone = match fault {
                Fault::Cut(edge) | Fault::Silence(edge, _) => *number == edge,
                Fault::Death(node) | Fault::Standstill(node) => planned.ends.contains(&node),
            };
            !gone && planned.effective().contains(&tenant)
        });
        let ways = graph::ways(nodes, from, left.map(|(_, planned)| (planned.ends, planned.cost())));
        ways.get(to).copied().flatten()?;
        let one_way: u64 = way.iter().filter_map(|(edge, _)| self.plan.edges.get(*edge)).map(|e| e.delay_micros).sum();
        Some(Case { tenant, from, to, fault, round_trip_micros: 2 * one_way })
    }

    /// The way that messages take, as edges with their near ends.
    fn way(&self, tenant: usize, from: usize, to: usize) -> Option<Vec<(usize, usize)>> {
        let (mut way, mut node) = (Vec::new(), from);
        while node != to && way.len() < self.brokers.len() {
            let broker = self.brokers.get(node)?.as_ref()?;
            let table = broker.tenants.by_id(self.plan.tenants.get(tenant)?.as_str())?.table();
            let hop = table.routes().hop(BrokerIndex(u32::try_from(to).ok()?))?;
            let edge = *broker.edges.get(usize::try_from(hop.edge.key().0).ok()?)?;
            way.push((edge, node));
            node = self.plan.edges.get(edge)?.ends.iter().copied().find(|end| *end != node)?;
        }
        Some(way)
    }

    /// Connects the two, and waits until a message has come.
    fn introduce(&mut self, case: Case) -> Result<Option<(u32, u32)>, Violation> {
        let first = self.next_client;
        self.connect_to(case.from, case.tenant, false);
        self.connect_to(case.to, case.tenant, false);
        self.subscribe_to(first + 1, NAME, subscription(NAME.to_owned(), Some(case.tenant)));
        self.drain()?;
        let Some(id) = self.talk(first, case.tenant) else { return Ok(None) };
        self.drain()?;
        let came = self.oracle.messages.get(&id).is_some_and(|message| !message.got.is_empty());
        ensure!(came || !self.plan.is_roomy(), "failover: nothing came before the fault: {case:?}");
        Ok(came.then_some((first, first + 1)))
    }

    fn talk(&mut self, publisher: u32, tenant: usize) -> Option<MessageId> {
        let publish = Publish { name: NAME, class: Class::Live, reply: "", payload_bytes: 30, numbered: false };
        self.publish(publisher, &publish, tenant, NAME, false, None)
    }

    fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Cut(edge) => self.cut(edge),
            Fault::Silence(edge, sides) => self.darken(edge, sides),
            Fault::Death(node) => self.kill(node),
            Fault::Standstill(node) => self.freeze(node, self.now.plus_millis(2 * FAR_FAILOVER_MS)),
        }
    }
}
