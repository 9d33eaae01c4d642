//! The checks of the fuzz target, over its corpus and over mutations of it.
//!
//! `GLOCAL_FUZZ_INPUTS=10000000 cargo test --release -p glocal-wire nats::fuzz -- --nocapture` is the long run.

use std::time::Instant;

use bytes::BytesMut;

use super::{NatsLimits, Next, Op, client, encode_msg_into, next_op};

#[path = "../../../tests/fuzz/checks/nats_parser.rs"]
mod check;

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fuzz/corpus/nats_parser");
const INPUTS: u64 = 200_000;
const SEED: u64 = 0x6e61_7473_5f65_6467;

fn corpus() -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(CORPUS)
        .expect("the corpus is in the repository")
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
        .collect();
    files.sort();
    assert!(files.len() >= 20, "{} files", files.len());
    files
}

#[test]
fn the_corpus_is_replayed() {
    let found: usize = corpus()
        .iter()
        .map(|(name, data)| {
            // The last line before a panic names the file.
            println!("{name}");
            check::check(data)
        })
        .sum();
    assert!(found > 100, "{found} steps");
}

#[test]
fn mutations_of_the_corpus_hold_every_check() {
    let inputs = std::env::var("GLOCAL_FUZZ_INPUTS").map_or(INPUTS, |text| text.parse().expect("a number"));
    let corpus: Vec<Vec<u8>> = corpus().into_iter().map(|(_, data)| data).collect();
    let mut random = Random(SEED);
    let (mut data, mut found) = (Vec::new(), 0);
    let begin = Instant::now();
    for input in 0..inputs {
        data.clear();
        data.extend_from_slice(random.of::<Vec<u8>>(&corpus));
        for _ in 0..=random.below(4) {
            mutate(&mut data, &corpus, &mut random);
        }
        let checked = std::panic::catch_unwind(|| check::check(&data));
        found += checked.unwrap_or_else(|_| panic!("input {input}: {}", data.escape_ascii()));
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!("{inputs} inputs, {found} steps, {seconds:.1} s, {:.0} inputs/s", inputs as f64 / seconds);
    assert!(found > usize::try_from(inputs).unwrap(), "mutations that no operation survives test nothing");
}

/// xorshift64: the same inputs in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() >> 16).unwrap() % bound.max(1)
    }

    fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// Longest input: a few lines and messages.
const INPUT_BYTES: usize = 4 * 1024;

const WORDS: [&[u8]; 24] = [
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b"\0",
    b"PUB ",
    b"HPUB ",
    b"SUB ",
    b"UNSUB ",
    b"PING\r\n",
    b"pong\n",
    b"CONNECT {}\r\n",
    b"MSG a 1 0\r\n",
    b"NATS/1.0\r\n",
    b"Glocal-Class: ",
    b"0",
    b"-1",
    b"300",
    b"301",
    b"18446744073709551616",
    b"4294967297",
    b"\xff\xfe",
    b"\"",
];

fn mutate(data: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    let at = random.below(data.len() + 1);
    match random.below(8) {
        0 if at < data.len() => data[at] ^= 1 << random.below(8),
        1 if at < data.len() => data[at] = random.next().to_le_bytes()[3],
        2 => data.truncate(at),
        3 => drop(data.splice(at..at, random.of(&WORDS).iter().copied())),
        4 => {
            let end = data.len().min(at + random.below(16));
            drop(data.splice(at..end, random.of(&WORDS).iter().copied()));
        }
        5 => drop(data.drain(at..data.len().min(at + 1 + random.below(8)))),
        6 => {
            let other = random.of(corpus);
            let begin = random.below(other.len() + 1);
            data.truncate(at);
            data.extend_from_slice(&other[begin..]);
        }
        _ => {
            // A number becomes another one, of nearly the same value.
            if let Some(digit) = data.iter_mut().skip(at).find(|byte| byte.is_ascii_digit()) {
                *digit = b'0' + u8::try_from(random.below(10)).unwrap();
            }
        }
    }
    data.truncate(INPUT_BYTES);
}

/// Not a gate: what one publish costs, in and out, printed for whoever runs this in a release build.
#[test]
fn publishes_are_counted_and_their_cost_is_printed() {
    const OPS: usize = 1_000;
    let rounds = if cfg!(debug_assertions) { 2 } else { 2_000 };
    let limits = NatsLimits::open(1024 * 1024, true);
    for (name, headers, bytes) in [("PUB", false, 16), ("PUB", false, 256), ("HPUB", true, 16), ("HPUB", true, 256)] {
        let mut stream = BytesMut::new();
        for _ in 0..OPS {
            let (subject, payload) = (b"orders.eu.new.4711", vec![b'x'; bytes]);
            if headers {
                let block = b"NATS/1.0\r\nGlocal-Class: bulk\r\n\r\n";
                client::encode_hpub_into(&mut stream, subject, b"", block, &payload).unwrap();
            } else {
                client::encode_pub_into(&mut stream, subject, b"", &payload).unwrap();
            }
        }
        let mut out = BytesMut::with_capacity(1024 * 1024);
        let parse = fastest(rounds, || each(std::hint::black_box(&stream), &limits, |_| {}));
        let both = fastest(rounds, || {
            out.clear();
            each(std::hint::black_box(&stream), &limits, |op| {
                let (subject, headers, payload) = match op {
                    Op::Pub { subject, payload, .. } => (subject, &b""[..], payload),
                    Op::Hpub { subject, headers, payload, .. } => (subject, headers, payload),
                    other => panic!("{other:?}"),
                };
                encode_msg_into(&mut out, subject, b"1", b"", headers, payload).unwrap();
            })
        });
        println!("{name} {bytes} B: {parse:.1} ns parsed, {both:.1} ns parsed and encoded");
    }
}

/// The nanoseconds per operation of the fastest round, which other work on the machine disturbed least.
fn fastest(rounds: usize, mut round: impl FnMut() -> usize) -> f64 {
    let mut least = f64::INFINITY;
    for _ in 0..rounds {
        let begin = Instant::now();
        let count = round();
        least = least.min(begin.elapsed().as_secs_f64() * 1e9 / count as f64);
    }
    least
}

/// Calls `f` for each operation of a stream, and counts them.
fn each(stream: &[u8], limits: &NatsLimits, mut f: impl FnMut(Op<'_>)) -> usize {
    let (mut rest, mut count) = (stream, 0);
    while let Next::Op { op, bytes } = next_op(rest, limits).unwrap() {
        f(std::hint::black_box(op));
        rest = &rest[bytes..];
        count += 1;
    }
    count
}
