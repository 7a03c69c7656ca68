//! In what order the clients of a stress case were granted their permits.

use std::time::Instant;

use super::stress::PLACES;

/// A grant that was held.
#[derive(Debug)]
pub(super) struct Granted {
    /// The number of its name.
    pub(super) place: usize,
    /// `None`: it did not wait.
    pub(super) position: Option<i64>,
    pub(super) fence: i64,
    /// It is no reader: these share the fence of the last write.
    pub(super) is_new: bool,
    /// When its join was sent, and answered.
    pub(super) joined: (Instant, Instant),
}

impl Granted {
    /// Whether it had its place in the queue, or its permit, before the other one asked.
    fn is_before(&self, other: &Self) -> bool {
        let by_time = self.joined.1 < other.joined.0;
        let by_position = self.position.is_some() && other.position > self.position;
        self.place == other.place && (by_time || by_position)
    }
}

/// Who was before another one has an earlier fence.
pub(super) fn in_order(granted: &[Granted]) {
    for (n, (name, _)) in PLACES.iter().enumerate() {
        let turn = |granted: &&Granted| granted.place == n && granted.position.is_some();
        let turns = granted.iter().filter(turn).count();
        assert!(turns > 0, "nobody had a turn: {name}");
    }
    for next in granted {
        for last in granted.iter().filter(|last| last.is_before(next)) {
            let (last_fence, fence) = (last.fence, next.fence);
            let is_later = last_fence < fence || (last_fence == fence && !next.is_new);
            assert!(is_later, "{next:?} has overtaken {last:?}");
        }
    }
}
