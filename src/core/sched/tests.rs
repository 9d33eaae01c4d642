//! Tests of the schedulers: rules of the lanes, shares, and a model that checks every byte.

mod bound;
mod caps;
mod gate;
mod lanes;
mod memory;
mod model;
mod shares;
mod window;

use bytes::Bytes;

use super::*;

const ZERO: Time = Time(0);
const A: TenantKey = TenantKey(1);
const B: TenantKey = TenantKey(2);
const C: TenantKey = TenantKey(3);

static ZEROS: [u8; 65_536] = [0; 65_536];

fn frame(len: usize) -> QueuedFrame {
    QueuedFrame::new(Bytes::from_static(&ZEROS).slice(..len))
}

/// A small deterministic generator: the same seed, the same test.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// 16 B to 64 KiB, every power of two equally likely.
    fn frame_bytes(&mut self) -> usize {
        let ceiling = 32u64 << (self.next() % 12);
        usize::try_from(ceiling / 2 + self.next() % (ceiling / 2 + 1)).unwrap()
    }
}

/// Pops one slice and forgets its bytes.
fn slice_of(hdwrr: &mut Hdwrr) -> Option<Slice> {
    hdwrr.next_slice(ZERO, &mut Vec::new(), &mut Drops::new())
}

fn push(hdwrr: &mut Hdwrr, tenant: TenantKey, class: Class, len: usize) {
    let pushed = hdwrr.push(tenant, class, frame(len), ZERO, &mut Drops::new());
    assert_eq!(pushed, Pushed::Queued);
}
