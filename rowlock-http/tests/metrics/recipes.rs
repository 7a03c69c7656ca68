//! Jobs and elections are counted by their names; locks and keys never are.

use std::future::pending;
use std::time::Duration;

use rowlock::Error;
use rowlock_recipes::{Election, Job};

use crate::client;
use crate::recorder::{counted, gauge, labelled, recorded};

fn rounds(outcome: &str) -> u64 {
    let labels = [("name", "reminders"), ("outcome", outcome)];
    counted("rowlock_job_rounds_total", &labels)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_becomes_of_a_round_is_counted_under_the_name_of_its_job() {
    let (_alone, _db, rowlock) = client().await;
    let job = Job::new(&rowlock, "reminders");
    let all = [
        "done",
        "failed",
        "lost",
        "left",
        "abandoned",
        "skipped",
        "error",
    ];
    assert_eq!(all.map(rounds), [0; 7]);
    let ran = job.run(async |_| {
        let again = job.run(async |_| Ok::<_, Error>(())).await?;
        assert!(again.here().is_none());
        Ok::<_, Error>(())
    });
    ran.await.unwrap().here().unwrap();
    let failed = job.run(async |_| Err::<(), Box<dyn std::error::Error>>("no mail server".into()));
    failed.await.unwrap_err();
    let lost = job.run(async |held| {
        rowlock.admin().force_release(held.name().clone()).await?;
        pending::<Result<(), Error>>().await
    });
    assert!(matches!(lost.await, Err(Error::Lost { .. })));
    job.begin().await.unwrap().leave().await.unwrap();
    drop(job.begin().await.unwrap());
    rowlock.flush().await;
    let invalid = job.clone().ttl(Duration::ZERO);
    let invalid = invalid.run(async |_| Ok::<_, Error>(()));
    assert!(matches!(invalid.await, Err(Error::Invalid(_))));
    assert_eq!(all.map(rounds), [1; 7]);
    let ran = recorded("rowlock_job_seconds", &[("name", "reminders")]);
    assert_eq!(ran.len(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leads_and_for_how_long_is_counted_under_the_name_of_the_election() {
    let (_alone, _db, rowlock) = client().await;
    let election = Election::new(&rowlock, "scheduler");
    let leads = || gauge("rowlock_leading", &[("name", "scheduler")]) > 0.5;
    let terms = |end| {
        let labels = [("name", "scheduler"), ("end", end)];
        recorded("rowlock_term_seconds", &labels).len()
    };
    assert!(!leads());
    let leadership = election.campaign().await.unwrap();
    assert!(leads());
    leadership.resign().await.unwrap();
    assert!(!leads());
    drop(leadership);
    drop(election.campaign().await.unwrap());
    assert_eq!((terms("resigned"), terms("lost")), (2, 0));
    let leadership = election.campaign().await.unwrap();
    let force = rowlock.admin().force_release(leadership.name().clone());
    force.await.unwrap();
    leadership.lost().await;
    assert!(!leads());
    drop(leadership);
    assert_eq!((terms("resigned"), terms("lost")), (2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_metric_of_locks_and_keys_has_a_name() {
    let (_alone, _db, rowlock) = client().await;
    Job::new(&rowlock, "reports")
        .begin()
        .await
        .unwrap()
        .leave()
        .await
        .unwrap();
    let leadership = Election::new(&rowlock, "planner").campaign().await.unwrap();
    leadership.resign().await.unwrap();
    let of_recipes = [
        "rowlock_job_rounds_total",
        "rowlock_job_seconds",
        "rowlock_leading",
        "rowlock_term_seconds",
    ];
    let named: Vec<String> = labelled("name").into_iter().collect();
    assert_eq!(named, of_recipes);
}
