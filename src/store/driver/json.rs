//! A batch of asks as one JSON parameter, for engines without arrays. Names and ids are in hexadecimal, so that they
//! stay bytes whatever the connection's character set.

use std::fmt::Write;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::model::{Name, Outcome, RecordKey};
use crate::store::verbs::lease::{RenewAsk, TakeAsk};
use crate::store::verbs::queue::LookAsk;
use crate::store::verbs::record::{ClaimAsk, EndColumns, FinishAsk, KeepAsk};
use crate::store::verbs::release::ReleaseAsk;
use crate::store::verbs::session::LeftBehind;
use crate::store::verbs::time::to_micros;

/// `[[name, grant_id, ttl, holder, session or null, barging], …]`
pub(crate) fn takes<'a>(asks: impl IntoIterator<Item = &'a TakeAsk>) -> String {
    array(asks.into_iter().map(|ask| {
        json!([
            hex(&ask.name),
            ask.grant_id.simple().to_string(),
            to_micros(ask.ttl),
            &*ask.holder,
            ask.session.map(|id| id.simple().to_string()),
            i32::from(ask.barging)
        ])
    }))
}

/// `[[name, grant_id, ttl], …]`
pub(crate) fn renewals(asks: &[RenewAsk]) -> String {
    array(asks.iter().map(|ask| {
        json!([
            hex(&ask.name),
            ask.grant_id.simple().to_string(),
            to_micros(ask.ttl)
        ])
    }))
}

/// `[[name, grant_id], …]`
pub(crate) fn releases(asks: &[ReleaseAsk]) -> String {
    array(
        asks.iter()
            .map(|ask| json!([hex(&ask.name), ask.grant_id.simple().to_string()])),
    )
}

/// `[[name, grant_id, position], …]`
pub(crate) fn looks(asks: &[LookAsk]) -> String {
    array(asks.iter().map(|ask| {
        json!([
            hex(&ask.name),
            ask.grant_id.simple().to_string(),
            ask.position
        ])
    }))
}

/// `[[name, session], …]`
pub(crate) fn left_behind<'a>(left: impl IntoIterator<Item = &'a LeftBehind>) -> String {
    array(
        left.into_iter()
            .map(|left| json!([hex(&left.name), left.session.simple().to_string()])),
    )
}

/// `[id, …]`
pub(crate) fn ids(ids: &[Uuid]) -> String {
    array(ids.iter().map(|id| json!(id.simple().to_string())))
}

/// `[[name], …]`
pub(crate) fn names<'a>(names: impl IntoIterator<Item = &'a Name>) -> String {
    raw_names(names.into_iter().map(Name::as_bytes))
}

/// [`names`] for names as the table has them.
pub(crate) fn raw_names<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> String {
    array(names.into_iter().map(|name| json!([bytes(name)])))
}

/// `[[scope, key], …]`
pub(crate) fn keys(keys: &[RecordKey]) -> String {
    array(
        keys.iter()
            .map(|key| json!([bytes(key.scope()), bytes(key.key())])),
    )
}

/// `[[scope, key, attempt seen or null, max_attempts, attempt_id, holder, fingerprint, lease, remember_begun], …]`
pub(crate) fn claims(asks: &[&ClaimAsk]) -> String {
    array(asks.iter().map(|ask| {
        json!([
            bytes(ask.key.scope()),
            bytes(ask.key.key()),
            ask.seen,
            ask.max_attempts,
            ask.attempt_id.simple().to_string(),
            &*ask.holder,
            bytes(ask.fingerprint.as_bytes()),
            to_micros(ask.lease),
            to_micros(ask.remember_begun)
        ])
    }))
}

/// `[[scope, key, attempt_id, lease], …]`
pub(crate) fn keeps(asks: &[KeepAsk]) -> String {
    array(asks.iter().map(|ask| {
        json!([
            bytes(ask.key.scope()),
            bytes(ask.key.key()),
            ask.attempt_id.simple().to_string(),
            to_micros(ask.lease)
        ])
    }))
}

/// `[[scope, key, attempt_id, attempt, state, content type, outcome, retain, remember, bound, pardon, remember begun,
/// step is open], …]`
pub(crate) fn ends(asks: &[FinishAsk]) -> String {
    array(asks.iter().map(|ask| {
        let end = EndColumns::from(&ask.end);
        json!([
            bytes(ask.key.scope()),
            bytes(ask.key.key()),
            ask.attempt_id.simple().to_string(),
            ask.attempt,
            end.state,
            end.outcome.map(Outcome::content_type),
            end.outcome.map(|outcome| bytes(outcome.bytes())),
            end.retain,
            end.remember,
            i32::from(end.bound),
            end.pardon,
            end.remember_begun,
            i32::from(end.step_is_open)
        ])
    }))
}

fn array(rows: impl Iterator<Item = Value>) -> String {
    rows.collect::<Value>().to_string()
}

fn hex(name: &Name) -> String {
    bytes(name.as_bytes())
}

fn bytes(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_travels_as_its_bytes() {
        let name = Name::new("é\"1").unwrap();
        assert_eq!(names([&name]), r#"[["c3a92231"]]"#);
    }
}
