//! Probes that travel the way data travels: the half-dead bridge, whose control stream answers while a data stream does not.
//!
//! The writer puts them into the streams it uses, the peer's readers hand them to its control stream, and this end's control
//! stream asks whether one has been out for too long. A peer that does not know them is sent none.

use bytes::BytesMut;
use glocal_core::limits::PATH_ANSWERS_MAX;
use glocal_core::tenant::TenantKey;
use glocal_core::time::Time;
use glocal_engine::lane_writer::StreamWrite;
use glocal_engine::liveness::PathProbes;
use glocal_wire::control::FEATURE_PATH_PROBE;
use glocal_wire::slice::probe_slice;
use parking_lot::Mutex;
use tokio::sync::mpsc;

/// The probes of one bridge, in both directions.
pub(super) struct Path {
    connection: quinn::Connection,
    /// `None` for a peer that does not know them.
    probes: Option<Mutex<PathProbes>>,
    answers: mpsc::Sender<u64>,
}

impl Path {
    /// Probes for a peer with these features, and the numbers of its own that are to be answered.
    pub(super) fn new(connection: &quinn::Connection, features: u64) -> (Self, mpsc::Receiver<u64>) {
        let (answers, to_answer) = mpsc::channel(PATH_ANSWERS_MAX);
        let transmitted = connection.stats().udp_tx.bytes;
        let probes = (features & FEATURE_PATH_PROBE != 0).then(|| Mutex::new(PathProbes::new(transmitted)));
        (Self { connection: connection.clone(), probes, answers }, to_answer)
    }

    /// The probes to write now.
    pub(super) fn due(&self, now: Time) -> Vec<StreamWrite> {
        let Some(probes) = &self.probes else { return Vec::new() };
        let transmitted = self.connection.stats().udp_tx.bytes;
        let asked = probes.lock().ask(transmitted, now);
        let write = |(stream, id)| {
            let mut out = BytesMut::new();
            probe_slice(id, &mut out);
            // Of no tenant: the streams of a shared edge are everybody's.
            StreamWrite { tenant: TenantKey(u32::MAX), stream, parts: vec![out.freeze()] }
        };
        asked.into_iter().map(write).collect()
    }

    /// Bytes were written to a stream.
    pub(super) fn wrote(&self, stream: usize, bytes: usize) {
        if let Some(probes) = &self.probes {
            probes.lock().wrote(stream, bytes);
        }
    }

    /// The peer has read one of this end's.
    pub(super) fn on_answer(&self, id: u64, now: Time) {
        if let Some(probes) = &self.probes {
            probes.lock().on_answer(id, now);
        }
    }

    /// Whether a stream has stopped being read.
    pub(super) fn is_stuck(&self, rtt_micros: u64, now: Time) -> bool {
        let transmitted = self.connection.stats().udp_tx.bytes;
        self.probes.as_ref().is_some_and(|probes| probes.lock().is_stuck(transmitted, rtt_micros, now))
    }

    /// The peer's probe was read. An honest peer has one out per stream, so that there is room for the answer; what does not
    /// find any is its own loss.
    pub(super) fn answer(&self, id: u64) {
        let _ = self.answers.try_send(id);
    }
}
