//! Prints records: for people, and as JSON.

use std::fmt::Write;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use comfy_table::{Table, presets};
use serde_json::{Value, json};

use crate::duration::about;
use crate::out::{print, say};
use crate::{Failure, database};
use rowlock::{Idempotency, Outcome, RecordFilter, RecordInfo, RecordKey, RecordState, StepInfo};

/// The most bytes of an outcome that are printed for people.
const SHOWN: usize = 4_096;

/// The arguments that give this command's database to a suggested command. A URL with a password is never printed.
pub(crate) fn arguments_for(url: &str) -> String {
    let schema = database::schema_argument().map(shell_word);
    let schema = schema.map_or_else(String::new, |schema| format!(" --schema {schema}"));
    format!("{}{schema}", url_argument(url))
}

fn url_argument(url: &str) -> String {
    let set = std::env::var(database::VARIABLE);
    if url == set.as_deref().unwrap_or(database::DEFAULT) {
        return String::new();
    }
    let login = url.split_once("://").map_or("", |(_, rest)| rest);
    let login = login.rsplit_once('@').map_or("", |(login, _)| login);
    if login.contains(':') || url.contains("password=") {
        return " --url 'YOUR URL'".into();
    }
    format!(" --url {}", shell_word(url))
}

/// Text as one word for a shell. (POSIX.1-2024 has the form `$'…'`, for what a terminal would obey.)
fn shell_word(text: &str) -> String {
    if !text.chars().all(is_visible) {
        return format!("$'{}'", text.as_bytes().escape_ascii());
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.,:/@%+=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The words that name a record in a command: as text if a person can read and copy it, otherwise as hexadecimal.
fn words(record: &RecordKey) -> [String; 2] {
    let readable = |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).ok()?;
        let is_shown = text.chars().all(is_visible);
        (is_shown && !text.starts_with('-')).then(|| shell_word(text))
    };
    match (readable(record.scope()), readable(record.key())) {
        (Some(scope), Some(key)) => [scope, key],
        _ => [format!("--hex {}", hex(record.scope())), hex(record.key())],
    }
}

/// The arguments that name a record.
fn arguments(record: &RecordKey) -> String {
    words(record).join(" ")
}

/// Whether a terminal shows the character by itself: it is no control character, has a width, and combines with no
/// other.
fn is_visible(c: char) -> bool {
    matches!(c, '\'' | '"' | '\\') || c.escape_debug().eq([c])
}

/// Whether a terminal would obey the character: control characters, and marks that turn the direction of letters.
fn is_obeyed(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns
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

/// How long the record stays in its state, if nothing happens.
fn lasts(info: &RecordInfo) -> String {
    let left = match info.state {
        RecordState::Running => info.lease_remaining,
        RecordState::Done => info.retained_for,
        RecordState::Expired | RecordState::Free => info.remembered_for,
        _ => None,
    };
    left.map_or_else(String::new, about)
}

/// The first records of a filter.
pub(crate) async fn list(
    idempotency: &Idempotency,
    mut filter: RecordFilter,
    limit: usize,
) -> Result<Vec<RecordInfo>, Failure> {
    let mut infos = Vec::new();
    loop {
        let page = idempotency.list(&filter).await?;
        infos.extend(page.items);
        if page.next.is_none() || infos.len() >= limit {
            infos.truncate(limit);
            return Ok(infos);
        }
        filter = filter.from(page.next);
    }
}

/// A table, of the first `limit` records.
pub(crate) fn print_list(infos: &[RecordInfo], limit: usize) -> Result<(), Failure> {
    if infos.is_empty() {
        return say!("there are no such records");
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "SCOPE",
        "KEY",
        "STATE",
        "FOR",
        "ABANDONED",
        "LAST ATTEMPT",
        "BY",
    ]);
    for info in infos {
        let [scope, key] = words(&info.record);
        table.add_row([
            scope,
            key,
            info.state.to_string(),
            lasts(info),
            format!("{}/{}", info.abandoned, info.max_attempts),
            time(info.attempted_at),
            info.holder.escape_debug().to_string(),
        ]);
    }
    say!("{table}")?;
    if infos.len() == limit {
        say!("(these are the first {limit}: --limit shows more)")?;
    }
    Ok(())
}

pub(crate) fn print_one(info: &RecordInfo, steps: &[StepInfo], url: &str) -> Result<(), Failure> {
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
    if let Some(step) = &info.open_step {
        line("open step", format!("{step:?}"));
        line("downstream", downstream_key(info, step));
    }
    let used = match info.state {
        RecordState::Done | RecordState::Expired => String::new(),
        _ => format!(
            " (abandoned in a row: {} of at most {})",
            info.abandoned, info.max_attempts
        ),
    };
    line("attempt", format!("{}{used}", info.attempt));
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
    print(format_args!("{text}"))?;
    match info.state {
        RecordState::Unknown => {
            let resolve = format!(
                "rowlock idempotency resolve{url} {} --step={}",
                arguments(&info.record),
                shell_word(info.open_step.as_deref().unwrap_or_default())
            );
            say!(
                "\nask the server that the step called whether the step happened (it may know one of the downstream keys above), then run one of\n  \
                 {resolve} --happened --result 'RESULT AS JSON'\n  \
                 {resolve} --not-happened"
            )
        }
        RecordState::Poisoned => {
            let record = arguments(&info.record);
            say!(
                "\nfind out why the request fails, then run\n  rowlock idempotency reset{url} {record}"
            )
        }
        _ => Ok(()),
    }
}

/// The idempotency key that the step's server got.
fn downstream_key(info: &RecordInfo, step: &str) -> String {
    info.downstream_key(step).unwrap_or_default()
}

/// Text without control characters and marks of direction, which a terminal would obey.
fn printable(outcome: &Outcome) -> String {
    let bytes = outcome.bytes();
    let most = bytes.len().min(SHOWN);
    let (mut text, shown) = match std::str::from_utf8(bytes) {
        Ok(text) => {
            let shown = text.floor_char_boundary(most);
            let disarmed = |c| if is_obeyed(c) && c != '\n' { ' ' } else { c };
            (text[..shown].chars().map(disarmed).collect(), shown)
        }
        Err(_) => (bytes[..most].escape_ascii().to_string(), most),
    };
    if shown < bytes.len() {
        let _ = write!(text, "… ({} bytes more)", bytes.len() - shown);
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
pub(crate) fn brief(info: &RecordInfo) -> Value {
    let time = |at: DateTime<Utc>| at.to_rfc3339_opts(SecondsFormat::Micros, true);
    let left = |left: Option<Duration>| left.map(|left| u64::try_from(left.as_millis()).ok());
    json!({
        "scope": bytes(info.record.scope()),
        "key": bytes(info.record.key()),
        "state": info.state.name(),
        "attempt": info.attempt,
        "abandoned": info.abandoned,
        "max_attempts": info.max_attempts,
        "holder": info.holder,
        "open_step": info.open_step,
        "downstream_key": info.open_step.as_deref().map(|step| downstream_key(info, step)),
        "began_at": time(info.began_at),
        "attempted_at": time(info.attempted_at),
        "done_at": info.done_at.map(time),
        "lease_remaining_ms": left(info.lease_remaining).flatten(),
        "retained_for_ms": left(info.retained_for).flatten(),
        "remembered_for_ms": left(info.remembered_for).flatten(),
    })
}

pub(crate) fn whole(info: &RecordInfo, steps: &[StepInfo]) -> Value {
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
