//! Read/write locks and semaphores: the texts of the verbs.
//!
//! Each verb is a transaction in one text, as in `queue.rs`: it locks the row of the name and that of its own permit,
//! and decides with user variables. `@rl_used` is what is used now, `@rl_go` whether the text has something to do,
//! `@rl_may` whether the database is in no quarantine, and the name is not paused.
//!
//! - The set of waiters that fit is computed once, with a running sum, and kept as JSON. So every statement after it
//!   means the same waiters, even when a session ends meanwhile.
//! - Reclaiming takes several statements. So a verb only sees whether it would help, and then the text is sent again
//!   with them. Nothing but that second text removes permits of others.
//! - A permit is locked and removed by its whole name: a range would lock the row after it.

use uuid::Uuid;

use super::grant_rule::{may_grant, next_fence, none_paused};
use super::listener::listener_of;
use super::lock_row::{row_columns, row_ends};
use super::permit_reclaim::{Literals, RECLAIM, of_name, permits, see_dead};
use super::queue::row_with;
use super::row_wait::wait;
use super::statement::{hex, is_in_cluster, text, with};
use crate::model::bounds::MIN_TTL;
use crate::model::{Name, Share};
use crate::store::verbs::permit::{MOST, WeighParams};
use crate::store::verbs::queue::{JoinParams, PassParams, PassWhy, WINDOW};
use crate::store::verbs::time::to_micros;

/// Locks the row of the name. From `@rl_soonest` on, a lease can end that begins or is renewed after this.
const LOCK: &str = concat!(
    wait!(),
    " MAX(waiters), MAX(next_position), MAX(passed), MAX(capacity), MAX(used), MAX(fence),
       MAX(capacity > 0), ",
    may_grant!(),
    " AND ",
    none_paused!(),
    ", COALESCE(MAX(reclaim_at > SYSDATE(6) AND reclaim_at <= SYSDATE(6) + INTERVAL {shortest} MICROSECOND), FALSE),
       MAX(SYSDATE(6) + INTERVAL {shortest} MICROSECOND), NULL, NULL, NULL, NULL
  INTO @rl_waiters, @rl_position, @rl_passed, @rl_capacity, @rl_used, @rl_fence,
       @rl_go, @rl_may, @rl_looked, @rl_soonest, @rl_weight, @rl_own_fence, @rl_mine, @rl_live
  FROM rowlock_lock WHERE name = {name} FOR UPDATE;
"
);

/// Locks the row of the ask's own permit before that of the name, without waiting: a transaction may have the permit
/// pinned, and nobody has to wait for the name then. A verb that has locked the name waits for no permit
/// but its own.
const OWN_FIRST: &str = "\
SELECT COUNT(*) INTO @rl_mine FROM rowlock_lock WHERE name = {permit} FOR UPDATE NOWAIT;
";

/// Locks the row of the ask's own permit, if it was made meanwhile, and reads it.
const OWN: &str = concat!(
    wait!(),
    " MAX(weight), MAX(fence), COALESCE(MAX(grant_id = {grant}), FALSE),
       COALESCE(MAX(grant_id = {grant} AND expires_at > SYSDATE(6)), FALSE)
  INTO @rl_weight, @rl_own_fence, @rl_mine, @rl_live
  FROM rowlock_lock WHERE name = {permit} AND @rl_go FOR UPDATE;
"
);

const JOIN: &str = concat!(
    "\
DELETE l FROM rowlock_lock l FORCE INDEX (PRIMARY) WHERE l.name = {permit} AND @rl_go AND NOT @rl_live;
SELECT MAX(position) INTO @rl_had
  FROM rowlock_waiter WHERE @rl_waiters > 0 AND name = {name} AND grant_id = {grant};
SET @rl_used = IF(@rl_live, @rl_used, GREATEST(@rl_used - COALESCE(@rl_weight, 0), 0)),
    @rl_ours = @rl_go AND @rl_capacity = {capacity};
SET @rl_first = @rl_ours AND NOT @rl_live AND @rl_waiters = 0 AND @rl_may;
SET @rl_fits = @rl_first AND @rl_used + {weight} <= @rl_capacity;
SET @rl_short = @rl_first AND NOT @rl_fits AND {may_reclaim};
",
    see_dead!(),
    "\
SET @rl_queue = @rl_ours AND NOT @rl_live AND NOT @rl_fits AND NOT @rl_dead AND @rl_had IS NULL
    AND @rl_waiters < {most};
INSERT INTO rowlock_waiter (name, position, grant_id, session_id, holder, joined_at, weight)
  SELECT {name}, @rl_position, {grant}, {session}, {holder}, SYSDATE(6), {weight} FROM DUAL WHERE @rl_queue;
SET @rl_fence = IF(@rl_fits AND (@rl_capacity <> 2147483647 OR {weight} >= @rl_capacity),
    ", next_fence!("@rl_"), ", @rl_fence);
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
       CAST(COALESCE(@rl_had, IF(@rl_queue, @rl_position, NULL)) AS SIGNED) AS queued_at"
    )
);

/// Reads the permits even if a note says that none has ended: one may have been freed with its session, or removed by
/// hand.
const RECOUNT: &str = "\
SET @rl_looked = FALSE;
";

/// The permit of the ask ends.
const END: &str = "\
DELETE l FROM rowlock_lock l FORCE INDEX (PRIMARY) WHERE l.name = {permit} AND @rl_go;
SET @rl_used = GREATEST(@rl_used - COALESCE(@rl_weight, 0), 0);
";

/// Finds the waiter of the ask.
const FIND: &str = "\
SELECT MAX(position) INTO @rl_left FROM rowlock_waiter WHERE @rl_go AND name = {name} AND grant_id = {grant};
";

/// Removes the waiter of the ask.
const LEAVE: &str = "\
DELETE w FROM rowlock_waiter w FORCE INDEX (PRIMARY)
  WHERE @rl_go AND w.name = {name} AND w.position = {left} AND w.grant_id = {grant};
SET @rl_waiters = GREATEST(@rl_waiters - ROW_COUNT(), 0);
";

/// A larger weight has to fit, and has a new fence.
const WEIGH: &str = concat!(
    "\
SELECT @rl_live AND COALESCE(MAX(p.session_id IS NULL OR s.expires_at > SYSDATE(6)), FALSE) INTO @rl_live
  FROM rowlock_lock p LEFT JOIN rowlock_session s ON s.id = p.session_id WHERE p.name = {permit};
SET @rl_stale = @rl_live AND @rl_weight <> {weight} AND @rl_own_fence <> {fence};
SET @rl_grows = @rl_live AND NOT @rl_stale AND {weight} > @rl_weight, @rl_after = GREATEST(@rl_used - @rl_weight + {weight}, 0);
SET @rl_go = @rl_live AND NOT @rl_stale AND (NOT @rl_grows OR @rl_may AND @rl_after <= @rl_capacity);
SET @rl_short = @rl_grows AND NOT @rl_go AND {may_reclaim};
",
    see_dead!(),
    "\
SET @rl_would = @rl_dead, @rl_used = IF(@rl_go, @rl_after, @rl_used),
    @rl_own_fence = IF(@rl_go AND {weight} >= @rl_weight AND {weight} > 1, GREATEST(@rl_fence + 1, @rl_own_fence + 1,
        TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))), @rl_own_fence);
SET @rl_fence = GREATEST(@rl_fence, @rl_own_fence);
UPDATE rowlock_lock SET weight = {weight}, fence = @rl_own_fence WHERE name = {permit} AND @rl_go;
"
);

/// Waiters that are too heavy now never fit. They are removed by their positions: a range would lock the row after it.
/// The cleaner takes the fence for the last use.
const RESIZE: &str = concat!("\
SET @rl_before = @rl_capacity, @rl_go = @rl_go AND @rl_capacity < 2147483647;
SELECT JSON_ARRAYAGG(position) INTO @rl_heavy
  FROM rowlock_waiter WHERE @rl_go AND @rl_waiters > 0 AND name = {name} AND weight > {capacity};
DELETE w FROM JSON_TABLE(@rl_heavy, '$[*]' COLUMNS (position BIGINT PATH '$')) a
  STRAIGHT_JOIN rowlock_waiter w FORCE INDEX (PRIMARY) ON w.name = {name} AND w.position = a.position;
SET @rl_waiters = GREATEST(@rl_waiters - ROW_COUNT(), 0),
    @rl_capacity = IF(@rl_go, {capacity}, @rl_capacity),
    @rl_fence = ", next_fence!("@rl_"), ";
UPDATE rowlock_lock SET capacity = @rl_capacity, waiters = @rl_waiters, fence = @rl_fence
  WHERE name = {name} AND @rl_go;
");

/// The waiters that fit, in the order of their positions: the first one that does not fit blocks those after it.
/// `writes`: how many of them up to this one have a new fence. Readers share the fence of the last write.
const PICK: &str = "\
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
      WHERE @rl_go AND @rl_may AND @rl_waiters > 0 AND w.name = {name} AND w.position > @rl_passed
        AND s.expires_at > SYSDATE(6)
      ORDER BY w.position LIMIT {most_next}) f
  ) g;
";

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

/// Grants them permits, each for the window or until its session ends, and returns them. Removes them from the queue,
/// with the dead ones before them, or all when none lives. A time in a user variable is a text.
const GRANT: &str = concat!(
    "\
SET @rl_at = SYSDATE(6), @rl_next_fence = IF(@rl_writes > 0,
    ", next_fence!("@rl_"), ", @rl_fence);
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
SELECT UNHEX(a.grant_id), ",
    listener_of!("a.session_id"),
    " FROM ",
    picked!(),
    " WHERE a.position <= @rl_last ORDER BY a.position;
SELECT COALESCE(MAX(position), @rl_last) INTO @rl_end FROM rowlock_waiter
  WHERE @rl_go AND @rl_may AND @rl_waiters > 0 AND @rl_seen = 0 AND name = {name};
DELETE w FROM rowlock_waiter w FORCE INDEX (PRIMARY)
  WHERE w.name = {name} AND w.position > @rl_passed AND w.position < @rl_end;
SET @rl_gone = ROW_COUNT();
DELETE w FROM rowlock_waiter w FORCE INDEX (PRIMARY) WHERE w.name = {name} AND w.position = @rl_end;
UPDATE rowlock_lock
  SET waiters = IF(@rl_seen = 0, IF(@rl_may, 0, @rl_waiters), GREATEST(@rl_waiters - @rl_gone - ROW_COUNT(), 0)),
      passed = COALESCE(@rl_end, passed), used = @rl_used + @rl_sum,
      fence = GREATEST(@rl_fence, @rl_next_fence + @rl_writes - 1)
  WHERE name = {name} AND @rl_go;
SET @rl_used = @rl_used + @rl_sum, @rl_short = @rl_seen > @rl_fit AND {may_reclaim};
",
    see_dead!(),
);

/// The last row of a verb's text: a status, a number, and whether reclaiming would help.
macro_rules! outcome {
    ($status:literal, $number:literal) => {
        concat!(
            "SELECT CAST(",
            $status,
            " AS SIGNED), CAST(",
            $number,
            " AS SIGNED), CAST(@rl_dead AS SIGNED)"
        )
    };
}

/// 0 there was no permit; 1 it had expired; 2 it was live.
const PASSED: &str = outcome!("IF(@rl_mine, IF(@rl_live, 2, 1), 0)", "NULL");

/// 0 the permit is gone or has expired; 1 done, with its fence; 2 it does not fit; 3 it may fit after reclaiming;
/// 4 it has another weight and another fence: this one.
const WEIGHED: &str = outcome!(
    "IF(@rl_live, IF(@rl_go, 1, IF(@rl_stale, 4, IF(@rl_would, 3, 2))), 0)",
    "@rl_own_fence"
);

/// 0 the name has no row; 1 done, with the capacity until now; 2 another kind, with its capacity.
const RESIZED: &str = outcome!("IF(@rl_before IS NULL, 0, IF(@rl_go, 1, 2))", "@rl_before");

/// What the text of a verb does when it finds too little room.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reclaim {
    /// It tells whether reclaiming would help.
    Later,
    /// It has reclaimed before.
    Now,
}

fn of_text(name: &Name, grant_id: Option<Uuid>, reclaim: Reclaim) -> Literals {
    let mut literals = of_name(name);
    if let Some(grant_id) = grant_id {
        literals.push(("grant", hex(grant_id.as_bytes())));
        literals.push(("permit", hex(name.permit(grant_id).as_bytes())));
    }
    literals.push((
        "may_reclaim",
        u8::from(reclaim == Reclaim::Later).to_string(),
    ));
    literals.push(("shortest", to_micros(MIN_TTL).to_string()));
    literals.push(("may_note", u8::from(!is_in_cluster()).to_string()));
    literals.push(("window", to_micros(WINDOW).to_string()));
    literals.push(("most_next", MOST.to_string()));
    literals
}

impl Reclaim {
    fn text(self) -> &'static str {
        if self == Self::Now { RECLAIM } else { "" }
    }
}

pub(super) fn join_text(join: &JoinParams, share: Share, reclaim: Reclaim) -> String {
    let session = hex(join.session.as_bytes());
    let lock_session = if join.in_session { &session } else { "NULL" };
    let mut literals = of_text(&join.name, Some(join.grant_id), reclaim);
    literals.extend([
        ("lock_session", lock_session.to_owned()),
        ("session", session),
        ("holder", text(&join.holder)),
        ("ttl", to_micros(join.ttl).to_string()),
        ("most", join.most.to_string()),
        ("capacity", share.kind.capacity().to_string()),
        ("weight", share.weight.to_string()),
    ]);
    with(&[LOCK, OWN, reclaim.text(), JOIN].concat(), &literals)
}

/// `most` waiters at most are granted permits.
pub(super) fn pass_text(params: &PassParams, reclaim: Reclaim, most: usize) -> String {
    let mut literals = of_text(&params.name, params.why.grant_id(), reclaim);
    literals.insert(0, ("most_next", most.to_string()));
    let own_first = match params.why {
        PassWhy::Orphaned => "",
        PassWhy::Ended(_) | PassWhy::Left { .. } => OWN_FIRST,
    };
    let (own, end, find, leave) = match params.why {
        PassWhy::Orphaned => (RECOUNT, "", "", ""),
        PassWhy::Ended(_) => (OWN, END, "", ""),
        PassWhy::Left { at: Some(at), .. } => {
            literals.push(("left", at.to_string()));
            (OWN, END, "", LEAVE)
        }
        PassWhy::Left { at: None, .. } => {
            literals.push(("left", "@rl_left".into()));
            (OWN, END, FIND, LEAVE)
        }
    };
    let parts = [
        own_first,
        LOCK,
        own,
        end,
        find,
        leave,
        reclaim.text(),
        PICK,
        GRANT,
        PASSED,
    ];
    with(&parts.concat(), &literals)
}

pub(super) fn weigh_text(params: &WeighParams, reclaim: Reclaim) -> String {
    let mut literals = of_text(&params.name, Some(params.grant_id), reclaim);
    literals.push(("fence", params.fence.to_string()));
    literals.push(("weight", params.weight.to_string()));
    let parts = [
        OWN_FIRST,
        LOCK,
        OWN,
        reclaim.text(),
        WEIGH,
        PICK,
        GRANT,
        WEIGHED,
    ];
    with(&parts.concat(), &literals)
}

pub(super) fn resize_text(name: &Name, capacity: u32) -> String {
    let mut literals = of_text(name, None, Reclaim::Later);
    literals.push(("capacity", capacity.to_string()));
    with(&[LOCK, RESIZE, PICK, GRANT, RESIZED].concat(), &literals)
}
