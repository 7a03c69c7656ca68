//! Connections that were dropped, also while they were being made. sqlx closes their files on threads of its own, a
//! moment later.
//!
//! The last connection that closes a file puts SQLite's log into the file, and removes the log. So a client waits for
//! all of its connections before it ends. If two close the file at the same time, each takes the other one for the
//! last, and the log stays (7 of 3,000 shutdowns). Then one more connection opens the file, and closes it alone.

use std::fmt;
use std::mem::take;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

type Ending = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What still ends, of one client.
#[derive(Default)]
pub(super) struct Closing {
    endings: Mutex<Vec<Ending>>,
    /// The threads of the client end at about the same time.
    alone: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Closing")
            .field(&self.endings().len())
            .finish()
    }
}

impl Closing {
    fn endings(&self) -> MutexGuard<'_, Vec<Ending>> {
        self.endings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins it, and goes on with the others. The one that is polled may begin another one.
    pub(super) fn begin(&self, ending: impl Future<Output = ()> + Send + 'static) {
        let mut endings = take(&mut *self.endings());
        endings.push(Box::pin(ending));
        let mut cx = Context::from_waker(Waker::noop());
        endings.retain_mut(|ending| ending.as_mut().poll(&mut cx).is_pending());
        self.endings().append(&mut endings);
    }

    /// Waits until all have ended, and the file has no log because of them.
    pub(super) async fn ended(&self, path: Option<PathBuf>) {
        loop {
            let next = self.endings().pop();
            let Some(next) = next else {
                break;
            };
            next.await;
        }
        let _alone = self.alone.lock().await;
        if let Some(path) = path.filter(|path| has_log(path)) {
            // While others use the file, this changes nothing. Nothing depends on it, if it fails.
            let _ = open_and_close(&path).await;
        }
    }

    /// Goes on with the opening of a connection when its future is dropped.
    pub(super) fn opening<T: Send + 'static>(
        self: &Arc<Self>,
        opening: impl Future<Output = T> + Send + 'static,
    ) -> Opening<T> {
        Opening {
            opening: Some(Box::pin(opening)),
            closing: Arc::clone(self),
        }
    }
}

/// A connection that is being made.
pub(super) struct Opening<T: Send + 'static> {
    opening: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    closing: Arc<Closing>,
}

impl<T: Send + 'static> Future for Opening<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(opening) = &mut self.opening else {
            return Poll::Pending;
        };
        let polled = opening.as_mut().poll(cx);
        if polled.is_ready() {
            self.opening = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Opening<T> {
    fn drop(&mut self) {
        if let Some(opening) = self.opening.take() {
            // Dropping the connection closes it.
            self.closing.begin(async move { drop(opening.await) });
        }
    }
}

/// SQLite follows a symbolic link, and has the log beside the file itself.
fn has_log(path: &Path) -> bool {
    let Ok(path) = path.canonicalize() else {
        return false;
    };
    let mut log = path.into_os_string();
    log.push("-wal");
    Path::new(&log).exists()
}

/// Without the settings of a pool, which may change the file.
async fn open_and_close(path: &Path) -> Result<(), sqlx::Error> {
    let options = SqliteConnectOptions::new().filename(path);
    let mut conn = options.disable_statement_logging().connect().await?;
    // The first look into the file opens the log.
    sqlx::raw_sql("PRAGMA schema_version")
        .execute(&mut conn)
        .await?;
    conn.close().await
}
