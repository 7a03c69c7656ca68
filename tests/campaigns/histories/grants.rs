//! What a history tells about grants, whatever the primitive: when each was given, and when it can have ended. The
//! head text of [`super`] explains it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::event::{Answer, Ask, Grant, Record, is_in_session};

/// How much earlier than its TTL a lease may end by this host's monotonic clock: the database reads another clock,
/// perhaps in milliseconds.
const CLOCKS: Duration = Duration::from_millis(2);

/// What the history tells about a grant.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) invoked: Duration,
    /// At this moment it had been granted: its acquire had its answer, or another operation had seen the grant.
    pub(crate) known: Duration,
    /// The last answer that says of it that it was live.
    pub(crate) told: Duration,
    pub(crate) is_hidden: bool,
    pub(crate) is_released: bool,
    /// Before this moment it cannot have ended without an answered release.
    pub(crate) ends: Duration,
}

/// The grants of a name. An acquire's grant keeps the fence that it began with, as its name.
pub(crate) struct Grants(pub(crate) BTreeMap<Grant, Facts>);

impl Grants {
    /// Those that acquires returned, and what their holders tell.
    pub(crate) fn returned(records: &[Record], ttl: Duration) -> Self {
        let mut grants = Self(BTreeMap::new());
        for record in records {
            if let Some((at, Answer::Granted(fence))) = record.answer {
                let by = record.id;
                // The session may have been renewed long before.
                let shortest = if is_in_session(by) {
                    Duration::ZERO
                } else {
                    ttl.saturating_sub(CLOCKS)
                };
                let facts = Facts {
                    invoked: record.asked,
                    known: at,
                    told: at,
                    is_hidden: false,
                    is_released: false,
                    ends: record.asked + shortest,
                };
                grants.0.insert(Grant { fence, by }, facts);
            }
        }
        for record in records {
            grants.take_in(record);
        }
        grants
    }

    /// Takes in what a record tells about a grant that was returned before.
    fn take_in(&mut self, record: &Record) {
        match (&record.ask, &record.answer) {
            (Ask::Release(grant), Some((_, Answer::Released))) => {
                self.get(grant).is_released = true;
            }
            // The release may reach the database, whatever the holder is told about it.
            (Ask::Release(grant) | Ask::Drop(grant), _) => {
                let facts = self.get(grant);
                facts.ends = facts.ends.min(record.asked);
            }
            // The holder's deadline is never later than the expiry.
            (Ask::Check(grant), Some((at, Answer::Trusted(remaining)))) => {
                self.is_live(grant, record.asked + *remaining, *at);
            }
            (Ask::Downgrade(grant), Some((at, Answer::Downgraded)))
            | (Ask::Upgrade(grant), Some((at, Answer::Upgraded(_)))) => {
                self.is_live(grant, record.asked, *at);
            }
            _ => {}
        }
    }

    /// The grant was live until a moment at the earliest. That was told at `at`.
    fn is_live(&mut self, grant: &Grant, until: Duration, at: Duration) {
        let facts = self.get(grant);
        facts.ends = facts.ends.max(until);
        facts.told = facts.told.max(at);
    }

    /// A grant that its acquire returned.
    fn get(&mut self, grant: &Grant) -> &mut Facts {
        self.0.get_mut(grant).expect("its acquire told it first")
    }
}

/// What a history has in it, for the output of the test.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) names: usize,
    pub(crate) operations: usize,
    /// Operations without an answer.
    pub(crate) open: usize,
    pub(crate) grants: usize,
    /// Grants that no acquire returned, and that other operations saw: the grant, or its fence.
    pub(crate) hidden: usize,
    /// Grants that ended without an answered release.
    pub(crate) ends: usize,
    /// Busy answers without a holder. They are left out: they say nothing about the name.
    pub(crate) changing: usize,
    pub(crate) downgrades: usize,
    pub(crate) upgrades: usize,
}

impl Counts {
    pub(crate) fn take_in(&mut self, records: &[Record]) {
        self.names += 1;
        self.operations += records.len();
        for record in records {
            self.open += usize::from(record.answer.is_none());
            let is_changing = matches!(record.answer, Some((_, Answer::Busy(None))));
            self.changing += usize::from(is_changing);
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations on {} names, {} of them open; {} grants, {} ended without an answered release, {} not returned; {} busy answers \
             without a holder",
            self.operations,
            self.names,
            self.open,
            self.grants,
            self.ends,
            self.hidden,
            self.changing
        )?;
        if self.downgrades + self.upgrades > 0 {
            let Self {
                downgrades,
                upgrades,
                ..
            } = self;
            write!(f, "; {downgrades} downgrades, {upgrades} upgrades")?;
        }
        Ok(())
    }
}
