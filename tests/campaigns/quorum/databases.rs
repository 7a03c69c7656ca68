//! Three servers and two files. What happens to one of them is a task; a database that has one is away until its end.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::Rng;
use rand::seq::IteratorRandom;
use rowlock::{Engine, Rowlock};
use rowlock_test::{Db, Killable, children};
use tokio::task::{JoinHandle, block_in_place};

use super::TTL;

/// How a database that has lost its data comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wiped {
    InQuarantine,
    /// As if nothing had happened.
    Bare,
}

enum Place {
    Killable(Killable),
    File(Db),
}

struct Database {
    place: Place,
    url: String,
}

#[derive(Debug, Default)]
pub(super) struct Struck {
    killed: u32,
    paused: u32,
    wiped: u32,
}

impl fmt::Display for Struck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} kills, {} pauses and {} total losses of databases",
            self.killed, self.paused, self.wiped
        )
    }
}

/// The databases. Those that are away have a task.
pub(super) struct Databases {
    each: Vec<Arc<Database>>,
    away: Vec<Option<JoinHandle<()>>>,
    struck: Struck,
}

impl Databases {
    pub(super) async fn start() -> Self {
        let mut each = Vec::new();
        for engine in [Engine::Postgres, Engine::MariaDb, Engine::MySql] {
            let server = Killable::new(engine);
            let url = block_in_place(|| {
                server.start();
                server.stop();
                // What a total loss goes back to.
                copy(&server.dir().join("data"), &server.dir().join("empty"));
                server.start()
            });
            let place = Place::Killable(server);
            each.push(Arc::new(Database { place, url }));
        }
        for _ in 0..2 {
            let db = Db::new(Engine::Sqlite).await;
            let url = db.url.clone();
            let place = Place::File(db);
            each.push(Arc::new(Database { place, url }));
        }
        for database in &each {
            // Its tables.
            drop(Rowlock::connect(&database.url).await.unwrap());
        }
        let away = each.iter().map(|_| None).collect();
        Self {
            each,
            away,
            struck: Struck::default(),
        }
    }

    pub(super) fn urls(&self) -> String {
        let urls: Vec<&str> = self.each.iter().map(|database| &*database.url).collect();
        urls.join(" ")
    }

    /// How many are not away.
    pub(super) fn there(&self) -> usize {
        self.away.iter().filter(|away| away.is_none()).count()
    }

    /// Takes in those that are back.
    pub(super) fn settle(&mut self) {
        for away in &mut self.away {
            away.take_if(|task| task.is_finished());
        }
    }

    /// Strikes one of those that are there, unless two are away.
    pub(super) fn strike_one(&mut self, wiped: Wiped) {
        self.settle();
        if self.there() <= 3 {
            return;
        }
        let there = (0..self.each.len()).filter(|at| self.away[*at].is_none());
        let Some(at) = there.choose(&mut rand::rng()) else {
            return;
        };
        let database = Arc::clone(&self.each[at]);
        let time = Duration::from_millis(rand::rng().random_range(300..3_000));
        let what = rand::rng().random_range(0..3);
        let struck = match (&database.place, what) {
            (Place::File(_), _) | (_, 0) => &mut self.struck.paused,
            (_, 1) => &mut self.struck.killed,
            _ => &mut self.struck.wiped,
        };
        *struck += 1;
        self.away[at] = Some(tokio::spawn(async move {
            match (&database.place, what) {
                (Place::File(db), _) => pause_file(db, time).await,
                (Place::Killable(server), 0) => {
                    let stopped = pause(server);
                    tokio::time::sleep(time).await;
                    wake(&stopped);
                }
                (Place::Killable(server), 1) => {
                    block_in_place(|| server.kill());
                    tokio::time::sleep(time).await;
                    block_in_place(|| server.start());
                }
                (Place::Killable(server), _) => wipe(server, &database.url, wiped).await,
            }
        }));
    }

    fn server(&self, at: usize) -> &Killable {
        match &self.each[at].place {
            Place::Killable(server) => server,
            Place::File(_) => panic!("the first three are servers"),
        }
    }

    /// Pauses two servers. The third one is PostgreSQL, which starts the fastest.
    pub(super) fn pause_two(&self) -> Vec<Pid> {
        [pause(self.server(1)), pause(self.server(2))].concat()
    }

    /// The third server loses all its data, and comes back; then the two that were paused go on.
    pub(super) fn forget(&self, two: Vec<Pid>, wiped: Wiped, ttl: Duration) -> JoinHandle<()> {
        let third = Arc::clone(&self.each[0]);
        tokio::spawn(async move {
            let Place::Killable(server) = &third.place else {
                panic!("the first three are servers");
            };
            block_in_place(|| {
                server.kill();
                wake(&two);
                empty(server);
                server.start();
            });
            drop(back(&third.url, wiped, ttl).await);
        })
    }

    /// Ends the databases, when all are back.
    pub(super) async fn end(self) -> Struck {
        for away in self.away.into_iter().flatten() {
            away.await.unwrap();
        }
        self.struck
    }
}

/// It comes back without its data.
async fn wipe(server: &Killable, url: &str, wiped: Wiped) {
    block_in_place(|| {
        server.kill();
        empty(server);
        server.start();
    });
    let rowlock = back(url, wiped, TTL).await;
    while let Some(left) = rowlock.admin().quarantine_left().await.unwrap() {
        tokio::time::sleep(left).await;
    }
}

/// Its tables are made: in quarantine for as long as the longest TTL, or not.
async fn back(url: &str, wiped: Wiped, ttl: Duration) -> Rowlock {
    let builder = match wiped {
        Wiped::InQuarantine => Rowlock::builder().quarantine(ttl),
        Wiped::Bare => Rowlock::builder(),
    };
    builder.connect(url).await.unwrap()
}

fn empty(server: &Killable) {
    let data = server.dir().join("data");
    std::fs::remove_dir_all(&data).unwrap();
    copy(&server.dir().join("empty"), &data);
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.unwrap().success());
}

/// Stops a server with all its processes.
fn pause(server: &Killable) -> Vec<Pid> {
    let first = server.pid();
    kill(first, Signal::SIGSTOP).unwrap();
    let mut stopped = vec![first];
    // PostgreSQL has a process for each connection.
    for child in children(first) {
        if kill(child, Signal::SIGSTOP).is_ok() {
            stopped.push(child);
        }
    }
    stopped
}

fn wake(stopped: &[Pid]) {
    for pid in stopped {
        // A process of a connection may have been told to end meanwhile.
        let _ = kill(*pid, Signal::SIGCONT);
    }
}

/// Another process writes for that long.
async fn pause_file(db: &Db, time: Duration) {
    let mut writer = db.begin().await;
    writer
        .execute("UPDATE rowlock_lock SET fence = fence WHERE 1 = 0")
        .await
        .unwrap();
    tokio::time::sleep(time).await;
    writer.release().await;
}
