//! A step that is begun and ended by two calls, as the HTTP layer does.

use super::*;
use crate::client::Rowlock;
use crate::idempotency::Begun;
use crate::model::Fingerprint;

#[tokio::test]
async fn only_the_step_that_was_begun_can_be_said_not_to_have_happened() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/a.db?mode=rwc", dir.path().display());
    let idempotency = Rowlock::connect(&url).await.unwrap().idempotency();
    let begun = idempotency.begin("scope", "k", Fingerprint::of("request"));
    let Begun::New(guard) = begun.await.unwrap() else {
        panic!("it is new")
    };
    assert_eq!(guard.begin_once("respond").await.unwrap(), None);
    let other = || guard.step_once("letter", async { Ok::<_, StepFailed<Error>>(7) });
    for (not_done, free) in [("another", false), ("respond", true)] {
        guard.step_not_done(not_done).await.unwrap();
        let letter = other().await;
        assert_eq!(letter.is_ok(), free, "{letter:?}");
    }
    let info = idempotency.inspect("scope", "k").await.unwrap().unwrap();
    assert_eq!(info.step_in_doubt, None);
}
