//! What a guard changes in its own lease, besides renewing and releasing it.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use uuid::Uuid;

use crate::model::{Error, Loss, Moment, ReleaseOutcome, Subject};
use crate::runtime::held::guard::Guard;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::hold::{HoldOutcome, RaiseParams, RunOutParams};

impl Guard {
    /// Gives the grant the next fence, which is at least `at_least`.
    pub(crate) async fn raise_fence(&self, at_least: i64) -> Result<i64, Error> {
        let grant = self.grant();
        // The fences that were reserved for other tasks are smaller: the grant is not handed on any more.
        grant.may_be_pinned.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.check("raise the fence of")?;
        let params = RaiseParams {
            name: grant.name.clone(),
            grant_id: grant.id,
            at_least,
        };
        let raised = self.change("raise the fence of", async move |store: &mut dyn Store| {
            store.hold_raise(&params).await
        });
        let Some(raised) = raised.await? else {
            return Err(self.taken_over());
        };
        // Another task may have raised it further meanwhile.
        grant.set_fence(raised);
        self.raised.fetch_max(raised, Ordering::AcqRel);
        Ok(raised)
    }

    /// Ends this guard. If it is the last guard of the grant, the name becomes free after `time`.
    pub(crate) async fn release_in(&self, time: Duration) -> Result<ReleaseOutcome, Error> {
        let grant = self.grant();
        grant.may_be_pinned.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let Some(is_last) = self.end() else {
            return Ok(ReleaseOutcome::AlreadyReleased);
        };
        let outcome =
            |loss: Option<Loss>| loss.map_or(ReleaseOutcome::Released, ReleaseOutcome::Lost);
        let is_permit = grant.name.of_permit().is_some();
        // Late sendings of the acquire may be granted the name again.
        let undo = || {
            if grant.late > 0 && !is_permit {
                self.send(None);
            }
        };
        if !is_last {
            return Ok(outcome(self.loss()));
        }
        if self.loss().is_some() {
            undo();
            return Ok(outcome(self.loss()));
        }
        let until = Moment::now() + time;
        let params = RunOutParams {
            name: grant.name.clone(),
            grant_id: grant.id,
            reservation: if is_permit { grant.id } else { Uuid::new_v4() },
            time,
        };
        let kept = self.change("release", async move |store: &mut dyn Store| {
            // It may be sent late, or again.
            let time = until.remaining();
            let params = RunOutParams {
                time,
                ..params.clone()
            };
            store.hold_run_out(&params).await
        });
        let kept = kept.await;
        undo();
        Ok(outcome(kept?.is_none().then_some(Loss::TakenOver)))
    }

    /// Runs a verb on the lease, again and again while a transaction has its row locked. `None`: the lease is gone.
    async fn change<T: Send + 'static>(
        &self,
        doing: &'static str,
        mut verb: impl AsyncFnMut(&mut dyn Store) -> Result<HoldOutcome<T>, Fault>
        + Clone
        + Send
        + 'static,
    ) -> Result<Option<T>, Error> {
        let grant = self.grant();
        let row = (Subject::of_row(&grant.name), &grant.shown);
        let verb = async move |store: &mut dyn Store| {
            Ok(match verb(store).await? {
                HoldOutcome::Done(done) => Some(Some(done)),
                HoldOutcome::Gone => Some(None),
                HoldOutcome::Locked => None,
            })
        };
        self.lanes().until_unlocked(row, doing, verb).await
    }
}
