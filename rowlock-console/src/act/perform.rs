//! Doing an action, and the log line about it.

use rowlock::{Error, Scope};

use super::action::{Action, Input};
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
    /// Does it, and writes the log line.
    pub(crate) async fn run(
        &self,
        shared: &Shared,
        input: Input,
        who: &str,
        reason: &str,
    ) -> Result<(), Error> {
        let (action, on) = (self.word(), self.object());
        let done = self.perform(shared, input, reason).await;
        match &done {
            Ok(result) => {
                tracing::info!(target: "rowlock::console", who, action, on, reason, result, "done");
            }
            Err(error) => {
                let error = error.to_string();
                let what = "not done, as far as is known";
                tracing::warn!(target: "rowlock::console", who, action, on, reason, error, "{what}");
            }
        }
        done.map(|_| ())
    }

    /// Returns what it did, for the log.
    async fn perform(&self, shared: &Shared, input: Input, reason: &str) -> Result<String, Error> {
        let (admin, idempotency) = (shared.rowlock.admin(), shared.rowlock.idempotency());
        Ok(match (self, input) {
            (Self::Free(name), _) => match admin.force_release(name.as_str()).await? {
                Some(held) => format!("{} had it under fence {}", held.holder, held.fence),
                None => "nobody had it".into(),
            },
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
                admin.pause(name.as_str(), time, reason).await?.to_string()
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
            (Self::Resolve(key), Input::Resolution(resolution)) => {
                let key = Scope(key.scope()).key(key.key());
                let what = match &resolution {
                    rowlock::Resolution::Happened(_) => "its step happened",
                    rowlock::Resolution::NotHappened => "its step did not happen",
                };
                idempotency.resolve(key, resolution).await?;
                what.into()
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
            (Self::EndQuarantine, _) => {
                let was_there = admin.end_quarantine().await?;
                let what = if was_there {
                    "it was ended"
                } else {
                    "there was none"
                };
                what.into()
            }
            (Self::Capacity(_) | Self::Resolve(_) | Self::Quarantine | Self::Pause(_), _) => {
                unreachable!("`input` returns what belongs to the action")
            }
        })
    }
}
