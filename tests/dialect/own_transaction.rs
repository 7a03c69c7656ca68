//! SQLite: a lease that is waited for in a transaction of the caller's own, which has the file. rowlock cannot see
//! that it is the caller's.

use std::fmt::{self, Write};
use std::pin::pin;
use std::time::Duration;

use rowlock::{Engine, Rowlock};
use rowlock_test::{Db, patience};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The log, as an application that shows what waits are about.
struct Log(UnboundedSender<String>);

impl Subscriber for Log {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        of.target() == "rowlock::waiting" && *of.level() <= tracing::Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        let _ = self.0.send(line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {value:?}").unwrap();
    }
}

#[tokio::test]
async fn a_wait_without_a_limit_in_ones_own_transaction_is_told() {
    let (log, mut lines) = unbounded_channel();
    tracing::subscriber::set_global_default(Log(log)).unwrap();
    let db = Db::new(Engine::Sqlite).await;
    let builder = Rowlock::builder().operation_timeout(Duration::from_millis(300));
    let rowlock = builder.connect(&db.url).await.unwrap();
    let names = ["own a", "own b", "own c", "own d"];
    let (lock, other) = (rowlock.lock(names[0]), rowlock.lock(names[1]));
    let (permit, both) = (
        rowlock.semaphore(names[2], 1),
        rowlock.multi_lock([names[3]]),
    );
    let pool = sqlx::SqlitePool::connect(&db.url).await.unwrap();
    let tx = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let mut waits = pin!(async {
        tokio::join!(
            lock.acquire(),
            other.acquire(),
            permit.acquire(),
            both.acquire()
        )
    });
    // Other tests of this program have waits of their own.
    let mut next = async |level: &str| {
        let mut found = Vec::new();
        while found.len() < names.len() {
            let line = tokio::time::timeout(patience(), lines.recv()).await;
            let line = line.expect("it is told").unwrap();
            let name = names.iter().find(|name| line.contains(*name));
            if let Some(name) = name.filter(|_| line.starts_with(level)) {
                assert!(!found.contains(name), "once: {line}");
                assert!(
                    level == "INFO" || line.contains("does a long transaction"),
                    "{line}"
                );
                found.push(name);
            }
        }
    };
    tokio::select! {
        _ = &mut waits => panic!("the transaction has the file"),
        () = next("WARN") => {}
    }
    tx.rollback().await.unwrap();
    let (held, other, permit, both) = waits.await;
    assert!(held.is_ok() && other.is_ok() && permit.is_ok() && both.is_ok());
    drop((held, other, permit, both));
    db.remove().await;
}
