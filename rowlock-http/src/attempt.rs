//! One request with a key: begin an attempt, run the handler, keep its response.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use bytes::Bytes;
use http::response::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body;
use rowlock::{Begun, Error, Outcome};
use tokio::time::{self, Instant};
use tower_service::Service;
use tracing::Instrument as _;

use crate::body::{Answer, BoxError, ResponseBody};
use crate::collect::{Collected, collect};
use crate::fingerprint;
use crate::handle::Idempotent;
use crate::problem::Problem;
use crate::received::Received;
use crate::settings::{Room, ServerError, Settings, was_not_applied};
use crate::stored;
use crate::under_way::{Doing, Task};

/// The tasks of a request, as [`rowlock::Rowlock::shutdown`] names them.
const REQUEST: &str = "an HTTP request";
const HANDLING: &str = "an HTTP handler";
const KEEPING: &str = "a response that is not kept yet";

/// The name of the step that the handler is, with [`ServerError::Unknown`].
const HANDLER: &str = "http:handler";

/// How long the layer tries to keep a response when the database does not answer.
const KEEP_TRYING: Duration = Duration::from_mins(10);

/// The pause between two tries, with jitter, so that processes that fail together do not try again together.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A request with a principal.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) settings: Arc<Settings>,
    pub(crate) principal: Vec<u8>,
    /// `None`: the settings say how the key is found in the whole request.
    pub(crate) key: Option<String>,
}

/// The response of a handler, and the outcome to keep if the response is final.
type Come = (Parts, ResponseBody, Option<Result<Outcome, Error>>);

impl Asked {
    /// Answers the request in a task, which goes on when the client hangs up. The task starts before it reads the body: a server
    /// may drop this future as soon as it has read the last byte of the body and the end of the connection after it.
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
            return Ok(settings.response(&Problem::Stopping));
        };
        let work = async move { self.run(inner, request, &task).await };
        let request = settings.idempotency.spawn(REQUEST, work.in_current_span());
        match request.await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::error!(%error, "the task of a request broke off: its client gets a 500");
                Ok(settings.response(&Problem::HandlerPanicked))
            }
        }
    }

    async fn run<S, B, R>(self, inner: S, request: Request<B>, task: &Task) -> Answer<S::Error>
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
        let body = collect(body, self.settings.max_body);
        let body = time::timeout(limit, body).await;
        let body = match body.unwrap_or(Err(Problem::BodyTooSlow { limit })) {
            Ok(body) => body,
            Err(problem) => return Ok(self.settings.response(&problem)),
        };
        let received = Received::new(head, body.bytes.clone());
        let begun = self.begin(&received, &body).await;
        let (head, bytes) = received.into_parts();
        let request = Request::from_parts(head, B::from(bytes));
        let (attempt, _room) = match begun {
            Ok(Started::Mine(attempt, room)) => (attempt, room),
            Ok(Started::Done(response)) => return Ok(response),
            Ok(Started::WithoutKey) => return pass(inner, request).await,
            Err(problem) => return Ok(self.settings.response(&problem)),
        };
        let started = Instant::now();
        task.is(Doing::Running, attempt.record());
        let answer = self.attempt(attempt, inner, request, task).await;
        self.settings.pace.add(started.elapsed());
        answer
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
                let response = async {
                    let response = inner.call(request).await?;
                    let response = response.map(ResponseBody::new);
                    Ok(read(&attempt, &settings, response).await)
                };
                // Nothing of the handler is left after this.
                settings.in_time(response).await
            }
        };
        let idempotency = &self.settings.idempotency;
        let come = idempotency.spawn(HANDLING, work.in_current_span()).await;
        task.is(Doing::Keeping, attempt.record());
        match come {
            Ok(Ok(Ok((head, body, Some(outcome))))) => {
                Ok(match self.keep(attempt, outcome, head.status).await {
                    Ok(()) => Response::from_parts(head, body),
                    Err(error) => self.settings.response(&Problem::of(&error)),
                })
            }
            Ok(Ok(Ok((head, body, None)))) => {
                give_up(&attempt, was_not_applied(head.status)).await;
                Ok(Response::from_parts(head, body))
            }
            Ok(Ok(Err(error))) => {
                give_up(&attempt, false).await;
                Err(error)
            }
            Ok(Err(problem)) => {
                let record = attempt.record();
                tracing::warn!(%record, ?problem, "a handler is cut off");
                Ok(self.broke_off(attempt, problem).await)
            }
            Err(error) => {
                let record = attempt.record();
                tracing::error!(%error, %record, "the handler has panicked");
                Ok(self.broke_off(attempt, Problem::HandlerPanicked).await)
            }
        }
    }

    /// Ends the attempt of a handler that did not come to its end.
    async fn broke_off(&self, attempt: Idempotent, problem: Problem) -> Response<ResponseBody> {
        match attempt.answered() {
            // Only the body of the final response is missing.
            Some(status) => {
                let kept = self.keep(attempt, stored::not_kept(status), status).await;
                kept.unwrap_or_else(
                    |error| tracing::warn!(%error, "a response is not kept yet: the layer tries again"),
                );
            }
            None => give_up(&attempt, false).await,
        }
        self.settings.response(&problem)
    }

    async fn begin(&self, received: &Received, body: &Collected) -> Result<Started, Problem> {
        let settings = &self.settings;
        let key = match (&self.key, &settings.key_from) {
            (None, Ok(Some(key_from))) => settings.key_of(received, &**key_from).await?,
            (key, _) => key.clone(),
        };
        let Some(key) = key else {
            return Ok(Started::WithoutKey);
        };
        let fingerprint = fingerprint::of(received, body, settings).await?;
        if !settings.under_way.is_open() {
            return Err(Problem::Stopping);
        }
        let begun = settings
            .idempotency
            .begin_http_if(&self.principal, &key, fingerprint, || settings.room())
            .await
            .map_err(|error| Problem::of(&error))?;
        let (guard, room) = match begun.ok_or(Problem::Overloaded)? {
            Begun::New(begun) => begun,
            Begun::Replay(outcome) => return stored::replay(&outcome).map(Started::Done),
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
        let attempt = Idempotent::new(guard, settings);
        if settings.server_error == ServerError::Unknown {
            let begun = attempt.begin_whole(HANDLER).await.map_err(|error| {
                // The handler has not run, so this attempt must not count towards max_attempts.
                attempt.do_not_count();
                Problem::of(&error)
            });
            if let Some(found) = begun? {
                return resolved(&attempt, &found).await.map(Started::Done);
            }
        }
        Ok(Started::Mine(attempt, room))
    }

    /// Keeps the handler's outcome. When that fails, a task tries again.
    async fn keep(
        &self,
        attempt: Idempotent,
        outcome: Result<Outcome, Error>,
        status: StatusCode,
    ) -> Result<(), Error> {
        let outcome = outcome?;
        let error = match attempt.complete(&outcome).await {
            kept @ (Ok(()) | Err(Error::Superseded { .. })) => return kept,
            // A step of the handler may have happened. A kept response would hide that.
            Err(error @ Error::StepUnknown { .. }) => {
                give_up(&attempt, false).await;
                return Err(error);
            }
            Err(error) => error,
        };
        let task = self.settings.under_way.keeping(attempt.record());
        let work = async move {
            let _task = task;
            keep_on(attempt, outcome, status).await;
        };
        let idempotency = &self.settings.idempotency;
        idempotency.spawn(KEEPING, work.in_current_span());
        Err(error)
    }
}

/// Passes a request on, untouched.
pub(crate) async fn pass<S, B, R>(
    mut inner: S,
    request: Request<B>,
) -> Result<Response<ResponseBody>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body + Send + 'static,
    R::Error: Into<BoxError>,
{
    Ok(inner.call(request).await?.map(ResponseBody::new))
}

/// Reads a final response, unless the handler itself has ended the attempt.
async fn read(attempt: &Idempotent, settings: &Settings, response: Response<ResponseBody>) -> Come {
    let (head, mut body) = response.into_parts();
    if attempt.is_settled() || !(settings.is_final)(head.status) {
        return (head, body, None);
    }
    attempt.answer(head.status);
    let outcome = stored::outcome(&head, &mut body, settings).await;
    (head, body, Some(outcome))
}

enum Started {
    Mine(Idempotent, Room),
    Done(Response<ResponseBody>),
    /// The request has no key, and needs none.
    WithoutKey,
}

/// An operator or the hook has decided that the handler's work happened. Their result is the response from now on.
async fn resolved(
    attempt: &Idempotent,
    found: &Outcome,
) -> Result<Response<ResponseBody>, Problem> {
    let kept = attempt.complete(found).await;
    kept.map_err(|error| {
        // The handler has not run, so this attempt must not count towards max_attempts.
        attempt.do_not_count();
        Problem::of(&error)
    })?;
    stored::replay(found)
}

/// Ends an attempt without an outcome. The key becomes free. With [`ServerError::Unknown`] the record becomes unknown instead,
/// unless `was_not_applied`.
async fn give_up(attempt: &Idempotent, was_not_applied: bool) {
    if attempt.is_settled() {
        attempt.do_not_count();
        return;
    }
    // The handler knows that its work is done, whatever it returned.
    if attempt.answered().is_none() && attempt.is_kept_claimed() {
        return;
    }
    if was_not_applied && let Err(error) = attempt.whole_not_done(HANDLER).await {
        tracing::warn!(%error, "a handler did nothing, and this could not be recorded: the record may become unknown");
    }
    match attempt.release().await {
        Ok(()) | Err(Error::Superseded { .. }) => {}
        // The drop of the guard tries again.
        Err(error) => tracing::warn!(%error, "a key is not free yet: the layer tries again"),
    }
}

/// Tries again to keep a response that the database could not or would not take. An attempt can end after its lease has run
/// out, so the tries go on until another attempt takes over. When the database refuses the response, this keeps a mark
/// instead: the work was done, with this status.
async fn keep_on(attempt: Idempotent, whole: Outcome, status: StatusCode) {
    let until = Instant::now() + KEEP_TRYING;
    let mut refused_until = None;
    let mut pauses = ExponentialBuilder::new()
        .with_min_delay(SHORTEST_PAUSE)
        .with_max_delay(LONGEST_PAUSE)
        .without_max_times()
        .with_jitter()
        .build();
    while Instant::now() < until {
        let mut kept = attempt.complete(&whole).await;
        if kept.as_ref().is_err_and(is_refusal) {
            // The database may take the response later. Retries of the request wait while the lease lives, so after that the
            // mark is kept.
            let limit = attempt.lease().min(KEEP_TRYING / 2);
            let refused_until = *refused_until.get_or_insert_with(|| Instant::now() + limit);
            let in_time = Instant::now() < refused_until && attempt.is_held();
            if !in_time && let Ok(mark) = stored::not_kept(status) {
                kept = attempt.complete(&mark).await;
            }
        }
        match kept {
            Ok(()) => return,
            Err(error @ Error::Superseded { .. }) => {
                return tracing::warn!(%error, "a response is not kept");
            }
            Err(Error::ShutDown { .. }) => break,
            Err(error) => {
                tracing::warn!(%error, "a response is not kept yet: the layer tries again");
            }
        }
        let pause = pauses.next().unwrap_or_default();
        time::sleep(pause).await;
    }
    let record = attempt.record();
    tracing::error!(%record, "a response is lost: a retry runs the handler again");
}

/// Whether the database answered, and refused the outcome.
fn is_refusal(error: &Error) -> bool {
    !error.is_transient() && !matches!(error, Error::Superseded { .. })
}
