//! Permits on Galera: each join and each release writes the row of the name, so the certification refuses some of
//! them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libtest_mimic::Trial;
use rowlock::Rowlock;
use rowlock_test::{eventually, patience, release};
use sqlx::MySqlPool;
use tokio::task::JoinSet;

use crate::cluster::{Cluster, Database};
use crate::galera::number;
use crate::trial;

pub(crate) fn trials(cluster: Option<&Arc<Cluster>>) -> Vec<Trial> {
    vec![
        trial(
            "permits_through_all_nodes_fit_the_capacity",
            cluster,
            permits,
        ),
        trial("a_writer_is_alone_through_all_nodes", cluster, writers),
    ]
}

/// What tasks hold at the same time.
#[derive(Default)]
struct Inside {
    readers: AtomicU32,
    writers: AtomicU32,
}

/// A client that goes on for long when other nodes' commits abort its own: six of them want one row.
async fn patient(db: &Database, node: usize) -> Rowlock {
    let builder = Rowlock::builder().operation_timeout(patience() / 4);
    builder.connect(db.url(node)).await.unwrap()
}

/// No permit is left in the database, and the name's row says so.
async fn no_permit_is_left(pool: &MySqlPool) {
    eventually("no permit is left", async || {
        let left = "SELECT CAST(COALESCE(SUM(used), 0) + SUM(weight) AS SIGNED) FROM rowlock_lock";
        number(pool, left).await == 0
    })
    .await;
}

async fn permits(cluster: Arc<Cluster>) {
    const CAPACITY: u32 = 3;
    let db = cluster.database().await;
    let inside = Arc::new(Inside::default());
    let mut tasks = JoinSet::new();
    for task in 0..6 {
        let rowlock = patient(&db, task % 3).await;
        let inside = Arc::clone(&inside);
        let weight = u32::try_from(task % 2 + 1).unwrap();
        tasks.spawn(async move {
            for _ in 0..40 {
                let semaphore = rowlock.semaphore("exports", CAPACITY).weight(weight);
                let permit = semaphore.acquire().await.unwrap();
                let used = inside.readers.fetch_add(weight, Ordering::SeqCst) + weight;
                assert!(used <= CAPACITY, "{used} of {CAPACITY}");
                tokio::task::yield_now().await;
                inside.readers.fetch_sub(weight, Ordering::SeqCst);
                release(&permit).await;
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let (_, pool) = db.at(0).await;
    no_permit_is_left(&pool).await;
    db.remove().await;
}

async fn writers(cluster: Arc<Cluster>) {
    let db = cluster.database().await;
    let inside = Arc::new(Inside::default());
    let mut tasks = JoinSet::new();
    for task in 0..6 {
        let rowlock = patient(&db, task % 3).await;
        let inside = Arc::clone(&inside);
        tasks.spawn(async move {
            let catalog = rowlock.rw_lock("catalog");
            let mut fences = Vec::new();
            for _ in 0..40 {
                if task < 2 {
                    let mut writer = catalog.write().await.unwrap();
                    assert_eq!(inside.writers.fetch_add(1, Ordering::SeqCst), 0);
                    assert_eq!(inside.readers.load(Ordering::SeqCst), 0);
                    fences.push(writer.fence());
                    inside.readers.fetch_add(1, Ordering::SeqCst);
                    inside.writers.fetch_sub(1, Ordering::SeqCst);
                    writer.downgrade().await.unwrap();
                    inside.readers.fetch_sub(1, Ordering::SeqCst);
                    release(&writer).await;
                } else {
                    let reader = catalog.read().await.unwrap();
                    inside.readers.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(inside.writers.load(Ordering::SeqCst), 0);
                    inside.readers.fetch_sub(1, Ordering::SeqCst);
                    release(&reader).await;
                }
            }
            fences
        });
    }
    let mut fences: Vec<i64> = tasks.join_all().await.into_iter().flatten().collect();
    let count = fences.len();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), count, "two writers under one fence");
    let (_, pool) = db.at(0).await;
    no_permit_is_left(&pool).await;
    db.remove().await;
}
