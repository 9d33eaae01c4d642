//! Scenarios about connections: what a server says of itself, who gets in, what may be done, and how connections end.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use async_nats::{ConnectOptions, Event, Request, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use serde_json::json;

use crate::harness::{Link, Scenario, rest, take, texts};
use crate::messages::respond;
use crate::{Body, Outcome, scenarios};

const LONG: Duration = Duration::from_secs(5);

pub(crate) const SCENARIOS: &[(&str, Body)] = scenarios![
    info,
    permissions,
    certificates,
    credentials,
    handshake_orders,
    slow_consumer,
    close,
    inbox_prefix,
    pings,
];

/// These need somebody who does things to the server.
pub(crate) const WITH_HARNESS: &[(&str, Body)] = scenarios![reconnect, lame_duck];

async fn info(s: &mut Scenario) -> Outcome {
    let client = s.connect().await?;
    let told = client.server_info();
    s.expect("headers", told.headers, true);
    s.expect("tls_required", told.tls_required, true);
    s.expect("proto", told.proto, 1);
    let numbers: Vec<&str> = told.version.split('-').next().unwrap_or_default().split('.').collect();
    s.expect("semver", numbers.len() == 3 && numbers.iter().all(|n| n.parse::<u32>().is_ok()), true);
    s.expect("nonce", !told.nonce.is_empty(), false);
    s.expect("jetstream", told.jetstream, false);
    s.expect("client_id", told.client_id > 0, true);
    s.note("info", format!("{told:?}"));
    Ok(())
}

async fn permissions(s: &mut Scenario) -> Outcome {
    let client = s.connect().await?;
    let denied = s.options.denied.clone();
    let mut own = client.subscribe(s.subject("p")).await?;
    client.publish(denied.clone(), "x".into()).await?;
    client.sync().await?;
    let publish = format!("Permissions Violation for Publish to \"{denied}\"");
    let starts = |texts: &[String], wanted: &str| texts.iter().map(|t| t.starts_with(wanted)).collect::<Vec<_>>();
    s.expect("publish", starts(&client.errors(), &publish), vec![true]);
    let mut refused = client.subscribe(denied.clone()).await?;
    client.sync().await?;
    let subscription = format!("Permissions Violation for Subscription to \"{denied}\"");
    s.expect("subscribe", starts(&client.errors()[1..], &subscription), vec![true]);
    let _queued = client.queue_subscribe(denied.clone(), "workers".into()).await?;
    client.sync().await?;
    let queue = format!("{subscription} using queue \"workers\"");
    s.expect("subscribe with queue", starts(&client.errors()[2..], &queue), vec![true]);
    s.fact("subscription gets", rest(&client, &mut refused).await?.len());
    let short = Request::new().timeout(Some(Duration::from_millis(300)));
    match client.send_request(denied, short).await {
        Ok(_) => s.expect("request", "answered", "refused"),
        Err(error) => s.fact("request", format!("{:?}", error.kind())),
    }
    client.publish(s.subject("p"), "still here".into()).await?;
    s.expect("open", texts(&take(&mut own, 1, LONG).await), vec!["still here"]);
    s.expect("disconnected", client.events().iter().any(|e| matches!(e, Event::Disconnected | Event::Closed)), false);
    s.note("texts", client.errors());
    Ok(())
}

/// Whether a connection does not come to pass. TLS 1.3 lets a client finish before the server has looked at its
/// certificate: it must not get an answer.
async fn refused(
    s: &mut Scenario,
    certificate: Option<&(PathBuf, PathBuf)>,
    change: impl FnOnce(ConnectOptions) -> ConnectOptions,
) -> bool {
    let began = Instant::now();
    let error = match tokio::time::timeout(Duration::from_secs(6), s.connect_with(certificate, change)).await {
        Ok(Ok(client)) => match client.sync().await {
            Ok(()) => return false,
            Err(error) => error.to_string(),
        },
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer".to_owned(),
    };
    let text = format!("{error} ({} ms)", began.elapsed().as_millis());
    match s.notes.get_mut("refusals").and_then(|r| r.as_array_mut()) {
        Some(list) => list.push(text.into()),
        None => s.note("refusals", vec![text]),
    }
    true
}

async fn certificates(s: &mut Scenario) -> Outcome {
    let none = refused(s, None, |o| o).await;
    s.expect("none", none, true);
    let password = refused(s, None, |o| o.user_and_password("admin".into(), "admin".into())).await;
    s.expect("none, with password", password, true);
    let token = refused(s, None, |o| o.token("admin".into())).await;
    s.expect("none, with token", token, true);
    for (name, cert, key) in s.options.refused.clone() {
        let kept_out = refused(s, Some(&(cert, key)), |o| o).await;
        s.expect(&name, kept_out, true);
    }
    s.connect().await?.sync().await?;
    s.expect("own", true, true);
    Ok(())
}

type Change = fn(ConnectOptions) -> ConnectOptions;

/// User names, passwords and tokens beside a certificate open nothing; a server may also refuse the whole connection.
async fn credentials(s: &mut Scenario) -> Outcome {
    let with: [(&str, Change); 2] = [
        ("password grants", |o| o.user_and_password("admin".into(), "admin".into())),
        ("token grants", |o| o.token("admin".into())),
    ];
    for (name, change) in with {
        match s.connect_with(s.options.cert.as_ref(), change).await {
            Ok(client) => {
                client.publish(s.options.denied.clone(), "x".into()).await?;
                client.sync().await?;
                let told = client.errors().iter().any(|e| e.contains("Permissions Violation"));
                s.expect(name, !told, false);
            }
            Err(error) => {
                s.expect(name, false, false);
                s.note(name, error.to_string());
            }
        }
    }
    Ok(())
}

async fn handshake_orders(s: &mut Scenario) -> Outcome {
    let mut works = false;
    let options = s.options.clone();
    for (name, first) in [("INFO first", false), ("TLS first", true)] {
        s.options.tls_first = first;
        let tried = async {
            let client =
                s.connect_with(options.cert.as_ref(), |o| o.connection_timeout(Duration::from_secs(2))).await?;
            client.sync().await
        }
        .await;
        if let Err(error) = &tried {
            s.note(name, error.to_string());
        }
        works |= tried.is_ok();
        s.fact(name, tried.is_ok());
    }
    s.options = options;
    if works { Ok(()) } else { Err("neither order works".into()) }
}

async fn slow_consumer(s: &mut Scenario) -> Outcome {
    let client = s.connect_with(s.options.cert.as_ref(), |o| o.subscription_capacity(10)).await?;
    let other = s.connect().await?;
    let mut slow = client.subscribe(s.subject("slow")).await?;
    let mut quick = client.subscribe(s.subject("quick")).await?;
    client.sync().await?;
    for n in 0..200 {
        other.publish(s.subject("slow"), n.to_string().into()).await?;
    }
    other.publish(s.subject("quick"), "x".into()).await?;
    other.sync().await?;
    client.event("slow consumer", LONG, |e| matches!(e, Event::SlowConsumer(_))).await?;
    s.expect("others are served", take(&mut quick, 1, LONG).await.len(), 1);
    s.expect(
        "in order from the first",
        texts(&take(&mut slow, 10, LONG).await),
        (0..10).map(|n| n.to_string()).collect::<Vec<_>>(),
    );
    client.sync().await?;
    s.expect("disconnected", client.events().iter().any(|e| matches!(e, Event::Disconnected | Event::Closed)), false);
    Ok(())
}

async fn close(s: &mut Scenario) -> Outcome {
    let (client, other) = (s.connect().await?, s.connect().await?);
    let subscriber = client.subscribe(s.subject("c")).await?;
    let task = respond(&client, subscriber, |_| vec!["yes".to_owned()]);
    client.sync().await?;
    let reply = other.request(s.subject("c"), Bytes::new()).await?;
    s.expect("answer", String::from_utf8_lossy(&reply.payload), "yes");
    task.abort();
    let _ = task.await;
    // The last clone closes the connection.
    drop(client);
    let deadline = Instant::now() + Duration::from_secs(3);
    let mut answered = String::new();
    while answered != "NoResponders" && Instant::now() < deadline {
        let short = Request::new().timeout(Some(Duration::from_millis(500)));
        let asked = other.send_request(s.subject("c"), short).await;
        answered = asked.err().map(|e| format!("{:?}", e.kind())).unwrap_or_default();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    s.expect("its subscriptions are gone", answered, "NoResponders");
    Ok(())
}

async fn inbox_prefix(s: &mut Scenario) -> Outcome {
    let prefix = format!("_INBOX.{}.me", s.prefix);
    let client = s.connect_with(s.options.cert.as_ref(), |o| o.custom_inbox_prefix(&prefix)).await?;
    let other = s.connect().await?;
    let mut asked = other.subscribe(s.subject("i")).await?;
    other.sync().await?;
    let responder = (*other).clone();
    tokio::spawn(async move {
        while let Some(message) = asked.next().await {
            if let Some(reply) = message.reply {
                let _ = responder.publish(reply.clone(), reply.to_string().into()).await;
            }
        }
    });
    let reply = client.request(s.subject("i"), Bytes::new()).await?;
    s.expect("prefix", String::from_utf8_lossy(&reply.payload).starts_with(&format!("{prefix}.")), true);
    Ok(())
}

async fn pings(s: &mut Scenario) -> Outcome {
    let client = s.connect_with(s.options.cert.as_ref(), |o| o.ping_interval(Duration::from_millis(100))).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    client.sync().await?;
    s.expect("events", client.events().iter().map(|e| e.to_string()).collect::<Vec<_>>(), vec!["connected"]);
    Ok(())
}

async fn patient(s: &Scenario) -> Result<(Link, Subscriber), Box<dyn std::error::Error>> {
    let change = |o: ConnectOptions| {
        o.reconnect_delay_callback(|_| Duration::from_millis(100)).connection_timeout(Duration::from_secs(1))
    };
    let client = s.connect_with(s.options.cert.as_ref(), change).await?;
    let echo = client.subscribe(s.subject("echo")).await?;
    respond(&client, echo, |data| vec![String::from_utf8_lossy(data).into_owned()]);
    let again = client.subscribe(s.subject("again")).await?;
    client.sync().await?;
    Ok((client, again))
}

/// After the server came back, the old subscription receives again.
async fn works_again(s: &mut Scenario, client: &Link, mut again: Subscriber) -> Outcome {
    let back = |events: Vec<Event>| events.iter().filter(|e| **e == Event::Connected).count() > 1;
    crate::harness::until(Duration::from_secs(20), "second connection", || back(client.events())).await?;
    client.sync().await?;
    client.publish(s.subject("again"), "after".into()).await?;
    s.expect("subscription lives on", texts(&take(&mut again, 1, LONG).await), vec!["after"]);
    let reply = client.request(s.subject("echo"), "again".into()).await?;
    s.expect("request", String::from_utf8_lossy(&reply.payload), "again");
    let mut names: Vec<String> = client
        .events()
        .iter()
        .filter(|e| !matches!(e, Event::ClientError(_) | Event::ServerError(_)))
        .map(|e| e.to_string())
        .collect();
    s.note("events", names.clone());
    names.sort();
    names.dedup();
    s.fact("events", names);
    Ok(())
}

async fn reconnect(s: &mut Scenario) -> Outcome {
    let (client, again) = patient(s).await?;
    s.harness("restart").await?;
    client.event("disconnected", Duration::from_secs(10), |e| *e == Event::Disconnected).await?;
    works_again(s, &client, again).await?;
    let errors = json!(client.errors());
    s.note("errors", errors);
    Ok(())
}

async fn lame_duck(s: &mut Scenario) -> Outcome {
    let (client, again) = patient(s).await?;
    s.harness("lame duck").await?;
    client.event("lame duck", Duration::from_secs(10), |e| *e == Event::LameDuckMode).await?;
    client.event("disconnected", Duration::from_secs(10), |e| *e == Event::Disconnected).await?;
    works_again(s, &client, again).await?;
    let at = |wanted: &Event| client.events().iter().position(|e| e == wanted);
    s.expect("told before the end", at(&Event::LameDuckMode) < at(&Event::Disconnected), true);
    Ok(())
}
