//! The agents of the demo, connected by the client library, and what they can say of what they hear.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use glocal_client::{Address, Client, ConnectOptions, Message, PemSource, Publish, Published, Scheme, Subscription};
use glocal_core::name::Class;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::mesh::{Mesh, PATIENCE};
use super::plan::{ADMIN, AGENTS, AMOS, Agent, CLEO, Fabric};

/// What every tenant's agent subscribes, and nobody qualifies: the same names in each tenant.
const HEARD: &str = "demo.>";
/// The subject of markers.
const MARK: &str = "demo.mark";

/// One connected agent.
pub(super) struct Player {
    /// Who it is.
    pub(super) agent: Agent,
    /// Its connection.
    pub(super) client: Client,
    heard: Mutex<Option<Subscription>>,
}

/// All connected agents.
pub(super) struct Cast {
    players: Vec<Player>,
    numbers: AtomicU64,
}

/// The options of a client of `node`, without an identity.
pub(super) fn options(mesh: &Mesh, fabric: &Fabric, node: &str, scheme: Scheme) -> anyhow::Result<ConnectOptions> {
    let ready = mesh.ready(node)?;
    let at = match scheme {
        Scheme::Tls => ready.native_tcp,
        Scheme::Quic => ready.native_quic,
    };
    let address = Address::new(scheme, at.ip().to_string(), at.port());
    let mut options = ConnectOptions::new(vec![address], PemSource::File(fabric.root()));
    options.expected_node = Some(node.to_owned());
    options.client_name = concat!("glocal-demo/", env!("CARGO_PKG_VERSION")).to_owned();
    options.reconnect.enabled = false;
    options.echo = false;
    options.timeouts.answer = PATIENCE;
    Ok(options)
}

impl Player {
    /// `alice@region-a`.
    pub(super) fn name(&self) -> String {
        self.agent.address()
    }

    /// Publishes; `ctrl` and `bulk` wait for the acknowledgement and return its number of targets.
    pub(super) async fn send(&self, class: Class, subject: &str, payload: &str) -> anyhow::Result<Option<u32>> {
        self.publish(Publish { class: Some(class), ..Publish::new(subject, payload.to_owned()) }).await
    }

    /// As [`Player::send`], for a message with more to it.
    pub(super) async fn publish(&self, publish: Publish) -> anyhow::Result<Option<u32>> {
        match self.client.publish_with(Publish { ack: true, ..publish }).await? {
            Published::Acknowledged { targets } => Ok(Some(targets)),
            _ => Ok(None),
        }
    }

    /// The next message on the common names that is no marker of its own tenant.
    pub(super) async fn hear(&self) -> anyhow::Result<Message> {
        loop {
            let message = self.hear_any().await?;
            if self.number_of_mark(&message).is_none() {
                return Ok(message);
            }
        }
    }

    async fn hear_any(&self) -> anyhow::Result<Message> {
        let mut heard = self.heard.lock().await;
        let subscription = heard.as_mut().context("this agent subscribes nothing")?;
        next(subscription).await.with_context(|| self.name())
    }

    /// The number of a marker of its own tenant; a foreign one is a message like any other.
    fn number_of_mark(&self, message: &Message) -> Option<u64> {
        let text = std::str::from_utf8(message.payload()).ok().filter(|_| message.subject() == MARK)?;
        text.strip_prefix(self.agent.tenant)?.strip_prefix(' ')?.parse().ok()
    }
}

/// The next message of a subscription, within the usual patience.
pub(super) async fn next(subscription: &mut Subscription) -> anyhow::Result<Message> {
    let message = timeout(PATIENCE, subscription.next()).await;
    message
        .map_err(|_| anyhow::anyhow!("heard nothing in {} s", PATIENCE.as_secs()))?
        .context("the connection has ended")
}

impl Cast {
    /// Connects everybody, alternating between TLS/TCP and QUIC, and subscribes the common names for all but amos
    /// and the superuser. Returns when every broker knows of everybody.
    pub(super) async fn gather(mesh: &Mesh, fabric: &Fabric) -> anyhow::Result<Self> {
        let mut cast = Self { players: Vec::new(), numbers: AtomicU64::new(0) };
        for (agent, scheme) in AGENTS.into_iter().zip([Scheme::Tls, Scheme::Quic].into_iter().cycle()) {
            let (cert, key) = fabric.identity(agent);
            let mut options =
                options(mesh, fabric, agent.node(), scheme)?.identity(PemSource::File(cert), PemSource::File(key));
            // Nobody else can send cleo a marker: no edge carries its tenant there.
            options.echo = agent == CLEO;
            let client = Client::connect(options).await.with_context(|| agent.address())?;
            let heard = match agent {
                ADMIN | AMOS => None,
                _ => Some(client.subscribe(HEARD, None).await?),
            };
            cast.players.push(Player { agent, client, heard: Mutex::new(heard) });
        }
        for from in &cast.players {
            for to in &cast.players {
                let apart = from.agent == CLEO || to.agent == CLEO;
                if from.agent != to.agent && from.agent.tenant == to.agent.tenant && !apart {
                    cast.reach(from, to).await?;
                }
            }
        }
        Ok(cast)
    }

    /// One agent.
    pub(super) fn player(&self, agent: Agent) -> anyhow::Result<&Player> {
        self.players.iter().find(|p| p.agent == agent).with_context(|| format!("{} is not connected", agent.address()))
    }

    /// Everybody.
    pub(super) fn players(&self) -> &[Player] {
        &self.players
    }

    /// A number that nobody had before.
    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits until what `to` has subscribed so far is known where `from` publishes: interest of one tenant travels in
    /// order, so that a subscription made last is known last.
    pub(super) async fn reach(&self, from: &Player, to: &Player) -> anyhow::Result<()> {
        let subject = format!("sync.{}", self.number());
        let last = to.client.subscribe(&subject, None).await?;
        let reached = self.known(from, &subject).await;
        drop(last);
        reached.with_context(|| format!("{} does not reach {}", from.name(), to.name()))
    }

    /// Waits until somebody is known who wants `subject`, where `from` publishes.
    pub(super) async fn known(&self, from: &Player, subject: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while from.send(Class::Ctrl, subject, "").await? != Some(1) {
            anyhow::ensure!(Instant::now() < deadline, "nobody wants '{subject}' after {} s", PATIENCE.as_secs());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// Shows that `who` has heard nothing: a marker of its own tenant, sent now in every class, is the next message of
    /// each. What should not be there was sent before, and would have come before.
    pub(super) async fn heard_nothing(&self, who: Agent, marked_by: Agent) -> anyhow::Result<()> {
        let (who, friend) = (self.player(who)?, self.player(marked_by)?);
        let number = self.number();
        for class in Class::ALL {
            friend.send(class, MARK, &format!("{} {number}", friend.agent.tenant)).await?;
        }
        let (mut seen, mut foreign) = (BTreeSet::new(), None);
        while seen.len() < Class::ALL.len() {
            let message = who.hear_any().await?;
            match who.number_of_mark(&message) {
                Some(mark) if mark == number => drop(seen.insert(message.class().code())),
                Some(_) => {}
                // Reading goes on to the markers, so that one breach does not spoil the lines after it.
                None => drop(foreign.get_or_insert(message)),
            }
        }
        let Some(message) = foreign else { return Ok(()) };
        let (name, sender) = (message.subject(), message.sender().unwrap_or("nobody"));
        anyhow::bail!("{} HEARD '{name}' of {sender}, which is none of its business", who.name())
    }

    /// How many messages everybody has sent, and received.
    pub(super) fn counted(&self) -> (u64, u64) {
        let statistics = self.players.iter().map(|player| player.client.statistics());
        statistics.fold((0, 0), |(sent, received), s| (sent + s.published, received + s.delivered))
    }

    /// Closes every connection, when all has been said.
    pub(super) async fn leave(self) {
        for player in &self.players {
            player.client.close().await;
        }
    }
}
