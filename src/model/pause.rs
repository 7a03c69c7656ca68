//! The pause of a name.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::{Name, Printable};

/// A pause of a name ([`Admin::pause`](crate::Admin::pause)), as the row in the database describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PauseInfo {
    /// The name of the lock, read/write lock or semaphore.
    pub name: Name,
    /// Who paused it, for people to read: the [holder](crate::Builder::holder) text of the client, or what
    /// [`pause_by`](crate::Admin::pause_by) was given.
    pub by: String,
    /// Why, for people to read.
    pub why: String,
    /// When it ends, by the database's clock. `None`: when the name is [resumed](crate::Admin::resume).
    pub until: Option<DateTime<Utc>>,
    /// The time from the reading of the row to `until`.
    pub remaining: Option<Duration>,
}

/// One line: what others have written is in it without control characters.
impl fmt::Display for PauseInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        let f = &mut Printable(f);
        write!(f, "paused by {} ", self.by)?;
        match self.until {
            Some(until) => write!(f, "until {}", until.format("%F %T UTC")),
            None => f.write_str("until it is resumed"),
        }?;
        write!(f, " ({})", self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_paused_it_until_when_and_why_is_said_in_one_line() {
        let mut pause = PauseInfo {
            name: Name::new("a").unwrap(),
            by: "ops".into(),
            why: "a move\nof the data".into(),
            until: None,
            remaining: None,
        };
        let said = pause.to_string();
        assert_eq!(
            said,
            "paused by ops until it is resumed (a move\\nof the data)"
        );
        pause.until = Some(DateTime::UNIX_EPOCH);
        let said = pause.to_string();
        assert!(
            said.starts_with("paused by ops until 1970-01-01 00:00:00 UTC ("),
            "{said}"
        );
    }
}
