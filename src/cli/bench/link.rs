//! Connections of a measurement: who, where, in which protocol.

use bytes::Bytes;
use glocal_client::{Client, Subscribe, Subscription};
use glocal_core::limits::{BENCH_BUFFER_BYTES, BENCH_BUFFER_MESSAGES};
use glocal_core::name::Class;

use crate::cli::connect::{ConnectArgs, Settings, connect};
use crate::cli::context::Store;

/// An identity and a broker.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// What the user calls it.
    pub(crate) name: String,
    settings: Settings,
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

impl Place {
    /// What the connection flags, the environment or the current context name.
    pub(crate) fn of(args: &ConnectArgs) -> anyhow::Result<Self> {
        Ok(Self { name: "the flags".to_owned(), settings: args.settings()? })
    }

    /// What a saved context names.
    pub(crate) fn saved(name: &str) -> anyhow::Result<Self> {
        let saved = Store::open()?.load(name)?;
        Ok(Self { name: format!("context '{name}'"), settings: Settings::from_saved(name, saved)? })
    }

    /// Connects.
    pub(crate) async fn connect(&self, wants: Wants) -> anyhow::Result<Link> {
        let mut options = self.settings.clone().options();
        options.client_name = concat!("glocal-bench/", env!("CARGO_PKG_VERSION")).to_owned();
        options.default_class = wants.class;
        options.reconnect.enabled = wants.reconnect;
        options.in_flight_max = wants.window;
        // What this side drops itself would be taken for the mesh's loss: it gets room, and is counted.
        options.buffering.messages_max = BENCH_BUFFER_MESSAGES;
        options.buffering.bytes_max = BENCH_BUFFER_BYTES;
        Ok(Link::Native(connect(options).await?))
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
}

impl Link {
    /// The tenant the broker takes it for, where the protocol tells.
    pub(crate) fn tenant(&self) -> Option<String> {
        match self {
            Self::Native(client) => Some(client.whoami().tenant.clone()),
        }
    }

    /// The broker's name.
    pub(crate) fn node(&self) -> String {
        match self {
            Self::Native(client) => client.whoami().node.clone(),
        }
    }

    /// The largest payload, in bytes.
    pub(crate) fn payload_max(&self) -> usize {
        match self {
            Self::Native(client) => client.whoami().max_payload as usize,
        }
    }

    /// Publishes; waits while its send buffer, or its window, is full.
    pub(crate) async fn publish(&self, subject: &str, payload: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::Native(client) => Ok(client.publish(subject, payload).await?),
        }
    }

    /// Subscribes; returns when the broker has confirmed it.
    pub(crate) async fn subscribe(&self, filter: &str) -> anyhow::Result<Feed> {
        match self {
            Self::Native(client) => {
                let subscribe = Subscribe { filter: filter.to_owned(), ..Subscribe::default() };
                Ok(Feed::Native(client.subscribe_with(subscribe).await?))
            }
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
        }
    }

    /// Sends what is buffered and closes.
    pub(crate) async fn close(&self) {
        match self {
            Self::Native(client) => client.close().await,
        }
    }
}

/// What arrives for one subscription.
#[derive(Debug)]
pub(crate) enum Feed {
    /// Over the native protocol.
    Native(Subscription),
}

impl Feed {
    /// The next payload; `None` when no more come.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        match self {
            Self::Native(subscription) => subscription.next().await.map(|message| message.payload_shared()),
        }
    }

    /// The next payload if one is here already.
    pub(crate) fn try_next(&mut self) -> Option<Bytes> {
        match self {
            Self::Native(subscription) => subscription.try_next().map(|message| message.payload_shared()),
        }
    }
}
