//! As much of MQTT 3.1.1 as a load needs: CONNECT, SUBSCRIBE and PUBLISH at quality of service 0.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, ensure};

use super::Seen;

const CONNECT: u8 = 0x10;
const CONNACK: u8 = 0x20;
const PUBLISH: u8 = 0x30;
const SUBSCRIBE: u8 = 0x82;
const SUBACK: u8 = 0x90;

/// Clients of this process so far: a broker ends the older of two with one name.
static CLIENTS: AtomicU32 = AtomicU32::new(0);

pub(super) fn connect() -> Result<Vec<u8>> {
    let number = CLIENTS.fetch_add(1, Ordering::Relaxed);
    // Level 4, a clean session, no keep-alive.
    let mut body = [text("MQTT")?, vec![4, 2, 0, 0]].concat();
    body.extend(text(&format!("load-{}-{number}", std::process::id()))?);
    packet(CONNECT, &body)
}

pub(super) fn subscribe(name: &str) -> Result<Vec<u8>> {
    packet(SUBSCRIBE, &[vec![0, 1], text(&topic(name))?, vec![0]].concat())
}

pub(super) fn publish(name: &str, payload: &[u8]) -> Result<Vec<u8>> {
    packet(PUBLISH, &[text(&topic(name))?, payload.to_vec()].concat())
}

pub(super) fn is_publish(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|first| first & 0xf0 == PUBLISH)
}

pub(super) fn next(bytes: &[u8]) -> Result<Option<(Seen<'_>, usize)>> {
    let Some((body, length)) = remaining(bytes)? else { return Ok(None) };
    let seen = match bytes[0] & 0xf0 {
        CONNACK => {
            ensure!(body.get(1) == Some(&0), "refused with code {:?}", body.get(1));
            Seen::Welcome(String::new())
        }
        PUBLISH => Seen::Message(payload(body)),
        SUBACK => {
            ensure!(body.get(2) == Some(&0), "the subscription was refused");
            Seen::Confirmed
        }
        _ => Seen::Other,
    };
    Ok(Some((seen, length)))
}

/// What follows the topic.
fn payload(body: &[u8]) -> &[u8] {
    let Some((length, rest)) = body.split_first_chunk() else { return b"" };
    rest.get(usize::from(u16::from_be_bytes(*length))..).unwrap_or_default()
}

/// The body of the packet that `bytes` begin with, and the packet's length.
fn remaining(bytes: &[u8]) -> Result<Option<(&[u8], usize)>> {
    let mut value = 0;
    for (index, byte) in bytes.iter().skip(1).enumerate() {
        ensure!(index < 4, "a length of more than four bytes");
        value += usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            let from = index + 2;
            return Ok(bytes.get(from..from + value).map(|body| (body, from + value)));
        }
    }
    Ok(None)
}

fn packet(kind: u8, body: &[u8]) -> Result<Vec<u8>> {
    let mut out = vec![kind];
    let mut left = body.len();
    loop {
        let low = u8::try_from(left & 0x7f)?;
        left >>= 7;
        out.push(if left > 0 { low | 0x80 } else { low });
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(body);
    Ok(out)
}

fn text(text: &str) -> Result<Vec<u8>> {
    Ok([&u16::try_from(text.len())?.to_be_bytes()[..], text.as_bytes()].concat())
}

fn topic(name: &str) -> String {
    name.replace('.', "/")
}
