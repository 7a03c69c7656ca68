//! The floor: rowlock's own statements through pgbench, on two connections, in batches as large as rowlock's. No
//! client in the same language could be faster with these statements.
//!
//! The statements come from the server's log of a short run of rowlock. So they are always those that rowlock sends,
//! with the settings of its sessions.

mod log;

use std::time::{Duration, Instant};

use rowlock_test::{Commits, servers};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use self::log::{Executed, elements, executed, settings};
use crate::processes::{self, Run};
use crate::runner::{Orders, latencies};
use crate::servers::{Place, Servers};
use crate::{Failure, rows};

/// How many connections rowlock sends its batches on.
const CONNECTIONS: usize = 2;

/// The time as a fence.
const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
/// How many names were granted after a time, and how many of them are free.
const GRANTED: &str =
    "SELECT count(*), count(*) FILTER (WHERE grant_id IS NULL) FROM rowlock_lock WHERE fence >= $1";
/// Each grant and each release is an update of one row.
const UPDATES: &str = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'rowlock_lock'";
/// A session adds its updates to the sum before it is gone from here.
const OTHERS: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()";

/// Runs the contender's `orders`, whose URL is that of a database of its own.
pub(crate) async fn run(servers: &Servers, orders: &Orders) -> Result<Run, Failure> {
    let home = servers.home(Place::Postgres)?;
    let mut conn = PgConnection::connect(&orders.url).await?;
    let text = sample(&mut conn, orders, &home.join("log")).await?;
    let exchange = Exchange::find(&executed(&text))?;
    let half = exchange.half;
    let mut script = String::new();
    let mut variables = Vec::new();
    for connection in 0..CONNECTIONS {
        let word = if connection == 0 { "if" } else { "elif" };
        script.extend([format!("\\{word} :client_id = {connection}\n")]);
        let sides = [2 * connection, 2 * connection + 1]
            .map(|side| Half::new(side, half, orders.workload.prefix()));
        for (freed, taken) in [(1, 0), (0, 1)] {
            let key = format!("c{connection}s{taken}");
            let halves = [&sides[freed], &sides[taken]];
            script.push_str(&exchange.typical.with(&key, halves, &mut variables));
            script.push_str(";\n");
        }
    }
    script.push_str("\\endif\n");
    let file = home.join("floor.sql");
    std::fs::write(&file, &script)?;

    let all = 2 * half * CONNECTIONS;
    refill(&mut conn, orders, u32::try_from(all)?).await?;
    for setting in settings(&text) {
        alter_database(&mut conn, &setting).await?;
    }
    alone(&mut conn).await?;
    let began: i64 = sqlx::query_scalar(NOW).fetch_one(&mut conn).await?;
    let before: i64 = sqlx::query_scalar(UPDATES).fetch_one(&mut conn).await?;
    let said = pgbench(orders, &file.to_string_lossy(), &variables);
    alone(&mut conn).await?;
    let after: i64 = sqlx::query_scalar(UPDATES).fetch_one(&mut conn).await?;
    let (granted, free): (i64, i64) = sqlx::query_as(GRANTED)
        .bind(began)
        .fetch_one(&mut conn)
        .await?;
    alter_database(&mut conn, "RESET ALL").await?;
    refill(&mut conn, orders, orders.tasks).await?;

    let scripts: usize = number(&said, "number of transactions actually processed: ")?;
    let tps: f64 = number(&said, "tps = ")?;
    // The first exchange of a connection has nothing to free.
    let changed = i64::try_from((scripts * 4 - CONNECTIONS) * half)?;
    let (all, half_of_all) = (i64::try_from(all)?, i64::try_from(all / 2)?);
    if (after - before, granted, free) != (changed, all, half_of_all) {
        return Err(format!(
            "pgbench has granted and freed {} rows and not {changed}, and of {all} names {granted} were granted and {free} are free",
            after - before
        )
        .into());
    }
    Ok(Run {
        pairs_per_second: tps * f64::from(u32::try_from(2 * half)?),
        latencies: latencies(),
        least_share: 1.0,
        least_task_share: 1.0,
        by_second: Vec::new(),
    })
}

/// Has rowlock do the same for a while. Returns what the server has logged.
async fn sample(
    conn: &mut PgConnection,
    orders: &Orders,
    log: &std::path::Path,
) -> Result<String, Failure> {
    let before = std::fs::metadata(log)?.len();
    alter_database(conn, "SET log_min_duration_statement = 0").await?;
    let rowlock = Orders {
        contender: "rowlock-postgres".to_owned(),
        ..orders.clone()
    };
    let sampled = processes::run(&rowlock, &std::env::current_exe()?).await;
    alter_database(conn, "RESET ALL").await?;
    sampled?;
    let text = std::fs::read(log)?;
    Ok(String::from_utf8_lossy(&text[usize::try_from(before)?..]).into_owned())
}

/// Changes the settings of new sessions in this database.
async fn alter_database(conn: &mut PgConnection, change: &str) -> Result<(), Failure> {
    let name: String = sqlx::query_scalar("SELECT current_database()::text")
        .fetch_one(&mut *conn)
        .await?;
    let sql = format!("ALTER DATABASE {name} {change}");
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await?;
    Ok(())
}

/// Makes all names new and free. (No row is updated, because updates are counted.)
async fn refill(conn: &mut PgConnection, orders: &Orders, names: u32) -> Result<(), Failure> {
    sqlx::raw_sql("DELETE FROM rowlock_lock")
        .execute(conn)
        .await?;
    let (url, workload) = (&orders.url, orders.workload);
    rows::fill(Place::Postgres, url, "rowlock_lock", workload, names).await
}

/// Waits until no other session is in this database.
async fn alone(conn: &mut PgConnection) -> Result<(), Failure> {
    let started = Instant::now();
    loop {
        let others: i64 = sqlx::query_scalar(OTHERS).fetch_one(&mut *conn).await?;
        if others == 0 {
            return Ok(());
        }
        if started.elapsed() > Duration::from_secs(10) {
            return Err(format!("{others} sessions do not end").into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What pgbench says after as many seconds as a run has.
fn pgbench(orders: &Orders, file: &str, variables: &[String]) -> String {
    let connections = CONNECTIONS.to_string();
    let seconds = orders.seconds.ceil().to_string();
    let mut more = vec![
        "-n",
        "-M",
        "prepared",
        "-c",
        &connections,
        "-j",
        &connections,
    ];
    more.extend(["-T", &seconds, "-f", file]);
    for variable in variables {
        more.extend(["-D", variable]);
    }
    more.push(&orders.url);
    servers(
        &["run", "postgres"],
        "pgbench".as_ref(),
        &more,
        Commits::Durable,
    )
}

/// The number after a word that pgbench says.
fn number<N: std::str::FromStr>(said: &str, word: &str) -> Result<N, Failure> {
    let found = said.lines().find_map(|line| {
        let number = line.strip_prefix(word)?.split([' ', '/']).next()?;
        number.parse().ok()
    });
    found.ok_or_else(|| format!("pgbench does not say «{word}»: {said}").into())
}

/// The statement that frees names and grants others.
struct Exchange {
    /// The batch of the median size.
    typical: Executed,
    /// How many names it frees, and how many it grants. (On average it is the same number, because every grant is
    /// released.)
    half: usize,
}

impl Exchange {
    fn find(executed: &[Executed]) -> Result<Self, Failure> {
        let mut batches: Vec<(usize, &Executed)> = Vec::new();
        for one in executed {
            let parts = [
                "fence =",
                "expires_at =",
                "unnest($1::bytea[]) AS name",
                "unnest($2::uuid[]) AS id",
                "unnest($3::bigint[]) AS ttl",
            ];
            if parts.iter().all(|part| one.sql.contains(part)) {
                // A release has no TTL.
                let [all, taken] = [0, 2].map(|index| {
                    let array = one.parameters.get(index).and_then(Option::as_deref);
                    array.map_or(0, |array| elements(array).len())
                });
                if taken > 0 && all > taken {
                    batches.push((all, one));
                }
            }
        }
        batches.sort_by_key(|(size, _)| *size);
        let (size, typical) = batches
            .get(batches.len() / 2)
            .ok_or("rowlock's log has no batch that frees and grants")?;
        Ok(Self {
            typical: (*typical).clone(),
            half: size.div_ceil(2),
        })
    }
}

/// Names, and the ids of their grants, as elements of arrays.
struct Half {
    names: Vec<String>,
    grants: Vec<String>,
}

impl Half {
    fn new(number: usize, size: usize, prefix: &str) -> Self {
        let numbers = number * size..(number + 1) * size;
        Self {
            names: numbers
                .clone()
                .map(|number| bytes(&format!("{prefix}{number}")))
                .collect(),
            grants: numbers.map(|_| Uuid::new_v4().to_string()).collect(),
        }
    }
}

impl Executed {
    /// The statement that frees one half and takes the other, and its parameters as variables of pgbench. The names
    /// and ids of those that are taken come first.
    fn with(&self, key: &str, [freed, taken]: [&Half; 2], variables: &mut Vec<String>) -> String {
        let mut sql = self.sql.clone();
        // From the last, so that $1 is not found in $10.
        for (index, value) in self.parameters.iter().enumerate().rev() {
            let variable = format!("{key}p{index}");
            name_parameter(&mut sql, index + 1, &variable);
            let value = value.as_deref().unwrap_or_default();
            let first = elements(value).first().copied().unwrap_or("NULL");
            let array = match index {
                0 => [&*taken.names, &*freed.names].concat(),
                1 => [&*taken.grants, &*freed.grants].concat(),
                _ => vec![first.to_owned(); taken.names.len()],
            };
            variables.push(format!("{variable}={{{}}}", array.join(",")));
        }
        sql
    }
}

/// A name as an element of an array of bytea.
fn bytes(name: &str) -> String {
    let hex: Vec<_> = name.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("\"\\\\x{}\"", hex.concat())
}

/// Puts pgbench's variable in the place of a parameter, with its type, if the statement names it. pgbench makes a new
/// parameter of each use, and each needs its type.
fn name_parameter(sql: &mut String, number: usize, variable: &str) {
    let dollar = format!("${number}");
    let cast = sql.split(&format!("{dollar}::")).nth(1).unwrap_or_default();
    let is_outside = |c: char| !c.is_alphanumeric() && c != '[' && c != ']';
    let cast = &cast[..cast.find(is_outside).unwrap_or(cast.len())];
    let typed = if cast.is_empty() {
        String::new()
    } else {
        format!("::{cast}")
    };
    let bare = sql.replace(&format!("{dollar}{typed}"), &dollar);
    *sql = bare.replace(&dollar, &format!(":{variable}{typed}"));
}
