//! The link as whoever uses it sees it: the rate, what waits, what is dropped.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser as _;
use serde_json::Value;

use crate::datagrams::HEADS_BYTES;
use crate::streams::wire_bytes;
use crate::{Options, Proxy};

/// How far a measured rate may be from the one that was asked for.
const TOLERANCE: f64 = 0.02;
/// Longest silence.
const PATIENCE: Duration = Duration::from_secs(20);

fn proxy(to: std::net::SocketAddr, more: &str) -> Proxy {
    let line = format!("tbf-proxy --to {to} {more}");
    Proxy::start(&Options::parse_from(line.split_whitespace())).unwrap()
}

fn close(measured: f64, wanted: f64, tolerance: f64) -> bool {
    (measured / wanted - 1.0).abs() <= tolerance
}

fn count(report: &Value, way: &str, of: &str, what: &str) -> u64 {
    report[way][of][what].as_u64().unwrap()
}

/// A mebibyte through 4 Mbit/s, forth and back at once: two seconds.
#[test]
fn streams_are_as_fast_as_the_link_in_both_directions_and_arrive_whole() {
    const BYTES: usize = 1 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = proxy(listener.local_addr().unwrap(), "--rate 4 --stream-buffer 60000");
    let near = TcpStream::connect(proxy.at).unwrap();
    let (far, _) = listener.accept().unwrap();
    let pattern: Vec<u8> = (0..=250).cycle().take(BYTES).collect();
    let through = |from: &TcpStream, to: &TcpStream| {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let sent = pattern.clone();
        let began = Instant::now();
        let sending = thread::spawn(move || {
            from.write_all(&sent).unwrap();
            from.shutdown(Shutdown::Write).unwrap();
        });
        let mut arrived = Vec::new();
        to.read_to_end(&mut arrived).unwrap();
        sending.join().unwrap();
        (arrived, began.elapsed().as_secs_f64())
    };
    thread::scope(|scope| {
        let ways = [("forward", scope.spawn(|| through(&near, &far))), ("back", scope.spawn(|| through(&far, &near)))];
        for (way, passed) in ways {
            let (arrived, seconds) = passed.join().unwrap();
            assert!(arrived == pattern, "{} bytes arrived, or others", arrived.len());
            // Pieces are not always full, and what is not costs as many heads.
            let wire = count(&proxy.report(), way, "streams", "wire_bytes");
            assert!(wire >= wire_bytes(BYTES), "{way}: {wire}");
            let bytes_per_s = (wire - 16_384) as f64 / seconds;
            assert!(close(bytes_per_s, 500_000.0, TOLERANCE), "{way}: {wire} bytes in {seconds} s");
        }
    });
    let report = proxy.report();
    for way in ["forward", "back"] {
        assert_eq!(count(&report, way, "streams", "taken_bytes"), BYTES as u64, "{report}");
        assert_eq!(count(&report, way, "datagrams", "taken"), 0, "{report}");
    }
}

/// What is in the link of a stream that is not read, or read too slowly, is bounded: its sender is held back.
#[test]
fn a_stream_that_is_not_read_holds_its_sender_back() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = proxy(listener.local_addr().unwrap(), "--rate 1 --stream-buffer 20000");
    let mut near = TcpStream::connect(proxy.at).unwrap();
    let (_far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    // A mebibyte takes eight seconds; in the first second the link takes what a second carries, its buffer and a burst.
    let (began, mut offered) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(1) {
        match near.write(&[7; 4096]) {
            Ok(bytes) => offered += bytes,
            Err(_) => thread::yield_now(),
        }
    }
    let taken = count(&proxy.report(), "forward", "streams", "wire_bytes");
    let most = crate::bucket::whole(began.elapsed().as_secs_f64() * 125_000.0) + 16_384 + 20_000;
    assert!(taken <= most && taken > 100_000, "{taken} of {offered} bytes, at most {most}");
}

/// Twice what the link carries: one half arrives, evenly; the other is dropped and counted; what waits is the buffer.
#[test]
fn datagrams_beyond_the_rate_wait_as_long_as_the_buffer_says_and_are_dropped_beyond_it() {
    const BYTES: usize = 1_000;
    const MESSAGES: u32 = 1_600;
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    // A tenth of a second waits.
    let proxy = proxy(far.local_addr().unwrap(), "--rate 4 --buffer 50000 --burst 5000");
    let near = UdpSocket::bind("127.0.0.1:0").unwrap();
    near.connect(proxy.at).unwrap();
    let began = Instant::now();
    let receiving = thread::spawn(move || {
        let mut arrived = Vec::new();
        let mut buffer = [0; 2 * BYTES];
        loop {
            let (bytes, _) = far.recv_from(&mut buffer).unwrap();
            let number = u32::from_le_bytes(*buffer.first_chunk().unwrap());
            if bytes < BYTES {
                return arrived;
            }
            let sent_us = u64::from_le_bytes(*buffer[4..].first_chunk().unwrap());
            let now_us = u64::try_from(began.elapsed().as_micros()).unwrap();
            arrived.push((number, now_us, now_us - sent_us));
        }
    });
    let apart = Duration::from_secs_f64((BYTES as f64 + HEADS_BYTES as f64) / 1e6);
    for number in 0..MESSAGES {
        crate::line::sleep_until(began + apart * number);
        let mut datagram = [0; BYTES];
        datagram[..4].copy_from_slice(&number.to_le_bytes());
        datagram[4..12].copy_from_slice(&u64::try_from(began.elapsed().as_micros()).unwrap().to_le_bytes());
        near.send(&datagram).unwrap();
    }
    // The last one is small, and behind all others once there is room for it.
    while !receiving.is_finished() {
        let _ = near.send(b"end.");
        thread::sleep(Duration::from_millis(20));
    }
    let arrived = receiving.join().unwrap();
    let report = proxy.report();
    let (taken, dropped) =
        (count(&report, "forward", "datagrams", "taken"), count(&report, "forward", "datagrams", "dropped"));
    assert!(taken + dropped >= u64::from(MESSAGES) && dropped > u64::from(MESSAGES) / 3, "{report}");
    assert!(arrived.windows(2).all(|pair| pair[0].0 < pair[1].0), "in order");
    // From where the burst is used up.
    let steady = &arrived[arrived.len() / 4..];
    let ((_, first, _), (_, last, _)) = (steady[0], steady[steady.len() - 1]);
    let bytes = (steady.len() - 1) as f64 * (BYTES as f64 + HEADS_BYTES as f64);
    let rate = bytes * 8.0 / ((last - first) as f64 / 1e6) / 4e6;
    assert!(close(rate, 1.0, TOLERANCE), "{rate} of the rate");
    let mut waited: Vec<u64> = steady.iter().map(|(_, _, waited)| *waited).collect();
    waited.sort_unstable();
    let median = waited[waited.len() / 2] as f64 / 1e6;
    assert!(close(median, 0.1, 0.05), "{median} s in the buffer");
}

#[test]
fn datagrams_of_many_senders_find_back_and_larger_ones_than_a_packet_do_not_pass() {
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let proxy = proxy(far.local_addr().unwrap(), "--mtu 1500");
    let senders: Vec<UdpSocket> = (0..5)
        .map(|_| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(proxy.at).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        })
        .collect();
    let mut buffer = [0; 4096];
    for round in 0..3 {
        for (number, sender) in senders.iter().enumerate() {
            sender.send(&[9; 1_473]).unwrap();
            sender.send(&[u8::try_from(number).unwrap(); 1_472]).unwrap();
        }
        for _ in &senders {
            let (bytes, from) = far.recv_from(&mut buffer).unwrap();
            assert_eq!(bytes, 1_472, "{round}");
            far.send_to(&buffer[..1], from).unwrap();
        }
        for (number, sender) in senders.iter().enumerate() {
            assert_eq!((sender.recv(&mut buffer).unwrap(), usize::from(buffer[0])), (1, number));
        }
    }
    let report = proxy.report();
    assert_eq!(count(&report, "forward", "datagrams", "too_large"), 15, "{report}");
    assert_eq!(count(&report, "back", "datagrams", "wire_bytes"), 15 * (1 + HEADS_BYTES), "{report}");
}

#[test]
fn the_end_of_a_stream_is_passed_on() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = proxy(listener.local_addr().unwrap(), "");
    let mut near = TcpStream::connect(proxy.at).unwrap();
    let (far, _) = listener.accept().unwrap();
    drop(far);
    near.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(near.read(&mut [0; 1]).unwrap(), 0);
    // Nobody listens behind it: a connection ends at once.
    drop(listener);
    let mut near = TcpStream::connect(proxy.at).unwrap();
    near.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(near.read(&mut [0; 1]).map_or(true, |bytes| bytes == 0));
}
