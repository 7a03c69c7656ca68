//! How long a page of the console takes, and what it reads, in a database with many locks and records; and the
//! requests to the server of one viewer and of many.

#[allow(dead_code, reason = "what one benchmark never needs, another one does")]
mod figures;
mod servers;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::Parser;
use hdrhistogram::Histogram;
use rowlock::{Begun, Engine, Fingerprint, Held, Outcome, Rowlock, Scope, StepFailed};
use rowlock_console::Access;
use rowlock_test::Proxy;
use sqlx::{Connection, MySqlConnection, PgConnection, SqliteConnection};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use url::Url;

use figures::table;
use servers::Server;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The scope of the records.
const SCOPE: Scope<&str> = Scope("shop");

/// What a copy of a record has in common with it.
const COPIED: &str = "state, attempt, abandoned, max_attempts, attempt_id, holder, fingerprint, bound, open_step, \
     open_step_number, content_type, outcome, began_at, attempted_at, lease_until, done_at, retain_until, forget_at, clean_at";

/// PostgreSQL writes what a connection has read into its statistics after this time without a statement.
const STATISTICS: Duration = Duration::from_secs(11);

#[derive(Debug, Parser)]
struct Arguments {
    /// Engines to measure, each on a separate durable server.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "sqlite,postgres,mysql,mariadb"
    )]
    engines: Vec<Engine>,
    /// Names of locks: a hundredth is held, and one of them is waited for by 200 tasks.
    #[arg(long, default_value_t = 100_000)]
    locks: usize,
    /// Idempotency records, about.
    #[arg(long, default_value_t = 1_000_000)]
    records: usize,
    /// How often each page is asked for.
    #[arg(long, default_value_t = 200)]
    times: usize,
    /// How many look at a page at the same time. With 0, only the pages are measured.
    #[arg(long, default_value_t = 50)]
    viewers: usize,
    /// How long they look, in seconds.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
}

/// A database with its locks and records.
struct Shop {
    server: Server,
    _client: Rowlock,
    _held: Vec<Held>,
    _waiting: JoinSet<Result<Held, rowlock::Error>>,
}

async fn client(url: &str) -> Result<Rowlock, Failure> {
    // The statements that are counted are those of the pages.
    Ok(Rowlock::builder()
        .clean_every(None)
        .max_connections(7)
        .connect(url)
        .await?)
}

impl Shop {
    async fn fill(engine: Engine, arguments: &Arguments) -> Result<Self, Failure> {
        let server = Server::start(engine)?;
        let client = client(&server.url).await?;
        let names: Vec<_> = (0..arguments.locks)
            .map(|n| format!("stock:{n:07}"))
            .collect();
        for some in names.chunks(1_000) {
            let locks = some.iter().map(|name| client.lock(name.clone()));
            let once = locks.map(|lock| async move { lock.acquire().await?.release().await });
            for done in once.collect::<JoinSet<_>>().join_all().await {
                done?;
            }
        }
        let held = names.iter().step_by(100).map(|name| {
            let lock = client.lock(name.clone()).in_session();
            async move { lock.acquire().await }
        });
        let held = held.collect::<JoinSet<_>>().join_all().await;
        let waiting = (0..200).map(|_| {
            let lock = client.lock(names[0].clone()).in_session();
            async move { lock.acquire().await }
        });
        let waiting = waiting.collect();
        for job in 0..20 {
            for _ in 0..20 {
                let run = client.lock(format!("job:{job}")).acquire().await?;
                run.begin_run().await?;
                run.end_run(true, "").await?;
                run.release().await?;
            }
        }
        records(&client, &server, arguments.records).await?;
        Ok(Self {
            server,
            _client: client,
            _held: held.into_iter().collect::<Result<_, _>>()?,
            _waiting: waiting,
        })
    }
}

/// A thousand records by the library, copies of them until there are enough, and ten that wait for a decision.
async fn records(client: &Rowlock, server: &Server, wanted: usize) -> Result<(), Failure> {
    let idempotency = client.idempotency().lease(Duration::from_secs(1));
    let request = Fingerprint::of("request");
    let outcome = Outcome::new("text/plain", "charged")?;
    let mut has = wanted.min(1_000);
    for key in 0..has {
        let key = SCOPE.key(format!("key-{key}"));
        let Begun::New(attempt) = idempotency.begin(key, request).await? else {
            return Err("the key of a record is not new".into());
        };
        attempt.complete(&outcome).await?;
    }
    let longer = match server.engine {
        Engine::Postgres => "idempotency_key || 'a'::bytea",
        Engine::Sqlite => "CAST(idempotency_key || 'a' AS BLOB)",
        _ => "concat(idempotency_key, 'a')",
    };
    let mut copies = 0;
    while has < wanted {
        copies += 1;
        let longer = longer.replace("'a'", &format!("'-{copies}'"));
        let copy = format!(
            "INSERT INTO rowlock_idempotency (scope, idempotency_key, {COPIED}) \
             SELECT scope, {longer}, {COPIED} FROM rowlock_idempotency"
        );
        run(server, &copy).await?;
        has *= 2;
    }
    for statement in match server.engine {
        Engine::Postgres => ["VACUUM ANALYZE", "CHECKPOINT"],
        Engine::Sqlite => ["PRAGMA optimize", "PRAGMA wal_checkpoint(TRUNCATE)"],
        _ => [
            "ANALYZE TABLE rowlock_idempotency",
            "ANALYZE TABLE rowlock_lock",
        ],
    } {
        run(server, statement).await?;
    }
    for key in 0..10 {
        let key = SCOPE.key(format!("open-{key}"));
        let Begun::New(attempt) = idempotency.begin(key, request).await? else {
            return Err("the key of a record is not new".into());
        };
        let no_answer = rowlock::Name::new("").unwrap_err();
        let charge =
            async { Err::<u8, _>(StepFailed::Unknown(rowlock::Error::Invalid(no_answer))) };
        assert!(attempt.step_once("charge", charge).await.is_err());
    }
    Ok(())
}

async fn run(server: &Server, statement: &str) -> Result<(), Failure> {
    let (url, statement) = (&server.url, sqlx::AssertSqlSafe(statement.to_owned()));
    match server.engine {
        Engine::Postgres => {
            let mut connection = PgConnection::connect(url).await?;
            sqlx::raw_sql(statement).execute(&mut connection).await?;
        }
        Engine::Sqlite => {
            let mut connection = SqliteConnection::connect(url).await?;
            sqlx::raw_sql(statement).execute(&mut connection).await?;
        }
        _ => {
            let mut connection = MySqlConnection::connect(url).await?;
            sqlx::raw_sql(statement).execute(&mut connection).await?;
        }
    }
    Ok(())
}

/// How many rows the server has read until now, and how often a table from its begin to its end. (SQLite counts
/// neither.)
async fn read(server: &Server) -> Result<Option<[i64; 2]>, Failure> {
    let url = &server.url;
    Ok(match server.engine {
        Engine::Sqlite => None,
        Engine::Postgres => {
            tokio::time::sleep(STATISTICS).await;
            let mut connection = PgConnection::connect(url).await?;
            let (rows, scans) = sqlx::query_as(
                "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint, \
                 sum(seq_scan) FILTER (WHERE n_live_tup > 10000)::bigint \
                 FROM pg_stat_user_tables WHERE relname LIKE 'rowlock%'",
            )
            .fetch_one(&mut connection)
            .await?;
            Some([rows, scans])
        }
        _ => {
            let mut connection = MySqlConnection::connect(url).await?;
            let status: Vec<(String, String)> =
                sqlx::query_as("SHOW GLOBAL STATUS LIKE 'Handler_read%'")
                    .fetch_all(&mut connection)
                    .await?;
            let of = |name: &str| {
                let some = status.iter().filter(|(of, _)| of.starts_with(name));
                some.map(|(_, value)| value.parse::<i64>().unwrap_or(0))
                    .sum()
            };
            Some([of("Handler_read"), of("Handler_read_rnd_next")])
        }
    })
}

/// A console on a socket of its own.
async fn console(url: &str) -> Result<(SocketAddr, Rowlock), Failure> {
    let client = client(url).await?;
    let access = |_: &_| Access::Act { who: "ann".into() };
    let router = rowlock_console::router(&client, access);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok((address, client))
}

/// Pages as an operator looks at them: the first ones, one in the middle, and those with a filter.
fn pages(locks: usize) -> Vec<String> {
    let middle = format!("stock:{:07}", locks / 2);
    [
        "/",
        "/locks",
        "/locks?state=held",
        "/locks?state=awaited",
        "/locks?state=orphaned",
        &format!("/locks?prefix={middle}"),
        "/lock?name=stock:0000000",
        "/sessions",
        "/jobs",
        "/records",
        "/records?state=done",
        "/records?state=unknown",
        "/records?scope=shop&key=key-5",
        // Both in hexadecimal.
        "/record?scope=73686f70&key=6b65792d353030",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn browser() -> Result<reqwest::Client, Failure> {
    Ok(reqwest::Client::builder().no_proxy().build()?)
}

/// The times of a page in milliseconds: p50, p99, and the longest.
async fn ask(at: SocketAddr, page: &str, times: usize) -> Result<[f64; 3], Failure> {
    let browser = browser()?;
    let mut seen = Histogram::<u64>::new(3)?;
    for _ in 0..times {
        let began = Instant::now();
        let answer = browser.get(format!("http://{at}{page}")).send().await?;
        let text = answer.error_for_status()?.text().await?;
        seen.record(u64::try_from(began.elapsed().as_micros())?)?;
        assert!(text.contains("</main>"), "{page}: {text}");
    }
    #[allow(clippy::cast_precision_loss, reason = "some milliseconds")]
    let millis = |micros: u64| micros as f64 / 1e3;
    let quantiles = [0.5, 0.99, 1.0].map(|quantile| millis(seen.value_at_quantile(quantile)));
    Ok(quantiles)
}

/// The requests that the server gets in a second, while so many look at a page.
async fn watched(
    server: &Server,
    page: &str,
    viewers: usize,
    time: Duration,
) -> Result<f64, Failure> {
    let url = Url::parse(&server.url)?;
    let proxy = Proxy::start(url.port().ok_or("a server has a port")?).await;
    let mut through = url;
    through
        .set_port(Some(proxy.port))
        .map_err(|()| "a server has a port")?;
    let (at, client) = console(through.as_str()).await?;
    let mut looking = JoinSet::new();
    let browser = browser()?;
    for _ in 0..viewers {
        let mut stream = browser
            .get(format!("http://{at}/live{page}"))
            .send()
            .await?;
        stream.chunk().await?.ok_or("a stream begins with a page")?;
        looking.spawn(async move { while let Ok(Some(_)) = stream.chunk().await {} });
    }
    let before = proxy.requests();
    tokio::time::sleep(time).await;
    let requests = proxy.requests() - before;
    looking.shutdown().await;
    drop(client);
    Ok(f64::from(requests) / time.as_secs_f64())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let mut times = table(&[
        "engine, page",
        "p50 ms",
        "p99 ms",
        "longest ms",
        "rows read",
        "scans",
    ]);
    let mut viewers = table(&["engine, page", "requests/s of 1 viewer", "of many", "ratio"]);
    for engine in &arguments.engines {
        let shop = Shop::fill(*engine, &arguments).await?;
        let (at, _client) = console(&shop.server.url).await?;
        for page in pages(arguments.locks) {
            ask(at, &page, 5).await?;
            let before = read(&shop.server).await?;
            let quantiles = ask(at, &page, arguments.times).await?;
            let after = read(&shop.server).await?;
            let mut cells = vec![format!("{engine} {page}")];
            cells.extend(quantiles.map(|time| format!("{time:.1}")));
            let count = i64::try_from(arguments.times)?;
            let reads = before.zip(after).map(|(before, after)| {
                [0, 1].map(|n| ((after[n] - before[n]) / count).to_string())
            });
            cells.extend(reads.unwrap_or_else(|| ["-", "-"].map(str::to_owned)));
            eprintln!("{}", cells.join(" "));
            times.add_row(cells);
        }
        if arguments.viewers == 0 || *engine == Engine::Sqlite {
            continue;
        }
        for page in ["/overview", "/locks", "/records"] {
            let time = Duration::from_secs(arguments.seconds);
            let one = watched(&shop.server, page, 1, time).await?;
            let many = watched(&shop.server, page, arguments.viewers, time).await?;
            viewers.add_row([
                format!("{engine} {page}"),
                format!("{one:.2}"),
                format!("{many:.2}"),
                format!("{:.3}", many / one),
            ]);
        }
    }
    println!("{times}\n\n{} viewers:\n\n{viewers}", arguments.viewers);
    Ok(())
}
