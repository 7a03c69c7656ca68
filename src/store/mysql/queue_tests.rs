//! The queue on both servers: `ROWLOCK_TEST_MYSQL_URL` and `ROWLOCK_TEST_MARIADB_URL`. Each test has a database of its
//! own.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection};

use super::super::connect::MySql;
use super::*;
use crate::store::driver::connector::Connector;
use crate::store::tests::{Client, Place, TTL, in_time, named, queue_cases};
use crate::store::verbs::deadlock::DeadlockStore;
use crate::store::verbs::list::ListStore;
use crate::store::verbs::schema::SchemaStore;

#[path = "exchange_tests.rs"]
mod exchange;
#[path = "grant_rule_tests.rs"]
mod grants;
#[path = "listener_tests.rs"]
mod listeners;
#[path = "permit_tests.rs"]
mod permits;
#[path = "queue_stress_tests.rs"]
mod stress;

#[derive(Clone)]
struct Database(MySql);

impl Database {
    async fn new(variable: &str) -> Self {
        let server = std::env::var(variable)
            .unwrap_or_else(|_| panic!("{variable} has the URL of a server for tests"));
        let name = format!("queue_{}", Uuid::new_v4().simple());
        let mut conn = MySqlConnection::connect(&server).await.unwrap();
        Self::run(&mut conn, &format!("CREATE DATABASE {name}")).await;
        let (address, _) = server.rsplit_once('/').unwrap();
        let database = Self(MySql::from_url(&format!("{address}/{name}")).unwrap());
        let mut conn = database.connect().await;
        SchemaStore::migrate(&mut conn, crate::store::verbs::schema::MigrateUntil::Now)
            .await
            .unwrap();
        conn.check_tables().await.unwrap();
        database
    }

    async fn is_mariadb(conn: &mut MySqlConnection) -> bool {
        Self::numbers(conn, "SELECT VERSION() LIKE '%MariaDB%'").await == [1]
    }
}

impl Place for Database {
    type Verbs = MySqlConnection;

    const AGO: &'static str = "UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE";
    const LONG_AGO: &'static str = "UTC_TIMESTAMP(6) - INTERVAL 11 DAY";
    const OLD_FENCE: &'static str =
        "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6) - INTERVAL 11 DAY)";
    const ROW_WAIT: Duration = Duration::from_millis(150);
    const LOCK: &'static str = "START TRANSACTION; SELECT * FROM rowlock_lock LOCK IN SHARE MODE";

    /// As a client's own connection. It is an application's transaction, too, which may take its time.
    async fn connect(&self) -> MySqlConnection {
        let mut conn = self.0.connect(0, TTL).await.unwrap();
        let no_limit = "SET SESSION autocommit = 1 /*M! , idle_transaction_timeout = 0 */";
        Self::run(&mut conn, no_limit).await;
        conn
    }

    async fn run(conn: &mut MySqlConnection, sql: &str) {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        sql.execute(conn).await.unwrap();
    }

    async fn numbers(conn: &mut MySqlConnection, sql: &str) -> Vec<i64> {
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(conn).await;
        rows.unwrap().iter().map(|row| row.get(0)).collect()
    }
}

/// A text that waits for long: a busy machine may delay it without anything to wait for.
fn patient(text: &str) -> String {
    let waits = text.replace("max_statement_time = 0.150", "max_statement_time = 60");
    let waits = waits.replace("MAX_EXECUTION_TIME(150)", "MAX_EXECUTION_TIME(60000)");
    assert_ne!(waits, text);
    waits
}

/// The first sending has not yet committed when the second one arrives.
async fn a_second_sending_waits_for_the_first(place: &Database) {
    let (mut first, mut second) = (Client::new(place).await, Client::new(place).await);
    let mut in_time = 0;
    for n in 0..10 {
        let name = format!("name {n}");
        second.hold(&name).await;
        let params = second.ask(&name);
        first.run("START TRANSACTION").await;
        first.run(&patient(&join_text(&params))).await;
        let commit = first.run("DO SLEEP(0.004); COMMIT");
        let (joined, ()) = tokio::join!(second.try_join(&params), commit);
        in_time += u32::from(joined.is_some());
        let joined = match joined {
            Some(joined) => joined,
            None => second.join(&params).await,
        };
        assert!(
            matches!(joined, JoinOutcome::Queued { position: 1, .. }),
            "{joined:?}"
        );
        assert_eq!(second.row(&name).await.waiters, 1);
        second.check().await;
    }
    assert!(in_time > 0);
}

async fn a_release_that_waits_for_a_join_sees_its_waiter(place: &Database) {
    let (mut holder, mut client) = (Client::new(place).await, Client::new(place).await);
    let mut in_time = 0;
    for n in 0..10 {
        let name = format!("name {n}");
        let held = holder.hold(&name).await;
        let end = PassWhy::Ended(held.params.grant_id);
        let params = client.ask(&name);
        client.run("START TRANSACTION").await;
        client.run(&patient(&join_text(&params))).await;
        let commit = client.run("DO SLEEP(0.004); COMMIT");
        let (passed, ()) = tokio::join!(holder.try_pass(&name, end), commit);
        in_time += u32::from(passed.is_some());
        let passed = match passed {
            Some(passed) => passed,
            None => holder.pass(&name, end).await,
        };
        let expected = PassOutcome {
            ended: EndedGrant::Live,
            next: vec![params.grant_id],
        };
        assert_eq!(passed, expected);
        holder.check().await;
    }
    assert!(in_time > 0);
}

/// After the error of a time-out the server leaves the transaction open. What this connection writes would then be
/// seen by no other one.
async fn a_verb_that_gives_up_leaves_no_transaction_open(place: &Database) {
    let (mut client, mut other) = (Client::new(place).await, Client::new(place).await);
    let held = client.hold("a").await;
    let waits = client.wait("a").await;
    let params = client.ask("a");
    for verb in 0..4 {
        other.run(Database::LOCK).await;
        let is_locked = match verb {
            0 => client.try_join(&params).await.is_none(),
            1 => client.try_confirm(&waits).await.is_none(),
            2 => client.try_pass("a", PassWhy::Orphaned).await.is_none(),
            _ => {
                let freed = client
                    .try_release(held.params.grant_id, "a", held.fence)
                    .await;
                freed.is_none()
            }
        };
        assert!(is_locked, "{verb}");
        let write = format!("UPDATE rowlock_session SET forced = {}", verb + 1);
        client.run(&write).await;
        other.run("ROLLBACK").await;
        let seen = "SELECT forced FROM rowlock_session LIMIT 1";
        assert_eq!(Database::numbers(&mut other.conn, seen).await, [verb + 1]);
    }
}

/// A transaction has the lock of an expired session pinned: it stays with its holder.
async fn a_pinned_lock_of_an_expired_session_is_not_passed_on(place: &Database) {
    let (mut holder, mut client) = (Client::new(place).await, Client::new(place).await);
    let mut pin = Client::new(place).await;
    let params = JoinParams {
        in_session: true,
        ..holder.ask("a")
    };
    holder.join(&params).await;
    let waits = client.wait("a").await;
    holder.expire().await;
    pin.run(Database::LOCK).await;
    assert_eq!(client.try_pass("a", PassWhy::Orphaned).await, None);
    assert!(client.row("a").await.is_of(params.grant_id));
    pin.run("COMMIT").await;
    let passed = client.pass("a", PassWhy::Orphaned).await;
    assert!(client.is_next(&passed, &waits), "{passed:?}");
}

async fn the_last_waiter_leaves_a_free_name(place: &Database) {
    let mut client = Client::new(place).await;
    client.hold("a").await;
    let waits = client.wait("a").await;
    let seen = client.row("a").await.grant_id;
    crate::store::verbs::lease::LeaseStore::lease_force_release(
        &mut client.conn,
        &named("a"),
        seen,
        TTL,
    )
    .await
    .unwrap();
    let leave = waits.leaves();
    assert_eq!(client.pass("a", leave).await, PassOutcome::NOTHING);
    assert_eq!(client.row("a").await.waiters, 0);
    client.check().await;
    client.hold("a").await;
}

/// The row of the lock was removed by hand, and its waiters were not.
async fn positions_that_were_forgotten_are_given_again(place: &Database) {
    let mut client = Client::new(place).await;
    client.hold("a").await;
    let lost = client.wait("a").await;
    client.wait("a").await;
    client.run("DELETE FROM rowlock_lock").await;
    client.hold("a").await;
    let waits = client.wait("a").await;
    assert_eq!(waits.position, 1);
    assert_eq!(client.look(&lost).await, LookOutcome::Gone);
    client.check().await;
}

async fn pass_and_join(client: &mut Client<Database>, name: &str) -> bool {
    let passed = client.try_pass(name, PassWhy::Orphaned).await;
    assert!(passed.is_none_or(|passed| passed == PassOutcome::NOTHING));
    let params = client.ask(name);
    loop {
        if let Some(joined) = client.try_join(&params).await {
            return matches!(joined, JoinOutcome::Granted { .. });
        }
    }
}

/// One of them makes the row, between two statements of another one's text.
async fn many_join_a_new_name_at_once(place: &Database) {
    let (mut a, mut b) = (Client::new(place).await, Client::new(place).await);
    let (mut c, mut d) = (Client::new(place).await, Client::new(place).await);
    for n in 0..50 {
        let name = format!("name {n}");
        let granted = tokio::join!(
            pass_and_join(&mut a, &name),
            pass_and_join(&mut b, &name),
            pass_and_join(&mut c, &name),
            pass_and_join(&mut d, &name)
        );
        let granted = [granted.0, granted.1, granted.2, granted.3];
        assert_eq!(granted.iter().filter(|granted| **granted).count(), 1);
        a.check().await;
    }
}

/// Both servers limit how often a recursive statement goes on.
async fn a_long_chain_of_waits_is_searched(place: &Database) {
    let mut client = Client::new(place).await;
    for limit in ["cte_max_recursion_depth", "max_recursive_iterations"] {
        // Each server has one of them.
        let limit = AssertSqlSafe(format!("SET SESSION {limit} = 5"));
        let _ = sqlx::raw_sql(limit).execute(&mut client.conn).await;
    }
    let mut held = client.hold("name 0").await;
    let mut first = None;
    for n in 1..=20 {
        let next = client.hold(&format!("name {n}")).await;
        let waits = client.wait(&format!("name {}", n - 1)).await;
        let tell = waits.tells(std::iter::once(next.params.grant_id));
        client.conn.deadlock_tell(&tell).await.unwrap();
        first = Some(waits.look_params());
        held = next;
    }
    drop(held);
    let edges = client.conn.deadlock_edges(&[first.unwrap()]).await.unwrap();
    assert_eq!(edges.len(), 20, "{edges:?}");
}

/// Each commit waits for the disk.
async fn what_an_owner_holds_is_told_in_one_commit(place: &Database) {
    let mut client = Client::new(place).await;
    client.hold("a").await;
    let waits = client.wait("a").await;
    let params = waits.tells((0..1_200).map(|_| Uuid::new_v4()));
    let before = commits(&mut client.conn).await;
    client.conn.deadlock_tell(&params).await.unwrap();
    client.conn.deadlock_forget(&params.held).await.unwrap();
    // Each engine counts its own, and so does a look at the number.
    let commits = commits(&mut client.conn).await - before;
    assert!((2..10).contains(&commits), "{commits}");
}

/// How often this session has committed.
async fn commits(conn: &mut MySqlConnection) -> i64 {
    let count = sqlx::raw_sql("SHOW SESSION STATUS LIKE 'Handler_commit'");
    let count = count.fetch_one(conn).await.unwrap();
    count.get::<String, _>(1).parse().unwrap()
}

/// The text of a holder goes into a statement as it is.
async fn a_waiter_has_any_holder(place: &Database) {
    let mut client = Client::new(place).await;
    client.hold("a").await;
    let params = JoinParams {
        holder: "Ünï {name} ' \\ ? 🦀".into(),
        ..client.ask("{grant}'")
    };
    client.join(&params).await;
    let waits = JoinParams {
        grant_id: Uuid::new_v4(),
        ..params.clone()
    };
    client.join(&waits).await;
    let listed = client.conn.list_waiters(&params.name, 0).await.unwrap();
    assert_eq!(listed[0].holder, &*params.holder);
    client
        .pass("{grant}'", PassWhy::Ended(params.grant_id))
        .await;
    let row = client.row("{grant}'").await;
    assert_eq!(row.holder.as_deref(), Some(&*params.holder));
}

/// Runs the cases of all engines and those of this one, on both servers.
macro_rules! on_both {
    ($($case:ident)+) => {
        mod on_mysql {
            use super::*;
            queue_cases!(Database::new("ROWLOCK_TEST_MYSQL_URL"));
            $(on_both! { @"ROWLOCK_TEST_MYSQL_URL" $case })+
            on_both! { @"ROWLOCK_TEST_MYSQL_URL" a_sleep_is_no_slow_statement }
        }
        mod on_mariadb {
            use super::*;
            queue_cases!(Database::new("ROWLOCK_TEST_MARIADB_URL"));
            $(on_both! { @"ROWLOCK_TEST_MARIADB_URL" $case })+
        }
    };
    (@$variable:literal $case:ident) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $case() {
            let case = async { super::$case(&Database::new($variable).await).await };
            in_time(case).await;
        }
    };
}

use grants::a_statement_that_is_cut_grants_nothing;
use listeners::*;
use permits::*;
use stress::waiters_that_die_and_ask_twice_keep_the_queue_in_order;

on_both! {
    a_statement_that_is_cut_grants_nothing
    whoever_waits_is_woken
    a_listener_takes_the_place_of_the_one_before
    a_name_is_passed_on_to_who_does_not_listen
    every_wake_of_many_is_heard
    nobody_is_woken_without_a_session
    a_wake_that_fails_takes_nothing_back
    a_second_sending_waits_for_the_first
    a_release_that_waits_for_a_join_sees_its_waiter
    a_verb_that_gives_up_leaves_no_transaction_open
    a_pinned_lock_of_an_expired_session_is_not_passed_on
    the_last_waiter_leaves_a_free_name
    positions_that_were_forgotten_are_given_again
    many_join_a_new_name_at_once
    a_waiter_has_any_holder
    a_long_chain_of_waits_is_searched
    what_an_owner_holds_is_told_in_one_commit
    waiters_that_die_and_ask_twice_keep_the_queue_in_order
    a_queue_for_a_lock_is_not_one_for_permits
    a_late_second_sending_finds_its_dead_permit
    permits_of_the_longest_name_are_renewed_together
    a_pinned_permit_keeps_nobody_waiting
    permits_that_are_gone_use_nothing
    a_permit_that_was_renewed_meanwhile_is_not_reclaimed
    a_window_for_a_permit_ends_with_the_session_of_its_waiter
}
