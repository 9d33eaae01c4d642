//! Readers that stop: what waits for them is bounded by their tenant and by the node, and whoever reads notices nothing but
//! that an acknowledged class may wait for them, for five seconds at most. And writers that stop within a message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use glocal_client::{Client, Publish, Subscription};
use glocal_core::count::Drop as DropReason;
use glocal_core::deny::{Access, Deny};
use glocal_core::limits::{MEMORY_STEP_BYTES, SLOW_CONSUMER_MS_MAX};
use glocal_core::memory::MemoryBounds;
use glocal_core::name::Class;
use glocal_wire::control::Control;
use tokio::net::TcpSocket;

use crate::support::fabric::Fabric;
use crate::support::node::{Local, Mesh, Process, REGION_A, metric};
use crate::support::peer::{self, Heard, NATIVE, Peer, tls_of};
use crate::support::{eventually, eventually_blocking, message, resident, soon};

const MIB: u64 = 1024 * 1024;
/// Bytes of a large message.
const LARGE: usize = 1024 * 1024;

/// A session that subscribes and then reads nothing, over a connection that holds little.
async fn stopped(fabric: &Fabric, at: std::net::SocketAddr, agent: &str, filter: &str) -> Peer {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let tls = tls_of(fabric, Some(&fabric.agent(agent)), NATIVE);
    let mut peer = Peer::over(socket.connect(at).await.unwrap(), tls).await.unwrap();
    peer.hello().await.unwrap();
    assert!(matches!(peer.subscribe(1, filter).await, Control::Subscribed(_)));
    peer
}

async fn publish(client: &Client, class: Class, name: &str, payload: Vec<u8>) {
    let ack = class.is_reliable();
    let publish = Publish { class: Some(class), ack, ..Publish::new(name, payload) };
    soon("a publish", client.publish_with(publish)).await.unwrap();
}

/// Publishes in turns in `live` and `tele` until told to stop, and reads each; how many, and the longest that one took.
async fn steady(
    client: Client,
    mut reader: Subscription,
    name: &'static str,
    stop: Arc<AtomicBool>,
) -> (u32, Duration) {
    let (mut count, mut longest) = (0u32, Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let class = if count % 2 == 0 { Class::Live } else { Class::Tele };
        let began = Instant::now();
        publish(&client, class, name, count.to_le_bytes().to_vec()).await;
        assert_eq!(message(&mut reader).await.payload(), count.to_le_bytes(), "{name}");
        longest = longest.max(began.elapsed());
        count += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (count, longest)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_stops_holds_its_tenants_ctrl_for_five_seconds_and_nobodys_live_or_tele() {
    const COUNT: u32 = 320;
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    let (alice, andy) = (fabric.client(node.at(), "alice").await, fabric.client(node.at(), "andy").await);
    let (other, bob) = (fabric.client(node.at(), "alice").await, fabric.client(node.at(), "bob").await);
    let mut told = andy.subscribe("T.tenantA.ctrl.advisory.>", None).await.unwrap();
    let mut reader = andy.subscribe("work.x", None).await.unwrap();
    // The one that stops wants everything that its tenant publishes here.
    let stuck = stopped(&fabric, node.at().native_tcp, "andy", "work.*").await;
    let stop = Arc::new(AtomicBool::new(false));
    let of_own = other.subscribe("work.steady", None).await.unwrap();
    let of_bob = bob.subscribe("work.steady", None).await.unwrap();
    let beside = [
        tokio::spawn(steady(other.clone(), of_own, "work.steady", Arc::clone(&stop))),
        tokio::spawn(steady(bob.clone(), of_bob, "work.steady", Arc::clone(&stop))),
    ];
    let reads = tokio::spawn(async move {
        for number in 0..COUNT {
            assert_eq!(message(&mut reader).await.payload()[..4], number.to_le_bytes());
        }
    });
    // 20 MiB, more than twice what a lane holds.
    let (mut longest, mut held) = (Duration::ZERO, 0);
    for number in 0..COUNT {
        let began = Instant::now();
        publish(&alice, Class::Ctrl, "work.x", [&number.to_le_bytes()[..], &[1; 64 * 1024]].concat()).await;
        longest = longest.max(began.elapsed());
        held += u32::from(began.elapsed() > Duration::from_secs(1));
    }
    soon("every message", reads).await.unwrap();
    let patience = Duration::from_millis(SLOW_CONSUMER_MS_MAX);
    assert!(longest > patience.mul_f32(0.8), "nobody waited: {longest:?}");
    assert!(longest < patience + Duration::from_secs(1), "{longest:?}");
    assert_eq!(held, 1, "once it is known that it does not read, nobody waits for it");
    // It is told of what it has lost, and then cut.
    let mut seen = Vec::new();
    while !seen.iter().any(|subject: &String| subject.contains("advisory.disconnect")) {
        let advisory = soon("an advisory", told.next()).await.unwrap();
        seen.push(advisory.subject().to_owned());
    }
    assert!(seen.iter().any(|subject| subject.contains("advisory.slow-consumer")), "{seen:?}");
    stop.store(true, Ordering::Relaxed);
    for task in beside {
        let (count, longest) = task.await.unwrap();
        println!("{count} beside it, the slowest took {longest:?}");
        assert!(count > 100 && longest < Duration::from_secs(1), "{count} messages, {longest:?}");
    }
    let tenant = node.0.context().shared.tenant("tenantA").unwrap();
    assert_eq!(tenant.counters().denials(Access::Write, Deny::Congested), 0);
    eventually("all memory to be given back", || (tenant.memory().used() == 0).then_some(())).await;
    assert_eq!(tenant.counters().class(Class::Live).drops(DropReason::Memory), 0);
    assert_eq!(node.metric("glocal_sessions", &[]).await, 4);
    drop(stuck);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_most_gives_way_where_the_node_has_little() {
    const NODE: usize = 16 * 1024 * 1024;
    let fabric = Fabric::new();
    let node = Local::start(&fabric, REGION_A).await;
    let context = node.0.context();
    let pool = Arc::clone(context.shared.tenants().memory());
    assert!(pool.bounds().node_bytes > NODE && pool.bounds().tenant_bytes == pool.bounds().node_bytes / 2);
    let (alice, bob) = (fabric.client(node.at(), "alice").await, fabric.client(node.at(), "bob").await);
    // The bounds change while sessions are connected.
    let file = fabric.config(REGION_A);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("memory_bytes = {NODE}\ntenant_memory_bytes = {NODE}\n{text}")).unwrap();
    let report = context.reloader.reload(context).await;
    assert_eq!(report.changed, ["memory_bytes changed", "tenant_memory_bytes changed"]);
    assert_eq!(pool.bounds(), MemoryBounds { node_bytes: NODE, tenant_bytes: NODE });
    let mut peers = Vec::new();
    for agent in ["alice", "bob"] {
        for _ in 0..10 {
            peers.push(stopped(&fabric, node.at().native_tcp, agent, "flood").await);
        }
    }
    let used = |tenant: &str| context.shared.tenant(tenant).unwrap().memory().used();
    let most = NODE + (64 + 20 * 16) * 1024;
    // One tenant takes nearly all there is.
    let deadline = Instant::now() + Duration::from_secs(20);
    while used("tenantA") < NODE / 4 * 3 {
        for _ in 0..50 {
            publish(&alice, Class::Tele, "flood", vec![1; 2048]).await;
        }
        alice.flush().await.unwrap();
        assert!(pool.used() <= most, "{}", pool.used());
        assert!(Instant::now() < deadline, "{}", used("tenantA"));
    }
    // Another one gets its part all the same, since the first gives up what it has above its own.
    let mut reader = bob.subscribe("flood", None).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while used("tenantB") < NODE / 8 * 3 || used("tenantA") > NODE / 8 * 5 {
        publish(&bob, Class::Live, "flood", vec![2; 2048]).await;
        assert_eq!(message(&mut reader).await.payload().len(), 2048, "whoever reads gets everything");
        assert!(pool.used() <= most, "{}", pool.used());
        assert!(Instant::now() < deadline, "{} and {}", used("tenantA"), used("tenantB"));
    }
    println!("{} and {} KiB", used("tenantA") / 1024, used("tenantB") / 1024);
    let drops =
        |tenant: &str, class| context.shared.tenant(tenant).unwrap().counters().class(class).drops(DropReason::Memory);
    assert!(drops("tenantA", Class::Tele) > 0);
    assert_eq!(node.metric("glocal_sessions", &[]).await, 22);
    // A newer bundle leaves the first one less: it gives up what is above that, and the other one keeps its own.
    let before = used("tenantB");
    fabric.edit_plan(|text| text.replacen("id = \"tenantA\"\n", "id = \"tenantA\"\nmemory_bytes = \"2 MiB\"\n", 1));
    eventually("the first one to give way", || (used("tenantA") <= 2 << 20).then_some(())).await;
    assert!(used("tenantB") >= before, "{} of {before}", used("tenantB"));
    assert_eq!(node.metric("glocal_tenant_memory_bound_bytes", &["tenantA"]).await, 2 << 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_that_do_not_read_hold_what_their_tenant_may() {
    const STOPPED: usize = 200;
    const TENANT: u64 = 16 * MIB;
    let fabric = Fabric::new();
    let define = [("memory_bytes", "67108864"), ("tenant_memory_bytes", "16777216")];
    let node = Process::start_with(&fabric, REGION_A, &define, &[]);
    let ops = node.at.ops.unwrap();
    let (alice, andy) = (fabric.client(&node.at, "alice").await, fabric.client(&node.at, "andy").await);
    let bob = fabric.client(&node.at, "bob").await;
    let mut reader = andy.subscribe("flood", None).await.unwrap();
    let mut peers = Vec::new();
    for _ in 0..STOPPED {
        peers.push(stopped(&fabric, node.at.native_tcp, "andy", "flood").await);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let of_bob = bob.subscribe("steady", None).await.unwrap();
    let beside = tokio::spawn(steady(bob.clone(), of_bob, "steady", Arc::clone(&stop)));
    let before = resident(node.child.id());
    let read =
        |name: &'static str, labels: &'static [&'static str]| tokio::task::block_in_place(|| metric(ops, name, labels));
    // For each of those that stopped 4 MiB, which is half of what its lanes hold: 800 MiB for all.
    let (mut most, mut grown) = (0, 0);
    for number in 0..2_048u32 {
        let class = if number % 2 == 0 { Class::Live } else { Class::Tele };
        publish(&alice, class, "flood", [&number.to_le_bytes()[..], &[1; 2044]].concat()).await;
        assert_eq!(message(&mut reader).await.payload()[..4], number.to_le_bytes(), "whoever reads gets everything");
        if number % 64 == 63 {
            most = most.max(read("glocal_tenant_memory_used_bytes", &["tenantA"]));
            grown = grown.max(resident(node.child.id()).saturating_sub(before));
        }
    }
    println!("{} KiB charged, {} MiB resident", most / 1024, grown / MIB);
    assert!(most > TENANT / 2, "{most} bytes are not much");
    // A session may begin a step when it is at its part.
    assert!(most <= TENANT + (STOPPED * MEMORY_STEP_BYTES) as u64, "{most} bytes");
    assert!(grown < 96 * MIB, "{} MiB more", grown / MIB);
    for labels in [&["tenantA", "class=\"live\"", "memory"], &["tenantA", "class=\"tele\"", "memory"]] {
        assert!(read("glocal_dropped_total", labels) > 10_000, "{labels:?}");
    }
    assert_eq!(read("glocal_dropped_total", &["tenantA", "lane-full"]), 0);
    assert_eq!(read("glocal_dropped_total", &["tenantB"]), 0);
    // Who loses only what may be lost is not cut, and what is acknowledged waits for it no longer than five seconds.
    assert_eq!(read("glocal_sessions", &[]), STOPPED as u64 + 3);
    let began = Instant::now();
    for number in 0..64u32 {
        publish(&alice, Class::Ctrl, "flood", [&number.to_le_bytes()[..], &[1; 2044]].concat()).await;
        assert_eq!(message(&mut reader).await.payload()[..4], number.to_le_bytes());
    }
    let (took, patience) = (began.elapsed(), Duration::from_millis(SLOW_CONSUMER_MS_MAX));
    println!("ctrl took {took:?}");
    assert!(took > patience.mul_f32(0.8) && took < patience + Duration::from_secs(2), "{took:?}");
    tokio::task::block_in_place(|| {
        eventually_blocking("those that read nothing of it to be cut", || {
            (metric(ops, "glocal_sessions", &[]) == 3).then_some(())
        });
    });
    assert_eq!(read("glocal_memory_used_bytes", &[]), 0);
    stop.store(true, Ordering::Relaxed);
    let (count, longest) = beside.await.unwrap();
    println!("{count} beside it, the slowest took {longest:?}");
    assert!(count > 100 && longest < Duration::from_secs(1), "{count} messages, {longest:?}");
    assert_eq!(andy.statistics().reconnects + alice.statistics().reconnects + bob.statistics().reconnects, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_floods_a_slow_edge_in_every_class_is_held_to_its_memory_and_another_notices_nothing() {
    const NODE: usize = 16 * 1024 * 1024;
    let fabric = Fabric::new();
    let file = fabric.config(REGION_A);
    let text = std::fs::read_to_string(&file).unwrap();
    let slow = text.replace("peer = \"global/broker-g\"", "peer = \"global/broker-g\"\nrate = \"2 Mbit/s\"");
    std::fs::write(&file, format!("memory_bytes = {NODE}\n{slow}")).unwrap();
    let mesh = Mesh::start(&fabric).await;
    let context = mesh.a.0.context();
    let pool = Arc::clone(context.shared.tenants().memory());
    assert_eq!(pool.bounds(), MemoryBounds { node_bytes: NODE, tenant_bytes: NODE / 2 });
    let anna = fabric.client(mesh.b.at(), "anna").await;
    let _of_anna = anna.subscribe("flood", None).await.unwrap();
    let (bob, berta) = (fabric.client(mesh.a.at(), "bob").await, fabric.client(mesh.b.at(), "berta").await);
    let of_berta = berta.subscribe("steady", None).await.unwrap();
    mesh.a.knows_filters("tenantA", 1).await;
    mesh.a.knows_filters("tenantB", 1).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut floods = Vec::new();
    for class in Class::ALL {
        let (client, stop) = (fabric.client(mesh.a.at(), "alice").await, Arc::clone(&stop));
        floods.push(tokio::spawn(async move {
            let mut count = 0u32;
            while !stop.load(Ordering::Relaxed) {
                let publish = Publish { class: Some(class), ..Publish::new("flood", vec![1; 8 * 1024]) };
                if tokio::time::timeout(Duration::from_millis(100), client.publish_with(publish)).await.is_ok() {
                    count += 1;
                }
                tokio::time::sleep(Duration::from_micros(500)).await;
            }
            (class, count)
        }));
    }
    let beside = tokio::spawn(steady(bob, of_berta, "steady", Arc::clone(&stop)));
    let used = |tenant: &str| context.shared.tenant(tenant).unwrap().memory().used();
    let (mut most, mut most_of_a) = (0, 0);
    let until = Instant::now() + Duration::from_secs(12);
    while Instant::now() < until {
        most = most.max(pool.used());
        most_of_a = most_of_a.max(used("tenantA"));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let (count, longest) = beside.await.unwrap();
    println!("{} KiB in all, {} KiB of the flood; {count} beside it, {longest:?}", most / 1024, most_of_a / 1024);
    for flood in floods {
        let (class, count) = flood.await.unwrap();
        println!("{class}: {count} published");
    }
    assert!(most_of_a > NODE / 4, "{most_of_a} bytes are not much");
    // A step and a message for each of: the edge, ctrl and bulk.
    let slack = 3 * (MEMORY_STEP_BYTES + 16 * 1024);
    assert!(most_of_a <= NODE / 2 + slack, "{most_of_a}");
    assert!(most <= NODE, "{most}");
    assert!(count > 100 && longest < Duration::from_secs(1), "{count} messages, {longest:?}");
    let drops =
        |tenant: &str, class| context.shared.tenant(tenant).unwrap().counters().class(class).drops(DropReason::Memory);
    for class in [Class::Live, Class::Tele] {
        assert!(drops("tenantA", class) > 0, "{class}");
        assert_eq!(drops("tenantB", class), 0, "{class}");
    }
    let labels = ["edge=\"global-region-a\"", "tenant=\"tenantA\"", "class=\"tele\"", "reason=\"memory\""];
    assert!(mesh.a.metric("glocal_edge_dropped_total", &labels).await > 0);
}

/// Sends all of a message of 1 MiB but its last byte, and waits for the broker to take it; what is left to send, or why it
/// came to nothing.
async fn begin(fabric: Arc<Fabric>, at: std::net::SocketAddr) -> (Peer, Option<String>) {
    let tls = tls_of(&fabric, Some(&fabric.agent("alice")), NATIVE);
    let mut peer = Peer::tcp(at, tls).await.unwrap();
    peer.hello().await.unwrap();
    let whole = peer::publish(Class::Tele, b"large", b"", &vec![7; LARGE]);
    let sent = peer.send_bytes(&whole[..whole.len() - 1]).await;
    let refused = match tokio::time::timeout(Duration::from_secs(8), peer.next()).await {
        Err(_) if sent.is_ok() => None,
        Ok(Ok(Some(Heard::Control(Control::Goodbye(goodbye))))) => Some(goodbye.code),
        other => panic!("{other:?} after {sent:?}"),
    };
    (peer, refused)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_that_stop_within_a_message_hold_half_of_what_their_tenant_may_and_whoever_has_begun_finishes() {
    const WRITERS: usize = 200;
    const TENANT: u64 = 16 * MIB;
    let fabric = Arc::new(Fabric::new());
    let define = [("memory_bytes", "67108864"), ("tenant_memory_bytes", "16777216")];
    let node = Process::start_with(&fabric, REGION_A, &define, &[]);
    let ops = node.at.ops.unwrap();
    let read =
        |name: &'static str, labels: &'static [&'static str]| tokio::task::block_in_place(|| metric(ops, name, labels));
    let (andy, bob) = (fabric.client(&node.at, "andy").await, fabric.client(&node.at, "bob").await);
    let mut large = andy.subscribe("large", None).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (of_andy, of_bob) =
        (andy.subscribe("steady", None).await.unwrap(), bob.subscribe("steady", None).await.unwrap());
    let beside = [
        tokio::spawn(steady(andy.clone(), of_andy, "steady", Arc::clone(&stop))),
        tokio::spawn(steady(bob.clone(), of_bob, "steady", Arc::clone(&stop))),
    ];
    let before = resident(node.child.id());
    let writers: Vec<_> = (0..WRITERS).map(|_| tokio::spawn(begin(Arc::clone(&fabric), node.at.native_tcp))).collect();
    let (mut most, mut grown) = (0, 0);
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        most = most.max(read("glocal_tenant_memory_used_bytes", &["tenantA"]));
        grown = grown.max(resident(node.child.id()).saturating_sub(before));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("{} KiB charged, {} MiB resident", most / 1024, grown / MIB);
    assert!(most > TENANT / 4, "{most} bytes are not much");
    // Half of it is for what is read; the rest is what goes beside it.
    assert!(most <= TENANT / 2 + MIB, "{most} bytes");
    assert!(grown < 64 * MIB, "{} MiB more", grown / MIB);
    // Those for whom there was no room are told so, and counted; the others go on where they are.
    let (mut begun, mut refused) = (Vec::new(), 0);
    for writer in writers {
        match writer.await.unwrap() {
            (peer, None) => begun.push(peer),
            (_, Some(code)) => {
                assert_eq!(code, "memory");
                refused += 1;
            }
        }
    }
    assert!((4..=8).contains(&begun.len()), "{} have begun", begun.len());
    assert_eq!(begun.len() + refused, WRITERS);
    let labels = &["tenantA", "access=\"write\"", "reason=\"memory\""];
    assert_eq!(read("glocal_denied_total", labels), refused as u64);
    for peer in &mut begun {
        peer.send_bytes(&[7]).await.unwrap();
        assert_eq!(message(&mut large).await.payload(), vec![7; LARGE]);
    }
    tokio::task::block_in_place(|| {
        eventually_blocking("all memory to be given back", || {
            (metric(ops, "glocal_memory_used_bytes", &[]) == 0).then_some(())
        });
    });
    stop.store(true, Ordering::Relaxed);
    for task in beside {
        let (count, longest) = task.await.unwrap();
        println!("{count} beside it, the slowest took {longest:?}");
        assert!(count > 100 && longest < Duration::from_secs(1), "{count} messages, {longest:?}");
    }
    assert_eq!(andy.statistics().reconnects + bob.statistics().reconnects, 0);
}
