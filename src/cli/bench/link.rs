//! Connections of a measurement: who, where, in which protocol.

use std::time::Duration;

use bytes::Bytes;
use glocal_client::{Client, ConnectOptions, Message, Publish, Subscribe, Subscription};
use glocal_core::limits::{BENCH_BUFFER_BYTES, BENCH_BUFFER_MESSAGES, CLIENT_IN_FLIGHT_DEFAULT};
use glocal_core::name::Class;

use super::nats::{NatsFeed, NatsLink};
use super::nats_read::Item;
use crate::cli::connect::{ConnectArgs, Settings, connect};
use crate::cli::context::Store;

/// What is spoken with the broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Protocol {
    /// The native protocol, at `broker_port` or `quic_port`.
    #[default]
    Native,
    /// The NATS text protocol over mutual TLS, at `nats_port` or at a nats-server.
    Nats,
}

impl Protocol {
    /// Its name in JSON.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Nats => "nats",
        }
    }
}

/// Flags about connections.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct LinkArgs {
    /// The protocol; for nats, addresses are those of NATS ports.
    #[arg(long, value_enum, default_value_t, help_heading = "Connection")]
    pub(crate) protocol: Protocol,
    #[command(flatten)]
    connect: ConnectArgs,
}

impl LinkArgs {
    /// What the connection flags, the environment or the current context name.
    pub(crate) fn place(&self) -> anyhow::Result<Place> {
        Ok(self.at("the connection flags".to_owned(), self.connect.settings()?))
    }

    /// What a saved context names.
    pub(crate) fn saved(&self, name: &str) -> anyhow::Result<Place> {
        let saved = Store::open()?.load(name)?;
        Ok(self.at(format!("context '{name}'"), Settings::from_saved(name, saved)?))
    }

    /// What a saved context names, or else the same as the flags do.
    pub(crate) fn saved_or_place(&self, name: Option<&str>) -> anyhow::Result<Place> {
        name.map_or_else(|| self.place(), |name| self.saved(name))
    }

    const fn at(&self, name: String, settings: Settings) -> Place {
        Place { name, settings, protocol: self.protocol }
    }
}

/// An identity and a broker.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// What the user calls it.
    pub(crate) name: String,
    settings: Settings,
    protocol: Protocol,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wants {
    /// The class of what it publishes.
    pub(crate) class: Class,
    /// Whether it comes back after it was lost.
    pub(crate) reconnect: bool,
    /// Most publishes of an acknowledged class on their way.
    pub(crate) window: usize,
}

impl Wants {
    /// A connection whose loss ends the measurement.
    pub(crate) const fn once(class: Class) -> Self {
        Self { class, reconnect: false, window: CLIENT_IN_FLIGHT_DEFAULT }
    }
}

impl Place {
    /// The library's options.
    fn options(&self, wants: Wants) -> ConnectOptions {
        let mut options = self.settings.clone().options();
        options.client_name = concat!("glocal-bench/", env!("CARGO_PKG_VERSION")).to_owned();
        options.default_class = wants.class;
        options.reconnect.enabled = wants.reconnect;
        options.in_flight_max = wants.window;
        // What this side drops itself would be taken for the mesh's loss: it gets room, and is counted.
        options.buffering.messages_max = BENCH_BUFFER_MESSAGES;
        options.buffering.bytes_max = BENCH_BUFFER_BYTES;
        options
    }

    /// Connects.
    pub(crate) async fn connect(&self, wants: Wants) -> anyhow::Result<Link> {
        let options = self.options(wants);
        Ok(match self.protocol {
            Protocol::Native => Link::Native(connect(options).await?),
            Protocol::Nats => Link::Nats(NatsLink::connect(options, wants).await?),
        })
    }
}

/// What a connection counted so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Messages put into its send buffer.
    pub(crate) published: u64,
    /// Refusals by the broker.
    pub(crate) refused: u64,
    /// Messages that its own full buffers dropped.
    pub(crate) dropped: u64,
    /// Acknowledgements that a lost connection took along.
    pub(crate) unacknowledged: u64,
    /// Connections after the first.
    pub(crate) reconnects: u64,
}

impl Counts {
    /// Both together.
    pub(crate) const fn plus(self, other: Self) -> Self {
        Self {
            published: self.published + other.published,
            refused: self.refused + other.refused,
            dropped: self.dropped + other.dropped,
            unacknowledged: self.unacknowledged + other.unacknowledged,
            reconnects: self.reconnects + other.reconnects,
        }
    }

    /// What was counted since.
    pub(crate) const fn minus(self, before: Self) -> Self {
        Self {
            published: self.published.saturating_sub(before.published),
            refused: self.refused.saturating_sub(before.refused),
            dropped: self.dropped.saturating_sub(before.dropped),
            unacknowledged: self.unacknowledged.saturating_sub(before.unacknowledged),
            reconnects: self.reconnects.saturating_sub(before.reconnects),
        }
    }
}

/// One connection.
#[derive(Clone, Debug)]
pub(crate) enum Link {
    /// The native protocol.
    Native(Client),
    /// The NATS text protocol.
    Nats(NatsLink),
}

impl Link {
    /// The tenant the broker takes it for, where the protocol tells.
    pub(crate) fn tenant(&self) -> Option<String> {
        match self {
            Self::Native(client) => Some(client.whoami().tenant.clone()),
            Self::Nats(_) => None,
        }
    }

    /// The broker's name.
    pub(crate) fn node(&self) -> String {
        match self {
            Self::Native(client) => client.whoami().node.clone(),
            Self::Nats(link) => link.node(),
        }
    }

    /// The largest payload, in bytes.
    pub(crate) fn payload_max(&self) -> usize {
        match self {
            Self::Native(client) => client.whoami().max_payload as usize,
            Self::Nats(link) => link.payload_max(),
        }
    }

    /// Publishes; waits while its send buffer, or its window, is full.
    pub(crate) async fn publish(&self, subject: &str, payload: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::Native(client) => Ok(client.publish(subject, payload).await?),
            Self::Nats(link) => link.publish(subject, "", payload).await,
        }
    }

    /// Subscribes; returns when the broker has confirmed it.
    pub(crate) async fn subscribe(&self, filter: &str) -> anyhow::Result<Feed> {
        Ok(match self {
            Self::Native(client) => {
                let subscribe = Subscribe { filter: filter.to_owned(), ..Subscribe::default() };
                Feed::Native(client.subscribe_with(subscribe).await?)
            }
            Self::Nats(link) => Feed::Nats(link.subscribe(filter).await?),
        })
    }

    /// Prepares for requests.
    pub(crate) async fn open_inbox(&self) -> anyhow::Result<()> {
        match self {
            // Its first request does.
            Self::Native(_) => Ok(()),
            Self::Nats(link) => link.open_inbox().await,
        }
    }

    /// Sends a request and waits for its first reply.
    pub(crate) async fn request(&self, subject: &str, payload: Bytes, timeout: Duration) -> anyhow::Result<()> {
        match self {
            Self::Native(client) => Ok(client.request(subject, payload, timeout).await.map(drop)?),
            Self::Nats(link) => link.request(subject, &payload, timeout).await.map(drop),
        }
    }

    /// Answers a request with its own payload.
    pub(crate) async fn answer(&self, request: Arrived) -> anyhow::Result<()> {
        match (self, request) {
            (Self::Native(client), Arrived::Native(message)) => {
                let Some(reply) = message.reply() else { return Ok(()) };
                let publish = Publish::new(reply, message.payload_shared());
                client.publish_with(Publish { class: Some(message.class()), ..publish }).await?;
            }
            (Self::Nats(link), Arrived::Nats(item)) if !item.reply.is_empty() => {
                link.publish(&item.reply, "", &item.payload).await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Waits until the broker has taken everything, and has acknowledged what it acknowledges.
    pub(crate) async fn settle(&self, patience: Duration) -> anyhow::Result<()> {
        match self {
            Self::Native(client) => {
                client.flush().await?;
                Ok(client.acknowledged(patience).await?)
            }
            Self::Nats(link) => link.flush().await,
        }
    }

    /// What it counted.
    pub(crate) fn counts(&self) -> Counts {
        match self {
            Self::Native(client) => {
                let counted = client.statistics();
                Counts {
                    published: counted.published,
                    refused: counted.denied,
                    dropped: counted.dropped,
                    unacknowledged: counted.unacknowledged,
                    reconnects: counted.reconnects,
                }
            }
            Self::Nats(link) => link.counts(),
        }
    }

    /// Whether it is gone for good.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Native(client) => client.is_closed(),
            Self::Nats(link) => link.is_closed(),
        }
    }

    /// Sends what is buffered and closes.
    pub(crate) async fn close(&self) {
        match self {
            Self::Native(client) => client.close().await,
            Self::Nats(link) => link.close().await,
        }
    }
}

/// What arrives for one subscription.
#[derive(Debug)]
pub(crate) enum Feed {
    /// Over the native protocol.
    Native(Subscription),
    /// Over the NATS text protocol.
    Nats(NatsFeed),
}

/// One message.
#[derive(Clone, Debug)]
pub(crate) enum Arrived {
    /// Over the native protocol.
    Native(Message),
    /// Over the NATS text protocol.
    Nats(Item),
}

impl Arrived {
    /// The payload.
    pub(crate) fn payload(&self) -> &[u8] {
        match self {
            Self::Native(message) => message.payload(),
            Self::Nats(item) => &item.payload,
        }
    }
}

impl Feed {
    /// The next message; `None` when no more come.
    pub(crate) async fn next(&mut self) -> Option<Arrived> {
        match self {
            Self::Native(subscription) => subscription.next().await.map(Arrived::Native),
            Self::Nats(feed) => feed.next().await.map(Arrived::Nats),
        }
    }

    /// The next message if one is here already.
    pub(crate) fn try_next(&mut self) -> Option<Arrived> {
        match self {
            Self::Native(subscription) => subscription.try_next().map(Arrived::Native),
            Self::Nats(feed) => feed.try_next().map(Arrived::Nats),
        }
    }
}
