//! When the plans of a connection are made anew, and what they are: on a server, `ROWLOCK_TEST_POSTGRES_URL`.

use std::pin::Pin;
use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Row};
use uuid::Uuid;

use super::*;
use crate::model::Name;
use crate::store::driver::connector::Connector;
use crate::store::postgres::Postgres;
use crate::store::verbs::Store;
use crate::store::verbs::lease::{RenewParams, TakeOutcome, TakeParams};
use crate::store::verbs::release::ReleaseParams;

const TTL: Duration = Duration::from_secs(30);

#[test]
fn plans_are_made_anew_after_a_slow_verb_and_not_too_often() {
    let now = Instant::now();
    let mut plans = Plans::made(now);
    plans.took(Duration::from_millis(1));
    plans.took(SLOW.0);
    assert!(
        !plans.are_outlived(now + 2 * OLD_ENOUGH),
        "no verb was slow"
    );
    plans.took(SLOW.0 * 2);
    plans.took(SLOW.0);
    assert!(!plans.are_outlived(now + OLD_ENOUGH / 2));
    assert!(plans.are_outlived(now + OLD_ENOUGH));
    plans.made_anew(now);
    assert!(!plans.are_outlived(now + 2 * OLD_ENOUGH));
}

#[test]
fn a_server_that_is_far_away_is_not_slow() {
    let (now, way) = (Instant::now(), Duration::from_millis(40));
    let mut plans = Plans::made(now);
    plans.took(way);
    let of_two_new_statements = way * 4 + way / 2;
    plans.took(of_two_new_statements);
    plans.took(way * SLOW.1);
    assert!(!plans.are_outlived(now + OLD_ENOUGH));
    plans.took(way * (SLOW.1 + 1));
    assert!(plans.are_outlived(now + OLD_ENOUGH));
}

fn take(name: &str) -> TakeParams {
    TakeParams {
        name: Name::new(name).unwrap(),
        grant_id: Uuid::new_v4(),
        ttl: TTL,
        holder: "a test".into(),
        session: None,
    }
}

fn releases(all: &[TakeParams]) -> Vec<ReleaseParams> {
    let release = |params: &TakeParams| ReleaseParams {
        name: params.name.clone(),
        grant_id: params.grant_id,
        fence: 0,
        was_queued: false,
    };
    all.iter().map(release).collect()
}

fn renewals(all: &[TakeParams]) -> Vec<RenewParams> {
    let renew = |params: &TakeParams| RenewParams {
        name: params.name.clone(),
        grant_id: params.grant_id,
        ttl: TTL,
    };
    all.iter().map(renew).collect()
}

async fn count(conn: &mut PgConnection, sql: &'static str) -> i64 {
    let row = sqlx::raw_sql(sql).fetch_one(conn).await.unwrap();
    row.get(0)
}

async fn use_leases(store: &mut dyn Store) {
    let all = ["a", "b", "c", "d"].map(take);
    let (first, second) = all.split_at(2);
    store.lease_take(first).await.unwrap();
    // Often enough for plans that serve all values.
    for _ in 0..10 {
        let exchange = store.lease_exchange(&releases(first), second).await;
        let (_, taken) = exchange.unwrap();
        assert!(
            taken
                .iter()
                .all(|taken| matches!(taken, TakeOutcome::Granted { .. }))
        );
        let taken = store.lease_take(second).await.unwrap();
        assert!(
            taken
                .iter()
                .all(|taken| matches!(taken, TakeOutcome::Busy(_)))
        );
        store.lease_renew(&renewals(second)).await.unwrap();
        store.lease_release(&releases(second)).await.unwrap();
        store.lease_take(&first[..1]).await.unwrap();
        store.lease_release(&releases(&first[..1])).await.unwrap();
        store.lease_take(first).await.unwrap();
    }
}

/// A connection with these settings, and rowlock's tables in a schema of its own.
async fn connected(settings: &[(&str, &str)]) -> OwnConnection {
    let url = std::env::var("ROWLOCK_TEST_POSTGRES_URL").expect("see ./test.sh");
    let options = PgConnectOptions::from_str(&url).unwrap();
    let schema = format!("own {}", Uuid::new_v4().simple());
    let mut conn = options.connect().await.unwrap();
    let make = AssertSqlSafe(format!("CREATE SCHEMA \"{schema}\""));
    sqlx::raw_sql(make).execute(&mut conn).await.unwrap();
    let options = options.options([("search_path", format!("\"{schema}\""))]);
    let options = options.options(settings.iter().copied());
    let options = std::sync::Arc::new(options);
    let current = std::sync::Arc::new(move || std::sync::Arc::clone(&options));
    let connector = Postgres::from_options(current).unwrap();
    let mut own = connector.connect(0, TTL).await.unwrap();
    own.migrate(crate::store::verbs::schema::MigrateUntil::Now)
        .await
        .unwrap();
    own
}

/// What the server knows of the table may be from when it had a row.
#[tokio::test]
async fn statements_on_leases_look_rows_up_by_key_whatever_the_statistics_say() {
    let mut own = connected(&[]).await;
    let connection: &mut dyn Connection = &mut own;
    let few = async |store: &mut dyn Store| store.lease_take(&[take("a")]).await;
    connection.call(TTL, few).await.unwrap();
    let begin = "ANALYZE rowlock_lock; BEGIN; DELETE FROM rowlock_lock";
    sqlx::raw_sql(begin).execute(&mut own.conn).await.unwrap();
    let scans = "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'rowlock_lock'";
    let before = count(&mut own.conn, scans).await;
    let connection: &mut dyn Connection = &mut own;
    let many = async |store: &mut dyn Store| {
        use_leases(store).await;
        Ok(())
    };
    connection.call(TTL, many).await.unwrap();
    let after = count(&mut own.conn, scans).await;
    assert_eq!(after - before, 0, "scans of the table");
    sqlx::raw_sql("ROLLBACK")
        .execute(&mut own.conn)
        .await
        .unwrap();
}

/// An exchange, as a lane sends it.
struct Exchange(Vec<ReleaseParams>, Vec<TakeParams>);

impl VerbCall for Exchange {
    fn on<'a>(
        &'a mut self,
        store: &'a mut dyn Store,
    ) -> Pin<Box<dyn Future<Output = Result<(), Fault>> + 'a>> {
        Box::pin(async move {
            let (_, taken) = store.lease_exchange(&self.0, &self.1).await?;
            let is_granted = |taken: &TakeOutcome| matches!(taken, TakeOutcome::Granted { .. });
            assert!(taken.iter().all(is_granted), "{taken:?}");
            Ok(())
        })
    }

    fn must_last(&self) -> bool {
        true
    }
}

/// Notes how each commit that writes a lock row waits.
const NOTE: &str = "
CREATE TABLE commits (waits text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO commits VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER note AFTER INSERT OR UPDATE ON rowlock_lock
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note()";

/// A release does not wait for the disk. Where each verb is a transaction, an exchange has both in one commit.
#[tokio::test]
async fn a_commit_that_grants_waits_for_the_disk_also_when_it_frees() {
    let settings = [
        ("default_transaction_isolation", "serializable"),
        ("synchronous_commit", "remote_apply"),
    ];
    let mut own = connected(&settings).await;
    assert!(own.own_transactions);
    sqlx::raw_sql(NOTE).execute(&mut own.conn).await.unwrap();
    let held = ["a", "b"].map(take);
    let connection: &mut dyn Connection = &mut own;
    let hold = async |store: &mut dyn Store| store.lease_take(&held).await;
    connection.call(TTL, hold).await.unwrap();
    // The exchange does not find the grant of this release, and so looks why.
    let unknown = releases(&[take("a")]);
    let mut exchange = Exchange(unknown, vec![take("c")]);
    own.run(&mut exchange, TTL).await.unwrap();
    let commits = "SELECT count(*) FROM commits WHERE waits = 'remote_apply'";
    assert_eq!(count(&mut own.conn, commits).await, 3);
    let connection: &mut dyn Connection = &mut own;
    let free = async |store: &mut dyn Store| store.lease_release(&releases(&held)).await;
    connection.call(TTL, free).await.unwrap();
    let commits = "SELECT count(*) FROM commits WHERE waits = 'off'";
    assert_eq!(count(&mut own.conn, commits).await, 2);
}

/// Refuses each commit that writes a lock row.
const REFUSE: &str = "
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE ON rowlock_lock
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()";

#[tokio::test]
async fn what_was_not_committed_is_not_granted() {
    let mut own = connected(&[("default_transaction_isolation", "serializable")]).await;
    assert!(own.own_transactions);
    sqlx::raw_sql(REFUSE).execute(&mut own.conn).await.unwrap();
    let connection: &mut dyn Connection = &mut own;
    let hold = async |store: &mut dyn Store| store.lease_take(&[take("a")]).await;
    let refused = connection.call(TTL, hold).await.unwrap_err();
    assert!(refused.to_string().contains("refused"), "{refused}");
}
