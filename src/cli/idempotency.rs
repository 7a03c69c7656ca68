//! `rowlock idempotency`: looking at records, and deciding what nobody else can.

use std::fmt::Write;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use serde_json::{Value, json};

use super::{ABSENT, FAILED, Failure, USAGE, database, show};
use crate::client::Rowlock;
use crate::idempotency::{Idempotency, RecordInfo, RecordState, Resolution, StepInfo};
use crate::model::{Error, Outcome, RecordKey, quoted};

/// How much of an outcome is printed for people.
const SHOWN: usize = 4_096;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List records, in the order of their scopes and keys
    Ls {
        /// Only those of this scope.
        #[arg(long)]
        scope: Option<String>,
        /// Only those in this state: running, lapsed, poisoned, free, unknown, done, expired.
        #[arg(long)]
        state: Option<RecordState>,
        /// At most so many.
        #[arg(long, default_value_t = 100, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        /// Print a JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Show a record, its steps and its outcome
    ///
    /// Scope and key are those that `rowlock idempotency ls` prints. The exit code is 1 when there is no such record.
    Show {
        #[command(flatten)]
        of: Of,
        /// Print a JSON object, or null when there is no such record.
        #[arg(long)]
        json: bool,
    },
    /// Let a poisoned record be run again
    ///
    /// What its finished steps have done is kept. A record that is done cannot be run again.
    Reset {
        #[command(flatten)]
        of: Of,
    },
    /// Decide what has become of the step of an unknown record
    ///
    /// Find out first, at the payment provider, say, and make sure that it cannot happen later. The next request with
    /// this key goes on after the step, or runs it.
    #[command(group = clap::ArgGroup::new("what").required(true).args(["happened", "not_happened"]))]
    Resolve {
        #[command(flatten)]
        of: Of,
        /// The step happened.
        #[arg(long)]
        happened: bool,
        /// What it came to, as JSON: what the step would have returned (null for nothing).
        #[arg(
            long,
            required_if_eq("happened", "true"),
            requires = "happened",
            conflicts_with = "not_happened",
            value_name = "JSON"
        )]
        result: Option<String>,
        /// The step did not happen, and will not.
        #[arg(long)]
        not_happened: bool,
    },
}

#[derive(Debug, Args)]
pub(super) struct Of {
    /// Whose key it is.
    scope: String,
    /// The key.
    key: String,
    /// Scope and key are given in hexadecimal.
    #[arg(long)]
    hex: bool,
}

impl Of {
    fn bytes(&self) -> Result<(Vec<u8>, Vec<u8>), Failure> {
        if self.hex {
            Ok((parse_hex(&self.scope)?, parse_hex(&self.key)?))
        } else {
            Ok((self.scope.clone().into(), self.key.clone().into()))
        }
    }

    fn record(&self) -> Result<RecordKey, Failure> {
        let (scope, key) = self.bytes()?;
        Ok(RecordKey::new(scope, key).map_err(Error::from)?)
    }
}

fn parse_hex(text: &str) -> Result<Vec<u8>, Failure> {
    let digit = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair)
            .ok()
            .filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    };
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(digit).collect();
    bytes.ok_or_else(|| {
        let message = format!("`{text}` is not hexadecimal: two digits for each byte");
        Failure::Other(message, USAGE)
    })
}

impl Command {
    /// What is refused before the database is asked.
    fn check(&self) -> Result<(), Failure> {
        match self {
            Self::Ls { .. } => return Ok(()),
            Self::Show { of, .. } | Self::Reset { of } => of.record()?,
            Self::Resolve { of, result, .. } => {
                result.as_deref().map(result_of).transpose()?;
                of.record()?
            }
        };
        Ok(())
    }

    pub(super) async fn execute(self, url: &str) -> Result<u8, Failure> {
        self.check()?;
        let rowlock = database::find(url).await?;
        let idempotency = rowlock.idempotency();
        match self {
            Self::Ls {
                scope,
                state,
                limit,
                json,
            } => {
                let scope = scope.as_deref().map(str::as_bytes);
                let infos = idempotency.list(scope, state, limit).await?;
                print_list(&infos, limit, json);
                if infos.is_empty() && !json {
                    database::tell_where(&rowlock);
                }
            }
            Self::Show { of, json } => {
                let code = show(&idempotency, &of, json, &url_argument(url)).await?;
                if code == ABSENT && !json {
                    database::tell_where(&rowlock);
                }
                return Ok(code);
            }
            Self::Reset { of } => {
                let (scope, key) = of.bytes()?;
                idempotency.reset(&scope, &key).await?;
                println!(
                    "reset {} of {}: the next request runs it",
                    quoted(&key),
                    quoted(&scope)
                );
            }
            Self::Resolve {
                of,
                happened,
                result,
                not_happened: _,
            } => {
                let (scope, key) = of.bytes()?;
                let resolution = if happened {
                    Resolution::Happened(result_of(&result.unwrap_or_default())?)
                } else {
                    Resolution::NotHappened
                };
                idempotency.resolve(&scope, &key, resolution).await?;
                let what = if happened {
                    "goes on after the step"
                } else {
                    "runs the step"
                };
                println!(
                    "resolved {} of {}: the next request {what}",
                    quoted(&key),
                    quoted(&scope)
                );
            }
        }
        Ok(0)
    }
}

/// What a step came to, as it was typed.
fn result_of(json: &str) -> Result<Outcome, Failure> {
    if let Err(error) = serde_json::from_str::<Value>(json) {
        let message =
            format!("`{json}` is not JSON ({error}): a string is written with its quotes");
        return Err(Failure::Other(message, USAGE));
    }
    Ok(Outcome::new("application/json", json)?)
}

async fn show(idempotency: &Idempotency, of: &Of, json: bool, url: &str) -> Result<u8, Failure> {
    let record = of.record()?;
    let found = idempotency.inspect(record.scope(), record.key()).await?;
    let steps = idempotency.steps(record.scope(), record.key()).await?;
    let code = if found.is_some() { 0 } else { ABSENT };
    match found {
        _ if json => show::print_json(&found.map(|info| whole(&info, &steps))),
        Some(info) => print_one(&info, &steps, url),
        None => println!("{}", Error::NoSuchRecord { record }),
    }
    Ok(code)
}

/// How the URL is given to another command: as it was given to this one. One with a password is not printed.
fn url_argument(url: &str) -> String {
    let from_environment = std::env::var(database::VARIABLE).is_ok_and(|set| set == url);
    if from_environment || url == database::DEFAULT {
        return String::new();
    }
    let login = url.split_once("://").map_or("", |(_, rest)| rest);
    let login = login.rsplit_once('@').map_or("", |(login, _)| login);
    if login.contains(':') || url.contains("password=") {
        return " --url 'YOUR URL'".into();
    }
    format!(" --url {}", shell_word(url))
}

/// Text as one word of a shell's.
fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.,:/@%+=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The arguments that name a record: as text where a person can read and copy it.
fn arguments(record: &RecordKey) -> String {
    let readable = |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).ok()?;
        let is_shown = !text.chars().any(char::is_control);
        (is_shown && !text.starts_with('-')).then(|| shell_word(text))
    };
    match (readable(record.scope()), readable(record.key())) {
        (Some(scope), Some(key)) => format!("{scope} {key}"),
        _ => format!("--hex {} {}", hex(record.scope()), hex(record.key())),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn time(at: DateTime<Utc>) -> String {
    at.format("%F %T UTC").to_string()
}

/// In whole seconds: nobody wants to read more.
fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Until when it is as it is.
fn lasts(info: &RecordInfo) -> String {
    let left = match info.state {
        RecordState::Running => info.lease_remaining,
        RecordState::Done => info.retained_for,
        RecordState::Expired | RecordState::Free => info.remembered_for,
        _ => None,
    };
    left.map_or_else(String::new, span)
}

fn print_list(infos: &[RecordInfo], limit: u32, json: bool) {
    if json {
        return show::print_json(&infos.iter().map(brief).collect::<Vec<_>>());
    }
    if infos.is_empty() {
        return println!("there are no such records");
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "SCOPE",
        "KEY",
        "STATE",
        "FOR",
        "TRIES",
        "LAST ATTEMPT",
        "BY",
    ]);
    for info in infos {
        table.add_row([
            quoted(info.record.scope()),
            quoted(info.record.key()),
            info.state.to_string(),
            lasts(info),
            format!("{}/{}", info.tries, info.max_attempts),
            time(info.attempted_at),
            info.holder.escape_debug().to_string(),
        ]);
    }
    println!("{table}");
    if infos.len() == usize::try_from(limit).unwrap_or(usize::MAX) {
        println!("(the first {limit}; --limit shows more)");
    }
}

fn print_one(info: &RecordInfo, steps: &[StepInfo], url: &str) {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<12}{value}");
    };
    line("record", info.record.to_string());
    let left = lasts(info);
    let left = if left.is_empty() {
        left
    } else {
        format!(", for {left}")
    };
    line("state", format!("{}{left}", info.state));
    if let Some(step) = &info.step_in_doubt {
        line("in doubt", format!("step {step:?}"));
        line("downstream", downstream_key(info, step));
    }
    let tries = match info.state {
        RecordState::Done | RecordState::Expired => String::new(),
        _ => format!(", try {} of {}", info.tries, info.max_attempts),
    };
    line("attempt", format!("{}{tries}", info.attempt));
    line("by", info.holder.escape_debug().to_string());
    line("first began", time(info.began_at));
    line("last began", time(info.attempted_at));
    if let Some(at) = info.done_at {
        line("done", time(at));
    }
    for step in steps {
        let outcome = printable(&step.outcome);
        line(
            "step",
            format!("{:?}, {}: {outcome}", step.step, time(step.done_at)),
        );
        line("downstream", downstream_key(info, &step.step));
    }
    if let Some(outcome) = &info.outcome {
        line("outcome", format!("{outcome:?}"));
        let _ = writeln!(text, "\n{}", printable(outcome));
    }
    print!("{text}");
    match info.state {
        RecordState::Unknown => {
            let resolve = format!(
                "rowlock idempotency resolve{url} {}",
                arguments(&info.record)
            );
            println!(
                "\nfind out at the other side whether the step happened (it may know it by the downstream key above), then run one of\n  \
                 {resolve} --happened --result 'RESULT AS JSON'\n  \
                 {resolve} --not-happened"
            );
        }
        RecordState::Poisoned => {
            let record = arguments(&info.record);
            println!(
                "\nfind out why it fails, then run\n  rowlock idempotency reset{url} {record}"
            );
        }
        _ => {}
    }
}

/// What the other side knows a step by.
fn downstream_key(info: &RecordInfo, step: &str) -> String {
    info.downstream_key(step).unwrap_or_default()
}

/// Text as it is, but nothing that a terminal would act on.
fn printable(outcome: &Outcome) -> String {
    let bytes = outcome.bytes();
    let (shown, rest) = bytes.split_at(bytes.len().min(SHOWN));
    let mut text = match std::str::from_utf8(shown) {
        Ok(text) => text
            .chars()
            .map(|c| if c.is_control() && c != '\n' { ' ' } else { c })
            .collect(),
        Err(_) => shown.escape_ascii().to_string(),
    };
    if !rest.is_empty() {
        let _ = write!(text, "… ({} bytes more)", rest.len());
    }
    text
}

fn bytes(bytes: &[u8]) -> Value {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.into();
    }
    json!({ "hex": hex(bytes) })
}

fn outcome(outcome: &Outcome) -> Value {
    json!({ "content_type": outcome.content_type(), "body": bytes(outcome.bytes()) })
}

/// A record in JSON: times are RFC 3339 in UTC, spans whole milliseconds.
fn brief(info: &RecordInfo) -> Value {
    let time = |at: DateTime<Utc>| at.to_rfc3339_opts(SecondsFormat::Micros, true);
    let left = |left: Option<Duration>| left.map(|left| u64::try_from(left.as_millis()).ok());
    json!({
        "scope": bytes(info.record.scope()),
        "key": bytes(info.record.key()),
        "state": info.state.name(),
        "attempt": info.attempt,
        "tries": info.tries,
        "max_attempts": info.max_attempts,
        "holder": info.holder,
        "step_in_doubt": info.step_in_doubt,
        "downstream_key": info.step_in_doubt.as_deref().map(|step| downstream_key(info, step)),
        "began_at": time(info.began_at),
        "attempted_at": time(info.attempted_at),
        "done_at": info.done_at.map(time),
        "lease_remaining_ms": left(info.lease_remaining).flatten(),
        "retained_for_ms": left(info.retained_for).flatten(),
        "remembered_for_ms": left(info.remembered_for).flatten(),
    })
}

fn whole(info: &RecordInfo, steps: &[StepInfo]) -> Value {
    let mut value = brief(info);
    let step = |step: &StepInfo| {
        json!({
            "step": step.step,
            "downstream_key": downstream_key(info, &step.step),
            "attempt": step.attempt,
            "done_at": step.done_at.to_rfc3339_opts(SecondsFormat::Micros, true),
            "outcome": outcome(&step.outcome),
        })
    };
    value["steps"] = steps.iter().map(step).collect();
    value["outcome"] = info.outcome.as_ref().map(outcome).into();
    value
}

/// `rowlock clean`: everything that is over, in small batches.
pub(super) async fn clean(rowlock: &Rowlock, batch: u32) -> Result<(), Failure> {
    let (mut outcomes, mut records, mut tokens) = (0, 0, 0);
    loop {
        let cleaned = rowlock.clean_records(batch).await?;
        outcomes += cleaned.outcomes;
        records += cleaned.records;
        tokens += cleaned.tokens;
        let most = cleaned.outcomes.max(cleaned.records).max(cleaned.tokens);
        if most < u64::from(batch) {
            break;
        }
    }
    let locks = rowlock.clean_locks(batch).await?;
    println!(
        "removed {outcomes} outcomes, {records} records, {tokens} form tokens, {locks} unused lock rows"
    );
    Ok(())
}

/// The exit code of an administrator's request that cannot be met.
pub(super) fn code(error: &Error) -> Option<u8> {
    match error {
        Error::InvalidKey { .. } | Error::OutcomeTooLarge { .. } => Some(USAGE),
        Error::NoSuchRecord { .. } => Some(ABSENT),
        Error::NotDecided { .. } => Some(FAILED),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_with_a_password_is_not_printed() {
        for url in [
            "postgres://me:s3cret@h/shop",
            "mysql://me:s3@cret@h1,h2/shop",
            "postgres://h/shop?user=me&password=s3cret",
        ] {
            assert_eq!(url_argument(url), " --url 'YOUR URL'", "{url}");
        }
        assert_eq!(
            url_argument("postgres://me@h:1/shop"),
            " --url postgres://me@h:1/shop"
        );
        assert_eq!(
            url_argument("sqlite:my file.db"),
            " --url 'sqlite:my file.db'"
        );
        assert_eq!(url_argument(database::DEFAULT), "");
    }
}
