//! The guard: the leases of the members.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::AbortHandle;

use super::members::Members;
use super::round::{Round, until};
use rowlock::Held;
use rowlock::Transaction;
use rowlock::{Error, InvalidError, Loss, Name};

/// A lock that a majority of the databases has granted; see the [module](super).
///
/// # Drop
///
/// Dropping returns at once and releases in the background, in every database. Call
/// [`Rowlock::flush`](rowlock::Rowlock::flush) of the members before the process exits.
#[must_use = "a lock is released when it is dropped, and `let _` drops it at once: give it a name, such as `held`"]
pub struct QuorumHeld {
    name: Name,
    fence: i64,
    leases: Arc<Leases>,
    repair: AbortHandle,
}

impl fmt::Debug for QuorumHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumHeld")
            .field("name", &self.name)
            .field("fence", &self.fence)
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}

/// The lease of each member. When fewer than a majority of them are held, the lock is lost, and no lease is added any
/// more.
#[derive(Debug)]
pub(super) struct Leases {
    each: Mutex<Vec<Option<Arc<Held>>>>,
    majority: usize,
    /// How the lock was lost, when the leases were given up.
    loss: OnceLock<Loss>,
}

impl Leases {
    /// Those that are held.
    fn held(&self) -> Vec<Arc<Held>> {
        let each = self.each.lock();
        let held = each.iter().flatten().filter(|held| held.is_held());
        held.cloned().collect()
    }

    /// The members whose leases are not held. `None`: fewer than a majority are held.
    pub(super) fn missing(&self) -> Option<Vec<usize>> {
        let each = self.each.lock();
        let is_held = |lease: &Option<Arc<Held>>| lease.as_ref().is_some_and(|held| held.is_held());
        let missing = each.iter().enumerate().filter(|(_, lease)| !is_held(lease));
        let missing: Vec<usize> = missing.map(|(member, _)| member).collect();
        (each.len() - missing.len() >= self.majority).then_some(missing)
    }

    /// Adds the lease of a member. If the lock is lost, it drops the lease instead.
    pub(super) fn add(&self, member: usize, lease: Held) {
        let mut each = self.each.lock();
        let held = each.iter().flatten().filter(|held| held.is_held()).count();
        if held >= self.majority {
            each[member] = Some(Arc::new(lease));
        }
    }

    /// The lock is lost: releases the leases that are left, in the background. They would stop the next holder for as
    /// long as the guard lives.
    pub(super) fn give_up(&self) {
        let _ = self.loss.set(self.loss());
        let given_up: Vec<_> = self.each.lock().iter_mut().map(Option::take).collect();
        drop(given_up);
    }

    /// How the lock was lost: `Expired`, unless a lease was lost in another way.
    fn loss(&self) -> Loss {
        if let Some(loss) = self.loss.get() {
            return *loss;
        }
        let each = self.each.lock();
        let losses = each.iter().flatten().filter_map(|held| held.loss());
        telling(losses).unwrap_or(Loss::Expired)
    }

    /// The time until fewer than a majority are trusted.
    fn remaining(&self) -> Duration {
        let mut left: Vec<Duration> = self.held().iter().map(|held| held.remaining()).collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        left.get(self.majority - 1).copied().unwrap_or_default()
    }
}

impl QuorumHeld {
    /// A majority of `leases` is held, and each of these has the fence `fence`.
    pub(super) fn new(
        name: Name,
        fence: i64,
        leases: Vec<Option<Held>>,
        members: &Arc<Members>,
        repair: impl FnOnce(Arc<Leases>) -> AbortHandle,
    ) -> Self {
        let leases = Arc::new(Leases {
            each: Mutex::new(
                leases
                    .into_iter()
                    .map(|lease| lease.map(Arc::new))
                    .collect(),
            ),
            majority: members.majority(),
            loss: OnceLock::new(),
        });
        let repair = repair(Arc::clone(&leases));
        Self {
            name,
            fence,
            leases,
            repair,
        }
    }

    /// The lock.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The fence: greater than that of every earlier holder of this name in this quorum, whatever the clocks of the
    /// databases say. Send it with every write, and have the resource refuse a smaller fence than it has seen.
    #[must_use]
    pub fn fence(&self) -> i64 {
        self.fence
    }

    /// Whether a majority of the leases is held now, by their local deadlines. Once false, it stays false.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.leases.missing().is_some()
    }

    /// How the lock was lost, if it was lost.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        (!self.is_held()).then(|| self.leases.loss())
    }

    /// The time for which this process trusts the lock without another renewal; zero after a release or a loss.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.leases.remaining()
    }

    /// Pins the lease of one database in a transaction on that database, as [`Held::pin`] does. `member` is the number
    /// of the database, from 0, in the order of [`Quorum::members`](super::Quorum::members). The pin proves that this
    /// database has granted the name to no other holder. It does not prove that this holder still has a majority; see
    /// the [module](super).
    ///
    /// # Errors
    ///
    /// Those of [`Held::pin`]; [`Error::Lost`] when this member's lease is not held; [`InvalidError::Setting`] when
    /// there is no member of this number.
    ///
    /// # Cancel safety
    ///
    /// As for [`Held::pin`].
    pub async fn pin_on<T: Transaction>(&self, member: usize, tx: &mut T) -> Result<(), Error> {
        let lease = self.leases.each.lock().get(member).cloned();
        match lease {
            Some(Some(lease)) => lease.pin(tx).await,
            Some(None) => Err(Error::Lost {
                name: self.name.clone(),
                loss: Loss::Expired,
            }),
            None => Err(Error::Invalid(InvalidError::Setting {
                setting: "member",
                reason: "the quorum has fewer databases: the first one is 0",
            })),
        }
    }

    /// Resolves when the lock is lost: when fewer than a majority of the leases are held. It resolves by their
    /// deadlines, even if no database answers.
    ///
    /// Cancel safe.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers (`enable_time`).
    pub async fn lost(&self) -> Loss {
        loop {
            let held = self.leases.held();
            if held.len() < self.leases.majority {
                return self.leases.loss();
            }
            // The next loss may be that of the majority. Leases that are added meanwhile are seen then.
            until(1, held.iter().map(|held| held.lost())).await;
        }
    }

    /// Resolves when the lock is at risk: when fewer than a majority of the leases are free of risk. Stop the work
    /// then.
    ///
    /// Cancel safe. The risk may pass.
    ///
    /// # Panics
    ///
    /// As [`lost`](Self::lost) does.
    pub async fn at_risk(&self) {
        loop {
            let held = self.leases.held();
            // Those at risk now. A risk that has passed does not count.
            let is_free = |held: &Arc<Held>| !is_ready(pin!(held.at_risk()));
            let free: Vec<_> = held.into_iter().filter(is_free).collect();
            if free.len() < self.leases.majority {
                return;
            }
            until(1, free.iter().map(|held| held.at_risk())).await;
        }
    }

    /// Runs `work` while the lock is held. When it is lost, drops `work` at its next await point. The lock is not
    /// released afterwards.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]: the lock was lost before `work` was done.
    ///
    /// # Panics
    ///
    /// As [`lost`](Self::lost) does.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`; the lock stays with the guard.
    pub async fn with<T>(&self, work: impl AsyncFnOnce() -> T) -> Result<T, Error> {
        let (mut lost, mut work) = (pin!(self.lost()), pin!(work()));
        poll_fn(|cx| {
            if let Poll::Ready(loss) = lost.as_mut().poll(cx) {
                let name = self.name.clone();
                return Poll::Ready(Err(Error::Lost { name, loss }));
            }
            work.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Releases the lock in every database.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`], when the answers that have arrived show that fewer than a majority of the databases held it.
    ///
    /// Otherwise the name may still be taken in a majority of the databases, because they did not answer. Renewals
    /// have stopped, so the name is free within the TTL.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop the release.
    pub async fn release(self) -> Result<(), Error> {
        self.repair.abort();
        let (was_held, loss) = (self.is_held(), self.leases.loss());
        let name = self.name().clone();
        let majority = self.leases.majority;
        let each: Vec<_> = self.leases.each.lock().drain(..).collect();
        let members = each.len();
        let leases: Vec<Arc<Held>> = each.into_iter().flatten().collect();
        // The name is free when all but a minority say so. The others are released in the background.
        let minority = members - majority;
        let needed = leases.len().saturating_sub(minority);
        let is_released = |answer: &Answer| answer.is_ok();
        let is_lost = |answer: &Answer| matches!(answer, Err(Error::Lost { .. }));
        let is_told = |answer: &Answer| is_released(answer) || is_lost(answer);
        let mut round = Round::of(leases.iter().map(|lease| lease.release()));
        let may_be_held = |round: &Round<_>| leases.len() - round.count(is_lost) >= majority;
        round
            .run(|round| {
                // Once a lease was lost, the others decide.
                let is_clear = round.count(is_lost) == 0
                    || round.count(is_released) >= majority
                    || !may_be_held(round);
                is_clear && round.count(is_told) >= needed
            })
            .await;
        let is_free = round.count(is_told) >= needed;
        let may_be_held = may_be_held(&round);
        let (mut error, mut told) = (None, None);
        for answer in round.done.into_iter().flatten() {
            match answer {
                Err(Error::Lost { loss, .. }) => told = telling(told.into_iter().chain([loss])),
                Ok(()) => {}
                Err(failed) => error = error.or(Some(failed)),
            }
        }
        match error {
            Some(error) if !is_free => Err(error),
            _ if was_held && may_be_held => Ok(()),
            _ => {
                let loss = telling(told.into_iter().chain([loss])).unwrap_or(loss);
                Err(Error::Lost { name, loss })
            }
        }
    }
}

/// A lease that was taken over tells more than one that has run out.
fn telling(losses: impl Iterator<Item = Loss>) -> Option<Loss> {
    losses.max_by_key(|loss| *loss != Loss::Expired)
}

/// The answer of a member to a release.
type Answer = Result<(), Error>;

fn is_ready(future: Pin<&mut impl Future>) -> bool {
    future
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_ready()
}

impl Drop for QuorumHeld {
    fn drop(&mut self) {
        self.repair.abort();
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use rowlock::Rowlock;

    #[tokio::test]
    async fn no_lease_is_added_to_a_lock_that_was_lost() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("a.db").display());
        let rowlock = Rowlock::connect(&url).await.unwrap();
        let lease = async |name: &str| rowlock.lock(name).acquire().await.unwrap();
        let leases = Leases {
            each: Mutex::new(vec![Some(Arc::new(lease("0").await)), None, None]),
            majority: 2,
            loss: OnceLock::new(),
        };
        leases.add(1, lease("1").await);
        assert_eq!((leases.held().len(), leases.missing()), (1, None));
        rowlock.flush().await;
        assert!(
            rowlock.inspect("1").await.unwrap().is_none(),
            "it is released"
        );
        *leases.each.lock() = vec![
            Some(Arc::new(lease("1").await)),
            Some(Arc::new(lease("2").await)),
            None,
        ];
        leases.add(2, lease("3").await);
        assert_eq!(leases.missing(), Some(Vec::new()));
        // After a release there are no members.
        leases.each.lock().clear();
        leases.add(2, lease("4").await);
        assert_eq!(leases.missing(), None);
    }
}
