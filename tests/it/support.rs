//! What the tests of running brokers share: fabrics in temporary directories, brokers in this process or as processes of
//! their own, clients, raw peers that speak the wire format, and waiting for a condition with a deadline.

pub(crate) mod bridge;
pub(crate) mod fabric;
pub(crate) mod initial;
pub(crate) mod node;
pub(crate) mod peer;
pub(crate) mod proxy;

use std::time::{Duration, Instant};

use glocal_client::{Message, Subscription};

/// How long anything may take that is expected to happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(10);

/// Waits until `check` gives a value; names what was waited for when it does not in time.
pub(crate) async fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain for: {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// As [`eventually`], for tests without a runtime.
pub(crate) fn eventually_blocking<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain for: {what}");
        std::thread::sleep(LOOK);
    }
}

/// Whether a subject, raw or qualified, is that of an advisory: the node's own word, which wide filters see, too.
pub(crate) fn is_advisory(subject: &str) -> bool {
    let raw = if subject.starts_with("T.") { subject.splitn(4, '.').nth(3).unwrap_or_default() } else { subject };
    raw.split('.').next() == Some("advisory")
}

/// The next message of a client.
pub(crate) async fn message(subscription: &mut Subscription) -> Message {
    loop {
        let message = soon("a message", subscription.next()).await.expect("the subscription to live");
        if !is_advisory(message.subject()) {
            return message;
        }
    }
}

/// The subjects of the messages that have come.
pub(crate) fn arrived(subscription: &mut Subscription) -> Vec<String> {
    let subjects = std::iter::from_fn(|| subscription.try_next()).map(|m| m.subject().to_owned());
    subjects.filter(|subject| !is_advisory(subject)).collect()
}

/// A future that must end in time.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {PATIENCE:?} in vain for: {what}"),
    }
}

/// Resident memory of a process, in bytes.
pub(crate) fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}
