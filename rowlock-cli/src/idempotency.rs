//! `rowlock idempotency`: an operator inspects records, and decides about unknown and poisoned ones.

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::out::{print_json, say};
use crate::record_words::{bytes, record};
use crate::records::{arguments_for, brief, list, print_list, print_one, whole};
use crate::reset::Reset;
use crate::{ABSENT, Failure, USAGE, database};
use rowlock::{
    Cleaned, Error, Idempotency, Outcome, RecordError, RecordFilter, RecordInfo, RecordKey,
    RecordState, Resolution, Rowlock, Scope,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List records, sorted by scope and key
    Ls {
        /// Only records of this scope.
        #[arg(long, allow_hyphen_values = true)]
        scope: Option<String>,
        /// The scope is hexadecimal.
        #[arg(long, requires = "scope")]
        hex: bool,
        /// Only records in this state: running, lapsed, poisoned, free, unknown, done, expired.
        #[arg(long)]
        state: Option<RecordState>,
        /// List at most this many records: 100 if it is not set; with --json all of them.
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
        limit: Option<u32>,
        /// Print a JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Show a record, its steps and its outcome
    ///
    /// `rowlock idempotency ls` prints scopes and keys. The exit code is 1 when there is no such record.
    Show {
        #[command(flatten)]
        of: Of,
        /// Print a JSON object, or null when there is no such record.
        #[arg(long)]
        json: bool,
    },
    /// Let a poisoned record run again
    ///
    /// The next request with this key runs the work again. It does not repeat finished steps. A record that is done
    /// cannot run again. With --state poisoned, all poisoned records are reset (of one scope, or since a time), as
    /// after a crash loop.
    Reset(Reset),
    /// Decide whether the step of an unknown record happened
    ///
    /// Find out first (for example, ask the payment provider), and make sure that the step cannot still happen later.
    /// After `--happened`, the next request with this key goes on after the step. After `--not-happened`, it runs the
    /// step.
    #[command(group = clap::ArgGroup::new("what").required(true).args(["happened", "not_happened"]))]
    Resolve {
        #[command(flatten)]
        of: Of,
        /// The step that `show` prints as the open one. If another step is open by now, nothing is decided.
        #[arg(long, value_name = "NAME")]
        step: String,
        /// The step happened.
        #[arg(long)]
        happened: bool,
        /// The result that the step would have returned, as JSON (null for no result).
        #[arg(
            long,
            required_if_eq("happened", "true"),
            requires = "happened",
            conflicts_with = "not_happened",
            value_name = "JSON"
        )]
        result: Option<String>,
        /// The step did not happen, and will not happen later.
        #[arg(long)]
        not_happened: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Of {
    /// The scope: whose key it is.
    scope: String,
    /// The key.
    key: String,
    /// Scope and key are hexadecimal.
    #[arg(long)]
    hex: bool,
}

impl Of {
    fn record(&self) -> Result<RecordKey, Failure> {
        record(&self.scope, &self.key, self.hex)
    }
}

impl Command {
    /// Refuses wrong arguments without asking the database.
    fn check(&self) -> Result<(), Failure> {
        match self {
            Self::Ls { scope, hex, .. } => {
                scope
                    .as_deref()
                    .map(|scope| bytes(scope, *hex))
                    .transpose()?;
                return Ok(());
            }
            Self::Show { of, .. } => of.record()?,
            Self::Reset(reset) => return reset.check(),
            Self::Resolve { of, result, .. } => {
                result.as_deref().map(result_of).transpose()?;
                of.record()?
            }
        };
        Ok(())
    }

    pub(crate) async fn execute(self, url: &str) -> Result<u8, Failure> {
        self.check()?;
        let rowlock = database::find(url).await?;
        let idempotency = rowlock.idempotency();
        match self {
            Self::Ls {
                scope,
                hex,
                state,
                limit,
                json,
            } => {
                let mut filter = RecordFilter::new();
                if let Some(scope) = scope {
                    filter = filter.scope(bytes(&scope, hex)?, "");
                }
                if let Some(state) = state {
                    filter = filter.state(state);
                }
                let limit = limit.map(|limit| limit as usize);
                if json {
                    let infos = list(&idempotency, filter, limit.unwrap_or(usize::MAX)).await?;
                    print_json(&infos.iter().map(brief).collect::<Vec<_>>())?;
                } else {
                    let limit = limit.unwrap_or(100);
                    let infos = list(&idempotency, filter, limit).await?;
                    print_list(&infos, limit)?;
                    if infos.is_empty() {
                        database::tell_where(&rowlock);
                    }
                }
            }
            Self::Show { of, json } => {
                let code = show(&idempotency, &of, json, &arguments_for(url)).await?;
                if code == ABSENT && !json {
                    database::tell_where(&rowlock);
                }
                return Ok(code);
            }
            Self::Reset(reset) => reset.execute(&idempotency).await?,
            Self::Resolve {
                of,
                step,
                happened,
                result,
                not_happened: _,
            } => {
                let record = of.record()?;
                let resolution = if happened {
                    Resolution::Happened(result_of(&result.unwrap_or_default())?)
                } else {
                    Resolution::NotHappened
                };
                let seen = find(&idempotency, &record).await?;
                let Some(seen) = seen else {
                    return Err(Error::Record(RecordError::Missing { record }).into());
                };
                if let Some(open) = seen.open_step.as_ref().filter(|open| **open != step) {
                    let message = format!(
                        "{record} has the open step {open:?} by now, not {step:?}: look at it again, and find out about that one"
                    );
                    return Err(Failure::Other(message, USAGE));
                }
                idempotency.resolve(&seen, resolution).await?;
                let what = if happened {
                    "goes on after the step"
                } else {
                    "runs the step"
                };
                say!("resolved the step {step:?} of {record}: the next request {what}")?;
            }
        }
        Ok(0)
    }
}

/// The result of a step, from the command line.
fn result_of(json: &str) -> Result<Outcome, Failure> {
    if let Err(error) = serde_json::from_str::<Value>(json) {
        let message = format!("`{json}` is not JSON ({error}): write a string with its quotes");
        return Err(Failure::Other(message, USAGE));
    }
    Ok(Outcome::new("application/json", json)?)
}

async fn find(idempotency: &Idempotency, record: &RecordKey) -> Result<Option<RecordInfo>, Error> {
    let key = Scope(record.scope()).key(record.key());
    idempotency.inspect(key).await
}

async fn show(idempotency: &Idempotency, of: &Of, json: bool, url: &str) -> Result<u8, Failure> {
    let record = of.record()?;
    let found = find(idempotency, &record).await?;
    let steps = idempotency
        .steps(Scope(record.scope()).key(record.key()))
        .await?;
    let code = if found.is_some() { 0 } else { ABSENT };
    match found {
        _ if json => print_json(&found.map(|info| whole(&info, &steps)))?,
        Some(info) => print_one(&info, &steps, url)?,
        None => say!("{}", Error::Record(RecordError::Missing { record }))?,
    }
    Ok(code)
}

/// `rowlock clean`: removes all expired rows, in small batches.
pub(crate) async fn clean(rowlock: &Rowlock, batch: u32) -> Result<(), Failure> {
    let Cleaned {
        outcomes,
        records,
        tokens,
        locks,
        sessions,
        ..
    } = rowlock.admin().clean_all(batch).await?;
    say!(
        "removed {outcomes} outcomes, {records} records, {tokens} form tokens, {locks} unused lock rows, \
         {sessions} expired sessions and locks of theirs"
    )
}

/// The exit code when a record cannot be shown, reset or resolved.
pub(crate) fn code(error: &Error) -> Option<u8> {
    match error {
        Error::Record(RecordError::OutcomeTooLarge { .. } | RecordError::NotDecided { .. }) => {
            Some(USAGE)
        }
        Error::Record(RecordError::Missing { .. }) => Some(ABSENT),
        _ => None,
    }
}
