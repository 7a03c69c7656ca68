//! The search for deadlocks: the statements.

use async_trait::async_trait;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{each, query, query_as};
use crate::store::verbs::deadlock::{DeadlockStore, Edge, TellParams};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::queue::LookParams;

const TELL: &str = "
INSERT INTO rowlock_waiting_owner (grant_id, held_grant, name, position, owner)
SELECT $1, h, $3, $4, $5 FROM unnest($2::uuid[]) h
ON CONFLICT (grant_id, held_grant) DO NOTHING";

const FORGET: &str = "DELETE FROM rowlock_waiting_owner WHERE grant_id = ANY ($1)";

/// UNION, without ALL, ends a circle.
const EDGES: &str = "
WITH RECURSIVE ask AS (
    SELECT * FROM unnest($1::bytea[], $2::uuid[], $3::bigint[]) AS a (name, grant_id, position)
), walk (via, grant_id, name, joined_at) AS (
    SELECT NULL::uuid, w.grant_id, w.name, w.joined_at
    FROM ask a JOIN rowlock_waiter w ON w.name = a.name AND w.position = a.position AND w.grant_id = a.grant_id
    UNION
    SELECT k.grant_id, w.grant_id, w.name, w.joined_at
    FROM walk k
    JOIN rowlock_lock l ON l.name = k.name AND l.expires_at > clock_timestamp()
    JOIN rowlock_waiting_owner o ON o.held_grant = l.grant_id
    JOIN rowlock_waiter w ON w.name = o.name AND w.position = o.position AND w.grant_id = o.grant_id
    WHERE EXISTS (SELECT FROM rowlock_session s WHERE s.id = w.session_id AND s.expires_at > clock_timestamp())
      AND (l.session_id IS NULL
           OR EXISTS (SELECT FROM rowlock_session s WHERE s.id = l.session_id AND s.expires_at > clock_timestamp()))
)
SELECT k.via, k.grant_id, k.name, (SELECT max(o.owner) FROM rowlock_waiting_owner o WHERE o.grant_id = k.grant_id),
       (extract(epoch FROM k.joined_at) * 1000000)::bigint
FROM walk k";

const CLEAN: &str = "
DELETE FROM rowlock_waiting_owner WHERE grant_id IN (
    SELECT o.grant_id FROM rowlock_waiting_owner o
    WHERE NOT EXISTS (SELECT FROM rowlock_waiter w
                      WHERE w.name = o.name AND w.position = o.position AND w.grant_id = o.grant_id)
    LIMIT $1)";

#[async_trait]
impl DeadlockStore for PgConnection {
    async fn deadlock_tell(&mut self, params: &TellParams) -> Result<(), Fault> {
        query(TELL)
            .bind(params.waiter.grant_id)
            .bind(params.held.as_slice())
            .bind(params.waiter.name.as_bytes())
            .bind(params.waiter.position)
            .bind(&params.owner)
            .execute(self)
            .await?;
        Ok(())
    }

    async fn deadlock_forget(&mut self, grant_ids: &[Uuid]) -> Result<(), Fault> {
        query(FORGET).bind(grant_ids).execute(self).await?;
        Ok(())
    }

    async fn deadlock_edges(&mut self, all: &[LookParams]) -> Result<Vec<Edge>, Fault> {
        Ok(query_as(EDGES)
            .bind(each(all, |a| a.name.as_bytes()))
            .bind(each(all, |a| a.grant_id))
            .bind(each(all, |a| a.position))
            .fetch_all(self)
            .await?)
    }

    async fn deadlock_clean(&mut self, limit: u32) -> Result<(), Fault> {
        query(CLEAN).bind(i64::from(limit)).execute(self).await?;
        Ok(())
    }
}
