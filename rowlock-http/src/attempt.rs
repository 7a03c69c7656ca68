//! One request with a key: begin, run the handler, keep its response.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use bytes::Bytes;
use http::response::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body;
use rowlock::{Begun, Error, Fingerprint, Outcome};
use tokio::time::{self, Instant};
use tower_service::Service;
use tracing::Instrument as _;

use crate::body::{Answer, BoxError, ResponseBody};
use crate::fingerprint;
use crate::handle::Idempotent;
use crate::problem::Problem;
use crate::settings::{ServerError, Settings, was_not_applied};
use crate::stored;

/// The tasks of a request, as [`rowlock::Rowlock::shutdown`] names them.
const REQUEST: &str = "an HTTP request";
const HANDLING: &str = "an HTTP handler";
const KEEPING: &str = "a response that is not kept yet";

/// The step that the handler is, where its server errors are unknown.
const HANDLER: &str = "http:handler";

/// How long the layer goes on trying to keep a response after the database has gone.
const KEEP_TRYING: Duration = Duration::from_mins(10);

/// Between two tries, with jitter: processes that fail together must not come back together.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A request that was admitted.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) settings: Arc<Settings>,
    pub(crate) principal: Vec<u8>,
    pub(crate) key: String,
}

/// What a handler has come to: its response, and what is to be kept of it if it is final.
type Come = (Parts, ResponseBody, Option<Result<Outcome, Error>>);

impl Asked {
    /// Goes on when the client hangs up. The task begins before the body is read: a server may drop this future as soon
    /// as it has read the last byte, and the end of the connection behind it.
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
        let task = settings.under_way.one();
        let work = async move {
            let _task = task;
            self.run(inner, request).await
        };
        let request = settings.idempotency.spawn(REQUEST, work.in_current_span());
        match request.await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::error!(%error, "a request broke off");
                Ok(settings.response(&Problem::HandlerPanicked))
            }
        }
    }

    async fn run<S, B, R>(self, inner: S, request: Request<B>) -> Answer<S::Error>
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
        let (parts, body) = request.into_parts();
        // Nobody else bounds it: a time limit outside of the layer drops the answer, and this goes on.
        let limit = self.settings.body_timeout;
        let body = fingerprint::collect(body, self.settings.max_body);
        let body = time::timeout(limit, body).await;
        let body = match body.unwrap_or(Err(Problem::BodyTooSlow { limit })) {
            Ok(body) => body,
            Err(problem) => return Ok(self.settings.response(&problem)),
        };
        let fingerprint = fingerprint::of(&parts, &body, &self.settings);
        let attempt = match self.begin(&fingerprint).await {
            Ok(Started::Mine(attempt)) => attempt,
            Ok(Started::Done(response)) => return Ok(response),
            Err(problem) => return Ok(self.settings.response(&problem)),
        };
        let started = Instant::now();
        let request = Request::from_parts(parts, B::from(body.bytes));
        let answer = self.attempt(attempt, inner, request).await;
        self.settings.pace.add(started.elapsed());
        answer
    }

    /// Runs the handler, and ends the attempt.
    async fn attempt<S, B, R>(
        &self,
        attempt: Idempotent,
        mut inner: S,
        mut request: Request<B>,
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
        // A task of its own, so that a panic ends only that.
        let work = {
            let (attempt, settings) = (attempt.clone(), Arc::clone(&self.settings));
            async move {
                let response = inner.call(request).await?;
                let response = response.map(ResponseBody::new);
                Ok(read(&attempt, &settings, response).await)
            }
        };
        let idempotency = &self.settings.idempotency;
        match idempotency.spawn(HANDLING, work.in_current_span()).await {
            Ok(Ok((head, body, Some(outcome)))) => {
                Ok(match self.keep(attempt, outcome, head.status).await {
                    Ok(()) => Response::from_parts(head, body),
                    Err(error) => self.settings.response(&Problem::of(&error)),
                })
            }
            Ok(Ok((head, body, None))) => {
                give_up(&attempt, was_not_applied(head.status)).await;
                Ok(Response::from_parts(head, body))
            }
            Ok(Err(error)) => {
                give_up(&attempt, false).await;
                Err(error)
            }
            Err(error) => {
                let record = attempt.record();
                tracing::error!(%error, %record, "the handler has panicked");
                match attempt.answered() {
                    // While its body was read.
                    Some(status) => {
                        let kept = self.keep(attempt, stored::not_kept(status), status).await;
                        kept.unwrap_or_else(|error| tracing::warn!(%error, "it is not kept yet"));
                    }
                    None => give_up(&attempt, false).await,
                }
                Ok(self.settings.response(&Problem::HandlerPanicked))
            }
        }
    }

    async fn begin(&self, fingerprint: &Fingerprint) -> Result<Started, Problem> {
        let idempotency = &self.settings.idempotency;
        let begun = idempotency.begin_http(&self.principal, &self.key, *fingerprint);
        let guard = match begun.await.map_err(|error| Problem::of(&error))? {
            Begun::New(guard) => guard,
            Begun::Replay(outcome) => return stored::replay(&outcome).map(Started::Done),
            Begun::InFlight(in_flight) => {
                let remaining = in_flight.remaining;
                return Err(Problem::InFlight { remaining });
            }
            Begun::Mismatch => return Err(Problem::KeyReused),
            Begun::Unknown(unknown) => return Err(Problem::Unknown { step: unknown.step }),
            Begun::Expired => return Err(Problem::Expired),
            Begun::Poisoned { attempts } => return Err(Problem::Poisoned { attempts }),
        };
        let attempt = Idempotent::new(guard, &self.settings);
        if self.settings.server_error == ServerError::Unknown {
            let begun = attempt.begin_whole(HANDLER).await.map_err(|error| {
                // The handler has not run: this is no attempt that vanished.
                attempt.do_not_count();
                Problem::of(&error)
            });
            if let Some(found) = begun? {
                return resolved(&attempt, &found).await.map(Started::Done);
            }
        }
        Ok(Started::Mine(attempt))
    }

    /// Keeps what the handler has come to. When that fails, a task goes on with it.
    async fn keep(
        &self,
        attempt: Idempotent,
        outcome: Result<Outcome, Error>,
        status: StatusCode,
    ) -> Result<(), Error> {
        let outcome = outcome?;
        let error = match attempt.complete(&outcome).await {
            kept @ (Ok(()) | Err(Error::Superseded { .. })) => return kept,
            // A response would hide what a step of the handler may have done.
            Err(error @ Error::StepUnknown { .. }) => {
                give_up(&attempt, false).await;
                return Err(error);
            }
            Err(error) => error,
        };
        let task = self.settings.under_way.one();
        let work = async move {
            let _task = task;
            keep_on(attempt, outcome, status).await;
        };
        let idempotency = &self.settings.idempotency;
        idempotency.spawn(KEEPING, work.in_current_span());
        Err(error)
    }
}

/// Reads a final response, unless the handler has ended the attempt by itself.
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
    Mine(Idempotent),
    Done(Response<ResponseBody>),
}

/// Somebody has found out that it happened: what he says is the response from now on.
async fn resolved(
    attempt: &Idempotent,
    found: &Outcome,
) -> Result<Response<ResponseBody>, Problem> {
    let kept = attempt.complete(found).await;
    kept.map_err(|error| {
        // Nothing has run: this is no attempt that vanished.
        attempt.do_not_count();
        Problem::of(&error)
    })?;
    stored::replay(found)
}

/// Frees the key, or makes the record unknown where the handler is a step that must not be repeated; unless nothing was
/// done.
async fn give_up(attempt: &Idempotent, was_not_applied: bool) {
    if attempt.is_settled() {
        attempt.do_not_count();
        return;
    }
    if was_not_applied && let Err(error) = attempt.whole_not_done(HANDLER).await {
        tracing::warn!(%error, "that the handler did nothing could not be recorded");
    }
    match attempt.release().await {
        Ok(()) | Err(Error::Superseded { .. }) => {}
        // Dropping the guard goes on with it.
        Err(error) => tracing::warn!(%error, "the key is not free yet"),
    }
}

/// The database was out of reach when there was a response to keep, or has refused it. It can be kept until another
/// attempt has taken over: to end an attempt takes no lease. When the database refuses the response, that the work was
/// done is kept instead.
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
            // A refusal may pass, too. Others wait as long as the lease lives, and no longer.
            let limit = attempt.lease().min(KEEP_TRYING / 2);
            let refused_until = *refused_until.get_or_insert_with(|| Instant::now() + limit);
            let in_time = Instant::now() < refused_until && attempt.is_held();
            if !in_time && let Ok(mark) = stored::not_kept(status) {
                kept = attempt.complete(&mark).await;
            }
        }
        match kept {
            Ok(()) => return,
            Err(error @ (Error::Superseded { .. } | Error::ShutDown { .. })) => {
                return tracing::warn!(%error, "a response is not kept");
            }
            Err(error) => tracing::warn!(%error, "a response is not kept yet"),
        }
        let pause = pauses.next().unwrap_or_default();
        time::sleep(pause).await;
    }
    let record = attempt.record();
    tracing::error!(%record, "a response is lost: a retry runs the handler again");
}

/// Whether the database was asked, and does not want it.
fn is_refusal(error: &Error) -> bool {
    !error.is_transient() && !matches!(error, Error::Superseded { .. })
}
