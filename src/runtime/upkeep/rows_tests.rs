//! What a client knows of lock rows.

use std::time::Duration;

use uuid::Uuid;

use super::*;
use crate::model::{ClockError, Mode};
use crate::runtime::Core;
use crate::runtime::base::settings::Settings;
use crate::store::sqlite::Sqlite;
use crate::store::verbs::lease::{LeaseStore, TakeOutcome, TakeParams};

fn url(dir: &tempfile::TempDir) -> String {
    format!("sqlite:{}", dir.path().join("a.db").display())
}

#[test]
fn a_row_is_held_while_its_lease_lasts() {
    let seen = |remaining| RowView {
        fence: 1,
        grant: Some(LockInfo {
            name: Name::new("a").unwrap(),
            grant_id: uuid::Uuid::nil(),
            fence: 1,
            holder: "a test".into(),
            acquired_at: chrono::DateTime::UNIX_EPOCH,
            expires_at: chrono::DateTime::UNIX_EPOCH,
            remaining,
            session: None,
            mode: Mode::Lock,
        }),
        reclaimed: false,
        busy: None,
    };
    assert!(seen(std::time::Duration::from_micros(1)).holder().is_some());
    // It may be pinned.
    assert!(seen(std::time::Duration::ZERO).holder().is_none());
    let (fence, grant) = (1, None);
    assert!(
        RowView {
            fence,
            grant,
            reclaimed: false,
            busy: None,
        }
        .holder()
        .is_none()
    );
}

pub(crate) async fn core(dir: &tempfile::TempDir) -> Arc<Core> {
    let settings = Settings {
        holder: "test".into(),
        operation_timeout: Duration::from_secs(20),
        preparing: crate::runtime::base::settings::Preparing {
            migrate: true,
            quarantine: None,
        },
        clean_every: None,
        max_connections: 4,
        clock_error: ClockError::new(Duration::ZERO),
        session_ttl: Duration::from_secs(30),
    };
    let connector = Sqlite::from_url(&url(dir)).unwrap();
    Core::start(connector, settings).await.unwrap().0
}

#[tokio::test]
async fn a_grant_and_a_lease_are_remembered_until_they_are_over_or_the_row_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let core = core(&dir).await;
    let name = Name::new("a").unwrap();
    let known = || {
        core.rows
            .known(&name)
            .map(|known| (known.granted, known.leased))
    };
    assert_eq!(known(), None);
    core.rows.remember_grant(&name, 7);
    assert_eq!(known(), Some((Some(7), false)));
    // The fence of an earlier transaction, whose end is reported late.
    core.rows.grant_ended(&name, 6);
    assert_eq!(known(), Some((Some(7), false)));
    core.rows.saw_lease(&name);
    assert_eq!(known(), Some((Some(7), true)));
    core.rows.grant_ended(&name, 7);
    assert_eq!(known(), Some((None, true)));
    core.rows.drop_known(&name);
    assert_eq!(known(), None);
    core.rows.grant_ended(&name, 7);
    assert_eq!(known(), None);
}

#[tokio::test]
async fn rows_that_are_to_be_made_before_a_transaction_are_made_and_known() {
    let dir = tempfile::tempdir().unwrap();
    let core = core(&dir).await;
    let names = ["a", "b"].map(|name| Name::new(name).unwrap());
    let missing = names
        .iter()
        .map(|name| (Arc::clone(&core.rows), name.clone()));
    make_rows(missing.collect()).await;
    for name in &names {
        assert!(core.rows.known(name).is_some());
        assert!(core.rows.committed_fence(name).await.unwrap().is_some());
    }
    let other = Sqlite::from_url(&url(&dir)).unwrap();
    let mut other = other.open(Duration::from_secs(20)).await.unwrap();
    let params = TakeParams {
        name: names[0].clone(),
        grant_id: Uuid::new_v4(),
        ttl: Duration::from_secs(30),
        holder: "other".into(),
        session: None,
    };
    let taken = other.lease_take(&[params]).await.unwrap();
    let [TakeOutcome::Granted { fence }] = taken[..] else {
        panic!("{taken:?}")
    };
    assert_eq!(
        core.rows.committed_fence(&names[0]).await.unwrap(),
        Some(fence)
    );
    let unknown = Name::new("c").unwrap();
    assert_eq!(core.rows.committed_fence(&unknown).await.unwrap(), None);
}
