//! The spans of the guards of a grant. They end with the guard, or when the grant is lost: the holder may notice a
//! loss late, and a trace must not show the lock as held until then.

use tracing::Span;
use tracing::span::Id;

use super::grant::{Grant, GrantEnd, GrantSubject};
use crate::model::Loss;
use crate::runtime::base::spans::HoldSpans;

impl<K: GrantSubject> Grant<K> {
    /// Where they are. A session that is lost has lost all its grants, so it has their spans.
    fn hold_spans(&self) -> &HoldSpans {
        let of_session = self.session.as_ref().map(|session| &session.spans);
        of_session.unwrap_or(&self.spans)
    }

    pub(super) fn begin_span(&self, id: &Id, span: Span) {
        self.hold_spans().insert(self.id, id, span);
        // A loss before has found no span.
        if let Some(GrantEnd::Lost(loss)) = self.status().end {
            self.lose_spans(loss);
        }
    }

    pub(super) fn end_span(&self, id: &Id) {
        self.hold_spans().release(self.id, id);
    }

    pub(super) fn lose_spans(&self, loss: Loss) {
        let of_all = self.session.is_none();
        self.hold_spans().lose((!of_all).then_some(self.id), loss);
    }
}
