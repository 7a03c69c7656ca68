//! Reading a record for people from its row.

use super::*;
use crate::store::verbs::kept_state::KeptState;

pub(in crate::idempotency) fn row(state: &str) -> RecordRow {
    RecordRow {
        scope: b"scope".to_vec(),
        key: b"k".to_vec(),
        state: KeptState::parse(state),
        attempt: 1,
        abandoned: 1,
        max_attempts: 3,
        holder: "a test".into(),
        fingerprint: vec![0; 32],
        ..RecordRow::default()
    }
}

#[test]
fn a_state_is_told_as_the_next_one_to_ask_would_find_it() {
    let state = |row: RecordRow| row.info().unwrap().state;
    let live = || RecordRow {
        lease_left: 1,
        ..row("running")
    };
    let with_open_step = |row| RecordRow {
        open_step: Some("charge".into()),
        ..row
    };
    let worn = |row| RecordRow {
        abandoned: 3,
        ..row
    };
    assert_eq!(state(live()), RecordState::Running);
    assert_eq!(state(with_open_step(worn(live()))), RecordState::Running);
    assert_eq!(state(row("running")), RecordState::Lapsed);
    assert_eq!(
        state(with_open_step(worn(row("running")))),
        RecordState::Unknown
    );
    assert_eq!(state(worn(row("running"))), RecordState::Poisoned);
    assert_eq!(state(row("free")), RecordState::Free);
    assert_eq!(state(worn(row("free"))), RecordState::Poisoned);
    assert_eq!(state(row("unknown")), RecordState::Unknown);
    for (left, expected) in [(1, RecordState::Done), (0, RecordState::Expired)] {
        let retain_left = Some(left);
        let done = RecordRow {
            retain_left,
            ..worn(row("done"))
        };
        assert_eq!(state(done), expected);
    }
    assert_eq!(state(row("expired")), RecordState::Expired);
    assert!(row("nonsense").info().is_err());
}

#[test]
fn an_outcome_and_what_is_left_of_a_lease_are_told_where_there_are_such() {
    let live = RecordRow {
        lease_left: 5_000,
        ..row("running")
    };
    let info = live.info().unwrap();
    assert_eq!(info.lease_remaining, Some(Duration::from_millis(5)));
    assert_eq!(info.outcome, None);
    let done = RecordRow {
        lease_left: 5_000,
        content_type: Some("text/plain".into()),
        outcome: Some(b"done"[..].into()),
        ..row("done")
    };
    let info = done.info().unwrap();
    assert_eq!(info.lease_remaining, None);
    let outcome = Outcome::new("text/plain", "done").unwrap();
    assert_eq!(info.outcome, Some(outcome));
}
