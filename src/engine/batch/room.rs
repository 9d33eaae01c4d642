//! Whether a batch has found room, for the rests of floods ([`glocal_core::rate::Rest`]).

/// Whether there was room for what was flushed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    /// Some target took it.
    pub(super) anywhere: bool,
    /// Some edge lost more than half of as much.
    is_lost: bool,
}

impl Room {
    /// An edge was given so many frames and lost so many.
    pub(super) const fn add(&mut self, given: u64, lost: u64) {
        let is_lost = lost > given / 2;
        self.is_lost |= is_lost;
        self.anywhere |= given > 0 && !is_lost;
    }

    /// Whether most was lost on every edge, and nothing was for anybody else.
    pub(super) const fn is_nowhere(self) -> bool {
        self.is_lost && !self.anywhere
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_no_room_only_where_every_edge_loses_most_of_it() {
        let room = |edges: &[(u64, u64)]| {
            let mut room = Room::default();
            edges.iter().for_each(|(given, lost)| room.add(*given, *lost));
            room.is_nowhere()
        };
        assert!(!room(&[]) && !room(&[(10, 0)]) && !room(&[(10, 5)]) && !room(&[(0, 0)]));
        assert!(room(&[(10, 6)]) && room(&[(10, 10), (3, 2)]));
        assert!(!room(&[(10, 10), (1, 0)]), "one edge has room");
        let mut room = Room { anywhere: true, ..Room::default() };
        room.add(10, 10);
        assert!(!room.is_nowhere(), "somebody here gets it");
    }
}
