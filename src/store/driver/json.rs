//! A batch of asks as one JSON parameter, for engines without arrays. Names and ids are in hexadecimal, so that they
//! stay bytes whatever the connection's character set.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::model::{Name, RecordKey};
use crate::store::verbs::lease::{RenewParams, TakeParams};
use crate::store::verbs::queue::LookParams;
use crate::store::verbs::record::{ClaimParams, KeepParams};
use crate::store::verbs::release::ReleaseParams;
use crate::store::verbs::session::LeftBehind;
use crate::store::verbs::time::to_micros;

/// `[[name, grant_id, ttl, holder, session or null], …]`
pub(crate) fn takes<'a>(all: impl IntoIterator<Item = &'a TakeParams>) -> String {
    array(all.into_iter().map(|params| {
        json!([
            hex(&params.name),
            params.grant_id.simple().to_string(),
            to_micros(params.ttl),
            &*params.holder,
            params.session.map(|id| id.simple().to_string())
        ])
    }))
}

/// `[[name, grant_id, ttl], …]`
pub(crate) fn renewals(all: &[RenewParams]) -> String {
    array(all.iter().map(|params| {
        json!([
            hex(&params.name),
            params.grant_id.simple().to_string(),
            to_micros(params.ttl)
        ])
    }))
}

/// `[[name, grant_id], …]`
pub(crate) fn releases(all: &[ReleaseParams]) -> String {
    array(
        all.iter()
            .map(|params| json!([hex(&params.name), params.grant_id.simple().to_string()])),
    )
}

/// `[[name, grant_id, position], …]`
pub(crate) fn looks(all: &[LookParams]) -> String {
    array(all.iter().map(|params| {
        json!([
            hex(&params.name),
            params.grant_id.simple().to_string(),
            params.position
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
pub(crate) fn claims<'a>(all: impl IntoIterator<Item = &'a ClaimParams>) -> String {
    array(all.into_iter().map(|params| {
        json!([
            bytes(params.key.scope()),
            bytes(params.key.key()),
            params.seen,
            params.max_attempts,
            params.attempt_id.simple().to_string(),
            &*params.holder,
            bytes(params.fingerprint.as_bytes()),
            to_micros(params.lease),
            to_micros(params.remember_begun)
        ])
    }))
}

/// `[[scope, key, attempt_id], …]`
pub(crate) fn claimed<'a>(all: impl IntoIterator<Item = &'a ClaimParams>) -> String {
    array(all.into_iter().map(|params| {
        json!([
            bytes(params.key.scope()),
            bytes(params.key.key()),
            params.attempt_id.simple().to_string()
        ])
    }))
}

/// `[[scope, key, attempt_id, lease], …]`
pub(crate) fn keeps(all: &[KeepParams]) -> String {
    array(all.iter().map(|params| {
        json!([
            bytes(params.key.scope()),
            bytes(params.key.key()),
            params.attempt_id.simple().to_string(),
            to_micros(params.lease)
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
    hex::encode(bytes)
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
