//! Many sessions that are given the same bytes: a message for all of them is written once, and their lanes share it.
//!
//! What a delivery is written with follows from the subscription, so that who is in one crowd is decided with who wants the
//! name. Only sessions with a single subscription that is no observer's and has no maximum are in one.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use glocal_core::count::Drop as DropReason;
use glocal_core::identity::Role;
use glocal_core::limits::{CROWD_SESSIONS_MIN, QUEUED_FRAME_OVERHEAD_BYTES, RUN_BYTES_MAX, SHARED_PAYLOAD_BYTES_MIN};
use glocal_core::name::Class;
use glocal_core::port::{Dialect, Sub};
use glocal_core::sched::QueuedFrame;
use glocal_core::table::{Match, PortTarget};
use glocal_core::tenant::Tenant;
use hashbrown::{HashMap, HashSet};

use super::encode::{encode_native, nats_subject};
use super::item::Item;
use super::{Batch, Message, shrunk};

/// All that tells one session's copy of a message from another's.
#[derive(PartialEq, Eq, Hash)]
struct Same<'s> {
    dialect: Dialect,
    qualified: bool,
    /// Who may see the sender's name; nobody for those who see what the message's own tenant sees.
    viewer: Option<&'s str>,
    sid: u32,
    tag: &'s [u8],
}

impl<'s> Same<'s> {
    fn of(sub: &'s Sub) -> Self {
        let principal = sub.port().principal();
        let viewer = matches!(principal.role(), Role::Tenant).then(|| principal.tenant().as_str());
        Self { dialect: sub.port().dialect(), qualified: sub.is_qualified(), viewer, sid: sub.sid(), tag: sub.tag() }
    }
}

/// Who wants one name, and who of them is given the same bytes.
#[derive(Debug)]
pub(crate) struct Wanted {
    found: Match,
    crowds: Option<Arc<Crowds>>,
}

impl Wanted {
    /// Looks for crowds among those who want a name, without the session `own`.
    pub(crate) fn new(found: Match, own: Option<u64>) -> Self {
        Self { crowds: Crowds::of(&found, own), found }
    }

    /// Who wants it.
    pub(crate) const fn found(&self) -> &Match {
        &self.found
    }

    /// The crowds that a message is written once for. It is small, of a class that asks no session for room, and does not say
    /// itself how long it is worth something.
    pub(crate) fn crowds(&self, message: &Message<'_>) -> Option<&Arc<Crowds>> {
        #[cfg(test)]
        if super::testing::is_off() {
            return None;
        }
        let is_same = !message.destination.class().is_reliable()
            && message.ttl_ms.is_none()
            && message.payload.len() < SHARED_PAYLOAD_BYTES_MIN;
        self.crowds.as_ref().filter(|_| is_same)
    }

    /// How much it holds, in entries of a few words each: what a cache is bounded by.
    pub(crate) fn weight(&self) -> usize {
        self.found.weight() + self.crowds.as_ref().map_or(0, |crowds| crowds.members())
    }
}

/// The sessions that want one name and are given the same bytes, crowd by crowd; no session is in two of them.
#[derive(Debug)]
pub(crate) struct Crowds {
    /// For each crowd the one subscription of each session.
    crowds: Vec<Vec<Arc<Sub>>>,
    /// Places of the others among the targets of the match.
    others: Vec<usize>,
}

impl Crowds {
    fn of(found: &Match, own: Option<u64>) -> Option<Arc<Self>> {
        if found.ports.len() < CROWD_SESSIONS_MIN || !found.groups.is_empty() {
            return None;
        }
        // A session is twice among the targets where it asked by the qualified form and by the other one.
        let mut times: HashMap<u64, u32> = HashMap::new();
        found.ports.iter().for_each(|target| *times.entry(target.port.id()).or_default() += 1);
        let mut alike: HashMap<Same<'_>, Vec<usize>> = HashMap::new();
        for (at, target) in found.ports.iter().enumerate() {
            let [sub] = &*target.subs else { continue };
            let id = target.port.id();
            if !sub.is_observer() && sub.is_endless() && Some(id) != own && times.get(&id) == Some(&1) {
                alike.entry(Same::of(sub)).or_default().push(at);
            }
        }
        let mut places: Vec<_> = alike.into_values().filter(|places| places.len() >= CROWD_SESSIONS_MIN).collect();
        places.sort_unstable();
        let sub = |at: &usize| found.ports.get(*at)?.subs.first().cloned();
        let crowds: Vec<Vec<_>> = places.iter().map(|places| places.iter().filter_map(sub).collect()).collect();
        let inside: HashSet<usize> = places.into_iter().flatten().collect();
        let others = (0..found.ports.len()).filter(|at| !inside.contains(at)).collect();
        (!crowds.is_empty()).then(|| Arc::new(Self { crowds, others }))
    }

    /// Targets of the match that are in no crowd.
    pub(crate) fn others<'f>(&self, found: &'f Match) -> impl Iterator<Item = &'f PortTarget> {
        self.others.iter().filter_map(|at| found.ports.get(*at))
    }

    /// Sessions in crowds.
    pub(crate) fn members(&self) -> usize {
        self.crowds.iter().map(Vec::len).sum()
    }
}

/// What was written for crowds and is in no lane yet.
#[derive(Debug)]
pub(super) struct Open {
    crowds: Arc<Crowds>,
    tenant: Arc<Tenant>,
    class: Class,
    /// For each crowd its frames, and the bytes of each of them.
    written: Vec<(BytesMut, Vec<usize>)>,
}

impl Batch {
    /// Collects a message for all sessions of some crowds, once for each of those. What follows for others who want the same
    /// name may be collected beside it.
    pub(crate) fn deliver_to_crowds(&mut self, crowds: &Arc<Crowds>, message: &Message<'_>) {
        if self.open.as_ref().is_some_and(|open| !Arc::ptr_eq(&open.crowds, crowds)) {
            self.scatter();
        }
        let mut open = self.open.take().unwrap_or_else(|| {
            let chunk = || (BytesMut::with_capacity(self.expected), Vec::new());
            let written = crowds.crowds.iter().map(|_| chunk()).collect();
            let (crowds, tenant) = (Arc::clone(crowds), Arc::clone(message.tenant));
            Open { crowds, tenant, class: message.destination.class(), written }
        });
        self.expected = 0;
        self.head.forget();
        for (subs, (chunk, sizes)) in crowds.crowds.iter().zip(&mut open.written) {
            let Some(sub) = subs.first() else { continue };
            match self.encode_for(chunk, sub, message) {
                Some(bytes) => {
                    self.held += bytes + QUEUED_FRAME_OVERHEAD_BYTES;
                    sizes.push(bytes);
                }
                None => {
                    let counters = message.tenant.counters().class(message.destination.class());
                    counters.dropped(DropReason::TooLarge, subs.len() as u64);
                }
            }
        }
        self.open = Some(open);
        self.beside = true;
        #[cfg(test)]
        super::testing::took();
    }

    /// Writes a small message for one subscription, as [`Self::deliver`] does, and returns its bytes.
    fn encode_for(&mut self, chunk: &mut BytesMut, sub: &Arc<Sub>, message: &Message<'_>) -> Option<usize> {
        let (port, qualified, start) = (sub.port(), sub.is_qualified(), chunk.len());
        match port.dialect() {
            Dialect::Native => {
                let (ext, tail) = (&mut self.ext, &mut self.shared_tail);
                encode_native(chunk, (ext, tail), port, qualified, &[sub], message)?;
            }
            Dialect::Nats { headers } => {
                let headers = if headers { message.headers } else { b"" };
                let subject = nats_subject(port, qualified, message);
                let (sid, reply) = (sub.tag(), message.reply);
                self.line.encode_msg_into(chunk, subject.as_bytes(), sid, reply, headers, message.payload).ok()?;
            }
        }
        Some(chunk.len() - start)
    }

    /// Notes what was written for crowds for each session of them, before these are given it or anything that comes after it.
    pub(super) fn scatter(&mut self) {
        let Some(Open { crowds, tenant, class, written }) = self.open.take() else { return };
        for (subs, (chunk, sizes)) in crowds.crowds.iter().zip(written) {
            let runs = runs(shrunk(chunk), &sizes);
            for sub in subs {
                // All of them, unless it was given a maximum since.
                let (taken, is_last) = sub.deliver_many(sizes.len() as u64);
                if is_last {
                    self.finished.push((sub.port().id(), sub.sid()));
                }
                let taken = usize::try_from(taken).unwrap_or(sizes.len());
                let index = self.port_target(sub.port());
                let Some(target) = self.ports.get_mut(index) else { continue };
                target.items.extend(first(&runs, &sizes, taken).map(|frame| Item::shared(class, &tenant, frame)));
            }
        }
    }
}

/// Frames in a row as entries of a queue: small ones together, as many as are dropped together.
fn runs(mut chunk: Bytes, sizes: &[usize]) -> Vec<QueuedFrame> {
    let mut runs = Vec::new();
    let (mut bytes, mut frames) = (0, 0);
    for size in sizes {
        if frames > 0 && bytes + size > RUN_BYTES_MAX {
            runs.push(QueuedFrame::new(chunk.split_to(bytes)).with_frames(frames));
            (bytes, frames) = (0, 0);
        }
        bytes += size;
        frames += 1;
    }
    if frames > 0 {
        runs.push(QueuedFrame::new(chunk).with_frames(frames));
    }
    runs
}

/// The first `taken` frames of some runs.
fn first<'r>(runs: &'r [QueuedFrame], sizes: &'r [usize], taken: usize) -> impl Iterator<Item = QueuedFrame> + 'r {
    let mut left = taken;
    let mut sizes = sizes.iter();
    runs.iter().map_while(move |run| {
        let frames = usize::try_from(run.frames).unwrap_or(usize::MAX);
        if left == 0 {
            return None;
        }
        if frames <= left {
            left -= frames;
            sizes.by_ref().take(frames).for_each(drop);
            return Some(run.clone());
        }
        let bytes: usize = sizes.by_ref().take(left).sum();
        let part = QueuedFrame::new(run.bytes.slice(..bytes.min(run.bytes.len())));
        let part = part.with_frames(u32::try_from(left).unwrap_or(u32::MAX));
        left = 0;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::principal;
    use glocal_core::inbox::Inbox;
    use glocal_core::name::Filter;
    use glocal_core::port::SessionPort;
    use glocal_core::sched::SessionLanes;

    #[test]
    fn runs_are_of_whole_frames_and_cut_where_a_subscription_ends() {
        let sizes = [1_000, 2_000, 1_096, 4_200, 10, 20];
        let chunk = Bytes::from((0..sizes.iter().sum()).map(|at: usize| at.to_le_bytes()[0]).collect::<Vec<_>>());
        let runs = runs(chunk.clone(), &sizes);
        let shape = |runs: &[QueuedFrame]| runs.iter().map(|run| (run.bytes.len(), run.frames)).collect::<Vec<_>>();
        assert_eq!(shape(&runs), [(4_096, 3), (4_200, 1), (30, 2)]);
        for taken in 0..=sizes.len() {
            let part: Vec<_> = first(&runs, &sizes, taken).collect();
            let bytes = part.iter().flat_map(|run| run.bytes.to_vec()).collect::<Vec<_>>();
            assert_eq!(bytes, chunk[..sizes[..taken].iter().sum()], "{taken}");
            assert_eq!(part.iter().map(|run| run.frames as usize).sum::<usize>(), taken);
        }
    }

    #[test]
    fn each_part_tells_copies_apart() {
        let alice = ("tenantA", "alice", Role::Tenant);
        let native = Dialect::Native;
        let sub = |(tenant, agent, role), dialect, filter: &[u8], sid, tag: &[u8]| {
            let principal = principal(tenant, agent, role);
            let filter = Filter::qualify(principal.tenant(), filter).unwrap();
            let port = SessionPort::new(1, principal, true, Inbox::new(SessionLanes::default())).speaking(dialect);
            Sub::new(Arc::new(port), sid, &filter, None, false).tagged(Box::from(tag))
        };
        let one = sub(alice, native, b"a", 7, b"");
        let alike = [sub(alice, native, b"a.>", 7, b""), sub(("tenantA", "bob", Role::Tenant), native, b"a", 7, b"")];
        assert!(alike.iter().all(|other| Same::of(other) == Same::of(&one)));
        let others = [
            sub(alice, Dialect::Nats { headers: true }, b"a", 7, b""),
            sub(alice, Dialect::Nats { headers: false }, b"a", 7, b""),
            sub(alice, native, b"T.tenantA.live.a", 7, b""),
            sub(("tenantB", "alice", Role::Tenant), native, b"a", 7, b""),
            sub(("cresco-system", "alice", Role::Superuser), native, b"a", 7, b""),
            sub(alice, native, b"a", 8, b""),
            sub(alice, native, b"a", 7, b"7"),
        ];
        let kinds: HashSet<_> = others.iter().chain([&one]).map(Same::of).collect();
        assert_eq!(kinds.len(), 1 + others.len());
    }
}
