//! What a guard sends when it ends. A guard knows its grant; the requests know the statements.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::grant::Grant;
use crate::model::ReleaseOutcome;
use crate::runtime::batch::head::Progress;
use crate::runtime::batch::job::Reply;
use crate::store::verbs::queue::Ticket;
use crate::store::verbs::record::{FinishOutcome, FinishParams};

/// Hands the statements that end something to the lanes, and returns at once.
pub(crate) trait OnEnd: fmt::Debug + Send + Sync {
    /// The last guard of a grant is gone.
    fn release(&self, grant: &Arc<Grant>, reply: Option<Reply<ReleaseOutcome>>, progress: Progress);

    /// A waiter leaves its queue. `late`: so many joins that were sent may still reach the server, each for a
    /// grant with this TTL.
    fn leave(&self, ticket: Ticket, position: i64, late: (u32, Duration));

    /// An attempt ends.
    fn finish(&self, params: FinishParams, reply: Option<Reply<FinishOutcome>>, progress: Progress);
}
