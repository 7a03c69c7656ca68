//! The queue of a name: the statements.
//!
//! Each verb is a transaction in one text, one round trip (on a cluster, one [for each statement](super::statement)).
//! Its first statement locks the lock's row and keeps what it finds in user variables, for the statements after it.
//! `MAX(…)` returns a row even when the lock's row is missing, so no variable keeps a value of an earlier text. Each
//! later statement has a snapshot of its own, newer than the row lock (READ COMMITTED; see both manuals, "Consistent
//! Nonlocking Reads").
//!
//! - Both servers compute all right sides of a SET before they assign one: a value that depends on another one has a
//!   SET of its own.
//! - `ROW_COUNT()` is how many rows the statement before has changed.
//! - STRAIGHT_JOIN and FORCE INDEX make the pick read the waiters in their order, up to the first one whose session is
//!   live. Otherwise both servers read and sort all of them.
//! - The waiters before the winner are removed by `position < winner`. Such a range ends at the winner's own row. A
//!   range that reaches the last waiter of the name would wait for transactions on the next name ("`InnoDB` Record
//!   Locks").
//! - A range with `position > passed` skips the index entries of removed waiters, which old snapshots keep.

use async_trait::async_trait;
use sqlx::{FromRow, MySqlConnection, Row, mysql::MySqlRow};
use uuid::Uuid;

use super::grant_rule::{is_free, may_grant, next_fence, none_paused};
use super::listener::{listener_of, wake, wake_session};
use super::lock_row::{make_row, row_columns, row_ends};
use super::row_wait::wait;
use super::statement::{fill, hex, in_one_transaction, quoted, read_as, text, transact, with};
use crate::model::{FaultKind, Kind, Name};
use crate::store::driver::json;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::queue::{
    ConfirmOutcome, ConfirmParams, EndedGrant, JoinOutcome, JoinParams, LookOutcome, LookParams,
    PassOutcome, PassParams, PassWhy, QueueStore, Ticket, WINDOW, with_quarantine,
};
use crate::store::verbs::row::LockRow;
use crate::store::verbs::session::SessionStore;
use crate::store::verbs::time::to_micros;

/// The row as it is now, with `$more` columns; none, when it was missing at first: another connection may have made it
/// meanwhile.
macro_rules! row_with {
    ($($more:tt)+) => {
        concat!(
            "SELECT",
            row_columns!("SYSDATE(6)"),
            $($more)+,
            "
FROM rowlock_lock l LEFT JOIN rowlock_session s ON s.id = l.session_id
WHERE l.name = {name} AND @rl_waiters IS NOT NULL"
        )
    };
}
pub(super) use row_with;

/// Passed on to it before: this sending confirms it. A name of another kind has another capacity, and nothing happens.
const JOIN: &str = concat!(
    wait!(),
    " MAX(waiters), MAX(next_position), MAX(COALESCE(grant_id = {grant} AND expires_at > SYSDATE(6), FALSE)),
       MAX(COALESCE(grant_id = {grant}, FALSE) AND expires_at > SYSDATE(6)
           OR waiters = 0 AND capacity = 0 AND ", is_free!(""), " AND ",
    may_grant!(),
    "), MAX(capacity)
  INTO @rl_waiters, @rl_position, @rl_mine, @rl_take, @rl_capacity
  FROM rowlock_lock WHERE name = {name} FOR UPDATE;
SELECT MAX(position), NOT @rl_take AND MAX(position) IS NULL AND @rl_waiters < {most} AND @rl_capacity = 0
  INTO @rl_had, @rl_queue
  FROM rowlock_waiter WHERE @rl_waiters > 0 AND name = {name} AND grant_id = {grant};
INSERT INTO rowlock_waiter (name, position, grant_id, session_id, holder, joined_at)
  SELECT {name}, @rl_position, {grant}, {session}, {holder}, SYSDATE(6) FROM DUAL WHERE @rl_queue;
UPDATE rowlock_lock
  SET fence = IF(@rl_take AND NOT @rl_mine,
          ", next_fence!(""), ", fence),
      acquired_at = IF(@rl_take AND NOT @rl_mine, SYSDATE(6), acquired_at),
      expires_at = IF(@rl_take,
          GREATEST(COALESCE(expires_at, SYSDATE(6)), SYSDATE(6) + INTERVAL {ttl} MICROSECOND), expires_at),
      grant_id = IF(@rl_take, {grant}, grant_id),
      session_id = IF(@rl_take, {lock_session}, session_id),
      holder = IF(@rl_take, {holder}, holder),
      waiters = waiters + @rl_queue,
      next_position = next_position + @rl_queue
  WHERE name = {name} AND (@rl_take OR @rl_queue);
",
    row_with!(
        ",
       CAST(@rl_take AS SIGNED) AS taken, CAST(COALESCE(@rl_had, IF(@rl_queue, @rl_position, NULL)) AS SIGNED) AS queued_at"
    )
);

/// Waiters that a lock row had which was removed by hand: their positions are given again.
const FORGET: &str = concat!(
    wait!(),
    " MAX(next_position) INTO @rl_position FROM rowlock_lock WHERE name = {name} FOR UPDATE;
DELETE w FROM rowlock_waiter w FORCE INDEX (PRIMARY) WHERE w.name = {name} AND w.position >= @rl_position"
);

/// A grant in its window has an expiry of `acquired_at` and the window. Otherwise this is a second sending, and the
/// expiry never moves back, and the session stays. (The server assigns from left to right.)
const CONFIRM: &str = concat!(
    wait!(),
    " MAX(COALESCE(grant_id = {grant} AND expires_at > SYSDATE(6), FALSE)),
       MAX(IF(fence <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + {fences}, {fences}, 0))
  INTO @rl_mine, @rl_block
  FROM rowlock_lock WHERE name = {name} FOR UPDATE;
UPDATE rowlock_lock
  SET session_id = IF(expires_at <= acquired_at + INTERVAL {window} MICROSECOND, {lock_session}, session_id),
      expires_at = IF(expires_at <= acquired_at + INTERVAL {window} MICROSECOND,
          SYSDATE(6) + INTERVAL {ttl} MICROSECOND,
          GREATEST(expires_at, SYSDATE(6) + INTERVAL {ttl} MICROSECOND)),
      fence = fence + @rl_block
  WHERE name = {name} AND @rl_mine;
SELECT fence, CAST(@rl_block AS SIGNED), waiters > 0 OR COALESCE(paused_until > SYSDATE(6), FALSE) FROM rowlock_lock WHERE name = {name} AND @rl_mine"
);

/// `@rl_ended`: 0 the row did not have the grant of the ask; 1 that grant had expired; 2 it was live. A row that is
/// free and has waiters has no expiry. The waiters of a name of another kind are not for this.
const DUE: &str = concat!(
    wait!(),
    " MAX(waiters), MAX(passed),
       MAX(COALESCE(IF(grant_id = {grant}, 1 + (expires_at > SYSDATE(6)), 0), 0)),
       MAX(COALESCE(grant_id = {grant} OR expires_at <= SYSDATE(6), FALSE)), MAX(grant_id IS NULL), ",
    may_grant!(),
    " AND ",
    none_paused!(),
    ",
       NULL, NULL, NULL, NULL, NULL
  INTO @rl_waiters, @rl_passed, @rl_ended, @rl_due, @rl_free, @rl_may,
       @rl_position, @rl_grant, @rl_holder, @rl_ends, @rl_session
  FROM rowlock_lock WHERE name = {name} AND capacity = 0 FOR UPDATE;
"
);

/// Finds the waiter of the ask.
const FIND: &str = "\
SELECT MAX(position) INTO @rl_left FROM rowlock_waiter WHERE name = {name} AND grant_id = {grant};
";

/// Removes the waiter of the ask.
const LEAVE: &str = "\
DELETE w FROM rowlock_waiter w FORCE INDEX (PRIMARY)
  WHERE w.name = {name} AND w.position = {left} AND w.grant_id = {grant};
SET @rl_gone = ROW_COUNT();
SET @rl_waiters = GREATEST(@rl_waiters - @rl_gone, 0);
UPDATE rowlock_lock SET waiters = @rl_waiters WHERE name = {name} AND @rl_gone > 0;
";

/// In a quarantine or a pause (not `@rl_may`) the waiters stay, and nobody is granted the name. SET runs from left to
/// right in an UPDATE: the expiry is the new `acquired_at` and the window. The window ends with the waiter's session,
/// if that is sooner. A time in a user variable is a text.
const PASS: &str = concat!(
    "\
SET @rl_due = @rl_due OR @rl_free AND @rl_waiters > 0 AND @rl_may;
SELECT w.position, w.grant_id, w.holder, s.expires_at, w.session_id
  INTO @rl_position, @rl_grant, @rl_holder, @rl_ends, @rl_session
  FROM rowlock_waiter w FORCE INDEX (PRIMARY)
  STRAIGHT_JOIN rowlock_session s FORCE INDEX (PRIMARY) ON s.id = w.session_id
  WHERE @rl_due AND @rl_may AND @rl_waiters > 0 AND w.name = {name} AND w.position > @rl_passed
    AND s.expires_at > SYSDATE(6)
  ORDER BY w.position LIMIT 1;
DELETE w FROM rowlock_waiter w FORCE INDEX (PRIMARY)
  WHERE @rl_due AND @rl_may AND @rl_waiters > 0 AND w.name = {name} AND w.position > @rl_passed
    AND w.position < COALESCE(@rl_position, 9223372036854775807);
SET @rl_gone = ROW_COUNT();
DELETE w FROM rowlock_waiter w FORCE INDEX (PRIMARY) WHERE w.name = {name} AND w.position = @rl_position;
UPDATE rowlock_lock
  SET waiters = IF(@rl_position IS NULL, IF(@rl_may, 0, waiters), GREATEST(waiters - @rl_gone - ROW_COUNT(), 0)),
      fence = IF(@rl_position IS NULL, fence,
          ", next_fence!(""), "),
      grant_id = @rl_grant, session_id = NULL, holder = @rl_holder,
      acquired_at = IF(@rl_position IS NULL, NULL, SYSDATE(6)),
      expires_at = LEAST(acquired_at + INTERVAL {window} MICROSECOND, CAST(@rl_ends AS DATETIME(6))),
      passed = COALESCE(@rl_position, IF(@rl_may, next_position - 1, passed))
  WHERE @rl_due AND name = {name};
",
    row_with!(
        ",
       CAST(@rl_due AS SIGNED) AS due, CAST(@rl_ended AS SIGNED) AS ended,
       CAST(@rl_grant AS BINARY(16)) AS next_grant, ",
        listener_of!("HEX(@rl_session)"),
        " AS listener"
    )
);

/// The waiter's grant is in the row; its waiter is there; and the time that the row's grant has left, or a pause of
/// the name.
const LOOK: &str = concat!(
    "
SELECT COALESCE(l.grant_id = UNHEX(a.grant_id) AND l.expires_at > SYSDATE(6), FALSE),
       w.position IS NOT NULL,
       GREATEST(COALESCE(TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), ",
    row_ends!(),
    "), 0), COALESCE(TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), l.paused_until), 0))
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    number   FOR ORDINALITY,
    name     VARCHAR(576) CHARACTER SET ascii PATH '$[0]',
    grant_id CHAR(32)     CHARACTER SET ascii PATH '$[1]',
    position BIGINT                           PATH '$[2]'
)) a
LEFT JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = UNHEX(a.name)
LEFT JOIN rowlock_session s ON s.id = l.session_id
LEFT JOIN rowlock_waiter w FORCE INDEX (PRIMARY)
       ON w.name = l.name AND w.position = a.position AND w.position > l.passed
      AND w.grant_id = UNHEX(a.grant_id)
ORDER BY a.number"
);

const AWAITED: &str = "
SELECT l.name FROM JSON_TABLE(?, '$[*]' COLUMNS (name VARCHAR(576) CHARACTER SET ascii PATH '$[0]')) a
STRAIGHT_JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = UNHEX(a.name)
WHERE l.waiters > 0 OR l.paused_until > SYSDATE(6)";

const KNOWS: &str = "SELECT 1 FROM rowlock_waiter WHERE name = ? AND grant_id = ? UNION \
                     SELECT 1 FROM rowlock_lock WHERE name = ? AND grant_id = ?";

#[async_trait]
impl QueueStore for MySqlConnection {
    async fn queue_join(&mut self, params: &JoinParams) -> Result<Option<JoinOutcome>, Fault> {
        let join = join_text(params);
        let mut rows = join_with(self, &params.name, &join).await?;
        if rows.as_ref().is_some_and(Vec::is_empty) {
            make_row(self, &params.name, Kind::Lock).await?;
            rows = transact(self, &join).await?;
        }
        // Without a row: the row was removed between the two statements. Nothing has changed, as in a transaction's
        // way.
        let row = rows.and_then(|mut rows| rows.pop());
        with_quarantine(self, row.as_ref().map(joined).transpose()?).await
    }

    async fn queue_confirm(
        &mut self,
        params: &ConfirmParams,
    ) -> Result<Option<ConfirmOutcome>, Fault> {
        let Some(rows) = transact(self, &confirm_text(params)).await? else {
            return Ok(None);
        };
        let fences = rows.first().map(FromRow::from_row).transpose()?;
        Ok(Some(
            fences.map_or(ConfirmOutcome::Gone, ConfirmOutcome::held),
        ))
    }

    async fn queue_pass(&mut self, params: &PassParams) -> Result<Option<PassOutcome>, Fault> {
        let pass = pass_text(params);
        for may_reclaim in [true, false] {
            let Some(rows) = transact(self, &pass).await? else {
                return Ok(None);
            };
            let Some(row) = rows.first() else {
                return Ok(Some(PassOutcome::NOTHING));
            };
            if let Some(passed) = passed(row)? {
                wake(self, row.try_get::<Option<i64>, _>("listener")?).await;
                return Ok(Some(passed));
            }
            let Some(left) = LockRow::from_row(row)?.left_behind() else {
                return Ok(Some(PassOutcome::NOTHING));
            };
            if may_reclaim {
                self.session_reclaim(&[left]).await?;
            }
        }
        // Still left behind: ending the session has skipped a row that a transaction has locked.
        Ok(None)
    }

    async fn queue_look(&mut self, all: &[LookParams]) -> Result<Vec<LookOutcome>, Fault> {
        let look = fill(LOOK, &[quoted(&json::looks(all))]);
        let rows: Vec<(bool, bool, Option<i64>)> = read_as(self, &look).await?;
        let looked = |(granted, waits, left): (bool, bool, Option<i64>)| {
            LookOutcome::from((granted, waits, left.unwrap_or(0)))
        };
        Ok(rows.into_iter().map(looked).collect())
    }

    async fn queue_test(&mut self, session: Uuid) -> Result<(), Fault> {
        wake_session(self, session).await;
        Ok(())
    }

    async fn queue_recall_due(&mut self, names: &[Name]) -> Result<Vec<Name>, Fault> {
        let rows = in_one_transaction(self, &fill(AWAITED, &[quoted(&json::names(names))])).await?;
        let names: Result<Vec<Vec<u8>>, _> = rows.iter().map(|row| row.try_get(0)).collect();
        Ok(Name::all_of(&names?))
    }

    async fn queue_knows(&mut self, ticket: &Ticket) -> Result<bool, Fault> {
        let (name, row) = (hex(ticket.name.as_bytes()), hex(ticket.row().as_bytes()));
        let grant = hex(ticket.grant_id.as_bytes());
        let found =
            in_one_transaction(self, &fill(KNOWS, &[name, grant.clone(), row, grant])).await?;
        Ok(!found.is_empty())
    }
}

/// Runs the text of a join. Waiters whose lock row was removed by hand go first.
pub(super) async fn join_with(
    conn: &mut MySqlConnection,
    name: &Name,
    join: &str,
) -> Result<Option<Vec<MySqlRow>>, Fault> {
    match transact(conn, join).await {
        Err(fault) if fault.kind == FaultKind::Duplicate => {
            let forget = with(FORGET, &[("name", hex(name.as_bytes()))]);
            transact(conn, &forget).await?;
            transact(conn, join).await
        }
        rows => rows,
    }
}

fn join_text(params: &JoinParams) -> String {
    let session = hex(params.session.as_bytes());
    let lock_session = if params.in_session { &session } else { "NULL" };
    let lock_session = String::from(lock_session);
    with(
        JOIN,
        &[
            ("name", hex(params.name.as_bytes())),
            ("grant", hex(params.grant_id.as_bytes())),
            ("holder", text(&params.holder)),
            ("ttl", to_micros(params.ttl).to_string()),
            ("most", params.most.to_string()),
            ("lock_session", lock_session),
            ("session", session),
        ],
    )
}

fn joined(row: &MySqlRow) -> Result<JoinOutcome, sqlx::Error> {
    let found = LockRow::from_row(row)?;
    if found.kind != Some(Kind::Lock) {
        return Ok(JoinOutcome::Mismatch(found.kind));
    }
    if row.try_get::<i64, _>("taken")? == 1 {
        return Ok(JoinOutcome::Granted { fence: found.fence });
    }
    let Some(position) = row.try_get("queued_at")? else {
        return Ok(JoinOutcome::Full(found));
    };
    Ok(JoinOutcome::Queued {
        position,
        is_orphaned: !found.is_live() && found.pause.is_none(),
    })
}

fn confirm_text(params: &ConfirmParams) -> String {
    let session = params.session.map(|id| hex(id.as_bytes()));
    with(
        CONFIRM,
        &[
            ("name", hex(params.name.as_bytes())),
            ("grant", hex(params.grant_id.as_bytes())),
            ("ttl", to_micros(params.ttl).to_string()),
            ("window", to_micros(WINDOW).to_string()),
            ("lock_session", session.unwrap_or_else(|| "NULL".into())),
            ("fences", params.fences.to_string()),
        ],
    )
}

fn pass_text(params: &PassParams) -> String {
    let grant = params
        .why
        .grant_id()
        .map(|grant_id| hex(grant_id.as_bytes()));
    let (find, leave, left) = match params.why {
        PassWhy::Orphaned | PassWhy::Ended(_) => ("", "", String::new()),
        PassWhy::Left { at: Some(at), .. } => ("", LEAVE, at.to_string()),
        PassWhy::Left { at: None, .. } => (FIND, LEAVE, "@rl_left".into()),
    };
    with(
        &[DUE, find, leave, PASS].concat(),
        &[
            ("name", hex(params.name.as_bytes())),
            ("grant", grant.unwrap_or_else(|| "NULL".into())),
            ("window", to_micros(WINDOW).to_string()),
            ("left", left),
        ],
    )
}

/// `None`: nothing was to be done.
fn passed(row: &MySqlRow) -> Result<Option<PassOutcome>, sqlx::Error> {
    if row.try_get::<i64, _>("due")? == 0 {
        return Ok(None);
    }
    let next: Option<Uuid> = row.try_get("next_grant")?;
    let next = next.into_iter().collect();
    let ended = EndedGrant::of(row.try_get("ended")?);
    Ok(ended.map(|ended| PassOutcome { ended, next }))
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
