//! The SQLite file under a running client: a second name, a removed file, another file in its place.
#![cfg(unix)]

use std::path::Path;
use std::time::Duration;

use rowlock::{ConnectError, Error, Rowlock};
use rowlock_test::take;

const TTL: Duration = Duration::from_mins(10);

/// SQLite would keep a log for each name, and both clients would hold the lock.
#[tokio::test]
async fn a_file_that_has_a_hard_link_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one.db"), dir.path().join("two.db"));
    let url = |path: &Path| format!("sqlite:{}", path.display());
    let first = Rowlock::connect(&url(&one)).await.unwrap();
    let held = take(&first, "a", TTL).await;
    std::fs::hard_link(&one, &two).unwrap();
    for path in [&two, &one] {
        let refused = Rowlock::connect(&url(path)).await.unwrap_err();
        assert!(
            matches!(refused, Error::Connect(ConnectError::Unwritable { .. })),
            "{refused}"
        );
        assert!(refused.to_string().contains("a hard link"), "{refused}");
    }
    assert!(held.is_held());
    std::fs::remove_file(&two).unwrap();
    // SQLite follows a symbolic link itself.
    std::os::unix::fs::symlink(&one, &two).unwrap();
    let second = Rowlock::connect(&url(&two)).await.unwrap();
    let asked = second.lock("a").try_acquire().await.unwrap();
    assert!(asked.is_none());
}

/// What is written to a file that has no name any more is lost, and others lock in the file that took its place.
#[tokio::test]
async fn a_lease_in_a_file_that_was_removed_or_replaced_is_lost() {
    for is_replaced in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("app.db");
        let url = format!("sqlite:{}", path.display());
        let first = Rowlock::connect(&url).await.unwrap();
        let held = take(&first, "a", Duration::from_secs(3)).await;
        for file in ["app.db", "app.db-wal", "app.db-shm"] {
            let _ = std::fs::remove_file(dir.path().join(file));
        }
        if is_replaced {
            let second = Rowlock::connect(&url).await.unwrap();
            let other = take(&second, "a", TTL).await;
            let lost = held.lost().await;
            assert!(other.is_held(), "{lost:?}");
        } else {
            held.lost().await;
        }
        assert!(!held.is_held());
        let released = held.release().await;
        assert!(released.is_err(), "{released:?}");
        first.shutdown(Duration::ZERO).await;
    }
}
