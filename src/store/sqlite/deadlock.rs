//! The search for deadlocks: the statements.

use async_trait::async_trait;
use sqlx::SqliteConnection;
use uuid::Uuid;

use super::writing::in_a_transaction;
use crate::store::driver::json;
use crate::store::verbs::deadlock::{DeadlockStore, Edge, PAGE, TellParams};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::queue::LookParams;

/// WHERE keeps ON from being a part of FROM.
const TELL: &str = "
INSERT INTO rowlock_waiting_owner (grant_id, held_grant, name, position, owner)
SELECT ?1, unhex(a.value), ?3, ?4, ?5 FROM json_each(?2) a WHERE TRUE
ON CONFLICT (grant_id, held_grant) DO NOTHING";

const FORGET: &str = "
DELETE FROM rowlock_waiting_owner WHERE grant_id IN (SELECT unhex(a.value) FROM json_each(?1) a)";

/// UNION, without ALL, ends a circle. CROSS JOIN keeps the order of the tables.
const EDGES: &str = "
WITH RECURSIVE now (us) AS (
    SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
), walk (via, grant_id, name, joined_at) AS (
    SELECT NULL, w.grant_id, w.name, w.joined_at
    FROM json_each(?1) a CROSS JOIN rowlock_waiter w
        ON w.name = unhex(a.value ->> 0) AND w.position = a.value ->> 2 AND w.grant_id = unhex(a.value ->> 1)
    UNION
    SELECT k.grant_id, w.grant_id, w.name, w.joined_at
    FROM walk k CROSS JOIN now
    CROSS JOIN rowlock_lock l ON l.name = k.name AND l.expires_at > now.us
    CROSS JOIN rowlock_waiting_owner o ON o.held_grant = l.grant_id
    CROSS JOIN rowlock_waiter w ON w.name = o.name AND w.position = o.position AND w.grant_id = o.grant_id
    WHERE EXISTS (SELECT 1 FROM rowlock_session s WHERE s.id = w.session_id AND s.expires_at > now.us)
      AND (l.session_id IS NULL
           OR EXISTS (SELECT 1 FROM rowlock_session s WHERE s.id = l.session_id AND s.expires_at > now.us))
)
SELECT k.via, k.grant_id, k.name, (SELECT max(o.owner) FROM rowlock_waiting_owner o WHERE o.grant_id = k.grant_id), k.joined_at
FROM walk k";

const CLEAN: &str = "
DELETE FROM rowlock_waiting_owner WHERE grant_id IN (
    SELECT o.grant_id FROM rowlock_waiting_owner o
    WHERE NOT EXISTS (SELECT 1 FROM rowlock_waiter w
                      WHERE w.name = o.name AND w.position = o.position AND w.grant_id = o.grant_id)
    LIMIT ?1)";

#[async_trait]
impl DeadlockStore for SqliteConnection {
    async fn deadlock_tell(&mut self, params: &TellParams) -> Result<(), Fault> {
        in_a_transaction(self, async |conn| {
            for held in params.held.chunks(PAGE) {
                sqlx::query(TELL)
                    .bind(params.waiter.grant_id)
                    .bind(json::ids(held))
                    .bind(params.waiter.name.as_bytes())
                    .bind(params.waiter.position)
                    .bind(&params.owner)
                    .execute(&mut *conn)
                    .await?;
            }
            Ok(())
        })
        .await
    }

    async fn deadlock_forget(&mut self, grant_ids: &[Uuid]) -> Result<(), Fault> {
        in_a_transaction(self, async |conn| {
            for page in grant_ids.chunks(PAGE) {
                let forget = sqlx::query(FORGET).bind(json::ids(page));
                forget.execute(&mut *conn).await?;
            }
            Ok(())
        })
        .await
    }

    async fn deadlock_edges(&mut self, all: &[LookParams]) -> Result<Vec<Edge>, Fault> {
        let edges = sqlx::query_as(EDGES).bind(json::looks(all));
        Ok(edges.fetch_all(self).await?)
    }

    async fn deadlock_clean(&mut self, limit: u32) -> Result<(), Fault> {
        sqlx::query(CLEAN).bind(limit).execute(self).await?;
        Ok(())
    }
}
