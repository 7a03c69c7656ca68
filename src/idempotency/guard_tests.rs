//! The guard of an attempt: what counts against its key.

use crate::idempotency::{Begun, Idempotency, LayerAttempt as _, RecordInfo};
use crate::model::{Fingerprint, Scope};

async fn client(dir: &tempfile::TempDir) -> crate::client::Rowlock {
    let url = format!("sqlite:{}/test.db?mode=rwc", dir.path().display());
    crate::client::Rowlock::connect(&url).await.unwrap()
}

async fn new(idempotency: &Idempotency) -> super::IdempotencyGuard {
    let request = Fingerprint::of("request");
    match idempotency.begin(Scope("scope").key("k"), request).await {
        Ok(Begun::New(guard)) => guard,
        other => panic!("{other:?}"),
    }
}

async fn info(idempotency: &Idempotency) -> RecordInfo {
    let info = idempotency.inspect(Scope("scope").key("k")).await.unwrap();
    info.expect("a record")
}

#[tokio::test]
async fn only_an_attempt_that_is_to_count_is_held_against_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let client = client(&dir).await;
    let idempotency = client.idempotency();
    for (counts, abandoned) in [(false, 0), (true, 1)] {
        let guard = new(&idempotency).await;
        if !counts {
            guard.do_not_count();
        }
        drop(guard);
        client.flush().await;
        assert_eq!(info(&idempotency).await.abandoned, abandoned);
    }
}

#[tokio::test]
async fn a_step_that_was_begun_is_open_until_it_is_said_not_to_have_happened() {
    let dir = tempfile::tempdir().unwrap();
    let idempotency = client(&dir).await.idempotency();
    let guard = new(&idempotency).await;
    assert_eq!(guard.begin_whole("charge").await.unwrap(), None);
    let open = info(&idempotency).await.open_step;
    assert_eq!(open.as_deref(), Some("charge"));
    for bad in [String::new(), "x".repeat(256), "a\0".into()] {
        let refused = guard.whole_not_done(&bad).await;
        assert!(
            matches!(refused, Err(crate::Error::Invalid(_))),
            "{refused:?}"
        );
    }
    guard.step_not_done("charge").await.unwrap();
    assert_eq!(info(&idempotency).await.open_step, None);
}
