//! Read/write locks and semaphores: the statements.
//!
//! Each verb is a transaction in one text, as in `queue.rs`: it locks the row of the name, then that of its own permit, and decides with user
//! variables. `@rl_used` is what is used now, `@rl_go` whether waiters may be granted.
//!
//! - The set of waiters that fit is computed once, with a running sum, and kept as JSON. So every statement after it means the same waiters, even
//!   when a session ends meanwhile.
//! - Reaping takes a dozen statements. So a verb only sees whether it would help, and then the text is sent again with them. Nothing but that
//!   second text removes permits of others.
//! - A permit is locked and removed by its whole name: a range would lock the row after it.
//! - A text that reaps reads the permits without a lock, locks those that seem to have ended, without waiting, and looks at each again: a renewal or
//!   a confirm may have been faster. A session that has ended stays so.

use async_trait::async_trait;
use sqlx::mysql::MySqlRow;
use sqlx::{FromRow, MySqlConnection, Row};
use uuid::Uuid;

use super::connect::{fill, quoted, read_alone};
use super::in_tx::{hex, text};
use super::lock_row::{lock_row, make_row, row_columns, row_ends};
use super::queue::{join_with, row_with, transact, wait, with};
use crate::model::{Kind, Name};
use crate::store::fault::Fault;
use crate::store::lease::Freed;
use crate::store::permit::{PermitAsk, PermitStore, PermitsPassed, Resized, WeighAsk, Weighed};
use crate::store::queue::{Joined, Leaves, LookAsk, Looked, Next, PassAsk, WINDOW};
use crate::store::row::count;
use crate::store::{json, to_micros};

/// Locks the row of the name.
const LOCK: &str = concat!(
    wait!(),
    " MAX(waiters), MAX(next_position), MAX(passed), MAX(capacity), MAX(used), MAX(fence),
       MAX(capacity > 0), NULL, NULL, NULL, NULL
  INTO @rl_waiters, @rl_position, @rl_passed, @rl_capacity, @rl_used, @rl_fence,
       @rl_go, @rl_weight, @rl_own_fence, @rl_mine, @rl_live
  FROM rowlock_lock WHERE name = {name} FOR UPDATE;
"
);

/// Locks the row of the ask's own permit.
const OWN: &str = concat!(
    wait!(),
    " MAX(weight), MAX(fence), COALESCE(MAX(grant_id = {grant}), FALSE),
       COALESCE(MAX(grant_id = {grant} AND expires_at > SYSDATE(6)), FALSE)
  INTO @rl_weight, @rl_own_fence, @rl_mine, @rl_live
  FROM rowlock_lock WHERE name = {permit} AND @rl_go FOR UPDATE;
"
);

/// The permits of the name. `{from}` and `{to}` are the names before the first and after the last one.
macro_rules! permits {
    () => {
        "rowlock_lock l FORCE INDEX (PRIMARY)
    LEFT JOIN rowlock_session s ON s.id = l.session_id
    WHERE l.name > {from} AND l.name < {to}"
    };
}

/// Whether permits would be reaped, if `@rl_short`.
macro_rules! see_dead {
    () => {
        concat!(
            "\
SELECT COUNT(*) INTO @rl_dead FROM (
    SELECT 1 FROM ",
            permits!(),
            " AND @rl_short
      AND (l.grant_id IS NULL OR ",
            row_ends!(),
            " <= SYSDATE(6)) LIMIT 1) d;
"
        )
    };
}

/// Ends the expired sessions of the permits; then removes the permits that are free or have expired, and those of ended sessions.
const REAP: &str = concat!(
    "\
SELECT JSON_ARRAYAGG(d.id) INTO @rl_set FROM (
    SELECT DISTINCT LOWER(HEX(s.id)) AS id FROM ",
    permits!(),
    " AND @rl_go AND s.expires_at <= SYSDATE(6) LIMIT 10000) d;
UPDATE (
    SELECT f.id
    FROM JSON_TABLE(@rl_set, '$[*]' COLUMNS (id CHAR(32) CHARACTER SET ascii PATH '$')) a
    STRAIGHT_JOIN rowlock_session f FORCE INDEX (PRIMARY) ON f.id = UNHEX(a.id)
    WHERE f.expires_at <= SYSDATE(6)
    LIMIT 1000000
    FOR UPDATE /*!80000 OF f */ SKIP LOCKED
) t
STRAIGHT_JOIN rowlock_session s FORCE INDEX (PRIMARY) ON s.id = t.id
SET s.expires_at = NULL;
SELECT JSON_ARRAYAGG(JSON_ARRAY(d.id, d.session_id)) INTO @rl_set FROM (
    SELECT CONVERT(RIGHT(l.name, 32) USING ascii) AS id, IF(s.expires_at IS NULL, HEX(l.session_id), NULL) AS session_id
    FROM ",
    permits!(),
    " AND @rl_go
      AND (l.grant_id IS NULL OR l.expires_at <= SYSDATE(6)
           OR l.session_id IS NOT NULL AND s.expires_at IS NULL) LIMIT 10000) d;
DELETE l FROM (
    SELECT f.name
    FROM JSON_TABLE(@rl_set, '$[*]' COLUMNS (
        id         CHAR(32) CHARACTER SET ascii PATH '$[0]',
        session_id CHAR(32) CHARACTER SET ascii PATH '$[1]'
    )) a
    STRAIGHT_JOIN rowlock_lock f FORCE INDEX (PRIMARY) ON f.name = CONCAT({from}, a.id)
    WHERE f.grant_id IS NULL OR f.expires_at <= SYSDATE(6) OR f.session_id = UNHEX(a.session_id)
    LIMIT 1000000
    FOR UPDATE /*!80000 OF f */ SKIP LOCKED
) t
STRAIGHT_JOIN rowlock_lock l FORCE INDEX (PRIMARY) ON l.name = t.name;
SELECT COALESCE(SUM(l.weight), 0) INTO @rl_used FROM ",
    permits!(),
    ";
UPDATE rowlock_lock SET used = @rl_used WHERE name = {name} AND @rl_go;
"
);

const JOIN: &str = concat!(
    "\
DELETE FROM rowlock_lock WHERE name = {permit} AND @rl_go AND NOT @rl_live;
SELECT MAX(position) INTO @rl_had
  FROM rowlock_waiter WHERE @rl_waiters > 0 AND name = {name} AND grant_id = {grant};
SET @rl_used = IF(@rl_live, @rl_used, GREATEST(@rl_used - COALESCE(@rl_weight, 0), 0)),
    @rl_ours = @rl_go AND @rl_capacity = {capacity};
SET @rl_first = @rl_ours AND NOT @rl_live AND @rl_waiters = 0;
SET @rl_fits = @rl_first AND @rl_used + {weight} <= @rl_capacity;
SET @rl_short = @rl_first AND NOT @rl_fits AND {may_reap};
",
    see_dead!(),
    "\
SET @rl_queue = @rl_ours AND NOT @rl_live AND NOT @rl_fits AND NOT @rl_dead AND @rl_had IS NULL
    AND @rl_waiters < {most};
INSERT INTO rowlock_waiter (name, position, grant_id, session_id, holder, joined_at, weight)
  SELECT {name}, @rl_position, {grant}, {session}, {holder}, SYSDATE(6), {weight} FROM DUAL WHERE @rl_queue;
SET @rl_fence = IF(@rl_fits AND (@rl_capacity <> 2147483647 OR {weight} >= @rl_capacity),
    GREATEST(@rl_fence + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))), @rl_fence);
UPDATE rowlock_lock
  SET used = @rl_used + IF(@rl_fits, {weight}, 0), fence = @rl_fence,
      waiters = waiters + @rl_queue, next_position = next_position + @rl_queue
  WHERE name = {name} AND @rl_ours;
INSERT INTO rowlock_lock (name, grant_id, fence, holder, acquired_at, expires_at, session_id, capacity, weight)
  SELECT {permit}, {grant}, @rl_fence, {holder}, SYSDATE(6), SYSDATE(6) + INTERVAL {ttl} MICROSECOND,
         {lock_session}, {capacity}, {weight} FROM DUAL WHERE @rl_fits;
UPDATE rowlock_lock
  SET expires_at = GREATEST(expires_at, SYSDATE(6) + INTERVAL {ttl} MICROSECOND), session_id = {lock_session}
  WHERE name = {permit} AND @rl_ours AND @rl_live;
",
    row_with!(
        ",
       CAST(@rl_ours AS SIGNED) AS ours,
       CAST(@rl_dead AS SIGNED) AS dead,
       CAST(IF(@rl_live, @rl_own_fence, IF(@rl_fits, @rl_fence, NULL)) AS SIGNED) AS granted,
       CAST(COALESCE(@rl_had, IF(@rl_queue, @rl_position, NULL)) AS SIGNED) AS queued_at,
       CAST(IF(@rl_had IS NULL, @rl_waiters, (SELECT COUNT(*) FROM rowlock_waiter w
           WHERE w.name = {name} AND w.position > l.passed AND w.position < @rl_had)) AS SIGNED) AS ahead"
    )
);

/// The permit of the ask ends.
const END: &str = "\
DELETE FROM rowlock_lock WHERE name = {permit} AND @rl_go;
SET @rl_used = GREATEST(@rl_used - COALESCE(@rl_weight, 0), 0);
";

/// Finds the waiter of the ask.
const FIND: &str = "\
SELECT MAX(position) INTO @rl_left FROM rowlock_waiter WHERE @rl_go AND name = {name} AND grant_id = {grant};
";

/// Removes the waiter of the ask.
const LEAVE: &str = "\
DELETE FROM rowlock_waiter WHERE @rl_go AND name = {name} AND position = {left} AND grant_id = {grant};
SET @rl_waiters = GREATEST(@rl_waiters - ROW_COUNT(), 0);
";

/// A larger weight has to fit, and has a new fence.
const WEIGH: &str = concat!(
    "\
SET @rl_grows = @rl_live AND {weight} > @rl_weight, @rl_after = GREATEST(@rl_used - @rl_weight + {weight}, 0);
SET @rl_go = @rl_live AND (NOT @rl_grows OR @rl_after <= @rl_capacity);
SET @rl_short = @rl_grows AND NOT @rl_go AND {may_reap};
",
    see_dead!(),
    "\
SET @rl_would = @rl_dead, @rl_used = IF(@rl_go, @rl_after, @rl_used),
    @rl_own_fence = IF(@rl_go AND @rl_grows, GREATEST(@rl_fence + 1, @rl_own_fence + 1,
        TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))), @rl_own_fence);
SET @rl_fence = GREATEST(@rl_fence, @rl_own_fence);
UPDATE rowlock_lock SET weight = {weight}, fence = @rl_own_fence WHERE name = {permit} AND @rl_go;
"
);

const RESIZE: &str = "\
SET @rl_before = @rl_capacity, @rl_go = @rl_go AND @rl_capacity <> 2147483647;
UPDATE rowlock_lock SET capacity = {capacity} WHERE name = {name} AND @rl_go;
SET @rl_capacity = IF(@rl_go, {capacity}, @rl_capacity);
";

/// How many live waiters are looked at in one text.
macro_rules! batch {
    () => {
        "100"
    };
}

/// The waiters that fit, in the order of their positions: the first one that does not fit keeps back those behind it. `writes`: how many of
/// them up to this one have a new fence. Readers share the fence of the last write.
const PICK: &str = concat!(
    "\
SELECT COUNT(*), JSON_ARRAYAGG(JSON_ARRAY(g.position, g.writes, HEX(g.grant_id), HEX(g.session_id))),
       COALESCE(SUM(g.fits), 0), MAX(IF(g.fits, g.position, NULL)),
       COALESCE(SUM(IF(g.fits, g.weight, 0)), 0), COALESCE(MAX(IF(g.fits, g.writes, 0)), 0)
  INTO @rl_seen, @rl_set, @rl_fit, @rl_last, @rl_sum, @rl_writes
  FROM (
    SELECT f.*, @rl_used + SUM(f.weight) OVER (ORDER BY f.position) <= @rl_capacity AS fits,
           SUM(@rl_capacity <> 2147483647 OR f.weight >= @rl_capacity) OVER (ORDER BY f.position) AS writes
    FROM (
      SELECT w.position, w.weight, w.grant_id, w.session_id FROM rowlock_waiter w FORCE INDEX (PRIMARY)
      STRAIGHT_JOIN rowlock_session s FORCE INDEX (PRIMARY) ON s.id = w.session_id
      WHERE @rl_go AND @rl_waiters > 0 AND w.name = {name} AND w.position > @rl_passed
        AND s.expires_at > SYSDATE(6)
      ORDER BY w.position LIMIT ",
    batch!(),
    ") f
  ) g;
"
);

/// The set of the waiters, as rows.
macro_rules! picked {
    () => {
        "JSON_TABLE(@rl_set, '$[*]' COLUMNS (
    position   BIGINT                       PATH '$[0]',
    writes     BIGINT                       PATH '$[1]',
    grant_id   CHAR(32) CHARACTER SET ascii PATH '$[2]',
    session_id CHAR(32) CHARACTER SET ascii PATH '$[3]'
  )) a"
    };
}

/// Grants them permits, each for the window or until its session ends, and returns them. Removes them from the queue, with the dead ones before
/// them, or all when none lives. A time in a user variable is a text.
const GRANT: &str = concat!(
    "\
SET @rl_at = SYSDATE(6), @rl_next_fence = IF(@rl_writes > 0,
    GREATEST(@rl_fence + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))), @rl_fence);
INSERT INTO rowlock_lock (name, grant_id, fence, holder, acquired_at, expires_at, capacity, weight)
  SELECT CONCAT({from}, LOWER(a.grant_id)), w.grant_id,
         IF(a.writes > 0, @rl_next_fence + a.writes - 1, @rl_fence), w.holder, CAST(@rl_at AS DATETIME(6)),
         LEAST(CAST(@rl_at AS DATETIME(6)) + INTERVAL {window} MICROSECOND,
             COALESCE(s.expires_at, CAST(@rl_at AS DATETIME(6)))), @rl_capacity, w.weight
  FROM ",
    picked!(),
    "
  STRAIGHT_JOIN rowlock_waiter w FORCE INDEX (PRIMARY) ON w.name = {name} AND w.position = a.position
  LEFT JOIN rowlock_session s ON s.id = w.session_id
  WHERE a.position <= @rl_last;
SELECT UNHEX(a.grant_id), UNHEX(a.session_id) FROM ",
    picked!(),
    " WHERE a.position <= @rl_last ORDER BY a.position;
SELECT COALESCE(MAX(position), @rl_last) INTO @rl_end FROM rowlock_waiter
  WHERE @rl_go AND @rl_waiters > 0 AND @rl_seen = 0 AND name = {name};
DELETE FROM rowlock_waiter WHERE name = {name} AND position > @rl_passed AND position < @rl_end;
SET @rl_gone = ROW_COUNT();
DELETE FROM rowlock_waiter WHERE name = {name} AND position = @rl_end;
UPDATE rowlock_lock
  SET waiters = IF(@rl_seen = 0, 0, GREATEST(@rl_waiters - @rl_gone - ROW_COUNT(), 0)),
      passed = COALESCE(@rl_end, passed), used = @rl_used + @rl_sum,
      fence = GREATEST(@rl_fence, @rl_next_fence + @rl_writes - 1)
  WHERE name = {name} AND @rl_go;
SET @rl_short = @rl_seen > @rl_fit AND {may_reap};
",
    see_dead!(),
);

/// Whether all waiters that were looked at have permits now: then there may be more.
const MORE: &str = concat!("@rl_seen = ", batch!(), " AND @rl_fit = @rl_seen");

/// The last row of a verb's text: a status, a number, whether reaping would help, and whether more waiters may fit.
macro_rules! outcome {
    ($status:literal, $number:literal) => {
        concat!(
            "SELECT CAST(",
            $status,
            " AS SIGNED), CAST(",
            $number,
            " AS SIGNED), CAST(@rl_dead AS SIGNED), CAST({more} AS SIGNED)"
        )
    };
}

/// 0 there was no permit; 1 it had expired; 2 it was live.
const PASSED: &str = outcome!("IF(@rl_mine, IF(@rl_live, 2, 1), 0)", "NULL");

/// 0 the permit is gone or has expired; 1 done, with its fence; 2 it does not fit; 3 it may fit after reaping.
const WEIGHED: &str = outcome!(
    "IF(@rl_live, IF(@rl_go, 1, IF(@rl_would, 3, 2)), 0)",
    "@rl_own_fence"
);

/// 0 the name has no row; 1 done, with the capacity until now; 2 another kind, with its capacity.
const RESIZED: &str = outcome!("IF(@rl_before IS NULL, 0, IF(@rl_go, 1, 2))", "@rl_before");

/// The waiter has a permit, or is there.
const LOOK: &str = "
SELECT COALESCE(p.grant_id = UNHEX(a.grant_id) AND p.expires_at > SYSDATE(6), FALSE),
       w.position IS NOT NULL
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    number   FOR ORDINALITY,
    name     VARCHAR(576) CHARACTER SET ascii PATH '$[0]',
    grant_id CHAR(32)     CHARACTER SET ascii PATH '$[1]',
    position BIGINT                           PATH '$[2]'
)) a
LEFT JOIN rowlock_lock p FORCE INDEX (PRIMARY)
       ON p.name = CONCAT(UNHEX(a.name), x'00', LOWER(a.grant_id))
LEFT JOIN rowlock_waiter w FORCE INDEX (PRIMARY)
       ON w.name = UNHEX(a.name) AND w.position = a.position AND w.grant_id = UNHEX(a.grant_id)
ORDER BY a.number";

/// The time until the first permit of a name ends. No time, when its first live waiter fits.
const LEFT: &str = concat!(
    "
;SELECT MAX(used), MAX(capacity), MAX(passed), NULL INTO @rl_used, @rl_capacity, @rl_passed, @rl_weight
  FROM rowlock_lock WHERE name = {name};
SELECT w.weight INTO @rl_weight FROM rowlock_waiter w FORCE INDEX (PRIMARY)
  STRAIGHT_JOIN rowlock_session s FORCE INDEX (PRIMARY) ON s.id = w.session_id
  WHERE w.name = {name} AND w.position > @rl_passed AND s.expires_at > SYSDATE(6)
  ORDER BY w.position LIMIT 1;
SELECT IF(@rl_used + @rl_weight <= @rl_capacity, 0, (
    SELECT TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), MIN(IF(l.grant_id IS NULL, '1970-01-02', ",
    row_ends!(),
    "))) FROM ",
    permits!(),
    "))"
);

#[async_trait]
impl PermitStore for MySqlConnection {
    async fn permit_join(&mut self, ask: &PermitAsk) -> Result<Joined, Fault> {
        let name = &ask.join.name;
        let mut rows = join_with(self, name, &join_text(ask, Reap::Later)).await?;
        if rows.as_ref().is_some_and(Vec::is_empty) {
            make_row(self, name, ask.kind).await?;
            rows = join_with(self, name, &join_text(ask, Reap::Later)).await?;
        }
        if would_reap(rows.as_deref())? {
            rows = join_with(self, name, &join_text(ask, Reap::Now)).await?;
        }
        // Without a row: the cleaner has removed it.
        let row = rows.and_then(|mut rows| rows.pop());
        Ok(row.as_ref().map_or(Ok(Joined::Locked), joined)?)
    }

    async fn permit_pass(&mut self, ask: &PassAsk) -> Result<PermitsPassed, Fault> {
        let Some(round) = round(self, &pass_text(ask, Reap::Later)).await? else {
            return Ok(PermitsPassed::Locked);
        };
        let freed = match round.status {
            0 => Freed::Superseded,
            1 => Freed::Expired,
            _ => Freed::Released,
        };
        let next = rest(self, &ask.name, round).await?;
        Ok(PermitsPassed::Done { freed, next })
    }

    async fn permit_look(&mut self, asks: &[LookAsk]) -> Result<Vec<Looked>, Fault> {
        let mut names: Vec<&Name> = asks.iter().map(|ask| &ask.name).collect();
        names.sort_unstable();
        names.dedup();
        let mut look = fill(LOOK, &[quoted(&json::looks(asks))]);
        for name in &names {
            look.push_str(&with(LEFT, &of_name(name)));
        }
        let rows = read_alone(self, &look).await?;
        let (waiters, times) = rows.split_at(asks.len().min(rows.len()));
        let mut looked = Vec::with_capacity(asks.len());
        for (ask, row) in asks.iter().zip(waiters) {
            let (granted, waits): (bool, bool) = FromRow::from_row(row)?;
            let time = names.binary_search(&&ask.name).ok();
            let time = time.and_then(|at| times.get(at));
            let time: Option<i64> = time.map(|row| row.try_get(0)).transpose()?.flatten();
            looked.push(Looked::from((granted, waits, time.unwrap_or(0))));
        }
        Ok(looked)
    }

    async fn permit_weigh(&mut self, ask: &WeighAsk) -> Result<Weighed, Fault> {
        let mut found = round(self, &weigh_text(ask, Reap::Later)).await?;
        if matches!(found, Some(Round { status: 3, .. })) {
            found = round(self, &weigh_text(ask, Reap::Now)).await?;
        }
        let Some(found) = found else {
            return Ok(Weighed::Locked);
        };
        Ok(match (found.status, found.number) {
            (1, Some(fence)) => Weighed::Done {
                fence,
                next: rest(self, &ask.name, found).await?,
            },
            (2 | 3, _) => Weighed::Full,
            _ => Weighed::Gone,
        })
    }

    async fn permit_resize(&mut self, name: &Name, capacity: u32) -> Result<Resized, Fault> {
        let mut found = round(self, &resize_text(name, capacity)).await?;
        if matches!(found, Some(Round { status: 0, .. })) {
            if make_row(self, name, Kind::Semaphore { capacity }).await? {
                let (before, next) = (None, Vec::new());
                return Ok(Resized::Done { before, next });
            }
            found = round(self, &resize_text(name, capacity)).await?;
        }
        let Some(found) = found else {
            return Ok(Resized::Locked);
        };
        Ok(match (found.status, found.number) {
            (1, Some(before)) => Resized::Done {
                before: Some(count(before)),
                next: rest(self, name, found).await?,
            },
            (2, Some(before)) => Resized::Mismatch(Kind::of(before)),
            // Without a row: the cleaner has removed it.
            _ => Resized::Locked,
        })
    }
}

/// What the text of a verb does when it finds too little room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reap {
    /// It tells whether reaping would help.
    Later,
    /// It has reaped before.
    Now,
    /// Nothing: an earlier text has reaped.
    Done,
}

/// What a text did.
struct Round {
    status: i64,
    number: Option<i64>,
    would_reap: bool,
    more: bool,
    next: Vec<Next>,
}

/// Runs a text that grants permits. `None`: another transaction has a row locked.
async fn round(conn: &mut MySqlConnection, text: &str) -> Result<Option<Round>, Fault> {
    let Some(mut rows) = transact(conn, text).await? else {
        return Ok(None);
    };
    let last = rows.pop().ok_or(sqlx::Error::RowNotFound)?;
    let next = |row: &MySqlRow| {
        Ok(Next {
            grant_id: row.try_get(0)?,
            session: row.try_get(1)?,
        })
    };
    let next: Result<_, sqlx::Error> = rows.iter().map(next).collect();
    Ok(Some(Round {
        status: last.try_get(0)?,
        number: last.try_get(1)?,
        would_reap: last.try_get::<i64, _>(2)? == 1,
        more: last.try_get::<i64, _>(3)? == 1,
        next: next?,
    }))
}

/// Grants permits to the waiters that fit after this round, and returns all that were granted. The rows that stay locked are left to those
/// who look.
async fn rest(
    conn: &mut MySqlConnection,
    name: &Name,
    mut last: Round,
) -> Result<Vec<Next>, Fault> {
    let mut next = std::mem::take(&mut last.next);
    let mut reap = Reap::Later;
    while last.would_reap || last.more {
        let name = name.clone();
        let text = pass_text(
            &PassAsk { name, of: None },
            if last.would_reap { Reap::Now } else { reap },
        );
        if last.would_reap {
            reap = Reap::Done;
        }
        let Some(found) = round(conn, &text).await? else {
            break;
        };
        last = found;
        next.append(&mut last.next);
    }
    Ok(next)
}

type Literals = Vec<(&'static str, String)>;

/// The name, and the names before and after those of its permits.
fn of_name(name: &Name) -> Literals {
    let end = |end: u8| hex(&[name.as_bytes(), &[end]].concat());
    vec![
        ("name", hex(name.as_bytes())),
        ("from", end(0)),
        ("to", end(1)),
    ]
}

fn of_text(name: &Name, grant_id: Option<Uuid>, reap: Reap) -> Literals {
    let mut literals = of_name(name);
    if let Some(grant_id) = grant_id {
        literals.push(("grant", hex(grant_id.as_bytes())));
        literals.push(("permit", hex(name.permit(grant_id).as_bytes())));
    }
    literals.push(("may_reap", u8::from(reap == Reap::Later).to_string()));
    literals.push(("window", to_micros(WINDOW).to_string()));
    literals.push(("more", MORE.into()));
    literals
}

impl Reap {
    fn text(self) -> &'static str {
        if self == Self::Now { REAP } else { "" }
    }
}

fn join_text(ask: &PermitAsk, reap: Reap) -> String {
    let PermitAsk { join, kind, weight } = ask;
    let session = hex(join.session.as_bytes());
    let lock_session = if join.in_session { &session } else { "NULL" };
    let mut literals = of_text(&join.name, Some(join.grant_id), reap);
    literals.extend([
        ("lock_session", lock_session.to_owned()),
        ("session", session),
        ("holder", text(&join.holder)),
        ("ttl", to_micros(join.ttl).to_string()),
        ("most", join.most.to_string()),
        ("capacity", kind.capacity().to_string()),
        ("weight", weight.to_string()),
    ]);
    with(&[LOCK, OWN, reap.text(), JOIN].concat(), &literals)
}

fn would_reap(rows: Option<&[MySqlRow]>) -> Result<bool, sqlx::Error> {
    let row = rows.and_then(<[_]>::first);
    row.map_or(Ok(false), |row| Ok(row.try_get::<i64, _>("dead")? == 1))
}

fn joined(row: &MySqlRow) -> Result<Joined, sqlx::Error> {
    let found = lock_row(row)?;
    if row.try_get::<i64, _>("ours")? == 0 {
        return Ok(Joined::Mismatch(found.kind));
    }
    if let Some(fence) = row.try_get("granted")? {
        return Ok(Joined::Granted { fence });
    }
    let Some(position) = row.try_get("queued_at")? else {
        return Ok(Joined::Full(found));
    };
    Ok(Joined::Queued {
        position,
        before: count(row.try_get("ahead")?),
        pass: false,
    })
}

fn pass_text(ask: &PassAsk, reap: Reap) -> String {
    let mut literals = of_text(&ask.name, ask.of.map(|of| of.0), reap);
    let (end, find, leave) = match ask.of {
        None => ("", "", ""),
        Some((_, Leaves::None)) => (END, "", ""),
        Some((_, Leaves::At(position))) => {
            literals.push(("left", position.to_string()));
            (END, "", LEAVE)
        }
        Some((_, Leaves::Anywhere)) => {
            literals.push(("left", "@rl_left".into()));
            (END, FIND, LEAVE)
        }
    };
    let own = if ask.of.is_some() { OWN } else { "" };
    let parts = [
        LOCK,
        own,
        end,
        find,
        leave,
        reap.text(),
        PICK,
        GRANT,
        PASSED,
    ];
    with(&parts.concat(), &literals)
}

fn weigh_text(ask: &WeighAsk, reap: Reap) -> String {
    let mut literals = of_text(&ask.name, Some(ask.grant_id), reap);
    literals.push(("weight", ask.weight.to_string()));
    let parts = [LOCK, OWN, reap.text(), WEIGH, PICK, GRANT, WEIGHED];
    with(&parts.concat(), &literals)
}

fn resize_text(name: &Name, capacity: u32) -> String {
    let mut literals = of_text(name, None, Reap::Later);
    literals.push(("capacity", capacity.to_string()));
    with(&[LOCK, RESIZE, PICK, GRANT, RESIZED].concat(), &literals)
}
