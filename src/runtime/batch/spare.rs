//! How many connections a client has, and who shares one.
//!
//! | connections | lanes | renewals, and looks at rows, queues and sessions | the rest |
//! | --- | --- | --- | --- |
//! | 2 | 1, shared with the renewals and the looks | | 1 |
//! | 3 | 1 | 1 | 1 |
//! | 4 | 2 | 1 | 1 |
//! | more | 2 | 1 | all others |
//!
//! The rest is what may take long, or is not needed: lists and forced releases, the cleaner, and the LISTEN
//! connection. They have the spare connections in turn. So no list keeps an acquire or a renewal waiting.

use std::sync::Arc;

use tokio::select;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::link::Link;
use crate::model::Moment;
use crate::runtime::base::timer::sleep_until;
use crate::store::verbs::fault::Fault;

/// How a client divides its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Division {
    pub(crate) lanes: usize,
    pub(crate) sharing: Sharers,
    pub(crate) spare: usize,
}

/// Who shares the connection of the renewals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharers {
    /// The looks and the only lane.
    LaneAndLooks,
    Looks,
    /// Each look has one of its own.
    Nobody,
}

/// The connections to a file, which has no limit. (An application's transaction may keep all that write waiting.)
pub(crate) const FILE: Division = Division {
    lanes: 1,
    sharing: Sharers::Nobody,
    spare: 6,
};

impl Division {
    /// `lanes`: as many as are useful.
    pub(crate) fn of(connections: u32, lanes: usize) -> Self {
        let connections = usize::try_from(connections).unwrap_or(usize::MAX);
        let (lanes, sharing, others) = match connections {
            ..=2 => (1, Sharers::LaneAndLooks, 0),
            3 => (1, Sharers::Looks, 1),
            _ => (lanes, Sharers::Looks, 1),
        };
        let spare = connections.saturating_sub(lanes + others).max(1);
        Self {
            lanes,
            sharing,
            spare,
        }
    }
}

/// The links that share the connection of the renewals, or do not.
#[derive(Debug)]
pub(crate) struct RenewalLinks {
    pub(crate) renewals: Link,
    sharing: Sharers,
}

impl RenewalLinks {
    pub(crate) fn of(first: &Link, sharing: Sharers) -> Self {
        let renewals = match sharing {
            Sharers::LaneAndLooks => first.beside(),
            Sharers::Looks | Sharers::Nobody => first.another(),
        };
        Self { renewals, sharing }
    }

    pub(crate) fn another(&self) -> Link {
        match self.sharing {
            Sharers::LaneAndLooks | Sharers::Looks => self.renewals.beside(),
            Sharers::Nobody => self.renewals.another(),
        }
    }
}

/// The spare connections of a client.
#[derive(Debug)]
pub(crate) struct Spare {
    permits: Arc<Semaphore>,
    has_several: bool,
    /// How many tasks wait for a connection.
    waiting: watch::Sender<usize>,
}

impl Spare {
    pub(crate) fn new(connections: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(connections)),
            has_several: connections > 1,
            waiting: watch::Sender::default(),
        }
    }

    pub(crate) fn has_several(&self) -> bool {
        self.has_several
    }

    pub(crate) async fn take(&self) -> OwnedSemaphorePermit {
        let permits = Arc::clone(&self.permits);
        if let Ok(permit) = Arc::clone(&permits).try_acquire_owned() {
            return permit;
        }
        let _waits = Waits::new(&self.waiting);
        permits.acquire_owned().await.expect("it is never closed")
    }

    /// Resolves when a task waits for a connection. Who has one that is not needed gives it back then: the listener,
    /// and a [`SpareLink`] that rests.
    pub(crate) async fn wanted(&self) {
        // The sender is here.
        let _ = self
            .waiting
            .subscribe()
            .wait_for(|number| *number > 0)
            .await;
    }
}

/// A task that waits for a connection.
struct Waits<'a>(&'a watch::Sender<usize>);

impl<'a> Waits<'a> {
    fn new(waiting: &'a watch::Sender<usize>) -> Self {
        waiting.send_modify(|number| *number += 1);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|number| *number -= 1);
    }
}

/// A spare connection that is kept between two uses, unless somebody else needs it.
#[derive(Debug)]
pub(crate) struct SpareLink<'a> {
    link: Link,
    spare: &'a Spare,
    room: Option<OwnedSemaphorePermit>,
}

impl<'a> SpareLink<'a> {
    pub(crate) fn new(link: Link, spare: &'a Spare) -> Self {
        Self {
            link,
            spare,
            room: None,
        }
    }

    pub(crate) async fn connected(&mut self) -> Result<&mut Link, Fault> {
        if self.room.is_none() {
            self.room = Some(self.spare.take().await);
        }
        self.link.connect().await?;
        Ok(&mut self.link)
    }

    /// Closes the connection.
    pub(crate) async fn give_back(&mut self) {
        self.link.hang_up().await;
        self.room = None;
    }

    /// Rests until `at`. Gives the connection back when somebody needs it.
    pub(crate) async fn rest(&mut self, at: Moment) {
        select! {
            () = sleep_until(at) => return,
            () = self.spare.wanted() => {}
        }
        self.give_back().await;
        sleep_until(at).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_division_has_as_many_connections_as_are_allowed_and_one_to_spare() {
        let others = |sharing| usize::from(sharing != Sharers::LaneAndLooks);
        for connections in 2..=9 {
            for lanes in 1..=2 {
                let division = Division::of(connections, lanes);
                let all = division.lanes + others(division.sharing) + division.spare;
                assert_eq!(all, connections as usize, "{division:?}");
                assert!(division.lanes >= 1 && division.spare >= 1, "{division:?}");
            }
        }
        assert_eq!(Division::of(4, 2).lanes, 2);
    }

    #[tokio::test]
    async fn who_has_a_spare_connection_that_is_not_needed_hears_that_somebody_waits() {
        let spare = Spare::new(1);
        let lent = spare.take().await;
        let give_back = async {
            spare.wanted().await;
            drop(lent);
        };
        let (_taken, ()) = tokio::join!(spare.take(), give_back);
        select! {
            biased;
            () = spare.wanted() => panic!("no task waits any more"),
            () = tokio::task::yield_now() => {}
        }
    }
}
