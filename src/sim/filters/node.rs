//! One broker: what a million filters take, how long a name takes to match, and whether other tenants matter.

use std::sync::Arc;

use glocal_core::name::{Class, RawName};
use glocal_core::port::SessionPort;
use glocal_core::time::Time;

use super::site::{Fabric, Site};
use super::{Gauge, Hits, KINDS, each, quantiles};
use crate::oracle::{Violation, ensure};
use crate::random::Random;

/// Filters of one session: what a session may hold.
const SESSION_FILTERS: u64 = glocal_core::limits::SESSION_SUBSCRIPTIONS_MAX as u64;
/// Names matched for one figure.
const MATCHES: usize = 20_000;
/// Tenants of which the memory is looked at together: of one alone it would not be seen exactly enough.
const PROBES: usize = 20;
/// Rounds in which worlds take turns.
const ROUNDS: usize = 9;

/// What a broker full of filters takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Filters held.
    pub filters: u64,
    /// Subscriptions a second, policy and commits included.
    pub per_second: u64,
    /// Memory of one, in bytes.
    pub bytes_each: u64,
    /// Median and 99th percentile of a match, in nanoseconds, by [`Hits::ALL`]: no match is remembered, and each name is of
    /// another tenant than the one before, so that nothing of it is in the processor's caches.
    pub matches: [[u64; 2]; 3],
    /// The same for names of one tenant only, as a publisher has them.
    pub own_matches: [[u64; 2]; 3],
    /// The second half of the subscriptions took so much of the time of the first, in percent.
    pub second_half_percent: u64,
    /// Unsubscriptions a second.
    pub ended_per_second: u64,
    /// Memory that is not given back when all have ended, in bytes for each.
    pub left_each: u64,
    /// Memory when as many are there once more, in percent of the first time.
    pub again_percent: u64,
}

/// Tenants of one broker with as many filters each, of sessions of their own.
#[derive(Debug)]
pub struct Crowd {
    /// The broker.
    pub site: Site,
    tenants: Vec<(usize, u64, Vec<Arc<SessionPort>>)>,
}

impl Crowd {
    /// A broker without edges in a fabric of so many tenants, nobody connected.
    #[must_use]
    pub fn new(tenants: usize) -> Option<Self> {
        let fabric = Fabric::new(1, Vec::new(), tenants)?;
        Some(Self { site: Site::new(&fabric, 0)?, tenants: Vec::new() })
    }

    /// Sessions of `tenant` that are going to hold `filters` filters.
    pub fn join(&mut self, tenant: usize, filters: u64) {
        let sessions = filters.div_ceil(SESSION_FILTERS);
        let ports = (0..sessions).filter_map(|_| self.site.session(tenant)).collect();
        self.tenants.push((tenant, filters, ports));
    }

    /// Everybody who has joined subscribes to the filters from `from` to `to` of what it wants, in turns.
    ///
    /// # Errors
    /// When one is refused.
    pub fn subscribe(&mut self, from: u64, to: u64) -> Result<(), Violation> {
        for number in from..to {
            for (tenant, filters, ports) in self.tenants.iter().filter(|(_, filters, _)| number < *filters) {
                let Some((port, sid)) = place(ports, number) else { continue };
                self.site.subscribe(port, sid, *tenant as u64 * *filters + number, Time::default())?;
            }
        }
        self.site.commit(Time::default());
        Ok(())
    }

    /// Everybody ends everything, in turns.
    pub fn unsubscribe(&mut self) {
        let most = self.tenants.iter().map(|(_, filters, _)| *filters).max().unwrap_or(0);
        for number in 0..most {
            for (_, _, ports) in self.tenants.iter().filter(|(_, filters, _)| number < *filters) {
                let Some((port, sid)) = place(ports, number) else { continue };
                self.site.unsubscribe(port, sid, Time::default());
            }
        }
        self.site.commit(Time::default());
    }

    /// How long names of random tenants, or of the one that joined first, take to match, in nanoseconds.
    ///
    /// # Errors
    /// When a name hits other filters than it must.
    pub fn matches(
        &self,
        gauge: &impl Gauge,
        random: &mut Random,
        hits: Hits,
        first: bool,
    ) -> Result<[u64; 2], Violation> {
        let mut names = Vec::with_capacity(MATCHES);
        for _ in 0..MATCHES {
            let joined = if first { 0 } else { random.below(self.tenants.len()) };
            let Some((tenant, filters, _)) = self.tenants.get(joined) else { continue };
            let number = *tenant as u64 * *filters + random.below(usize::try_from(*filters).unwrap_or(0)) as u64;
            names.push((self.site.tenant(*tenant), hits.name(number)));
        }
        let mut measured = Vec::with_capacity(MATCHES);
        for (tenant, name) in &names {
            let (Some(tenant), Ok(raw)) = (tenant, RawName::parse(name.as_bytes())) else { continue };
            let begun = gauge.nanos();
            let found = tenant.table().find(Class::Live, raw, &tenant.section());
            measured.push(gauge.nanos() - begun);
            let count: usize = found.ports.iter().map(|port| port.subs.len()).sum();
            ensure!(count == hits.count(), "{name} hits {count} filters, not {}", hits.count());
        }
        Ok(quantiles(&mut measured))
    }
}

/// The session that holds filter `number` of its tenant, and under which number.
fn place(ports: &[Arc<SessionPort>], number: u64) -> Option<(&Arc<SessionPort>, u32)> {
    let port = ports.get(usize::try_from(number / SESSION_FILTERS).ok()?)?;
    Some((port, u32::try_from(number % SESSION_FILTERS).ok()?))
}

/// Fills one broker with `filters` filters of `tenants` tenants, matches names, and empties it.
///
/// # Errors
/// When it does not hold, find or forget what it must.
pub fn load(gauge: &impl Gauge, tenants: usize, filters: u64) -> Result<Load, Violation> {
    // Whole units, so that a name hits what it must.
    let of_each = (filters / tenants as u64 / KINDS).max(1) * KINDS;
    let filters = of_each * tenants as u64;
    let mut crowd = Crowd::new(tenants).ok_or_else(|| Violation("no broker".to_owned()))?;
    (0..tenants).for_each(|tenant| crowd.join(tenant, of_each));
    let (empty, begun) = (gauge.resident_bytes(), gauge.cpu_nanos());
    crowd.subscribe(0, of_each / 2)?;
    let half = gauge.cpu_nanos();
    crowd.subscribe(of_each / 2, of_each)?;
    let (full, ended) = (gauge.resident_bytes(), gauge.cpu_nanos());
    crowd.site.check_held(tenants, usize::try_from(of_each).unwrap_or(0))?;
    let mut load = Load {
        filters,
        per_second: per_second(filters, ended - begun),
        bytes_each: each(empty, full, filters),
        second_half_percent: (ended - half) * 100 / (half - begun).max(1),
        ..Load::default()
    };
    let mut random = Random::new(filters);
    for ((hits, figure), own) in Hits::ALL.into_iter().zip(&mut load.matches).zip(&mut load.own_matches) {
        *figure = crowd.matches(gauge, &mut random, hits, false)?;
        *own = crowd.matches(gauge, &mut random, hits, true)?;
    }
    let begun = gauge.cpu_nanos();
    crowd.unsubscribe();
    load.ended_per_second = per_second(filters, gauge.cpu_nanos() - begun);
    load.left_each = each(empty, gauge.resident_bytes(), filters);
    crowd.site.check_held(tenants, 0)?;
    ensure!(crowd.site.driver.control().subscriptions() == 0, "subscriptions are left");
    crowd.subscribe(0, of_each)?;
    load.again_percent = gauge.resident_bytes().saturating_sub(empty) * 100 / full.saturating_sub(empty).max(1);
    Ok(load)
}

fn per_second(count: u64, nanos: u64) -> u64 {
    let rate = u128::from(count) * 1_000_000_000 / u128::from(nanos.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// What one tenant pays alone, beside many tenants, and beside a large one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside {
    /// Median of a match of the tenant's names in nanoseconds, medians of rounds taken in turns: alone, among many, beside
    /// a large one.
    pub matches: [u64; 3],
    /// Memory of one of its filters in bytes, in the same order.
    pub bytes_each: [u64; 3],
}

impl Beside {
    /// The greatest ratio to being alone, in percent: of a match, and of memory.
    #[must_use]
    pub fn percents(&self) -> [u64; 2] {
        [self.matches, self.bytes_each]
            .map(|[alone, others @ ..]| others.into_iter().map(|other| other * 100 / alone.max(1)).max().unwrap_or(0))
    }
}

/// Measures tenants with `own` filters alone, beside `tenants` others with as many each, and beside one with `large`.
///
/// # Errors
/// When a broker does not hold or find what it must.
pub fn beside(gauge: &impl Gauge, tenants: usize, own: u64, large: u64) -> Result<Beside, Violation> {
    let mut beside = Beside::default();
    let mut crowds = Vec::new();
    let others: [Vec<u64>; 3] = [Vec::new(), vec![own; tenants], vec![large]];
    for (others, figure) in others.into_iter().zip(&mut beside.bytes_each) {
        let mut neighbours = Crowd::new(tenants + PROBES).ok_or_else(|| Violation("no broker".to_owned()))?;
        others.iter().enumerate().for_each(|(at, filters)| neighbours.join(at + PROBES, *filters));
        neighbours.subscribe(0, others.iter().copied().max().unwrap_or(0))?;
        // Those that are measured come last, in the same broker, and nobody else moves from now on.
        let mut crowd = Crowd { site: neighbours.site, tenants: Vec::new() };
        (0..PROBES).for_each(|tenant| crowd.join(tenant, own));
        let before = gauge.resident_bytes();
        crowd.subscribe(0, own)?;
        *figure = each(before, gauge.resident_bytes(), own * PROBES as u64);
        crowds.push((crowd, neighbours.tenants));
    }
    let mut random = Random::new(own);
    let mut medians: [Vec<u64>; 3] = Default::default();
    for _ in 0..ROUNDS {
        for ((crowd, _), medians) in crowds.iter().zip(&mut medians) {
            let [median, _] = crowd.matches(gauge, &mut random, Hits::Several, true)?;
            medians.push(median);
        }
    }
    for (medians, figure) in medians.iter_mut().zip(&mut beside.matches) {
        let [median, _] = quantiles(medians);
        *figure = median;
    }
    Ok(beside)
}
