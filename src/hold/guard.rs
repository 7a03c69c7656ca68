//! The RAII part of a held lease: releasing, once, whatever happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::oneshot;

use super::Core;
use super::grant::{End, Grant};
use super::op::{Fate, Op, Release, Reply};
use crate::Error;
use crate::lock::{Loss, ReleaseOutcome};
use crate::store::ReleaseAsk;

/// One hold of a grant. Dropping it hands the release to the lane and returns at once.
#[derive(Debug)]
pub(crate) struct Guard {
    grant: Arc<Grant>,
    core: Arc<Core>,
    released: AtomicBool,
}

impl Guard {
    /// `None` when the grant has ended in the meantime.
    pub(crate) fn new(grant: Arc<Grant>, core: Arc<Core>) -> Option<Self> {
        grant.add_guard().then(|| Self {
            grant,
            core,
            released: AtomicBool::new(false),
        })
    }

    pub(crate) fn grant(&self) -> &Arc<Grant> {
        &self.grant
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(crate) fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    /// Releases this hold and tells whether it was still held. While other guards of the grant stay, nobody is asked.
    /// Dropping the future does not stop it.
    pub(crate) async fn release(&self) -> Result<ReleaseOutcome, Error> {
        let (reply, outcome) = oneshot::channel();
        if !self.hand_in(Some(reply)) {
            return Ok(ReleaseOutcome::AlreadyReleased);
        }
        outcome.await.unwrap_or_else(|_| Err(self.core.stopped()))
    }

    /// False: this hold has been released before.
    fn hand_in(&self, reply: Option<Reply<ReleaseOutcome>>) -> bool {
        if self.released.swap(true, Ordering::AcqRel) {
            return false;
        }
        let grant = &self.grant;
        if !grant.drop_guard() {
            let outcome = grant
                .loss()
                .map_or(ReleaseOutcome::Released, ReleaseOutcome::Lost);
            let _ = reply.map(|reply| reply.send(Ok(outcome)));
            return true;
        }
        self.core.renewals.remove(grant.id);
        let mut fate = Fate::within(self.core.settings.patience);
        if reply.is_none() {
            // In the background there is time until the lease ends by itself.
            fate.give_up = fate.give_up.max(grant.status().deadline);
        }
        let op = Release {
            ask: ReleaseAsk {
                name: grant.name.clone(),
                owner: grant.id,
                fence: grant.fence,
            },
            grant: Some(Arc::clone(grant)),
            late: grant.late,
            repeated: false,
            reply,
            fate,
        };
        self.core.send(Op::Release(op));
        true
    }

    /// Resolves when the lease is lost; never, when it is released instead.
    pub(crate) async fn lost(&self) -> Loss {
        let mut status = self.grant.watch();
        // The sender is in the grant, which `self` keeps: an error cannot come.
        let _ = status
            .wait_for(|status| matches!(status.end, Some(End::Lost(_))))
            .await;
        match self.grant.loss() {
            Some(loss) => loss,
            None => std::future::pending().await,
        }
    }

    /// Resolves when the lease is at risk, or lost.
    pub(crate) async fn at_risk(&self) {
        let mut status = self.grant.watch();
        let warned = |end| matches!(end, Some(End::Lost(_)));
        let _ = status
            .wait_for(|status| status.at_risk || warned(status.end))
            .await;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.hand_in(None);
    }
}
