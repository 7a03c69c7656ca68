//! Leases with a queue, without the library: who waits has a row in `rowlock_waiter`, and a release passes the name on
//! to the first one. One variant decides by what it reads in the transaction that has the write lock. The other one
//! decides by what it has read before its pause. Nothing else is different.

use std::time::Instant;

use rand::Rng;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, SqlitePool};
use tokio::time::sleep;
use uuid::Uuid;

use super::event::{Answer, Ask, Grant, answered};
use super::raw::{Guard, NOW, Raw, Variant};
use super::worker::up_to;

/// The longest wait, in milliseconds.
const MAX_WAIT: u64 = 400;
/// The longest pause between the reading and the release, in milliseconds: now and then longer than the lease.
const MAX_PAUSE: u64 = 600;

/// What a client has read of a name.
struct Reading {
    grant_id: Option<Uuid>,
    fence: i64,
    is_live: bool,
    first: Option<Waiter>,
}

/// The first one in the queue.
type Waiter = (i64, Uuid, String);

impl Reading {
    async fn of(conn: &mut SqliteConnection, name: &str) -> Self {
        let row = format!(
            "SELECT grant_id, fence, coalesce(expires_at > {NOW}, FALSE) FROM rowlock_lock WHERE name = ?1"
        );
        let (grant_id, fence, is_live) = sqlx::query_as(AssertSqlSafe(row))
            .bind(name.as_bytes())
            .fetch_optional(&mut *conn)
            .await
            .unwrap()
            .unwrap_or_default();
        let first = "SELECT position, grant_id, holder FROM rowlock_waiter WHERE name = ?1 ORDER BY position LIMIT 1";
        let first = sqlx::query_as(first)
            .bind(name.as_bytes())
            .fetch_optional(conn)
            .await
            .unwrap();
        Self {
            grant_id,
            fence,
            is_live,
            first,
        }
    }

    fn is_held_by(&self, guard: &Guard) -> bool {
        self.is_live && self.grant_id == Some(guard.grant_id)
    }
}

impl Raw {
    /// Waits in the queue.
    pub(super) async fn wait(&self, name: &str) -> Option<Guard> {
        let by = self.numbers.asked(name, Ask::Acquire);
        let (grant_id, limit) = (Uuid::new_v4(), Instant::now() + up_to(MAX_WAIT));
        // The name was not passed on before this moment.
        let mut before = Instant::now();
        self.join(name, grant_id, by).await;
        loop {
            let now = Instant::now();
            let is_over = now > limit;
            if is_over {
                self.leave(name, grant_id).await;
            }
            let mut conn = self.pool.acquire().await.unwrap();
            let reading = Reading::of(&mut conn, name).await;
            if reading.is_live && reading.grant_id == Some(grant_id) {
                let fence = reading.fence;
                answered(by, Answer::Granted(fence));
                return Some(Guard {
                    name: name.to_owned(),
                    grant_id,
                    grant: Grant { fence, by },
                    deadline: before + self.ttl / 6 * 5,
                });
            }
            if is_over {
                answered(by, Answer::Busy(self.read(name).await));
                return None;
            }
            if !reading.is_live {
                self.pass_on(name, None, |reading| !reading.is_live).await;
            }
            before = now;
            sleep(up_to(5)).await;
        }
    }

    /// Passes the name on, and answers the release.
    pub(super) async fn release_to_next(&self, guard: &Guard) {
        let id = self.numbers.asked(&guard.name, Ask::Release(guard.grant));
        let name = &guard.name;
        let mut old = None;
        if self.variant == Variant::Stale {
            let mut conn = self.pool.acquire().await.unwrap();
            old = Some(Reading::of(&mut conn, name).await);
            let is_long = rand::rng().random_bool(0.3);
            sleep(up_to(if is_long { MAX_PAUSE } else { 10 })).await;
        }
        let is_due = |reading: &Reading| reading.is_held_by(guard);
        let is_released = self.pass_on(name, old, is_due).await;
        let answer = if is_released {
            Answer::Released
        } else {
            Answer::Lost
        };
        answered(id, answer);
    }

    /// Joins the queue. A name that is free has its first waiter pass it on.
    async fn join(&self, name: &str, grant_id: Uuid, by: u64) {
        let make =
            "INSERT INTO rowlock_lock (name, fence) VALUES (?1, 0) ON CONFLICT (name) DO NOTHING";
        let add =
            "INSERT INTO rowlock_waiter (name, position, grant_id, session_id, holder, joined_at)
                   SELECT name, next_position, ?2, ?2, ?3, 0 FROM rowlock_lock WHERE name = ?1";
        let added = "UPDATE rowlock_lock SET next_position = next_position + 1 WHERE name = ?1";
        let mut tx = begin(&self.pool).await;
        for change in [make, add, added] {
            let change = sqlx::query(change).bind(name.as_bytes());
            let change = change.bind(grant_id).bind(by.to_string());
            change.execute(&mut *tx).await.unwrap();
        }
        tx.commit().await.unwrap();
    }

    async fn leave(&self, name: &str, grant_id: Uuid) {
        let leave = "DELETE FROM rowlock_waiter WHERE name = ?1 AND grant_id = ?2";
        let leave = sqlx::query(leave).bind(name.as_bytes()).bind(grant_id);
        leave.execute(&self.pool).await.unwrap();
    }

    /// Passes the name on, if that is due by an old reading, or by what the transaction reads: then no other client
    /// writes before its commit.
    async fn pass_on(
        &self,
        name: &str,
        old: Option<Reading>,
        is_due: impl FnOnce(&Reading) -> bool,
    ) -> bool {
        let mut tx = begin(&self.pool).await;
        let reading = match old {
            Some(reading) => reading,
            None => Reading::of(&mut tx, name).await,
        };
        let is_due = is_due(&reading);
        if is_due {
            self.write(&mut tx, name, &reading).await;
        }
        tx.commit().await.unwrap();
        is_due
    }

    /// Passes the name on to the first waiter of the reading. Frees it if there was none.
    async fn write(&self, conn: &mut SqliteConnection, name: &str, reading: &Reading) {
        let Some((position, grant_id, holder)) = &reading.first else {
            let free = "UPDATE rowlock_lock
                        SET grant_id = NULL, holder = NULL, acquired_at = NULL, expires_at = NULL
                        WHERE name = ?1";
            let free = sqlx::query(free).bind(name.as_bytes());
            free.execute(conn).await.unwrap();
            return;
        };
        let grant = format!(
            "UPDATE rowlock_lock
             SET grant_id = ?2, fence = ?3, holder = ?4, acquired_at = {NOW}, expires_at = {NOW} + ?5 + 1000
             WHERE name = ?1"
        );
        sqlx::query(AssertSqlSafe(grant))
            .bind(name.as_bytes())
            .bind(grant_id)
            .bind(reading.fence + 1)
            .bind(holder)
            .bind(i64::try_from(self.ttl.as_micros()).unwrap())
            .execute(&mut *conn)
            .await
            .unwrap();
        let served = sqlx::query("DELETE FROM rowlock_waiter WHERE name = ?1 AND position = ?2");
        let served = served.bind(name.as_bytes()).bind(position);
        served.execute(conn).await.unwrap();
    }
}

/// A transaction that has the write lock.
async fn begin(pool: &SqlitePool) -> sqlx::Transaction<'static, sqlx::Sqlite> {
    pool.begin_with("BEGIN IMMEDIATE").await.unwrap()
}
