//! Exchanges: what frees something and what asks for something, in one batch. Under load a lane has both at any time,
//! and together they need one round trip and one commit.

use std::fmt;
use std::pin::Pin;

use super::claim::Claim;
use super::finish::Finish;
use super::release::Release;
use super::take::Take;
use crate::runtime::batch::job::{AnswerTime, Batch, Job, Next, Rank, SharedBatch, Verb};
use crate::runtime::batch::verb_batch::VerbBatch;
use crate::store::driver::connect::VerbCall;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;

/// What verbs share: releases and acquires, from so many on; ends of attempts and claims, always.
pub(crate) fn shared(leases_from: usize) -> [SharedBatch; 2] {
    [of::<OfLeases>(leases_from), of::<OfRecords>(0)]
}

fn of<P: Pair>(from: usize) -> SharedBatch {
    SharedBatch {
        ranks: [P::Frees::RANK, P::Asks::RANK],
        from,
        empty: Exchange::<P>::empty,
    }
}

/// Two verbs with one statement for both.
pub(crate) trait Pair: fmt::Debug + Sized + 'static {
    type Frees: Verb;
    type Asks: Verb;

    /// The name of that statement in the metrics.
    const NAME: &'static str;

    /// See [`VerbCall::must_last`].
    const MUST_LAST: bool;

    /// Sends both. Neither is empty.
    async fn send(both: &mut Exchange<Self>, store: &mut dyn Store) -> Result<(), Fault>;
}

/// Releases and acquires.
#[derive(Debug)]
pub(crate) struct OfLeases;

impl Pair for OfLeases {
    type Frees = Release;
    type Asks = Take;

    const NAME: &'static str = "exchange";

    const MUST_LAST: bool = true;

    async fn send(both: &mut Exchange<Self>, store: &mut dyn Store) -> Result<(), Fault> {
        let Exchange { frees, asks } = both;
        let released = frees.asks(|release| &release.params);
        let taken = asks.asks(|take| &take.params);
        (frees.outcomes, asks.outcomes) = store.lease_exchange(&released, &taken).await?;
        Ok(())
    }
}

/// Ends of attempts, and claims.
#[derive(Debug)]
pub(crate) struct OfRecords;

impl Pair for OfRecords {
    type Frees = Finish;
    type Asks = Claim;

    const NAME: &'static str = "record_exchange";

    const MUST_LAST: bool = false;

    async fn send(both: &mut Exchange<Self>, store: &mut dyn Store) -> Result<(), Fault> {
        let Exchange { frees, asks } = both;
        let ended = frees.asks(|finish| &finish.params);
        let claimed = asks.asks(|claim| &claim.params);
        (frees.outcomes, asks.outcomes) = store.record_exchange(&ended, &claimed).await?;
        Ok(())
    }
}

/// A batch of two verbs. Their subjects differ.
#[derive(Debug)]
pub(crate) struct Exchange<P: Pair> {
    frees: VerbBatch<P::Frees>,
    asks: VerbBatch<P::Asks>,
}

impl<P: Pair> Exchange<P> {
    /// An empty batch, which jobs of both verbs join.
    pub(crate) fn empty() -> Box<dyn Batch> {
        Box::new(Self {
            frees: VerbBatch::none(),
            asks: VerbBatch::none(),
        })
    }

    fn has_both(&self) -> bool {
        !self.frees.firsts.is_empty() && !self.asks.firsts.is_empty()
    }

    async fn send(&mut self, store: &mut dyn Store) -> Result<(), Fault> {
        if self.has_both() {
            P::send(self, store).await
        } else if self.asks.firsts.is_empty() {
            self.frees.on(store).await
        } else {
            self.asks.on(store).await
        }
    }
}

impl<P: Pair> Batch for Exchange<P> {
    fn join(&mut self, job: Job) -> Option<Job> {
        let job = self.frees.join(job)?;
        self.asks.join(job)
    }

    fn rank(&self) -> Rank {
        P::Asks::RANK
    }

    fn told(&self) -> (&'static str, usize) {
        let ((freeing, frees), (asking, asks)) = (self.frees.told(), self.asks.told());
        let name = match (frees, asks) {
            (_, 0) => freeing,
            (0, _) => asking,
            _ => P::NAME,
        };
        (name, frees + asks)
    }

    fn settle(self: Box<Self>, answered: AnswerTime) -> Vec<Next> {
        let mut next = Box::new(self.frees).settle(answered);
        next.extend(Box::new(self.asks).settle(answered));
        next
    }

    fn into_jobs(self: Box<Self>) -> (Vec<Job>, Vec<Job>) {
        let (mut jobs, mut followers) = Box::new(self.frees).into_jobs();
        let (asks, others) = Box::new(self.asks).into_jobs();
        jobs.extend(asks);
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
