//! The connection task: one reader, one writer, one prober, and dialling again.
//!
//! The writer takes everything that is buffered and writes up to [`CLIENT_WRITE_BYTES`] at once; the reader decodes
//! frames where they lie. A frame that the wire crate refuses ends the connection, never the program.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use glocal_core::limits::{CLIENT_DELIVER_WAIT_MS, CLIENT_WRITE_BYTES, CONTROL_BYTES_MAX};
use glocal_wire::control::{Control, Ping, Pong};
use glocal_wire::data::{DataFrame, DataKind};
use glocal_wire::frame::{FrameLimits, Next, next_frame};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout, timeout_at};

use crate::establish::{self, Established, establish};
use crate::message::Delivery;
use crate::outbox::Taken;
use crate::queue::{End, Offer};
use crate::state::{Entry, Event, Inner, Sink, count};
use crate::sync::lock;
use crate::transport::{Reader, Writer};

/// How long a closing client waits for the writer to finish.
const CLOSE_WAIT: Duration = Duration::from_secs(2);
/// How long a closing client waits for the broker to close its side.
const LINGER: Duration = Duration::from_millis(250);
/// How long the reader may look for a reason after the writer has failed.
const LAST_WORDS: Duration = Duration::from_secs(1);
const READ_BYTES: usize = 64 * 1024;

/// Serves one client until it is closed. The first connection is online already.
pub(crate) async fn supervise(inner: Arc<Inner>, mut established: Established) {
    loop {
        let reason = serve(&inner, established).await;
        inner.go_offline();
        if inner.closing.is_cancelled() {
            break;
        }
        tracing::debug!(%reason, "disconnected");
        inner.emit(Event::Disconnected { reason });
        established = match redial(&inner).await {
            Some(again) => again,
            None => break,
        };
        inner.go_online(&established.session);
        count(&inner.counters.reconnects);
        inner.emit(Event::Connected { node: established.session.node.clone() });
    }
    inner.finish();
}

/// Dials until a broker welcomes us; `None` when the client closes or gives up.
async fn redial(inner: &Inner) -> Option<Established> {
    let policy = &inner.options.reconnect;
    if !policy.enabled {
        return None;
    }
    let mut failures = 0u32;
    while policy.attempts_max.is_none_or(|max| failures < max) {
        let pause = establish::pause(failures, policy.pause_min, policy.pause_max, establish::random());
        let start = usize::try_from(establish::random() >> 32).unwrap_or(0);
        let attempt = async {
            tokio::time::sleep(pause).await;
            establish(&inner.options, start).await
        };
        tokio::select! {
            () = inner.closing.cancelled() => return None,
            result = attempt => match result {
                Ok(established) => return Some(established),
                Err(error) => tracing::debug!(%error, failures, "cannot reconnect"),
            },
        }
        failures = failures.saturating_add(1);
    }
    None
}

/// Serves one connection; returns why it ended.
async fn serve(inner: &Arc<Inner>, established: Established) -> String {
    let Established { link, session, received } = established;
    let activity = AtomicU64::new(0);
    let mut writer = tokio::spawn(write_all(Arc::clone(inner), link.writer));
    let reading = read_all(inner, link.reader, received, FrameLimits::open(session.max_payload), &activity);
    tokio::pin!(reading);
    let reason = tokio::select! {
        reason = &mut reading => reason,
        reason = probe(inner, &activity) => reason,
        written = &mut writer => match timeout(LAST_WORDS, &mut reading).await {
            Ok(reason) => reason,
            Err(_) => written.ok().and_then(Result::err).map_or_else(|| "closed".to_owned(), |e| e.to_string()),
        },
        () = inner.closing.cancelled() => {
            inner.outbox.close();
            let finished = async {
                tokio::select! {
                    _ = &mut writer => { let _ = timeout(LINGER, &mut reading).await; }
                    _ = &mut reading => {}
                }
            };
            let _ = timeout(CLOSE_WAIT, finished).await;
            "closed".to_owned()
        }
    };
    if !writer.is_finished() {
        // The next connection must not share the send buffer with this writer.
        writer.abort();
        let _ = writer.await;
    }
    if let Some(quic) = link.quic {
        quic.close().await;
    }
    reason
}

async fn write_all(inner: Arc<Inner>, mut writer: Writer) -> io::Result<()> {
    let mut chunk = BytesMut::new();
    loop {
        match inner.outbox.take(&mut chunk) {
            Taken::Nothing => inner.outbox.filled().await,
            Taken::Close => return writer.shutdown().await,
            Taken::Bytes => {
                for part in chunk.chunks(CLIENT_WRITE_BYTES) {
                    writer.write_all(part).await?;
                }
                writer.flush().await?;
                chunk.clear();
                if chunk.capacity() > 4 * glocal_core::limits::CLIENT_OUTBOX_BYTES_MAX {
                    chunk = BytesMut::new();
                }
            }
        }
    }
}

async fn read_all(
    inner: &Inner,
    mut reader: Reader,
    mut buffer: BytesMut,
    limits: FrameLimits,
    activity: &AtomicU64,
) -> String {
    loop {
        let missing = match take_frames(inner, &mut buffer, &limits).await {
            Ok(missing) => missing,
            Err(reason) => return reason,
        };
        // The buffer grows with what arrives, not with what is announced.
        buffer.reserve(missing.min(buffer.len().max(READ_BYTES)).max(READ_BYTES / 4));
        match reader.read_buf(&mut buffer).await {
            Ok(0) => return "the broker closed the connection".to_owned(),
            Ok(_) => activity.fetch_add(1, Ordering::Relaxed),
            Err(error) => return error.to_string(),
        };
    }
}

/// Takes every complete frame; returns how many bytes the next one lacks at least.
async fn take_frames(inner: &Inner, buffer: &mut BytesMut, limits: &FrameLimits) -> Result<usize, String> {
    let mut used = 0;
    let missing = loop {
        let rest = buffer.get(used..).unwrap_or_default();
        match next_frame(rest, limits).map_err(|error| format!("the broker broke the protocol: {error}"))? {
            Next::Need(bytes) => break bytes.saturating_sub(rest.len()),
            Next::Control { kind, body, frame_bytes } => {
                let frame = Control::decode(kind, body, CONTROL_BYTES_MAX)
                    .map_err(|error| format!("the broker broke the protocol: {error}"))?;
                if let Some(frame) = frame {
                    on_control(inner, frame)?;
                }
                used += frame_bytes;
            }
            Next::Data { frame, frame_bytes } => {
                on_data(inner, &frame).await?;
                used += frame_bytes;
            }
        }
    };
    buffer.advance(used);
    Ok(missing)
}

fn on_control(inner: &Inner, frame: Control) -> Result<(), String> {
    match frame {
        Control::Subscribed(body) => inner.subscribed(body.sid),
        Control::Denied(body) => inner.denied(body),
        Control::Ack(body) => inner.resolve(body.seq, Ok(body.targets)),
        Control::NoResponders(body) => inner.no_responders(&body),
        Control::Ping(Ping { token }) => {
            let pong = Control::from(Pong { token });
            inner
                .outbox
                .push_now(|buffer| pong.encode_into(buffer))
                .map_err(|_| "the broker floods probes without reading".to_owned())?;
        }
        Control::Pong(Pong { token }) => {
            let waiter = lock(&inner.state).pings.remove(&token);
            if let Some(waiter) = waiter {
                let _ = waiter.send(());
            }
        }
        Control::Goodbye(body) => inner.emit(Event::Goodbye {
            code: body.code,
            text: body.text,
            grace: Duration::from_millis(u64::from(body.grace_ms)),
        }),
        Control::Error(body) => return Err(format!("the broker ended the session: {} ({})", body.text, body.code)),
        other => return Err(format!("the broker broke the protocol: unexpected {}", other.name())),
    }
    Ok(())
}

async fn on_data(inner: &Inner, frame: &DataFrame<'_>) -> Result<(), String> {
    let subs = frame.ext.fields().subs;
    let (DataKind::Deliver, Some(subs), Some(delivery)) = (frame.kind, subs, Delivery::from_frame(frame)) else {
        return Err("the broker broke the protocol: not a delivery".to_owned());
    };
    count(&inner.counters.delivered);
    for sid in subs.iter() {
        // An unsubscribe may cross a delivery.
        let Some(sink) = lock(&inner.state).sinks.get(&sid).cloned() else { continue };
        match sink {
            Sink::Subscription(entry) => deliver(inner, &entry, delivery.clone()).await,
            Sink::Replies(_) => {
                if let Some(queue) = inner.request_of(&delivery)
                    && let Offer::Dropped { .. } = queue.offer(delivery.clone(), false)
                {
                    count(&inner.counters.dropped);
                }
            }
        }
    }
    Ok(())
}

async fn deliver(inner: &Inner, entry: &Entry, delivery: Delivery) {
    count(&entry.received);
    let wanted = entry.remaining.load(Ordering::Relaxed);
    if wanted != u64::MAX {
        entry.remaining.store(wanted.saturating_sub(1), Ordering::Relaxed);
        if wanted == 0 {
            return;
        }
    }
    let mut offer = entry.queue.offer(delivery, true);
    if matches!(offer, Offer::Full(_)) {
        let deadline = Instant::now() + Duration::from_millis(CLIENT_DELIVER_WAIT_MS);
        while let Offer::Full(waiting) = offer {
            let in_time = timeout_at(deadline, entry.queue.space()).await.is_ok();
            offer = entry.queue.offer(waiting, in_time);
        }
    }
    if let Offer::Dropped { first } = offer {
        count(&inner.counters.dropped);
        if first {
            inner.emit(Event::SlowConsumer { filter: entry.filter.clone(), dropped: entry.queue.dropped() });
        }
    }
    if wanted == 1 {
        lock(&inner.state).sinks.remove(&entry.sid);
        entry.queue.end(End::Closed);
    }
}

/// Probes a silent broker; returns when it stays silent.
async fn probe(inner: &Inner, activity: &AtomicU64) -> String {
    let mut seen = activity.load(Ordering::Relaxed);
    let mut probed = false;
    loop {
        tokio::time::sleep(inner.options.timeouts.silence).await;
        let now = activity.load(Ordering::Relaxed);
        if now != seen {
            (seen, probed) = (now, false);
        } else if probed {
            return "the broker does not answer".to_owned();
        } else {
            probed = true;
            // Number 0 is nobody's: the pong only has to arrive. A full buffer is silence, too.
            let ping = Control::from(Ping { token: 0 });
            let _ = inner.outbox.push_now(|buffer| ping.encode_into(buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::options::{ConnectOptions, PemSource};
    use crate::state::Session;

    fn inner() -> Inner {
        let session = Session {
            address: "localhost:1".parse().unwrap(),
            node: "a/b".to_owned(),
            session: 1,
            tenant: "t".to_owned(),
            role: "TENANT".to_owned(),
            region: None,
            agent: None,
            uid: "-".to_owned(),
            max_payload: 1024,
            inbox: "_INBOX.x.".to_owned(),
        };
        let inner = Inner::new(ConnectOptions::new(Vec::new(), PemSource::Text(String::new())), session.clone());
        inner.go_online(&session);
        inner
    }

    fn take(inner: &Inner, bytes: &[u8]) -> Result<usize, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(take_frames(inner, &mut BytesMut::from(bytes), &FrameLimits::open(1024)))
    }

    fn control(frame: impl Into<Control>) -> BytesMut {
        let mut bytes = BytesMut::new();
        frame.into().encode_into(&mut bytes).unwrap();
        bytes
    }

    proptest! {
        #[test]
        fn no_bytes_of_a_broker_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = take(&inner(), &bytes);
        }

        #[test]
        fn no_body_of_a_known_kind_panics(kind in 0u8..0x43, body in proptest::collection::vec(any::<u8>(), 0..100)) {
            let len = u32::try_from(body.len() + 4).unwrap();
            let _ = take(&inner(), &[&len.to_le_bytes()[..], &[kind, 0, 0, 0], &body].concat());
        }
    }

    #[test]
    fn frames_of_another_direction_end_the_session() {
        for frame in
            [control(glocal_wire::control::Probe { id: 1 }), control(glocal_wire::control::Subscribed { sid: 1 })]
        {
            let result = take(&inner(), &frame);
            assert_eq!(result.is_ok(), frame.get(4) == Some(&0x04), "{result:?}");
        }
    }

    #[test]
    fn answers_nobody_waits_for_are_passed_over() {
        use glocal_wire::control::{Ack, NoResponders};
        let inner = inner();
        let places = inner.in_flight.available_permits();
        let stray = NoResponders { seq: 0, subject: "a".to_owned(), reply: "nonsense".to_owned() };
        for frame in [control(Ack { seq: 9, targets: 1 }), control(Pong { token: 9 }), control(stray)] {
            take(&inner, &frame).unwrap();
        }
        assert_eq!(inner.in_flight.available_permits(), places);
    }
}
