//! Reading the data streams of a bridge: one task per stream, none of which ever waits for a consumer.

use std::sync::Arc;

use bytes::Bytes;
use glocal_core::limits::BRIDGE_STREAMS;
use glocal_engine::driver::Outcome;
use glocal_engine::lane_reader::{Arrivals, BridgeFault, Incoming, LaneReader};
use tokio::task::JoinSet;

use super::Ended;
use super::path::Path;
use crate::context::Context;
use crate::edge_status::Failure;

/// Pieces taken from a stream at once. QUIC hands over what each packet brought; what came together is handed on together.
const CHUNKS: usize = 48;

/// Accepts the peer's data streams and reads them in `streams` until one of them ends the bridge.
pub(super) async fn run(
    context: &Context,
    connection: &quinn::Connection,
    (incoming, path): (&Arc<Incoming>, &Arc<Path>),
    streams: &mut JoinSet<Ended>,
) -> Ended {
    let mut accepted = 0;
    loop {
        tokio::select! {
            stream = connection.accept_uni(), if accepted < BRIDGE_STREAMS => match stream {
                Ok(stream) => {
                    accepted += 1;
                    streams.spawn(read(context.clone(), stream, Arc::clone(incoming), Arc::clone(path)));
                }
                Err(error) => return super::closed(&error),
            },
            Some(ended) = streams.join_next() => {
                return ended.unwrap_or_else(|error| Ended::new(Failure::Fault, error));
            }
        }
    }
}

async fn read(context: Context, mut stream: quinn::RecvStream, incoming: Arc<Incoming>, path: Arc<Path>) -> Ended {
    let mut reader = LaneReader::new(Arc::clone(&incoming));
    let mut arrivals = Arrivals::default();
    let mut chunks = [const { Bytes::new() }; CHUNKS];
    loop {
        let count = match stream.read_chunks(&mut chunks).await {
            Ok(Some(count)) => count,
            Ok(None) => return Ended::new(Failure::Closed, "a data stream has ended"),
            Err(error) => return Ended::new(Failure::Closed, error),
        };
        let now = context.clock.now();
        let mut read = Ok(());
        for chunk in chunks.iter_mut().take(count) {
            read = reader.on_chunk(std::mem::take(chunk), now, &mut arrivals);
            if read.is_ok() && !arrivals.commands.is_empty() {
                read = carry_out(&context, &incoming, &mut arrivals).await;
            }
            if read.is_err() {
                break;
            }
        }
        arrivals.probes.drain(..).for_each(|id| path.answer(id));
        if let Err(fault) = read.and(carry_out(&context, &incoming, &mut arrivals).await) {
            return Ended::new(Failure::Fault, format!("{}: {fault}", fault.code()));
        }
        if count == CHUNKS {
            tokio::task::yield_now().await;
        }
    }
}

/// Flushes what the chunks brought about.
async fn carry_out(context: &Context, incoming: &Incoming, arrivals: &mut Arrivals) -> Result<(), BridgeFault> {
    arrivals.batch.flush(&context.shared, context.clock.now());
    for tenant in arrivals.refused.drain(..) {
        tracing::warn!(edge = %incoming.edge.name(), peer = %incoming.edge.peer(), %tenant,
            "a lane of a tenant that this edge does not allow is skipped");
    }
    let mut commands = std::mem::take(&mut arrivals.commands);
    commands.extend(
        arrivals.batch.finished.drain(..).map(|(session, sid)| glocal_engine::driver::Command::Unsubscribe {
            session,
            sid,
            max: None,
        }),
    );
    if !commands.is_empty() {
        for outcome in context.control.apply(commands).await {
            if let Outcome::RecordRefused(error) = outcome {
                tracing::warn!(edge = %incoming.edge.name(), peer = %incoming.edge.peer(), "a record is refused: {error}");
                incoming.refuse()?;
            }
        }
    }
    Ok(())
}
