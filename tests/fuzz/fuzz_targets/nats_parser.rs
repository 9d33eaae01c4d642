//! The parser of the NATS text protocol, over any bytes.

#![no_main]

#[path = "../checks/nats_parser.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check::check(data);
});
