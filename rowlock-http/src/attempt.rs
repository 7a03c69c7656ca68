//! One request with a key: begin an attempt, run the handler, keep its response.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use rowlock::layer::{LayerAttempt as _, LayerKeys as _};
use rowlock::{Begun, Error, Outcome, RecordKey, Scope, StepInfo};
use tokio::time::{self, Instant};
use tower_service::Service;
use tracing::Instrument as _;
use tracing::field::Empty;

use crate::body::{Answer, BoxError, ResponseBody};
use crate::collect::{Collected, again, collect, discard};
use crate::ending::HANDLER;
use crate::finality::Finality;
use crate::handle::Idempotent;
use crate::plain::{pass, refuse};
use crate::problem::Problem;
use crate::received::Received;
use crate::scope::with_prefix;
use crate::settings::{Room, Senders, ServerError, Settings};
use crate::under_way::{Doing, Task};
use crate::{fingerprint, stored};

/// The tasks of a request, as [`rowlock::Rowlock::shutdown`] names them.
const REQUEST: &str = "an HTTP request";
const HANDLING: &str = "an HTTP handler";

/// A request with a principal.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) settings: Arc<Settings>,
    /// The service, and the principal.
    pub(crate) owner: Vec<u8>,
    /// `None`: the settings say how the key is found in the whole request.
    pub(crate) key: Option<String>,
}

impl Asked {
    /// Answers the request in a task, which goes on when the client hangs up. The task starts before it reads the
    /// body: a server may drop this future as soon as it has read the last byte of the body and the end of the
    /// connection after it.
    pub(crate) async fn answer<S, B, R>(self, inner: S, request: Request<B>) -> Answer<S::Error>
    where
        S: Service<Request<B>, Response = Response<R>> + Send + 'static,
        S::Future: Send,
        S::Error: Send + 'static,
        B: Body + From<Bytes> + Send + 'static,
        B::Data: Send,
        B::Error: Into<BoxError>,
        R: Body + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let settings = Arc::clone(&self.settings);
        let Some(task) = settings.under_way.begin() else {
            return Ok(refuse(&settings, &Problem::Stopping, request).await);
        };
        let work = async move { self.run(inner, request, task).await };
        let span = tracing::info_span!(
            "idempotent request",
            rowlock.record = Empty,
            rowlock.attempt = Empty,
            rowlock.outcome = Empty
        );
        let request = settings.idempotency.spawn(REQUEST, work.instrument(span));
        match request.await {
            Ok(ControlFlow::Break(answer)) => answer,
            // It passes untouched: when the client hangs up, it is dropped, as without this layer.
            Ok(ControlFlow::Continue((inner, request))) => pass(inner, request).await,
            Err(error) => {
                tracing::error!(%error, "the task of a request broke off: its client gets a 500");
                Ok(settings.response(&Problem::HandlerPanicked))
            }
        }
    }

    /// `Continue`: the request has no key, and needs none.
    async fn run<S, B, R>(
        self,
        inner: S,
        request: Request<B>,
        task: Task,
    ) -> ControlFlow<Answer<S::Error>, (S, Request<B>)>
    where
        S: Service<Request<B>, Response = Response<R>> + Send + 'static,
        S::Future: Send,
        S::Error: Send + 'static,
        B: Body + From<Bytes> + Send + 'static,
        B::Data: Send,
        B::Error: Into<BoxError>,
        R: Body + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let (head, body) = request.into_parts();
        // A time limit outside of the layer drops the answer, but not this task. So the task needs a limit.
        let limit = self.settings.body_timeout;
        let mut arriving = pin!(body);
        let body = collect(arriving.as_mut(), self.settings.max_body);
        let body = time::timeout(limit, body).await;
        let body = match body.unwrap_or(Err(Problem::BodyTooSlow { limit })) {
            Ok(body) => body,
            Err(problem) => {
                if matches!(problem, Problem::BodyTooLarge { .. }) {
                    discard(&head.headers, arriving).await;
                }
                return ControlFlow::Break(Ok(self.settings.response(&problem)));
            }
        };
        let received = Received::new(head, body.bytes.clone());
        let begun = self.begin(&received, &body, &task).await;
        let (head, bytes) = received.into_parts();
        let request = Request::from_parts(head, again(bytes, body.trailers));
        let (attempt, _room) = match begun {
            Ok(Started::Mine(attempt, room)) => (attempt, room),
            Ok(Started::Done(response)) => return ControlFlow::Break(Ok(response)),
            Ok(Started::WithoutKey) => return ControlFlow::Continue((inner, request)),
            Err(problem) => return ControlFlow::Break(Ok(self.refusal(&problem))),
        };
        let started = Instant::now();
        attempt.is(Doing::Running);
        let answer = self.attempt(attempt, inner, request, &task).await;
        self.settings.pace.add(started.elapsed());
        ControlFlow::Break(answer)
    }

    /// Runs the handler, and ends the attempt.
    async fn attempt<S, B, R>(
        &self,
        attempt: Idempotent,
        mut inner: S,
        mut request: Request<B>,
        task: &Task,
    ) -> Answer<S::Error>
    where
        S: Service<Request<B>, Response = Response<R>> + Send + 'static,
        S::Future: Send,
        S::Error: Send + 'static,
        B: Send + 'static,
        R: Body + Send + 'static,
        R::Error: Into<BoxError>,
    {
        request.extensions_mut().insert(attempt.clone());
        // A separate task, so that a panic ends only this task.
        let work = {
            let (attempt, settings) = (attempt.clone(), Arc::clone(&self.settings));
            async move {
                if settings.under_way.is_cutting() {
                    return None;
                }
                let response = async { Ok(attempt.read(inner.call(request).await?).await) };
                // Nothing of the handler is left after this.
                Some(settings.in_time(response).await)
            }
        };
        let idempotency = &self.settings.idempotency;
        let come = idempotency.spawn(HANDLING, work.in_current_span()).await;
        match come {
            // The server stops, and the handler has not begun.
            Ok(None) => {
                attempt.give_up(Finality::NothingHappened).await;
                Ok(self.settings.response(&Problem::Stopping))
            }
            Ok(Some(Ok(Ok(come)))) => Ok(attempt.end(come).await),
            Ok(Some(Ok(Err(error)))) => {
                attempt.give_up(Finality::Retry).await;
                Err(error)
            }
            Ok(Some(Err(problem))) => {
                let record = attempt.record();
                tracing::warn!(%record, ?problem, "a handler is cut off");
                if matches!(problem, Problem::Stopping) {
                    task.was_cut();
                }
                let answer = attempt.clone().break_off(problem).await;
                attempt.was();
                Ok(answer)
            }
            Err(error) => {
                let record = attempt.record();
                tracing::error!(%error, %record, "the handler has panicked");
                Ok(attempt.break_off(Problem::HandlerPanicked).await)
            }
        }
    }

    fn refusal(&self, problem: &Problem) -> Response<ResponseBody> {
        let status = match problem {
            Problem::Expired => None,
            Problem::ResponseNotKept { status } => *status,
            _ => return self.settings.response(problem),
        };
        match self.settings.senders {
            Senders::Clients => self.settings.response(problem),
            Senders::OfEvents => stored::acknowledgement(status),
        }
    }

    async fn begin(
        &self,
        received: &Received,
        body: &Collected,
        task: &Task,
    ) -> Result<Started, Problem> {
        let settings = &self.settings;
        let key = match (&self.key, &settings.key_from) {
            (None, Ok(Some(key_from))) => settings.key_of(received, &**key_from).await?,
            (key, _) => key.clone(),
        };
        let Some(key) = key else {
            return Ok(Started::WithoutKey);
        };
        let mut fingerprint = fingerprint::of(received, body, settings).await?;
        if !settings.under_way.is_open() {
            return Err(Problem::Stopping);
        }
        let (mut idempotency, waits) = settings.idempotency_for(&received.head().headers);
        let outer = self.is_inside_of(received, &key);
        if outer.is_some() {
            // There is nothing to wait for.
            idempotency = Cow::Owned(idempotency.into_owned().wait(Duration::ZERO));
        }
        let room = || settings.room();
        let mut others = settings.also_accepted.iter();
        let begun = loop {
            let begin = idempotency.begin_http_if(&self.owner, &key, fingerprint, room);
            let begun = tokio::select! {
                begun = begin => begun.map_err(|error| Problem::of(&error))?,
                // It waits for another attempt.
                () = settings.under_way.cut() => return Err(Problem::Stopping),
            };
            // A layer with other settings may have begun it.
            match (&begun, others.next()) {
                (Some(Begun::Mismatch), Some(other)) => {
                    // If the other settings refuse it, they have not begun it.
                    if let Ok(other) = fingerprint::of(received, body, other).await {
                        fingerprint = other;
                    }
                }
                _ => break begun,
            }
        };
        drop(waits);
        let (guard, room) = match begun.ok_or(Problem::Overloaded)? {
            Begun::New(begun) => begun,
            Begun::Replay(outcome) => {
                let record = RecordKey::new(with_prefix(&self.owner), &key);
                let record = record.map_err(|error| Problem::of(&error.into()))?;
                return stored::replay(&outcome, &record, settings).map(Started::Done);
            }
            Begun::InFlight(_) | Begun::Mismatch if outer.is_some() => {
                tracing::error!(
                    record = outer.map(|record| record.to_string()),
                    "a request is refused: an IdempotencyLayer is inside of another one that has begun its record; take one of \
                     them away"
                );
                return Err(Problem::Misconfigured);
            }
            Begun::InFlight(in_flight) if in_flight.quarantine.is_some() => {
                return Err(Problem::Unavailable);
            }
            Begun::InFlight(in_flight) => {
                let remaining = in_flight.remaining;
                return Err(Problem::InFlight { remaining });
            }
            Begun::Mismatch => return Err(Problem::KeyReused),
            Begun::Unknown(unknown) => return Err(Problem::Unknown { step: unknown.step }),
            Begun::Expired => return Err(Problem::Expired),
            Begun::Poisoned { attempts } => return Err(Problem::Poisoned { attempts }),
        };
        let attempt = Idempotent::new(guard, settings, task);
        // It may have waited for long.
        if !settings.under_way.is_open() {
            attempt.do_not_count();
            return Err(Problem::Stopping);
        }
        let found = self.found(&attempt).await.map_err(|error| {
            // The handler has not run, so this attempt must not count towards max_attempts.
            attempt.do_not_count();
            Problem::of(&error)
        });
        if let Some(found) = found? {
            return self.resolved(&attempt, &found).await.map(Started::Done);
        }
        Ok(Started::Mine(attempt, room))
    }

    /// The record, if the request has come out of an attempt of it: the request would wait for itself. Another layer
    /// is around this one.
    fn is_inside_of(&self, received: &Received, key: &str) -> Option<RecordKey> {
        let outer = received.head().extensions.get::<Idempotent>()?.record();
        let is_own = outer.scope() == with_prefix(&self.owner) && outer.key() == key.as_bytes();
        is_own.then(|| outer.clone())
    }

    /// The result of the handler, if an operator or the reconcile hook has decided that an earlier run of it happened.
    /// Otherwise the handler may run now.
    async fn found(&self, attempt: &Idempotent) -> Result<Option<Outcome>, Error> {
        if self.settings.server_error == ServerError::Unknown {
            return attempt.begin_whole(HANDLER).await;
        }
        // Only an earlier attempt can have become unknown, by what a hook said, or under other settings.
        if !attempt.is_retry() {
            return Ok(None);
        }
        let (record, idempotency) = (attempt.record(), &self.settings.idempotency);
        let key = || Scope(record.scope()).key(record.key());
        let is_handler = |step: &StepInfo| step.step == HANDLER;
        // The handler's own steps may have large results.
        let names = idempotency.steps_cut(key(), 0).await?;
        if !names.iter().any(is_handler) {
            return Ok(None);
        }
        let mut steps = idempotency.steps(key()).await?.into_iter();
        Ok(steps.find(is_handler).map(|handler| handler.outcome))
    }

    /// An operator or the hook has decided that the handler's work happened. Their result is the response from now on.
    async fn resolved(
        &self,
        attempt: &Idempotent,
        found: &Outcome,
    ) -> Result<Response<ResponseBody>, Problem> {
        let kept = attempt.complete(found).await;
        kept.map_err(|error| {
            // The handler has not run, so this attempt must not count towards max_attempts.
            attempt.do_not_count();
            Problem::of(&error)
        })?;
        stored::replay(found, attempt.record(), &self.settings)
    }
}

enum Started {
    Mine(Idempotent, Room),
    Done(Response<ResponseBody>),
    /// The request has no key, and needs none.
    WithoutKey,
}

#[cfg(all(test, feature = "sqlite"))]
#[path = "attempt_tests.rs"]
mod tests;
