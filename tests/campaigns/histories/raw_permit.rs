//! Permits without the library, in a few statements on the same table of a SQLite file. Each ask is a transaction that
//! has the write lock from its beginning. One variant is sound, the others are broken on purpose, in one place each.

use std::time::{Duration, Instant};

use rand::Rng;
use serde::{Deserialize, Serialize};
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, SqlitePool};
use tokio::time::sleep;
use uuid::Uuid;

use super::a_name;
use super::event::{Answer, Ask, Grant, Numbers, Share, answered};
use super::permit_worker::a_share;
use super::raw::NOW;
use super::worker::up_to;
use crate::role::Role;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Flaw {
    Nothing,
    /// Makes room without a look at the expiries.
    Blind,
    /// Grants by a sum that it has read before its transaction.
    Stale,
    /// Counts permits, whatever their weights: a writer beside readers.
    Weightless,
    /// Each reader has a new fence.
    Fences,
    /// Upgrades beside other readers.
    Crowded,
}

pub(crate) async fn work(role: &Role, number: u64, flaw: Flaw) {
    let raw = Raw {
        pool: SqlitePool::connect(&role.url).await.unwrap(),
        numbers: Numbers::new(number),
        ttl: role.ttl,
        flaw,
    };
    loop {
        let name = a_name();
        let share = a_share(&name);
        if let Some(permit) = raw.acquire(&name, share).await {
            raw.hold(permit, share).await;
        }
        sleep(up_to(10)).await;
    }
}

struct Raw {
    pool: SqlitePool,
    numbers: Numbers,
    ttl: Duration,
    flaw: Flaw,
}

struct Permit {
    name: String,
    /// The name of its row.
    row: Vec<u8>,
    grant: Grant,
    deadline: Instant,
}

type Tx = sqlx::Transaction<'static, sqlx::Sqlite>;

impl Raw {
    async fn hold(&self, permit: Permit, share: Share) {
        let mut is_writer = share == Share::Write;
        for _ in 0..rand::rng().random_range(0..3) {
            sleep(up_to(30)).await;
            let is_semaphore = matches!(share, Share::Weight(_));
            if is_semaphore || rand::rng().random_bool(0.5) {
                self.check(&permit);
            } else if is_writer {
                is_writer = false;
                self.downgrade(&permit).await;
            } else {
                is_writer = self.upgrade(&permit).await;
            }
        }
        // Now and then it is left to expire.
        if rand::rng().random_bool(0.9) {
            self.release(&permit).await;
        }
    }

    async fn acquire(&self, name: &str, share: Share) -> Option<Permit> {
        let by = self.numbers.asked(name, Ask::TryPermit(share));
        let deadline = Instant::now() + self.ttl / 6 * 5;
        let mut old = None;
        if self.flaw == Flaw::Stale {
            let mut conn = self.pool.acquire().await.unwrap();
            old = Some(self.used(&mut conn, name, b"").await);
            sleep(up_to(10)).await;
        }
        let mut tx = self.begin().await;
        let make = "INSERT INTO rowlock_lock (name, fence) VALUES (?1, 1) ON CONFLICT DO NOTHING";
        let make = sqlx::query(make).bind(name.as_bytes());
        make.execute(&mut *tx).await.unwrap();
        let mut used = self.used(&mut tx, name, b"").await;
        if used + self.weight(share) > share.capacity() {
            self.reclaim(&mut tx, name).await;
            used = self.used(&mut tx, name, b"").await;
        }
        if old.unwrap_or(used) + self.weight(share) > share.capacity() {
            tx.commit().await.unwrap();
            answered(by, Answer::Busy(None));
            return None;
        }
        let is_new = share != Share::Read || self.flaw == Flaw::Fences;
        let fence = fence(&mut tx, name, is_new).await;
        let id = Uuid::new_v4();
        let row = [name.as_bytes(), b"\0", id.simple().to_string().as_bytes()].concat();
        let add = format!(
            "INSERT INTO rowlock_lock (name, grant_id, fence, holder, acquired_at, expires_at, weight)
             VALUES (?1, ?2, ?3, ?4, {NOW}, {NOW} + ?5 + 1000, ?6)"
        );
        sqlx::query(AssertSqlSafe(add))
            .bind(&row)
            .bind(id)
            .bind(fence)
            .bind(by.to_string())
            .bind(i64::try_from(self.ttl.as_micros()).unwrap())
            .bind(self.weight(share))
            .execute(&mut *tx)
            .await
            .unwrap();
        tx.commit().await.unwrap();
        answered(by, Answer::Granted(fence));
        Some(Permit {
            name: name.to_owned(),
            row,
            grant: Grant { fence, by },
            deadline,
        })
    }

    fn weight(&self, share: Share) -> u32 {
        if self.flaw == Flaw::Weightless {
            1
        } else {
            share.weight()
        }
    }

    fn check(&self, permit: &Permit) {
        let id = self.numbers.asked(&permit.name, Ask::Check(permit.grant));
        let remaining = permit.deadline.saturating_duration_since(Instant::now());
        let answer = if remaining.is_zero() {
            Answer::Lost
        } else {
            Answer::Trusted(remaining)
        };
        answered(id, answer);
    }

    async fn downgrade(&self, permit: &Permit) {
        let ask = Ask::Downgrade(permit.grant);
        let set = "UPDATE rowlock_lock SET weight = 1";
        self.change(permit, ask, set, Answer::Downgraded).await;
    }

    async fn release(&self, permit: &Permit) {
        let ask = Ask::Release(permit.grant);
        let free = "DELETE FROM rowlock_lock";
        self.change(permit, ask, free, Answer::Released).await;
    }

    /// Changes the row of the permit, if it is live.
    async fn change(&self, permit: &Permit, ask: Ask, change: &str, done: Answer) {
        let id = self.numbers.asked(&permit.name, ask);
        let change = format!("{change} WHERE name = ?1 AND expires_at > {NOW}");
        let change = sqlx::query(AssertSqlSafe(change)).bind(&permit.row);
        let changed = change.execute(&self.pool).await.unwrap().rows_affected();
        answered(id, if changed == 1 { done } else { Answer::Lost });
    }

    /// Returns whether it is a writer now.
    async fn upgrade(&self, permit: &Permit) -> bool {
        let (name, row) = (&permit.name, &permit.row);
        let id = self.numbers.asked(name, Ask::Upgrade(permit.grant));
        let mut tx = self.begin().await;
        self.reclaim(&mut tx, name).await;
        let is_live = "SELECT EXISTS (SELECT 1 FROM rowlock_lock WHERE name = ?1)";
        let is_live = sqlx::query_scalar(is_live).bind(row);
        let is_live: bool = is_live.fetch_one(&mut *tx).await.unwrap();
        let is_alone = self.flaw == Flaw::Crowded || self.used(&mut tx, name, row).await == 0;
        let may = is_live && is_alone;
        let mut answer = if is_live {
            Answer::Busy(None)
        } else {
            Answer::Lost
        };
        if may {
            let fence = fence(&mut tx, name, true).await;
            let upgrade = "UPDATE rowlock_lock SET weight = ?2, fence = ?3 WHERE name = ?1";
            let upgrade = sqlx::query(upgrade).bind(row);
            let upgrade = upgrade.bind(self.weight(Share::Write)).bind(fence);
            upgrade.execute(&mut *tx).await.unwrap();
            answer = Answer::Upgraded(fence);
        }
        tx.commit().await.unwrap();
        answered(id, answer);
        may
    }

    /// Removes the permits that have expired.
    async fn reclaim(&self, conn: &mut SqliteConnection, name: &str) {
        let look = match self.flaw {
            Flaw::Blind => String::new(),
            _ => format!("AND expires_at <= {NOW}"),
        };
        let reclaim = format!("DELETE FROM rowlock_lock WHERE name > ?1 AND name < ?2 {look}");
        let [after, before] = rows(name);
        let reclaim = sqlx::query(AssertSqlSafe(reclaim)).bind(after).bind(before);
        reclaim.execute(conn).await.unwrap();
    }

    /// The sum of the weights of all permits but one.
    async fn used(&self, conn: &mut SqliteConnection, name: &str, but: &[u8]) -> u32 {
        let sum = "SELECT coalesce(sum(weight), 0) FROM rowlock_lock
                   WHERE name > ?1 AND name < ?2 AND name <> ?3";
        let [after, before] = rows(name);
        let sum = sqlx::query_scalar(sum).bind(after).bind(before).bind(but);
        sum.fetch_one(conn).await.unwrap()
    }

    async fn begin(&self) -> Tx {
        self.pool.begin_with("BEGIN IMMEDIATE").await.unwrap()
    }
}

/// The permits of a name are between these.
fn rows(name: &str) -> [Vec<u8>; 2] {
    [b"\0", b"\x01"].map(|end| [name.as_bytes(), end].concat())
}

/// The last fence, or a new one.
async fn fence(conn: &mut SqliteConnection, name: &str, is_new: bool) -> i64 {
    let fence = "UPDATE rowlock_lock SET fence = fence + ?2 WHERE name = ?1 RETURNING fence";
    let fence = sqlx::query_scalar(fence).bind(name.as_bytes());
    fence.bind(is_new).fetch_one(conn).await.unwrap()
}
