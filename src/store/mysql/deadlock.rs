//! The search for deadlocks: the statements.

use async_trait::async_trait;
use sqlx::{Connection, MySqlConnection};
use uuid::Uuid;

use super::statement::{fill, quoted, read_as};
use crate::store::driver::json;
use crate::store::verbs::deadlock::{DeadlockStore, Edge, PAGE, TellParams};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::queue::LookParams;

const TELL: &str = "
INSERT IGNORE INTO rowlock_waiting_owner (grant_id, held_grant, name, position, owner)
SELECT ?, UNHEX(a.id), ?, ?, ?
FROM JSON_TABLE(?, '$[*]' COLUMNS (id CHAR(32) CHARACTER SET ascii PATH '$')) a";

/// In the order of the primary key, as the cleaner removes rows.
const FORGET: &str = "
DELETE o
FROM JSON_TABLE(?, '$[*]' COLUMNS (id CHAR(32) CHARACTER SET ascii PATH '$')) a
STRAIGHT_JOIN rowlock_waiting_owner o FORCE INDEX (PRIMARY) ON o.grant_id = UNHEX(a.id)";

/// UNION, without ALL, ends a circle. So the search ends, however long a chain is. Both servers have a limit on its
/// length, 1000, which is raised for this statement: MySQL takes it from the hint, MariaDB from the prefix.
const EDGES: &str = "
/*M! SET STATEMENT max_recursive_iterations = 1000000 FOR */ WITH RECURSIVE walk (via, grant_id, name, joined_at) AS (
    SELECT CAST(NULL AS BINARY(16)), w.grant_id, w.name, w.joined_at
    FROM JSON_TABLE(?, '$[*]' COLUMNS (
        name     VARCHAR(510) CHARACTER SET ascii PATH '$[0]',
        grant_id CHAR(32)     CHARACTER SET ascii PATH '$[1]',
        position BIGINT                           PATH '$[2]'
    )) a
    STRAIGHT_JOIN rowlock_waiter w FORCE INDEX (PRIMARY)
        ON w.name = UNHEX(a.name) AND w.position = a.position AND w.grant_id = UNHEX(a.grant_id)
    UNION
    SELECT k.grant_id, w.grant_id, w.name, w.joined_at
    FROM walk k
    STRAIGHT_JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = k.name AND l.expires_at > SYSDATE(6)
    STRAIGHT_JOIN rowlock_waiting_owner o FORCE INDEX (rowlock_waiting_owner_held) ON o.held_grant = l.grant_id
    STRAIGHT_JOIN rowlock_waiter w FORCE INDEX (PRIMARY)
        ON w.name = o.name AND w.position = o.position AND w.grant_id = o.grant_id
    STRAIGHT_JOIN rowlock_session s FORCE INDEX (PRIMARY) ON s.id = w.session_id AND s.expires_at > SYSDATE(6)
    LEFT JOIN rowlock_session t ON t.id = l.session_id
    WHERE l.session_id IS NULL OR t.expires_at > SYSDATE(6)
)
SELECT /*+ SET_VAR(cte_max_recursion_depth = 1000000) */ k.via, k.grant_id, k.name,
       (SELECT MAX(o.owner) FROM rowlock_waiting_owner o WHERE o.grant_id = k.grant_id),
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', k.joined_at)
FROM walk k";

const CLEAN: &str = "
DELETE o FROM (
    SELECT f.grant_id, f.held_grant FROM rowlock_waiting_owner f
    LEFT JOIN rowlock_waiter w ON w.name = f.name AND w.position = f.position AND w.grant_id = f.grant_id
    WHERE w.name IS NULL ORDER BY f.grant_id, f.held_grant LIMIT ?
) t
STRAIGHT_JOIN rowlock_waiting_owner o FORCE INDEX (PRIMARY)
    ON o.grant_id = t.grant_id AND o.held_grant = t.held_grant";

#[async_trait]
impl DeadlockStore for MySqlConnection {
    async fn deadlock_tell(&mut self, params: &TellParams) -> Result<(), Fault> {
        let mut tx = self.begin().await?;
        for held in params.held.chunks(PAGE) {
            sqlx::query(TELL)
                .bind(params.waiter.grant_id)
                .bind(params.waiter.name.as_bytes())
                .bind(params.waiter.position)
                .bind(&params.owner)
                .bind(json::ids(held))
                .execute(&mut *tx)
                .await?;
        }
        Ok(tx.commit().await?)
    }

    async fn deadlock_forget(&mut self, grant_ids: &[Uuid]) -> Result<(), Fault> {
        let mut grant_ids = grant_ids.to_vec();
        grant_ids.sort_unstable();
        let mut tx = self.begin().await?;
        for page in grant_ids.chunks(PAGE) {
            let forget = sqlx::query(FORGET).bind(json::ids(page));
            forget.execute(&mut *tx).await?;
        }
        Ok(tx.commit().await?)
    }

    async fn deadlock_edges(&mut self, all: &[LookParams]) -> Result<Vec<Edge>, Fault> {
        let edges = fill(EDGES, &[quoted(&json::looks(all))]);
        Ok(read_as(self, &edges).await?)
    }

    async fn deadlock_clean(&mut self, limit: u32) -> Result<(), Fault> {
        sqlx::query(CLEAN).bind(limit).execute(self).await?;
        Ok(())
    }
}
