//! Which server and which database this is, and its schema.

use async_trait::async_trait;
use uuid::Uuid;

use super::fault::Fault;
use super::migrate::MigrateFault;
use crate::model::Engine;

/// The verbs for what is there before any lock: the server, and the schema.
#[async_trait]
pub(crate) trait SchemaStore {
    /// Which server this is, and its version. Asked once, when the client starts.
    async fn server(&mut self) -> Result<Server, Fault>;

    /// The applied migrations, oldest first; `None` when there is no history table.
    async fn schema_history(&mut self) -> Result<Option<Vec<Applied>>, Fault>;

    /// Applies the migrations that are missing, under a lock in the database, and names them.
    async fn migrate(&mut self) -> Result<Vec<String>, MigrateFault>;

    /// The database's own id, which tells it from every other one.
    async fn database_id(&mut self) -> Result<Uuid, Fault>;
}

/// What the server said of itself.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) engine: Engine,
    pub(crate) version: String,
    /// The oldest supported version, when this one is older.
    pub(crate) too_old: Option<&'static str>,
    /// It is one of several that take writes: what is locked on one is not locked on the others, and of two
    /// transactions that write the same row through two of them, the second one to commit fails.
    pub(crate) multi_writer: bool,
}

/// A row of the history table.
#[derive(Debug, Clone)]
pub(crate) struct Applied {
    pub(crate) version: i32,
    pub(crate) name: String,
    pub(crate) checksum: String,
}

impl From<(i32, String, String)> for Applied {
    fn from((version, name, checksum): (i32, String, String)) -> Self {
        Self {
            version,
            name,
            checksum,
        }
    }
}
