//! QUIC's first packets by hand (RFC 9000 section 17.2.2, RFC 9001 section 5.2): well protected, and with whatever inside.

use std::sync::Arc;

use rustls::Side;
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::{ClientConnection, Keys, Version};

use super::peer::server_name;

/// What datagrams of a first flight are filled up to, in bytes (RFC 9000 section 14.1).
const DATAGRAM_BYTES: usize = 1200;
const TAG_BYTES: usize = 16;
const PACKET_NUMBER_BYTES: usize = 4;

/// Pseudo-random numbers that are the same in every run: xorshift64*.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound.max(1)).unwrap()).unwrap()
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| u8::try_from(self.next() >> 56).unwrap()).collect()
    }
}

/// A number of QUIC's variable length (RFC 9000 section 16), in the two bytes or eight that hold it.
pub(crate) fn number(value: u64) -> Vec<u8> {
    if value < 1 << 14 {
        u16::try_from(value | 0x4000).unwrap().to_be_bytes().to_vec()
    } else {
        ((value & ((1 << 62) - 1)) | 0xc000_0000_0000_0000).to_be_bytes().to_vec()
    }
}

/// An Initial packet that its receiver can decrypt, filled up to a datagram, with these frames.
pub(crate) fn packet(dcid: &[u8], version: u32, token: &[u8], packet_number: u32, frames: &[u8]) -> Vec<u8> {
    let suite = TLS13_AES_128_GCM_SHA256.tls13().unwrap();
    let keys = Keys::initial(Version::V1, suite, suite.quic.unwrap(), dcid, Side::Client);
    let mut header = vec![0xc3];
    header.extend_from_slice(&version.to_be_bytes());
    header.push(u8::try_from(dcid.len()).unwrap());
    header.extend_from_slice(dcid);
    // A source connection id of its own length.
    header.extend_from_slice(&[4, 1, 2, 3, 4]);
    header.extend_from_slice(&number(token.len() as u64));
    header.extend_from_slice(token);
    let least = DATAGRAM_BYTES.saturating_sub(header.len() + 2 + PACKET_NUMBER_BYTES + TAG_BYTES);
    let mut payload = frames.to_vec();
    payload.resize(payload.len().max(least), 0);
    header.extend_from_slice(&number((PACKET_NUMBER_BYTES + payload.len() + TAG_BYTES) as u64));
    let at = header.len();
    header.extend_from_slice(&packet_number.to_be_bytes());
    let tag = keys.local.packet.encrypt_in_place(packet_number.into(), &header, &mut payload).unwrap();
    let mut out = header;
    out.extend_from_slice(&payload);
    out.extend_from_slice(tag.as_ref());
    let (head, rest) = out.split_at_mut(at + PACKET_NUMBER_BYTES);
    let (first, number) = head.split_at_mut(at);
    let sample = &rest[..keys.local.header.sample_len()];
    keys.local.header.encrypt_in_place(sample, &mut first[0], number).unwrap();
    out
}

/// A CRYPTO frame (RFC 9000 section 19.6).
pub(crate) fn crypto(offset: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x06];
    out.extend_from_slice(&number(offset));
    out.extend_from_slice(&number(bytes.len() as u64));
    out.extend_from_slice(bytes);
    out
}

/// The first flight of a client with these transport parameters, whatever they are: one or two datagrams.
pub(crate) fn first_flight(tls: &Arc<rustls::ClientConfig>, dcid: &[u8], parameters: &[u8]) -> Vec<Vec<u8>> {
    let mut client = ClientConnection::new(Arc::clone(tls), Version::V1, server_name(), parameters.to_vec()).unwrap();
    let mut hello = Vec::new();
    client.write_hs(&mut hello);
    let mut flight = Vec::new();
    let mut offset = 0;
    for (part, packet_number) in hello.chunks(1000).zip(0..) {
        flight.push(packet(dcid, 1, b"", packet_number, &crypto(offset, part)));
        offset += part.len() as u64;
    }
    flight
}

/// One transport parameter (RFC 9000 section 18).
pub(crate) fn parameter(id: u64, value: &[u8]) -> Vec<u8> {
    let mut out = number(id);
    out.extend_from_slice(&number(value.len() as u64));
    out.extend_from_slice(value);
    out
}

/// Transport parameters that no client may send.
pub(crate) fn bad_parameters() -> Vec<(&'static str, Vec<u8>)> {
    let source = || parameter(0x0f, &[1, 2, 3, 4]);
    let with = |id, value: &[u8]| [source(), parameter(id, value)].concat();
    let huge = number((1 << 62) - 1);
    vec![
        ("none at all", Vec::new()),
        ("no source connection id", parameter(0x04, &number(1 << 20))),
        ("another source connection id", parameter(0x0f, &[9; 20])),
        ("a source connection id that is too long", parameter(0x0f, &[9; 255])),
        ("the source connection id twice", [source(), source()].concat()),
        ("a datagram size of 0", with(0x03, &number(0))),
        ("a datagram size below the least", with(0x03, &number(1199))),
        ("an exponent beyond the greatest", with(0x0a, &number(21))),
        ("an acknowledgement delay beyond the greatest", with(0x0b, &number(1 << 14))),
        ("more bidirectional streams than there are", with(0x08, &huge)),
        ("more unidirectional streams than there are", with(0x09, &huge)),
        ("a limit of connection ids below the least", with(0x0e, &number(1))),
        ("a limit of connection ids of 0", with(0x0e, &number(0))),
        ("an original connection id", with(0x00, &[7; 8])),
        ("a reset token", with(0x02, &[7; 16])),
        ("a preferred address", with(0x0d, &[7; 41])),
        ("a preferred address cut short", with(0x0d, &[7; 5])),
        ("a source connection id of a retry", with(0x10, &[7; 8])),
        ("a flag with a value", with(0x0c, &[1])),
        ("a least acknowledgement delay above the greatest", with(0xff04_de1b, &huge)),
        ("a value that is no number", with(0x04, &[0xff])),
        ("a value with bytes to spare", with(0x04, &[0x40, 1, 2, 3])),
        ("an idle timeout beyond all", with(0x01, &huge)),
        (
            "windows beyond all",
            [source(), parameter(0x04, &huge), parameter(0x05, &huge), parameter(0x07, &huge)].concat(),
        ),
        ("a length beyond the end", [source(), vec![0x04, 0x3f, 1]].concat()),
        ("a number cut short", [source(), vec![0xc0]].concat()),
        ("a thousand unknown ones", (0..1000u64).flat_map(|n| parameter(31 * n + 27, b"")).collect()),
        ("noise", (0..=255).collect()),
    ]
}
