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
use glocal_core::port::{Dialect, SessionPort, Sub};
use glocal_core::sched::QueuedFrame;
use glocal_core::table::{Match, PortTarget};
use glocal_core::tenant::Tenant;
use glocal_core::time::Time;
use hashbrown::{HashMap, HashSet};

use super::encode::nats_subject;
use super::item::Item;
use super::{Batch, Message, count, shrunk};

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
    fn of(target: &PortTarget, sub: &'s Sub) -> Self {
        let principal = sub.port().principal();
        let viewer = matches!(principal.role(), Role::Tenant).then(|| principal.tenant().as_str());
        Self { dialect: sub.port().dialect(), qualified: target.qualified, viewer, sid: sub.sid(), tag: sub.tag() }
    }
}

/// The sessions that want one name and are given the same bytes, crowd by crowd; no session is in two of them.
#[derive(Debug)]
pub(crate) struct Crowds {
    crowds: Vec<Crowd>,
    /// Places of the others among the targets of the match.
    others: Vec<usize>,
    members: usize,
}

#[derive(Debug)]
struct Crowd {
    qualified: bool,
    subs: Vec<Arc<Sub>>,
}

impl Crowds {
    /// The crowds among those who want a name, without the session `own`; `None` where there is none.
    pub(crate) fn of(found: &Match, own: Option<u64>) -> Option<Arc<Self>> {
        if found.ports.len() < CROWD_SESSIONS_MIN || !found.groups.is_empty() {
            return None;
        }
        let (mut seen, mut twice) = (HashSet::new(), HashSet::new());
        for target in &found.ports {
            if !seen.insert(target.port.id()) {
                twice.insert(target.port.id());
            }
        }
        let mut alike: HashMap<Same<'_>, Vec<usize>> = HashMap::new();
        for (at, target) in found.ports.iter().enumerate() {
            let [sub] = &*target.subs else { continue };
            let id = target.port.id();
            if !sub.is_observer() && sub.is_endless() && Some(id) != own && !twice.contains(&id) {
                alike.entry(Same::of(target, sub)).or_default().push(at);
            }
        }
        let mut places: Vec<_> = alike.into_values().filter(|places| places.len() >= CROWD_SESSIONS_MIN).collect();
        places.sort_unstable();
        let crowd = |places: &Vec<usize>| {
            let targets = || places.iter().filter_map(|at| found.ports.get(*at));
            let subs = targets().filter_map(|target| target.subs.first().cloned()).collect();
            Crowd { qualified: targets().any(|target| target.qualified), subs }
        };
        let crowds: Vec<_> = places.iter().map(crowd).collect();
        let inside: HashSet<usize> = places.iter().flatten().copied().collect();
        let others = (0..found.ports.len()).filter(|at| !inside.contains(at)).collect();
        (!crowds.is_empty()).then(|| Arc::new(Self { crowds, others, members: inside.len() }))
    }

    /// Whether a message is written the same for all of a crowd: it is small, of a class that asks no session for room, and
    /// does not say itself how long it is worth something.
    pub(crate) fn take(&self, message: &Message<'_>) -> bool {
        #[cfg(test)]
        if super::testing::is_off() {
            return false;
        }
        !message.destination.class().is_reliable()
            && message.ttl_ms.is_none()
            && message.payload.len() < SHARED_PAYLOAD_BYTES_MIN
    }

    /// Targets of the match that are in no crowd.
    pub(crate) fn others<'f>(&self, found: &'f Match) -> impl Iterator<Item = &'f PortTarget> {
        self.others.iter().filter_map(|at| found.ports.get(*at))
    }

    /// Sessions in crowds.
    pub(crate) const fn members(&self) -> usize {
        self.members
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
        for (crowd, (chunk, sizes)) in crowds.crowds.iter().zip(&mut open.written) {
            let Some(sub) = crowd.subs.first() else { continue };
            match self.encode_for(chunk, sub.port(), crowd.qualified, sub, message) {
                Some(bytes) => {
                    self.held += bytes + QUEUED_FRAME_OVERHEAD_BYTES;
                    sizes.push(bytes);
                }
                None => message
                    .tenant
                    .counters()
                    .class(message.destination.class())
                    .dropped(DropReason::TooLarge, crowd.subs.len() as u64),
            }
        }
        self.open = Some(open);
        self.beside = true;
        #[cfg(test)]
        super::testing::took();
    }

    /// Writes a small message for one subscription, as [`Self::deliver`] does.
    fn encode_for(
        &mut self,
        chunk: &mut BytesMut,
        port: &SessionPort,
        qualified: bool,
        sub: &Arc<Sub>,
        message: &Message<'_>,
    ) -> Option<usize> {
        let start = chunk.len();
        match port.dialect() {
            Dialect::Native => {
                let (bytes, _) = self.encode_native(chunk, port, qualified, &[sub], message)?;
                return Some(bytes);
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

    /// Notes what was written for crowds for each session of them, so that what is collected for these from now on comes
    /// after it.
    pub(super) fn scatter(&mut self) {
        let Some(Open { crowds, tenant, class, written }) = self.open.take() else { return };
        for (crowd, (chunk, sizes)) in crowds.crowds.iter().zip(written) {
            let runs = runs(shrunk(chunk), &sizes);
            for sub in &crowd.subs {
                let taken = self.count_out(sub, &sizes);
                let index = self.port_target(sub.port());
                let Some(target) = self.ports.get_mut(index) else { continue };
                target.items.extend(first(&runs, &sizes, taken).map(|frame| Item::shared(class, &tenant, frame)));
            }
        }
    }

    /// Puts what was written for crowds into the lanes of their sessions.
    pub(super) fn push_crowds(&mut self, now: Time) {
        let Some(Open { crowds, tenant, class, written }) = self.open.take() else { return };
        self.room.anywhere = true;
        for (crowd, (chunk, sizes)) in crowds.crowds.iter().zip(written) {
            let runs = runs(shrunk(chunk), &sizes);
            for sub in &crowd.subs {
                let taken = self.count_out(sub, &sizes);
                let port = sub.port();
                tenant.counters().class(class).delivered.add(taken as u64);
                let pushed = port.inbox().push_batch(|lanes| {
                    lanes.begin();
                    for frame in first(&runs, &sizes, taken) {
                        let frames = frame.frames;
                        let pushed = lanes.push(class, frame, now);
                        port.lost.add(count(&tenant, class, pushed, lanes.lost_by(), frames));
                    }
                    lanes.settle();
                });
                if pushed.is_none() {
                    tenant.counters().class(class).dropped(DropReason::Gone, taken as u64);
                }
            }
        }
    }

    /// How many of the frames a subscription takes: all, unless it was given a maximum since.
    fn count_out(&mut self, sub: &Sub, sizes: &[usize]) -> usize {
        let (taken, is_last) = sub.deliver_many(sizes.len() as u64);
        if is_last {
            self.finished.push((sub.port().id(), sub.sid()));
        }
        usize::try_from(taken).unwrap_or(sizes.len())
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
}
