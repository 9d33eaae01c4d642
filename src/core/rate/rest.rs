//! Rests of a session whose messages are lost as fast as they are read.

use crate::limits::FLOOD_REST_MS_MAX;

/// How long a session rests between batches.
///
/// What is published in `live` or `tele` and finds every edge it goes to full is lost whether it is read soon or not; reading
/// it costs the other tenants the processor. Rests double while batches are lost, up to [`FLOOD_REST_MS_MAX`], and halve
/// when there is room: a flood goes on at about the rate of the edge it wants to cross. A batch that also goes where there is room
/// makes no rest, so that nobody gets less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    millis: u64,
}

impl Rest {
    /// The rest after a batch, in milliseconds, and whether that batch was `lost`; `None` for none.
    pub fn after(&mut self, lost: bool) -> Option<u64> {
        self.millis = if lost { (self.millis * 2).clamp(1, FLOOD_REST_MS_MAX) } else { self.millis / 2 };
        (self.millis > 0).then_some(self.millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_while_all_is_lost_and_end_when_there_is_room() {
        let mut rest = Rest::default();
        assert_eq!(rest.after(false), None, "no rest without loss");
        let rests: Vec<_> = (0..7).map(|_| rest.after(true).unwrap()).collect();
        assert_eq!(rests, [1, 2, 4, 8, 16, FLOOD_REST_MS_MAX, FLOOD_REST_MS_MAX]);
        assert_eq!([(); 6].map(|()| rest.after(false)), [Some(16), Some(8), Some(4), Some(2), Some(1), None]);
    }
}
