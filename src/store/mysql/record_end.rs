//! Ending attempts: the statements.

use super::record_probe::NO_WAIT;
use super::statement::{hex, text, with};
use crate::model::Outcome;
use crate::store::verbs::record::{EndColumns, FinishParams};

/// The expressions that read `open_step` and `bound` stand before those that overwrite them. (An UPDATE of a join
/// would keep the outcome in a temporary table on the disk.)
const FINISH: &str = "
UPDATE rowlock_idempotency
SET forget_at = {forget_at}, clean_at = {clean_at}, state = {state}, open_step = {open_step}, bound = bound OR {bound},
abandoned = GREATEST(abandoned - {pardon}, 0), content_type = {content_type}, outcome = {outcome}, done_at = {done_at},
retain_until = SYSDATE(6) + INTERVAL {retain} MICROSECOND
WHERE scope = {scope} AND idempotency_key = {key} AND attempt_id = {attempt_id} AND {attempt} IN (attempt, -1)
AND state = 'running'";

/// The size of an end in a request, with its key in the probe.
pub(super) fn size(params: &FinishParams) -> usize {
    end_text(params).len() + 2 * (params.key.scope().len() + params.key.key().len()) + 16
}

/// The end of an attempt.
pub(super) fn end_text(params: &FinishParams) -> String {
    let end = EndColumns::from(&params.end);
    let null = || String::from("NULL");
    let in_time = |micros: &str| format!("SYSDATE(6) + INTERVAL {micros} MICROSECOND");
    let remember = if end.bound || end.remember == end.remember_begun {
        end.remember_begun.to_string()
    } else {
        format!("IF(bound, {}, {})", end.remember_begun, end.remember)
    };
    let retain = end.retain.map(|retain| retain.to_string());
    let clean = retain.as_ref().unwrap_or(&remember);
    let (forget_at, clean_at) = (in_time(&remember), in_time(clean));
    let (is_done, state) = (end.retain.is_some(), format!("'{}'", end.state));
    let unless_open = |value: &str, open: &str| {
        if end.step_is_open {
            format!("IF(open_step IS NULL, {value}, {open})")
        } else {
            value.to_owned()
        }
    };
    let outcome = |literal: fn(&Outcome) -> String| end.outcome.map_or_else(null, literal);
    let literals = [
        ("forget_at", unless_open(&forget_at, "NULL")),
        ("clean_at", unless_open(&clean_at, "NULL")),
        ("state", unless_open(&state, "'unknown'")),
        ("open_step", unless_open("NULL", "open_step")),
        ("bound", i32::from(end.bound).to_string()),
        ("pardon", end.pardon.to_string()),
        (
            "content_type",
            outcome(|outcome| text(outcome.content_type())),
        ),
        (
            "done_at",
            if is_done {
                String::from("SYSDATE(6)")
            } else {
                null()
            },
        ),
        ("retain", retain.clone().unwrap_or_else(null)),
        ("scope", hex(params.key.scope())),
        ("key", hex(params.key.key())),
        ("attempt_id", hex(params.attempt_id.as_bytes())),
        ("attempt", params.attempt.to_string()),
        ("outcome", outcome(|outcome| hex(outcome.bytes()))),
    ];
    format!("{NO_WAIT}{}", with(FINISH, &literals))
}
