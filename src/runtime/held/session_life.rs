//! Opening and ending the session of a client.
//!
//! A client opens its session for the first lock that needs it, and another one when that session was lost or ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::select;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::grant::Grant;
use super::holdings::Holdings;
use super::session::Session;
use crate::model::{Error, Loss, Moment, Subject};
use crate::runtime::base::timer::sleep_until;
use crate::runtime::batch::alone::alone;
use crate::runtime::batch::head::{JobHead, Manner};
use crate::store::verbs::Store;
use crate::store::verbs::session::OpenParams;

impl Holdings {
    /// The client's session. Opens one when there is none that is live.
    pub(crate) async fn session(&self) -> Result<Arc<Session>, Error> {
        let sessions = &self.sessions;
        if let Some(session) = sessions.live() {
            return Ok(session);
        }
        let arrived = sessions.attempts.load(Ordering::Acquire);
        let until = Moment::now() + self.lanes.operation_timeout;
        let mut failed = select! {
            biased;
            failed = sessions.opening.lock() => failed,
            () = sleep_until(until) => return Err(Error::Unreachable {
                target: self.lanes.target.to_string(),
                detail: "another task opens the client's session, and has no answer yet".into(),
            }),
        };
        if let Some(session) = sessions.live() {
            return Ok(session);
        }
        // An attempt that began after this task had arrived also fails this task: a thousand tasks do not try one
        // after the other.
        if let Some((attempt, error)) = &*failed
            && *attempt > arrived
        {
            return Err(error.clone());
        }
        let attempt = sessions.attempts.fetch_add(1, Ordering::AcqRel) + 1;
        match self.open_session().await {
            Ok(session) => {
                *sessions.current.lock() = Some(Arc::clone(&session));
                *failed = None;
                Ok(session)
            }
            Err(error) => {
                *failed = Some((attempt, error.clone()));
                Err(error)
            }
        }
    }

    async fn open_session(&self) -> Result<Arc<Session>, Error> {
        self.lanes.check_open()?;
        let (ttl, clock_error) = (self.settings.session_ttl, self.settings.clock_error);
        let holder = Arc::clone(&self.settings.holder);
        let open = async move |store: &mut dyn Store| {
            let sent = Moment::now();
            let params = OpenParams {
                id: Uuid::new_v4(),
                ttl,
                holder: Arc::clone(&holder),
            };
            store.session_open(&params).await?;
            Ok((params.id, sent))
        };
        let (id, sent) = self
            .lanes
            .run(self.lanes.wish(None, "open a session"), open)
            .await?;
        let deadline = sent + clock_error.trusted(ttl);
        let session = Session::new(Grant::new(id, id, 0, ttl, clock_error, None, deadline));
        let session = Arc::new(session);
        self.renewals.add_session(&session);
        Ok(session)
    }

    /// Ends the client's session, and those that an earlier call could not end: all their locks are lost, and then
    /// freed together. Returns how many were freed.
    pub(crate) async fn end_session(&self) -> Result<u64, Error> {
        if let Some(session) = self.sessions.current.lock().take() {
            self.close_session(&session);
            self.sessions.closed.lock().push(session.grant.id);
        }
        let mut all = 0;
        let closed = self.sessions.closed.lock().clone();
        for id in closed {
            let end = async move |store: &mut dyn Store| store.session_end(id).await;
            all += self.lanes.run_slow(self.ending(id), end).await?;
            self.sessions.closed.lock().retain(|closed| *closed != id);
        }
        Ok(all)
    }

    /// Ends the session without waiting: no lock of it is held by any guard.
    pub(crate) fn leave_session(&self) {
        let Some(session) = self.sessions.current.lock().take() else {
            return;
        };
        self.close_session(&session);
        let id = session.grant.id;
        let end = async move |store: &mut dyn Store| store.session_end(id).await;
        let (reply, _) = oneshot::channel();
        self.lanes.send(alone(self.ending(id), end, reply));
    }

    /// From now on no guard trusts the session.
    fn close_session(&self, session: &Session) {
        session.grant.lose(Loss::SessionEnded);
        self.renewals.remove(session.grant.id);
    }

    /// The head of the job that ends a session in the database.
    fn ending(&self, id: Uuid) -> JobHead {
        JobHead {
            manner: Manner::Duty,
            ..self.lanes.wish(Subject::Session(id), "end the session")
        }
    }
}

impl Drop for Holdings {
    fn drop(&mut self) {
        self.leave_session();
    }
}
