//! One seed from beginning to end: storm, rest, check; then a calm in which every message must go exactly where it must.

use glocal_core::count::Drop as DropReason;
use glocal_core::name::Class;

use crate::oracle::{Violation, ensure};
use crate::world::{Stats, World};

/// Actions of one storm by default.
pub const STEPS_DEFAULT: usize = 250;
/// Storms of one seed.
const STORMS: usize = 2;
/// Messages of one calm.
const CALM_MESSAGES: usize = 40;

/// What a seed did.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// The hash of everything that happened.
    pub trace: u64,
    /// Counts.
    pub stats: Stats,
    /// How long a failover took, in microseconds, where there was one.
    pub failover: Option<u64>,
}

/// Runs one seed with storms of `steps` actions.
///
/// # Errors
/// The first broken promise.
pub fn run(seed: u64, steps: usize) -> Result<Report, Violation> {
    let mut world = World::new(seed)?;
    live(&mut world, steps)
}

/// Runs one seed and tells what happened, in words.
pub fn tell(seed: u64, steps: usize) -> (Vec<String>, Result<Report, Violation>) {
    let mut world = match World::new(seed) {
        Ok(world) => world,
        Err(violation) => return (Vec::new(), Err(violation)),
    };
    let plan = &world.plan;
    let mut story = vec![format!(
        "{} brokers, {} tenants, {} bytes a lane; faults: {}, liars: {}, superusers: {}",
        plan.nodes.len(),
        plan.tenants.len(),
        plan.lane_bytes_max,
        plan.faults,
        plan.liars,
        plan.superusers
    )];
    story.extend(plan.edges.iter().map(|e| format!("edge {} {:?} carries {:?}", e.name, e.ends, e.effective())));
    world.story = Some(story);
    let result = live(&mut world, steps);
    (world.story.unwrap_or_default(), result)
}

fn live(world: &mut World, steps: usize) -> Result<Report, Violation> {
    for edge in 0..world.bridges.len() {
        world.dial(edge);
    }
    for _ in 0..STORMS {
        world.draw_pace();
        for _ in 0..steps {
            world.act()?;
            world.pump(false)?;
        }
        world.rest()?;
        world.check()?;
        world.stats.kept += world.oracle.check_kept(&world.lives)?;
        world.oracle.rest();
        calm(world)?;
        // Long enough for idle lanes to be reset and reply routes to be forgotten.
        if world.random.chance(50) {
            world.sleep(world.now.plus_millis(61_000));
        }
    }
    let mut failover = None;
    if world.plan.faults {
        failover = world.fail_over()?;
        world.rest()?;
        world.check()?;
    }
    Ok(Report { trace: world.trace.hash(), stats: world.stats, failover })
}

/// Copies of reliable classes that found no room on the way to those who only observe.
fn left_out(world: &World) -> u64 {
    let tenants = world.counters.iter().flat_map(|tenants| tenants.iter());
    tenants.flat_map(|tenant| Class::ALL.map(|class| tenant.counters().class(class).drops(DropReason::Congested))).sum()
}

/// Only messages, no change and no fault: everybody gets exactly what they must.
fn calm(world: &mut World) -> Result<(), Violation> {
    let before = left_out(world);
    for client in world.clients.values_mut() {
        client.requests.clear();
        client.unanswered.clear();
    }
    let numbers: Vec<u32> = world.clients.keys().copied().collect();
    for _ in 0..CALM_MESSAGES {
        if let Some(number) = world.random.pick(&numbers).copied() {
            let request = world.random.chance(25);
            world.tell(number, request);
        }
        world.pump(false)?;
    }
    world.drain()?;
    world.check()?;
    if world.plan.is_roomy() {
        world.oracle.check_exact(&world.plan, left_out(world) - before)?;
    }
    for client in world.clients.values() {
        for (seq, id) in &client.requests {
            let Some(message) = world.oracle.messages.get(id) else { continue };
            let told = client.unanswered.contains(seq);
            let answerable = world.oracle.has_responders(&world.plan, message, id.0);
            ensure!(told != answerable, "request {id:?} '{}': told so: {told}, responders: {answerable}", message.name);
        }
    }
    world.oracle.rest();
    Ok(())
}
