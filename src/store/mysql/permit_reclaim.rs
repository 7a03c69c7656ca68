//! Read/write locks and semaphores: the permits that have ended, and a look at those who wait for them.
//!
//! Reclaiming reads the permits without a lock, locks those that seem to have ended, without waiting, and looks at
//! each again: a renewal or a confirm may have been faster. A session that has ended stays so. A permit is removed by
//! its whole name.

use super::lock_row::row_ends;
use super::statement::{fill, hex, quoted, with};
use crate::model::Name;
use crate::store::driver::json;
use crate::store::verbs::queue::LookParams;

/// The permits of the name. `{from}` and `{to}` are the names before the first and after the last one.
macro_rules! permits {
    () => {
        "rowlock_lock l FORCE INDEX (PRIMARY)
    LEFT JOIN rowlock_session s ON s.id = l.session_id
    WHERE l.name > {from} AND l.name < {to}"
    };
}

pub(super) use permits;

/// Whether reclaiming would help, if `@rl_short`: a permit has ended, or is gone (the cleaner or a person has removed
/// it). Otherwise notes until when none can end: until then, a verb that finds too little capacity reads no permit. A
/// session may end at any time: nothing is noted while a permit belongs to one. (Nor on a cluster, where
/// each change of a row ends transactions of other nodes that have it locked.)
macro_rules! see_dead {
    () => {
        concat!(
            "\
SET @rl_short = @rl_short AND NOT @rl_looked;
SELECT @rl_short AND (COALESCE(SUM(l.grant_id IS NULL OR ",
            row_ends!(),
            " <= SYSDATE(6)), 0) > 0
                OR COALESCE(SUM(l.weight), 0) <> @rl_used), IF(COUNT(l.session_id) = 0, MIN(l.expires_at), NULL)
  INTO @rl_dead, @rl_first_end FROM ",
            permits!(),
            " AND @rl_short;
UPDATE rowlock_lock SET reclaim_at = LEAST(CAST(@rl_first_end AS DATETIME(6)), CAST(@rl_soonest AS DATETIME(6)))
  WHERE name = {name} AND @rl_short AND NOT @rl_dead AND @rl_first_end IS NOT NULL AND {may_note};
"
        )
    };
}
pub(super) use see_dead;

/// Ends the expired sessions of the permits; then removes the permits that are free or have expired, and those of
/// ended sessions.
pub(super) const RECLAIM: &str = concat!(
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

/// The time until the first permit of a name ends; no time, when its first live waiter fits. Or the time that a pause
/// of the name has left, if that is longer.
const LEFT: &str = concat!(
    "
;SELECT MAX(used), MAX(capacity), MAX(passed), NULL, MAX(TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), paused_until))
  INTO @rl_used, @rl_capacity, @rl_passed, @rl_weight, @rl_paused
  FROM rowlock_lock WHERE name = {name};
SELECT w.weight INTO @rl_weight FROM rowlock_waiter w FORCE INDEX (PRIMARY)
  STRAIGHT_JOIN rowlock_session s FORCE INDEX (PRIMARY) ON s.id = w.session_id
  WHERE w.name = {name} AND w.position > @rl_passed AND s.expires_at > SYSDATE(6)
  ORDER BY w.position LIMIT 1;
SELECT GREATEST(COALESCE(@rl_paused, 0), COALESCE(IF(@rl_used + @rl_weight <= @rl_capacity, 0, (
    SELECT TIMESTAMPDIFF(MICROSECOND, SYSDATE(6), MIN(IF(l.grant_id IS NULL, '1970-01-02', ",
    row_ends!(),
    "))) FROM ",
    permits!(),
    ")), 0))"
);

/// The name, if more of it is used than its live permits weigh: a holder has crashed.
const CRASHED: &str = concat!(
    "\
SELECT k.name FROM rowlock_lock k FORCE INDEX (PRIMARY)
WHERE k.name = {name} AND k.capacity > 0 AND k.used > (
    SELECT COALESCE(SUM(l.weight), 0) FROM ",
    permits!(),
    " AND ",
    row_ends!(),
    " > SYSDATE(6))"
);

/// The literals of a text, by their names.
pub(super) type Literals = Vec<(&'static str, String)>;

/// The name, and the names before and after those of its permits.
pub(super) fn of_name(name: &Name) -> Literals {
    let end = |end: u8| hex(&[name.as_bytes(), &[end]].concat());
    vec![
        ("name", hex(name.as_bytes())),
        ("from", end(0)),
        ("to", end(1)),
    ]
}

/// The waiters of the asks, in their order; then a time for each of the names.
pub(super) fn look_text(all: &[LookParams], names: &[&Name]) -> String {
    let times = names.iter().map(|name| with(LEFT, &of_name(name)));
    let waiters = fill(LOOK, &[quoted(&json::looks(all))]);
    std::iter::once(waiters).chain(times).collect()
}

/// Those of the names whose holders have crashed.
pub(super) fn crashed_text(names: &[Name]) -> String {
    let texts = names.iter().map(|name| with(CRASHED, &of_name(name)));
    texts.collect::<Vec<_>>().join(";")
}
