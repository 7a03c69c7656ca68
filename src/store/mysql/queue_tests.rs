//! The queue on real servers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

use super::super::connect::MySql;
use super::*;
use crate::model::Name;
use crate::store::clean::CleanStore;
use crate::store::lease::{Freed, LeaseStore, ReleaseAsk, TakeAsk, Taken};
use crate::store::lock_row::{LockRowStore, RowAsk};
use crate::store::schema::SchemaStore;
use crate::store::session::OpenAsk;
use crate::store::{Connector, micros};

const TTL: Duration = Duration::from_secs(30);

/// A database of this test's own, with rowlock's tables.
pub(super) struct Bench {
    connector: MySql,
    server: String,
    database: String,
}

impl Bench {
    pub(super) async fn new(variable: &str) -> Self {
        let server = std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set"));
        let database = format!("rowlock_queue_{}", Uuid::new_v4().simple());
        sql_on(&server, format!("CREATE DATABASE {database}")).await;
        let (base, _) = server.rsplit_once('/').unwrap();
        let connector = MySql::from_url(&format!("{base}/{database}")).unwrap();
        let bench = Self {
            connector,
            server,
            database,
        };
        bench.conn().await.migrate_tables().await;
        bench
    }

    pub(super) async fn conn(&self) -> MySqlConnection {
        let limit = Duration::from_secs(4);
        self.connector.connect(0, limit).await.unwrap()
    }

    pub(super) async fn drop(self) {
        sql_on(&self.server, format!("DROP DATABASE {}", self.database)).await;
    }
}

async fn sql_on(server: &str, sql: String) {
    let mut conn = MySqlConnection::connect(server).await.unwrap();
    conn.sql(&sql).await;
}

/// What a test does to the tables, beside the verbs.
pub(super) trait Hands {
    async fn sql(&mut self, sql: &str);
    async fn migrate_tables(&mut self);
    async fn session(&mut self) -> Uuid;
    async fn end_of(&mut self, session: Uuid);
    async fn lapse(&mut self, name: &Name);
    async fn numbers(&mut self, name: &Name) -> [i64; 4];
    async fn row(&mut self, name: &Name) -> LockRow;
    async fn held(&mut self, name: &Name) -> JoinAsk;
    async fn queued(&mut self, name: &Name) -> (JoinAsk, i64);
}

impl Hands for MySqlConnection {
    async fn sql(&mut self, sql: &str) {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        sql.execute(self).await.unwrap();
    }

    async fn migrate_tables(&mut self) {
        SchemaStore::migrate(self).await.unwrap();
    }

    async fn session(&mut self) -> Uuid {
        let id = Uuid::new_v4();
        let holder = "test".into();
        let ttl = TTL;
        let opened = self.session_open(&OpenAsk { id, ttl, holder }).await;
        assert!(opened.unwrap().is_some());
        id
    }

    /// The session expires.
    async fn end_of(&mut self, session: Uuid) {
        let id = hex(session.as_bytes());
        let expire = format!(
            "UPDATE rowlock_session SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE id = {id}"
        );
        self.sql(&expire).await;
    }

    /// The row's grant expires.
    async fn lapse(&mut self, name: &Name) {
        let name = hex(name.as_bytes());
        let lapse = format!(
            "UPDATE rowlock_lock SET acquired_at = acquired_at - INTERVAL 1 DAY, expires_at = acquired_at WHERE name = {name}"
        );
        self.sql(&lapse).await;
    }

    /// `waiters`, how many there are, `next_position`, `passed`.
    async fn numbers(&mut self, name: &Name) -> [i64; 4] {
        let numbers = "SELECT waiters, (SELECT COUNT(*) FROM rowlock_waiter w WHERE w.name = l.name), \
                       next_position, passed FROM rowlock_lock l WHERE name = ?";
        let numbers = sqlx::query_as(numbers).bind(name.as_bytes());
        let (a, b, c, d) = numbers.fetch_one(self).await.unwrap();
        [a, b, c, d]
    }

    async fn row(&mut self, name: &Name) -> LockRow {
        self.lock_row(name, RowAsk::Look).await.unwrap().unwrap()
    }

    async fn held(&mut self, name: &Name) -> JoinAsk {
        let ask = join(name, self.session().await);
        let joined = self.queue_join(&ask).await.unwrap();
        assert!(matches!(joined, Joined::Granted { .. }), "{joined:?}");
        ask
    }

    async fn queued(&mut self, name: &Name) -> (JoinAsk, i64) {
        let ask = join(name, self.session().await);
        let joined = self.queue_join(&ask).await.unwrap();
        let Joined::Queued { position, .. } = joined else {
            panic!("{joined:?}");
        };
        (ask, position)
    }
}

pub(super) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(super) fn join(name: &Name, session: Uuid) -> JoinAsk {
    JoinAsk {
        name: name.clone(),
        grant_id: Uuid::new_v4(),
        session,
        in_session: false,
        ttl: TTL,
        holder: Arc::from("Ünï {name} ' \\ ?"),
        most: 100,
    }
}

pub(super) fn pass(name: &Name, of: Option<(Uuid, Option<i64>)>) -> PassAsk {
    let name = name.clone();
    PassAsk { name, of }
}

pub(super) fn confirm(ask: &JoinAsk) -> ConfirmAsk {
    ConfirmAsk {
        name: ask.name.clone(),
        grant_id: ask.grant_id,
        ttl: ask.ttl,
        session: ask.in_session.then_some(ask.session),
    }
}

pub(super) fn look(ask: &JoinAsk, position: i64) -> LookAsk {
    LookAsk {
        name: ask.name.clone(),
        grant_id: ask.grant_id,
        position,
    }
}

fn passed_on(was_live: bool, to: &JoinAsk) -> Passed {
    let next = Some(Next {
        grant_id: to.grant_id,
        session: to.session,
    });
    Passed::Done { was_live, next }
}

const fn freed(was_live: bool) -> Passed {
    let next = None;
    Passed::Done { was_live, next }
}

fn take(name: &Name, barging: bool) -> TakeAsk {
    TakeAsk {
        name: name.clone(),
        grant_id: Uuid::new_v4(),
        ttl: TTL,
        holder: "taker".into(),
        session: None,
        barging,
    }
}

async fn a_free_name_is_granted_at_once(bench: &Bench) {
    let (mut conn, name) = (bench.conn().await, name("a"));
    let ask = conn.held(&name).await;
    let row = conn.row(&name).await;
    assert!(row.is_of(ask.grant_id) && row.is_live() && row.session.is_none());
    assert_eq!(row.holder.as_deref(), Some(&*ask.holder));
    let fence = row.fence;
    let end = pass(&name, Some((ask.grant_id, None)));
    assert_eq!(conn.queue_pass(&end).await.unwrap(), freed(true));
    let mut ask = join(&name, ask.session);
    ask.in_session = true;
    let joined = conn.queue_join(&ask).await.unwrap();
    assert!(matches!(joined, Joined::Granted { fence: next } if next > fence));
    assert_eq!(conn.row(&name).await.session, Some(ask.session));
    conn.check_tables().await.unwrap();
}

async fn a_held_name_is_queued_for_and_passed_on_in_order(bench: &Bench) {
    let (mut conn, name) = (bench.conn().await, name("a"));
    let mut holder = conn.held(&name).await;
    let (one, first) = conn.queued(&name).await;
    let two = join(&name, conn.session().await);
    let joined = conn.queue_join(&two).await.unwrap();
    let Joined::Queued {
        position,
        before: 1,
        pass: false,
    } = joined
    else {
        panic!("{joined:?}");
    };
    assert_eq!((first, position), (1, 2));
    let listed = conn.queue_list().await.unwrap();
    assert_eq!(listed.len(), 2);
    assert_eq!(
        (listed[0].position, listed[0].session, &*listed[0].holder),
        (1, one.session, &*one.holder)
    );
    assert!(listed[1].waited >= 0 && listed[1].joined_at >= listed[0].joined_at);
    let mut fence = conn.row(&name).await.fence;
    for (position, next) in [(1, one), (2, two)] {
        let asks = [look(&next, position), look(&holder, 7), look(&next, 9)];
        let looked = conn.queue_look(&asks).await.unwrap();
        let [
            Looked::Waiting {
                pass: false,
                remaining,
            },
            Looked::Granted,
            Looked::Gone,
        ] = looked[..]
        else {
            panic!("{looked:?}");
        };
        assert!(remaining > TTL / 2 && remaining <= TTL);
        let not_due = conn.queue_pass(&pass(&name, None)).await.unwrap();
        assert_eq!(not_due, Passed::No);
        let end = pass(&name, Some((holder.grant_id, None)));
        let passed = conn.queue_pass(&end).await.unwrap();
        assert_eq!(passed, passed_on(true, &next));
        assert_eq!(conn.queue_pass(&end).await.unwrap(), Passed::No);
        let row = conn.row(&name).await;
        assert!(row.is_of(next.grant_id) && row.session.is_none() && row.fence > fence);
        let left = micros(row.remaining.unwrap());
        assert!(left <= WINDOW && left > WINDOW / 2, "{left:?}");
        let held = conn.queue_confirm(&confirm(&next)).await.unwrap();
        assert_eq!(held, Confirmed::Held { fence: row.fence });
        let left = micros(conn.row(&name).await.remaining.unwrap());
        assert!(left > TTL / 2 && left <= TTL);
        (fence, holder) = (row.fence, next);
    }
    let end = pass(&name, Some((holder.grant_id, None)));
    assert_eq!(conn.queue_pass(&end).await.unwrap(), freed(true));
    assert_eq!(conn.numbers(&name).await, [0, 0, 3, 2]);
}

async fn an_ask_that_is_sent_twice_finds_its_effect(bench: &Bench) {
    let (mut conn, name) = (bench.conn().await, name("a"));
    let holder = conn.held(&name).await;
    let fence = conn.row(&name).await.fence;
    let again = conn.queue_join(&holder).await.unwrap();
    assert!(matches!(again, Joined::Granted { fence: same } if same == fence));
    conn.queued(&name).await;
    // The second sending meets the first one before its commit.
    let ask = join(&name, conn.session().await);
    let mut first = bench.conn().await;
    first.sql("START TRANSACTION").await;
    first.sql(&join_text(&ask)).await;
    let commit = first.sql("DO SLEEP(0.005); COMMIT");
    let (second, ()) = tokio::join!(conn.queue_join(&ask), commit);
    let second = match second.unwrap() {
        Joined::Locked => conn.queue_join(&ask).await.unwrap(),
        joined => joined,
    };
    assert!(
        matches!(
            second,
            Joined::Queued {
                position: 2,
                before: 1,
                ..
            }
        ),
        "{second:?}"
    );
    assert_eq!(conn.numbers(&name).await, [2, 2, 3, 0]);
    // The name was passed on meanwhile: the window becomes the TTL.
    conn.queue_pass(&pass(&name, Some((holder.grant_id, None))))
        .await
        .unwrap();
    let next = conn.row(&name).await;
    let mut next_ask = join(&name, ask.session);
    next_ask.grant_id = next.grant_id.unwrap();
    let joined = conn.queue_join(&next_ask).await.unwrap();
    assert!(matches!(joined, Joined::Granted { fence } if fence == next.fence));
    assert!(micros(conn.row(&name).await.remaining.unwrap()) > WINDOW);
}

async fn a_release_sees_the_waiter_that_joined_just_before(bench: &Bench) {
    let (mut conn, name) = (bench.conn().await, name("a"));
    let holder = conn.held(&name).await;
    let ask = join(&name, conn.session().await);
    let mut other = bench.conn().await;
    for _ in 0..3 {
        other.sql("START TRANSACTION").await;
        other.sql(&join_text(&ask)).await;
        let commit = other.sql("DO SLEEP(0.005); COMMIT");
        let end = pass(&name, Some((holder.grant_id, None)));
        let (passed, ()) = tokio::join!(conn.queue_pass(&end), commit);
        match passed.unwrap() {
            Passed::Locked => {}
            passed => return assert_eq!(passed, passed_on(true, &ask)),
        }
    }
    panic!("the row was locked for 20 ms, three times");
}

#[path = "queue_end_tests.rs"]
mod ends;
use ends::*;
#[path = "queue_stress_tests.rs"]
mod stress;
use stress::*;

/// Runs each case on both servers.
macro_rules! on_both {
    ($($case:ident),+ $(,)?) => {
        mod on_mysql {
            use super::*;
            $(on_both! { @"ROWLOCK_TEST_MYSQL_URL" $case })+
        }
        mod on_mariadb {
            use super::*;
            $(on_both! { @"ROWLOCK_TEST_MARIADB_URL" $case })+
        }
    };
    (@$variable:literal $case:ident) => {
        #[tokio::test]
        async fn $case() {
            let bench = Bench::new($variable).await;
            super::$case(&bench).await;
            bench.drop().await;
        }
    };
}

on_both! {
    a_free_name_is_granted_at_once,
    a_held_name_is_queued_for_and_passed_on_in_order,
    an_ask_that_is_sent_twice_finds_its_effect,
    a_release_sees_the_waiter_that_joined_just_before,
    a_full_queue_is_not_joined,
    dead_waiters_are_passed_over,
    a_waiter_leaves,
    a_confirm_is_in_time_or_too_late,
    a_window_that_is_over_is_passed_on,
    a_release_with_waiters_passes_on,
    only_barging_overtakes,
    a_locked_row_is_not_waited_for,
    the_lock_of_an_expired_session_is_passed_on,
    positions_that_were_forgotten_are_given_again,
    a_row_with_waiters_is_never_idle,
    the_queue_keeps_its_promises_under_load,
}
