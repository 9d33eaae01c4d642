//! The parts of a matrix test: this client publishes, subscribes, asks or answers, as it is told on the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use async_nats::Request;
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::harness::{self, Link, Options, Scenario, emit, stdin_line};

type Told = Result<(Value, bool), Box<dyn std::error::Error>>;

pub(crate) async fn run(options: &Options, role: &str) -> bool {
    let scenario = Scenario::new(options, "role");
    let told = match role {
        "pub" => publish(&scenario).await,
        "sub" => subscribe(&scenario).await,
        "request" => ask(&scenario).await,
        "reply" => answer(&scenario).await,
        _ => harness::usage(&format!("unknown role: {role}")),
    };
    let (mut result, ok, error) = match told {
        Ok((result, ok)) => (result, ok, None),
        Err(error) => (json!({}), false, Some(error.to_string())),
    };
    result["role"] = json!(role);
    result["id"] = json!(options.id);
    result["ok"] = json!(ok);
    result["error"] = json!(error);
    emit(&result);
    ok
}

async fn publish(s: &Scenario) -> Told {
    let client = s.connect().await?;
    for n in 0..s.options.count {
        client.publish(s.options.subject.clone(), format!("{}-{n}", s.options.id).into()).await?;
    }
    client.sync().await?;
    let errors = client.errors();
    Ok((json!({"published": s.options.count, "errors": errors}), errors.is_empty()))
}

async fn subscriber(s: &Scenario, client: &Link) -> Result<async_nats::Subscriber, Box<dyn std::error::Error>> {
    let subject = s.options.subject.clone();
    let subscriber = match s.options.queue.clone() {
        queue if queue.is_empty() => client.subscribe(subject).await?,
        queue => client.queue_subscribe(subject, queue).await?,
    };
    client.sync().await?;
    Ok(subscriber)
}

/// Ends when all that it expects has come and nothing more for a while, or a line or the end of standard input says so.
async fn subscribe(s: &Scenario) -> Told {
    let client = s.connect().await?;
    let mut subscriber = subscriber(s, &client).await?;
    emit(&json!({"ready": "sub", "errors": client.errors()}));
    let mut received: Vec<String> = Vec::new();
    let stop = stdin_line();
    tokio::pin!(stop);
    let deadline = Instant::now() + s.options.timeout;
    let mut stopped = false;
    loop {
        let full = s.options.expect > 0 && received.len() >= s.options.expect;
        let left = deadline.saturating_duration_since(Instant::now());
        // After a stop, what has been on its way is still taken.
        let wait = if stopped {
            Duration::from_millis(20)
        } else if full {
            s.options.settle.min(left)
        } else {
            left
        };
        tokio::select! {
            biased;
            message = subscriber.next() => match message {
                Some(message) => received.push(String::from_utf8_lossy(&message.payload).into_owned()),
                None => break,
            },
            _ = &mut stop, if !stopped => {
                stopped = true;
                let _ = client.sync().await;
            }
            () = tokio::time::sleep(wait) => break,
        }
    }
    let mut by_publisher: BTreeMap<&str, u64> = BTreeMap::new();
    for text in &received {
        *by_publisher.entry(text.rsplit_once('-').map_or("", |(publisher, _)| publisher)).or_default() += 1;
    }
    let duplicates = received.len() - received.iter().collect::<BTreeSet<_>>().len();
    let ok = received.len() == s.options.expect && duplicates == 0;
    let result = json!({
        "received": received.len(), "duplicates": duplicates, "by_publisher": by_publisher, "errors": client.errors(),
    });
    Ok((result, ok))
}

async fn ask(s: &Scenario) -> Told {
    let client = s.connect().await?;
    let (mut replies, mut errors) = (Vec::new(), Vec::new());
    for n in 0..s.options.count {
        let request = Request::new().payload(format!("{}-{n}", s.options.id).into()).timeout(Some(s.options.timeout));
        match client.send_request(s.options.subject.clone(), request).await {
            Ok(reply) => replies.push(String::from_utf8_lossy(&reply.payload).into_owned()),
            Err(error) => errors.push(format!("{:?}", error.kind())),
        }
    }
    let ok = replies.len() == s.options.expect;
    Ok((json!({"replies": replies, "errors": errors}), ok))
}

async fn answer(s: &Scenario) -> Told {
    let client = s.connect().await?;
    let mut subscriber = subscriber(s, &client).await?;
    emit(&json!({"ready": "reply", "errors": client.errors()}));
    let mut answered = 0_u64;
    let stop = stdin_line();
    tokio::pin!(stop);
    let deadline = tokio::time::Instant::now() + s.options.timeout;
    loop {
        tokio::select! {
            message = subscriber.next() => {
                let Some(message) = message else { break };
                answered += 1;
                let text = format!("{}:{}", s.options.id, String::from_utf8_lossy(&message.payload));
                if let Some(reply) = message.reply {
                    client.publish(reply, text.into()).await?;
                }
            }
            _ = &mut stop => break,
            () = tokio::time::sleep_until(deadline) => break,
        }
    }
    client.sync().await?;
    Ok((json!({"answered": answered}), true))
}
