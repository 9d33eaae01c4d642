//! What tenants do all day, shown across the mesh: nothing of it reaches another tenant.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use glocal_client::{Denied, Message, PublishError, RequestError, SubscribeError, Subscription};
use glocal_core::name::Class;

use super::cast::{Cast, Player, next};
use super::mesh::{Mesh, PATIENCE, class_sum, list};
use super::plan::{ADMIN, ALICE, AMOS, ANNA, Agent, BERTA, BOB, CAROL, CHRIS, CLEO, GLOBAL, REGION_B, SUPERUSER};
use super::story::{Story, short};

/// Messages sent to the queue group.
const JOBS: usize = 40;

/// Tells it all.
pub(super) async fn tell(story: &mut Story, mesh: &Mesh, cast: &Cast) -> anyhow::Result<()> {
    story.section("Who is who: the broker reads it from the certificate, whatever a client says")?;
    for player in cast.players() {
        let who = whoami(player);
        story.tell(&format!("{} → whoami", player.name()), &who)?;
    }
    story.section("One name, two tenants: agent → region-a → global → region-b → agent, and nobody else")?;
    for (from, to, friends) in
        [(ALICE, ANNA, [(BOB, BERTA), (BERTA, BOB)]), (BOB, BERTA, [(ALICE, AMOS), (ANNA, AMOS)])]
    {
        for class in Class::ALL {
            let what = format!("{} {} → 'demo.hello' [{}]", from.tenant, from.address(), class.as_str());
            story.tell(&what, &hello(cast, from, to, class).await)?;
        }
        for (other, marked_by) in friends {
            let what = format!("{} {} on 'demo.>', the same name", other.tenant, other.address());
            story
                .tell(&what, &cast.heard_nothing(other, marked_by).await.map(|()| "heard nothing of it".to_owned()))?;
        }
    }
    story.section("More of what a mesh is for")?;
    request_reply(story, cast).await?;
    story.tell(
        &format!("tenantA {} → {JOBS} × 'jobs.n' to queue group 'workers'", AMOS.address()),
        &queue(cast).await,
    )?;
    story.tell(&format!("superuser {} on 'T.*.>'", ADMIN.address()), &superuser(cast).await)?;
    edge_filter(story, mesh, cast).await?;
    story.section("At the door of another tenant: refused, logged, and the same whether it exists or not")?;
    doors(story, mesh, cast).await
}

fn whoami(player: &Player) -> anyhow::Result<String> {
    let (session, agent) = (player.client.whoami(), player.agent);
    let role = if agent.tenant == SUPERUSER { "SUPERUSER" } else { "TENANT" };
    let told = (session.tenant.as_str(), session.role.as_str(), session.region.as_deref(), session.agent.as_deref());
    let expected = (agent.tenant, role, Some(agent.region), Some(agent.name));
    anyhow::ensure!(told == expected, "{} takes it for {told:?}", session.node);
    let scheme = session.address.to_string();
    let carrier = if scheme.starts_with("quic") { "QUIC" } else { "TLS/TCP" };
    Ok(format!(
        "tenant {}, role {}, uid {}, by {} over {carrier}",
        session.tenant, session.role, session.uid, session.node
    ))
}

/// Sends one message and says how it arrived.
async fn hello(cast: &Cast, from: Agent, to: Agent, class: Class) -> anyhow::Result<String> {
    let text = format!("hello {}", cast.number());
    let sent = Instant::now();
    let (sending, hearing) = (cast.player(from)?.send(class, "demo.hello", &text), cast.player(to)?.hear());
    let (acknowledged, message) = tokio::join!(sending, async { hearing.await.map(|m| (m, sent.elapsed())) });
    let (acknowledged, (message, took)) = (acknowledged?, message?);
    expect(&message, "demo.hello", &text, from)?;
    anyhow::ensure!(message.class() == class, "it arrived as {}", message.class().as_str());
    let acknowledged = acknowledged.map_or("", |_| ", acknowledged");
    Ok(format!("{} got it after {}{acknowledged}", to.address(), short(took)))
}

/// Checks what a message says and who it says has sent it.
pub(super) fn expect(message: &Message, subject: &str, text: &str, from: Agent) -> anyhow::Result<()> {
    let sender = format!("{}/{}", from.region, from.name);
    anyhow::ensure!(
        message.subject() == subject && message.payload() == text.as_bytes(),
        "'{}' with {} bytes arrived instead of '{subject}'",
        message.subject(),
        message.payload().len()
    );
    anyhow::ensure!(message.sender() == Some(&sender), "its sender is {:?}, not {sender}", message.sender());
    Ok(())
}

async fn request_reply(story: &mut Story, cast: &Cast) -> anyhow::Result<()> {
    let (alice, anna, bob) = (cast.player(ALICE)?, cast.player(ANNA)?, cast.player(BOB)?);
    let mut service = anna.client.subscribe("svc.time", None).await?;
    cast.reach(alice, anna).await?;
    let answered = async {
        let sent = Instant::now();
        let (reply, answer) = tokio::join!(alice.client.request("svc.time", "what time is it?", PATIENCE), async {
            let request = next(&mut service).await?;
            request.respond("tea time").await.context("the answer was not sent")
        });
        answer?;
        let (reply, took) = (reply?, sent.elapsed());
        anyhow::ensure!(reply.payload() == b"tea time", "another answer came");
        Ok(format!("{} answered after {}, four hops in all", anna.name(), short(took)))
    };
    story.tell(&format!("tenantA {} asks 'svc.time'", alice.name()), &answered.await)?;
    let foreign = match bob.client.request("svc.time", "", PATIENCE).await {
        Err(RequestError::NoResponders(_)) if service.try_next().is_none() => {
            Ok("nobody answers in tenantB, and says so at once".to_owned())
        }
        Err(error) => Err(error.into()),
        Ok(_) => Err(anyhow::anyhow!("tenantA's service has answered")),
    };
    story.tell(&format!("tenantB {} asks 'svc.time'", bob.name()), &foreign)
}

/// Exactly one member of a queue group gets each message, wherever in the mesh it is.
async fn queue(cast: &Cast) -> anyhow::Result<String> {
    let (amos, alice, anna) = (cast.player(AMOS)?, cast.player(ALICE)?, cast.player(ANNA)?);
    let mut in_a = alice.client.subscribe("jobs.*", Some("workers")).await?;
    let mut in_b = anna.client.subscribe("jobs.*", Some("workers")).await?;
    cast.reach(amos, alice).await?;
    cast.reach(amos, anna).await?;
    for job in 0..JOBS {
        let targets = amos.send(Class::Ctrl, &format!("jobs.{job}"), "do it").await?;
        anyhow::ensure!(targets == Some(1), "job {job} went to {targets:?} brokers");
    }
    // A marker in the same lanes comes after every copy.
    cast.heard_nothing(ALICE, AMOS).await?;
    cast.heard_nothing(ANNA, AMOS).await?;
    let take = |subscription: &mut Subscription| {
        std::iter::from_fn(|| subscription.try_next().map(|m| m.subject().to_owned())).collect::<Vec<_>>()
    };
    let (a, b) = (take(&mut in_a), take(&mut in_b));
    let mut all: Vec<&String> = a.iter().chain(&b).collect();
    all.sort();
    all.dedup();
    let (had_a, had_b, distinct) = (a.len(), b.len(), all.len());
    anyhow::ensure!(had_a + had_b == JOBS && distinct == JOBS, "{had_a} + {had_b} copies of {distinct} jobs arrived");
    anyhow::ensure!(had_a > 0 && had_b > 0, "one member did all the work: {had_a} and {had_b}");
    Ok(format!("each done once: {had_a} by {}, {had_b} by {}", alice.name(), anna.name()))
}

async fn superuser(cast: &Cast) -> anyhow::Result<String> {
    let admin = cast.player(ADMIN)?;
    let mut all = admin.client.subscribe("T.*.>", None).await?;
    let mut took = Vec::new();
    for agent in [ALICE, BOB] {
        let (player, seen) = (cast.player(agent)?, format!("seen.{}", cast.number()));
        overheard(player, &mut all, &seen).await?;
        let sent = Instant::now();
        let (wanted, text) = (format!("T.{}.live.seen.me", agent.tenant), "for whoever may look");
        player.send(Class::Live, "seen.me", text).await?;
        loop {
            let message = next(&mut all).await?;
            if message.subject() == wanted {
                expect(&message, &wanted, text, agent)?;
                break;
            }
        }
        took.push(format!("'{wanted}' after {}", short(sent.elapsed())));
    }
    Ok(format!("saw {}", took.join(" and ")))
}

/// Waits until an observer hears what `from` publishes. An observer is no target, so no acknowledgement tells.
async fn overheard(from: &Player, all: &mut Subscription, subject: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let heard = format!("T.{}.ctrl.{subject}", from.agent.tenant);
    while Instant::now() < deadline {
        from.send(Class::Ctrl, subject, "").await?;
        let pause = tokio::time::Instant::now() + Duration::from_millis(50);
        while let Ok(message) = tokio::time::timeout_at(pause, all.next()).await {
            if message.context("the connection has ended")?.subject() == heard {
                return Ok(());
            }
        }
    }
    anyhow::bail!("'{heard}' is not heard after {} s", PATIENCE.as_secs())
}

/// tenantC may cross one edge and not the other.
async fn edge_filter(story: &mut Story, mesh: &Mesh, cast: &Cast) -> anyhow::Result<()> {
    let count = async |node, key| anyhow::Ok(class_sum(&mesh.status(node).await?, Some("tenantC"), key));
    let (in_before, out_before) = (count(GLOBAL, "relayed_in").await?, count(GLOBAL, "relayed_out").await?);
    for class in Class::ALL {
        let what = format!("tenantC {} → 'demo.hello' [{}] over edge-a", CAROL.address(), class.as_str());
        story.tell(&what, &hello(cast, CAROL, CHRIS, class).await)?;
    }
    // What chris has heard, its broker has also relayed wherever else it goes: both happen at once.
    let stopped = async {
        cast.heard_nothing(CLEO, CLEO).await?;
        let came = count(GLOBAL, "relayed_in").await? - in_before;
        let went = count(GLOBAL, "relayed_out").await? - out_before;
        let arrived = count(REGION_B, "relayed_in").await?;
        anyhow::ensure!(
            came >= 4 && (went, arrived) == (0, 0),
            "{came} frames came, {went} went on, {arrived} arrived"
        );
        let edges = list(&mesh.status(GLOBAL).await?, "edges").into_iter();
        let allow = edges.filter(|edge| list(edge, "tenants").iter().any(|tenant| tenant == "tenantC"));
        let names: Vec<_> = allow.filter_map(|edge| edge.get("name")?.as_str().map(str::to_owned)).collect();
        anyhow::ensure!(names == ["edge-a"], "tenantC is allowed on {names:?}");
        Ok(format!("heard nothing: {came} frames came to {GLOBAL}, {went} went on, {arrived} reached {REGION_B}"))
    };
    story.tell(&format!("tenantC {} behind edge-b, which allows A and B only", CLEO.address()), &stopped.await)
}

/// Attempts of ordinary clients at names of other tenants.
async fn doors(story: &mut Story, mesh: &Mesh, cast: &Cast) -> anyhow::Result<()> {
    for (agent, filter, code) in [
        (ALICE, "T.tenantB.>", "cross-tenant"),
        (BERTA, "T.tenantA.live.demo.>", "cross-tenant"),
        (ALICE, "T.*.>", "all-tenants"),
        (ALICE, "T.nosuchtenant.>", "cross-tenant"),
    ] {
        let refused = refused_subscribe(mesh, cast.player(agent)?, filter, code).await;
        story.attack(&format!("{} {} subscribes '{filter}'", agent.tenant, agent.address()), &refused)?;
    }
    for (agent, subject) in [
        (ALICE, "T.tenantB.live.demo.hello"),
        (BERTA, "T.tenantA.ctrl.demo.hello"),
        (ALICE, "T.nosuchtenant.live.demo.hello"),
    ] {
        let refused = async {
            let line = refused_publish(mesh, cast.player(agent)?, subject, "cross-tenant").await;
            and_nobody_heard(cast, line).await
        };
        story.attack(&format!("{} {} publishes '{subject}'", agent.tenant, agent.address()), &refused.await)?;
    }
    Ok(())
}

/// The line of an attempt, if nobody of either tenant has heard of it either.
pub(super) async fn and_nobody_heard(cast: &Cast, line: anyhow::Result<String>) -> anyhow::Result<String> {
    let mut quiet = Ok(());
    for (who, marked_by) in [(BOB, BERTA), (BERTA, BOB), (ALICE, AMOS), (ANNA, AMOS)] {
        quiet = quiet.and(cast.heard_nothing(who, marked_by).await);
    }
    let line = line?;
    quiet.map(|()| line)
}

/// Subscribes what must be refused; returns the line that the broker has logged.
pub(super) async fn refused_subscribe(
    mesh: &Mesh,
    player: &Player,
    filter: &str,
    code: &str,
) -> anyhow::Result<String> {
    match player.client.subscribe(filter, None).await {
        Err(SubscribeError::Denied(denied)) => logged(mesh, player, &denied, code).await,
        Err(error) => Err(error.into()),
        Ok(_) => Err(anyhow::anyhow!("ALLOWED: {} reads '{filter}'", player.name())),
    }
}

/// Publishes what must be refused; returns the line that the broker has logged.
pub(super) async fn refused_publish(mesh: &Mesh, player: &Player, subject: &str, code: &str) -> anyhow::Result<String> {
    let publish = glocal_client::Publish { ack: true, ..glocal_client::Publish::new(subject, "let me in") };
    refused(mesh, player, publish, code).await
}

/// As [`refused_publish`], for a message with more to it.
pub(super) async fn refused(
    mesh: &Mesh,
    player: &Player,
    publish: glocal_client::Publish,
    code: &str,
) -> anyhow::Result<String> {
    let subject = publish.subject.clone();
    match player.client.publish_with(publish).await {
        Err(PublishError::Denied(denied)) => logged(mesh, player, &denied, code).await,
        Err(error) => Err(error.into()),
        Ok(_) => Err(anyhow::anyhow!("ALLOWED: {} writes '{subject}'", player.name())),
    }
}

async fn logged(mesh: &Mesh, player: &Player, denied: &Denied, code: &str) -> anyhow::Result<String> {
    anyhow::ensure!(denied.code == code, "refused as {}, not as {code}", denied.code);
    let (access, uid) = (denied.access.as_str(), player.client.whoami().uid.clone());
    let begins = format!("DENY {access} '{}'", denied.subject);
    let line = mesh.log_line(player.agent.node(), &[&begins, &uid]).await?;
    let (_, reason) = line.rsplit_once(" : ").context("the log line has no reason")?;
    Ok(format!("DENY {access} … : {reason} [{code}]"))
}
