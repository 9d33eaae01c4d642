//! Busy polling of sessions: it begins in a dialogue, loses nothing, and ends when the configuration says so.

use std::time::{Duration, Instant};

use glocal_client::Client;

use crate::support::fabric::Fabric;
use crate::support::node::{Local, REGION_A};
use crate::support::{PATIENCE, soon};

const KEY: &str = "busy_poll_us = ";

async fn ask(alice: &Client, requests: u32) {
    for number in 0..requests {
        let reply = alice.request("service", number.to_string(), PATIENCE).await.unwrap();
        assert_eq!(reply.payload(), format!("re: {number}").as_bytes());
    }
}

async fn polls(node: &Local) -> u64 {
    node.metric("glocal_busy_polls_total", &[]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dialogue_is_polled_for_until_the_configuration_says_otherwise() {
    let fabric = Fabric::new();
    let file = fabric.config(REGION_A);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{KEY}1000\n{text}")).unwrap();
    let node = Local::start(&fabric, REGION_A).await;
    let (alice, andy) = (fabric.client(node.at(), "alice").await, fabric.client(node.at(), "andy").await);
    let mut service = andy.subscribe("service", None).await.unwrap();
    andy.flush().await.unwrap();
    let serve = tokio::spawn(async move {
        while let Some(request) = service.next().await {
            let text = String::from_utf8(request.payload().to_vec()).unwrap();
            request.respond(format!("re: {text}")).await.unwrap();
        }
    });
    let until = Instant::now() + PATIENCE;
    while node.metric("glocal_busy_polls_total", &["hit"]).await == 0 {
        assert!(Instant::now() < until, "no dialogue is quick enough");
        ask(&alice, 100).await;
    }
    // Whoever does not go on is not polled for any longer than that.
    let before = polls(&node).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let after = polls(&node).await;
    assert!(after <= before + 2, "{before} {after}: one end of each session's dialogue");
    // Switched off under open sessions.
    std::fs::write(&file, format!("{KEY}0\n{text}")).unwrap();
    let context = node.0.context();
    let report = context.reloader.reload(context).await;
    assert_eq!((report.changed, report.restart.is_empty()), (vec!["busy_poll_us changed".to_owned()], true));
    let quiet = async {
        let mut known = polls(&node).await;
        loop {
            ask(&alice, 200).await;
            match polls(&node).await {
                now if now == known => break,
                now => known = now,
            }
        }
    };
    soon("both sessions to hear of it", quiet).await;
    serve.abort();
}
