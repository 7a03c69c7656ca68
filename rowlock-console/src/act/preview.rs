//! What an action will do, and to whom.

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use rowlock::{
    Error, Kind, LockInfo, Name, NameFilter, NameState, PauseInfo, RecordInfo, RecordKey,
    RecordState, Scope, SessionInfo,
};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::action::Action;
use crate::Shared;
use crate::pages::lock::info_of;
use crate::pages::locks::kind;
use crate::text::{bytes, count, text, time};

/// The most of those who would lose something that are listed.
const SHOWN: usize = 100;

/// The most names that are looked at for the locks of a session.
const NAMES: u32 = 1_000;

/// What is known before an action is done.
#[derive(Debug)]
pub(crate) struct Preview {
    pub(crate) html: Markup,
    /// A digest of what matters to the decision. If it has changed, the action is not done.
    pub(crate) seen: String,
    /// Why it cannot be done now.
    pub(crate) impossible: Option<String>,
    /// Who would lose a lock that is freed.
    pub(crate) holders: Vec<LockInfo>,
    /// The end of the quarantine.
    pub(crate) until: Option<DateTime<Utc>>,
    /// The record that is decided about.
    pub(crate) record: Option<RecordInfo>,
}

impl Preview {
    fn new(html: Markup, seen: impl AsRef<[u8]>) -> Self {
        Self {
            html,
            seen: hex::encode(Sha256::digest(seen)),
            impossible: None,
            holders: Vec::new(),
            until: None,
            record: None,
        }
    }

    fn unless(mut self, is_impossible: bool, why: &str) -> Self {
        self.impossible = is_impossible.then(|| why.to_owned());
        self
    }

    pub(crate) async fn of(shared: &Shared, action: &Action) -> Result<Self, Error> {
        match action {
            Action::Free(name) => free(shared, name).await,
            Action::Capacity(name) => capacity(shared, name).await,
            Action::Forget(name) => forget(shared, name).await,
            Action::Pause(name) | Action::Resume(name) => pause(shared, action, name).await,
            Action::EndSession(id) => end_session(shared, *id).await,
            Action::Resolve(key) | Action::Reset(key) => record(shared, action, key).await,
            Action::Quarantine | Action::EndQuarantine => quarantine(shared, action).await,
        }
    }
}

/// The grants that would be lost.
fn grants(holders: &[LockInfo]) -> String {
    let mut ids: Vec<String> = holders
        .iter()
        .map(|held| held.grant_id.to_string())
        .collect();
    ids.sort();
    ids.join(" ")
}

fn losers(holders: &[LockInfo]) -> Markup {
    html! {
        ul {
            @for held in holders.iter().take(SHOWN) {
                li { (text(&held.holder)) ", with a " (held.mode) ", under fence " (held.fence) }
            }
            @if holders.len() > SHOWN { li { "and " (holders.len() - SHOWN) " more" } }
        }
    }
}

async fn free(shared: &Shared, name: &Name) -> Result<Preview, Error> {
    let holders = shared.rowlock.admin().holders(name.as_str()).await?;
    let info = info_of(shared, name).await?;
    let waiters = info.as_ref().map_or(0, |info| info.waiters);
    let pause = info.and_then(|info| info.pause);
    let until = shared.rowlock.admin().quarantine_until().await?;
    let html = html! {
        p { "The name: " strong { (text(name.as_str())) } }
        @if holders.is_empty() {
            p { "Nobody holds it. Freeing it repairs a damaged row." }
        } @else {
            p { "These lose it:" }
            (losers(&holders))
            p {
                "A holder learns of the loss at its next renewal, within a third of its TTL, and may go on \
                 working until then: stop it first, or have the resource check the fence. If "
                code { "rowlock run" } " holds it, its command is ended, and the exit code is 76."
            }
        }
        @if waiters > 0 { p { (next(waiters, pause.as_ref(), until)) } }
    };
    let is_unused = holders.is_empty() && waiters == 0;
    let preview = Preview::new(html, grants(&holders));
    let preview = Preview { holders, ..preview };
    Ok(preview.unless(
        is_unused,
        "Nobody holds it or waits for it: there is nothing to free.",
    ))
}

/// Who gets a name that is free.
fn next(waiters: u32, pause: Option<&PauseInfo>, until: Option<DateTime<Utc>>) -> Markup {
    let waiters = count(waiters.into(), "waiter", "waiters");
    html! {
        @if let Some(pause) = pause {
            "It is " (text(&pause.to_string())) ". None of the " (waiters) " gets it before the end of the pause."
        } @else if let Some(until) = until {
            "The database is in quarantine until " (time(until)) ". None of the " (waiters) " gets it before."
        } @else {
            "The first of " (waiters) " gets it."
        }
    }
}

async fn capacity(shared: &Shared, name: &Name) -> Result<Preview, Error> {
    let info = info_of(shared, name).await?;
    let now = info.map(|info| info.kind);
    let html = html! {
        p { "The name: " strong { (text(name.as_str())) } }
        @if let Some(now) = now { p { "Now it is a " (kind(now)) "." } }
        p {
            "With a larger capacity, waiters get permits at once, unless the name is paused or the database is in \
             quarantine. With a smaller one nobody loses a permit, and \
             there are no new permits until enough are released. A program that still uses the old capacity \
             fails with the error that the name has another one."
        }
    };
    let is_semaphore = matches!(now, Some(Kind::Semaphore { .. }));
    let preview = Preview::new(html, format!("{now:?}"));
    Ok(preview.unless(!is_semaphore, "Only a semaphore has a capacity."))
}

async fn forget(shared: &Shared, name: &Name) -> Result<Preview, Error> {
    let info = info_of(shared, name).await?;
    let is_used = info
        .as_ref()
        .is_some_and(|info| !info.holders.is_empty() || info.waiters > 0);
    let html = html! {
        p { "The name: " strong { (text(name.as_str())) } }
        @if let Some(info) = &info { p { "It is a " (kind(info.kind)) ". Nobody loses anything." } }
        p {
            "Its row is removed. It may become something else: a lock, a read/write lock, or a semaphore of another \
             capacity. Later fences are greater."
        }
    };
    let why = match (&info, is_used) {
        (None, _) => "The database has no row of this name: there is nothing to forget.",
        (Some(info), _) if info.pause.is_some() => {
            "It is paused. The row of a paused name is not removed: resume it first."
        }
        (Some(_), true) => "It is held or waited for. A name that is in use is not forgotten.",
        (Some(_), false) => "",
    };
    let preview = Preview::new(html, format!("{:?}", info.map(|info| info.kind)));
    Ok(preview.unless(!why.is_empty(), why))
}

async fn pause(shared: &Shared, action: &Action, name: &Name) -> Result<Preview, Error> {
    let pause = shared.rowlock.admin().paused(name.as_str()).await?;
    let begins = matches!(action, Action::Pause(_));
    let html = html! {
        p { "The name: " strong { (text(name.as_str())) } }
        @if let Some(pause) = &pause { p { "It is " (text(&pause.to_string())) "." } }
        @if begins {
            p {
                "Nobody is granted it meanwhile. Nobody loses it: who holds it keeps it until the release, and who \
                 waits goes on waiting, in the same order, and reads the reason (255 bytes at most)."
            }
        } @else {
            p { "Its first waiter gets it, if it is free and the database is not in quarantine." }
        }
    };
    let seen = pause
        .as_ref()
        .map(|pause| (&pause.by, &pause.why, pause.until));
    let seen = format!("{seen:?}");
    let is_over = !begins && pause.is_none();
    Ok(Preview::new(html, seen).unless(is_over, "It is not paused."))
}

async fn end_session(shared: &Shared, id: Uuid) -> Result<Preview, Error> {
    let admin = shared.rowlock.admin();
    let sessions = admin.sessions().await?;
    let session = sessions.into_iter().find(|session| session.id == id);
    let Some(session) = session else {
        let html = html! { p { "The session: " code { (id) } } };
        return Ok(Preview::new(html, "").unless(true, "There is no such session: it has ended."));
    };
    let held = NameFilter::new().state(NameState::Held).limit(NAMES);
    let held = admin.names(&held).await?.items;
    let names = held.iter().filter(|info| {
        let mut holders = info.holders.iter();
        holders.any(|held| held.session == Some(id))
    });
    let names: Vec<&Name> = names.map(|info| &info.name).collect();
    let html = html! {
        p { "The session " code { (id) } " of " strong { (text(&session.holder)) } }
        (lost_with(&session, &names))
        p {
            "Its waiters leave the queues. The client learns of it at the next renewal of its session, within a \
             third of its TTL, and may go on working until then: stop it first, or have the resource check the \
             fence."
        }
    };
    Ok(Preview::new(html, format!("{id} {}", session.locks)))
}

fn lost_with(session: &SessionInfo, names: &[&Name]) -> Markup {
    html! {
        p { "It loses " (count(session.locks, "lock", "locks")) @if names.is_empty() { "." } @else { ":" } }
        ul {
            @for name in names.iter().take(SHOWN) { li { (text(name.as_str())) } }
        }
        @if session.locks > names.len().min(SHOWN) as u64 {
            p { "These are the ones that were found among the first names. There are others." }
        }
    }
}

async fn record(shared: &Shared, action: &Action, key: &RecordKey) -> Result<Preview, Error> {
    let of = Scope(key.scope()).key(key.key());
    let info = shared.rowlock.idempotency().inspect(of).await?;
    let state = info.as_ref().map(|info| info.state);
    let step = info.as_ref().and_then(|info| info.open_step.as_deref());
    let resets = matches!(action, Action::Reset(_));
    let html = html! {
        p { "The record: " strong { (bytes(key.scope())) " / " (bytes(key.key())) } }
        @if let Some(info) = &info {
            p {
                "It is " (info.state) ". Its last attempt, number " (info.attempt) ", was of "
                (text(&info.holder)) "."
            }
        }
        @if let Some(step) = step {
            p { "Its step " strong { (text(step)) } " may or may not have happened: find out first." }
        }
        @if resets {
            p { "The next request with this key runs the work again. Results of finished steps are kept." }
        } @else {
            p {
                "Nobody loses anything. The next request with this key goes on from there, and its client gets the \
                 outcome."
            }
        }
    };
    let why = match (state, resets) {
        (None, _) => "There is no such record.",
        (Some(RecordState::Unknown), false)
        | (Some(RecordState::Lapsed | RecordState::Poisoned | RecordState::Free), true) => "",
        (Some(_), false) => "None of its steps is unknown: there is nothing to resolve.",
        (Some(RecordState::Unknown), true) => {
            "One of its steps may or may not have happened: find out, then resolve the record."
        }
        (Some(RecordState::Running), true) => {
            "An attempt is running: wait for the end of its lease."
        }
        (Some(_), true) => "It is done, and will not be run again.",
    };
    let attempt = info.as_ref().map(|info| info.attempt);
    let seen = format!("{state:?} {attempt:?} {step:?}");
    let preview = Preview {
        record: info,
        ..Preview::new(html, seen)
    };
    Ok(preview.unless(!why.is_empty(), why))
}

async fn quarantine(shared: &Shared, action: &Action) -> Result<Preview, Error> {
    let until = shared.rowlock.admin().quarantine_until().await?;
    let begins = matches!(action, Action::Quarantine);
    let html = html! {
        @match until {
            Some(until) => { p { "The database is in quarantine until " (time(until)) "." } }
            None => { p { "The database is not in quarantine." } }
        }
        @if begins {
            p {
                "For this time the database grants nothing: every process that asks for a lock waits or is told \
                 that it is busy, and no attempt begins. Nobody loses what they hold: leases are renewed and \
                 released. A quarantine that already lasts longer stays as it is."
            }
        } @else {
            p {
                "From then on the database grants again. If it has forgotten a lease, two holders may work at \
                 the same time: end the quarantine only if no lease was forgotten."
            }
        }
    };
    let is_over = !begins && until.is_none();
    let preview = Preview {
        until,
        ..Preview::new(html, format!("{until:?}"))
    };
    Ok(preview.unless(is_over, "There is no quarantine to end."))
}
