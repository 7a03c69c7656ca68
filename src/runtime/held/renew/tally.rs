//! The log's report on renewals that come too late: counts, once a second at most.

use std::time::Duration;

use crate::model::Moment;
use crate::runtime::base::meter;

/// Events within this time share a report.
const SPAN: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Tally {
    /// When the first counted event happened.
    since: Option<Moment>,
    late: usize,
    lost: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct LossReport {
    /// How many leases have a third of their time left without a confirmed renewal.
    pub(super) late: usize,
    /// How many leases were lost.
    pub(super) lost: usize,
    /// How many leases are held.
    pub(super) held: usize,
}

impl Tally {
    pub(super) fn late(&mut self, now: Moment, leases: usize) {
        meter::late(leases);
        self.late += leases;
        self.since.get_or_insert(now);
    }

    pub(super) fn lost(&mut self, now: Moment, leases: usize) {
        self.lost += leases;
        self.since.get_or_insert(now);
    }

    /// When the next report is due.
    pub(super) fn due(&self) -> Option<Moment> {
        self.since.map(|since| since + SPAN)
    }

    pub(super) fn report(&mut self, now: Moment, held: usize, at_once: bool) -> Option<LossReport> {
        let due = self.due()?;
        if now < due && !at_once {
            return None;
        }
        let told = std::mem::take(self);
        Some(LossReport {
            late: told.late,
            lost: told.lost,
            held,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_within_a_second_is_told_once() {
        let start = Moment::now();
        let second = start + SPAN;
        let mut tally = Tally::default();
        assert_eq!((tally.due(), tally.report(second, 9, true)), (None, None));
        tally.late(start, 1);
        tally.late(start + SPAN / 2, 1);
        tally.lost(start + SPAN / 2, 1);
        assert_eq!(tally.due(), Some(second));
        assert_eq!(tally.report(start + SPAN / 2, 9, false), None);
        let told = LossReport {
            late: 2,
            lost: 1,
            held: 9,
        };
        assert_eq!(tally.report(second, 9, false), Some(told));
        assert_eq!((tally.due(), tally.report(second, 9, true)), (None, None));
        tally.lost(second, 1);
        assert!(tally.report(second, 8, true).is_some());
    }
}
