//! Ending attempts: the statements.

use super::record_probe::NO_WAIT;
use super::statement::{hex, text, with};
use crate::store::verbs::record::{ANY_ATTEMPT, EndColumns, FinishParams, RecordEnd};

/// The expressions that read `open_step` and `bound` stand before those that overwrite them. (An UPDATE of a join
/// would keep the outcome in a temporary table on the disk.)
const FINISH: &str = "
UPDATE rowlock_idempotency FORCE INDEX (PRIMARY)
SET forget_at = {forget_at}, clean_at = {clean_at}, state = {state}, open_step = {open_step}, bound = bound OR {bound},
abandoned = GREATEST(abandoned - {pardon}, 0), content_type = {content_type}, outcome = {outcome}, done_at = {done_at},
retain_until = SYSDATE(6) + INTERVAL {retain} MICROSECOND
WHERE {condition} AND state = 'running'";

/// The sizes of ends in a request, with their keys in the probe. An end that shares the statement of an earlier one
/// adds only its literals.
pub(super) fn sizes(all: &[FinishParams]) -> Vec<usize> {
    let size = |(end, params): (usize, &FinishParams)| {
        let (scope, key) = (params.key.scope().len(), params.key.key().len());
        let shares = all[..end].iter().any(|earlier| is_alike(earlier, params));
        let of_outcome = params.end.outcome().filter(|_| shares);
        let rest = match of_outcome {
            Some(outcome) => 4 * key + 2 * outcome.bytes().len() + 128,
            None => end_text(&[params]).len(),
        };
        2 * (scope + key) + 16 + rest
    };
    all.iter().enumerate().map(size).collect()
}

/// The statements for ends, and which ends each is for. Those with an outcome share one where only their keys,
/// attempts and outcomes differ.
pub(super) fn end_texts(all: &[FinishParams]) -> (Vec<String>, Vec<Vec<usize>>) {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (end, params) in all.iter().enumerate() {
        let group = groups
            .iter_mut()
            .find(|group| is_alike(&all[group[0]], params));
        match group {
            Some(group) => group.push(end),
            None => groups.push(vec![end]),
        }
    }
    let text =
        |group: &Vec<usize>| end_text(&group.iter().map(|end| &all[*end]).collect::<Vec<_>>());
    (groups.iter().map(text).collect(), groups)
}

/// Whether one statement can end both.
fn is_alike(one: &FinishParams, other: &FinishParams) -> bool {
    let (RecordEnd::Done { outcome: a, .. }, RecordEnd::Done { outcome: b, .. }) =
        (&one.end, &other.end)
    else {
        return false;
    };
    let times = |params: &FinishParams| {
        let end = EndColumns::from(&params.end);
        (end.retain, end.remember, params.attempt == ANY_ATTEMPT)
    };
    one.key.scope() == other.key.scope()
        && a.content_type() == b.content_type()
        && times(one) == times(other)
}

/// The end of attempts that are alike.
fn end_text(alike: &[&FinishParams]) -> String {
    let first = alike[0];
    let end = EndColumns::from(&first.end);
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
    let done_at = if is_done { "SYSDATE(6)" } else { "NULL" };
    let content_type = end.outcome.map(|outcome| text(outcome.content_type()));
    let literals = [
        ("forget_at", unless_open(&forget_at, "NULL")),
        ("clean_at", unless_open(&clean_at, "NULL")),
        ("state", unless_open(&state, "'unknown'")),
        ("open_step", unless_open("NULL", "open_step")),
        ("bound", i32::from(end.bound).to_string()),
        ("pardon", end.pardon.to_string()),
        ("content_type", content_type.unwrap_or_else(null)),
        ("done_at", done_at.to_owned()),
        ("retain", retain.clone().unwrap_or_else(null)),
        ("condition", condition(alike)),
        ("outcome", outcomes(alike)),
    ];
    format!("{NO_WAIT}{}", with(FINISH, &literals))
}

/// The condition for the records of attempts.
fn condition(alike: &[&FinishParams]) -> String {
    let any = alike[0].attempt == ANY_ATTEMPT;
    let attempts = alike.iter().map(|params| {
        let (key, id) = (hex(params.key.key()), hex(params.attempt_id.as_bytes()));
        let attempt = if any {
            String::from("attempt")
        } else {
            params.attempt.to_string()
        };
        format!("({key}, {id}, {attempt})")
    });
    let attempts: Vec<String> = attempts.collect();
    let keys = alike.iter().map(|params| hex(params.key.key()));
    let keys: Vec<String> = keys.collect();
    // The keys by themselves, because MariaDB finds no range of an index for rows.
    format!(
        "scope = {} AND idempotency_key IN ({}) AND (idempotency_key, attempt_id, attempt) IN ({})",
        hex(alike[0].key.scope()),
        keys.join(", "),
        attempts.join(", ")
    )
}

/// The expression for the outcome of each record.
fn outcomes(alike: &[&FinishParams]) -> String {
    let outcomes = alike.iter().filter_map(|params| params.end.outcome());
    let mut outcomes = outcomes.map(|outcome| hex(outcome.bytes()));
    if alike.len() == 1 {
        return outcomes.next().unwrap_or_else(|| String::from("NULL"));
    }
    let outcomes: Vec<String> = outcomes.collect();
    let ids = alike.iter().map(|params| hex(params.attempt_id.as_bytes()));
    let ids: Vec<String> = ids.collect();
    format!(
        "ELT(FIELD(attempt_id, {}), {})",
        ids.join(", "),
        outcomes.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;
    use crate::model::{Outcome, RecordKey};

    #[test]
    fn the_sizes_of_ends_are_at_least_those_of_their_statements() {
        let end = |scope: usize, key: usize| FinishParams {
            key: RecordKey::new(format!("scope{scope}"), format!("{key}")).unwrap(),
            attempt_id: Uuid::new_v4(),
            attempt: i64::MAX,
            end: RecordEnd::Done {
                outcome: Outcome::new("text/plain", "paid").unwrap(),
                retain: Duration::from_secs(1),
                remember: Duration::from_secs(1),
            },
        };
        for scopes in [1, 7, 60] {
            let ends: Vec<_> = (0..60).map(|key| end(key % scopes, key)).collect();
            let (texts, groups) = end_texts(&ends);
            assert_eq!(groups.len(), scopes);
            let (counted, sent) = (sizes(&ends).iter().sum::<usize>(), texts.join("; ").len());
            assert!(counted >= sent, "{scopes} scopes: {counted} of {sent}");
            assert!(counted < 3 * sent, "{scopes} scopes: {counted} of {sent}");
        }
    }
}
