//! A connection of rowlock's own to a file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::{Connection as _, SqliteConnection};

use super::file::{self, FileId};
use super::writing::IS_RELAXED;
use crate::model::FaultKind;
use crate::store::driver::connector::{Connection, VerbCall};
use crate::store::driver::write_turn::Writers;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::schema::{MigrateFault, MigrateUntil, SchemaStore};

/// A connection of rowlock's own, whose verbs take turns with the other writers of this process.
#[derive(Debug)]
pub(crate) struct FileConnection {
    pub(super) conn: SqliteConnection,
    /// `None` for a database in memory.
    pub(super) writers: Option<Arc<Writers>>,
    /// The file's name, and which file it was when it was opened.
    pub(super) file: Option<(PathBuf, FileId)>,
    /// [`IS_RELAXED`]. (A verb that changes the level sets it back.)
    pub(super) is_relaxed: bool,
    /// The driver believes that a transaction is open.
    pub(super) is_orphaned: bool,
}

impl FileConnection {
    #[cfg(test)]
    pub(crate) fn without_turns(conn: SqliteConnection) -> Self {
        Self {
            conn,
            writers: None,
            file: None,
            is_relaxed: false,
            is_orphaned: false,
        }
    }

    fn check(&self) -> Result<(), Fault> {
        if self.is_orphaned {
            let orphaned = "a transaction on this connection cannot be rolled back";
            return Err(Fault::said(FaultKind::Disconnected, orphaned));
        }
        self.check_file()
    }

    /// Fails if the name leads to another file than the one that is open: nobody else reads what is written there.
    fn check_file(&self) -> Result<(), Fault> {
        match &self.file {
            Some((path, id)) if file::id(path) != Some(*id) => {
                Err(Fault::said(FaultKind::Disconnected, file::REPLACED))
            }
            _ => Ok(()),
        }
    }
}

#[async_trait(?Send)]
impl Connection for FileConnection {
    async fn run(&mut self, call: &mut dyn VerbCall, bound: Duration) -> Result<(), Fault> {
        self.check()?;
        let verb = IS_RELAXED.scope(self.is_relaxed, call.on(&mut self.conn));
        let done = match &self.writers {
            Some(writers) => writers.in_turns(bound, verb).await,
            None => verb.await,
        };
        if done.is_err() && self.conn.is_in_transaction() {
            // The ROLLBACK may be under way.
            self.conn.ping().await?;
            if self.conn.is_in_transaction() {
                // On a full disk SQLite has rolled back by itself, and then refuses the driver's ROLLBACK.
                self.is_orphaned = true;
            }
        }
        // It may have waited for its turn.
        self.check_file()?;
        done
    }

    async fn migrate(&mut self, until: MigrateUntil) -> Result<Vec<String>, MigrateFault> {
        SchemaStore::migrate(&mut self.conn, until).await
    }

    async fn close(self: Box<Self>) {
        // Of two that close a file at the same time each takes the other one for the last, and leaves the log.
        static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let _alone = ALONE.lock().await;
        let _ = sqlx::Connection::close(self.conn).await;
    }
}
