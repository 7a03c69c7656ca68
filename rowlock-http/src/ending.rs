//! The end of an attempt: what the handler's response, or its failure, means for the key.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use http::response::Parts;
use http::{Response, StatusCode};
use http_body::Body;
use rowlock::layer::{LayerAttempt as _, LayerKeys as _};
use rowlock::{Error, Outcome, RecordError};
use tokio::time::{self, Instant};
use tracing::Instrument as _;

use crate::body::{BoxError, ResponseBody};
use crate::finality::Finality;
use crate::handle::Idempotent;
use crate::problem::Problem;
use crate::settings::ServerError;
use crate::stored;
use crate::under_way::Doing;

/// The name of the step that the handler is, where its failure makes the record unknown.
pub(crate) const HANDLER: &str = "http:handler";

/// The task that goes on after a request, as [`rowlock::Rowlock::shutdown`] names it.
const KEEPING: &str = "a response that is not kept yet";

/// How long the layer tries to end an attempt when the database does not answer.
const KEEP_TRYING: Duration = Duration::from_mins(10);
/// How long a client waits for its record to become unknown.
const FIRST_TRY: Duration = Duration::from_secs(5);

/// The pause between two tries.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The response of a handler, and what becomes of its key.
pub(crate) struct Come {
    head: Parts,
    body: ResponseBody,
    ending: Ending,
}

enum Ending {
    /// The request is done, with this outcome.
    Done(Result<Outcome, Error>),
    /// The attempt ends without an outcome.
    GiveUp(Finality),
}

impl Idempotent {
    /// Decides what becomes of the key, and reads the body ahead where that needs it.
    pub(crate) async fn read<R>(&self, response: Response<R>) -> Come
    where
        R: Body + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let (head, body) = response.into_parts();
        let is_ended = self.is_settled() || self.did_nothing();
        let by_head = (!is_ended).then(|| self.settings().finality(&head));
        if let Some(finality) = by_head {
            // It counts if the body panics, or does not come to its end.
            self.answer(finality, head.status);
            if finality.is_done() {
                self.is(Doing::Answering);
            }
        }
        let mut body = ResponseBody::new(body);
        let ending = match by_head {
            Some(finality) => self.decide(finality, &head, &mut body).await,
            None => Ending::GiveUp(Finality::NothingHappened),
        };
        Come { head, body, ending }
    }

    async fn decide(
        &self,
        mut finality: Finality,
        head: &Parts,
        body: &mut ResponseBody,
    ) -> Ending {
        let settings = self.settings();
        let mut whole = None;
        if finality == Finality::Keep || settings.finality.is_some() {
            whole = stored::whole(head, body, settings).await;
        }
        if whole.is_some()
            && let Some(said) = settings.asks_hook(head, whole.as_deref(), finality)
        {
            finality = said;
            self.answer(finality, head.status);
        }
        match finality {
            Finality::Keep => {
                let (body, record) = (whole.as_deref(), self.record());
                Ending::Done(stored::outcome(head, body, record, settings))
            }
            Finality::DoNotKeep => Ending::Done(stored::not_kept(head.status)),
            other => Ending::GiveUp(other),
        }
    }

    /// Ends the attempt of a handler that has returned a response. Returns what its client gets.
    pub(crate) async fn end(self, come: Come) -> Response<ResponseBody> {
        let Come { head, body, ending } = come;
        match ending {
            Ending::Done(outcome) => match self.clone().keep(outcome, head.status).await {
                Ok(()) => Response::from_parts(head, body),
                Err(error) => self.settings().response(&Problem::of(&error)),
            },
            Ending::GiveUp(finality) => {
                self.give_up(finality).await;
                Response::from_parts(head, body)
            }
        }
    }

    /// Ends the attempt of a handler that did not come to its end. Returns what its client gets.
    pub(crate) async fn break_off(self, problem: Problem) -> Response<ResponseBody> {
        let response = self.settings().response(&problem);
        let (verdict, status) = self.verdict().unzip();
        match (verdict.unwrap_or(Finality::Retry), status) {
            // Only the body of the final response is missing.
            (Finality::Keep | Finality::DoNotKeep, Some(status)) => {
                self.keep_in_time(stored::not_kept(status), status).await;
            }
            (Finality::Retry, _) if self.keeps_failures(&problem) => {
                let (head, mut body) = response.into_parts();
                self.answer(Finality::Keep, head.status);
                let whole = stored::whole(&head, &mut body, self.settings()).await;
                let (whole, record) = (whole.as_deref(), self.record());
                let outcome = stored::outcome(&head, whole, record, self.settings());
                self.keep_in_time(outcome, head.status).await;
                return Response::from_parts(head, body);
            }
            (finality, _) => self.give_up(finality).await,
        }
        response
    }

    /// Whether the response to a panic is kept.
    fn keeps_failures(&self, problem: &Problem) -> bool {
        let keeps = self.settings().server_error == ServerError::Keep;
        let is_ours = !self.is_settled() && !self.did_nothing() && !self.handler_claimed();
        keeps && is_ours && matches!(problem, Problem::HandlerPanicked)
    }

    async fn keep_in_time(&self, outcome: Result<Outcome, Error>, status: StatusCode) {
        if let Err(error) = self.clone().keep(outcome, status).await {
            tracing::warn!(%error, "a response is not kept yet: the layer tries again");
        }
    }

    /// Keeps the handler's outcome. When that fails, a task tries again.
    async fn keep(self, outcome: Result<Outcome, Error>, status: StatusCode) -> Result<(), Error> {
        self.is(Doing::Keeping);
        let outcome = outcome?;
        let error = match self.complete(&outcome).await {
            kept @ (Ok(()) | Err(Error::Superseded { .. })) => return kept,
            // A step of the handler may have happened. A kept response would hide that.
            Err(error @ Error::Record(RecordError::StepUnknown { .. })) => {
                self.give_up(Finality::Retry).await;
                return Err(error);
            }
            Err(error) => error,
        };
        drop(self.go_on(keep_on(self.clone(), outcome, status)));
        Err(error)
    }

    /// Ends an attempt without an outcome. The key becomes free, or the record unknown.
    pub(crate) async fn give_up(&self, finality: Finality) {
        if self.is_settled() {
            self.do_not_count();
            return;
        }
        // The handler knows that its work is done, whatever it returned.
        if !self.is_answered() && self.handler_claimed() {
            return;
        }
        self.is(Doing::GivingUp);
        let is_step = self.settings().server_error == ServerError::Unknown;
        let did_nothing = self.did_nothing() || finality == Finality::NothingHappened;
        if did_nothing && let Err(error) = self.whole_not_done(HANDLER).await {
            tracing::warn!(%error, "a handler did nothing, and this could not be recorded: the record may become unknown");
        }
        if !did_nothing && finality == Finality::Unknown && !is_step {
            let opening = self.go_on(open_on(self.clone()));
            // If the database does not answer, the client does not wait for it.
            let _ = time::timeout(FIRST_TRY, opening).await;
            return;
        }
        free(self).await;
    }

    /// Goes on in a task, for which the layer waits when the server stops.
    fn go_on(&self, work: impl Future<Output = ()> + Send + 'static) -> impl Future {
        let (attempt, task) = (self.clone(), self.task());
        let work = async move {
            work.await;
            attempt.was();
            drop(task);
        };
        let settings = self.settings();
        settings.idempotency.spawn(KEEPING, work.in_current_span())
    }
}

/// The key becomes free, or unknown if a step is open.
async fn free(attempt: &Idempotent) {
    match attempt.release().await {
        Ok(()) | Err(Error::Superseded { .. }) => {}
        // The drop of the guard tries again.
        Err(error) => tracing::warn!(%error, "a key is not free yet: the layer tries again"),
    }
}

/// Opens the step that the handler is, so that the record becomes unknown with the end of the attempt. Tries again
/// while the database does not answer.
async fn open_on(attempt: Idempotent) {
    let until = Instant::now() + KEEP_TRYING;
    let mut pauses = pauses();
    while Instant::now() < until {
        match attempt.begin_whole(HANDLER).await {
            Ok(_) | Err(Error::Record(RecordError::StepUnknown { .. })) => {
                return free(&attempt).await;
            }
            Err(error @ Error::Superseded { .. }) => {
                return tracing::warn!(%error, "a record does not become unknown");
            }
            Err(Error::ShutDown { .. }) => break,
            Err(error) => {
                tracing::warn!(%error, "a record is not unknown yet: the layer tries again");
            }
        }
        time::sleep(pauses.next().unwrap_or_default()).await;
    }
    attempt.keep_claimed();
    let record = attempt.record();
    tracing::error!(%record, "a record does not become unknown: a retry after the end of the lease runs the handler again");
}

/// Tries again to keep a response that the database could not or would not take. An attempt can end after its lease
/// has run out, so the tries go on until another attempt takes over. When the database refuses the response, this
/// keeps a mark instead: the work was done, with this status.
async fn keep_on(attempt: Idempotent, whole: Outcome, status: StatusCode) {
    let until = Instant::now() + KEEP_TRYING;
    let mut refused_until = None;
    let mut pauses = pauses();
    while Instant::now() < until {
        let mut kept = attempt.complete(&whole).await;
        if kept.as_ref().is_err_and(is_refusal) {
            // The database may take the response later. Retries of the request wait while the lease lives, so after
            // that the mark is kept.
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
        time::sleep(pauses.next().unwrap_or_default()).await;
    }
    attempt.outcome_is_lost();
}

/// Pauses with jitter, so that processes that fail together do not try again together.
fn pauses() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(SHORTEST_PAUSE)
        .with_max_delay(LONGEST_PAUSE)
        .without_max_times()
        .with_jitter()
        .build()
}

/// Whether the database answered, and refused the outcome.
fn is_refusal(error: &Error) -> bool {
    !error.is_transient() && !matches!(error, Error::Superseded { .. })
}
