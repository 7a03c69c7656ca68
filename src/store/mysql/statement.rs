//! The texts of statements: the values in them, and how a text is sent.

use std::fmt::Write;

use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlConnection};

use crate::store::fault::Fault;

/// The rows of all statements of a text.
pub(super) async fn rows(conn: &mut MySqlConnection, text: String) -> Result<Vec<MySqlRow>, Fault> {
    Ok(sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await?)
}

/// Runs a read-only statement in a transaction of its own, in one round trip.
///
/// A proxy that splits reads from writes sends a lone SELECT to a replica, which may lack the latest commits: a new grant would
/// have no holder there, and a held lease would look lost. A transaction stays on the primary, and so does a read in one text
/// with a write ([`write_and_read`]).
pub(super) async fn read_alone(
    conn: &mut MySqlConnection,
    read: &str,
) -> Result<Vec<MySqlRow>, sqlx::Error> {
    in_one_transaction(conn, read).await
}

/// Runs statements in a transaction of their own, in one round trip. Returns the rows of all of them.
pub(super) async fn in_one_transaction(
    conn: &mut MySqlConnection,
    statements: &str,
) -> Result<Vec<MySqlRow>, sqlx::Error> {
    let text = format!("START TRANSACTION; {statements}; COMMIT");
    let found = sqlx::raw_sql(AssertSqlSafe(text))
        .fetch_all(&mut *conn)
        .await;
    if let Err(sqlx::Error::Database(_)) = &found {
        // The text stopped there, and left the transaction open.
        sqlx::raw_sql("ROLLBACK").execute(conn).await?;
    }
    found
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

/// A JSON literal, for a session of our own. (Hexadecimal costs the server a tenth more per batch, so it is used only where a
/// holder's name would need escaping.)
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
    let mut hex = String::from("x'");
    for byte in bytes {
        let _ = write!(hex, "{byte:02x}");
    }
    hex + "'"
}
