//! Who leads, for processes that need not be candidates.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::{Instant, sleep_until};

use rowlock::Rowlock;
use rowlock::{Error, InvalidError, LockInfo, Mode, Name};

/// The leader of an election, as the database describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The text that the leader has given as [`Election::candidate`](super::Election::candidate).
    pub candidate: String,
    /// Its term: greater than the term of every earlier leader.
    pub term: i64,
    /// When its term began, by the database's clock.
    pub since: DateTime<Utc>,
    /// When its term ends unless it is renewed, by the database's clock.
    pub until: DateTime<Utc>,
    /// The time from the reading of the row to `until`.
    pub remaining: Duration,
}

/// What an [`Observer`] has seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// This leader leads, in a term that was not reported before.
    Leads(Leader),
    /// Nobody leads.
    Vacant,
}

/// Yields each change of the leader that it sees: made by [`Election::observer`](super::Election::observer).
///
/// It asks the database at an [interval](Self::interval), on the client's own connections, and holds no lease. A
/// leader that comes and goes between two looks is not seen. Terms only rise: no term is reported twice, and none
/// after a later one.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/locks.db", dir.path().display());
/// # let rowlock = rowlock::Rowlock::connect(&url).await?;
/// use std::time::Duration;
/// use rowlock_recipes::leader::{Change, Election};
///
/// let election = Election::new(&rowlock, "scheduler").candidate("host-7:8080");
/// # let leadership = election.campaign().await?;
/// let mut observer = election.observer().interval(Duration::from_millis(500));
/// loop {
///     match observer.next().await {
///         Ok(Change::Leads(leader)) => println!("send requests to {}", leader.candidate),
///         Ok(Change::Vacant) => println!("nobody leads: keep requests"),
///         Err(error) if error.is_transient() => eprintln!("nobody knows who leads: {error}"),
///         Err(error) => return Err(error.into()),
///     }
/// #   break;
/// }
/// # drop(leadership);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "an observer does nothing until it is asked"]
pub struct Observer {
    rowlock: Rowlock,
    name: Result<Name, Error>,
    interval: Duration,
    /// `None`: it has not looked yet.
    next_look: Option<Instant>,
    reported: Reported,
}

impl Observer {
    const SHORTEST: Duration = Duration::from_millis(10);
    const LONGEST: Duration = Duration::from_hours(1);

    pub(super) fn new(rowlock: Rowlock, name: Result<Name, Error>) -> Self {
        Self {
            rowlock,
            name,
            interval: Duration::from_secs(1),
            next_look: None,
            reported: Reported::default(),
        }
    }

    /// The time between two looks: 10 ms to 1 h; 1 s when not set. An observer learns of a change up to this time
    /// later. Each look is one short statement.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// The next change. The first call reports at once who leads. Each later call returns when a later term has begun,
    /// or when there is no leader any more. It asks the database at most once in an interval, however often it is
    /// called or its future is dropped, and only during a call.
    ///
    /// # Errors
    ///
    /// An interval out of bounds, an invalid name, a damaged row; or a database out of reach: then it is unknown who
    /// leads, and the caller decides for how long to use the last known leader. The observer stays usable. The next
    /// call asks again, after the interval.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`).
    ///
    /// # Cancel safety
    ///
    /// No change is missed or reported twice when the future is dropped.
    pub async fn next(&mut self) -> Result<Change, Error> {
        let allowed = Self::SHORTEST..=Self::LONGEST;
        if !allowed.contains(&self.interval) {
            return Err(Error::Invalid(InvalidError::Duration {
                setting: "interval",
                given: self.interval,
                bounds: "10 ms to 1 h are allowed",
            }));
        }
        let name = self.name.clone()?;
        loop {
            if let Some(next_look) = self.next_look {
                sleep_until(next_look).await;
            }
            // Before the look, which may fail or be dropped.
            self.next_look = Some(Instant::now() + self.interval);
            let leader = leader_of(&self.rowlock, name.clone()).await?;
            if let Some(change) = self.reported.change(leader) {
                return Ok(change);
            }
        }
    }
}

/// Who leads now.
pub(super) async fn leader_of(rowlock: &Rowlock, name: Name) -> Result<Option<Leader>, Error> {
    let info = rowlock.inspect(name).await?;
    // A permit is no leadership.
    let info = info.filter(|info| info.mode == Mode::Lock);
    Ok(info.map(|info: LockInfo| Leader {
        candidate: info.holder,
        term: info.fence,
        since: info.acquired_at,
        until: info.expires_at,
        remaining: info.remaining,
    }))
}

/// What an observer has reported.
#[derive(Debug, Default)]
struct Reported {
    /// The last term.
    term: Option<i64>,
    /// The last report was that nobody leads.
    vacant: bool,
}

impl Reported {
    /// What is new, if there is something new.
    fn change(&mut self, leader: Option<Leader>) -> Option<Change> {
        match leader {
            Some(leader) if self.term.is_none_or(|term| term < leader.term) => {
                self.term = Some(leader.term);
                self.vacant = false;
                Some(Change::Leads(leader))
            }
            // It was reported, or it is older than a report: a server that lags behind may show such a row.
            Some(_) => None,
            None if self.vacant => None,
            None => {
                self.vacant = true;
                Some(Change::Vacant)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leader(term: i64) -> Leader {
        Leader {
            candidate: "host-7".into(),
            term,
            since: DateTime::UNIX_EPOCH,
            until: DateTime::UNIX_EPOCH,
            remaining: Duration::ZERO,
        }
    }

    #[test]
    fn each_term_is_reported_once_and_none_after_a_later_one() {
        let mut reported = Reported::default();
        let looks = [0, 0, 4, 4, 0, 4, 3, 7, 4, 9, 0];
        let looks = looks.map(|term| (term != 0).then(|| leader(term)));
        let changes = looks.into_iter().filter_map(|look| reported.change(look));
        let terms: Vec<_> = changes
            .map(|change| match change {
                Change::Leads(leader) => leader.term,
                Change::Vacant => 0,
            })
            .collect();
        assert_eq!(terms, [0, 4, 0, 7, 9, 0]);
    }
}
