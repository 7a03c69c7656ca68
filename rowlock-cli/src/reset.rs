//! `rowlock idempotency reset`: lets one record run again, or all that are poisoned.

use chrono::{DateTime, NaiveDateTime, Utc};
use clap::Args;
use rowlock::{Error, Idempotency, RecordError, RecordFilter, RecordState, Scope};

use crate::Failure;
use crate::out::{say, tell};
use crate::record_words::{bytes, record};
use crate::records::list;

#[derive(Debug, Args)]
pub(crate) struct Reset {
    /// The scope: whose key it is.
    #[arg(required_unless_present = "state", conflicts_with = "state")]
    scope: Option<String>,
    /// The key.
    #[arg(required_unless_present = "state", conflicts_with = "state")]
    key: Option<String>,
    /// Scope and key are hexadecimal.
    #[arg(long)]
    hex: bool,
    /// Resets every record in this state, instead of one record. The only state is `poisoned`.
    #[arg(long, value_name = "STATE", value_parser = ["poisoned"])]
    state: Option<String>,
    /// With --state: only records of this scope.
    #[arg(
        long = "scope",
        value_name = "SCOPE",
        requires = "state",
        allow_hyphen_values = true
    )]
    only: Option<String>,
    /// With --state: only records whose last attempt began then or later, by the database's clock: as `rowlock
    /// idempotency ls` prints it, or RFC 3339.
    #[arg(long, value_name = "TIME", requires = "state", conflicts_with = "scope", value_parser = time)]
    since: Option<DateTime<Utc>>,
}

/// A time as the lists print it, or RFC 3339.
fn time(text: &str) -> Result<DateTime<Utc>, String> {
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Ok(time.to_utc());
    }
    let printed = NaiveDateTime::parse_from_str(text, "%F %T UTC");
    printed
        .map(|time| time.and_utc())
        .map_err(|_| "give a time like 2026-11-27T08:00:00Z or '2026-11-27 08:00:00 UTC'".into())
}

impl Reset {
    /// Refuses wrong arguments.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if let (Some(scope), Some(key)) = (&self.scope, &self.key) {
            record(scope, key, self.hex)?;
        }
        let only = self.only.as_ref();
        only.map(|only| bytes(only, self.hex)).transpose()?;
        Ok(())
    }

    pub(crate) async fn execute(&self, idempotency: &Idempotency) -> Result<(), Failure> {
        if let (Some(scope), Some(key)) = (&self.scope, &self.key) {
            let record = record(scope, key, self.hex)?;
            idempotency
                .reset(Scope(record.scope()).key(record.key()))
                .await?;
            return say!("reset {record}: the next request runs it");
        }
        let only = self.only.as_ref();
        let only = only.map(|only| bytes(only, self.hex)).transpose()?;
        let mut filter = RecordFilter::new().state(RecordState::Poisoned);
        if let Some(only) = only {
            filter = filter.scope(only, "");
        }
        let found = list(idempotency, filter, usize::MAX).await?;
        let is_wanted = |at: DateTime<Utc>| self.since.is_none_or(|since| since <= at);
        let mut count = 0;
        for info in found.iter().filter(|info| is_wanted(info.attempted_at)) {
            let record = &info.record;
            match idempotency
                .reset(Scope(record.scope()).key(record.key()))
                .await
            {
                Ok(()) => {
                    count += 1;
                    say!("reset {record}")?;
                }
                // It is as the operator wants it, or has changed since.
                Err(
                    error @ Error::Record(
                        RecordError::NotDecided { .. } | RecordError::Missing { .. },
                    ),
                ) => {
                    tell(format_args!("{error}"));
                }
                Err(error) => return Err(error.into()),
            }
        }
        match count {
            0 => say!("there are no such records"),
            1 => say!("reset 1 record: the next request runs it"),
            _ => say!("reset {count} records: the next request for each runs it"),
        }
    }
}
