//! The attempt, as the handler sees it.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Body;
use http_body_util::Full;
use rowlock::{Error, IdempotencyGuard, Transaction};

use crate::body::{Ahead, BoxError, ResponseBody};
use crate::settings::Settings;
use crate::stored;

/// The attempt that the handler runs, as an extension of the request. It dereferences to the
/// [guard](IdempotencyGuard), which has the [steps](IdempotencyGuard::step), the
/// [`downstream_key`](IdempotencyGuard::downstream_key) and the number of the [`attempt`](IdempotencyGuard::attempt).
///
/// A handler may end the attempt itself, with [`complete_in`](Self::complete_in) or with a method of the guard. Then the layer
/// keeps nothing, and sends the handler's response.
///
/// Drop all clones before the handler returns: the attempt runs while a clone exists, unless the attempt was ended.
#[derive(Clone)]
pub struct Idempotent(Arc<Inner>);

struct Inner {
    guard: IdempotencyGuard,
    settings: Arc<Settings>,
    in_tx: AtomicBool,
    answered: OnceLock<StatusCode>,
}

impl Idempotent {
    pub(crate) fn new(guard: IdempotencyGuard, settings: &Arc<Settings>) -> Self {
        Self(Arc::new(Inner {
            guard,
            settings: Arc::clone(settings),
            in_tx: AtomicBool::new(false),
            answered: OnceLock::new(),
        }))
    }

    /// Whether the handler itself has ended the attempt.
    pub(crate) fn is_settled(&self) -> bool {
        self.0.in_tx.load(Ordering::Acquire) || self.0.guard.has_ended()
    }

    /// Notes that the handler has returned a final response: its work is done, and the key is never freed again.
    pub(crate) fn answer(&self, status: StatusCode) {
        self.0.guard.keep_claimed();
        self.0.answered.get_or_init(|| status);
    }

    /// The status of the handler's final response, if there is one.
    pub(crate) fn answered(&self) -> Option<StatusCode> {
        self.0.answered.get().copied()
    }

    /// Records the response in the caller's transaction. The response and the other writes of the transaction commit together,
    /// or not at all. Then commit, and return the response that this method returns.
    ///
    /// When the transaction is rolled back instead, the key becomes free at the end of the handler, whatever the handler
    /// returns. With [`ServerError::Unknown`](crate::ServerError::Unknown) the record becomes unknown instead, because work
    /// outside of the transaction may have happened.
    ///
    /// # Errors
    ///
    /// The errors of the guard's [`complete_in`](IdempotencyGuard::complete_in); [`Error::OutcomeTooLarge`] also for a body that
    /// is larger than the layer's [`max_response`](crate::IdempotencyLayer::max_response); [`Error::ResponseFailed`] for a
    /// body that breaks off or has trailers. After any error, roll the transaction back.
    ///
    /// # Cancel safety
    ///
    /// If the future was dropped, roll the transaction back.
    pub async fn complete_in<T, B>(
        &self,
        tx: &mut T,
        response: Response<B>,
    ) -> Result<Response<Full<Bytes>>, Error>
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
                return Err(Error::ResponseFailed { detail });
            }
            Ahead::Trailers => {
                let detail = "it has trailers".into();
                return Err(Error::ResponseFailed { detail });
            }
            Ahead::TooLarge { bytes } => {
                return Err(Error::OutcomeTooLarge {
                    what: "the body of the response",
                    bytes,
                    limit,
                });
            }
        };
        let outcome = stored::message(&head, &bytes, settings)?;
        self.0.guard.complete_in(tx, &outcome).await?;
        self.0.in_tx.store(true, Ordering::Release);
        Ok(Response::from_parts(head, Full::from(bytes)))
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
