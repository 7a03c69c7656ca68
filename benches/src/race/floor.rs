//! The floor: rowlock's own statements through pgbench, on two connections, in batches as large as rowlock's. No client in the same
//! language could be faster with these statements.
//!
//! The statements come from the server's log of a short run of rowlock. So they are always those that rowlock sends.

use std::collections::BTreeMap;

use rowlock_test::{Commits, servers};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use crate::Failure;
use crate::processes::{self, Run};
use crate::rows;
use crate::runner::{Orders, latencies};
use crate::servers::{Place, Servers};

/// How many connections rowlock sends its batches on.
const CONNECTIONS: usize = 2;

/// The time as a fence.
const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
/// How many names were granted after a time, and are free.
const RELEASED: &str = "SELECT count(*) FROM rowlock_lock WHERE fence >= $1 AND grant_id IS NULL";

/// A statement that the server has run, and its parameters as texts; none for NULL.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Executed {
    sql: String,
    parameters: Vec<Option<String>>,
}

/// Runs the contender's `orders`, whose URL is that of a database of its own.
pub(crate) async fn run(servers: &Servers, orders: &Orders) -> Result<Run, Failure> {
    let home = servers.home(Place::Postgres)?;
    let log = home.join("log");
    let before = std::fs::metadata(&log)?.len();
    let mut conn = PgConnection::connect(&orders.url).await?;
    log_statements(&mut conn, true).await?;
    let sample = Orders {
        contender: "rowlock-postgres".to_owned(),
        ..orders.clone()
    };
    let sampled = processes::run(&sample, &std::env::current_exe()?).await;
    log_statements(&mut conn, false).await?;
    sampled?;
    let text = std::fs::read(&log)?;
    let text = String::from_utf8_lossy(&text[usize::try_from(before)?..]).into_owned();
    let executed = executed(&text);
    let take = typical(&executed, |sql| {
        sql.contains("fence =") && sql.contains("expires_at =")
    })?;
    let release = typical(&executed, |sql| sql.contains("grant_id = NULL"))?;
    let size = take
        .parameters
        .first()
        .and_then(Option::as_deref)
        .map_or(0, |array| elements(array).len());
    if size == 0 {
        return Err("rowlock has sent empty batches".into());
    }
    let all = u32::try_from(size * CONNECTIONS)?;
    rows::fill(
        Place::Postgres,
        &orders.url,
        "rowlock_lock",
        orders.workload,
        all,
    )
    .await?;
    let began: i64 = sqlx::query_scalar(NOW).fetch_one(&mut conn).await?;
    let (script, variables) = script(&take, &release, size, orders.workload.prefix());
    let file = home.join("floor.sql");
    std::fs::write(&file, &script)?;
    let connections = CONNECTIONS.to_string();
    let seconds = orders.seconds.ceil().to_string();
    let file = file.to_string_lossy();
    let mut more = vec![
        "-n",
        "-M",
        "prepared",
        "-c",
        &connections,
        "-j",
        &connections,
        "-T",
        &seconds,
        "-f",
        &file,
    ];
    for variable in &variables {
        more.extend(["-D", variable]);
    }
    more.push(&orders.url);
    let said = servers_run(&more);
    let tps = said.lines().find_map(|line| {
        line.strip_prefix("tps = ")?
            .split(' ')
            .next()?
            .parse::<f64>()
            .ok()
    });
    let tps = tps.ok_or_else(|| format!("pgbench says no throughput: {said}"))?;
    let released: i64 = sqlx::query_scalar(RELEASED)
        .bind(began)
        .fetch_one(&mut conn)
        .await?;
    if released != i64::from(all) {
        return Err(format!("pgbench has taken and released {released} of {all} names").into());
    }
    Ok(Run {
        pairs_per_second: tps * f64::from(u32::try_from(size)?),
        latencies: latencies(),
        least_share: 1.0,
        least_task_share: 1.0,
        by_second: Vec::new(),
    })
}

fn servers_run(more: &[&str]) -> String {
    servers(
        &["run", "postgres"],
        "pgbench".as_ref(),
        more,
        Commits::Durable,
    )
}

/// Whether the server logs the statements of new sessions in this database.
async fn log_statements(conn: &mut PgConnection, on: bool) -> Result<(), Failure> {
    let name: String = sqlx::query_scalar("SELECT current_database()::text")
        .fetch_one(&mut *conn)
        .await?;
    let limit = if on { 0 } else { -1 };
    let sql = format!("ALTER DATABASE {name} SET log_min_duration_statement = {limit}");
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await?;
    Ok(())
}

/// The executed statements in a log. Their further lines begin with a tab, and their parameters come next. (The log also has the
/// parameters of each bind.)
fn executed(log: &str) -> Vec<Executed> {
    let mut found: Vec<Executed> = Vec::new();
    let (mut in_sql, mut has_parameters) = (false, false);
    for line in log.lines() {
        if let Some(more) = line.strip_prefix('\t') {
            if let (true, Some(last)) = (in_sql, found.last_mut()) {
                last.sql.push('\n');
                last.sql.push_str(more);
            }
        } else if let Some((_, statement)) = line.split_once(" ms  execute ") {
            let sql = statement.split_once(": ").map_or("", |(_, sql)| sql);
            found.push(Executed {
                sql: sql.to_owned(),
                parameters: Vec::new(),
            });
            (in_sql, has_parameters) = (true, true);
        } else {
            let list = line.split_once("arameters: $1 = ");
            if let (true, Some((_, list)), Some(last)) = (has_parameters, list, found.last_mut()) {
                last.parameters = parameters(list);
            }
            (in_sql, has_parameters) = (false, false);
        }
    }
    found
}

/// `'{a,b}', $2 = NULL, $3 = 'it''s'`
fn parameters(list: &str) -> Vec<Option<String>> {
    let mut found = Vec::new();
    let mut rest = list;
    loop {
        let value = if let Some(quoted) = rest.strip_prefix('\'') {
            let doubled = quoted.replace("''", "\u{1}\u{1}");
            let end = doubled.find('\'').unwrap_or(doubled.len());
            rest = quoted.get(end + 1..).unwrap_or_default();
            Some(doubled[..end].replace("\u{1}\u{1}", "'"))
        } else {
            rest = rest.strip_prefix("NULL").unwrap_or_default();
            None
        };
        found.push(value);
        match rest
            .strip_prefix(", $")
            .and_then(|next| next.split_once(" = "))
        {
            Some((_, next)) => rest = next,
            None => return found,
        }
    }
}

/// The elements of an array without commas in them.
fn elements(array: &str) -> Vec<&str> {
    let inner = array
        .strip_prefix('{')
        .and_then(|array| array.strip_suffix('}'));
    inner
        .filter(|inner| !inner.is_empty())
        .map_or_else(Vec::new, |inner| inner.split(',').collect())
}

/// Of the batches with this statement, the one of the median size. Of several such statements, the one with the most names.
fn typical(executed: &[Executed], is_it: impl Fn(&str) -> bool) -> Result<Executed, Failure> {
    let mut batches: BTreeMap<&str, Vec<(usize, &Executed)>> = BTreeMap::new();
    for one in executed {
        let first = one
            .parameters
            .first()
            .and_then(Option::as_deref)
            .unwrap_or_default();
        let is_batch = one.sql.contains("$1::bytea[]") && first.starts_with('{');
        if is_batch && is_it(&one.sql) {
            batches
                .entry(&one.sql)
                .or_default()
                .push((elements(first).len(), one));
        }
    }
    let all =
        |batches: &Vec<(usize, &Executed)>| -> usize { batches.iter().map(|(size, _)| size).sum() };
    let mut most = batches
        .into_values()
        .max_by_key(all)
        .ok_or("rowlock's log has no such statement")?;
    most.sort_by_key(|(size, _)| *size);
    Ok(most[most.len() / 2].1.clone())
}

/// A script in which each connection takes and releases `size` names of its own, and the values of its variables.
fn script(take: &Executed, release: &Executed, size: usize, prefix: &str) -> (String, Vec<String>) {
    let (mut text, mut variables) = (String::new(), Vec::new());
    for connection in 0..CONNECTIONS {
        let word = if connection == 0 { "if" } else { "elif" };
        text.extend([format!("\\{word} :client_id = {connection}\n")]);
        let mine = connection * size..(connection + 1) * size;
        let names: Vec<_> = mine
            .clone()
            .map(|number| bytes(&format!("{prefix}{number}")))
            .collect();
        let grants: Vec<_> = mine.map(|_| Uuid::new_v4().to_string()).collect();
        for (kind, statement) in [("take", take), ("release", release)] {
            let mut sql = statement.sql.clone();
            // From the last, so that $1 is not found in $10.
            for (index, value) in statement.parameters.iter().enumerate().rev() {
                let variable = format!("{kind}{connection}_{index}");
                let cast = name_parameter(&mut sql, index + 1, &variable);
                let value = value.as_deref().unwrap_or_default();
                let first = elements(value).first().copied().unwrap_or("NULL");
                let array = match &*cast {
                    "bytea[]" => names.join(","),
                    "uuid[]" if first != "NULL" => grants.join(","),
                    array if array.ends_with("[]") => vec![first; size].join(","),
                    _ => {
                        variables.push(format!("{variable}={value}"));
                        continue;
                    }
                };
                variables.push(format!("{variable}={{{array}}}"));
            }
            text.push_str(&sql);
            text.push_str(";\n");
        }
    }
    text.push_str("\\endif\n");
    (text, variables)
}

/// A name as an element of an array of bytea.
fn bytes(name: &str) -> String {
    let hex: Vec<_> = name.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("\"\\\\x{}\"", hex.concat())
}

/// Puts pgbench's variable in the place of a parameter, and returns its type, if the statement names it. pgbench makes a new parameter of
/// each use, and each needs its type.
fn name_parameter(sql: &mut String, number: usize, variable: &str) -> String {
    let dollar = format!("${number}");
    let cast = sql.split(&format!("{dollar}::")).nth(1).unwrap_or_default();
    let is_outside = |c: char| !c.is_alphanumeric() && c != '[' && c != ']';
    let cast = cast[..cast.find(is_outside).unwrap_or(cast.len())].to_owned();
    let typed = if cast.is_empty() {
        String::new()
    } else {
        format!("::{cast}")
    };
    let bare = sql.replace(&format!("{dollar}{typed}"), &dollar);
    *sql = bare.replace(&dollar, &format!(":{variable}{typed}"));
    cast
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_the_statements_and_their_parameters() {
        let log = "2026 [7] LOG:  duration: 0.1 ms  execute s_1: \n\tUPDATE x\n\tSET y = $1::bytea[], z = $2\n\
                   2026 [7] DETAIL:  parameters: $1 = '{\"\\\\x61\",\"\\\\x62\"}', $2 = NULL, $3 = 'it''s'\n\
                   2026 [7] LOG:  duration: 0.2 ms  bind s_1: UPDATE x\n\tSET more\n\
                   2026 [7] DETAIL:  parameters: $1 = 'of the bind'\n";
        let found = executed(log);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].sql, "\nUPDATE x\nSET y = $1::bytea[], z = $2");
        let array = "{\"\\\\x61\",\"\\\\x62\"}".to_owned();
        assert_eq!(
            found[0].parameters,
            [Some(array), None, Some("it's".to_owned())]
        );
        assert_eq!(elements("{\"a\",\"b\"}").len(), 2);
    }
}
