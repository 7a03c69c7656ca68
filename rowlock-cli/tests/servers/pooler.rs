//! PgBouncer in transaction mode, in front of the command.

use std::process::Child;
use std::time::Duration;

use rowlock::{Engine, Rowlock};
use rowlock_test::{Db, Own, eventually, take};

use crate::command::{command, rowlock};

const TTL: Duration = Duration::from_secs(30);

/// A database, and the way to it through a pooler that nobody has used yet.
struct Pooled {
    db: Db,
    bouncer: Own,
    url: String,
}

impl Pooled {
    async fn new() -> Self {
        let db = Db::new(Engine::Postgres).await;
        let bouncer = Own::start("pgbouncer", &[&db.url]);
        let url = bouncer.instead_of(&db.url);
        Self { db, bouncer, url }
    }

    async fn remove(self) {
        drop(self.bouncer);
        self.db.remove().await;
    }
}

#[tokio::test]
async fn the_command_runs_under_a_lock() {
    let it = Pooled::new().await;
    for _ in 0..6 {
        let run = ["run", "a", "--no-wait", "--", "echo", "ran"];
        let output = rowlock(&it.url, &run);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert_eq!(output.stdout, b"ran\n");
    }
    it.remove().await;
}

/// A process that ends with the test, also when it is frozen.
struct Ended(Child);

impl Ended {
    /// Stops it. None of its threads runs when this returns.
    async fn freeze(&self) {
        let process = self.0.id().to_string();
        let mut stop = std::process::Command::new("kill");
        assert!(stop.args(["-STOP", &process]).status().unwrap().success());
        let is_stopped = || {
            let mut threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
            threads.all(|thread| {
                let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
                // The state follows the name, which stands in parentheses (proc_pid_stat(5)).
                stat.rsplit(") ").next().unwrap().starts_with('T')
            })
        };
        eventually("it is stopped", async || is_stopped()).await;
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The row that a client has made in a transaction that it does not end keeps others who want that name waiting, and
/// what shares their statement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_vanishes_before_its_commit_holds_up_others_for_a_moment_only() {
    let it = Pooled::new().await;
    let rowlock = Rowlock::connect(&it.url).await.unwrap();
    it.db
        .execute(
            "CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END'; \
             CREATE TRIGGER stop AFTER INSERT ON rowlock_lock FOR EACH ROW \
             WHEN (NEW.name = 'frozen'::bytea) EXECUTE FUNCTION stop()",
        )
        .await;
    let mut stop = it.db.begin().await;
    stop.execute("SELECT pg_advisory_xact_lock(1)")
        .await
        .unwrap();
    let child = command(&it.url, &["run", "frozen", "--", "true"]).spawn();
    let child = Ended(child.unwrap());
    let waiting = async |count| it.db.waiting().await == count;
    eventually("its statement has made the row", async || waiting(1).await).await;
    let same = tokio::spawn({
        let rowlock = rowlock.clone();
        async move { take(&rowlock, "frozen", TTL).await }
    });
    eventually("another client wants the name", async || waiting(2).await).await;
    child.freeze().await;
    stop.commit().await.unwrap();
    let idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                AND state = 'idle in transaction'";
    eventually("it is not committed", async || {
        it.db.number(idle).await == 1
    })
    .await;
    // It is frozen until the end of the test: the server ends its transaction.
    for n in 0..16 {
        drop(take(&rowlock, &format!("other {n}"), TTL).await);
    }
    drop(same.await.unwrap());
    drop(child);
    drop(rowlock);
    it.remove().await;
}
