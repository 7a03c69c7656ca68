//! A disk that is really full (`max_page_count`, SQLite's own limit, does not have its effects): when there is room
//! again, all goes on.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rowlock::{Begun, Engine, Error, Fingerprint, IdempotencyGuard, Outcome, Rowlock, Scope};
use rowlock_test::{release, take, tell};
use sqlx::SqlitePool;
use tokio::task::JoinSet;

use crate::role::{Part, Role};

const DISK: &str = "4m";
/// More than is left of a full disk.
const LARGE: usize = 200_000;

/// Starts a process that mounts a disk of its own (`unshare(1)`), and fills it.
pub(crate) async fn run(_: Engine) {
    let dir = tempfile::tempdir().unwrap();
    let role = Role {
        part: Part::FullDisk,
        url: format!("sqlite:{}/app.db?mode=rwc", dir.path().display()),
        ttl: Duration::from_mins(10),
    };
    let program = role.command();
    let mount = format!(r#"mount -t tmpfs -o size={DISK} tmpfs "$0" && exec "$1""#);
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", &mount]);
    command.arg(dir.path()).arg(program.get_program());
    command.envs(
        program
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let ended = tokio::task::spawn_blocking(move || command.output().unwrap());
    let ended = ended.await.unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(
        ended.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    assert_eq!(said, "full\nroom\n");
}

async fn begin(rowlock: &Rowlock, key: &str) -> Result<IdempotencyGuard, Error> {
    match rowlock
        .idempotency()
        .begin(Scope("s").key(key), Fingerprint::of(key))
        .await?
    {
        Begun::New(guard) => Ok(guard),
        other => panic!("{key}: {other:?}"),
    }
}

async fn run_in_tx(
    rowlock: &Rowlock,
    pool: &SqlitePool,
    key: &str,
    bytes: usize,
) -> Result<Begun<Outcome>, Error> {
    let work = |_| async move { Outcome::new("b", vec![7; bytes]) };
    rowlock
        .idempotency()
        .run_in_tx(pool, Scope("s").key(key), Fingerprint::of(key), work)
        .await
}

/// Fills the disk to the last byte.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    for size in [4096, 1] {
        while file.write_all(&vec![0; size]).is_ok() {}
    }
}

/// The process: everything is tried while the disk is full, several times and at once, and must be possible when there
/// is room.
pub(crate) async fn play(role: &Role) {
    let path = role.url.strip_prefix("sqlite:").unwrap();
    let filler = Path::new(path).with_file_name("filler");
    let rowlock = role.connect().await;
    let pool = SqlitePool::connect(&role.url).await.unwrap();
    let large = Outcome::new("b", vec![7; LARGE]).unwrap();
    let mut guards = Vec::new();
    for n in 0..4 {
        guards.push(begin(&rowlock, &format!("k{n}")).await.unwrap());
    }
    let permits = rowlock.semaphore("permits", 4);
    let held = permits.acquire().await.unwrap();
    let mut failed = 0;
    fill(&filler);
    for round in 0..5 {
        let mut all = JoinSet::new();
        for guard in &guards {
            failed += usize::from(guard.complete(&large).await.is_err());
        }
        for n in 0..4 {
            let (rowlock, pool) = (rowlock.clone(), pool.clone());
            all.spawn(async move {
                run_in_tx(&rowlock, &pool, &format!("r{n}"), LARGE)
                    .await
                    .is_err()
            });
            let (permits, rowlock) = (permits.clone(), role.connect().await);
            all.spawn(async move {
                let begun = begin(&rowlock, &format!("new {round} {n}")).await;
                permits.try_acquire().await.is_err() || begun.is_err()
            });
        }
        failed += all
            .join_all()
            .await
            .into_iter()
            .filter(|failed| *failed)
            .count();
    }
    assert!(failed >= 5 * 4, "it was full: {failed}");
    tell("full");
    std::fs::remove_file(&filler).unwrap();
    for guard in &guards {
        guard.complete(&large).await.unwrap();
    }
    release(&held).await;
    let again = permits.acquire().await.unwrap();
    release(&again).await;
    release(&take(&rowlock, "a", role.ttl).await).await;
    for n in 0..8 {
        let begun = run_in_tx(&rowlock, &pool, &format!("r{n}"), 10)
            .await
            .unwrap();
        assert!(matches!(begun, Begun::New(_)), "{begun:?}");
        pool.begin_with("BEGIN IMMEDIATE")
            .await
            .unwrap()
            .rollback()
            .await
            .unwrap();
    }
    tell("room");
}
