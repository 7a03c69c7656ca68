//! Releasing a lease, and undoing an acquire whose outcome no caller will receive.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::{MAX_UNDO, leave};
use crate::model::{Error, Loss, Moment, Name, ReleaseOutcome, Subject};
use crate::runtime::batch::head::{JobHead, Manner, Progress};
use crate::runtime::batch::job::{AnswerTime, Job, Next, Rank, Reply, Request, Task};
use crate::runtime::held::grant::Grant;
use crate::runtime::wait::waiters::Waiters;
use crate::store::verbs::Store;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::release::{FreeOutcome, ReleaseParams};

/// Ends a grant: its last guard is gone, or no caller will receive it.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) params: ReleaseParams,
    /// `None`: this undoes an acquire whose outcome is unknown.
    pub(crate) grant: Option<Arc<Grant>>,
    /// How many sendings of its acquire may still reach the server.
    pub(crate) late: u32,
    pub(crate) reply: Option<Reply<ReleaseOutcome>>,
    pub(crate) waiters: Arc<Waiters>,
}

/// The release of a grant whose last guard is gone.
pub(crate) fn of(
    grant: &Arc<Grant>,
    waiters: &Arc<Waiters>,
    reply: Option<Reply<ReleaseOutcome>>,
    progress: Progress,
) -> Task<Release> {
    let params = ReleaseParams {
        name: grant.name.clone(),
        grant_id: grant.id,
        fence: grant.fence(),
        was_queued: grant.was_queued,
    };
    let request = Release {
        params,
        grant: Some(Arc::clone(grant)),
        late: grant.late,
        reply,
        waiters: Arc::clone(waiters),
    };
    request.task(progress)
}

/// Frees the grant of an acquire, and the grants that `late` more sendings may still get.
pub(crate) fn undo(
    name: &Name,
    grant_id: Uuid,
    ttl: Duration,
    late: u32,
    waiters: &Arc<Waiters>,
    now: Moment,
) -> Task<Release> {
    let params = ReleaseParams {
        name: name.clone(),
        grant_id,
        fence: 0,
        was_queued: false,
    };
    let request = Release {
        params,
        grant: None,
        late,
        reply: None,
        waiters: Arc::clone(waiters),
    };
    // It may have been granted just now; after its TTL it expires by itself.
    request.task(Progress::until(now + ttl.min(MAX_UNDO)))
}

impl Release {
    fn task(self, progress: Progress) -> Task<Self> {
        let subject = Subject::of_row(&self.params.name);
        let size = (self.params.name.as_bytes().len(), 0);
        let head = JobHead {
            size: Some(size),
            ..JobHead::new(subject, "release", Manner::Duty, progress)
        };
        Task {
            head,
            request: self,
        }
    }

    /// The job that follows the release of a grant, whatever its outcome: while sendings of the acquire may still
    /// reach the server, one of them may grant the name again, to no caller.
    fn after(&self, late: u32, now: Moment) -> Option<Job> {
        let grant = self.grant.as_ref().filter(|_| late > 0)?;
        let (ttl, waiters) = (grant.ttl, &self.waiters);
        Some(match &grant.ticket {
            // It may be a waiter too.
            Some(ticket) => leave::late(ticket.clone(), (late, ttl), waiters, now),
            None => undo(&grant.name, grant.id, ttl, late, waiters, now)
                .repeated()
                .into(),
        })
    }

    pub(crate) fn outcome(
        &self,
        progress: &Progress,
        freed: &FreeOutcome,
        now: Moment,
    ) -> ReleaseOutcome {
        let Some(grant) = &self.grant else {
            return ReleaseOutcome::Released;
        };
        if let Some(loss) = grant.loss() {
            return ReleaseOutcome::Lost(loss);
        }
        // Until the deadline no lease or transaction takes the name over. So when an earlier sending was made and the
        // grant is gone, that sending released it: its answer was lost, or the statement was refused after the
        // release. (This cannot be told from a forced release, or from a failover that lost commits, in between.)
        let by_earlier_sending = progress.sent && now < grant.status().deadline;
        match freed {
            FreeOutcome::Released | FreeOutcome::Passed(_) => ReleaseOutcome::Released,
            FreeOutcome::WasFree | FreeOutcome::Superseded if by_earlier_sending => {
                ReleaseOutcome::Released
            }
            // The earlier sending may have come too late.
            FreeOutcome::WasFree if progress.sent => ReleaseOutcome::Lost(Loss::Expired),
            FreeOutcome::Expired => ReleaseOutcome::Lost(Loss::Expired),
            FreeOutcome::WasFree | FreeOutcome::Superseded | FreeOutcome::Locked => {
                ReleaseOutcome::Lost(Loss::TakenOver)
            }
        }
    }
}

impl Task<Release> {
    fn released(self, freed: &FreeOutcome) -> Next {
        let Self { head, request } = self;
        let now = Moment::now();
        request.waiters.settled(&request.params.name, freed);
        let after = request.after(request.late, now);
        let outcome = request.outcome(&head.progress, freed, now);
        match (request.reply, after) {
            (None, after) => after.map_or(Next::Done, Next::Later),
            (Some(reply), None) => Next::answer(reply, Ok(outcome)),
            (Some(reply), Some(after)) => {
                let _ = reply.send(Ok(outcome));
                Next::Later(after)
            }
        }
    }

    /// An undo has freed the grant of one sending of its acquire, or nothing. It is repeated while another sending may
    /// come. An expired lease accounts for no sending: it stays in the row, every repetition finds it again, and it
    /// may belong to the sending that was answered.
    fn undone(mut self, freed: &FreeOutcome) -> Next {
        self.request
            .waiters
            .settled(&self.request.params.name, freed);
        let accounted = u32::from(matches!(
            freed,
            FreeOutcome::Released | FreeOutcome::Passed(_)
        ));
        self.request.late = self.request.late.saturating_sub(accounted);
        if self.request.late == 0 {
            return Next::Done;
        }
        Next::Later(self.repeated().into())
    }
}

impl Request for Release {
    type Outcome = FreeOutcome;

    const RANK: Rank = Rank::Exchange;

    async fn send(
        tasks: &mut [Task<Self>],
        store: &mut dyn Store,
    ) -> Result<Vec<FreeOutcome>, Fault> {
        let all: Vec<ReleaseParams> = tasks
            .iter()
            .map(|task| task.request.params.clone())
            .collect();
        store.lease_release(&all).await
    }

    fn settle(task: Task<Self>, freed: FreeOutcome, _: AnswerTime) -> Next {
        match freed {
            FreeOutcome::Locked => Next::Later(task.into()),
            _ if task.request.grant.is_none() => task.undone(&freed),
            _ => task.released(&freed),
        }
    }

    fn fail(self, error: Error) {
        if let Some(reply) = self.reply {
            let _ = reply.send(Err(error));
        }
    }

    /// The release matters to the next holder too, so a caller that has gone does not cancel it.
    fn is_closed(&self) -> bool {
        false
    }

    /// When the caller has waited long enough, the name still has to become free: the undo frees the grant, then the
    /// grants of late sendings of its acquire.
    fn undo(&self, _: &Progress, now: Moment) -> Option<Job> {
        let own = u32::from(self.reply.is_some());
        self.after(self.late + own, now)
    }
}
