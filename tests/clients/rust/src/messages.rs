//! Scenarios about messages: names, headers, groups, requests, ends of subscriptions, order and sizes.

use std::time::{Duration, Instant};

use async_nats::{HeaderMap, Request, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::task::JoinHandle;

use crate::harness::{Link, Scenario, rest, take, texts};
use crate::{Body, Outcome, scenarios};

const SUBJECTS: [&str; 5] = ["a", "a.b", "a.c", "x.b", "a.b.c"];
/// Filters, and the subjects that each of them gets.
const FILTERS: [(&str, &[&str]); 9] = [
    ("*", &["a"]),
    (">", &SUBJECTS),
    ("a.*", &["a.b", "a.c"]),
    ("*.b", &["a.b", "x.b"]),
    ("a.>", &["a.b", "a.c", "a.b.c"]),
    ("a.b", &["a.b"]),
    ("*.*.c", &["a.b.c"]),
    ("a", &["a"]),
    ("b.>", &[]),
];
const LONG: Duration = Duration::from_secs(5);

pub(crate) const SCENARIOS: &[(&str, Body)] = scenarios![
    wildcards,
    headers,
    queue_groups,
    request_reply,
    many_replies,
    no_responders,
    unsubscribe_max,
    flush_order,
    drain_subscription,
    drain_connection,
    echo_off,
    literal_wildcards,
    empty_payload,
    large_payload,
    max_payload,
    thousand_subjects,
    ten_thousand,
];

/// Answers every message in the background, as long as the handle is not aborted.
pub(crate) fn respond(
    link: &Link,
    mut subscriber: Subscriber,
    answers: impl Fn(&[u8]) -> Vec<String> + Send + 'static,
) -> JoinHandle<()> {
    let client = (**link).clone();
    tokio::spawn(async move {
        while let Some(message) = subscriber.next().await {
            let Some(reply) = message.reply else { continue };
            for answer in answers(&message.payload) {
                let _ = client.publish(reply.clone(), answer.into()).await;
            }
        }
    })
}

fn numbers(messages: &[async_nats::Message]) -> Vec<u64> {
    texts(messages).iter().filter_map(|text| text.parse().ok()).collect()
}

fn sorted(header: Option<&HeaderMap>) -> Value {
    let mut pairs: Vec<(String, Vec<String>)> = header
        .into_iter()
        .flat_map(HeaderMap::iter)
        .map(|(name, values)| (name.to_string(), values.iter().map(|v| v.as_str().to_owned()).collect()))
        .collect();
    pairs.sort();
    json!(pairs)
}

async fn wildcards(s: &mut Scenario) -> Outcome {
    let client = s.connect().await?;
    let mut subscribers = Vec::new();
    for (filter, _) in FILTERS {
        subscribers.push(client.subscribe(s.subject(filter)).await?);
    }
    let mut twice = client.subscribe(s.subject("a.b")).await?;
    for subject in SUBJECTS {
        client.publish(s.subject(subject), "x".into()).await?;
    }
    for ((filter, wanted), subscriber) in FILTERS.into_iter().zip(&mut subscribers) {
        let got: Vec<String> = rest(&client, subscriber).await?.iter().map(|m| s.relative(&m.subject)).collect();
        s.expect(filter, got, json!(wanted));
    }
    s.expect("same filter twice", rest(&client, &mut twice).await?.len(), 1);
    Ok(())
}

async fn headers(s: &mut Scenario) -> Outcome {
    let client = s.connect().await?;
    let mut subscriber = client.subscribe(s.subject("h")).await?;
    let mut sent = HeaderMap::new();
    for (name, value) in
        [("Key", "v1"), ("Key", "v2"), ("key", "lower"), ("X-Space", "a b  c"), ("X-Colon", "a:b"), ("X-Text", "grün")]
    {
        sent.append(name, value);
    }
    let mut only = HeaderMap::new();
    only.append("Only", "header");
    client.publish_with_headers(s.subject("h"), sent.clone(), "body".into()).await?;
    client.publish_with_headers(s.subject("h"), only.clone(), Bytes::new()).await?;
    client.publish(s.subject("h"), "plain".into()).await?;
    let got = take(&mut subscriber, 3, LONG).await;
    let [first, second, third] = got.as_slice() else { return Err("not three messages".into()) };
    s.expect("headers", sorted(first.headers.as_ref()), sorted(Some(&sent)));
    s.expect("body", String::from_utf8_lossy(&first.payload), "body");
    s.expect(
        "empty body",
        json!([second.payload.len(), sorted(second.headers.as_ref())]),
        json!([0, sorted(Some(&only))]),
    );
    s.expect("no headers", third.headers.is_none(), true);
    Ok(())
}

async fn queue_groups(s: &mut Scenario) -> Outcome {
    let (client, other) = (s.connect().await?, s.connect().await?);
    let links = [&client, &client, &other];
    let mut members = Vec::new();
    for link in links {
        members.push(link.queue_subscribe(s.subject("q"), "g".into()).await?);
    }
    let mut second = other.queue_subscribe(s.subject("q"), "h".into()).await?;
    let mut plain = other.subscribe(s.subject("q")).await?;
    let mut filters = Vec::new();
    for filter in ["o.*", "o.>"] {
        filters.push(client.queue_subscribe(s.subject(filter), "k".into()).await?);
    }
    client.sync().await?;
    other.sync().await?;
    for n in 0..90 {
        client.publish(s.subject("q"), n.to_string().into()).await?;
        client.publish(s.subject("o.x"), n.to_string().into()).await?;
    }
    client.sync().await?;
    let (mut seen, mut every) = (Vec::new(), true);
    for (link, member) in links.into_iter().zip(&mut members) {
        let share = numbers(&rest(link, member).await?);
        every &= !share.is_empty();
        seen.extend(share);
    }
    seen.sort_unstable();
    s.expect("each message once", seen == (0..90).collect::<Vec<_>>(), true);
    s.expect("every member got some", every, true);
    s.expect("second group", rest(&other, &mut second).await?.len(), 90);
    s.expect("plain subscriber", rest(&other, &mut plain).await?.len(), 90);
    let mut shared = Vec::new();
    for filter in &mut filters {
        shared.extend(numbers(&rest(&client, filter).await?));
    }
    shared.sort_unstable();
    s.expect("two filters, one group", shared == (0..90).collect::<Vec<_>>(), true);
    Ok(())
}

async fn request_reply(s: &mut Scenario) -> Outcome {
    let (client, other) = (s.connect().await?, s.connect().await?);
    let echo = other.subscribe(s.subject("echo")).await?;
    let _task = respond(&other, echo, |data| vec![format!("re:{}", String::from_utf8_lossy(data))]);
    let _silent = other.subscribe(s.subject("silent")).await?;
    other.sync().await?;
    let reply = client.request(s.subject("echo"), "one".into()).await?;
    s.expect("reply", String::from_utf8_lossy(&reply.payload), "re:one");
    s.expect("inbox", reply.subject.split('.').next(), "_INBOX");
    let tasks: Vec<_> = (0..20)
        .map(|n| {
            let (client, subject) = ((*client).clone(), s.subject("echo"));
            tokio::spawn(async move { client.request(subject, n.to_string().into()).await.map(|m| m.payload) })
        })
        .collect();
    let mut matched = true;
    for (n, task) in tasks.into_iter().enumerate() {
        matched &= task.await?? == format!("re:{n}");
    }
    s.expect("matched", matched, true);
    let own_inbox = Request::new().payload("o".into()).inbox(client.new_inbox());
    let old = client.send_request(s.subject("echo"), own_inbox).await?;
    s.expect("old style", String::from_utf8_lossy(&old.payload), "re:o");
    let mut header = HeaderMap::new();
    header.append("A", "b");
    let with_headers = client.request_with_headers(s.subject("echo"), header, "h".into()).await?;
    s.expect("with headers", String::from_utf8_lossy(&with_headers.payload), "re:h");
    let short = Request::new().timeout(Some(Duration::from_millis(200)));
    match client.send_request(s.subject("silent"), short).await {
        Ok(_) => s.expect("silence", "answered", "timeout"),
        Err(error) => s.fact("silence", format!("{:?}", error.kind())),
    }
    Ok(())
}

async fn many_replies(s: &mut Scenario) -> Outcome {
    let (client, other) = (s.connect().await?, s.connect().await?);
    let many = other.subscribe(s.subject("many")).await?;
    let _task = respond(&other, many, |_| (0..5).map(|n| n.to_string()).collect());
    other.sync().await?;
    let inbox = client.new_inbox();
    let mut replies = client.subscribe(inbox.clone()).await?;
    client.publish_with_reply(s.subject("many"), inbox, Bytes::new()).await?;
    s.expect("replies", texts(&take(&mut replies, 5, LONG).await), vec!["0", "1", "2", "3", "4"]);
    s.expect("no more", rest(&client, &mut replies).await?.len(), 0);
    Ok(())
}

async fn no_responders(s: &mut Scenario) -> Outcome {
    let client = s.connect().await?;
    let began = Instant::now();
    let error = client.request(s.subject("nobody"), Bytes::new()).await.err().map(|e| format!("{:?}", e.kind()));
    let took = began.elapsed();
    s.expect("error", error, "NoResponders");
    s.expect("fast", took < Duration::from_secs(1), true);
    s.note("ms to error", took.as_secs_f64() * 1000.0);
    let inbox = client.new_inbox();
    let mut replies = client.subscribe(inbox.clone()).await?;
    client.publish_with_reply(s.subject("nobody"), inbox.clone(), "question".into()).await?;
    let got = take(&mut replies, 1, LONG).await;
    let first = got.first();
    s.expect("status", first.and_then(|m| m.status).map(|status| status.as_u16().to_string()), "503");
    s.expect("body", first.map(|m| String::from_utf8_lossy(&m.payload).into_owned()), "");
    s.expect("to the inbox", first.is_some_and(|m| m.subject.as_str() == inbox), true);
    s.note("headers", sorted(first.and_then(|m| m.headers.as_ref())));
    client.publish_with_reply(s.subject("nobody"), s.subject("unread"), Bytes::new()).await?;
    client.sync().await?;
    s.expect("reply that nobody reads", client.errors(), json!([]));
    Ok(())
}

async fn unsubscribe_max(s: &mut Scenario) -> Outcome {
    let (client, other) = (s.connect().await?, s.connect().await?);
    let mut limited = client.subscribe(s.subject("l")).await?;
    limited.unsubscribe_after(3).await?;
    let mut gone = client.subscribe(s.subject("l")).await?;
    gone.unsubscribe().await?;
    let mut taken = client.subscribe(s.subject("l")).await?;
    client.sync().await?;
    for n in 0..5 {
        other.publish(s.subject("l"), n.to_string().into()).await?;
    }
    other.sync().await?;
    client.sync().await?;
    s.expect("at most three", texts(&take(&mut limited, 5, Duration::from_millis(200)).await), vec!["0", "1", "2"]);
    s.expect("ended at once", gone.next().await.is_none(), true);
    s.expect("no limit", take(&mut taken, 5, LONG).await.len(), 5);
    // A limit below what was delivered ends the subscription now.
    taken.unsubscribe_after(2).await?;
    client.sync().await?;
    other.publish(s.subject("l"), "late".into()).await?;
    other.sync().await?;
    s.expect("limit reached already", rest(&client, &mut taken).await?.len(), 0);
    s.expect("no errors", client.errors(), json!([]));
    Ok(())
}

async fn flush_order(s: &mut Scenario) -> Outcome {
    let (client, other) = (s.connect().await?, s.connect().await?);
    let mut seen = 0;
    for n in 0..50 {
        let subject = s.subject(&format!("f.{n}"));
        let mut subscriber = client.subscribe(subject.clone()).await?;
        client.publish(subject, "x".into()).await?;
        seen += rest(&client, &mut subscriber).await?.len();
    }
    s.expect("own messages before the next", seen, 50);
    let mut own = client.subscribe(s.subject("own")).await?;
    client.sync().await?;
    let mut seen = 0;
    for _ in 0..50 {
        other.publish(s.subject("own"), "x".into()).await?;
        other.sync().await?;
        seen += rest(&client, &mut own).await?.len();
    }
    s.expect("others' messages before the next", seen, 50);
    Ok(())
}

async fn drain_subscription(s: &mut Scenario) -> Outcome {
    let (client, other) = (s.connect().await?, s.connect().await?);
    let mut subscriber = client.subscribe(s.subject("d")).await?;
    client.sync().await?;
    for _ in 0..100 {
        other.publish(s.subject("d"), "x".into()).await?;
    }
    other.sync().await?;
    // This client's drain does not wait for the server: what it has not read by then is lost, with any server.
    client.sync().await?;
    subscriber.drain().await?;
    let mut processed = 0;
    while tokio::time::timeout(LONG, subscriber.next()).await?.is_some() {
        processed += 1;
    }
    s.expect("processed", processed, 100);
    client.sync().await?;
    s.expect("open", true, true);
    Ok(())
}

async fn drain_connection(s: &mut Scenario) -> Outcome {
    let (client, other) = (s.connect().await?, s.connect().await?);
    let mut subscriber = client.subscribe(s.subject("d")).await?;
    let mut answers = other.subscribe(s.subject("answers")).await?;
    client.sync().await?;
    other.sync().await?;
    for _ in 0..100 {
        other.publish(s.subject("d"), "x".into()).await?;
    }
    other.sync().await?;
    client.sync().await?;
    client.publish(s.subject("answers"), "last".into()).await?;
    client.drain().await?;
    let mut processed = 0;
    while tokio::time::timeout(LONG, subscriber.next()).await?.is_some() {
        processed += 1;
    }
    s.expect("processed", processed, 100);
    s.expect("published before the drain", take(&mut answers, 1, LONG).await.len(), 1);
    client.event("closed", LONG, |e| *e == async_nats::Event::Closed).await?;
    s.expect("closed", client.subscribe(s.subject("d")).await.is_err(), true);
    Ok(())
}

async fn echo_off(s: &mut Scenario) -> Outcome {
    let client = s.connect_with(s.options.cert.as_ref(), |o| o.no_echo()).await?;
    let other = s.connect().await?;
    let mut own = client.subscribe(s.subject("e")).await?;
    let mut others = other.subscribe(s.subject("e")).await?;
    other.sync().await?;
    // A request that nobody answers comes back behind everything else, even without echo.
    let barrier = client.request(s.subject("nobody"), Bytes::new()).await;
    s.expect("barrier", barrier.is_err_and(|e| e.kind() == async_nats::RequestErrorKind::NoResponders), true);
    client.publish(s.subject("e"), "x".into()).await?;
    s.expect("other's", take(&mut others, 1, LONG).await.len(), 1);
    other.publish(s.subject("e"), "y".into()).await?;
    s.expect("own, then from another", texts(&take(&mut own, 1, LONG).await), vec!["y"]);
    Ok(())
}

async fn literal_wildcards(s: &mut Scenario) -> Outcome {
    let client = s.connect().await?;
    let filters: [(&str, &[&str]); 3] = [("l.>", &["l.*", "l.>"]), ("l.*", &["l.*", "l.>"]), ("l.x", &[])];
    let mut subscribers = Vec::new();
    for (filter, _) in filters {
        subscribers.push(client.subscribe(s.subject(filter)).await?);
    }
    for subject in ["l.*", "l.>"] {
        let sent = client.publish(s.subject(subject), "x".into()).await;
        s.fact(&format!("client sends {subject}"), sent.is_ok());
    }
    for ((filter, wanted), subscriber) in filters.into_iter().zip(&mut subscribers) {
        let got: Vec<String> = rest(&client, subscriber).await?.iter().map(|m| s.relative(&m.subject)).collect();
        s.expect(filter, got, json!(wanted));
    }
    s.expect("errors", client.errors(), json!([]));
    Ok(())
}

async fn empty_payload(s: &mut Scenario) -> Outcome {
    let client = s.connect().await?;
    let mut subscriber = client.subscribe(s.subject("e")).await?;
    client.publish(s.subject("e"), Bytes::new()).await?;
    client.publish_with_reply(s.subject("e"), "r.e", Bytes::new()).await?;
    client.publish_with_headers(s.subject("e"), HeaderMap::new(), "hi".into()).await?;
    let got = take(&mut subscriber, 3, LONG).await;
    s.expect("payloads", texts(&got), vec!["", "", "hi"]);
    let replies: Vec<String> =
        got.iter().map(|m| m.reply.as_ref().map(|r| r.to_string()).unwrap_or_default()).collect();
    s.expect("replies", replies, vec!["", "r.e", ""]);
    Ok(())
}

async fn large_payload(s: &mut Scenario) -> Outcome {
    let (client, other) = (s.connect().await?, s.connect().await?);
    let mut subscriber = other.subscribe(s.subject("l")).await?;
    other.sync().await?;
    let limit = client.max_payload();
    let mut hashes = Vec::new();
    let sizes = [limit, limit - 1, limit / 2, 65_536, 65_535, 4096];
    for size in sizes {
        let seed = Sha256::digest(size.to_string());
        let payload: Vec<u8> = seed.iter().copied().cycle().take(size).collect();
        hashes.push(Sha256::digest(&payload));
        client.publish(s.subject("l"), payload.into()).await?;
    }
    let got = take(&mut subscriber, sizes.len(), LONG).await;
    s.expect("same content", got.iter().map(|m| Sha256::digest(&m.payload)).collect::<Vec<_>>() == hashes, true);
    let mut header = HeaderMap::new();
    header.append("A", "b");
    let payload = vec![b'x'; limit - 200];
    client.publish_with_headers(s.subject("l"), header.clone(), payload.clone().into()).await?;
    let got = take(&mut subscriber, 1, LONG).await;
    let same = got.first().is_some_and(|m| m.payload == payload && sorted(m.headers.as_ref()) == sorted(Some(&header)));
    s.expect("with headers", same, true);
    s.note("max_payload", limit);
    Ok(())
}

async fn max_payload(s: &mut Scenario) -> Outcome {
    let client = s.connect().await?;
    let limit = client.max_payload();
    let error = client.publish(s.subject("m"), vec![0; limit + 1].into()).await.err();
    s.expect("client", error.map(|e| format!("{:?}", e.kind())), "MaxPayloadExceeded");
    let mut header = HeaderMap::new();
    header.append("A", "b");
    let error = client.publish_with_headers(s.subject("m"), header, vec![0; limit - 1].into()).await.err();
    s.expect("headers count", error.map(|e| format!("{:?}", e.kind())), "MaxPayloadExceeded");
    client.sync().await?;
    s.expect("errors", client.errors(), json!([]));
    Ok(())
}

async fn thousand_subjects(s: &mut Scenario) -> Outcome {
    let (client, other) = (s.connect().await?, s.connect().await?);
    let mut subscribers = Vec::new();
    for n in 0..1000 {
        subscribers.push(client.subscribe(s.subject(&format!("t.{n}"))).await?);
    }
    client.sync().await?;
    for round in 0..2 {
        for n in 0..1000 {
            other.publish(s.subject(&format!("t.{n}")), n.to_string().into()).await?;
        }
        other.sync().await?;
        client.sync().await?;
        let mut own = true;
        for (n, subscriber) in subscribers.iter_mut().enumerate() {
            let ended = round == 1 && n % 2 == 0;
            let got = take(subscriber, 1, LONG).await;
            own &= texts(&got) == if ended { vec![] } else { vec![n.to_string()] };
        }
        s.expect(if round == 0 { "each its own" } else { "after half were ended" }, own, true);
        if round == 0 {
            for subscriber in subscribers.iter_mut().step_by(2) {
                subscriber.unsubscribe().await?;
            }
            client.sync().await?;
        }
    }
    Ok(())
}

async fn ten_thousand(s: &mut Scenario) -> Outcome {
    let (client, other) = (s.connect().await?, s.connect().await?);
    let mut subscriber = other.subscribe(s.subject("n")).await?;
    other.sync().await?;
    for n in 0..10_000 {
        client.publish(s.subject("n"), format!("{n:016}").into()).await?;
    }
    client.flush().await?;
    let got = take(&mut subscriber, 10_000, LONG).await;
    s.expect("received", got.len(), 10_000);
    s.expect("in order", numbers(&got) == (0..10_000).collect::<Vec<_>>(), true);
    s.expect("none left", rest(&other, &mut subscriber).await?.len(), 0);
    Ok(())
}
