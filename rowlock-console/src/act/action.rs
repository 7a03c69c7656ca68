//! The actions, and what a form has to say about each.

use std::time::Duration;

use maud::{Markup, html};
use rowlock::{Name, Outcome, RecordKey, Resolution};
use uuid::Uuid;

use crate::content::{lock_path, name_of, record_of, record_path};
use crate::fields::{Fields, query};
use crate::text::text;

/// The bounds of a quarantine and of a pause.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_hours(366 * 24);

/// The longest reason of a pause, in bytes.
const WHY: usize = 255;

/// What is done, and to what.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    Free(Name),
    Capacity(Name),
    Forget(Name),
    Pause(Name),
    Resume(Name),
    EndSession(Uuid),
    Resolve(RecordKey),
    Reset(RecordKey),
    Quarantine,
    EndQuarantine,
}

/// What a form says beyond that.
#[derive(Debug)]
pub(crate) enum Input {
    Nothing,
    Capacity(u32),
    Time(Duration),
    /// `None`: without an end.
    Pause(Option<Duration>),
    Resolution(Resolution),
}

impl Action {
    pub(crate) fn parse(action: &str, fields: &Fields) -> Option<Self> {
        Some(match action {
            "free" => Self::Free(name_of(fields)?),
            "capacity" => Self::Capacity(name_of(fields)?),
            "forget" => Self::Forget(name_of(fields)?),
            "pause" => Self::Pause(name_of(fields)?),
            "resume" => Self::Resume(name_of(fields)?),
            "end-session" => Self::EndSession(fields.get("id").parse().ok()?),
            "resolve" => Self::Resolve(record_of(fields)?),
            "reset" => Self::Reset(record_of(fields)?),
            "quarantine" => Self::Quarantine,
            "end-quarantine" => Self::EndQuarantine,
            _ => return None,
        })
    }

    /// Its word in addresses and in the log.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Free(_) => "free",
            Self::Capacity(_) => "capacity",
            Self::Forget(_) => "forget",
            Self::Pause(_) => "pause",
            Self::Resume(_) => "resume",
            Self::EndSession(_) => "end-session",
            Self::Resolve(_) => "resolve",
            Self::Reset(_) => "reset",
            Self::Quarantine => "quarantine",
            Self::EndQuarantine => "end-quarantine",
        }
    }

    pub(crate) fn title(&self) -> &'static str {
        match self {
            Self::Free(_) => "Free the lock",
            Self::Capacity(_) => "Change the capacity",
            Self::Forget(_) => "Forget the name",
            Self::Pause(_) => "Pause the name",
            Self::Resume(_) => "Resume the name",
            Self::EndSession(_) => "End the session",
            Self::Resolve(_) => "Resolve the record",
            Self::Reset(_) => "Reset the record",
            Self::Quarantine => "Begin a quarantine",
            Self::EndQuarantine => "End the quarantine",
        }
    }

    /// Whether another action takes it back.
    pub(crate) fn can_be_undone(&self) -> bool {
        matches!(self, Self::Capacity(_) | Self::Pause(_) | Self::Quarantine)
    }

    /// The fields that name what it is done to, in hexadecimal: a browser would change the end of a line.
    pub(crate) fn fields(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Free(name)
            | Self::Capacity(name)
            | Self::Forget(name)
            | Self::Pause(name)
            | Self::Resume(name) => {
                vec![("lock", hex::encode(name.as_str()))]
            }
            Self::EndSession(id) => vec![("id", id.to_string())],
            Self::Resolve(key) | Self::Reset(key) => vec![
                ("scope", hex::encode(key.scope())),
                ("key", hex::encode(key.key())),
            ],
            Self::Quarantine | Self::EndQuarantine => Vec::new(),
        }
    }

    /// What it is done to, for the log.
    pub(crate) fn object(&self) -> String {
        match self {
            Self::Free(name)
            | Self::Capacity(name)
            | Self::Forget(name)
            | Self::Pause(name)
            | Self::Resume(name) => name.to_string(),
            Self::EndSession(id) => id.to_string(),
            Self::Resolve(key) | Self::Reset(key) => key.to_string(),
            Self::Quarantine | Self::EndQuarantine => "the database".into(),
        }
    }

    /// Where its form goes.
    pub(crate) fn path(&self) -> String {
        format!("/act/{}", self.word())
    }

    /// The page that it was asked for on.
    pub(crate) fn back(&self) -> String {
        match self {
            Self::Free(name)
            | Self::Capacity(name)
            | Self::Forget(name)
            | Self::Pause(name)
            | Self::Resume(name) => lock_path(name),
            Self::EndSession(_) => "/sessions".into(),
            Self::Resolve(key) | Self::Reset(key) => record_path(key),
            Self::Quarantine | Self::EndQuarantine => "/".into(),
        }
    }

    /// The page after it, which says that it was done.
    pub(crate) fn then(&self) -> String {
        let back = self.back();
        let and = if back.contains('?') { '&' } else { '?' };
        format!("{back}{and}{}", query(&[("done", self.word())]))
    }

    /// What the form asks, beyond the reason.
    pub(crate) fn questions(&self, fields: &Fields) -> Markup {
        let value = |name| fields.get(name);
        html! {
            @match self {
                Self::Capacity(_) => {
                    p { label {
                        "The new capacity "
                        input name="capacity" inputmode="numeric" required value=(value("capacity"));
                    } }
                }
                Self::Quarantine => {
                    p { label { "For how long, as in 90s or 5m " input name="time" required value=(value("time")); } }
                }
                Self::Pause(_) => {
                    p { label {
                        "For how long, as in 90s or 5m; empty: until it is resumed "
                        input name="time" value=(value("time"));
                    } }
                }
                Self::Resolve(_) => {
                    fieldset {
                        legend { "Did the step happen?" }
                        @let (no, yes) = (value("happened") == "no", value("happened") == "yes");
                        label {
                            input type="radio" name="happened" value="no" required checked[no];
                            " No, and it cannot happen later. The next attempt runs it."
                        }
                        label {
                            input type="radio" name="happened" value="yes" required checked[yes];
                            " Yes. The next attempt goes on with its result:"
                        }
                        label {
                            "The result of the step, as JSON "
                            textarea name="result" rows="3" { (value("result")) }
                        }
                    }
                }
                _ => "",
            }
        }
    }

    /// What the form has said, in words.
    pub(crate) fn answers(&self, fields: &Fields) -> Markup {
        html! {
            @match self {
                Self::Capacity(_) => { p { "The new capacity: " (text(fields.get("capacity"))) } }
                Self::Quarantine => { p { "The time: " (text(fields.get("time"))) } }
                Self::Pause(_) if fields.get("time").trim().is_empty() => { p { "It has no end." } }
                Self::Pause(_) => { p { "The time: " (text(fields.get("time"))) } }
                Self::Resolve(_) if fields.get("happened") == "yes" => {
                    p { "The step happened. Its result: " (text(fields.get("result"))) }
                }
                Self::Resolve(_) => { p { "The step did not happen." } }
                _ => "",
            }
        }
    }

    /// Reads what the form has said. An error is for people.
    pub(crate) fn input(&self, fields: &Fields) -> Result<Input, String> {
        match self {
            Self::Capacity(_) => match fields.get("capacity").trim().parse() {
                Ok(capacity @ 1..=2_147_483_646) => Ok(Input::Capacity(capacity)),
                _ => Err("Give the new capacity: 1 to 2147483646.".into()),
            },
            Self::Quarantine => time(fields).map(Input::Time),
            Self::Pause(_) if !is_why(fields.get("reason").trim()) => Err(format!(
                "Who waits reads the reason: give one in {WHY} bytes at most."
            )),
            Self::Pause(_) if fields.get("time").trim().is_empty() => Ok(Input::Pause(None)),
            Self::Pause(_) => time(fields).map(|time| Input::Pause(Some(time))),
            Self::Resolve(_) => resolution(fields).map(Input::Resolution),
            _ => Ok(Input::Nothing),
        }
    }
}

fn time(fields: &Fields) -> Result<Duration, String> {
    match humantime::parse_duration(fields.get("time").trim()) {
        Ok(time) if (SHORTEST..=LONGEST).contains(&time) => Ok(time),
        Ok(_) => Err("Give a time of 100ms to 366 days.".into()),
        Err(error) => Err(format!("The time cannot be read: {error}.")),
    }
}

/// Whether it may be the reason of a pause.
fn is_why(reason: &str) -> bool {
    reason.len() <= WHY && !reason.contains('\0')
}

fn resolution(fields: &Fields) -> Result<Resolution, String> {
    match fields.get("happened") {
        "no" => Ok(Resolution::NotHappened),
        "yes" => {
            let json = fields.get("result").trim();
            serde_json::from_str::<serde_json::Value>(json)
                .map_err(|error| format!("The result is not JSON: {error}."))?;
            // The text itself: numbers keep their digits.
            let outcome = Outcome::new("application/json", json);
            let outcome = outcome.map_err(|error| format!("{error}."))?;
            Ok(Resolution::Happened(outcome))
        }
        _ => Err("Say whether the step happened.".into()),
    }
}
