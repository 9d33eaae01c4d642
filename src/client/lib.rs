//! The agent library of the Glocal mesh.
//!
//! A [`Client`] is one session with one broker at a time: TLS 1.3 over TCP or QUIC, mutual where an identity is given.
//! It is for publishing, subscribing and request/reply from programs and from the command line.
//!
//! It guarantees that it talks only to a broker of the fabric whose root it was given, that messages of one publisher
//! and class are sent in order, that every buffer is bounded, that subscriptions survive a lost connection, and that
//! publishes which were not acknowledged are reported ([`Event::Unacknowledged`]) and never silently repeated.
//! It never decides what is allowed: names go to the broker as they are, and the broker's refusals come back as
//! [`Denied`]. It parses nothing but through `glocal-wire`, and it never logs payloads or keys.
//!
//! # What an acknowledgement means
//! `live`, `tele`: nothing beyond the transport. `ctrl`, `bulk`: the message is in the memory of every target broker. A
//! broker that cannot pass it on for 5 s refuses it as `congested`, and says when to come back.
//!
//! # Example
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use glocal_client::{Client, ConnectOptions, PemSource};
//! use std::time::Duration;
//!
//! let root = PemSource::File("certs/root.pem".into());
//! let options = ConnectOptions::new(vec!["tls://broker.example:32010".parse()?], root)
//!     .identity(PemSource::File("agent.pem".into()), PemSource::File("agent.key".into()));
//! let client = Client::connect(options).await?;
//!
//! let mut orders = client.subscribe("orders.>", None).await?;
//! client.publish("orders.new", "one coffee").await?;
//! if let Some(message) = orders.next().await {
//!     println!("{}: {} bytes", message.subject(), message.payload().len());
//! }
//! let reply = client.request("time.now", "", Duration::from_secs(2)).await?;
//! # drop(reply);
//! client.drain().await?;
//! # Ok(())
//! # }
//! ```

mod client;
mod connection;
mod error;
mod establish;
mod headers;
mod message;
mod options;
mod outbox;
mod publish;
mod queue;
mod request;
mod state;
mod subscription;
mod sync;
mod tls;
mod transport;

pub use client::Client;
pub use error::{ConnectError, Denied, FlushError, PublishError, RequestError, ServerError, SubscribeError};
pub use headers::{HeaderError, Headers};
pub use message::{Message, Publish, Published};
pub use options::{
    Address, AddressError, Buffering, ConnectOptions, DEFAULT_QUIC_PORT, DEFAULT_TLS_PORT, Identity, Overflow,
    PemSource, Reconnect, Scheme, Timeouts,
};
pub use request::Replies;
pub use state::{Event, Session, Statistics};
pub use subscription::{Subscribe, Subscription};

#[cfg(test)]
mod tests;
