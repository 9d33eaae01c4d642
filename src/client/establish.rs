//! From options to a welcomed connection: dial, hello, welcome.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use glocal_core::limits::{CLIENT_NAME_BYTES_MAX, CONTROL_BYTES_MAX_BEFORE_HELLO};
use glocal_wire::control::{Control, Hello, PROTOCOL_VERSION, Welcome};
use glocal_wire::frame::{FrameLimits, Next, next_frame};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout_at};

use crate::error::ConnectError;
use crate::options::{Address, ConnectOptions};
use crate::state::Session;
use crate::tls::{self, TlsConfig};
use crate::transport::{self, Link};

/// A connection that the broker has welcomed.
pub(crate) struct Established {
    pub(crate) link: Link,
    pub(crate) session: Session,
    /// Bytes that came after the welcome.
    pub(crate) received: BytesMut,
}

/// Tries every address once, beginning with number `start`.
pub(crate) async fn establish(options: &ConnectOptions, start: usize) -> Result<Established, ConnectError> {
    if options.client_name.len() > CLIENT_NAME_BYTES_MAX {
        return Err(ConnectError::ClientName(CLIENT_NAME_BYTES_MAX));
    }
    let mut errors = Vec::new();
    let count = options.addresses.len();
    let rotated = options.addresses.iter().cycle().skip(start.checked_rem(count).unwrap_or(0)).take(count);
    for address in rotated {
        // Files are read for every address: the pause between two may be long.
        let tls = tls::config(options)?;
        match attempt(options, address, &tls).await {
            Ok(established) => return Ok(established),
            Err(error) => errors.push(error),
        }
    }
    match errors.len() {
        0 => Err(ConnectError::NoAddress),
        1 => Err(errors.remove(0)),
        _ => Err(ConnectError::Exhausted(errors)),
    }
}

async fn attempt(options: &ConnectOptions, address: &Address, tls: &TlsConfig) -> Result<Established, ConnectError> {
    let timeout = options.timeouts.connect;
    let deadline = Instant::now() + timeout;
    let late = |step| ConnectError::Timeout { address: address.clone(), step, timeout };
    let mut link = timeout_at(deadline, transport::dial(address, tls))
        .await
        .map_err(|_| late("connection and TLS handshake"))??;
    let (welcome, received) = timeout_at(deadline, greet(options, address, tls, &mut link))
        .await
        .map_err(|_| late("the broker's welcome"))??;
    // What the certificate says counts; the welcome only repeats it.
    let node = tls.verifier.node().map_or_else(|| welcome.node.clone(), |node| node.to_string());
    let session = Session {
        address: address.clone(),
        node,
        session: welcome.session,
        tenant: welcome.tenant,
        role: welcome.role,
        region: welcome.region,
        agent: welcome.agent,
        uid: welcome.uid,
        max_payload: welcome.max_payload,
        inbox: welcome.inbox,
    };
    Ok(Established { link, session, received })
}

async fn greet(
    options: &ConnectOptions,
    address: &Address,
    tls: &TlsConfig,
    link: &mut Link,
) -> Result<(Welcome, BytesMut), ConnectError> {
    let protocol = |reason: String| ConnectError::Protocol { address: address.clone(), reason };
    let hello = Hello {
        versions: vec![PROTOCOL_VERSION],
        features: 0,
        client: options.client_name.clone(),
        default_class: options.default_class.code(),
        echo: options.echo,
    };
    let mut out = BytesMut::new();
    Control::from(hello).encode_into(&mut out).map_err(|error| protocol(error.to_string()))?;
    // A broker that refused our certificate may have closed already; its alert is still there to be read.
    let written = async {
        link.writer.write_all(&out).await?;
        link.writer.flush().await
    }
    .await;
    let mut received = BytesMut::with_capacity(CONTROL_BYTES_MAX_BEFORE_HELLO);
    loop {
        if let Some(frame) = first_control(&mut received).map_err(&protocol)? {
            return match frame {
                Control::Welcome(welcome) if welcome.version == PROTOCOL_VERSION => Ok((welcome, received)),
                Control::Welcome(welcome) => Err(protocol(format!("version {} was not offered", welcome.version))),
                Control::Error(e) => Err(refused(address, e.code, e.text)),
                Control::Goodbye(e) => Err(refused(address, e.code, e.text)),
                Control::Denied(e) => Err(refused(address, e.code, e.text)),
                other => Err(protocol(format!("{} instead of a welcome", other.name()))),
            };
        }
        let failure = match link.reader.read_buf(&mut received).await {
            Ok(0) => written.err().unwrap_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof)),
            Ok(_) => continue,
            Err(error) => error,
        };
        return Err(transport::refusal(address, tls, &failure, link.quic.as_ref()));
    }
}

fn refused(address: &Address, code: String, text: String) -> ConnectError {
    ConnectError::Refused { address: address.clone(), code, text }
}

/// Takes the first control frame out of `received`, once it is complete; unknown skippable ones are passed over.
fn first_control(received: &mut BytesMut) -> Result<Option<Control>, String> {
    loop {
        let (frame, bytes) = match next_frame(received, &FrameLimits::BEFORE_HELLO) {
            Ok(Next::Control { kind, body, frame_bytes }) => {
                let frame = Control::decode(kind, body, CONTROL_BYTES_MAX_BEFORE_HELLO);
                (frame.map_err(|error| error.to_string())?, frame_bytes)
            }
            Ok(Next::Data { .. }) => return Err("data before the welcome".to_owned()),
            Ok(Next::Need(_)) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        received.advance(bytes);
        if frame.is_some() {
            return Ok(frame);
        }
    }
}

/// A number to spread load with; not for secrets.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The pause before the next dial: doubling from `min` to `max`, shortened by up to half at random.
pub(crate) fn pause(failures: u32, min: Duration, max: Duration, random: u64) -> Duration {
    let full = min.saturating_mul(1u32.checked_shl(failures.min(31)).unwrap_or(u32::MAX)).min(max);
    let permille = u32::try_from(random % 501).unwrap_or(0);
    full - full * permille / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_are_jittered_by_half() {
        let (min, max) = (Duration::from_millis(100), Duration::from_secs(5));
        assert_eq!(pause(0, min, max, 0), min);
        assert_eq!(pause(3, min, max, 0), min * 8);
        for failures in [6, 31, u32::MAX] {
            assert_eq!(pause(failures, min, max, 0), max);
        }
        assert_eq!(pause(0, min, max, 500), min / 2);
    }

    #[test]
    fn clients_that_lost_one_broker_come_back_spread_over_half_a_pause() {
        // Case RB-74: of ten thousand clients, each twentieth of the span gets about a twentieth.
        let (min, max) = (Duration::from_millis(100), Duration::from_secs(5));
        for failures in [0, 2, 6, 40] {
            let full = pause(failures, min, max, 0);
            let mut histogram = [0u32; 20];
            for _ in 0..10_000 {
                let pause = pause(failures, min, max, random());
                assert!(pause >= full / 2 && pause <= full, "{pause:?} of {full:?}");
                let share = (pause - full / 2).as_secs_f64() / (full / 2).as_secs_f64();
                let bucket = (0..20).rev().find(|bucket| share >= f64::from(*bucket) / 20.0).unwrap_or(0);
                histogram[usize::try_from(bucket).unwrap_or(0)] += 1;
            }
            assert!(histogram.iter().all(|count| (350..=650).contains(count)), "{histogram:?}");
        }
    }
}
