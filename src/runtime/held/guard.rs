//! The RAII part of a held lease: it releases exactly once, whatever happens.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::{Mutex, oneshot};
use tracing::span::Id;

use super::grant::Grant;
use super::holdings::Holdings;
use crate::model::{Error, Loss, Moment, ReleaseOutcome};
use crate::runtime::base::meter::Since;
use crate::runtime::base::spans;
use crate::runtime::batch::handle::Lanes;
use crate::runtime::batch::job::Reply;

/// What may hand a grant on in memory, to the next guard.
pub(crate) trait HandOn: fmt::Debug + Send + Sync {
    /// The guard is released. False: the grant goes back to the database.
    fn hand_on(self: Arc<Self>, guard: &Guard) -> bool;
}

/// One guard of a grant. Dropping it hands the release to the lane and returns at once.
#[derive(Debug)]
pub(crate) struct Guard {
    grant: Arc<Grant>,
    holdings: Arc<Holdings>,
    /// The cohort that it is of, and its fence there.
    cohort: OnceLock<(Arc<dyn HandOn>, i64)>,
    /// Its fence, if that was raised ([`raise_fence`](Self::raise_fence)); 0 before.
    pub(crate) raised: AtomicI64,
    /// Set when this guard is released: how the grant had been lost by then, if it had.
    released: OnceLock<Option<Loss>>,
    /// The last release failed: the caller may release again.
    failed: AtomicBool,
    /// The pending answer to a release, until a caller has received it.
    answer: Mutex<Option<oneshot::Receiver<Result<ReleaseOutcome, Error>>>>,
    since: Since,
    /// The id of its span, if that is enabled.
    span: OnceLock<Id>,
}

impl Guard {
    /// `None` when the grant has ended meanwhile.
    pub(crate) fn new(grant: Arc<Grant>, holdings: Arc<Holdings>) -> Option<Self> {
        grant
            .add_guard()
            .then(|| Self::of(grant, holdings, OnceLock::new()))
    }

    /// The guard that takes the place of this one, which is released.
    pub(crate) fn successor(&self, cohort: Arc<dyn HandOn>, fence: i64) -> Self {
        let (grant, holdings) = (Arc::clone(&self.grant), Arc::clone(&self.holdings));
        Self::of(grant, holdings, OnceLock::from((cohort, fence)))
    }

    fn of(
        grant: Arc<Grant>,
        holdings: Arc<Holdings>,
        cohort: OnceLock<(Arc<dyn HandOn>, i64)>,
    ) -> Self {
        Self {
            grant,
            holdings,
            cohort,
            raised: AtomicI64::new(0),
            released: OnceLock::new(),
            failed: AtomicBool::new(false),
            answer: Mutex::default(),
            since: Since::now(),
            span: OnceLock::new(),
        }
    }

    /// It is the first guard of a cohort's turn. Its fence is the one before these, which are for others.
    pub(crate) fn join(&self, cohort: Arc<dyn HandOn>, others: &RangeInclusive<i64>) {
        let fence = others.start() - 1;
        let _ = self.cohort.set((cohort, fence));
    }

    /// Begins its span, in that of the caller.
    pub(crate) fn begin_span(&self) {
        let span = spans::hold(&self.grant.shown, self.fence());
        if let Some(id) = span.id() {
            let id = self.span.get_or_init(|| id);
            self.grant.begin_span(id, span);
        }
    }

    /// It is released, or the outcome of a transaction.
    fn ended(&self) {
        self.since.held();
        if let Some(id) = self.span.get() {
            self.grant.end_span(id);
        }
    }

    /// The fence under which its task works.
    pub(crate) fn fence(&self) -> i64 {
        let own = self.cohort.get().map(|(_, fence)| *fence);
        let own = own.unwrap_or_else(|| self.grant.fence());
        own.max(self.raised.load(Ordering::Acquire))
    }

    pub(crate) fn grant(&self) -> &Arc<Grant> {
        &self.grant
    }

    pub(crate) fn lanes(&self) -> &Lanes {
        &self.holdings.lanes
    }

    pub(crate) fn is_released(&self) -> bool {
        self.released.get().is_some()
    }

    /// Whether this guard is unreleased and its grant is held. (The grant may outlive this guard, while other guards
    /// have it.)
    pub(crate) fn is_held(&self) -> bool {
        !self.is_released() && self.grant.is_held()
    }

    /// Fails if this guard was released, or its grant is lost.
    pub(crate) fn check(&self, doing: &'static str) -> Result<(), Error> {
        let name = || self.grant.shown.clone();
        if self.is_released() {
            let name = name();
            return Err(Error::Released { doing, name });
        }
        match self.grant.loss() {
            Some(loss) => Err(Error::Lost { name: name(), loss }),
            None => Ok(()),
        }
    }

    /// The row has another grant: this one is lost.
    pub(crate) fn taken_over(&self) -> Error {
        self.grant.lose(Loss::TakenOver);
        Error::Lost {
            name: self.grant.shown.clone(),
            loss: self.grant.loss().unwrap_or(Loss::TakenOver),
        }
    }

    /// How the grant was lost, if that was before the release of this guard.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.released
            .get()
            .map_or_else(|| self.grant.loss(), |loss| *loss)
    }

    /// Releases this guard and reports whether its grant was still held. While the grant has other guards, this sends
    /// no statement. Dropping the future does not stop the release: the next call receives its answer.
    pub(crate) async fn release(&self) -> Result<ReleaseOutcome, Error> {
        let mut answer = self.answer.lock().await;
        let awaited = match &mut *answer {
            Some(awaited) => awaited,
            none => {
                let (reply, awaited) = oneshot::channel();
                if self.failed.load(Ordering::Acquire) {
                    self.send(Some(reply));
                } else if !self.hand_in(Some(reply)) {
                    return Ok(ReleaseOutcome::AlreadyReleased);
                }
                none.insert(awaited)
            }
        };
        let released = awaited
            .await
            .unwrap_or_else(|_| Err(self.lanes().stopped()));
        *answer = None;
        self.failed.store(released.is_err(), Ordering::Release);
        released
    }

    /// Returns false when this guard was released before.
    fn hand_in(&self, reply: Option<Reply<ReleaseOutcome>>) -> bool {
        let (grant, now) = (&self.grant, Moment::now());
        if self.released.set(grant.loss_at(now)).is_err() {
            return false;
        }
        self.ended();
        let cohort = self.cohort.get();
        if cohort.is_some_and(|(cohort, _)| Arc::clone(cohort).hand_on(self)) {
            let _ = reply.map(|reply| reply.send(Ok(ReleaseOutcome::Released)));
            return true;
        }
        if !grant.drop_guard(now) {
            let outcome = grant
                .loss_at(now)
                .map_or(ReleaseOutcome::Released, ReleaseOutcome::Lost);
            let _ = reply.map(|reply| reply.send(Ok(outcome)));
            return true;
        }
        self.holdings.renewals.remove(grant.id);
        self.holdings.sessions.forget(grant);
        self.send(reply);
        self.holdings.guards.remove(grant.id);
        true
    }

    /// Ends this guard without a release. Returns whether it was the last one of its grant, which has ended then.
    /// `None`: it was released before.
    pub(crate) fn end(&self) -> Option<bool> {
        let (grant, now) = (&self.grant, Moment::now());
        self.released.set(grant.loss_at(now)).ok()?;
        self.ended();
        if let Some((cohort, _)) = self.cohort.get() {
            // The grant may be pinned, so this only ends the turn.
            Arc::clone(cohort).hand_on(self);
        }
        let is_last = grant.drop_guard(now);
        if is_last {
            self.holdings.renewals.remove(grant.id);
            self.holdings.sessions.forget(grant);
            self.holdings.guards.remove(grant.id);
        }
        Some(is_last)
    }

    pub(crate) fn send(&self, reply: Option<Reply<ReleaseOutcome>>) {
        let grant = &self.grant;
        if let Some(loss) = self.loss().filter(|_| self.lanes().has_ended()) {
            // A shutdown does not wait for the guard of a lost lock, and there is nothing to release.
            let _ = reply.map(|reply| reply.send(Ok(ReleaseOutcome::Lost(loss))));
            return;
        }
        let mut progress = self.lanes().progress();
        if reply.is_none() {
            // A release in the background may be tried until the lease ends by itself.
            progress.give_up = progress.give_up.max(grant.status().deadline);
        }
        // An earlier release that failed goes on in the background (`requests/release.rs`).
        progress.sent = self.failed.load(Ordering::Acquire);
        self.holdings.on_end.release(grant, reply, progress);
    }

    /// Resolves when the lease is lost; never, when this guard is released instead.
    pub(crate) async fn lost(&self) -> Loss {
        self.grant.lost().await;
        match self.loss() {
            Some(loss) => loss,
            None => std::future::pending().await,
        }
    }

    /// Resolves when the lease is at risk or lost.
    pub(crate) async fn at_risk(&self) {
        self.grant.at_risk().await;
        if self.is_released() && self.loss().is_none() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.hand_in(None);
    }
}
