//! What a race decides too seldom for a test of the public API: verbs that are sent a moment too late. On every
//! engine.

use std::time::Duration;

use uuid::Uuid;

use rowlock_test::{Db, ENGINES};

use crate::model::Name;
use crate::store::verbs::hold::{HoldOutcome, RunOutParams};
use crate::store::verbs::lease::{FOR_EVER, TakeParams, TakeOutcome};
use crate::store::verbs::schema::MigrateUntil;
use crate::store::verbs::session::{LeftBehind, OpenParams};
use crate::store::driver::connector::{Connection, Connector};
use crate::store::verbs::Store;

const LONG: Duration = Duration::from_mins(10);
const SHORT: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_secs(10);

/// Puts up with a limit of half a second, as a quarantine of the client does.
const LIMIT: Duration = Duration::from_millis(500);

fn name() -> Name {
    Name::new(&Uuid::new_v4().to_string()).unwrap()
}

/// Opens a session, and takes a lock in it.
async fn hold(store: &mut dyn Store, ttl: Duration) -> LeftBehind {
    let open = OpenParams {
        id: Uuid::new_v4(),
        ttl,
        holder: "a test".into(),
    };
    store.session_open(&open).await.unwrap();
    let take = TakeParams {
        name: name(),
        grant_id: Uuid::new_v4(),
        ttl: FOR_EVER,
        holder: "a test".into(),
        session: Some(open.id),
    };
    let taken = store.lease_take(std::slice::from_ref(&take)).await.unwrap();
    assert!(matches!(taken[..], [TakeOutcome::Granted { .. }]), "{taken:?}");
    LeftBehind {
        name: take.name,
        session: open.id,
    }
}

async fn is_held(store: &mut dyn Store, held: &LeftBehind) -> bool {
    store.lock_inspect(&held.name).await.unwrap().is_some()
}

async fn each(connector: impl Connector) {
    let mut connection = connector.connect(0, TIMEOUT).await.unwrap();
    connection.migrate(MigrateUntil::Now).await.unwrap();
    let mut connection: Box<dyn Connection> = Box::new(connection);
    let tried = connection.call(TIMEOUT, async |store| {
        reclaims_only_what_has_ended(store).await;
        a_reservation_that_has_run_out_is_known(store).await;
        a_late_run_out_gives_no_time_again(store).await;
        a_late_end_ends_no_later_quarantine(store).await;
        Ok(())
    });
    tried.await.unwrap();
}

/// The session was renewed after it had looked expired.
async fn reclaims_only_what_has_ended(store: &mut dyn Store) {
    let (live, other) = (hold(store, LONG).await, hold(store, LONG).await);
    let short = hold(store, Duration::from_millis(1)).await;
    while is_held(store, &short).await {
        tokio::task::yield_now().await;
    }
    // Another session has the name by now.
    let wrong = LeftBehind {
        session: Uuid::new_v4(),
        ..other.clone()
    };
    let left = [live.clone(), short.clone(), wrong];
    store.session_reclaim(&left).await.unwrap();
    assert!(is_held(store, &live).await && is_held(store, &other).await);
    let grants = store.session_grants(short.session, &[], 10).await;
    assert!(grants.unwrap().is_empty());
    let grants = store.session_grants(live.session, &[], 10).await.unwrap();
    assert_eq!(grants.len(), 1);
    let none = store.session_grants(live.session, &grants[0].0, 10).await;
    assert!(none.unwrap().is_empty());
    assert_eq!(
        store.session_renew(short.session, LONG).await.unwrap(),
        None
    );
    assert!(
        store
            .session_renew(live.session, LONG)
            .await
            .unwrap()
            .is_some()
    );
    for session in [live, other] {
        assert_eq!(store.session_end(session.session).await.unwrap(), 1);
    }
}

/// A lease that is to run out after this time.
async fn to_run_out(store: &mut dyn Store, time: Duration) -> RunOutParams {
    let take = TakeParams {
        name: name(),
        grant_id: Uuid::new_v4(),
        ttl: LONG,
        holder: "a test".into(),
        session: None,
    };
    store.lease_take(std::slice::from_ref(&take)).await.unwrap();
    RunOutParams {
        name: take.name,
        grant_id: take.grant_id,
        reservation: Uuid::new_v4(),
        time,
    }
}

/// The first answer was lost, and the second sending was late.
async fn a_late_run_out_gives_no_time_again(store: &mut dyn Store) {
    let run_out = to_run_out(store, LONG).await;
    let mut ends = Vec::new();
    for time in [LONG, LONG * 2] {
        let run_out = RunOutParams {
            time,
            ..run_out.clone()
        };
        assert_eq!(store.hold_run_out(&run_out).await.unwrap(), HoldOutcome::Done(()));
        let row = store.lock_inspect(&run_out.name).await.unwrap().unwrap();
        ends.push(row.expires_at);
    }
    assert_eq!(ends[0], ends[1]);
}

/// The first answer was lost, and the reservation has run out by the second sending.
async fn a_reservation_that_has_run_out_is_known(store: &mut dyn Store) {
    let run_out = to_run_out(store, SHORT).await;
    assert_eq!(store.hold_run_out(&run_out).await.unwrap(), HoldOutcome::Done(()));
    while store.lock_inspect(&run_out.name).await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.hold_run_out(&run_out).await.unwrap(), HoldOutcome::Done(()));
    let of_another = RunOutParams {
        reservation: Uuid::new_v4(),
        ..run_out
    };
    assert_eq!(store.hold_run_out(&of_another).await.unwrap(), HoldOutcome::Gone);
}

/// Between the look at the quarantine and the end of it, another one has begun: a longer one, or one that the first
/// one outlasts.
async fn a_late_end_ends_no_later_quarantine(store: &mut dyn Store) {
    for time in [LONG * 2, SHORT] {
        store.quarantine_begin(LONG, LIMIT).await.unwrap();
        let first = store.quarantine_seen().await.unwrap().unwrap();
        assert!(first.left > LONG / 2, "{first:?}");
        let left = store.quarantine_begin(time, LIMIT).await.unwrap();
        assert!(left > LONG / 2, "{left:?}");
        store.quarantine_end(first.id, LIMIT).await.unwrap();
        let second = store.quarantine_seen().await.unwrap().unwrap();
        assert!(second.left > LONG / 2 && second.id > first.id, "{second:?}");
        for _ in 0..2 {
            store.quarantine_end(second.id, LIMIT).await.unwrap();
            assert!(store.quarantine_seen().await.unwrap().is_none());
        }
    }
}

/// An empty database of an engine, as the other tests get it.
async fn on(engine: &str, test: impl AsyncFnOnce(&str)) {
    let mut engines = ENGINES.iter();
    let engine = engines.find(|e| e.name() == engine).unwrap();
    let db = Db::new(*engine).await;
    test(&db.url).await;
    db.remove().await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn on_sqlite() {
    on("sqlite", async |url| {
        each(crate::store::sqlite::Sqlite::from_url(url).unwrap()).await;
    })
    .await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn on_postgres() {
    on("postgres", async |url| {
        each(crate::store::postgres::Postgres::from_url(url).unwrap()).await;
    })
    .await;
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn on_mariadb() {
    on("mariadb", async |url| {
        each(crate::store::mysql::MySql::from_url(url).unwrap()).await;
    })
    .await;
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn on_mysql() {
    on("mysql", async |url| {
        each(crate::store::mysql::MySql::from_url(url).unwrap()).await;
    })
    .await;
}
