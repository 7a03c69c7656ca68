//! The queue on a server: `ROWLOCK_TEST_POSTGRES_URL`. Each test has a schema of its own.

use std::str::FromStr;

use rowlock_test::patience;
use sqlx::postgres::{PgConnectOptions, PgListener};
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, Row};

use super::*;
use crate::model::FaultKind;
use crate::store::postgres::connect::SESSION;
use crate::store::postgres::functions;
use crate::store::postgres::listener::listen;
use crate::store::tests::records::claim;
use crate::store::tests::{Client, Place, TTL, Waits, named, queue_cases};
use crate::store::verbs::hold::{HoldOutcome, HoldStore, RunOutParams};
use crate::store::verbs::lease::LeaseStore;
use crate::store::verbs::queue::{News, PassWhy};
use crate::store::verbs::record::{ClaimOutcome, RecordStore};
use crate::store::verbs::release::{FreeOutcome, ReleaseParams};
use crate::store::verbs::schema::SchemaStore;

#[derive(Clone)]
struct Schema(PgConnectOptions);

impl Schema {
    async fn new() -> Self {
        let url = std::env::var("ROWLOCK_TEST_POSTGRES_URL")
            .expect("ROWLOCK_TEST_POSTGRES_URL has the URL of a server for tests");
        let options = PgConnectOptions::from_str(&url).unwrap();
        let name = format!("queue {}", Uuid::new_v4().simple());
        let mut conn = options.connect().await.unwrap();
        Self::run(&mut conn, &format!("CREATE SCHEMA \"{name}\"")).await;
        let schema = Self(options.options([("search_path", format!("\"{name}\""))]));
        let mut conn = schema.connect().await;
        SchemaStore::migrate(&mut conn, crate::store::verbs::schema::MigrateUntil::Now)
            .await
            .unwrap();
        conn.check_tables().await.unwrap();
        schema
    }
}

impl Place for Schema {
    type Verbs = PgConnection;

    const AGO: &'static str = "clock_timestamp() - interval '1 minute'";
    const LONG_AGO: &'static str = "clock_timestamp() - interval '11 days'";
    const OLD_FENCE: &'static str =
        "(extract(epoch FROM clock_timestamp() - interval '11 days') * 1000000)::bigint";
    const LOCK: &'static str = "BEGIN; SELECT * FROM rowlock_lock FOR SHARE";

    /// As a client's own connection. It is an application's transaction, too, which may take its time.
    async fn connect(&self) -> PgConnection {
        let mut conn = self.0.connect().await.unwrap();
        Self::run(&mut conn, SESSION).await;
        Self::run(&mut conn, "SET idle_in_transaction_session_timeout = 0").await;
        conn
    }

    async fn run(conn: &mut PgConnection, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(conn)
            .await
            .unwrap();
    }

    async fn numbers(conn: &mut PgConnection, sql: &str) -> Vec<i64> {
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(conn).await;
        rows.unwrap().iter().map(|row| row.get(0)).collect()
    }
}

queue_cases!(Schema::new());

/// A client with its process on the server.
async fn process(client: &mut Client<Schema>) -> i64 {
    Schema::numbers(&mut client.conn, "SELECT pg_backend_pid()::bigint").await[0]
}

/// Returns when the process waits for a lock.
async fn is_blocked(watcher: &mut Client<Schema>, process: i64) {
    let waits = format!("SELECT cardinality(pg_blocking_pids({process}))::bigint");
    for _ in 0..200 {
        if Schema::numbers(&mut watcher.conn, &waits).await[0] > 0 {
            return;
        }
    }
}

/// Where each verb is a transaction, a verb that passes an orphaned name on may grant another one.
#[tokio::test]
async fn passing_an_orphaned_name_on_leaves_the_commit_durable() {
    let place = Schema::new().await;
    let mut client = Client::new(&place).await;
    client.hold("a").await;
    client.wait("a").await;
    client.expire_grants().await;
    client.run("SET synchronous_commit = on; BEGIN").await;
    assert_eq!(client.pass("a", PassWhy::Orphaned).await.next.len(), 1);
    let off =
        "SELECT count(*) FROM pg_settings WHERE name = 'synchronous_commit' AND setting = 'off'";
    assert_eq!(Schema::numbers(&mut client.conn, off).await, [0]);
    client.run("COMMIT").await;
}

/// Where each verb is a transaction: a row that another transaction has locked takes nothing back that the same verb
/// has done.
#[tokio::test]
async fn a_locked_row_does_not_abort_the_transaction() {
    let place = Schema::new().await;
    let (mut client, mut other) = (Client::new(&place).await, Client::new(&place).await);
    let (a, b) = (client.hold("a").await, client.hold("b").await);
    client.wait("a").await;
    other
        .run("BEGIN; SELECT * FROM rowlock_lock WHERE name = 'a' FOR SHARE")
        .await;
    client.run("BEGIN").await;
    let all = [("a", &a), ("b", &b)].map(|(name, held)| ReleaseParams {
        name: named(name),
        grant_id: held.params.grant_id,
        fence: held.fence,
        was_queued: false,
    });
    let freed = client.conn.lease_release(&all).await.unwrap();
    assert_eq!(freed, [FreeOutcome::Locked, FreeOutcome::Released]);
    client.run("COMMIT").await;
    assert_eq!(client.row("b").await.grant_id, None);
    assert!(client.row("a").await.is_of(a.params.grant_id));
}

/// Each schema has records of its own.
#[tokio::test]
async fn a_claim_in_one_schema_keeps_back_none_in_another() {
    let (one, two) = (Schema::new().await, Schema::new().await);
    let (mut first, mut second) = (Client::new(&one).await, Client::new(&two).await);
    let mut again = Client::new(&one).await;
    first.run("BEGIN").await;
    for (client, is_claimed) in [(&mut first, true), (&mut again, false), (&mut second, true)] {
        let claimed = client.conn.record_claim(&[claim("k")]).await.unwrap();
        let is_mine = matches!(claimed[..], [ClaimOutcome::Mine { .. }]);
        assert_eq!(is_mine, is_claimed, "{claimed:?}");
    }
    let key = claim("k").key;
    for (client, is_claimed) in [(&mut again, true), (&mut second, false)] {
        assert_eq!(
            client.conn.record_is_claimed(&key).await.unwrap(),
            is_claimed
        );
    }
}

#[tokio::test]
async fn the_next_waiter_is_notified() {
    let place = Schema::new().await;
    let (mut holder, mut client) = (Client::new(&place).await, Client::new(&place).await);
    let url = std::env::var("ROWLOCK_TEST_POSTGRES_URL").unwrap();
    let mut listener = PgListener::connect(&url).await.unwrap();
    let channel = format!("rowlock_{}", client.session.simple());
    listener.listen(&channel).await.unwrap();
    let held = holder.hold("a").await;
    let waits = client.wait("a").await;
    holder.release(held.params.grant_id, "a", held.fence).await;
    let told = tokio::time::timeout(patience(), listener.recv());
    let told = told.await.unwrap().unwrap();
    assert_eq!(told.channel(), channel);
    assert_eq!(told.payload(), waits.params.grant_id.simple().to_string());
}

/// Elsewhere the looks of the waiters find it, which come often there.
#[tokio::test]
async fn what_a_session_has_held_is_passed_on_when_it_ends() {
    let place = Schema::new().await;
    for is_dead in [false, true] {
        let (mut holder, mut client) = (Client::new(&place).await, Client::new(&place).await);
        for name in ["a", "b"] {
            let params = JoinParams {
                in_session: true,
                ..holder.ask(name)
            };
            let joined = holder.join(&params).await;
            assert!(matches!(joined, JoinOutcome::Granted { .. }), "{joined:?}");
        }
        let waits = client.wait("a").await;
        if is_dead {
            holder.expire().await;
            client.conn.session_sweep(10).await.unwrap();
        } else {
            client.conn.session_end(holder.session).await.unwrap();
        }
        assert!(client.row("a").await.is_of(waits.params.grant_id));
        assert_eq!(client.row("b").await.grant_id, None);
        client.release(waits.params.grant_id, "a", 0).await;
    }
}

#[tokio::test]
async fn the_next_waiter_is_told_when_a_lease_ends_sooner() {
    let place = Schema::new().await;
    let (mut holder, mut client) = (Client::new(&place).await, Client::new(&place).await);
    let url = std::env::var("ROWLOCK_TEST_POSTGRES_URL").unwrap();
    let mut listener = listen(&url.parse().unwrap(), client.session).await.unwrap();
    let held = holder.hold("a").await;
    client.wait("a").await;
    let params = RunOutParams {
        name: named("a"),
        grant_id: held.params.grant_id,
        reservation: Uuid::new_v4(),
        time: TTL / 2,
    };
    // The answer to the first sending was lost, or it ended before it told. The second one gives no more time.
    let mut ends = Vec::new();
    for _ in 0..2 {
        let run_out = holder.conn.hold_run_out(&params).await.unwrap();
        assert_eq!(run_out, HoldOutcome::Done(()));
        let news = tokio::time::timeout(patience(), listener.next());
        assert_eq!(news.await.unwrap().unwrap(), News::Look);
        ends.push(holder.row("a").await.expires_at);
    }
    assert_eq!(ends[0], ends[1]);
}

/// The snapshot of a single statement would be older than the waiter.
#[tokio::test]
async fn a_release_that_waits_for_a_join_sees_its_waiter() {
    let place = Schema::new().await;
    let (mut holder, mut client) = (Client::new(&place).await, Client::new(&place).await);
    let mut watcher = Client::new(&place).await;
    let mut late = 0;
    for n in 0..20 {
        let name = format!("name {n}");
        let held = holder.hold(&name).await;
        client.run("BEGIN").await;
        let waits = client.wait(&name).await;
        let pid = process(&mut holder).await;
        let end = PassWhy::Ended(held.params.grant_id);
        let (passed, ()) = tokio::join!(holder.try_pass(&name, end), async {
            is_blocked(&mut watcher, pid).await;
            client.run("COMMIT").await;
        });
        late += u32::from(passed.is_none());
        let passed = match passed {
            Some(passed) => passed,
            None => holder.pass(&name, end).await,
        };
        assert!(client.is_next(&passed, &waits), "{passed:?}");
        watcher.check().await;
    }
    assert!(late < 20, "none waited");
}

#[tokio::test]
async fn a_second_sending_that_waits_for_the_first_finds_its_waiter() {
    let place = Schema::new().await;
    let (mut first, mut second) = (Client::new(&place).await, Client::new(&place).await);
    let mut watcher = Client::new(&place).await;
    for n in 0..20 {
        let name = format!("name {n}");
        watcher.hold(&name).await;
        first.run("BEGIN").await;
        let Waits { params, position } = first.wait(&name).await;
        let pid = process(&mut second).await;
        let (joined, ()) = tokio::join!(second.try_join(&params), async {
            is_blocked(&mut watcher, pid).await;
            first.run("COMMIT").await;
        });
        let joined = match joined {
            Some(joined) => joined,
            None => second.join(&params).await,
        };
        assert!(
            matches!(joined, JoinOutcome::Queued { position: found, .. } if found == position),
            "{joined:?}"
        );
        assert_eq!(watcher.row(&name).await.waiters, 1);
        watcher.check().await;
    }
}

/// As behind a pooler, where each verb has a transaction of its own.
#[tokio::test]
async fn a_transaction_around_a_verb_is_left_as_it_was() {
    let place = Schema::new().await;
    let (mut client, mut other) = (Client::new(&place).await, Client::new(&place).await);
    let held = client.hold("a").await;
    client.run("BEGIN").await;
    client.wait("a").await;
    client.pass("a", PassWhy::Ended(held.params.grant_id)).await;
    let limit = "SELECT setting::bigint FROM pg_settings WHERE name = 'lock_timeout'";
    assert_eq!(Schema::numbers(&mut client.conn, limit).await, [0]);
    client.run("COMMIT").await;
    other.run(Schema::LOCK).await;
    client.run("BEGIN").await;
    assert_eq!(client.try_pass("a", PassWhy::Orphaned).await, None);
    client.run("COMMIT").await;
    other.run("ROLLBACK").await;
    client.hold("b").await;
    assert_eq!(other.row("b").await.waiters, 0);
}

#[tokio::test]
async fn a_user_needs_the_right_to_run_the_functions() {
    let place = Schema::new().await;
    let mut owner = place.connect().await;
    let user = format!("queue_{}", Uuid::new_v4().simple());
    let names = functions::names().join(", ");
    let make = format!(
        "REVOKE EXECUTE ON FUNCTION {names} FROM PUBLIC;
         CREATE ROLE {user} LOGIN PASSWORD 'pw';
         DO $$ BEGIN EXECUTE format('GRANT USAGE ON SCHEMA %I TO {user}', current_schema()); END $$"
    );
    Schema::run(&mut owner, &make).await;
    let grants = crate::store::driver::rights::grants(&format!("postgres://{user}@host/postgres"));
    let (tables, functions) = grants.split_once("GRANT EXECUTE").unwrap();
    Schema::run(&mut owner, tables).await;
    let theirs = Schema(place.0.clone().username(&user).password("pw"));
    let mut client = Client::new(&theirs).await;
    let params = client.ask("a");
    let fault = client.conn.queue_join(&params).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Denied, "{fault:?}");
    Schema::run(&mut owner, &format!("GRANT EXECUTE{functions}")).await;
    let held = client.hold("a").await;
    let waits = client.wait("a").await;
    client.release(held.params.grant_id, "a", held.fence).await;
    assert!(matches!(
        client.confirm(&waits).await,
        ConfirmOutcome::Held { .. }
    ));
    drop(client);
    Schema::run(
        &mut owner,
        &format!("DROP OWNED BY {user}; DROP ROLE {user}"),
    )
    .await;
}
