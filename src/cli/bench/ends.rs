//! Both ends of a flow: what must fit before there is something to measure.

use std::time::{Duration, Instant};

use super::link::{Feed, Link};
use crate::cli::{WithHint as _, usage};

/// How long the first message may take to arrive: interest has to cross the mesh.
pub(crate) const FIRST: Duration = Duration::from_secs(10);
/// Between two tries of the first message.
const AGAIN: Duration = Duration::from_millis(100);

/// Both ends must be of one tenant: between two, nothing ever arrives.
pub(crate) fn same_tenant(publisher: &Link, subscriber: &Link) -> anyhow::Result<()> {
    match (publisher.tenant(), subscriber.tenant()) {
        (Some(from), Some(to)) if from != to => Err(usage(
            format!("the publisher is of tenant {from} and its subscriber of tenant {to}"),
            "both ends of a flow need certificates of one tenant",
        )),
        _ => Ok(()),
    }
}

/// The fabric must carry payloads of this size.
pub(crate) fn fits(link: &Link, size: usize, flag: &str) -> anyhow::Result<()> {
    let max = link.payload_max();
    if size <= max {
        return Ok(());
    }
    Err(usage(format!("{flag} {size} is larger than the fabric's {max} bytes per message"), "choose a smaller one"))
}

/// Publishes until something arrives, then takes what else is on its way.
pub(crate) async fn first(link: &Link, feed: &mut Feed, subject: &str, size: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + FIRST;
    let payload = vec![0; size];
    loop {
        link.publish(subject, &payload).await?;
        match tokio::time::timeout(AGAIN, feed.next()).await {
            Ok(Some(_)) => return Ok(()),
            Ok(None) => anyhow::bail!("the subscription has ended"),
            Err(_) if Instant::now() > deadline => return Err(silent(link)),
            Err(_) => {}
        }
    }
}

/// Nothing has arrived: says why, as far as it is known.
pub(crate) fn silent(link: &Link) -> anyhow::Error {
    let refused = link.counts().refused;
    let error = anyhow::anyhow!("nothing arrives at the subscriber within {} s ({refused} refused)", FIRST.as_secs());
    let hint = "are both brokers up, may this tenant cross the edges between them, and may it publish below 'bench.'?";
    Err::<(), _>(error).hint(hint).err().unwrap_or_else(|| anyhow::anyhow!("nothing arrives"))
}
