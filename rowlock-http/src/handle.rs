//! The attempt, as the handler sees it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Response, StatusCode};
use http_body::Body;
use parking_lot::Mutex;

use rowlock::layer::LayerAttempt as _;
use rowlock::{Error, IdempotencyGuard, RecordError, Transaction};

use crate::body::{Ahead, BoxError, ResponseBody};
use crate::finality::Finality;
use crate::settings::Settings;
use crate::stored;
use crate::under_way::{Doing, Task, WeakTask};

/// The attempt that the handler runs: an extension of the request, and an argument of axum's handlers. It dereferences
/// to the [guard](IdempotencyGuard), which has the [steps](IdempotencyGuard::step), the
/// [`downstream_key`](IdempotencyGuard::downstream_key) and the number of the [`attempt`](IdempotencyGuard::attempt).
///
/// A handler may end the attempt itself, with [`in_tx`](Self::in_tx), [`complete_in`](Self::complete_in) or with a
/// method of the guard. Then the layer keeps nothing, and sends the handler's response. If the handler rolls the
/// transaction of `complete_in` back, the key becomes free, whatever it answers.
///
/// Drop all clones before the handler returns: the attempt runs while a clone exists, unless the attempt was ended.
#[derive(Clone)]
pub struct Idempotent(Arc<Inner>);

struct Inner {
    guard: IdempotencyGuard,
    settings: Arc<Settings>,
    nothing_happened: AtomicBool,
    /// A transaction with the response is known to be committed.
    committed: AtomicBool,
    answer: Mutex<Answer>,
    task: WeakTask,
}

/// The handler's response, as far as the layer knows it.
#[derive(Debug, Default)]
struct Answer {
    /// What it means for the key, and its status.
    verdict: Option<(Finality, StatusCode)>,
    /// Whether the handler itself has kept the key claimed, before its response.
    handler_claimed: Option<bool>,
}

impl Idempotent {
    pub(crate) fn new(guard: IdempotencyGuard, settings: &Arc<Settings>, task: &Task) -> Self {
        Self(Arc::new(Inner {
            guard,
            settings: Arc::clone(settings),
            nothing_happened: AtomicBool::new(false),
            committed: AtomicBool::new(false),
            answer: Mutex::default(),
            task: task.downgrade(),
        }))
    }

    /// Whether the handler itself has ended the attempt.
    pub(crate) fn is_settled(&self) -> bool {
        self.0.guard.is_completed_in_tx() || self.0.guard.has_ended()
    }

    pub(crate) fn has_committed(&self) {
        self.0.committed.store(true, Ordering::Release);
    }

    pub(crate) fn is_committed(&self) -> bool {
        self.0.committed.load(Ordering::Acquire)
    }

    pub(crate) fn settings(&self) -> &Arc<Settings> {
        &self.0.settings
    }

    /// Its request, if that is still under way.
    pub(crate) fn task(&self) -> Option<Task> {
        self.0.task.upgrade()
    }

    /// Notes what the request is doing.
    pub(crate) fn is(&self, doing: Doing) {
        if let Some(task) = self.task() {
            task.is(self.record(), || doing);
        }
    }

    /// Notes what the request was doing, when the layer has done what it can to end the attempt.
    pub(crate) fn was(&self) {
        let was = || match (self.is_answered(), self.is_settled()) {
            (true, true) => Doing::Answering,
            (false, true) => Doing::Running,
            (true, false) => Doing::Keeping,
            (false, false) if self.handler_claimed() => Doing::Keeping,
            (false, false) => Doing::GivingUp,
        };
        if let Some(task) = self.task() {
            task.is(self.record(), was);
        }
    }

    /// Notes what the handler's response means for the key; the last verdict counts. If the response is final, its
    /// work is done, and dropping the attempt does not free the key.
    pub(crate) fn answer(&self, finality: Finality, status: StatusCode) {
        let mut answer = self.0.answer.lock();
        answer.verdict = Some((finality, status));
        if finality.is_done() {
            let claimed = self.0.guard.is_kept_claimed();
            answer.handler_claimed.get_or_insert(claimed);
            self.0.guard.keep_claimed();
        }
    }

    /// What the handler's response means for the key, and its status, if there is a response.
    pub(crate) fn verdict(&self) -> Option<(Finality, StatusCode)> {
        self.0.answer.lock().verdict
    }

    /// Whether the handler has returned a final response.
    pub(crate) fn is_answered(&self) -> bool {
        self.verdict()
            .is_some_and(|(finality, _)| finality.is_done())
    }

    /// Whether the handler itself has said that its work is done.
    pub(crate) fn handler_claimed(&self) -> bool {
        let claimed = self.0.answer.lock().handler_claimed;
        claimed.unwrap_or_else(|| self.0.guard.is_kept_claimed())
    }

    /// Says that the handler did nothing that a retry would repeat: whatever it returns then (a panic, too), the key
    /// becomes free, and its response is not kept. With [`ServerError::Unknown`](crate::ServerError::Unknown) the
    /// record does not become unknown. If the handler has begun a step that must not be repeated, say so of the step
    /// ([`step_not_done`](IdempotencyGuard::step_not_done)).
    pub fn nothing_happened(&self) {
        self.0.nothing_happened.store(true, Ordering::Release);
    }

    /// Whether the handler did nothing, as it says.
    pub(crate) fn did_nothing(&self) -> bool {
        self.0.nothing_happened.load(Ordering::Acquire)
    }

    /// Records the response in the caller's transaction. The response and the other writes of the transaction commit
    /// together, or not at all. Then commit, and return the response that this method returns. Layers between this
    /// handler and the [`IdempotencyLayer`](crate::IdempotencyLayer) do not change what is kept: put those that change
    /// responses outside of it, or a retry gets another response than the first request.
    ///
    /// When the transaction is rolled back instead, the key becomes free at the end of the handler, whatever the
    /// handler returns. With [`ServerError::Unknown`](crate::ServerError::Unknown) the record becomes unknown instead,
    /// because work outside of the transaction may have happened.
    ///
    /// If SQL of yours has ended the transaction and begun another one (`COMMIT; BEGIN`), this method does not notice:
    /// the effect may be without its response.
    ///
    /// # Errors
    ///
    /// The errors of the guard's [`complete_in`](IdempotencyGuard::complete_in); [`RecordError::OutcomeTooLarge`] also
    /// for a body that is larger than the layer's [`max_response`](crate::IdempotencyLayer::max_response);
    /// [`RecordError::ResponseFailed`] for a body that breaks off or has trailers. After any error, roll the
    /// transaction back.
    ///
    /// # Cancel safety
    ///
    /// If the future was dropped, roll the transaction back.
    pub async fn complete_in<T, B>(
        &self,
        tx: &mut T,
        response: Response<B>,
    ) -> Result<axum::response::Response, Error>
    where
        T: Transaction,
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let settings = &self.0.settings;
        let (head, body) = response.into_parts();
        let limit = settings.max_response();
        let bytes = match ResponseBody::new(body).read_ahead(limit).await {
            Ahead::Whole(bytes) => bytes,
            Ahead::Failed(said) => {
                let detail = format!("its body failed ({said})");
                return Err(Error::Record(RecordError::ResponseFailed { detail }));
            }
            Ahead::Trailers => {
                let detail = "it has trailers".into();
                return Err(Error::Record(RecordError::ResponseFailed { detail }));
            }
            Ahead::TooLarge { bytes } => {
                return Err(Error::Record(RecordError::OutcomeTooLarge {
                    what: "the body of the response",
                    bytes,
                    limit,
                }));
            }
        };
        let outcome = stored::message(&head, &bytes, self.record(), settings)?;
        self.0.guard.complete_in(tx, &outcome).await?;
        Ok(Response::from_parts(head, bytes.into()))
    }
}

impl Deref for Idempotent {
    type Target = IdempotencyGuard;

    fn deref(&self) -> &IdempotencyGuard {
        &self.0.guard
    }
}

impl fmt::Debug for Idempotent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Idempotent").field(&self.0.guard).finish()
    }
}
