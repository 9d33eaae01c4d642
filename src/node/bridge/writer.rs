//! Writing the data streams of a bridge, in the order of the scheduler.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use glocal_core::limits::{BRIDGE_STREAMS, PATH_PROBE_MS};
use glocal_engine::lane_writer::{Due, LaneWriter};
use glocal_engine::link::{EdgeLanes, Link};

use super::Ended;
use super::path::Path;
use crate::congestion::Window;
use crate::context::Context;
use crate::edge_status::Failure;

/// Most bytes taken from the lanes at once: little may lie below the scheduler (DESIGN section 7).
pub(super) const FILL_BYTES: usize = 64 * 1024;
/// How long the peer may leave a write unread.
pub(super) const UNREAD: Duration = Duration::from_secs(10);
/// How often idle lanes are looked for.
pub(super) const SWEEP: Duration = Duration::from_secs(10);

/// Writes what the lanes hold until the connection fails.
pub(super) async fn run(context: &Context, connection: &quinn::Connection, link: &Link, path: &Path) -> Ended {
    let mut streams = Vec::with_capacity(BRIDGE_STREAMS);
    for _ in 0..BRIDGE_STREAMS {
        match connection.open_uni().await {
            Ok(stream) => streams.push(stream),
            Err(error) => return super::closed(&error),
        }
    }
    let mut writer = LaneWriter::default();
    let mut window = Window::of(connection);
    let mut sweep = tokio::time::interval(SWEEP);
    let mut probe = tokio::time::interval(Duration::from_millis(PATH_PROBE_MS / 2));
    probe.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let writes = tokio::select! {
            due = next(context, link, Some(&window), |lanes| {
                let fill_bytes = fit(&window, lanes);
                writer.next(link, lanes, &context.shared, context.clock.now(), fill_bytes)
            }) => match due {
                Due::Writes(writes) => writes,
                Due::Later(until) => {
                    tokio::time::sleep_until(context.clock.instant(until)).await;
                    continue;
                }
            },
            _ = probe.tick() => path.due(context.clock.now()),
            _ = sweep.tick() => link.inbox().with(|lanes| writer.sweep(lanes, &context.shared, context.clock.now())),
        };
        window.apply();
        for mut write in writes {
            let Some(stream) = streams.get_mut(write.stream) else { continue };
            // A peer reads every stream without ever waiting for a consumer; one that does not is no peer.
            let bytes = write.parts.iter().map(bytes::Bytes::len).sum();
            match tokio::time::timeout(UNREAD, stream.write_all_chunks(&mut write.parts)).await {
                Ok(Ok(())) => path.wrote(write.stream, bytes),
                Ok(Err(error)) => return Ended::new(Failure::Closed, error),
                Err(_) => return Ended::new(Failure::Silent, "the peer does not read what it is sent"),
            }
        }
    }
}

/// Fits slices and packets to what is known of the path, and says how much to take at once: what lasts half a millisecond.
fn fit(window: &Window, lanes: &mut EdgeLanes) -> usize {
    let sched = lanes.sched_mut();
    window.set_rate(sched.shaped_rate());
    if let Some(bytes) = window.packet_bytes() {
        sched.set_packet_bytes(bytes);
    }
    window.rate().map_or(FILL_BYTES, |rate| sched.set_rate(rate).clamp(1, FILL_BYTES))
}

/// Waits until something is queued that may go, and takes it if the edge's rate allows. `window` is told when there is nothing.
pub(super) async fn next(
    context: &Context,
    link: &Link,
    window: Option<&Window>,
    mut take: impl FnMut(&mut EdgeLanes) -> Option<Due>,
) -> Due {
    let mut rest = pin!(None::<tokio::time::Sleep>);
    poll_fn(|cx| {
        loop {
            let polled = link.inbox().poll_drain(cx, &mut take);
            if let Some(window) = window {
                window.mark_idle(polled.is_pending());
            }
            match polled {
                Poll::Ready(Some(due)) => return Poll::Ready(due),
                Poll::Ready(None) => return Poll::Pending,
                Poll::Pending => {}
            }
            // What is above a cap may go on later; what others push wakes this before.
            let Some(until) = link.inbox().with(|lanes| lanes.sched().wakes_at()) else { return Poll::Pending };
            rest.set(Some(tokio::time::sleep_until(context.clock.instant(until))));
            if rest.as_mut().as_pin_mut().is_some_and(|rest| rest.poll(cx).is_pending()) {
                return Poll::Pending;
            }
            link.inbox().with(|lanes| lanes.sched_mut().wake(context.clock.now().max(until)));
        }
    })
    .await
}
