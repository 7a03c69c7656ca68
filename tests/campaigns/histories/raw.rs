//! A process that does without the library: leases in a few statements of its own, on the same table of a SQLite file.
//! One variant is sound, the others are broken on purpose, in one place each. The checker accepts the sound one and
//! refuses the others. The variants with a queue are in [`raw_queue`](super::raw_queue): again a sound one and a
//! broken one.

use std::time::{Duration, Instant};

use rand::Rng;
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, SqlitePool};
use tokio::time::sleep;
use uuid::Uuid;

use super::a_name;
use super::event::{Answer, Ask, Grant, Numbers, answered};
use super::worker::up_to;
use crate::role::Role;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Variant {
    Sound,
    /// Grants without a look at the expiry: a name can have two holders.
    Blind,
    /// Deletes the row on release: the fences of the name begin again.
    Forgetful,
    /// Sound, with a queue: a release passes the name on to the first waiter, which it reads in the transaction that
    /// has the row.
    Queue,
    /// Passes the name on by what it has read of the row and of the queue before its pause.
    Stale,
}

pub(super) const NOW: &str = "CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000";

pub(crate) async fn work(role: &Role, number: u64, variant: Variant) {
    let raw = Raw {
        pool: SqlitePool::connect(&role.url).await.unwrap(),
        numbers: Numbers::new(number),
        ttl: role.ttl,
        variant,
    };
    loop {
        let name = a_name();
        raw.inspect(&name).await;
        let guard = match variant {
            Variant::Queue | Variant::Stale => raw.wait(&name).await,
            Variant::Sound | Variant::Blind | Variant::Forgetful => raw.try_acquire(&name).await,
        };
        if let Some(guard) = guard {
            for _ in 0..rand::rng().random_range(0..3) {
                sleep(up_to(40)).await;
                raw.check(&guard);
            }
            // Now and then the lease is left to expire.
            if rand::rng().random_bool(0.9) {
                match variant {
                    Variant::Queue | Variant::Stale => raw.release_to_next(&guard).await,
                    Variant::Sound | Variant::Blind | Variant::Forgetful => {
                        raw.release(&guard).await;
                    }
                }
            }
        }
        sleep(up_to(10)).await;
    }
}

pub(super) struct Raw {
    pub(super) pool: SqlitePool,
    pub(super) numbers: Numbers,
    pub(super) ttl: Duration,
    pub(super) variant: Variant,
}

pub(super) struct Guard {
    pub(super) name: String,
    pub(super) grant_id: Uuid,
    pub(super) grant: Grant,
    pub(super) deadline: Instant,
}

impl Raw {
    async fn try_acquire(&self, name: &str) -> Option<Guard> {
        let by = self.numbers.asked(name, Ask::TryAcquire);
        let look = match self.variant {
            Variant::Blind => "",
            _ => "WHERE expires_at IS NULL OR expires_at <= excluded.acquired_at",
        };
        let take = format!(
            "INSERT INTO rowlock_lock (name, grant_id, fence, holder, acquired_at, expires_at)
             SELECT ?1, ?2, 1, ?3, now.us, now.us + ?4 + 1000 FROM (SELECT {NOW} AS us) now WHERE true
             ON CONFLICT (name) DO UPDATE
             SET grant_id = excluded.grant_id, fence = fence + 1, holder = excluded.holder,
                 acquired_at = excluded.acquired_at, expires_at = excluded.expires_at
             {look} RETURNING fence"
        );
        let (grant_id, deadline) = (Uuid::new_v4(), Instant::now() + self.ttl / 6 * 5);
        let fences: Vec<i64> = sqlx::query_scalar(AssertSqlSafe(take))
            .bind(name.as_bytes())
            .bind(grant_id)
            .bind(by.to_string())
            .bind(i64::try_from(self.ttl.as_micros()).unwrap())
            .fetch_all(&self.pool)
            .await
            .unwrap();
        let Some(&fence) = fences.first() else {
            let answer = Answer::Busy(self.read(name).await);
            answered(by, answer);
            return None;
        };
        answered(by, Answer::Granted(fence));
        Some(Guard {
            name: name.to_owned(),
            grant_id,
            grant: Grant { fence, by },
            deadline,
        })
    }

    fn check(&self, guard: &Guard) {
        let id = self.numbers.asked(&guard.name, Ask::Check(guard.grant));
        let remaining = guard.deadline.saturating_duration_since(Instant::now());
        let answer = if remaining.is_zero() {
            Answer::Lost
        } else {
            Answer::Trusted(remaining)
        };
        answered(id, answer);
    }

    async fn release(&self, guard: &Guard) {
        let id = self.numbers.asked(&guard.name, Ask::Release(guard.grant));
        let change = match self.variant {
            Variant::Forgetful => "DELETE FROM rowlock_lock",
            _ => {
                "UPDATE rowlock_lock
                 SET grant_id = NULL, holder = NULL, acquired_at = NULL, expires_at = NULL"
            }
        };
        let free = format!("{change} WHERE name = ?1 AND grant_id = ?2 AND expires_at > {NOW}");
        let done = sqlx::query(AssertSqlSafe(free))
            .bind(guard.name.as_bytes())
            .bind(guard.grant_id)
            .execute(&self.pool)
            .await
            .unwrap();
        let answer = if done.rows_affected() == 1 {
            Answer::Released
        } else {
            Answer::Lost
        };
        answered(id, answer);
    }

    async fn inspect(&self, name: &str) {
        let id = self.numbers.asked(name, Ask::Inspect);
        let answer = self.read(name).await.map_or(Answer::Free, Answer::Held);
        answered(id, answer);
    }

    pub(super) async fn read(&self, name: &str) -> Option<Grant> {
        let read = format!(
            "SELECT fence, holder FROM rowlock_lock WHERE name = ?1 AND expires_at > {NOW}"
        );
        let row: Option<(i64, String)> = sqlx::query_as(AssertSqlSafe(read))
            .bind(name.as_bytes())
            .fetch_optional(&self.pool)
            .await
            .unwrap();
        row.map(|(fence, by)| Grant {
            fence,
            by: by.parse().unwrap(),
        })
    }
}
