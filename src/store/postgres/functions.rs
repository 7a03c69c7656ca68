//! The decisions about queues and permits, as functions in the database.
//!
//! # Overview
//!
//! They are functions because each statement of a volatile function has a snapshot of its own (manual, section 38.7):
//! a statement that reads the waiters is newer than the lock on the row of the name. They run as their caller, and
//! find the tables by its search path. Each file here is one function.
//!
//! - They wait for a locked row for 20 ms (two such waits at most), and then fail with 55P03. `lock_timeout` has its
//!   old value again at the commit, which may wait for other commits that notify.
//! - No sequential scan: a session keeps a plan that was made while the table was small, and would read all waiters
//!   with it. One plan for all values: with the statistics of a short queue, the server would make a new plan for each
//!   call, and passing a name on would take 70 to 140 µs instead of 40.
//! - A function without settings of its own is called by the others only, and has theirs.
//!
//! # State
//!
//! A function is installed by its content. Its name in the database ends in a hash of its text, with the names of the
//! functions that it calls: two releases of rowlock can run side by side, each with functions of its own. Every client
//! notes in `rowlock_function` that it uses its functions, when it connects and later once an hour, and drops those
//! that nobody has noted for a day.
//!
//! # Failure
//!
//! A client writes its note, and then looks for missing functions. The transaction that drops a function holds the
//! lock on its note. So a client that connects meanwhile waits for that transaction, finds the function missing, and
//! makes it again.

use std::sync::LazyLock;

use sha2::{Digest, Sha256};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{query, query_scalar};
use crate::model::FaultKind;
use crate::store::verbs::fault::Fault;

/// Where clients note which functions they use.
pub(super) const TABLE: &str = "rowlock_function";

/// Name and text, each after those that it calls.
const SOURCES: [(&str, &str); 13] = [
    ("first_waiter", include_str!("functions/first_waiter.sql")),
    ("queue", include_str!("functions/queue.sql")),
    ("leave", include_str!("functions/leave.sql")),
    ("join", include_str!("functions/join.sql")),
    ("pass", include_str!("functions/pass.sql")),
    ("permit_name", include_str!("functions/permit_name.sql")),
    ("reclaim", include_str!("functions/reclaim.sql")),
    ("make_permit", include_str!("functions/make_permit.sql")),
    ("grant_permits", include_str!("functions/grant_permits.sql")),
    ("permit_join", include_str!("functions/permit_join.sql")),
    ("permit_pass", include_str!("functions/permit_pass.sql")),
    ("permit_weigh", include_str!("functions/permit_weigh.sql")),
    ("permit_resize", include_str!("functions/permit_resize.sql")),
];

/// Notes the use of all functions; `$1` are their names, sorted. Two clients lock the rows in the same order.
const NOTE: &str = "
INSERT INTO rowlock_function (name, used_at) SELECT n, clock_timestamp() FROM unnest($1::text[]) n
ON CONFLICT (name) DO UPDATE SET used_at = excluded.used_at";

/// Whether all functions are there, and were noted within the last hour.
const IS_NOTED: &str = "
SELECT count(*) = cardinality($1::text[]) FROM rowlock_function f
WHERE f.name = ANY($1) AND f.used_at > clock_timestamp() - interval '1 hour'
  AND EXISTS (SELECT FROM pg_proc p WHERE p.proname = f.name AND p.pronamespace =
              (SELECT c.relnamespace FROM pg_class c WHERE c.oid = 'rowlock_function'::regclass))";

/// It reads the table of functions: `to_regproc` would ask a cache, which does not hear of a function that was dropped
/// while this transaction waited.
const MISSING: &str = "
SELECT n FROM unnest($1::text[]) n
WHERE NOT EXISTS (SELECT FROM pg_proc p WHERE p.proname = n AND pg_function_is_visible(p.oid))";

/// Functions belong in the schema of the tables, wherever the search path begins: other schemas may have tables and
/// functions of rowlock's, too. And a client that is stopped in this transaction must not keep the others waiting.
const IN_SCHEMA_OF_TABLES: &str = "
SELECT set_config('search_path', quote_ident(n.nspname), true),
       set_config('idle_in_transaction_session_timeout', '5000', true)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = 'rowlock_function'::regclass";

/// The functions that no client has noted for a day.
const UNUSED: &str = "
SELECT name FROM rowlock_function
WHERE used_at < clock_timestamp() - interval '1 day' AND left(name, 8) = 'rowlock_'
ORDER BY name FOR UPDATE SKIP LOCKED";

struct Function {
    /// As in the sources.
    source: &'static str,
    /// In the database.
    name: String,
    text: String,
}

static FUNCTIONS: LazyLock<Vec<Function>> = LazyLock::new(|| name_by_content(&SOURCES));

/// Gives each text its name.
fn name_by_content(sources: &[(&'static str, &str)]) -> Vec<Function> {
    let mut functions = Vec::new();
    for &(source, text) in sources {
        let text = replace_names(text, &functions);
        // Not of the comment before it.
        let (_, hashed) = text.split_once("CREATE ").unwrap_or(("", &text));
        let digest: [u8; 32] = Sha256::digest(hashed).into();
        let name = format!("rowlock_{source}_{}", hex::encode(&digest[..4]));
        functions.push(Function {
            text: text.replace(&format!("rowlock_{source}("), &format!("{name}(")),
            source,
            name,
        });
    }
    functions
}

static NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let mut names: Vec<_> = FUNCTIONS.iter().map(|f| f.name.as_str()).collect();
    names.sort_unstable();
    names
});

fn replace_names(sql: &str, functions: &[Function]) -> String {
    functions.iter().fold(sql.to_owned(), |sql, function| {
        let call = format!("rowlock_{}(", function.source);
        sql.replace(&call, &format!("{}(", function.name))
    })
}

/// Statements that call functions.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident = $sql:expr;)+) => {
        $(
            $(#[$doc])*
            static $name: std::sync::LazyLock<String> =
                std::sync::LazyLock::new(|| $crate::store::postgres::functions::calling($sql));
        )+
    };
}
pub(super) use calls;

/// A statement that calls functions, with the names that they have in the database.
pub(super) fn calling(sql: &str) -> String {
    replace_names(sql, &FUNCTIONS)
}

/// The names in the database, sorted.
pub(super) fn names() -> &'static [&'static str] {
    &NAMES
}

/// The statements that make all functions, for a DBA.
pub(super) fn texts() -> String {
    let texts: Vec<_> = FUNCTIONS.iter().map(|f| f.text.trim_end()).collect();
    texts.join("\n\n")
}

/// Whether there is nothing to do for [`keep`].
pub(super) async fn are_noted(conn: &mut PgConnection) -> Result<bool, Fault> {
    let noted = query_scalar(IS_NOTED).bind(names());
    Ok(noted.fetch_one(conn).await?)
}

/// Notes that the functions are in use. Makes those that are missing, if it may, and drops those that nobody uses.
/// Returns the missing ones: a client that may not note its use (it lacks the right, or the server takes no writes)
/// still learns of them.
pub(super) async fn keep(conn: &mut PgConnection, makes: bool) -> Result<Vec<String>, Fault> {
    let missing = install(conn, makes).await?;
    if makes || missing.is_empty() {
        allowed(drop_unused(conn).await)?;
    }
    Ok(missing)
}

/// `None`: this user lacks the right, or the server takes no writes.
fn allowed<T>(done: Result<T, Fault>) -> Result<Option<T>, Fault> {
    match done {
        Err(fault) if matches!(fault.kind, FaultKind::Denied | FaultKind::ReadOnly) => Ok(None),
        done => done.map(Some),
    }
}

/// Notes the use, and makes missing functions. Returns the missing ones.
pub(super) async fn install(conn: &mut PgConnection, makes: bool) -> Result<Vec<String>, Fault> {
    let mut tx = begin(conn).await?;
    let noted = query(NOTE).bind(names()).execute(&mut *tx).await;
    if allowed(noted.map_err(Fault::from))?.is_none() {
        tx.rollback().await?;
        tx = begin(conn).await?;
    }
    let missing: Vec<String> = query_scalar(MISSING)
        .bind(names())
        .fetch_all(&mut *tx)
        .await?;
    if !makes && !missing.is_empty() {
        tx.rollback().await?;
        return Ok(missing);
    }
    for function in FUNCTIONS.iter().filter(|f| missing.contains(&f.name)) {
        sqlx::raw_sql(AssertSqlSafe(function.text.as_str()))
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await?;
    Ok(missing)
}

async fn drop_unused(conn: &mut PgConnection) -> Result<(), Fault> {
    let mut tx = begin(conn).await?;
    let unused: Vec<String> = query_scalar(UNUSED).fetch_all(&mut *tx).await?;
    for name in &unused {
        let drop = format!("DROP FUNCTION IF EXISTS \"{}\"", name.replace('"', "\"\""));
        sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut *tx).await?;
    }
    query("DELETE FROM rowlock_function WHERE name = ANY($1)")
        .bind(unused)
        .execute(&mut *tx)
        .await?;
    Ok(tx.commit().await?)
}

/// In the schema of the tables.
async fn begin(conn: &mut PgConnection) -> Result<sqlx::Transaction<'_, sqlx::Postgres>, Fault> {
    let mut tx = conn.begin().await?;
    query(IN_SCHEMA_OF_TABLES).execute(&mut *tx).await?;
    Ok(tx)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names that functions have in the database.
    fn named(sources: &[(&'static str, &str)]) -> Vec<String> {
        name_by_content(sources)
            .into_iter()
            .map(|f| f.name)
            .collect()
    }

    #[test]
    fn a_name_is_that_of_a_text_and_of_all_texts_that_it_calls() {
        let inner = "-- A comment.\nCREATE OR REPLACE FUNCTION rowlock_inner() …";
        let outer = "CREATE OR REPLACE FUNCTION rowlock_outer() … rowlock_inner() …";
        let other = "CREATE OR REPLACE FUNCTION rowlock_other() …";
        let sources = [("inner", inner), ("outer", outer), ("other", other)];
        let names = named(&sources);
        let comment = inner.replace("A comment", "Another one");
        assert_eq!(named(&[("inner", &comment), sources[1], sources[2]]), names);
        let changed = inner.replace('…', "……");
        let after = named(&[("inner", &changed), sources[1], sources[2]]);
        assert_ne!(after[0], names[0]);
        assert_ne!(after[1], names[1], "it calls the one that was changed");
        assert_eq!(after[2], names[2]);
    }

    #[test]
    fn every_text_calls_functions_by_their_whole_names() {
        for function in FUNCTIONS.iter() {
            for (source, _) in SOURCES {
                let short = format!("rowlock_{source}(");
                assert!(
                    !function.text.contains(&short),
                    "{short} in {}",
                    function.name
                );
            }
            let made = format!("CREATE OR REPLACE FUNCTION {}(", function.name);
            assert!(function.text.contains(&made), "{}", function.name);
        }
        assert_eq!(names().len(), SOURCES.len());
    }
}
