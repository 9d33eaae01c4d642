//! The control stream of a bridge: hellos, allowed sets, liveness. Highest priority, small frames.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use glocal_core::limits::{BRIDGE_REFUSALS_MAX, CONTROL_BYTES_MAX};
use glocal_core::time::Time;
use glocal_core::topology::LinkError;
use glocal_engine::driver::{Command, Outcome};
use glocal_engine::link::Link;
use glocal_engine::link_state;
use glocal_engine::liveness::Liveness;
use glocal_wire::control::{BridgeHello, Control, PathProbeAck, Probe, ProbeAck};
use glocal_wire::frame::{FrameLimits, Next, next_frame};
use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, watch};
use tokio::time::Interval;

use super::Ended;
use super::follow::Follower;
use super::path::Path;
use crate::context::Context;
use crate::edge_status::{EdgeStatus, Failure};
use crate::trust::PeerChain;
use crate::trust::{Usage, deny_of_quic, unix_now};

/// Priority of the control stream over the data streams.
const CONTROL_PRIORITY: i32 = 1;
/// How often the peer's certificate is asked again, in milliseconds.
pub(super) const RECHECK_MS: u64 = 1_000;

/// How long the peer is given to take the last frame.
const LAST_WORD: Duration = Duration::from_secs(1);
/// How often the round-trip time is told to the topology, in milliseconds.
const RTT_MS: u64 = 1_000;

/// One control stream with what has arrived on it.
pub(super) struct ControlStream {
    send: quinn::SendStream,
    receive: quinn::RecvStream,
    buffer: BytesMut,
    limits: FrameLimits,
}

impl ControlStream {
    /// Opens the stream, on the side that dialled.
    pub(super) async fn open(connection: &quinn::Connection) -> Result<Self, Ended> {
        Ok(Self::of(connection.open_bi().await.map_err(|error| super::dial::refusal(&error))?))
    }

    /// Accepts the stream, on the side that was dialled.
    pub(super) async fn accept(connection: &quinn::Connection) -> Result<Self, Ended> {
        Ok(Self::of(connection.accept_bi().await.map_err(|error| super::dial::refusal(&error))?))
    }

    fn of((send, receive): (quinn::SendStream, quinn::RecvStream)) -> Self {
        // Fails only on a stream that is gone, which the next write tells.
        let _ = send.set_priority(CONTROL_PRIORITY);
        Self { send, receive, buffer: BytesMut::new(), limits: FrameLimits::BEFORE_HELLO }
    }

    /// The hello has come: larger frames are believed.
    pub(super) const fn greeted(&mut self) {
        self.limits = FrameLimits::CONTROL_ONLY;
    }

    /// Sends one frame.
    pub(super) async fn send(&mut self, control: &Control) -> Result<(), Ended> {
        let mut frame = BytesMut::new();
        control.encode_into(&mut frame).map_err(|error| Ended::new(Failure::Fault, error))?;
        self.write(&mut [frame.freeze()]).await
    }

    /// Sends one frame and gives the peer a moment to take it, before the connection is closed over it.
    pub(super) async fn last_word(&mut self, control: &Control) {
        // If it does not listen any more, nothing is lost.
        if self.send(control).await.is_ok() && self.send.finish().is_ok() {
            let _ = tokio::time::timeout(LAST_WORD, self.send.stopped()).await;
        }
    }

    /// Sends encoded frames.
    async fn write(&mut self, frames: &mut [Bytes]) -> Result<(), Ended> {
        self.send.write_all_chunks(frames).await.map_err(|error| match &error {
            quinn::WriteError::ConnectionLost(lost) => self::lost(lost),
            other => Ended::new(Failure::Closed, other),
        })
    }

    /// The next frame. Cancel-safe.
    pub(super) async fn receive(&mut self) -> Result<Control, Ended> {
        loop {
            match next_frame(&self.buffer, &self.limits).map_err(|error| Ended::new(Failure::Fault, error))? {
                Next::Control { kind, body, frame_bytes } => {
                    let control = Control::decode(kind, body, CONTROL_BYTES_MAX);
                    let control = control.map_err(|error| Ended::new(Failure::Fault, error))?;
                    self.buffer.advance(frame_bytes);
                    if let Some(control) = control {
                        return Ok(control);
                    }
                }
                Next::Data { .. } => return Err(Ended::new(Failure::Fault, "data on the control stream")),
                Next::Need(_) => match self.receive.read_buf(&mut self.buffer).await {
                    Ok(0) => return Err(Ended::new(Failure::Closed, "the control stream has ended")),
                    Ok(_) => {}
                    Err(error) => return Err(unread(&error)),
                },
            }
        }
    }

    /// The peer's hello, which is its first frame.
    pub(super) async fn hello(&mut self) -> Result<BridgeHello, Ended> {
        match self.receive().await? {
            Control::BridgeHello(hello) => Ok(hello),
            Control::BridgeError(error) => Err(super::said_by_peer(&error)),
            other => Err(Ended::new(Failure::Fault, format!("{} instead of a hello", other.name()))),
        }
    }
}

/// What a lost connection means. A TLS 1.3 dialler learns only after its handshake that its certificate was refused.
fn lost(error: &quinn::ConnectionError) -> Ended {
    if deny_of_quic(error).is_some() { super::dial::refusal(error) } else { super::closed(error) }
}

fn unread(error: &std::io::Error) -> Ended {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(quinn::ReadError::ConnectionLost(error)) => lost(error),
        _ => Ended::new(Failure::Closed, error),
    }
}

/// Probes the peer and answers its probes until it is dead, lies, or may no longer be a peer.
pub(super) async fn run(
    context: &Context,
    status: &EdgeStatus,
    follower: &mut Follower<'_>,
    mut control: ControlStream,
    (chain, usage): (&PeerChain, Usage),
    (path, mut to_answer): (&Path, mpsc::Receiver<u64>),
) -> Ended {
    let mut life = Liveness::new(context.clock.now());
    let mut changes = context.changes.hear();
    // Bundle and configuration may have changed since the handshake, and the peer is to hear which bundle this end goes by.
    changes.mark_changed();
    let mut recheck = tokio::time::interval(Duration::from_millis(RECHECK_MS));
    let mut about = LinkStateStream::new(follower.link());
    loop {
        let wake = context.clock.instant(life.wake_at());
        tokio::select! {
            mut frames = about.next() => if let Err(ended) = control.write(&mut frames).await {
                return ended;
            },
            received = control.receive() => match received {
                Ok(Control::Probe(probe)) => {
                    if let Err(ended) = control.send(&ProbeAck { id: probe.id }.into()).await {
                        return ended;
                    }
                }
                Ok(Control::ProbeAck(ack)) => {
                    life.on_ack(ack.id, context.clock.now());
                    status.rtt(life.rtt_micros());
                    about.measured(context, life.rtt_micros()).await;
                }
                Ok(Control::PathProbeAck(ack)) => path.on_answer(ack.id, context.clock.now()),
                Ok(Control::Ready(ready)) => {
                    let ready = Command::EdgeReady { edge: status.edge().key(), lists: ready.tenants };
                    context.control.apply(vec![ready]).await;
                    follower.peer_is_ready();
                }
                Ok(Control::BridgeError(error)) => return Ended::new(Failure::Closed, error.text),
                Ok(other) => if let Err(ended) = take(context, follower, &mut about, &mut control, other).await {
                    return ended;
                },
                Err(ended) => return ended,
            },
            () = tokio::time::sleep_until(wake) => {
                if let Err(ended) = on_wake(context.clock.now(), &mut life, path, &mut control).await {
                    return ended;
                }
            }
            Some(id) = to_answer.recv() => if let Err(ended) = control.send(&PathProbeAck { id }.into()).await {
                return ended;
            },
            () = std::future::ready(()), if follower.has_next() => {
                if let Some(next) = follower.next()
                    && let Err(ended) = control.send(&next).await
                {
                    return ended;
                }
            }
            () = follower.stirred() => follower.follow_tenants().await,
            () = due(&mut changes, &mut recheck) => {
                if let Err(ended) = look(context, follower, &mut control, (chain, usage)).await {
                    return ended;
                }
            }
        }
    }
}

/// Ends the bridge of a peer that is dead, or does not read, and probes another.
pub(super) async fn on_wake(
    now: Time,
    life: &mut Liveness,
    path: &Path,
    control: &mut ControlStream,
) -> Result<(), Ended> {
    if life.is_dead(now) {
        return Err(Ended::new(Failure::Silent, "the peer does not answer"));
    }
    if path.is_stuck(life.rtt_micros(), now) {
        return Err(Ended::new(Failure::HalfDead, "the peer answers, but does not read a stream that carries data"));
    }
    match life.probe(now) {
        Some(id) => control.send(&Probe { id }.into()).await,
        None => Ok(()),
    }
}

/// Waits until the peer and what the bridge carries are to be looked at again. Cancel-safe.
pub(super) async fn due(changes: &mut watch::Receiver<u64>, recheck: &mut Interval) {
    tokio::select! {
        // The sender lives as long as the node.
        _ = changes.changed() => {}
        _ = recheck.tick() => {}
    }
}

/// Asks whether the peer may still be one, and follows what has changed.
async fn look(
    context: &Context,
    follower: &mut Follower<'_>,
    control: &mut ControlStream,
    (chain, usage): (&PeerChain, Usage),
) -> Result<(), Ended> {
    context
        .trust()
        .retain_node(chain.certificates(), usage, unix_now())
        .map_err(|reason| Ended::new(Failure::Refused, reason.template()))?;
    follower.look(control).await
}

/// Takes a frame about changes, or else about the fabric's edges.
async fn take(
    context: &Context,
    follower: &mut Follower<'_>,
    about: &mut LinkStateStream<'_>,
    control: &mut ControlStream,
    frame: Control,
) -> Result<(), Ended> {
    match follower.on_frame(frame, control).await? {
        Some(other) => about.take(context, other).await,
        None => Ok(()),
    }
}

/// What the two ends tell each other of the fabric's edges.
struct LinkStateStream<'l> {
    link: &'l Link,
    refusals: u64,
    told: Option<Time>,
}

impl<'l> LinkStateStream<'l> {
    const fn new(link: &'l Link) -> Self {
        Self { link, refusals: 0, told: None }
    }

    /// Waits for frames to send. Cancel-safe: what is taken is returned at once.
    async fn next(&self) -> Vec<Bytes> {
        poll_fn(|cx| match self.link.outbox().poll_drain(cx, |outbox| Some(outbox.take())) {
            Poll::Ready(Some(frames)) => Poll::Ready(frames),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Takes a frame of the peer. One that is no link state breaks the protocol; records that do not verify are counted, and
    /// a peer that keeps sending them lies.
    async fn take(&mut self, context: &Context, control: Control) -> Result<(), Ended> {
        let edge = self.link.edge();
        let message = match link_state::from_wire(control) {
            Ok(Ok(message)) => message,
            Ok(Err(field)) => return Err(Ended::new(Failure::Fault, format!("link state with a bad {field}"))),
            Err(other) => return Err(Ended::new(Failure::Fault, format!("unexpected {}", other.name()))),
        };
        let outcomes = context.control.apply(vec![Command::LinkState { edge: edge.key(), message }]).await;
        let Some(Outcome::LinkRefused(error)) = outcomes.first() else { return Ok(()) };
        match error {
            // The peer may have another bundle, or the key is still on its way.
            LinkError::Unknown | LinkError::NoKey => {
                tracing::debug!(edge = %edge.name(), peer = %edge.peer(), "link state is not taken: {error}");
                return Ok(());
            }
            LinkError::LaterLife(life) => {
                // No fault of the peer's: it tells what it knows.
                context.later_life.heard(*life);
                return Ok(());
            }
            LinkError::OwnName => {
                tracing::error!(edge = %edge.name(), peer = %edge.peer(), "duplicate-node: {error}");
            }
            LinkError::Signature | LinkError::Range => {
                tracing::warn!(edge = %edge.name(), peer = %edge.peer(), "link state is refused: {error}");
            }
        }
        edge.refused.add(1);
        self.refusals += 1;
        if self.refusals > BRIDGE_REFUSALS_MAX {
            return Err(Ended::new(Failure::Fault, "the peer keeps sending link state that does not verify"));
        }
        Ok(())
    }

    /// Tells the topology what crossing the edge takes.
    async fn measured(&mut self, context: &Context, micros: u64) {
        let now = context.clock.now();
        if self.told.is_none_or(|told| now >= told.plus_millis(RTT_MS)) {
            self.told = Some(now);
            context.control.apply(vec![Command::Rtt { edge: self.link.edge().key(), micros }]).await;
        }
    }
}
