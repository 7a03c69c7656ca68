//! What became of a form.

use crate::model::Outcome;

/// The result of a submission.
#[derive(Debug)]
#[must_use = "it tells whether the form was submitted"]
pub enum Submitted {
    /// This call did the work, with this outcome.
    New(Outcome),
    /// An earlier submission with this token did the work, with this outcome.
    Replay(Outcome),
    /// Another submission is running, and did not end within the [`wait`](crate::FormTokens::wait).
    InFlight,
    /// The token was used for another form.
    Mismatch,
    /// The token does not exist: it was never issued, its TTL is over, or it was used and the outcome has been
    /// deleted since.
    Gone,
}
