//! Sessions: moving bytes between one client's stream and its machine.
//!
//! One task per session reads and writes, so that a client that does not read slows nobody but itself. Reading goes on
//! while writing waits; what others send meanwhile waits in the session's bounded lanes.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use glocal_core::deny::{Access, Deny, Escaped};
use glocal_core::identity::Principal;
use glocal_core::limits::{BUNDLE_GRACE_SECONDS, RELIABLE_TICK_MS, SESSION_PING_MS, SESSION_PINGS_MAX};
use glocal_core::memory::{Reading, Room};
use glocal_core::port::SessionPort;
use glocal_core::rate::Rest;
use glocal_core::sched::{DropReason, Drops};
use glocal_core::tenant::Tenant;
use glocal_core::time::Time;
use glocal_engine::advisory::Event as Advisory;
use glocal_engine::client::Effects;
use glocal_engine::driver::Command;
use glocal_engine::machine::{Farewell, Machine};
use glocal_engine::session::{NativeSession, take_replies};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::context::Context;
use crate::random::rand_u64;
use crate::trust::PeerChain;

mod polling;
mod pump;
mod read_buffer;

pub(crate) use polling::BusyPolls;
use pump::{Event, Pump};
use read_buffer::ReadBuffer;

/// How often a session whose client does not read is looked at, in milliseconds.
const BLOCKED_LOOK_MS: u64 = 1_000;

/// Why a session ended, for the log.
#[derive(Debug, thiserror::Error)]
enum End<P: std::fmt::Display + std::fmt::Debug> {
    #[error("closed by the client")]
    Closed,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Protocol(P),
    #[error("no hello within {0} ms")]
    NoHello(u64),
    #[error("silent for too long")]
    Silent,
    #[error("the client does not read what is for it")]
    NotReading,
    #[error("{}", .0.template())]
    Ours(Deny),
}

/// Runs one native session on a stream whose principal is known, until either side ends it. Its hello is awaited from
/// when the connection `began`.
pub(crate) fn run_native<S>(
    context: Context,
    stream: S,
    principal: Principal,
    chain: PeerChain,
    remote: SocketAddr,
    began: Time,
) -> impl Future<Output = ()> + Send
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (shared, now) = (Arc::clone(&context.shared), context.clock.now());
    let machine = NativeSession::new(shared, Arc::new(principal), rand_u64(), now);
    run(context, stream, machine, chain, remote, began)
}

/// Runs one session until either side ends it. All that lasts is in one place on the heap: the tasks that led here would
/// have room for what they hand on, each once more, as long as the session lives.
pub(crate) fn run<S, M>(
    context: Context,
    stream: S,
    machine: M,
    chain: PeerChain,
    remote: SocketAddr,
    began: Time,
) -> impl Future<Output = ()> + Send
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    M: Machine,
{
    let session = Box::new(Session {
        pump: Pump::new(stream, Arc::clone(&context.busy_polls)),
        machine,
        effects: Effects::default(),
        buffer: ReadBuffer::default(),
        reading: None,
        heard: context.clock.now(),
        pings: 0,
        looks_at: began,
        leaving: None,
        waits: None,
        rest: Rest::default(),
        chain,
        told: None,
        context,
    });
    carry(session, remote, began)
}

async fn carry<S, M>(mut session: Box<Session<S, M>>, remote: SocketAddr, began: Time)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    M: Machine,
{
    let principal = Arc::clone(session.machine.principal());
    let id = session.machine.id();
    session.context.counters.sessions_opened.add(1);
    let presence = Presence::new(&session.context, id, &principal);
    tracing::info!(session = id, remote = %remote, tenant = %principal.tenant(), role = %principal.role(),
        "mTLS identity bound from certificate: {principal}");
    let mut greeting = BytesMut::new();
    session.machine.greet(&mut greeting);
    session.pump.write(greeting.freeze());
    let end = match presence {
        Ok(ref presence) => {
            session.reading = Some(Reading::new(Arc::clone(presence.tenant.memory())));
            session.serve(began).await
        }
        Err(reason) => {
            session.context.counters.connections_refused.add(1);
            End::Ours(reason)
        }
    };
    session.close(&end).await;
    drop(presence);
    let why = end.to_string();
    let why = Escaped(why.as_bytes());
    tracing::info!(session = id, remote = %remote, tenant = %principal.tenant(), "session ended: {why}");
}

/// One session in the count of sessions; it takes its leave even when its task panics.
struct Presence {
    context: Context,
    session: u64,
    tenant: Arc<Tenant>,
}

impl Presence {
    /// Refused where the tenant has as many sessions here as its section allows.
    fn new(context: &Context, session: u64, principal: &Principal) -> Result<Self, Deny> {
        let tenant = context.shared.tenant(principal.tenant().as_str()).ok_or(Deny::UnknownTenant)?;
        if !tenant.enter() {
            tenant.counters().deny(Access::Read, Deny::Limit);
            return Err(Deny::Limit);
        }
        context.counters.sessions.add();
        Ok(Self { context: context.clone(), session, tenant })
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.context.counters.sessions.subtract();
        self.tenant.leave();
        if std::thread::panicking() {
            let (control, session) = (self.context.control.clone(), self.session);
            tracing::error!(session, "a session has failed");
            tokio::spawn(async move { control.apply(vec![Command::CloseSession { session }]).await });
        }
    }
}

struct Session<S, M> {
    pump: Pump<S>,
    machine: M,
    effects: Effects,
    buffer: ReadBuffer,
    reading: Option<Reading>,
    heard: Time,
    pings: u32,
    /// When it is looked at although nothing has happened.
    looks_at: Time,
    /// When the session must be over, once the node leaves.
    leaving: Option<Time>,
    chain: PeerChain,
    /// Since a publish waits for room nothing more is read; when it is tried again at the latest.
    waits: Option<Time>,
    /// Between batches for which there is no room anywhere.
    rest: Rest,
    /// Messages lost by slow reading of which the tenant was told; `None` until it was told of the session.
    told: Option<u64>,
    context: Context,
}

impl<S, M> Session<S, M>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    M: Machine,
{
    async fn serve(&mut self, began: Time) -> End<M::End> {
        let mut changes = self.context.changes.hear();
        // The bundle may have changed, or the node begun to leave, since the handshake.
        changes.mark_changed();
        let hello_until = began.plus_millis(self.machine.patience_ms());
        self.looks_at = hello_until.min(self.next_look(self.context.clock.now()));
        // Armed once and not for each message: both are rarely what happens next.
        let mut armed = self.looks_at;
        let mut timer = pin!(tokio::time::sleep_until(self.context.clock.instant(armed)));
        let mut news = pin!(next_change(changes));
        loop {
            let port = self.machine.port().map(Arc::clone);
            let due = [self.leaving, self.waits].into_iter().flatten().fold(self.looks_at, Time::min);
            if std::mem::replace(&mut armed, due) != due {
                timer.as_mut().reset(self.context.clock.instant(due));
            }
            let reads = self.waits.is_none();
            let event = tokio::select! {
                biased;
                () = timer.as_mut() => Ok(Event::Timer),
                changes = news.as_mut() => {
                    news.set(next_change(changes));
                    Ok(Event::Changed)
                }
                event = self.pump.next(port.as_deref(), &mut self.buffer, reads, self.context.clock) => event,
            };
            let now = self.context.clock.now();
            let ended = match event {
                Ok(event) => self.on_event(event, began, now).await,
                Err(error) => Err(End::Io(error)),
            };
            if let Err(end) = ended {
                return end;
            }
            self.advise(now);
            if port.is_some_and(|port| self.is_given_up(&port, now)) {
                return End::NotReading;
            }
        }
    }

    async fn on_event(&mut self, event: Event, began: Time, now: Time) -> Result<(), End<M::End>> {
        match event {
            Event::Read { full } => self.on_arrival(full, now).await,
            Event::Closed => Err(End::Closed),
            Event::Changed => {
                self.on_change(now).await?;
                self.looks_at = self.looks_at.min(self.next_look(now));
                Ok(())
            }
            Event::Retry if self.waits.is_some() => self.on_read(now).await,
            Event::Timer => {
                if self.waits.is_some() {
                    self.on_read(now).await?;
                }
                self.look(began, now)?;
                self.looks_at = self.next_look(now);
                Ok(())
            }
            Event::Retry | Event::Blocked => Ok(()),
        }
    }

    /// Counts what the session's lanes have lost. Whether its client has not read for too long.
    fn is_given_up(&mut self, port: &SessionPort, now: Time) -> bool {
        let is_blocked = self.pump.is_blocked();
        let is_lost = port.inbox().with(|lanes| {
            if is_blocked {
                lanes.shed(now, self.pump.drops());
            }
            lanes.has_overflowed() || lanes.is_stuck(now)
        });
        count_drops(&self.context, port, self.pump.drops());
        if is_blocked {
            // Nothing else may wake this task while its client does not read.
            self.looks_at = self.looks_at.min(now.plus_millis(BLOCKED_LOOK_MS));
        }
        is_lost
    }

    async fn on_change(&mut self, now: Time) -> Result<(), End<M::End>> {
        if self.context.stop.is_cancelled() {
            return Err(End::Ours(Deny::ShuttingDown));
        }
        if self.context.lame_duck.is_cancelled() && self.leaving.is_none() {
            self.leave(now);
        }
        self.retain()?;
        self.pump.set_busy_poll(self.context.config().busy_poll_us);
        // Limits may have changed, too.
        if self.waits.is_some() { self.on_read(now).await } else { Ok(()) }
    }

    async fn on_arrival(&mut self, full: bool, now: Time) -> Result<(), End<M::End>> {
        (self.heard, self.pings) = (now, 0);
        self.on_read(now).await?;
        let rest = self.rest.after(self.effects.batch.take_lost());
        self.waits = self.waits.or(rest.map(|millis| now.plus_millis(millis)));
        if full {
            // A flood has more at any time: after a batch of it, it is the turn of others.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    async fn on_read(&mut self, now: Time) -> Result<(), End<M::End>> {
        loop {
            let used = self.machine.on_bytes(self.buffer.bytes(), now, &mut self.effects);
            let waits = !self.effects.commands.is_empty();
            self.carry_out(now).await;
            self.buffer.consume(*used.as_ref().unwrap_or(&0), self.effects.needs);
            used.map_err(End::Protocol)?;
            let until = self.effects.until.unwrap_or(now.plus_millis(RELIABLE_TICK_MS));
            self.waits = self.effects.waits.then_some(until);
            if self.waits.is_some() {
                // Its silence is ours: it is not read.
                (self.heard, self.pings) = (now, 0);
                break;
            }
            if !waits || self.buffer.is_empty() {
                break;
            }
        }
        self.take_room(now)
    }

    /// Charges what a large message takes while it is read: takes room for all of it, or waits for that.
    fn take_room(&mut self, now: Time) -> Result<(), End<M::End>> {
        let Some(reading) = &mut self.reading else { return Ok(()) };
        let Some(wanted) = self.buffer.lacks().filter(|_| self.waits.is_none()) else {
            reading.keep(self.buffer.held());
            return Ok(());
        };
        match reading.ask(wanted, now) {
            Room::Given => self.buffer.move_to(wanted),
            Room::Later => {
                self.waits = Some(now.plus_millis(RELIABLE_TICK_MS));
                // Its silence is ours: it is not read.
                (self.heard, self.pings) = (now, 0);
            }
            Room::Never => {
                let tenant = self.context.shared.tenant(self.machine.principal().tenant().as_str());
                if let Some(tenant) = tenant {
                    tenant.counters().deny(Access::Write, Deny::Memory);
                }
                return Err(End::Ours(Deny::Memory));
            }
        }
        Ok(())
    }

    /// Flushes what a read brought about, in the order: messages, replies, commands.
    async fn carry_out(&mut self, now: Time) {
        self.effects.batch.flush(&self.context.shared, now);
        for line in self.effects.denials.drain(..) {
            tracing::warn!("{line}");
        }
        for event in self.effects.events.drain(..) {
            let told = self.context.advisor.tell(self.machine.principal(), self.machine.id(), &event, now);
            self.effects.commands.extend(told);
        }
        for line in self.effects.allowances.drain(..) {
            tracing::info!("{line}");
        }
        if let Some(replies) = take_replies(&mut self.effects) {
            self.reply(replies);
        }
        if !self.effects.commands.is_empty() {
            let commands = std::mem::take(&mut self.effects.commands);
            self.context.control.apply(commands).await;
        }
    }

    /// Tells the tenant that the session is open, and what it has lost by reading slowly.
    fn advise(&mut self, now: Time) {
        let Some(port) = self.machine.port() else { return };
        let lost = port.lost.value();
        let event = match self.told {
            None => Advisory::Connect,
            Some(told) if lost > told => Advisory::SlowConsumer { dropped: lost },
            Some(_) => return,
        };
        self.told = Some(lost);
        let told = self.context.advisor.tell(self.machine.principal(), self.machine.id(), &event, now);
        self.effects.commands.extend(told);
    }

    fn reply(&mut self, frame: Bytes) {
        match self.machine.port() {
            // An overflow is seen by the loop.
            Some(port) => drop(port.inbox().push_batch(|lanes| lanes.push_control(frame))),
            None => self.pump.write(frame),
        }
    }

    fn leave(&mut self, now: Time) {
        let grace_ms = spread(self.context.config().lame_duck_ms, self.machine.id());
        self.leaving = Some(now.plus_millis(grace_ms));
        let grace = u32::try_from(grace_ms).unwrap_or(u32::MAX);
        let mut frame = BytesMut::new();
        self.machine.leaving(grace, &mut frame);
        self.reply(frame.freeze());
    }

    /// What is due without the client doing anything: the hello's deadline, probes, the certificate's end, our leaving.
    fn look(&mut self, began: Time, now: Time) -> Result<(), End<M::End>> {
        if self.leaving.is_some_and(|at| now >= at) {
            return Err(End::Ours(Deny::ShuttingDown));
        }
        if self.machine.port().is_none() {
            let patience = self.machine.patience_ms();
            return if now >= began.plus_millis(patience) { Err(End::NoHello(patience)) } else { Ok(()) };
        }
        self.retain()?;
        if now >= probe_due(self.heard, self.pings) {
            if self.pings >= SESSION_PINGS_MAX {
                return Err(End::Silent);
            }
            self.pings += 1;
            let mut frame = BytesMut::new();
            self.machine.probe(u64::from(self.pings), &mut frame);
            self.reply(frame.freeze());
        }
        Ok(())
    }

    /// Asks the bundle in force whether the session may stay, and as whom.
    fn retain(&self) -> Result<(), End<M::End>> {
        let kept = self.context.trust().retain_client(self.chain.certificates(), crate::trust::unix_now());
        match kept {
            Ok(principal) if principal == **self.machine.principal() => Ok(()),
            Ok(_) => Err(End::Ours(Deny::CertRevoked)),
            Err(reason) => Err(End::Ours(reason)),
        }
    }

    fn next_look(&self, now: Time) -> Time {
        let probe = now.plus_millis(SESSION_PING_MS);
        let dead = self.context.trust().bundle().head().expires.0.saturating_add(BUNDLE_GRACE_SECONDS);
        let end = self.machine.principal().not_after().map_or(dead, |not_after| not_after.0.min(dead));
        let left = end.saturating_sub(crate::trust::unix_now().0).max(0).unsigned_abs();
        probe.min(now.plus_millis(left.saturating_mul(1000).saturating_add(1000)))
    }

    async fn close(&mut self, end: &End<M::End>) {
        let mut last = BytesMut::new();
        match end {
            End::Protocol(end) => {
                self.context.counters.protocol_errors.add(1);
                self.machine.reproach(end, &mut last);
            }
            End::Ours(reason) => self.machine.farewell(Farewell::Deny(*reason), &mut last),
            End::Silent => self.machine.farewell(Farewell::Silent, &mut last),
            End::NoHello(_) => {
                self.context.counters.handshakes_failed.add(1);
                self.machine.farewell(Farewell::Late, &mut last);
            }
            End::Closed | End::Io(_) | End::NotReading => {}
        }
        let port = self.machine.port().map(Arc::clone);
        if let Some(port) = &port {
            self.context.control.apply(vec![Command::CloseSession { session: port.id() }]).await;
            port.inbox().close();
        }
        self.pump.finish(port.as_deref(), last.freeze(), self.context.clock).await;
        if let Some(port) = &port {
            count_drops(&self.context, port, self.pump.drops());
            self.count_gone(port);
            let event = Advisory::Disconnect { reason: end.to_string() };
            let now = self.context.clock.now();
            let told = self.context.advisor.tell(self.machine.principal(), self.machine.id(), &event, now);
            self.context.control.apply(told).await;
        }
    }

    /// What was still queued for the client is lost with it, and counted.
    fn count_gone(&self, port: &SessionPort) {
        let mut drops = Drops::new();
        port.inbox().with(|lanes| lanes.clear_classes(&mut drops));
        count_drops(&self.context, port, &mut drops);
    }
}

/// Waits for the next change. It owns the receiver, so that one wait lasts over many turns of a loop.
async fn next_change(mut changes: watch::Receiver<u64>) -> watch::Receiver<u64> {
    if changes.changed().await.is_err() {
        // Nobody is left who could change anything.
        std::future::pending::<()>().await;
    }
    changes
}

/// When a client that was heard last then and has been probed so often since is probed again, or given up. A session that
/// cannot write is looked after more often than that.
const fn probe_due(heard: Time, pings: u32) -> Time {
    heard.plus_millis(SESSION_PING_MS * (pings as u64 + 1))
}

/// When a session has to be gone: between half and all of the lame duck's time, so that the clients of a node that leaves
/// do not all come to its neighbour at once.
const fn spread(lame_duck_ms: u64, session: u64) -> u64 {
    let half = lame_duck_ms / 2;
    // A multiplier without a pattern in the low bits of consecutive numbers (Knuth's multiplicative hash).
    half + (session.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) % (lame_duck_ms - half + 1)
}

/// Counts what a session's lanes have lost, under the session's own tenant.
fn count_drops(context: &Context, port: &SessionPort, drops: &mut Drops) {
    if drops.is_empty() {
        return;
    }
    let tenant = context.shared.tenant(port.principal().tenant().as_str());
    for record in drops.drain() {
        if record.reason == DropReason::Memory {
            // Its tenant is told of what it was too slow for, as when a lane refuses it.
            port.lost.add(record.frames);
        }
        if let Some(tenant) = &tenant {
            tenant.counters().class(record.class).dropped(record.reason, record.frames);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_has_its_time_to_be_answered() {
        let heard = Time::from_millis(7);
        for pings in 0..=SESSION_PINGS_MAX {
            let due = heard.plus_millis(u64::from(pings + 1) * SESSION_PING_MS);
            assert_eq!(probe_due(heard, pings), due);
        }
    }

    #[test]
    fn a_leaving_node_lets_its_clients_go_over_half_of_its_time() {
        let times: Vec<u64> = (1..=1000).map(|session| spread(2000, session)).collect();
        assert!(times.iter().all(|t| (1000..=2000).contains(t)));
        for tenth in 0..10 {
            let from = 1000 + tenth * 100;
            let share = times.iter().filter(|t| (from..from + 100).contains(*t)).count();
            assert!((50..150).contains(&share), "{share} of 1000 in one tenth");
        }
        assert_eq!(spread(0, 7), 0);
    }
}
