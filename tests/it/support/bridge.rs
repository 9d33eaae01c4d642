//! A broker with a genuine certificate whose bridge does what the test wants.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::{Buf, Bytes, BytesMut};
use glocal_core::limits::CONTROL_BYTES_MAX;
use glocal_core::name::{Class, NodeId, TenantId};
use glocal_node::config::Config;
use glocal_node::trust::NodeIdentity;
use glocal_node::trust::tls::{BRIDGE_SERVER_NAME, bridge_client_config, tenant_client_config};
use glocal_wire::control::{
    AllowedSet, AnnounceBroker, AnnounceSender, BridgeHello, Control, PROTOCOL_VERSION, PathProbeAck, Presence,
    PresenceEnd, ProbeAck, Ready, Routed,
};
use glocal_wire::data::{DataHead, DataKind};
use glocal_wire::ext::ExtBuilder;
use glocal_wire::frame::{FrameLimits, Next, next_frame};
use glocal_wire::slice::{OpenHeader, SliceEvent, SliceHeader, SliceKind, SliceReader};
use tokio::io::AsyncReadExt;

use super::fabric::{Credential, Fabric};
use super::peer::frame;
use super::{PATIENCE, soon};

/// Bytes of slices heard, by tenant and class.
pub(crate) type Lanes = Arc<Mutex<BTreeMap<(String, Class), usize>>>;
/// Control frames heard in lanes, each with the lane's tenant.
pub(crate) type Said = Arc<Mutex<Vec<(String, Control)>>>;

/// One bridge, up as far as the peer can tell.
pub(crate) struct Hostile {
    pub(crate) connection: quinn::Connection,
    pub(crate) heard: Lanes,
    pub(crate) said: Said,
    /// Bytes for the control stream.
    pub(crate) control: tokio::sync::mpsc::Sender<Bytes>,
    /// Whether it answers probes.
    pub(crate) answers: Arc<AtomicBool>,
    stream: quinn::SendStream,
    next_lane: u32,
}

/// The receiving half of a control stream, with what has come of it.
pub(crate) type Asks = (quinn::RecvStream, BytesMut);

/// How the bridge is opened.
pub(crate) struct Opening<'a> {
    pub(crate) node: &'a str,
    pub(crate) edge: &'a str,
    /// What this side claims to allow.
    pub(crate) tenants: &'a [&'a str],
}

/// How the bridge is opened and held.
pub(crate) struct Manner {
    /// Which dial of its life it says to be.
    pub(crate) dial: u64,
    /// Its features.
    pub(crate) features: u64,
    /// Whether it reads data streams.
    pub(crate) reads: Arc<AtomicBool>,
    /// Codes of its allowed set, instead of those of this connection.
    pub(crate) macs: Option<Vec<[u8; 16]>>,
}

impl Default for Manner {
    fn default() -> Self {
        Self { dial: 1, features: 0, reads: Arc::new(AtomicBool::new(true)), macs: None }
    }
}

impl Hostile {
    /// Connects to the broker `peer` as `opening.node`, says hello and agrees on the allowed set.
    pub(crate) async fn open(fabric: &Fabric, peer: &str, at: SocketAddr, opening: &Opening<'_>) -> Self {
        Self::open_as(fabric, peer, at, opening, 1).await
    }

    /// As [`Self::open`], as the `dial`th of its life.
    pub(crate) async fn open_as(fabric: &Fabric, peer: &str, at: SocketAddr, opening: &Opening<'_>, dial: u64) -> Self {
        Self::try_open(fabric, peer, at, opening, dial).await.expect("the bridge to come up")
    }

    /// As [`Self::open_as`]; `None` when the peer closes it first.
    pub(crate) async fn try_open(
        fabric: &Fabric,
        peer: &str,
        at: SocketAddr,
        opening: &Opening<'_>,
        dial: u64,
    ) -> Option<Self> {
        Self::try_open_with(fabric, peer, at, opening, Manner { dial, ..Manner::default() }).await
    }

    /// As [`Self::try_open`], in a manner.
    pub(crate) async fn try_open_with(
        fabric: &Fabric,
        peer: &str,
        at: SocketAddr,
        opening: &Opening<'_>,
        Manner { dial, features, reads, macs: replayed }: Manner,
    ) -> Option<Self> {
        let connection = connect(fabric, opening.node, peer, at).await;
        let (mut send, mut receive) = connection.open_bi().await.ok()?;
        send.write_all(&frame(BridgeHello { dial, features, ..bridge_hello(opening) })).await.ok()?;
        let mut buffer = BytesMut::new();
        let Control::BridgeHello(_) = next(&mut receive, &mut buffer).await? else { return None };
        let macs = replayed.unwrap_or_else(|| macs(&connection, opening));
        send.write_all(&frame(AllowedSet { macs, last: true })).await.ok()?;
        send.write_all(&frame(Ready { tenants: 0 })).await.ok()?;
        while !matches!(next(&mut receive, &mut buffer).await?, Control::Ready(_)) {}
        Self::hold(connection, send, (receive, buffer), reads).await
    }

    /// A tenant's connection beside a bridge, as something that lanes can be opened on.
    pub(crate) async fn beside(connection: quinn::Connection, answers: quinn::SendStream, asks: Asks) -> Self {
        Self::hold(connection, answers, asks, Manner::default().reads).await.expect("a stream for lanes")
    }

    /// Answers probes and listens, as long as it is to read.
    async fn hold(
        connection: quinn::Connection,
        answers: quinn::SendStream,
        asks: Asks,
        reads: Arc<AtomicBool>,
    ) -> Option<Self> {
        let (control, mut to_send) = tokio::sync::mpsc::channel::<Bytes>(16);
        let mut send = answers;
        tokio::spawn(async move {
            while let Some(bytes) = to_send.recv().await {
                if send.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        });
        let answers = Arc::new(AtomicBool::new(true));
        let (answering, acks) = (Arc::clone(&answers), control.clone());
        let (mut receive, mut buffer) = asks;
        tokio::spawn(async move {
            while let Some(control) = next(&mut receive, &mut buffer).await {
                if let Control::Probe(probe) = control
                    && answering.load(Ordering::Relaxed)
                    && acks.send(frame(ProbeAck { id: probe.id }).freeze()).await.is_err()
                {
                    return;
                }
            }
        });
        let (heard, said) = (Lanes::default(), Said::default());
        let listener = (control.clone(), reads);
        tokio::spawn(listen(connection.clone(), Arc::clone(&heard), Arc::clone(&said), listener));
        let stream = connection.open_uni().await.ok()?;
        Some(Self { connection, heard, said, control, answers, stream, next_lane: 1 })
    }

    /// Opens a lane that begins with `frames`; its number.
    pub(crate) async fn lane(&mut self, tenant: &str, class: Class, frames: &[u8]) -> u32 {
        let lane = self.next_lane;
        self.next_lane += 1;
        let open = OpenHeader { class, tenant };
        let len = u32::try_from(open.encoded_bytes() + frames.len()).unwrap();
        let mut out = BytesMut::new();
        SliceHeader { lane, len, kind: SliceKind::Open }.encode_into(&mut out).unwrap();
        open.encode_into(&mut out).unwrap();
        out.extend_from_slice(frames);
        let _ = self.stream.write_all(&out).await;
        lane
    }

    /// More bytes of a lane; what the peer says to it shows elsewhere.
    pub(crate) async fn data(&mut self, lane: u32, frames: &[u8]) {
        for part in frames.chunks(16 * 1024) {
            let mut out = BytesMut::new();
            let len = u32::try_from(part.len()).unwrap();
            SliceHeader { lane, len, kind: SliceKind::Data }.encode_into(&mut out).unwrap();
            out.extend_from_slice(part);
            if self.stream.write_all(&out).await.is_err() {
                return;
            }
        }
    }

    pub(crate) async fn raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    /// Waits until the peer closes the bridge; what it says.
    pub(crate) async fn closed(&self) -> String {
        match soon("the bridge to be closed", self.connection.closed()).await {
            quinn::ConnectionError::ApplicationClosed(close) => String::from_utf8_lossy(&close.reason).into_owned(),
            other => other.to_string(),
        }
    }
}

/// A connection to a bridge port with a broker's own certificate.
pub(crate) async fn connect(fabric: &Fabric, node: &str, peer: &str, at: SocketAddr) -> quinn::Connection {
    let state = ("state_dir".to_owned(), "hostile".to_owned());
    let loaded = Config::load(&fabric.config(node), &[state], []).unwrap_or_else(|error| panic!("{error}"));
    let prepared = glocal_node::prepare(loaded.config).unwrap_or_else(|error| panic!("{error}"));
    let config = bridge_client_config(&prepared.trust, NodeId::parse(peer).unwrap()).unwrap();
    dial(config, at).await
}

/// As [`connect`], under a certificate of `tenant`.
pub(crate) async fn connect_for(
    fabric: &Fabric,
    node: &str,
    peer: &str,
    at: SocketAddr,
    (tenant, credential): (&str, &Credential),
) -> quinn::Connection {
    let state = ("state_dir".to_owned(), "hostile".to_owned());
    let loaded = Config::load(&fabric.config(node), &[state], []).unwrap_or_else(|error| panic!("{error}"));
    let prepared = glocal_node::prepare(loaded.config).unwrap_or_else(|error| panic!("{error}"));
    let now = glocal_node::trust::unix_now();
    let identity =
        NodeIdentity::from_pem(("leaf", credential.pem.as_bytes()), ("key", credential.key_pem.as_bytes()), now)
            .unwrap();
    let (peer, tenant) = (NodeId::parse(peer).unwrap(), TenantId::parse(tenant).unwrap());
    dial(tenant_client_config(&prepared.trust, peer, tenant, &identity).unwrap(), at).await
}

async fn dial(config: quinn::ClientConfig, at: SocketAddr) -> quinn::Connection {
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    endpoint.connect_with(config, at, BRIDGE_SERVER_NAME).unwrap().await.unwrap()
}

pub(crate) fn bridge_hello(opening: &Opening<'_>) -> BridgeHello {
    BridgeHello {
        versions: vec![PROTOCOL_VERSION],
        features: 0,
        fabric: "trial".to_owned(),
        node: opening.node.to_owned(),
        incarnation: u64::MAX / 2,
        edge: opening.edge.to_owned(),
        dial: 1,
        max_payload: 1024 * 1024,
        tenant_id_form: 0,
        bundle_epoch: 1,
        bundle_version: 1,
    }
}

/// The codes of the tenants that an opening allows, under the key of one connection and edge.
pub(crate) fn macs(connection: &quinn::Connection, opening: &Opening<'_>) -> Vec<[u8; 16]> {
    opening.tenants.iter().map(|tenant| mac(connection, opening.edge, tenant)).collect()
}

fn exported(connection: &quinn::Connection, label: &[u8], edge: &str) -> [u8; 32] {
    let mut secret = [0; 32];
    connection.export_keying_material(&mut secret, label, edge.as_bytes()).unwrap();
    secret
}

/// The code of a tenant on a connection.
pub(crate) fn mac(connection: &quinn::Connection, edge: &str, tenant: &str) -> [u8; 16] {
    let secret = exported(connection, b"EXPORTER-glocal-allowed-set", edge);
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &secret);
    aws_lc_rs::hmac::sign(&key, tenant.as_bytes()).as_ref()[..16].try_into().unwrap()
}

/// What whoever holds `bridge` says of another connection of its own.
pub(crate) fn proof(bridge: &quinn::Connection, edge: &str, connection: &quinn::Connection) -> [u8; 32] {
    const LABEL: &[u8] = b"EXPORTER-glocal-tenant-connection";
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &exported(bridge, LABEL, edge));
    aws_lc_rs::hmac::sign(&key, &exported(connection, LABEL, edge)).as_ref().try_into().unwrap()
}

/// The next control frame; `None` when the stream is over.
pub(crate) async fn next(receive: &mut quinn::RecvStream, buffer: &mut BytesMut) -> Option<Control> {
    loop {
        match next_frame(buffer, &FrameLimits::CONTROL_ONLY).unwrap() {
            Next::Control { kind, body, frame_bytes } => {
                let control = Control::decode(kind, body, CONTROL_BYTES_MAX).unwrap();
                buffer.advance(frame_bytes);
                if control.is_some() {
                    return control;
                }
            }
            Next::Data { .. } => panic!("data on the control stream"),
            Next::Need(_) => match tokio::time::timeout(PATIENCE, receive.read_buf(buffer)).await {
                Ok(Ok(bytes)) if bytes > 0 => {}
                _ => return None,
            },
        }
    }
}

/// Notes the lanes the peer opens, how much it sends in them, and what it says there.
async fn listen(
    connection: quinn::Connection,
    heard: Lanes,
    said: Said,
    (answers, reads): (tokio::sync::mpsc::Sender<Bytes>, Arc<AtomicBool>),
) {
    while let Ok(mut stream) = connection.accept_uni().await {
        let (heard, said) = (Arc::clone(&heard), Arc::clone(&said));
        let (answers, reads) = (answers.clone(), Arc::clone(&reads));
        tokio::spawn(async move {
            let mut slices = SliceReader::new();
            let mut lanes = BTreeMap::new();
            while let Ok(Some(chunk)) = stream.read_chunk(64 * 1024, true).await {
                if !reads.load(Ordering::Relaxed) {
                    // Neither read nor refused: as a reader that hangs.
                    return std::future::pending().await;
                }
                let mut bytes: Bytes = chunk.bytes;
                while let Some(event) = slices.next_event(&mut bytes).unwrap() {
                    match event {
                        SliceEvent::Open { lane, class, tenant } => {
                            heard.lock().unwrap().entry((tenant.to_owned(), class)).or_default();
                            lanes.insert(lane, ((tenant.to_owned(), class), BytesMut::new()));
                        }
                        SliceEvent::Data { lane, bytes } => {
                            let (of, buffer) = lanes.get_mut(&lane).unwrap();
                            *heard.lock().unwrap().get_mut(of).unwrap() += bytes.len();
                            buffer.extend_from_slice(&bytes);
                            take_controls(&of.0, buffer, &said);
                        }
                        SliceEvent::Reset { .. } => {}
                        SliceEvent::Probe { id } => {
                            let _ = answers.send(frame(PathProbeAck { id }).freeze()).await;
                        }
                    }
                }
            }
        });
    }
}

fn take_controls(tenant: &str, buffer: &mut BytesMut, said: &Said) {
    loop {
        let bytes = match next_frame(buffer, &FrameLimits::open(1 << 23)).unwrap() {
            Next::Control { kind, body, frame_bytes } => {
                let control = Control::decode(kind, body, CONTROL_BYTES_MAX).unwrap();
                said.lock().unwrap().extend(control.map(|control| (tenant.to_owned(), control)));
                frame_bytes
            }
            Next::Data { frame_bytes, .. } => frame_bytes,
            Next::Need(_) => return,
        };
        buffer.advance(bytes);
    }
}

/// A control frame for a broker that need not be the neighbour.
pub(crate) fn routed(target: u32, origin: u32, control: impl Into<Control>) -> BytesMut {
    let (kind, body) = control.into().to_body().unwrap();
    frame(Routed { target, origin, hops: 1, kind, body })
}

/// Handles for a lane: brokers 1.. in this order, and one sender, number 1, of `tenant`.
pub(crate) fn announce(brokers: &[&str], tenant: &str, region: &str, agent: &str) -> BytesMut {
    let mut out = BytesMut::new();
    for (node, handle) in brokers.iter().zip(1..) {
        let body = AnnounceBroker { handle, node: (*node).to_owned(), incarnation: u64::MAX / 2 };
        Control::from(body).encode_into(&mut out).unwrap();
    }
    let sender = AnnounceSender {
        handle: 1,
        session: 1,
        tenant: tenant.to_owned(),
        region: Some(region.to_owned()),
        agent: Some(agent.to_owned()),
        uid: "0123456789abcdef".to_owned(),
    };
    Control::from(sender).encode_into(&mut out).unwrap();
    out
}

/// A relayed message.
pub(crate) fn relay(class: Class, name: &str, seq: u64, origin: u32, targets: &[u32], payload: &[u8]) -> BytesMut {
    let mut ext = ExtBuilder::new();
    if !targets.is_empty() {
        let mut list = ext.targets();
        for target in targets {
            list.target(*target);
        }
    }
    ext.origin(origin).incarnation(u64::MAX / 2).sender(1);
    let head = DataHead { seq: Some(seq), hops: 1, ..DataHead::new(DataKind::Relay, Some(class)) };
    let mut out = BytesMut::new();
    head.encode_into(&mut out, ext.bytes().unwrap(), name.as_bytes(), b"", b"", payload).unwrap();
    out
}

/// That the first broker of a lane has subscribers, of which it will not say what they want: it is sent everything.
pub(crate) fn everything(tenant: &str) -> BytesMut {
    let mut out = announce(&["region-a/broker-a", "global/broker-g"], tenant, "region-a", "eve");
    let presence = Presence { origin: 1, incarnation: u64::MAX / 2, seq: 1, present: true };
    for control in [Control::from(presence), PresenceEnd { told: 1 }.into()] {
        control.encode_into(&mut out).unwrap();
    }
    out
}
