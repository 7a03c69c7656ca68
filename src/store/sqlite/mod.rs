//! SQLite: a JSON array carries a batch, and there is one writer at a time.

mod clean;
mod connect;
mod fault;
mod form_token;
mod in_tx;
mod lease;
mod record;
mod record_in_tx;
mod schema;
mod step;

pub(crate) use connect::Sqlite;
pub(crate) use fault::kind as fault_kind;
pub(crate) use in_tx::BEGIN_TO_WRITE;
pub(crate) use schema::runner;

use std::time::Duration;

use sqlx::SqliteConnection;
use uuid::Uuid;

use crate::model::{Name, Outcome, RecordKey};
use crate::store::fault::Fault;
use crate::store::migrate::MigrateFault;
use crate::store::record::{
    ClaimAsk, Claimed, CleanedRows, DecideAsk, FinishAsk, Finished, KeepAsk, ListAsk, RecordRow,
    Records, StepAsk, StepBegun, StepRow, TokenAsk,
};
use crate::store::{
    Applied, CleanedLocks, Freed, LockRow, PinAsk, Pinned, ReleaseAsk, RenewAsk, Renewed, Server,
    Store, TakeAsk, Taken, Told, TxAsk, TxTaken, TxWaited,
};

impl Store for SqliteConnection {
    async fn server(&mut self) -> Result<Server, Fault> {
        Ok(connect::server(self).await?)
    }

    async fn schema_history(&mut self) -> Result<Option<Vec<Applied>>, Fault> {
        Ok(schema::history(self).await?)
    }

    async fn migrate(&mut self) -> Result<Vec<String>, MigrateFault> {
        schema::migrate(self).await
    }

    async fn database_id(&mut self) -> Result<Uuid, Fault> {
        Ok(schema::database_id(self).await?)
    }

    async fn lease_take(&mut self, asks: &[TakeAsk]) -> Result<Vec<Taken>, Fault> {
        Ok(lease::take(self, asks).await?)
    }

    async fn lease_renew(&mut self, asks: &[RenewAsk]) -> Result<Vec<Renewed>, Fault> {
        Ok(lease::renew(self, asks).await?)
    }

    async fn lease_release(&mut self, asks: &[ReleaseAsk]) -> Result<Vec<Freed>, Fault> {
        Ok(lease::release(self, asks).await?)
    }

    async fn lease_force_release(
        &mut self,
        name: &Name,
        _patience: Duration,
    ) -> Result<Option<LockRow>, Fault> {
        Ok(lease::force_release(self, name).await?)
    }

    async fn lock_inspect(&mut self, name: &Name) -> Result<Option<LockRow>, Fault> {
        Ok(lease::inspect(self, name).await?)
    }

    async fn lock_list(&mut self) -> Result<Vec<LockRow>, Fault> {
        Ok(lease::list(self).await?)
    }

    async fn lock_clean(&mut self, after: &[u8], limit: u32) -> Result<CleanedLocks, Fault> {
        Ok(clean::locks(self, after, limit).await?)
    }

    async fn lock_row(&mut self, name: &Name, make: bool) -> Result<Option<LockRow>, Fault> {
        Ok(lease::row(self, name, make).await?)
    }

    async fn tx_pin(&mut self, ask: &PinAsk) -> Result<Told<Pinned>, Fault> {
        in_tx::pin(self, ask).await
    }

    async fn tx_take(&mut self, asks: &[TxAsk]) -> Result<Told<TxTaken>, Fault> {
        in_tx::take(self, asks).await
    }

    async fn tx_wait(
        &mut self,
        names: &[Name],
        limit: Option<Duration>,
    ) -> Result<TxWaited, Fault> {
        in_tx::wait(self, names, limit).await
    }

    async fn tx_row(&mut self, name: &Name) -> Result<Told<Option<LockRow>>, Fault> {
        in_tx::row(self, name).await
    }
}

impl Records for SqliteConnection {
    async fn record_read(
        &mut self,
        keys: &[RecordKey],
        largest: usize,
    ) -> Result<Vec<Option<RecordRow>>, Fault> {
        Ok(record::read(self, keys, largest).await?)
    }

    async fn record_is_claimed(&mut self, _key: &RecordKey) -> Result<bool, Fault> {
        Ok(false)
    }

    async fn record_forget(&mut self, key: &RecordKey, attempt: i64) -> Result<(), Fault> {
        Ok(record::forget(self, key, attempt).await?)
    }

    async fn record_claim(&mut self, asks: &[ClaimAsk]) -> Result<Vec<Claimed>, Fault> {
        Ok(record::claim(self, asks).await?)
    }

    async fn record_renew(&mut self, asks: &[KeepAsk]) -> Result<Vec<Renewed>, Fault> {
        Ok(record::renew(self, asks).await?)
    }

    async fn record_finish(&mut self, asks: &[FinishAsk]) -> Result<Vec<Finished>, Fault> {
        Ok(record::finish(self, asks).await?)
    }

    async fn step_begin(&mut self, ask: &StepAsk) -> Result<StepBegun, Fault> {
        Ok(step::begin(self, ask).await?)
    }

    async fn step_finish(
        &mut self,
        ask: &StepAsk,
        outcome: Option<&Outcome>,
    ) -> Result<Finished, Fault> {
        Ok(step::finish(self, ask, outcome).await?)
    }

    async fn step_list(&mut self, key: &RecordKey) -> Result<Vec<StepRow>, Fault> {
        Ok(step::list(self, key).await?)
    }

    async fn record_list(&mut self, filter: &ListAsk) -> Result<Vec<RecordRow>, Fault> {
        Ok(record::list(self, filter).await?)
    }

    async fn record_decide(&mut self, ask: &DecideAsk) -> Result<bool, Fault> {
        Ok(record::decide(self, ask).await?)
    }

    async fn token_issue(&mut self, ask: &TokenAsk) -> Result<(), Fault> {
        Ok(form_token::issue(self, ask).await?)
    }

    async fn clean(&mut self, limit: u32) -> Result<CleanedRows, Fault> {
        let tokens = form_token::clean(self, limit).await?;
        let cleaned = clean::records(self, limit).await?;
        Ok(CleanedRows { tokens, ..cleaned })
    }

    async fn tx_claim(&mut self, ask: &ClaimAsk) -> Result<Told<Claimed>, Fault> {
        record_in_tx::tx_claim(self, ask).await
    }

    async fn tx_keep(&mut self, ask: &ClaimAsk, outcome: &Outcome) -> Result<Finished, Fault> {
        record_in_tx::tx_keep(self, ask, outcome).await
    }

    async fn tx_complete(&mut self, ask: &FinishAsk) -> Result<Told<Finished>, Fault> {
        record_in_tx::tx_complete(self, ask).await
    }

    async fn tx_token_issue(&mut self, ask: &TokenAsk) -> Result<Told<()>, Fault> {
        form_token::tx_issue(self, ask).await
    }

    async fn tx_token_consume(&mut self, ask: &TokenAsk) -> Result<Told<bool>, Fault> {
        form_token::tx_consume(self, ask).await
    }
}
