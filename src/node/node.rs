//! One running node: its ports, its tasks, and how it leaves.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use glocal_core::limits::UDP_BUFFER_BYTES;
use glocal_engine::advisory::Advisor;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin;
use crate::bridge;
use crate::bridge_runtime::{BridgeHandle, BridgeRuntime};
use crate::config::Config;
use crate::context::{Changes, Context, ControlHandle, NodeCounters};
use crate::control_task;
use crate::edge_status::EdgeStatuses;
use crate::listener::nats::Carrier;
use crate::listener::{self, Admission};
use crate::live::Live;
use crate::ops;
use crate::rebirth;
use crate::reliable_task;
use crate::reload;
use crate::start::{Listening, Prepared, StartError};
use crate::state::{StateLock, write_atomically};
use crate::trust::{BridgeCertificates, Trust, tls};

/// How long tasks may take to end after everything was told to stop.
const STOP: Duration = Duration::from_secs(2);

/// A node that listens.
#[derive(Debug)]
pub struct Node {
    broken: CancellationToken,
    context: Context,
    listening: Listening,
    _traces: Traces,
    _lock: StateLock,
    _bridge_runtime: BridgeRuntime,
}

/// The files by which others find a running node; gone when it is dropped, however its end comes about.
#[derive(Debug)]
struct Traces {
    socket: PathBuf,
    ready_file: Option<PathBuf>,
}

impl Drop for Traces {
    fn drop(&mut self) {
        // Whoever starts next makes its own.
        let _ = std::fs::remove_file(&self.socket);
        if let Some(file) = &self.ready_file {
            let _ = std::fs::remove_file(file);
        }
    }
}

impl Node {
    /// Opens the ports and starts the tasks of a prepared node. Call it on the runtime the node is to live on.
    ///
    /// # Errors
    /// The port or file that cannot be had.
    pub async fn start(prepared: Prepared) -> Result<Self, StartError> {
        let Prepared { config, trust, shared, driver, clock, reloader, lock } = prepared;
        let tcp = TcpListener::bind(config.native_tcp).await.map_err(listen("broker_port", config.native_tcp))?;
        let ops_listener = optional("ops_listen", config.ops_listen).await?;
        let nats_listener = optional("nats_port", config.nats_tcp).await?;
        let nats_ws_listener = optional("nats_ws_port", config.nats_ws).await?;
        let bridge_certificates = BridgeCertificates::new(trust.now().identity());
        let bridge_runtime = BridgeRuntime::start(config.bridge_threads).map_err(StartError::Threads)?;
        let bridge_threads = bridge_runtime.handle();
        let (quic, bridges) = quic_endpoints(&config, &trust, &bridge_certificates, &bridge_threads)?;
        let (socket, socket_path) = admin::bind(&config.state_dir).map_err(|(path, source)| StartError::Listen {
            key: "state_dir",
            address: path.display().to_string(),
            source,
        })?;
        let mut traces = Traces { socket: socket_path.clone(), ready_file: None };
        let (requests, queue) = control_task::queue();
        let context = Context {
            edges: Arc::new(EdgeStatuses::new(shared.links().iter().map(|l| Arc::clone(l.edge())))),
            config: Live::new(config),
            trust,
            reloader: Arc::new(reloader),
            changes: Changes::default(),
            bridges: bridges.clone(),
            bridge_threads,
            bridge_certificates,
            advisor: Arc::new(Advisor::new(Arc::clone(&shared))),
            shared,
            later_life: Arc::default(),
            clock,
            control: ControlHandle(requests),
            counters: Arc::new(NodeCounters::default()),
            busy_polls: Arc::default(),
            lame_duck: CancellationToken::new(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let local = |result: std::io::Result<SocketAddr>, fallback| result.unwrap_or(fallback);
        let listening = Listening {
            node: context.shared.node.to_string(),
            pid: std::process::id(),
            native_tcp: local(tcp.local_addr(), context.config().native_tcp),
            native_quic: local(quic.local_addr(), context.config().native_quic),
            nats: nats_listener.as_ref().and_then(|l| l.local_addr().ok()),
            nats_ws: nats_ws_listener.as_ref().and_then(|l| l.local_addr().ok()),
            bridge: local(bridges.local_addr(), context.config().bridge),
            ops: ops_listener.as_ref().and_then(|l| l.local_addr().ok()),
            socket: socket_path,
        };
        let tls = tls::native_tcp_server_config(&context.trust)?;
        // The last thing that can fail: connections wait in the ports' queues until the tasks below take them.
        announce(&context, &listening)?;
        traces.ready_file.clone_from(&context.config().ready_file);
        // The control half outlives all others: what they close on their way out passes through it.
        let broken = CancellationToken::new();
        tokio::spawn(watch(control_task::run(driver, queue, clock, CancellationToken::new()), broken.clone()));
        let admission = Admission::default();
        context.tasks.spawn(listener::serve_tcp(context.clone(), tcp, tls, admission.clone()));
        serve_nats(&context, nats_listener, nats_ws_listener, &admission)?;
        context.tasks.spawn(listener::serve_quic(context.clone(), quic, admission));
        context.bridge_threads.spawn(&context.tasks, bridge::serve(context.clone(), bridges));
        look_after(&context);
        context.tasks.spawn(admin::serve(context.clone(), socket));
        if let Some(listener) = ops_listener {
            context.tasks.spawn(ops::serve(context.clone(), listener));
        }
        Ok(Self { broken, context, listening, _traces: traces, _lock: lock, _bridge_runtime: bridge_runtime })
    }

    /// What the node listens on.
    #[must_use]
    pub const fn listening(&self) -> &Listening {
        &self.listening
    }

    /// The node's handles, for tests and embedders.
    #[must_use]
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// Ends when the node cannot go on, since its control half is gone; otherwise never.
    pub async fn broken(&self) {
        self.broken.cancelled().await;
    }

    /// Leaves: takes no new sessions, tells clients, waits for the grace or until they have gone, then ends everything.
    pub async fn leave(self) {
        let grace = Duration::from_millis(self.context.config().lame_duck_ms);
        tracing::info!(grace_ms = self.context.config().lame_duck_ms, "leaving: no new sessions");
        self.context.lame_duck.cancel();
        self.context.changes.tell();
        let until = tokio::time::Instant::now() + grace + Duration::from_millis(200);
        while self.context.counters.sessions.value() > 0 && tokio::time::Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.context.stop.cancel();
        self.context.changes.tell();
        self.context.tasks.close();
        if tokio::time::timeout(STOP, self.context.tasks.wait()).await.is_err() {
            tracing::warn!("some connections did not end in time");
        }
        drop(self);
        tracing::info!("stopped");
    }
}

/// Starts what keeps a node's edges, messages, files and life as they should be.
fn look_after(context: &Context) {
    for link in context.shared.links().iter() {
        context.bridge_threads.spawn(&context.tasks, bridge::keep_dialled(context.clone(), link.edge().key()));
    }
    context.tasks.spawn(reliable_task::run(context.clone()));
    context.tasks.spawn(reload::watch(context.clone()));
    context.tasks.spawn(rebirth::watch(context.clone()));
}

/// A port that may be left out.
async fn optional(key: &'static str, address: Option<SocketAddr>) -> Result<Option<TcpListener>, StartError> {
    match address {
        Some(address) => Ok(Some(TcpListener::bind(address).await.map_err(listen(key, address))?)),
        None => Ok(None),
    }
}

/// Starts the listeners for NATS clients that are configured.
fn serve_nats(
    context: &Context,
    tcp: Option<TcpListener>,
    websocket: Option<TcpListener>,
    admission: &Admission,
) -> Result<(), StartError> {
    let tls = tls::nats_server_config(&context.trust)?;
    let told = |listener: &TcpListener| {
        let address = listener.local_addr().unwrap_or(context.config().native_tcp);
        glocal_engine::nats::Listening { host: address.ip().to_string(), port: address.port() }
    };
    for (listener, carrier) in [(tcp, Carrier::Tcp), (websocket, Carrier::WebSocket)] {
        let Some(listener) = listener else { continue };
        let (told, tls) = (told(&listener), Arc::clone(&tls));
        context.tasks.spawn(listener::nats::serve(context.clone(), listener, carrier, tls, told, admission.clone()));
    }
    Ok(())
}

/// Runs the control half; if that ends by a panic, the node must not live on as if it could route.
async fn watch(control: impl Future<Output = ()> + Send + 'static, broken: CancellationToken) {
    if let Err(error) = tokio::spawn(control).await {
        tracing::error!("the control half has failed, the node ends: {error}");
        broken.cancel();
    }
}

fn listen(key: &'static str, address: SocketAddr) -> impl Fn(std::io::Error) -> StartError {
    move |source| StartError::Listen { key, address: address.to_string(), source }
}

/// The endpoints of native sessions and of bridges.
fn quic_endpoints(
    config: &Config,
    trust: &Live<Trust>,
    certificates: &Arc<BridgeCertificates>,
    bridge_threads: &BridgeHandle,
) -> Result<(quinn::Endpoint, quinn::Endpoint), StartError> {
    let native = tls::native_quic_server_config(trust)?;
    let native = endpoint(config.native_quic, Some(native), quinn::EndpointConfig::default())
        .map_err(listen("quic_port", config.native_quic))?;
    let bridges = tls::bridge_server_config_with(trust, Arc::clone(certificates))?;
    let bridges = bridge_threads
        .enter(|| endpoint(config.bridge, Some(bridges), tls::bridge_endpoint_config()))
        .map_err(listen("bridge_port", config.bridge))?;
    Ok((native, bridges))
}

/// A QUIC endpoint with socket buffers that do not drop what a burst brings.
pub(crate) fn endpoint(
    address: SocketAddr,
    server: Option<quinn::ServerConfig>,
    config: quinn::EndpointConfig,
) -> std::io::Result<quinn::Endpoint> {
    let socket = std::net::UdpSocket::bind(address)?;
    let buffers = socket2::SockRef::from(&socket);
    // The system may give less; quinn works with that too, only worse under bursts.
    let _ = buffers.set_recv_buffer_size(UDP_BUFFER_BYTES);
    let _ = buffers.set_send_buffer_size(UDP_BUFFER_BYTES);
    let runtime = quinn::default_runtime().ok_or_else(|| std::io::Error::other("no async runtime"))?;
    quinn::Endpoint::new(config, server, socket, runtime)
}

/// Says where the node listens, in the ready file and in the log.
fn announce(context: &Context, listening: &Listening) -> Result<(), StartError> {
    if let Some(file) = &context.config().ready_file {
        let failed = |source| StartError::ReadyFile { file: file.clone(), source };
        let json = serde_json::to_vec_pretty(listening).map_err(|error| failed(std::io::Error::other(error)))?;
        write_atomically(file, &json).map_err(failed)?;
    }
    let ops = listening.ops.map_or_else(|| "off".to_owned(), |a| a.to_string());
    tracing::info!(
        node = %listening.node, tcp = %listening.native_tcp, quic = %listening.native_quic,
        bridge = %listening.bridge, %ops, incarnation = context.shared.incarnation(),
        "ready: {} ({}) of fabric {}", listening.node, context.config().role.as_str(), context.shared.fabric
    );
    Ok(())
}
