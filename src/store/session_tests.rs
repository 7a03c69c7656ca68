//! What a race decides too seldom for a test of the public API: verbs that are sent a moment too late. On every brand.

use std::time::Duration;

use uuid::Uuid;

use super::*;
use crate::store::lease::{FOR_EVER, TakeAsk, Taken};
use crate::store::{Connection, Connector, Store};

const LONG: Duration = Duration::from_mins(10);
const TIMEOUT: Duration = Duration::from_secs(10);

/// The server of a brand, as the other tests get it.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn url(engine: &str) -> String {
    let variable = format!("ROWLOCK_TEST_{engine}_URL");
    std::env::var(&variable).unwrap_or_else(|_| panic!("{variable} is not set: see ./test.sh"))
}

fn name() -> Name {
    Name::new(&Uuid::new_v4().to_string()).unwrap()
}

/// Opens a session, and takes a lock in it.
async fn hold(store: &mut dyn Store, ttl: Duration) -> LeftBehind {
    let open = OpenAsk {
        id: Uuid::new_v4(),
        ttl,
        holder: "a test".into(),
    };
    store.session_open(&open).await.unwrap();
    let take = TakeAsk {
        name: name(),
        grant_id: Uuid::new_v4(),
        ttl: FOR_EVER,
        holder: "a test".into(),
        session: Some(open.id),
        barging: false,
    };
    let taken = store.lease_take(std::slice::from_ref(&take)).await.unwrap();
    assert!(matches!(taken[..], [Taken::Granted { .. }]), "{taken:?}");
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
    connection
        .migrate(crate::store::migrate::MigrateUntil::Now)
        .await
        .unwrap();
    let mut connection: Box<dyn Connection> = Box::new(connection);
    let tried = connection.call(TIMEOUT, async |store| {
        buries_only_what_has_ended(store).await;
        Ok(())
    });
    tried.await.unwrap();
}

/// The session was renewed after it had looked expired.
async fn buries_only_what_has_ended(store: &mut dyn Store) {
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
    store.session_bury(&left).await.unwrap();
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

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/a.db", dir.path().display());
    each(crate::store::sqlite::Sqlite::from_url(&url).unwrap()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn on_postgres() {
    each(crate::store::postgres::Postgres::from_url(&url("POSTGRES")).unwrap()).await;
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn on_mariadb() {
    each(crate::store::mysql::MySql::from_url(&url("MARIADB")).unwrap()).await;
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn on_mysql() {
    each(crate::store::mysql::MySql::from_url(&url("MYSQL")).unwrap()).await;
}

#[test]
fn a_session_with_a_time_out_of_range_is_an_error() {
    let row = |opened_at, expires_at| SessionRow {
        id: Uuid::nil(),
        holder: "me".into(),
        opened_at,
        expires_at,
        left: 1,
        locks: 0,
    };
    assert!(row(1, 2).info().is_ok());
    for damaged in [row(i64::MAX, 2), row(1, i64::MIN)] {
        assert!(matches!(damaged.info(), Err(Error::CorruptRow { .. })));
    }
}
