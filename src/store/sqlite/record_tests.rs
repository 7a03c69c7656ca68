//! What the verbs for records rely on, in a real file.

use sqlx::{Connection, Row};

use super::*;
use crate::model::Outcome;
use crate::store::sqlite::step;
use crate::store::sqlite::writing::IS_RELAXED;
use crate::store::verbs::step::StepStore;

async fn file(dir: &tempfile::TempDir) -> SqliteConnection {
    let url = format!("sqlite:{}/a.db?mode=rwc", dir.path().display());
    crate::client::Rowlock::connect(&url).await.unwrap();
    SqliteConnection::connect(&url).await.unwrap()
}

async fn synchronous(conn: &mut SqliteConnection) -> i64 {
    let level = sqlx::query("PRAGMA synchronous").fetch_one(conn).await;
    level.unwrap().get(0)
}

#[tokio::test]
async fn what_is_said_of_a_record_is_written_through_and_somebodys_own_choice_stays() {
    let dir = tempfile::tempdir().unwrap();
    let mut conn = file(&dir).await;
    // OFF, NORMAL, FULL, EXTRA: the level outside, and the level within.
    for (level, within) in [(0, 0), (1, 2), (2, 2), (3, 3)] {
        let is_relaxed = level == 1;
        let set = format!("PRAGMA synchronous = {level}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(set))
            .execute(&mut conn)
            .await
            .unwrap();
        let work = async |conn: &mut _| Ok(synchronous(conn).await);
        let seen = IS_RELAXED.scope(is_relaxed, durably(&mut conn, work)).await;
        assert_eq!(seen.unwrap(), within);
        assert_eq!(durably(&mut conn, work).await.unwrap(), within);
        assert_eq!(synchronous(&mut conn).await, level);
        let fails = async |_: &mut _| Err::<(), _>(sqlx::Error::RowNotFound);
        let failed = IS_RELAXED
            .scope(is_relaxed, durably(&mut conn, fails))
            .await;
        assert!(failed.is_err());
        assert_eq!(synchronous(&mut conn).await, level);
    }
}

#[tokio::test]
async fn steps_are_forgotten_with_their_record_only() {
    let dir = tempfile::tempdir().unwrap();
    let mut conn = file(&dir).await;
    let key = RecordKey::new("scope", "k").unwrap();
    let outcome = Outcome::json(&7).unwrap();
    step::keep(&mut conn, &key, "charge", 1, &outcome)
        .await
        .unwrap();
    // Another attempt has taken over meanwhile, or the record still has to be remembered.
    conn.record_forget(&key, 1).await.unwrap();
    let steps = conn.step_list(&key, 0).await;
    assert_eq!(steps.unwrap().len(), 1);
}
