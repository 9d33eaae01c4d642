//! Tenants that publish as fast as the system takes it, towards a subscriber of theirs.
//!
//! In `live` and `tele` a publisher waits only for its own connection; in `ctrl` and `bulk` also for acknowledgements,
//! with at most [`BENCH_WINDOW_BYTES`] on their way. What a full buffer of the subscriber's side drops is counted apart.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use glocal_core::limits::{BENCH_WINDOW_BYTES, CLIENT_IN_FLIGHT_DEFAULT};
use glocal_core::name::Class;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::ends::{first, fits, same_tenant};
use super::link::{Counts, Feed, Link, Place, Wants};

/// Publishes of an acknowledged class that are always allowed on their way.
const WINDOW_MIN: usize = 8;
/// A publisher whose connection is lost tries again after this.
const PAUSE: Duration = Duration::from_millis(20);

/// What every tenant's flood is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Bytes of a payload.
    pub(crate) size: usize,
    /// The class.
    pub(crate) class: Class,
    /// Connections that publish.
    pub(crate) publishers: usize,
}

/// One tenant's flood: connected, not yet flooding.
#[derive(Debug)]
pub(crate) struct Flood {
    name: String,
    subject: String,
    shape: Shape,
    publishers: Vec<Link>,
    subscriber: Link,
    arrivals: Arc<Arrivals>,
    failed: Arc<AtomicU64>,
    going: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

/// What has arrived of one flood.
#[derive(Debug)]
struct Arrivals {
    began: Instant,
    messages: AtomicU64,
    /// When the last one came, in nanoseconds since it began.
    last: AtomicU64,
}

impl Arrivals {
    fn add(&self, messages: u64) {
        let nanos = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last.store(nanos, Ordering::Relaxed);
        self.messages.fetch_add(messages, Ordering::Release);
    }

    /// How many, and when the last one came.
    fn read(&self) -> (u64, Instant) {
        let messages = self.messages.load(Ordering::Acquire);
        (messages, self.began + Duration::from_nanos(self.last.load(Ordering::Relaxed)))
    }
}

/// Totals of one flood up to a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    at: Instant,
    delivered: u64,
    /// When the last of them arrived, or when nothing had begun.
    arrived: Instant,
    failed: u64,
    publishers: Counts,
    subscriber: Counts,
}

impl Flood {
    /// Connects both ends and waits until a message crosses from one to the other.
    pub(crate) async fn connect(from: &Place, to: &Place, subject: String, shape: Shape) -> anyhow::Result<Self> {
        let window = (BENCH_WINDOW_BYTES / shape.size.max(1)).clamp(WINDOW_MIN, CLIENT_IN_FLIGHT_DEFAULT);
        let wants = Wants { class: shape.class, reconnect: true, window };
        let subscriber = to.connect(wants).await.with_context(|| format!("the flood's subscriber, {}", to.name))?;
        let mut publishers = Vec::new();
        for _ in 0..shape.publishers {
            publishers.push(from.connect(wants).await.with_context(|| format!("the flood, {}", from.name))?);
        }
        for link in &publishers {
            same_tenant(link, &subscriber)?;
            fits(link, shape.size, "--flood-size")?;
        }
        let mut feed = subscriber.subscribe(&subject).await.with_context(|| format!("{}: {subject}", to.name))?;
        let (began, messages, last) = (Instant::now(), AtomicU64::new(0), AtomicU64::new(0));
        let arrivals = Arc::new(Arrivals { began, messages, last });
        for link in &publishers {
            first(link, &mut feed, &subject, shape.size).await.with_context(|| format!("the flood, {}", from.name))?;
        }
        let tasks = vec![tokio::spawn(count(feed, Arc::clone(&arrivals)))];
        let (failed, going) = (Arc::default(), Arc::new(AtomicBool::new(true)));
        Ok(Self { name: from.name.clone(), subject, shape, publishers, subscriber, arrivals, failed, going, tasks })
    }

    /// The tenant, where the protocol tells.
    pub(crate) fn tenant(&self) -> Option<String> {
        self.subscriber.tenant()
    }

    /// Begins to flood.
    pub(crate) fn begin(&mut self) {
        for link in &self.publishers {
            let (link, subject, size) = (link.clone(), self.subject.clone(), self.shape.size);
            let (going, failed) = (Arc::clone(&self.going), Arc::clone(&self.failed));
            self.tasks.push(tokio::spawn(async move {
                let payload = vec![0x2e; size];
                while going.load(Ordering::Relaxed) {
                    if link.publish(&subject, &payload).await.is_err() {
                        failed.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }));
        }
    }

    /// Totals now.
    pub(crate) fn read(&self) -> Reading {
        let publishers = self.publishers.iter().map(Link::counts).fold(Counts::default(), Counts::plus);
        let (delivered, arrived) = self.arrivals.read();
        Reading {
            at: Instant::now(),
            delivered,
            arrived,
            failed: self.failed.load(Ordering::Relaxed),
            publishers,
            subscriber: self.subscriber.counts(),
        }
    }

    /// What happened between two readings.
    pub(crate) fn between(&self, before: &Reading, after: &Reading) -> Flooded {
        let publishers = after.publishers.minus(before.publishers);
        let subscriber = after.subscriber.minus(before.subscriber);
        Flooded {
            name: self.name.clone(),
            tenant: self.tenant(),
            from: self.publishers.first().map(Link::node).unwrap_or_default(),
            to: self.subscriber.node(),
            size: self.shape.size,
            seconds: after.at.saturating_duration_since(before.at).as_secs_f64(),
            delivered_seconds: arriving(before, after).as_secs_f64(),
            published: publishers.published,
            delivered: after.delivered.saturating_sub(before.delivered),
            refused: publishers.refused,
            failed: after.failed.saturating_sub(before.failed),
            dropped: subscriber.dropped,
            unacknowledged: publishers.unacknowledged,
            reconnects: publishers.reconnects + subscriber.reconnects,
        }
    }

    /// Stops publishing and listening; what is in buffers is given up.
    pub(crate) fn end(&mut self) {
        self.going.store(false, Ordering::Relaxed);
        self.tasks.drain(..).for_each(|task| task.abort());
    }
}

/// What one flood came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flooded {
    name: String,
    tenant: Option<String>,
    from: String,
    to: String,
    size: usize,
    seconds: f64,
    /// What the rate of deliveries is over.
    delivered_seconds: f64,
    published: u64,
    delivered: u64,
    refused: u64,
    failed: u64,
    dropped: u64,
    unacknowledged: u64,
    reconnects: u64,
}

impl Flooded {
    fn delivered_per_s(&self) -> f64 {
        self.delivered as f64 / self.delivered_seconds.max(1e-6)
    }

    /// Payload bytes that publishers handed to their connections each second.
    pub(crate) fn published_bytes_per_s(&self) -> f64 {
        self.published as f64 * self.size as f64 / self.seconds.max(1e-6)
    }

    /// Payload bytes that arrived each second.
    pub(crate) fn delivered_bytes_per_s(&self) -> f64 {
        self.delivered_per_s() * self.size as f64
    }

    /// One line for people.
    pub(crate) fn line(&self) -> String {
        use super::report::per_second;
        let mut text = format!(
            "{}, {} → {}: published {}, delivered {}",
            self.tenant.as_deref().unwrap_or(&self.name),
            self.from,
            self.to,
            per_second(self.published_bytes_per_s(), "B"),
            per_second(self.delivered_bytes_per_s(), "B"),
        );
        for (count, what) in [
            (self.refused, "refused"),
            (self.failed, "not taken"),
            (self.dropped, "dropped by this tool"),
            (self.unacknowledged, "without an acknowledgement"),
            (self.reconnects, "reconnects"),
        ] {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        text
    }

    /// As a JSON object.
    pub(crate) fn json(&self) -> Value {
        json!({
            "name": self.name, "tenant": self.tenant, "from": self.from, "to": self.to, "seconds": self.seconds,
            "published": self.published, "delivered": self.delivered,
            "published_per_s": self.published as f64 / self.seconds.max(1e-6),
            "delivered_per_s": self.delivered_per_s(),
            "published_bytes_per_s": self.published_bytes_per_s(),
            "delivered_bytes_per_s": self.delivered_bytes_per_s(),
            "refused": self.refused, "failed": self.failed, "dropped_by_client": self.dropped,
            "unacknowledged": self.unacknowledged, "reconnects": self.reconnects,
        })
    }

    /// The floods together as a JSON object.
    pub(crate) fn json_of_all(floods: &[Self], shape: &Shape) -> Value {
        let sum = |of: fn(&Self) -> u64| floods.iter().map(of).sum::<u64>();
        json!({
            "tenants": floods.len(), "size_bytes": shape.size, "class": shape.class.as_str(),
            "published_bytes_per_s": floods.iter().map(Self::published_bytes_per_s).sum::<f64>(),
            "delivered_bytes_per_s": floods.iter().map(Self::delivered_bytes_per_s).sum::<f64>(),
            "published": sum(|f| f.published), "delivered": sum(|f| f.delivered),
            "refused": sum(|f| f.refused), "failed": sum(|f| f.failed), "dropped_by_client": sum(|f| f.dropped),
            "unacknowledged": sum(|f| f.unacknowledged), "reconnects": sum(|f| f.reconnects),
            "each": floods.iter().map(Self::json).collect::<Vec<_>>(),
        })
    }
}

/// The time from the last arrival before the first reading to the last before the second one: what is under way at either end
/// is no whole message, and large ones are few. Where nothing has come for longer than two messages took, to the second
/// reading: what has stopped has the time that it stands still counted.
fn arriving(before: &Reading, after: &Reading) -> Duration {
    let whole = after.at.saturating_duration_since(before.at);
    let Ok(messages @ 1..) = u32::try_from(after.delivered.saturating_sub(before.delivered)) else { return whole };
    let (from, to) = (before.arrived, after.arrived);
    let each = to.saturating_duration_since(from) / messages;
    let still = after.at.saturating_duration_since(to);
    // What came before may be long ago, when nothing flooded yet.
    let from = if before.at.saturating_duration_since(from) > 2 * each { before.at } else { from };
    let to = if still > 2 * each { after.at } else { to };
    to.saturating_duration_since(from)
}

async fn count(mut feed: Feed, arrivals: Arc<Arrivals>) {
    while feed.next().await.is_some() {
        let mut arrived = 1;
        while arrived < 1024 && feed.try_next().is_some() {
            arrived += 1;
        }
        arrivals.add(arrived);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds that a rate is over: readings at 1 s and at 7 s, and the last arrivals before them.
    fn over(first: f64, last: f64, delivered: u64) -> f64 {
        let began = Instant::now();
        let reading = |at: f64, arrived: f64, delivered| Reading {
            at: began + Duration::from_secs_f64(at),
            delivered,
            arrived: began + Duration::from_secs_f64(arrived),
            failed: 0,
            publishers: Counts::default(),
            subscriber: Counts::default(),
        };
        arriving(&reading(1.0, first, 3), &reading(7.0, last, 3 + delivered)).as_secs_f64()
    }

    #[track_caller]
    fn about(found: f64, wanted: f64) {
        assert!((found - wanted).abs() < 1e-6, "{found}, not {wanted}");
    }

    #[test]
    fn a_rate_is_that_of_whole_messages_and_of_the_time_that_they_took() {
        // One in 0.9 s, of which the seventh is under way.
        about(over(0.9, 6.3, 6), 5.4);
        about(over(0.999, 6.999, 60_000), 6.0);
        about(over(0.5, 0.5, 0), 6.0);
    }

    #[test]
    fn the_time_that_a_flood_stands_still_counts() {
        about(over(0.9, 2.7, 2), 7.0 - 0.9);
        about(over(0.999, 3.0, 60_000), 6.0);
        // Nothing had come for long before.
        about(over(0.1, 7.0, 60), 6.0);
    }
}
