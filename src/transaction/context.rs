//! The context of a call in a caller's transaction: its checks and its errors.

use std::sync::Arc;

use uuid::Uuid;

use super::Transaction;
use super::commit_failure::CommitFailure;
use crate::model::{Error, Subject, TransactionError};
use crate::runtime::Core;
use crate::runtime::upkeep::proven_pools;
use crate::store::driver::engines::{Driver, SupportedDatabase};
use crate::store::verbs::fault::Fault;
use crate::store::verbs::in_tx::TxReply;
use crate::store::verbs::schema::SchemaStore;

/// The client, the lock or record, and the operation, for checks and messages.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) on: Subject,
    pub(crate) doing: &'static str,
}

impl<'a> Context<'a> {
    /// Checks that the transaction's engine (`of`) is the client's engine.
    pub(crate) fn new(
        core: &'a Arc<Core>,
        on: Subject,
        doing: &'static str,
        of: Driver,
    ) -> Result<Self, Error> {
        let it = Self { core, on, doing };
        if core.server.driver == of {
            Ok(it)
        } else {
            Err(it.wrong(format!(
                "the transaction is one of {}, and the client's engine is {}",
                of.feature(),
                core.server.engine
            )))
        }
    }

    /// [`Self::new`] for a transaction of the caller's, which has to be open.
    pub(crate) fn in_tx<T: Transaction>(
        core: &'a Arc<Core>,
        on: Subject,
        doing: &'static str,
        tx: &T,
    ) -> Result<Self, Error> {
        let it = Self::new(core, on, doing, T::DRIVER)?;
        if tx.is_open() {
            return Ok(it);
        }
        Err(Error::Transaction(TransactionError::Over {
            doing,
            on: it.on,
            detail: "sqlx has begun none on this connection".into(),
        }))
    }

    /// The answer, if it comes from the client's database.
    pub(crate) fn told<F>(&self, told: Result<TxReply<F>, Fault>) -> Result<F, Error> {
        let told = told.map_err(|fault| self.error(fault))?;
        self.check(told.database)?;
        Ok(told.found)
    }

    /// Checks that `pool` leads to the client's database, by one statement for each pool. An answer that the client
    /// knows already proves nothing of the pool.
    pub(crate) async fn check_pool<B: SupportedDatabase>(
        &self,
        pool: &sqlx::Pool<B>,
    ) -> Result<(), CommitFailure> {
        let options = proven_pools::options(pool.connect_options());
        if self.core.proven.contains(&options) {
            return Ok(());
        }
        let id = pool.acquire().await?.database_id().await;
        let id = id.map_err(|fault| self.error(fault));
        id.and_then(|id| self.check(Some(id)))
            .map_err(CommitFailure::Ours)?;
        self.core.proven.insert(options);
        Ok(())
    }

    pub(crate) fn check(&self, database: Option<Uuid>) -> Result<(), Error> {
        match database {
            Some(id) if id == self.core.server.database => Ok(()),
            Some(_) => Err(self.wrong("its tables belong to another database".into())),
            None => Err(self.wrong(
                "its user sees no row in the table rowlock_database: the row was deleted, or row level security hides it".into(),
            )),
        }
    }

    fn wrong(&self, detail: String) -> Error {
        Error::Transaction(TransactionError::WrongDatabase {
            doing: self.doing,
            on: self.on.clone(),
            target: self.core.lanes.target.to_string(),
            detail,
        })
    }

    pub(crate) fn aborted(&self, detail: &str) -> Error {
        Error::Conflict {
            what: format!("{} {}: {detail}", self.doing, self.on),
        }
    }

    pub(crate) fn error(&self, fault: Fault) -> Error {
        fault.into_error_in_tx(self.doing, &self.on, &self.core.lanes.target)
    }
}
