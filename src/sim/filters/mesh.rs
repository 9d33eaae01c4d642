//! A mesh full of filters: what brokers tell each other of them, what they hold, and when who publishes knows all.
//!
//! Every tenant has subscribers at some of the brokers. Of the two brokers with nobody, one gets publishers, the other holds
//! presence only.

use std::collections::BTreeSet;
use std::sync::Arc;

use glocal_core::port::SessionPort;
use glocal_core::time::Time;
use glocal_engine::driver::{Command, FOLLOW_MS};

use super::site::{Fabric, Site};
use super::wires::Wires;
use super::{Gauge, each};
use crate::graph;
use crate::oracle::{Violation, ensure};
use crate::random::Random;

/// Edges of a broker.
const DEGREE: usize = 4;
/// Brokers at which a tenant has subscribers.
const ORIGINS: usize = 10;
/// How long anything may take until it is quiet, in milliseconds of the world.
const PATIENCE_MS: u64 = 120_000;
/// Brokers without subscribers.
const QUIET: usize = 2;

/// What one thing took that brokers told each other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Told {
    /// Bytes in the lanes of bridges, all hops.
    pub bytes: u64,
    /// Directions of edges that carried any.
    pub hops: u64,
    /// Bytes that arrived at the broker with publishers.
    pub arrived: u64,
    /// Time until nobody had anything to tell any more, in milliseconds of the world.
    pub millis: u64,
}

/// What a mesh full of filters takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Filters of all brokers.
    pub filters: u64,
    /// Pairs of a tenant and a broker with subscribers of it.
    pub pairs: u64,
    /// Memory of one filter where it is wanted, in bytes.
    pub origin_bytes_each: u64,
    /// What telling of presence took.
    pub presence: Told,
    /// Memory of telling of presence, in bytes for each pair and broker.
    pub presence_bytes_each: u64,
    /// Filters that the broker with publishers has pulled.
    pub pulled: u64,
    /// Memory of one filter there, in bytes.
    pub puller_bytes_each: u64,
    /// What pulling took.
    pub pull: Told,
    /// When the publishers' view was complete, in milliseconds of the world.
    pub in_sync_millis: u64,
    /// What one more filter took.
    pub added: Told,
}

/// Brokers, bridges, and a clock.
#[derive(Debug)]
pub struct Mesh {
    sites: Vec<Site>,
    wires: Wires,
    now: Time,
    next_tick: Time,
    tenants: usize,
    sessions: Vec<(usize, usize, Arc<SessionPort>)>,
}

impl Mesh {
    /// `brokers` brokers with all bridges up that know how they are joined, and nobody connected.
    ///
    /// # Errors
    /// When they do not learn it.
    pub fn new(brokers: usize, tenants: usize, seed: u64) -> Result<Self, Violation> {
        let mut random = Random::new(seed);
        let edges = graph::regular(&mut random, brokers, DEGREE);
        let built = Fabric::new(brokers, edges, tenants).and_then(|fabric| {
            Some(((0..brokers).map(|n| Site::new(&fabric, n)).collect::<Option<Vec<_>>>()?, fabric))
        });
        let (mut sites, fabric) = built.ok_or_else(|| Violation("the mesh cannot be built".to_owned()))?;
        let wires = Wires::new(&fabric, &mut sites, &mut random)?;
        let (now, next_tick) = (Time::default(), Time::default());
        let mut mesh = Self { sites, wires, now, next_tick, tenants, sessions: Vec::new() };
        mesh.commit_all();
        mesh.settle()?;
        Ok(mesh)
    }

    /// Brokers at which a tenant has subscribers: some, in a row, never the last two.
    fn origins(&self, tenant: usize) -> impl Iterator<Item = usize> + use<> {
        let settled = self.sites.len() - QUIET;
        (0..ORIGINS.min(settled)).map(move |at| (tenant + at) % settled)
    }

    /// The broker that gets publishers.
    const fn puller(&self) -> usize {
        self.sites.len() - 1
    }

    /// The broker without anybody.
    const fn silent(&self) -> usize {
        self.sites.len() - QUIET
    }

    /// Every tenant subscribes at its brokers, to so many filters at each; nobody has heard of it yet.
    ///
    /// # Errors
    /// When one is refused.
    pub fn subscribe(&mut self, of_each: u64) -> Result<u64, Violation> {
        let mut filters = 0;
        for tenant in 0..self.tenants {
            for node in self.origins(tenant) {
                let Some(site) = self.sites.get_mut(node) else { continue };
                let Some(port) = site.session(tenant) else { continue };
                for (sid, number) in (0u32..).zip(0..of_each) {
                    site.subscribe(&port, sid, filters + number, self.now)?;
                }
                filters += of_each;
                self.sessions.push((tenant, node, port));
            }
        }
        self.sites.iter_mut().for_each(|site| site.commit(self.now));
        Ok(filters)
    }

    /// One more filter of the tenant that comes first, where its subscribers are farthest.
    fn add_one(&mut self, number: u64, sid: u32) -> Result<(), Violation> {
        let Some((_, node, port)) = self.sessions.first().cloned() else { return Ok(()) };
        let now = self.now;
        if let Some(site) = self.sites.get_mut(node) {
            site.subscribe(&port, sid, number, now)?;
            site.commit(now);
            self.wires.write(site, node, now);
        }
        Ok(())
    }

    fn publish_from(&mut self, node: usize, tenants: usize) {
        let now = self.now;
        let Some(site) = self.sites.get_mut(node) else { return };
        for number in 0..tenants {
            let Some((port, tenant)) = site.session(number).zip(site.tenant(number)) else { continue };
            site.driver.apply(Command::PublishFrom { session: port.id(), tenant: tenant.key() });
        }
        site.commit(now);
        self.wires.write(site, node, now);
    }

    /// A publisher connects to the broker that is to have nobody.
    #[cfg(test)]
    pub(super) fn publish_at_the_silent(&mut self) {
        self.publish_from(self.silent(), 1);
    }

    fn commit_all(&mut self) {
        for (node, site) in self.sites.iter_mut().enumerate() {
            site.commit(self.now);
            self.wires.write(site, node, self.now);
        }
    }

    /// Lets brokers talk until nobody has anything to tell; when something was told last.
    fn settle(&mut self) -> Result<Time, Violation> {
        let begun = self.now;
        let mut last = begun;
        while self.wires.next().is_some() || !self.is_quiet() {
            ensure!(millis(begun, self.now) < PATIENCE_MS, "still not quiet after {PATIENCE_MS} ms");
            if self.step()? {
                last = self.now;
            }
        }
        Ok(last)
    }

    /// One moment at which something arrives or is due. Whether something arrived.
    fn step(&mut self) -> Result<bool, Violation> {
        self.now = self.wires.next().map_or(self.next_tick, |next| next.min(self.next_tick));
        if self.now >= self.next_tick {
            self.next_tick = self.now.plus_millis(FOLLOW_MS);
            self.sites.iter_mut().for_each(|site| site.driver.follow(self.now));
            self.commit_all();
        }
        let touched = self.wires.read(&mut self.sites, self.now)?;
        for node in &touched {
            let Some(site) = self.sites.get_mut(*node) else { continue };
            site.commit(self.now);
            self.wires.write(site, *node, self.now);
        }
        Ok(!touched.is_empty())
    }

    fn is_quiet(&self) -> bool {
        self.sites.iter().all(|site| site.driver.control().is_quiet() && !site.driver.is_waiting())
    }

    /// What was told while `happens`, until it is quiet.
    fn told(&mut self, happens: impl FnOnce(&mut Self) -> Result<(), Violation>) -> Result<Told, Violation> {
        let puller = self.puller();
        let begun = self.now;
        let (before, arrived) = (self.wires.wrote(), self.wires.sent_to(puller));
        happens(self)?;
        let millis = millis(begun, self.settle()?);
        let grown: Vec<u64> = self.wires.wrote().iter().zip(&before).map(|(now, before)| now - before).collect();
        let hops = grown.iter().filter(|bytes| **bytes > 0).count() as u64;
        Ok(Told { bytes: grown.iter().sum(), hops, arrived: self.wires.sent_to(puller) - arrived, millis })
    }

    /// Everybody learns who has subscribers of whom.
    ///
    /// # Errors
    /// When somebody does not, or holds more.
    pub fn learn_presence(&mut self) -> Result<Told, Violation> {
        let told = self.told(|mesh| {
            mesh.commit_all();
            Ok(())
        })?;
        for tenant in 0..self.tenants {
            let present: BTreeSet<usize> = self.origins(tenant).collect();
            for (node, site) in self.sites.iter().enumerate() {
                let Some(handle) = site.tenant(tenant) else { continue };
                let known = site.driver.control().present(handle.key());
                let expected = present.len() - usize::from(present.contains(&node));
                ensure!(known.len() == expected, "broker {node} knows {} origins of tenant {tenant}", known.len());
            }
        }
        self.check_presence_only()?;
        Ok(told)
    }

    /// Checks that brokers without publishers hold of others who is present, and nothing else.
    ///
    /// # Errors
    /// What one holds.
    pub fn check_presence_only(&self) -> Result<(), Violation> {
        for (node, site) in self.sites.iter().enumerate().filter(|(node, _)| *node != self.puller()) {
            for tenant in 0..self.tenants {
                let Some(handle) = site.tenant(tenant) else { continue };
                let control = site.driver.control();
                let far = control.remote_filters(handle.key());
                ensure!(
                    far == 0 && !control.is_following(handle.key()),
                    "broker {node} holds {far} of tenant {tenant}"
                );
                let held = site.held(tenant);
                ensure!(node != self.silent() || held == 0, "broker {node} has {held} filters of tenant {tenant}");
            }
        }
        Ok(())
    }

    /// Publishers of the first `tenants` tenants connect to a broker that has nobody; when all is known there, and the
    /// filters held.
    ///
    /// # Errors
    /// When they do not learn everything, or others learn anything.
    fn pull(&mut self, tenants: usize, of_each: u64) -> Result<(Told, u64, u64), Violation> {
        let begun = self.now;
        let mut synced = None;
        let told = self.told(|mesh| {
            mesh.publish_from(mesh.puller(), tenants);
            while synced.is_none() {
                ensure!(millis(begun, mesh.now) < PATIENCE_MS, "not in sync after {PATIENCE_MS} ms");
                mesh.step()?;
                synced = mesh.knows_all(tenants).then(|| millis(begun, mesh.now));
            }
            Ok(())
        })?;
        let mut pulled = 0;
        let expected = of_each * self.origins(0).count() as u64;
        for number in 0..tenants {
            let site = self.sites.last().and_then(|site| Some((site, site.tenant(number)?)));
            let Some((site, tenant)) = site else { continue };
            let held = site.driver.control().remote_filters(tenant.key()) as u64;
            ensure!(held == expected, "{held} filters of tenant {number} are known, not {expected}");
            pulled += held;
        }
        self.check_presence_only()?;
        Ok((told, synced.unwrap_or(0), pulled))
    }

    fn knows_all(&self, tenants: usize) -> bool {
        let Some(site) = self.sites.last() else { return false };
        (0..tenants).all(|number| site.tenant(number).is_some_and(|tenant| tenant.table().in_sync()))
    }
}

fn millis(from: Time, to: Time) -> u64 {
    to.micros_since(from) / 1_000
}

/// Fills a mesh of `brokers` brokers with about `filters` filters of `tenants` tenants, and lets publishers of `publishing`
/// of them connect where nobody is.
///
/// # Errors
/// When a broker does not hold, know or forget what it must.
pub fn figures(
    gauge: &impl Gauge,
    (brokers, tenants, publishing): (usize, usize, usize),
    filters: u64,
    seed: u64,
) -> Result<Figures, Violation> {
    ensure!(brokers > QUIET, "a mesh has at least {} brokers", QUIET + 1);
    let mut mesh = Mesh::new(brokers, tenants, seed)?;
    let pairs = (tenants * mesh.origins(0).count()) as u64;
    let of_each = (filters / pairs).max(1);
    let empty = gauge.resident_bytes();
    let filters = mesh.subscribe(of_each)?;
    let full = gauge.resident_bytes();
    let presence = mesh.learn_presence()?;
    let told = gauge.resident_bytes();
    let (pull, in_sync_millis, pulled) = mesh.pull(publishing.min(tenants), of_each)?;
    let puller_bytes_each = each(told, gauge.resident_bytes(), pulled);
    let sid = u32::try_from(of_each).unwrap_or(u32::MAX);
    let added = mesh.told(|mesh| mesh.add_one(filters, sid))?;
    mesh.check_presence_only()?;
    Ok(Figures {
        filters,
        pairs,
        origin_bytes_each: each(empty, full, filters),
        presence,
        presence_bytes_each: each(full, told, pairs * brokers as u64),
        pulled,
        puller_bytes_each,
        pull,
        in_sync_millis,
        added,
    })
}

/// What telling of presence takes in such a mesh with one filter for each pair of a tenant and a broker.
///
/// # Errors
/// As [`figures`].
pub fn presence_of_few(brokers: usize, tenants: usize, seed: u64) -> Result<Told, Violation> {
    ensure!(brokers > QUIET, "a mesh has at least {} brokers", QUIET + 1);
    let mut mesh = Mesh::new(brokers, tenants, seed)?;
    mesh.subscribe(1)?;
    mesh.learn_presence()
}
