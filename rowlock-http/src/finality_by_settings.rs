//! What a layer makes of a response, by its settings.

use http::StatusCode;
use http::header::RETRY_AFTER;
use http::response::Parts;

use crate::finality::Finality;
use crate::panics;
use crate::settings::{ServerError, Settings};

impl Settings {
    /// What a response means for its key, by its head.
    pub(crate) fn finality(&self, head: &Parts) -> Finality {
        let by_status = self.finality_of_status(head);
        self.asks_hook(head, None, by_status).unwrap_or(by_status)
    }

    /// What the hook says, if there is one. When it panics, its response is in doubt `otherwise`.
    pub(crate) fn asks_hook(
        &self,
        head: &Parts,
        body: Option<&[u8]>,
        otherwise: Finality,
    ) -> Option<Finality> {
        let hook = self.finality.as_ref()?;
        let said = panics::catch("finality", || hook(head, body));
        Some(said.unwrap_or_else(|| otherwise.in_doubt()))
    }

    fn finality_of_status(&self, head: &Parts) -> Finality {
        match Finality::of(head.status) {
            Finality::Retry
                if self.server_error == ServerError::Keep && head.status.is_server_error() =>
            {
                Finality::Keep
            }
            // A router has called no handler, or who sends it is not known. Of the others the handler may have said so
            // after some work.
            Finality::NothingHappened
                if self.server_error == ServerError::Unknown
                    && !matches!(head.status.as_u16(), 401 | 405 | 407) =>
            {
                Finality::Keep
            }
            // Another server, or another layer, has the request in flight.
            Finality::Keep
                if head.status == StatusCode::CONFLICT
                    && head.headers.contains_key(RETRY_AFTER) =>
            {
                Finality::Retry
            }
            finality => finality,
        }
    }
}
