//! A connection of rowlock's own: how it sends verbs, and how it ends.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::{Connection as _, SqliteConnection};

use super::closing::Closing;
use super::file::{self, FileId};
use crate::model::FaultKind;
use crate::store::driver::connect::{Connection, VerbCall};
use crate::store::driver::writers::Writers;
use crate::store::verbs::fault::Fault;
use crate::store::verbs::schema::{MigrateFault, MigrateUntil, SchemaStore};

/// A connection of rowlock's own, whose verbs take turns with the other writers of this process.
#[derive(Debug)]
pub(crate) struct FileConnection {
    /// `None`: it is closed.
    conn: Option<SqliteConnection>,
    /// `None` for a database in memory.
    writers: Option<Arc<Writers>>,
    /// The file's name, and which file it was when it was opened.
    file: Option<(PathBuf, FileId)>,
    /// The driver believes that a transaction is open.
    is_orphaned: bool,
    closing: Arc<Closing>,
}

impl FileConnection {
    pub(super) fn new(
        conn: SqliteConnection,
        file: Option<(PathBuf, FileId)>,
        writers: Option<Arc<Writers>>,
        closing: &Arc<Closing>,
    ) -> Self {
        Self {
            conn: Some(conn),
            writers,
            file,
            is_orphaned: false,
            closing: Arc::clone(closing),
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
        let conn = self.conn.as_mut().ok_or_else(closed)?;
        let verb = conn.run(call, bound);
        let done = match &self.writers {
            Some(writers) => writers.in_turns(bound, verb).await,
            None => verb.await,
        };
        if done.is_err() && conn.is_in_transaction() {
            // The ROLLBACK may be under way.
            conn.ping().await?;
            if conn.is_in_transaction() {
                // On a full disk SQLite has rolled back by itself, and then refuses the driver's ROLLBACK.
                self.is_orphaned = true;
            }
        }
        // It may have waited for its turn.
        self.check_file()?;
        done
    }

    async fn migrate(&mut self, until: MigrateUntil) -> Result<Vec<String>, MigrateFault> {
        let conn = self.conn.as_mut().ok_or_else(closed)?;
        Connection::migrate(conn, until).await
    }

    async fn close(mut self: Box<Self>) {
        if let Some(conn) = self.conn.take() {
            let _ = sqlx::Connection::close(conn).await;
        }
    }
}

impl Drop for FileConnection {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            let close = async move { drop(sqlx::Connection::close(conn).await) };
            self.closing.begin(close);
        }
    }
}

fn closed() -> Fault {
    Fault::said(FaultKind::Disconnected, "the connection is closed")
}

/// Without turns.
#[async_trait(?Send)]
impl Connection for SqliteConnection {
    async fn run(&mut self, call: &mut dyn VerbCall, _bound: Duration) -> Result<(), Fault> {
        call.on(self).await
    }

    async fn migrate(&mut self, until: MigrateUntil) -> Result<Vec<String>, MigrateFault> {
        SchemaStore::migrate(self, until).await
    }

    async fn close(self: Box<Self>) {
        let _ = sqlx::Connection::close(*self).await;
    }
}
