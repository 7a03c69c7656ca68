//! The texts that take and release leases: leases and exchanges share them.

use std::collections::HashMap;

/// Grants the asks in `?2`. Its rows have the names and the fences.
macro_rules! take_all {
    () => {
        concat!(
            "
INSERT INTO rowlock_lock (name, grant_id, fence, holder, acquired_at, expires_at, session_id)
SELECT unhex(a.value ->> 0), unhex(a.value ->> 1), now.us + 1000, a.value ->> 3,
       now.us, now.us + (a.value ->> 2) + 1000, unhex(a.value ->> 4)
FROM json_each(?2) a,
     (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 AS us) now
WHERE ",
            may_grant!(),
            "
ON CONFLICT (name) DO UPDATE
SET grant_id = excluded.grant_id,
    fence = ",
            next_fence!("excluded.fence"),
            ",
    holder = excluded.holder,
    acquired_at = excluded.acquired_at,
    expires_at = excluded.expires_at,
    session_id = excluded.session_id
WHERE ",
            is_free!("excluded.acquired_at"),
            " AND waiters = 0 AND capacity = 0
RETURNING name, fence"
        )
    };
}
pub(super) use take_all;

/// Frees the asks in `?1` whose names have no waiters. Its rows have the names, and no fences.
macro_rules! release_all {
    () => {
        concat!(
            "
UPDATE rowlock_lock
SET ",
            freed!(),
            "
FROM (
    SELECT unhex(a.value ->> 0) AS name, unhex(a.value ->> 1) AS grant_id FROM json_each(?1) a
) ask
WHERE rowlock_lock.name = ask.name AND rowlock_lock.grant_id = ask.grant_id
  AND rowlock_lock.expires_at > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
  AND rowlock_lock.waiters = 0
RETURNING name, NULL"
        )
    };
}
pub(super) use release_all;

/// The names that a statement has granted, with their fences, and those that it has freed.
pub(super) type Done = HashMap<Vec<u8>, Option<i64>>;
