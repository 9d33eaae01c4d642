//! Randomness, in one place: sessions, NATS client ids and the pauses between dials draw from it.

/// 64 bits nobody can guess.
pub(crate) fn rand_u64() -> u64 {
    let mut bytes = [0; 8];
    // Without randomness a reply inbox is merely guessable, which policy guards and not secrecy, and a pause regular.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    u64::from_le_bytes(bytes)
}
