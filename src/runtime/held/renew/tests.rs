//! Sending chunks of renewals, and the answers.

use rowlock_test::patience;
use std::pin::pin;
use std::time::Instant;

use super::send::newest_only;
use super::*;
use crate::model::{ClockError, Loss, Name};
use crate::store::driver::connector::Connector;
use crate::store::sqlite::Sqlite;

fn grant(name: &str, fence: i64) -> Arc<Grant> {
    let (name, id) = (Name::new(name).unwrap(), Uuid::new_v4());
    let (ttl, error) = (Duration::from_secs(30), ClockError::new(Duration::ZERO));
    let deadline = Moment::now() + Duration::from_secs(25);
    Arc::new(Grant::new(name, id, fence, ttl, error, None, deadline))
}

/// Renewals at work, on a thread of their own.
fn started(link: Link) -> Renewals {
    let (renewals, work) = Renewals::new(Sqlite::RENEWALS);
    let run = move || {
        let runtime = crate::runtime::base::threads::own_runtime().unwrap();
        runtime.block_on({
            let looks = link.another();
            work.run(link, looks, "here")
        });
    };
    std::thread::spawn(run);
    renewals
}

#[tokio::test]
async fn both_tasks_are_woken_for_what_is_added_and_nothing_is_left_of_what_was_removed() {
    let renewals = Renewals(Arc::default());
    let grant = grant("a", 1);
    renewals.add(&grant);
    assert!(pin!(renewals.0.announce.notified()).enable());
    assert!(pin!(renewals.0.renew.notified()).enable());
    assert_eq!(renewals.0.state.lock().schedule.len(), 1);
    renewals.remove(grant.id);
    assert_eq!(renewals.0.state.lock().schedule.len(), 0);
}

#[test]
fn the_thread_ends_with_the_renewals() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("a.db").display());
    let (sqlite, timeout) = (Sqlite::from_url(&url).unwrap(), Duration::from_secs(1));
    let renewals = started(Link::new(sqlite, timeout, &Arc::default()));
    renewals.add(&grant("a", 1));
    let thread = Arc::downgrade(&renewals.0);
    drop(renewals);
    let started = Instant::now();
    while thread.strong_count() > 0 {
        assert!(started.elapsed() < patience(), "it goes on");
        std::thread::yield_now();
    }
}

/// A server that accepts the first connection and stays silent.
#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_connection_that_is_not_made_when_a_renewal_is_due_is_made_anew() {
    use crate::store::postgres::Postgres;

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let url = format!("postgres://user@127.0.0.1:{port}/db");
    let timeout = Duration::from_mins(1);
    let postgres = Postgres::from_url(&url).unwrap();
    let renewals = started(Link::new(postgres, timeout, &Arc::default()));
    let (name, ttl) = (Name::new("a").unwrap(), Duration::from_secs(1));
    let (error, deadline) = (ClockError::new(Duration::ZERO), Moment::now() + ttl);
    let grant = Grant::new(name, Uuid::new_v4(), 1, ttl, error, None, deadline);
    renewals.add(&Arc::new(grant));
    let (_silent, _) = listener.accept().await.unwrap();
    let second = tokio::time::timeout(timeout / 2, listener.accept()).await;
    second.expect("another connection").unwrap();
}

#[test]
fn of_two_grants_of_a_name_the_older_one_is_lost() {
    let (older, newest, other) = (grant("b", 1), grant("b", 2), grant("a", 3));
    let due = vec![Arc::clone(&older), Arc::clone(&newest), other];
    let fences: Vec<i64> = newest_only(due).iter().map(|grant| grant.fence()).collect();
    assert_eq!(fences, [3, 2]);
    assert_eq!(older.loss(), Some(Loss::TakenOver));
    assert_eq!(newest.loss(), None);
}
