//! Releases and acquires in one batch. Under load a lane has both at any time, and together they need one round trip
//! and one commit.

use std::pin::Pin;

use super::release::Release;
use super::take::Take;
use crate::runtime::batch::job::{AnswerTime, Batch, Job, Next, Rank, Verb};
use crate::runtime::batch::verb_batch::VerbBatch;
use crate::store::driver::connect::VerbCall;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::lease::TakeParams;
use crate::store::verbs::release::ReleaseParams;

/// A batch of releases and acquires. Their names differ.
#[derive(Debug)]
pub(crate) struct Exchange {
    releases: VerbBatch<Release>,
    takes: VerbBatch<Take>,
}

impl Exchange {
    /// An empty batch, which releases and acquires join.
    pub(crate) fn empty() -> Box<dyn Batch> {
        Box::new(Self {
            releases: VerbBatch::none(),
            takes: VerbBatch::none(),
        })
    }

    async fn send(&mut self, store: &mut dyn Store) -> Result<(), Fault> {
        let Self { releases, takes } = self;
        if takes.firsts.is_empty() {
            return releases.on(store).await;
        }
        if releases.firsts.is_empty() {
            return takes.on(store).await;
        }
        let frees: Vec<ReleaseParams> = releases.asks(|release| &release.params);
        let all: Vec<TakeParams> = takes.asks(|take| &take.params);
        (releases.outcomes, takes.outcomes) = store.lease_exchange(&frees, &all).await?;
        Ok(())
    }
}

impl Batch for Exchange {
    fn join(&mut self, job: Job) -> Option<Job> {
        let job = self.releases.join(job)?;
        self.takes.join(job)
    }

    fn rank(&self) -> Rank {
        Take::RANK
    }

    fn told(&self) -> (&'static str, usize) {
        let ((name, releases), (_, takes)) = (self.releases.told(), self.takes.told());
        (name, releases + takes)
    }

    fn settle(self: Box<Self>, answered: AnswerTime) -> Vec<Next> {
        let mut next = Box::new(self.releases).settle(answered);
        next.extend(Box::new(self.takes).settle(answered));
        next
    }

    fn into_jobs(self: Box<Self>) -> (Vec<Job>, Vec<Job>) {
        let (mut jobs, mut followers) = Box::new(self.releases).into_jobs();
        let (takes, others) = Box::new(self.takes).into_jobs();
        jobs.extend(takes);
        followers.extend(others);
        (jobs, followers)
    }
}

impl VerbCall for Exchange {
    fn on<'a>(
        &'a mut self,
        store: &'a mut dyn Store,
    ) -> Pin<Box<dyn Future<Output = Result<(), Fault>> + 'a>> {
        Box::pin(self.send(store))
    }

    fn must_last(&self) -> bool {
        !self.takes.firsts.is_empty() && !self.releases.firsts.is_empty()
    }
}
