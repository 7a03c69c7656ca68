//! What a client costs while nothing happens: its memory for each thing that it holds or waits for, and its
//! statements a minute.
//!
//! Each figure comes from a process of its own: the program starts itself again.

#[path = "figures.rs"]
#[allow(dead_code, reason = "it also serves the other benchmarks")]
mod figures;
mod memory;
mod plot;
mod servers;
mod statements;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use rowlock::{Begun, Engine, Fingerprint, Held, Rowlock, Scope};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use figures::table;
use memory::resident;
use plot::{Line, Plot, plain};
use servers::Server;
use statements::Statements;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How many are made at the same time.
const AT_ONCE: usize = 512;

/// Until the pace of a client is the lasting one.
const SETTLING: Duration = Duration::from_secs(20);

const HEADER: [&str; 5] = ["engine", "what", "count", "bytes of each", "statements/min"];

#[derive(Debug, Parser)]
struct Arguments {
    /// Engines to measure, each on a separate durable server.
    #[arg(long, value_delimiter = ',', default_value = "postgres,mariadb,mysql")]
    engines: Vec<Engine>,
    /// What to hold, or to wait for.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "leases,session-locks,waiters,tasks,keys"
    )]
    what: Vec<What>,
    /// So many of them.
    #[arg(long, value_delimiter = ',', default_value = "1000,10000")]
    counts: Vec<usize>,
    /// How long statements are counted, in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The folder for `idle.csv` and the plots.
    #[arg(long)]
    out: Option<PathBuf>,
    /// The database of a process that this program has started.
    #[arg(long, hide = true)]
    child: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// A client that has nothing.
    Nothing,
    /// Leases of 30 s.
    Leases,
    /// Locks in the client's session.
    SessionLocks,
    /// Tasks that wait for a name each.
    Waiters,
    /// Tasks that wait for one name.
    Tasks,
    /// Keys whose attempts run.
    Keys,
}

impl What {
    const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Leases => "leases",
            Self::SessionLocks => "session-locks",
            Self::Waiters => "waiters",
            Self::Tasks => "tasks",
            Self::Keys => "keys",
        }
    }

    /// How many names another client has to hold for so many of them.
    const fn awaited(self, count: usize) -> usize {
        match self {
            Self::Waiters => count,
            Self::Tasks => 1,
            _ => 0,
        }
    }
}

struct Figure {
    engine: &'static str,
    what: What,
    count: usize,
    /// KiB of the client without them, and with them.
    memory: [f64; 2],
    /// A minute.
    statements: f64,
}

impl Figure {
    fn row(&self) -> [String; 5] {
        let bytes = match self.count {
            0 => String::new(),
            _ => format!("{:.0}", self.bytes_of_each()),
        };
        [
            self.engine.to_owned(),
            self.what.name().to_owned(),
            self.count.to_string(),
            bytes,
            format!("{:.1}", self.statements),
        ]
    }

    fn bytes_of_each(&self) -> f64 {
        let [before, after] = self.memory;
        (after - before).max(0.0) * 1024.0 / to_float(self.count)
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    if let Some(url) = &arguments.child {
        return hold(url, arguments.what[0], arguments.counts[0]).await;
    }
    let mut figures = Vec::new();
    for engine in &arguments.engines {
        let server = Server::start(*engine)?;
        figures.push(measure(&arguments, &server, What::Nothing, 0).await?);
        for what in &arguments.what {
            for count in &arguments.counts {
                figures.push(measure(&arguments, &server, *what, *count).await?);
            }
        }
    }
    print(&figures);
    match &arguments.out {
        Some(out) => write(out, &figures),
        None => Ok(()),
    }
}

fn print(figures: &[Figure]) {
    let mut rows = table(&HEADER);
    for figure in figures {
        rows.add_row(figure.row());
    }
    println!("{rows}");
}

fn write(out: &Path, figures: &[Figure]) -> Result<(), Failure> {
    std::fs::create_dir_all(out)?;
    let mut csv = csv::Writer::from_path(out.join("idle.csv"))?;
    csv.write_record(HEADER)?;
    for figure in figures {
        csv.write_record(figure.row())?;
    }
    csv.flush()?;
    let mut engines: Vec<&str> = figures.iter().map(|figure| figure.engine).collect();
    engines.dedup();
    for engine in engines {
        let lines = |y: fn(&Figure) -> f64| -> Vec<Line> {
            let whats = What::value_variants().iter();
            let points = |what: &What| {
                let of = |figure: &&Figure| {
                    figure.engine == engine && figure.what == *what && figure.count > 0
                };
                let points = figures.iter().filter(of);
                points
                    .map(|figure| (to_float(figure.count), y(figure)))
                    .collect()
            };
            whats.map(|what| (what.name(), points(what))).collect()
        };
        for (what, y, of) in [
            (
                "memory",
                "bytes of each",
                Figure::bytes_of_each as fn(&Figure) -> f64,
            ),
            ("statements", "statements/min", |figure| figure.statements),
        ] {
            let plot = Plot {
                title: format!("At rest on {engine}: {y}"),
                x: ("count", plain),
                y,
                color: |name| {
                    let is_it = |what: &What| what.name() == name;
                    What::value_variants().iter().position(is_it).unwrap_or(0)
                },
            };
            plot.draw(&out.join(format!("{what}-{engine}.svg")), &lines(of))?;
        }
    }
    Ok(())
}

async fn measure(
    arguments: &Arguments,
    server: &Server,
    what: What,
    count: usize,
) -> Result<Figure, Failure> {
    // Its own renewals are too rare to count.
    let builder = Rowlock::builder().session_ttl(Duration::from_hours(12));
    let others = builder.clean_every(None).connect(&server.url).await?;
    let prefix = format!("{}-{count}", what.name());
    let holder = others.clone();
    let held: Vec<Held> = each(what.awaited(count), move |number| {
        let lock = holder.lock(format!("{prefix}-{number}")).in_session();
        async move { Ok(lock.acquire().await?) }
    })
    .await?;
    let (mut child, memory) = start(&server.url, what, count).await?;
    let mut statements = Statements::connect(server).await?;
    tokio::time::sleep(SETTLING).await;
    let before = statements.read().await?;
    tokio::time::sleep(Duration::from_secs(arguments.seconds)).await;
    let after = statements.read().await?;
    // It ends with its input.
    drop(child.stdin.take());
    child.wait().await?;
    drop(held);
    others.shutdown(Duration::from_mins(1)).await;
    Ok(Figure {
        engine: server.engine.name(),
        what,
        count,
        memory,
        // The first reading counts, too.
        statements: (after - before - 1.0) * 60.0
            / Duration::from_secs(arguments.seconds).as_secs_f64(),
    })
}

/// Starts a process that holds them. Returns its memory without them and with them.
async fn start(url: &str, what: What, count: usize) -> Result<(Child, [f64; 2]), Failure> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--child", url, "--what", what.name()])
        .args(["--counts", &count.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    let line = lines.next_line().await?.ok_or("it has ended early")?;
    let (before, after) = line.split_once(' ').ok_or("no two numbers")?;
    Ok((child, [before.parse()?, after.parse()?]))
}

/// Makes them, prints the memory before and after, and keeps them until the end of the input.
async fn hold(url: &str, what: What, count: usize) -> Result<(), Failure> {
    let rowlock = Rowlock::connect(url).await?;
    let idempotency = rowlock.idempotency();
    let prefix = format!("{}-{count}", what.name());
    // What the first one brings is not of each.
    drop(rowlock.lock("first").acquire().await?);
    let client = rowlock.clone();
    let before = resident()?;
    let mut tasks = JoinSet::new();
    let (mut held, mut keys) = (Vec::new(), Vec::new());
    match what {
        What::Nothing => {}
        What::Leases | What::SessionLocks => {
            let in_session = what == What::SessionLocks;
            held = each(count, move |number| {
                let lock = client.lock(format!("{prefix}-{number}"));
                let lock = if in_session { lock.in_session() } else { lock };
                async move { Ok(lock.acquire().await?) }
            })
            .await?;
        }
        What::Keys => {
            keys = each(count, move |number| {
                let (idempotency, key) = (idempotency.clone(), format!("{prefix}-{number}"));
                async move {
                    let key = Scope("idle").key(key);
                    match idempotency.begin(key, Fingerprint::of("request")).await? {
                        Begun::New(guard) => Ok(guard),
                        begun => Err(format!("{begun:?}").into()),
                    }
                }
            })
            .await?;
        }
        What::Waiters | What::Tasks => {
            let names = what.awaited(count);
            for number in 0..count {
                let lock = client.lock(format!("{prefix}-{}", number % names));
                let lock = lock.queue_limit(u32::try_from(count)?);
                tasks.spawn(async move { lock.acquire().await.map(drop) });
            }
            for number in 0..names {
                while client
                    .admin()
                    .queue(format!("{prefix}-{number}"))
                    .await?
                    .is_empty()
                {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }
    println!("{before} {}", resident()?);
    let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    tasks.shutdown().await;
    drop((held, keys));
    rowlock.shutdown(Duration::from_mins(1)).await;
    Ok(())
}

/// Makes so many, [`AT_ONCE`] at the same time. (A task for each would leave its own memory in the figures.)
async fn each<T, F>(
    count: usize,
    make: impl Fn(usize) -> F + Clone + Send + 'static,
) -> Result<Vec<T>, Failure>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Failure>> + Send,
{
    let mut tasks = JoinSet::new();
    for first in 0..AT_ONCE.min(count) {
        let make = make.clone();
        tasks.spawn(async move {
            let mut made = Vec::new();
            for number in (first..count).step_by(AT_ONCE) {
                made.push(make(number).await?);
            }
            Ok::<_, Failure>(made)
        });
    }
    let mut all = Vec::with_capacity(count);
    while let Some(made) = tasks.join_next().await {
        all.extend(made??);
    }
    Ok(all)
}

#[allow(clippy::cast_precision_loss, reason = "counts are small")]
fn to_float(count: usize) -> f64 {
    count as f64
}
