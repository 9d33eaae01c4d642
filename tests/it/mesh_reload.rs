//! Bundles and configurations that change under running brokers: what is added comes, what is taken goes, and nobody else
//! notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use glocal_client::{Client, Publish};
use glocal_core::name::Class;

use crate::support::fabric::{Fabric, Shape};
use crate::support::node::{GLOBAL, Local, REGION_A, REGION_B};
use crate::support::{arrived, eventually, message};

const EDGE_A: &str = "global-region-a";
const EDGE_B: &str = "global-region-b";

/// Traffic of tenantA from one region to the other, which must not notice anything.
struct Steady {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    sender: tokio::task::JoinHandle<Client>,
    subscription: glocal_client::Subscription,
    _reader: Client,
}

impl Steady {
    async fn start(fabric: &Fabric, from: &Local, to: &Local) -> Self {
        let reader = fabric.client(to.at(), "anna").await;
        let subscription = reader.subscribe("steady", None).await.unwrap();
        from.knows_filters("tenantA", 1).await;
        let writer = fabric.client(from.at(), "alice").await;
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&sent));
        let sender = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                let number = count.fetch_add(1, Ordering::Relaxed);
                let publish = Publish { class: Some(Class::Ctrl), ..Publish::new("steady", number.to_string()) };
                writer.publish_with(publish).await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            writer.flush().await.unwrap();
            writer
        });
        Self { stop, sent, sender, subscription, _reader: reader }
    }

    /// Ends it: every message has come, once, in order.
    async fn end(mut self) {
        // A change may be over before much was said: it must not be noticed afterwards either.
        let sent = || self.sent.load(Ordering::Relaxed);
        eventually("traffic", || (sent() > 100).then_some(())).await;
        self.stop.store(true, Ordering::Relaxed);
        let _writer = self.sender.await.unwrap();
        let sent = self.sent.load(Ordering::Relaxed);
        for number in 0..sent {
            assert_eq!(message(&mut self.subscription).await.payload(), number.to_string().as_bytes());
        }
    }
}

/// A mesh whose brokers each read a copy of their bundle, so that the test says who sees a newer file.
async fn start(fabric: &Fabric) -> (Local, Local, Local) {
    for node in [GLOBAL, REGION_A, REGION_B] {
        let file = fabric.config(node);
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<_> = text
            .lines()
            .map(|line| match line {
                line if line.starts_with("tenants = ") => "tenants = [\"*\"]",
                line if line.starts_with("bundle = ") => "bundle = \"copy.glocal\"",
                line if line.starts_with("#") => "",
                line => line,
            })
            .collect();
        std::fs::write(&file, lines.join("\n")).unwrap();
        hand_over(fabric, node);
    }
    let global = Local::start(fabric, GLOBAL).await;
    for node in [REGION_A, REGION_B] {
        fabric.point(node, global.at().bridge);
    }
    let a = Local::start(fabric, REGION_A).await;
    let b = Local::start(fabric, REGION_B).await;
    for (node, edge) in [(&a, EDGE_A), (&b, EDGE_B), (&global, EDGE_A), (&global, EDGE_B)] {
        node.up(edge).await;
    }
    // What they ask each other while they start would find no way back, and be counted as lost.
    for (from, to) in [(&a, &b), (&b, &a)] {
        from.knows_way_to(to, "tenantA").await;
    }
    (global, a, b)
}

/// Gives a broker the bundle that was signed for it last.
fn hand_over(fabric: &Fabric, node: &str) {
    let dir = fabric.node_dir(node);
    let next = dir.join("copy.next");
    std::fs::copy(dir.join("bundle.glocal"), &next).unwrap();
    std::fs::rename(next, dir.join("copy.glocal")).unwrap();
}

fn carries(node: &Local, edge: &str) -> Vec<String> {
    let tenants = node.0.context().shared.tenants();
    let effective = node.edge(edge).edge().effective();
    let mut ids: Vec<_> = effective.iter().filter_map(|key| tenants.by_key(key)).map(|t| t.id().to_string()).collect();
    ids.sort();
    ids
}

async fn carries_on(node: &Local, edge: &str, tenant: &str, expected: bool) {
    let what = format!("{} to carry {tenant} on {edge}: {expected}", node.at().node);
    eventually(&what, || (carries(node, edge).contains(&tenant.to_owned()) == expected).then_some(())).await;
}

const NARROW: [&str; 2] = ["\"*\"", "\"tenantA\", \"cresco-system\", \"guests\""];

#[tokio::test(flavor = "multi_thread")]
async fn a_widening_and_a_narrowing_reach_every_broker_from_one_and_cost_nobody_anything() {
    let fabric = Fabric::shaped(&Shape { edge_tenants: NARROW, ..Shape::default() });
    let (global, a, b) = start(&fabric).await;
    let steady = Steady::start(&fabric, &a, &b).await;
    let ups = || [(&a, EDGE_A), (&b, EDGE_B)].map(|(node, edge)| node.edge(edge).ups.value());
    let before = ups();
    let (bob, berta) = (fabric.client(a.at(), "bob").await, fabric.client(b.at(), "berta").await);
    let mut of_berta = berta.subscribe("orders", None).await.unwrap();
    bob.publish("orders", "too early").await.unwrap();
    bob.flush().await.unwrap();
    // Only region a is handed the newer file; the others hear of it from their neighbours.
    fabric.reshape(&Shape::default());
    hand_over(&fabric, REGION_A);
    for (node, edge) in [(&global, EDGE_B), (&b, EDGE_B)] {
        carries_on(node, edge, "tenantB", true).await;
    }
    a.knows_filters("tenantB", 1).await;
    bob.publish("orders", "in time").await.unwrap();
    assert_eq!(message(&mut of_berta).await.payload(), b"in time");
    assert_eq!(arrived(&mut of_berta), [""; 0]);
    // Narrowed again, told by the global.
    fabric.reshape(&Shape { edge_tenants: NARROW, ..Shape::default() });
    hand_over(&fabric, GLOBAL);
    for (node, edge) in [(&global, EDGE_B), (&b, EDGE_B)] {
        carries_on(node, edge, "tenantB", false).await;
    }
    eventually("region a to hear of it", || (a.0.context().shared.bundle() == (1, 3)).then_some(())).await;
    bob.publish("orders", "too late").await.unwrap();
    bob.flush().await.unwrap();
    steady.end().await;
    berta.flush().await.unwrap();
    assert_eq!(arrived(&mut of_berta), [""; 0]);
    assert_eq!(ups(), before, "no bridge was dropped");
    for node in [&global, &a, &b] {
        assert_eq!(node.metric("glocal_bundle_refused_total", &[]).await, 0, "{}", node.at().node);
        assert_eq!(node.metric("glocal_bundle_version", &[]).await, 3);
        let dropped = node.metric("glocal_dropped_total", &["tenant=\"tenantA\""]).await;
        assert_eq!(dropped, 0, "{}", node.at().node);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_and_tenants_that_the_bundle_takes_away_end_within_five_seconds() {
    let fabric = Fabric::new();
    let (global, a, b) = start(&fabric).await;
    let steady = Steady::start(&fabric, &a, &b).await;
    let bob = fabric.client(a.at(), "bob").await;
    let andy = fabric.client(a.at(), "andy").await;
    let mut of_bob = bob.subscribe("x", None).await.unwrap();
    // Andy is revoked and tenantB leaves the fabric.
    let before = glocal_core::time::UnixTime(glocal_fabric::apply::now().0 + 3600);
    fabric.edit_plan(|text| {
        let text = text.replace("tenants = [\"*\"]", "tenants = [\"tenantA\", \"cresco-system\"]");
        let mut out = String::new();
        for block in text.split("\n[[") {
            if !(block.contains("\"tenantB\"") && (block.starts_with("tenant]]") || block.starts_with("agent]]"))) {
                out += if out.is_empty() { "" } else { "\n[[" };
                out += block;
            }
        }
        out + &format!(
            "\n[[revocation]]\ntenant = \"tenantA\"\nregion = \"region-a\"\nagent = \"andy\"\nbefore = \"{}\"\n",
            glocal_fabric::inspect::date(before)
        )
    });
    let since = Instant::now();
    hand_over(&fabric, REGION_A);
    let sessions = || a.0.context().counters.sessions.value();
    eventually("andy and bob to be gone, and alice to stay", || (sessions() == 1).then_some(())).await;
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    assert!(fabric.try_client(a.at(), glocal_client::Scheme::Tls, Some(&fabric.agent("andy"))).await.is_err());
    let tenants = a.0.context().shared.tenants();
    assert!(tenants.by_id("tenantB").is_none());
    eventually("its table to be empty", || (tenants.ever("tenantB").unwrap().table().filters() == 0).then_some(()))
        .await;
    carries_on(&global, EDGE_A, "tenantB", false).await;
    assert!(of_bob.try_next().is_none());
    drop(andy);
    steady.end().await;
}

/// Case RB-47, without traffic.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_newer_or_not_right_is_refused_counted_and_changes_nothing() {
    let fabric = Fabric::new();
    let (global, a, _b) = start(&fabric).await;
    let dir = fabric.node_dir(GLOBAL);
    let first = std::fs::read(dir.join("bundle.glocal")).unwrap();
    let twin = fabric.fork();
    twin.edit_plan(|text| text + "\n[[tenant]]\nid = \"more\"\nregions = []\n");
    fabric.reshape(&Shape { edge_tenants: NARROW, ..Shape::default() });
    let second = std::fs::read(dir.join("bundle.glocal")).unwrap();
    let context = global.0.context();
    let put = |bytes: &[u8]| std::fs::write(dir.join("copy.glocal"), bytes).unwrap();
    put(&second);
    let report = context.reloader.reload(context).await;
    assert_eq!(report.bundle, (1, 2), "{report:?}");
    // Older: the file merely lags behind.
    put(&first);
    let report = context.reloader.reload(context).await;
    assert_eq!(report.bundle, (1, 2));
    // Changed in one bit, cut short, and not a bundle at all.
    let mut changed = second.clone();
    let middle = changed.len() / 2;
    changed[middle] ^= 1;
    for (bytes, code) in [(&changed[..], ""), (&second[..second.len() - 1], "malformed"), (b"nothing", "malformed")] {
        put(bytes);
        let report = context.reloader.reload(context).await;
        assert_eq!(report.bundle, (1, 2));
        assert!(report.refused.iter().any(|line| line.contains(code)), "{report:?}");
    }
    // Signed twice as one version: the first is kept, and somebody is told.
    put(&std::fs::read(twin.node_dir(GLOBAL).join("bundle.glocal")).unwrap());
    let report = context.reloader.reload(context).await;
    assert!(report.refused.iter().any(|line| line.contains("equivocation")), "{report:?}");
    assert_eq!(global.metric("glocal_bundle_alarms_total", &[]).await, 1);
    assert!(!carries(&global, EDGE_B).contains(&"tenantB".to_owned()), "the first is kept");
    // A peer that hears of it takes none of it either.
    eventually("region a to follow", || (a.0.context().shared.bundle() == (1, 2)).then_some(())).await;
    // Nothing new, fifty times: nothing happens at all.
    put(&second);
    let ups = global.edge(EDGE_A).ups.value();
    for _ in 0..50 {
        let report = context.reloader.reload(context).await;
        assert!(report.changed.is_empty() && report.refused.is_empty(), "{report:?}");
    }
    assert_eq!(global.edge(EDGE_A).ups.value(), ups);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_uses_what_was_heard_and_not_the_older_file() {
    let fabric = Fabric::new();
    let (global, a, _b) = start(&fabric).await;
    fabric.reshape(&Shape { edge_tenants: NARROW, ..Shape::default() });
    hand_over(&fabric, GLOBAL);
    eventually("region a to hear", || (a.0.context().shared.bundle() == (1, 2)).then_some(())).await;
    a.0.leave().await;
    let a = Local::start(&fabric, REGION_A).await;
    assert_eq!(a.0.context().shared.bundle(), (1, 2));
    a.up(EDGE_A).await;
    drop(global);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_is_taken_as_a_whole_or_not_at_all() {
    let fabric = Fabric::new();
    let (global, a, _b) = start(&fabric).await;
    let context = a.0.context();
    let file = fabric.config(REGION_A);
    let text = std::fs::read_to_string(&file).unwrap();
    let narrow = text.replace("tenants = [\"*\"]", "tenants = [\"tenantA\"]");
    // A key that needs a restart: named, and nothing else is taken.
    std::fs::write(&file, narrow.replace("state_dir = \"state\"", "state_dir = \"other\"")).unwrap();
    let report = context.reloader.reload(context).await;
    assert_eq!(report.restart, ["state_dir"]);
    assert!(report.changed.is_empty() && carries(&a, EDGE_A).contains(&"tenantB".to_owned()), "{report:?}");
    // Two mistakes: both are told, and nothing is taken.
    std::fs::write(&file, narrow.clone() + "\n[[edges]]\nname = \"x\"\nnosuch = 1\n").unwrap();
    let report = context.reloader.reload(context).await;
    assert!(report.refused.len() >= 2 && report.changed.is_empty(), "{report:?}");
    assert!(carries(&a, EDGE_A).contains(&"tenantB".to_owned()));
    // Narrowed, without dropping the bridge, at both ends.
    let ups = a.edge(EDGE_A).ups.value();
    std::fs::write(&file, &narrow).unwrap();
    let report = context.reloader.reload(context).await;
    assert_eq!(report.changed, [format!("edge '{EDGE_A}' changed")]);
    carries_on(&a, EDGE_A, "tenantB", false).await;
    carries_on(&global, EDGE_A, "tenantB", false).await;
    // Widened by the file's watcher alone.
    std::fs::write(&file, &text).unwrap();
    carries_on(&a, EDGE_A, "tenantB", true).await;
    carries_on(&global, EDGE_A, "tenantB", true).await;
    assert_eq!(a.edge(EDGE_A).ups.value(), ups);
    // The edge goes, and comes back.
    let without = text.split("\n[[edges]]").next().unwrap().to_owned();
    std::fs::write(&file, &without).unwrap();
    let report = context.reloader.reload(context).await;
    assert_eq!(report.changed, [format!("edge '{EDGE_A}' removed")]);
    eventually("the bridge to go", || (!global.edge(EDGE_A).edge().is_up()).then_some(())).await;
    assert!(context.edges.list().is_empty());
    std::fs::write(&file, &text).unwrap();
    context.reloader.reload(context).await;
    global.up(EDGE_A).await;
    a.up(EDGE_A).await;
}

/// A broker that a newer bundle has brought speaks for its edge with a key that the trust in force admits, not that of the
/// start: whoever was there before believes it without a restart.
#[tokio::test(flavor = "multi_thread")]
async fn the_edges_of_a_broker_that_came_later_are_believed_by_those_who_were_there() {
    let fabric = Fabric::new();
    let mut whole = String::new();
    fabric.edit_plan(|text| {
        whole.clone_from(&text);
        let later = |block: &&str| {
            (block.starts_with("[[node]]") || block.starts_with("[[edge]]")) && block.contains("broker-b")
        };
        text.split("\n\n").filter(|block| !later(block)).collect::<Vec<_>>().join("\n\n")
    });
    let global = Local::start(&fabric, GLOBAL).await;
    fabric.point(REGION_A, global.at().bridge);
    let a = Local::start(&fabric, REGION_A).await;
    a.up(EDGE_A).await;
    fabric.edit_plan(|_| whole);
    fabric.point(REGION_B, global.at().bridge);
    for node in [&global, &a] {
        // The edge is configured in the same breath as the bundle that has it: the first reload takes the bundle.
        let context = node.0.context();
        context.reloader.reload(context).await;
        let report = context.reloader.reload(context).await;
        assert!(report.is_whole(), "{report:?}");
    }
    let b = Local::start(&fabric, REGION_B).await;
    b.up(EDGE_B).await;
    let deadline = Instant::now() + crate::support::PATIENCE;
    loop {
        let known = a.0.context().control.inspect().await.edges;
        if known.iter().any(|edge| edge.name == EDGE_B && edge.cost.is_some()) {
            break;
        }
        assert!(Instant::now() < deadline, "region a does not believe in the edge: {known:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
