//! The guard of a running attempt, and how the attempt ends.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tracing::Span;
use uuid::Uuid;

use super::grant::Grant;
use super::holdings::Holdings;
use crate::model::{Error, Loss, Moment, RecordKey, Subject};
use crate::runtime::base::meter::Since;
use crate::runtime::base::spans;
use crate::store::verbs::record::{ClaimParams, FinishOutcome, FinishParams, RecordEnd};

/// A running attempt. Dropping it frees the key in the background, unless the attempt has ended.
#[derive(Debug)]
pub(crate) struct RecordGuard {
    pub(crate) grant: Arc<Grant<RecordKey>>,
    pub(crate) holdings: Arc<Holdings>,
    /// How long the key is remembered after the attempt is given up.
    remember: Duration,
    /// The same, after a step began or an attempt was abandoned.
    remember_begun: Duration,
    /// An outcome is being recorded: dropping the guard frees nothing.
    ending: AtomicBool,
    /// The work is done, recorded or not: dropping the guard frees nothing.
    worked: AtomicBool,
    /// How many attempts a drop of this guard does not count against the key: this attempt, until its caller has
    /// received it.
    pardon: AtomicI32,
    /// The key stays bound to its request: the next attempt has to continue with it.
    bound: AtomicBool,
    /// A step that must not be repeated has begun, and may have happened.
    step_is_open: AtomicBool,
    ended: AtomicBool,
    since: Since,
    /// Its span, until it ends.
    span: Mutex<Span>,
}

impl RecordGuard {
    pub(crate) fn new(
        grant: Arc<Grant<RecordKey>>,
        holdings: Arc<Holdings>,
        params: &ClaimParams,
    ) -> Self {
        grant.add_guard();
        holdings.renewals.add_record(&grant);
        holdings
            .guards
            .add_attempt(grant.id, Subject::Record(grant.name.clone()));
        Self {
            grant,
            holdings,
            remember: params.remember,
            remember_begun: params.remember_begun,
            ending: AtomicBool::new(false),
            worked: AtomicBool::new(false),
            pardon: AtomicI32::new(1),
            bound: AtomicBool::new(false),
            step_is_open: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            since: Since::now(),
            span: Mutex::new(Span::none()),
        }
    }

    /// Begins its span, in that of the caller.
    pub(crate) fn begin_span(&self) {
        *self.span.lock() = spans::attempt(self.grant.fence());
    }

    pub(crate) fn key(&self) -> &RecordKey {
        &self.grant.name
    }

    pub(crate) fn attempt_id(&self) -> Uuid {
        self.grant.id
    }

    pub(crate) fn receive(&self) {
        self.pardon.store(0, Ordering::Release);
    }

    /// From here on, dropping the guard does not count this attempt.
    pub(crate) fn pardon(&self) {
        self.pardon.fetch_max(1, Ordering::AcqRel);
    }

    /// Gives the attempt up in good order, so that no attempt counts against the key, and returns the end to send.
    /// When it cannot be sent now, dropping the guard sends it.
    pub(crate) fn give_up(&self) -> RecordEnd {
        self.pardon.store(i32::MAX, Ordering::Release);
        self.worked.store(false, Ordering::Release);
        self.free()
    }

    /// The work is done. From here on, dropping the guard does not free the key, because that would let the work be
    /// done again.
    pub(crate) fn has_worked(&self) {
        self.worked.store(true, Ordering::Release);
    }

    pub(crate) fn is_kept_claimed(&self) -> bool {
        self.worked.load(Ordering::Acquire)
    }

    /// From here on, the next attempt has to be of the same request.
    pub(crate) fn bind(&self) {
        self.bound.store(true, Ordering::Release);
    }

    /// Sets whether a step may have happened without a kept result.
    pub(crate) fn set_step_is_open(&self, is_open: bool) {
        self.step_is_open.store(is_open, Ordering::Release);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(crate) fn ask(&self, end: RecordEnd) -> FinishParams {
        FinishParams {
            key: self.grant.name.clone(),
            attempt_id: self.grant.id,
            attempt: self.grant.fence(),
            end,
        }
    }

    fn free(&self) -> RecordEnd {
        let pardon = self.pardon.load(Ordering::Acquire);
        RecordEnd::Free {
            // A dropped attempt may have had effects, as one whose process has crashed.
            bound: self.bound.load(Ordering::Acquire) || pardon == 0,
            pardon,
            // The effects of steps and the count of abandoned attempts outlive the retention of an outcome.
            remember: if pardon == 0 {
                self.remember_begun
            } else {
                self.remember
            },
            remember_begun: self.remember_begun,
            step_is_open: self.step_is_open.load(Ordering::Acquire),
        }
    }

    /// Ends the attempt. Dropping the future does not stop it. After an error the caller may try again.
    pub(crate) async fn finish(&self, end: RecordEnd) -> Result<FinishOutcome, Error> {
        let how = match end {
            RecordEnd::Done { .. } => "completed",
            RecordEnd::Free { .. } => "released",
        };
        let params = self.ask(end);
        // A caller that drops this future, and then the guard, must not free the key while its outcome is being
        // recorded.
        self.ending.store(true, Ordering::Release);
        let (lanes, (reply, answer)) = (&self.holdings.lanes, oneshot::channel());
        let progress = lanes.progress();
        self.holdings.on_end.finish(params, Some(reply), progress);
        let finished = lanes.heard(answer).await;
        self.ending.store(false, Ordering::Release);
        let finished = finished?;
        if finished != FinishOutcome::Locked {
            let is_ours = finished == FinishOutcome::Ended;
            self.end(if is_ours { how } else { "superseded" });
            self.holdings.guards.remove(self.grant.id);
        }
        Ok(finished)
    }

    /// The lease is lost, and the key is free, as after a crash. The attempt has not ended: it finds that out.
    #[cfg(feature = "testing")]
    pub(crate) async fn lose(&self) -> Result<FinishOutcome, Error> {
        self.grant.lose(Loss::TakenOver);
        let (lanes, (reply, answer)) = (&self.holdings.lanes, oneshot::channel());
        let (params, progress) = (self.ask(self.free()), lanes.progress());
        self.holdings.on_end.finish(params, Some(reply), progress);
        lanes.heard(answer).await
    }

    fn end(&self, how: &'static str) {
        if !self.ended.swap(true, Ordering::AcqRel) {
            self.since.ran(how);
            spans::ended(&mem::replace(&mut *self.span.lock(), Span::none()), how);
            self.holdings.renewals.remove(self.grant.id);
            self.grant.drop_guard(Moment::now());
        }
    }

    /// Resolves when the lease is lost; never, when the attempt ends instead.
    pub(crate) async fn lost(&self) -> Loss {
        match self.grant.lost().await {
            Some(loss) => loss,
            None => std::future::pending().await,
        }
    }
}

impl Drop for RecordGuard {
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        if self.ending.load(Ordering::Acquire) || self.worked.load(Ordering::Acquire) {
            self.end("left_claimed");
            return self.holdings.guards.remove(self.grant.id);
        }
        let params = self.ask(self.free());
        let mut progress = self.holdings.lanes.progress();
        // In the background this may be tried until the lease ends by itself.
        progress.give_up = progress.give_up.max(self.grant.status().deadline);
        let in_tx = self.grant.is_closing();
        self.end(if in_tx { "in_transaction" } else { "dropped" });
        self.holdings.on_end.finish(params, None, progress);
        self.holdings.guards.remove(self.grant.id);
    }
}
