//! A slow link, a tenant that floods it, and another that says a word now and then.

use glocal_core::name::Class;
use glocal_core::rate::TokenBucket;

use crate::act::subscription;
use crate::client::Publish;
use crate::oracle::{Violation, ensure};
use crate::plan::Plan;
use crate::random::Random;
use crate::world::World;

/// Rate of the link, in bytes per second.
const RATE: u64 = 1_000_000;
/// Bytes of one message of the flood.
const FLOOD_BYTES: usize = 50_000;
/// Messages of the flood.
const FLOOD_MESSAGES: usize = 40;

/// How long messages took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delays {
    /// The longest way of a word, in microseconds.
    pub worst_micros: u64,
    /// How long the flood took, in microseconds.
    pub flood_micros: u64,
}

/// Runs it: clients 1 and 2 of the two tenants write at one broker, clients 3 and 4 read at the other.
///
/// # Errors
/// A broken promise, or a message that never came.
pub fn flood(seed: u64) -> Result<Delays, Violation> {
    let mut world = World::of(Plan::pair(), Random::new(seed))?;
    world.dial(0);
    for (node, tenant) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        world.connect_to(node, tenant, false);
    }
    for (number, tenant) in [(3, 0), (4, 1)] {
        world.subscribe_to(number, ">", subscription(">".to_owned(), Some(tenant)));
    }
    world.rest()?;
    let link = world.brokers.first().and_then(Option::as_ref).and_then(|broker| broker.link(0));
    if let Some(link) = link {
        link.inbox().with(|lanes| {
            lanes.sched_mut().set_shaper(Some(TokenBucket::new(RATE, 3_000, world.now)));
            lanes.sched_mut().set_rate(RATE);
        });
    }
    let begun = world.now;
    for _ in 0..FLOOD_MESSAGES {
        let class = world.random.pick(&Class::ALL).copied().unwrap_or(Class::Live);
        let publish = Publish { name: "flood", class, reply: "", payload_bytes: FLOOD_BYTES, numbered: false };
        world.publish(1, &publish, 0, "flood", false, None);
    }
    let mut delays = Delays::default();
    let received = |world: &World| world.received.iter().filter(|((t, _), _)| *t == 1).map(|(_, n)| n).sum::<u64>();
    for word in 1..=15 {
        for _ in 0..world.random.between(1, 40) {
            world.pump(true)?;
        }
        let said = world.now;
        let publish = Publish { name: "word", class: Class::Live, reply: "", payload_bytes: 100, numbered: false };
        world.publish(2, &publish, 1, "word", false, None);
        while received(&world) < word {
            world.pump(true)?;
            ensure!(world.now.micros_since(said) < 10_000_000, "word {word} never came");
        }
        delays.worst_micros = delays.worst_micros.max(world.now.micros_since(said));
    }
    world.drain()?;
    world.oracle.check_exact(&world.plan, 0)?;
    delays.flood_micros = world.now.micros_since(begun);
    Ok(delays)
}
