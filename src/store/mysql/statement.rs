//! The texts of statements: the values in them, and how a text is sent.
//!
//! # Galera
//!
//! A node aborts a transaction when another node has committed a change of the same row. If that happens between two
//! statements of one text, MariaDB tells nobody. It goes on with the next statement, outside of a transaction: each
//! write is committed by itself, and the COMMIT succeeds. (Seen by counting through three nodes of MariaDB 10.11, in
//! 54 of 1,225 texts that succeeded.) Between two requests it answers the next one with a deadlock. So on a cluster
//! each statement of a transaction is a request of its own.
//!
//! # Statements that the server cuts
//!
//! KILL QUERY and limits of time end a statement with an error, with two exceptions. A subquery in an expression may
//! be empty instead (`grant_rule.rs`). And on MariaDB, `DELETE FROM t …` may delete nothing and succeed (one of 50 on
//! 10.11); `DELETE t FROM t …`, which is a statement for several tables, fails. So each DELETE here is of that form,
//! except that of old runs, which comes again.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use std::time::Duration;

use sqlx::mysql::{MySqlQueryResult, MySqlRow};
use sqlx::{AssertSqlSafe, Either, Executor, FromRow, MySqlConnection};

use super::fault::is_lock_time_out;
use crate::model::FaultKind;
use crate::store::driver::classify::classify;
use crate::store::driver::request::{RECORD, RequestLimit};
use crate::store::verbs::fault::Fault;

/// A client of this process has found a cluster. The callers' connections come from their own pools and cannot be
/// asked; probably they lead to the same cluster. One statement after the other is right everywhere.
static IN_CLUSTER: AtomicBool = AtomicBool::new(false);

pub(super) fn found_cluster() {
    IN_CLUSTER.store(true, Ordering::Relaxed);
}

pub(super) fn is_in_cluster() -> bool {
    IN_CLUSTER.load(Ordering::Relaxed)
}

/// The requests for a text of statements in a transaction.
fn requests(text: String) -> Vec<String> {
    if is_in_cluster() {
        statements(&text)
    } else {
        vec![text]
    }
}

/// The statements of a text. A semicolon may be in a literal, which has no escaped quotes.
fn statements(text: &str) -> Vec<String> {
    let mut is_literal = false;
    let ends = |letter: char| {
        is_literal ^= letter == '\'';
        letter == ';' && !is_literal
    };
    let parts = text.split(ends).map(str::trim);
    let whole = parts.filter(|part| !part.is_empty());
    whole.map(str::to_owned).collect()
}

/// What the statements of a text have found: their rows, and the result of each statement.
type RowsAndResults = (Vec<MySqlRow>, Vec<MySqlQueryResult>);

async fn answers(conn: &mut MySqlConnection, text: String) -> Result<RowsAndResults, sqlx::Error> {
    let (mut rows, mut results) = (Vec::new(), Vec::new());
    for request in requests(text) {
        let mut answers = conn.fetch_many(sqlx::raw_sql(AssertSqlSafe(request)));
        while let Some(answer) = poll_fn(|cx| answers.as_mut().poll_next(cx)).await {
            match answer? {
                Either::Left(result) => results.push(result),
                Either::Right(row) => rows.push(row),
            }
        }
    }
    Ok((rows, results))
}

/// The rows of all statements of a text, in a transaction.
pub(super) async fn rows(conn: &mut MySqlConnection, text: String) -> Result<Vec<MySqlRow>, Fault> {
    Ok(answers(conn, text).await?.0)
}

/// The rows of all statements of a text, in a transaction, and how many rows they have changed.
pub(super) async fn rows_and_changes(
    conn: &mut MySqlConnection,
    text: String,
) -> Result<(Vec<MySqlRow>, u64), Fault> {
    let (rows, results) = answers(conn, text).await?;
    let changed = results.iter().map(MySqlQueryResult::rows_affected).sum();
    Ok((rows, changed))
}

/// [`in_one_transaction`], as values.
pub(super) async fn read_as<T>(
    conn: &mut MySqlConnection,
    read: &str,
) -> Result<Vec<T>, sqlx::Error>
where
    T: for<'r> FromRow<'r, MySqlRow>,
{
    let rows = in_one_transaction(conn, read).await?;
    rows.iter().map(T::from_row).collect()
}

/// Runs statements in a transaction of their own, in one round trip (on a cluster, each statement is a request).
/// Returns the rows of all of them.
///
/// A read is sent in this way, too. A proxy that splits reads from writes sends a lone SELECT to a replica, which may
/// lack the latest commits: a new grant would have no holder there, and a held lease would look lost. A transaction
/// stays on the primary, and so does a read in one text with a write ([`write_and_read`]).
pub(super) async fn in_one_transaction(
    conn: &mut MySqlConnection,
    statements: &str,
) -> Result<Vec<MySqlRow>, sqlx::Error> {
    Ok(answers_in_one_transaction(conn, statements).await?.0)
}

/// [`in_one_transaction`], with the result of each statement.
pub(super) async fn answers_in_one_transaction(
    conn: &mut MySqlConnection,
    statements: &str,
) -> Result<RowsAndResults, sqlx::Error> {
    let text = format!("START TRANSACTION; {statements}; COMMIT");
    let found = answers(conn, text).await;
    let (rows, mut results) = or_rolled_back(conn, found).await?;
    results.remove(0);
    Ok((rows, results))
}

/// Ends a transaction that has failed.
async fn or_rolled_back<T>(
    conn: &mut MySqlConnection,
    done: Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    if let Err(error) = &done
        && !classify(error).ends_connection()
    {
        // The text stopped there, and left the transaction open.
        let rolled_back = sqlx::raw_sql("ROLLBACK").execute(conn).await;
        // A node that has aborted the transaction meanwhile says so here. The transaction is over, as it should be.
        let is_over = |error: &sqlx::Error| classify(error) == FaultKind::Deadlock;
        if !rolled_back.as_ref().is_err_and(is_over) {
            rolled_back?;
        }
    }
    done
}

/// Writes, then reads the rows back, in one text and one round trip.
pub(super) async fn write_and_read(
    conn: &mut MySqlConnection,
    write: &str,
    read: &str,
) -> Result<Vec<MySqlRow>, sqlx::Error> {
    let text = AssertSqlSafe(format!("{write}; {read}"));
    sqlx::raw_sql(text).fetch_all(conn).await
}

/// Whether a connection of this process may be encrypted: a large request is better sent in parts then.
static IS_ENCRYPTED: AtomicBool = AtomicBool::new(false);

pub(super) fn found_encryption() {
    IS_ENCRYPTED.store(true, Ordering::Relaxed);
}

pub(super) fn is_encrypted() -> bool {
    IS_ENCRYPTED.load(Ordering::Relaxed)
}

/// Whether statements of these sizes are one request, which waits for no acknowledgement.
pub(super) fn is_one_request(around: usize, sizes: impl Iterator<Item = usize>) -> bool {
    !is_encrypted() || around + sizes.sum::<usize>() <= RECORD
}

/// The most parts of a batch. A batch that needs more is sent in one piece: it waits once for an acknowledgement, and
/// has one commit.
const MOST_PARTS: usize = 4;

/// Cuts statements of these sizes into parts, each one request.
pub(super) fn parts(
    around: usize,
    sizes: impl ExactSizeIterator<Item = usize>,
) -> Vec<Range<usize>> {
    let all = 0..sizes.len();
    if !is_encrypted() && !all.is_empty() {
        return vec![all];
    }
    cut(around, sizes)
}

/// Cuts statements of these sizes into parts, each in a request of one TLS record.
fn cut(around: usize, sizes: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let limit = RequestLimit::of(around, 0, 0);
    let mut parts: Vec<Range<usize>> = Vec::new();
    let (mut used, mut is_large) = (0, false);
    for (number, size) in sizes.enumerate() {
        is_large |= around + size > RECORD;
        match parts.last_mut() {
            Some(part) if limit.admits(&mut used, 0, size) => part.end = number + 1,
            _ => {
                used = size;
                parts.push(number..number + 1);
            }
        }
    }
    if is_large || parts.len() > MOST_PARTS {
        let all = parts.last().map(|last| 0..last.end);
        parts = all.into_iter().collect();
    }
    parts
}

/// The clock in UTC, in a session of the caller's, with any time zone, also after a wait or a SLEEP in the same
/// statement.
///
/// `UTC_TIMESTAMP(6)` is from when the statement began; the difference of two local times corrects it to now. With
/// `SET timestamp` the session may have left a time in it that is long past or far ahead, on the other side of a
/// change to summer time: then the time zone is converted.
macro_rules! now {
    () => {
        "IF(ABS(TIMESTAMPDIFF(SECOND, NOW(6), SYSDATE(6))) < 1800,
            UTC_TIMESTAMP(6) + INTERVAL TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) MICROSECOND,
            CONVERT_TZ(SYSDATE(6), @@time_zone, '+00:00'))"
    };
}
pub(super) use now;

pub(super) const NOW: &str = now!();

/// All rows, in a session of the caller's. (Without a limit, that of the session holds, `sql_select_limit`.)
pub(super) const ALL: &str = "LIMIT 18446744073709551615";

/// `sql` with its question marks replaced by the literals.
pub(super) fn fill(sql: &str, literals: &[String]) -> String {
    let mut parts = sql.split('?');
    let mut filled = String::from(parts.next().unwrap_or_default());
    for (part, literal) in parts.zip(literals) {
        filled.push_str(literal);
        filled.push_str(part);
    }
    filled
}

/// A JSON literal, for a session of our own. (Hexadecimal costs the server a tenth more per batch, so it is used only
/// where a holder's name would need escaping.)
pub(super) fn quoted(json: &str) -> String {
    if json.contains(['\'', '\\']) {
        return text(json);
    }
    format!("_utf8mb4'{json}'")
}

/// A text literal that does not depend on the session's character set.
pub(super) fn text(text: &str) -> String {
    format!("_utf8mb4 {}", hex(text.as_bytes()))
}

/// A literal of bytes, in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    format!("x'{}'", hex::encode(bytes))
}

/// `sql` with its names in braces replaced by the literals, which have no braces.
pub(super) fn with(sql: &str, literals: &[(&str, String)]) -> String {
    let replace = |sql: String, (name, literal): &(&str, String)| {
        sql.replace(&format!("{{{name}}}"), literal)
    };
    literals.iter().fold(sql.to_owned(), replace)
}

/// Runs the text; `None`, and nothing has changed, when another transaction has a row locked.
pub(super) async fn transact(
    conn: &mut MySqlConnection,
    text: &str,
) -> Result<Option<Vec<MySqlRow>>, Fault> {
    match in_one_transaction(conn, text).await {
        Ok(rows) => Ok(Some(rows)),
        Err(error) if is_lock_time_out(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// MySQL takes the limit from the hint, in milliseconds; MariaDB from the prefix, in seconds.
pub(super) fn wait_text(names: &str, limit: Option<Duration>) -> String {
    let select = limit.map_or(String::from("SELECT"), |limit| {
        let ms = limit.as_millis().max(1);
        let (seconds, rest) = (ms / 1_000, ms % 1_000);
        format!(
            "/*M! SET STATEMENT max_statement_time = {seconds}.{rest:03} FOR */ \
             SELECT /*+ MAX_EXECUTION_TIME({ms}) */"
        )
    });
    format!(
        "{select} name FROM rowlock_lock FORCE INDEX (PRIMARY)
         WHERE name IN ({names}) AND capacity = 0 ORDER BY name {ALL} FOR UPDATE"
    )
}

#[cfg(test)]
mod tests {
    use sqlx::Connection;

    use super::*;

    #[test]
    fn a_text_is_cut_at_the_semicolons_outside_of_literals() {
        let text = "START TRANSACTION; SELECT ';' INTO @a;\nSET @b = _utf8mb4'a;b'; COMMIT;";
        let cut = [
            "START TRANSACTION",
            "SELECT ';' INTO @a",
            "SET @b = _utf8mb4'a;b'",
            "COMMIT",
        ];
        assert_eq!(statements(text), cut);
    }

    #[test]
    fn a_part_is_one_record_and_large_batches_are_not_cut() {
        let cut = |sizes: &[usize]| super::cut(1_000, sizes.iter().copied());
        assert_eq!(
            cut(&[10_000, 5_000, 1_000, 10_000, 6_000]),
            [0..2, 2..4, 4..5]
        );
        assert!(cut(&[]).is_empty());
        assert_eq!(cut(&[5_000; 12]).len(), MOST_PARTS);
        // Each part would wait for the disk, or for an acknowledgement.
        assert_eq!(cut(&[5_000; 13]).len(), 1);
        assert_eq!(cut(&[1, 20_000, 1]).len(), 1);
    }

    /// The server ends the connection, so a ROLLBACK would fail.
    #[tokio::test]
    async fn a_text_that_is_too_large_is_told_as_that() {
        for variable in ["ROWLOCK_TEST_MARIADB_URL", "ROWLOCK_TEST_MYSQL_URL"] {
            let url = std::env::var(variable);
            let url =
                url.unwrap_or_else(|_| panic!("{variable} has the URL of a server for tests"));
            let mut conn = MySqlConnection::connect(&url).await.unwrap();
            let most = "SELECT CAST(@@max_allowed_packet AS SIGNED)";
            let most: i64 = sqlx::query_scalar(most).fetch_one(&mut conn).await.unwrap();
            let text = format!("SELECT '{}'", "a".repeat(most.try_into().unwrap()));
            let error = in_one_transaction(&mut conn, &text).await.unwrap_err();
            assert_eq!(classify(&error), FaultKind::TooLarge, "{error}");
        }
    }
}
