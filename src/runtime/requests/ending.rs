//! The statements that guards and waiters send when they end.

use std::sync::Arc;
use std::time::Duration;

use super::finish::Finish;
use super::{leave, release};
use crate::model::ReleaseOutcome;
use crate::runtime::batch::handle::Lanes;
use crate::runtime::batch::head::Progress;
use crate::runtime::batch::job::Reply;
use crate::runtime::held::grant::Grant;
use crate::runtime::held::on_end::OnEnd;
use crate::runtime::wait::waiters::Waiters;
use crate::store::verbs::queue::Ticket;
use crate::store::verbs::record::{FinishOutcome, FinishParams};

/// Ends grants, waits and attempts.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) waiters: Arc<Waiters>,
}

impl OnEnd for Ending {
    fn release(
        &self,
        grant: &Arc<Grant>,
        reply: Option<Reply<ReleaseOutcome>>,
        progress: Progress,
    ) {
        let release = release::of(grant, &self.waiters, reply, progress);
        self.lanes.send(release);
    }

    fn leave(&self, ticket: Ticket, position: i64, late: (u32, Duration)) {
        let (at, limit) = (Some(position), self.lanes.operation_timeout);
        let leave = leave::of(ticket, at, late, &self.waiters, limit);
        self.lanes.send(leave);
    }

    fn finish(
        &self,
        params: FinishParams,
        reply: Option<Reply<FinishOutcome>>,
        progress: Progress,
    ) {
        self.lanes.send(Finish::task(params, reply, progress));
    }
}
