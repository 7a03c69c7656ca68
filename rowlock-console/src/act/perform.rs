//! Doing an action, and the log lines about it.

use chrono::{DateTime, Utc};
use http::StatusCode;
use rowlock::{Error, LockInfo, Name, Resolution, Scope};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::Obstacle;
use super::action::{Action, Input};
use super::preview::Preview;
use super::sure::End;
use crate::Shared;
use crate::text::count;

/// What the next page says, by the word in its address.
pub(crate) fn done(word: &str) -> Option<&'static str> {
    Some(match word {
        "free" => "The lock was freed.",
        "capacity" => "The capacity was changed.",
        "forget" => "The name was forgotten.",
        "pause" => "The name is paused.",
        "resume" => "The name is granted again.",
        "end-session" => "The session was ended.",
        "resolve" => "The record was resolved.",
        "reset" => "The record was reset.",
        "quarantine" => "The quarantine has begun.",
        "end-quarantine" => "The quarantine was ended.",
        _ => return None,
    })
}

impl Action {
    /// Does it, and writes a log line before and one after it: a process that is killed in between has said what it
    /// was about to do.
    pub(crate) async fn run(
        &self,
        shared: &Shared,
        preview: &Preview,
        input: Input,
        (who, reason): (&str, &str),
    ) -> End {
        let (action, on) = (self.word(), self.object());
        let what = self.what(&input, preview, shared.shows_outcomes);
        tracing::info!(target: "rowlock::console", who, action, on, reason, what, "begins");
        let done = match self {
            Self::Free(name) => free(shared, name, &preview.holders).await,
            Self::EndQuarantine => end_quarantine(shared, preview.until).await,
            _ => {
                let done = self.perform(shared, preview, input, (who, reason)).await;
                done.map_err(|error| self.failure(&error))
            }
        };
        match done {
            Ok(result) => {
                tracing::info!(target: "rowlock::console", who, action, on, reason, what, result, "done");
                Ok(())
            }
            Err(why) => {
                tracing::warn!(target: "rowlock::console", who, action, on, reason, what, why, "not done");
                Err(Obstacle(StatusCode::CONFLICT, why))
            }
        }
    }

    /// What an error means for the action.
    fn failure(&self, error: &Error) -> String {
        let told = match (self, error) {
            // (The error of a statement about the database does not say whether it was sent.)
            (_, Error::OutcomeUnknown { .. }) | (Self::Quarantine, _) => {
                "It is not known whether it was done"
            }
            _ => "It was not done",
        };
        format!("{told}: {error}.")
    }

    /// What is decided beyond the action and its object, for the log.
    fn what(&self, input: &Input, preview: &Preview, shows_outcomes: bool) -> String {
        match input {
            Input::Nothing if matches!(self, Self::Free(_)) => had(&preview.holders),
            Input::Nothing => String::new(),
            Input::Capacity(capacity) => format!("a capacity of {capacity}"),
            Input::Pause(None) => "until it is resumed".into(),
            Input::Time(time) | Input::Pause(Some(time)) => {
                format!("for {}", humantime::format_duration(*time))
            }
            Input::Resolution(resolution) => resolved(preview, resolution, shows_outcomes),
        }
    }

    /// Returns what it did, for the log.
    async fn perform(
        &self,
        shared: &Shared,
        preview: &Preview,
        input: Input,
        (who, reason): (&str, &str),
    ) -> Result<String, Error> {
        let (admin, idempotency) = (shared.rowlock.admin(), shared.rowlock.idempotency());
        Ok(match (self, input) {
            (Self::Forget(name), _) => {
                let was_there = admin.forget(name.as_str()).await?;
                let what = if was_there {
                    "its row was removed"
                } else {
                    "it had no row"
                };
                what.into()
            }
            (Self::Capacity(name), Input::Capacity(capacity)) => {
                let semaphore = shared.rowlock.semaphore(name.as_str(), capacity);
                match semaphore.set_capacity().await? {
                    Some(before) => format!("{before} before, {capacity} now"),
                    None => format!("made, with {capacity}"),
                }
            }
            (Self::Pause(name), Input::Pause(time)) => {
                let by = signature(who);
                let pause = admin.pause_by(name.as_str(), time, reason, &by);
                pause.await?.to_string()
            }
            (Self::Resume(name), _) => {
                let was_paused = admin.resume(name.as_str()).await?;
                let what = if was_paused {
                    "it was resumed"
                } else {
                    "it was not paused"
                };
                what.into()
            }
            (Self::EndSession(id), _) => {
                let locks = admin.end_session(*id).await?;
                format!("it had {}", count(locks, "lock", "locks"))
            }
            (Self::Resolve(_), Input::Resolution(resolution)) => {
                if let Some(seen) = &preview.record {
                    idempotency.resolve(seen, resolution).await?;
                }
                "it was recorded".into()
            }
            (Self::Reset(key), _) => {
                let key = Scope(key.scope()).key(key.key());
                idempotency.reset(key).await?;
                "it may run again".into()
            }
            (Self::Quarantine, Input::Time(time)) => {
                let left = admin.quarantine(time).await?;
                format!("it lasts for {left:.0?}")
            }
            (Self::Free(_) | Self::EndQuarantine, _) => unreachable!("`run` does these"),
            (Self::Capacity(_) | Self::Resolve(_) | Self::Quarantine | Self::Pause(_), _) => {
                unreachable!("`input` returns what belongs to the action")
            }
        })
    }
}

/// Frees the grants that were shown.
async fn free(shared: &Shared, name: &Name, shown: &[LockInfo]) -> Result<String, String> {
    let admin = shared.rowlock.admin();
    let grants: Vec<Uuid> = shown.iter().map(|held| held.grant_id).collect();
    match admin.force_release_grants(name.as_str(), &grants).await {
        Ok(freed) if !freed.is_empty() => Ok(had(&freed)),
        Ok(_) if shown.is_empty() => Ok("nobody had it".into()),
        Ok(_) => Err("Nothing was done: those that were shown do not have it any more.".into()),
        // It has freed those that it could.
        Err(error) => {
            let failure = Action::Free(name.clone()).failure(&error);
            let Ok(left) = admin.holders(name.as_str()).await else {
                return Err(format!("{failure} It is not known who has lost it."));
            };
            let is_left = |held: &LockInfo| left.iter().any(|left| left.grant_id == held.grant_id);
            let lost: Vec<_> = shown
                .iter()
                .filter(|held| !is_left(held))
                .cloned()
                .collect();
            if lost.is_empty() {
                return Err(failure);
            }
            Err(format!(
                "Not all of it was done: {error}. Now without it: {}.",
                had(&lost)
            ))
        }
    }
}

/// Ends the quarantine that was shown.
async fn end_quarantine(shared: &Shared, shown: Option<DateTime<Utc>>) -> Result<String, String> {
    let until = shown.unwrap_or_default();
    let ended = shared.rowlock.admin().end_quarantine_until(until).await;
    match ended {
        Ok(true) => Ok(format!("it would have lasted until {until}")),
        Ok(false) => {
            Err("Nothing was done: the quarantine that was shown has ended or changed.".into())
        }
        Err(error) => Err(format!("It is not known whether it was done: {error}.")),
    }
}

/// Those who had a lock.
fn had(holders: &[LockInfo]) -> String {
    let each = holders
        .iter()
        .map(|held| format!("{} had it under fence {}", held.holder, held.fence));
    each.collect::<Vec<_>>().join("; ")
}

/// A decision about a step. Where outcomes are hidden, the result is a digest.
fn resolved(preview: &Preview, resolution: &Resolution, shows_outcomes: bool) -> String {
    let record = preview.record.as_ref();
    let step = record
        .and_then(|record| record.open_step.as_deref())
        .unwrap_or_default();
    let attempt = record.map_or(0, |record| record.attempt);
    let step = format!("the step {step} of attempt {attempt}");
    match resolution {
        Resolution::NotHappened => format!("{step} did not happen"),
        Resolution::Happened(outcome) if shows_outcomes => {
            format!(
                "{step} happened, with the result {}",
                String::from_utf8_lossy(outcome.bytes())
            )
        }
        Resolution::Happened(outcome) => {
            let digest = hex::encode(Sha256::digest(outcome.bytes()));
            format!("{step} happened, with a result whose SHA-256 is {digest}")
        }
    }
}

/// Who a pause is from: 1 to 200 bytes without NUL.
fn signature(who: &str) -> String {
    let mut by = String::new();
    for c in who.chars().filter(|c| *c != '\0') {
        if by.len() + c.len_utf8() > 200 {
            break;
        }
        by.push(c);
    }
    if by.is_empty() {
        "the console".into()
    } else {
        by
    }
}

#[cfg(test)]
mod tests {
    use rowlock::RecordKey;

    use super::*;

    #[test]
    fn an_outcome_that_is_unknown_is_not_told_as_not_done() {
        let key = RecordKey::new("shop", "order-17").unwrap();
        let unknown = Error::OutcomeUnknown {
            doing: "decide",
            on: rowlock::Subject::Record(key.clone()),
            target: "the database".into(),
            detail: "a cut".into(),
        };
        let told = Action::Resolve(key.clone()).failure(&unknown);
        assert!(
            told.starts_with("It is not known whether it was done"),
            "{told}"
        );
        let refused = Error::Invalid(rowlock::Name::new("").unwrap_err());
        let told = Action::Resolve(key).failure(&refused);
        assert!(told.starts_with("It was not done"), "{told}");
    }

    #[test]
    fn the_name_of_a_person_is_cut_to_what_a_pause_takes() {
        assert_eq!(signature("Ann\0"), "Ann");
        assert_eq!(signature(""), "the console");
        assert_eq!(signature(&"é".repeat(101)).len(), 200);
    }
}
