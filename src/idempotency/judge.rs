//! The verdict on a record, for a caller that asks for its key.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{Error, Fingerprint, Outcome, RecordError, RecordKey, RecordState};
use crate::store::verbs::kept_state::KeptState;
use crate::store::verbs::record_row::RecordRow;
use crate::store::verbs::time::micros;

#[derive(Debug)]
pub(super) enum Verdict {
    /// The caller may claim the key, if there is still no record, or if this is still the last attempt.
    Claim(Option<i64>),
    /// The key is forgotten: remove the record.
    Forgotten {
        attempt: i64,
    },
    Replay(Outcome),
    InFlight {
        remaining: Duration,
        until: i64,
        holder: String,
    },
    Mismatch,
    Expired,
    Poisoned {
        attempts: u32,
    },
    /// The lease ran out during a step that must not be repeated: make the record unknown.
    OpenStep {
        attempt: i64,
    },
    Unknown {
        attempt: i64,
        step: String,
    },
}

/// The row contains the times that were left when it was read, by the database's clock.
pub(super) fn judge(
    row: Option<RecordRow>,
    fingerprint: &Fingerprint,
    max_attempts: i32,
) -> Result<Verdict, Error> {
    let Some(row) = row else {
        return Ok(Verdict::Claim(None));
    };
    let same = row.fingerprint == fingerprint.as_bytes();
    let (attempt, attempts) = (row.attempt, u32::try_from(row.abandoned).unwrap_or(0));
    let damaged = |row: &RecordRow, what| Err(corrupt(&row.scope, &row.key, what));
    let Some(state) = row.state_now(max_attempts) else {
        return damaged(&row, NO_STATE);
    };
    match state {
        RecordState::Running if same => Ok(Verdict::InFlight {
            remaining: micros(row.lease_left),
            until: row.lease_until,
            holder: row.holder,
        }),
        RecordState::Unknown if same && row.state == KeptState::Running => {
            Ok(Verdict::OpenStep { attempt })
        }
        RecordState::Unknown if same => match row.open_step {
            Some(step) => Ok(Verdict::Unknown { attempt, step }),
            None => damaged(&row, "it is unknown, and has no open step"),
        },
        RecordState::Running | RecordState::Unknown => Ok(Verdict::Mismatch),
        // From here on: no attempt is running, and no step is open.
        _ if row.forget_left.is_some_and(|left| left <= 0) => Ok(Verdict::Forgotten { attempt }),
        // A key that was given up, and is not bound, may be used for another request.
        _ if !same && (row.bound || row.state != KeptState::Free) => Ok(Verdict::Mismatch),
        RecordState::Expired => Ok(Verdict::Expired),
        RecordState::Poisoned => Ok(Verdict::Poisoned { attempts }),
        RecordState::Lapsed | RecordState::Free => Ok(Verdict::Claim(Some(attempt))),
        RecordState::Done => match (&row.content_type, &row.outcome) {
            (Some(content_type), Some(bytes)) => Ok(Verdict::Replay(Outcome::kept(
                content_type,
                Arc::clone(bytes),
            ))),
            _ => damaged(&row, "it is done, and has no outcome"),
        },
    }
}

/// The damage of a record whose state is none of the five.
pub(super) const NO_STATE: &str = "its state is not a valid state";

pub(super) fn corrupt(scope: &[u8], key: &[u8], what: &'static str) -> Error {
    let record = RecordKey::new(scope, key).map_or_else(
        |_| "a record without a scope or a key".into(),
        |key| key.to_string(),
    );
    Error::Record(RecordError::Corrupt { record, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: &str) -> RecordRow {
        RecordRow {
            attempt: 7,
            fingerprint: Fingerprint::of("a").as_bytes().to_vec(),
            lease_left: 5,
            ..crate::idempotency::record::tests::row(state)
        }
    }

    fn of(row: RecordRow, request: &str) -> Verdict {
        judge(Some(row), &Fingerprint::of(request), 3).unwrap()
    }

    #[test]
    fn another_request_is_told_so_in_every_state_that_has_one() {
        for state in ["running", "unknown", "done"] {
            assert!(matches!(of(row(state), "b"), Verdict::Mismatch), "{state}");
        }
        let bound = RecordRow {
            bound: true,
            ..row("free")
        };
        assert!(matches!(of(bound, "b"), Verdict::Mismatch));
        assert!(matches!(of(row("free"), "b"), Verdict::Claim(Some(_))));
    }

    #[test]
    fn an_outcome_is_retained_for_one_time_and_its_key_remembered_for_another() {
        let done = |retain, forget| RecordRow {
            content_type: Some("t".into()),
            outcome: Some([1].into()),
            retain_left: Some(retain),
            forget_left: Some(forget),
            ..row("done")
        };
        assert!(matches!(of(done(1, 2), "a"), Verdict::Replay(_)));
        assert!(matches!(of(done(0, 1), "a"), Verdict::Expired));
        assert!(matches!(of(done(0, 1), "b"), Verdict::Mismatch));
        let forgotten = of(done(-1, 0), "b");
        assert!(matches!(forgotten, Verdict::Forgotten { attempt: 7 }));
    }

    #[test]
    fn a_lease_that_is_over_is_taken_over_unless_a_step_is_open() {
        let lapsed = RecordRow {
            lease_left: 0,
            ..row("running")
        };
        assert!(matches!(of(row("running"), "a"), Verdict::InFlight { .. }));
        assert!(matches!(of(lapsed.clone(), "a"), Verdict::Claim(Some(_))));
        let crashed = RecordRow {
            abandoned: 3,
            ..lapsed.clone()
        };
        assert!(matches!(
            of(crashed, "a"),
            Verdict::Poisoned { attempts: 3 }
        ));
        let open = RecordRow {
            open_step: Some("charge".into()),
            ..lapsed
        };
        assert!(matches!(of(open, "a"), Verdict::OpenStep { attempt: 7 }));
    }

    #[test]
    fn an_attempt_that_was_abandoned_is_forgotten_unless_a_step_is_open() {
        let old = RecordRow {
            lease_left: 0,
            forget_left: Some(0),
            ..row("running")
        };
        assert!(matches!(
            of(old.clone(), "b"),
            Verdict::Forgotten { attempt: 7 }
        ));
        let alive = RecordRow {
            lease_left: 1,
            ..old.clone()
        };
        assert!(matches!(of(alive, "a"), Verdict::InFlight { .. }));
        let open = RecordRow {
            open_step: Some("charge".into()),
            ..old
        };
        assert!(matches!(of(open, "a"), Verdict::OpenStep { attempt: 7 }));
    }

    #[test]
    fn a_record_that_was_edited_by_hand_is_an_error_that_names_it() {
        for state in ["done", "unknown", "sleeping"] {
            let error = judge(Some(row(state)), &Fingerprint::of("a"), 3).unwrap_err();
            assert!(error.to_string().contains("\"k\" of \"scope\""), "{error}");
        }
    }
}
