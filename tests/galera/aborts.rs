//! Between two requests of one verb: a node aborts the transaction, or the client stands still.

use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::Trial;
use rowlock::{Begun, Fingerprint, Outcome, Rowlock, Scope};
use rowlock_test::{eventually, patience, release};
use sqlx::MySqlPool;
use sqlx::mysql::MySqlPoolOptions;

use crate::cluster::Cluster;
use crate::galera::number;
use crate::gate::Gate;
use crate::trial;

pub(crate) fn trials(cluster: Option<&Arc<Cluster>>) -> Vec<Trial> {
    vec![
        trial(
            "a_claim_that_is_aborted_leaves_the_lock_wait_of_the_session_as_it_was",
            cluster,
            aborted_claim,
        ),
        trial(
            "a_release_that_is_aborted_while_it_gives_way_is_done_later",
            cluster,
            aborted_release,
        ),
        trial(
            "a_client_that_stands_still_in_a_verb_keeps_a_name_for_seconds_only",
            cluster,
            stands_still,
        ),
    ]
}

async fn pay(rowlock: &Rowlock, pool: &MySqlPool) -> Begun<Outcome> {
    let work = |tx| async move {
        drop(tx);
        Outcome::json(&1)
    };
    let (idempotency, request) = (rowlock.idempotency(), Fingerprint::of("request"));
    let begun = idempotency.run_in_tx(pool, Scope("scope").key("k"), request, work);
    begun.await.unwrap()
}

/// Another node changes a row, and then the row is changed here.
async fn changed_elsewhere(
    other: &MySqlPool,
    change: &'static str,
    here: &MySqlPool,
    changed: &'static str,
) {
    eventually("the row is on the other node, too", || async {
        let done = sqlx::raw_sql(change).execute(other).await;
        done.unwrap().rows_affected() == 1
    })
    .await;
    eventually("the change is here, too", || async {
        number(here, changed).await == 1
    })
    .await;
}

/// The claim has found its key and locked the record. Then another node changes it.
async fn aborted_claim(cluster: Arc<Cluster>) {
    let db = cluster.database().await;
    let (first, pool) = db.at(0).await;
    let (second, other) = db.at(1).await;
    let begun = pay(&first, &pool).await;
    assert!(matches!(begun, Begun::New(_)), "{begun:?}");
    let gate = Gate::before(db.url(0)).await;
    let one = MySqlPoolOptions::new().max_connections(1);
    let through = one.connect(&gate.url).await.unwrap();
    let wait = "SET SESSION innodb_lock_wait_timeout = 77";
    sqlx::raw_sql(wait).execute(&through).await.unwrap();
    gate.keep_after("INSERT INTO rowlock_idempotency");
    let late = tokio::spawn({
        let through = through.clone();
        async move { pay(&second, &through).await }
    });
    gate.kept().await;
    let change = "UPDATE rowlock_idempotency SET holder = 'another node'";
    let changed = "SELECT COUNT(*) FROM rowlock_idempotency WHERE holder = 'another node'";
    changed_elsewhere(&other, change, &pool, changed).await;
    gate.go_on();
    let begun = late.await.unwrap();
    assert!(matches!(begun, Begun::Replay(_)), "{begun:?}");
    let wait = "SELECT CAST(@@innodb_lock_wait_timeout AS SIGNED)";
    assert_eq!(number(&through, wait).await, 77);
    // Nothing is kept for a later claim.
    let kept = "SELECT @rowlock_wait IS NOT NULL";
    assert_eq!(number(&through, kept).await, 0);
    through.close().await;
    db.remove().await;
}

/// The release has locked its permit, and gives way to a transaction that has the name. Then another node changes the
/// permit.
async fn aborted_release(cluster: Arc<Cluster>) {
    let db = cluster.database().await;
    let (_, pool) = db.at(0).await;
    let (_, other) = db.at(1).await;
    let gate = Gate::before(db.url(0)).await;
    let rowlock = Rowlock::connect(&gate.url).await.unwrap();
    let permit = rowlock.semaphore("a", 1).acquire().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let lock = "SELECT fence FROM rowlock_lock WHERE name = 'a' FOR UPDATE";
    sqlx::raw_sql(lock).execute(&mut *tx).await.unwrap();
    gate.keep_after("FROM rowlock_lock WHERE name = x'61' FOR UPDATE");
    let late = tokio::spawn(async move { release(&permit).await });
    gate.kept().await;
    let change = "UPDATE rowlock_lock SET holder = 'another node' WHERE weight = 1";
    let changed = "SELECT COUNT(*) FROM rowlock_lock WHERE holder = 'another node'";
    changed_elsewhere(&other, change, &pool, changed).await;
    gate.go_on();
    tx.rollback().await.unwrap();
    late.await.unwrap();
    let left = "SELECT CAST(SUM(used) + SUM(weight) AS SIGNED) FROM rowlock_lock";
    assert_eq!(number(&pool, left).await, 0);
    db.remove().await;
}

/// Its node ends the transaction, although the client's connection is whole. Then both clients ask for the name again.
async fn stands_still(cluster: Arc<Cluster>) {
    let db = cluster.database().await;
    let (other, _) = db.at(0).await;
    release(&other.semaphore("a", 1).acquire().await.unwrap()).await;
    let gate = Gate::before(db.url(0)).await;
    let patient = Rowlock::builder().operation_timeout(Duration::from_mins(5));
    let patient = patient.connect(&gate.url).await.unwrap();
    gate.keep_after("INTO @rl_waiters");
    let late = tokio::spawn(async move {
        let permit = patient.semaphore("a", 1).acquire().await.unwrap();
        release(&permit).await;
    });
    gate.kept().await;
    let permit = other.semaphore("a", 1).wait(patience());
    let permit = permit
        .acquire()
        .await
        .expect("the node has unlocked the name");
    release(&permit).await;
    gate.go_on();
    late.await.unwrap();
    db.remove().await;
}
