//! One request with a key: begin, run the handler, keep its response.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;
use tracing::Instrument as _;

use super::body::{BoxError, ResponseBody};
use super::handle::Idempotent;
use super::problem::Problem;
use super::service::Answer;
use super::settings::{ServerError, Settings};
use super::stored;
use crate::hold::clock::{Moment, sleep_until};
use crate::hold::{detached, retry};
use crate::{Begun, Error, Fingerprint, Outcome};

/// The step that the handler is, where its server errors are unknown.
const HANDLER: &str = "handler";

/// A request that was admitted.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) settings: Arc<Settings>,
    pub(super) scope: Vec<u8>,
    pub(super) key: String,
    pub(super) fingerprint: Fingerprint,
}

impl Asked {
    /// Goes on when the client hangs up: what was begun is brought to its end, and kept.
    pub(super) async fn answer<S, B, R>(self, inner: S, request: Request<B>) -> Answer<S::Error>
    where
        S: Service<Request<B>, Response = Response<R>> + Send + 'static,
        S::Future: Send,
        S::Error: Send + 'static,
        B: Send + 'static,
        R: Body + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let settings = Arc::clone(&self.settings);
        match detached(self.run(inner, request).in_current_span()).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::error!(%error, "a request broke off");
                let problem = Problem::HandlerPanicked;
                Ok(problem.response(&settings.policy_url))
            }
        }
    }

    async fn run<S, B, R>(self, mut inner: S, mut request: Request<B>) -> Answer<S::Error>
    where
        S: Service<Request<B>, Response = Response<R>> + Send + 'static,
        S::Future: Send,
        S::Error: Send + 'static,
        B: Send + 'static,
        R: Body + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let attempt = match self.begin().await {
            Ok(Started::Mine(attempt)) => attempt,
            Ok(Started::Done(response)) => return Ok(response),
            Err(problem) => return Ok(problem.response(&self.settings.policy_url)),
        };
        request.extensions_mut().insert(attempt.clone());
        // A task of its own, so that a panic ends only that.
        let work = async move { inner.call(request).await };
        match detached(work.in_current_span()).await {
            Ok(Ok(response)) => {
                let response = response.map(ResponseBody::new);
                Ok(self.keep(attempt, response).await)
            }
            Ok(Err(error)) => {
                give_up(&attempt).await;
                Err(error)
            }
            Err(error) => {
                let record = attempt.record();
                tracing::error!(%error, %record, "the handler has panicked");
                give_up(&attempt).await;
                Ok(Problem::HandlerPanicked.response(&self.settings.policy_url))
            }
        }
    }

    async fn begin(&self) -> Result<Started, Problem> {
        let idempotency = &self.settings.idempotency;
        let begun = idempotency.begin(&self.scope, &self.key, &self.fingerprint);
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
            let begun = attempt.begin_once(HANDLER).await;
            if let Some(found) = begun.map_err(|error| Problem::of(&error))? {
                return resolved(&attempt, &found).await.map(Started::Done);
            }
        }
        Ok(Started::Mine(attempt))
    }

    /// Keeps the response, unless the handler has, or it is not final.
    async fn keep(
        &self,
        attempt: Idempotent,
        response: Response<ResponseBody>,
    ) -> Response<ResponseBody> {
        if attempt.is_settled() {
            attempt.pardon();
            return response;
        }
        if !(self.settings.is_final)(response.status()) {
            give_up(&attempt).await;
            return response;
        }
        let (head, mut body) = response.into_parts();
        let kept = match stored::outcome(&head, &mut body, &self.settings).await {
            Ok(outcome) => match attempt.complete(&outcome).await {
                kept @ (Ok(()) | Err(Error::Superseded { .. })) => kept,
                Err(error) => {
                    let lease = self.settings.idempotency.lease;
                    let outcomes = [Ok(outcome), stored::not_kept(head.status)];
                    detached(keep_on(attempt, outcomes, lease).in_current_span());
                    Err(error)
                }
            },
            Err(error) => Err(error),
        };
        match kept {
            Ok(()) => Response::from_parts(head, body),
            Err(error) => Problem::of(&error).response(&self.settings.policy_url),
        }
    }
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
    kept.map_err(|error| Problem::of(&error))?;
    stored::replay(found)
}

/// Frees the key, or makes the record unknown where the handler is a step that must not be repeated.
async fn give_up(attempt: &Idempotent) {
    if attempt.is_settled() {
        attempt.pardon();
        return;
    }
    match attempt.release().await {
        Ok(()) | Err(Error::Superseded { .. }) => {}
        // Dropping the guard goes on with it.
        Err(error) => tracing::warn!(%error, "the key is not free yet"),
    }
}

/// The database was out of reach when there was a response to keep, or has refused it. As long as nobody takes over, it
/// can still be kept: to free the key would run the handler again. When it cannot, that it was done is kept.
async fn keep_on(attempt: Idempotent, outcomes: [Result<Outcome, Error>; 2], each: Duration) {
    for outcome in outcomes.into_iter().flatten() {
        let until = Moment::now() + each;
        let mut pauses = retry::reconnect();
        while attempt.is_held() && !until.has_passed() {
            let Err(error) = attempt.complete(&outcome).await else {
                return;
            };
            if matches!(error, Error::Superseded { .. }) {
                return;
            }
            tracing::warn!(%error, "a response is not kept yet");
            let pause = pauses.next().unwrap_or_default();
            sleep_until(Moment::now() + pause).await;
        }
    }
    let record = attempt.record();
    tracing::error!(%record, "a response is lost: a retry runs the handler again");
}
