//! Exchanges: what frees something and what asks for something, in one batch. Under load a lane has both at any time,
//! and together they need one round trip and one commit.

use std::fmt;
use std::pin::Pin;

use super::claim::Claim;
use super::finish::Finish;
use super::release::Release;
use super::take::Take;
use crate::runtime::batch::job::{AnswerTime, Batch, Job, Next, Rank, Request, SharedBatch};
use crate::runtime::batch::request_batch::RequestBatch;
use crate::store::driver::connector::VerbCall;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;

/// What requests share: releases and acquires, from so many on; ends of attempts and claims, always.
pub(crate) fn shared(leases_from: usize) -> [SharedBatch; 2] {
    [of::<LeasePair>(leases_from), of::<RecordPair>(0)]
}

fn of<P: Pair>(from: usize) -> SharedBatch {
    SharedBatch {
        ranks: [P::Ends::RANK, P::Begins::RANK],
        from,
        empty: Exchange::<P>::empty,
    }
}

/// Two kinds of request with one statement for both.
pub(crate) trait Pair: fmt::Debug + Sized + 'static {
    type Ends: Request;
    type Begins: Request;

    /// The name of that statement in the metrics.
    const NAME: &'static str;

    /// See [`VerbCall::must_last`].
    const MUST_LAST: bool;

    /// Sends both. Neither is empty.
    async fn send(both: &mut Exchange<Self>, store: &mut dyn Store) -> Result<(), Fault>;
}

/// Releases and acquires.
#[derive(Debug)]
pub(crate) struct LeasePair;

impl Pair for LeasePair {
    type Ends = Release;
    type Begins = Take;

    const NAME: &'static str = "exchange";

    const MUST_LAST: bool = true;

    async fn send(both: &mut Exchange<Self>, store: &mut dyn Store) -> Result<(), Fault> {
        let Exchange { ends, begins } = both;
        let released = ends.params(|release| &release.params);
        let taken = begins.params(|take| &take.params);
        (ends.outcomes, begins.outcomes) = store.lease_exchange(&released, &taken).await?;
        Ok(())
    }
}

/// Ends of attempts, and claims.
#[derive(Debug)]
pub(crate) struct RecordPair;

impl Pair for RecordPair {
    type Ends = Finish;
    type Begins = Claim;

    const NAME: &'static str = "record_exchange";

    const MUST_LAST: bool = false;

    async fn send(both: &mut Exchange<Self>, store: &mut dyn Store) -> Result<(), Fault> {
        let Exchange { ends, begins } = both;
        let ended = ends.params(|finish| &finish.params);
        let claimed = begins.params(|claim| &claim.params);
        (ends.outcomes, begins.outcomes) = store.record_exchange(&ended, &claimed).await?;
        Ok(())
    }
}

/// A batch of two kinds of request. Their subjects differ.
#[derive(Debug)]
pub(crate) struct Exchange<P: Pair> {
    ends: RequestBatch<P::Ends>,
    begins: RequestBatch<P::Begins>,
}

impl<P: Pair> Exchange<P> {
    /// An empty batch, which jobs of both kinds join.
    pub(crate) fn empty() -> Box<dyn Batch> {
        Box::new(Self {
            ends: RequestBatch::none(),
            begins: RequestBatch::none(),
        })
    }

    fn has_both(&self) -> bool {
        !self.ends.firsts.is_empty() && !self.begins.firsts.is_empty()
    }

    async fn send(&mut self, store: &mut dyn Store) -> Result<(), Fault> {
        if self.has_both() {
            P::send(self, store).await
        } else if self.begins.firsts.is_empty() {
            self.ends.on(store).await
        } else {
            self.begins.on(store).await
        }
    }
}

impl<P: Pair> Batch for Exchange<P> {
    fn join(&mut self, job: Job) -> Option<Job> {
        let job = self.ends.join(job)?;
        self.begins.join(job)
    }

    fn rank(&self) -> Rank {
        P::Begins::RANK
    }

    fn told(&self) -> (&'static str, usize) {
        let ((ending, ends), (beginning, begins)) = (self.ends.told(), self.begins.told());
        let name = match (ends, begins) {
            (_, 0) => ending,
            (0, _) => beginning,
            _ => P::NAME,
        };
        (name, ends + begins)
    }

    fn settle(self: Box<Self>, answered: AnswerTime) -> Vec<Next> {
        let mut next = Box::new(self.ends).settle(answered);
        next.extend(Box::new(self.begins).settle(answered));
        next
    }

    fn into_jobs(self: Box<Self>) -> (Vec<Job>, Vec<Job>) {
        let (mut jobs, mut followers) = Box::new(self.ends).into_jobs();
        let (begins, others) = Box::new(self.begins).into_jobs();
        jobs.extend(begins);
        followers.extend(others);
        (jobs, followers)
    }
}

impl<P: Pair> VerbCall for Exchange<P> {
    fn on<'a>(
        &'a mut self,
        store: &'a mut dyn Store,
    ) -> Pin<Box<dyn Future<Output = Result<(), Fault>> + 'a>> {
        Box::pin(self.send(store))
    }

    fn must_last(&self) -> bool {
        P::MUST_LAST && self.has_both()
    }
}
