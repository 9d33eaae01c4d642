//! Requests one after the other between two connections.

use std::sync::mpsc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;

use crate::client::{Client, Dialer};
use crate::options::Request;
use crate::report::Measured;
use crate::wire::{Seen, answers};

const SUBJECT: &str = "bench.request";
/// Requests before counting begins.
const WARM_UP: u64 = 500;

pub(crate) fn run(request: &Request) -> Result<()> {
    let dialer = Dialer::new(&request.target)?;
    let at = request.target.subscribe_at.as_deref().unwrap_or(&request.target.server);
    let mut responder = dialer.connect(at).context("the responder")?;
    responder.subscribe(SUBJECT, 1, false)?;
    let mut requester = dialer.connect(&request.target.server).context("the requester")?;
    let inbox = answers(&requester.inbox)?;
    requester.subscribe(&inbox, 1, true)?;
    let payload = vec![b'x'; request.size];
    let question = dialer.protocol.message(SUBJECT, inbox.as_bytes(), &payload)?;
    let answer = dialer.protocol.message(&inbox, b"", &payload)?;

    let (release, held) = mpsc::channel::<()>();
    let (report, times) = std::thread::scope(|scope| {
        let (responder, answer) = (&mut responder, &answer);
        let answering = scope.spawn(move || {
            let answered = respond(responder, answer, WARM_UP + request.count);
            // The CPU of a thread that has ended is not counted.
            let _ = held.recv();
            answered
        });
        let asked = ask_all(&mut requester, &question, request);
        drop(release);
        answering.join().map_err(|_| anyhow!("the responder has failed"))?.and(asked)
    })?;
    let micros = |quantile: f64| times.value_at_quantile(quantile) as f64 / 1e3;
    report
        .with("size", request.size)
        .with("p50_us", micros(0.5))
        .with("p99_us", micros(0.99))
        .with("max_us", times.max() as f64 / 1e3)
        .print()
}

fn ask_all(
    requester: &mut Client,
    question: &[u8],
    request: &Request,
) -> Result<(crate::report::Report, Histogram<u64>)> {
    for _ in 0..WARM_UP {
        ask(requester, question)?;
    }
    let mut times = Histogram::<u64>::new(3)?;
    let measured = Measured::begin(&request.target);
    for _ in 0..request.count {
        let asked = Instant::now();
        ask(requester, question)?;
        times.record(u64::try_from(asked.elapsed().as_nanos())?)?;
    }
    Ok((measured.end(request.count), times))
}

fn ask(requester: &mut Client, question: &[u8]) -> Result<()> {
    requester.send(question)?;
    while !requester.receive(|seen| matches!(seen, Seen::Message(_)))? {}
    Ok(())
}

fn respond(responder: &mut Client, answer: &[u8], count: u64) -> Result<()> {
    for _ in 0..count {
        while !responder.receive(|seen| matches!(seen, Seen::Message(_)))? {}
        responder.send(answer)?;
    }
    Ok(())
}
