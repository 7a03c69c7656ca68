//! What a client holds, and what holding it needs.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use uuid::Uuid;

use super::grant::Grant;
use super::guards::Guards;
use super::on_end::OnEnd;
use super::renew::Renewals;
use super::session::Session;
use crate::model::Error;
use crate::runtime::base::settings::Settings;
use crate::runtime::batch::handle::Lanes;

/// What a client holds.
#[derive(Debug)]
pub(crate) struct Holdings {
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) renewals: Renewals,
    pub(crate) sessions: Sessions,
    /// Its guards that have not ended.
    pub(crate) guards: Guards,
    pub(crate) on_end: Arc<dyn OnEnd>,
    pub(crate) settings: Settings,
}

/// The session of a client.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    pub(super) current: Mutex<Option<Arc<Session>>>,
    /// Sessions that no guard trusts any more, and that have to be ended in the database.
    pub(super) closed: Mutex<Vec<Uuid>>,
    /// A task locks it while it opens a session. It has the last failure.
    pub(crate) opening: tokio::sync::Mutex<Option<(u64, Error)>>,
    /// How many times a session was opened, or failed to open.
    pub(crate) attempts: AtomicU64,
}

impl Sessions {
    pub(crate) fn live(&self) -> Option<Arc<Session>> {
        let current = self.current.lock();
        let live = current.as_ref().filter(|session| session.grant.is_held());
        live.map(Arc::clone)
    }

    /// The grant was released.
    pub(crate) fn forget(&self, grant: &Grant) {
        if let Some(session) = &*self.current.lock() {
            session.forget(grant);
        }
    }
}
