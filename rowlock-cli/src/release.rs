//! `rowlock release` and `rowlock forget`: an operator frees a name, or removes its row.

use rowlock::{Error, LockInfo, Name, Rowlock, RunState, SchemaError};

use crate::out::say;
use crate::{ABSENT, Failure, USAGE, database, show};

/// Why a release without --force does nothing: it says who would lose the name.
pub(crate) async fn refusal(rowlock: &Rowlock, name: &Name) -> Result<Failure, Error> {
    let held = rowlock.admin().holders(name.clone()).await?;
    let Some(first) = held.first() else {
        return Ok(Failure::Other(format!("nobody holds {name:?}"), ABSENT));
    };
    let more = match held.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let what = if has_ended(rowlock, first).await? {
        let until = show::for_people(first.expires_at);
        format!("Its run has ended, but no machine shall run the job again before {until}")
    } else {
        "That process learns of its loss within a third of its TTL, and may go on working until then, beside the next \
         holder"
            .into()
    };
    let message = format!(
        "{name:?} is held by {} since {}{more}. {what}. To free the name all the same, add --force",
        first.holder.escape_debug(),
        show::for_people(first.acquired_at)
    );
    Ok(Failure::Other(message, USAGE))
}

/// Whether the holder's run of the job has ended. The name stays taken for a while after that, so that no other run
/// begins.
async fn has_ended(rowlock: &Rowlock, held: &LockInfo) -> Result<bool, Error> {
    let runs = rowlock.admin().runs_of(held.name.clone()).await?;
    let is_over = |state| matches!(state, RunState::Succeeded | RunState::Failed);
    let mut ended = runs.iter().filter(|run| is_over(run.state));
    Ok(ended.any(|run| run.fence == held.fence))
}

/// Frees the name, and prints who held it.
pub(crate) async fn release(rowlock: &Rowlock, name: &Name) -> Result<(), Failure> {
    // `force_release` repairs a damaged row, but cannot return it, and returns one permit only.
    let seen = rowlock.admin().holders(name.clone()).await;
    let freed = match rowlock.admin().force_release(name.clone()).await {
        Ok(freed) => freed,
        Err(error) => {
            // It has freed what it could.
            let left = rowlock.admin().holders(name.clone()).await?;
            let is_left = |held: &LockInfo| left.iter().any(|left| left.grant_id == held.grant_id);
            let mut seen = seen.unwrap_or_default();
            seen.retain(|held| !is_left(held));
            show::print_released(name, &seen)?;
            return Err(error.into());
        }
    };
    if freed.is_none() && matches!(seen, Err(Error::Schema(SchemaError::Corrupt { .. }))) {
        return say!("released {name:?}: its row was damaged, so its holder is not known");
    }
    let all = seen.unwrap_or_default();
    let all = if all.len() > 1 {
        &all
    } else {
        freed.as_slice()
    };
    if all.is_empty() {
        say!("nobody held {name:?}")?;
        database::tell_where(rowlock);
    }
    show::print_released(name, all)
}

/// Removes the row of a name that nobody uses.
pub(crate) async fn forget(rowlock: &Rowlock, name: &Name) -> Result<(), Failure> {
    if rowlock.admin().forget(name.clone()).await? {
        return say!("forgot {name:?}: it may be used for anything now");
    }
    say!("there is nothing to forget: {name:?} has no row")?;
    database::tell_where(rowlock);
    Ok(())
}
